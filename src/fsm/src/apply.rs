//! The transition function. One closed match over [`Command`]; the noun's file holds each transition.
//!
//! Every replica runs this on the same entries in the same order, so it uses nothing but the entry and the state. A bad command is answered
//! with a [`Rejection`] and changes nothing; it never panics, because a panic here would be a crash loop on every replica.

#![expect(clippy::unnecessary_wraps, reason = "every transition has the same shape")]

mod allocation;
mod evaluation;
mod gc;
mod job;
mod node;
mod plan;
mod settings;

pub use node::computed_class;
pub use plan::{PickPorts, Trial, check_fit, check_placement, check_plan};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    allocation::Allocation,
    command::{Command, Proposal, Rejection, Reply},
    digest::DigestMark,
    effect::Effect,
    evaluation::{Evaluation, Trigger},
    id::{EvaluationId, Index, JobKey, NodeId, RequestId, Text, TimeMs},
    job::{Job, JobStatus},
    limits,
    node::Node,
    plant::{Plant, is_planted, whim},
    session::Session,
    state::{CapacityGain, GainKey, Namespace, NodePool, State},
    table::{ChangeSet, TableId},
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
    /// The state of a cluster before its first entry: namespace `default`, node pools `default` and `all`.
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
        self.head.index = index;
        self.head.term = term;
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
        let digest_before = matches!(proposal.command, Command::MarkDigest).then(|| self.digest());
        self.head.at = self.head.at.max(proposal.at);
        if is_planted(Plant::ClockInApply) {
            self.head.at = self.head.at.saturating_add(whim());
        }
        if let Some(kept) = self.answer_again(proposal)
            && !is_planted(Plant::NoDedupe)
        {
            return kept;
        }
        let mut turn = Turn::new(self, changes, index);
        let reply = match turn.run(&proposal.command, digest_before) {
            Ok(reply) => reply,
            Err(rejection) => Reply::Rejected(rejection),
        };
        let effects = turn.finish();
        if let Some(request) = proposal.request {
            self.keep_session(Session::new(request, index, &reply), changes);
        }
        Applied { reply, effects, index }
    }

    fn answer_again(&self, proposal: &Proposal) -> Option<Applied> {
        let request = proposal.request?;
        let (reply, index) = match self.sessions.get(&request.id) {
            Some(kept) if kept.request.payload_hash == request.payload_hash => {
                (kept.reply.clone(), kept.index)
            }
            Some(_) => (Reply::Rejected(Rejection::RequestIdReused), self.head.index),
            None if request.stamped_at < self.head.session_floor => {
                (Reply::Rejected(Rejection::SessionExpired), self.head.index)
            }
            // Such a session would outlive all others and raise the floor over them.
            None if request.stamped_at > self.head.at.saturating_add(limits::SESSION_MS_MAX) => {
                let message = "the request is stamped too far in the future";
                (Reply::Rejected(Rejection::Invalid(message.into())), self.head.index)
            }
            None => return None,
        };
        Some(Applied { reply, effects: Vec::new(), index })
    }

    fn keep_session(&mut self, session: Session, changes: &mut ChangeSet) {
        self.put_session(session, changes);
        let floor = self.head.at.saturating_sub(limits::SESSION_MS_MAX);
        self.head.session_floor = self.head.session_floor.max(floor);
        while let Some((at, id)) = self.oldest_session() {
            // By count the oldest goes alone: others of its time stay and are answered, although the floor is above them.
            if at >= floor && self.sessions.len() <= limits::SESSIONS_MAX {
                break;
            }
            self.head.session_floor = self.head.session_floor.max(at.saturating_add(1));
            self.sessions_by_time.remove(&(at, id));
            self.sessions.remove(&id, changes);
        }
    }

    fn oldest_session(&self) -> Option<(TimeMs, RequestId)> {
        self.sessions_by_time.get_min().copied()
    }
}

/// One entry being applied.
struct Turn<'a> {
    state: &'a mut State,
    changes: &'a mut ChangeSet,
    effects: BTreeSet<Effect>,
    index: Index,
    at: TimeMs,
    /// Jobs whose status has to be derived anew.
    jobs: BTreeSet<JobKey>,
    /// Nodes that gained room.
    gains: BTreeSet<NodeId>,
    /// Evaluation ids made up when a command brought too few.
    derived_ids: u64,
    /// The entry itself, not a trial of it.
    is_final: bool,
}

type Outcome = Result<Reply, Rejection>;

impl<'a> Turn<'a> {
    fn new(state: &'a mut State, changes: &'a mut ChangeSet, index: Index) -> Self {
        let at = state.head.at;
        Self {
            state,
            changes,
            effects: BTreeSet::new(),
            index,
            at,
            jobs: BTreeSet::new(),
            gains: BTreeSet::new(),
            derived_ids: 0,
            is_final: true,
        }
    }

    fn run(&mut self, command: &Command, digest: Option<crate::digest::Digest>) -> Outcome {
        match command {
            Command::RegisterJob { spec, enforce_index, evaluation, evaluation_priority } => {
                self.register_job(spec, *enforce_index, *evaluation, *evaluation_priority)
            }
            Command::DeregisterJob { job, purge, evaluation, evaluation_priority } => {
                self.deregister_job(job, *purge, *evaluation, *evaluation_priority)
            }
            Command::EvaluateJob { job, evaluation } => self.evaluate_job(job, *evaluation),
            Command::RegisterNode { node, secret, identity, description, evaluation_ids } => {
                self.register_node(*node, *secret, *identity, description, evaluation_ids)
            }
            Command::NodeReadiness { node, incarnation, readiness, evaluation_ids } => {
                self.node_readiness(*node, *incarnation, *readiness, evaluation_ids)
            }
            Command::NodeLiveness { changes, evaluation_ids } => {
                self.node_liveness(changes, evaluation_ids)
            }
            Command::SuspendNode { node, incarnation, reason } => {
                self.suspend_node(*node, *incarnation, *reason)
            }
            Command::UnsuspendNodes { nodes } => self.unsuspend_nodes(nodes),
            Command::SetEligibility { node, eligible, by, reason, evaluation_ids } => {
                self.set_eligibility(*node, *eligible, by, reason, evaluation_ids)
            }
            Command::SetDrain { node, drain, mark_eligible, evaluation_ids } => {
                self.set_drain(*node, drain.as_ref(), *mark_eligible, evaluation_ids)
            }
            Command::AdvanceDrains { migrate, complete, evaluation_ids } => {
                self.advance_drains(migrate, complete, evaluation_ids)
            }
            Command::ReapNode { node, incarnation, force, evaluation_ids } => {
                self.reap_node(*node, *incarnation, *force, evaluation_ids)
            }
            Command::EvaluateNode { node, evaluation_ids } => {
                self.evaluate_node(*node, evaluation_ids)
            }
            Command::UpdateAllocations { reports } => self.update_allocations(reports),
            Command::StopAllocation { id, evaluation } => self.stop_allocation(*id, *evaluation),
            Command::UpdateEvaluations { updates } => self.update_evaluations(updates),
            Command::ApplyPlans { plans } => {
                Ok(Reply::Plans(plans.iter().map(|plan| self.apply_plan(plan)).collect()))
            }
            Command::SetSchedulerConfiguration { configuration, enforce_index } => {
                self.set_scheduler_configuration(configuration, *enforce_index)
            }
            Command::UpsertNodePool(pool) => self.upsert_node_pool(pool),
            Command::DeleteNodePool(name) => self.delete_node_pool(name),
            Command::UpsertNamespace(namespace) => self.upsert_namespace(namespace),
            Command::DeleteNamespace(name) => self.delete_namespace(name),
            Command::Tick => Ok(Reply::Done),
            Command::MarkDigest => self.mark_digest(digest.unwrap_or_default()),
            Command::DigestVerdict { mark, digest } => self.digest_verdict(*mark, *digest),
            Command::CollectGarbage { cutoffs, jobs, allocations, evaluations, classes } => {
                self.collect_garbage(cutoffs, jobs, allocations, evaluations, classes)
            }
        }
    }

    /// Derives what depends on several rows, and hands out the effects.
    fn finish(mut self) -> Vec<Effect> {
        for key in std::mem::take(&mut self.jobs) {
            self.derive_job_status(&key);
        }
        for id in std::mem::take(&mut self.gains) {
            self.record_gain(id);
        }
        self.effects.into_iter().collect()
    }

    fn put_job(&mut self, job: Job) {
        self.effects.insert(Effect::Job(job.key.clone()));
        self.state.touch(TableId::Jobs);
        if job.kind.is_per_node() {
            self.state.per_node_jobs.insert(job.key.clone());
        }
        self.state.jobs.put(job, self.changes);
    }

    fn put_node(&mut self, mut node: Node) {
        node.modify_index = self.index;
        self.effects.insert(Effect::Node(node.id));
        self.state.touch(TableId::Nodes);
        self.state.nodes.put(node, self.changes);
    }

    fn put_evaluation(&mut self, mut evaluation: Evaluation) {
        if evaluation.create_index == 0 {
            evaluation.create_index = self.index;
            evaluation.created_at = self.at;
        }
        evaluation.modify_index = self.index;
        evaluation.modified_at = self.at;
        if let Some(job) = self.state.jobs.get(&evaluation.job) {
            evaluation.job = job.key.clone();
        }
        self.jobs.insert(evaluation.job.clone());
        self.effects.insert(Effect::Evaluation(evaluation.id));
        self.state.touch(TableId::Evaluations);
        let row = self.state.evaluations.put(evaluation, self.changes);
        self.state.index_evaluation(&row);
    }

    fn put_allocation(&mut self, mut allocation: Allocation) {
        allocation.modify_index = self.index;
        allocation.modified_at = self.at;
        if let Some(old) = self.state.allocations.get(&allocation.id).cloned() {
            if old.is_live() && !allocation.is_live() {
                self.gains.insert(old.node);
            }
            self.state.unindex_allocation(&old);
        }
        self.jobs.insert(allocation.job.clone());
        self.effects.insert(Effect::NodeAllocations(allocation.node));
        self.state.touch(TableId::Allocations);
        let row = self.state.allocations.put(allocation, self.changes);
        self.state.index_allocation(&row);
    }

    /// The next id of a command's list, or one derived from the entry when the list has run out.
    fn evaluation_id(&mut self, ids: &mut std::slice::Iter<'_, EvaluationId>) -> EvaluationId {
        if let Some(id) = ids.find(|id| !self.state.evaluations.contains(id)) {
            return *id;
        }
        self.derived_ids = self.derived_ids.saturating_add(1);
        let mut bytes = b"evaluation".to_vec();
        bytes.extend_from_slice(&self.index.to_le_bytes());
        bytes.extend_from_slice(&self.derived_ids.to_le_bytes());
        let hash = crate::digest::row_hash(&bytes, &[]);
        EvaluationId(hash.to_le_bytes())
    }

    /// Makes one pending evaluation for each of the jobs that still exist or have live allocations.
    fn evaluate(
        &mut self,
        jobs: &BTreeMap<JobKey, Trigger>,
        node: Option<&Node>,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        let mut ids = ids.iter();
        let mut made = Vec::with_capacity(jobs.len());
        let mut jobs: Vec<_> = jobs.iter().collect();
        if is_planted(Plant::UnorderedApply) && whim().is_multiple_of(2) {
            jobs.reverse();
        }
        for (key, trigger) in jobs {
            let Some((kind, priority, job_modify_index)) = self.state.to_evaluate(key) else {
                continue;
            };
            let id = self.evaluation_id(&mut ids);
            let mut evaluation = Evaluation::new(id, key.clone(), kind, priority, *trigger);
            evaluation.job_modify_index = job_modify_index;
            if let Some(node) = node {
                evaluation.node = Some(node.id);
                evaluation.node_modify_index = self.index;
            }
            self.put_evaluation(evaluation);
            made.push(id);
        }
        made
    }

    /// Nomad's derivation (facts of the state store): jobs that last run until stopped; others run while an allocation is live, are pending
    /// while an evaluation is open or nothing was made of them yet, and are dead after that.
    fn derive_job_status(&mut self, key: &JobKey) {
        let Some(job) = self.state.jobs.get(key).cloned() else { return };
        let index = self.state.job_index(key).cloned();
        let has_live = index.as_ref().is_some_and(|index| !index.live_names.is_empty());
        let has_open = index.as_ref().is_some_and(|index| !index.open_evaluations.is_empty());
        let is_new = index.as_ref().is_none_or(|index| index.is_empty());
        let lasting = job.parameterized || job.kind == crate::job::JobKind::System;
        let runs = if lasting { !job.stop } else { has_live };
        let status = if runs {
            JobStatus::Running
        } else if !lasting && (has_open || (is_new && !job.stop)) {
            JobStatus::Pending
        } else {
            JobStatus::Dead
        };
        if status != job.status {
            let mut job = (*job).clone();
            job.status = status;
            job.modify_index = self.index;
            self.put_job(job);
        }
    }

    fn record_gain(&mut self, id: NodeId) {
        let Some(node) = self.state.nodes.get(&id).cloned() else { return };
        for key in [GainKey::Class(node.class), GainKey::Node(id)] {
            self.state.capacity_gains.put(CapacityGain { key, index: self.index }, self.changes);
        }
        self.effects.insert(Effect::Capacity { class: node.class, node: id });
    }

    fn mark_digest(&mut self, digest: crate::digest::Digest) -> Outcome {
        while self.state.digest_marks.len() >= limits::DIGEST_MARKS_MAX {
            let oldest = self.state.digest_marks.iter().next().map(|mark| mark.index);
            let Some(oldest) = oldest else { break };
            self.state.digest_marks.remove(&oldest, self.changes);
        }
        let mark = DigestMark { index: self.index, digest, verdict: None };
        self.state.digest_marks.put(mark, self.changes);
        self.effects.insert(Effect::DigestMark);
        Ok(Reply::Done)
    }

    fn digest_verdict(&mut self, mark: Index, digest: crate::digest::Digest) -> Outcome {
        let Some(row) = self.state.digest_marks.get(&mark).cloned() else {
            return Err(Rejection::NotFound { what: "digest mark".into() });
        };
        let mut row = (*row).clone();
        row.verdict = Some(digest);
        self.state.digest_marks.put(row, self.changes);
        self.effects.insert(Effect::DigestMark);
        Ok(Reply::Done)
    }
}

fn not_found(what: &str) -> Rejection {
    Rejection::NotFound { what: what.into() }
}

fn text(value: &str) -> Text {
    Arc::from(value)
}
