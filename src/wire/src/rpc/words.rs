//! Enums of `fsm` as numbers on the wire. Both directions are total: a number that this binary does
//! not know is an error of the call, never another value.

use fsm::{ClientStatus, JobKind, Liveness, node::Readiness};
use leader::broker::NackReason;
use proto::v1 as pb;
use tonic::Status;

/// A number for which this binary has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {number}")]
pub struct UnknownWord {
    what: &'static str,
    number: i32,
}

impl From<UnknownWord> for Status {
    fn from(error: UnknownWord) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

macro_rules! words {
    ($word:ident $what:literal: $to_pb:ident, $from_pb:ident { $($variant:ident),* }) => {
        #[doc = concat!("The number of a ", $what, ".")]
        pub fn $to_pb(word: $word) -> pb::$word {
            match word {
                $($word::$variant => pb::$word::$variant,)*
            }
        }

        #[doc = concat!("The ", $what, " of a number.")]
        pub fn $from_pb(number: i32) -> Result<$word, UnknownWord> {
            match pb::$word::try_from(number) {
                $(Ok(pb::$word::$variant) => Ok($word::$variant),)*
                Ok(pb::$word::Unspecified) | Err(_) => Err(UnknownWord { what: $what, number }),
            }
        }
    };
}

words!(JobKind "job kind": job_kind_to_pb, job_kind { Service, Batch, System, Sysbatch });
words!(ClientStatus "client status": client_status_to_pb, client_status {
    Pending, Running, Complete, Failed, Lost, Unknown
});
words!(Liveness "liveness": liveness_to_pb, liveness { Initializing, Ready, Disconnected, Down });
words!(NackReason "reason": nack_reason_to_pb, nack_reason { Failed, Lag, Shutdown });

/// The number of what a readiness check found.
pub fn readiness_to_pb(readiness: Readiness) -> pb::Readiness {
    match readiness {
        Readiness::Ok => pb::Readiness::Ready,
        Readiness::Retry => pb::Readiness::NotYet,
        Readiness::Fatal => pb::Readiness::Fatal,
    }
}

/// What a readiness check found.
pub fn readiness(number: i32) -> Result<Readiness, UnknownWord> {
    match pb::Readiness::try_from(number) {
        Ok(pb::Readiness::Ready) => Ok(Readiness::Ok),
        Ok(pb::Readiness::NotYet) => Ok(Readiness::Retry),
        Ok(pb::Readiness::Fatal) => Ok(Readiness::Fatal),
        Ok(pb::Readiness::Unspecified) | Err(_) => Err(UnknownWord { what: "readiness", number }),
    }
}

/// The name of a task's phase in the API.
pub fn task_phase(number: i32) -> Result<&'static str, UnknownWord> {
    match pb::TaskPhase::try_from(number) {
        Ok(pb::TaskPhase::Pending) => Ok("pending"),
        Ok(pb::TaskPhase::Running) => Ok("running"),
        Ok(pb::TaskPhase::Dead) => Ok("dead"),
        Ok(pb::TaskPhase::Unspecified) | Err(_) => Err(UnknownWord { what: "task phase", number }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_comes_back_and_no_other_number_is_one() {
        for kind in JobKind::ALL {
            assert_eq!(job_kind(job_kind_to_pb(kind).into()), Ok(kind));
        }
        for status in ClientStatus::ALL {
            assert_eq!(client_status(client_status_to_pb(status).into()), Ok(status));
        }
        for number in 1..=4 {
            assert_eq!(liveness(number).map(|word| liveness_to_pb(word).into()), Ok(number));
        }
        for number in 1..=3 {
            assert_eq!(nack_reason(number).map(|word| nack_reason_to_pb(word).into()), Ok(number));
            assert!(task_phase(number).is_ok());
            assert_eq!(readiness(number).map(|word| readiness_to_pb(word).into()), Ok(number));
        }
        for number in [-1, 0, 7, 99] {
            assert!(job_kind(number).is_err(), "{number}");
            assert!(client_status(number).is_err(), "{number}");
            assert!(liveness(number).is_err(), "{number}");
            assert!(nack_reason(number).is_err(), "{number}");
            assert!(task_phase(number).is_err(), "{number}");
            assert!(readiness(number).is_err(), "{number}");
        }
        let error = client_status(7).expect_err("no such status");
        assert_eq!(error.to_string(), "unknown client status 7");
    }
}
