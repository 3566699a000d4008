//! Is there an order of these calls that one register could have served?
//!
//! Owns what is special about registers with unique values and rising versions; the search itself is
//! [`super::wgl`]. Four facts keep it near linear here:
//! - An unanswered write whose value nobody saw can be left out: an order that contains it stays legal
//!   without it. What remains must have happened.
//! - A value belongs to one write, so every call that saw the value tells the version of that write.
//! - Versions rise with each step, so all writes whose version is known have only one possible order:
//!   the state counts how many of them were taken (`rank`), and only the next one is legal.
//! - A legal read may be taken at once: it changes nothing, so taking it back can never help.

use std::collections::BTreeMap;

use super::calls::{Action, Call};
use super::visible::without_invisible;
use super::wgl::{self, Budget, Event, Outcome};

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
}

impl Problem {
    /// `None` if a value was seen with two versions, which no register can serve.
    fn new(calls: &[Call]) -> Option<Self> {
        let calls = without_invisible(
            calls,
            |call| call.returned.is_some(),
            |call| call.action.written(),
            |call| call.action.observed()?.0,
        );
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
        let events = wgl::events(calls.iter().map(|call| (call.invoked, call.returned)));
        Some(Self { steps, events })
    }

    fn solve(&self, budget: &Budget) -> Outcome {
        let start = State { value: None, version_min: 0, rank: 0 };
        let step = |call: usize, state: &State| self.steps[call].apply(*state);
        let observes = |call: usize| self.steps[call].writes.is_none();
        wgl::solve(&self.events, self.steps.len(), start, budget, step, observes, |_| None)
    }
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

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
