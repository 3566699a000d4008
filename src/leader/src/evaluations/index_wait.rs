//! A worker's wait until its server has applied an index. Apply wakes it; besides that it looks by
//! itself, so that a wake-up that is lost costs a second and not a lease.
//!
//! ```text
//!  new ─► look at once ─► Until(20 ms), Until(+80), Until(+320), Until(+1000) … ─► There, or Over
//!             ▲                              │
//!             └───── woken, or that time ◄───┘
//! ```

use fsm::{
    Index, TimeMs,
    plant::{Plant, is_planted},
};

/// Pauses between the looks; the last one repeats.
const PAUSES_MS: [u64; 4] = [20, 80, 320, 1_000];

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// The index is applied.
    There,
    /// It is not: look again when woken, and at this time at the latest.
    Until(TimeMs),
    /// It is not, and the time of the wait is over.
    Over,
}

/// A wait for an index. Times are milliseconds of any clock that only goes forward.
///
/// Invariant: between two looks lies at most the last of [`PAUSES_MS`].
#[derive(Clone, Debug)]
pub struct IndexWait {
    index: Index,
    ends_at: TimeMs,
    next_look: TimeMs,
    looks: usize,
}

impl IndexWait {
    /// A wait from `now` on, for at most `limit_ms`. The first look is due at once.
    pub fn new(index: Index, now: TimeMs, limit_ms: u64) -> Self {
        Self { index, ends_at: now.saturating_add(limit_ms), next_look: now, looks: 0 }
    }

    /// The index that is waited for.
    pub fn index(&self) -> Index {
        self.index
    }

    /// When the next look is due without a wake-up.
    pub fn next_look(&self) -> TimeMs {
        self.next_look
    }

    /// A look at what is applied.
    pub fn look(&mut self, now: TimeMs, applied: Index) -> Looked {
        if applied >= self.index {
            return Looked::There;
        }
        if now >= self.ends_at {
            return Looked::Over;
        }
        let pause_ms = PAUSES_MS[self.looks.min(PAUSES_MS.len() - 1)];
        self.looks += 1;
        self.next_look = now.saturating_add(pause_ms).min(self.ends_at);
        if is_planted(Plant::NoSecondLook) {
            self.next_look = self.ends_at;
        }
        Looked::Until(self.next_look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at 20, 100, 420, 1420 ms, then each second, and for the last time at the end (NW-05,
    /// NW-07).
    #[test]
    fn looks_come_at_growing_pauses_until_the_end() {
        let mut wait = IndexWait::new(10, 1_000, 5_000);
        assert_eq!((wait.index(), wait.next_look()), (10, 1_000));
        let mut looks = Vec::new();
        let mut now = 1_000;
        while let Looked::Until(at) = wait.look(now, 9) {
            looks.push(at - 1_000);
            now = at;
        }
        assert_eq!(looks, [20, 100, 420, 1_420, 2_420, 3_420, 4_420, 5_000]);
        assert_eq!(wait.look(now, 9), Looked::Over);
        assert_eq!(wait.look(now, 10), Looked::There, "it came at the last moment");
        assert_eq!(IndexWait::new(10, 0, 0).look(0, 9), Looked::Over, "no wait at all");
    }
}
