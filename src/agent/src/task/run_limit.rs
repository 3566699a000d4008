//! The longest run of an allocation, as a pure machine: when it is over, and that it was the reason
//! of the end.
//!
//! It counts from when the agent took the allocation up, whatever its tasks do, and over restarts
//! of the agent and of the machine. A new version of the job may move the end of what runs.

use serde::{Deserialize, Serialize};

use crate::time::Moment;

/// What the servers are told of an allocation that ran too long.
pub(crate) const RUN_TIME_OVER: &str = fsm::allocation::RUN_TIME_OVER;

/// How long a run goes on at most, after a start of the agent, until the servers have said how long
/// it may take. By then they end it themselves.
const HOLD_MS: u64 = 30_000;

/// The watch over one allocation's run. Times are ms.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RunLimit {
    /// 0: no bound.
    max_ms: u64,
    /// Since boot; the run began then, or the machine booted.
    began_ms: u64,
    /// What it ran before the machine booted.
    before_ms: u64,
    began_wall_ms: u64,
    is_over: bool,
    /// Since boot; the run does not end before.
    #[serde(skip)]
    held_until_ms: u64,
}

impl RunLimit {
    /// A run that begins now.
    pub(crate) fn new(max_ms: u64, now: Moment) -> Self {
        let (began_ms, began_wall_ms) = (now.since_boot_ms, now.wall_ms);
        Self { max_ms, began_ms, began_wall_ms, ..Self::default() }
    }

    /// The servers have said which version of the job it is of. Whether that gives the run another
    /// length, which is to be stored.
    pub(crate) fn revise(&mut self, max_ms: u64) -> bool {
        self.held_until_ms = 0;
        std::mem::replace(&mut self.max_ms, max_ms) != max_ms
    }

    /// The agent has started again, and a version that gives the run more time may have come
    /// meanwhile: the run goes on until the servers are heard, or [`HOLD_MS`] are over.
    pub(crate) fn hold(&mut self, now: Moment) {
        self.held_until_ms = now.since_boot_ms.saturating_add(HOLD_MS);
    }

    /// The allocation has failed before: that is the reason of its end.
    pub(crate) fn disarm(&mut self) {
        if !self.is_over {
            self.max_ms = 0;
        }
    }

    /// The machine has booted: its clock begins anew. What was run before is known by the wall
    /// clock.
    pub(crate) fn begin_again(&mut self, now: Moment) {
        self.before_ms = now.wall_ms.saturating_sub(self.began_wall_ms);
        self.began_ms = now.since_boot_ms;
    }

    /// When the run is over, in time since boot; none: it has no bound, or is over.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let left_ms = self.max_ms.saturating_sub(self.before_ms);
        let due = self.began_ms.saturating_add(left_ms).max(self.held_until_ms);
        (self.max_ms > 0 && !self.is_over).then_some(due)
    }

    /// Whether the run is over now, for the first time.
    pub(crate) fn ends(&mut self, now: Moment) -> bool {
        let ends = self.next_deadline().is_some_and(|at| at <= now.since_boot_ms);
        self.is_over |= ends;
        ends
    }

    /// The run was ended because it took too long.
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
