//! What each command must have done when it was taken: a second, short writing of the state machine, in terms of the rows before and after. It says what
//! must be so, not how, and shares no code with `apply`. What holds whatever the command was is in [`crate::invariants`].

mod nodes;
mod places;

use std::{collections::BTreeSet, sync::Arc};

use fsm::{
    AllocationId, ClientStatus, Command, DesiredStatus, Effect, EvaluationId, EvaluationStatus,
    Extent, Index, Job, JobKey, JobSpec, Liveness, Node, NodeId, Plan, PlanVerdict, Rejection,
    Reply, State,
    allocation::{NodeReport, StopAllocation, UpdateAllocations},
    command::{
        AllocationCommand, EvaluationCommand, JobCommand, NodeCommand, PlanCommand, SettingsCommand,
    },
    evaluation::UpdateEvaluations,
    job::{DeregisterJob, RegisterJob, ScaleJob},
    node::{
        AdvanceDrains, Drain, EndSuspensions, GainKey, LivenessChange, NodeLiveness, ReapNode,
        RegisterNode, SetDrain, SetEligibility, SuspendLateNodes,
    },
    plan::ApplyPlans,
    settings::{UpsertNamespace, UpsertNodePool},
    table::TableId,
};

use crate::invariants::{
    check_kept,
    needs::{has_ended, in_service, is_live, is_of_system},
};

/// One entry: the states around it, what it did, and its command.
pub(crate) struct Entry<'a> {
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    pub(crate) effects: &'a [Effect],
    pub(crate) reply: &'a Reply,
}

type Found = Vec<String>;

/// What a command that took effect for the first time left undone.
#[expect(clippy::wildcard_enum_match_arm, reason = "most commands have none of their own")]
pub(crate) fn judge(entry: &Entry<'_>, command: &Command, found: &mut Found) {
    entry.effects(found);
    entry.table_indexes(found);
    entry.extents(found);
    entry.nodes_live_well(command, found);
    if let Command::Job(JobCommand::RegisterJob(RegisterJob { spec, enforce_index, .. })) = command
    {
        entry.enforced(&spec.key, *enforce_index, found);
    }
    entry.place_deleted(command, found);
    if matches!(entry.reply, Reply::Rejected(_)) {
        entry.nothing_changed(found);
        return;
    }
    match command {
        Command::Job(JobCommand::RegisterJob(RegisterJob { spec, stop, .. })) => {
            entry.job_registered(spec, *stop, found);
        }
        Command::Job(JobCommand::DeregisterJob(DeregisterJob { job, purge, .. })) => {
            entry.job_ended(job, *purge, found);
        }
        Command::Job(JobCommand::EvaluateJob(_)) => entry.evaluation_made(found),
        Command::Job(JobCommand::ScaleJob(command)) => entry.scaled(command, found),
        Command::Node(NodeCommand::RegisterNode(RegisterNode {
            node,
            identity,
            description,
            ..
        })) => {
            entry.node_registered(*node, identity, found);
            let there = entry.after.nodes().get(node);
            if there.is_none_or(|row| row.description != *description) {
                found.push(format!("P-node: {node} is not as it registered"));
            }
        }
        Command::Node(NodeCommand::NodeReadiness(report)) => {
            entry.node_ready(report.node, found);
            entry.check_reported(report, found);
        }
        Command::Node(NodeCommand::NodeLiveness(NodeLiveness { changes, .. })) => {
            entry.liveness_changed(changes, found);
        }
        Command::Node(NodeCommand::SetEligibility(SetEligibility { node, eligible, .. })) => {
            entry.eligibility_set(*node, *eligible, found);
        }
        Command::Node(NodeCommand::SetDrain(SetDrain { node, drain, mark_eligible, .. })) => {
            entry.drain_set(*node, drain.as_ref(), *mark_eligible, found);
        }
        Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { migrate, complete, .. })) => {
            entry.drains_advanced(migrate, complete, found);
        }
        Command::Node(NodeCommand::ReapNode(ReapNode { node, force, .. })) => {
            entry.node_reaped(*node, *force, found);
        }
        Command::Allocation(AllocationCommand::UpdateAllocations(UpdateAllocations {
            reports,
        })) => {
            entry.reports_taken(reports, found);
        }
        Command::Allocation(AllocationCommand::StopAllocation(StopAllocation { id, .. })) => {
            entry.allocation_stopped(*id, found);
        }
        Command::Evaluation(EvaluationCommand::UpdateEvaluations(UpdateEvaluations {
            updates,
        })) => {
            for update in updates {
                entry.evaluation_updated(update, found);
            }
        }
        Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) => {
            entry.plans_applied(plans, found);
        }
        Command::Settings(SettingsCommand::UpsertNodePool(UpsertNodePool { pool })) => {
            entry.node_pool_made(pool, found);
        }
        Command::Settings(SettingsCommand::UpsertNamespace(UpsertNamespace { namespace })) => {
            entry.namespace_made(namespace, found);
        }
        Command::Node(NodeCommand::SuspendLateNodes(SuspendLateNodes { nodes })) => {
            for node in nodes {
                entry.late_node_suspended(*node, found);
            }
        }
        Command::Node(NodeCommand::SuspendNode(command)) => entry.node_suspended(command, found),
        Command::Node(NodeCommand::UnsuspendNode(command)) => {
            entry.checked_again(command.node, found);
        }
        Command::Node(NodeCommand::EndSuspensions(EndSuspensions { nodes })) => {
            for node in nodes {
                entry.checked_again(*node, found);
            }
        }
        _ => {}
    }
}

impl Entry<'_> {
    fn index(&self) -> Index {
        self.after.index()
    }

    /// Services hear of what changed: evaluations, nodes, room.
    fn effects(&self, found: &mut Found) {
        let index = self.index();
        for row in self.after.evaluations().iter() {
            let changed =
                self.before.evaluations().get(&row.id).is_none_or(|old| !Arc::ptr_eq(old, row));
            if changed && !self.effects.contains(&Effect::Evaluation(row.id)) {
                found.push(format!("I25: nobody hears of the change of evaluation {}", row.id));
            }
        }
        for row in self.after.nodes().iter() {
            let changed = self.before.nodes().get(&row.id).is_none_or(|old| !Arc::ptr_eq(old, row));
            if changed && !self.effects.contains(&Effect::Node(row.id)) {
                found.push(format!("I25: nobody hears of the change of node {}", row.id));
            }
        }
        for gain in self.after.capacity_gains().iter().filter(|gain| gain.index == index) {
            let heard = self.effects.iter().any(|effect| {
                let Effect::Capacity { class, node } = effect else { return false };
                match gain.key {
                    GainKey::Class(of) => *class == of,
                    GainKey::Node(of) => *node == of,
                }
            });
            if !heard {
                found.push(format!("I25: nobody hears of the room that {:?} gained", gain.key));
            }
        }
    }

    /// Whoever waits for a table is woken by its index.
    fn table_indexes(&self, found: &mut Found) {
        for table in TableId::ALL {
            let is_same = self.before.table_digest(table) == self.after.table_digest(table);
            let index = self.after.table_index(table);
            if !is_same && index != self.index() {
                found.push(format!("I13: {table:?} changed and keeps index {index}"));
            }
        }
    }

    /// Whoever waits for the lists of a job, a node or an evaluation is woken by each change of a row in them.
    fn extents(&self, found: &mut Found) {
        let (before, after) = (self.before, self.after);
        let mut sleeps = |what: &str, was: &Extent, is: &Extent| {
            if was.is_same(is) {
                found.push(format!("I13: nobody is woken who waits for {what}"));
            }
        };
        for row in after.allocations().iter() {
            if before.allocations().get(&row.id).is_some_and(|old| Arc::ptr_eq(old, row)) {
                continue;
            }
            let (job, node, evaluation) = (&row.job, row.node, row.evaluation);
            let of_job = |state| Extent::allocations_of_job(state, job);
            sleeps(&format!("allocations of {job}"), &of_job(before), &of_job(after));
            let of_node = |state| Extent::allocations_of_node(state, node);
            sleeps(&format!("allocations on {node}"), &of_node(before), &of_node(after));
            let of_evaluation = |state| Extent::allocations_of_evaluation(state, evaluation);
            let (was, is) = (of_evaluation(before), of_evaluation(after));
            sleeps(&format!("allocations of evaluation {evaluation}"), &was, &is);
        }
        for row in after.evaluations().iter() {
            if before.evaluations().get(&row.id).is_none_or(|old| !Arc::ptr_eq(old, row)) {
                let of_job = |state| Extent::evaluations_of_job(state, &row.job);
                sleeps(&format!("evaluations of {}", row.job), &of_job(before), &of_job(after));
            }
        }
        for row in after.jobs().iter() {
            // The last plan is shown to nobody.
            let shown = |old: &Job| Job { last_plan_index: row.last_plan_index, ..old.clone() };
            let old = before.jobs().get(&row.key);
            if old.is_none_or(|old| !Arc::ptr_eq(old, row) && shown(old) != **row) {
                let of_job = |state| Extent::job(state, &row.key);
                sleeps(&format!("job {}", row.key), &of_job(before), &of_job(after));
            }
        }
    }

    fn nothing_changed(&self, found: &mut Found) {
        // The refusal is remembered, for whoever asks again.
        let tables = TableId::ALL.into_iter().filter(|table| *table != TableId::Sessions);
        for table in tables {
            if self.before.table_digest(table) != self.after.table_digest(table) {
                found.push(format!("P-reject: a rejected command changed rows of {table:?}"));
            }
        }
    }

    /// Open evaluations of a job that this entry made.
    fn has_new_evaluation(&self, job: &JobKey) -> bool {
        self.after.evaluations().iter().any(|row| {
            row.job == *job
                && row.create_index == self.index()
                && row.status == EvaluationStatus::Pending
        })
    }

    fn evaluation_made(&self, found: &mut Found) {
        if let Reply::Job { evaluation: Some(id), .. } = self.reply
            && self.after.evaluations().get(id).is_none_or(|row| row.create_index != self.index())
        {
            found.push(format!("I18: evaluation {id} was acknowledged and is not there"));
        }
    }

    fn enforced(&self, key: &JobKey, asked: Option<Index>, found: &mut Found) {
        let Some(asked) = asked else { return };
        let index = self.before.jobs().get(key).map_or(0, |job| job.job_modify_index);
        let refused = matches!(self.reply, Reply::Rejected(Rejection::JobIndexConflict { .. }));
        if !refused && !matches!(self.reply, Reply::Job { .. }) {
            return;
        }
        if refused == (asked == index) {
            found.push(format!(
                "I12: {key} was to be of index {asked} and is of {index}; refused: {refused}"
            ));
        }
    }

    fn job_registered(&self, spec: &Arc<JobSpec>, stop: bool, found: &mut Found) {
        let key = &spec.key;
        let row = self.after.jobs().get(key);
        let is_as_asked = row.is_some_and(|row| {
            row.stop == stop
                && row.priority == spec.priority
                && self.after.current_spec(row).is_some_and(|current| current == spec)
        });
        if !is_as_asked {
            found.push(format!("P-job: {key} is not as it was registered"));
        }
        let (namespace, pool) = (&key.namespace, &spec.node_pool);
        if !self.after.namespaces().contains(namespace) || !self.after.node_pools().contains(pool) {
            found.push(format!("I45: {key} came to node pool {pool}, and one of both is gone"));
        }
        if !spec.is_parent() && !self.has_new_evaluation(key) {
            found.push(format!("I18: nobody evaluates {key}"));
        }
        self.evaluation_made(found);
    }

    /// A count that was taken is that of the current version, which keeps all else; what was said is the newest event.
    fn scaled(&self, command: &ScaleJob, found: &mut Found) {
        let ScaleJob { job: key, group, count, .. } = command;
        let spec = |state: &State| {
            let row = state.jobs().get(key)?;
            Some(JobSpec::clone(state.current_spec(row)?))
        };
        let expected = spec(self.before).map(|mut spec| {
            for one in spec.groups.iter_mut().filter(|one| one.name == *group) {
                one.count = count.unwrap_or(one.count);
            }
            spec
        });
        if spec(self.after) != expected {
            found.push(format!("P-scale: {group} of {key} is not {count:?}, or more has changed"));
        }
        let rolling = |state: &State| state.active_deployment(key).is_some();
        if count.is_some() && rolling(self.before) {
            found.push(format!("P-scale: {key} was scaled in the middle of a deployment"));
        }
        let rows = self.after.scalings_of(key);
        let newest = rows.iter().find(|row| row.group == *group).and_then(|row| row.events.first());
        if newest.is_none_or(|event| (event.create_index, event.count) != (self.index(), *count)) {
            found.push(format!("P-scale: the event of {group} of {key} is not the newest"));
        }
        let is_parent = self.after.jobs().get(key).is_some_and(|job| job.is_parent());
        if count.is_some() && !is_parent && !self.has_new_evaluation(key) {
            found.push(format!("I18: nobody evaluates {key}, which was scaled"));
        }
        self.evaluation_made(found);
    }

    fn job_ended(&self, key: &JobKey, purge: bool, found: &mut Found) {
        let Some(before) = self.before.jobs().get(key) else { return };
        let after = self.after.jobs().get(key);
        let ended = match after {
            Some(row) => {
                !purge && row.stop && row.version == before.version + u64::from(!before.stop)
            }
            None => purge,
        };
        if !ended {
            found.push(format!("P-job: {key} was not ended, purge {purge}"));
        }
        let mut blocked = self.after.evaluations().iter();
        if blocked.any(|row| row.job == *key && row.status == EvaluationStatus::Blocked) {
            found.push(format!("P-job: an evaluation of {key} waits, which was ended"));
        }
        if before.is_scheduled() && !self.has_new_evaluation(key) {
            found.push(format!("I18: nobody evaluates the end of {key}"));
        }
        self.evaluation_made(found);
    }

    /// Jobs that run on a node, less those that are gone.
    fn jobs_on(&self, state: &State, node: NodeId) -> BTreeSet<JobKey> {
        let rows = state.allocations().iter().filter(|row| row.node == node && is_live(row));
        rows.map(|row| row.job.clone()).filter(|key| self.after.jobs().contains(key)).collect()
    }

    fn jobs_are_evaluated(
        &self,
        jobs: impl IntoIterator<Item = JobKey>,
        why: &str,
        found: &mut Found,
    ) {
        for key in jobs {
            if !self.has_new_evaluation(&key) {
                found.push(format!("I18: nobody evaluates {key}, {why}"));
            }
        }
    }

    /// Per-node jobs that want a node.
    fn per_node_jobs_for(&self, node: &Node) -> BTreeSet<JobKey> {
        let jobs = self.after.jobs().iter().filter(|job| job.kind.is_per_node() && !job.stop);
        let wanted = jobs.filter(|job| {
            let spec = self.after.current_spec(job);
            spec.is_some_and(|spec| {
                let pool = &*spec.node_pool == "all" || spec.node_pool == node.description.pool;
                let of = &node.description.datacenter;
                pool && spec.datacenters.iter().any(|one| **one == *"*" || one == of)
            })
        });
        wanted.map(|job| job.key.clone()).collect()
    }

    fn node_registered(&self, id: NodeId, identity: &[u8; 16], found: &mut Found) {
        let Some(after) = self.after.nodes().get(&id) else {
            found.push(format!("P-node: {id} registered and is not there"));
            return;
        };
        let Some(before) = self.before.nodes().get(&id) else {
            let early = self.before.offline_nodes().get(&id);
            if early.is_some_and(|row| row.eligibility.ineligible) && in_service_but_ready(after) {
                found.push(format!("I36: {id} was taken out of service and came back into it"));
            }
            return;
        };
        if before.identity == *identity {
            if after.incarnation != before.incarnation {
                found.push(format!("P-node: {id} is another incarnation of the same"));
            }
        } else {
            if after.incarnation <= before.incarnation {
                found.push(format!("P-node: {id} lost its state in the same incarnation"));
            }
            let mut rows = self.after.allocations().iter();
            if rows.any(|row| row.node == id && !has_ended(row)) {
                found.push(format!("P-node: {id} lost its state and is said to run something"));
            }
            let on_it = self.jobs_on(self.before, id);
            self.jobs_are_evaluated(on_it, "which ran on a node that lost its state", found);
        }
        if after.class != before.class && in_service(after) {
            let jobs = self.per_node_jobs_for(after);
            self.jobs_are_evaluated(jobs, "whose node is another one", found);
        }
    }

    fn node_ready(&self, id: NodeId, found: &mut Found) {
        let (before, after) = (self.before.nodes().get(&id), self.after.nodes().get(&id));
        let (Some(before), Some(after)) = (before, after) else { return };
        if before.liveness != Liveness::Ready && after.liveness == Liveness::Ready {
            if before.missed_index > before.synced_index {
                found.push(format!("I49: {id} is ready before it said what it runs"));
            }
            let jobs = self.jobs_on(self.after, id).into_iter();
            let jobs = jobs.chain(self.per_node_jobs_for(after));
            self.jobs_are_evaluated(jobs, "whose node is ready", found);
        }
    }

    fn liveness_changed(&self, changes: &[LivenessChange], found: &mut Found) {
        for change in changes {
            let id = change.node;
            let (before, after) = (self.before.nodes().get(&id), self.after.nodes().get(&id));
            let (Some(before), Some(after)) = (before, after) else { continue };
            if before.incarnation != change.incarnation {
                if before.liveness != after.liveness {
                    found.push(format!("I50: {id} changed for an incarnation that is gone"));
                }
                continue;
            }
            if after.liveness == before.liveness {
                continue;
            }
            let jobs = self.jobs_on(self.after, id);
            self.jobs_are_evaluated(jobs, "whose node changed", found);
            let mut stopping = self.after.allocations().iter().filter(|row| row.node == id);
            if after.liveness == Liveness::Down
                && stopping.any(|row| row.desired != DesiredStatus::Run && !has_ended(row))
            {
                found.push(format!("I41: what was being stopped on {id} never ends"));
            }
        }
    }

    fn eligibility_set(&self, id: NodeId, eligible: bool, found: &mut Found) {
        let ineligible = match self.after.nodes().get(&id) {
            Some(node) => node.eligibility.ineligible,
            None => self.after.offline_nodes().contains(&id),
        };
        if ineligible == eligible {
            found.push(format!("I36: {id} was to be eligible: {eligible}"));
        }
    }

    fn drain_set(&self, id: NodeId, drain: Option<&Drain>, eligible: bool, found: &mut Found) {
        let (before, after) = (self.before.nodes().get(&id), self.after.nodes().get(&id));
        let (Some(before), Some(after)) = (before, after) else { return };
        match (drain, &after.drain) {
            (Some(asked), Some(set)) => {
                // None of a deadline before its beginning, which no right entry sets.
                let length =
                    |drain: &Drain, since| drain.deadline_at.map(|at| at.checked_sub(since));
                let asked_ms = length(asked, asked.started_at);
                let set_ms = length(set, self.after.at());
                let same = (asked.force, asked.ignore_system) == (set.force, set.ignore_system);
                if asked_ms != set_ms || !same {
                    found.push(format!("I48: {id} was to drain as {asked:?}, not as {set:?}"));
                }
            }
            (None, None) => {
                // A drain's end gives back what the drain took, and nothing else.
                let is_back = eligible && before.eligibility.by_drain;
                let wanted = before.eligibility.ineligible && !is_back;
                if after.eligibility.ineligible != wanted {
                    found.push(format!("I36: {id} is ineligible: not {wanted}"));
                }
            }
            (Some(_), None) | (None, Some(_)) => {
                found.push(format!("I48: {id} drains, or not, against its operator"));
            }
        }
        let jobs = self.jobs_on(self.after, id);
        self.jobs_are_evaluated(jobs, "whose node's drain was changed", found);
    }

    fn drains_advanced(&self, migrate: &[AllocationId], complete: &[NodeId], found: &mut Found) {
        for id in migrate {
            let Some(before) = self.before.allocations().get(id).filter(|row| is_live(row)) else {
                continue;
            };
            let flagged =
                self.after.allocations().get(id).is_some_and(|row| row.transition.migrate);
            if !flagged {
                found.push(format!("I48: {id} was to move and is not marked"));
            }
            if !before.transition.migrate && self.after.jobs().contains(&before.job) {
                let job = before.job.clone();
                self.jobs_are_evaluated([job], "of which an instance is to move", found);
            }
        }
        for id in complete {
            let (before, after) = (self.before.nodes().get(id), self.after.nodes().get(id));
            let (Some(before), Some(after)) = (before, after) else { continue };
            let is_done = before.drain.as_ref().is_none_or(|drain| {
                let mut here = self.before.allocations().iter().filter(|row| row.node == *id);
                here.all(|row| {
                    has_ended(row) || (drain.ignore_system && is_of_system(self.before, row))
                })
            });
            if after.drain.is_some() && is_done {
                found.push(format!("I48: the drain of {id} does not end"));
            }
            if before.eligibility.ineligible && !after.eligibility.ineligible {
                found.push(format!("I36: the end of its drain put {id} into service"));
            }
        }
    }

    fn node_reaped(&self, id: NodeId, force: bool, found: &mut Found) {
        let Some(before) = self.before.nodes().get(&id) else { return };
        let purged = force.then_some(id).into_iter().collect();
        let broken = check_kept(self.before, self.after, &purged);
        found.extend(broken.iter().map(ToString::to_string));
        if before.eligibility.ineligible && !force && !self.after.offline_nodes().contains(&id) {
            found.push(format!("I36: nobody remembers that {id} was taken out of service"));
        }
        if self.after.nodes().contains(&id) {
            found.push(format!("P-node: {id} was reaped and is there"));
        }
        let buried = self.after.tombstones().get(&id);
        if buried.is_none_or(|row| row.incarnation != before.incarnation) {
            found.push(format!("P-node: nobody remembers the incarnation of {id}"));
        }
        let mut left = self.after.allocations().iter().filter(|row| row.node == id);
        if left.any(|row| !has_ended(row)) {
            found.push(format!("P-node: {id} is gone and is said to run something"));
        }
        let on_it = self.jobs_on(self.before, id);
        self.jobs_are_evaluated(on_it, "whose node is gone", found);
        let waits = |job: &JobKey| {
            let mut rows = self.before.evaluations().iter();
            rows.any(|row| {
                row.job == *job && row.node == Some(id) && row.status == EvaluationStatus::Blocked
            })
        };
        let waiting = self.per_node_jobs_for(before).into_iter().filter(waits);
        self.jobs_are_evaluated(waiting, "which waits for a node that is gone", found);
    }

    fn reports_taken(&self, reports: &[NodeReport], found: &mut Found) {
        for report in reports {
            let node = self.before.nodes().get(&report.node);
            let known = node.is_some_and(|node| node.incarnation == report.incarnation);
            for update in &report.updates {
                let before = self.before.allocations().get(&update.id);
                let after = self.after.allocations().get(&update.id);
                let (Some(before), Some(after)) = (before, after) else { continue };
                let news = known
                    && before.node == report.node
                    && !has_ended(before)
                    && update.sequence > before.client_sequence
                    && update.status != ClientStatus::Lost;
                let expected = if news { update.status } else { before.client };
                if after.client != expected {
                    found.push(format!(
                        "I41: {} is {}, expected was {} (news: {news})",
                        update.id,
                        after.client.name(),
                        expected.name()
                    ));
                }
                let wanted = before.desired == DesiredStatus::Run;
                let job = self.after.jobs().get(&before.job);
                let matters = job.is_some_and(|job| match job.kind {
                    fsm::JobKind::Service => true,
                    fsm::JobKind::Batch => update.status == ClientStatus::Failed,
                    fsm::JobKind::System | fsm::JobKind::Sysbatch => false,
                });
                if news && has_ended(after) && wanted && matters {
                    let job = before.job.clone();
                    self.jobs_are_evaluated([job], "of which an instance ended", found);
                }
            }
            let synced = self.after.nodes().get(&report.node);
            if known && synced.is_some_and(|node| node.missed_index > node.synced_index) {
                found.push(format!("P-node: the report of {} does not count", report.node));
            }
            if !known
                && node.map(|node| node.synced_index) != synced.map(|node| node.synced_index)
                && !reports.iter().any(|other| {
                    other.node == report.node
                        && node.is_some_and(|node| node.incarnation == other.incarnation)
                })
            {
                let detail = format!("P-node: {} is synced by who it was before", report.node);
                found.push(detail);
            }
        }
    }

    fn allocation_stopped(&self, id: AllocationId, found: &mut Found) {
        let Some(before) = self.before.allocations().get(&id) else { return };
        let moves = self.after.allocations().get(&id).is_some_and(|row| row.transition.migrate);
        if is_live(before) && !moves {
            found.push(format!("P-allocation: {id} was stopped and goes on"));
        }
        self.jobs_are_evaluated([before.job.clone()], "of which an instance was stopped", found);
    }

    fn evaluation_updated(&self, update: &fsm::evaluation::EvaluationUpdate, found: &mut Found) {
        let Some(before) = self.before.evaluations().get(&update.id) else { return };
        if before.status.is_terminal() {
            return;
        }
        let id = update.id;
        if self.after.evaluations().get(&id).is_none_or(|row| row.status != update.status) {
            found.push(format!("I24: evaluation {id} is not {}", update.status.name()));
        }
        if let Some((next, at)) = update.follow_up {
            self.waits(&before.job, next, at, found);
        }
    }

    /// What follows an evaluation of a job that was not stopped.
    fn waits(&self, job: &JobKey, next: EvaluationId, at: u64, found: &mut Found) {
        let goes_on = self.after.jobs().get(job).is_some_and(|job| !job.stop);
        if goes_on && self.after.evaluations().get(&next).is_none_or(|row| row.wait_until != at) {
            found.push(format!("I18: evaluation {next} of {job} does not wait until {at}"));
        }
    }

    fn plans_applied(&self, plans: &[Arc<Plan>], found: &mut Found) {
        let Reply::Plans(verdicts) = self.reply else { return };
        for (plan, verdict) in plans.iter().zip(verdicts) {
            if verdict.refused.is_none() {
                self.plan_applied(plan, verdict, found);
            }
        }
    }

    fn plan_applied(&self, plan: &Plan, verdict: &PlanVerdict, found: &mut Found) {
        let id = plan.evaluation;
        let whole = !plan.all_at_once || verdict.dropped.is_empty();
        let dropped = |id: &AllocationId| verdict.dropped.iter().any(|(other, _)| other == id);
        // What has ended goes on being wanted when none of what was to follow it was placed: it remembers how often it was tried.
        let stays = |id: AllocationId| {
            let ended = self.before.allocations().get(&id).is_some_and(|row| has_ended(row));
            let mut next = plan.placements.iter().filter(|one| one.previous == Some(id)).peekable();
            ended && next.peek().is_some() && next.all(|one| dropped(&one.id))
        };
        for stop in plan.stops.iter().filter(|stop| whole && !stays(stop.id)) {
            let Some(row) = self.after.allocations().get(&stop.id) else { continue };
            if row.desired == DesiredStatus::Run {
                found.push(format!("P-plan: {} was not stopped", stop.id));
            }
            let node = self.after.nodes().get(&row.node);
            if node.is_none_or(|node| node.liveness == Liveness::Down) && !has_ended(row) {
                found.push(format!("P-plan: nobody can say how {} ends", stop.id));
            }
        }
        for placement in plan.placements.iter().filter(|one| !dropped(&one.id)) {
            let Some(row) = self.after.allocations().get(&placement.id) else {
                found.push(format!("P-plan: {} was not placed", placement.id));
                continue;
            };
            let previous = placement.previous.and_then(|id| self.after.allocations().get(&id));
            let linked = row.previous == placement.previous
                && previous.is_none_or(|old| old.next == Some(row.id) && old.follow_up.is_none());
            if !linked || row.reschedules != placement.reschedules {
                found.push(format!("I42: {} does not stand where it was to", placement.id));
            }
        }
        for update in plan.in_place.iter().filter(|one| !dropped(&one.id)) {
            let row = self.after.allocations().get(&update.id);
            if row.is_none_or(|row| row.job_version != plan.job_version) {
                found.push(format!("P-plan: {} was not moved to the new version", update.id));
            }
            let before = self.before.allocations().get(&update.id);
            if before.is_none_or(|row| !is_live(row)) {
                found.push(format!("I31: {} had ended and goes on", update.id));
            }
        }
        let judged = self.after.jobs().get(&plan.job).map(|job| job.last_plan_index);
        let names = !plan.stops.is_empty()
            || !plan.in_place.is_empty()
            || !plan.placements.is_empty()
            || !plan.follow_ups.is_empty();
        if names && judged.is_some_and(|index| index != self.index()) {
            found.push(format!("I31: an older plan than that of {id} could be taken later"));
        }
        if verdict.outcome_taken != (plan.outcome.is_some() && verdict.dropped.is_empty()) {
            found.push(format!("I29: the outcome of {id} counts: {}", verdict.outcome_taken));
        }
        let Some(outcome) = plan.outcome.as_ref().filter(|_| verdict.outcome_taken) else {
            return;
        };
        let Some(row) = self.after.evaluations().get(&id) else { return };
        let snapshot = plan.snapshot_index;
        if (row.status, row.snapshot_index) != (outcome.status, snapshot) {
            found.push(format!("P-plan: evaluation {id} is not as its plan says"));
        }
        for made in &outcome.evaluations {
            self.waits(&made.job, made.id, made.wait_until, found);
        }
        let job = self.after.jobs().get(&plan.job);
        let job = job.filter(|job| job.create_index == plan.job_create_index);
        if job.is_some_and(|job| job.queued != outcome.queued) {
            found.push(format!("I45: what {} waits for is not what its plan says", plan.job));
        }
        let ended_all =
            outcome.status == EvaluationStatus::Complete && outcome.failed_groups.is_empty();
        let mut open = self.after.evaluations().iter().filter(|row| row.job == plan.job);
        if ended_all
            && job.is_some()
            && open.any(|row| row.status == EvaluationStatus::Blocked && row.id != id)
        {
            found.push(format!("I39: {} waits for room that it does not need", plan.job));
        }
    }
}

/// It is in service but for its readiness.
fn in_service_but_ready(node: &Node) -> bool {
    !node.eligibility.ineligible && node.drain.is_none()
}
