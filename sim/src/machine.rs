//! Machines with the project's own agent: `agent` as it is, with its node, its shells and its state directory, over the simulated network.
//!
//! ```text
//!  Machine ── kills, stops, cuts off ──► agent (a group of its own) ──► mock driver ──► Processes: what runs, whatever becomes of the agent
//!     └ boots: agent and processes end, the directory stays           └─► Watched: what servers have told this agent, what it asks them for
//! ```
//! Looked at from outside: what runs was asked for by a server since the agent started, what runs ends only when a server says so, and what a server
//! has shown is never forgotten.

mod directories;
mod processes;
mod told;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::AllocationId;

pub(crate) use self::directories::Directories;
use self::{
    processes::Processes,
    told::{Told, Watched},
};
use crate::{
    agent::RACKS,
    class::Class,
    coverage, running, trace, verdict,
    world::{self, World},
};
use agent::{Agent, AgentSettings, ProcessTable, ReservedResources, SimulatedMachine};
use chance::Dice;
use ground::rt::{self, Group, Instant, mpsc, watch};

const RPC_TIMEOUT: Duration = Duration::from_secs(3);
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
        let mut dice = Dice::named(world.swarm.seed, &format!("machine {number}"));
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
            transport: Arc::new(Watched {
                number: self.number,
                world: self.world.clone(),
                inner,
                told,
            }),
            boot_id: self.boot_id,
            up_ms: u64::try_from(self.booted_at.elapsed().as_millis()).unwrap_or(u64::MAX),
            processes: Arc::clone(&self.processes) as Arc<dyn ProcessTable>,
            readiness: None,
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
    let halves = [dice.bits(), dice.bits()].map(u64::to_le_bytes);
    std::array::from_fn(|i| halves[i / 8][i % 8])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
