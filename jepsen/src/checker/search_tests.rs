//! Tests of the search: against brute force on small random histories, and for effort on long ones.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use super::*;
use chance::Dice;

fn budget() -> Budget {
    Budget { deadline: Instant::now() + Duration::from_hours(1), configurations_max: 1_000_000 }
}

/// A register as the promise describes it, for the brute force: written apart from the search.
#[derive(Clone, Copy)]
struct Model {
    value: Option<u64>,
    /// The version, or the least it can be.
    version: Result<u64, u64>,
}

impl Model {
    fn sees(&mut self, value: Option<u64>, version: Option<u64>) -> bool {
        if self.value != value {
            return false;
        }
        match (self.version, version) {
            (_, None) => true,
            (Ok(is), Some(seen)) => is == seen,
            (Err(least), Some(seen)) => {
                self.version = Ok(seen);
                seen >= least
            }
        }
    }

    fn sets(&mut self, value: u64, version: Option<u64>) -> bool {
        let (Ok(floor) | Err(floor)) = self.version;
        self.value = Some(value);
        self.version = version.ok_or(floor + 1);
        version.is_none_or(|version| version > floor)
    }

    fn takes(&mut self, action: Action) -> bool {
        match action {
            Action::Read { value, version } => self.sees(value, version),
            Action::Write { value, version } => self.sets(value, version),
            Action::Cas { expected, expected_version, value, version } => {
                self.sees(expected, expected_version) && self.sets(value, version)
            }
        }
    }
}

fn brute_force(calls: &[Call], done: &mut Vec<usize>, model: Model) -> bool {
    let open = |done: &[usize], call: usize| !done.contains(&call);
    if (0..calls.len()).all(|call| calls[call].returned.is_none() || done.contains(&call)) {
        return true;
    }
    for call in 0..calls.len() {
        let overtaken = (0..calls.len()).any(|other| {
            open(done, other)
                && calls[other].returned.is_some_and(|returned| returned < calls[call].invoked)
        });
        let mut next = model;
        if open(done, call) && !overtaken && next.takes(calls[call].action) {
            done.push(call);
            if brute_force(calls, done, next) {
                return true;
            }
            done.pop();
        }
    }
    false
}

/// A register served in a known order by overlapping clients; good by construction, then perhaps spoilt.
fn random_calls(random: &mut Dice, count: usize, versions: bool, spoil: bool) -> Vec<Call> {
    let mut value: Option<u64> = None;
    let mut version = 0;
    let mut calls = Vec::new();
    for step in 0..count as u64 {
        let at = step * 100 + 1_000;
        let invoked = at - random.index(300) as u64;
        let returned = Some(at + random.index(300) as u64);
        let shown = |version| versions.then_some(version);
        let happens = random.index(8) > 0;
        let answered = happens && random.index(4) > 0;
        let kind = random.index(3);
        let (before, version_before) = (value, version);
        if kind > 0 && happens {
            value = Some(step);
            version += 1 + random.index(3) as u64;
        }
        let answer = if answered { shown(version) } else { None };
        let action = match kind {
            0 => Action::Read { value, version: shown(version) },
            1 => Action::Write { value: step, version: answer },
            _ => Action::Cas {
                expected: before,
                expected_version: shown(version_before),
                value: step,
                version: answer,
            },
        };
        let returned = if kind == 0 || answered { returned } else { None };
        calls.push(Call { action, invoked, returned });
    }
    if spoil {
        let victim = random.index(calls.len());
        let other = random.index(count) as u64;
        match &mut calls[victim].action {
            Action::Read { value, version } => {
                *value = Some(other).filter(|value| *value > 0);
                *version = version.map(|version| version.saturating_sub(random.index(2) as u64));
            }
            Action::Write { version, .. } => {
                *version = version.map(|version| version.saturating_sub(1));
            }
            Action::Cas { expected, .. } => *expected = Some(other),
        }
    }
    distinct_times(&mut calls);
    calls
}

/// Makes the times a dense order, as the recorder's indexes are.
fn distinct_times(calls: &mut [Call]) {
    let mut times: Vec<(u64, usize, bool)> = Vec::new();
    for (position, call) in calls.iter().enumerate() {
        times.push((call.invoked, position, false));
        times.extend(call.returned.map(|returned| (returned, position, true)));
    }
    times.sort_unstable_by_key(|(time, position, end)| (*time, *end, *position));
    for (index, (_, position, end)) in times.into_iter().enumerate() {
        if end {
            calls[position].returned = Some(index as u64);
        } else {
            calls[position].invoked = index as u64;
        }
    }
}

#[test]
fn agrees_with_brute_force() {
    let mut verdicts = [0; 2];
    for seed in 0..6_000 {
        let mut random = Dice::numbered(seed, 0);
        let (versions, spoil) = (seed % 2 == 0, seed % 4 < 2);
        let count = 2 + random.index(6);
        let calls = random_calls(&mut random, count, versions, spoil);
        let start = Model { value: None, version: Ok(0) };
        let expected = brute_force(&calls, &mut Vec::new(), start);
        assert!(expected || spoil, "seed {seed}: a good history was generated bad: {calls:#?}");
        let found = linearizable(&calls, &budget());
        let wanted = if expected { Outcome::Yes } else { Outcome::No };
        assert_eq!(found, wanted, "seed {seed}: {calls:#?}");
        verdicts[usize::from(expected)] += 1;
    }
    assert!(verdicts[0] > 500 && verdicts[1] > 3_000, "both verdicts are tested: {verdicts:?}");
}

#[test]
fn long_histories_take_few_configurations() {
    let mut random = Dice::numbered(11, 0);
    let good = random_calls(&mut random, 10_000, true, false);
    // A few for each call: what is looked at is counted, so that the machine's speed does not matter.
    let few = Budget { configurations_max: 100_000, ..budget() };
    assert_eq!(linearizable(&good, &few), Outcome::Yes);
    let mut bad = good;
    let last = bad.iter().filter_map(|call| call.returned).max().unwrap();
    let stale = Action::Read { value: None, version: Some(0) };
    bad.push(Call { action: stale, invoked: last + 1, returned: Some(last + 2) });
    assert_eq!(linearizable(&bad, &few), Outcome::No);
}

#[test]
fn a_spent_budget_is_unknown() {
    let calls = random_calls(&mut Dice::numbered(3, 0), 5_000, false, false);
    let late = Budget { deadline: Instant::now(), ..budget() };
    assert!(matches!(linearizable(&calls, &late), Outcome::Unknown(_)));
    let small = Budget { configurations_max: 10, ..budget() };
    assert!(matches!(linearizable(&calls, &small), Outcome::Unknown(_)));
}
