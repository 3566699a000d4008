//! Bodies of requests: each within the limit of its route and all within what they may take
//! together.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, Uri, header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};
use wire::api::{ApiError, Limit};

use super::{Context, HttpOptions, dispatch::BATCH_SUFFIX, error::Error, json_cost};

/// Bytes of an oversized body that are read and thrown away, so that the client gets to read the
/// answer.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// How much more a batch of dispatches may be than any other body: with the limit of 4 MiB 24 MiB,
/// which is 1,000 payloads of 16 KiB in base64 and 3 KiB of meta with each.
const BATCH_BODY_FACTOR: usize = 6;

/// How much more a body may take once it is read than a body may have on the wire: with the limit
/// of 4 MiB 64 MiB. The JSON of a job is reckoned at about eight times its length.
const READ_FACTOR: usize = 16;

/// The body of a request, and its share of what all bodies may take.
pub(super) async fn read(
    parts: &Parts,
    body: Body,
    context: &Context,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Error> {
    let options = &context.options;
    let limit = BodyLimit::of(&parts.uri, options);
    let length = BodyLength::of(&parts.headers, limit);
    let share = length.share(&context.budget.bodies, options)?;
    let body = collect(body, length, limit, options).await?;
    Ok((body, share))
}

/// The share of what a body becomes once it is read, to be held as long as that. Looks at each byte
/// once.
pub(super) fn share_of_values(
    body: &[u8],
    context: &Context,
) -> Result<Option<OwnedSemaphorePermit>, Error> {
    let options = &context.options;
    let cost = json_cost::of(body);
    let cost_max = options.request_bytes_max.saturating_mul(READ_FACTOR);
    if cost > cost_max {
        return Err(Error::body_too_costly(cost, cost_max));
    }
    BodyLength(cost).share(&context.budget.bodies, options)
}

/// Bytes that the body of a request may have.
#[derive(Clone, Copy)]
struct BodyLimit {
    bytes_max: usize,
    /// What to do about a body that is larger.
    remedy: &'static str,
}

impl BodyLimit {
    fn of(uri: &Uri, options: &HttpOptions) -> Self {
        let bytes_max = options.request_bytes_max;
        let path = uri.path();
        if path.starts_with("/v1/job/") && path.ends_with(BATCH_SUFFIX) {
            let of_batch = bytes_max.saturating_mul(BATCH_BODY_FACTOR);
            return Self {
                // A body beyond what all may take would be turned away each time.
                bytes_max: of_batch.min(options.request_bodies_bytes_max).max(bytes_max),
                remedy: "send fewer dispatches at a time",
            };
        }
        let remedy = "make it smaller, or raise limits.request_bytes_max of the servers";
        Self { bytes_max, remedy }
    }

    fn refusal(self) -> Error {
        Error::body_too_large(self.bytes_max, self.remedy)
    }
}

/// Bytes of a body that may have to be kept.
#[derive(Clone, Copy)]
struct BodyLength(usize);

impl BodyLength {
    fn of(headers: &HeaderMap, limit: BodyLimit) -> Self {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let unknown = headers.contains_key(header::TRANSFER_ENCODING);
        let length = if unknown { usize::MAX } else { announced.unwrap_or(0) };
        Self(length.min(limit.bytes_max))
    }

    /// Takes the body's share of what all bodies may take.
    fn share(
        self,
        bodies: &Arc<Semaphore>,
        options: &HttpOptions,
    ) -> Result<Option<OwnedSemaphorePermit>, Error> {
        if self.0 == 0 {
            return Ok(None);
        }
        let kib = u32::try_from(self.0.div_ceil(1_024)).unwrap_or(u32::MAX);
        Arc::clone(bodies).try_acquire_many_owned(kib).map(Some).map_err(|_| {
            let limit = options.request_bodies_bytes_max as u64;
            ApiError::Overloaded { what: Limit::RequestBytes, limit, retry_after_ms: 1_000 }.into()
        })
    }
}

async fn collect(
    body: Body,
    length: BodyLength,
    limit: BodyLimit,
    options: &HttpOptions,
) -> Result<Bytes, Error> {
    let bytes_max = limit.bytes_max;
    let deadline = Instant::now() + options.timeout;
    let mut collected = BytesMut::with_capacity(length.0.min(64 << 10));
    let mut received = 0usize;
    let mut stream = body.into_data_stream();
    loop {
        let chunk = match timeout_at(deadline, stream.next()).await {
            Err(_) if received > bytes_max => return Err(limit.refusal()),
            Err(_) => return Err(Error::body_timeout()),
            Ok(None) => break,
            Ok(Some(chunk)) => {
                chunk.map_err(|error| Error::bad(format!("the request body broke off: {error}")))?
            }
        };
        received = received.saturating_add(chunk.len());
        if received <= bytes_max {
            collected.extend_from_slice(&chunk);
        } else if received > bytes_max.saturating_add(DISCARD_BYTES_MAX) {
            break;
        }
    }
    if received > bytes_max {
        return Err(limit.refusal());
    }
    Ok(collected.freeze())
}
