//! What waits for machines: blocked evaluations, and what their groups need.
//!
//! Each is looked at once when it, its job or its pool changes; after that it is a few numbers. An
//! evaluation that is about one node (a system job's) is no demand, and neither is one of
//! allocations that a mass loss took, while that lasts.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    ClassId, Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, JobKind, State, Text,
    Trigger,
    pool::{InstancePool, InstanceType},
    resources::Resources,
};
use scheduler::{Declared, per_node_max};

use crate::{
    choice::{Choice, Chosen},
    overhead::{Overhead, Room, static_ports},
};

/// What one group of a blocked evaluation needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    pub group: Text,
    /// Of one instance of the group.
    pub resources: Resources,
    /// Instances that could not be placed.
    pub count: u32,
    /// Most of them on one machine, room aside.
    pub per_machine_max: u32,
    /// Static ports that each takes.
    pub ports: BTreeSet<u16>,
    /// Names of the types that may run it and have room for one of it.
    pub types: BTreeSet<Text>,
    /// Why none may, if none may.
    pub why_none: Option<Text>,
}

/// A blocked evaluation of a pool's job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    pub evaluation: EvaluationId,
    pub job: JobKey,
    pub job_modify_index: Index,
    /// What it has seen.
    pub snapshot_index: Index,
    /// Classes of nodes on which it cannot run: a machine of one does not wake it.
    pub ruled_out: BTreeSet<ClassId>,
    pub needs: Vec<Need>,
    /// Until when types that did not help are left out; none: no type is.
    pub unhelped_until: Option<u64>,
}

/// When a machine that is there last gained room, and the class of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gained {
    pub index: Index,
    pub class: ClassId,
}

impl Waiting {
    /// Whether the evaluation has looked at a machine as it is now, or never will: a gain of a
    /// class that it has ruled out does not wake it.
    pub fn has_seen(&self, gained: Gained) -> bool {
        gained.index <= self.snapshot_index || self.ruled_out.contains(&gained.class)
    }

    /// Whether the evaluation waits in this state as it did when it was taken in. The state may be
    /// newer than the effects that were heard of: in it the evaluation may have been placed, and
    /// its instances fill the machine that came for them.
    pub fn still_waits(&self, state: &State) -> bool {
        state.evaluations().get(&self.evaluation).is_some_and(|row| {
            row.status == EvaluationStatus::Blocked && row.snapshot_index == self.snapshot_index
        })
    }

    /// Machines of these types are no help.
    pub fn forget_types(&mut self, types: &[Text]) {
        for need in &mut self.needs {
            need.types.retain(|kind| !types.contains(kind));
        }
    }
}

type Place = (Reverse<u16>, Index, EvaluationId);

/// The blocked evaluations of all pools.
#[derive(Default, Debug)]
pub struct Demand {
    /// Pool and place in its order: priority, then age.
    known: BTreeMap<EvaluationId, (Text, Place)>,
    by_pool: BTreeMap<Text, BTreeMap<Place, Arc<Waiting>>>,
    by_job: BTreeMap<JobKey, BTreeSet<EvaluationId>>,
    /// The node pools of system jobs.
    system_jobs: BTreeMap<JobKey, Text>,
}

impl Demand {
    /// What waits for a pool, the first in line first.
    pub fn of(&self, pool: &str) -> impl Iterator<Item = &Arc<Waiting>> {
        self.by_pool.get(pool).into_iter().flat_map(BTreeMap::values)
    }

    /// How many evaluations wait for a pool.
    pub fn count(&self, pool: &str) -> usize {
        self.by_pool.get(pool).map_or(0, BTreeMap::len)
    }

    /// An evaluation is new, has changed or went. Answers with the pools that are concerned.
    pub fn evaluation_changed(&mut self, state: &State, id: EvaluationId) -> Vec<Text> {
        let mut pools = Vec::new();
        pools.extend(self.forget(id));
        if let Some(row) = state.evaluations().get(&id)
            && let Some((pool, waiting)) = waiting(state, state.at(), row)
        {
            let place = (Reverse(row.priority), row.create_index, id);
            self.known.insert(id, (pool.clone(), place));
            self.by_job.entry(row.job.clone()).or_default().insert(id);
            let waiting = Arc::new(waiting);
            self.by_pool.entry(pool.clone()).or_default().insert(place, waiting);
            pools.push(pool);
        }
        pools
    }

    /// Looks again at what waits for a pool and left out types for a time that is over now.
    pub fn renew(&mut self, state: &State, now: u64, pool: &str) {
        let is_over = |one: &&Arc<Waiting>| one.unhelped_until.is_some_and(|until| until <= now);
        let over: Vec<_> = self.of(pool).filter(is_over).map(|one| one.evaluation).collect();
        for id in over {
            let row = state.evaluations().get(&id);
            let Some((_, waiting)) = row.and_then(|row| waiting(state, now, row)) else { continue };
            if let Some((pool, place)) = self.known.get(&id)
                && let Some(known) = self.by_pool.get_mut(pool).and_then(|all| all.get_mut(place))
            {
                *known = Arc::new(waiting);
            }
        }
    }

    /// A job has changed: what its evaluations need may be something else.
    pub fn job_changed(&mut self, state: &State, job: &JobKey) -> Vec<Text> {
        let of_system = self.system_job_changed(state, job);
        if !of_system.is_empty() {
            return of_system;
        }
        let ids = self.by_job.get(job).cloned().unwrap_or_default();
        ids.into_iter().flat_map(|id| self.evaluation_changed(state, id)).collect()
    }

    /// A system job is new, has changed or went: it takes room of every machine of its pools, so
    /// that all that waits there needs something else. Answers with the pools.
    fn system_job_changed(&mut self, state: &State, job: &JobKey) -> Vec<Text> {
        let row = state.jobs().get(job);
        let spec = row.and_then(|row| state.current_spec(row));
        let now = spec.filter(|spec| spec.kind == JobKind::System).map(|spec| &spec.node_pool);
        let mut fed: BTreeSet<Text> = now.cloned().into_iter().collect();
        fed.extend(self.system_jobs.remove(job));
        if let Some(pool) = now {
            self.system_jobs.insert(job.clone(), pool.clone());
        }
        let is_fed = |pool: &Text| fed.contains(pool) || fed.contains("all");
        let pools: Vec<Text> = self.by_pool.keys().filter(|pool| is_fed(pool)).cloned().collect();
        for pool in &pools {
            self.pool_changed(state, pool);
        }
        pools
    }

    /// A pool is new, has changed or went. Cost: all open evaluations.
    pub fn pool_changed(&mut self, state: &State, pool: &Text) {
        let known: Vec<_> =
            self.by_pool.get(pool).into_iter().flatten().map(|(place, _)| place.2).collect();
        for id in known {
            self.forget(id);
        }
        for row in state.evaluations().iter() {
            if row.status == EvaluationStatus::Blocked && !self.known.contains_key(&row.id) {
                self.evaluation_changed(state, row.id);
            }
        }
    }

    /// Takes everything over from the state.
    pub fn restore(&mut self, state: &State) {
        *self = Self::default();
        for key in state.per_node_jobs() {
            self.system_job_changed(state, key);
        }
        for row in state.evaluations().iter() {
            self.evaluation_changed(state, row.id);
        }
    }

    fn forget(&mut self, id: EvaluationId) -> Option<Text> {
        let (pool, place) = self.known.remove(&id)?;
        let of_pool = self.by_pool.get_mut(&pool)?;
        let waiting = of_pool.remove(&place)?;
        if of_pool.is_empty() {
            self.by_pool.remove(&pool);
        }
        if let Some(ids) = self.by_job.get_mut(&waiting.job) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_job.remove(&waiting.job);
            }
        }
        Some(pool)
    }
}

/// What an evaluation needs of which pool at log time `now`; none: it waits for no machine.
pub fn waiting(state: &State, now: u64, row: &Evaluation) -> Option<(Text, Waiting)> {
    if row.status != EvaluationStatus::Blocked || row.node.is_some() || row.kind.is_per_node() {
        return None;
    }
    let job = state.jobs().get(&row.job).filter(|job| !job.stop)?;
    let spec = state.current_spec(job)?;
    let pool = state.instance_pools().get(&spec.node_pool)?;
    let unhelped = state.unhelped_by(&row.job, job.job_modify_index, now);
    let overhead = Overhead::of(state, pool);
    let mut declared = Declared::new(spec);
    let mut needs = Vec::new();
    for (number, group) in spec.groups.iter().enumerate() {
        let count = row.queued.get(&group.name).copied().unwrap_or(0);
        if count == 0 {
            continue;
        }
        let resources = Resources::of_group(group);
        let ports = static_ports(group);
        let mut why_not = None;
        let mut types = BTreeSet::new();
        for kind in pool.types.values() {
            let may_run = declared.check(number, kind.description(&pool.name));
            let is_unhelped = unhelped.is_some_and(|row| row.types.contains(&kind.name));
            let why_no_room = no_room(pool, &overhead, kind, resources, &ports);
            let has_room = why_no_room.is_none();
            match may_run {
                Ok(()) if has_room && !is_unhelped => {
                    types.insert(kind.name.clone());
                }
                Ok(()) if has_room => {
                    why_not = Some(
                        format!(
                            "a machine of type \"{}\" came and the job stayed blocked: its \
                             declared node differs from the real one, or others hold it; {}",
                            kind.name,
                            unhelped.map_or_else(String::new, |row| tried_again(now, row.until)),
                        )
                        .into(),
                    );
                }
                Ok(()) => {
                    why_not = why_not.or(why_no_room);
                }
                Err(why) => {
                    let text = format!("no type of pool \"{}\" meets: {why}", pool.name);
                    why_not.get_or_insert_with(|| text.into());
                }
            }
        }
        needs.push(Need {
            group: group.name.clone(),
            resources,
            count,
            per_machine_max: per_node_max(spec, group),
            ports,
            why_none: why_not.filter(|_| types.is_empty()),
            types,
        });
    }
    let waiting = Waiting {
        evaluation: row.id,
        job: row.job.clone(),
        job_modify_index: job.job_modify_index,
        snapshot_index: row.snapshot_index,
        ruled_out: ruled_out(row),
        needs,
        unhelped_until: unhelped.map(|row| row.until),
    };
    Some((pool.name.clone(), waiting))
}

/// Why a new machine of a type has no room for an instance of a group, beside what runs on every
/// machine.
fn no_room(
    pool: &InstancePool,
    overhead: &Overhead,
    kind: &InstanceType,
    asked: Resources,
    ports: &BTreeSet<u16>,
) -> Option<Text> {
    if asked.exceeds(kind.resources()).is_some() {
        return Some(crate::sizes::too_small(pool, asked));
    }
    let room = overhead.room(kind);
    let name = &kind.name;
    if let Some(port) = ports.intersection(&room.ports).next() {
        let holder = overhead.holder_of(name, *port).map_or("", |job| &*job.id);
        let text = format!(
            "port {port} is taken on each machine of type \"{name}\" by system job \"{holder}\""
        );
        return Some(text.into());
    }
    if room.slots == 0 {
        let text = format!("a machine of type \"{name}\" takes no more than its system jobs");
        return Some(text.into());
    }
    asked.exceeds(room.resources)?;
    let text = format!("a machine of type \"{name}\" has no room beside the pool's system jobs");
    Some(text.into())
}

/// `tried again at 12:00:00`.
fn tried_again(now: u64, until: u64) -> String {
    format!("tried again at {}", crate::explain::clock(now, until))
}

/// Classes whose gains do not wake an evaluation, by the rule of the leader's blocked evaluations.
/// One that ran out of attempts is tried again after a while, whatever it has ruled out.
fn ruled_out(row: &Evaluation) -> BTreeSet<ClassId> {
    if row.escaped || row.trigger == Trigger::MaxPlans {
        return BTreeSet::new();
    }
    let classes = row.class_eligibility.iter();
    classes.filter(|(_, is_eligible)| !**is_eligible).map(|(class, _)| *class).collect()
}

/// Whether an evaluation waits only for what a mass loss took, while that lasts: its machines are
/// more likely to come back than to be gone.
pub fn is_of_mass_loss(state: &State, id: EvaluationId) -> bool {
    let Some(loss) = state.mass_loss() else { return false };
    let mut next = Some(id);
    // A blocked evaluation follows the one that found no room; few are between it and the cause.
    for _ in 0..4 {
        let Some(row) = next.and_then(|id| state.evaluations().get(&id)) else { return false };
        if row.trigger == Trigger::NodeUpdate {
            return row.create_index >= loss.create_index;
        }
        next = row.previous;
    }
    false
}

/// A machine that is there, or is coming, as far as it can take more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bin {
    pub kind: Text,
    pub room: Room,
    /// None: no evaluation has seen it.
    pub gained: Option<Gained>,
    /// It was idle for as long as an idle machine is kept: it is counted on only by what nothing
    /// cheaper can be made for.
    pub is_spent: bool,
}

/// What waits and how it is met.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Packed {
    /// Types of machines to make, in order, with the job that needs each first.
    pub wanted: Vec<(Text, JobKey)>,
    /// Bins that something waits for, by place.
    pub used: BTreeSet<usize>,
    /// Types that something waits for, met or not.
    pub types: BTreeSet<Text>,
    /// No type that something could run on may be made.
    pub is_limited: bool,
    /// Something could run on a new machine, and there are as many as may be.
    pub is_full: bool,
    /// Something could run on a new machine, which would cost more than may be.
    pub is_too_dear: bool,
}

/// What may be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Machines.
    pub most: usize,
    /// What they may cost in an hour; none: anything.
    pub price_micro: Option<u64>,
}

impl Budget {
    /// Takes a machine out of it, unless it is too dear.
    pub(crate) fn pays(&mut self, kind: &InstanceType) -> bool {
        let Some(left) = &mut self.price_micro else { return true };
        let Some(rest) = left.checked_sub(kind.price_micro) else { return false };
        *left = rest;
        true
    }
}

/// Packs what waits, in order, into the machines that are there or coming, and the rest into new
/// ones of types that `may_make` allows, within a budget.
pub fn pack<'a>(
    pool: &InstancePool,
    overhead: &Overhead,
    waiting: impl IntoIterator<Item = &'a Arc<Waiting>>,
    mut bins: Vec<Bin>,
    budget: Budget,
    may_make: impl Fn(&Text) -> bool,
) -> Packed {
    let mut packed = Packed::default();
    let mut choice = Choice::new(pool, overhead);
    // Needs of a size for which no bin is left: the next of that size looks at later bins only. One
    // of an older snapshot may use bins that this one has seen already, and looks at all.
    let mut searched: BTreeMap<Size<'_>, (usize, Index)> = BTreeMap::new();
    for one in waiting {
        for need in &one.needs {
            let mut left = need.count;
            packed.types.extend(need.types.iter().cloned());
            let size = Size::of(need, &one.ruled_out);
            let known = searched.get(&size).copied();
            let from = known.filter(|(_, snapshot)| *snapshot <= one.snapshot_index);
            let from = from.map_or(0, |(position, _)| position);
            for (position, bin) in bins.iter_mut().enumerate().skip(from) {
                if left == 0 {
                    break;
                }
                let is_new = bin.gained.is_none_or(|gained| !one.has_seen(gained));
                if !is_new || !need.types.contains(&bin.kind) {
                    continue;
                }
                if bin.is_spent && choice.has_cheaper(need, &bin.kind, &may_make) {
                    continue;
                }
                let fits = bin.room.fitting(need).min(left);
                if fits > 0 {
                    left -= fits;
                    bin.room.place(need, fits);
                    packed.used.insert(position);
                }
            }
            if left > 0 {
                searched.insert(size, (bins.len(), one.snapshot_index));
                let is_made =
                    need.types.is_empty() || choice.add(need, (&one.job, left), &may_make);
                packed.is_limited |= !is_made;
            }
        }
    }
    let Chosen { machines, is_full, is_too_dear, .. } = choice.machines(budget);
    Packed { wanted: machines, is_full, is_too_dear, ..packed }
}

/// What needs that fit into the same bins have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Size<'a>(u64, u64, u64, u32, &'a BTreeSet<u16>, &'a BTreeSet<Text>, &'a BTreeSet<ClassId>);

impl<'a> Size<'a> {
    fn of(need: &'a Need, ruled_out: &'a BTreeSet<ClassId>) -> Self {
        let Resources { cpu_mhz, memory_mb, disk_mb } = need.resources;
        let most = need.per_machine_max;
        Self(cpu_mhz, memory_mb, disk_mb, most, &need.ports, &need.types, ruled_out)
    }
}
