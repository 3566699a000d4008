//! The longest run of an allocation (`max_run_duration`), as a pure state machine. It knows when
//! the run is over, and remembers whether that ended the allocation.
//!
//! The time counts from when the agent accepted the allocation, whatever its tasks do. Restarts of
//! the agent and boots of the machine do not reset it. A new version of the job may change the
//! limit of a running allocation.

use serde::{Deserialize, Serialize};

use crate::time::Moment;

/// The description that the servers get for an allocation that ran too long.
pub(crate) const RUN_TIME_OVER: &str = fsm::allocation::RUN_TIME_OVER;

/// After a start of the agent, a run that is over may go on for this long, ms. Meanwhile the
/// servers may report a longer limit. Afterwards they end such an allocation themselves (see
/// `fsm::limits::RUN_GRACE_MS`).
const HOLD_MS: u64 = 30_000;

/// The limit of one allocation's run. Times are in ms.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RunLimit {
    /// 0: no bound.
    max_ms: u64,
    /// When the run began, time since boot. After a boot: when the agent first saw the new boot.
    began_ms: u64,
    /// How long it ran before the last boot.
    before_ms: u64,
    began_wall_ms: u64,
    is_over: bool,
    /// The run is not ended before this time since boot.
    #[serde(skip)]
    held_until_ms: u64,
}

impl RunLimit {
    /// A run that begins now.
    pub(crate) fn new(max_ms: u64, now: Moment) -> Self {
        let (began_ms, began_wall_ms) = (now.since_boot_ms, now.wall_ms);
        Self { max_ms, began_ms, began_wall_ms, ..Self::default() }
    }

    /// Sets the limit of the job version that the servers report. Returns whether the limit has
    /// changed, so that it must be stored.
    pub(crate) fn revise(&mut self, max_ms: u64) -> bool {
        self.held_until_ms = 0;
        std::mem::replace(&mut self.max_ms, max_ms) != max_ms
    }

    /// Called when the agent has started again. A new version with a longer limit may have come
    /// meanwhile. So the run is not ended before the servers have reported, or [`HOLD_MS`] have
    /// passed.
    pub(crate) fn hold(&mut self, now: Moment) {
        self.held_until_ms = now.since_boot_ms.saturating_add(HOLD_MS);
    }

    /// Removes the limit, because a task has failed before it was reached. The failure, not the
    /// limit, then explains the end.
    pub(crate) fn disarm(&mut self) {
        if !self.is_over {
            self.max_ms = 0;
        }
    }

    /// Called after the machine has booted, when time since boot starts from 0. The time run before
    /// is taken from the wall clock.
    pub(crate) fn begin_again(&mut self, now: Moment) {
        self.before_ms = now.wall_ms.saturating_sub(self.began_wall_ms);
        self.began_ms = now.since_boot_ms;
    }

    /// When the run is over, time since boot. `None`: it has no limit, or it is over.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let left_ms = self.max_ms.saturating_sub(self.before_ms);
        let due = self.began_ms.saturating_add(left_ms).max(self.held_until_ms);
        (self.max_ms > 0 && !self.is_over).then_some(due)
    }

    /// Whether the run is over at `now`. Returns `true` only once.
    pub(crate) fn ends(&mut self, now: Moment) -> bool {
        let ends = self.next_deadline().is_some_and(|at| at <= now.since_boot_ms);
        self.is_over |= ends;
        ends
    }

    /// Whether the run was ended because it took too long.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(since_boot_ms: u64, wall_ms: u64) -> Moment {
        Moment { since_boot_ms, wall_ms }
    }

    #[test]
    fn a_run_ends_once_at_its_time() {
        let mut limit = RunLimit::new(100, at(1_000, 0));
        assert_eq!(limit.next_deadline(), Some(1_100));
        assert!(!limit.ends(at(1_099, 0)));
        assert!(limit.revise(200));
        assert!(!limit.ends(at(1_150, 0)), "the job was given more time");
        assert!(limit.ends(at(1_200, 0)) && limit.is_over());
        assert!(!limit.ends(at(1_300, 0)), "it has ended already");
        assert_eq!(limit.next_deadline(), None);
        assert_eq!(RunLimit::new(0, at(5, 5)).next_deadline(), None);
        let mut failed = RunLimit::new(100, at(0, 0));
        failed.disarm();
        assert!(!failed.ends(at(500, 0)));
    }

    #[test]
    fn after_a_restart_the_servers_are_heard_first() {
        let mut limit = RunLimit::new(100, at(1_000, 0));
        limit.hold(at(2_000, 0));
        assert_eq!(limit.next_deadline(), Some(2_000 + HOLD_MS));
        let mut longer = limit.clone();
        assert!(longer.revise(5_000));
        assert_eq!(longer.next_deadline(), Some(6_000));
        assert!(!limit.revise(100));
        assert!(limit.ends(at(2_000, 0)), "nobody gave it more time");
    }

    #[test]
    fn a_boot_does_not_begin_the_run_anew() {
        let mut limit = RunLimit::new(100_000, at(50_000, 1_000_000));
        limit.begin_again(at(3_000, 1_060_000));
        assert_eq!(limit.next_deadline(), Some(43_000));
        limit.begin_again(at(1_000, 2_000_000));
        assert!(limit.ends(at(1_000, 2_000_000)));
    }
}
