//! The draft of a plan: the decisions of a pass so far, the ids it gives out, and the bounds of a
//! plan.
//!
//! Must never decide anything. The schedulers decide; the draft records.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, AllocationId, ClientStatus, DeploymentId, Evaluation, EvaluationId,
    EvaluationStatus, Metrics, Placement, Plan, Stop, TaskGroup, Text,
    deployment::{DeploymentGoal, NewDeployment},
    limits::PLAN_PLACEMENTS_MAX,
    plan::{FollowUp, InPlace, Outcome},
};

use crate::{
    pass::{Pass, Target, VersionId},
    place::stack::Choice,
    reconcile::changes::PlaceWish,
};

/// The plan is cut when its placements reach this encoded size, bytes. A log entry may have 32 MiB.
/// A plan stays below that even with one more placement of the largest size
/// (`fsm::limits::JOB_BYTES_MAX` bounds it) and with [`FAILURE_BYTES_MAX`] twice (once in the
/// outcome, once in the blocked evaluation).
const PLACEMENT_BYTES_MAX: usize = 8 << 20;
/// Bytes of metrics of failed groups. Beyond this the texts of constraints are left out of further
/// metrics.
const FAILURE_BYTES_MAX: usize = 4 << 20;
/// Rough encoded size of a placement without its texts and past reschedules, bytes.
const PLACEMENT_BYTES: usize = 128;
const RESCHEDULE_BYTES: usize = 64;
const ID_BYTES: usize = 16;

/// A plan in the making.
pub(crate) struct Draft<'a> {
    pub(crate) pass: Pass<'a>,
    pub(crate) target: Target<'a>,
    /// How many instances could not be placed, by group.
    pub(crate) queued: BTreeMap<Text, u32>,
    /// Those groups of `queued` in which an instance of the current version found no room. In the
    /// others only instances of older versions did.
    pub(crate) waiting: BTreeSet<Text>,
    /// Why instances could not be placed, by group.
    pub(crate) failed_groups: BTreeMap<Text, Metrics>,
    /// Evaluations that the plan creates when its outcome is applied.
    pub(crate) evaluations: Vec<Evaluation>,
    plan: Plan,
    /// Rough encoded size of the placements so far.
    bytes: usize,
    failure_bytes: usize,
    /// A bound of the plan was reached. The next pass does the rest.
    cut: bool,
    ids: blake3::Hasher,
    ids_made: u64,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(pass: &Pass<'a>, target: Target<'a>) -> Self {
        let VersionId { created: job_create_index, number: job_version } = target.version();
        let mut ids = blake3::Hasher::new();
        ids.update(&pass.evaluation.id.0);
        ids.update(&pass.state.index().to_be_bytes());
        ids.update(&pass.attempt.to_be_bytes());
        Self {
            pass: *pass,
            target,
            queued: BTreeMap::new(),
            waiting: BTreeSet::new(),
            failed_groups: BTreeMap::new(),
            evaluations: Vec::new(),
            plan: Plan {
                evaluation: pass.evaluation.id,
                job: pass.evaluation.job.clone(),
                job_create_index,
                job_version,
                snapshot_index: pass.state.index(),
                priority: pass.evaluation.priority,
                all_at_once: target.spec.is_some_and(|spec| spec.all_at_once),
                stops: Vec::new(),
                in_place: Vec::new(),
                follow_ups: Vec::new(),
                placements: Vec::new(),
                deployment: None,
                outcome: None,
            },
            bytes: 0,
            failure_bytes: 0,
            cut: false,
            ids,
            ids_made: 0,
        }
    }

    fn next_id(&mut self) -> [u8; 16] {
        self.ids_made += 1;
        let mut hasher = self.ids.clone();
        hasher.update(&self.ids_made.to_be_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        id
    }

    pub(crate) fn next_evaluation_id(&mut self) -> EvaluationId {
        EvaluationId(self.next_id())
    }

    /// Begins a deployment of the job's version with these goals. Does nothing if there are no
    /// goals.
    pub(crate) fn begin_deployment(&mut self, goals: BTreeMap<Text, DeploymentGoal>) {
        if !goals.is_empty() {
            let id = DeploymentId(self.next_id());
            self.plan.deployment = Some(NewDeployment { id, goals });
        }
    }

    /// Changes the goals of a running deployment.
    pub(crate) fn set_goals(&mut self, id: DeploymentId, goals: BTreeMap<Text, DeploymentGoal>) {
        self.plan.deployment = Some(NewDeployment { id, goals });
    }

    /// Whether the plan has reached a bound, so that it is incomplete.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Records a stop. Returns `false` if the plan is full; then nothing that depends on the stop
    /// may be recorded.
    pub(crate) fn stop(&mut self, allocation: &Allocation, why: &Text, lost: bool) -> bool {
        if self.plan.stops.len() >= PLAN_PLACEMENTS_MAX {
            self.cut = true;
            return false;
        }
        self.plan.stops.push(Stop {
            id: allocation.id,
            description: why.clone(),
            client: lost.then_some(ClientStatus::Lost),
        });
        true
    }

    /// Removes the last stop again, because its successor could not be placed.
    pub(crate) fn pop_stop(&mut self) {
        self.plan.stops.pop();
    }

    /// Records an in-place update. Returns `false` if the plan is full.
    pub(crate) fn update_in_place(&mut self, allocation: &Allocation) -> bool {
        if self.plan.in_place.len() >= PLAN_PLACEMENTS_MAX {
            self.cut = true;
            return false;
        }
        self.plan.in_place.push(InPlace { id: allocation.id });
        true
    }

    /// Records a placement on the node that the stack chose. The caller has asked
    /// [`Self::has_room`] before.
    pub(crate) fn place(&mut self, group: &TaskGroup, wish: &PlaceWish<'_>, choice: Choice<'_>) {
        assert!(self.plan.placements.len() < PLAN_PLACEMENTS_MAX, "plan is over its bound");
        let placement = Placement {
            id: AllocationId(self.next_id()),
            group: group.name.clone(),
            name_index: wish.name_index,
            canary: wish.canary,
            version: wish.version,
            node: choice.node,
            ports: Vec::new(),
            previous: wish.previous.map(|previous| previous.id),
            preempts: choice.preempted_ids(),
            reschedules: wish.history.clone(),
            metrics: Some(choice.metrics),
        };
        self.bytes += PLACEMENT_BYTES
            + placement.group.len()
            + placement.reschedules.len() * RESCHEDULE_BYTES
            + placement.preempts.len() * ID_BYTES
            + placement.metrics.as_deref().map_or(0, bytes_of);
        self.plan.placements.push(placement);
    }

    /// Counts `count` instances of a group as queued. `version` is the older version that they
    /// would run; `None`: the current version.
    pub(crate) fn queue(&mut self, group: &Text, version: Option<u64>, count: u32) {
        *self.queued.entry(group.clone()).or_default() += count;
        if version.is_none() && !self.waiting.contains(group) {
            self.waiting.insert(group.clone());
        }
    }

    /// Counts instances as queued, and keeps `metrics` if this is the group's first failure. Later
    /// failures of the group are only counted in `coalesced_failures`.
    pub(crate) fn fail(
        &mut self,
        group: &Text,
        version: Option<u64>,
        count: u32,
        metrics: Metrics,
    ) {
        self.queue(group, version, count);
        if let Some(known) = self.failed_groups.get_mut(group) {
            known.coalesced_failures += count;
            return;
        }
        let mut metrics = metrics;
        metrics.coalesced_failures += count - 1;
        if self.failure_bytes > FAILURE_BYTES_MAX {
            metrics.constraint_filtered.clear();
        }
        self.failure_bytes += bytes_of(&metrics);
        self.failed_groups.insert(group.clone(), metrics);
    }

    /// Whether the plan has room for one more stop and one more placement. If not, the plan is
    /// marked as cut.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.plan.placements.len() >= PLAN_PLACEMENTS_MAX
            || self.plan.stops.len() >= PLAN_PLACEMENTS_MAX
            || self.bytes >= PLACEMENT_BYTES_MAX
        {
            self.cut = true;
        }
        !self.cut
    }

    pub(crate) fn follow_up(&mut self, allocation: AllocationId, evaluation: EvaluationId) {
        self.plan.follow_ups.push(FollowUp { id: allocation, evaluation });
    }

    /// Returns the plan. If it was cut, it has no outcome; otherwise the outcome has `end` and what
    /// was collected.
    pub(crate) fn finish(mut self, end: End) -> Plan {
        if self.cut {
            // A follow-up refers to an evaluation that the outcome creates, and a cut plan has no
            // outcome. The next pass finds the same follow-ups again.
            self.plan.follow_ups.clear();
            return self.plan;
        }
        self.plan.outcome = Some(Outcome {
            status: end.status,
            description: end.description,
            queued: self.queued,
            waiting: self.waiting,
            failed_groups: self.failed_groups,
            annotations: BTreeMap::new(),
            class_eligibility: end.class_eligibility,
            escaped: end.escaped,
            evaluations: self.evaluations,
        });
        self.plan
    }

    /// Fails the evaluation. The caller has recorded no changes.
    pub(crate) fn refuse(self, why: String) -> Plan {
        self.finish(End {
            status: EvaluationStatus::Failed,
            description: why.into(),
            class_eligibility: BTreeMap::new(),
            escaped: false,
        })
    }
}

/// Rough encoded size, bytes.
fn bytes_of(metrics: &Metrics) -> usize {
    let counts = [
        &metrics.nodes_available,
        &metrics.class_filtered,
        &metrics.constraint_filtered,
        &metrics.class_exhausted,
        &metrics.dimension_exhausted,
    ];
    let texts = counts.iter().flat_map(|counts| counts.keys());
    let scores = metrics.scores.iter().map(|score| 32 + 24 * score.parts.len());
    texts.map(|text| text.len() + 8).sum::<usize>() + scores.sum::<usize>()
}

/// How the evaluation ends. The classes are for an evaluation that is blocked again: they say which
/// nodes could unblock it.
pub(crate) struct End {
    pub(crate) status: EvaluationStatus,
    pub(crate) description: Text,
    pub(crate) class_eligibility: BTreeMap<fsm::ClassId, bool>,
    pub(crate) escaped: bool,
}
