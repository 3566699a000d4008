//! When the agent tries again by itself what has failed: a start of a task, or a stage of its
//! preparation. Such a try does not count against the restarts of the job.

use super::run::Fault;

/// How many tries in a row may fail with [`Fault::Passing`] before the failure counts.
const PASSING_TRIES_MAX: u32 = 10;
/// Pause after the first failure, ms. It doubles with each failure in a row.
const PAUSE_MS: u64 = 1_000;
const PAUSE_MS_MAX: u64 = 30_000;

/// The pause before the next try, ms, when `failures` tries in a row have failed before this one.
pub(crate) fn pause_ms(failures: u32) -> u64 {
    // More doublings would be cut off anyway.
    let doubled = PAUSE_MS.checked_shl(failures.min(10));
    doubled.unwrap_or(u64::MAX).min(PAUSE_MS_MAX)
}

/// Why a try that failed with this fault is made again. `None`: the failure counts. `failures`: how
/// many tries in a row have failed before this one.
pub(crate) fn reason_to_retry(fault: Fault, failures: u32) -> Option<&'static str> {
    match fault {
        Fault::Shortage => Some("The machine is short of something"),
        Fault::Passing => Some("It may pass").filter(|_| failures < PASSING_TRIES_MAX),
        Fault::Task | Fault::Node => None,
    }
}
