//! Answers: a body, complete or streamed, and Nomad's index headers. Also the memory budget of all
//! complete bodies. An answer must never be built from a snapshot that its headers do not describe.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fsm::Index;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::api::{ApiError, Limit, Snapshot};

use super::error::Error;

/// A body up to this size takes no share of the memory budget, bytes. For
/// [`crate::serve::CONNECTIONS_MAX`] connections that is 256 MiB.
const BODY_BYTES_UNCOUNTED: usize = 64 << 10;

/// The state that an answer was read from, as its headers describe it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    /// Index for the next blocking query. At least 1, except for lists of tables that were never
    /// written.
    pub(crate) index: Index,
    /// Time since the last contact with a leader.
    pub(crate) last_contact: Duration,
    /// Whether a leader is known.
    pub(crate) known_leader: bool,
    /// Token of the next page.
    pub(crate) next_token: Option<String>,
}

impl Meta {
    /// The headers for a snapshot.
    pub(crate) fn of(snapshot: &Snapshot, index: Index) -> Self {
        Self {
            index: index.max(1),
            last_contact: snapshot.last_contact,
            known_leader: snapshot.known_leader,
            next_token: None,
        }
    }
}

/// The body of an answer.
#[derive(Debug)]
enum AnswerBody {
    /// The complete body is in memory before the answer begins.
    Whole(Bytes),
    /// The body is streamed as fast as the client reads it. It is never collected, so that only the
    /// parts on their way take memory.
    Stream(Body),
}

/// An answer: a success, an error with a JSON body, or the answer of an agent.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    /// All headers except those of `meta`.
    headers: HeaderMap,
    body: AnswerBody,
    /// The headers of a read.
    meta: Option<Meta>,
}

impl Answer {
    /// An answer with a JSON body.
    pub(crate) fn json(status: StatusCode, body: Bytes, meta: Option<Meta>) -> Self {
        Self { status, meta, ..Self::of_type("application/json", body) }
    }

    /// An answer with a body of this media type.
    pub(crate) fn of_type(content_type: &'static str, body: Bytes) -> Self {
        let content_type = HeaderValue::from_static(content_type);
        Self {
            status: StatusCode::OK,
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]),
            body: AnswerBody::Whole(body),
            meta: None,
        }
    }

    /// The answer of another process, with its status and headers. Its body is streamed through.
    pub(crate) fn passed_on(response: Response) -> Self {
        let (head, body) = response.into_parts();
        let body = AnswerBody::Stream(body);
        Self { status: head.status, headers: head.headers, body, meta: None }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(match self.body {
            AnswerBody::Whole(bytes) => Body::from(bytes),
            AnswerBody::Stream(body) => body,
        });
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let Some(meta) = self.meta {
            meta.write(response.headers_mut());
        }
        response
    }
}

/// The memory budget for complete bodies of answers that clients have not read yet. Streams take no
/// share, because each holds only a few parts.
#[derive(Clone)]
pub(crate) struct AnswerBodies {
    /// A permit for each free KiB.
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl AnswerBodies {
    /// A budget of `bytes_max` bytes in all.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max.div_ceil(1_024))), bytes_max }
    }

    /// Takes a share of the budget for a body. The share is returned when the last part of the body
    /// has been written or dropped. If the budget is used up, this fails at once: a body that
    /// waited would take memory too.
    pub(crate) fn hold(&self, body: Bytes) -> Result<Bytes, Error> {
        if body.len() <= BODY_BYTES_UNCOUNTED {
            return Ok(body);
        }
        // A body larger than the whole budget (possible for an indented list) takes all of it.
        let kib = body.len().min(self.bytes_max).div_ceil(1_024);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let share = Arc::clone(&self.free).try_acquire_many_owned(kib).map_err(|_| {
            let limit = self.bytes_max as u64;
            ApiError::Overloaded { what: Limit::ResponseBytes, limit, retry_after_ms: 1_000 }
        })?;
        Ok(Bytes::from_owner(Held { body, _share: share }))
    }
}

/// A body with its share. The connection takes the bytes out of the answer before it writes them,
/// so the share must stay with the bytes.
struct Held {
    body: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Meta {
    /// Adds these headers.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let last_contact_ms = u64::try_from(self.last_contact.as_millis()).unwrap_or(u64::MAX);
        headers.insert(HeaderName::from_static("x-nomad-index"), self.index.into());
        headers.insert(HeaderName::from_static("x-nomad-lastcontact"), last_contact_ms.into());
        headers.insert(
            HeaderName::from_static("x-nomad-knownleader"),
            HeaderValue::from_static(if self.known_leader { "true" } else { "false" }),
        );
        let token = self.next_token.as_ref().and_then(|token| HeaderValue::from_str(token).ok());
        if let Some(token) = token {
            headers.insert(HeaderName::from_static("x-nomad-nexttoken"), token);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_body_has_its_share_until_the_last_part_of_it_is_dropped() {
        let bodies = AnswerBodies::new(300 << 10);
        let hold = |kib: usize| bodies.hold(vec![b'x'; kib << 10].into());
        let whole = hold(200).unwrap();
        assert_eq!(whole, vec![b'x'; 200 << 10]);
        let limit = 300 << 10;
        let full =
            ApiError::Overloaded { what: Limit::ResponseBytes, limit, retry_after_ms: 1_000 };
        assert_eq!(hold(200).unwrap_err(), Error::from(full));
        assert!(hold(100).is_ok(), "there is room for half as much");
        let rest = whole.slice(1_000..);
        drop(whole);
        assert!(hold(200).is_err(), "a part is not written yet");
        drop(rest);
        let larger_than_all = hold(400).unwrap();
        assert!(hold(65).is_err());
        assert!(hold(64).is_ok(), "short ones do not count");
        drop(larger_than_all);
        assert!(hold(300).is_ok());
    }
}
