//! The restart policy as a pure state machine. It is told how a run of a task ended, and decides
//! whether and when the task runs again. It has no timer and no clock. The jitter is a function of
//! a seed, so the same history gives the same delays.
//!
//! A window of `interval_ms` opens at the first end of a run. After it has passed, the next end
//! opens a new window. A window allows `attempts` restarts. After those the policy's mode decides:
//! the task fails, or it waits for the next window.

use serde::{Deserialize, Serialize};

/// How often a task may be restarted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct RestartPolicy {
    /// How many restarts a window allows.
    pub(crate) attempts: u32,
    /// Length of the window, ms.
    pub(crate) interval_ms: u64,
    /// Pause before a restart, ms; up to a quarter of it is added as jitter.
    pub(crate) delay_ms: u64,
    /// What happens when the attempts are used up.
    pub(crate) mode: RestartMode,
}

/// What happens when the attempts are used up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum RestartMode {
    /// The task fails.
    Fail,
    /// The task waits for the next window.
    Delay,
}

/// How a run ended, or why it did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Exit code 0.
    Success,
    /// Another exit code, or a signal.
    Failure,
    /// The run could not be started. Another try may succeed.
    StartFailed,
    /// The run could not be started, and another try would fail too.
    StartImpossible,
}

/// What happens to the task after a run has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// The task has ended with success.
    Complete,
    /// The task runs again after this pause.
    Restart {
        /// Pause, ms.
        delay_ms: u64,
        /// Why, for the event of the task.
        reason: String,
    },
    /// The task has ended with an error.
    Fail {
        /// Why, for the event of the task.
        reason: String,
    },
}

/// Counts the restarts of one task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RestartTracker {
    window_started_ms: Option<u64>,
    /// How many runs have ended in this window.
    count: u32,
}

impl RestartTracker {
    /// Records that a run ended at `now_ms` (time since boot) and decides what follows.
    /// `restart_on_success` is set for service and system jobs, whose tasks should run for ever.
    pub(crate) fn decide(
        &mut self,
        policy: &RestartPolicy,
        restart_on_success: bool,
        ending: Ending,
        now_ms: u64,
        seed: u64,
    ) -> Decision {
        match ending {
            Ending::Success if !restart_on_success => return Decision::Complete,
            Ending::StartImpossible => {
                return Decision::Fail { reason: "Error was unrecoverable".to_owned() };
            }
            Ending::Success | Ending::Failure | Ending::StartFailed => {}
        }
        if policy.attempts == 0 && policy.mode == RestartMode::Fail {
            return Decision::Fail { reason: "Policy allows no restarts".to_owned() };
        }
        let window_open = self
            .window_started_ms
            .filter(|started| now_ms.saturating_sub(*started) <= policy.interval_ms);
        let started = window_open.unwrap_or_else(|| {
            self.count = 0;
            now_ms
        });
        self.window_started_ms = Some(started);
        self.count = self.count.saturating_add(1);
        if self.count <= policy.attempts {
            let delay_ms =
                policy.delay_ms.saturating_add(jitter(seed, self.count, policy.delay_ms));
            return Decision::Restart { delay_ms, reason: "Restart within policy".to_owned() };
        }
        let exceeded = format!(
            "Exceeded allowed attempts {} in interval {}",
            policy.attempts,
            calendar::go_duration(policy.interval_ms)
        );
        match policy.mode {
            RestartMode::Fail => {
                Decision::Fail { reason: format!("{exceeded} and mode is \"fail\"") }
            }
            RestartMode::Delay => {
                let window_ends = started.saturating_add(policy.interval_ms);
                // 1 ms past the window's end, so that the next end of a run opens a new window.
                let delay_ms = window_ends.saturating_sub(now_ms).saturating_add(1);
                Decision::Restart { delay_ms, reason: format!("{exceeded} and mode is \"delay\"") }
            }
        }
    }

    /// Forgets the window. Called after the machine has booted, because its times since boot start
    /// from 0 again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

fn jitter(seed: u64, count: u32, delay_ms: u64) -> u64 {
    let most = (delay_ms / 4).saturating_add(1);
    chance::mix(seed ^ u64::from(count)).checked_rem(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RestartPolicy =
        RestartPolicy { attempts: 2, interval_ms: 1000, delay_ms: 100, mode: RestartMode::Fail };

    fn word(decision: &Decision) -> &'static str {
        match decision {
            Decision::Complete => "complete",
            Decision::Restart { .. } => "restart",
            Decision::Fail { .. } => "fail",
        }
    }

    /// Feeds endings at times and compares the decisions' names.
    fn check(policy: RestartPolicy, on_success: bool, script: &[(u64, Ending, &str)]) {
        let mut tracker = RestartTracker::default();
        for (at, ending, expected) in script {
            let decision = tracker.decide(&policy, on_success, *ending, *at, 7);
            assert_eq!(word(&decision), *expected, "at {at}: {ending:?} gave {decision:?}");
        }
    }

    #[test]
    fn a_batch_task_that_exits_with_zero_is_complete() {
        check(POLICY, false, &[(0, Ending::Success, "complete")]);
    }

    #[test]
    fn a_service_task_that_exits_with_zero_is_restarted_by_its_policy() {
        let ok = Ending::Success;
        check(POLICY, true, &[(0, ok, "restart"), (1, ok, "restart"), (2, ok, "fail")]);
    }

    #[test]
    fn attempts_are_counted_per_window() {
        let end = Ending::Failure;
        check(
            POLICY,
            false,
            &[
                (0, end, "restart"),
                (900, end, "restart"),
                (1001, end, "restart"),
                (1002, end, "restart"),
                (1003, end, "fail"),
            ],
        );
    }

    #[test]
    fn no_attempts_means_failure_and_what_cannot_start_is_not_tried_again() {
        let none = RestartPolicy { attempts: 0, ..POLICY };
        check(none, true, &[(0, Ending::Failure, "fail")]);
        check(POLICY, true, &[(0, Ending::StartImpossible, "fail")]);
        check(POLICY, true, &[(0, Ending::StartFailed, "restart")]);
    }

    #[test]
    fn delay_mode_waits_for_the_next_window() {
        let policy = RestartPolicy { mode: RestartMode::Delay, ..POLICY };
        let mut tracker = RestartTracker::default();
        for at in [0, 10] {
            tracker.decide(&policy, true, Ending::Failure, at, 7);
        }
        let third = tracker.decide(&policy, true, Ending::Failure, 300, 7);
        let Decision::Restart { delay_ms, reason } = third else {
            panic!("expected a restart, got {third:?}")
        };
        assert_eq!(delay_ms, 701);
        assert!(reason.contains("mode is \"delay\""), "{reason}");
        let next = tracker.decide(&policy, true, Ending::Failure, 1001, 7);
        assert!(matches!(next, Decision::Restart { delay_ms: 100..=125, .. }), "{next:?}");
    }

    #[test]
    fn jitter_is_bounded_and_repeatable() {
        for seed in 0..100 {
            let value = jitter(seed, 1, 15_000);
            assert!(value <= 3_750, "{value}");
            assert_eq!(value, jitter(seed, 1, 15_000));
        }
        assert_eq!(jitter(3, 1, 0), 0);
    }
}
