//! What this machine and the processes of its tasks use: processors, memory, disks, from `/proc`.
//! What cannot be read is left out.

use std::{collections::HashMap, fs, hash::BuildHasher, path::Path};

/// One line of `/proc/stat`: clock ticks since boot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuTimes {
    pub name: String,
    pub user: u64,
    pub system: u64,
    pub idle: u64,
    pub total: u64,
}

/// Times of each processor.
pub fn cpu_times() -> Vec<CpuTimes> {
    parse_cpu_times(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_cpu_times(text: &str) -> Vec<CpuTimes> {
    let one = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let is_core = name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok());
        let fields: Vec<u64> =
            rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or(0);
        is_core.then(|| CpuTimes {
            name: name.to_owned(),
            user: field(0).saturating_add(field(1)),
            system: field(2).saturating_add(field(5)).saturating_add(field(6)),
            idle: field(3).saturating_add(field(4)),
            // What follows is the time of guests, which is in the first two already.
            total: fields.iter().take(8).fold(0, |sum: u64, field| sum.saturating_add(*field)),
        })
    };
    text.lines().filter_map(one).collect()
}

/// Bytes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    pub total: u64,
    pub available: u64,
    pub free: u64,
}

impl Memory {
    /// That of this machine.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let bytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0).saturating_mul(1_024)
        };
        Self { total: bytes("MemTotal"), available: bytes("MemAvailable"), free: bytes("MemFree") }
    }
}

/// A mounted file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// What is mounted: a device, or a name of what has none.
    pub source: String,
    pub point: String,
}

/// All of them, in the order in which they were mounted.
pub fn mounts() -> Vec<Mount> {
    parse_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    let one = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = unescape(before.split(' ').nth(4)?);
        Some(Mount { source: unescape(after.split(' ').nth(1)?), point })
    };
    text.lines().filter_map(one).collect()
}

/// The kernel writes blanks and the like as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The file system that a path is on.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // Of several at one place the last one is seen.
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.len())
}

/// The file systems on devices, each device once.
pub fn disks(mounts: &[Mount]) -> Vec<&Mount> {
    let mut found: Vec<&Mount> = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.source.starts_with("/dev/")) {
        match found.iter_mut().find(|known| known.source == mount.source) {
            Some(known) if known.point.len() <= mount.point.len() => {}
            Some(known) => *known = mount,
            None => found.push(mount),
        }
    }
    found
}

/// What a process uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessUse {
    pub(crate) parent: i32,
    pub start_ticks: u64,
    /// Clock ticks since its start.
    pub user: u64,
    pub system: u64,
    /// Pages in memory.
    pub pages: u64,
}

/// All processes.
pub fn processes() -> HashMap<i32, ProcessUse> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let pid = |name: std::ffi::OsString| name.to_str()?.parse::<i32>().ok();
    let pids = entries.filter_map(|entry| pid(entry.ok()?.file_name()));
    pids.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parse_process(&String::from_utf8_lossy(&line))?))
    })
    .collect()
}

/// Behind the command's name, which may hold anything.
fn parse_process(line: &str) -> Option<ProcessUse> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(ProcessUse {
        parent: fields.get(1)?.parse().ok()?,
        user: number(11)?,
        system: number(12)?,
        start_ticks: number(19)?,
        pages: number(21)?,
    })
}

/// The descendants of a process, itself left out, in order.
pub fn family<S: BuildHasher>(processes: &HashMap<i32, ProcessUse, S>, root: i32) -> Vec<i32> {
    let is_below = |pid: i32| {
        let mut at = pid;
        // Processes that ended meanwhile can leave a circle; no line of parents is that long.
        for _ in 0..256 {
            match processes.get(&at) {
                Some(process) if process.parent == root => return true,
                Some(process) if process.parent > 1 => at = process.parent,
                Some(_) | None => return false,
            }
        }
        false
    };
    let mut found: Vec<i32> =
        processes.keys().copied().filter(|pid| *pid != root && is_below(*pid)).collect();
    found.sort_unstable();
    found
}

/// Bytes of a process that are swapped out.
pub fn swapped(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1_024)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn processors_and_memory_are_read() {
        let text = "cpu  9 9 9 9\ncpu0 10 2 3 40 5 1 1 1 7 7\ncpu1 1 0 0 9\nintr 5 6\n";
        let first = CpuTimes { name: "cpu0".to_owned(), user: 12, system: 5, idle: 45, total: 63 };
        let found = parse_cpu_times(text);
        assert_eq!((found.len(), &found[0]), (2, &first));
        let memory = Memory::parse("MemTotal: 4 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n");
        assert_eq!(memory, Memory { total: 4_096, available: 2_048, free: 1_024 });
    }

    #[test]
    fn the_device_below_a_path_is_found() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    23 22 8:2 / /var/my\\040data rw shared:1 - xfs /dev/sdb rw\n\
                    24 22 8:1 /x /etc/hosts rw - ext4 /dev/sda1 rw\n\
                    25 22 0:5 / /proc rw - proc proc rw\n\
                    26 23 0:9 / /var/my\\040data/a rw - overlay overlay rw\n";
        let mounts = parse_mounts(text);
        for (path, source) in [
            ("/etc", "/dev/sda1"),
            ("/var/my data/x", "/dev/sdb"),
            ("/var/my data/a/b", "overlay"),
            ("/var/my data too", "/dev/sda1"),
        ] {
            assert_eq!(mount_of(&mounts, Path::new(path)).unwrap().source, source, "{path}");
        }
        let shown: Vec<_> = disks(&mounts).into_iter().map(|mount| &*mount.point).collect();
        assert_eq!(shown, ["/", "/var/my data"]);
    }

    #[test]
    fn a_process_and_its_family_are_read() {
        let line = "7 (a b) c) S 5 7 7 0 -1 4194304 1 0 0 0 11 12 0 0 20 0 1 0 99 4096 33 1";
        let one = parse_process(line).unwrap();
        let expected = ProcessUse { parent: 5, start_ticks: 99, user: 11, system: 12, pages: 33 };
        assert_eq!(one, expected);
        let of = |parent: i32| ProcessUse { parent, ..one };
        // 8 and 9 are each other's parents.
        let all = [(5, 1), (7, 5), (6, 7), (4, 1), (8, 9), (9, 8)];
        let all: HashMap<_, _> = all.into_iter().map(|(pid, parent)| (pid, of(parent))).collect();
        assert_eq!(family(&all, 5), [6, 7]);
    }
}
