//! Failed requests as HTTP answers: status and plain-text body. The status of a server's error
//! comes from [`Answer`]. Texts that Nomad's clients look for are Nomad's.

use axum::{
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use fsm::Rejection;
use ground::telemetry::LevelError;
use scheduler::what_if::WhatIfError;
use wire::api::{Answer, ApiError};

use super::answer::Meta;
use crate::body::WrongBody;

/// A failed request: what the client sees of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Error {
    status: StatusCode,
    text: String,
    retry_after_ms: Option<u64>,
    meta: Option<Meta>,
}

impl Error {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry_after_ms: None, meta: None }
    }

    fn answering(answer: Answer, text: String) -> Self {
        Self { retry_after_ms: answer.retry_after_ms, ..Self::new(answer.http, text) }
    }

    /// The request makes no sense.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// What the client is told.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// `job not found`, `alloc not found` …
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{what} not found"))
    }

    /// Nomad's words for something that an agent would have to know.
    pub(crate) fn unknown(what: &str, id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("Unknown {what} \"{id}\""))
    }

    /// The same, with the headers of the read that found nothing: a client can wait on its index.
    pub(crate) fn with_meta(self, meta: Meta) -> Self {
        Self { meta: Some(meta), ..self }
    }

    /// No endpoint has this path.
    pub(crate) fn not_found_path(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("unknown path \"{path}\""))
    }

    /// The endpoint does not take this method.
    pub(crate) fn wrong_method(method: &Method, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("method {method} is not allowed on \"{path}\""),
        )
    }

    /// An endpoint or option of Nomad's that this server does not have.
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("{what} is not supported by this server"))
    }

    /// An endpoint that only Nomad Enterprise has, in Nomad's words.
    pub(crate) fn enterprise_only() -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "Nomad Enterprise only endpoint")
    }

    /// The request's body is too large.
    pub(crate) fn body_too_large(bytes_max: usize, remedy: &str) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("request body is larger than the limit of {bytes_max} bytes: {remedy}"),
        )
    }

    /// A body of too many values.
    pub(crate) fn body_too_costly(bytes: usize, bytes_max: usize) -> Self {
        let (mib, mib_max) = (bytes >> 20, bytes_max >> 20);
        let text = format!(
            "the values of the request body take {mib} MiB, and {mib_max} MiB are the most: send fewer, or raise limits.request_bytes_max of the servers"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// The request's body did not arrive in time.
    pub(crate) fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")
    }

    /// The answer does not fit.
    pub(crate) fn answer_too_large(bytes_max: usize) -> Self {
        Self::bad(format!(
            "the answer is larger than the limit of {bytes_max} bytes: page with per_page and next_token"
        ))
    }

    /// Nomad's answer for a region it does not know.
    pub(crate) fn no_region() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "No path to region")
    }

    /// A defect of this program.
    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// The agent of a node cannot be asked.
    pub(crate) fn agent_unreachable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, text)
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        Self::answering(Answer::from(&error), error.to_string())
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::answering(Answer::from(&rejection), rejection.to_string())
    }
}

impl From<WhatIfError> for Error {
    fn from(error: WhatIfError) -> Self {
        match error {
            WhatIfError::Rejected(rejection) => rejection.into(),
            WhatIfError::Schedule(error) => Self::internal(error.to_string()),
        }
    }
}

impl From<WrongBody> for Error {
    fn from(error: WrongBody) -> Self {
        Self::bad(error.to_string())
    }
}

impl From<LevelError> for Error {
    fn from(error: LevelError) -> Self {
        match error {
            LevelError::Unknown(_) => Self::bad(error.to_string()),
            LevelError::NotStarted | LevelError::Reload(_) => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        if let Some(retry_after_ms) = self.retry_after_ms {
            let seconds = retry_after_ms.div_ceil(1_000).max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            response
                .headers_mut()
                .insert(HeaderName::from_static("x-retry-after-ms"), retry_after_ms.into());
        }
        if let Some(meta) = self.meta {
            meta.write(response.headers_mut());
        }
        response
    }
}
