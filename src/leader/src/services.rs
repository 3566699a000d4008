//! The one composition of a leader's machines. The server, its simulation and the simulation of the
//! control plane (`sim/control`) drive this same object.
//!
//! ```text
//!  State ───► restore ─┐                                ┌─► Stepped: reports, workers to wake
//!  effects ─► take ────┼─► nodes, dispatch, others ─────┤
//!  time ────► step ────┘   (one order)                  └─► queue ─► next_command ─► Raft
//! ```
//!
//! A new machine is a file of its own and a line in [`Services::new`];
//! `docs/how-to-add-a-machine.md` shows one.
//!
//! Beside it stands [`crate::PlanApplier`]: its inputs are plans of workers and outcomes of its own
//! entries, not effects and time, and it has up to two entries in flight, in an order of their own.
//! It asks only [`Services::dispatch`] whether the lease of a plan is still out.

use std::collections::BTreeMap;

use elastic::{
    CallId, FleetConfig,
    call::{Answer, Call, ProviderError},
};
use fsm::{Command, Effect, Index, NodeId, State, Text};

use crate::{
    Dispatch, GarbageCollector, GcConfig, NodeWatch, PlanQueueLimits,
    broker::BrokerConfig,
    commands::CommandQueue,
    heartbeat::{Heard, HeartbeatConfig, HeartbeatError},
    jobs::{deployments::DeploymentWatch, periodic::PeriodicWatch, run_time::RunWatch},
    limits,
    log_time::LogTime,
    machine::{Machine, Stepped},
    nodes::{changes::NodeChanges, mass_loss::MassLossWatch},
    pools::Pools,
};

/// Settings of all machines.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServicesConfig {
    pub broker: BrokerConfig,
    pub heartbeat: HeartbeatConfig,
    pub gc: GcConfig,
    pub fleet: FleetConfig,
    /// The providers of machines that this server can call, and how many creates each may be asked
    /// for at a time.
    pub providers: BTreeMap<Text, usize>,
    /// Bounds of the plans that wait.
    pub plans: PlanQueueLimits,
}

/// The machines of one leadership, and the queue of what they want to propose.
///
/// The machines are asked in one order, and their commands wait in it. Those of nodes come first:
/// when the queue is full, a node that is down is named again only after another time to live, all
/// other commands within a minute.
#[derive(Debug)]
pub struct Services {
    /// Agents beat here ([`Services::heard`]).
    nodes: NodeWatch,
    /// Workers lease here ([`Services::dispatch_mut`]).
    dispatch: Dispatch,
    /// Answers of providers come here ([`Services::answered`]).
    pools: Pools,
    /// Machines that nothing asks but effects and time, in their order.
    others: Vec<Box<dyn Machine>>,
    commands: CommandQueue,
}

impl Services {
    /// Machines that hold nothing before they are restored.
    pub fn new(config: &ServicesConfig) -> Self {
        Self {
            nodes: NodeWatch::new(config.heartbeat),
            dispatch: Dispatch::new(config.broker),
            pools: Pools::new(config.fleet, &config.providers),
            others: vec![
                Box::new(PeriodicWatch::default()),
                Box::new(MassLossWatch::default()),
                Box::new(NodeChanges::default()),
                Box::new(DeploymentWatch::default()),
                Box::new(RunWatch::default()),
                Box::new(GarbageCollector::new(config.gc)),
                Box::new(LogTime::default()),
            ],
            commands: CommandQueue::default(),
        }
    }

    fn machines(&self) -> impl Iterator<Item = &dyn Machine> {
        let named: [&dyn Machine; 3] = [&self.nodes, &self.dispatch, &self.pools];
        named.into_iter().chain(self.others.iter().map(|machine| &**machine as &dyn Machine))
    }

    fn machines_mut(&mut self) -> impl Iterator<Item = &mut dyn Machine> {
        let named: [&mut dyn Machine; 3] = [&mut self.nodes, &mut self.dispatch, &mut self.pools];
        let others = self.others.iter_mut().map(|machine| &mut **machine as &mut dyn Machine);
        named.into_iter().chain(others)
    }

    /// Takes everything over from the state: at the start of a leadership, and again when effects
    /// were missed.
    pub fn restore(&mut self, now: u64, state: &State) {
        self.machines_mut().for_each(|machine| machine.restore(now, state));
    }

    /// Takes in one effect of the entry at `index`. `state` is the newest state, at `index` or
    /// later.
    pub fn take(&mut self, now: u64, state: &State, index: Index, effect: &Effect) {
        self.machines_mut().for_each(|machine| machine.take(now, state, index, effect));
    }

    /// Lets time pass, and queues the commands that follow. `ids` makes a fresh id at each call.
    pub fn step(&mut self, now: u64, state: &State, mut ids: impl FnMut() -> [u8; 16]) -> Stepped {
        let mut stepped = Stepped::default();
        self.machines_mut().for_each(|machine| machine.step(now, state, &mut ids, &mut stepped));
        for command in &stepped.commands {
            self.commands.push(command.clone());
        }
        stepped
    }

    /// When to step next. A time in the past means: at once.
    pub fn next_deadline(&self) -> Option<u64> {
        self.machines().filter_map(Machine::next_deadline).min()
    }

    /// How long to wait for effects before the next step, ms.
    pub fn pause_ms(&self, now: u64) -> u64 {
        let next = self.next_deadline().unwrap_or(u64::MAX);
        next.saturating_sub(now).clamp(1, limits::LOOK_MS_MAX)
    }

    /// The command to propose next. It is asked for again when the outcome of the last one is
    /// known.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop()
    }

    /// The commands that wait, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter()
    }

    /// A node beat. When it counts as down, the command that brings it back is queued.
    pub fn heard(
        &mut self,
        now: u64,
        node: NodeId,
        incarnation: u64,
    ) -> Result<Heard, HeartbeatError> {
        let heard = self.nodes.heard(now, node, incarnation)?;
        if let Some(change) = heard.returned {
            self.commands.push(self.nodes.returned(change));
        }
        Ok(heard)
    }

    /// The next call to a provider of machines.
    pub fn next_call(&mut self) -> Option<(CallId, Call)> {
        self.pools.next_call()
    }

    /// A provider has answered; the commands that follow are queued.
    pub fn answered(
        &mut self,
        now: u64,
        state: &State,
        id: CallId,
        answer: Result<Answer, ProviderError>,
    ) {
        for command in self.pools.answered(now, state, id, answer) {
            self.commands.push(command);
        }
    }

    /// The machines that look at nodes.
    pub fn nodes(&self) -> &NodeWatch {
        &self.nodes
    }

    /// The machine that leases evaluations.
    pub fn dispatch(&self) -> &Dispatch {
        &self.dispatch
    }

    /// The same, to lease and to give back.
    pub fn dispatch_mut(&mut self) -> &mut Dispatch {
        &mut self.dispatch
    }

    /// The leadership is over: drops everything that waits.
    pub fn stop(&mut self) {
        self.machines_mut().for_each(Machine::stop);
        self.commands.clear();
    }

    /// Gives each number for dashboards with its name to `put`.
    pub fn gauges(&self, now: u64, put: &mut dyn FnMut(&str, u64)) {
        self.machines().for_each(|machine| machine.gauges(now, put));
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        EvaluationStatus, Liveness, Trigger,
        node::{EndMassLoss, MassLoss, NodeChange},
        testing::put,
    };

    use super::*;
    use crate::{
        Report,
        testing::{evaluation, node, state_of_nodes},
    };
    use fsm::command::{EvaluationCommand, NodeCommand};

    /// When the queue is full a node that is down must not be what is dropped.
    #[test]
    fn commands_of_nodes_are_proposed_first() {
        let mut state = state_of_nodes([node("a")]);
        for name in ["x", "y"] {
            let mut row = evaluation(name, "web", 1);
            row.status = EvaluationStatus::Blocked;
            row.trigger = Trigger::QueuedAllocs;
            put(&mut state, &row);
        }
        let mut services = Services::new(&ServicesConfig::default());
        services.restore(0, &state);
        let due = services.next_deadline().expect("a node is to beat");
        let later = services.nodes().ttl_ms(node("a").id) + limits::HEARTBEAT_GRACE_MS;
        assert!(due <= later && services.pause_ms(0) <= limits::LOOK_MS_MAX);
        let stepped = services.step(later, &state, || [1; 16]);
        let waiting: Vec<Command> = services.waiting().cloned().collect();
        assert_eq!(waiting, stepped.commands);
        assert!(matches!(
            services.next_command(),
            Some(Command::Node(NodeCommand::NodeLiveness(_)))
        ));
        assert!(matches!(
            services.next_command(),
            Some(Command::Evaluation(EvaluationCommand::UpdateEvaluations(_)))
        ));
    }

    #[test]
    fn a_node_that_is_down_and_beats_is_brought_back_by_one_command() {
        let mut row = node("a");
        row.liveness = Liveness::Down;
        let state = state_of_nodes([row]);
        let mut services = Services::new(&ServicesConfig::default());
        services.restore(0, &state);
        for now in [10, 20] {
            services.heard(now, node("a").id, 1).expect("the node is known");
        }
        assert!(matches!(
            services.next_command(),
            Some(Command::Node(NodeCommand::NodeLiveness(_)))
        ));
        assert_eq!(services.next_command(), None);
    }

    /// The machines that nothing outside asks are among them: one ends mass losses, one logs and
    /// counts what happens to nodes.
    #[test]
    fn a_mass_loss_is_ended_and_changes_of_nodes_are_logged() {
        let mut state = state_of_nodes([node("a"), node("b"), node("c")]);
        let nodes = state.nodes().iter().map(|node| node.id).collect();
        put(&mut state, &MassLoss { since: 0, nodes, end: None, create_index: 7, modify_index: 7 });
        let mut services = Services::new(&ServicesConfig::default());
        services.restore(0, &State::default());
        services.take(1, &state, 7, &Effect::MassLoss);
        let (id, change) = (node("a").id, NodeChange::Ready);
        let ready = Effect::NodeChange { node: id, change, detail: "Node is ready".into() };
        services.take(1, &state, 7, &ready);
        assert!(services.next_deadline() <= Some(1), "there is something to report");
        let stepped = services.step(1, &state, || [1; 16]);
        let began = Report::MassLossBegan { nodes: 3 };
        let changed = Report::NodeChanged { node: id, change, detail: "Node is ready".into() };
        assert_eq!(stepped.reports, [began, changed]);
        assert_eq!(stepped.commands, [Command::from(EndMassLoss { by: None })]);
        let mut counts = Vec::new();
        services.gauges(1, &mut |name, value| {
            if name.starts_with("nodes.changes.") && value > 0 {
                counts.push((name.to_owned(), value));
            }
        });
        assert_eq!(counts, [("nodes.changes.ready".to_owned(), 1)]);
    }
}
