//! What a node has free, and the least that one instance of a blocked evaluation takes.
//!
//! A gain on a node helps an evaluation only by an instance that is placed there. So one whose
//! smallest instance is larger than the node's free room need not be tried. What is not known of an
//! evaluation is taken to fit; whether it does is for the scheduler to say.

use std::collections::BTreeMap;

use fsm::{
    Allocation, Evaluation, JobKey, JobSpec, Node, NodeId, State, Trigger, plan::is_preemptible,
    resources::Resources,
};

/// Free room, or room that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Room {
    pub(super) resources: Resources,
    /// Instances; only a node with `allocations_max` has few.
    pub(super) slots: u32,
}

impl Room {
    #[must_use]
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            resources: self.resources.plus(other.resources),
            slots: self.slots.saturating_add(other.slots),
        }
    }

    #[must_use]
    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            resources: self.resources.minus(other.resources),
            slots: self.slots.saturating_sub(other.slots),
        }
    }

    /// What is in both.
    #[must_use]
    pub(super) fn least(self, other: Self) -> Self {
        Self {
            resources: smaller(self.resources, other.resources),
            slots: self.slots.min(other.slots),
        }
    }

    #[must_use]
    fn of(row: &Allocation) -> Self {
        Self { resources: row.resources, slots: 1 }
    }

    #[must_use]
    pub(super) fn times(self, factor: u32) -> Self {
        let of = |amount: u64| amount.saturating_mul(u64::from(factor));
        let Resources { cpu_mhz, memory_mb, disk_mb } = self.resources;
        let resources =
            Resources { cpu_mhz: of(cpu_mhz), memory_mb: of(memory_mb), disk_mb: of(disk_mb) };
        Self { resources, slots: self.slots.saturating_mul(factor) }
    }
}

/// What evaluations have in common for which the same room is enough. The order has no meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Shape {
    /// Cpu, memory and disk, each the least that an instance takes; none: nothing is known, and any
    /// room is enough.
    least: Option<(u64, u64, u64)>,
    /// Priority of a job that may evict others.
    evicts: Option<u16>,
}

impl Shape {
    /// With the number of instances that lack, as far as it is known.
    pub(super) fn of(state: &State, row: &Evaluation) -> (Self, u32) {
        let unknown = Self { least: None, evicts: None };
        let job = state.jobs().get(&row.job);
        let Some((job, spec)) = job.and_then(|job| Some((job, state.current_spec(job)?))) else {
            return (unknown, 0);
        };
        // One whose plans were rejected found room; one of an older spec lacks something else.
        let is_known =
            row.trigger != Trigger::MaxPlans && row.job_modify_index == job.job_modify_index;
        if !is_known || spec.kind.is_per_node() {
            return (unknown, 0);
        }
        let versions = state.versions_of(&row.job, job.create_index);
        // An end frees a property on other nodes as well.
        if versions.iter().any(|version| asks_for_property(&version.spec)) {
            return (unknown, 0);
        }
        let queued = row.queued.iter().filter(|(_, count)| **count > 0).map(|(name, _)| name);
        let mut least: Option<Resources> = None;
        for name in queued.chain(row.failed_groups.keys()) {
            // Also an instance of an older version may be lacking.
            let of_versions = versions.iter().filter_map(|version| version.spec.group(name));
            let mut asks = of_versions.map(Resources::of_group).peekable();
            if asks.peek().is_none() {
                return (unknown, 0);
            }
            least = asks.chain(least).reduce(smaller);
        }
        let count = row.queued.values().fold(0, |sum: u32, count| sum.saturating_add(*count));
        let preemption = &state.scheduler_configuration().preemption;
        let least = least.map(|ask| (ask.cpu_mhz, ask.memory_mb, ask.disk_mb));
        (Self { least, evicts: preemption.allows(spec.kind).then_some(spec.priority) }, count)
    }

    fn ask(&self) -> Option<Room> {
        let (cpu_mhz, memory_mb, disk_mb) = self.least?;
        Some(Room { resources: Resources { cpu_mhz, memory_mb, disk_mb }, slots: 1 })
    }

    pub(super) fn fits(&self, room: Room) -> bool {
        self.ask().is_none_or(|ask| {
            ask.resources.exceeds(room.resources).is_none() && ask.slots <= room.slots
        })
    }

    /// What `count` instances take of this room, or as many as fit, but at least one.
    pub(super) fn share(&self, room: Room, count: u32) -> Room {
        let Some(ask) = self.ask() else { return Room::default() };
        let times = |have: u64, asked: u64| have.checked_div(asked).unwrap_or(u64::MAX);
        let (have, asked) = (room.resources, ask.resources);
        let most = times(have.cpu_mhz, asked.cpu_mhz)
            .min(times(have.memory_mb, asked.memory_mb))
            .min(times(have.disk_mb, asked.disk_mb));
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(room.slots);
        ask.times(count.min(most).max(1))
    }
}

fn smaller(one: Resources, other: Resources) -> Resources {
    Resources {
        cpu_mhz: one.cpu_mhz.min(other.cpu_mhz),
        memory_mb: one.memory_mb.min(other.memory_mb),
        disk_mb: one.disk_mb.min(other.disk_mb),
    }
}

fn asks_for_property(spec: &JobSpec) -> bool {
    let groups = spec.groups.iter();
    let of_groups = groups.flat_map(|group| {
        group.constraints.iter().chain(group.tasks.iter().flat_map(|task| &task.constraints))
    });
    let mut all = spec.constraints.iter().chain(of_groups);
    all.any(|constraint| &*constraint.operand == "distinct_property")
}

/// A node that takes new work, and its room now.
pub(super) struct OpenNode<'a> {
    state: &'a State,
    pub(super) node: &'a Node,
    pub(super) free: Room,
    /// By priority of who evicts: what it may evict here.
    evictable: BTreeMap<u16, Room>,
}

impl<'a> OpenNode<'a> {
    pub(super) fn find(state: &'a State, id: NodeId) -> Option<Self> {
        let node = state.nodes().get(&id).filter(|node| node.is_schedulable())?;
        let (usage, resources) = (state.usage(id), &node.description.resources);
        let slots = match resources.allocations_max {
            0 => u32::MAX,
            most => most.saturating_sub(usage.allocations),
        };
        let free = Room { resources: resources.available().minus(usage.resources), slots };
        Some(Self { state, node, free, evictable: BTreeMap::new() })
    }

    fn rows(&self) -> impl Iterator<Item = &'a Allocation> + use<'a> {
        let rows = self.state.open_allocations_of_node(self.node.id);
        rows.filter(|row| row.is_live()).map(|row| &**row)
    }

    /// Jobs that have instances here.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &'a JobKey> + use<'a> {
        self.rows().map(|row| &row.job)
    }

    /// What a job's own instances hold here: one may be replaced by another.
    pub(super) fn held_by(&self, job: &JobKey) -> Room {
        self.rows()
            .filter(|row| row.job == *job)
            .fold(Room::default(), |sum, row| sum.plus(Room::of(row)))
    }

    /// What a shape may have beside the free room, by evicting others.
    pub(super) fn evictable(&mut self, shape: &Shape) -> Room {
        let Some(priority) = shape.evicts else { return Room::default() };
        if let Some(known) = self.evictable.get(&priority) {
            return *known;
        }
        // Own instances count elsewhere, and are no less room.
        let nobody = JobKey::new("", "");
        let may_go = self.rows().filter(|row| is_preemptible(self.state, row, &nobody, priority));
        let sum = may_go.fold(Room::default(), |sum, row| sum.plus(Room::of(row)));
        self.evictable.insert(priority, sum);
        sum
    }

    /// Whether something of a job was placed here after an index.
    pub(super) fn has_new(&self, job: &JobKey, since: u64) -> bool {
        self.rows().any(|row| row.job == *job && row.create_index > since)
    }
}
