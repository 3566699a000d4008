//! The executor's loop: starts the task, copies its output, obeys the socket, reaps every
//! descendant, and writes the end down.

use std::{
    io, mem,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use ground::open_files;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    EXIT_FILE, RunSpec,
    control::{self, Request, Response},
    logs::RotatingLog,
    process::{self, KILL_PAUSE, KILL_ROUNDS_MAX},
};
use crate::{
    machine::{beneath::is_spoiled, files, users::find_user},
    task::run::{ExitResult, Fault, Outcome, code_of_signal},
    time::{later, wall_ms},
};

/// How long output is read after the last process is gone; something outside the task may hold the
/// pipe.
const DRAIN: Duration = Duration::from_secs(2);
/// Until SIGKILL is sent again.
const FORCE_PAUSE: Duration = Duration::from_secs(1);
/// Tries to write the exit status, and the pause between two.
const WRITE_TRIES_MAX: u32 = 60;
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Time from the kill signal to SIGKILL when the executor itself is asked to end.
const OWN_END_TIMEOUT_MS: u64 = 5_000;

struct Supervisor {
    task: Pid,
    oom_kills_before: u64,
    /// When SIGKILL follows.
    kill_at: Option<Instant>,
    /// SIGKILL came from here, not from the kernel.
    force_killed: bool,
    waiters: Vec<oneshot::Sender<Response>>,
}

/// Runs the task to its end. Returns only after the end is written down.
pub(super) async fn supervise(spec: RunSpec) -> io::Result<()> {
    let (commands_in, mut commands) = mpsc::channel(32);
    tokio::spawn(control::serve(commands_in));
    let mut children = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let started = start(&spec);
    // Its environment can be large, and the task may run for ever.
    drop(spec);
    let (task, copies) = match started {
        Ok(started) => started,
        Err(failure) => return end(&failure, Vec::new(), &mut commands).await,
    };
    let mut supervisor = Supervisor {
        task,
        oom_kills_before: process::oom_kills(),
        kill_at: None,
        force_killed: false,
        waiters: Vec::new(),
    };
    let status = loop {
        let kill_at = supervisor.kill_at;
        let due = async {
            match kill_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = children.recv() => {
                if let Some(status) = supervisor.reap() {
                    break status;
                }
            }
            command = commands.recv() => {
                if let Some((request, reply)) = command {
                    supervisor.obey(request, reply);
                }
            }
            () = due => supervisor.force(),
            _ = terminate.recv() => supervisor.kill(Signal::TERM, OWN_END_TIMEOUT_MS),
            _ = interrupt.recv() => supervisor.kill(Signal::INT, OWN_END_TIMEOUT_MS),
            _ = hangup.recv() => {}
        }
    };
    let result = supervisor.result(status);
    kill_descendants().await;
    drop(timeout(DRAIN, futures_util::future::join_all(copies)).await);
    let outcome = Outcome::Exited { result, at_ms: wall_ms() };
    end(&outcome, supervisor.waiters, &mut commands).await
}

impl Supervisor {
    /// Takes in every child that has ended; the task's status when it is among them.
    fn reap(&self) -> Option<ExitStatus> {
        let mut ended = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.task => {
                    ended = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(rustix::io::Errno::CHILD) => return ended,
                Err(error) => {
                    super::complain(&error.into());
                    return ended;
                }
            }
        }
    }

    fn obey(&mut self, request: Request, reply: oneshot::Sender<Response>) {
        let unknown =
            |signal: &str| Response::Refused { error: format!("unknown signal `{signal}`") };
        let response = match request {
            Request::Started => Response::Running { pid: self.task.as_raw_nonzero().get() },
            Request::Wait => {
                self.waiters.retain(|waiter| !waiter.is_closed());
                self.waiters.push(reply);
                return;
            }
            Request::Signal { signal } => match process::parse_signal(&signal) {
                None => unknown(&signal),
                Some(signal) => match kill_process_group(self.task, signal) {
                    Ok(()) => Response::Done,
                    Err(error) => Response::Refused { error: error.to_string() },
                },
            },
            Request::Kill { signal, timeout_ms } => match process::parse_signal(&signal) {
                None => unknown(&signal),
                Some(signal) => {
                    self.kill(signal, timeout_ms);
                    Response::Done
                }
            },
        };
        // The one who asked may have gone.
        drop(reply.send(response));
    }

    /// A second kill can only bring the end nearer.
    fn kill(&mut self, signal: Signal, timeout_ms: u64) {
        if let Err(error) = kill_process_group(self.task, signal)
            && error != rustix::io::Errno::SRCH
        {
            // SIGKILL follows in time all the same.
            super::complain(&error.into());
        }
        let at = later(Duration::from_millis(timeout_ms));
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Until the task has ended: one with another user's rights may not get it, say, and what is
    /// forked meanwhile is not among those seen.
    fn force(&mut self) {
        let is_first = !mem::replace(&mut self.force_killed, true);
        // Its number is nobody else's before it is reaped.
        let group = kill_process_group(self.task, Signal::KILL);
        let group = group.or_else(|error| match error {
            rustix::io::Errno::SRCH => Ok(()),
            other => Err(other.into()),
        });
        if let Err(error) = kill_family().and(group)
            && is_first
        {
            super::complain(&error);
        }
        self.kill_at = Some(later(FORCE_PAUSE));
    }

    fn result(&self, status: ExitStatus) -> ExitResult {
        let signal = status.signal().unwrap_or(0);
        let oom_killed = signal == 9
            && !self.force_killed
            && self.kill_at.is_none()
            && process::oom_kills() > self.oom_kills_before;
        let exit_code = status.code().unwrap_or_else(|| code_of_signal(signal));
        ExitResult { exit_code, signal, oom_killed, ..ExitResult::default() }
    }
}

/// Whatever the task has left behind, daemons included, ends with it. What cannot be killed is
/// given up, and noted.
async fn kill_descendants() {
    let mut last = Ok(true);
    for _ in 0..KILL_ROUNDS_MAX {
        last = kill_family();
        if matches!(last, Ok(false)) {
            return;
        }
        sleep(KILL_PAUSE).await;
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
    if let Err(error) = last {
        super::complain(&error);
    }
}

/// Sends SIGKILL to every descendant; whether there was one.
fn kill_family() -> io::Result<bool> {
    let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let family = process::descendants(own)?;
    process::kill_all(&family, Signal::KILL)?;
    Ok(!family.is_empty())
}

/// Writes the end down and tells it to all who ask. A full disk is waited for, up to a minute, for
/// an agent that comes later: the one that waits is told at once.
async fn end(
    outcome: &Outcome,
    waiters: Vec<oneshot::Sender<Response>>,
    commands: &mut mpsc::Receiver<control::Command>,
) -> io::Result<()> {
    let write = || files::write_json(&Path::new(".").join(EXIT_FILE), outcome);
    let mut written = write();
    let response = Response::Ended { outcome: outcome.clone() };
    for waiter in waiters {
        drop(waiter.send(response.clone()));
    }
    for _ in 0..WRITE_TRIES_MAX {
        let Err(error) = &written else { break };
        super::complain(error);
        if Fault::of(error) != Fault::Shortage {
            break;
        }
        tell(&response, commands, WRITE_PAUSE).await;
        written = write();
    }
    // Who asks from now on finds the socket closed and reads the file.
    tell(&response, commands, KILL_PAUSE).await;
    written
}

/// Answers whoever asks, until nobody has asked for so long.
async fn tell(
    response: &Response,
    commands: &mut mpsc::Receiver<control::Command>,
    pause: Duration,
) {
    while let Ok(Some((_, reply))) = timeout(pause, commands.recv()).await {
        drop(reply.send(response.clone()));
        tokio::task::yield_now().await;
    }
}

type Copies = Vec<JoinHandle<()>>;

fn start(spec: &RunSpec) -> Result<(Pid, Copies), Outcome> {
    let of_task = |error: io::Error| Outcome::StartFailed {
        error: error.to_string(),
        recoverable: false,
        fault: Fault::Task,
    };
    let of_node = |error: io::Error| Outcome::StartFailed {
        fault: Fault::of(&error),
        error: error.to_string(),
        recoverable: true,
    };
    let mut copies = Vec::new();
    let mut output = |kind: &str| -> io::Result<Stdio> {
        if spec.log_files_max == 0 {
            return Ok(Stdio::null());
        }
        let name = format!("{}.{kind}", spec.log_name);
        let (files_max, bytes_max) = (spec.log_files_max, spec.log_file_bytes_max);
        let log = match RotatingLog::open(&spec.logs_directory, &name, files_max, bytes_max) {
            Ok(log) => log,
            // An earlier run has removed or replaced the folder: it has no log then, and the node
            // is not to blame.
            Err(error) if is_spoiled(&error) => {
                super::complain(&error);
                return Ok(Stdio::null());
            }
            Err(error) => return Err(error),
        };
        let (read, write) = io::pipe()?;
        copies.push(copy(read, log)?);
        Ok(write.into())
    };
    let (out, err) =
        output("stdout").and_then(|out| Ok((out, output("stderr")?))).map_err(of_node)?;
    let program = find_program(spec).map_err(of_task)?;
    // The executor itself needs few.
    if spec.open_files.is_some() {
        open_files::set(spec.open_files);
    }
    let mut command = Command::new(program);
    command
        .args(&spec.args)
        .env_clear()
        .envs(&spec.env)
        .current_dir(&spec.directory)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0);
    if !spec.user.is_empty() {
        let (uid, gid) = find_user(&spec.user).map_err(of_task)?;
        command.uid(uid).gid(gid);
    }
    let child = command.spawn().map_err(|error| {
        // Anything but a shortage is about the command that the job names. A user may have limits
        // of its own.
        let busy = matches!(Fault::of(&error), Fault::Shortage | Fault::Passing);
        let fault = match (busy, spec.user.is_empty()) {
            (true, true) => Fault::Shortage,
            (true, false) => Fault::Passing,
            (false, _) => Fault::Task,
        };
        let error = format!("failed to start `{}`: {error}", spec.command);
        Outcome::StartFailed { error, recoverable: busy, fault }
    })?;
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a child has a process id");
    Ok((pid, copies))
}

/// Copies a pipe to a log until every writer has closed it.
fn copy(pipe: io::PipeReader, mut log: RotatingLog) -> io::Result<JoinHandle<()>> {
    let mut reader = pipe::Receiver::from_owned_fd(OwnedFd::from(pipe))?;
    Ok(tokio::spawn(async move {
        let mut buffer = vec![0; 32 * 1024];
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            // A full disk costs log lines, not the task.
            drop(log.write(&buffer[..length]));
        }
    }))
}

/// The program, looked up in the task's own `PATH` when it is a bare name.
fn find_program(spec: &RunSpec) -> io::Result<std::path::PathBuf> {
    let missing =
        |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("`{what}` not found"));
    if spec.command.is_empty() {
        return Err(io::Error::other("there is no command"));
    }
    if spec.command.contains('/') {
        let path = spec.directory.join(&spec.command);
        return if path.is_file() { Ok(path) } else { Err(missing(&spec.command)) };
    }
    let path = spec.env.get("PATH").map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
    std::env::split_paths(path)
        .map(|directory| directory.join(&spec.command))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| missing(&spec.command))
}
