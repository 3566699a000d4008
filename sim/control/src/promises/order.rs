//! What leader services must do in the right order and in time, judged where they do it: leases by priority and age (I26), plans by priority, drains
//! by their limits and deadlines (I48). All of it from the rows that the service saw, not from its queues.

use std::collections::BTreeMap;

use fsm::{
    Allocation, AllocationId, ClientStatus, Command, EvaluationId, EvaluationStatus, Index, JobKey,
    JobKind, Liveness, NodeId, Plan, State, TaskGroup,
    command::{NodeCommand, PlanCommand},
    node::AdvanceDrains,
    plan::ApplyPlans,
};
use leader::Lease;

use crate::invariants::{
    evictions,
    needs::{has_ended, is_live, is_of_system, runs_since},
};
use chance::Dice;

/// A drain past its deadline is acted on within this time, also when a command was lost.
const DRAIN_LATE_MS: u64 = 32_000;

/// An evaluation that may be leased at once, with its priority and its age.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    id: EvaluationId,
    job: JobKey,
    kind: JobKind,
    priority: u16,
    create_index: Index,
    order: u32,
}

/// Evaluations of a state that nothing holds back: pending, due, and the only open ones of their jobs.
pub(crate) fn waiting(state: &State) -> Vec<Waiting> {
    let mut open: BTreeMap<&JobKey, u32> = BTreeMap::new();
    for row in state.evaluations().iter().filter(|row| !row.status.is_terminal()) {
        *open.entry(&row.job).or_default() += 1;
    }
    let alone = state.evaluations().iter().filter(|row| {
        row.status == EvaluationStatus::Pending && row.wait_until == 0 && open[&row.job] == 1
    });
    let rank = |row: &std::sync::Arc<fsm::Evaluation>| Waiting {
        id: row.id,
        job: row.job.clone(),
        kind: row.kind,
        priority: row.priority,
        create_index: row.create_index,
        order: row.order,
    };
    alone.map(rank).collect()
}

impl Waiting {
    pub(crate) fn id(&self) -> EvaluationId {
        self.id
    }

    pub(crate) fn kind(&self) -> JobKind {
        self.kind
    }
}

/// What a leadership did with the evaluations of each job: one that supersedes others takes over the highest of their priorities, and they are not
/// ready any more although they are open for a while.
#[derive(Default)]
pub(crate) struct History {
    priorities: BTreeMap<JobKey, u16>,
    leased: BTreeMap<JobKey, Index>,
    /// What nothing holds back, and the index at which that was seen first.
    ready_since: BTreeMap<EvaluationId, Index>,
    /// Children of a job were there.
    in_turns: bool,
}

impl History {
    /// A state that the leader saw, and whether its services were told of all of it.
    pub(crate) fn saw(&mut self, state: &State, told: bool) {
        for row in state.evaluations().iter() {
            let known = self.priorities.entry(row.job.clone()).or_default();
            *known = row.priority.max(*known);
            self.in_turns |= row.job.parent().is_some();
        }
        if told {
            let since = |one: &Waiting| self.ready_since.get(&one.id).copied();
            let ready = waiting(state).into_iter();
            self.ready_since =
                ready.map(|one| (one.id, since(&one).unwrap_or(state.index()))).collect();
        }
    }

    /// A lease was given.
    pub(crate) fn leased(&mut self, lease: &Lease) {
        let known = self.leased.entry(lease.evaluation.job.clone()).or_default();
        *known = lease.evaluation.create_index.max(*known);
        // Given back, it is ready in a later turn.
        self.ready_since.remove(&lease.evaluation.id);
    }

    /// Superseded by one that was leased.
    pub(crate) fn is_passed(&self, one: &Waiting) -> bool {
        self.leased.get(&one.job).is_some_and(|leased| *leased >= one.create_index)
    }

    /// Whether it was ready before what is leased was made.
    fn was_ready_before(&self, one: &Waiting, lease: &Lease) -> bool {
        self.ready_since.get(&one.id).is_some_and(|since| *since < lease.evaluation.create_index)
    }

    /// Whether it is to start before what is leased, of two children of one job that one entry let in.
    fn comes_first(one: &Waiting, lease: &Lease) -> bool {
        let leased = &lease.evaluation;
        let family = one.job.parent_key();
        family.is_some()
            && family == leased.job.parent_key()
            && one.create_index == leased.create_index
            && one.order < leased.order
    }

    fn priority_of(&self, lease: &Lease) -> u16 {
        let known = self.priorities.get(&lease.evaluation.job).copied().unwrap_or(0);
        known.max(lease.evaluation.priority)
    }
}

/// I26: nothing that was ready is passed over by what is of lower priority, or as high and younger. Where there are children of a job, these take turns
/// with what is as high, and what is ready later comes in a later turn, however old it is: judged are only those that were ready before the other was
/// made. A child may come after and before others than its siblings; those that one entry lets in keep its order.
pub(crate) fn judge_leases(
    ready: &[Waiting],
    leases: &[Lease],
    history: &History,
) -> Option<String> {
    let in_turns = history.in_turns || ready.iter().any(|one| one.job.parent().is_some());
    for one in ready {
        for lease in leases.iter().take_while(|lease| lease.evaluation.id != one.id) {
            let given = history.priority_of(lease);
            let parent = one.job.parent_key();
            let younger = if in_turns {
                let other = lease.evaluation.job.parent_key();
                let comes_later = match (&parent, &other) {
                    (None, None) => true,
                    // The turn of a family counts from when the first of it was ready, whichever of them it is in the end.
                    (None, Some(_)) => false,
                    (Some(_), _) => parent == other,
                };
                (comes_later && history.was_ready_before(one, lease))
                    || History::comes_first(one, lease)
            } else {
                let other = &lease.evaluation;
                (other.create_index, other.order) > (one.create_index, one.order)
            };
            if given < one.priority || (given == one.priority && younger) {
                return Some(format!(
                    "I26: {} of priority {given} is leased before {one:?}",
                    lease.evaluation.id
                ));
            }
        }
    }
    None
}

/// Plans leave their queue in the order of their priorities.
pub(crate) fn judge_plans(command: &Command) -> Option<String> {
    let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = command else { return None };
    let falls = |pair: &[std::sync::Arc<Plan>]| pair[0].priority >= pair[1].priority;
    let bad = plans.windows(2).find(|pair| !falls(pair))?;
    Some(format!("I26: the plan of {} is taken before a more urgent one", bad[0].evaluation))
}

/// Makes a plan wrong in a way that `apply` must not take: a name that lives already, a port given twice, or what may not be evicted. As from a worker
/// with other rules.
pub(crate) fn spoil(command: &mut Command, truth: &State, dice: &mut Dice) {
    let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = command else { return };
    let Some(plan) = plans.first_mut().map(std::sync::Arc::make_mut) else { return };
    let is_service = truth.jobs().get(&plan.job).is_some_and(|job| job.kind == JobKind::Service);
    let stopped = |id| plan.stops.iter().any(|stop| stop.id == id);
    // A name is a group's and a number's: one that lives in another group only is a good name here.
    let group = plan.placements.last().map(|placement| placement.group.clone());
    let rows = truth
        .allocations()
        .iter()
        .filter(|row| row.job == plan.job && Some(&row.group) == group.as_ref() && is_live(row));
    let names: Vec<u32> = rows.filter(|row| !stopped(row.id)).map(|row| row.name_index).collect();
    if dice.percent(50) {
        let name = dice.pick(&names).filter(|_| is_service);
        if let Some((name, placement)) = name.zip(plan.placements.last_mut()) {
            placement.name_index = name;
        }
        return;
    }
    if dice.percent(40) {
        evict_wrongly(plan, truth, dice);
        return;
    }
    let first = plan.placements.first().map(|one| (one.node, one.ports.clone()));
    let others = plan.placements.iter_mut().skip(1);
    for placement in others {
        if let Some((node, ports)) = &first
            && *node == placement.node
        {
            placement.ports.clone_from(ports);
        }
    }
}

/// The last placement is to evict what is of too high a priority, or what has ended.
fn evict_wrongly(plan: &mut Plan, truth: &State, dice: &mut Dice) {
    let Some(placement) = plan.placements.last_mut() else { return };
    let priority = truth.jobs().get(&plan.job).map_or(0, |job| job.priority);
    let here = truth.allocations().iter().filter(|row| row.node == placement.node);
    let wrong = here.filter(|row| !is_live(row) || !evictions::is_below(truth, row, priority));
    let wrong: Vec<AllocationId> = wrong.map(|row| row.id).collect();
    placement.preempts.extend(dice.pick(&wrong));
}

/// Drains past their deadline, and since when nobody acts on them.
#[derive(Default)]
pub(crate) struct Overdue(BTreeMap<NodeId, u64>);

impl Overdue {
    /// The services looked at a state and want to propose these.
    pub(crate) fn looked<'a>(
        &mut self,
        now: u64,
        state: &State,
        commands: impl Iterator<Item = &'a Command>,
    ) -> Option<String> {
        let (mut acted, mut ended) = (Vec::new(), Vec::new());
        for command in commands {
            if let Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains {
                migrate,
                complete,
                ..
            })) = command
            {
                acted.extend(migrate);
                ended.extend(complete);
            }
        }
        let look = Look { now, state, acted: &acted, ended: &ended };
        let late = |node: &fsm::Node| look.may_go_on(node).then_some(node.id);
        let late: Vec<NodeId> = state.nodes().iter().filter_map(|node| late(node)).collect();
        self.0.retain(|node, _| late.contains(node));
        for node in late {
            let since = *self.0.entry(node).or_insert(now);
            if now - since > DRAIN_LATE_MS {
                return Some(format!(
                    "I48: the drain of {node} could go on since {} ms, and nothing moves",
                    now - since
                ));
            }
        }
        None
    }
}

/// A state with drains, and what is asked for already.
struct Look<'a> {
    now: u64,
    state: &'a State,
    acted: &'a [AllocationId],
    ended: &'a [NodeId],
}

impl Look<'_> {
    /// A draining node of which something is to move, or whose drain is over, and nobody asks for it.
    fn may_go_on(&self, node: &fsm::Node) -> bool {
        let Some(drain) = &node.drain else { return false };
        let here = self.state.allocations().iter().filter(|row| {
            let stays = drain.ignore_system && is_of_system(self.state, row);
            row.node == node.id && !has_ended(row) && !stays
        });
        let left: Vec<_> = here.collect();
        if left.is_empty() {
            return !self.ended.contains(&node.id);
        }
        let due = drain.force || drain.deadline_at.is_some_and(|at| at <= self.now);
        let last = left.iter().all(|row| is_of_system(self.state, row));
        left.into_iter().filter(|row| is_live(row) && !row.transition.migrate).any(|row| {
            let free = due || last || self.serves_nobody(row);
            if free { !self.acted.contains(&row.id) } else { self.is_spare(row) }
        })
    }

    fn is_of_service(&self, row: &Allocation) -> bool {
        self.state.allocation_spec(row).is_some_and(|spec| spec.kind == JobKind::Service)
    }

    /// An instance of a service that has not started.
    fn serves_nobody(&self, row: &Allocation) -> bool {
        row.client == ClientStatus::Pending && self.is_of_service(row)
    }

    /// An instance of a service of which there are more than have to stay, and nobody asks for any to move.
    fn is_spare(&self, row: &Allocation) -> bool {
        if row.client != ClientStatus::Running || !self.is_of_service(row) {
            return false;
        }
        let Some(job) = self.state.jobs().get(&row.job).filter(|job| !job.stop) else {
            return false;
        };
        let spec = self.state.current_spec(job);
        let Some(group) = spec.and_then(|spec| spec.group(&row.group)) else { return false };
        let rows = self.state.allocations().iter();
        let rows = rows.filter(|other| other.job == row.job && other.group == row.group);
        let rows: Vec<_> = rows.collect();
        let there = rows.iter().filter(|row| serves(self.now, self.state, group, row)).count();
        let needed = group.count.saturating_sub(group.migrate.max_parallel) as usize;
        serves(self.now, self.state, group, row)
            && there > needed
            && !rows.iter().any(|row| self.acted.contains(&row.id))
    }
}

/// An instance that is there for its users and goes on. One that is to go itself need not stay up for that. In a deployment that goes on it has to be
/// healthy.
fn serves(now: u64, state: &State, group: &TaskGroup, row: &Allocation) -> bool {
    let node = state.nodes().get(&row.node);
    let heard = node.is_some_and(|node| match node.liveness {
        Liveness::Initializing | Liveness::Ready => true,
        Liveness::Disconnected | Liveness::Down => false,
    });
    let drains = node.is_some_and(|node| node.drain.is_some());
    let waits_for_health = row.deployment.is_some_and(|own| {
        let deployment = state.deployments().get(&own.id);
        deployment.is_some_and(|row| row.is_active()) && own.is_healthy() != Some(true)
    });
    let since = if drains { Some(row.client_at) } else { runs_since(row) };
    heard
        && is_live(row)
        && row.client == ClientStatus::Running
        && since.is_some_and(|since| since + group.migrate.healthy_ms_min <= now)
        && !row.transition.migrate
        && !waits_for_health
}

/// I48: what is marked to move may: it is on a draining node, and of a service so many stay as `migrate` says unless time is up.
pub(crate) fn judge_drains(now: u64, state: &State, command: &Command) -> Option<String> {
    let Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { migrate, .. })) = command else {
        return None;
    };
    let mut moved: BTreeMap<(&JobKey, &str), Vec<AllocationId>> = BTreeMap::new();
    for row in migrate.iter().filter_map(|id| state.allocations().get(id)) {
        let drain = state.nodes().get(&row.node).and_then(|node| node.drain.as_ref());
        let Some(drain) = drain else {
            return Some(format!("I48: {} is to move from a node that does not drain", row.id));
        };
        let is_last = is_of_system(state, row);
        if is_last && drain.ignore_system {
            return Some(format!("I48: {} is to move although it may stay", row.id));
        }
        if drain.force || drain.deadline_at.is_some_and(|at| at <= now) {
            continue;
        }
        let here = || state.allocations().iter().filter(|other| other.node == row.node);
        if is_last && here().any(|other| !is_of_system(state, other) && !has_ended(other)) {
            return Some(format!("I48: {} is to move before the others", row.id));
        }
        let kind = state.allocation_spec(row).map(|spec| spec.kind);
        if matches!(kind, Some(JobKind::Batch | JobKind::Sysbatch)) {
            return Some(format!("I48: {} of a batch job is to move before its time", row.id));
        }
        if row.client == ClientStatus::Running && !row.per_node {
            moved.entry((&row.job, &row.group)).or_default().push(row.id);
        }
    }
    for ((key, group), moved) in moved {
        let spec = state.jobs().get(key).and_then(|job| state.current_spec(job));
        let Some(group) = spec.and_then(|spec| spec.group(group)) else { continue };
        let serves = |row: &Allocation| serves(now, state, group, row) && !moved.contains(&row.id);
        let rows = state.allocations().iter().filter(|row| row.job == *key);
        let stay = rows.filter(|row| row.group == group.name && serves(row)).count();
        let needed = group.count.saturating_sub(group.migrate.max_parallel) as usize;
        if stay < needed {
            return Some(format!(
                "I48: {} instances of {key} are to move, {stay} stay, {needed} are needed",
                moved.len()
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fsm::{
        allocation::TaskState,
        job::{ForcePeriodic, Periodic},
        testing::{self, Driver},
    };

    use super::*;

    /// Log time, after the start, at which the instance that stays was started again.
    const RESTART_MS: u64 = 60_000;

    /// A service of two, one of which is to move and the other was started again on its node.
    fn restarted() -> (State, AllocationId) {
        let mut driver = Driver::default();
        let (one, two) = (driver.node("n1"), driver.node("n2"));
        let mut spec = testing::job("web", JobKind::Service, 2);
        let migrate = &mut spec.groups[0].migrate;
        (migrate.max_parallel, migrate.healthy_ms_min) = (1, 1_000);
        driver.register_job(spec);
        let (goes, stays) = (driver.run("web", 0, one), driver.run("web", 1, two));
        driver.drain("n1", true);
        driver.at_ms(RESTART_MS);
        let mut update = driver.update(stays, ClientStatus::Running);
        let task = TaskState {
            state: "running".into(),
            started_at_ms: 7,
            last_restart_ms: 7 + RESTART_MS,
            ..TaskState::default()
        };
        update.tasks = Some([("server".into(), task)].into());
        driver.report_update(update);
        (driver.state, goes)
    }

    /// Children take turns with others, and a family's turn counts from its first; but what is ready keeps its place before what is made later of its own.
    #[test]
    fn a_ready_evaluation_is_not_passed_over_by_later_ones() {
        let mut driver = Driver::default();
        let block = Periodic {
            enabled: true,
            specs: vec!["@daily".into()],
            time_zone: "UTC".into(),
            ..Periodic::default()
        };
        let batch = |name: &str| testing::job(name, JobKind::Batch, 1);
        let evaluation = driver.evaluation_id();
        let parent = fsm::JobSpec { periodic: Some(block), ..batch("p") };
        driver.accept(testing::register(parent, evaluation));
        let force = |driver: &mut Driver, due_s| {
            let (job, evaluation) = (testing::job_key("p"), driver.evaluation_id());
            driver.accept(ForcePeriodic { job, due_s, evaluation }.into());
            evaluation
        };
        driver.register_job(batch("old"));
        force(&mut driver, 1);
        let mut history = History::default();
        history.saw(&driver.state, true);
        let ready = waiting(&driver.state);
        let (sibling, new) = (force(&mut driver, 2), driver.register_job(batch("new")));
        let (old, child): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|one| one.job.parent().is_none());
        for (ready, leased, is_broken) in [
            (&old, sibling, false),
            (&old, new, true),
            (&child, sibling, true),
            (&child, new, false),
        ] {
            let evaluation = driver.state.evaluations().get(&leased).cloned().expect("it is open");
            let lease = Lease { evaluation, token: [0; 16], wait_index: 0 };
            let leases = std::slice::from_ref(&lease);
            let found = judge_leases(ready, leases, &history);
            assert_eq!(found.is_some(), is_broken, "{ready:?} {lease:?}");
            let mut blind = History::default();
            blind.saw(&driver.state, false);
            assert_eq!(judge_leases(ready, leases, &blind), None, "when it was ready is not known");
        }
    }

    /// Of two siblings that one entry lets in, the one that came first starts first.
    #[test]
    fn siblings_of_one_entry_start_in_its_order() {
        let mut driver = Driver::default();
        let (evaluation, batch) = (driver.evaluation_id(), testing::job("p", JobKind::Batch, 1));
        let block = fsm::job::Parameterized { payload: "optional".into(), ..Default::default() };
        let parent = fsm::JobSpec { parameterized: Some(block), ..batch };
        driver.accept(testing::register(parent, evaluation));
        let child = |name: &str, id| fsm::job::Dispatched {
            id: format!("p/dispatch-1-{name}").into(),
            payload: Vec::new(),
            meta: BTreeMap::new(),
            priority: None,
            token: "".into(),
            evaluation: EvaluationId([id; 16]),
        };
        let children = vec![child("a", 9), child("b", 8)];
        driver.accept(fsm::job::DispatchJob { parent: testing::job_key("p"), children }.into());
        let ready = waiting(&driver.state);
        let mut history = History::default();
        history.saw(&driver.state, true);
        let lease = |id| {
            let evaluation = driver.state.evaluations().get(&EvaluationId([id; 16])).cloned();
            Lease { evaluation: evaluation.expect("it is open"), token: [0; 16], wait_index: 0 }
        };
        assert_eq!(judge_leases(&ready, &[lease(9), lease(8)], &history), None);
        assert!(judge_leases(&ready, &[lease(8), lease(9)], &history).is_some());
    }

    #[test]
    fn a_drain_waits_for_an_instance_that_was_started_again_and_no_longer() {
        let (state, goes) = restarted();
        let early = state.at() + 999;
        let mut overdue = Overdue::default();
        let mut look = |now| overdue.looked(now, &state, std::iter::empty());
        assert_eq!(look(early), None);
        assert_eq!(look(early + DRAIN_LATE_MS + 1), None, "it could not go on before");
        let late = look(early + 2 * DRAIN_LATE_MS + 2);
        assert!(late.is_some_and(|late| late.starts_with("I48")));

        let command = Command::from(AdvanceDrains {
            migrate: vec![goes],
            complete: vec![],
            evaluation_ids: vec![],
        });
        assert!(judge_drains(early, &state, &command).is_some(), "nobody would be left");
        assert_eq!(judge_drains(early + 1, &state, &command), None);
    }

    /// A name is a group's and a number's: one that lives in another group is a good one, of which `apply` makes an instance that nobody asked for.
    #[test]
    fn a_plan_is_spoiled_with_a_name_that_lives_in_its_own_group() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut spec = testing::job("web", JobKind::Service, 1);
        spec.groups.push(fsm::TaskGroup { name: "api".into(), ..spec.groups[0].clone() });
        let evaluation = driver.register_job(spec);
        driver.run("web", 0, node);
        let spoiled = |driver: &mut Driver, group: &str| {
            let placement = driver.placement(group, 7, node);
            let plan = driver.plan(evaluation).with(placement);
            let plan = std::sync::Arc::new(plan);
            let names = (0..64).map(|number| {
                let mut command =
                    Command::from(ApplyPlans { plans: vec![std::sync::Arc::clone(&plan)] });
                spoil(&mut command, &driver.state, &mut Dice::numbered(7, number));
                let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = command else {
                    return 7;
                };
                plans[0].placements[0].name_index
            });
            names.collect::<std::collections::BTreeSet<u32>>()
        };
        assert_eq!(spoiled(&mut driver, "web"), [0, 7].into(), "name 0 lives there");
        assert_eq!(spoiled(&mut driver, "api"), [7].into(), "no name of it lives");
    }

    #[test]
    fn an_instance_runs_since_the_last_start_of_its_tasks() {
        let (state, goes) = restarted();
        let stays = state.allocations().iter().find(|row| row.id != goes);
        let mut stays = (**stays.expect("there are two")).clone();
        assert_eq!(runs_since(&stays), Some(state.at()));
        let task = |row: &mut Allocation, change: fn(&mut TaskState)| {
            change(Arc::make_mut(&mut row.tasks).entry("server".into()).or_default());
        };
        task(&mut stays, |task| task.last_restart_ms = 0);
        assert_eq!(runs_since(&stays), Some(stays.client_at));
        task(&mut stays, |task| task.state = "pending".into());
        assert_eq!(runs_since(&stays), None, "it waits to start again");
    }
}
