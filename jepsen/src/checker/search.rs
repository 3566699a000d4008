//! Is there an order of these calls that one register could have served?
//!
//! Wing and Gong's search as Lowe sharpened it: the calls and returns form a linked list; a call that is
//! legal in the current state is lifted out of the list and the walk restarts at the front; at a return
//! whose call is still in the list the last choice is taken back; a configuration (set of lifted calls,
//! state) is never visited twice. It must never answer `Yes` or `No` when its budget ran out.
//!
//! Four facts keep it near linear on registers with unique values and rising versions:
//! - An unanswered write whose value nobody saw can be left out: an order that contains it stays legal
//!   without it. What remains must have happened.
//! - A value belongs to one write, so every call that saw the value tells the version of that write.
//! - Versions rise with each step, so all writes whose version is known have only one possible order:
//!   the state counts how many of them were taken (`rank`), and only the next one is legal.
//! - A legal read may be taken at once: it changes nothing, so taking it back can never help.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use super::calls::{Action, Call};

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

/// Searches for a legal order.
pub(crate) fn linearizable(calls: &[Call], budget: &Budget) -> Outcome {
    match Problem::new(calls) {
        Some(problem) => problem.solve(budget),
        None => Outcome::No,
    }
}

/// One value seen with two versions, if there is such a value.
pub(crate) fn version_conflict(calls: &[Call]) -> Option<Conflict> {
    versions(calls).err()
}

/// A value that was seen with two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The value; `None` = the register does not exist, which is version 0.
    pub(crate) value: Option<u64>,
    /// The two versions.
    pub(crate) versions: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    value: Option<u64>,
    /// Invariant: every later version is greater.
    version_min: u64,
    /// How many writes of known version were taken.
    rank: usize,
}

/// What a call asks of the state and does to it.
#[derive(Clone, Copy, Debug)]
struct Step {
    demands: Demand,
    writes: Option<Effect>,
}

/// What the register must hold before a call.
#[derive(Clone, Copy, Debug)]
enum Demand {
    Anything,
    Exactly(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct Effect {
    value: u64,
    /// Version and place among the writes of known version.
    known: Option<(u64, usize)>,
}

impl Step {
    fn apply(&self, state: State) -> Option<State> {
        match self.demands {
            Demand::Exactly(value) if value != state.value => return None,
            Demand::Exactly(_) | Demand::Anything => {}
        }
        let Some(effect) = self.writes else { return Some(state) };
        let value = Some(effect.value);
        match effect.known {
            None => Some(State { value, version_min: state.version_min + 1, ..state }),
            Some((version, rank)) if rank == state.rank && version > state.version_min => {
                Some(State { value, version_min: version, rank: rank + 1 })
            }
            Some(_) => None,
        }
    }
}

struct Problem {
    steps: Vec<Step>,
    /// Calls and returns in real-time order.
    events: Vec<Event>,
    /// Calls that must be in the order because they returned.
    required: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Call(usize),
    Return(usize),
}

impl Problem {
    /// `None` if a value was seen with two versions, which no register can serve.
    fn new(calls: &[Call]) -> Option<Self> {
        let calls = without_invisible(calls);
        let versions = versions(&calls).ok()?;
        let mut order: Vec<u64> = calls
            .iter()
            .filter_map(|call| call.action.written())
            .filter_map(|value| versions.get(&Some(value)).copied())
            .collect();
        order.sort_unstable();
        let steps = calls
            .iter()
            .map(|call| Step {
                demands: match call.action.observed() {
                    Some((value, _)) => Demand::Exactly(value),
                    None => Demand::Anything,
                },
                writes: call.action.written().map(|value| Effect {
                    value,
                    known: versions
                        .get(&Some(value))
                        .map(|version| (*version, order.partition_point(|other| other < version))),
                }),
            })
            .collect();
        let mut events: Vec<(u64, Event)> = Vec::with_capacity(calls.len() * 2);
        for (position, call) in calls.iter().enumerate() {
            events.push((call.invoked, Event::Call(position)));
            if let Some(returned) = call.returned {
                events.push((returned, Event::Return(position)));
            }
        }
        events.sort_by_key(|(index, _)| *index);
        let required = calls.iter().filter(|call| call.returned.is_some()).count();
        let events = events.into_iter().map(|(_, event)| event).collect();
        Some(Self { steps, events, required })
    }

    fn solve(&self, budget: &Budget) -> Outcome {
        let mut list = List::new(&self.events, self.steps.len());
        let mut taken = vec![0_u64; self.steps.len().div_ceil(64)];
        let mut seen: HashSet<(Box<[u64]>, State)> = HashSet::new();
        let mut choices: Vec<(usize, State)> = Vec::new();
        let mut state = State { value: None, version_min: 0, rank: 0 };
        let mut missing = self.required;
        let mut entry = list.first();
        let mut turns = 0_u64;
        while missing > 0 {
            turns += 1;
            if turns.is_multiple_of(1024) && Instant::now() >= budget.deadline {
                return Outcome::Unknown("the time for the search ran out");
            }
            let position = entry.expect("a required call is in the list together with its return");
            match self.events[position] {
                Event::Call(call) => {
                    entry = list.after(position);
                    let Some(next) = self.steps[call].apply(state) else { continue };
                    taken[call / 64] |= 1 << (call % 64);
                    if !seen.insert((taken.clone().into_boxed_slice(), next)) {
                        taken[call / 64] &= !(1 << (call % 64));
                        continue;
                    }
                    if seen.len() > budget.configurations_max {
                        return Outcome::Unknown("the memory for the search ran out");
                    }
                    choices.push((call, state));
                    state = next;
                    missing -= usize::from(list.lift(call));
                    entry = list.first();
                }
                Event::Return(_) => loop {
                    let Some((call, before)) = choices.pop() else { return Outcome::No };
                    state = before;
                    taken[call / 64] &= !(1 << (call % 64));
                    missing += usize::from(list.put_back(call));
                    if self.steps[call].writes.is_some() {
                        entry = list.after(list.call_at[call]);
                        break;
                    }
                },
            }
        }
        Outcome::Yes
    }
}

/// Drops the unanswered writes whose value nobody saw.
fn without_invisible(calls: &[Call]) -> Vec<Call> {
    let mut visible: BTreeSet<u64> = BTreeSet::new();
    let keeps = |visible: &BTreeSet<u64>, call: &Call| {
        call.returned.is_some()
            || call.action.written().is_some_and(|value| visible.contains(&value))
    };
    loop {
        let before = visible.len();
        let seen = calls
            .iter()
            .filter(|call| keeps(&visible, call))
            .filter_map(|call| call.action.observed()?.0)
            .collect::<Vec<_>>();
        visible.extend(seen);
        if visible.len() == before {
            break;
        }
    }
    calls.iter().filter(|call| keeps(&visible, call)).copied().collect()
}

/// The version of each value, from whoever saw it.
fn versions(calls: &[Call]) -> Result<BTreeMap<Option<u64>, u64>, Conflict> {
    // What does not exist has version 0.
    let mut versions = BTreeMap::from([(None, 0)]);
    let told = calls.iter().flat_map(|call| {
        let own = match call.action {
            Action::Read { .. } => None,
            Action::Write { value, version } | Action::Cas { value, version, .. } => {
                version.map(|version| (Some(value), version))
            }
        };
        let seen = call.action.observed().and_then(|(value, version)| Some((value, version?)));
        own.into_iter().chain(seen)
    });
    for (value, version) in told {
        let known = *versions.entry(value).or_insert(version);
        if known != version {
            return Err(Conflict { value, versions: [known, version] });
        }
    }
    Ok(versions)
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

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
