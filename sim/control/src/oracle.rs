//! What must hold after every committed entry, and at the end: [`crate::invariants`] of the states, [`crate::postconditions`] of the command, and
//! what needs the whole log: requests, terms, the snapshots that plans were made on. It shares no code with what it checks: it sums over rows instead
//! of trusting derived indexes. `fsm::invariant` runs besides, now and then and at the end, because it is slow.

mod deployments;
mod node_memory;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, ClientStatus, Command, Effect, EvaluationStatus, Index, Job, JobKind, JobStatus,
    Plan, Reply, RequestId, State, TaskGroup, Trigger,
    command::{
        EvaluationCommand, JobCommand, NodeCommand, PlanCommand, SettingsCommand, UpkeepCommand,
    },
    evaluation::UpdateEvaluations,
    gc::CollectGarbage,
    job::RegisterJob,
    node::{AdvanceDrains, Health, NodeLiveness, SuspendLateNodes},
    plan::{ApplyPlans, DropReason},
    session::{Request, Session},
    table::ChangeSet,
    testing,
};
use leader::GcConfig;

use crate::{
    cluster::{
        coverage::{Coverage, Event},
        log::{Applied, Log},
    },
    invariants::{
        check_round_trip, check_state, check_step, check_waits, needs,
        needs::{has_ended, is_live},
    },
    postconditions::{self, Entry},
};

use self::node_memory::NodeMemory;

/// A whole check every so many entries.
const WHOLE_EVERY: Index = 61;

/// Why an instance goes that is one too many. Others go because their successors come, even if these then find no room.
const NOT_NEEDED: &str = "alloc not needed due to job update";

/// What the oracle remembers.
#[derive(Default)]
pub(crate) struct Oracle {
    /// First reply to each request, and its index.
    requests: BTreeMap<RequestId, Reply>,
    nodes: NodeMemory,
}

/// What the oracle is shown besides an entry.
pub(crate) struct Seen<'a> {
    pub(crate) log: &'a Log,
    pub(crate) gc: &'a GcConfig,
    /// Nodes on which something failed.
    pub(crate) failed_on: &'a BTreeSet<fsm::NodeId>,
}

impl Oracle {
    /// Judges the entry that was committed last.
    pub(crate) fn judge(
        &mut self,
        before: &State,
        applied: &Applied,
        seen: &Seen<'_>,
        found: &mut Found,
    ) {
        judge(before, applied, self, found);
        let broken = check_step(before, &applied.state).into_iter();
        found.extend(broken.chain(check_state(&applied.state)).map(|broken| broken.to_string()));
        let waits = check_waits(&applied.state, seen.failed_on);
        found.extend(waits.iter().map(ToString::to_string));
        judge_passes(before, applied, seen.log, found);
        judge_garbage(before, applied, seen.gc, found);
    }
}

/// Now and then the whole state is written and read back.
pub(crate) fn judge_whole(truth: &State, index: Index, found: &mut Found) {
    if index.is_multiple_of(WHOLE_EVERY) {
        let broken = check_round_trip(truth).into_iter();
        found.extend(broken.map(|broken| broken.to_string()));
    }
}

/// I8, I9: the log applied on another state, saved and loaded on the way, gives the same state, byte for byte.
pub(crate) fn check_replay(log: &Log, reload_at: usize) -> Option<String> {
    let mut state = log.genesis().clone();
    for (place, applied) in log.committed().iter().enumerate() {
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
            return Some(format!("I8: another replica differs from index {index}"));
        }
    }
    let is_same = testing::rows(&state) == testing::rows(log.truth());
    (!is_same).then(|| "I8: the rows of another replica differ".to_owned())
}

type Found = Vec<String>;

/// A retry is answered with what a session keeps of the first reply.
fn is_same_reply(request: Request, first: &Reply, again: &Reply) -> bool {
    first == again || Session::new(request, 0, first).reply == *again
}

fn judge(before: &State, applied: &Applied, oracle: &mut Oracle, found: &mut Found) {
    let after = &applied.state;
    let Some(proposal) = &applied.entry.proposal else { return };
    let refused = matches!(applied.reply, Reply::Rejected(_));
    let again = proposal.request.is_some_and(|request| oracle.requests.contains_key(&request.id));
    if let Some(request) = proposal.request {
        match oracle.requests.get(&request.id) {
            Some(first)
                if !is_same_reply(request, first, &applied.reply)
                    || !applied.effects.is_empty() =>
            {
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
    if !again {
        let (effects, reply) = (&applied.effects[..], &applied.reply);
        let entry = Entry { before, after, effects, reply };
        postconditions::judge(&entry, &proposal.command, found);
        if !refused {
            oracle.nodes.judge(&entry, &proposal.command, found);
        }
    }
    judge_plans(before, applied, found);
    judge_drains(before, applied, found);
}

/// Whether so many children of its parent are over and were made after it.
fn is_surplus(state: &State, child: &Job, max: u64) -> bool {
    let Some(parent) = child.key.parent_key() else { return false };
    let made = |job: &Job| (job.create_index, job.key.clone());
    let younger = state.jobs().iter().filter(|job| {
        job.key.parent_key().as_ref() == Some(&parent)
            && job.status == JobStatus::Dead
            && made(job) > made(child)
    });
    child.status == JobStatus::Dead && younger.count() as u64 >= max
}

/// I52: nothing vanishes but what has ended, by the collector, after its time, and what no scheduler counts any more.
fn judge_garbage(before: &State, applied: &Applied, gc: &GcConfig, found: &mut Found) {
    let after = &applied.state;
    let Some(proposal) = &applied.entry.proposal else { return };
    let Command::Upkeep(UpkeepCommand::CollectGarbage(CollectGarbage { cutoffs, .. })) =
        &proposal.command
    else {
        if after.allocations().len() < before.allocations().len() {
            found.push("I52: an allocation vanished".to_owned());
        }
        return;
    };
    let shortest_ms = gc.evaluation_ms.min(gc.batch_evaluation_ms);
    let latest = cutoffs.evaluations.max(cutoffs.batch_evaluations);
    let now = proposal.at.max(before.at());
    if latest + shortest_ms > now || cutoffs.jobs + gc.job_ms > now {
        found.push("I52: garbage is collected before its time".to_owned());
    }
    for row in before.evaluations().iter().filter(|row| !after.evaluations().contains(&row.id)) {
        if !row.status.is_terminal() || row.modified_at > latest {
            found.push(format!("I52: evaluation {} was forgotten", row.id));
        }
    }
    for row in before.allocations().iter().filter(|row| !after.allocations().contains(&row.id)) {
        // With its job goes what a scheduler of that job would count.
        let counted = after.jobs().contains(&row.job) && is_counted(before, row);
        if !has_ended(row) || row.modified_at > latest || counted {
            found.push(format!("I52: allocation {} was forgotten", row.id));
        }
    }
    for row in before.jobs().iter().filter(|row| !after.jobs().contains(&row.key)) {
        let waits_for_user = !row.stop && matches!(row.kind, JobKind::Service | JobKind::System);
        let mut rows = before.allocations().iter().filter(|one| one.job == row.key);
        let mut open = before.evaluations().iter().filter(|one| one.job == row.key);
        if waits_for_user
            || (row.submitted_at > cutoffs.jobs && !is_surplus(before, row, gc.children_max))
            || rows.any(|row| !has_ended(row))
            || open.any(|row| !row.status.is_terminal())
        {
            found.push(format!("I52: job {} was forgotten", row.key));
        }
    }
}

/// A scheduler would make another one of it if it were not there.
fn is_counted(state: &State, row: &Allocation) -> bool {
    let job = state.jobs().get(&row.job).filter(|job| job.create_index == row.job_create_index);
    let Some(job) = job.filter(|job| !job.stop) else { return false };
    let current = row.job_version == job.version;
    let replaced = row.next.is_some_and(|next| state.allocations().contains(&next));
    let failed = row.client == ClientStatus::Failed;
    let counts = match job.kind {
        JobKind::Batch | JobKind::Sysbatch => {
            let node = &row.node;
            let is_gone = !state.nodes().contains(node) && !state.tombstones().contains(node);
            let is_asked = job.kind == JobKind::Batch || !is_gone;
            let has_ended = failed || row.client == ClientStatus::Complete;
            current && is_asked && (has_ended || row.is_ended_by_request())
        }
        JobKind::Service => {
            let spec = state.current_spec(job);
            failed && spec.is_some_and(|spec| spec.group(&row.group).is_some())
        }
        JobKind::System => false,
    };
    let is_run_once = matches!(job.kind, JobKind::Batch | JobKind::Sysbatch);
    let is_ended = current && row.may_stay_ended(is_run_once) && row.is_ended_by_request();
    let counts = counts || (is_ended && !is_run_once);
    counts && !replaced && (is_ended || row.desired == fsm::allocation::DesiredStatus::Run)
}

/// I37, I38, I46: what a plan does is right in the state that it was made on.
fn judge_passes(before: &State, applied: &Applied, log: &Log, found: &mut Found) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let (Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })), Reply::Plans(verdicts)) =
        (&proposal.command, &applied.reply)
    else {
        return;
    };
    for (plan, verdict) in plans.iter().zip(verdicts) {
        if verdict.refused.is_none() {
            let snapshot = log.state_at(plan.snapshot_index);
            let pass = Pass { before, after: &applied.state, snapshot, plan };
            pass.suits(found);
            pass.stops_highest_names(found);
            pass.keeps_enough(found);
        }
    }
}

struct Pass<'a> {
    before: &'a State,
    after: &'a State,
    snapshot: &'a State,
    plan: &'a Plan,
}

impl Pass<'_> {
    /// I37: nodes suit what comes to them, and what goes on there under a new version.
    fn suits(&self, found: &mut Found) {
        let plan = self.plan;
        let spec = self.after.job_spec(&plan.job, plan.job_create_index, plan.job_version);
        let Some(spec) = spec else { return };
        let placed = plan.placements.iter().map(|one| one.id);
        for id in placed.chain(plan.in_place.iter().map(|one| one.id)) {
            let row = self.after.allocations().get(&id).filter(|row| {
                (row.job_create_index, row.job_version) == (plan.job_create_index, plan.job_version)
            });
            let Some(row) = row else { continue };
            let node = self.snapshot.nodes().get(&row.node);
            let Some((group, node)) = spec.group(&row.group).zip(node) else { continue };
            if let Err(why) = needs::suits(spec, group, node) {
                found.push(format!("I37: {id} of {} is on {}: {why}", plan.job, row.node));
            }
        }
    }

    fn is_undisturbed(&self, row: &Allocation) -> bool {
        let node = self.snapshot.nodes().get(&row.node);
        is_live(row)
            && !row.per_node
            && row.next.is_none()
            && !row.transition.migrate
            && !row.transition.reschedule
            && node.is_some_and(|node| node.liveness != fsm::Liveness::Down)
    }

    /// Whether the pass must have seen that an instance does its work: it was healthy in its deployment, or, without one, has run for long enough.
    fn was_well(&self, group: &TaskGroup, row: &Allocation) -> bool {
        if let Some(own) = row.deployment {
            return own.is_healthy() == Some(true) && row.client == ClientStatus::Running;
        }
        let least = group.update.map_or(0, |update| update.healthy_ms_min);
        row.all_running_since().is_some_and(|since| since + least <= self.snapshot.at())
    }

    /// I38: when there are too many instances, of those that are well those of the highest names go.
    fn stops_highest_names(&self, found: &mut Found) {
        let plan = self.plan;
        // What the applier dropped may have carried on the name of what goes; the pass is made again.
        if plan.outcome.is_none() {
            return;
        }
        let Some(job) = self.snapshot.jobs().get(&plan.job).filter(|job| !job.stop) else { return };
        let Some(spec) = self.snapshot.current_spec(job) else { return };
        for group in spec.groups.iter().filter(|_| !spec.kind.is_per_node()) {
            let rows = self.snapshot.allocations().iter();
            let rows = rows.filter(|row| row.job == plan.job && row.group == group.name);
            let rows: Vec<_> = rows.filter(|row| self.is_undisturbed(row)).collect();
            let stop_of = |id| plan.stops.iter().find(|stop| stop.id == id);
            let is_excess = |id| stop_of(id).is_some_and(|stop| *stop.description == *NOT_NEEDED);
            let kept = rows.iter().filter(|row| stop_of(row.id).is_none());
            let kept: BTreeSet<u32> = kept.map(|row| row.name_index).collect();
            let successors = plan.placements.iter().filter(|one| {
                one.group == group.name && one.previous.is_some_and(|id| stop_of(id).is_some())
            });
            let successors = successors.map(|one| one.name_index);
            // One of the current version that failed holds its name while it waits for its next attempt.
            let waiting = self.snapshot.allocations().iter().filter(|row| {
                (row.job == plan.job && row.group == group.name)
                    && (row.job_create_index, row.job_version) == (job.create_index, job.version)
                    && row.client == fsm::ClientStatus::Failed
                    && !(row.is_canary() || row.is_server_terminal() || row.next.is_some())
                    && stop_of(row.id).is_none()
            });
            let waiting = waiting.map(|row| row.name_index);
            let carried_on: BTreeSet<u32> = successors.chain(waiting).collect();
            // A canary has the name of the instance beside it: when one of both goes, the name stays, with the other or its successor.
            // Those of a deployment that is over go whatever their names are.
            let gone = rows.iter().filter(|row| is_excess(row.id) && row.canary_of.is_none());
            let gone = gone.filter(|row| self.was_well(group, row));
            let gone = gone.map(|row| row.name_index);
            let gone = gone.filter(|name| !kept.contains(name) && !carried_on.contains(name)).min();
            let kept = kept.last().copied();
            if gone.is_some() && gone < kept {
                let key = &plan.job;
                found.push(format!("I38: of {key} instance {gone:?} goes and {kept:?} stays"));
            }
        }
    }

    /// I46: during a rolling update at most `max_parallel` instances are on their way. Those of older versions that are down count when one that is well
    /// is replaced.
    fn keeps_enough(&self, found: &mut Found) {
        let plan = self.plan;
        let Some(job) = self.before.jobs().get(&plan.job) else { return };
        let Some(spec) = self.before.current_spec(job) else { return };
        let has_steps = matches!(spec.kind, JobKind::Service | JobKind::System);
        let active = self.snapshot.active_deployment(&plan.job).map(|row| row.id);
        for group in spec.groups.iter().filter(|_| has_steps) {
            let Some(update) = group.update.filter(|update| update.max_parallel > 0) else {
                continue;
            };
            let is_old = |row: &Allocation| {
                (row.job_create_index, row.job_version) != (job.create_index, job.version)
            };
            let updated = plan.placements.iter().filter_map(|one| {
                let previous = self.snapshot.allocations().get(&one.previous?)?;
                let stopped = |id| plan.stops.iter().any(|stop| stop.id == id);
                let is_updated = one.group == group.name
                    && self.after.allocations().contains(&one.id)
                    && is_old(previous)
                    && self.is_undisturbed(previous)
                    && stopped(previous.id);
                is_updated.then_some(previous)
            });
            let updated: Vec<_> = updated.collect();
            let takes_well = updated.iter().any(|row| self.was_well(group, row));
            let updated = updated.len();
            // An agent or a person has said that it is healthy, and it runs.
            let is_there = |row: &Allocation| {
                let healthy = row.deployment.and_then(|own| own.is_healthy());
                healthy == Some(true) && row.client == ClientStatus::Running
            };
            let rows = self.snapshot.allocations().iter().filter(|row| {
                row.job == plan.job
                    && row.group == group.name
                    && !is_old(row)
                    && self.is_undisturbed(row)
                    && !plan.stops.iter().any(|stop| stop.id == row.id)
                    // Nodes that come after a rollout get theirs without one.
                    && (!row.per_node || row.deployment.map(|own| own.id) == active)
            });
            let on_their_way = rows.filter(|row| !is_there(row)).count();
            let down = self.snapshot.allocations().iter().filter(|row| {
                row.job == plan.job
                    && row.group == group.name
                    && is_old(row)
                    && self.is_undisturbed(row)
                    && !plan.stops.iter().any(|stop| stop.id == row.id)
                    && row.deployment.is_some()
                    && !is_there(row)
            });
            let down = if takes_well { down.count() } else { 0 };
            let on_their_way = on_their_way + down;
            let placed = plan.placements.iter().filter(|one| one.group == group.name);
            let placed = placed.filter(|one| self.after.allocations().contains(&one.id)).count();
            // A node without an instance gets one at any time.
            let placed = if spec.kind == JobKind::System { updated } else { placed };
            if updated > 0 && placed + on_their_way > update.max_parallel as usize {
                found.push(format!(
                    "I46: {updated} of {} are updated, {placed} placed, and {on_their_way} are on their way",
                    plan.job
                ));
            }
        }
    }
}

/// I19, I29, I30, I31.
fn judge_plans(before: &State, applied: &Applied, found: &mut Found) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let (Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })), Reply::Plans(verdicts)) =
        (&proposal.command, &applied.reply)
    else {
        return;
    };
    let mut closed = BTreeSet::new();
    for (plan, verdict) in plans.iter().zip(verdicts) {
        let id = plan.evaluation;
        let row = before.evaluations().get(&id);
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
        let last_plan = before.jobs().get(&plan.job).map_or(0, |job| job.last_plan_index);
        let changes = !plan.placements.is_empty();
        if verdict.refused.is_none() && changes && last_plan > plan.snapshot_index {
            found.push(format!(
                "I31: a plan of {id} on {} was taken after {last_plan}",
                plan.snapshot_index
            ));
        }
        let placed = |one: &&fsm::Placement| {
            let there = |state: &State| state.allocations().contains(&one.id);
            there(&applied.state) && !there(before)
        };
        let placed = plan.placements.iter().filter(placed).count();
        if plan.all_at_once && !verdict.dropped.is_empty() && placed > 0 {
            found.push(format!(
                "I30: {placed} placements of the all-at-once plan of {id} were taken"
            ));
        }
    }
}

/// I48: a drain is complete when nothing runs on the node but what may stay.
fn judge_drains(before: &State, applied: &Applied, found: &mut Found) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { complete, .. })) =
        &proposal.command
    else {
        return;
    };
    for id in complete {
        let Some(drain) = before.nodes().get(id).and_then(|node| node.drain.as_ref()) else {
            continue;
        };
        let ended = applied.state.nodes().get(id).is_some_and(|node| node.drain.is_none());
        let stays = |row: &Allocation| drain.ignore_system && needs::is_of_system(before, row);
        let left = applied.state.allocations_of_node(*id);
        let left = left.filter(|row| !row.client.is_terminal() && !stays(row)).count();
        if ended && left > 0 {
            found
                .push(format!("I48: the drain of {id} counts as complete with {left} allocations"));
        }
    }
}

/// Counts what an entry did.
pub(crate) fn note(before: &State, applied: &Applied, coverage: &mut Coverage) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let repeated = proposal.request.is_some_and(|request| before.sessions().contains(&request.id));
    if repeated {
        coverage.count(Event::Retried);
        return;
    }
    note_places(before, &proposal.command, &applied.reply, coverage);
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
    nodes::note(before, applied, &proposal.command, coverage);
    for effect in &applied.effects {
        let Effect::Evaluation(id) = effect else { continue };
        let Some(row) = applied.state.evaluations().get(id) else { continue };
        if before.evaluations().contains(id) {
            continue;
        }
        match row.trigger {
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

/// What became of a namespace or a node pool, or of a job that came to one.
fn note_places(before: &State, command: &Command, reply: &Reply, coverage: &mut Coverage) {
    let taken = !matches!(reply, Reply::Rejected(_));
    let deletes = matches!(
        command,
        Command::Settings(SettingsCommand::DeleteNamespace(_) | SettingsCommand::DeleteNodePool(_))
    );
    if deletes && taken {
        coverage.count(Event::PlaceDeleted);
    }
    if deletes && matches!(reply, Reply::Rejected(fsm::Rejection::InUse(_))) {
        coverage.count(Event::PlaceInUse);
    }
    if let Command::Job(JobCommand::RegisterJob(RegisterJob { spec, .. })) = command
        && !taken
        && !(before.namespaces().contains(&spec.key.namespace)
            && before.node_pools().contains(&spec.node_pool))
    {
        coverage.count(Event::PlaceMissing);
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most commands have nothing to count")]
fn note_command(before: &State, applied: &Applied, command: &Command, coverage: &mut Coverage) {
    deployments::note(before, &applied.state, coverage);
    let liveness = |id| applied.state.nodes().get(id).map(|node| node.liveness);
    match command {
        Command::Node(NodeCommand::NodeLiveness(NodeLiveness { changes, .. })) => {
            for change in changes {
                let old = before.nodes().get(&change.node).map(|node| node.liveness);
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
        Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { migrate, complete, .. })) => {
            if !migrate.is_empty() {
                coverage.count(Event::Migrated);
            }
            if !complete.is_empty() {
                coverage.count(Event::DrainCompleted);
            }
        }
        Command::Node(NodeCommand::ReapNode(_)) => coverage.count(Event::NodeReaped),
        Command::Upkeep(UpkeepCommand::CollectGarbage(_)) => coverage.count(Event::Collected),
        Command::Evaluation(EvaluationCommand::UpdateEvaluations(UpdateEvaluations {
            updates,
        })) => {
            let canceled = updates.iter().filter(|one| one.status == EvaluationStatus::Canceled);
            for update in canceled {
                coverage.count(Event::Superseded);
                let row = before.evaluations().get(&update.id);
                if row.is_some_and(|row| row.trigger == Trigger::RetryFailedAlloc) {
                    coverage.count(Event::RescheduleSuperseded);
                }
            }
        }
        Command::Node(NodeCommand::SuspendLateNodes(SuspendLateNodes { nodes })) => {
            let is_ok =
                |state: &State, node| state.nodes().get(node).map(|row| row.health == Health::Ok);
            for node in nodes {
                if is_ok(before, node) == Some(true) && is_ok(&applied.state, node) == Some(false) {
                    coverage.count(Event::NodeSuspended);
                }
            }
        }
        _ => {}
    }
}
