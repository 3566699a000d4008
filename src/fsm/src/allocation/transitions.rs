//! Allocations: reports of agents, and a user's stop.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Allocation, ClientStatus, ClientUpdate, DesiredStatus, ExpireRuns, LiveName, NameScope,
    NodeReport, RUN_TIME_OVER, Replacement, StopAllocation, TaskEvent, TaskState,
    UpdateAllocations,
};
use crate::{
    apply::{Outcome, Turn, not_found},
    bounds::{cut, refused},
    command::{Rejection, Reply},
    deployment::AllocationHealth,
    effect::Effect,
    evaluation::{Evaluation, Trigger},
    id::{JobKey, NodeId, Text},
    job::{Job, JobKind},
    limits,
    resources::Resources,
};

/// Whether a change of an allocation is nothing that its agent is told.
fn is_report(old: &Allocation, new: &Allocation) -> bool {
    old.server_modify_index == new.server_modify_index
        && old.client.is_terminal() == new.client.is_terminal()
}

impl Turn<'_> {
    pub(crate) fn put_allocation(&mut self, mut allocation: Allocation) {
        allocation.modify_index = self.index;
        allocation.modified_at = self.at;
        let old = self.state.allocations.get(&allocation.id).cloned();
        if let Some(old) = old.as_ref().filter(|old| old.is_live() && !allocation.is_live()) {
            self.gains.insert(old.node);
        }
        self.jobs.insert(allocation.job.clone());
        self.effects.insert(match &old {
            Some(old) if is_report(old, &allocation) => Effect::NodeReport(allocation.node),
            _ => Effect::NodeAllocations(allocation.node),
        });
        self.state.index_changed_allocation(old.as_deref(), &allocation);
        let row = self.state.allocations.put(allocation, self.changes);
        self.state.count_allocation(old.as_deref(), Some(&row));
        self.instance_used(old.as_deref(), &row);
        self.count_in_deployment(old.as_deref(), &row);
        let version = |row: &Allocation| (row.job_create_index, row.job_version);
        if let Some(old) = old.filter(|old| old.holds_its_place())
            && (!row.holds_its_place() || version(&old) != version(&row))
        {
            self.version_left(&old);
        }
    }

    pub(crate) fn update_allocations(&mut self, command: &UpdateAllocations) -> Reply {
        let UpdateAllocations { reports } = command;
        let mut jobs = BTreeMap::new();
        let mut ids = Vec::new();
        for report in reports {
            let Some(node) = self.state.nodes.get(&report.node).cloned() else { continue };
            if node.incarnation != report.incarnation {
                continue;
            }
            for update in &report.updates {
                jobs.extend(self.update_allocation(report, update));
            }
            if node.missed_index > node.synced_index
                && let Some(node) = self.state.nodes.get(&report.node).cloned()
            {
                let mut node = (*node).clone();
                node.synced_index = self.index;
                self.put_node(node);
            }
            ids.extend_from_slice(&report.evaluation_ids);
        }
        Reply::Evaluations(self.evaluate(&jobs, None, &ids))
    }

    /// Applies one report. Returns the job, and why, if it needs an evaluation.
    fn update_allocation(
        &mut self,
        report: &NodeReport,
        update: &ClientUpdate,
    ) -> Option<(JobKey, Trigger)> {
        let old = self.state.allocations.get(&update.id).cloned()?;
        let stale = update.sequence <= old.client_sequence || old.client.is_terminal();
        if old.node != report.node || stale || update.status == ClientStatus::Lost {
            return None;
        }
        let mut row = (*old).clone();
        row.client_sequence = update.sequence;
        if row.client != update.status {
            row.client_at = self.at;
        }
        row.client = update.status;
        self.take_health(&old, &mut row, update);
        row.client_description = cut(&update.description, limits::REPORT_TEXT_BYTES_MAX);
        if let Some(reported) = &update.tasks {
            let tasks = self.kept_tasks(&row, reported);
            if *row.tasks != tasks {
                row.tasks = Arc::new(tasks);
            }
        }
        // A short task may have ended before its start was reported.
        let started = old.client == ClientStatus::Pending
            && matches!(row.client, ClientStatus::Running | ClientStatus::Complete);
        // A person said that it is healthy before its agent said that it runs: the next step waited
        // for both.
        let is_awaited =
            started && row.client == ClientStatus::Running && self.is_healthy_member(&old);
        let affinity_key = started.then(|| self.affinity_key(&row)).flatten();
        let ended = row.client.is_terminal();
        let wanted = !row.is_server_terminal();
        let kind = self.state.jobs.get(&row.job).map(|job| job.kind);
        let makes_way = kind == Some(JobKind::System) && ended && self.makes_way(&row);
        let key = row.job.clone();
        let node = row.node;
        if ended && !row.is_live() && row.resources != Resources::default() {
            self.gains.insert(node);
        }
        self.put_allocation(row);
        if let Some(affinity_key) = affinity_key {
            self.set_affinity(node, affinity_key);
        }
        if update.status == ClientStatus::Failed
            && let Some(detail) = &update.node_failure
        {
            self.note_failure(node, &key, detail);
        }
        if is_awaited {
            return Some((key, Trigger::DeploymentWatcher));
        }
        let replace = match kind? {
            JobKind::Service => true,
            JobKind::Batch => update.status == ClientStatus::Failed,
            // One of the current version is started again by its agent.
            JobKind::System => makes_way,
            JobKind::Sysbatch => false,
        };
        (ended && wanted && replace).then_some((key, Trigger::AllocFailure))
    }

    /// Whether it counts as healthy in a deployment that goes on.
    fn is_healthy_member(&self, row: &Allocation) -> bool {
        row.deployment.is_some_and(|own| {
            let deployment = self.state.deployments.get(&own.id);
            own.is_healthy() == Some(true) && deployment.is_some_and(|row| row.is_active())
        })
    }

    /// Whether the current version of a system job takes the place of one that has ended. The pass
    /// that left an older one for a later step cannot have seen its end. While the group is held,
    /// its own version would take the place again, as often as it fails.
    fn makes_way(&self, row: &Allocation) -> bool {
        let Some(job) = self.state.jobs.get(&row.job) else { return false };
        if (job.create_index, job.version) == (row.job_create_index, row.job_version) {
            return false;
        }
        if let Some(deployment) = self.state.current_deployment(job) {
            return !deployment.holds_back(&row.group);
        }
        // Canaries that found no room have not begun one.
        let update = self.state.current_spec(job).and_then(|spec| spec.group(&row.group)?.update);
        update.is_none_or(|update| update.canaries == 0)
    }

    /// Takes what an agent says of an allocation's health: once, and of the deployment that it
    /// belongs to now. What fails while that goes on is unhealthy, whatever was said before. Of one
    /// that is to end nothing counts: what is stopped before it was healthy is not bad for that.
    fn take_health(&self, old: &Allocation, row: &mut Allocation, update: &ClientUpdate) {
        if !old.is_live() || row.transition.migrate {
            return;
        }
        let fails = row.client == ClientStatus::Failed;
        let Some(own) = &mut row.deployment else { return };
        let said = update.health.filter(|(id, _)| *id == own.id && own.health.is_none());
        let said = said.map(|(_, healthy)| healthy);
        let goes_on = || self.state.deployments.get(&own.id).is_some_and(|row| row.is_active());
        let word = if fails && goes_on() { Some(false) } else { said };
        if let Some(healthy) = word.filter(|word| own.is_healthy() != Some(*word)) {
            own.health = Some(AllocationHealth { healthy, at: self.at, index: self.index });
        }
    }

    /// What a row keeps of the states that an agent reports: those of the tasks of its group, with
    /// their last events and texts of bounded length.
    fn kept_tasks(
        &self,
        row: &Allocation,
        reported: &BTreeMap<Text, TaskState>,
    ) -> BTreeMap<Text, TaskState> {
        let group = self.state.allocation_spec(row).and_then(|spec| spec.group(&row.group));
        let names: BTreeSet<&Text> =
            group.iter().flat_map(|group| &group.tasks).map(|task| &task.name).collect();
        let known = reported.iter().filter(|(name, _)| names.contains(name));
        let kept = known.map(|(name, task)| {
            let skipped = task.events.len().saturating_sub(limits::TASK_EVENTS_MAX);
            let events = task.events.iter().skip(skipped).map(|event| TaskEvent {
                kind: cut(&event.kind, limits::REPORT_TEXT_BYTES_MAX),
                message: cut(&event.message, limits::REPORT_TEXT_BYTES_MAX),
                ..*event
            });
            let state = cut(&task.state, limits::REPORT_TEXT_BYTES_MAX);
            (name.clone(), TaskState { state, events: events.collect(), ..*task })
        });
        kept.collect()
    }

    /// The affinity key of an allocation, in the version that it runs.
    fn affinity_key(&self, row: &Allocation) -> Option<Text> {
        let spec = self.state.allocation_spec(row)?;
        spec.affinity_key(&row.group, &self.state.node_life().affinity_meta_key).cloned()
    }

    /// Stores the affinity key of the last allocation that started on the node.
    fn set_affinity(&mut self, node: NodeId, key: Text) {
        let Some(row) = self.state.nodes.get(&node) else { return };
        if row.affinity_key != key {
            let mut row = (**row).clone();
            row.affinity_key = key;
            self.put_node(row);
        }
    }

    /// They have ended as by a user's request: nothing takes their place until the job changes.
    pub(crate) fn expire_runs(&mut self, command: &ExpireRuns) -> Reply {
        for id in &command.ids {
            let Some(old) = self.state.allocations.get(id).cloned() else { continue };
            if self.state.run_deadline(&old).is_none_or(|deadline| deadline > self.at) {
                continue;
            }
            let mut row = (*old).clone();
            row.desired = DesiredStatus::Stop;
            row.desired_description = RUN_TIME_OVER.into();
            row.transition.migrate = true;
            row.transition.reschedule = false;
            row.server_modify_index = self.index;
            self.put_allocation(row);
        }
        Reply::Done
    }

    /// Refuses what would change nothing: to replace an instance that has ended and whose place is
    /// none any more, or is taken, or to leave the place of one empty that was not stopped.
    fn check_ended(
        &self,
        job: &Job,
        old: &Allocation,
        replacement: Replacement,
    ) -> Result<(), Rejection> {
        let ended = format!("alloc {} has ended ({})", old.id, old.client.name());
        match replacement {
            Replacement::ByKind => Ok(()),
            Replacement::Never => {
                let runs_once = matches!(job.kind, JobKind::Batch | JobKind::Sysbatch);
                if old.is_ended_by_request() && old.may_stay_ended(runs_once) {
                    return Ok(());
                }
                Err(refused(format!(
                    "{ended}: only one that runs is stopped without a replacement"
                )))
            }
            Replacement::Always => {
                if let Some(why) = self.why_no_place(job, old) {
                    return Err(refused(format!("{ended}, {why}")));
                }
                let may_run_again = old.is_ended_by_request()
                    || old.transition.reschedule
                    || self.is_to_replace(job, old);
                if may_run_again {
                    return Ok(());
                }
                let only = "only one that runs, that has failed or that was stopped is replaced";
                Err(refused(format!("{ended}: {only}")))
            }
        }
    }

    /// Why nothing could take the place of an instance that has ended.
    fn why_no_place(&self, job: &Job, old: &Allocation) -> Option<String> {
        if job.stop {
            return Some("and its job is stopped: start that".to_owned());
        }
        if old.job_create_index != job.create_index {
            return Some("and its job was purged: this one is another".to_owned());
        }
        let next = old.next.filter(|next| self.state.allocations.contains(next));
        let holder = next.or_else(|| self.state.live_name(&job.key, &old.live_name()));
        if let Some(holder) = holder {
            return Some(format!("and alloc {holder} has its place"));
        }
        if old.per_node {
            return None;
        }
        let spec = self.state.current_spec(job);
        let count = spec.and_then(|spec| spec.group(&old.group)).map_or(0, |group| group.count);
        let names = self.state.job_index(&job.key).map(|index| &index.live_names);
        let names = names.into_iter().flat_map(|names| names.keys());
        let of_group = |(group, _, within): &&LiveName| {
            *group == old.group && matches!(within, NameScope::Group)
        };
        let live = names.filter(of_group).count() as u64;
        (live >= u64::from(count))
            .then(|| format!("and group \"{}\" has all of its instances: {count}", old.group))
    }

    pub(crate) fn stop_allocation(&mut self, command: &StopAllocation) -> Outcome {
        let StopAllocation { id, replacement, no_shutdown_delay, evaluation } = *command;
        let old = self.state.allocations.get(&id).cloned().ok_or_else(|| not_found("alloc"))?;
        let Some(job) = self.state.jobs.get(&old.job).cloned() else {
            return Err(Rejection::Invalid("the allocation's job was purged".into()));
        };
        if self.state.evaluations.contains(&evaluation) {
            return Err(Rejection::Invalid("evaluation id exists already".into()));
        }
        if replacement == Replacement::Never && self.state.active_deployment(&job.key).is_some() {
            let text = "a deployment goes on, which would wait for the instance until it fails";
            return Err(Rejection::Invalid(text.into()));
        }
        // What is to end already may wait for its delay, and is told to end at once. Nobody has to
        // look at its job for that.
        let is_hurried = no_shutdown_delay
            && replacement != Replacement::Always
            && !old.is_live()
            && !old.client.is_terminal();
        let room = self.state.check_room_for(&job);
        if !is_hurried {
            room.clone()?;
        }
        if !old.is_live() && !is_hurried {
            self.check_ended(&job, &old, replacement)?;
        }
        let is_always = replacement == Replacement::Always;
        if is_always && !old.is_live() && !old.is_ended_by_request() {
            // It failed: it is replaced whatever bound or delay it waits for.
            let mut row = (*old).clone();
            row.transition.reschedule = true;
            self.put_allocation(row);
        } else if old.is_live() || is_always {
            let mut row = (*old).clone();
            row.transition.migrate = true;
            match replacement {
                Replacement::ByKind => {}
                Replacement::Always => row.transition.reschedule = true,
                Replacement::Never => {
                    row.transition.no_replacement = true;
                    row.transition.reschedule = false;
                }
            }
            row.transition.no_shutdown_delay |= no_shutdown_delay;
            row.server_modify_index = self.index;
            self.put_allocation(row);
        } else if is_hurried {
            let mut row = (*old).clone();
            row.transition.no_shutdown_delay = true;
            row.server_modify_index = self.index;
            self.put_allocation(row);
            if room.is_err() {
                return Ok(Reply::Evaluations(Vec::new()));
            }
        }
        let mut row = Evaluation::new(
            evaluation,
            job.key.clone(),
            job.kind,
            job.priority,
            Trigger::AllocStop,
        );
        row.job_modify_index = job.job_modify_index;
        self.put_evaluation(row);
        Ok(Reply::Evaluations(vec![evaluation]))
    }
}
