//! Many mock nodes in one process, to test servers at scale. Each node registers, sends heartbeats,
//! streams, and runs allocations with the same state machines as a real node. A table of deadlines
//! stands in place of processes, shells and files. A restarted simulation has the same nodes, and
//! starts again what the servers consider running.
//!
//! Estimate for 5,000 nodes × 200 allocations: an allocation is a state machine of about 500 bytes
//! and a few events. All allocations of a job share policies and scripts. 60 nodes share a channel
//! to a server.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque, btree_map::Entry},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fsm::AllocationId;
use ground::rt::{self, JoinSet, Notify, sleep_until};
use proto::v1;
use wire::rpc::words;

use crate::{
    allocation::{
        preparation::StageRules,
        runner::{AllocationRunner, GroupPolicy, Step},
        spec::{group_policy, present},
        state::NodeIdentity,
    },
    driver::{
        DriverEntry, Drivers,
        mock::{self, Script},
    },
    node::settings::AgentSettings,
    session::{
        connection::{Connection, Servers},
        heartbeat::Node,
        meta::NodeMeta,
        readiness::{Checks, ReadinessProbe, ScriptedProbe},
        status::{Outbox, not_running},
    },
    stage::Stages,
    task::{
        action::Action,
        run::{ExitResult, StartError},
    },
    time::{Clock, Moment},
};

/// When this many groups are known, those without allocations are dropped.
const GROUPS_MAX: usize = 4096;
/// Resources of a simulated node, unless the settings say otherwise.
const CPU_MHZ: u64 = 4000;
const MEMORY_MB: u64 = 8192;
const DISK_MB: u64 = 100 * 1024;
const CORES: u32 = 4;

/// Starts `nodes` simulated nodes.
pub(crate) fn spawn(
    settings: &AgentSettings,
    servers: &Arc<Servers>,
    identity: &NodeIdentity,
    boot_id: [u8; 16],
    (nodes, http_address): (u32, SocketAddr),
    work: &mut JoinSet<()>,
) {
    let clock = Clock::new();
    let groups = Arc::new(Groups::default());
    let rules = Arc::new(Stages::all().rules);
    let meta = Arc::new(NodeMeta::fixed(settings.meta.clone()));
    for number in 1..=nodes {
        let identity = identity.derive(number);
        let mut registration = crate::node::start::registration(
            settings,
            &identity,
            boot_id,
            Drivers::named(&[mock::NAME.to_owned()]).offered(),
        );
        describe(&mut registration, settings, number, http_address);
        let outbox = Arc::new(Outbox::default());
        let node = Arc::new(SimulatedNode {
            clock,
            outbox: Arc::clone(&outbox),
            groups: Arc::clone(&groups),
            rules: Arc::clone(&rules),
            ended_max: settings.ended_allocations_max,
            inner: Mutex::default(),
            wake: Notify::new(),
        });
        rt::spawn_into(work, Arc::clone(&node).keep_time());
        let connection =
            Connection::new(Arc::clone(servers), number.saturating_sub(1), u64::from(number));
        let script = settings.simulate_readiness.as_deref();
        let probe = script.and_then(|script| ScriptedProbe::parse(script).ok());
        let checks = Checks {
            probe: probe.map(|probe| Arc::new(probe) as Arc<dyn ReadinessProbe>),
            ..Checks::none()
        };
        let connection = Arc::new(connection);
        crate::node::start::stand(
            node,
            crate::node::start::SessionParts {
                registration,
                connection,
                outbox,
                clock,
                checks,
                shortages: Arc::default(),
                meta: Arc::clone(&meta),
            },
            work,
        );
    }
}

fn describe(
    registration: &mut v1::RegisterRequest,
    settings: &AgentSettings,
    number: u32,
    http_address: SocketAddr,
) {
    let prefix = if settings.name.is_empty() { "sim" } else { &settings.name };
    registration.name = format!("{prefix}-{number:04}");
    let cpu_mhz = settings.cpu_mhz.unwrap_or(CPU_MHZ);
    let memory_mb = settings.memory_mb.unwrap_or(MEMORY_MB);
    let attributes = [
        ("kernel.name", "linux".to_owned()),
        ("arch", "amd64".to_owned()),
        ("cpu.numcores", CORES.to_string()),
        ("cpu.totalcompute", cpu_mhz.to_string()),
        ("memory.totalbytes", (memory_mb << 20).to_string()),
        ("unique.hostname", registration.name.clone()),
        ("driver.mock", "1".to_owned()),
        (fsm::job::SIGNALS_ATTRIBUTE, fsm::job::SIGNALS.join(",")),
        ("quorate.version", registration.version.clone()),
        ("nomad.version", ground::version::NOMAD.to_owned()),
        ("quorate.simulated", "1".to_owned()),
    ];
    registration.attributes = attributes.map(|(key, value)| (key.to_owned(), value)).into();
    registration.resources = Some(v1::NodeResources {
        cpu_mhz,
        memory_mb,
        disk_mb: settings.disk_mb.unwrap_or(DISK_MB),
        cores: CORES,
        dynamic_port_min: u32::from(settings.dynamic_port_min),
        dynamic_port_max: u32::from(settings.dynamic_port_max),
        // An address of its own in 127/8, so that equal ports on two nodes are no conflict.
        address: format!("127.{}.{}.1", number >> 8 & 255, number & 255),
    });
    registration.http_address = http_address.to_string();
}

/// What all allocations of a task group share.
#[derive(Debug)]
struct Group {
    policy: GroupPolicy,
    /// For each task its script, or why it cannot start.
    scripts: Vec<Result<Script, String>>,
}

/// Keeps one copy of equal groups.
#[derive(Default)]
struct Groups {
    known: Mutex<HashMap<GroupKey, Arc<Group>>>,
}

type GroupKey = (GroupPolicy, Vec<String>);

impl Groups {
    fn of(&self, message: &v1::Allocation) -> Result<Arc<Group>, String> {
        let policy = group_policy(message).map_err(|error| error.to_string())?;
        let configs = message
            .tasks
            .iter()
            .map(|task| format!("{} {}", task.driver, task.config_json))
            .collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (policy, configs);
        if let Some(group) = known.get(&key) {
            return Ok(Arc::clone(group));
        }
        if known.len() >= GROUPS_MAX {
            known.retain(|_, group| Arc::strong_count(group) > 1);
        }
        let scripts = message.tasks.iter().map(script).collect();
        let group = Arc::new(Group { policy: key.0.clone(), scripts });
        known.insert(key, Arc::clone(&group));
        Ok(group)
    }
}

fn script(task: &v1::Task) -> Result<Script, String> {
    if DriverEntry::named(&task.driver).is_none_or(|entry| entry.name() != mock::NAME) {
        return Err(format!("driver `{}` is not offered by this node", task.driver));
    }
    Script::parse(&task.config_json).map_err(|error| error.message)
}

/// An event of a task that will happen by itself.
#[derive(Debug)]
enum Due {
    Started,
    Exited(ExitResult),
}

struct SimulatedAllocation {
    group: Arc<Group>,
    runner: AllocationRunner,
    /// Events to come, at most one per task: (time since boot in ms, task, event).
    due: Vec<(u64, usize, Due)>,
    /// Its entry in [`Inner::deadlines`].
    deadline: Option<u64>,
}

#[derive(Default)]
struct Inner {
    allocations: BTreeMap<AllocationId, SimulatedAllocation>,
    deadlines: BTreeSet<(u64, AllocationId)>,
    /// Ended allocations, the oldest first.
    ended: VecDeque<AllocationId>,
}

struct SimulatedNode {
    clock: Clock,
    outbox: Arc<Outbox>,
    groups: Arc<Groups>,
    rules: Arc<StageRules>,
    ended_max: usize,
    inner: Mutex<Inner>,
    wake: Notify,
}

impl SimulatedNode {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs due events, for ever.
    async fn keep_time(self: Arc<Self>) {
        loop {
            let next = self.let_happen();
            let due = async {
                match next {
                    Some(at) => sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            rt::select! {
                biased;
                () = due => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Performs due events. Returns when the next one is due, in time since boot.
    fn let_happen(&self) -> Option<u64> {
        let mut inner = self.lock();
        let now = self.clock.now();
        while let Some((at, id)) = inner.deadlines.first().copied() {
            if at > now.since_boot_ms {
                return Some(at);
            }
            inner.deadlines.pop_first();
            if let Some(allocation) = inner.allocations.get_mut(&id) {
                allocation.deadline = None;
                allocation.let_happen(&self.rules, now);
                self.publish(&mut inner, id, now);
            }
        }
        None
    }

    fn take(&self, inner: &mut Inner, message: &v1::Allocation, now: Moment) {
        let Some(id) = AllocationId::from_slice(&message.id) else { return };
        let known = match words::client_status(message.client_status) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(allocation = %id, %error, "an allocation is not taken");
                return;
            }
        };
        let over = known.is_terminal();
        let held = message.run && !message.task_starts_allowed;
        let allocation = match inner.allocations.entry(id) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                if let Ok(group) = self.groups.of(message)
                    && group.policy.tasks.len() == known.group.policy.tasks.len()
                {
                    known.group = group;
                }
                known.runner.revise(&known.group.policy, now);
                known
            }
            Entry::Vacant(_) if over || held => return,
            Entry::Vacant(place) => match self.groups.of(message) {
                Ok(group) => {
                    place.insert(SimulatedAllocation::new(group, id, message.client_sequence, now))
                }
                Err(error) => {
                    let failed = v1::ClientStatus::Failed;
                    return self.outbox.repeat(id, not_running(message, failed, &error));
                }
            },
        };
        allocation.runner.raise_sequence(message.client_sequence);
        // An allocation that never ran here goes through the same state machine, which reports it
        // as ended.
        let order = if message.run { AllocationRunner::start } else { AllocationRunner::stop };
        allocation.carry_out(&self.rules, now, |allocation, step| {
            order(&mut allocation.runner, step);
        });
        self.publish(inner, id, now);
    }

    /// Reports a change and files the next deadline.
    fn publish(&self, inner: &mut Inner, id: AllocationId, now: Moment) {
        let Some(allocation) = inner.allocations.get_mut(&id) else { return };
        if allocation.runner.take_changed() {
            let client_status = allocation.runner.client_status().name();
            tracing::info!(allocation = %id, client_status, "a simulated allocation changed");
            self.outbox.report(id, allocation.runner.status(&allocation.group.policy, id.0));
        }
        let next = allocation.next_deadline();
        if next != allocation.deadline {
            if let Some(old) = allocation.deadline {
                inner.deadlines.remove(&(old, id));
            }
            // An overdue event is filed 1 ms from now, not handled at once, so that a loop of
            // restarts cannot hold the lock.
            let next = next.map(|at| at.max(now.since_boot_ms.saturating_add(1)));
            allocation.deadline = next;
            inner.deadlines.extend(next.map(|at| (at, id)));
        }
        if allocation.runner.is_terminal() && !inner.ended.contains(&id) {
            inner.ended.push_back(id);
        }
    }

    fn forget(inner: &mut Inner, id: AllocationId) {
        if let Some(deadline) =
            inner.allocations.remove(&id).and_then(|allocation| allocation.deadline)
        {
            inner.deadlines.remove(&(deadline, id));
        }
        inner.ended.retain(|ended| *ended != id);
        tracing::info!(allocation = %id, client_status = "forgotten", "a simulated allocation is gone");
    }
}

impl SimulatedAllocation {
    fn new(group: Arc<Group>, id: AllocationId, sequence: u64, now: Moment) -> Self {
        let runner = AllocationRunner::new(&group.policy, id.0, sequence, now);
        Self { group, runner, due: Vec::new(), deadline: None }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.due.iter().map(|(at, _, _)| *at).chain(self.runner.next_deadline()).min()
    }

    /// Performs due events.
    fn let_happen(&mut self, rules: &StageRules, now: Moment) {
        let (ripe, rest): (Vec<_>, _) = std::mem::take(&mut self.due)
            .into_iter()
            .partition(|(at, _, _)| *at <= now.since_boot_ms);
        self.due = rest;
        self.carry_out(rules, now, |allocation, step| {
            for (_, task, what) in ripe {
                match what {
                    Due::Started => allocation.started(task, step),
                    Due::Exited(exit) => allocation.runner.exited(task, &exit, step),
                }
            }
            allocation.runner.tick(step);
        });
    }

    /// Makes a step of the machine, and performs what it asks for until it asks for nothing.
    fn carry_out(
        &mut self,
        rules: &StageRules,
        now: Moment,
        first: impl FnOnce(&mut Self, &mut Step<'_>),
    ) {
        let group = Arc::clone(&self.group);
        let mut actions = Vec::new();
        first(self, &mut Step { policy: &group.policy, rules, now, out: &mut actions });
        let mut left = VecDeque::from(actions);
        while let Some(action) = left.pop_front() {
            let mut more = Vec::new();
            self.perform(action, &mut Step { policy: &group.policy, rules, now, out: &mut more });
            left.extend(more);
        }
    }

    fn perform(&mut self, action: Action, step: &mut Step<'_>) {
        let group = Arc::clone(&self.group);
        match action {
            // A simulated node has nothing to prepare, so each stage succeeds at once.
            Action::Prepare { stage, task, .. } => self.runner.prepared((stage, task), step),
            Action::Undo { stage, task } => self.runner.undone((stage, task), step),
            Action::Abandon { .. } => {}
            Action::Start { task, .. } => match &group.scripts[task] {
                Err(error) => {
                    self.runner.start_failed(task, &StartError::impossible(error.as_str()), step);
                }
                Ok(script) if script.start_block_for_ms > 0 => {
                    let at = step.now.since_boot_ms.saturating_add(script.start_block_for_ms);
                    self.due.push((at, task, Due::Started));
                }
                Ok(_) => self.started(task, step),
            },
            Action::Kill { task } => {
                let Ok(script) = &group.scripts[task] else { return };
                let (after_ms, exit) = script.killed_end(group.policy.tasks[task].kill_timeout_ms);
                self.due.retain(|(_, other, _)| *other != task);
                if after_ms == 0 {
                    self.runner.exited(task, &exit, step);
                } else {
                    let at = step.now.since_boot_ms.saturating_add(after_ms);
                    self.due.push((at, task, Due::Exited(exit)));
                }
            }
        }
    }

    fn started(&mut self, task: usize, step: &mut Step<'_>) {
        let group = Arc::clone(&self.group);
        let Ok(script) = &group.scripts[task] else { return };
        if let Some(error) = script.start_failure() {
            self.runner.start_failed(task, &error, step);
            return;
        }
        if let Some(run_for_ms) = script.run_for_ms {
            let at = step.now.since_boot_ms.saturating_add(run_for_ms);
            self.due.push((at, task, Due::Exited(script.natural_end())));
        }
        self.runner.started(task, step);
    }
}

impl Node for SimulatedNode {
    async fn apply(&self, batch: v1::AllocationBatch) {
        let mut inner = self.lock();
        let now = self.clock.now();
        for allocation in &batch.allocations {
            self.take(&mut inner, allocation, now);
        }
        let mut gone: Vec<_> =
            batch.removed.iter().filter_map(|id| AllocationId::from_slice(id)).collect();
        if batch.complete {
            let present = present(&batch);
            let live = inner.allocations.iter().filter(|(_, known)| !known.runner.is_terminal());
            gone.extend(live.map(|(id, _)| *id).filter(|id| !present.contains(id)));
        }
        for id in gone {
            Self::forget(&mut inner, id);
            self.outbox.forget(id);
        }
        // Some ended allocations are kept, as on a real node. One whose end has not reached the
        // servers is kept in any case.
        for _ in self.ended_max..inner.ended.len() {
            let Some(id) = inner.ended.pop_front() else { break };
            if self.outbox.is_pending(id) {
                inner.ended.push_back(id);
            } else {
                Self::forget(&mut inner, id);
            }
        }
        drop(inner);
        self.wake.notify_one();
    }

    fn report_all(&self) {
        for (id, allocation) in &self.lock().allocations {
            self.outbox.repeat(*id, allocation.runner.status(&allocation.group.policy, id.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        allocation::preparation::{Again, Place, Scope, StageRule},
        testing,
    };

    fn node() -> SimulatedNode {
        SimulatedNode {
            clock: Clock::new(),
            outbox: Arc::default(),
            groups: Arc::default(),
            rules: Arc::new(Stages::all().rules),
            ended_max: 1,
            inner: Mutex::default(),
            wake: Notify::new(),
        }
    }

    fn batch(allocations: Vec<v1::Allocation>) -> v1::AllocationBatch {
        v1::AllocationBatch { complete: true, allocations, ..Default::default() }
    }

    fn status(node: &SimulatedNode, id: u8) -> String {
        let inner = node.lock();
        inner.allocations[&AllocationId([id; 16])].runner.client_status().name().to_owned()
    }

    #[tokio::test]
    async fn allocations_of_a_job_share_their_policy_and_run_by_their_script() {
        let node = node();
        let mut quick = testing::message([1; 16], "job", &["a"]);
        quick.tasks[0].config_json = r#"{"run_for":"0"}"#.to_owned();
        let mut second = quick.clone();
        second.id = vec![2; 16].into();
        let mut broken = quick.clone();
        broken.id = vec![3; 16].into();
        broken.tasks[0].driver = "raw_exec".to_owned();
        node.apply(batch(vec![quick, second, broken])).await;
        assert_eq!(node.groups.known.lock().map(|known| known.len()).ok(), Some(2));
        while node.let_happen().is_some() {
            tokio::task::yield_now().await;
        }
        for (id, expected) in [(1, "complete"), (2, "complete"), (3, "failed")] {
            assert_eq!(status(&node, id), expected, "{id}");
        }
    }

    /// Also stages that today's list does not have: outside the directory, of both scopes.
    #[tokio::test]
    async fn stages_are_prepared_and_undone() {
        let rule =
            |name, scope| StageRule { name, scope, again: Again::Never, place: Place::Outside };
        let rules = vec![rule("network", Scope::Allocation), rule("mount", Scope::Task)];
        let node = SimulatedNode { rules: Arc::new(StageRules::of(rules)), ..node() };
        let mut endless = testing::message([1; 16], "job", &["a", "b"]);
        node.apply(batch(vec![endless.clone()])).await;
        assert_eq!(status(&node, 1), "running");
        let is_over = || node.lock().allocations[&AllocationId([1; 16])].runner.is_over();
        assert!(!is_over());
        endless.run = false;
        node.apply(batch(vec![endless])).await;
        assert_eq!((status(&node, 1).as_str(), is_over()), ("complete", true));
    }

    #[tokio::test]
    async fn a_stopped_allocation_ends_and_a_forgotten_one_goes() {
        let node = node();
        let mut endless = testing::message([1; 16], "job", &["a", "b"]);
        node.apply(batch(vec![endless.clone()])).await;
        assert_eq!(status(&node, 1), "running");
        endless.run = false;
        let mut never = testing::message([2; 16], "job", &["a"]);
        never.run = false;
        node.apply(batch(vec![endless, never])).await;
        assert_eq!(status(&node, 1), "complete");
        assert_eq!(status(&node, 2), "complete");
        let removed = vec![vec![1; 16].into(), vec![2; 16].into()];
        let third = testing::message([3; 16], "job", &["a"]);
        node.apply(batch(vec![third])).await;
        assert_eq!(status(&node, 3), "running");
        assert_eq!(node.lock().allocations.len(), 3, "a complete set leaves out what has ended");
        node.apply(v1::AllocationBatch { removed, ..batch(Vec::new()) }).await;
        assert!(node.lock().allocations.is_empty());
        assert!(node.lock().deadlines.is_empty());
    }

    #[tokio::test]
    async fn an_allocation_named_first_and_sent_in_a_later_message_stays() {
        let node = node();
        let [first, second, third] = [1, 2, 3].map(|id| testing::message([id; 16], "job", &["a"]));
        node.apply(batch(vec![first.clone(), second])).await;
        let present = vec![first.id.clone(), third.id.clone()];
        node.apply(v1::AllocationBatch { present, ..batch(vec![third]) }).await;
        let known: Vec<_> = node.lock().allocations.keys().map(|id| id.0[0]).collect();
        assert_eq!(known, [1, 3], "the second is in neither");
        let later = v1::AllocationBatch { allocations: vec![first], ..Default::default() };
        node.apply(later).await;
        for id in [1, 3] {
            assert_eq!(status(&node, id), "running", "{id}");
        }
    }

    #[tokio::test]
    async fn an_allocation_that_may_not_start_yet_starts_when_it_is_sent_again() {
        let node = node();
        let mut held = testing::message([1; 16], "job", &["a"]);
        held.task_starts_allowed = false;
        node.apply(batch(vec![held.clone()])).await;
        assert!(node.lock().allocations.is_empty());
        held.task_starts_allowed = true;
        node.apply(batch(vec![held])).await;
        assert_eq!(status(&node, 1), "running");
    }
}
