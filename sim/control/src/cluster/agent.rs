//! Fake agents: they register, sync, become ready, beat, start and stop what a server shows them, and report. They fall silent, restart with and
//! without their state, see old views, and lose reports on the way.
//!
//! Modelled, not real: the agent's own machines live in the root package. What they promise to the servers is kept: sequences rise, reports are
//! repeated until they are taken, a view never goes back, another boot is another identity.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    AllocationId, ClientStatus, Command, Index, JobKind, Liveness, NodeId, State,
    allocation::{ClientUpdate, NodeReport, UpdateAllocations},
    node::{Driver, InstanceProof, NodeDescription, NodeReadiness, Readiness, RegisterNode},
    resources::Resources,
    testing,
};

use super::{
    Cluster,
    coverage::Event,
    log::{Fate, Ticket},
};
use chance::Dice;

mod tasks;

pub(crate) use tasks::TaskTrouble;

use tasks::Local;

/// A key of a batch job's meta: its tasks do not end by themselves.
pub(crate) const ENDLESS: &str = "endless";
/// A key of a job's meta: its tasks fail soon, each of them.
pub(crate) const CRASHES: &str = "crashes";

/// Beats come this often, well inside the shortest time to live.
const BEAT_MS: u64 = 8_000;

/// A check that failed is repeated after this.
const CHECK_MS: u64 = 5_000;

/// An agent whose registration was refused tries again after this.
const REFUSED_MS: u64 = 5_000;
/// Agents of machines are numbered from here.
const MACHINES_FROM: usize = 10;

/// Racks that nodes are in.
const RACKS: [&str; 2] = ["r1", "r2"];
/// Who a node belongs to: nothing that its class depends on.
pub(crate) const OWNERS: [&str; 2] = ["o1", "o2"];

/// Up to which sequence number each allocation is reported.
type Taken = Vec<(AllocationId, u64)>;

enum Asked {
    Register,
    Ready,
    Report(Taken),
}

/// An agent.
pub(crate) struct Agent {
    pub(crate) node: NodeId,
    number: usize,
    identity: u8,
    description: Arc<NodeDescription>,
    /// The server whose state it sees.
    server: usize,
    /// Index of the newest view.
    seen: Index,
    incarnation: Option<u64>,
    asked: Option<(Asked, Ticket)>,
    /// A report that arrives a second time, some time.
    copy: Option<Command>,
    local: BTreeMap<AllocationId, Local>,
    beat_at: u64,
    /// Says and hears nothing until then.
    silent_until: u64,
    /// Its node is not ready before this.
    unready_until: u64,
    /// Sequence of the last readiness report.
    checks: u64,
    /// A check is due after a task.
    check_due: bool,
    /// No check that failed is repeated before this.
    check_at: u64,
    /// Its checks say this until then.
    sickness: (Readiness, u64),
    /// It fails at what it is given until then.
    broken_until: u64,
    /// A report of a check that arrives late.
    late_check: Option<Command>,
    pub(crate) dead: bool,
    /// What it shows to be taken for an instance, and the number of its machine; none: it is of no pool.
    instance: Option<(InstanceProof, u64)>,
}

impl Agent {
    /// An agent that is not known to the servers.
    pub(crate) fn new(number: usize, scarce: bool, rich: bool) -> Self {
        let name = format!("agent{number}");
        let mut description = testing::description(&name);
        let resources = &mut description.resources;
        let cpu_mhz = if scarce { 1_000 } else { 4_000 };
        resources.total = Resources { cpu_mhz, ..resources.total };
        if scarce && number.is_multiple_of(2) {
            resources.allocations_max = 3;
        }
        // A small range with a hole: reserved ports lie inside it.
        resources.reserved_ports = vec![22, 20_001, 20_003];
        resources.dynamic_port_min = 20_000;
        resources.dynamic_port_max = 20_009;
        if number % 3 == 2 {
            description.datacenter = "dc2".into();
        }
        if rich {
            description.resources.reserved =
                Resources { cpu_mhz: 300, memory_mb: 1_000, disk_mb: 5_000 };
            description.meta.insert("rack".into(), RACKS[number % 2].into());
            let kind = if number % 3 == 1 { "small" } else { "big" };
            description.attributes.insert("kind".into(), kind.into());
            description.meta.insert("unique.owner".into(), OWNERS[0].into());
            description.attributes.insert("unique.name".into(), name.as_str().into());
            if number % 2 == 1 {
                description.resources.allocations_max = 2;
            }
            if number == 3 {
                description.pool = "other".into();
            }
        }
        let driver = Driver { detected: true, healthy: true, ..Driver::default() };
        description.drivers.insert("mock".into(), driver);
        Self {
            node: testing::node_id(&name),
            number,
            identity: 1,
            description: Arc::new(description),
            server: 0,
            seen: 0,
            incarnation: None,
            asked: None,
            copy: None,
            local: BTreeMap::new(),
            beat_at: 0,
            silent_until: 0,
            unready_until: 0,
            checks: 0,
            check_due: false,
            check_at: 0,
            sickness: (Readiness::Ok, 0),
            broken_until: 0,
            late_check: None,
            dead: false,
            instance: None,
        }
    }

    /// The agent of a machine of the fake cloud.
    pub(crate) fn of_machine(
        machine: u64,
        proof: InstanceProof,
        description: NodeDescription,
    ) -> Self {
        let node = testing::node_id(&description.name);
        let number = usize::try_from(machine).unwrap_or(0) + MACHINES_FROM;
        let mut agent = Self::new(number, false, false);
        (agent.node, agent.description) = (node, Arc::new(description));
        agent.instance = Some((proof, machine));
        agent
    }

    /// Another machine of its instance registered first: its provider ignores keys.
    pub(crate) fn is_too_late(&self, state: &State) -> bool {
        let row = self.instance.and_then(|(proof, _)| state.instances().get(&proof.id));
        row.and_then(|row| row.node).is_some_and(|node| node != self.node)
    }

    /// For the trace.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Number of its machine, if the fake cloud made it.
    pub(crate) fn machine(&self) -> Option<u64> {
        self.instance.map(|(_, machine)| machine)
    }

    fn is_away(&self, now: u64) -> bool {
        self.dead || self.silent_until > now
    }

    /// When something happens here by itself.
    pub(crate) fn next_look_ms(&self) -> Option<u64> {
        let tasks = self.local.values().filter_map(Local::next_look_ms);
        let next = tasks.min().map_or(self.beat_at, |at| at.min(self.beat_at));
        (!self.dead).then(|| next.max(self.silent_until))
    }

    /// What of a state is to run here.
    pub(crate) fn live_in(&self, state: &State) -> BTreeSet<AllocationId> {
        let rows = state.allocations_of_node(self.node);
        rows.filter(|row| row.is_live()).map(|row| row.id).collect()
    }

    /// What runs here.
    pub(crate) fn running(&self) -> impl Iterator<Item = AllocationId> + '_ {
        let running = self.local.iter().filter(|(_, one)| one.status == ClientStatus::Running);
        running.map(|(id, _)| *id)
    }

    /// Somebody changes what the agent says of its node: it registers again.
    pub(crate) fn moves(&mut self, dice: &mut Dice) {
        let description = Arc::make_mut(&mut self.description);
        if dice.percent(50) {
            let rack = RACKS[dice.index(RACKS.len())];
            description.meta.insert("rack".into(), rack.into());
        } else {
            // Its class stays what it was.
            let owner = OWNERS[dice.index(OWNERS.len())];
            description.meta.insert("unique.owner".into(), owner.into());
        }
        self.incarnation = None;
    }

    /// Its checks fail for a while.
    pub(crate) fn falls_sick(&mut self, sickness: Readiness, until: u64) {
        self.sickness = (sickness, until);
        self.check_due = true;
    }

    /// What a check says now.
    fn condition(&self, now: u64) -> Readiness {
        let (sickness, until) = self.sickness;
        if until > now { sickness } else { Readiness::Ok }
    }

    /// Back for good.
    pub(crate) fn wake(&mut self) {
        (self.silent_until, self.unready_until) = (0, 0);
        (self.sickness.1, self.check_at, self.broken_until) = (0, 0, 0);
        for one in self.local.values_mut() {
            one.starts_at = one.starts_at.map(|_| 0);
            one.stops_at = one.stops_at.map(|_| 0);
        }
    }
}

impl Cluster {
    /// Something goes wrong with an agent.
    pub(crate) fn disturb_agent(&mut self, number: usize, dice: &mut Dice) -> bool {
        let now = self.clock_ms;
        let agent = &mut self.agents[number];
        match dice.below(10) {
            0 if dice.percent(20) => agent.dead = true,
            0..4 => agent.silent_until = now + dice.between(1_000, 120_000),
            4..6 => agent.incarnation = None,
            6..8 => self.lose_agent(number),
            _ => agent.server = dice.index(self.servers.len()),
        }
        if self.swarm.rich_nodes && dice.percent(20) {
            self.agents[number].moves(dice);
        }
        true
    }

    /// An agent begins anew on a machine that takes its time until it is ready.
    pub(crate) fn restart_machine(&mut self, number: usize, unready_ms: u64) {
        self.lose_agent(number);
        self.agents[number].unready_until = self.clock_ms + unready_ms;
    }

    /// An agent loses its state, and what ran there.
    fn lose_agent(&mut self, number: usize) {
        let agent = &mut self.agents[number];
        agent.incarnation = None;
        agent.asked = None;
        agent.identity = agent.identity.wrapping_add(1);
        agent.local.clear();
        self.coverage.count(Event::AgentReborn);
    }

    /// Lets an agent go on. True: it did something that matters.
    pub(crate) fn live(&mut self, number: usize, dice: &mut Dice) -> bool {
        let now = self.clock_ms;
        if self.agents[number].is_away(now) {
            return false;
        }
        let heard = self.hear(number, dice);
        if self.agents[number].copy.is_some()
            && dice.percent(10)
            && let Some(command) = self.agents[number].copy.take()
        {
            self.propose_for_client(command, None, dice);
        }
        if self.agents[number].late_check.is_some()
            && self.chance.percent(15)
            && let Some(command) = self.agents[number].late_check.take()
        {
            self.propose_for_client(command, None, dice);
        }
        if self.agents[number].asked.is_some() {
            return heard;
        }
        let looked = self.look_at_view(number);
        let asked = self.ask_as_agent(number, dice);
        let beat = self.beat_if_due(number, dice);
        heard || looked || asked || beat
    }

    /// The answer to what it asked last.
    fn hear(&mut self, number: usize, dice: &mut Dice) -> bool {
        let Some((_, ticket)) = &self.agents[number].asked else { return false };
        let lost = dice.percent(self.swarm.reply_loss);
        let index = match self.log.fate(*ticket) {
            Fate::Open => return false,
            Fate::Committed(index) if !lost => index,
            Fate::Committed(_) | Fate::Lost => {
                self.agents[number].asked = None;
                return true;
            }
        };
        let reply = self.log.at(index).map(|one| one.reply.clone());
        let agent = &mut self.agents[number];
        match (agent.asked.take(), reply) {
            (Some((Asked::Register, _)), Some(fsm::Reply::Node { incarnation, .. })) => {
                agent.incarnation = Some(incarnation);
                // What it sees from now on is not older than its own registration.
                agent.seen = agent.seen.max(index);
                agent.beat_at = 0;
            }
            (Some((Asked::Report(taken), _)), Some(fsm::Reply::Evaluations(_))) => {
                for (id, sequence) in taken {
                    if let Some(one) = agent.local.get_mut(&id) {
                        one.taken(sequence);
                    }
                }
            }
            // It is no instance, or not any more: its machine is not wanted.
            (Some((Asked::Register, _)), Some(fsm::Reply::Rejected(_)))
                if agent.instance.is_some() =>
            {
                agent.silent_until = self.clock_ms + REFUSED_MS;
            }
            (Some((Asked::Register | Asked::Ready | Asked::Report(_), _)) | None, _) => {}
        }
        true
    }

    /// Starts and stops what the server shows.
    fn look_at_view(&mut self, number: usize) -> bool {
        let agent = &self.agents[number];
        let index = self.servers[agent.server].applied;
        let Some(incarnation) = agent.incarnation else { return false };
        if index < agent.seen {
            return false;
        }
        let view = self.log.state_at(index).clone();
        let node = agent.node;
        let known = view.nodes().get(&node).is_some_and(|row| row.incarnation == incarnation);
        if !known {
            self.agents[number].incarnation = None;
            return true;
        }
        self.agents[number].seen = index;
        let mut changed = false;
        let mut shown = BTreeSet::new();
        for row in view.allocations_of_node(node) {
            shown.insert(row.id);
            let there = self.agents[number].local.get(&row.id).map(|one| one.status);
            match there {
                None if !row.client.is_terminal() => {
                    let batch = view.allocation_spec(row).is_some_and(|spec| {
                        matches!(spec.kind, JobKind::Batch | JobKind::Sysbatch)
                            && !spec.meta.contains_key(ENDLESS)
                    });
                    // What was stopped before it was started is answered for too.
                    let starts_at = self.start_time();
                    let status = match (row.is_live(), starts_at) {
                        (false, _) => ClientStatus::Complete,
                        (true, Some(_)) => ClientStatus::Pending,
                        (true, None) => ClientStatus::Running,
                    };
                    let spec = view.allocation_spec(row);
                    let group = spec.and_then(|spec| spec.group(&row.group));
                    let tasks = group.into_iter().flat_map(|group| &group.tasks);
                    let tasks = tasks.map(|task| task.name.clone()).collect();
                    let mut local = Local::new(row, tasks, status);
                    local.ends_by_itself = batch;
                    local.crashes = spec.is_some_and(|spec| spec.meta.contains_key(CRASHES));
                    local.starts_at = starts_at.filter(|_| status == ClientStatus::Pending);
                    self.agents[number].local.insert(row.id, local);
                    if status == ClientStatus::Running {
                        self.run_task(number, row);
                    }
                    changed = true;
                }
                Some(ClientStatus::Pending) => changed |= self.start_task(number, row),
                Some(ClientStatus::Running) if !row.is_live() => {
                    changed |= self.stop_task(number, row.id);
                }
                Some(ClientStatus::Running) => {
                    changed |= self.watch_health(number, row);
                    changed |= self.go_on(number, row.id);
                }
                None | Some(_) => {}
            }
        }
        // What the servers have forgotten ends, and nobody asks how.
        self.agents[number].local.retain(|id, _| shown.contains(id));
        changed
    }

    /// An agent says and hears nothing for a while.
    pub(crate) fn silence(&mut self, number: usize, for_ms: u64) {
        self.agents[number].silent_until = self.clock_ms + for_ms;
    }

    /// Registers, reports or becomes ready, whichever comes first.
    fn ask_as_agent(&mut self, number: usize, dice: &mut Dice) -> bool {
        let agent = &self.agents[number];
        let node = agent.node;
        let Some(incarnation) = agent.incarnation else {
            let command = Command::from(RegisterNode {
                instance: agent.instance.map(|(proof, _)| proof),
                node,
                secret: [7; 16],
                identity: [agent.identity; 16],
                description: Arc::clone(&agent.description),
                evaluation_ids: self.ids.evaluations(2),
            });
            return self.ask_leader(number, Asked::Register, command, dice);
        };
        // One that is confused says that it is ready before it has said what it runs.
        if dice.percent(3)
            && let Some(asked) = self.ask_for_readiness(number, incarnation, dice)
        {
            return asked;
        }
        if let Some((report, taken)) = self.due_report(number, incarnation) {
            let mut reports = vec![report];
            let mut reporters = vec![(number, taken)];
            // A server writes down together what agents report within a moment.
            if dice.percent(50) {
                for other in 0..self.agents.len() {
                    if let Some((report, taken)) = self.report_beside(number, other) {
                        reports.push(report);
                        reporters.push((other, taken));
                    }
                }
            }
            if reports.len() > 1 {
                self.coverage.count(Event::ReportsTogether);
            }
            let command = Command::from(UpdateAllocations { reports });
            if self.agents[number].copy.is_none() && dice.percent(self.swarm.message_copies) {
                self.agents[number].copy = Some(command.clone());
            }
            let Some(ticket) = self.propose_for_client(command, None, dice) else { return false };
            for (reporter, taken) in reporters {
                self.agents[reporter].asked = Some((Asked::Report(taken), ticket));
            }
            return true;
        }
        self.ask_for_readiness(number, incarnation, dice).unwrap_or(false)
    }

    /// Reports what its check says, if one is due as far as the agent has seen; whether it could ask.
    fn ask_for_readiness(
        &mut self,
        number: usize,
        incarnation: u64,
        dice: &mut Dice,
    ) -> Option<bool> {
        let now = self.clock_ms;
        let agent = &self.agents[number];
        let node = agent.node;
        let row = self.log.state_at(agent.seen).nodes().get(&node);
        let is_wanted = row.is_some_and(|row| {
            let is_heard = matches!(row.liveness, Liveness::Initializing | Liveness::Ready);
            is_heard && row.wants_check() && agent.check_at <= now
        });
        if agent.unready_until > now || !(is_wanted || agent.check_due) {
            return None;
        }
        let readiness = agent.condition(now);
        let evaluation_ids = self.ids.evaluations(2);
        let agent = &mut self.agents[number];
        agent.checks += 1;
        agent.check_due = false;
        agent.check_at = if readiness == Readiness::Ok { now } else { now + CHECK_MS };
        let command = Command::from(NodeReadiness {
            node,
            incarnation,
            readiness,
            reason: readiness.name().into(),
            sequence: agent.checks,
            evaluation_ids,
        });
        self.note_check(readiness);
        if self.swarm.checks_after_tasks && self.chance.percent(20) {
            self.agents[number].late_check = Some(command.clone());
        }
        Some(self.ask_leader(number, Asked::Ready, command, dice))
    }

    /// The report of another agent that has something to say too.
    fn report_beside(&mut self, number: usize, other: usize) -> Option<(NodeReport, Taken)> {
        let agent = &self.agents[other];
        let may = other != number && agent.asked.is_none() && !agent.is_away(self.clock_ms);
        let incarnation = agent.incarnation.filter(|_| may)?;
        self.due_report(other, incarnation)
    }

    /// What an agent has to report, if anything, and up to which sequence numbers that is then said.
    fn due_report(&mut self, number: usize, incarnation: u64) -> Option<(NodeReport, Taken)> {
        let node = self.agents[number].node;
        let updates: Vec<_> = self.agents[number]
            .local
            .iter_mut()
            .filter(|(_, one)| one.sequence > one.reported)
            .map(|(id, one)| ClientUpdate {
                id: *id,
                sequence: one.sequence,
                status: one.status,
                description: "".into(),
                tasks: one.say_tasks(),
                node_failure: one.node_failure.clone(),
                health: one.health(),
            })
            .collect();
        let row = self.log.state_at(self.agents[number].seen).nodes().get(&node);
        let unsynced = row.is_some_and(|row| row.missed_index > row.synced_index);
        if updates.is_empty() && !unsynced {
            return None;
        }
        let taken = updates.iter().map(|update| (update.id, update.sequence)).collect();
        let evaluation_ids = self.ids.evaluations(updates.len());
        Some((NodeReport { node, incarnation, updates, evaluation_ids }, taken))
    }

    fn ask_leader(
        &mut self,
        number: usize,
        asked: Asked,
        command: Command,
        dice: &mut Dice,
    ) -> bool {
        let Some(ticket) = self.propose_for_client(command, None, dice) else { return false };
        self.agents[number].asked = Some((asked, ticket));
        true
    }

    fn beat_if_due(&mut self, number: usize, dice: &mut Dice) -> bool {
        let now = self.clock_ms;
        let agent = &self.agents[number];
        let (Some(incarnation), true) = (agent.incarnation, agent.beat_at <= now) else {
            return false;
        };
        let node = agent.node;
        let Some(to) = self.some_leader(dice) else { return false };
        if dice.percent(self.swarm.message_loss) {
            return false;
        }
        let known = self.beat(to, node, incarnation);
        let stagger = number as u64 % 10 * 100;
        let agent = &mut self.agents[number];
        if known == Some(false) && self.log.leader == to {
            agent.incarnation = None;
        }
        agent.beat_at = now + BEAT_MS + stagger;
        // A beat alone changes nothing that anybody waits for.
        false
    }

    /// Counts a report of an agent's check.
    fn note_check(&mut self, readiness: Readiness) {
        match readiness {
            Readiness::Ok => {}
            Readiness::Retry => self.coverage.count(Event::CheckFailed),
            Readiness::Fatal => self.coverage.count(Event::CheckFatal),
        }
    }
}
