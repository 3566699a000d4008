//! The transition function. One closed match over [`Command`]; the noun's file holds each
//! transition.
//!
//! Every replica runs this on the same entries in the same order, so it uses nothing but the entry
//! and the state. A bad command is answered with a [`Rejection`] and changes nothing; it never
//! panics, because a panic here would be a crash loop on every replica.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{Command, Proposal, Rejection, Reply},
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
        let digest_before = matches!(proposal.command, Command::MarkDigest).then(|| self.digest());
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
}

/// One entry being applied.
pub(crate) struct Turn<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) changes: &'a mut ChangeSet,
    pub(crate) effects: BTreeSet<Effect>,
    pub(crate) index: Index,
    pub(crate) at: TimeMs,
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
            jobs: BTreeSet::new(),
            parents: BTreeSet::new(),
            gains: BTreeSet::new(),
            deployments: BTreeMap::new(),
            evaluations_made: 0,
            derived_ids: 0,
            is_final: true,
        }
    }

    fn run(&mut self, command: &Command, digest: Option<Digest>) -> Outcome {
        match command {
            Command::RegisterJob(command) => self.register_job(command),
            Command::DeregisterJob(command) => self.deregister_job(command),
            Command::EvaluateJob(command) => self.evaluate_job(command),
            Command::MarkJobVersion(command) => self.mark_job_version(command),
            Command::RegisterNode(command) => self.register_node(command),
            Command::NodeReadiness(command) => self.node_readiness(command),
            Command::NodeShortage(command) => self.node_shortage(command),
            Command::NodeLiveness(command) => Ok(self.node_liveness(command)),
            Command::SuspendNode(command) => self.suspend_node(command),
            Command::UnsuspendNode(command) => self.unsuspend_node(command),
            Command::SuspendLateNodes(command) => Ok(self.suspend_late_nodes(command)),
            Command::EndSuspensions(command) => Ok(self.end_suspensions(command)),
            Command::EndMassLoss(command) => self.end_mass_loss(command),
            Command::SetEligibility(command) => self.set_eligibility(command),
            Command::SetDrain(command) => self.set_drain(command),
            Command::AdvanceDrains(command) => Ok(self.advance_drains(command)),
            Command::ReapNode(command) => self.reap_node(command),
            Command::EvaluateNode(command) => self.evaluate_node(command),
            Command::UpdateAllocations(command) => Ok(self.update_allocations(command)),
            Command::StopAllocation(command) => self.stop_allocation(command),
            Command::UpdateEvaluations(command) => Ok(self.update_evaluations(command)),
            Command::ApplyPlans(command) => Ok(self.apply_plans(command)),
            Command::SetSchedulerConfiguration(command) => {
                self.set_scheduler_configuration(command)
            }
            Command::UpsertNodePool(command) => self.upsert_node_pool(command),
            Command::DeleteNodePool(command) => self.delete_node_pool(command),
            Command::UpsertNamespace(command) => self.upsert_namespace(command),
            Command::DeleteNamespace(command) => self.delete_namespace(command),
            Command::Tick => Ok(Reply::Done),
            Command::MarkDigest => Ok(self.mark_digest(digest.unwrap_or_default())),
            Command::DigestVerdict(command) => self.digest_verdict(command),
            Command::CollectGarbage(command) => Ok(self.collect_garbage(command)),
            Command::UpsertInstancePool(command) => self.upsert_instance_pool(command),
            Command::DeleteInstancePool(command) => self.delete_instance_pool(command),
            Command::PauseInstancePool(command) => self.pause_instance_pool(command),
            Command::RequestInstances(command) => self.request_instances(command),
            Command::InstanceOutcome(command) => self.instance_outcome(command),
            Command::ObserveInstances(command) => self.observe_instances(command),
            Command::SetInstanceBehavior(command) => self.set_instance_behavior(command),
            Command::ShutDownInstance(command) => self.shut_down_instance(command),
            Command::DestroyOutcome(command) => self.destroy_outcome(command),
            Command::NoteInstance(command) => self.note_instance(command),
            Command::NoteUnhelped(command) => self.note_unhelped(command),
            Command::LimitPool(command) => self.limit_pool(command),
            Command::NoteProvider(command) => self.note_provider(command),
            Command::SetRequirements(command) => self.set_requirements(command),
            Command::ExpireRequirements(command) => Ok(self.expire_requirements(command)),
            Command::DecideCapacity(command) => self.decide_capacity(command),
            Command::MoveMembers(command) => self.move_members(command),
            Command::PromoteDeployment(command) => self.promote_deployment(command),
            Command::FailDeployment(command) => self.fail_deployment(command),
            Command::PauseDeployment(command) => self.pause_deployment(command),
            Command::SetAllocationHealth(command) => self.set_allocation_health(command),
            Command::ExpireDeployments(command) => Ok(self.expire_deployments(command)),
            Command::DeleteEvaluations(command) => self.delete_evaluations(command),
            Command::DispatchJob(command) => self.dispatch_job(command),
            Command::ScaleJob(command) => self.scale_job(command),
            Command::ExpireRuns(command) => Ok(self.expire_runs(command)),
            Command::StopChildren(command) => self.stop_children(command),
            Command::LaunchPeriodic(command) => self.launch_periodic(command),
            Command::ForcePeriodic(command) => self.force_periodic(command),
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
