//! The transition function. The table of a noun's commands names the transition of each; the noun's
//! files hold them.
//!
//! Every replica runs this on the same entries in the same order, so it uses nothing but the entry
//! and the state. A bad command is answered with a [`Rejection`] and changes nothing; it never
//! panics, because a panic here would be a crash loop on every replica.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{Command, Proposal, Rejection, Reply, UpkeepCommand},
    deployment::Touched,
    digest::Digest,
    effect::Effect,
    id::{DeploymentId, Index, JobKey, NodeId, TimeMs},
    plant::{Plant, is_planted, whim},
    session::Session,
    settings::{Namespace, NodePool},
    state::State,
    table::ChangeSet,
};

/// What an entry did.
#[derive(Debug, PartialEq, Eq)]
pub struct Applied {
    /// For the proposer.
    pub reply: Reply,
    /// For leader services and watchers.
    pub effects: Vec<Effect>,
    /// Index at which the command took effect: an earlier one for a retried request.
    pub index: Index,
}

impl State {
    /// The state of a cluster before its first entry: namespace `default`, node pools `default` and
    /// `all`.
    pub fn genesis(changes: &mut ChangeSet) -> Self {
        let mut state = Self::default();
        for (name, description) in
            [("all", "Node pool with all nodes in the cluster."), ("default", "Default node pool.")]
        {
            let pool = NodePool {
                name: name.into(),
                description: description.into(),
                ..NodePool::default()
            };
            state.node_pools.put(pool, changes);
        }
        let namespace = Namespace {
            name: "default".into(),
            description: "Default shared namespace".into(),
            ..Namespace::default()
        };
        state.namespaces.put(namespace, changes);
        state
    }

    /// Takes an entry that carries no command: the first of a term, or a membership change.
    pub fn advance(&mut self, index: Index, term: u64) {
        self.index = index;
        self.term = term;
    }

    /// Applies the entry at `index`. Rows that changed are appended to `changes`.
    pub fn apply(
        &mut self,
        index: Index,
        term: u64,
        proposal: &Proposal,
        changes: &mut ChangeSet,
    ) -> Applied {
        self.advance(index, term);
        if let Some(epoch) = proposal.epoch
            && epoch != term
            && !is_planted(Plant::AnyEpochTaken)
        {
            let reply = Reply::Rejected(Rejection::StaleEpoch { expected: epoch, found: term });
            return Applied { reply, effects: Vec::new(), index };
        }
        let is_mark = matches!(proposal.command, Command::Upkeep(UpkeepCommand::MarkDigest(_)));
        let digest_before = is_mark.then(|| self.digest());
        self.at = self.at.max(proposal.at);
        if is_planted(Plant::ClockInApply) {
            self.at = self.at.saturating_add(whim());
        }
        if let Some(kept) = self.answer_again(proposal)
            && !is_planted(Plant::NoDedupe)
        {
            return kept;
        }
        changes.index = index;
        let mut turn = Turn { digest_before, ..Turn::new(self, changes, index) };
        let reply = match proposal.command.apply(&mut turn) {
            Ok(reply) => reply,
            Err(rejection) => Reply::Rejected(rejection),
        };
        let effects = turn.finish();
        if let Some(request) = proposal.request {
            self.keep_session(Session::new(request, index, &reply), changes);
        }
        Applied { reply, effects, index }
    }
}

/// One entry being applied.
pub(crate) struct Turn<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) changes: &'a mut ChangeSet,
    pub(crate) effects: BTreeSet<Effect>,
    pub(crate) index: Index,
    pub(crate) at: TimeMs,
    /// Of the state before the entry, if it is a digest mark.
    pub(crate) digest_before: Option<Digest>,
    /// Jobs whose status has to be derived anew.
    pub(crate) jobs: BTreeSet<JobKey>,
    /// Jobs whose children may be let in.
    pub(crate) parents: BTreeSet<JobKey>,
    /// Nodes that gained room.
    pub(crate) gains: BTreeSet<NodeId>,
    /// Deployments whose allocations changed.
    pub(crate) deployments: BTreeMap<DeploymentId, Touched>,
    /// Evaluations that were new so far.
    pub(crate) evaluations_made: u32,
    /// Evaluation ids made up when a command brought too few.
    pub(crate) derived_ids: u64,
    /// The entry itself, not a trial of it.
    pub(crate) is_final: bool,
}

pub(crate) type Outcome = Result<Reply, Rejection>;

impl<'a> Turn<'a> {
    pub(crate) fn new(state: &'a mut State, changes: &'a mut ChangeSet, index: Index) -> Self {
        let at = state.at;
        Self {
            state,
            changes,
            effects: BTreeSet::new(),
            index,
            at,
            digest_before: None,
            jobs: BTreeSet::new(),
            parents: BTreeSet::new(),
            gains: BTreeSet::new(),
            deployments: BTreeMap::new(),
            evaluations_made: 0,
            derived_ids: 0,
            is_final: true,
        }
    }

    pub(crate) fn derive_job_statuses(&mut self) {
        for key in std::mem::take(&mut self.jobs) {
            self.derive_job_status(&key);
        }
    }

    /// Derives what depends on several rows, and hands out the effects.
    pub(crate) fn finish(mut self) -> Vec<Effect> {
        self.settle_deployments();
        self.derive_job_statuses();
        self.let_children_in();
        for id in std::mem::take(&mut self.gains) {
            self.record_gain(id);
        }
        self.effects.into_iter().collect()
    }
}

pub(crate) fn not_found(what: &str) -> Rejection {
    Rejection::NotFound { what: what.into() }
}
