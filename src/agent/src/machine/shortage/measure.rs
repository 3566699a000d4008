//! One measurement of the machine: how much of each resource is left for this process, and below
//! which amount it is short. A resource that cannot be read is left out, unless the read failed for
//! lack of that very resource.

use std::{fs, io, path::Path, sync::RwLock, thread};

use ground::open_files;
use rustix::process::{Resource, getrlimit};

use crate::task::run::Fault;

/// Open files that are kept for what runs: a start takes about ten for a moment.
const FILES_KEPT: u64 = 32;
/// Threads and processes that a start takes: a launcher, an executor, a task.
const THREADS_LEAST: u64 = 6;
const THREADS_ENOUGH: u64 = 12;
/// Stack of the threads that are tried, bytes.
const STACK_BYTES: usize = 64 << 10;
const MEMORY_LEAST: u64 = 64 << 20;
const MEMORY_ENOUGH: u64 = 96 << 20;
/// More than the least that a disk has to have free again, bytes, unless a quarter of the least is
/// less.
const DISK_MARGIN: u64 = 64 << 20;
/// Files that can still be made on the disk.
const INODES_LEAST: u64 = 500;
const INODES_ENOUGH: u64 = 1_000;

/// What a machine can be short of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Files,
    Threads,
    Memory,
    Disk,
    Inodes,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Files => "open files",
            Self::Threads => "threads",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Files => "raise the limit (ulimit -n, LimitNOFILE)",
            Self::Threads => "raise the limit of processes (ulimit -u, TasksMax, pids.max)",
            Self::Memory => "free some, or raise the limit (ulimit -v, MemoryMax)",
            Self::Disk => "free some space below the data folder",
            Self::Inodes => "remove files below the data folder",
        }
    }

    fn amount(self, number: u64) -> String {
        match self {
            Self::Files | Self::Threads | Self::Inodes => number.to_string(),
            Self::Memory | Self::Disk => format!("{} MiB", number >> 20),
        }
    }
}

/// How much is left of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) kind: Kind,
    pub(super) free: u64,
    /// Less is too little.
    pub(super) least: u64,
    /// So much ends a shortage. Invariant: not below `least`.
    pub(super) enough: u64,
}

impl Found {
    /// Whether the machine is short of it, if it was short of it before or not.
    pub(super) fn is_short(&self, was_short: bool) -> bool {
        self.free < if was_short { self.enough } else { self.least }
    }

    pub(super) fn words(&self) -> String {
        let Self { kind, free, least, .. } = *self;
        let (name, remedy) = (kind.name(), kind.remedy());
        format!(
            "{name}: {} left, {} are kept free: {remedy}",
            kind.amount(free),
            kind.amount(least)
        )
    }
}

/// Looks at everything. Blocks; needs few files and, while it lasts, some threads.
pub(super) fn measure(folder: &Path, free_bytes_min: u64, is_short_of_threads: bool) -> Vec<Found> {
    let mut found = Vec::with_capacity(5);
    found.extend(files());
    found.push(threads(is_short_of_threads));
    found.extend(memory());
    found.extend(disk(folder, free_bytes_min));
    found
}

fn files() -> Option<Found> {
    let limit = open_files::max();
    // A process that was given few keeps fewer.
    let least = FILES_KEPT.min(limit / 4);
    let used = match fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.count() as u64,
        Err(error) if Fault::of(&error) == Fault::Shortage => limit,
        Err(_) => return None,
    };
    let free = limit.saturating_sub(used);
    Some(Found { kind: Kind::Files, free, least, enough: least.saturating_add(least / 2) })
}

/// Tries to start so many: what limits them (user, unit, container, kernel, memory) is not asked
/// for.
fn threads(is_short: bool) -> Found {
    let wanted = if is_short { THREADS_ENOUGH } else { THREADS_LEAST };
    let gate = RwLock::new(());
    let free = thread::scope(|scope| {
        let closed = gate.write();
        let mut started = 0_u64;
        for _ in 0..wanted {
            let wait = || drop(gate.read());
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            if builder.spawn_scoped(scope, wait).is_err() {
                break;
            }
            started = started.saturating_add(1);
        }
        drop(closed);
        started
    });
    Found { kind: Kind::Threads, free, least: THREADS_LEAST, enough: THREADS_ENOUGH }
}

fn memory() -> Option<Found> {
    let free = [available(), below_own_limit(), below_limit_of_group()];
    let free = free.into_iter().flatten().min()?;
    Some(Found { kind: Kind::Memory, free, least: MEMORY_LEAST, enough: MEMORY_ENOUGH })
}

fn available() -> Option<u64> {
    kib(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// `ulimit -v`.
fn below_own_limit() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let used = kib(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")?;
    Some(limit.saturating_sub(used))
}

/// Of the control group that this process is in: what can be dropped at once is not counted as
/// used.
fn below_limit_of_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = Path::new("/sys/fs/cgroup").join(own);
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = read("memory.stat")?;
    let droppable = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let droppable: u64 = droppable.and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(droppable)))
}

/// The bytes of a line such as `VmSize:  1234 kB`.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1_024))
}

fn disk(folder: &Path, least: u64) -> Vec<Found> {
    let Ok(status) = rustix::fs::statvfs(folder).map_err(io::Error::from) else {
        return Vec::new();
    };
    let free = status.f_bavail.saturating_mul(status.f_frsize);
    let enough = least.saturating_add(DISK_MARGIN.min(least / 4));
    let mut found = vec![Found { kind: Kind::Disk, free, least, enough }];
    // Not all file systems count them.
    if status.f_files > 0 {
        let free = status.f_favail;
        let (least, enough) = (INODES_LEAST, INODES_ENOUGH);
        found.push(Found { kind: Kind::Inodes, free, least, enough });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_looked_at() {
        let kinds: Vec<Kind> = measure(&std::env::temp_dir(), 0, true)
            .into_iter()
            .inspect(|one| assert!(one.least <= one.enough, "{one:?}"))
            .map(|one| one.kind)
            .collect();
        assert!(kinds.starts_with(&[Kind::Files, Kind::Threads, Kind::Memory, Kind::Disk]));
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text = "MemTotal:  9 kB\nMemAvailable:    12 kB\n";
        assert_eq!(kib(text, "MemAvailable:"), Some(12 << 10));
        assert_eq!(kib(text, "VmSize:"), None);
    }
}
