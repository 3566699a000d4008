//! The state: one table per noun, indexes derived from them, and the head (log position, log time).
//!
//! `Clone` is O(1): a clone is a snapshot that schedulers, readers and snapshot files use while `apply` goes on. Derived indexes are never
//! stored; they are rebuilt while loading and checked against a recomputation in tests ([`crate::invariant`]).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};

use crate::{
    allocation::{Allocation, ClientStatus},
    codec::{self, DecodeError},
    digest::{Digest, DigestMark},
    evaluation::{Evaluation, EvaluationStatus},
    id::{AllocationId, EvaluationId, Index, JobKey, NodeId, RequestId, Text, TimeMs},
    job::{GroupSummary, Job, JobKind, JobSpec, JobVersion},
    node::{CapacityGain, Drain, EarlyEligibility, GainKey, Node, TombstoneRow},
    resources::{NodeUsage, PortHolder},
    session::Session,
    settings::{Namespace, NodePool, SchedulerConfiguration},
    table::{ChangeSet, Row, StoredRow, Table, TableId},
};

macro_rules! rows {
    ($($type:ty, $key:ty, $table:ident, |$row:ident| $expr:expr;)*) => {$(
        impl Row for $type {
            type Key = $key;
            const TABLE: TableId = TableId::$table;
            fn key(&self) -> $key {
                let $row = self;
                $expr
            }
        }
    )*};
}
rows! {
    Job, JobKey, Jobs, |row| row.key.clone();
    JobVersion, (JobKey, Index, u64), JobVersions, |row| (row.spec.key.clone(), row.create_index, row.version);
    Node, NodeId, Nodes, |row| row.id;
    Evaluation, EvaluationId, Evaluations, |row| row.id;
    Allocation, AllocationId, Allocations, |row| row.id;
    NodePool, Text, NodePools, |row| row.name.clone();
    Namespace, Text, Namespaces, |row| row.name.clone();
    SchedulerConfiguration, (), SchedulerConfiguration, |_row| ();
    TombstoneRow, NodeId, Tombstones, |row| row.node;
    EarlyEligibility, NodeId, EarlyEligibilities, |row| row.node;
    CapacityGain, GainKey, CapacityGains, |row| row.key;
    DigestMark, u64, DigestMarks, |row| row.index;
}

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

/// A name in use: group, number, and the node for jobs that run once per node (the zero id for others).
pub type LiveName = (Text, u32, NodeId);

/// What is derived for one job. A job that was purged keeps its entry while it has allocations or evaluations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobIndex {
    /// Its allocations, of all incarnations.
    pub(crate) allocations: OrdSet<AllocationId>,
    /// Its evaluations.
    pub(crate) evaluations: OrdSet<EvaluationId>,
    /// Names in use: wanted and not ended.
    pub live_names: OrdMap<LiveName, AllocationId>,
    /// Allocations by (job create index, version), so that a version is kept while one refers to it.
    pub versions: OrdMap<(Index, u64), u32>,
    /// Counts by group. `queued` is in the job row.
    pub summary: BTreeMap<Text, GroupSummary>,
    /// Evaluations that are pending or blocked.
    pub open_evaluations: OrdSet<EvaluationId>,
}

impl JobIndex {
    /// Nothing refers to the job any more.
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty() && self.evaluations.is_empty()
    }
}

/// The replicated state of a cluster.
#[derive(Clone, Default)]
pub struct State {
    /// Log position and time.
    pub(crate) head: Head,
    /// Jobs.
    pub(crate) jobs: Table<Job>,
    /// Their versions.
    pub(crate) job_versions: Table<JobVersion>,
    /// Nodes.
    pub(crate) nodes: Table<Node>,
    /// Evaluations.
    pub(crate) evaluations: Table<Evaluation>,
    /// Allocations.
    pub(crate) allocations: Table<Allocation>,
    /// Node pools.
    pub(crate) node_pools: Table<NodePool>,
    /// Namespaces.
    pub(crate) namespaces: Table<Namespace>,
    /// The scheduler configuration.
    pub(crate) configurations: Table<SchedulerConfiguration>,
    /// Reaped nodes.
    pub(crate) tombstones: Table<TombstoneRow>,
    /// Eligibilities of nodes to come.
    pub(crate) early_eligibilities: Table<EarlyEligibility>,
    /// Capacity gains.
    pub(crate) capacity_gains: Table<CapacityGain>,
    /// Client sessions.
    pub(crate) sessions: Table<Session>,
    /// Digest marks.
    pub(crate) digest_marks: Table<DigestMark>,

    pub(crate) usage: OrdMap<NodeId, Arc<NodeUsage>>,
    pub(crate) by_node: OrdMap<NodeId, OrdSet<AllocationId>>,
    pub(crate) by_job: OrdMap<JobKey, Arc<JobIndex>>,
    pub(crate) by_evaluation: OrdMap<EvaluationId, OrdSet<AllocationId>>,
    /// Jobs that run once per node.
    pub(crate) per_node_jobs: OrdSet<JobKey>,
    pub(crate) sessions_by_time: OrdSet<(TimeMs, RequestId)>,
}

/// Bytes that do not load as a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A row does not decode.
    #[error("a row of table {table:?} does not load")]
    Row {
        /// Table.
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
        self.head.index
    }

    /// Term of the last applied entry.
    pub fn term(&self) -> u64 {
        self.head.term
    }

    /// Log time.
    pub fn at(&self) -> TimeMs {
        self.head.at
    }

    /// Requests stamped before this are refused.
    pub fn session_floor(&self) -> TimeMs {
        self.head.session_floor
    }

    /// The head as it is stored with a group of changes.
    pub fn head(&self) -> Head {
        self.head.clone()
    }

    /// Jobs.
    pub fn jobs(&self) -> &Table<Job> {
        &self.jobs
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
    pub fn tombstones(&self) -> &Table<TombstoneRow> {
        &self.tombstones
    }

    /// Eligibilities of nodes that do not exist yet.
    pub fn early_eligibilities(&self) -> &Table<EarlyEligibility> {
        &self.early_eligibilities
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

    /// Kind, priority and last change of a job for an evaluation of it; of a job that is gone, or whose name a template has taken, those of what
    /// still runs of it. None: there is nothing to evaluate.
    pub fn to_evaluate(&self, key: &JobKey) -> Option<(JobKind, u16, Index)> {
        if let Some(job) = self.jobs.get(key).filter(|job| !job.parameterized) {
            return Some((job.kind, job.priority, job.job_modify_index));
        }
        let (_, id) = self.job_index(key)?.live_names.iter().next()?;
        let spec = self.allocation_spec(self.allocations.get(id)?)?;
        Some((spec.kind, spec.priority, 0))
    }

    /// Versions of a job's incarnation, newest first.
    pub fn versions_of(&self, job: &JobKey, create_index: Index) -> Vec<Arc<JobVersion>> {
        let first = (job.clone(), create_index, 0);
        let mut versions: Vec<_> = self
            .job_versions
            .iter_from(&first)
            .take_while(|row| row.spec.key == *job && row.create_index == create_index)
            .cloned()
            .collect();
        versions.reverse();
        versions
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

    /// Allocations that a drain of their node is about and that have not ended there: none, and the drain is over.
    pub fn left_to_drain<'a>(
        &'a self,
        node: NodeId,
        drain: &'a Drain,
    ) -> impl Iterator<Item = &'a Arc<Allocation>> {
        self.allocations_of_node(node)
            .filter(|row| !row.client.is_terminal())
            .filter(move |row| !(drain.ignore_system && self.is_of_system_job(row)))
    }

    /// Whether an allocation is of a system job, which does not end by itself as one of a sysbatch job does.
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

    /// Nodes whose affinity key is `key` (the key that started on them last; empty: none did yet), by id, in any state of service.
    pub fn nodes_of_affinity<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Arc<Node>> {
        self.nodes.iter().filter(move |node| &*node.affinity_key == key)
    }

    /// Whether something on the node has not ended.
    pub fn is_busy(&self, node: NodeId) -> bool {
        self.allocations_of_node(node).any(|row| !row.client.is_terminal())
    }

    /// Nodes of an affinity key on which nothing runs. Busy and idle are derived from allocations, never counted. Cost: one pass over the nodes.
    pub fn idle_nodes<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Arc<Node>> {
        self.nodes_of_affinity(key).filter(|node| !self.is_busy(node.id))
    }

    /// Nodes of an affinity key on which something runs. Cost: one pass over the nodes.
    pub fn busy_nodes<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Arc<Node>> {
        self.nodes_of_affinity(key).filter(|node| self.is_busy(node.id))
    }

    /// Nodes that are in service and on which nothing runs. Cost: one pass over the nodes.
    pub fn free_nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.iter().filter(|node| node.is_schedulable() && !self.is_busy(node.id))
    }

    /// Keys of the jobs that run once per node, stopped ones included.
    pub fn per_node_jobs(&self) -> impl Iterator<Item = &JobKey> {
        self.per_node_jobs.iter()
    }

    /// What is used of a node.
    pub fn usage(&self, node: NodeId) -> Arc<NodeUsage> {
        self.usage.get(&node).cloned().unwrap_or_default()
    }

    /// The allocation that holds a name, if one does. `node` is given for jobs that run once per node.
    pub fn live_name(
        &self,
        job: &JobKey,
        group: &Text,
        name_index: u32,
        node: Option<NodeId>,
    ) -> Option<AllocationId> {
        let name = (group.clone(), name_index, node.unwrap_or_default());
        self.by_job.get(job)?.live_names.get(&name).copied()
    }

    /// Last index that changed a table; at least 1, as Nomad's clients expect.
    pub fn table_index(&self, table: TableId) -> Index {
        self.head.tables.get(&table.byte()).copied().unwrap_or(0).max(1)
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
            self.early_eligibilities.digest(),
            self.capacity_gains.digest(),
            self.sessions.digest(),
            self.digest_marks.digest(),
        ] {
            sum.add(digest.0);
        }
        sum.add(crate::digest::row_hash(&[0], &codec::encode(&self.head)));
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
            .chain(self.early_eligibilities.stored_rows())
            .chain(self.capacity_gains.stored_rows())
            .chain(self.sessions.stored_rows())
            .chain(self.digest_marks.stored_rows())
    }

    /// Takes one row as it stands on disk. Rows may come in any order; call [`Self::load_done`] after the last.
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
            TableId::EarlyEligibilities => load!(early_eligibilities),
            TableId::CapacityGains => load!(capacity_gains),
            TableId::Sessions => load!(sessions),
            TableId::DigestMarks => load!(digest_marks),
        }
        .map_err(|source| LoadError::Row { table, source })
    }

    /// Builds the derived indexes after the last [`Self::load_row`].
    pub fn load_done(&mut self, head: Head) {
        self.head = head;
        self.rebuild_derived();
    }

    /// Computes every derived index anew from the tables.
    pub fn rebuild_derived(&mut self) {
        self.usage = OrdMap::new();
        self.by_node = OrdMap::new();
        self.by_job = OrdMap::new();
        self.by_evaluation = OrdMap::new();
        self.sessions_by_time = self
            .sessions
            .iter()
            .map(|session| (session.request.stamped_at, session.request.id))
            .collect();
        self.per_node_jobs = self
            .jobs
            .iter()
            .filter(|job| job.kind.is_per_node())
            .map(|job| job.key.clone())
            .collect();
        let allocations: Vec<_> = self.allocations.iter().cloned().collect();
        for allocation in allocations {
            self.index_allocation(&allocation);
        }
        let evaluations: Vec<_> = self.evaluations.iter().cloned().collect();
        for evaluation in evaluations {
            self.index_evaluation(&evaluation);
        }
    }

    pub(crate) fn index_evaluation(&mut self, evaluation: &Evaluation) {
        let entry = Arc::make_mut(self.by_job.entry(evaluation.job.clone()).or_default());
        entry.evaluations.insert(evaluation.id);
        match evaluation.status {
            EvaluationStatus::Pending | EvaluationStatus::Blocked => {
                entry.open_evaluations.insert(evaluation.id);
            }
            EvaluationStatus::Complete | EvaluationStatus::Failed | EvaluationStatus::Canceled => {
                entry.open_evaluations.remove(&evaluation.id);
            }
        }
    }

    pub(crate) fn index_allocation(&mut self, allocation: &Allocation) {
        let id = allocation.id;
        self.by_node.entry(allocation.node).or_default().insert(id);
        self.by_evaluation.entry(allocation.evaluation).or_default().insert(id);
        let index = Arc::make_mut(self.by_job.entry(allocation.job.clone()).or_default());
        index.allocations.insert(id);
        if allocation.is_live() {
            index.live_names.insert(allocation.live_name(), id);
        }
        let version = (allocation.job_create_index, allocation.job_version);
        let count = index.versions.entry(version).or_insert(0);
        *count = count.saturating_add(1);
        let summary = index.summary.entry(allocation.group.clone()).or_default();
        let slot = summary_slot(summary, allocation.client);
        *slot = slot.saturating_add(1);
        let live = allocation.is_live();
        // No entry for nothing: what is being stopped and holds no port uses nothing.
        if !allocation.client.is_terminal() && (live || !allocation.ports.is_empty()) {
            let usage = Arc::make_mut(self.usage.entry(allocation.node).or_default());
            if live {
                usage.resources = usage.resources.plus(allocation.resources);
                usage.allocations = usage.allocations.saturating_add(1);
            }
            let holder = if live { PortHolder::Live } else { PortHolder::Stopping };
            for port in &allocation.ports {
                usage.ports.insert((port.value, id), holder);
            }
        }
    }

    pub(crate) fn unindex_allocation(&mut self, allocation: &Allocation) {
        let id = allocation.id;
        remove_from(&mut self.by_node, &allocation.node, id);
        remove_from(&mut self.by_evaluation, &allocation.evaluation, id);
        if let Some(index) = self.by_job.get_mut(&allocation.job) {
            let index = Arc::make_mut(index);
            index.allocations.remove(&id);
            let name = allocation.live_name();
            if index.live_names.get(&name) == Some(&id) {
                index.live_names.remove(&name);
            }
            let version = (allocation.job_create_index, allocation.job_version);
            if let Some(count) = index.versions.get_mut(&version) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    index.versions.remove(&version);
                }
            }
            if let Some(summary) = index.summary.get_mut(&allocation.group) {
                let slot = summary_slot(summary, allocation.client);
                *slot = slot.saturating_sub(1);
                if *summary == GroupSummary::default() {
                    index.summary.remove(&allocation.group);
                }
            }
            if index.is_empty() {
                self.by_job.remove(&allocation.job);
            }
        }
        if !allocation.client.is_terminal()
            && let Some(usage) = self.usage.get_mut(&allocation.node)
        {
            let usage = Arc::make_mut(usage);
            if allocation.is_live() {
                usage.resources = usage.resources.minus(allocation.resources);
                usage.allocations = usage.allocations.saturating_sub(1);
            }
            for port in &allocation.ports {
                usage.ports.remove(&(port.value, id));
            }
            if *usage == NodeUsage::default() {
                self.usage.remove(&allocation.node);
            }
        }
    }

    pub(crate) fn touch(&mut self, table: TableId) {
        self.head.tables.insert(table.byte(), self.head.index);
    }

    pub(crate) fn put_session(&mut self, session: Session, changes: &mut ChangeSet) {
        self.sessions_by_time.insert((session.request.stamped_at, session.request.id));
        self.sessions.put(session, changes);
    }
}

fn remove_from<K: Ord + Clone>(
    map: &mut OrdMap<K, OrdSet<AllocationId>>,
    key: &K,
    id: AllocationId,
) {
    if let Some(set) = map.get_mut(key) {
        set.remove(&id);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

fn summary_slot(summary: &mut GroupSummary, status: ClientStatus) -> &mut u32 {
    match status {
        ClientStatus::Pending => &mut summary.starting,
        ClientStatus::Running => &mut summary.running,
        ClientStatus::Complete => &mut summary.complete,
        ClientStatus::Failed => &mut summary.failed,
        ClientStatus::Lost => &mut summary.lost,
        ClientStatus::Unknown => &mut summary.unknown,
    }
}
