//! Which processes belong to a machine: its agent, the agent's executors, and all that they run.
//!
//! They are found by what `/proc` says of them, not only by what was written down: a server may
//! have been killed between starting an agent and writing who it is. An agent has its configuration
//! file in its command line, but for the moment in which it begins to run. An executor has its
//! directory there or works in it. A task has it in its environment, and whatever descends from one
//! of these belongs to it. A shell or an editor of a person in a machine's folder has none of that,
//! and is left alone.

use std::{collections::BTreeMap, fs, io, os::unix::ffi::OsStrExt, path::Path, time::Duration};

use agent::{
    executor::process::{ProcessStat, all, kill_all, kill_leftovers},
    run_directories,
};
use fsm::InstanceId;
use ground::rt::Instant;
use rustix::process::Signal;

use super::{
    boot_id,
    folder::{AGENT_CONFIG, Directory},
    io_error,
};

/// The variable of a task that has the directory of its allocation.
const TASK_VARIABLE: &[u8] = b"NOMAD_ALLOC_DIR=";
/// How long an agent may take to end when asked.
const AGENT_GRACE: Duration = Duration::from_secs(2);
/// How long executors and tasks may take after that.
const TASK_GRACE: Duration = Duration::from_secs(3);
/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What a process of a machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Agent,
    Executor,
    /// A task, or anything that one of the others has started.
    Other,
}

/// A process of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Living {
    pub(super) instance: InstanceId,
    pub(super) role: Role,
    pub(super) process: ProcessStat,
}

/// All processes of all machines whose folders are in a directory.
pub(super) fn living(directory: &Directory) -> io::Result<Vec<Living>> {
    let processes: Vec<ProcessStat> = all()?.into_iter().filter(ProcessStat::is_alive).collect();
    let started = started(directory)?;
    let mut owners: BTreeMap<i32, (InstanceId, Role)> = BTreeMap::new();
    for process in &processes {
        // A process that has just begun has no command line.
        let written = started.get(&(process.pid, process.start_ticks));
        let written = written.map(|instance| (*instance, Role::Agent));
        if let Some(owner) = owner(directory.path(), process.pid).or(written) {
            owners.insert(process.pid, owner);
        }
    }
    // A child that an agent has just forked has the agent's command line until it runs a program.
    let agents: BTreeMap<i32, InstanceId> = owners
        .iter()
        .filter(|(_, (_, role))| *role == Role::Agent)
        .map(|(pid, (instance, _))| (*pid, *instance))
        .collect();
    for process in &processes {
        if let Some((instance, role @ Role::Agent)) = owners.get_mut(&process.pid)
            && agents.get(&process.parent) == Some(instance)
        {
            *role = Role::Other;
        }
    }
    loop {
        let before = owners.len();
        for process in &processes {
            if let Some((instance, _)) = owners.get(&process.parent).copied() {
                owners.entry(process.pid).or_insert((instance, Role::Other));
            }
        }
        if owners.len() == before {
            break;
        }
    }
    let found = processes.into_iter().filter_map(|process| {
        let (instance, role) = owners.get(&process.pid).copied()?;
        Some(Living { instance, role, process })
    });
    Ok(found.collect())
}

/// The agents that were written down in this boot, by number and start time, dead ones too.
fn started(directory: &Directory) -> io::Result<BTreeMap<(i32, u64), InstanceId>> {
    let boot = boot_id()?;
    let mut started = BTreeMap::new();
    for instance in directory.instances()? {
        let written = directory.folder(instance).process()?;
        if let Some(process) = written.filter(|process| process.boot_id == boot) {
            started.insert((process.pid, process.start_ticks), instance);
        }
    }
    Ok(started)
}

/// The machine that a process shows to belong to. A process that is gone, or may not be looked at,
/// shows nothing.
fn owner(directory: &Path, pid: i32) -> Option<(InstanceId, Role)> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    if words.contains(&b"agent".as_slice()) {
        let config = |word: &&[u8]| split(directory, word).filter(|(_, rest)| rest == AGENT_CONFIG);
        if let Some((instance, _)) = words.iter().find_map(config) {
            return Some((instance, Role::Agent));
        }
    }
    let in_folder = |path: &[u8]| split(directory, path).map(|(instance, _)| instance);
    match words.get(1..3) {
        Some([b"executor", b"launch"]) => {
            return Some((in_folder(words.get(3)?)?, Role::Executor));
        }
        Some([b"executor", b"run"]) => {
            let works_in = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            return Some((in_folder(works_in.as_os_str().as_bytes())?, Role::Executor));
        }
        Some(_) | None => {}
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut values = environment.split(|byte| *byte == 0);
    let instance = values.find_map(|value| in_folder(value.strip_prefix(TASK_VARIABLE)?))?;
    Some((instance, Role::Other))
}

/// The instance whose folder a path is in, and the path from there.
fn split(directory: &Path, path: &[u8]) -> Option<(InstanceId, String)> {
    let rest = path.strip_prefix(directory.as_os_str().as_bytes())?.strip_prefix(b"/")?;
    let rest = std::str::from_utf8(rest).ok()?;
    let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
    Some((name.parse().ok()?, rest.to_owned()))
}

/// Ends all processes of a machine: first its agent, which would start tasks again, then the rest.
/// True: nothing of it lives. False: something still does at the deadline.
pub(super) fn end(
    directory: &Directory,
    instance: InstanceId,
    deadline: Instant,
) -> io::Result<bool> {
    let find = || -> io::Result<Vec<Living>> {
        let mut found = living(directory)?;
        found.retain(|one| one.instance == instance);
        Ok(found)
    };
    let agents = |found: &[Living]| found.iter().any(|one| one.role == Role::Agent);
    signal(&find()?, Signal::TERM, |one| one.role == Role::Agent)?;
    let until = deadline.min(Instant::now() + AGENT_GRACE);
    while agents(&find()?) && Instant::now() < until {
        std::thread::sleep(LOOK_PAUSE);
    }
    signal(&find()?, Signal::KILL, |one| one.role == Role::Agent)?;
    signal(&find()?, Signal::TERM, |one| one.role == Role::Executor)?;
    let until = deadline.min(Instant::now() + TASK_GRACE);
    while !find()?.is_empty() && Instant::now() < until {
        std::thread::sleep(LOOK_PAUSE);
    }
    loop {
        let found = find()?;
        signal(&found, Signal::KILL, |_| true)?;
        let left = kill_sessions(directory.folder(instance).path())?;
        if found.is_empty() && left == 0 {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

fn signal(found: &[Living], signal: Signal, wanted: impl Fn(&Living) -> bool) -> io::Result<()> {
    let wanted: Vec<_> = found.iter().filter(|one| wanted(one)).map(|one| one.process).collect();
    kill_all(&wanted, signal)
}

/// Kills what executors that are gone have left in their sessions, if it has emptied its
/// environment, say.
fn kill_sessions(folder: &Path) -> io::Result<usize> {
    let data = folder.join("data");
    let runs = run_directories(&data).map_err(|error| io_error(&data, &error))?;
    runs.iter().try_fold(0, |killed, runs| Ok(kill_leftovers(runs)? + killed))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_path_is_split_behind_the_folder_of_an_instance() {
        let id = InstanceId([0xab; 16]);
        let directory = Path::new("/m");
        let split = |path: &str| split(directory, path.as_bytes());
        assert_eq!(split(&format!("/m/{id}/agent.toml")), Some((id, "agent.toml".to_owned())));
        assert_eq!(split(&format!("/m/{id}/data/x")), Some((id, "data/x".to_owned())));
        assert_eq!(split(&format!("/m/{id}")), Some((id, String::new())));
        assert_eq!(split(&format!("/m2/{id}/agent.toml")), None);
        assert_eq!(split("/m/destroyed/agent.toml"), None);
    }

    #[test]
    fn a_person_in_the_folder_is_left_alone_and_a_task_is_not() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path()).unwrap();
        let id = InstanceId([7; 16]);
        let folder = directory.folder(id).path().to_owned();
        fs::create_dir(&folder).unwrap();
        let mut person = std::process::Command::new("tail")
            .args(["-f", "/dev/null"])
            .arg(folder.join(AGENT_CONFIG))
            .current_dir(&folder)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The task's own child has another environment. It ends with its input, when the test ends.
        let mut task = std::process::Command::new("sh")
            .args(["-c", "env -i sh -c 'read line'; true"])
            .stdin(std::process::Stdio::piped())
            .env("NOMAD_ALLOC_DIR", folder.join("data/allocs/a/alloc"))
            .spawn()
            .unwrap();
        let found = launch::wait_for(Duration::from_mins(1), || {
            let found = living(&directory).unwrap();
            (found.len() == 2).then_some(found)
        });
        assert!(found.unwrap().iter().all(|one| one.instance == id && one.role == Role::Other));
        // Nobody waits for the killed while they are looked for, and they do not count.
        assert!(end(&directory, id, Instant::now() + Duration::from_mins(1)).unwrap());
        assert!(task.wait().is_ok_and(|status| !status.success()));
        assert!(person.try_wait().unwrap().is_none());
        person.kill().unwrap();
        person.wait().unwrap();
    }
}
