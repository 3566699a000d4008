//! Estimates the cost of a request before its handler runs, and decides on which threads it runs.
//!
//! ```text
//!  a read                        ─► where reads of its route lately held no thread for long: here, on
//!                                   the edge's threads, else on the heavy ones
//!  body whole (within its bound) ─► costs little: here
//!                                ─► costs much:   in its turn, on the heavy threads; none within the
//!                                                 time of a request: 429
//!  then: its share of what all bodies become once they are read ─► handler
//! ```
//!
//! So a handler may take long to parse and plan: other requests do not wait for it. A request whose
//! client has gone is cancelled the next time it waits.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
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
use wire::api::{ApiError, Limit};

use super::{Context, error::Error, request_body};

/// A request with a larger body counts as costly, bytes. A job of a few groups has some KiB, and
/// parsing a body of this size delays nobody noticeably.
const BODY_BYTES_LITTLE: usize = 64 << 10;
/// Endings of paths whose requests are costly at any length. For example, a few lines may ask for
/// 50,000 instances.
const COSTLY: [&str; 4] =
    ["/plan", "/v1/jobs/parse", "/v1/validate/job", super::dispatch::BATCH_SUFFIX];

/// A request body within its bound, with its shares of the memory budget.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) body: Bytes,
    /// The shares for its bytes and for the values parsed from them. They are returned when the
    /// last holder is dropped.
    pub(super) shares: Arc<Shares>,
}

/// Shares of the memory budget of request bodies.
pub(super) type Shares = [Option<OwnedSemaphorePermit>; 2];

/// Reads the body, and runs the request on the threads that suit its cost.
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
    let (parts, body) = request.into_parts();
    let (body, share) = request_body::read(&parts, body, &context).await?;
    if !is_costly(&parts, &body) {
        let route = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().into());
        let (heavy, costs) = (context.options.heavy.clone(), Arc::clone(&context.budget.reads));
        let is_read = parts.method.is_safe();
        let answer = handle(context, parts, (body, share), next);
        return match route {
            Some(route) if is_read => costs.answer(&heavy, route, answer.in_current_span()).await,
            _ => answer.await,
        };
    }
    let (heavy, costly) = (context.options.heavy.clone(), Arc::clone(&context.budget.costly));
    let Ok(Ok(turn)) = timeout(context.options.timeout, costly.acquire_owned()).await else {
        let limit = turns() as u64;
        let what = Limit::CostlyRequests;
        return Err(ApiError::Overloaded { what, limit, retry_after_ms: 1_000 }.into());
    };
    let answer = async move {
        let answer = handle(context, parts, (body, share), next).await;
        drop(turn);
        answer
    };
    heavy.run(answer.in_current_span()).await
}

async fn handle(
    context: Context,
    mut parts: Parts,
    (body, share): (Bytes, Option<OwnedSemaphorePermit>),
    next: Next,
) -> Result<Response, Error> {
    let of_values = request_body::share_of_values(&body, &context)?;
    let shares = Arc::new([share, of_values]);
    parts.extensions.insert(Admitted { body, shares });
    Ok(next.run(Request::from_parts(parts, Body::empty())).await)
}

fn is_costly(parts: &Parts, body: &Bytes) -> bool {
    let path = parts.uri.path();
    let computes = !parts.method.is_safe() && COSTLY.iter().any(|costly| path.ends_with(costly));
    computes || body.len() > BODY_BYTES_LITTLE
}

/// How many costly requests run at a time: two for each heavy thread, so that one computes while
/// another waits for the cluster.
pub(super) fn turns() -> usize {
    2 * ground::rt::heavy_threads()
}

/// The permits for costly requests.
pub(super) fn costly() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(turns()))
}
