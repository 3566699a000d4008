//! Plans: the last line of defence. Whatever the applier found, a plan is judged here again,
//! against the running state, part by part and in order, with nothing but replicated facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    ApplyPlans, DropReason, InPlace, Outcome, Placement, Plan, PlanVerdict, Stop, check_fit,
    check_placement, check_plan,
};
use crate::{
    allocation::{Allocation, ClientStatus, DesiredStatus, DesiredTransition},
    apply::Turn,
    command::Reply,
    deployment::Touched,
    effect::Effect,
    evaluation::{Blocked, EvaluationStatus, Trigger},
    id::{AllocationId, DeploymentId, JobKey, NodeId},
    job::{Job, JobSpec},
    limits,
    node::Liveness,
    plant::{Plant, is_planted},
    resources::Resources,
    state::State,
};

/// A turn as it was before an all-at-once plan.
struct Saved {
    state: State,
    rows: usize,
    effects: BTreeSet<Effect>,
    jobs: BTreeSet<JobKey>,
    gains: BTreeSet<NodeId>,
    deployments: BTreeMap<DeploymentId, Touched>,
}

/// Whether a successor of an ended allocation was placed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    No,
    Yes,
}

pub(super) fn mark_replaced(ended: &mut BTreeMap<AllocationId, Replaced>, placement: &Placement) {
    if let Some(replaced) = placement.previous.and_then(|previous| ended.get_mut(&previous)) {
        *replaced = Replaced::Yes;
    }
}

/// Adds the parts that an all-at-once plan loses because another part was dropped.
pub(super) fn drop_the_rest(plan: &Plan, dropped: &mut Vec<(AllocationId, DropReason)>) {
    let named: BTreeSet<_> = dropped.iter().map(|(id, _)| *id).collect();
    let updates = plan.in_place.iter().map(|one| one.id);
    let rest = updates.chain(plan.placements.iter().map(|one| one.id));
    dropped.extend(rest.filter(|id| !named.contains(id)).map(|id| (id, DropReason::AllAtOnce)));
}

impl Turn<'_> {
    pub(crate) fn apply_plans(&mut self, command: &ApplyPlans) -> Reply {
        Reply::Plans(command.plans.iter().map(|plan| self.apply_plan(plan)).collect())
    }

    fn apply_plan(&mut self, plan: &Plan) -> PlanVerdict {
        let mut verdict = PlanVerdict {
            evaluation: plan.evaluation,
            refused: None,
            dropped: Vec::new(),
            outcome_taken: false,
            refresh_index: 0,
        };
        if let Err(reason) = check_plan(self.state, plan) {
            verdict.refused = Some(reason);
            verdict.refresh_index = self.index;
            return verdict;
        }
        let before = plan.all_at_once.then(|| self.save());
        self.apply_parts(plan, &mut verdict);
        if let Some(before) = before
            && !verdict.dropped.is_empty()
        {
            self.restore(before);
            self.mark_judged(plan);
            drop_the_rest(plan, &mut verdict.dropped);
        }
        if verdict.dropped.is_empty() {
            if let Some(outcome) = &plan.outcome {
                self.take_outcome(plan, outcome);
                verdict.outcome_taken = true;
            }
        } else {
            verdict.refresh_index = self.index;
        }
        verdict
    }

    fn save(&self) -> Saved {
        Saved {
            state: self.state.clone(),
            rows: self.changes.rows.len(),
            effects: self.effects.clone(),
            jobs: self.jobs.clone(),
            gains: self.gains.clone(),
            deployments: self.deployments.clone(),
        }
    }

    fn restore(&mut self, saved: Saved) {
        *self.state = saved.state;
        self.changes.rows.truncate(saved.rows);
        self.effects = saved.effects;
        self.jobs = saved.jobs;
        self.gains = saved.gains;
        self.deployments = saved.deployments;
    }

    fn apply_parts(&mut self, plan: &Plan, verdict: &mut PlanVerdict) {
        let mut ended = self.stop_the_living(plan);
        if let Some(job) = self.state.jobs.get(&plan.job).cloned()
            && let Some(spec) = self.state.current_spec(&job).cloned()
        {
            self.create_deployment(plan, &job, &spec);
            for update in &plan.in_place {
                if let Err(reason) = self.update_in_place(plan, update, &job, &spec) {
                    verdict.dropped.push((update.id, reason));
                }
            }
            let mut preempted = BTreeMap::new();
            for placement in &plan.placements {
                match self.place(plan, placement, &job, &spec) {
                    Ok(()) => {
                        mark_replaced(&mut ended, placement);
                        preempted.extend(self.jobs_of(&placement.preempts));
                    }
                    Err(reason) => verdict.dropped.push((placement.id, reason)),
                }
            }
            self.stop_the_ended(plan, &ended);
            self.mark_judged(plan);
            if !is_planted(Plant::VictimWithoutEvaluation) {
                self.evaluate(&preempted, None, &[]);
            }
        }
        for follow_up in &plan.follow_ups {
            let Some(row) = self.state.allocations.get(&follow_up.id) else { continue };
            if row.job != plan.job || row.follow_up == Some(follow_up.evaluation) {
                continue;
            }
            let mut row = (**row).clone();
            row.follow_up = Some(follow_up.evaluation);
            row.server_modify_index = self.index;
            self.put_allocation(row);
        }
    }

    /// From here on a copy of this plan is stale: parts that were reported as dropped are not taken
    /// later.
    pub(super) fn mark_judged(&mut self, plan: &Plan) {
        if !plan.is_no_op()
            && let Some(job) = self.state.jobs.get(&plan.job)
        {
            let mut job = (**job).clone();
            job.last_plan_index = self.index;
            self.put_job(job);
        }
    }

    /// Takes the stops but for those of predecessors that have ended, which it names: they free
    /// neither room nor a name, and are taken with a successor. One that is stopped for a successor
    /// that is dropped would be forgotten, and with it how often it was rescheduled.
    pub(super) fn stop_the_living(&mut self, plan: &Plan) -> BTreeMap<AllocationId, Replaced> {
        let previous = plan.placements.iter().filter_map(|placement| placement.previous);
        let rows = previous.filter_map(|id| self.state.allocations.get(&id));
        let ended = rows.filter(|row| row.client.is_terminal());
        let ended: BTreeMap<_, _> = ended.map(|row| (row.id, Replaced::No)).collect();
        for stop in plan.stops.iter().filter(|stop| !ended.contains_key(&stop.id)) {
            self.stop(plan, stop);
        }
        ended
    }

    /// Takes the stops that [`Self::stop_the_living`] left, of those that were replaced.
    pub(super) fn stop_the_ended(&mut self, plan: &Plan, ended: &BTreeMap<AllocationId, Replaced>) {
        for stop in &plan.stops {
            if ended.get(&stop.id) == Some(&Replaced::Yes) {
                self.stop(plan, stop);
            }
        }
    }

    fn stop(&mut self, plan: &Plan, stop: &Stop) {
        let Some(old) = self.state.allocations.get(&stop.id).cloned() else { return };
        if old.job != plan.job {
            return;
        }
        let mut row = (*old).clone();
        if row.desired == DesiredStatus::Run {
            row.desired = DesiredStatus::Stop;
            row.desired_description = stop.description.clone();
        }
        // Only the agent reports how an allocation ended, unless its node is gone: the plan knew
        // that, or the node went down meanwhile.
        let nobody =
            self.state.nodes.get(&row.node).is_none_or(|node| node.liveness == Liveness::Down);
        let decided = if nobody { Some(ClientStatus::Lost) } else { stop.client };
        if let Some(client @ (ClientStatus::Lost | ClientStatus::Unknown)) = decided
            && !row.client.is_terminal()
            && row.client != client
        {
            row.client = client;
            row.client_at = self.at;
            row.client_description = stop.description.clone();
            // What is lost before it was stopped did not end by request.
            row.transition.reschedule |= client == ClientStatus::Lost && row.transition.migrate;
        }
        if row == *old {
            return;
        }
        row.server_modify_index = self.index;
        self.put_allocation(row);
    }

    pub(super) fn update_in_place(
        &mut self,
        plan: &Plan,
        update: &InPlace,
        job: &Job,
        spec: &Arc<JobSpec>,
    ) -> Result<(), DropReason> {
        let old = self.state.allocations.get(&update.id).cloned();
        let old = old.ok_or(DropReason::AllocationGone)?;
        let group = spec.group(&old.group).ok_or(DropReason::JobChanged)?;
        // Somebody may have asked for its end since the plan was made.
        let is_to_end = old.transition.migrate || old.transition.reschedule;
        if !old.is_live() || is_to_end || old.job != plan.job {
            return Err(DropReason::AllocationGone);
        }
        let mut row = (*old).clone();
        row.job_version = plan.job_version;
        row.job_create_index = plan.job_create_index;
        row.evaluation = plan.evaluation;
        row.resources = Resources::of_group(group);
        // What was said of its health was said of the version before.
        row.deployment = self.membership(job, &group.name, false);
        row.server_modify_index = self.index;
        let node = self.state.nodes.get(&row.node).ok_or(DropReason::NodeMissing)?;
        if matches!(node.liveness, Liveness::Down | Liveness::Disconnected) {
            return Err(DropReason::NodeUnschedulable);
        }
        let mut usage = (*self.state.usage(row.node)).clone();
        usage.take(old.id, old.resources);
        check_fit(node, &usage, row.resources, &[]).map_err(DropReason::NodeFull)?;
        let was = self.state.allocation_spec(&old).map_or(0, |old| old.priority);
        if spec.priority < was {
            // From now on it can be evicted for jobs that have waited.
            self.gains.insert(row.node);
        }
        self.put_allocation(row);
        if old.job_create_index != plan.job_create_index {
            self.drop_orphaned_version(&old);
        }
        Ok(())
    }

    pub(super) fn place(
        &mut self,
        plan: &Plan,
        placement: &Placement,
        job: &Job,
        spec: &Arc<JobSpec>,
    ) -> Result<(), DropReason> {
        let current = spec;
        let spec = &self.placed_spec(placement, job, current)?;
        if !(self.is_final && is_planted(Plant::NoRecheck)) {
            check_placement(self.state, placement, job, current, spec)?;
        }
        let group = spec.group(&placement.group).ok_or(DropReason::JobChanged)?;
        let is_current = placement.version.is_none_or(|version| version == job.version);
        let deployment =
            is_current.then(|| self.membership(job, &group.name, placement.canary)).flatten();
        let mut reschedules = placement.reschedules.clone();
        let excess = reschedules.len().saturating_sub(limits::RESCHEDULE_EVENTS_COUNTED_MAX);
        reschedules.drain(..excess);
        let row = Allocation {
            id: placement.id,
            job: job.key.clone(),
            job_create_index: job.create_index,
            job_version: placement.version.unwrap_or(job.version),
            group: group.name.clone(),
            name_index: placement.name_index,
            per_node: spec.kind.is_per_node(),
            node: placement.node,
            evaluation: plan.evaluation,
            resources: Resources::of_group(group),
            ports: placement.ports.clone(),
            desired: DesiredStatus::Run,
            desired_description: "".into(),
            transition: DesiredTransition::default(),
            client: ClientStatus::Pending,
            client_description: "".into(),
            client_at: self.at,
            client_sequence: 0,
            tasks: Arc::default(),
            previous: placement.previous,
            next: None,
            preempted: placement.preempts.clone(),
            preempted_by: None,
            follow_up: None,
            reschedules,
            deployment,
            canary_of: deployment.filter(|own| own.canary).map(|own| own.id),
            metrics: placement.metrics.clone(),
            create_index: self.index,
            modify_index: self.index,
            server_modify_index: self.index,
            created_at: self.at,
            modified_at: self.at,
        };
        // First those that make room: what is used of the node never exceeds what it has.
        for victim in &placement.preempts {
            self.evict(*victim, placement.id);
        }
        self.put_allocation(row);
        self.link_previous(placement, &job.key);
        Ok(())
    }

    /// The spec that a placement runs: the current one, or that of an older version.
    pub(super) fn placed_spec(
        &self,
        placement: &Placement,
        job: &Job,
        spec: &Arc<JobSpec>,
    ) -> Result<Arc<JobSpec>, DropReason> {
        let Some(version) = placement.version.filter(|version| *version != job.version) else {
            return Ok(Arc::clone(spec));
        };
        let older = self.state.job_spec(&job.key, job.create_index, version);
        older.cloned().ok_or(DropReason::JobChanged)
    }

    fn evict(&mut self, victim: AllocationId, by: AllocationId) {
        let Some(row) = self.state.allocations.get(&victim) else { return };
        let mut row = (**row).clone();
        row.desired = DesiredStatus::Evict;
        row.desired_description = format!("Preempted by alloc ID {by}").into();
        row.preempted_by = Some(by);
        row.server_modify_index = self.index;
        self.put_allocation(row);
    }

    /// The jobs of allocations that were preempted.
    fn jobs_of(&self, preempted: &[AllocationId]) -> Vec<(JobKey, Trigger)> {
        let rows = preempted.iter().filter_map(|id| self.state.allocations.get(id));
        rows.map(|row| (row.job.clone(), Trigger::Preemption)).collect()
    }

    fn link_previous(&mut self, placement: &Placement, job: &JobKey) {
        let Some(previous) = placement.previous else { return };
        let Some(row) = self.state.allocations.get(&previous) else { return };
        if previous == placement.id || row.job != *job {
            return;
        }
        let mut row = (**row).clone();
        row.next = Some(placement.id);
        row.follow_up = None;
        self.put_allocation(row);
    }

    pub(super) fn take_outcome(&mut self, plan: &Plan, outcome: &Outcome) {
        let Some(row) = self.state.evaluations.get(&plan.evaluation) else { return };
        let mut row = (**row).clone();
        let complete =
            outcome.status == EvaluationStatus::Complete && outcome.failed_groups.is_empty();
        row.status = outcome.status;
        row.status_description = outcome.description.clone();
        row.queued = outcome.queued.clone();
        row.failed_groups = outcome.failed_groups.clone();
        row.annotations = outcome.annotations.clone();
        row.snapshot_index = plan.snapshot_index;
        row.deployment = self.state.deployment_to_follow(&plan.job);
        if outcome.status == EvaluationStatus::Blocked {
            row.class_eligibility = outcome.class_eligibility.clone();
            row.escaped = outcome.escaped;
        }
        let mut blocked = Blocked::default();
        // Of a job that was purged since nothing is to wait: whoever ended it canceled what did.
        let is_ended = plan.job_create_index != 0 && !self.state.jobs.contains(&plan.job);
        let at = self.at;
        for made in outcome.evaluations.iter().filter(|made| !(is_ended && made.waits(at))) {
            if made.status == EvaluationStatus::Blocked {
                row.blocked = Some(made.id);
            } else {
                row.next = Some(made.id);
            }
            self.create_from_plan(made.clone(), &mut blocked);
        }
        if row.status == EvaluationStatus::Blocked {
            self.cancel_replaced(&row, &mut blocked);
        }
        self.put_evaluation(row.clone());
        self.cancel_moot(&row, complete);
        if let Some(job) = self.state.jobs.get(&plan.job)
            && job.create_index == plan.job_create_index
        {
            let job = Arc::clone(job);
            // A deployment that has begun since the last outcome knows nothing of what that said.
            self.note_room(&job, &outcome.waiting);
            if job.queued != outcome.queued {
                let queued = outcome.queued.clone();
                self.put_job(Job { queued, modify_index: self.index, ..(*job).clone() });
            }
        }
    }
}
