//! Clocks. `Monotonic` time drives every timeout; wall time is only ever used to slew log time and to show times to people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fsm::TimeMs;

use crate::rt::{self, Instant};

/// Where a simulation's wall clock starts: 2026-01-01T00:00:00Z.
const SIMULATED_EPOCH_MS: u64 = 1_767_225_600_000;

/// Largest correction of log time towards wall time, percent of the time that passed.
const SLEW_PERCENT_MAX: u64 = 5;

/// The clocks of one server.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    simulated: bool,
}

impl Default for Clock {
    fn default() -> Self {
        Self { started: Instant::now(), simulated: rt::is_simulation() }
    }
}

impl Clock {
    /// Milliseconds since this clock was made, never going back.
    pub fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since the Unix epoch, as the machine believes.
    pub fn wall_ms(&self) -> u64 {
        if self.simulated {
            let elapsed = u64::try_from(rt::simulated_elapsed().as_millis()).unwrap_or(u64::MAX);
            return SIMULATED_EPOCH_MS
                .saturating_add(elapsed)
                .saturating_add_signed(rt::wall_offset_ms());
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Log time as one leader stamps it: anchored at the state's time when it was elected, running with the monotonic clock and slewed towards
/// wall time by at most 5 %, so that a wall clock that jumps moves nothing.
#[derive(Debug)]
pub struct LogClock {
    clock: Clock,
    anchor: TimeMs,
    anchored_ms: u64,
}

impl LogClock {
    /// A log clock anchored at `state_at`, or at wall time for a cluster without history.
    pub fn new(clock: Clock, state_at: TimeMs) -> Self {
        let anchor = if state_at == 0 { clock.wall_ms() } else { state_at };
        Self { clock, anchor, anchored_ms: clock.monotonic_ms() }
    }

    /// Log time now.
    pub fn now(&self) -> TimeMs {
        let elapsed = self.clock.monotonic_ms().saturating_sub(self.anchored_ms);
        slewed(self.anchor, elapsed, self.clock.wall_ms())
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

    #[test]
    fn a_wall_clock_that_jumps_moves_log_time_by_five_percent_at_most() {
        assert_eq!(slewed(1000, 100, 1100), 1100);
        assert_eq!(slewed(1000, 100, 1_000_000), 1105);
        assert_eq!(slewed(1000, 100, 0), 1095);
        assert_eq!(slewed(1000, 100, 1102), 1102);
    }
}
