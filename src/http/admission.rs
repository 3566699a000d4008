//! What a request costs is looked at before its handler runs, and decides where it runs.
//!
//! ```text
//!  body whole (within its bound) ─► what it will take once it is read ─► its share of the budget
//!       costs little: here, on the edge's threads
//!       costs much:   in its turn, on the heavy threads; at most TURN_WAIT until then, else 429
//! ```
//! So a handler may parse and plan without looking at the time: other requests do not wait for it. A
//! request whose client has gone is given up at its next wait.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::request::Parts,
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tracing::Instrument;

use super::{Context, error::Error, request_body};
use crate::api::{ApiError, Limit};

/// Bodies beyond this are taken for costly, bytes. A job of a few groups is some KiB; parsing this
/// much takes a millisecond or two.
const BODY_BYTES_LITTLE: usize = 64 << 10;
/// Requests that compute much whatever their length: a few lines may ask for 50,000 instances.
const COSTLY: [&str; 4] =
    ["/plan", "/v1/jobs/parse", "/v1/validate/job", super::dispatch::BATCH_SUFFIX];

/// A body within its bounds, with its share of what all bodies may take.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) body: Bytes,
    /// Given back when the last holder has gone.
    pub(super) share: Arc<Option<OwnedSemaphorePermit>>,
}

/// Takes the body in and has the request answered where its cost does not matter.
pub(super) async fn admit(
    State(context): State<Context>,
    request: Request,
    next: Next,
) -> Response {
    match answer(context, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(context: Context, request: Request, next: Next) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    let (body, share) = request_body::read(&parts, body, &context).await?;
    let is_costly = is_costly(&parts, &body);
    parts.extensions.insert(Admitted { body, share: Arc::new(share) });
    let answer = next.run(Request::from_parts(parts, Body::empty()));
    if !is_costly {
        return Ok(answer.await);
    }
    let options = &context.options;
    let turn = timeout(options.timeout, Arc::clone(&context.budget.costly).acquire_owned());
    let Ok(Ok(turn)) = turn.await else {
        let limit = turns() as u64;
        let what = Limit::CostlyRequests;
        return Err(ApiError::Overloaded { what, limit, retry_after_ms: 1_000 }.into());
    };
    let answer = async move {
        let answer = answer.await;
        drop(turn);
        answer
    };
    Ok(options.heavy.run(answer.in_current_span()).await)
}

fn is_costly(parts: &Parts, body: &Bytes) -> bool {
    let path = parts.uri.path();
    let computes = !parts.method.is_safe() && COSTLY.iter().any(|costly| path.ends_with(costly));
    computes || body.len() > BODY_BYTES_LITTLE
}

/// Costly requests at a time: one computes on each heavy thread while another waits for the cluster.
pub(super) fn turns() -> usize {
    2 * crate::rt::heavy_threads()
}

/// Turns of costly requests.
pub(super) fn costly() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(turns()))
}
