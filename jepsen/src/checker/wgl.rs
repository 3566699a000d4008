//! Is there an order of these calls that explains every answer, whatever the object is?
//!
//! Wing and Gong's search as Lowe sharpened it: the calls and returns form a linked list; a call that is
//! legal in the current state is lifted out of the list and the walk restarts at the front; at a return
//! whose call is still in the list the last choice is taken back; a configuration (set of lifted calls,
//! state) is never visited twice. It must never answer `Yes` or `No` when its budget ran out.
//!
//! A legal call that can change no state whatever may be taken at once: taking it back can never help. (One
//! that merely does not change *this* state may be needed later.) The set of lifted calls is remembered as a 128-bit sum of one random number per call, so that a configuration
//! costs the same in a history of ten calls and of a hundred thousand.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Instant;

use crate::random::Random;

/// What the search may spend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// When to give up.
    pub(crate) deadline: Instant,
    /// How many configurations to remember before giving up.
    pub(crate) configurations_max: usize,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is such an order.
    Yes,
    /// There is none.
    No,
    /// The budget ran out.
    Unknown(&'static str),
}

/// A call or its return, by the call's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The call starts.
    Call(usize),
    /// The call ends.
    Return(usize),
}

/// Calls and returns in real-time order, from the indexes of both ends; no second index = nobody knows
/// whether the call took effect.
pub(crate) fn events(calls: impl Iterator<Item = (u64, Option<u64>)>) -> Vec<Event> {
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (position, (invoked, returned)) in calls.enumerate() {
        events.push((invoked, Event::Call(position)));
        events.extend(returned.map(|returned| (returned, Event::Return(position))));
    }
    events.sort_by_key(|(index, _)| *index);
    events.into_iter().map(|(_, event)| event).collect()
}

/// Searches for a legal order of `calls` calls; `step` is the state after a call, if it is legal;
/// `observes` says that a call never changes any state.
pub(crate) fn solve<S: Clone + Eq + Hash>(
    events: &[Event],
    calls: usize,
    start: S,
    budget: &Budget,
    step: impl Fn(usize, &S) -> Option<S>,
    observes: impl Fn(usize) -> bool,
) -> Outcome {
    let mut marks = Random::stream(0x57_47_4c, calls as u64);
    let marks: Vec<u128> =
        (0..calls).map(|_| u128::from(marks.bits()) << 64 | u128::from(marks.bits())).collect();
    let mut list = List::new(events, calls);
    let mut lifted = 0_u128;
    let mut seen: HashSet<(u128, S)> = HashSet::new();
    // The call and the state before it.
    let mut choices: Vec<(usize, S)> = Vec::new();
    let mut state = start;
    let mut missing = list.return_at.iter().filter(|position| position.is_some()).count();
    let mut entry = list.first();
    let mut turns = 0_u64;
    while missing > 0 {
        turns += 1;
        if turns.is_multiple_of(1024) && Instant::now() >= budget.deadline {
            return Outcome::Unknown("the time for the search ran out");
        }
        let position = entry.expect("a required call is in the list together with its return");
        match events[position] {
            Event::Call(call) => {
                entry = list.after(position);
                let Some(next) = step(call, &state) else { continue };
                // Without an answer it need not have happened, and here it would make no difference.
                if next == state && list.return_at[call].is_none() {
                    continue;
                }
                if !seen.insert((lifted ^ marks[call], next.clone())) {
                    continue;
                }
                if seen.len() > budget.configurations_max {
                    return Outcome::Unknown("the memory for the search ran out");
                }
                lifted ^= marks[call];
                choices.push((call, state));
                state = next;
                missing -= usize::from(list.lift(call));
                entry = list.first();
            }
            Event::Return(_) => loop {
                let Some((call, before)) = choices.pop() else { return Outcome::No };
                state = before;
                lifted ^= marks[call];
                missing += usize::from(list.put_back(call));
                if !observes(call) {
                    entry = list.after(list.call_at[call]);
                    break;
                }
            },
        }
    }
    Outcome::Yes
}

/// The events as a doubly linked list; position `len` is the sentinel before the first and after the last.
struct List {
    next: Vec<usize>,
    previous: Vec<usize>,
    call_at: Vec<usize>,
    return_at: Vec<Option<usize>>,
}

impl List {
    fn new(events: &[Event], calls: usize) -> Self {
        let ring = events.len() + 1;
        let mut call_at = vec![0; calls];
        let mut return_at = vec![None; calls];
        for (position, event) in events.iter().enumerate() {
            match *event {
                Event::Call(call) => call_at[call] = position,
                Event::Return(call) => return_at[call] = Some(position),
            }
        }
        Self {
            next: (0..ring).map(|position| (position + 1) % ring).collect(),
            previous: (0..ring).map(|position| (position + ring - 1) % ring).collect(),
            call_at,
            return_at,
        }
    }

    fn sentinel(&self) -> usize {
        self.next.len() - 1
    }

    fn first(&self) -> Option<usize> {
        self.after(self.sentinel())
    }

    fn after(&self, position: usize) -> Option<usize> {
        Some(self.next[position]).filter(|next| *next != self.sentinel())
    }

    /// Takes a call and its return out; tells whether it had one.
    fn lift(&mut self, call: usize) -> bool {
        self.unlink(self.call_at[call]);
        if let Some(position) = self.return_at[call] {
            self.unlink(position);
        }
        self.return_at[call].is_some()
    }

    /// Undoes the latest [`List::lift`] that is not yet undone; tells whether the call has a return.
    fn put_back(&mut self, call: usize) -> bool {
        if let Some(position) = self.return_at[call] {
            self.relink(position);
        }
        self.relink(self.call_at[call]);
        self.return_at[call].is_some()
    }

    fn unlink(&mut self, position: usize) {
        let (previous, next) = (self.previous[position], self.next[position]);
        self.next[previous] = next;
        self.previous[next] = previous;
    }

    fn relink(&mut self, position: usize) {
        let (previous, next) = (self.previous[position], self.next[position]);
        self.next[previous] = position;
        self.previous[next] = position;
    }
}
