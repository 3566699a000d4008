//! Errors on their way between servers: an [`ApiError`] travels as a message in the details of a
//! gRPC status, and comes back as the same variant with the same values.
//!
//! A status without such details says nothing about the outcome. Nor does a kind or a limit that
//! this binary does not know. The caller decides what it means, and must not take the outcome for
//! certain.

use prost::Message;
use proto::v1::{self as pb, failure::Kind};
use tonic::Status;

use super::{Answer, ApiError, Limit};

impl From<Limit> for pb::Limit {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::PendingEvaluations => Self::PendingEvaluations,
            Limit::Proposals => Self::Proposals,
            Limit::NodeReports => Self::NodeReports,
            Limit::Requirements => Self::Requirements,
            Limit::RequirementStreams => Self::RequirementStreams,
            Limit::RequestBytes => Self::RequestBytes,
            Limit::ResponseBytes => Self::ResponseBytes,
            Limit::LargeLists => Self::LargeLists,
            Limit::CostlyRequests => Self::CostlyRequests,
        }
    }
}

fn limit(number: i32) -> Option<Limit> {
    match pb::Limit::try_from(number).ok()? {
        pb::Limit::Unspecified => None,
        pb::Limit::PendingEvaluations => Some(Limit::PendingEvaluations),
        pb::Limit::Proposals => Some(Limit::Proposals),
        pb::Limit::NodeReports => Some(Limit::NodeReports),
        pb::Limit::Requirements => Some(Limit::Requirements),
        pb::Limit::RequirementStreams => Some(Limit::RequirementStreams),
        pb::Limit::RequestBytes => Some(Limit::RequestBytes),
        pb::Limit::ResponseBytes => Some(Limit::ResponseBytes),
        pb::Limit::LargeLists => Some(Limit::LargeLists),
        pb::Limit::CostlyRequests => Some(Limit::CostlyRequests),
    }
}

impl From<&ApiError> for pb::Failure {
    fn from(error: &ApiError) -> Self {
        let kind = match error {
            ApiError::NoLeader => Kind::NoLeader(true),
            ApiError::Timeout { proposed } => Kind::TimedOut(*proposed),
            ApiError::Unknown => Kind::Unknown(true),
            ApiError::Overloaded { what, limit, retry_after_ms } => {
                Kind::Overloaded(pb::failure::Overloaded {
                    limit: pb::Limit::from(*what).into(),
                    value: *limit,
                    retry_after_ms: *retry_after_ms,
                })
            }
            ApiError::NotReady(why) => Kind::NotReady(why.clone()),
            ApiError::DiskFull(why) => Kind::DiskFull(why.clone()),
            ApiError::Forbidden(why) => Kind::Forbidden(why.clone()),
            ApiError::Invalid(why) => Kind::Invalid(why.clone()),
        };
        Self { kind: Some(kind) }
    }
}

/// The error in a message; `None` if this binary does not know it.
pub fn error_of(failure: pb::Failure) -> Option<ApiError> {
    Some(match failure.kind? {
        Kind::NoLeader(_) => ApiError::NoLeader,
        Kind::TimedOut(proposed) => ApiError::Timeout { proposed },
        Kind::Unknown(_) => ApiError::Unknown,
        Kind::Overloaded(overloaded) => ApiError::Overloaded {
            what: limit(overloaded.limit)?,
            limit: overloaded.value,
            retry_after_ms: overloaded.retry_after_ms,
        },
        Kind::NotReady(why) => ApiError::NotReady(why),
        Kind::DiskFull(why) => ApiError::DiskFull(why),
        Kind::Forbidden(why) => ApiError::Forbidden(why),
        Kind::Invalid(why) => ApiError::Invalid(why),
    })
}

impl From<&ApiError> for Status {
    fn from(error: &ApiError) -> Self {
        let details = pb::Failure::from(error).encode_to_vec();
        Self::with_details(Answer::from(error).grpc, error.to_string(), details.into())
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        Self::from(&error)
    }
}

/// The error in the status of an answer; `None` if the status does not hold one.
pub fn error_in(status: &Status) -> Option<ApiError> {
    error_of(pb::Failure::decode(status.details()).ok()?)
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::{ApiError, Limit};

    /// The name of a variant. A new one does not compile without a line here, and is listed below.
    fn number(error: &ApiError) -> usize {
        match error {
            ApiError::NoLeader => 0,
            ApiError::Timeout { .. } => 1,
            ApiError::Unknown => 2,
            ApiError::Overloaded { .. } => 3,
            ApiError::NotReady(_) => 4,
            ApiError::DiskFull(_) => 5,
            ApiError::Invalid(_) => 6,
            ApiError::Forbidden(_) => 7,
        }
    }

    /// At least one value of every variant, and every limit.
    pub fn every_error() -> Vec<ApiError> {
        let limits = [
            Limit::PendingEvaluations,
            Limit::Proposals,
            Limit::NodeReports,
            Limit::Requirements,
            Limit::RequirementStreams,
            Limit::RequestBytes,
            Limit::ResponseBytes,
            Limit::LargeLists,
            Limit::CostlyRequests,
        ];
        let overloaded =
            limits.map(|what| ApiError::Overloaded { what, limit: 7, retry_after_ms: 250 });
        let mut all = vec![
            ApiError::NoLeader,
            ApiError::Timeout { proposed: false },
            ApiError::Timeout { proposed: true },
            ApiError::Unknown,
            ApiError::NotReady("the server is stopping".to_owned()),
            ApiError::DiskFull("/data has 0 MiB free".to_owned()),
            ApiError::Invalid("no such job".to_owned()),
            ApiError::Forbidden("command Tick is not taken from a client".to_owned()),
        ];
        all.extend(overloaded);
        let numbers: std::collections::BTreeSet<usize> = all.iter().map(number).collect();
        assert_eq!(numbers, (0..8).collect(), "a variant is not listed");
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_comes_back_as_it_was_also_when_it_is_forwarded_twice() {
        for error in testing::every_error() {
            let once = error_in(&Status::from(&error));
            let twice = once.as_ref().and_then(|error| error_in(&Status::from(error)));
            assert_eq!((once.as_ref(), twice.as_ref()), (Some(&error), Some(&error)));
        }
    }

    #[test]
    fn an_unknown_failure_is_no_error_of_another_kind() {
        assert_eq!(error_in(&Status::unavailable("connection lost")), None);
        let overloaded = pb::failure::Overloaded { limit: 99, value: 1, retry_after_ms: 1 };
        let unknown = pb::Failure { kind: Some(Kind::Overloaded(overloaded)) };
        assert_eq!(error_of(unknown), None);
        assert_eq!(error_of(pb::Failure { kind: None }), None);
    }
}
