//! Finds the processes of allocations in `/proc`. An executor has the directory of its run in its
//! command line; a task has the folder of its allocation in its environment. No task can change
//! these of another process. So an agent finds the processes that it started even if their files
//! are gone.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use fsm::AllocationId;

use super::{
    ExecutorIdentity,
    process::{
        ALLOCATION_VARIABLE, KILL_PAUSE, KILL_ROUNDS_MAX, Marker, ProcessStat, all, kill_leftovers,
        read_some,
    },
};
use crate::{allocation::state::AllocationDirectory, machine::boot::read_boot_id};

/// Of each allocation of which something lives: the newest attempts of its tasks that have an
/// executor.
pub(crate) type Survivors = BTreeMap<AllocationId, BTreeMap<String, u32>>;

/// What lives of the allocations whose folders are below these.
pub(crate) fn survivors(allocations: &Path, runs: &Path) -> io::Result<Survivors> {
    let mut found = Survivors::new();
    for process in all()?.into_iter().filter(ProcessStat::is_alive) {
        if let Some(run) = run_directory(process.pid)
            && let Some((id, task, attempt)) = split(&run, runs)
        {
            let newest = found.entry(id).or_default().entry(task).or_default();
            *newest = attempt.max(*newest);
        } else if let Some(id) = allocation_of(process.pid, allocations) {
            found.entry(id).or_default();
        }
    }
    Ok(found)
}

/// The executor of a run: as its file says if that one lives, or whichever lives, or the one that
/// the file says is gone.
pub(crate) fn find_executor(run: &Path) -> io::Result<Option<ExecutorIdentity>> {
    let read = ExecutorIdentity::read(run);
    if let Ok(Some(read)) = read
        && read.is_alive()?
        && run_directory(read.pid).is_some_and(|of| of == run)
    {
        return Ok(Some(read));
    }
    match executors_below(run)?.pop() {
        None => read,
        found => Ok(found),
    }
}

/// Kills all that lives of an allocation. Blocks for 5 s at most.
pub(crate) fn kill_allocation(directory: &AllocationDirectory) -> io::Result<usize> {
    let marker = Marker::new(ALLOCATION_VARIABLE, &directory.shared());
    let mut killed = 0;
    for _ in 0..KILL_ROUNDS_MAX {
        let executors = executors_below(&directory.runs())?;
        for executor in &executors {
            executor.kill_run()?;
        }
        let left = kill_leftovers(&directory.runs())?;
        let found = executors.len().saturating_add(left).saturating_add(marker.kill()?);
        killed = found.max(killed);
        if found == 0 {
            break;
        }
        std::thread::sleep(KILL_PAUSE);
    }
    Ok(killed)
}

/// The living executors of all runs whose directories are at this path or below it.
fn executors_below(path: &Path) -> io::Result<Vec<ExecutorIdentity>> {
    let boot_id = read_boot_id()?;
    let of = |process: ProcessStat| {
        let (pid, start_ticks) = (process.pid, process.start_ticks);
        let is_below = run_directory(pid).is_some_and(|run| run.starts_with(path));
        is_below.then_some(ExecutorIdentity { pid, start_ticks, boot_id })
    };
    Ok(all()?.into_iter().filter(ProcessStat::is_alive).filter_map(of).collect())
}

/// The directory of the run that a process is the executor of.
fn run_directory(pid: i32) -> Option<PathBuf> {
    let line = read_some(&format!("/proc/{pid}/cmdline"))?;
    let mut words = line.split(|byte| *byte == 0).skip(1);
    let is_executor =
        words.next() == Some(b"executor".as_slice()) && words.next() == Some(b"run".as_slice());
    let directory = words.next().filter(|_| is_executor)?;
    Some(PathBuf::from(OsStr::from_bytes(directory)))
}

/// Allocation, task and attempt of a run.
fn split(run: &Path, runs: &Path) -> Option<(AllocationId, String, u32)> {
    let mut parts = run.strip_prefix(runs).ok()?.iter().filter_map(OsStr::to_str);
    let (id, _tasks, task, attempt) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some((id.parse().ok()?, task.to_owned(), attempt.parse().ok()?))
}

fn allocation_of(pid: i32, allocations: &Path) -> Option<AllocationId> {
    let environment = read_some(&format!("/proc/{pid}/environ"))?;
    let mut values = environment.split(|byte| *byte == 0);
    let shared = values.find_map(|line| line.strip_prefix(ALLOCATION_VARIABLE))?;
    let inside = Path::new(OsStr::from_bytes(shared)).strip_prefix(allocations).ok()?;
    inside.iter().next()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{
        fs,
        os::unix::process::{CommandExt, ExitStatusExt},
        process::{Child, Command, Stdio},
    };

    use super::*;
    use crate::allocation::state::StateDirectory;

    /// Waits until a process that was just started has its command line: it has its parent's
    /// before.
    fn started(mut command: Command) -> Child {
        let child = command.spawn().unwrap();
        let line = format!("/proc/{}/cmdline", child.id());
        while !fs::read(&line).unwrap().starts_with(b"one of ours") {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn a_living_task_is_found_and_killed_without_a_file() {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let ids = [1, 2, 3].map(|id| AllocationId([id; 16]));
        let [first, second, third] = ids.map(|id| state.allocation(id));
        let mut executor = Command::new("/bin/sh");
        // The shell takes what follows its script for arguments: it is there to be seen.
        executor.arg0("one of ours").args(["executor", "run"]).arg(first.run("web", 4));
        let script = root.path().join("executor");
        // It waits without a child, which nobody would end.
        fs::write(&script, "read line").unwrap();
        executor.current_dir(root.path()).stdin(Stdio::piped());
        let mut executor = started(executor);
        let mut task = Command::new("sleep");
        task.arg0("one of ours").arg("1000").env("NOMAD_ALLOC_DIR", second.shared());
        let mut task = started(task);
        let found = survivors(&state.allocations(), &state.runs()).unwrap();
        let expected = Survivors::from([
            (ids[0], BTreeMap::from([("web".to_owned(), 4)])),
            (ids[1], BTreeMap::new()),
        ]);
        assert_eq!(found, expected);
        let identity = find_executor(&first.run("web", 4)).unwrap().unwrap();
        assert_eq!(u32::try_from(identity.pid), Ok(executor.id()));
        assert_eq!(find_executor(&first.run("web", 3)).unwrap(), None);
        assert_eq!(kill_allocation(&third).unwrap(), 0);
        assert!(kill_allocation(&first).unwrap() > 0 && kill_allocation(&second).unwrap() > 0);
        for child in [&mut executor, &mut task] {
            assert_eq!(child.wait().unwrap().signal(), Some(9));
        }
    }
}
