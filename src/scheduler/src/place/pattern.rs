//! Regular expressions whose cost is limited: each match is charged to a [`Budget`] before it runs.
//!
//! The library matches in time proportional to bytes of text × bytes of compiled program. A pattern
//! of 30 bytes may compile to a program of a megabyte. For example, three lists with
//! `a(?:[ab]{1000}){1}[^ab]` over texts of 300 KB took a server 23 s. So the cost of a match is
//! that product, and every caller that matches has a budget.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use regex::Regex;

use crate::place::regexp;

/// Cost of compiling one byte of program, in the unit of [`Budget`]. Assumed to take as long as
/// matching 100 bytes of text; not measured.
const COMPILE: u64 = 100;

/// How much a series of matches may still cost, in bytes of text × bytes of program. From the 23 s
/// in the module docs, one unit takes some tenths of a nanosecond for that worst pattern (an
/// estimate, not measured). Ordinary patterns take far less.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    /// Set by the owner of the request when its client has gone. Matches are refused from then on.
    abandoned: Arc<AtomicBool>,
}

/// The error of a match or compilation for which the budget is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its regular expressions cost too much on texts this long: make them shorter, with smaller repetitions, or match fewer or shorter texts"
)]
pub struct Spent;

impl Budget {
    /// For one scheduling pass: about 1 s in the worst case, by that estimate. It is enough to
    /// match 20,000 nodes with values of 40 bytes against a pattern like `^node-[0-9]+$`.
    pub const OF_PASS: u64 = 3_000_000_000;
    /// For one HTTP request: about 1 s in the worst case.
    pub const OF_REQUEST: u64 = 3_000_000_000;

    /// A budget of `left` units.
    pub fn new(left: u64) -> Self {
        Self::until(left, Arc::default())
    }

    /// A budget of `left` units that becomes empty once the flag `abandoned` is set.
    pub fn until(left: u64, abandoned: Arc<AtomicBool>) -> Self {
        Self { left: Cell::new(left), abandoned }
    }

    /// Whether the budget has refused a charge.
    pub fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// Subtracts `cost`. If too little is left, the budget becomes empty, so that every later
    /// charge fails too.
    pub fn charge(&self, cost: u64) -> Result<(), Spent> {
        let is_wanted = !self.abandoned.load(Ordering::Relaxed);
        let left = self.left.get().checked_sub(cost).filter(|left| *left > 0 && is_wanted);
        self.left.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(Spent)
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    regex: Regex,
    /// Size of the compiled program, rounded up to a power of two.
    bytes: u64,
}

impl Pattern {
    /// Compiles a text in the syntax of Go's `regexp`. The error says what is wrong with it. A
    /// program may have at most 1 MiB.
    pub fn compile(text: &str) -> Result<Self, String> {
        let (regex, bytes) = regexp::compile(text)?;
        Ok(Self { regex, bytes: bytes as u64 })
    }

    /// Charges for the compilation, which [`Self::compile`] has already done.
    pub fn charge(self, budget: &Budget) -> Result<Self, Spent> {
        budget.charge(self.bytes.saturating_mul(COMPILE))?;
        Ok(self)
    }

    /// Whether it matches anywhere in `text`.
    pub fn is_match(&self, text: &str, budget: &Budget) -> Result<bool, Spent> {
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX).saturating_add(1);
        budget.charge(self.bytes.saturating_mul(length))?;
        Ok(self.regex.is_match(text))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const COSTLY: &str = "a(?:[ab]{1000}){1}[^ab]";

    #[test]
    fn honest_patterns_are_cheap_and_large_repetitions_are_not() {
        let bytes = |text: &str| Pattern::compile(text).unwrap().bytes;
        for honest in ["^node-[0-9]+$", "eu-(west|central)-[12]", "(?i)^web", r"^\d+\.\d+$", ""] {
            assert!(bytes(honest) <= 8 << 10, "{honest}: {}", bytes(honest));
        }
        assert!(bytes(COSTLY) >= 32 << 10, "{}", bytes(COSTLY));
    }

    #[test]
    fn a_match_beyond_the_budget_is_not_made_nor_any_after_it() {
        let pattern = Pattern::compile(COSTLY).unwrap();
        let budget = Budget::new(Budget::OF_REQUEST);
        assert_eq!(pattern.is_match(&"ab".repeat(500), &budget), Ok(false));
        assert!(!budget.is_spent());
        assert_eq!(pattern.is_match(&"ab".repeat(150_000), &budget), Err(Spent));
        assert_eq!(pattern.is_match("", &budget), Err(Spent));
        assert!(budget.is_spent());
        let abandoned = Arc::new(AtomicBool::new(false));
        let budget = Budget::until(Budget::OF_REQUEST, Arc::clone(&abandoned));
        assert_eq!(pattern.is_match("ab", &budget), Ok(false));
        abandoned.store(true, Ordering::Relaxed);
        assert_eq!(pattern.is_match("ab", &budget), Err(Spent), "its client has gone");
        let few = Budget::new(1_000);
        assert_eq!(Pattern::compile("a").unwrap().charge(&few).unwrap_err(), Spent);
    }

    /// 20,000 nodes with different values fit in the budget of a pass.
    #[test]
    fn a_pass_over_many_nodes_is_within_its_budget() {
        let pattern = Pattern::compile("^node-[0-9]+$").unwrap();
        let budget = Budget::new(Budget::OF_PASS);
        for node in 0..20_000 {
            let value = format!("node-{node:035}");
            assert_eq!(pattern.is_match(&value, &budget), Ok(true), "node {node}");
        }
    }
}
