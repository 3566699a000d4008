//! When a majority of the servers was last in touch with this one: through the leader that it
//! follows, or as the leader itself.
//!
//! A leader sends with each append how long its majority has been silent. So a follower of a leader
//! that is cut off knows it as soon as that leader. Must never say that a majority was heard later
//! than it was.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ground::clock::Clock;

/// When a majority was last heard, for the age of stale reads and for what operators see.
#[derive(Debug)]
pub struct LeaderContact {
    clock: Clock,
    at_ms: AtomicU64,
    term: AtomicU64,
}

impl LeaderContact {
    /// Never heard yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, at_ms: AtomicU64::new(0), term: AtomicU64::new(0) }
    }

    /// The leader of this term was heard, which has heard no majority for `silence`.
    pub(super) fn heard(&self, term: u64, silence: Duration) {
        self.term.store(term, Ordering::Relaxed);
        self.was_in_touch(silence);
    }

    /// This long ago a majority answered this server as the leader, or the leader that it heard.
    pub fn was_in_touch(&self, age: Duration) {
        let at = self.clock.monotonic_ms().saturating_sub(ms(age)).max(1);
        self.at_ms.fetch_max(at, Ordering::Relaxed);
    }

    /// Whether the leader of this term was heard since the start.
    pub fn has_heard(&self, term: u64) -> bool {
        term != 0 && self.term.load(Ordering::Relaxed) == term
    }

    /// Time since a majority was in touch; since the start when none was.
    pub fn age(&self) -> Duration {
        let at = self.at_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.clock.monotonic_ms().saturating_sub(at))
    }

    /// The same in milliseconds, for messages.
    pub(super) fn age_ms(&self) -> u64 {
        ms(self.age())
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ground::rt;

    #[tokio::test(start_paused = true)]
    async fn a_follower_knows_how_long_its_leader_has_heard_no_majority() {
        let contact = LeaderContact::new(Clock::default());
        rt::sleep(Duration::from_secs(20)).await;
        assert!(!contact.has_heard(1));
        contact.heard(1, Duration::from_secs(9));
        assert!(contact.has_heard(1));
        assert_eq!(contact.age(), Duration::from_secs(9));
        contact.heard(1, Duration::ZERO);
        rt::sleep(Duration::from_secs(2)).await;
        contact.heard(1, Duration::from_secs(9));
        assert_eq!(contact.age(), Duration::from_secs(2), "what was heard stays heard");
    }
}
