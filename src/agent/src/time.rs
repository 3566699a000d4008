//! The agent's two clocks in one value. Deadlines and restart windows use time since boot, which no
//! administrator can turn back and which a restarted agent continues; events shown to people use
//! the wall clock. Nothing else in the agent reads a clock for decisions.

use std::{fs, time::Duration};

use ground::rt::Instant;

pub use ground::clock::wall_ms;

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moment {
    /// Milliseconds since the machine booted.
    pub(crate) since_boot_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) wall_ms: u64,
}

/// Reads both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_since_boot_ms: u64,
}

impl Clock {
    /// Anchors the monotonic clock at the machine's uptime; at zero where there is none.
    pub(crate) fn new() -> Self {
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        Self::of_machine(parse_uptime(&uptime).unwrap_or(0))
    }

    /// The clock of a machine that has been up for so long.
    pub(crate) fn of_machine(since_boot_ms: u64) -> Self {
        Self { started: Instant::now(), started_since_boot_ms: since_boot_ms }
    }

    /// Now.
    pub(crate) fn now(&self) -> Moment {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment {
            since_boot_ms: self.started_since_boot_ms.saturating_add(elapsed),
            wall_ms: wall_ms(),
        }
    }

    /// The runtime's instant at a time since boot.
    pub(crate) fn instant(&self, since_boot_ms: u64) -> Instant {
        let left_ms = since_boot_ms.saturating_sub(self.started_since_boot_ms);
        after(self.started, Duration::from_millis(left_ms))
    }
}

/// As good as never.
const NEVER: Duration = Duration::from_hours(10 * 365 * 24);

/// So long after an instant. What would be too late for an instant is as good as never.
pub(crate) fn after(at: Instant, wait: Duration) -> Instant {
    at.checked_add(wait.min(NEVER)).unwrap_or(at)
}

/// So long after now.
pub(crate) fn later(wait: Duration) -> Instant {
    after(Instant::now(), wait)
}

fn parse_uptime(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let hundredths: u64 = hundredths.get(..2)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(hundredths.checked_mul(10)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_read_in_milliseconds() {
        assert_eq!(parse_uptime("12.34 99.00\n"), Some(12_340));
        assert_eq!(parse_uptime(""), None);
        assert_eq!(parse_uptime("x.yz"), None);
    }
}
