//! The state: one table per noun, indexes derived from them, and the head (log position, log time).
//!
//! `Clone` is O(1): a clone is a snapshot that schedulers, readers and snapshot files use while
//! `apply` goes on. Derived indexes are never stored; they are rebuilt while loading and checked
//! against a recomputation in tests ([`crate::invariant`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};

use crate::{
    allocation::{Allocation, ClientStatus, LiveName},
    capacity::{CapacitySource, CapacityTarget},
    codec::{self, DecodeError},
    deployment::Deployment,
    digest::{Digest, DigestMark},
    evaluation::Evaluation,
    id::{AllocationId, EvaluationId, Index, InstanceId, JobKey, NodeId, RequestId, Text, TimeMs},
    indexes::JobIndex,
    job::{Children, GroupScaling, Job, JobKind, JobSpec, JobVersion},
    limits,
    node::{CapacityGain, Census, Drain, MassLoss, Node, Occupancy, OfflineNode, Tombstone},
    pool::{
        Instance, InstancePool, PoolHistory, ProviderLimit, ProviderList, ProviderState, Unhelped,
    },
    resources::NodeUsage,
    session::Session,
    settings::{Namespace, NodeLife, NodePool, SchedulerConfiguration},
    table::{StoredRow, Table, TableId},
};

/// Where in the log a state is. Stored with each group of changes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Head {
    /// Last applied index.
    pub index: Index,
    /// Term of that entry.
    pub term: u64,
    /// Log time.
    pub at: TimeMs,
    /// Last index that changed each table, by table byte.
    pub tables: BTreeMap<u8, Index>,
    /// Requests stamped before this are refused.
    pub session_floor: TimeMs,
}

/// The replicated state of a cluster.
#[derive(Clone, Default)]
pub struct State {
    pub(crate) index: Index,
    pub(crate) term: u64,
    pub(crate) at: TimeMs,
    pub(crate) session_floor: TimeMs,
    pub(crate) jobs: Table<Job>,
    /// Their versions.
    pub(crate) job_versions: Table<JobVersion>,
    pub(crate) nodes: Table<Node>,
    pub(crate) evaluations: Table<Evaluation>,
    pub(crate) allocations: Table<Allocation>,
    pub(crate) node_pools: Table<NodePool>,
    pub(crate) namespaces: Table<Namespace>,
    /// The scheduler configuration.
    pub(crate) configurations: Table<SchedulerConfiguration>,
    /// Reaped nodes.
    pub(crate) tombstones: Table<Tombstone>,
    /// Ineligible nodes that are not registered.
    pub(crate) offline_nodes: Table<OfflineNode>,
    pub(crate) capacity_gains: Table<CapacityGain>,
    /// Client sessions.
    pub(crate) sessions: Table<Session>,
    pub(crate) digest_marks: Table<DigestMark>,
    pub(crate) mass_losses: Table<MassLoss>,
    pub(crate) instance_pools: Table<InstancePool>,
    pub(crate) instances: Table<Instance>,
    pub(crate) provider_limits: Table<ProviderLimit>,
    pub(crate) pool_histories: Table<PoolHistory>,
    pub(crate) provider_states: Table<ProviderState>,
    pub(crate) provider_lists: Table<ProviderList>,
    pub(crate) unhelped: Table<Unhelped>,
    pub(crate) capacity_sources: Table<CapacitySource>,
    pub(crate) capacity_targets: Table<CapacityTarget>,
    pub(crate) deployments: Table<Deployment>,
    pub(crate) group_scalings: Table<GroupScaling>,

    pub(crate) usage: OrdMap<NodeId, Arc<NodeUsage>>,
    pub(crate) by_node: OrdMap<NodeId, OrdSet<AllocationId>>,
    /// Those of a node whose agent has not reported their end: few, while the ended ones are kept until they are collected.
    pub(crate) open_by_node: OrdMap<NodeId, OrdSet<AllocationId>>,
    pub(crate) by_job: OrdMap<JobKey, Arc<JobIndex>>,
    /// By parent.
    pub(crate) children: OrdMap<JobKey, Arc<Children>>,
    pub(crate) by_evaluation: OrdMap<EvaluationId, OrdSet<AllocationId>>,
    /// When the servers stop what runs too long.
    pub(crate) run_deadlines: OrdSet<(TimeMs, AllocationId)>,
    /// Jobs that run once per node.
    pub(crate) per_node_jobs: OrdSet<JobKey>,
    pub(crate) sessions_by_time: OrdSet<(TimeMs, RequestId)>,
    pub(crate) occupancy: Occupancy,
    pub(crate) census: Census,
    pub(crate) instances_by_pool: OrdMap<Text, OrdSet<InstanceId>>,
    pub(crate) members_by_group: OrdMap<Text, OrdSet<InstanceId>>,
    /// The pool that declares each capacity group.
    pub(crate) capacity_pools: OrdMap<Text, Text>,
}

/// Bytes that do not load as a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A row does not decode.
    #[error("a row of table {table:?} does not load")]
    Row {
        table: TableId,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// A key of a table this binary does not have.
    #[error("key of table {0}, which this binary does not have")]
    UnknownTable(u8),
}

impl State {
    /// Last applied index.
    pub fn index(&self) -> Index {
        self.index
    }

    /// Term of the last applied entry.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Log time.
    pub fn at(&self) -> TimeMs {
        self.at
    }

    /// Requests stamped before this are refused.
    pub fn session_floor(&self) -> TimeMs {
        self.session_floor
    }

    /// The head as it is stored with a group of changes.
    pub fn head(&self) -> Head {
        let tables = TableId::ALL.into_iter().map(|table| (table.byte(), self.changed(table)));
        Head {
            index: self.index,
            term: self.term,
            at: self.at,
            tables: tables.filter(|(_, index)| *index > 0).collect(),
            session_floor: self.session_floor,
        }
    }

    /// Jobs.
    pub fn jobs(&self) -> &Table<Job> {
        &self.jobs
    }

    /// Deployments.
    pub fn deployments(&self) -> &Table<Deployment> {
        &self.deployments
    }

    /// Scaling policies and events of groups.
    pub fn group_scalings(&self) -> &Table<GroupScaling> {
        &self.group_scalings
    }

    /// Versions of jobs.
    pub fn job_versions(&self) -> &Table<JobVersion> {
        &self.job_versions
    }

    /// Nodes.
    pub fn nodes(&self) -> &Table<Node> {
        &self.nodes
    }

    /// Evaluations.
    pub fn evaluations(&self) -> &Table<Evaluation> {
        &self.evaluations
    }

    /// Allocations.
    pub fn allocations(&self) -> &Table<Allocation> {
        &self.allocations
    }

    /// Node pools.
    pub fn node_pools(&self) -> &Table<NodePool> {
        &self.node_pools
    }

    /// Namespaces.
    pub fn namespaces(&self) -> &Table<Namespace> {
        &self.namespaces
    }

    /// What is left of reaped nodes.
    pub fn tombstones(&self) -> &Table<Tombstone> {
        &self.tombstones
    }

    /// Ineligible nodes that are not registered.
    pub fn offline_nodes(&self) -> &Table<OfflineNode> {
        &self.offline_nodes
    }

    /// The last capacity gain of each class and node.
    pub fn capacity_gains(&self) -> &Table<CapacityGain> {
        &self.capacity_gains
    }

    /// The scheduler configuration, once one was set.
    pub fn configurations(&self) -> &Table<SchedulerConfiguration> {
        &self.configurations
    }

    /// Replies kept for retries.
    pub fn sessions(&self) -> &Table<Session> {
        &self.sessions
    }

    /// The last mass loss.
    pub fn mass_losses(&self) -> &Table<MassLoss> {
        &self.mass_losses
    }

    /// The mass loss that lasts.
    pub fn mass_loss(&self) -> Option<&Arc<MassLoss>> {
        self.mass_losses.get(&()).filter(|loss| loss.end.is_none())
    }

    /// Instance pools.
    pub fn instance_pools(&self) -> &Table<InstancePool> {
        &self.instance_pools
    }

    /// Instances of pools.
    pub fn instances(&self) -> &Table<Instance> {
        &self.instances
    }

    /// Limits that providers named.
    pub fn provider_limits(&self) -> &Table<ProviderLimit> {
        &self.provider_limits
    }

    /// What pools have asked for, and what came of it.
    pub fn pool_histories(&self) -> &Table<PoolHistory> {
        &self.pool_histories
    }

    /// How providers do, as leaders found it.
    pub fn provider_states(&self) -> &Table<ProviderState> {
        &self.provider_states
    }

    /// The last list of each provider.
    pub fn provider_lists(&self) -> &Table<ProviderList> {
        &self.provider_lists
    }

    /// Jobs that types of their pool do not help.
    pub fn unhelped(&self) -> &Table<Unhelped> {
        &self.unhelped
    }

    /// Sources of requirements.
    pub fn capacity_sources(&self) -> &Table<CapacitySource> {
        &self.capacity_sources
    }

    /// What is wanted of capacity groups.
    pub fn capacity_targets(&self) -> &Table<CapacityTarget> {
        &self.capacity_targets
    }

    /// Digest marks.
    pub fn digest_marks(&self) -> &Table<DigestMark> {
        &self.digest_marks
    }

    /// The scheduler configuration in force.
    pub fn scheduler_configuration(&self) -> SchedulerConfiguration {
        self.configurations
            .get(&())
            .map_or_else(SchedulerConfiguration::default, |row| (**row).clone())
    }

    /// The settings of node life in force.
    pub fn node_life(&self) -> NodeLife {
        let row = self.configurations.get(&());
        row.map_or_else(NodeLife::default, |row| row.node_life.clone())
    }

    /// The spec of a job's version.
    pub fn job_spec(
        &self,
        job: &JobKey,
        create_index: Index,
        version: u64,
    ) -> Option<&Arc<JobSpec>> {
        Some(&self.job_versions.get(&(job.clone(), create_index, version))?.spec)
    }

    /// The spec of a job's current version.
    pub fn current_spec(&self, job: &Job) -> Option<&Arc<JobSpec>> {
        self.job_spec(&job.key, job.create_index, job.version)
    }

    /// The spec that an allocation runs.
    pub fn allocation_spec(&self, allocation: &Allocation) -> Option<&Arc<JobSpec>> {
        self.job_spec(&allocation.job, allocation.job_create_index, allocation.job_version)
    }

    /// Kind, priority and last change of a job for an evaluation of it; of a job that is gone, or
    /// whose name a parent of others has taken, those of what still runs of it. None: there is
    /// nothing to evaluate.
    pub fn to_evaluate(&self, key: &JobKey) -> Option<(JobKind, u16, Index)> {
        if let Some(job) = self.jobs.get(key).filter(|job| job.is_scheduled()) {
            return Some((job.kind, job.priority, job.job_modify_index));
        }
        let (_, id) = self.job_index(key)?.live_names.iter().next()?;
        let spec = self.allocation_spec(self.allocations.get(id)?)?;
        Some((spec.kind, spec.priority, 0))
    }

    /// The history of a job's incarnation, newest first: its newest versions, those with a tag, those
    /// of which an allocation holds its place, and the newest stable one, to which the job goes back.
    /// Other stored versions are kept for allocations that have ended, and are no part of it; none of
    /// them is stable (`drop_old_versions`).
    pub fn versions_of(&self, job: &JobKey, create_index: Index) -> Vec<Arc<JobVersion>> {
        let index = self.job_index(job);
        let mut versions: Vec<_> = self.stored_versions(job, create_index).cloned().collect();
        versions.reverse();
        let stable = versions.iter().find(|version| version.stable).map(|version| version.version);
        let mut untagged = 0usize;
        versions.retain(|version| {
            untagged = untagged.saturating_add(usize::from(version.tag.is_none()));
            let is_new = untagged <= limits::JOB_VERSIONS_MAX;
            let is_named = version.tag.is_some() || stable == Some(version.version);
            let id = (create_index, version.version);
            is_new || is_named || index.is_some_and(|index| index.holds_place(id))
        });
        versions
    }

    /// The versions of a job's incarnation that are stored, oldest first.
    pub(crate) fn stored_versions<'a>(
        &'a self,
        job: &'a JobKey,
        create_index: Index,
    ) -> impl Iterator<Item = &'a Arc<JobVersion>> {
        self.job_versions
            .range((job.clone(), create_index, 0)..)
            .take_while(move |row| row.spec.key == *job && row.create_index == create_index)
    }

    /// The newest version of a job's incarnation that is marked as stable.
    pub fn last_stable_version(
        &self,
        job: &JobKey,
        create_index: Index,
    ) -> Option<Arc<JobVersion>> {
        self.versions_of(job, create_index).into_iter().find(|version| version.stable)
    }

    /// What is known of the children of a job, if it has any.
    pub fn children(&self, parent: &JobKey) -> Option<&Arc<Children>> {
        self.children.get(parent)
    }

    /// What is derived for a job.
    pub fn job_index(&self, job: &JobKey) -> Option<&Arc<JobIndex>> {
        self.by_job.get(job)
    }

    /// Allocations of a job, of all its incarnations, by id.
    pub fn allocations_of_job<'a>(
        &'a self,
        job: &JobKey,
    ) -> impl Iterator<Item = &'a Arc<Allocation>> {
        self.by_job
            .get(job)
            .into_iter()
            .flat_map(|index| index.allocations.iter())
            .filter_map(|id| self.allocations.get(id))
    }

    /// Evaluations of a job, by id.
    pub fn evaluations_of_job<'a>(
        &'a self,
        job: &JobKey,
    ) -> impl Iterator<Item = &'a Arc<Evaluation>> {
        self.by_job
            .get(job)
            .into_iter()
            .flat_map(|index| index.evaluations.iter())
            .filter_map(|id| self.evaluations.get(id))
    }

    /// Allocations that a drain of their node is about and that have not ended there: none, and the
    /// drain is over.
    pub fn left_to_drain<'a>(
        &'a self,
        node: NodeId,
        drain: &'a Drain,
    ) -> impl Iterator<Item = &'a Arc<Allocation>> {
        self.open_allocations_of_node(node)
            .filter(move |row| !(drain.ignore_system && self.is_of_system_job(row)))
    }

    /// Whether an allocation is of a system job, which does not end by itself as one of a sysbatch
    /// job does.
    pub fn is_of_system_job(&self, row: &Allocation) -> bool {
        row.per_node && self.allocation_spec(row).is_none_or(|spec| spec.kind == JobKind::System)
    }

    /// Allocations of a node, by id.
    pub fn allocations_of_node(&self, node: NodeId) -> impl Iterator<Item = &Arc<Allocation>> {
        self.by_node
            .get(&node)
            .into_iter()
            .flat_map(|ids| ids.iter())
            .filter_map(|id| self.allocations.get(id))
    }

    /// Those allocations of a node that have not ended there, by id. They are live, or are to end.
    pub fn open_allocations_of_node(&self, node: NodeId) -> impl Iterator<Item = &Arc<Allocation>> {
        self.open_by_node
            .get(&node)
            .into_iter()
            .flat_map(|ids| ids.iter())
            .filter_map(|id| self.allocations.get(id))
    }

    /// Allocations that an evaluation placed or changed last, by id.
    pub fn allocations_of_evaluation(
        &self,
        evaluation: EvaluationId,
    ) -> impl Iterator<Item = &Arc<Allocation>> {
        self.by_evaluation
            .get(&evaluation)
            .into_iter()
            .flat_map(|ids| ids.iter())
            .filter_map(|id| self.allocations.get(id))
    }

    /// Whether an allocation on the node has not ended.
    pub fn is_busy(&self, node: NodeId) -> bool {
        self.occupancy.is_busy(node)
    }

    /// Busy, idle and free nodes, without a scan.
    pub fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// Nodes by liveness, suspension and what operators said, without a scan.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Nodes of an affinity key (the key that started on them last; empty: none did yet) on which
    /// nothing runs, in any state of service.
    pub fn idle_nodes<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Arc<Node>> {
        self.rows_of(self.occupancy.idle_of(key))
    }

    /// Nodes of an affinity key on which something runs, in any state of service.
    pub fn busy_nodes<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Arc<Node>> {
        self.rows_of(self.occupancy.busy_of(key))
    }

    /// Nodes that are in service and on which nothing runs.
    pub fn free_nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.rows_of(Some(self.occupancy.free()))
    }

    fn rows_of<'a>(
        &'a self,
        ids: Option<&'a OrdSet<NodeId>>,
    ) -> impl Iterator<Item = &'a Arc<Node>> {
        ids.into_iter().flatten().filter_map(|id| self.nodes.get(id))
    }

    /// Keys of the jobs that run once per node, stopped ones included.
    pub fn per_node_jobs(&self) -> impl Iterator<Item = &JobKey> {
        self.per_node_jobs.iter()
    }

    /// What is used of a node.
    pub fn usage(&self, node: NodeId) -> Arc<NodeUsage> {
        self.usage.get(&node).cloned().unwrap_or_default()
    }

    /// What is used of a node once some of its live allocations are evicted; others are left out
    /// of account.
    pub fn usage_without(&self, node: NodeId, evicted: &[AllocationId]) -> Arc<NodeUsage> {
        let mut usage = self.usage(node);
        let evicted: BTreeSet<_> = evicted.iter().collect();
        for id in evicted {
            let Some(row) = self.allocations.get(id) else { continue };
            if row.is_live() && row.node == node {
                Arc::make_mut(&mut usage).evict(row);
            }
        }
        usage
    }

    /// The allocation that holds a name, if one does.
    pub fn live_name(&self, job: &JobKey, name: &LiveName) -> Option<AllocationId> {
        self.by_job.get(job)?.live_names.get(name).copied()
    }

    /// When the servers stop an allocation that runs longer than its group may: later than its agent
    /// does. None: it does not run, or has no bound.
    pub fn run_deadline(&self, allocation: &Allocation) -> Option<TimeMs> {
        if !allocation.is_live() || allocation.client != ClientStatus::Running {
            return None;
        }
        let group = self.allocation_spec(allocation)?.group(&allocation.group)?;
        if group.max_run_ms == 0 {
            return None;
        }
        let ends = group.tasks.iter();
        let ends = ends.map(|task| task.shutdown_delay_ms.saturating_add(task.kill_timeout_ms));
        let waits = [group.max_run_ms, group.shutdown_delay_ms, ends.max().unwrap_or_default()];
        let grace = allocation.client_at.saturating_add(limits::RUN_GRACE_MS);
        Some(waits.into_iter().fold(grace, TimeMs::saturating_add))
    }

    /// The deadlines of all that may run for a limited time, the first one first.
    pub fn run_deadlines(&self) -> impl Iterator<Item = (TimeMs, AllocationId)> {
        self.run_deadlines.iter().copied()
    }

    /// Whether a failed allocation may have a successor by the policy of the version that it runs.
    pub fn may_reschedule(&self, allocation: &Allocation) -> bool {
        let spec = self.allocation_spec(allocation);
        let policy = spec.and_then(|spec| spec.group(&allocation.group)?.reschedule);
        policy.is_some_and(|policy| allocation.may_retry(&policy))
    }

    /// Whether a table was ever changed.
    pub fn was_written(&self, table: TableId) -> bool {
        self.changed(table) > 0
    }

    /// Last index that changed a table; at least 1, so that it can be waited for.
    pub fn table_index(&self, table: TableId) -> Index {
        self.changed(table).max(1)
    }

    fn changed(&self, table: TableId) -> Index {
        match table {
            TableId::Jobs => self.jobs.changed(),
            TableId::JobVersions => self.job_versions.changed(),
            TableId::Nodes => self.nodes.changed(),
            TableId::Evaluations => self.evaluations.changed(),
            TableId::Allocations => self.allocations.changed(),
            TableId::NodePools => self.node_pools.changed(),
            TableId::Namespaces => self.namespaces.changed(),
            TableId::SchedulerConfiguration => self.configurations.changed(),
            TableId::Tombstones => self.tombstones.changed(),
            TableId::OfflineNodes => self.offline_nodes.changed(),
            TableId::CapacityGains => self.capacity_gains.changed(),
            TableId::Sessions => self.sessions.changed(),
            TableId::DigestMarks => self.digest_marks.changed(),
            TableId::MassLosses => self.mass_losses.changed(),
            TableId::InstancePools => self.instance_pools.changed(),
            TableId::Instances => self.instances.changed(),
            TableId::ProviderLimits => self.provider_limits.changed(),
            TableId::ProviderLists => self.provider_lists.changed(),
            TableId::Unhelped => self.unhelped.changed(),
            TableId::CapacitySources => self.capacity_sources.changed(),
            TableId::CapacityTargets => self.capacity_targets.changed(),
            TableId::Deployments => self.deployments.changed(),
            TableId::GroupScalings => self.group_scalings.changed(),
            TableId::PoolHistories => self.pool_histories.changed(),
            TableId::ProviderStates => self.provider_states.changed(),
        }
    }

    /// The digest: the sum over all tables and the log time.
    pub fn digest(&self) -> Digest {
        let mut sum = Digest::default();
        for digest in [
            self.jobs.digest(),
            self.job_versions.digest(),
            self.nodes.digest(),
            self.evaluations.digest(),
            self.allocations.digest(),
            self.node_pools.digest(),
            self.namespaces.digest(),
            self.configurations.digest(),
            self.tombstones.digest(),
            self.offline_nodes.digest(),
            self.capacity_gains.digest(),
            self.sessions.digest(),
            self.digest_marks.digest(),
            self.mass_losses.digest(),
            self.instance_pools.digest(),
            self.instances.digest(),
            self.provider_limits.digest(),
            self.provider_lists.digest(),
            self.unhelped.digest(),
            self.capacity_sources.digest(),
            self.capacity_targets.digest(),
            self.deployments.digest(),
            self.group_scalings.digest(),
            self.pool_histories.digest(),
            self.provider_states.digest(),
        ] {
            sum.add(digest.0);
        }
        sum.add(crate::digest::row_hash(&[0], &codec::encode(&self.head())));
        sum
    }

    /// All rows as they go to disk, table by table. The head goes beside them.
    pub fn frames(&self) -> impl Iterator<Item = (Vec<u8>, Bytes)> + '_ {
        self.stored_rows().map(|(key, row)| (key, row.frame()))
    }

    /// All rows with their keys on disk, table by table.
    pub fn stored_rows(&self) -> impl Iterator<Item = (Vec<u8>, Arc<dyn StoredRow>)> + '_ {
        self.jobs
            .stored_rows()
            .chain(self.job_versions.stored_rows())
            .chain(self.nodes.stored_rows())
            .chain(self.evaluations.stored_rows())
            .chain(self.allocations.stored_rows())
            .chain(self.node_pools.stored_rows())
            .chain(self.namespaces.stored_rows())
            .chain(self.configurations.stored_rows())
            .chain(self.tombstones.stored_rows())
            .chain(self.offline_nodes.stored_rows())
            .chain(self.capacity_gains.stored_rows())
            .chain(self.sessions.stored_rows())
            .chain(self.digest_marks.stored_rows())
            .chain(self.mass_losses.stored_rows())
            .chain(self.instance_pools.stored_rows())
            .chain(self.instances.stored_rows())
            .chain(self.provider_limits.stored_rows())
            .chain(self.provider_lists.stored_rows())
            .chain(self.unhelped.stored_rows())
            .chain(self.capacity_sources.stored_rows())
            .chain(self.capacity_targets.stored_rows())
            .chain(self.deployments.stored_rows())
            .chain(self.group_scalings.stored_rows())
            .chain(self.pool_histories.stored_rows())
            .chain(self.provider_states.stored_rows())
    }

    /// Takes one row as it stands on disk. Rows may come in any order; call [`Self::load_done`]
    /// after the last.
    pub fn load_row(&mut self, disk_key: &[u8], frame: &[u8]) -> Result<(), LoadError> {
        let byte = disk_key.first().copied().unwrap_or(0);
        let table = TableId::from_byte(byte).ok_or(LoadError::UnknownTable(byte))?;
        macro_rules! load {
            ($field:ident) => {
                self.$field.load(disk_key, frame, |_| ()).map(drop)
            };
        }
        match table {
            TableId::Jobs => load!(jobs),
            TableId::JobVersions => load!(job_versions),
            TableId::Nodes => load!(nodes),
            TableId::Evaluations => load!(evaluations),
            TableId::Allocations => load!(allocations),
            TableId::NodePools => load!(node_pools),
            TableId::Namespaces => load!(namespaces),
            TableId::SchedulerConfiguration => load!(configurations),
            TableId::Tombstones => load!(tombstones),
            TableId::OfflineNodes => load!(offline_nodes),
            TableId::CapacityGains => load!(capacity_gains),
            TableId::Sessions => load!(sessions),
            TableId::DigestMarks => load!(digest_marks),
            TableId::MassLosses => load!(mass_losses),
            TableId::InstancePools => load!(instance_pools),
            TableId::Instances => load!(instances),
            TableId::ProviderLimits => load!(provider_limits),
            TableId::ProviderLists => load!(provider_lists),
            TableId::Unhelped => load!(unhelped),
            TableId::CapacitySources => load!(capacity_sources),
            TableId::CapacityTargets => load!(capacity_targets),
            TableId::Deployments => load!(deployments),
            TableId::GroupScalings => load!(group_scalings),
            TableId::PoolHistories => load!(pool_histories),
            TableId::ProviderStates => load!(provider_states),
        }
        .map_err(|source| LoadError::Row { table, source })
    }

    /// Builds the derived indexes after the last [`Self::load_row`].
    pub fn load_done(&mut self, head: Head) {
        let changed = |table: TableId| head.tables.get(&table.byte()).copied().unwrap_or(0);
        self.jobs.set_changed(changed(TableId::Jobs));
        self.job_versions.set_changed(changed(TableId::JobVersions));
        self.nodes.set_changed(changed(TableId::Nodes));
        self.evaluations.set_changed(changed(TableId::Evaluations));
        self.allocations.set_changed(changed(TableId::Allocations));
        self.node_pools.set_changed(changed(TableId::NodePools));
        self.namespaces.set_changed(changed(TableId::Namespaces));
        self.configurations.set_changed(changed(TableId::SchedulerConfiguration));
        self.tombstones.set_changed(changed(TableId::Tombstones));
        self.offline_nodes.set_changed(changed(TableId::OfflineNodes));
        self.capacity_gains.set_changed(changed(TableId::CapacityGains));
        self.sessions.set_changed(changed(TableId::Sessions));
        self.digest_marks.set_changed(changed(TableId::DigestMarks));
        self.mass_losses.set_changed(changed(TableId::MassLosses));
        self.instance_pools.set_changed(changed(TableId::InstancePools));
        self.instances.set_changed(changed(TableId::Instances));
        self.provider_limits.set_changed(changed(TableId::ProviderLimits));
        self.provider_lists.set_changed(changed(TableId::ProviderLists));
        self.unhelped.set_changed(changed(TableId::Unhelped));
        self.capacity_sources.set_changed(changed(TableId::CapacitySources));
        self.capacity_targets.set_changed(changed(TableId::CapacityTargets));
        self.deployments.set_changed(changed(TableId::Deployments));
        self.group_scalings.set_changed(changed(TableId::GroupScalings));
        self.pool_histories.set_changed(changed(TableId::PoolHistories));
        self.provider_states.set_changed(changed(TableId::ProviderStates));
        (self.index, self.term) = (head.index, head.term);
        (self.at, self.session_floor) = (head.at, head.session_floor);
        self.rebuild_derived();
    }
}
