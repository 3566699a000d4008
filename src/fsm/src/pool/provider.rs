//! What the leader knows of a provider that concerns those who wait: whether it answers, and what
//! it said.
//!
//! One row for each provider. The leader proposes it when it differs from what it knows, with a
//! pause between two proposals, so that a provider that fails with each call writes no more than
//! one that fails once.

use serde::{Deserialize, Serialize};

use crate::{
    apply::{Outcome, Turn, not_found},
    command::Reply,
    id::{Index, Text, TimeMs},
    node::clip,
    state::State,
    table::Row,
};

/// How a provider does, as the leader found it last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProviderState {
    pub provider: Text,
    /// What it does not answer as it should: the name of a call; empty: it answers.
    pub failing: Text,
    /// Since when it fails, or answers again.
    pub since: TimeMs,
    /// What it said last when it failed, cut; empty: it never did.
    pub last_error: Text,
    /// When that was found; 0: never.
    pub error_at: TimeMs,
    /// Creates and destroys that had no answer at the time.
    pub creates: u32,
    pub destroys: u32,
    pub modify_index: Index,
}

impl ProviderState {
    /// Whether its calls are answered, be it with a clear refusal.
    pub fn is_answering(&self) -> bool {
        self.failing.is_empty()
    }
}

impl Row for ProviderState {
    type Key = Text;

    fn key(&self) -> Text {
        self.provider.clone()
    }
}

/// How a provider does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoteProvider {
    pub provider: Text,
    /// The call that fails; empty: it answers.
    pub failing: Text,
    /// What it said; empty: nothing new.
    pub error: Text,
    pub creates: u32,
    pub destroys: u32,
}

impl State {
    /// Whether a pool makes or made its machines with a provider.
    pub fn knows_provider(&self, provider: &Text) -> bool {
        self.provider_lists.contains(provider)
            || self.instance_pools.iter().any(|pool| pool.provider == *provider)
    }
}

impl Turn<'_> {
    pub(crate) fn note_provider(&mut self, command: &NoteProvider) -> Outcome {
        let NoteProvider { provider, failing, error, creates, destroys } = command;
        if !self.state.knows_provider(provider) {
            return Err(not_found("provider"));
        }
        let old = self.state.provider_states.get(provider);
        let is_same = old.is_some_and(|old| old.is_answering() == failing.is_empty());
        let mut row = old.map(|old| (**old).clone()).unwrap_or(ProviderState {
            provider: provider.clone(),
            failing: "".into(),
            since: self.at,
            last_error: "".into(),
            error_at: 0,
            creates: 0,
            destroys: 0,
            modify_index: self.index,
        });
        if !is_same {
            row.since = self.at;
        }
        row.failing = clip(failing);
        if !error.is_empty() {
            (row.last_error, row.error_at) = (clip(error), self.at);
        }
        (row.creates, row.destroys, row.modify_index) = (*creates, *destroys, self.index);
        self.state.provider_states.put(row, self.changes);
        Ok(Reply::Done)
    }
}
