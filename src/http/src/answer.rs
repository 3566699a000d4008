//! Answers: a body, whole or as a stream, and Nomad's index headers; and what the whole bodies of
//! all may take. Must never be built from a snapshot that the headers do not describe.

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

/// Longest body that is not counted, bytes: [`crate::serve::CONNECTIONS_MAX`] of them are 256 MiB.
const BODY_BYTES_UNCOUNTED: usize = 64 << 10;

/// What the headers say of the state an answer was read from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    /// Index to wait on; at least 1, but for lists of tables that were never written.
    pub(crate) index: Index,
    /// Age of the last contact with a leader.
    pub(crate) last_contact: Duration,
    /// A leader is known.
    pub(crate) known_leader: bool,
    /// Where the next page begins.
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

/// What an answer consists of.
#[derive(Debug)]
enum AnswerBody {
    /// It is there before the answer begins.
    Whole(Bytes),
    /// It comes part by part, as fast as its client takes it. Never collected: no more of it takes
    /// memory than the parts on their way.
    Stream(Body),
}

/// A successful answer, a failed one with a JSON body, or whatever an agent answered.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    /// All headers but those of reads.
    headers: HeaderMap,
    body: AnswerBody,
    /// Headers of reads.
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

    /// The answer of another process, with its status and headers: its body streams through.
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

/// What the whole bodies of all answers may take that their clients have not taken yet. Streams
/// have no share: they hold a few parts each.
#[derive(Clone)]
pub(crate) struct AnswerBodies {
    /// KiB that are free.
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl AnswerBodies {
    /// Bodies of so many bytes in all.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max.div_ceil(1_024))), bytes_max }
    }

    /// The same body with its share of what all may take, which it has until the last part of it is
    /// written or dropped. It is not waited for: a body that waits takes memory too.
    pub(crate) fn hold(&self, body: Bytes) -> Result<Bytes, Error> {
        if body.len() <= BODY_BYTES_UNCOUNTED {
            return Ok(body);
        }
        // A longer one than all may be, as an indented list can be, takes the place of all.
        let kib = body.len().min(self.bytes_max).div_ceil(1_024);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let share = Arc::clone(&self.free).try_acquire_many_owned(kib).map_err(|_| {
            let limit = self.bytes_max as u64;
            ApiError::Overloaded { what: Limit::ResponseBytes, limit, retry_after_ms: 1_000 }
        })?;
        Ok(Bytes::from_owner(Held { body, _share: share }))
    }
}

/// A body and its share. The connection takes the bytes out of the answer before it writes them, so
/// the share is with the bytes.
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
    /// Adds the headers.
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
