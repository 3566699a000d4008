//! Counters and times of a server's workers.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use fsm::{Index, JobKind};

use crate::{api::Sample, server::histogram::Histogram};

/// Counters and times of a server's workers since its start.
#[derive(Default, Debug)]
pub struct WorkerStats {
    pub(super) acknowledged: AtomicU64,
    pub(super) released_for_lag: AtomicU64,
    pub(super) nacked: AtomicU64,
    pub(super) invoked: AtomicU64,
    pub(super) held: AtomicU64,
    /// The index that a lease was released for. Until it is applied here, no worker of this server
    /// leases anything.
    caught_up_at: AtomicU64,
    pub(super) times: Times,
}

/// How long the steps of workers took.
#[derive(Default, Debug)]
pub(super) struct Times {
    /// A dequeue that brought something, its wait included.
    pub(super) dequeue: Histogram,
    pub(super) wait_for_index: Histogram,
    /// By kind, in the order of [`JobKind::ALL`].
    invoke: [Histogram; JobKind::ALL.len()],
    /// A plan until its outcome was known, with its resubmissions.
    pub(super) submit: Histogram,
    pub(super) acknowledge: Histogram,
}

impl Times {
    /// Those of scheduling passes of a kind.
    pub(super) fn invoke(&self, kind: JobKind) -> &Histogram {
        let position = JobKind::ALL.iter().position(|one| *one == kind);
        &self.invoke[position.expect("ALL holds every kind")]
    }
}

impl WorkerStats {
    /// Evaluations brought to their end.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Leases released because the local state lagged.
    pub fn released_for_lag(&self) -> u64 {
        self.released_for_lag.load(Ordering::Relaxed)
    }

    /// Leases given back for another reason: a failed turn, or the server stops.
    pub fn nacked(&self) -> u64 {
        self.nacked.load(Ordering::Relaxed)
    }

    /// Leases that workers of this server hold now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Scheduling passes.
    pub fn invoked(&self) -> u64 {
        self.invoked.load(Ordering::Relaxed)
    }

    /// The index that this server has to reach before it leases again.
    pub(super) fn caught_up_at(&self) -> Index {
        self.caught_up_at.load(Ordering::Relaxed)
    }

    /// A lease was released for this index.
    pub(super) fn lags_behind(&self, index: Index) {
        self.caught_up_at.fetch_max(index, Ordering::Relaxed);
    }

    /// The times by their names in the metrics, which are Nomad's.
    pub(crate) fn samples(&self) -> BTreeMap<String, Sample> {
        let Times { dequeue, wait_for_index, submit, acknowledge, .. } = &self.times;
        let mut samples = BTreeMap::from([
            ("nomad.worker.dequeue_eval".to_owned(), dequeue.sample()),
            ("nomad.worker.wait_for_index".to_owned(), wait_for_index.sample()),
            ("nomad.worker.submit_plan".to_owned(), submit.sample()),
            ("nomad.worker.send_ack".to_owned(), acknowledge.sample()),
        ]);
        for kind in JobKind::ALL {
            let name = format!("nomad.worker.invoke_scheduler.{}", kind.name());
            samples.insert(name, self.times.invoke(kind).sample());
        }
        samples
    }
}
