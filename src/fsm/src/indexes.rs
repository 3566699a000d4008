//! The derived indexes of a [`State`]: lookups that follow from its rows and would otherwise need a
//! scan.
//!
//! They are never stored. Each change of a row updates them, [`State::rebuild_derived`] computes
//! them anew while loading, and [`crate::invariant`] compares the two in tests and in simulation.
//! An index that disagrees with a row is a bug: the replica stops and names the index before it
//! decides anything by it. No command can cause this, because a row is removed from the indexes
//! exactly as it was added.

use std::{collections::BTreeMap, sync::Arc};

use imbl::{OrdMap, OrdSet};

use crate::{
    allocation::{Allocation, ClientStatus, LiveName},
    deployment::Deployment,
    evaluation::Evaluation,
    id::{AllocationId, DeploymentId, EvaluationId, Index, JobKey, Text},
    job::{GroupSummary, Job},
    node::{Census, Node, Occupancy},
    pool::{Instance, InstancePool},
    resources::{NodeUsage, PortHolder, Resources},
    session::Session,
    state::State,
    table::ChangeSet,
};

/// The derived data of one job. A purged job keeps its entry while it has allocations or
/// evaluations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobIndex {
    /// Its allocations, of all incarnations.
    pub(crate) allocations: OrdSet<AllocationId>,
    pub(crate) evaluations: OrdSet<EvaluationId>,
    /// Names of live allocations: wanted and not ended.
    pub live_names: OrdMap<LiveName, AllocationId>,
    /// Allocations by (job create index, version). A version is kept while an allocation refers to
    /// it.
    pub versions: OrdMap<(Index, u64), VersionUse>,
    /// Counts by incarnation (the job's create index) and group; `queued` is in the job row
    /// instead.
    pub summary: BTreeMap<(Index, Text), GroupSummary>,
    /// Evaluations that are pending or blocked.
    pub open_evaluations: OrdSet<EvaluationId>,
    /// Its deployments, of all incarnations.
    pub deployments: OrdSet<DeploymentId>,
}

/// How many allocations run a version of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VersionUse {
    /// Those that ended included.
    pub all: u32,
    /// Those that hold their place ([`Allocation::holds_its_place`]).
    pub holding: u32,
}

impl JobIndex {
    /// Whether an allocation that holds its place runs this version.
    pub fn holds_place(&self, version: (Index, u64)) -> bool {
        self.versions.get(&version).is_some_and(|used| used.holding > 0)
    }

    /// Whether the job has no allocations, no evaluations and no deployments.
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty() && self.evaluations.is_empty() && self.deployments.is_empty()
    }

    /// Counts by group of the incarnation of this create index.
    pub fn summary_of(&self, create_index: Index) -> impl Iterator<Item = (&Text, &GroupSummary)> {
        let from = (create_index, Text::default());
        let of_it =
            self.summary.range(from..).take_while(move |((index, _), _)| *index == create_index);
        of_it.map(|((_, group), counts)| (group, counts))
    }
}

fn summary_key(allocation: &Allocation) -> (Index, Text) {
    (allocation.job_create_index, allocation.group.clone())
}

/// Stops the replica: a derived index does not agree with a row.
#[track_caller]
pub(crate) fn broken(index: &str, detail: std::fmt::Arguments<'_>) -> ! {
    panic!("derived index {index} is broken: {detail}")
}

impl State {
    /// Computes every derived index anew from the tables.
    pub fn rebuild_derived(&mut self) {
        self.usage = OrdMap::new();
        self.by_node = OrdMap::new();
        self.open_by_node = OrdMap::new();
        self.by_job = OrdMap::new();
        self.by_evaluation = OrdMap::new();
        self.run_deadlines = OrdSet::new();
        self.occupancy = Occupancy::default();
        self.census = Census::default();
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
        self.children = OrdMap::new();
        let children = self.jobs.iter().filter(|job| job.key.parent().is_some());
        for job in children.cloned().collect::<Vec<_>>() {
            self.index_child(None, Some(&job));
        }
        self.instances_by_pool = OrdMap::new();
        self.members_by_group = OrdMap::new();
        self.capacity_pools = self
            .instance_pools
            .iter()
            .flat_map(|pool| pool.groups.keys().map(|name| (name.clone(), pool.name.clone())))
            .collect();
        let instances: Vec<_> = self.instances.iter().cloned().collect();
        for row in instances {
            self.index_instance(&row, true);
        }
        let nodes: Vec<_> = self.nodes.iter().cloned().collect();
        for node in nodes {
            self.index_node(None, Some(&node));
        }
        let allocations: Vec<_> = self.allocations.iter().cloned().collect();
        for allocation in allocations {
            self.index_allocation(&allocation);
            self.count_allocation(None, Some(&allocation));
        }
        let evaluations: Vec<_> = self.evaluations.iter().cloned().collect();
        for evaluation in evaluations {
            self.index_evaluation(None, &evaluation);
        }
        let deployments: Vec<_> = self.deployments.iter().cloned().collect();
        for deployment in deployments {
            self.index_deployment(&deployment, true);
        }
    }

    /// Indexes a deployment row that is new or changed. The entry of the job is written in both
    /// cases: readers that wait for a change of the job watch it.
    pub(crate) fn index_deployment(&mut self, row: &Deployment, is_new: bool) {
        let entry = Arc::make_mut(self.by_job.entry(row.job.clone()).or_default());
        if entry.deployments.insert(row.id).is_none() != is_new {
            broken("deployments-by-job", format_args!("{} is new: {is_new}", row.id));
        }
    }

    /// Removes a deleted deployment row from the indexes.
    pub(crate) fn unindex_deployment(&mut self, row: &Deployment) {
        let index = job_index(&mut self.by_job, &row.job, "deployments-by-job");
        if index.deployments.remove(&row.id).is_none() {
            broken("deployments-by-job", format_args!("job {} lacks {}", row.job, row.id));
        }
        if index.is_empty() {
            self.by_job.remove(&row.job);
        }
    }

    /// Indexes a new job row, or one that replaces `old`.
    pub(crate) fn index_job(&mut self, old: Option<&Job>, job: &Job) {
        if job.kind.is_per_node() {
            let was_there = self.per_node_jobs.insert(job.key.clone()).is_some();
            if was_there != old.is_some() {
                broken("per-node-jobs", format_args!("job {} was there: {was_there}", job.key));
            }
        }
        self.index_child(old, Some(job));
    }

    /// Removes a deleted job row from the indexes.
    pub(crate) fn unindex_job(&mut self, job: &Job) {
        let was_there = self.per_node_jobs.remove(&job.key).is_some();
        if was_there != job.kind.is_per_node() {
            broken("per-node-jobs", format_args!("job {} was there: {was_there}", job.key));
        }
        self.index_child(Some(job), None);
    }

    /// Indexes a new evaluation row, or one that replaces `old`. The set is written even if the id
    /// is in it already: readers that wait for the job's evaluations watch this entry.
    pub(crate) fn index_evaluation(&mut self, old: Option<&Evaluation>, evaluation: &Evaluation) {
        let id = evaluation.id;
        let entry = Arc::make_mut(self.by_job.entry(evaluation.job.clone()).or_default());
        let was_there = entry.evaluations.insert(id).is_some();
        if was_there != old.is_some() {
            broken("evaluations-by-job", format_args!("evaluation {id} was there: {was_there}"));
        }
        let was_open = if evaluation.status.is_terminal() {
            entry.open_evaluations.remove(&id).is_some()
        } else {
            entry.open_evaluations.insert(id).is_some()
        };
        if was_open != old.is_some_and(|old| !old.status.is_terminal()) {
            broken("open-evaluations", format_args!("evaluation {id} was open: {was_open}"));
        }
    }

    /// Removes a deleted evaluation row from the indexes.
    pub(crate) fn unindex_evaluation(&mut self, evaluation: &Evaluation) {
        let (id, key) = (evaluation.id, &evaluation.job);
        let index = job_index(&mut self.by_job, key, "evaluations-by-job");
        if index.evaluations.remove(&id).is_none() {
            broken("evaluations-by-job", format_args!("job {key} lacks evaluation {id}"));
        }
        let was_open = index.open_evaluations.remove(&id).is_some();
        if was_open == evaluation.status.is_terminal() {
            broken("open-evaluations", format_args!("evaluation {id} was open: {was_open}"));
        }
        if index.is_empty() {
            self.by_job.remove(key);
        }
    }

    /// Indexes an allocation row that is new, or replaces `old`.
    pub(crate) fn index_changed_allocation(&mut self, old: Option<&Allocation>, new: &Allocation) {
        let Some(old) = old else { return self.index_allocation(new) };
        if !self.is_indexed_alike(old, new) {
            self.unindex_allocation(old);
            return self.index_allocation(new);
        }
        // Most reports of agents: another status, or how healthy it is. Readers that wait for a
        // change of the node's, the evaluation's or the job's allocations watch these three sets,
        // which are written therefore, and nothing else but the count of its status changes.
        let id = new.id;
        let touch = |set: Option<&mut OrdSet<AllocationId>>, name| {
            if set.and_then(|set| set.insert(id)).is_none() {
                broken(name, format_args!("{id} is not there"));
            }
        };
        touch(self.by_node.get_mut(&new.node), "allocations-by-node");
        touch(self.by_evaluation.get_mut(&new.evaluation), "allocations-by-evaluation");
        let index = job_index(&mut self.by_job, &new.job, "allocations-by-job");
        touch(Some(&mut index.allocations), "allocations-by-job");
        if old.client != new.client {
            let summary = index.summary.get_mut(&summary_key(new));
            let summary =
                summary.unwrap_or_else(|| broken("summary", format_args!("none of {id}")));
            take_one(summary_slot(summary, old.client), "summary", id);
            add_one(summary_slot(summary, new.client), "summary", id);
        }
    }

    /// Whether two rows of an allocation have the same place in all indexes but in the counts of
    /// statuses. Compares all that [`Self::index_allocation`] reads but the client status itself.
    fn is_indexed_alike(&self, old: &Allocation, new: &Allocation) -> bool {
        old.node == new.node
            && old.evaluation == new.evaluation
            && (old.job_create_index, old.job_version) == (new.job_create_index, new.job_version)
            && old.live_name() == new.live_name()
            && old.client.is_terminal() == new.client.is_terminal()
            && old.is_live() == new.is_live()
            && old.holds_its_place() == new.holds_its_place()
            && old.resources == new.resources
            && old.ports == new.ports
            && self.run_deadline(old) == self.run_deadline(new)
    }

    /// Indexes an allocation row that is in no index.
    pub(crate) fn index_allocation(&mut self, allocation: &Allocation) {
        let id = allocation.id;
        if let Some(deadline) = self.run_deadline(allocation) {
            self.run_deadlines.insert((deadline, id));
        }
        insert_into(&mut self.by_node, allocation.node, id, "allocations-by-node");
        if !allocation.client.is_terminal() {
            insert_into(&mut self.open_by_node, allocation.node, id, "open-allocations-by-node");
        }
        insert_into(
            &mut self.by_evaluation,
            allocation.evaluation,
            id,
            "allocations-by-evaluation",
        );
        let index = Arc::make_mut(self.by_job.entry(allocation.job.clone()).or_default());
        if index.allocations.insert(id).is_some() {
            broken("allocations-by-job", format_args!("allocation {id} is there already"));
        }
        // No check here that the name is free: the checks of a plan do that, and the invariant of
        // live names verifies it. A planted bug leaves the plan's checks out.
        if allocation.is_live() {
            index.live_names.insert(allocation.live_name(), id);
        }
        let version = (allocation.job_create_index, allocation.job_version);
        let used = index.versions.entry(version).or_default();
        add_one(&mut used.all, "versions", id);
        if allocation.holds_its_place() {
            add_one(&mut used.holding, "versions", id);
        }
        let summary = index.summary.entry(summary_key(allocation)).or_default();
        add_one(summary_slot(summary, allocation.client), "summary", id);
        let live = allocation.is_live();
        // An allocation that is being stopped and holds no port uses nothing, so it gets no entry.
        if !allocation.client.is_terminal() && (live || !allocation.ports.is_empty()) {
            let usage = Arc::make_mut(self.usage.entry(allocation.node).or_default());
            if live {
                usage.add(id, allocation.resources);
            }
            let holder = if live { PortHolder::Live } else { PortHolder::Stopping };
            for port in &allocation.ports {
                if usage.ports.insert((port.value, id), holder).is_some() {
                    broken("usage", format_args!("{id} holds port {} already", port.value));
                }
            }
        }
    }

    pub(crate) fn unindex_allocation(&mut self, allocation: &Allocation) {
        let id = allocation.id;
        if let Some(deadline) = self.run_deadline(allocation)
            && self.run_deadlines.remove(&(deadline, id)).is_none()
        {
            broken("run-deadlines", format_args!("none of {id}"));
        }
        remove_from(&mut self.by_node, &allocation.node, id, "allocations-by-node");
        if !allocation.client.is_terminal() {
            remove_from(&mut self.open_by_node, &allocation.node, id, "open-allocations-by-node");
        }
        let evaluation = &allocation.evaluation;
        remove_from(&mut self.by_evaluation, evaluation, id, "allocations-by-evaluation");
        let index = job_index(&mut self.by_job, &allocation.job, "allocations-by-job");
        if index.allocations.remove(&id).is_none() {
            broken("allocations-by-job", format_args!("{} lacks {id}", allocation.job));
        }
        let live = allocation.is_live();
        if live {
            let holder = index.live_names.remove(&allocation.live_name());
            if holder != Some(id) {
                broken("live-names", format_args!("{} of {id} is {holder:?}", allocation.name()));
            }
        }
        let version = (allocation.job_create_index, allocation.job_version);
        let used = index.versions.get_mut(&version);
        let used = used.unwrap_or_else(|| broken("versions", format_args!("none of {id}")));
        take_one(&mut used.all, "versions", id);
        if allocation.holds_its_place() {
            take_one(&mut used.holding, "versions", id);
        }
        if used.all == 0 {
            index.versions.remove(&version);
        }
        let key = summary_key(allocation);
        let summary = index.summary.get_mut(&key);
        let summary = summary.unwrap_or_else(|| broken("summary", format_args!("none of {id}")));
        take_one(summary_slot(summary, allocation.client), "summary", id);
        if *summary == GroupSummary::default() {
            index.summary.remove(&key);
        }
        if index.is_empty() {
            self.by_job.remove(&allocation.job);
        }
        if !allocation.client.is_terminal() && (live || !allocation.ports.is_empty()) {
            let usage = self.usage.get_mut(&allocation.node);
            let usage = usage.unwrap_or_else(|| broken("usage", format_args!("none of {id}")));
            let usage = Arc::make_mut(usage);
            if live {
                usage.take(id, allocation.resources);
            }
            for port in &allocation.ports {
                if usage.ports.remove(&(port.value, id)).is_none() {
                    broken("usage", format_args!("{id} does not hold port {}", port.value));
                }
            }
            if *usage == NodeUsage::default() {
                self.usage.remove(&allocation.node);
            }
        }
    }

    /// Updates the count of unfinished allocations when an allocation is added, changed or removed.
    pub(crate) fn count_allocation(&mut self, old: Option<&Allocation>, new: Option<&Allocation>) {
        let Some(row) = new.or(old) else { return };
        let counts = |row: Option<&Allocation>| row.is_some_and(|row| !row.client.is_terminal());
        let node = self.nodes.get(&row.node).map(AsRef::as_ref);
        match (counts(old), counts(new)) {
            (false, true) => self.occupancy.begins(row.node, node),
            (true, false) => self.occupancy.ends(row.node, node),
            (false, false) | (true, true) => {}
        }
    }

    /// Indexes a node row that is new, replaces `old`, or is deleted.
    pub(crate) fn index_node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        self.occupancy.node_changed(old, new);
        self.census.node_changed(old, new);
    }

    /// Indexes an instance row that is new or changed.
    pub(crate) fn index_instance(&mut self, row: &Instance, is_new: bool) {
        let ids = self.instances_by_pool.entry(row.pool.clone()).or_default();
        if ids.insert(row.id).is_none() != is_new {
            broken("instances-by-pool", format_args!("{} is new: {is_new}", row.id));
        }
        let Some(group) = row.group() else { return };
        let ids = self.members_by_group.entry(group.clone()).or_default();
        if ids.insert(row.id).is_none() != is_new {
            broken("members-by-group", format_args!("{} is new: {is_new}", row.id));
        }
    }

    /// Indexes the capacity groups of a pool row that is new, replaces `old`, or is deleted.
    pub(crate) fn index_capacity(
        &mut self,
        old: Option<&InstancePool>,
        new: Option<&InstancePool>,
    ) {
        let names = |pool: Option<&InstancePool>| {
            let groups = pool.map(|pool| pool.groups.keys().cloned().collect::<Vec<_>>());
            groups.unwrap_or_default()
        };
        for name in names(old) {
            if self.capacity_pools.remove(&name).is_none() {
                broken("capacity-pools", format_args!("group {name} is not there"));
            }
        }
        for name in names(new) {
            let pool = new.map(|pool| pool.name.clone()).unwrap_or_default();
            if self.capacity_pools.insert(name.clone(), pool).is_some() {
                broken("capacity-pools", format_args!("group {name} is there already"));
            }
        }
    }

    /// Removes a deleted instance row from the indexes.
    pub(crate) fn unindex_instance(&mut self, row: &Instance) {
        let Some(ids) = self.instances_by_pool.get_mut(&row.pool) else {
            broken("instances-by-pool", format_args!("no pool of {}", row.id))
        };
        if ids.remove(&row.id).is_none() {
            broken("instances-by-pool", format_args!("{} is not there", row.id));
        }
        if ids.is_empty() {
            self.instances_by_pool.remove(&row.pool);
        }
        let Some(group) = row.group() else { return };
        let Some(ids) = self.members_by_group.get_mut(group) else {
            broken("members-by-group", format_args!("no group of {}", row.id))
        };
        if ids.remove(&row.id).is_none() {
            broken("members-by-group", format_args!("{} is not there", row.id));
        }
        if ids.is_empty() {
            self.members_by_group.remove(group);
        }
    }

    pub(crate) fn put_session(&mut self, session: Session, changes: &mut ChangeSet) {
        let time = (session.request.stamped_at, session.request.id);
        if let Some(old) = self.sessions.get(&session.request.id) {
            self.sessions_by_time.remove(&(old.request.stamped_at, old.request.id));
        }
        if self.sessions_by_time.insert(time).is_some() {
            broken("sessions-by-time", format_args!("request {} is there already", time.1));
        }
        self.sessions.put(session, changes);
    }
}

impl NodeUsage {
    /// Adds a live allocation. The sum cannot overflow: the checks of a plan drop a placement whose
    /// sum would.
    fn add(&mut self, id: AllocationId, resources: Resources) {
        self.resources = self.resources.checked_plus(resources).unwrap_or_else(|dimension| {
            broken("usage", format_args!("{} overflows with {id}", dimension.name()))
        });
        add_one(&mut self.allocations, "usage", id);
    }

    /// Subtracts a live allocation.
    pub(crate) fn take(&mut self, id: AllocationId, resources: Resources) {
        self.resources = self.resources.checked_minus(resources).unwrap_or_else(|dimension| {
            broken("usage", format_args!("{} is too small to hold {id}", dimension.name()))
        });
        take_one(&mut self.allocations, "usage", id);
    }

    /// Counts a live allocation as one that is being stopped.
    pub(crate) fn evict(&mut self, row: &Allocation) {
        self.take(row.id, row.resources);
        for port in &row.ports {
            self.ports.insert((port.value, row.id), PortHolder::Stopping);
        }
    }
}

fn job_index<'a>(
    by_job: &'a mut OrdMap<JobKey, Arc<JobIndex>>,
    key: &JobKey,
    name: &str,
) -> &'a mut JobIndex {
    let Some(index) = by_job.get_mut(key) else { broken(name, format_args!("no job {key}")) };
    Arc::make_mut(index)
}

fn insert_into<K: Ord + Clone + std::fmt::Display>(
    map: &mut OrdMap<K, OrdSet<AllocationId>>,
    key: K,
    id: AllocationId,
    name: &str,
) {
    if map.entry(key.clone()).or_default().insert(id).is_some() {
        broken(name, format_args!("{key} has {id} already"));
    }
}

fn remove_from<K: Ord + Clone + std::fmt::Display>(
    map: &mut OrdMap<K, OrdSet<AllocationId>>,
    key: &K,
    id: AllocationId,
    name: &str,
) {
    let Some(set) = map.get_mut(key) else {
        broken(name, format_args!("no {key}, which has {id}"))
    };
    if set.remove(&id).is_none() {
        broken(name, format_args!("{key} lacks {id}"));
    }
    if set.is_empty() {
        map.remove(key);
    }
}

fn add_one(count: &mut u32, name: &str, id: AllocationId) {
    let more = count.checked_add(1);
    *count = more.unwrap_or_else(|| broken(name, format_args!("a count overflows with {id}")));
}

fn take_one(count: &mut u32, name: &str, id: AllocationId) {
    let less = count.checked_sub(1);
    *count = less.unwrap_or_else(|| broken(name, format_args!("a count is 0 and {id} goes")));
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
