//! What must hold after every committed entry, and at the end. It shares no code with what it checks: it sums over rows instead of trusting derived
//! indexes, and compares the states before and after. `fsm::invariant` runs besides, now and then and at the end, because it is slow.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, AllocationId, Command, DesiredStatus, Effect, EvaluationStatus, Index, Reply,
    RequestId, State, Trigger, invariant, plan::DropReason, table::ChangeSet, testing,
};

use crate::{coverage::Event, log::Applied, world::World};

/// A whole check every so many entries.
const WHOLE_EVERY: Index = 61;

/// What the oracle remembers.
#[derive(Default)]
pub(crate) struct Oracle {
    /// First reply to each request, and its index.
    requests: BTreeMap<RequestId, Reply>,
}

impl World {
    /// Commits one entry and judges it.
    pub(crate) fn commit(&mut self) -> bool {
        if !self.log.commit() {
            return false;
        }
        let index = self.log.last();
        let mut found = Vec::new();
        let before = self.log.state_at(index - 1).clone();
        if let Some(applied) = self.log.at(index) {
            judge(&before, applied, &mut self.oracle, &mut found);
            note(&before, applied, &mut self.coverage);
        }
        if index.is_multiple_of(WHOLE_EVERY) {
            let violations = invariant::check(self.log.truth());
            found.extend(violations.into_iter().map(|one| format!("{}: {}", one.name, one.detail)));
        }
        let line =
            self.log.at(index).map(|applied| crate::words::reply(&applied.reply, &applied.state));
        self.trace(|| format!("{index} is committed: {}", line.unwrap_or_default()));
        for one in found {
            self.fail(format!("{one} (entry {index})"));
        }
        true
    }

    /// I8, I9: the log applied on another state, saved and loaded on the way, gives the same state, byte for byte.
    pub(crate) fn check_replay(&mut self, reload_at: usize) {
        let mut state = self.log.genesis().clone();
        let mut differs = None;
        for (place, applied) in self.log.committed().iter().enumerate() {
            if place == reload_at {
                state = testing::reload(&state);
            }
            let index = place as Index + 1;
            match &applied.entry.proposal {
                Some(proposal) => {
                    let mut changes = ChangeSet::default();
                    state.apply(index, applied.entry.term, proposal, &mut changes);
                }
                None => state.advance(index, applied.entry.term),
            }
            if state.digest() != applied.state.digest() {
                differs = Some(index);
                break;
            }
        }
        if let Some(index) = differs {
            self.fail(format!("I8: another replica differs from index {index}"));
        } else if testing::rows(&state) != testing::rows(self.log.truth()) {
            self.fail("I8: the rows of another replica differ".to_owned());
        }
    }
}

type Found = Vec<String>;

fn judge(before: &State, applied: &Applied, oracle: &mut Oracle, found: &mut Found) {
    let after = &applied.state;
    let Some(proposal) = &applied.entry.proposal else { return };
    let refused = matches!(applied.reply, Reply::Rejected(_));
    if let Some(request) = proposal.request {
        match oracle.requests.get(&request.id) {
            Some(first) if *first != applied.reply || !applied.effects.is_empty() => {
                found.push(format!("P4: request {:?} took effect twice", request.id));
            }
            Some(_) => {}
            None => {
                oracle.requests.insert(request.id, applied.reply.clone());
            }
        }
    }
    // I28.
    if proposal.epoch.is_some_and(|epoch| epoch != applied.entry.term) && !refused {
        found.push("I28: a service's command of another term was taken".to_owned());
    }
    judge_garbage(before, applied, found);
    judge_evaluations(before, applied, found);
    judge_allocations(before, applied, found);
    judge_nodes(after, found);
    judge_names(after, found);
    judge_plans(before, applied, found);
    judge_jobs(before, applied, found);
    judge_blocked(after, found);
    judge_drains(before, applied, found);
}

/// I18, I52: nothing vanishes but what has ended, by the collector.
fn judge_garbage(before: &State, applied: &Applied, found: &mut Found) {
    let after = &applied.state;
    let command = applied.entry.proposal.as_ref().map(|proposal| &proposal.command);
    let Some(Command::CollectGarbage { cutoffs, .. }) = command else {
        if after.evaluations.len() < before.evaluations.len() {
            found.push("I18: an evaluation vanished".to_owned());
        }
        if after.allocations.len() < before.allocations.len() {
            found.push("I52: an allocation vanished".to_owned());
        }
        return;
    };
    let cutoff = cutoffs.evaluations.max(cutoffs.batch_evaluations);
    for row in before.evaluations.iter().filter(|row| !after.evaluations.contains(&row.id)) {
        if !row.status.is_terminal() || row.modified_at > cutoff {
            found.push(format!("I52: evaluation {} was forgotten", row.id));
        }
    }
    for row in before.allocations.iter().filter(|row| !after.allocations.contains(&row.id)) {
        if !row.client.is_terminal() || row.modified_at > cutoff {
            found.push(format!("I52: allocation {} was forgotten", row.id));
        }
    }
    for row in before.jobs.iter().filter(|row| !after.jobs.contains(&row.key)) {
        if row.status != fsm::JobStatus::Dead {
            found.push(format!("I52: job {} was forgotten", row.key));
        }
    }
}

/// I24: pending and blocked go on, the others are final.
fn judge_evaluations(before: &State, applied: &Applied, found: &mut Found) {
    for effect in &applied.effects {
        let Effect::Evaluation(id) = effect else { continue };
        let Some(new) = applied.state.evaluations.get(id) else { continue };
        let Some(old) = before.evaluations.get(id) else { continue };
        let legal = match (old.status, new.status) {
            (EvaluationStatus::Pending, _) => true,
            (EvaluationStatus::Blocked, status) => status != EvaluationStatus::Pending,
            (old, new) => old == new,
        };
        if !legal {
            let (old, new) = (old.status.name(), new.status.name());
            found.push(format!("I24: evaluation {id} went from {old} to {new}"));
        }
    }
}

fn nodes_of(applied: &Applied) -> impl Iterator<Item = fsm::NodeId> + '_ {
    applied.effects.iter().filter_map(|effect| match effect {
        Effect::NodeAllocations(node) => Some(*node),
        Effect::Evaluation(_)
        | Effect::Capacity { .. }
        | Effect::Node(_)
        | Effect::Job(_)
        | Effect::SchedulerConfiguration
        | Effect::DigestMark => None,
    })
}

/// I36, I40, I41, I42: how allocations may change and appear.
fn judge_allocations(before: &State, applied: &Applied, found: &mut Found) {
    let after = &applied.state;
    for row in nodes_of(applied).flat_map(|node| after.allocations_of_node(node)) {
        match before.allocations.get(&row.id) {
            Some(old) => judge_change(old, row, found),
            None => judge_new(before, after, row, found),
        }
    }
}

fn judge_change(old: &Allocation, new: &Allocation, found: &mut Found) {
    let id = new.id;
    if old.desired != DesiredStatus::Run && new.desired == DesiredStatus::Run {
        found.push(format!("I41: allocation {id} is wanted again"));
    }
    if old.client.is_terminal() && new.client != old.client {
        let (old, new) = (old.client.name(), new.client.name());
        found.push(format!("I41: allocation {id} went from {old} to {new}"));
    }
    if (old.node, &old.job, old.name_index) != (new.node, &new.job, new.name_index) {
        found.push(format!("I41: allocation {id} became another one"));
    }
    if new.client_sequence < old.client_sequence {
        found.push(format!("I41: the report of allocation {id} went back"));
    }
}

fn judge_new(before: &State, after: &State, row: &Allocation, found: &mut Found) {
    let id = row.id;
    let usable = before.nodes.get(&row.node).is_some_and(|node| node.is_schedulable());
    if !usable {
        found.push(format!("I36: allocation {id} is placed on node {} out of service", row.node));
    }
    match after.jobs.get(&row.job) {
        Some(job) if !job.stop && job.version == row.job_version => {}
        _ => found.push(format!("I40: allocation {id} is of a job or version not wanted")),
    }
    if let Some(previous) = row.previous {
        let live = after.allocations.get(&previous).is_some_and(|old| old.is_live());
        let successors = after.allocations_of_job(&row.job);
        let successors = successors.filter(|one| one.previous == Some(previous) && one.is_live());
        if live || previous == id || successors.count() > 1 {
            found.push(format!("I42: allocation {id} is not the one successor of {previous}"));
        }
    }
}

/// I32, I33, I34: nothing is promised twice. Sums over rows.
fn judge_nodes(after: &State, found: &mut Found) {
    for node in after.nodes.iter() {
        let resources = &node.description.resources;
        let available = resources.available();
        let (mut cpu, mut memory, mut disk, mut count) = (0, 0, 0, 0);
        let mut ports = BTreeSet::new();
        for row in after.allocations_of_node(node.id).filter(|row| row.is_live()) {
            cpu += row.resources.cpu_mhz;
            memory += row.resources.memory_mb;
            disk += row.resources.disk_mb;
            count += 1;
            for port in &row.ports {
                if !ports.insert(port.value) {
                    found.push(format!("I33: port {} of node {} twice", port.value, node.id));
                }
                if resources.reserved_ports.contains(&port.value) {
                    found.push(format!("I33: port {} of node {} is reserved", port.value, node.id));
                }
                let range = resources.dynamic_port_min..=resources.dynamic_port_max;
                if &*port.label != "static" && !range.contains(&port.value) {
                    found.push(format!("I33: dynamic port {} is out of range", port.value));
                }
            }
        }
        let over =
            cpu > available.cpu_mhz || memory > available.memory_mb || disk > available.disk_mb;
        if over {
            found.push(format!("I32: node {} is over-committed: {cpu} MHz", node.id));
        }
        if resources.allocations_max > 0 && count > resources.allocations_max {
            found.push(format!("I34: node {} has {count} allocations", node.id));
        }
    }
}

/// I38: a name is live once.
fn judge_names(after: &State, found: &mut Found) {
    let mut seen = BTreeSet::new();
    for row in after.allocations.iter().filter(|row| row.is_live()) {
        if !seen.insert((&row.job, row.live_name())) {
            found.push(format!("I38: {} is live twice", row.name()));
        }
    }
}

/// I19, I29, I30, I31, I38.
fn judge_plans(before: &State, applied: &Applied, found: &mut Found) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let (Command::ApplyPlans { plans }, Reply::Plans(verdicts)) =
        (&proposal.command, &applied.reply)
    else {
        return;
    };
    let mut closed = BTreeSet::new();
    for (plan, verdict) in plans.iter().zip(verdicts) {
        let id = plan.evaluation;
        let row = before.evaluations.get(&id);
        let was_open = row.is_some_and(|row| !row.status.is_terminal());
        if verdict.refused.is_none() && (!was_open || closed.contains(&id)) {
            found.push(format!("I19: a plan of {id} was taken after it was closed"));
        }
        // A blocked evaluation that is blocked again stays open; a second copy of that plan changes nothing.
        let ends_it = plan.outcome.as_ref().is_some_and(|outcome| outcome.status.is_terminal());
        if verdict.outcome_taken && ends_it {
            closed.insert(id);
        }
        let lost = verdict.refused.is_some() || !verdict.dropped.is_empty();
        if lost != (verdict.refresh_index > 0) {
            found.push(format!(
                "I29: the verdict on {id} has refresh index {}",
                verdict.refresh_index
            ));
        }
        let last_plan = before.jobs.get(&plan.job).map_or(0, |job| job.last_plan_index);
        let changes = !plan.placements.is_empty();
        if verdict.refused.is_none() && changes && last_plan > plan.snapshot_index {
            found.push(format!(
                "I31: a plan of {id} on {} was taken after {last_plan}",
                plan.snapshot_index
            ));
        }
        let placed = |one: &&fsm::Placement| {
            let there = |state: &State| state.allocations.contains(&one.id);
            there(&applied.state) && !there(before)
        };
        let placed = plan.placements.iter().filter(placed).count();
        if plan.all_at_once && !verdict.dropped.is_empty() && placed > 0 {
            found.push(format!(
                "I30: {placed} placements of the all-at-once plan of {id} were taken"
            ));
        }
        if placed > 0 {
            judge_count(&applied.state, &plan.job, found);
        }
    }
}

fn judge_count(after: &State, key: &fsm::JobKey, found: &mut Found) {
    let Some(job) = after.jobs.get(key) else { return };
    let Some(spec) = after.current_spec(job) else { return };
    for group in spec.groups.iter().filter(|_| !job.kind.is_per_node()) {
        let live =
            after.allocations_of_job(key).filter(|row| row.is_live() && row.group == group.name);
        let live = live.count();
        if live > group.count as usize {
            found.push(format!(
                "I38: {live} instances of {key} are live, {} are wanted",
                group.count
            ));
        }
    }
}

/// I43: a version only rises, by one.
fn judge_jobs(before: &State, applied: &Applied, found: &mut Found) {
    for effect in &applied.effects {
        let Effect::Job(key) = effect else { continue };
        let (Some(old), Some(new)) = (before.jobs.get(key), applied.state.jobs.get(key)) else {
            continue;
        };
        let steps = new.version.checked_sub(old.version);
        let same = old.create_index == new.create_index;
        if !same || !matches!(steps, Some(0 | 1)) || new.last_plan_index < old.last_plan_index {
            found.push(format!("I43: job {key} went from {} to {}", old.version, new.version));
        }
    }
}

/// I21: one blocked evaluation per job, or per node of a per-node job.
fn judge_blocked(after: &State, found: &mut Found) {
    let mut seen = BTreeSet::new();
    for row in after.evaluations.iter() {
        if row.status == EvaluationStatus::Blocked && !seen.insert((&row.job, row.node)) {
            found.push(format!("I21: job {} has two blocked evaluations", row.job));
        }
    }
}

/// I48: a drain is complete when nothing runs on the node but what may stay.
fn judge_drains(before: &State, applied: &Applied, found: &mut Found) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let Command::AdvanceDrains { complete, .. } = &proposal.command else { return };
    for id in complete {
        let Some(drain) = before.nodes.get(id).and_then(|node| node.drain.as_ref()) else {
            continue;
        };
        let ended = applied.state.nodes.get(id).is_some_and(|node| node.drain.is_none());
        let stays = |row: &Allocation| drain.ignore_system && row.per_node;
        let left = applied.state.allocations_of_node(*id);
        let left = left.filter(|row| !row.client.is_terminal() && !stays(row)).count();
        if ended && left > 0 {
            found
                .push(format!("I48: the drain of {id} counts as complete with {left} allocations"));
        }
    }
}

fn note(before: &State, applied: &Applied, coverage: &mut crate::Coverage) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let repeated = proposal.request.is_some_and(|request| before.sessions.contains(&request.id));
    if repeated {
        coverage.count(Event::Retried);
        return;
    }
    if let Reply::Rejected(rejection) = &applied.reply {
        if matches!(rejection, fsm::Rejection::StaleEpoch { .. }) {
            coverage.count(Event::StaleEpoch);
        }
        return;
    }
    if let Reply::Plans(verdicts) = &applied.reply {
        for verdict in verdicts {
            if !verdict.dropped.is_empty() {
                coverage.count(Event::PartialCommit);
            }
            if verdict.refused == Some(DropReason::StalePlan) {
                coverage.count(Event::StalePlan);
            }
            if verdict.dropped.iter().any(|(_, why)| *why == DropReason::AllAtOnce) {
                coverage.count(Event::AllAtOnceLost);
            }
        }
    }
    note_command(before, applied, &proposal.command, coverage);
    for effect in &applied.effects {
        let Effect::Evaluation(id) = effect else { continue };
        let Some(row) = applied.state.evaluations.get(id) else { continue };
        if before.evaluations.contains(id) {
            continue;
        }
        match row.trigger {
            Trigger::RollingUpdate => coverage.count(Event::RollingUpdate),
            Trigger::RetryFailedAlloc if row.wait_until > 0 => coverage.count(Event::Rescheduled),
            Trigger::FailedFollowUp => coverage.count(Event::DeliveryLimit),
            Trigger::RetryFailedAlloc
            | Trigger::JobRegister
            | Trigger::JobDeregister
            | Trigger::PeriodicJob
            | Trigger::NodeDrain
            | Trigger::NodeUpdate
            | Trigger::AllocStop
            | Trigger::Scheduled
            | Trigger::DeploymentWatcher
            | Trigger::MaxPlans
            | Trigger::AllocFailure
            | Trigger::QueuedAllocs
            | Trigger::Preemption
            | Trigger::JobScaling
            | Trigger::MaxDisconnectTimeout
            | Trigger::Reconnect => {}
        }
    }
}

fn note_command(
    before: &State,
    applied: &Applied,
    command: &Command,
    coverage: &mut crate::Coverage,
) {
    let liveness = |id| applied.state.nodes.get(id).map(|node| node.liveness);
    match command {
        Command::NodeLiveness { changes, .. } => {
            for change in changes {
                let old = before.nodes.get(&change.node).map(|node| node.liveness);
                if liveness(&change.node) == Some(change.liveness) && old != Some(change.liveness) {
                    coverage.count(match change.liveness {
                        fsm::Liveness::Down => Event::NodeDown,
                        fsm::Liveness::Initializing
                        | fsm::Liveness::Ready
                        | fsm::Liveness::Disconnected => Event::NodeReturned,
                    });
                }
            }
        }
        Command::AdvanceDrains { migrate, complete, .. } => {
            if !migrate.is_empty() {
                coverage.count(Event::Migrated);
            }
            if !complete.is_empty() {
                coverage.count(Event::DrainCompleted);
            }
        }
        Command::ReapNode { .. } => coverage.count(Event::NodeReaped),
        Command::CollectGarbage { .. } => coverage.count(Event::Collected),
        Command::UpdateEvaluations { updates }
            if updates.iter().any(|update| update.status == EvaluationStatus::Canceled) =>
        {
            coverage.count(Event::Superseded);
        }
        Command::UpdateEvaluations { .. }
        | Command::RegisterJob { .. }
        | Command::DeregisterJob { .. }
        | Command::EvaluateJob { .. }
        | Command::RegisterNode { .. }
        | Command::NodeReadiness { .. }
        | Command::SuspendNode { .. }
        | Command::UnsuspendNodes { .. }
        | Command::SetEligibility { .. }
        | Command::SetDrain { .. }
        | Command::EvaluateNode { .. }
        | Command::UpdateAllocations { .. }
        | Command::StopAllocation { .. }
        | Command::ApplyPlans { .. }
        | Command::SetSchedulerConfiguration { .. }
        | Command::UpsertNodePool(_)
        | Command::DeleteNodePool(_)
        | Command::UpsertNamespace(_)
        | Command::DeleteNamespace(_)
        | Command::Tick
        | Command::MarkDigest
        | Command::DigestVerdict { .. } => {}
    }
}

/// The ids of what is live on a node.
pub(crate) fn live_on(state: &State, node: fsm::NodeId) -> BTreeSet<AllocationId> {
    state.allocations_of_node(node).filter(|row| row.is_live()).map(|row| row.id).collect()
}
