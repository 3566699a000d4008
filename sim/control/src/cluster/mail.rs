//! Messages between workers and leaders: they are lost, come late, in any order, and twice.

use fsm::{EvaluationId, Plan};
use leader::{BrokerError, Lease, NackReason, PlanAnswer, Token};

use crate::promises::CallId;

/// What a worker asks of a leader.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Leases of these kinds.
    Dequeue(Vec<fsm::JobKind>),
    Plan(Box<Plan>, Token, u64),
    Ack(EvaluationId, Token, u64),
    Nack(EvaluationId, Token, u64, NackReason),
}

/// A message between a worker and a leader.
pub(crate) enum Mail {
    ToLeader {
        to: usize,
        worker: usize,
        call: CallId,
        ask: Ask,
    },
    Leases {
        worker: usize,
        call: CallId,
        reply: Result<Vec<(Lease, u64)>, BrokerError>,
    },
    Answer {
        worker: usize,
        call: CallId,
        answer: Result<PlanAnswer, BrokerError>,
    },
    /// Not a leader, or no connection.
    Failed {
        worker: usize,
        call: CallId,
    },
    /// The lease is of another epoch.
    Refused {
        worker: usize,
        call: CallId,
    },
}
