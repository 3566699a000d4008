//! Deployments: creation by a plan, what follows from health, and what people and deadlines ask
//! for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    AllocationDeployment, AllocationHealth, Deployment, DeploymentGroup, DeploymentStatus,
    ExpireDeployments, FailDeployment, NewDeployment, PauseDeployment, PromoteDeployment,
    SetAllocationHealth, Touched, text,
};
use crate::{
    allocation::Allocation,
    apply::{Outcome, Turn, not_found},
    command::{Rejection, Reply},
    effect::Effect,
    evaluation::{Evaluation, Trigger},
    id::{AllocationId, DeploymentId, EvaluationId, Index, JobKey, Text},
    job::{Job, JobSpec, transitions::Stored},
    limits,
    plan::Plan,
    plant::{Plant, is_planted},
    state::State,
};

impl State {
    /// Deployments of a job, of all its incarnations, newest first.
    pub fn deployments_of_job(&self, job: &JobKey) -> Vec<Arc<Deployment>> {
        let ids = self.job_index(job).into_iter().flat_map(|index| index.deployments.iter());
        let mut rows: Vec<_> =
            ids.filter_map(|id| self.deployments.get(id)).map(Arc::clone).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.create_index, row.id)));
        rows
    }

    /// The deployment of a job that goes on, if there is one.
    pub fn active_deployment(&self, job: &JobKey) -> Option<&Arc<Deployment>> {
        let ids = self.job_index(job).into_iter().flat_map(|index| index.deployments.iter());
        ids.filter_map(|id| self.deployments.get(id)).find(|row| row.is_active())
    }

    /// The newest deployment of a job's current version.
    pub fn current_deployment(&self, job: &Job) -> Option<&Arc<Deployment>> {
        let ids = self.job_index(&job.key).into_iter().flat_map(|index| index.deployments.iter());
        ids.filter_map(|id| self.deployments.get(id))
            .filter(|row| row.is_of((job.create_index, job.version)))
            .max_by_key(|row| (row.create_index, row.id))
    }

    /// The deployment that an evaluation of a job belongs to: the newest of the job's version, or
    /// the newest that there was when the job is stopped or gone. It may be over: a version that
    /// has failed has failed for whoever registers it again.
    pub fn deployment_to_follow(&self, key: &JobKey) -> Option<DeploymentId> {
        match self.jobs.get(key).filter(|job| !job.stop) {
            Some(job) => self.current_deployment(job).map(|row| row.id),
            None => self.deployments_of_job(key).first().map(|row| row.id),
        }
    }

    /// Allocations that belong to a deployment, by id.
    pub fn allocations_of_deployment<'a>(
        &'a self,
        deployment: &'a Deployment,
    ) -> impl Iterator<Item = &'a Arc<Allocation>> {
        self.allocations_of_job(&deployment.job)
            .filter(|row| row.deployment.is_some_and(|own| own.id == deployment.id))
    }

    /// What an allocation that runs the job's current version has to say of the deployment.
    fn membership(&self, job: &Job, group: &str, canary: bool) -> Option<AllocationDeployment> {
        let row = self.current_deployment(job).filter(|row| row.is_active())?;
        let group = row.groups.get(group)?;
        let canary = canary && group.is_canarying();
        Some(AllocationDeployment { id: row.id, canary, health: None })
    }

    /// Whether the deployment may be deleted: it is over since before `before`, and says nothing
    /// about the version that its job runs.
    pub fn is_deployment_collectable(&self, row: &Deployment, before: u64) -> bool {
        let is_current = self
            .jobs
            .get(&row.job)
            .is_some_and(|job| !job.stop && row.is_of((job.create_index, job.version)));
        !row.is_active() && !is_current && row.modified_at < before
    }
}

impl Turn<'_> {
    pub(crate) fn put_deployment(&mut self, mut row: Deployment) {
        row.modify_index = self.index;
        row.modified_at = self.at;
        self.jobs.insert(row.job.clone());
        self.effects.insert(Effect::Deployment(row.id));
        let is_new = !self.state.deployments.contains(&row.id);
        let row = self.state.deployments.put(row, self.changes);
        self.state.index_deployment(&row, is_new);
    }

    pub(crate) fn drop_deployment(&mut self, id: DeploymentId) -> bool {
        let Some(row) = self.state.deployments.remove(&id, self.changes) else { return false };
        self.state.unindex_deployment(&row);
        self.effects.insert(Effect::Deployment(id));
        true
    }

    /// Begins the deployment of a plan, unless the job's version has one that failed, or one that
    /// goes on: that one may get other totals.
    pub(crate) fn create_deployment(&mut self, plan: &Plan, job: &Job, spec: &JobSpec) {
        let Some(NewDeployment { id, goals }) = &plan.deployment else { return };
        let known = self.state.current_deployment(job);
        if let Some(row) = known.filter(|row| row.is_active() && row.id == *id) {
            let row = (**row).clone();
            self.set_totals(row, plan);
            return;
        }
        let is_open =
            known.is_some_and(|row| row.is_active() || row.status == DeploymentStatus::Failed);
        if job.stop || is_open || self.state.deployments.contains(id) {
            return;
        }
        let groups: BTreeMap<Text, DeploymentGroup> = goals
            .iter()
            .filter_map(|(name, goal)| {
                let update = spec.group(name)?.update.as_ref()?;
                Some((name.clone(), DeploymentGroup::new(update, *goal, self.at)))
            })
            .collect();
        if groups.is_empty() {
            return;
        }
        let evaluation = self.state.evaluations.get(&plan.evaluation);
        let priority = evaluation.map_or(job.priority, |row| row.priority);
        let mut row = Deployment {
            id: *id,
            job: job.key.clone(),
            job_create_index: job.create_index,
            job_version: job.version,
            job_modify_index: job.job_modify_index,
            priority,
            status: DeploymentStatus::Running,
            description: "".into(),
            groups,
            placed_canaries: BTreeMap::new(),
            create_index: self.index,
            modify_index: self.index,
            created_at: self.at,
            modified_at: self.at,
        };
        row.description = row.running_text().into();
        if job.kind.is_per_node() {
            // Some of its nodes may have no room for a canary.
            self.set_totals(row, plan);
        } else {
            self.put_deployment(row);
        }
        self.drop_old_deployments(&job.key);
    }

    /// Keeps the number of a job's deployments within its bound: the oldest ones that are over go.
    fn drop_old_deployments(&mut self, job: &JobKey) {
        let rows = self.state.deployments_of_job(job);
        for row in rows.iter().skip(limits::DEPLOYMENTS_PER_JOB_MAX) {
            if !row.is_active() {
                self.drop_deployment(row.id);
            }
        }
    }

    /// The deployment of an allocation of the job's current version that is placed or updated now.
    pub(crate) fn membership(
        &self,
        job: &Job,
        group: &str,
        canary: bool,
    ) -> Option<AllocationDeployment> {
        self.state.membership(job, group, canary)
    }

    /// Ends the deployment of a job that is stopped or changed.
    pub(crate) fn cancel_deployments(&mut self, job: &JobKey, why: &str) {
        while let Some(row) = self.state.active_deployment(job).map(|row| (**row).clone()) {
            self.end(row, DeploymentStatus::Cancelled, why.into());
        }
    }

    fn end(&mut self, mut row: Deployment, status: DeploymentStatus, why: Text) {
        row.status = status;
        row.description = why;
        self.put_deployment(row);
    }

    /// Notes for which groups instances of the current version wait for room. The time without
    /// progress counts anew from when none does.
    pub(crate) fn note_room(&mut self, job: &Job, waiting: &BTreeSet<Text>) {
        let row = self.state.current_deployment(job).filter(|row| row.is_active());
        let Some(row) = row else { return };
        // Nodes without room for a job that runs once per node are not waited for.
        let waits = |name| !job.kind.is_per_node() && waiting.contains(name);
        if row.groups.iter().all(|(name, group)| group.waits_for_room == waits(name)) {
            return;
        }
        let mut row = (**row).clone();
        for (name, group) in &mut row.groups {
            let waits = waits(name);
            if group.waits_for_room && !waits {
                group.extend(self.at);
            }
            group.waits_for_room = waits;
        }
        self.put_deployment(row);
    }

    /// Draws the conclusions from what the entry changed for deployments.
    pub(crate) fn settle_deployments(&mut self) {
        while let Some(id) = self.deployments.first_key_value().map(|(id, _)| *id) {
            let row = self.active(id);
            let touched = self.deployments.remove(&id);
            if let Some((row, touched)) = row.zip(touched) {
                self.settle(row, touched);
            }
        }
    }

    /// The row of a deployment that goes on, with the counts of now.
    fn active(&mut self, id: DeploymentId) -> Option<Deployment> {
        self.write_counts(id);
        let row = self.state.deployments.get(&id)?;
        row.is_active().then(|| (**row).clone())
    }

    fn settle(&mut self, row: Deployment, touched: Touched) {
        let (job, priority) = (row.job.clone(), row.priority);
        if !touched.failing.is_empty() {
            self.fail(row, text::UNHEALTHY, &touched.failing);
            self.evaluate_deployment(&job, priority);
        } else if row.status == DeploymentStatus::Paused {
            // Whoever lets it go on has it looked at.
        } else if row.is_complete() {
            self.succeed(row);
            if self.has_older(&job) {
                self.evaluate_deployment(&job, priority);
            }
        } else if row.may_promote_itself() {
            self.promote(row, None);
            if !is_planted(Plant::PromotionForgotten) {
                self.evaluate_deployment(&job, priority);
            }
        } else if touched.steps && self.has_older(&job) {
            self.evaluate_deployment(&job, priority);
        }
    }

    fn evaluate_deployment(&mut self, job: &JobKey, priority: u16) {
        let id = self.evaluation_id(&mut [].iter());
        self.make_step(id, job, priority);
    }

    /// Has a job looked at whose deployment holds something back: which version stands in for that
    /// depends on which are stable.
    pub(crate) fn evaluate_held(&mut self, job: &Job) {
        let row = self.state.current_deployment(job);
        let row = row.filter(|row| row.groups.keys().any(|name| row.holds_back(name)));
        if let Some(priority) = row.map(|row| row.priority) {
            self.evaluate_deployment(&job.key, priority);
        }
    }

    /// Makes the evaluation of a deployment's next step, with the priority of the one that began
    /// it.
    fn make_step(&mut self, id: EvaluationId, job: &JobKey, priority: u16) -> Option<EvaluationId> {
        let (kind, _, job_modify_index) = self.state.to_evaluate(job)?;
        let mut row = Evaluation::new(id, job.clone(), kind, priority, Trigger::DeploymentWatcher);
        row.job_modify_index = job_modify_index;
        row.deployment = self.state.deployment_to_follow(job);
        self.put_evaluation(row);
        Some(id)
    }

    /// Whether an allocation of another version than the current one holds its place.
    fn has_older(&self, key: &JobKey) -> bool {
        let Some(job) = self.state.jobs.get(key) else { return false };
        let current = (job.create_index, job.version);
        let Some(index) = self.state.job_index(key) else { return false };
        index.versions.iter().any(|(version, used)| *version != current && used.holding > 0)
    }

    fn succeed(&mut self, row: Deployment) {
        let (job, created, version) = (row.job.clone(), row.job_create_index, row.job_version);
        self.end(row, DeploymentStatus::Successful, text::SUCCESSFUL.into());
        self.set_version_stable(&job, created, version, true);
    }

    /// Promotes the canaries of `groups`, or of all.
    fn promote(&mut self, mut row: Deployment, groups: Option<&[Text]>) {
        let is_asked =
            |name: &Text| groups.is_none_or(|groups| groups.iter().any(|group| group == name));
        let mut promoted = BTreeSet::new();
        for (name, group) in &mut row.groups {
            if group.is_to_promote() && is_asked(name) {
                group.promoted = true;
                group.extend(self.at);
                group.note_waiting(self.at);
                promoted.insert(name.clone());
            }
        }
        row.description = row.running_text().into();
        let canaries: Vec<_> = self
            .state
            .allocations_of_deployment(&row)
            .filter(|one| one.is_canary() && promoted.contains(&one.group))
            .map(|one| (**one).clone())
            .collect();
        self.put_deployment(row);
        for mut one in canaries {
            if let Some(own) = &mut one.deployment {
                own.canary = false;
            }
            one.server_modify_index = self.index;
            self.put_allocation(one);
        }
    }

    /// Ends a deployment that did not work, and goes back to the last stable version if a group
    /// that fails asks for it. Returns that version.
    fn fail(&mut self, row: Deployment, why: &str, failing: &BTreeSet<Text>) -> Option<Index> {
        let mut groups = failing.iter().filter_map(|name| row.groups.get(name));
        let asks = groups.any(|group| group.auto_revert);
        let current = self.state.jobs.get(&row.job).cloned();
        let current = current.filter(|job| row.is_of((job.create_index, job.version)));
        let (Some(job), true) = (current, asks) else {
            self.end(row, DeploymentStatus::Failed, why.into());
            return None;
        };
        let stable = self.state.last_stable_version(&job.key, job.create_index);
        let is_same = |spec: &Arc<JobSpec>| {
            !is_planted(Plant::RevertLoop) && self.state.current_spec(&job) == Some(spec)
        };
        let (said, target) = match stable {
            None => (format!("{why} - no stable job version to auto revert to"), None),
            Some(stable) if is_same(&stable.spec) => (
                format!(
                    "{why} - not rolling back to stable job version {} as current job has same specification",
                    stable.version
                ),
                None,
            ),
            Some(stable) => {
                (format!("{why} - rolling back to job version {}", stable.version), Some(stable))
            }
        };
        self.end(row, DeploymentStatus::Failed, said.into());
        let target = target?;
        self.store_job(&target.spec, target.submission.as_ref(), Some(&job), Stored::default());
        self.jobs.insert(job.key.clone());
        Some(target.version)
    }

    fn of_active(&self, id: DeploymentId, refusal: &str) -> Result<Deployment, Rejection> {
        let row = self.state.deployments.get(&id).ok_or_else(|| not_found("deployment"))?;
        if row.is_active() { Ok((**row).clone()) } else { Err(Rejection::Invalid(refusal.into())) }
    }

    /// Makes the evaluation that a command about a deployment brings.
    fn answer(
        &mut self,
        (job, priority): (&JobKey, u16),
        evaluation: Option<EvaluationId>,
        reverted_to: Option<u64>,
    ) -> Reply {
        let made = evaluation.and_then(|id| self.make_step(id, job, priority));
        Reply::Deployment { evaluation: made, reverted_to }
    }

    pub(crate) fn promote_deployment(&mut self, command: &PromoteDeployment) -> Outcome {
        let PromoteDeployment { id, ref groups, evaluation } = *command;
        let row = self.of_active(id, "can't promote terminal deployment")?;
        self.check_evaluation_id(evaluation)?;
        let groups = groups.as_deref();
        for name in groups.into_iter().flatten() {
            if !row.groups.contains_key(name) {
                let message = format!("deployment has no task group \"{name}\"");
                return Err(Rejection::Invalid(message.into()));
            }
        }
        // What is promoted is not promoted again, but looked at, as in Nomad.
        let mut asked = row.groups.iter().any(|(name, group)| {
            group.promoted && groups.is_none_or(|groups| groups.contains(name))
        });
        for (name, group) in &row.groups {
            if !group.is_to_promote() || groups.is_some_and(|groups| !groups.contains(name)) {
                continue;
            }
            asked = true;
            if !group.has_healthy_canaries() {
                let (healthy, wanted) = (group.healthy_canaries, group.goal.canaries);
                let message =
                    format!("Task group \"{name}\" has {healthy}/{wanted} healthy allocations");
                return Err(Rejection::Invalid(message.into()));
            }
        }
        if !asked {
            return Err(Rejection::Invalid("no canaries to promote".into()));
        }
        let (job, priority) = (row.job.clone(), row.priority);
        self.promote(row, groups);
        self.deployments.entry(id).or_default();
        Ok(self.answer((&job, priority), Some(evaluation), None))
    }

    pub(crate) fn fail_deployment(&mut self, command: &FailDeployment) -> Outcome {
        let FailDeployment { id, evaluation } = *command;
        let row = self.of_active(id, "can't fail terminal deployment")?;
        self.check_evaluation_id(evaluation)?;
        let (job, priority) = (row.job.clone(), row.priority);
        let all = row.groups.keys().cloned().collect();
        let reverted_to = self.fail(row, text::BY_USER, &all);
        Ok(self.answer((&job, priority), Some(evaluation), reverted_to))
    }

    pub(crate) fn pause_deployment(&mut self, command: &PauseDeployment) -> Outcome {
        let PauseDeployment { id, pause, evaluation } = *command;
        let refusal = if pause {
            "can't pause terminal deployment"
        } else {
            "can't resume terminal deployment"
        };
        let mut row = self.of_active(id, refusal)?;
        self.check_evaluation_id(evaluation)?;
        let (job, priority) = (row.job.clone(), row.priority);
        let was_paused = row.status == DeploymentStatus::Paused;
        if pause {
            row.status = DeploymentStatus::Paused;
            row.description = text::PAUSED.into();
            self.put_deployment(row);
            return Ok(self.answer((&job, priority), None, None));
        }
        row.status = DeploymentStatus::Running;
        // That canaries wait is said again when they do: what was asked for is that it runs.
        row.description = text::RUNNING.into();
        if was_paused {
            // What was done before the pause is no reason to fail after it.
            for group in row.groups.values_mut() {
                group.extend(self.at);
            }
        }
        self.put_deployment(row);
        self.deployments.entry(id).or_default();
        Ok(self.answer((&job, priority), Some(evaluation), None))
    }

    pub(crate) fn set_allocation_health(&mut self, command: &SetAllocationHealth) -> Outcome {
        let SetAllocationHealth { id, healthy, unhealthy, evaluation } = command;
        let refusal = "can't set health of allocations for a terminal deployment";
        let row = self.of_active(*id, refusal)?;
        self.check_evaluation_id(*evaluation)?;
        let max = limits::HEALTH_WORDS_MAX;
        if healthy.len().saturating_add(unhealthy.len()) > max {
            let message = format!("the health of at most {max} allocations can be set at a time");
            return Err(Rejection::Invalid(message.into()));
        }
        let asked = healthy.iter().chain(unhealthy);
        for allocation in asked {
            let known = self.state.allocations.get(allocation);
            if known.and_then(|row| row.deployment).is_none_or(|own| own.id != *id) {
                let message = format!("allocation {allocation} is not part of deployment {id}");
                return Err(Rejection::Invalid(message.into()));
            }
        }
        for (ids, is_healthy) in [(healthy, true), (unhealthy, false)] {
            for allocation in ids {
                self.set_health(*allocation, is_healthy);
            }
        }
        // A person's word is the last: nothing that the policy allows makes up for it, as in Nomad.
        let groups = unhealthy.iter().filter_map(|id| self.state.allocations.get(id));
        let failing: BTreeSet<Text> = groups.map(|row| row.group.clone()).collect();
        let counted = self.active(*id).filter(|_| !failing.is_empty());
        let reverted_to = counted.and_then(|row| self.fail(row, text::UNHEALTHY, &failing));
        Ok(self.answer((&row.job, row.priority), Some(*evaluation), reverted_to))
    }

    fn set_health(&mut self, id: AllocationId, healthy: bool) {
        let Some(row) = self.state.allocations.get(&id) else { return };
        let mut row = (**row).clone();
        if let Some(own) = &mut row.deployment {
            own.health = Some(AllocationHealth { healthy, at: self.at, index: self.index });
        }
        row.server_modify_index = self.index;
        self.put_allocation(row);
    }

    pub(crate) fn expire_deployments(&mut self, command: &ExpireDeployments) -> Reply {
        for id in &command.ids {
            let Some(row) = self.active(*id) else { continue };
            let late = self.state.late_groups(&row, self.at);
            if late.is_empty() {
                continue;
            }
            let (job, priority) = (row.job.clone(), row.priority);
            let why = self.state.shortage_of(&row, &late).map_or_else(
                || text::NO_PROGRESS.to_owned(),
                |short| format!("{} - {short}", text::NO_PROGRESS),
            );
            self.fail(row, &why, &late);
            self.evaluate_deployment(&job, priority);
        }
        Reply::Done
    }
}
