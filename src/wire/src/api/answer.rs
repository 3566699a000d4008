//! The one map from failures to HTTP status, gRPC code and the time after which a client may try
//! again. Both edges use it.

use fsm::Rejection;
use hyper::StatusCode;
use tonic::Code;

use super::ApiError;

/// How an edge answers a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub http: StatusCode,
    pub grpc: Code,
    pub retry_after_ms: Option<u64>,
}

impl Answer {
    fn new(http: StatusCode, grpc: Code) -> Self {
        Self { http, grpc, retry_after_ms: None }
    }

    fn retry_after(self, ms: u64) -> Self {
        Self { retry_after_ms: Some(ms), ..self }
    }
}

impl From<&ApiError> for Answer {
    // Agents ask another server after `Unavailable` and `DeadlineExceeded`, and only after these.
    fn from(error: &ApiError) -> Self {
        match error {
            ApiError::NoLeader => Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Unavailable),
            ApiError::Timeout { proposed: false } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, Code::Unavailable)
            }
            ApiError::Timeout { proposed: true } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded)
            }
            ApiError::Unknown => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::DeadlineExceeded)
            }
            ApiError::Overloaded { what: _, limit: _, retry_after_ms } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, Code::ResourceExhausted)
                    .retry_after(*retry_after_ms)
            }
            ApiError::NotReady(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable).retry_after(1_000)
            }
            ApiError::DiskFull(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable).retry_after(30_000)
            }
            ApiError::Forbidden(_) => Self::new(StatusCode::FORBIDDEN, Code::PermissionDenied),
            ApiError::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, Code::InvalidArgument),
        }
    }
}

impl From<&Rejection> for Answer {
    // `NotFound` makes an agent register again, `FailedPrecondition` report and try again.
    fn from(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::StaleEpoch { .. } | Rejection::JobIndexConflict { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::FailedPrecondition)
            }
            Rejection::SessionExpired
            | Rejection::RequestIdReused
            | Rejection::InUse(_)
            | Rejection::IndexConflict { .. }
            | Rejection::StaleRequirements { .. } => {
                Self::new(StatusCode::CONFLICT, Code::FailedPrecondition)
            }
            Rejection::StaleIncarnation => Self::new(StatusCode::CONFLICT, Code::NotFound),
            Rejection::NotFound { .. } => Self::new(StatusCode::NOT_FOUND, Code::NotFound),
            Rejection::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, Code::FailedPrecondition),
            Rejection::RegistrationDisabled => {
                Self::new(StatusCode::FORBIDDEN, Code::FailedPrecondition)
            }
            Rejection::SecretMismatch => Self::new(StatusCode::FORBIDDEN, Code::PermissionDenied),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::failure::testing::every_error;

    #[test]
    fn every_error_has_its_row() {
        for error in every_error() {
            let (http, grpc, retry_after_ms) = match &error {
                ApiError::NoLeader => (500, Code::Unavailable, None),
                ApiError::Timeout { proposed: false } => (504, Code::Unavailable, None),
                ApiError::Timeout { proposed: true } => (504, Code::DeadlineExceeded, None),
                ApiError::Unknown => (500, Code::DeadlineExceeded, None),
                ApiError::Overloaded { .. } => (429, Code::ResourceExhausted, Some(250)),
                ApiError::NotReady(_) => (503, Code::Unavailable, Some(1_000)),
                ApiError::DiskFull(_) => (503, Code::Unavailable, Some(30_000)),
                ApiError::Forbidden(_) => (403, Code::PermissionDenied, None),
                ApiError::Invalid(_) => (400, Code::InvalidArgument, None),
            };
            let answer = Answer::from(&error);
            assert_eq!(answer.http.as_u16(), http, "{error:?}");
            assert_eq!((answer.grpc, answer.retry_after_ms), (grpc, retry_after_ms), "{error:?}");
        }
    }
}
