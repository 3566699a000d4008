//! One server or agent: its name, its log, and its process while it runs.

use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Log, Stat, wait_for};

/// How long to wait for the end of a process after SIGKILL: only a hanging disk keeps it longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// The process group that a process belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Its own: Ctrl-C in a terminal does not reach it, and its owner ends it.
    Own,
    /// That of its owner, for an owner that does not catch Ctrl-C: both end.
    Owners,
}

/// A server or an agent.
///
/// Invariant: it holds a process exactly as long as that process was started and not waited for.
/// Dropping it kills the process.
#[derive(Debug)]
pub struct Member {
    name: String,
    log: Log,
    process: Option<Child>,
}

impl Member {
    /// A member that does not run yet.
    pub fn new(name: impl Into<String>, log: Log) -> Self {
        Self { name: name.into(), log, process: None }
    }

    /// The member's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The log that its process prints to.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Runs the command, with no input and with its output in the log; returns the number of the
    /// process. It must not run already.
    pub fn start(&mut self, command: Command, group: Group) -> io::Result<u32> {
        let log = self.log.open()?;
        self.start_into(command, group, log)
    }

    /// As [`Member::start`], but only its errors go to the log, and what it prints to `printed`.
    pub fn start_into(
        &mut self,
        mut command: Command,
        group: Group,
        printed: File,
    ) -> io::Result<u32> {
        assert!(self.process.is_none(), "{} runs already", self.name);
        command.stdin(Stdio::null()).stdout(printed).stderr(self.log.open()?);
        match group {
            Group::Own => command.process_group(0),
            Group::Owners => &mut command,
        };
        let process = command.spawn()?;
        let pid = process.id();
        self.process = Some(process);
        Ok(pid)
    }

    /// Whether it was started and has not been found to have ended.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// The number of its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The exit status, if the process has ended since the last call.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let status = process.try_wait()?;
        if status.is_some() {
            self.process = None;
        }
        Ok(status)
    }

    /// Sends a signal to a process that runs.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let process = self.process.as_ref().ok_or_else(|| self.not_running())?;
        // It was not waited for yet, so its number cannot belong to another process.
        Ok(kill_process(Pid::from_child(process), signal)?)
    }

    /// Waits for the end of a process that runs; `None` if it still runs when the time is over.
    pub fn await_exit(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        if !self.is_running() {
            return Err(self.not_running());
        }
        wait_for(timeout, || self.poll().transpose()).transpose()
    }

    /// Kills a process that runs, with SIGKILL, and waits until it has ended.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.await_exit(KILL_TIMEOUT)?.ok_or_else(|| {
            let late = format!("{} was killed and is not gone after {KILL_TIMEOUT:?}", self.name);
            io::Error::new(io::ErrorKind::TimedOut, late)
        })
    }

    /// The kernel's entry of its process, if it runs and there is a `/proc`.
    pub fn stat(&self) -> Option<Stat> {
        Stat::read(self.pid()?)
    }

    fn not_running(&self) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, format!("{} is not running", self.name))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.is_running() {
            // It fails only if the process cannot be killed; nothing more can be done about that.
            self.kill().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::Identity;

    const PATIENCE: Duration = Duration::from_mins(1);

    fn member(folder: &tempfile::TempDir) -> Member {
        Member::new("one", Log::new(folder.path().join("one.log")))
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_member_prints_into_its_log_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut member = member(&folder);
        for _ in 0..2 {
            let pid = member.start(shell("echo out; echo err >&2; exit 3"), Group::Own).unwrap();
            assert_eq!(member.pid(), Some(pid));
            let status = member.await_exit(PATIENCE).unwrap().unwrap();
            assert_eq!(status.code(), Some(3));
            assert!(!member.is_running());
            assert_eq!(member.poll().unwrap(), None, "an end is told once");
        }
        assert_eq!(member.log().text().unwrap(), "out\nerr\nout\nerr\n");
    }

    #[test]
    fn output_of_a_member_can_be_kept_apart_from_its_errors() {
        let folder = tempfile::tempdir().unwrap();
        let mut member = member(&folder);
        let printed = Log::new(folder.path().join("printed"));
        let command = shell("echo out; echo err >&2");
        member.start_into(command, Group::Own, printed.open().unwrap()).unwrap();
        assert!(member.await_exit(PATIENCE).unwrap().unwrap().success());
        assert_eq!(printed.text().unwrap(), "out\n");
        assert_eq!(member.log().text().unwrap(), "err\n");
    }

    #[test]
    fn signals_reach_only_what_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mut member = member(&folder);
        assert!(member.signal(Signal::TERM).is_err());
        assert!(member.await_exit(Duration::ZERO).is_err());
        member.start(shell("exec sleep 1000"), Group::Own).unwrap();
        assert_eq!(member.await_exit(Duration::ZERO).unwrap(), None);
        member.signal(Signal::STOP).unwrap();
        let stopped = || (member.stat()?.state == 'T').then_some(());
        wait_for(PATIENCE, stopped).expect("it stands still");
        member.signal(Signal::CONT).unwrap();
        assert_eq!(member.kill().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(member.kill().is_err());
    }

    #[test]
    fn a_dropped_member_takes_its_process_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut member = member(&folder);
        let pid = member.start(shell("exec sleep 1000"), Group::Owners).unwrap();
        let process = Identity::of(pid);
        assert!(process.is_alive());
        drop(member);
        assert!(!process.is_alive());
    }

    #[test]
    fn a_program_that_is_not_there_starts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut member = member(&folder);
        let error = member.start(Command::new("/no/such/program"), Group::Own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!member.is_running());
    }
}
