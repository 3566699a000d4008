//! The log of the server once more, on this thread and with nothing around it: the machines of a
//! leader, the scheduler, the plan applier, the codec, `apply` and the rows that go to disk, each
//! measured. The functions are those that the server called.
//!
//! ```text
//!  a plan in the log:   snapshot ─► pass ─► frame, as from a follower ─► applier ─► entry ┐ leading
//!  each entry:          frame ─► proposal ─► apply ─► frames of changed rows, publish     │ applying
//!                       effects ─► machines of the leader, leases                         ┘ leading
//! ```
//!
//! Invariant: it makes the plans, entries and state that the server made, byte for byte; else it
//! would measure something else, and fails.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use ::server::make_pass;
use fsm::{
    Command, Effect, EvaluationId, Index, JobKind, NodeId, Plan, Proposal, Reply, State, codec,
    command::{PlanCommand, UpkeepCommand},
    digest::Digest,
    plan::ApplyPlans,
    table::ChangeSet,
};
use leader::{
    PlanAnswer, PlanApplier, PlanQueueLimits, Services, Token,
    applier::{EntryOutcome, Next, Request},
    turn::{After, Begin, Turn},
};
use scheduler::Memory;

use crate::{
    allocations::{self, Allocations},
    server::{self, Logged},
};

const SERVER: u64 = 1;
const LEASES_MAX: usize = 4;

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Work {
    /// Entries of the log.
    pub(crate) entries: u64,
    /// Rows that were put or removed.
    pub(crate) rows: u64,
    /// Frames of entries and rows, with the keys of the rows.
    pub(crate) bytes: u64,
    /// Of the leader and the workers, once in the cluster.
    pub(crate) leading: Allocations,
    /// Of every server.
    pub(crate) applying: Allocations,
}

/// A server in which nothing is asynchronous.
pub(crate) struct Replay {
    state: Arc<State>,
    /// After each entry, as published; a plan says which it was made on.
    published: BTreeMap<Index, Arc<State>>,
    services: Services,
    applier: PlanApplier<EvaluationId>,
    memory: Mutex<Memory>,
    turns: BTreeMap<EvaluationId, Turn>,
    ids: u64,
    work: Work,
}

impl Replay {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::new(State::genesis(&mut ChangeSet::default())),
            published: BTreeMap::new(),
            services: Services::new(&server::services()),
            applier: PlanApplier::new(PlanQueueLimits::default()),
            memory: Mutex::default(),
            turns: BTreeMap::new(),
            ids: 0,
            work: Work::default(),
        }
    }

    /// What was done since this was asked last.
    pub(crate) fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    pub(crate) fn digest(&self) -> Digest {
        self.state.digest()
    }

    /// A node was heard from.
    pub(crate) fn hear(&mut self, node: NodeId, incarnation: u64) {
        let now = self.state.at();
        let (heard, taken) = allocations::count(|| self.services.heard(now, node, incarnation));
        heard.expect("the node is known");
        self.work.leading += taken;
    }

    /// The next entry of the log.
    pub(crate) fn go_on(&mut self, entry: &Logged) {
        let before = self.work;
        self.work.entries += 1;
        let Some(frame) = &entry.frame else {
            let mut state = (*self.state).clone();
            state.advance(entry.index, entry.term);
            self.publish(Arc::new(state));
            // The first entry of a term is that of a new leader.
            self.services.restore(self.state.at(), &self.state);
            return;
        };
        self.work.bytes += frame.len() as u64;
        let proposal: Proposal = codec::decode(frame).expect("an entry decodes");
        if let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = &proposal.command {
            let (command, taken) = allocations::count(|| self.plan(plans));
            assert_eq!(
                command, proposal.command,
                "entry {}: the replay plans otherwise than the server",
                entry.index
            );
            self.work.leading += taken;
        }
        let (again, taken) = allocations::count(|| codec::encode(&proposal));
        assert_eq!(again, *frame, "entry {}: another frame than in the log", entry.index);
        self.work.leading += taken;
        let ((reply, effects), taken) = allocations::count(|| self.apply(entry, frame));
        self.work.applying += taken;
        let ((), taken) = allocations::count(|| self.lead(entry.index, &reply, &effects));
        self.work.leading += taken;
        if is_by_time(&proposal.command) {
            self.work = before;
        }
    }

    /// From the snapshots of the workers to the entry of the leader.
    fn plan(&mut self, logged: &[Arc<Plan>]) -> Command {
        let now = self.state.at();
        for Plan { evaluation, snapshot_index, .. } in logged.iter().map(|plan| &**plan) {
            let snapshot = Arc::clone(&self.published[snapshot_index]);
            let plan = self.pass(&snapshot, *evaluation);
            // A worker on another server sends a frame, one on the leader counts its bytes.
            let (frame, bytes) = (codec::encode(&plan), codec::encoded_len(&plan));
            let plan: Plan = codec::decode(&frame).expect("a plan decodes");
            let dispatch = self.services.dispatch_mut();
            let token = dispatch.outstanding(*evaluation).expect("the evaluation is leased");
            dispatch.plan_queued(*evaluation, token).expect("the evaluation is leased");
            self.applier.submit(now, Request { plan, bytes, token, reply: *evaluation });
        }
        let dispatch = self.services.dispatch();
        let last = self.state.index();
        match self.applier.next(&self.state, last, |id| dispatch.outstanding(id)) {
            Next::Propose(command) => command,
            Next::Idle => panic!("the applier refuses what the server proposed"),
        }
    }

    fn pass(&mut self, state: &State, evaluation: EvaluationId) -> Plan {
        let row = state.evaluations().get(&evaluation).expect("it was planned for");
        let attempts_max = scheduler::attempts_max(row.kind);
        let turn =
            self.turns.entry(evaluation).or_insert_with(|| Turn::new(evaluation, attempts_max));
        let Begin::Plan { evaluation, pass, exhausted: false } = turn.begin(state) else {
            panic!("{evaluation} is not to be planned");
        };
        let plan = make_pass(state, *evaluation, pass, false, &self.memory);
        plan.expect("the snapshot is whole")
    }

    /// As each server does with a committed entry.
    fn apply(&mut self, entry: &Logged, frame: &[u8]) -> (Reply, Vec<Effect>) {
        let proposal: Proposal = codec::decode(frame).expect("an entry decodes");
        let mut changes = ChangeSet::default();
        // As the server's: it shares all that does not change with the one that is published.
        let mut state = (*self.state).clone();
        let applied = state.apply(entry.index, entry.term, &proposal, &mut changes);
        self.publish(Arc::new(state));
        for change in &changes.rows {
            let row = change.row.as_ref().map_or(0, |row| row.frame().len());
            self.work.rows += 1;
            self.work.bytes += (change.key.len() + row) as u64;
        }
        (applied.reply, applied.effects)
    }

    fn publish(&mut self, state: Arc<State>) {
        self.published.insert(state.index(), Arc::clone(&state));
        self.state = state;
    }

    /// What the leader makes of an entry that was applied.
    fn lead(&mut self, index: Index, reply: &Reply, effects: &[Effect]) {
        let (now, state) = (self.state.at(), Arc::clone(&self.state));
        self.answer_plans(index, reply);
        for effect in effects {
            self.services.take(now, &state, index, effect);
        }
        let ids = &mut self.ids;
        self.services.step(now, &state, || fresh(ids));
        // What they propose is in the log of the server.
        while self.services.next_command().is_some() {}
        let dispatch = self.services.dispatch_mut();
        loop {
            let token = || -> Token { fresh(ids) };
            let leases = dispatch.dequeue(now, &state, &JobKind::ALL, LEASES_MAX, SERVER, token);
            if leases.expect("the broker is enabled").is_empty() {
                return;
            }
        }
    }

    fn answer_plans(&mut self, index: Index, reply: &Reply) {
        let Reply::Plans(verdicts) = reply else { return };
        self.applier.settle(EntryOutcome::Applied { index, verdicts: verdicts.clone() });
        let now = self.state.at();
        for (evaluation, answer) in self.applier.answers(index) {
            let dispatch = self.services.dispatch_mut();
            let token = dispatch.outstanding(evaluation).expect("the evaluation is leased");
            dispatch.plan_answered(now, evaluation, token);
            let turn = self.turns.get_mut(&evaluation).expect("it was planned for");
            if turn.answered(&answer) == After::Acknowledge {
                assert!(matches!(answer, PlanAnswer::Applied { .. }), "{answer:?}");
                dispatch.ack(now, evaluation, token).expect("the evaluation is leased");
                self.turns.remove(&evaluation);
            }
        }
    }
}

/// Replicas compare themselves every few seconds, whatever is done meanwhile.
fn is_by_time(command: &Command) -> bool {
    matches!(
        command,
        Command::Upkeep(UpkeepCommand::MarkDigest(_) | UpkeepCommand::DigestVerdict(_))
    )
}

fn fresh(ids: &mut u64) -> [u8; 16] {
    *ids += 1;
    u128::from(*ids).to_be_bytes()
}
