//! Answers: a body and Nomad's index headers. Must never be built from a snapshot that the headers do not describe.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fsm::Index;

use crate::server::api::Snapshot;

/// What the headers say of the state an answer was read from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    /// Index to wait on; at least 1.
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

/// A successful answer, or a failed one with a JSON body.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status.
    pub(crate) status: StatusCode,
    /// Media type of the body.
    pub(crate) content_type: &'static str,
    /// Body.
    pub(crate) body: Bytes,
    /// Headers of reads.
    pub(crate) meta: Option<Meta>,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(meta) = self.meta {
            meta.write(headers);
        }
        response
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
