//! Grows a pool by what is wanted, and shrinks it by what idles.
//!
//! ```text
//!  blocked evaluations ─┐            ┌─ machines to make ───► RequestInstances
//!  capacity groups ─────┤
//!  the pool's min ──────┴─► Wanted ──┤
//!                                    └─ machines in use ────► what is left idles out or makes room
//! ```
//! Each source of demand adds to [`Wanted`] what it lacks beyond what the sources before it take. A
//! new source is one more function between them; what is made and what goes is decided once, from
//! the sum.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Command, Instance, InstanceId, InstancePool, InstanceState, JobKey, State, Text,
    plant::{Plant, is_planted},
    pool::{
        BY_POOL, Behavior, InstanceType, Intent, LimitClass, LimitPool, NoteUnhelped,
        RequestInstances, SetInstanceBehavior, ShutdownCause,
    },
};

use super::{
    ASK_AGAIN_MS, Fleet, Look,
    bins::{Idle, bins, idle_machines, idle_since, is_ready},
    duty::is_in_mass_loss,
    shut_down,
};
use crate::{
    demand::{Budget, Gained, Need, Waiting, is_of_mass_loss, pack},
    limits,
    overhead::Overhead,
    sizes,
};

/// Intents of one pool in one entry.
const INTENTS_MAX: usize = 64;
/// Jobs that are noted as not helped, and instances that are shut down or set to drain, in a look.
const NOTES_MAX: usize = 16;

/// Types of a pool that were proposed as no help to a job, and until when that is waited for.
#[derive(Debug)]
pub(super) struct AskedNote {
    types: Vec<Text>,
    pub(super) until: u64,
}

/// What a pool may make in one look.
pub(super) struct Room {
    /// Machines.
    pub(super) most: usize,
    /// The pool's max is why it is not more: an idle machine is in the way.
    pub(super) is_at_max: bool,
    /// Types that a limit of the provider stops, or boots that failed.
    limited: BTreeSet<Text>,
    /// What all that is made now may cost in an hour; none: no limit.
    price_left: Option<u64>,
}

impl Room {
    /// `is_kept`: what is known of failures counts.
    fn new(look: &mut Look<'_>, pool: &InstancePool, is_kept: bool) -> Self {
        let mut limited = BTreeSet::new();
        for kind in pool.types.values() {
            if let Some(limit) = look.state.limit_on(&pool.name, kind, look.now) {
                look.due(limit.until);
                limited.insert(kind.name.clone());
            }
            let backoff = look.state.backoff_on(pool, &kind.name, look.now);
            if let Some(backoff) = backoff.filter(|_| is_kept) {
                look.due(backoff.until);
                limited.insert(kind.name.clone());
            }
        }
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let below_max = number(pool.max).saturating_sub(look.rows.len());
        let mut most = below_max.min(INTENTS_MAX);
        if pool.max_concurrent_creates > 0 {
            let requested =
                look.rows.iter().filter(|row| row.state == InstanceState::Requested).count();
            most = most.min(number(pool.max_concurrent_creates).saturating_sub(requested));
        }
        let of_past = left_by_past(look, pool, is_kept);
        let price_left = (pool.max_price_micro > 0)
            .then(|| pool.max_price_micro.saturating_sub(look.state.price_of_pool(&pool.name)));
        most = most.min(of_past);
        Self { most, is_at_max: most == below_max, limited, price_left }
    }

    /// What may still be spent beside the machines that are planned.
    pub(super) fn price_beside(&self, pool: &InstancePool, new: &[NewMachine]) -> Option<u64> {
        let price = |one: &NewMachine| pool.types.get(&one.kind).map_or(0, |kind| kind.price_micro);
        let planned = new.iter().map(price).fold(0, u64::saturating_add);
        self.price_left.map(|left| left.saturating_sub(planned))
    }

    /// How many more machines of a type may be made beside those that are planned.
    pub(super) fn beside(
        &self,
        pool: &InstancePool,
        kind: &InstanceType,
        new: &[NewMachine],
    ) -> usize {
        let most = self.most.saturating_sub(new.len());
        let price_left = self.price_beside(pool, new);
        let by_price = price_left.and_then(|left| left.checked_div(kind.price_micro));
        by_price.map_or(most, |count| most.min(usize::try_from(count).unwrap_or(usize::MAX)))
    }

    pub(super) fn may_make(&self, kind: &Text) -> bool {
        !self.limited.contains(kind)
    }
}

/// A machine to make.
pub(super) struct NewMachine {
    pub(super) kind: Text,
    /// The job that needs it first; none: no job does.
    pub(super) wanted_by: Option<JobKey>,
    /// The capacity group that it will be a member of.
    pub(super) group: Option<Text>,
}

/// What the sources of demand want of a pool.
#[derive(Default)]
pub(super) struct Wanted {
    /// In order.
    pub(super) new: Vec<NewMachine>,
    /// Instances that are there or coming and that something waits for.
    used: BTreeSet<InstanceId>,
    /// Types that something waits for, met or not.
    types: BTreeSet<Text>,
    /// Something could run on a type of the pool, and the pool's max or a limit is in the way.
    pub(super) is_stuck: bool,
}

impl Fleet {
    /// Grows the pool by what waits, and shrinks it by what idles.
    pub(super) fn balance(&mut self, look: &mut Look<'_>, pool: &InstancePool) {
        self.end_own_drains(look, pool);
        let room = Room::new(look, pool, self.remembers(look.state, pool));
        let mut wanted = Wanted::default();
        self.want_for_jobs(look, pool, &room, &mut wanted);
        self.want_for_groups(look, pool, &room, &mut wanted);
        want_minimum(look, pool, &room, &mut wanted);
        if !self.configured.contains_key(&pool.provider) {
            let is_idle = wanted.new.is_empty() && look.rows.is_empty();
            if !is_idle && room.limited.is_empty() {
                look.commands.push(not_configured(pool));
                look.due(look.now.saturating_add(ASK_AGAIN_MS));
            }
            return;
        }
        self.request(look, pool, std::mem::take(&mut wanted.new));
        if self.is_warm(look.now) {
            self.shrink(look, pool, &wanted);
        }
    }

    /// What the pool drains itself, for its max or because a type was taken out, runs again when
    /// the reason is gone: the file was put right, or others went.
    fn end_own_drains(&mut self, look: &mut Look<'_>, pool: &InstancePool) {
        let is_own = |row: &&Arc<Instance>| {
            row.behavior == Behavior::Drain
                && &*row.behavior_by == BY_POOL
                && row.state != InstanceState::ShuttingDown
        };
        // Also what goes already counts against the max.
        let count = look.rows.iter().filter(|row| !is_own(row)).count();
        let room = usize::try_from(pool.max).unwrap_or(usize::MAX).saturating_sub(count);
        let mut drained: Vec<_> = look
            .rows
            .iter()
            .filter(is_own)
            .filter(|row| pool.types.contains_key(&row.kind.name))
            .collect();
        drained.sort_by_key(|row| (look.state.is_empty_instance(row), row.id));
        for row in drained.into_iter().take(room.min(NOTES_MAX)) {
            let command = Command::from(SetInstanceBehavior {
                id: row.id,
                behavior: Behavior::Run,
                deadline_ms: None,
                by: BY_POOL.into(),
                reason: "the pool has room for it again".into(),
                evaluation_ids: Vec::new(),
            });
            self.ask(look, row.id, command);
        }
    }

    /// What blocked evaluations want: machines for what does not fit on those that are there or
    /// coming.
    fn want_for_jobs(
        &mut self,
        look: &mut Look<'_>,
        pool: &InstancePool,
        room: &Room,
        wanted: &mut Wanted,
    ) {
        self.demand.renew(look.state, look.now, &pool.name);
        let ends = self.demand.of(&pool.name).filter_map(|one| one.unhelped_until).min();
        if let Some(at) = ends {
            look.due(at);
        }
        let waiting = self.demand.of(&pool.name).filter(|one| one.still_waits(look.state));
        let mut waiting: Vec<Arc<Waiting>> =
            waiting.filter(|one| !is_of_mass_loss(look.state, one.evaluation)).cloned().collect();
        let overhead = Overhead::of(look.state, pool);
        self.note_unhelped(look, pool, &overhead, &mut waiting);
        let (bins, owners) = bins(look, pool, &overhead);
        let most = room.most.saturating_sub(wanted.new.len());
        let budget = Budget { most, price_micro: room.price_beside(pool, &wanted.new) };
        let packed = pack(pool, &overhead, &waiting, bins, budget, |kind| room.may_make(kind));
        let new = packed.wanted.into_iter();
        wanted.new.extend(new.map(|(kind, job)| NewMachine {
            kind,
            wanted_by: Some(job),
            group: None,
        }));
        wanted.used.extend(packed.used.iter().filter_map(|place| owners.get(place)));
        wanted.types.extend(packed.types);
        wanted.is_stuck |=
            packed.is_limited || packed.is_too_dear || (packed.is_full && room.is_at_max);
    }

    /// Whether what is known of failed boots counts: always, but for a planted leader that knows of
    /// none before it led.
    fn remembers(&self, state: &State, pool: &InstancePool) -> bool {
        let history = state.pool_histories().get(&pool.name);
        !is_planted(Plant::BackoffForgotten)
            || history.is_some_and(|history| history.modify_index > self.led_from)
    }

    fn request(&mut self, look: &mut Look<'_>, pool: &InstancePool, new: Vec<NewMachine>) {
        let is_listed = self.has_listed(&pool.provider);
        let Some(watch) = self.pools.get_mut(&pool.name) else { return };
        if new.is_empty() || !is_listed {
            return;
        }
        if !watch.asked.is_empty() && watch.asked_until > look.now {
            return look.due(watch.asked_until);
        }
        let intents: Vec<Intent> = new
            .into_iter()
            .map(|NewMachine { kind, wanted_by, group }| Intent {
                id: InstanceId((look.ids)()),
                token: (look.ids)(),
                kind,
                wanted_by,
                group,
            })
            .collect();
        watch.asked = intents.iter().map(|intent| intent.id).collect();
        watch.asked_until = look.now.saturating_add(ASK_AGAIN_MS);
        look.due(watch.asked_until);
        for group in intents.iter().filter_map(|intent| intent.group.as_ref()) {
            self.count_asked(group);
        }
        if is_planted(Plant::CallBeforeCommit) {
            self.create_early(look.now, pool, &intents);
        }
        look.commands.push(Command::from(RequestInstances {
            pool: pool.name.clone(),
            pool_modify_index: pool.modify_index,
            intents,
        }));
    }

    /// An evaluation that has seen an idle machine of a type that should help it, and stays
    /// blocked, is not helped by more of them. What is noted is taken out of its needs at once: the
    /// state has it later.
    fn note_unhelped(
        &mut self,
        look: &mut Look<'_>,
        pool: &InstancePool,
        overhead: &Overhead,
        waiting: &mut [Arc<Waiting>],
    ) {
        let now = look.now;
        self.unhelped.retain(|_, note| note.until > now);
        let idle = idle_machines(look.state, overhead, look.rows);
        let mut notes = 0;
        for one in waiting {
            if let Some(note) = self.unhelped.get(&one.job) {
                look.due(note.until);
                Arc::make_mut(one).forget_types(&note.types);
                continue;
            }
            let mut types = seen_types(&idle, one);
            if types.is_empty() {
                continue;
            }
            Arc::make_mut(one).forget_types(&types);
            if notes >= NOTES_MAX {
                look.due(now);
                continue;
            }
            notes += 1;
            let known = look.state.unhelped_by(&one.job, one.job_modify_index, now);
            types.extend(known.into_iter().flat_map(|row| row.types.iter().cloned()));
            types.sort_unstable();
            types.dedup();
            let until = now.saturating_add(ASK_AGAIN_MS);
            look.due(until);
            self.unhelped.insert(one.job.clone(), AskedNote { types: types.clone(), until });
            look.commands.push(Command::from(NoteUnhelped {
                job: one.job.clone(),
                job_modify_index: one.job_modify_index,
                pool: pool.name.clone(),
                pool_modify_index: pool.modify_index,
                types,
            }));
        }
    }

    /// Shuts down what is too much: above the pool's max, idle and in the way of what waits, or
    /// idle for too long.
    fn shrink(&mut self, look: &mut Look<'_>, pool: &InstancePool, wanted: &Wanted) {
        let mut spares: Vec<&Arc<Instance>> = look
            .rows
            .iter()
            .filter(|row| may_go(look.state, row) && look.state.is_empty_instance(row))
            // Members of capacity groups drain first, however idle they are.
            .filter(|row| row.member.is_none())
            .collect();
        // Those that are not there yet first, the newest of them first, then the longest idle.
        spares.sort_by_key(|row| match row.state {
            InstanceState::Bound => (1, idle_since(look.state, row), row.id),
            InstanceState::Requested | InstanceState::Booting | InstanceState::ShuttingDown => {
                (0, u64::MAX - row.create_index, row.id)
            }
        });
        let mut ending = Ending { running: running(look.rows), ids: BTreeSet::new() };
        self.end_excess(look, pool, &spares, &mut ending);
        self.make_room(look, pool, &spares, wanted, &mut ending);
        self.end_idle(look, pool, &spares, wanted, &mut ending);
    }

    /// Ends what the pool has above its max: empty instances, and when there are none, those with
    /// the fewest allocations drain.
    fn end_excess(
        &mut self,
        look: &mut Look<'_>,
        pool: &InstancePool,
        spares: &[&Arc<Instance>],
        ending: &mut Ending,
    ) {
        let count = look.rows.iter().filter(|row| may_go(look.state, row)).count();
        let mut excess = u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(pool.max);
        let why = format!("the pool may have {} instances", pool.max);
        for row in spares {
            if excess == 0 || ending.ids.len() >= NOTES_MAX {
                break;
            }
            excess -= 1;
            ending.add(row);
            self.ask(look, row.id, shut_down(row.id, ShutdownCause::Shrink, &why));
        }
        if excess == 0 {
            return;
        }
        let draining = look.rows.iter().filter(|row| {
            let drains = row.behavior == Behavior::Drain || row.member_drain().is_some();
            drains && may_go(look.state, row)
        });
        let draining = u32::try_from(draining.count()).unwrap_or(u32::MAX);
        let mut busy: Vec<_> = look
            .rows
            .iter()
            .filter(|row| row.member_drain().is_none() && row.behavior == Behavior::Run)
            .filter(|row| {
                let is_busy = row.is_open() && !look.state.is_empty_instance(row);
                is_busy || (row.member.is_some() && may_go(look.state, row))
            })
            .map(|row| (row.node.map_or(0, |node| look.state.usage(node).allocations), row))
            .collect();
        busy.sort_by_key(|(allocations, row)| (*allocations, Reverse(row.create_index), row.id));
        let most = usize::try_from(excess.saturating_sub(draining)).unwrap_or(usize::MAX);
        for (_, row) in busy.into_iter().take(most.min(NOTES_MAX)) {
            let command = Command::from(SetInstanceBehavior {
                id: row.id,
                behavior: Behavior::Drain,
                deadline_ms: None,
                by: BY_POOL.into(),
                reason: why.as_str().into(),
                evaluation_ids: Vec::new(),
            });
            self.ask(look, row.id, command);
        }
    }

    /// Something waits that a limit or the pool's max is in the way of: idle machines of types
    /// that nobody waits for make room for the next in line, one at a time.
    fn make_room(
        &mut self,
        look: &mut Look<'_>,
        pool: &InstancePool,
        spares: &[&Arc<Instance>],
        wanted: &Wanted,
        ending: &mut Ending,
    ) {
        if !wanted.is_stuck || ending.running <= pool.min {
            return;
        }
        let in_the_way = spares.iter().find(|row| {
            row.is_open() && !wanted.types.contains(&row.kind.name) && !ending.ids.contains(&row.id)
        });
        if let Some(row) = in_the_way {
            ending.add(row);
            let command = shut_down(row.id, ShutdownCause::Shrink, "another type is waited for");
            self.ask(look, row.id, command);
        }
    }

    /// Ends what nothing waits for and nothing ran on for the pool's idle timeout.
    fn end_idle(
        &mut self,
        look: &mut Look<'_>,
        pool: &InstancePool,
        spares: &[&Arc<Instance>],
        wanted: &Wanted,
        ending: &mut Ending,
    ) {
        for row in spares {
            let is_idle = row.is_open() && is_ready(look.state, row);
            if !is_idle || wanted.used.contains(&row.id) || ending.ids.contains(&row.id) {
                continue;
            }
            if ending.running <= pool.min || ending.ids.len() >= NOTES_MAX {
                break;
            }
            let since = idle_since(look.state, row);
            let at = since.saturating_add(pool.idle_timeout_ms);
            if at > look.now {
                look.due(at);
                continue;
            }
            ending.add(row);
            let why = format!("it was idle for {} s", look.now.saturating_sub(since) / 1_000);
            self.ask(look, row.id, shut_down(row.id, ShutdownCause::Idle, &why));
        }
    }
}

/// What a look shuts down.
struct Ending {
    /// Instances that are given work, without those.
    running: u32,
    ids: BTreeSet<InstanceId>,
}

impl Ending {
    fn add(&mut self, row: &Instance) {
        self.running = self.running.saturating_sub(u32::from(row.behavior == Behavior::Run));
        self.ids.insert(row.id);
    }
}

/// How many machines the past of a pool lets it make now: one at a time when it is protected, and
/// no more than an hour may have.
fn left_by_past(look: &mut Look<'_>, pool: &InstancePool, is_kept: bool) -> usize {
    let Some(history) = look.state.pool_histories().get(&pool.name).cloned() else {
        return usize::MAX;
    };
    let mut most = usize::MAX;
    if pool.max_creates_per_hour > 0 {
        let left = pool.max_creates_per_hour.saturating_sub(history.asked_lately(look.now));
        most = usize::try_from(left).unwrap_or(usize::MAX);
        if let Some(at) = history.falls_at(look.now).filter(|_| left == 0) {
            look.due(at);
        }
    }
    if history.protected_since > 0 && is_kept {
        most = most.min(1_usize.saturating_sub(look.state.unproven_of(&pool.name)));
    }
    most
}

/// What the pool's `min` wants: the cheapest that may be made, for what is lacking.
fn want_minimum(look: &Look<'_>, pool: &InstancePool, room: &Room, wanted: &mut Wanted) {
    let planned = u32::try_from(wanted.new.len()).unwrap_or(u32::MAX);
    let planned = running(look.rows).saturating_add(planned);
    let lacking = usize::try_from(pool.min.saturating_sub(planned)).unwrap_or(0);
    let kinds = sizes::candidates(pool, |kind| room.may_make(&kind.name));
    if let Some(kind) = kinds.first() {
        let most = room.beside(pool, kind, &wanted.new);
        let new = (0..lacking.min(most)).map(|_| NewMachine {
            kind: kind.name.clone(),
            wanted_by: None,
            group: None,
        });
        wanted.new.extend(new);
    }
}

/// How many instances are given work, or will be.
fn running(rows: &[Arc<Instance>]) -> u32 {
    let running = rows.iter().filter(|row| {
        row.state != InstanceState::ShuttingDown
            && row.behavior == Behavior::Run
            && row.member_drain().is_none()
    });
    u32::try_from(running.count()).unwrap_or(u32::MAX)
}

/// It counts against the pool's max, and nothing keeps it: no operator, who holds it or has set its
/// node aside, and no mass loss.
fn may_go(state: &State, row: &Instance) -> bool {
    row.state != InstanceState::ShuttingDown
        && row.behavior != Behavior::Hold
        && !is_in_mass_loss(state, row)
        && !state.is_set_aside(row)
}

/// Types that should help an evaluation, and of which it has seen an idle machine, or will not
/// because it does not fit there: what does not fit is not woken.
fn seen_types(idle: &BTreeMap<&Text, Idle>, one: &Waiting) -> Vec<Text> {
    let is_no_help = |need: &Need, kind: &Text| {
        let Some(Idle { gains, rooms }) = idle.get(kind) else { return false };
        let mut gains = gains.iter().map(|(class, index)| Gained { class: *class, index: *index });
        gains.any(|gained| one.has_seen(gained)) || rooms.iter().all(|room| room.fitting(need) == 0)
    };
    let of_need = |need: &Need| -> Vec<Text> {
        need.types.iter().filter(|kind| is_no_help(need, kind)).cloned().collect()
    };
    one.needs.iter().flat_map(of_need).collect()
}

fn not_configured(pool: &InstancePool) -> Command {
    let detail = format!(
        "the leader's file has no [[provider]] named \"{}\": add it there, or let another server lead",
        pool.provider
    );
    Command::from(LimitPool {
        pool: pool.name.clone(),
        class: LimitClass::Fatal,
        for_ms: limits::FATAL_MS,
        detail: detail.into(),
    })
}
