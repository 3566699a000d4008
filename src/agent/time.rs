//! The agent's two clocks in one value. Deadlines and restart windows use time since boot, which no administrator can turn back
//! and which a restarted agent continues; events shown to people use the wall clock. Nothing else in the agent reads a clock
//! for decisions.

use std::{fs, time::Duration};

pub(crate) use crate::clock::wall_ms;
use crate::rt::Instant;

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
        let after = since_boot_ms.saturating_sub(self.started_since_boot_ms);
        // Ten years are as good as never, and cannot overflow an instant.
        let after = after.min(10 * 365 * 24 * 3600 * 1000);
        self.started + Duration::from_millis(after)
    }
}

fn parse_uptime(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let hundredths: u64 = hundredths.get(..2)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(hundredths * 10)
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
