//! Counters and times of a server's workers.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use fsm::{EvaluationStatus, Index, JobKind, Plan};
use ground::histogram::Histogram;
use wire::api::Sample;

/// Counters and times of a server's workers since its start.
#[derive(Default, Debug)]
pub(crate) struct WorkerStats {
    pub(crate) acknowledged: AtomicU64,
    pub(crate) released_for_lag: AtomicU64,
    pub(crate) nacked: AtomicU64,
    pub(crate) invoked: AtomicU64,
    pub(crate) held: AtomicU64,
    /// The index that a lease was released for. Until it is applied here, no worker of this server
    /// leases anything.
    caught_up_at: AtomicU64,
    pub(crate) times: Times,
    pub(crate) outcomes: Outcomes,
}

/// What plans that were applied have made of evaluations.
#[derive(Default, Debug)]
pub(crate) struct Outcomes {
    created: AtomicU64,
    blocked: AtomicU64,
    reblocked: AtomicU64,
    followed_up: AtomicU64,
}

/// The outcome of one plan, for [`Outcomes`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Made {
    created: u64,
    blocked: u64,
    reblocked: u64,
    followed_up: u64,
}

impl Made {
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut made = Self::default();
        let Some(outcome) = &plan.outcome else { return made };
        made.reblocked = u64::from(outcome.status == EvaluationStatus::Blocked);
        for evaluation in &outcome.evaluations {
            let count = if evaluation.status == EvaluationStatus::Blocked {
                &mut made.blocked
            } else if evaluation.wait_until > 0 {
                &mut made.followed_up
            } else {
                &mut made.created
            };
            *count += 1;
        }
        made
    }
}

impl Outcomes {
    pub(crate) fn add(&self, made: Made) {
        self.created.fetch_add(made.created, Ordering::Relaxed);
        self.blocked.fetch_add(made.blocked, Ordering::Relaxed);
        self.reblocked.fetch_add(made.reblocked, Ordering::Relaxed);
        self.followed_up.fetch_add(made.followed_up, Ordering::Relaxed);
    }
}

/// How long the steps of workers took.
#[derive(Default, Debug)]
pub(crate) struct Times {
    /// A dequeue that brought something, its wait included.
    pub(crate) dequeue: Histogram,
    pub(crate) wait_for_index: Histogram,
    /// By kind, in the order of [`JobKind::ALL`].
    invoke: [Histogram; JobKind::ALL.len()],
    /// A plan until its outcome was known, with its resubmissions.
    pub(crate) submit: Histogram,
    pub(crate) acknowledge: Histogram,
}

impl Times {
    /// Those of scheduling passes of a kind.
    pub(crate) fn invoke(&self, kind: JobKind) -> &Histogram {
        let position = JobKind::ALL.iter().position(|one| *one == kind);
        &self.invoke[position.expect("ALL holds every kind")]
    }
}

impl WorkerStats {
    /// Evaluations brought to their end.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Leases released because the local state lagged.
    pub(crate) fn released_for_lag(&self) -> u64 {
        self.released_for_lag.load(Ordering::Relaxed)
    }

    /// Leases given back for another reason: a failed turn, or the server stops.
    pub(crate) fn nacked(&self) -> u64 {
        self.nacked.load(Ordering::Relaxed)
    }

    /// Leases that workers of this server hold now.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Scheduling passes.
    pub(crate) fn invoked(&self) -> u64 {
        self.invoked.load(Ordering::Relaxed)
    }

    /// The index that this server has to reach before it leases again.
    pub(crate) fn caught_up_at(&self) -> Index {
        self.caught_up_at.load(Ordering::Relaxed)
    }

    /// A lease was released for this index.
    pub(crate) fn lags_behind(&self, index: Index) {
        self.caught_up_at.fetch_max(index, Ordering::Relaxed);
    }

    /// Numbers for dashboards.
    pub(crate) fn gauges(&self, put: &mut impl FnMut(&str, u64)) {
        put("worker.acknowledged", self.acknowledged());
        put("worker.released_for_lag", self.released_for_lag());
        put("worker.nacked", self.nacked());
        put("worker.leases", self.held());
        put("worker.invoke_scheduler", self.invoked());
        let Outcomes { created, blocked, reblocked, followed_up } = &self.outcomes;
        put("worker.evaluations_created", created.load(Ordering::Relaxed));
        put("worker.evaluations_blocked", blocked.load(Ordering::Relaxed));
        put("worker.evaluations_reblocked", reblocked.load(Ordering::Relaxed));
        put("worker.evaluations_followed_up", followed_up.load(Ordering::Relaxed));
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

#[cfg(test)]
mod tests {
    use fsm::{
        Evaluation, EvaluationId, JobKey, Trigger,
        testing::{Driver, job, outcome},
    };

    use super::*;

    #[test]
    fn evaluations_are_counted_by_what_their_plan_made_of_them() {
        let mut driver = Driver::default();
        let id = driver.register_job(job("web", JobKind::Service, 1));
        let mut plan = driver.plan(id);
        assert_eq!(Made::of(&plan), Made::default());
        let new = |number: u8, status, wait_until| {
            let (id, key) = (EvaluationId([number; 16]), JobKey::new("default", "web"));
            let new = Evaluation::new(id, key, JobKind::Service, 50, Trigger::JobRegister);
            Evaluation { status, wait_until, ..new }
        };
        let mut made = outcome(EvaluationStatus::Blocked);
        made.evaluations = vec![
            new(1, EvaluationStatus::Blocked, 0),
            new(2, EvaluationStatus::Blocked, 0),
            new(3, EvaluationStatus::Pending, 9),
            new(4, EvaluationStatus::Pending, 0),
        ];
        plan.outcome = Some(made);
        let made = Made::of(&plan);
        assert_eq!(made, Made { created: 1, blocked: 2, reblocked: 1, followed_up: 1 });
        let stats = WorkerStats::default();
        stats.outcomes.add(made);
        let mut shown = BTreeMap::new();
        stats.gauges(&mut |name, value| {
            shown.insert(name.to_owned(), value);
        });
        assert_eq!(shown["worker.evaluations_blocked"], 2);
        assert_eq!(shown["worker.evaluations_followed_up"], 1);
    }
}
