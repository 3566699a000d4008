//! Leases, and requests for them, as values that workers and the leader exchange.

use std::{sync::Arc, time::Duration};

use fsm::{Evaluation, EvaluationId, Index, JobKind};
use leader::broker::Token;

/// An evaluation handed to a worker.
#[derive(Clone)]
pub struct Lease {
    pub evaluation: Arc<Evaluation>,
    pub token: Token,
    /// The worker plans on a state of at least this index.
    pub wait_index: Index,
    pub epoch: u64,
}

/// Identifies a lease to the leader.
#[derive(Clone, Copy)]
pub struct LeaseKey {
    pub evaluation: EvaluationId,
    pub token: Token,
    pub epoch: u64,
}

impl Lease {
    /// The key of this lease.
    pub fn key(&self) -> LeaseKey {
        LeaseKey { evaluation: self.evaluation.id, token: self.token, epoch: self.epoch }
    }
}

/// A long poll for leases.
pub struct Dequeue {
    /// The server whose workers ask.
    pub server: u64,
    pub kinds: Vec<JobKind>,
    pub leases_max: u32,
    pub wait: Duration,
    pub scheduler_version: u32,
}
