//! Waits that grow: one [`Backoff`] per worker and kind of wait.

use std::time::Duration;

/// Waits that grow by four up to a cap, reset on success and not raised once capped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// A backoff that begins at `first` and is capped at `most`.
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0 }
    }

    /// The next wait.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.first.saturating_mul(4u32.saturating_pow(self.failures));
        if wait >= self.most {
            return self.most;
        }
        self.failures += 1;
        wait
    }

    /// Starts again with the first wait.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// The backoffs of one worker. What succeeds resets its own and no other.
#[derive(Debug)]
pub(crate) struct Backoffs {
    /// After errors of a dequeue: 20, 80, 320, 1280, 5120, 10 000 ms.
    pub(crate) dequeue: Backoff,
    /// Between submissions of a plan that did not reach a leader: 500, 2000, 8000, 10 000 ms.
    pub(crate) resubmit: Backoff,
    /// Between submissions of a plan that found the plan queue full: 20, 80, 320, 1000 ms.
    pub(crate) full_queue: Backoff,
    /// Before planning again after an unknown outcome: 500, 2000, 8000, 10 000 ms.
    pub(crate) unknown: Backoff,
}

impl Default for Backoffs {
    fn default() -> Self {
        let (fast, slow) = (Duration::from_millis(20), Duration::from_millis(500));
        let most = Duration::from_secs(10);
        Self {
            dequeue: Backoff::new(fast, most),
            resubmit: Backoff::new(slow, most),
            full_queue: Backoff::new(fast, Duration::from_secs(1)),
            unknown: Backoff::new(slow, most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits grow by four up to their cap, are not raised any more there, and begin anew after a
    /// success (NW-07).
    #[test]
    fn backoffs_grow_by_four_to_their_cap_and_reset() {
        let waits = |mut backoff: Backoff| -> Vec<u128> {
            (0..7).map(|_| backoff.next_wait().as_millis()).collect()
        };
        let Backoffs { dequeue, resubmit, full_queue, unknown } = Backoffs::default();
        assert_eq!(waits(resubmit), [500, 2000, 8000, 10_000, 10_000, 10_000, 10_000]);
        assert_eq!(waits(unknown), waits(resubmit));
        assert_eq!(waits(dequeue), [20, 80, 320, 1280, 5120, 10_000, 10_000]);
        assert_eq!(waits(full_queue)[..5], [20, 80, 320, 1000, 1000]);
        let mut backoff = resubmit;
        for _ in 0..100 {
            backoff.next_wait();
        }
        assert_eq!(backoff.failures, 3, "not raised once capped");
        backoff.reset();
        assert_eq!(backoff.next_wait().as_millis(), 500);
    }
}
