//! The draft of a plan: what a pass has decided so far, the ids it hands out, and the bounds of one
//! plan.
//!
//! Must never decide anything: reconcilers decide, the draft writes down.

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

/// Encoded size of a plan's placements beyond which it is cut, bytes. With the largest placement (a
/// job is at most `fsm::limits::JOB_BYTES_MAX`) and [`FAILURE_BYTES_MAX`] twice (the outcome and
/// its blocked evaluation) a plan stays below what an entry of the log may be, 32 MiB.
const PLACEMENT_BYTES_MAX: usize = 8 << 20;
/// Size of what is kept for people about groups that failed, beyond which texts of constraints are
/// left out, bytes.
const FAILURE_BYTES_MAX: usize = 4 << 20;
/// A placement without its texts and its past reschedules, and one of those, about, bytes.
const PLACEMENT_BYTES: usize = 128;
const RESCHEDULE_BYTES: usize = 64;
const ID_BYTES: usize = 16;

/// A plan in the making.
pub(crate) struct Draft<'a> {
    pub(crate) pass: Pass<'a>,
    pub(crate) target: Target<'a>,
    /// Instances not placed, by group.
    pub(crate) queued: BTreeMap<Text, u32>,
    /// Of these the groups in which an instance of the current version found no room.
    pub(crate) waiting: BTreeSet<Text>,
    /// Groups with instances not placed.
    pub(crate) failed_groups: BTreeMap<Text, Metrics>,
    /// Evaluations that the outcome makes.
    pub(crate) evaluations: Vec<Evaluation>,
    plan: Plan,
    /// Size of the placements and of the failed groups, about.
    bytes: usize,
    failure_bytes: usize,
    /// A bound of the plan was reached: the rest is for the next pass.
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

    /// Begins a deployment of the job's version with these goals, if there are any.
    pub(crate) fn begin_deployment(&mut self, goals: BTreeMap<Text, DeploymentGoal>) {
        if !goals.is_empty() {
            let id = DeploymentId(self.next_id());
            self.plan.deployment = Some(NewDeployment { id, goals });
        }
    }

    /// Sets what a deployment that goes on is to reach.
    pub(crate) fn set_goals(&mut self, id: DeploymentId, goals: BTreeMap<Text, DeploymentGoal>) {
        self.plan.deployment = Some(NewDeployment { id, goals });
    }

    /// Whether a bound of the plan was reached.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Writes down a stop; false when the plan is full, and then nothing that depends on the stop
    /// may follow.
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

    /// Takes the last stop back, because what it made room for could not be placed.
    pub(crate) fn pop_stop(&mut self) {
        self.plan.stops.pop();
    }

    /// Writes down an in-place update; false when the plan is full.
    pub(crate) fn update_in_place(&mut self, allocation: &Allocation) -> bool {
        if self.plan.in_place.len() >= PLAN_PLACEMENTS_MAX {
            self.cut = true;
            return false;
        }
        self.plan.in_place.push(InPlace { id: allocation.id });
        true
    }

    /// Writes down that an instance of a group goes where the stack chose. There is room:
    /// [`Self::has_room`] was asked before.
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

    /// Counts instances of a group that could not be placed. `version` is theirs if that is an
    /// older one.
    pub(crate) fn queue(&mut self, group: &Text, version: Option<u64>, count: u32) {
        *self.queued.entry(group.clone()).or_default() += count;
        if version.is_none() && !self.waiting.contains(group) {
            self.waiting.insert(group.clone());
        }
    }

    /// As [`Self::queue`], with what the first of them saw.
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

    /// Whether one more replacement fits into the plan; if not, the plan is cut.
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

    /// The plan without an outcome when it was cut, else with `status` and what was collected.
    pub(crate) fn finish(mut self, end: End) -> Plan {
        if self.cut {
            // Follow-ups name evaluations of the outcome, which a cut plan does not have; the next
            // pass finds them again.
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

    /// Ends the evaluation as failed, with nothing changed.
    pub(crate) fn refuse(self, why: String) -> Plan {
        self.finish(End {
            status: EvaluationStatus::Failed,
            description: why.into(),
            class_eligibility: BTreeMap::new(),
            escaped: false,
        })
    }
}

/// Encoded size, about.
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

/// How the evaluation ends.
pub(crate) struct End {
    pub(crate) status: EvaluationStatus,
    pub(crate) description: Text,
    pub(crate) class_eligibility: BTreeMap<fsm::ClassId, bool>,
    pub(crate) escaped: bool,
}
