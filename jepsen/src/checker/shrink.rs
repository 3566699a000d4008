//! Making a history that fails small, without knowing what it is about.
//!
//! Every step keeps a legal history legal (cutting the end off; leaving out an operation that the caller
//! says cannot help others), so what is left proves the violation by itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::wgl::Budget;
use crate::history::{Kind, Op};

/// How long is looked for something smaller.
const TIME_MAX: Duration = Duration::from_secs(10);

/// What one search for something smaller may spend, however much the judgement has spent before.
pub(crate) fn budget(configurations_max: usize) -> Budget {
    Budget { deadline: Instant::now() + TIME_MAX, configurations_max }
}

/// The entries up to the first answer with which the history fails, less what can be left out. `fails` judges
/// a history, `removable` tells whether operations that start so may be left out.
pub(crate) fn shrink(
    history: &[Op],
    fails: impl Fn(&[Op]) -> bool,
    removable: impl Fn(&Op) -> bool,
) -> Vec<Op> {
    let until = Instant::now() + TIME_MAX;
    let (mut low, mut high) = (0, history.len());
    // Invariant: the first `high` entries fail.
    while low + 1 < high && Instant::now() < until {
        let middle = low.midpoint(high);
        if fails(&history[..middle]) {
            high = middle;
        } else {
            low = middle;
        }
    }
    let mut small = history[..high].to_vec();
    loop {
        let before = small.len();
        let starts: Vec<u64> = small
            .iter()
            .filter(|op| op.kind == Kind::Invoke && removable(op))
            .map(|op| op.index)
            .collect();
        for start in starts.into_iter().rev() {
            if Instant::now() >= until {
                return small;
            }
            let without = without(&small, start);
            if fails(&without) {
                small = without;
            }
        }
        if small.len() == before {
            return small;
        }
    }
}

/// The history without the operation that starts with this entry.
fn without(history: &[Op], start: u64) -> Vec<Op> {
    let mut gone = BTreeSet::from([start]);
    if let Some(position) = history.iter().position(|op| op.index == start) {
        let process = history[position].process;
        let end = history[position + 1..].iter().find(|op| op.process == process);
        gone.extend(end.filter(|op| op.kind != Kind::Invoke).map(|op| op.index));
    }
    history.iter().filter(|op| !gone.contains(&op.index)).cloned().collect()
}
