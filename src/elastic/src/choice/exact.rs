//! The cheapest machines for a few lots, by trying every way.
//!
//! What is left of the lots is a state; there is a best for each, which follows from those with
//! less left. The machine that a state begins with is for its first lot, of a type that may be made
//! for that one, and takes any instances that fit with at least one of the first. So machines come
//! in line.

use std::collections::BTreeMap;

use super::{Kind, Lot, Machine, Types};
use crate::overhead::Room;

/// States that are looked at: those of 1,023 instances that are alike, or of ten that are not.
const STATES_MAX: usize = 1_024;
/// Steps of one search.
pub(super) const EXACT_STEPS_MAX: u32 = 60_000;

/// What came of it.
pub(super) enum Answer {
    /// There are too many ways.
    TooMany,
    /// There were too many ways.
    OutOfSteps,
    /// In line.
    Machines(Vec<Machine>),
}

/// What is chosen from, and for what.
pub(super) struct Given<'a, 'b> {
    pub(super) kinds: &'a [Kind<'b>],
    pub(super) types: &'a [Types<'b>],
    pub(super) lots: &'a [Lot<'b>],
    /// Lots with something left, in line.
    pub(super) line: &'a BTreeMap<usize, usize>,
}

/// The best for a state.
#[derive(Clone, Copy)]
struct Best {
    /// Of all machines.
    price: u64,
    /// How early in its lot's order the first machine's type comes: of one price the first choice
    /// counts.
    order: usize,
    machines: u32,
    /// The type of the first machine.
    kind: usize,
    /// The state that it leaves.
    rest: usize,
}

impl Best {
    fn is_before(&self, other: &Self) -> bool {
        let rank = |best: &Self| (best.price, best.order, best.machines);
        rank(self) < rank(other)
    }
}

struct Search<'a, 'b> {
    kinds: &'a [Kind<'b>],
    types: &'a [Types<'b>],
    /// In line.
    lots: Vec<&'a Lot<'b>>,
    /// What an instance of each lot counts in the number of a state.
    weights: Vec<usize>,
    /// All lots may have the same types: what is left of fewer instances never costs more, so that
    /// the last lot gives a machine all that fits.
    takes_all: bool,
    steps_max: u32,
    /// By the number of a state. Invariant: all below the present one are there.
    best: Vec<Best>,
    steps: &'a mut u32,
}

/// The present state, and the type of the machine that it is to begin with.
struct Begun {
    left: Vec<u32>,
    first: usize,
    kind: usize,
    order: usize,
}

/// The cheapest machines for all that is left.
pub(super) fn cheapest(given: &Given<'_, '_>, steps: &mut u32) -> Answer {
    let Given { kinds, types, lots, line } = *given;
    let mut weights = Vec::new();
    let mut states = 1_usize;
    for number in line.values() {
        weights.push(states);
        let ways = usize::try_from(lots[*number].left).unwrap_or(usize::MAX).saturating_add(1);
        states = states.saturating_mul(ways);
        if states > STATES_MAX {
            return Answer::TooMany;
        }
    }
    let nothing = Best { price: 0, order: 0, machines: 0, kind: 0, rest: 0 };
    let numbers: Vec<usize> = line.values().copied().collect();
    let lots: Vec<_> = numbers.iter().map(|number| &lots[*number]).collect();
    let takes_all = lots.windows(2).all(|two| two[0].types == two[1].types);
    let steps_max = steps.saturating_add(EXACT_STEPS_MAX);
    let best = vec![nothing];
    let mut search = Search { kinds, types, lots, weights, takes_all, steps_max, best, steps };
    for state in 1..states {
        if !search.look(state) {
            return Answer::OutOfSteps;
        }
    }
    Answer::Machines(search.machines(states - 1, &numbers))
}

impl Search<'_, '_> {
    /// Finds the best for a state. False: there were too many ways.
    fn look(&mut self, state: usize) -> bool {
        let left = self.left(state);
        let first = left.iter().position(|left| *left > 0).unwrap_or(0);
        let none = Best { price: u64::MAX, order: usize::MAX, machines: 0, kind: 0, rest: 0 };
        self.best.push(none);
        let types = self.types;
        for (order, kind) in types[self.lots[first].types].opens.iter().copied().enumerate() {
            let begun = Begun { left: left.clone(), first, kind, order };
            if !self.fill(&begun, first, &self.kinds[kind].room, state) {
                return false;
            }
        }
        true
    }

    /// How many are left of each lot in a state.
    fn left(&self, state: usize) -> Vec<u32> {
        let ways =
            |lot: &Lot<'_>| usize::try_from(lot.left).unwrap_or(usize::MAX).saturating_add(1);
        let lots = self.lots.iter().zip(&self.weights);
        lots.map(|(lot, weight)| u32::try_from(state / weight % ways(lot)).unwrap_or(u32::MAX))
            .collect()
    }

    /// Tries all that a machine may take of a lot and those after it. False: there were too many
    /// ways.
    fn fill(&mut self, begun: &Begun, lot: usize, room: &Room, rest: usize) -> bool {
        let Some(of) = self.lots.get(lot).copied() else {
            self.offer(begun, rest);
            return true;
        };
        *self.steps = self.steps.saturating_add(1);
        if *self.steps > self.steps_max {
            return false;
        }
        let most = if self.types[of.types].run_on(begun.kind) { room.fitting(of.need) } else { 0 };
        let most = most.min(begun.left[lot]);
        let is_last = lot + 1 == self.lots.len();
        let least = if is_last && self.takes_all { most } else { u32::from(lot == begun.first) };
        for count in (least..=most).rev() {
            let taken = usize::try_from(count).unwrap_or(usize::MAX) * self.weights[lot];
            let is_filled = if count == 0 {
                self.fill(begun, lot + 1, room, rest)
            } else {
                let mut room = room.clone();
                room.place(of.need, count);
                self.fill(begun, lot + 1, &room, rest - taken)
            };
            if !is_filled {
                return false;
            }
        }
        true
    }

    /// A machine that leaves this state would do.
    fn offer(&mut self, begun: &Begun, rest: usize) {
        let Begun { kind, order, .. } = *begun;
        let after = self.best[rest];
        let price = super::price(self.kinds[kind].kind).saturating_add(after.price);
        let offered = Best { price, order, machines: after.machines + 1, kind, rest };
        if let Some(best) = self.best.last_mut()
            && offered.is_before(best)
        {
            *best = offered;
        }
    }

    /// The machines of a state, with what each takes of the lots of these numbers.
    fn machines(&self, mut state: usize, numbers: &[usize]) -> Vec<Machine> {
        let mut machines = Vec::new();
        while state > 0 {
            let Best { kind, rest, .. } = self.best[state];
            let (before, after) = (self.left(state), self.left(rest));
            let counts = before.iter().zip(&after).map(|(before, after)| before - after);
            let takes = numbers.iter().copied().zip(counts).filter(|(_, count)| *count > 0);
            machines.push(Machine { kind, takes: takes.collect() });
            state = rest;
        }
        machines
    }
}
