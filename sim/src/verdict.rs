//! What a run found wrong. One list per process, because a process runs one seed; anybody may add to it.

use std::cell::RefCell;

use crate::trace;

/// Failures kept; the first one is what matters.
const FAILURES_MAX: usize = 50;

thread_local! {
    static FAILURES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A promise was broken.
pub(crate) fn fail(what: String) {
    trace::event("FAIL", format_args!("{what}"));
    FAILURES.with_borrow_mut(|failures| {
        if failures.len() < FAILURES_MAX {
            failures.push(what);
        }
    });
}

/// Notes what a judge found.
pub(crate) fn note(judged: Result<(), String>) {
    if let Err(what) = judged {
        fail(what);
    }
}

/// What went wrong so far.
pub(crate) fn failures() -> Vec<String> {
    FAILURES.with_borrow(Vec::clone)
}

/// Whether something went wrong.
pub(crate) fn has_failed() -> bool {
    FAILURES.with_borrow(|failures| !failures.is_empty())
}
