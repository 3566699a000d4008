//! Clocks of this machine. Monotonic time drives every timeout. Wall time is used by agents, for
//! the times of what their tasks do, and by servers only to agree on log time
//! (`leader::Timekeeper`): what time it is in the cluster no wall clock says alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::rt::{self, Instant};

/// Where a simulation's wall clock starts: 2026-01-01T00:00:00Z.
pub const SIMULATED_EPOCH_MS: u64 = 1_767_225_600_000;

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

/// Milliseconds since the Unix epoch, as this machine believes.
pub fn wall_ms() -> u64 {
    if rt::is_simulation() {
        let elapsed = u64::try_from(rt::simulated_elapsed().as_millis()).unwrap_or(u64::MAX);
        return SIMULATED_EPOCH_MS
            .saturating_add(elapsed)
            .saturating_add_signed(rt::wall_offset_ms());
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
