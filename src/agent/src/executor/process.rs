//! What `/proc` says of processes, and signals that cannot hit the wrong one: a process is (pid,
//! start time, boot), and it is checked through a pidfd before the signal goes out.

use std::{
    collections::HashSet,
    fs,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{EXECUTOR_FILE, ExecutorIdentity};
use crate::{
    allocation::state::ALLOCATIONS,
    machine::{boot::read_boot_id, files},
};

/// Between two looks for processes that are being killed.
pub(super) const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Looks for processes that are being killed: a process in an uninterruptible wait is given up
/// after this many.
pub(super) const KILL_ROUNDS_MAX: u32 = 500;

/// The beginning of an environment that is looked at, bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// In a task's environment: its own folder, and that of its allocation.
const TASK_VARIABLE: &[u8] = b"NOMAD_TASK_DIR=";
pub(super) const ALLOCATION_VARIABLE: &[u8] = b"NOMAD_ALLOC_DIR=";

/// One line of `/proc/<pid>/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessStat {
    pub pid: i32,
    pub(crate) state: char,
    pub parent: i32,
    pub(crate) session: i32,
    pub(crate) threads: u32,
    pub start_ticks: u64,
}

impl ProcessStat {
    /// It can still do something: also when its first thread has ended and others go on.
    pub fn is_alive(&self) -> bool {
        match self.state {
            'X' | 'x' => false,
            'Z' => self.threads > 1,
            _ => true,
        }
    }
}

/// The process with that id, if there is one that may be looked at. An error says nothing about it.
pub fn stat(pid: i32) -> io::Result<Option<ProcessStat>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        // The command's name need not be text.
        Ok(line) => Ok(parse(&String::from_utf8_lossy(&line))),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) || Errno::from_io_error(&error) == Some(Errno::SRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// All processes.
pub fn all() -> io::Result<Vec<ProcessStat>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        // One that was left out because it could not be looked at would be taken for gone.
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            processes.extend(stat(pid)?);
        }
    }
    Ok(processes)
}

/// Who this process is.
pub(super) fn own_identity() -> io::Result<ExecutorIdentity> {
    identity_of(i32::try_from(std::process::id()).map_err(io::Error::other)?)
}

/// Who the process with that id is.
pub(super) fn identity_of(pid: i32) -> io::Result<ExecutorIdentity> {
    let found = stat(pid)?.ok_or_else(|| io::Error::other("the process is not in /proc"))?;
    Ok(ExecutorIdentity { pid, start_ticks: found.start_ticks, boot_id: read_boot_id()? })
}

impl ExecutorIdentity {
    /// What an executor says of itself in the directory of its run, once it has. A file that makes
    /// no sense says nothing.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        match files::read_json(&directory.join(EXECUTOR_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            read => read,
        }
    }

    /// That very process still lives. An error says neither.
    pub fn is_alive(&self) -> io::Result<bool> {
        if read_boot_id()? != self.boot_id {
            return Ok(false);
        }
        let found = stat(self.pid)?;
        Ok(found.is_some_and(|found| found.start_ticks == self.start_ticks && found.is_alive()))
    }

    /// Kills what an executor that is gone has left running. While a session has members the kernel
    /// gives its number to nobody else.
    pub(crate) fn kill_session(&self) -> io::Result<usize> {
        if self.is_alive()?
            || read_boot_id()? != self.boot_id
            || stat(self.pid)?.is_some_and(|p| p.is_alive())
        {
            return Ok(0);
        }
        let members: Vec<_> =
            all()?.into_iter().filter(|p| p.session == self.pid && p.is_alive()).collect();
        kill_all(&members, Signal::KILL)?;
        Ok(members.len())
    }
}

/// What the environment of a task's processes says, unless they have changed it: the task's own
/// folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marker(Vec<u8>);

impl Marker {
    /// That of the run whose files are in `<data>/runs/<allocation>/tasks/<task>/<attempt>`.
    pub(crate) fn of_run(directory: &Path) -> Option<Self> {
        let task = directory.parent()?;
        let allocation = task.parent()?.parent()?;
        let allocations = allocation.parent()?.parent()?.join(ALLOCATIONS);
        let own = allocations.join(allocation.file_name()?).join(task.file_name()?);
        Some(Self::new(TASK_VARIABLE, &own.join("local")))
    }

    pub(super) fn new(variable: &[u8], folder: &Path) -> Self {
        Self([variable, folder.as_os_str().as_bytes()].concat())
    }

    /// Kills whatever of the task still runs, in whatever session: for a task whose executor is
    /// gone, which could have told.
    pub(crate) fn kill(&self) -> io::Result<usize> {
        let marked: Vec<_> =
            all()?.into_iter().filter(|p| p.is_alive() && self.is_on(p.pid)).collect();
        kill_all(&marked, Signal::KILL)?;
        Ok(marked.len())
    }

    fn is_on(&self, pid: i32) -> bool {
        let Some(environment) = read_some(&format!("/proc/{pid}/environ")) else { return false };
        environment.split(|byte| *byte == 0).any(|line| line == self.0)
    }
}

/// The beginning of a file of `/proc`. What may not be looked at is somebody else's.
pub(super) fn read_some(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Kills the executors, and all that they run, whose files are below an allocation's directory of
/// runs. For allocations whose state is lost: nobody would ever end them.
pub fn kill_leftovers(run_directory: &Path) -> io::Result<usize> {
    let mut killed = 0_usize;
    for task in list(run_directory)? {
        for attempt in list(&task)? {
            killed = killed.saturating_add(kill_run(&attempt)?);
        }
    }
    Ok(killed)
}

/// Kills the executor whose files are in a directory, and all that it runs, also what is forked
/// meanwhile. Blocks for 5 s at most.
pub(crate) fn kill_run(directory: &Path) -> io::Result<usize> {
    let mut killed = 0;
    for _ in 0..KILL_ROUNDS_MAX {
        let found = kill_once(directory)?;
        if found == 0 {
            break;
        }
        killed = killed.max(found);
        std::thread::sleep(KILL_PAUSE);
    }
    Ok(killed)
}

fn kill_once(directory: &Path) -> io::Result<usize> {
    ExecutorIdentity::read(directory)?.map_or(Ok(0), |identity| identity.kill_once())
}

impl ExecutorIdentity {
    /// Sends a signal to all that the executor runs, and not to itself.
    pub(crate) fn signal_family(&self, signal: Signal) -> io::Result<()> {
        if self.is_alive()? { kill_all(&descendants(self.pid)?, signal) } else { Ok(()) }
    }

    /// Kills the executor, and all that it runs, also what is forked meanwhile. Blocks for 5 s at
    /// most.
    pub(crate) fn kill_run(&self) -> io::Result<()> {
        for _ in 0..KILL_ROUNDS_MAX {
            if self.kill_once()? == 0 {
                break;
            }
            std::thread::sleep(KILL_PAUSE);
        }
        Ok(())
    }

    fn kill_once(&self) -> io::Result<usize> {
        let mut family = Vec::new();
        if let Some(executor) = stat(self.pid)?
            && self.is_alive()?
        {
            family.push(executor);
            family.extend(descendants(self.pid)?);
        }
        let sent = kill_all(&family, Signal::KILL);
        let others = self.kill_session();
        sent?;
        Ok(family.len().saturating_add(others?))
    }
}

/// What is in a directory; nothing when it is none.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The living descendants of a process.
pub(crate) fn descendants(root: i32) -> io::Result<Vec<ProcessStat>> {
    let processes = all()?;
    let mut family = HashSet::from([root]);
    loop {
        let before = family.len();
        family.extend(
            processes
                .iter()
                .filter(|p| family.contains(&p.parent))
                .map(|p| p.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    Ok(processes
        .into_iter()
        .filter(|p| p.pid != root && family.contains(&p.pid) && p.is_alive())
        .collect())
}

/// Sends a signal to each of them, whether or not it could be sent to the others; says the first
/// error.
pub fn kill_all(processes: &[ProcessStat], signal: Signal) -> io::Result<()> {
    let mut sent = Ok(());
    for process in processes {
        sent = sent.and(kill(process, signal));
    }
    sent
}

/// Sends a signal to that very process; one that is gone is no error.
fn kill(process: &ProcessStat, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if stat(process.pid)?.is_none_or(|now| now.start_ticks != process.start_ticks) {
        return Ok(());
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How often the kernel has killed for want of memory since boot.
pub(super) fn oom_kills() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

/// The signal of that name (`SIGTERM`, `TERM`, or a number).
pub fn parse_signal(name: &str) -> Option<Signal> {
    let upper = name.trim().to_ascii_uppercase();
    Some(match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "HUP" | "1" => Signal::HUP,
        "INT" | "2" => Signal::INT,
        "QUIT" | "3" => Signal::QUIT,
        "ILL" | "4" => Signal::ILL,
        "TRAP" | "5" => Signal::TRAP,
        "ABRT" | "ABORT" | "IOT" | "6" => Signal::ABORT,
        "BUS" | "7" => Signal::BUS,
        "FPE" | "8" => Signal::FPE,
        "KILL" | "9" => Signal::KILL,
        "USR1" | "10" => Signal::USR1,
        "SEGV" | "11" => Signal::SEGV,
        "USR2" | "12" => Signal::USR2,
        "PIPE" | "13" => Signal::PIPE,
        "ALRM" | "14" => Signal::ALARM,
        "TERM" | "15" => Signal::TERM,
        "CHLD" | "17" => Signal::CHILD,
        "CONT" | "18" => Signal::CONT,
        "STOP" | "19" => Signal::STOP,
        "TSTP" | "20" => Signal::TSTP,
        "TTIN" | "21" => Signal::TTIN,
        "TTOU" | "22" => Signal::TTOU,
        "URG" | "23" => Signal::URG,
        "XCPU" | "24" => Signal::XCPU,
        "XFSZ" | "25" => Signal::XFSZ,
        "VTALRM" | "26" => Signal::VTALARM,
        "PROF" | "27" => Signal::PROF,
        "WINCH" | "28" => Signal::WINCH,
        "IO" | "29" => Signal::IO,
        "SYS" | "31" => Signal::SYS,
        _ => return None,
    })
}

/// The command's name may hold spaces and brackets: what counts comes after the last one.
fn parse(text: &str) -> Option<ProcessStat> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(ProcessStat {
        pid: pid.parse().ok()?,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{
        ffi::OsStr,
        os::unix::{
            fs::symlink,
            process::{CommandExt, ExitStatusExt},
        },
        process::Command,
    };

    use super::*;

    #[test]
    fn a_stat_line_is_parsed_whatever_the_command_is_called() {
        let line = "42 (a) b (c) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9999 1 2";
        let expected = ProcessStat {
            pid: 42,
            state: 'S',
            parent: 7,
            session: 41,
            threads: 1,
            start_ticks: 9999,
        };
        assert_eq!(parse(line), Some(expected));
        let ended = ProcessStat { state: 'Z', ..expected };
        assert!(expected.is_alive() && !ended.is_alive());
        assert!(ProcessStat { threads: 2, ..ended }.is_alive(), "its other thread goes on");
        assert_eq!(parse("42"), None);
    }

    #[test]
    fn a_process_is_seen_whatever_bytes_it_is_called_by() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(OsStr::from_bytes(b"\xff"));
        symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(program).arg0("sleep").arg("60").spawn().unwrap();
        let found = stat(i32::try_from(child.id()).unwrap()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.is_some_and(|found| found.is_alive()));
    }

    #[test]
    fn this_process_is_recognised_and_another_start_time_is_not() {
        let own = own_identity().unwrap();
        assert!(own.is_alive().unwrap());
        let other = ExecutorIdentity { start_ticks: own.start_ticks + 1, ..own };
        assert!(!other.is_alive().unwrap());
        assert!(!ExecutorIdentity { boot_id: [0; 16], ..own }.is_alive().unwrap());
    }

    #[test]
    fn one_that_cannot_be_killed_does_not_keep_the_others_alive() {
        let (say, said) = std::sync::mpsc::sync_channel(1);
        let (leave, left) = std::sync::mpsc::sync_channel::<()>(1);
        let thread = std::thread::spawn(move || {
            say.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            assert!(left.recv().is_err(), "the other end is dropped");
        });
        // No process has the number of a thread: nothing can be sent to it, even by root.
        let number = said.recv().unwrap();
        let number = number.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let nobody = ProcessStat {
            pid: number,
            state: 'S',
            parent: 1,
            session: 1,
            threads: 1,
            start_ticks: 0,
        };
        let mut child = Command::new("sleep").arg("20").spawn().unwrap();
        let own = stat(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        let sent = kill_all(&[nobody, own], Signal::KILL);
        let signal = child.wait().unwrap().signal();
        drop(leave);
        thread.join().unwrap();
        assert!(sent.is_err());
        assert_eq!(signal, Some(9));
    }

    #[test]
    fn signals_are_known_by_name_and_number() {
        for name in ["SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(name), Some(Signal::TERM));
        }
        assert_eq!(parse_signal("SIGNONE"), None);
        for name in fsm::job::SIGNALS {
            assert!(parse_signal(name).is_some(), "a job may ask for {name}");
        }
    }
}
