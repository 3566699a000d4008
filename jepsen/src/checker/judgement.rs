//! What the checker of a workload says, in one form for all of them.
//!
//! Pure data. The evidence is bounded, so that a run in which everything went wrong can still be read.

use serde::Serialize;
use serde_json::Value;

use super::Verdict;
use crate::history::Op;

/// Violations kept with their entries; the others are only counted.
const VIOLATIONS_MAX: usize = 5;

/// The judgement of a workload's checker.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judgement {
    /// The verdict.
    pub(crate) valid: Verdict,
    /// Which checker.
    pub(crate) checker: &'static str,
    /// Operations judged.
    pub(crate) operations: usize,
    /// What was looked at and found, in one line.
    pub(crate) summary: String,
    /// Counts and lists of this checker.
    pub(crate) details: Value,
    /// How many violations there are.
    pub(crate) violation_count: usize,
    /// The first of them.
    pub(crate) violations: Vec<Violation>,
    /// How long judging took.
    pub(crate) elapsed_ms: u128,
}

/// One thing that must not happen, with the entries that prove it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Violation {
    /// What is wrong, in one sentence.
    pub(crate) title: String,
    /// The entries, in order.
    pub(crate) entries: Vec<Op>,
}

impl Judgement {
    /// A judgement without violations so far.
    pub(crate) fn new(checker: &'static str, operations: usize) -> Self {
        Self {
            valid: Verdict::True,
            checker,
            operations,
            summary: String::new(),
            details: Value::Null,
            violation_count: 0,
            violations: Vec::new(),
            elapsed_ms: 0,
        }
    }

    /// A checker that could not judge.
    pub(crate) fn unknown(checker: &'static str, reason: String) -> Self {
        Self { valid: Verdict::Unknown, summary: reason, ..Self::new(checker, 0) }
    }

    /// Notes a violation.
    pub(crate) fn violated(&mut self, title: String, entries: impl IntoIterator<Item = Op>) {
        self.valid = Verdict::False;
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_MAX {
            let mut entries: Vec<Op> = entries.into_iter().collect();
            entries.sort_by_key(|op| op.index);
            entries.dedup_by_key(|op| op.index);
            self.violations.push(Violation { title, entries });
        }
    }

    /// Notes that something is missing that a verdict of true would need.
    pub(crate) fn lacks(&mut self, reason: &str) {
        self.valid = self.valid.max(Verdict::Unknown);
        if !self.summary.is_empty() {
            self.summary.push_str("; ");
        }
        self.summary.push_str(reason);
    }
}
