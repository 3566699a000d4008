//! Clocks. `Monotonic` time drives every timeout; wall time is only ever used to slew log time and to show times to people.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fsm::TimeMs;

use crate::rt::{self, Instant};

/// Where a simulation's wall clock starts: 2026-01-01T00:00:00Z.
const SIMULATED_EPOCH_MS: u64 = 1_767_225_600_000;

/// Largest correction of log time towards wall time, percent of the time that passed.
const SLEW_PERCENT_MAX: u64 = 5;

/// How long log time runs on from one anchor at least: up to the next look at it, which a leader takes every 2 s or sooner. A jump of the wall clock
/// moves it by 5 % of that, not of all the time that its server has led.
const ANCHOR_MS: u64 = 200;

/// The clocks of one server.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock {
    /// Milliseconds since this clock was made, never going back.
    pub fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since the Unix epoch, as the machine believes.
    pub fn wall_ms(&self) -> u64 {
        wall_ms()
    }
}

/// Seconds since the Unix epoch, as this machine believes.
pub(crate) fn wall_s() -> i64 {
    i64::try_from(wall_ms() / 1000).unwrap_or(i64::MAX)
}

/// Milliseconds since the Unix epoch, as this machine believes.
pub(crate) fn wall_ms() -> u64 {
    if rt::is_simulation() {
        let elapsed = u64::try_from(rt::simulated_elapsed().as_millis()).unwrap_or(u64::MAX);
        return SIMULATED_EPOCH_MS
            .saturating_add(elapsed)
            .saturating_add_signed(rt::wall_offset_ms());
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Log time as one leader stamps it: anchored at the state's time when it was elected, running with the monotonic clock and slewed towards
/// wall time by at most 5 %, so that a wall clock that jumps moves nothing.
#[derive(Debug)]
pub struct LogClock {
    clock: Clock,
    anchor: Mutex<Anchor>,
}

impl LogClock {
    /// A log clock anchored at `state_at`, or at wall time for a cluster without history.
    pub fn new(clock: Clock, state_at: TimeMs) -> Self {
        let at = if state_at == 0 { clock.wall_ms() } else { state_at };
        Self { clock, anchor: Mutex::new(Anchor { at, since_ms: clock.monotonic_ms(), last: at }) }
    }

    /// Log time now, never going back.
    pub fn now(&self) -> TimeMs {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        anchor.now(self.clock.monotonic_ms(), self.clock.wall_ms())
    }
}

/// Where log time runs on from.
#[derive(Debug)]
struct Anchor {
    at: TimeMs,
    /// Monotonic time of it.
    since_ms: u64,
    /// The newest answer.
    last: TimeMs,
}

impl Anchor {
    fn now(&mut self, monotonic_ms: u64, wall_ms: u64) -> TimeMs {
        let elapsed_ms = monotonic_ms.saturating_sub(self.since_ms);
        self.last = self.last.max(slewed(self.at, elapsed_ms, wall_ms));
        if elapsed_ms >= ANCHOR_MS {
            (self.at, self.since_ms) = (self.last, monotonic_ms);
        }
        self.last
    }
}

fn slewed(anchor: TimeMs, elapsed_ms: u64, wall_ms: u64) -> TimeMs {
    let straight = anchor.saturating_add(elapsed_ms);
    let most = elapsed_ms.saturating_mul(SLEW_PERCENT_MAX) / 100;
    if wall_ms >= straight {
        straight.saturating_add((wall_ms - straight).min(most))
    } else {
        straight.saturating_sub((straight - wall_ms).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by the simulation: the wall clock of an old leader jumped, and log time jumped with it, beyond the deadlines of all nodes at once.
    #[test]
    fn a_wall_clock_that_jumps_after_hours_moves_log_time_no_faster_than_one_that_jumps_at_once() {
        let mut anchor = Anchor { at: 1_000, since_ms: 0, last: 1_000 };
        // Behind by far for an hour, then ahead by far, then behind again.
        let wall = |ms: u64| if (3_600_000..7_200_000).contains(&ms) { u64::MAX } else { 0 };
        let mut before = anchor.now(0, wall(0));
        for ms in (0..10_800_000).step_by(50) {
            let now = anchor.now(ms, wall(ms));
            assert!(now >= before && now - before <= 50 + 2 * ANCHOR_MS / 20, "{before} to {now}");
            before = now;
        }
        assert!((10_790_000..10_810_000).contains(&(before + 180_000)), "{before}");
    }

    #[test]
    fn a_wall_clock_that_jumps_moves_log_time_by_five_percent_at_most() {
        assert_eq!(slewed(1000, 100, 1100), 1100);
        assert_eq!(slewed(1000, 100, 1_000_000), 1105);
        assert_eq!(slewed(1000, 100, 0), 1095);
        assert_eq!(slewed(1000, 100, 1102), 1102);
    }
}
