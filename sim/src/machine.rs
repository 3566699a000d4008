//! Machines with the project's own agent: `quorate::agent` as it is, with its node, its shells and its state directory, over the simulated network.
//!
//! ```text
//!  Machine ── kills, stops, cuts off ──► agent (a group of its own) ──► mock driver ──► Processes: what runs, whatever becomes of the agent
//!     └ boots: agent and processes end, the directory stays           └─► Watched: what servers have told this agent, what it asks them for
//! ```
//! Looked at from outside: what runs was asked for by a server since the agent started, what runs ends only when a server says so, and what a server
//! has shown is never forgotten.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fsm::AllocationId;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use prost::Message;
use proto::v1 as pb;
use quorate::{
    agent::{
        Agent, AgentSettings, Process, ProcessTable, ReservedResources, RunId, SimulatedMachine,
    },
    clock::Clock,
    rpc::transport::{Lane, ReplyStream, Transport},
    rt::{self, Group, Instant, mpsc, watch},
};
use tempfile::TempDir;
use tonic::Status;

use crate::{
    agent::RACKS,
    coverage,
    dice::Dice,
    network::SimTransport,
    running::{self, Name},
    swarm::Class,
    trace, verdict,
    world::{self, World},
};

const RPC_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an agent may go on with what it had begun to do when it is told otherwise.
const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// A place for the directories of all machines, in memory where there is such a file system: agents sync often.
pub(crate) fn directories() -> io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("quorate-sim-");
    if memory.is_dir()
        && let Ok(made) = builder.tempdir_in(memory)
    {
        return Ok(made);
    }
    builder.tempdir()
}

/// How long a fault waits for a moment at which it hurts.
const MOMENT: Duration = Duration::from_secs(2);
const JUST_NOW: Duration = Duration::from_millis(200);

/// What an operator asks of an agent.
enum Order {
    Restart(AllocationId),
    Stop,
}

/// Orders under way.
const ORDERS_MAX: usize = 4;

/// One machine.
pub(crate) struct Machine {
    number: usize,
    name: String,
    world: World,
    directory: PathBuf,
    boot_id: [u8; 16],
    booted_at: Instant,
    processes: Arc<Processes>,
    /// Ended allocations that the agent keeps.
    ended_max: usize,
    /// The agent ends its tasks when it is told to stop, and starts them again.
    stops_tasks: bool,
    /// Of the agent, while it runs.
    group: Option<Group>,
    orders: mpsc::Sender<Order>,
    dice: Dice,
}

impl Machine {
    /// A machine of that number, with its state in a directory.
    pub(crate) fn new(number: usize, world: &World, directory: PathBuf) -> Self {
        let name = format!("a{number}");
        let mut dice = Dice::new(world.swarm.seed, &format!("machine {number}"));
        let told = Arc::default();
        let processes = Processes::new(number, world.clone(), told);
        Self {
            boot_id: boot_id(&mut dice),
            booted_at: Instant::now(),
            processes: Arc::new(processes),
            ended_max: dice.index(6),
            stops_tasks: dice.below(2) == 0,
            group: None,
            orders: mpsc::channel(ORDERS_MAX).0,
            number,
            name,
            world: world.clone(),
            directory,
            dice,
        }
    }

    /// Runs its agent until told to stop, and brings the faults of agents. The agent goes on when this ends.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        self.start();
        while !*stop.borrow() {
            let quiet = Duration::from_millis(self.dice.between(200, 4_000));
            drop(rt::timeout(quiet, rt::until_true(&mut stop)).await);
            if !self.world.is_calm() {
                self.trouble().await;
            }
        }
    }

    fn start(&mut self) {
        let group = rt::new_group();
        self.group = Some(group);
        let told = Arc::clone(&self.processes.told);
        *lock(&told) = Told::default();
        *lock(&self.processes.stopping) = false;
        let inner = self.world.network.transport(&self.name);
        let machine = SimulatedMachine {
            transport: Arc::new(Watched { number: self.number, inner, told }),
            boot_id: self.boot_id,
            up_ms: u64::try_from(self.booted_at.elapsed().as_millis()).unwrap_or(u64::MAX),
            processes: Arc::clone(&self.processes) as Arc<dyn ProcessTable>,
        };
        let (settings, name) = (self.settings(), self.name.clone());
        let (orders, mut ordered) = mpsc::channel(ORDERS_MAX);
        self.orders = orders;
        trace::event(&self.name, format_args!("its agent starts"));
        rt::spawn_in(group, async move {
            let agent = match Agent::start_simulated(settings, machine) {
                Ok(agent) => agent,
                Err(error) => {
                    return verdict::fail(format!("the agent of {name} does not start: {error:#}"));
                }
            };
            while let Some(order) = ordered.recv().await {
                match order {
                    // What has ended meanwhile cannot be restarted.
                    Order::Restart(allocation) => drop(agent.restart_tasks(allocation).await),
                    Order::Stop => return agent.stop().await,
                }
            }
        });
    }

    fn settings(&self) -> AgentSettings {
        let servers = (0..self.world.count()).map(world::address).collect();
        let datacenter = if self.number % 3 == 2 { "dc2" } else { "dc1" };
        AgentSettings {
            name: self.name.clone(),
            datacenter: datacenter.to_owned(),
            meta: [("rack".to_owned(), RACKS[self.number % 2].to_owned())].into(),
            reserved: ReservedResources {
                cpu_mhz: 400,
                memory_mb: 300,
                disk_mb: 2_000,
                ports: vec![22],
            },
            drivers: vec!["mock".to_owned()],
            ended_allocations_max: self.ended_max,
            stop_tasks_on_exit: self.stops_tasks,
            executor_binary: Some(PathBuf::from("/no/executor/is/needed")),
            rpc_timeout: RPC_TIMEOUT,
            ..AgentSettings::new(&self.directory, servers)
        }
    }

    async fn trouble(&mut self) {
        if self.dice.below(2) == 0 {
            self.something_to_end().await;
        }
        let may = |class| self.world.swarm.has(class);
        let chosen = self.dice.below(11);
        match chosen {
            0 | 1 if may(Class::Agents) => self.kill_agent().await,
            2 if may(Class::Agents) => self.boot().await,
            3 | 4 if may(Class::Agents) => self.stop_agent().await,
            5 if may(Class::Agents) => self.cut_off(|_| true).await,
            6 | 7 if may(Class::Stall) => self.stand_still().await,
            8 if may(Class::Reconnect) => {
                let lost = world::address(self.dice.index(self.world.count()));
                self.cut_off(|address| address == lost).await;
            }
            9 | 10 => self.restart_tasks().await,
            _ => {}
        }
    }

    /// A moment at which the agent has just been told to end something, if one comes soon.
    async fn something_to_end(&self) {
        let given_up = Instant::now() + MOMENT;
        let was_told = || {
            let told = lock(&self.processes.told);
            told.to_end.values().any(|since| since.elapsed() < JUST_NOW)
        };
        while !was_told() && Instant::now() < given_up {
            rt::sleep(JUST_NOW / 4).await;
        }
    }

    /// Has tasks restarted by order; soon after that the machine may boot or its agent stop.
    async fn restart_tasks(&mut self) {
        let Some(run) = self.processes.some(&mut self.dice) else { return };
        trace::event(&self.name, format_args!("{} is restarted by order", run.allocation));
        if self.orders.try_send(Order::Restart(run.allocation)).is_err() {
            return;
        }
        coverage::hit("tasks were restarted by order");
        running::restarts(run.allocation);
        lock(&self.processes.ordered).insert(run);
        let soon = Duration::from_millis(self.dice.below(500));
        match self.dice.below(4) {
            0 if self.world.swarm.has(Class::Agents) => {
                rt::sleep(soon).await;
                self.boot().await;
            }
            1 | 2 if self.world.swarm.has(Class::Agents) => {
                rt::sleep(soon).await;
                self.stop_agent().await;
            }
            _ => {}
        }
    }

    /// As a supervisor does: asks it to stop, and kills it when that takes too long.
    async fn stop_agent(&mut self) {
        coverage::hit("an agent was told to stop");
        let patience = Duration::from_millis(self.dice.below(3_000));
        let stops_tasks = self.stops_tasks;
        trace::event(&self.name, format_args!("its agent is told to stop, in {patience:?}"));
        if stops_tasks {
            self.processes.may_all_end();
        }
        // One that is busy is killed all the same.
        drop(self.orders.try_send(Order::Stop));
        rt::sleep(patience).await;
        let lasts = Duration::from_millis(self.dice.between(50, 4_000));
        self.end_agent(lasts).await;
        self.start();
    }

    /// As `kill -9` does: what runs goes on.
    async fn kill_agent(&mut self) {
        coverage::hit("an agent was killed while its tasks went on");
        let lasts = Duration::from_millis(self.dice.between(50, 4_000));
        self.end_agent(lasts).await;
        self.start();
    }

    async fn boot(&mut self) {
        coverage::hit("a machine booted");
        let down = Duration::from_millis(self.dice.between(500, 8_000));
        if let Some(group) = self.group.take() {
            rt::kill_group(group);
        }
        self.processes.end_with_the_machine();
        self.end_agent(down).await;
        self.boot_id = boot_id(&mut self.dice);
        self.booted_at = Instant::now();
        self.start();
    }

    async fn end_agent(&mut self, lasts: Duration) {
        trace::event(&self.name, format_args!("its agent ends for {lasts:?}"));
        if let Some(group) = self.group.take() {
            rt::kill_group(group);
        }
        rt::sleep(lasts).await;
    }

    async fn stand_still(&mut self) {
        let Some(group) = self.group else { return };
        let lasts = Duration::from_millis(self.dice.between(1_000, 9_000));
        trace::event(&self.name, format_args!("its agent stands still for {lasts:?}"));
        coverage::hit("an agent stood still with its stream open");
        rt::pause_group(group);
        rt::sleep(lasts).await;
        rt::resume_group(group);
        // It had no time to obey.
        lock(&self.processes.told).to_end.values_mut().for_each(|since| *since = Instant::now());
    }

    async fn cut_off(&mut self, from: impl Fn(&str) -> bool) {
        let lasts = Duration::from_millis(self.dice.between(300, 9_000));
        let servers = (0..self.world.count()).map(world::address).filter(|address| from(address));
        let both =
            |address: String| [(self.name.clone(), address.clone()), (address, self.name.clone())];
        let cut = self.world.network.cut(servers.flat_map(both).collect());
        rt::sleep(lasts).await;
        self.world.network.uncut(&cut);
    }
}

fn boot_id(dice: &mut Dice) -> [u8; 16] {
    let halves = [dice.next(), dice.next()].map(u64::to_le_bytes);
    std::array::from_fn(|i| halves[i / 8][i % 8])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What servers have told an agent since it started.
#[derive(Default)]
struct Told {
    /// The newest index that it was shown since it registered.
    shown: u64,
    /// What was to run.
    to_run: BTreeMap<AllocationId, Name>,
    /// What was not to run, or was gone, and since when that is known.
    to_end: BTreeMap<AllocationId, Instant>,
}

impl Told {
    /// A message that the agent has taken from a stream.
    fn says(&mut self, number: usize, batch: &pb::AllocationBatch) {
        self.shown = self.shown.max(batch.index);
        for one in &batch.allocations {
            let id = AllocationId::from_slice(&one.id).unwrap_or_default();
            if one.run && one.task_starts_allowed {
                let name = running::name_of(number, &one.job_type, (&one.job_id, &one.name));
                self.to_run.insert(id, name);
            } else if !one.run {
                self.to_end.entry(id).or_insert_with(Instant::now);
            }
        }
        for id in batch.removed.iter().filter_map(|id| AllocationId::from_slice(id)) {
            self.to_end.entry(id).or_insert_with(Instant::now);
        }
    }

    /// I49: what begins was asked for, and was not to end well before.
    fn may_begin(&self, id: AllocationId) -> Result<&Name, &'static str> {
        let name =
            self.to_run.get(&id).ok_or("no server has asked for it since its agent started")?;
        match self.to_end.get(&id) {
            Some(since) if since.elapsed() > STOPS_WITHIN => Err("it was to end long ago"),
            _ => Ok(name),
        }
    }

    /// I13: whoever was shown an index asks for nothing older, or what is new would be taken for gone.
    fn asks(&self, number: usize, request: &pb::StreamAllocationsRequest) {
        let (shown, asked) = (self.shown, request.index_min);
        if asked < shown {
            verdict::fail(format!(
                "I13: a{number} was shown {shown} and asks for {asked} and more"
            ));
        }
    }
}

/// The way to the servers, with a look at what is said on it.
struct Watched {
    number: usize,
    inner: SimTransport,
    told: Arc<Mutex<Told>>,
}

impl Transport for Watched {
    fn unary(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, Status>> {
        let (call, told) = (self.inner.unary(to, path, lane, body, timeout), self.told.clone());
        async move {
            let reply = call.await?;
            if path.ends_with("/Register")
                && let Ok(registered) = pb::RegisterReply::decode(reply.clone())
            {
                // Whoever registers anew begins anew: nobody may have any more what was shown before.
                lock(&told).shown = registered.index;
            }
            Ok(reply)
        }
        .boxed()
    }

    fn stream(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        input: BoxStream<'static, Bytes>,
    ) -> BoxFuture<'static, Result<ReplyStream, Status>> {
        let (number, asked, heard) = (self.number, self.told.clone(), self.told.clone());
        let input = input.inspect(move |body| {
            if let Ok(request) = pb::StreamAllocationsRequest::decode(body.clone()) {
                lock(&asked).asks(number, &request);
            }
        });
        let opened = self.inner.stream(to, path, lane, input.boxed());
        async move {
            let batches = opened.await?.inspect(move |body| {
                if let Ok(body) = body
                    && let Ok(batch) = pb::AllocationBatch::decode(body.clone())
                {
                    lock(&heard).says(number, &batch);
                }
            });
            Ok(batches.boxed())
        }
        .boxed()
    }
}

/// What runs on a machine.
struct Processes {
    number: usize,
    world: World,
    told: Arc<Mutex<Told>>,
    table: Mutex<BTreeMap<RunId, Listed>>,
    /// Runs that the agent may end without a server: it was told to restart them, or to stop.
    ordered: Mutex<BTreeSet<RunId>>,
    /// It was told to stop: so is what it was still starting.
    stopping: Mutex<bool>,
}

#[derive(Clone)]
struct Listed {
    name: Name,
    process: Process,
    ends_at: Option<Instant>,
    /// The machine has not booted since.
    of_this_boot: bool,
}

impl Processes {
    fn new(number: usize, world: World, told: Arc<Mutex<Told>>) -> Self {
        let (table, ordered, stopping) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { number, world, told, table, ordered, stopping }
    }

    /// One that runs; half of the time one that will end by itself, if there is any.
    fn some(&self, dice: &mut Dice) -> Option<RunId> {
        let mut runs = self.running();
        if dice.below(2) == 0 {
            let table = lock(&self.table);
            let finite: Vec<RunId> =
                runs.iter().filter(|run| table[*run].ends_at.is_some()).cloned().collect();
            drop(table);
            if !finite.is_empty() {
                runs = finite;
            }
        }
        (!runs.is_empty()).then(|| runs[dice.index(runs.len())].clone())
    }

    fn running(&self) -> Vec<RunId> {
        let table = lock(&self.table);
        table.iter().filter(|(_, listed)| listed.runs()).map(|(run, _)| run.clone()).collect()
    }

    /// The agent is about to end what runs.
    fn may_all_end(&self) {
        let running = self.running();
        lock(&self.ordered).extend(running);
        *lock(&self.stopping) = true;
    }

    fn end_with_the_machine(&self) {
        for listed in lock(&self.table).values_mut() {
            listed.process.killed |= listed.runs();
            listed.of_this_boot = false;
        }
        running::ends_all(self.number);
    }
}

impl Listed {
    fn runs(&self) -> bool {
        !self.process.killed && self.ends_at.is_none_or(|end| end > Instant::now())
    }
}

impl ProcessTable for Processes {
    fn begins(&self, run: &RunId, lasts: Option<Duration>) {
        let RunId { allocation, task, attempt } = run;
        let number = self.number;
        trace::event(&format!("a{number}"), format_args!("{allocation} {task} {attempt} begins"));
        let before = lock(&self.table)
            .iter()
            .rev()
            .find(|(other, _)| (other.allocation, &other.task) == (*allocation, task))
            .map(|(other, listed)| (other.clone(), listed.clone()));
        let mut restarted = None;
        if let Some((other, listed)) = before {
            let is_ordered = lock(&self.ordered).contains(&other);
            let what = if listed.runs() {
                Some("runs")
            } else {
                let ended_well = !listed.process.killed && listed.of_this_boot;
                (ended_well && !is_ordered).then_some("has ended well")
            };
            if let Some(what) = what {
                verdict::fail(format!(
                    "I49: attempt {attempt} of {task} of {allocation} begins on a{number} although attempt {} {what}",
                    other.attempt
                ));
            }
            // What ran when the agent started may be restarted before it has heard of it.
            restarted = (is_ordered && listed.of_this_boot).then_some(listed.name);
        }
        let asked = lock(&self.told).may_begin(*allocation).cloned();
        let name = match (asked, restarted) {
            (Ok(name), _) | (Err(_), Some(name)) => name,
            (Err(why), None) => {
                return verdict::fail(format!("I49: {allocation} begins on a{number}, and {why}"));
            }
        };
        let ends_at = lasts.map(|lasts| Instant::now() + lasts);
        let process = Process { began_at_ms: Clock::default().wall_ms(), killed: false };
        let listed = Listed { name: name.clone(), process, ends_at, of_this_boot: true };
        lock(&self.table).insert(run.clone(), listed);
        if *lock(&self.stopping) {
            lock(&self.ordered).insert(run.clone());
        }
        running::begins(&self.world, number, *allocation, (name, ends_at));
    }

    fn find(&self, run: &RunId) -> Option<Process> {
        let found = lock(&self.table).get(run).cloned().filter(|found| found.of_this_boot)?;
        if found.runs() {
            coverage::hit("an agent found again what the last one had begun");
        }
        Some(found.process)
    }

    fn ends(&self, run: &RunId) {
        let RunId { allocation, task, attempt } = run;
        let number = self.number;
        trace::event(&format!("a{number}"), format_args!("{allocation} {task} {attempt} ends"));
        let Some(listed) = lock(&self.table).get_mut(run).map(|listed| {
            let before = listed.clone();
            listed.process.killed = true;
            before
        }) else {
            return verdict::fail(format!("a{number} ends {allocation}, which never began"));
        };
        running::ends(number, *allocation);
        let state = self.world.newest();
        let is_wanted = state.is_some_and(|state| running::wanted(&state, *allocation).is_some());
        let is_ordered = lock(&self.ordered).contains(run);
        if listed.runs()
            && is_wanted
            && !is_ordered
            && !lock(&self.told).to_end.contains_key(allocation)
        {
            verdict::fail(format!(
                "I49: a{number} ends {allocation}, and no server has told it to"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        JobKind,
        testing::{self, Driver},
    };

    use super::*;
    use crate::swarm::{Override, Swarm};

    /// A machine whose agent was told of the one allocation that the servers want.
    fn machine() -> (Processes, RunId) {
        let mut driver = Driver::default();
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let node = driver.node("n1");
        let allocation = driver.place("web", 0, node);
        let world = World::new(&Arc::new(Swarm::draw(1, &Override::default())));
        world.judge(0, &Arc::new(driver.state));
        let told = Arc::default();
        let processes = Processes::new(3, world, told);
        lock(&processes.told).says(3, &batch(5, allocation, true));
        (processes, RunId { allocation, task: "task".to_owned(), attempt: 1 })
    }

    fn batch(index: u64, allocation: AllocationId, run: bool) -> pb::AllocationBatch {
        let id = allocation.0.to_vec().into();
        let one = pb::Allocation { id, run, task_starts_allowed: true, ..Default::default() };
        pb::AllocationBatch { index, allocations: vec![one], ..Default::default() }
    }

    fn found() -> Vec<String> {
        verdict::failures()
    }

    #[tokio::test(start_paused = true)]
    async fn i49_what_begins_was_asked_for_and_once() {
        rt::enter_simulation(1);
        let (machine, first) = machine();
        let attempt = |attempt| RunId { attempt, ..first.clone() };
        machine.begins(&first, Some(Duration::from_secs(1)));
        assert_eq!(found(), Vec::<String>::new());
        assert!(machine.find(&first).is_some_and(|found| !found.killed));
        machine.begins(&attempt(2), Some(Duration::from_secs(1)));
        assert!(found()[0].contains("although attempt 1 runs"), "{:?}", found());
        rt::sleep(Duration::from_secs(1)).await;
        machine.begins(&attempt(3), None);
        assert!(found()[1].contains("although attempt 2 has ended well"), "{:?}", found());
        machine.may_all_end();
        machine.ends(&attempt(3));
        machine.begins(&attempt(4), None);
        let other = RunId { allocation: AllocationId([9; 16]), ..first.clone() };
        machine.begins(&other, None);
        assert!(found()[2].contains("no server has asked for it"), "{:?}", found());
        assert_eq!(found().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn i49_what_was_to_end_does_not_begin() {
        rt::enter_simulation(1);
        let (machine, run) = machine();
        lock(&machine.told).says(3, &batch(6, run.allocation, false));
        machine.begins(&run, None);
        assert_eq!(found(), Vec::<String>::new(), "it may have been about to");
        machine.ends(&run);
        rt::sleep(STOPS_WITHIN * 2).await;
        machine.begins(&RunId { attempt: 2, ..run }, None);
        assert!(found()[0].contains("it was to end long ago"), "{:?}", found());
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_boots_has_nothing_that_runs() {
        rt::enter_simulation(1);
        let (machine, run) = machine();
        machine.begins(&run, None);
        machine.end_with_the_machine();
        assert_eq!(machine.find(&run), None, "its agent finds nothing");
        machine.begins(&RunId { attempt: 2, ..run }, None);
        assert_eq!(found(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn i49_what_is_wanted_ends_only_when_a_server_says_so() {
        rt::enter_simulation(1);
        let (machine, run) = machine();
        machine.begins(&run, None);
        lock(&machine.told).says(3, &batch(6, run.allocation, false));
        machine.ends(&run);
        assert_eq!(found(), Vec::<String>::new());
        assert!(machine.find(&run).is_some_and(|found| found.killed));
        machine.begins(&RunId { attempt: 2, ..run.clone() }, None);
        *lock(&machine.told) = Told::default();
        machine.ends(&RunId { attempt: 2, ..run.clone() });
        assert!(found()[0].contains("no server has told it to"), "{:?}", found());
    }

    #[test]
    fn i13_what_was_shown_is_asked_for() {
        let mut told = Told::default();
        let ask = |told: &Told, index_min| {
            told.asks(3, &pb::StreamAllocationsRequest { index_min, ..Default::default() });
            found().len()
        };
        told.says(3, &batch(7, AllocationId([1; 16]), true));
        told.says(3, &batch(6, AllocationId([1; 16]), true));
        assert_eq!(ask(&told, 7), 0);
        assert_eq!(ask(&told, 6), 1);
    }
}
