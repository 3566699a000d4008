//! Which machines to make for what no machine has room for: those that cost least for the whole of
//! it, not for one instance.
//!
//! Instances that are alike are one [`Lot`]. Machines are chosen one after the other, each for the
//! first lot in line by a type that may be made for that one, and take what else fits. While few
//! instances are left every way is tried ([`exact`]); with more, the type that serves most for its
//! price comes first, until few are left. What may be spent is judged machine by machine: when the
//! best does not fit it, the cheapest type does.
//!
//! Cost: steps, each a lot that is tried on a type. After [`STEPS_MAX`] the cheapest type is taken
//! for each lot, and a search takes [`exact::EXACT_STEPS_MAX`] at most, once.

mod exact;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use fsm::{
    JobKey, Text,
    pool::{InstancePool, InstanceType},
    resources::Resources,
};

use crate::{
    demand::{Budget, Need},
    overhead::{Overhead, Room},
    sizes,
};

/// Steps after which types are not compared any more.
pub const STEPS_MAX: u32 = 50_000;
/// Lots that are looked at when a type is judged, or a machine filled.
const LOTS_LOOKED_AT_MAX: usize = 128;

/// The machines to make, and what was in the way of more.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Types in order, with the job that needs each first.
    pub machines: Vec<(Text, JobKey)>,
    /// There are as many as may be.
    pub is_full: bool,
    /// More would cost more than may be.
    pub is_too_dear: bool,
    /// What it took.
    pub steps: u32,
}

/// Instances without a machine that are alike, of one job or of several.
struct Lot<'a> {
    need: &'a Need,
    /// By their place. Invariant: one of them may be made.
    types: usize,
    /// By place in line: whose, and how many. Invariant: none has no instances.
    items: VecDeque<(usize, &'a JobKey, u32)>,
    /// Their sum.
    left: u32,
    /// What one costs on a machine that is full of them, in [`SHARES`], once that was asked for.
    worth: Option<u128>,
}

/// Types that needs have in common.
struct Types<'a> {
    named: &'a BTreeSet<Text>,
    /// Those that they may run on, a bit each.
    run: u64,
    /// Those that may be made for them, the first choice first.
    opens: Vec<usize>,
}

impl Types<'_> {
    fn run_on(&self, kind: usize) -> bool {
        self.run & bit(kind) != 0
    }
}

/// A pool has no more than 64 types ([`fsm::limits::INSTANCE_TYPES_MAX`]).
fn bit(kind: usize) -> u64 {
    u32::try_from(kind).ok().and_then(|kind| 1_u64.checked_shl(kind)).unwrap_or(0)
}

/// A type as a new machine of it is.
struct Kind<'a> {
    kind: &'a Arc<InstanceType>,
    room: Room,
}

/// A machine that is to be made: its type, and what it takes of which lots.
struct Machine {
    kind: usize,
    takes: Vec<(usize, u32)>,
}

/// The needs of a decision.
pub struct Choice<'a> {
    pool: &'a InstancePool,
    kinds: Vec<Kind<'a>>,
    lots: Vec<Lot<'a>>,
    /// Lots of needs that nothing keeps from sharing a machine, by cpu, memory, disk and types.
    alike: BTreeMap<(u64, u64, u64, usize), usize>,
    types: Vec<Types<'a>>,
    places_of_types: BTreeMap<&'a BTreeSet<Text>, usize>,
    newest: Option<usize>,
    /// Lots with something left, by the place of their first item.
    line: BTreeMap<usize, usize>,
    /// Needs so far.
    places: usize,
    /// Without those of searches.
    steps: u32,
}

impl<'a> Choice<'a> {
    /// Nothing yet.
    pub fn new(pool: &'a InstancePool, overhead: &Overhead) -> Self {
        let kinds = pool.types.values();
        let kinds = kinds.map(|kind| Kind { kind, room: overhead.room(kind) }).collect();
        Self {
            pool,
            kinds,
            lots: Vec::new(),
            alike: BTreeMap::new(),
            types: Vec::new(),
            places_of_types: BTreeMap::new(),
            newest: None,
            line: BTreeMap::new(),
            places: 0,
            steps: 0,
        }
    }

    /// So many instances of a need have no room: they stand behind those before. False: no type may
    /// be made for them.
    pub fn add(
        &mut self,
        need: &'a Need,
        (job, left): (&'a JobKey, u32),
        may_make: impl Fn(&Text) -> bool,
    ) -> bool {
        let types = self.types_of(need, may_make);
        if self.types[types].opens.is_empty() {
            return false;
        }
        let Resources { cpu_mhz, memory_mb, disk_mb } = need.resources;
        let likeness = (cpu_mhz, memory_mb, disk_mb, types);
        let is_alone = need.per_machine_max != u32::MAX || !need.ports.is_empty();
        let new = self.lots.len();
        let number = if is_alone { new } else { *self.alike.entry(likeness).or_insert(new) };
        if number == new {
            let items = VecDeque::new();
            self.lots.push(Lot { need, types, items, left: 0, worth: None });
            self.line.insert(self.places, number);
        }
        let lot = &mut self.lots[number];
        lot.items.push_back((self.places, job, left));
        lot.left = lot.left.saturating_add(left);
        self.places += 1;
        true
    }

    /// Whether a machine of a type that costs less than this one may be made for a need.
    pub fn has_cheaper(
        &mut self,
        need: &'a Need,
        than: &Text,
        may_make: impl Fn(&Text) -> bool,
    ) -> bool {
        let Some(than) = self.pool.types.get(than) else { return false };
        let types = self.types_of(need, may_make);
        // The first choice costs least.
        let first = self.types[types].opens.first().copied();
        first.is_some_and(|kind| self.kinds[kind].kind.price_micro < than.price_micro)
    }

    /// The types of a need, by their place. Most needs have those of the one before.
    fn types_of(&mut self, need: &'a Need, may_make: impl Fn(&Text) -> bool) -> usize {
        let newest = self.newest.filter(|newest| *self.types[*newest].named == need.types);
        let found = newest.or_else(|| self.places_of_types.get(&need.types).copied());
        let place = found.unwrap_or_else(|| {
            let fitting = sizes::candidates(self.pool, |kind| need.types.contains(&kind.name));
            let made = fitting.into_iter().filter(|kind| may_make(&kind.name));
            let place = |name: &Text| self.pool.types.keys().position(|known| known == name);
            let opens = made.filter_map(|kind| place(&kind.name)).collect();
            let run = need.types.iter().filter_map(place).fold(0, |all, kind| all | bit(kind));
            self.types.push(Types { named: &need.types, run, opens });
            self.places_of_types.insert(&need.types, self.types.len() - 1);
            self.types.len() - 1
        });
        self.newest = Some(place);
        place
    }

    /// Types that may be made for a lot, the first choice first.
    fn opens(&self, lot: usize) -> &[usize] {
        &self.types[self.lots[lot].types].opens
    }

    /// Chooses machines within a budget.
    pub fn machines(mut self, mut budget: Budget) -> Chosen {
        let mut chosen = Chosen::default();
        let mut planned = VecDeque::new();
        let mut tries_all = true;
        while let Some((_, &first)) = self.line.first_key_value() {
            if chosen.machines.len() >= budget.most {
                chosen.is_full = true;
                break;
            }
            if planned.is_empty() && tries_all {
                let Self { kinds, types, lots, line, .. } = &self;
                let given = exact::Given { kinds, types, lots, line };
                match exact::cheapest(&given, &mut chosen.steps) {
                    exact::Answer::TooMany => {}
                    exact::Answer::Machines(machines) => planned = machines.into(),
                    exact::Answer::OutOfSteps => tries_all = false,
                }
            }
            let best = planned.pop_front().unwrap_or_else(|| self.best_for(first));
            if best.takes.iter().all(|(lot, _)| *lot != first) {
                // What takes room of each machine has changed since the need was known: a machine
                // would be no help.
                self.give_up(first);
                planned.clear();
                continue;
            }
            let Some(machine) = self.paid(best, first, &mut budget) else {
                chosen.is_too_dear = true;
                self.give_up(first);
                planned.clear();
                continue;
            };
            let job = self.lots[first].items.front().map(|(_, job, _)| (*job).clone());
            let kind = self.kinds[machine.kind].kind.name.clone();
            chosen.machines.extend(job.map(|job| (kind, job)));
            for (lot, count) in machine.takes {
                self.take(lot, count);
            }
        }
        chosen.steps = chosen.steps.saturating_add(self.steps);
        chosen
    }

    /// The best machine if it can be paid for, or one of the first choice of the first lot in line
    /// if that can.
    fn paid(&mut self, best: Machine, first: usize, budget: &mut Budget) -> Option<Machine> {
        if budget.pays(self.kinds[best.kind].kind) {
            return Some(best);
        }
        // It costs least.
        let kind = self.opens(first).first().copied()?;
        budget.pays(self.kinds[kind].kind).then(|| self.filled(kind))
    }

    /// A machine of the type that serves most for its price, of those that may be made for a lot;
    /// the first choice when nothing is compared any more.
    fn best_for(&mut self, first: usize) -> Machine {
        let opens = self.opens(first).to_vec();
        let mut best: Option<(u128, u128, Machine)> = None;
        for kind in opens {
            if best.is_some() && self.steps >= STEPS_MAX {
                break;
            }
            let machine = self.filled(kind);
            let price = price(self.kinds[kind].kind).into();
            let served = machine.takes.iter().map(|(lot, count)| self.worth(*lot, *count));
            let worth = served.fold(0, u128::saturating_add);
            let is_better = best.as_ref().is_none_or(|(of_best, price_of_best, _)| {
                worth.saturating_mul(*price_of_best) > of_best.saturating_mul(price)
            });
            if is_better {
                best = Some((worth, price, machine));
            }
        }
        best.map_or_else(|| Machine { kind: 0, takes: Vec::new() }, |(_, _, machine)| machine)
    }

    /// What instances of a lot cost on machines that are full of them, at the best type for them.
    fn worth(&mut self, lot: usize, count: u32) -> u128 {
        let of_one = self.lots[lot].worth.unwrap_or_else(|| {
            let opens = self.opens(lot);
            let each = opens.iter().map(|kind| {
                let Kind { kind, room } = &self.kinds[*kind];
                let fits = room.fitting(self.lots[lot].need).max(1);
                u128::from(price(kind)).saturating_mul(SHARES) / u128::from(fits)
            });
            each.min().unwrap_or(0)
        });
        self.lots[lot].worth = Some(of_one);
        of_one.saturating_mul(count.into())
    }

    /// A machine of a type with what it takes, in line.
    fn filled(&mut self, kind: usize) -> Machine {
        let mut room = self.kinds[kind].room.clone();
        let mut takes = Vec::new();
        for &number in self.line.values().take(LOTS_LOOKED_AT_MAX) {
            if room.slots == 0 {
                break;
            }
            self.steps = self.steps.saturating_add(1);
            let lot = &self.lots[number];
            if !self.types[lot.types].run_on(kind) {
                continue;
            }
            let fits = room.fitting(lot.need).min(lot.left);
            if fits > 0 {
                room.place(lot.need, fits);
                takes.push((number, fits));
            }
        }
        Machine { kind, takes }
    }

    /// Instances of a lot have their machine, those first in line first.
    fn take(&mut self, number: usize, mut count: u32) {
        let lot = &mut self.lots[number];
        let before = lot.items.front().map(|(place, ..)| *place);
        lot.left = lot.left.checked_sub(count).expect("no more is placed than is left");
        while let Some((_, _, left)) = lot.items.front_mut() {
            let taken = count.min(*left);
            *left -= taken;
            count -= taken;
            if *left > 0 {
                break;
            }
            lot.items.pop_front();
        }
        let now = lot.items.front().map(|(place, ..)| *place);
        if before != now {
            before.map(|place| self.line.remove(&place));
            now.map(|place| self.line.insert(place, number));
        }
    }

    /// Nothing is made for what is left of a lot.
    fn give_up(&mut self, number: usize) {
        self.take(number, self.lots[number].left);
    }
}

/// So that prices of a share of a machine are not lost.
const SHARES: u128 = 1 << 32;

/// What a type costs. Where nothing costs anything, a machine does: fewer are better.
fn price(kind: &InstanceType) -> u64 {
    kind.price_micro.max(1)
}

#[cfg(test)]
mod tests;
