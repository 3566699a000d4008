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
    codec::{self, DecodeError},
    digest::Digest,
    evaluation::Evaluation,
    id::{AllocationId, EvaluationId, Index, InstanceId, JobKey, NodeId, RequestId, Text, TimeMs},
    indexes::JobIndex,
    job::{Children, Job, JobKind, JobSpec, JobVersion},
    limits,
    node::{Census, Drain, MassLoss, Node, Occupancy},
    resources::NodeUsage,
    settings::{NodeLife, SchedulerConfiguration},
    table::{StoredRow, Table, TableId},
    tables::tables,
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

macro_rules! state {
    ($($(#[$doc:meta])* $number:literal $id:ident $field:ident $row:ty,)*) => {
        /// The replicated state of a cluster.
        #[derive(Clone, Default)]
        pub struct State {
            pub(crate) index: Index,
            pub(crate) term: u64,
            pub(crate) at: TimeMs,
            pub(crate) session_floor: TimeMs,
            $($(#[$doc])* pub(crate) $field: Table<$row>,)*

            pub(crate) usage: OrdMap<NodeId, Arc<NodeUsage>>,
            pub(crate) by_node: OrdMap<NodeId, OrdSet<AllocationId>>,
            /// Those of a node whose agent has not reported their end: few, while the ended ones
            /// are kept until they are collected.
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

        impl State {
            $($(#[$doc])* pub fn $field(&self) -> &Table<$row> {
                &self.$field
            })*

            /// Last index that changed a table; 0: none did.
            fn changed(&self, table: TableId) -> Index {
                match table {
                    $(TableId::$id => self.$field.changed(),)*
                }
            }

            /// The digest of a table.
            pub fn table_digest(&self, table: TableId) -> Digest {
                match table {
                    $(TableId::$id => self.$field.digest(),)*
                }
            }

            /// Number of rows of a table.
            pub fn table_len(&self, table: TableId) -> usize {
                match table {
                    $(TableId::$id => self.$field.len(),)*
                }
            }

            /// All rows with their keys on disk, table by table.
            pub fn stored_rows(
                &self,
            ) -> impl Iterator<Item = (Vec<u8>, Arc<dyn StoredRow>)> + '_ {
                std::iter::empty()$(.chain(self.$field.stored_rows()))*
            }

            /// Takes one row as it stands on disk. Rows may come in any order; call
            /// [`Self::load_done`] after the last.
            pub fn load_row(&mut self, disk_key: &[u8], frame: &[u8]) -> Result<(), LoadError> {
                let byte = disk_key.first().copied().unwrap_or(0);
                let table = TableId::from_byte(byte).ok_or(LoadError::UnknownTable(byte))?;
                let loaded = match table {
                    $(TableId::$id => self.$field.load(disk_key, frame),)*
                };
                loaded.map_err(|source| LoadError::Row { table, source })
            }

            /// Takes the indexes of the last changes, after the rows were loaded.
            fn load_changed(&mut self, tables: &BTreeMap<u8, Index>) {
                let changed = |table: TableId| tables.get(&table.byte()).copied().unwrap_or(0);
                $(self.$field.set_changed(changed(TableId::$id));)*
            }
        }
    };
}

tables!(state);

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

    /// The mass loss that lasts.
    pub fn mass_loss(&self) -> Option<&Arc<MassLoss>> {
        self.mass_losses.get(&()).filter(|loss| loss.end.is_none())
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

    /// The history of a job's incarnation, newest first: its newest versions, those with a tag,
    /// those of which an allocation holds its place, and the newest stable one, to which the job
    /// goes back. Other stored versions are kept for allocations that have ended, and are no part
    /// of it; none of them is stable (`drop_old_versions`).
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

    /// When the servers stop an allocation that runs longer than its group may: later than its
    /// agent does. None: it does not run, or has no bound.
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

    /// The digest: the sum over all tables and the log time.
    pub fn digest(&self) -> Digest {
        let mut sum = Digest::default();
        for table in TableId::ALL {
            sum.add(self.table_digest(table).0);
        }
        sum.add(crate::digest::row_hash(&[0], &codec::encode(&self.head())));
        sum
    }

    /// All rows as they go to disk, table by table. The head goes beside them.
    pub fn frames(&self) -> impl Iterator<Item = (Vec<u8>, Bytes)> + '_ {
        self.stored_rows().map(|(key, row)| (key, row.frame()))
    }

    /// Builds the derived indexes after the last [`Self::load_row`].
    pub fn load_done(&mut self, head: Head) {
        self.load_changed(&head.tables);
        (self.index, self.term) = (head.index, head.term);
        (self.at, self.session_floor) = (head.at, head.session_floor);
        self.rebuild_derived();
    }
}
