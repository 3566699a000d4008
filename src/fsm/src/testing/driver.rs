//! The driver itself: log time, ids, and entries.

use super::{
    START_MS,
    rows::{reload, rows},
};
use crate::{
    apply::Applied,
    codec,
    command::{Command, Proposal, Rejection, Reply},
    id::{EvaluationId, RequestId, TimeMs},
    invariant,
    session::Request,
    state::State,
    table::ChangeSet,
    upkeep::Tick,
};

/// What happens between two commands of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// A blank entry, as the first of a term is.
    Blank,
    Tick,
    /// The state is saved and loaded, and a blank entry comes.
    Reload,
    /// Another leader: a new term with its blank entry, on a replica that was just loaded.
    NewLeader,
}

/// A state, and what it takes to apply commands to it.
pub struct Driver {
    pub state: State,
    /// Rows changed so far.
    pub changes: ChangeSet,
    /// Log time of the next command.
    pub now: TimeMs,
    /// Term of the next entry.
    pub term: u64,
    /// What comes before each command: the first everywhere, or the second at the step of that
    /// number and the first elsewhere.
    pub interruptions: Option<(Interruption, Option<(usize, Interruption)>)>,
    /// Commands so far.
    pub steps: usize,
    /// Check every invariant after each command.
    pub checked: bool,
    /// Ids made so far.
    pub ids: u64,
}

impl Default for Driver {
    fn default() -> Self {
        let mut changes = ChangeSet::default();
        let state = State::genesis(&mut changes);
        Self {
            state,
            changes,
            now: START_MS,
            term: 1,
            interruptions: None,
            steps: 0,
            checked: true,
            ids: 0,
        }
    }
}

impl Driver {
    /// Sets log time to so many ms after the start.
    pub fn at_ms(&mut self, ms: u64) {
        self.now = START_MS.saturating_add(ms);
    }

    /// Sets log time to so many seconds after the start.
    pub fn at_seconds(&mut self, seconds: u64) {
        self.at_ms(seconds.saturating_mul(1000));
    }

    /// A new id, the same in every run.
    pub fn id(&mut self) -> [u8; 16] {
        self.ids = self.ids.saturating_add(1);
        (u128::from(self.ids) << 64).to_be_bytes()
    }

    /// A new evaluation id.
    pub fn evaluation_id(&mut self) -> EvaluationId {
        EvaluationId(self.id())
    }

    pub(super) fn evaluation_ids(&mut self) -> Vec<EvaluationId> {
        (0..4).map(|_| self.evaluation_id()).collect()
    }

    /// Applies a command of a leader service at the driver's log time.
    pub fn commit(&mut self, command: Command) -> Applied {
        self.commit_proposal(&Proposal { at: self.now, epoch: None, request: None, command })
    }

    /// Applies a client's command, with a request id stamped at `stamped_at`.
    pub fn commit_request(&mut self, id: u8, stamped_at: TimeMs, command: Command) -> Applied {
        let payload_hash = payload_hash(&command);
        let request = Request { id: RequestId([id; 16]), stamped_at, payload_hash };
        self.commit_proposal(&Proposal {
            at: self.now,
            epoch: None,
            request: Some(request),
            command,
        })
    }

    /// Applies an entry.
    pub fn commit_proposal(&mut self, proposal: &Proposal) -> Applied {
        if let Some((everywhere, single)) = self.interruptions {
            let here = single.filter(|(step, _)| *step == self.steps);
            self.interrupt(here.map_or(everywhere, |(_, interruption)| interruption));
        }
        self.steps = self.steps.saturating_add(1);
        let index = self.state.index.saturating_add(1);
        let applied = self.state.apply(index, self.term, proposal, &mut self.changes);
        if self.checked {
            assert_eq!(invariant::check(&self.state), [], "after {:?}", proposal.command);
        }
        applied
    }

    /// Lets something come between two commands; each takes one entry.
    pub fn interrupt(&mut self, interruption: Interruption) {
        let index = self.state.index.saturating_add(1);
        match interruption {
            Interruption::Blank => self.state.advance(index, self.term),
            Interruption::Tick => {
                let at = self.state.at;
                let tick =
                    Proposal { at, epoch: None, request: None, command: Command::from(Tick) };
                let _applied = self.state.apply(index, self.term, &tick, &mut self.changes);
            }
            Interruption::Reload => {
                self.state = reload(&self.state);
                self.state.advance(index, self.term);
            }
            Interruption::NewLeader => {
                self.term = self.term.saturating_add(1);
                self.state = reload(&self.state);
                self.state.advance(index, self.term);
            }
        }
    }

    /// Applies a command that must not be rejected.
    pub fn accept(&mut self, command: Command) -> Reply {
        let reply = self.commit(command.clone()).reply;
        assert!(!matches!(reply, Reply::Rejected(_)), "{command:?} was rejected: {reply:?}");
        reply
    }

    /// Applies a command that must be rejected, and checks that no row changed.
    pub fn reject(&mut self, command: Command) -> Rejection {
        let before = rows(&self.state);
        let reply = self.commit(command.clone()).reply;
        assert_eq!(rows(&self.state), before, "a rejected command changed rows: {command:?}");
        let Reply::Rejected(rejection) = reply else {
            panic!("{command:?} was not rejected: {reply:?}")
        };
        rejection
    }
}

/// A hash of a command, as a server would send it with a request.
pub fn payload_hash(command: &Command) -> u64 {
    let proposal = Proposal { at: 0, epoch: None, request: None, command: command.clone() };
    u64::from(crc32c::crc32c(&codec::encode(&proposal)))
}

pub(super) fn evaluations(reply: Reply) -> Vec<EvaluationId> {
    let Reply::Evaluations(made) = reply else { panic!("unexpected reply {reply:?}") };
    made
}
