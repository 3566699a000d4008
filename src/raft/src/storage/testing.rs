//! States for the tests of storage: every one differs from every other, and long rows come, grow,
//! shrink and go.
#![expect(clippy::unwrap_used, reason = "tests")]

use fsm::{
    Command, Index, Proposal, Reply, RequestId, State,
    session::Request,
    settings::{DeleteNamespace, Namespace, UpsertNamespace},
    table::ChangeSet,
    upkeep::Tick,
};

use super::{applied::AppliedMeta, shadow::Group};

/// A state that grows entry by entry, with the rows that changed since they were last taken.
pub(crate) struct Life {
    /// The state after the last entry.
    pub(crate) state: State,
    changes: ChangeSet,
}

impl Life {
    /// The state before the first entry, whose rows are in the first group.
    pub(crate) fn new() -> Self {
        let mut changes = ChangeSet::default();
        let state = State::genesis(&mut changes);
        Self { state, changes }
    }

    /// Goes on from a state that was loaded.
    pub(crate) fn from(state: State) -> Self {
        Self { state, changes: ChangeSet::default() }
    }

    /// Applies an entry of a log; one without a proposal is the first of a term.
    pub(crate) fn enter(&mut self, term: u64, proposal: Option<&Proposal>) {
        let index = self.state.index() + 1;
        match proposal {
            Some(proposal) => {
                self.state.apply(index, term, proposal, &mut self.changes);
            }
            None => self.state.advance(index, term),
        }
    }

    fn apply(&mut self, command: Command) {
        let index = self.state.index() + 1;
        let proposal = Proposal { at: index * 10, epoch: None, request: None, command };
        let applied = self.state.apply(index, 1, &proposal, &mut self.changes);
        assert_eq!(applied.reply, Reply::Done);
    }

    /// Sets a row of about so many bytes.
    pub(crate) fn set(&mut self, name: &str, bytes: usize) {
        let mark = self.state.index().to_string();
        let description = mark.repeat(bytes.div_ceil(mark.len())).into();
        let namespace = Namespace { name: name.into(), ..Namespace::default() };
        self.apply(Command::from(UpsertNamespace { namespace }));
        let changes = &mut self.changes;
        fsm::testing::describe_namespace(&mut self.state, &name.into(), description, changes);
    }

    /// Removes a row.
    pub(crate) fn remove(&mut self, name: &str) {
        self.apply(Command::from(DeleteNamespace { name: name.into() }));
    }

    /// Takes so many requests of clients at this log time.
    pub(crate) fn request(&mut self, at: u64, count: u32) {
        for _ in 0..count {
            let index = self.state.index() + 1;
            let mut id = [0; 16];
            id[..8].copy_from_slice(&index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            let request = Request { id: RequestId(id), stamped_at: at, payload_hash: 0 };
            let proposal =
                Proposal { at, epoch: None, request: Some(request), command: Command::from(Tick) };
            let applied = self.state.apply(index, 1, &proposal, &mut self.changes);
            assert_eq!(applied.reply, Reply::Done);
        }
    }

    /// The meta of the state.
    pub(crate) fn meta(&self) -> AppliedMeta {
        let digest = self.state.digest();
        AppliedMeta { head: self.state.head(), digest, ..AppliedMeta::default() }
    }

    /// The rows changed since the last call, with the meta after them.
    pub(crate) fn take(&mut self) -> Group {
        Group { changes: std::mem::take(&mut self.changes), meta: self.meta() }
    }

    /// The index of the last entry.
    pub(crate) fn index(&self) -> Index {
        self.state.index()
    }

    /// The description of a namespace, by its length.
    pub(crate) fn length(state: &State, name: &str) -> usize {
        state.namespaces().get(&name.into()).unwrap().description.len()
    }
}
