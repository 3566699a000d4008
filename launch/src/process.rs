//! What the kernel tells about a process, also about one that is not our child.

use std::fs;

use rustix::process::{Pid, test_kill_process};

/// Part of `/proc/PID/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// `R` runs, `S` sleeps, `T` is stopped, `Z` has ended and was not waited for.
    pub state: char,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    /// `None` where there is no such process, or no `/proc`.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Fields 3 and 22; the second is the name of the program in parentheses and may hold anything.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        Some(Self { state, start_ticks: fields.nth(18)?.parse().ok()? })
    }
}

/// Tells a process from a later one with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    pub pid: u32,
    /// [`Stat::start_ticks`]; 0 where unknown.
    pub start_ticks: u64,
}

impl Identity {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Self {
        Self { pid, start_ticks: Stat::read(pid).map_or(0, |stat| stat.start_ticks) }
    }

    /// Whether the very same process still runs. A process that ended and was not waited for does
    /// not count: in a container often no parent waits for it.
    pub fn is_alive(self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return false };
        if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            return false;
        }
        let Some(stat) = Stat::read(self.pid) else { return true };
        let is_same = self.start_ticks == 0 || stat.start_ticks == self.start_ticks;
        is_same && !matches!(stat.state, 'Z' | 'X')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_skipped() {
        let rest = "1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987 1 1";
        let stat = Stat::parse(&format!("7 (a) b (c) T {rest}"));
        assert_eq!(stat, Some(Stat { state: 'T', start_ticks: 987 }));
        assert_eq!(Stat::parse("7 (a) T"), None);
    }

    #[test]
    fn another_start_time_is_another_process() {
        let own = Identity::of(std::process::id());
        assert!(own.start_ticks > 0 && own.is_alive());
        assert!(!Identity { start_ticks: own.start_ticks + 1, ..own }.is_alive());
        assert!(Identity { start_ticks: 0, ..own }.is_alive());
        assert!(!Identity { pid: u32::MAX, start_ticks: 0 }.is_alive());
    }
}
