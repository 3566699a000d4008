//! The agent's side of an executor: launch it, find it again, ask it, and read what it wrote when it is gone.

use std::{
    fs, io,
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{sleep, timeout},
};

use super::{
    EXECUTOR_FILE, EXIT_FILE, ExecutorIdentity, LOG_FILE, Outcome, RunSpec, SOCKET_FILE, SPEC_FILE,
    claim,
    control::{Request, Response},
};
use crate::agent::{files, task_runner::ExitResult};

/// How long an executor may take to start its task, or to answer an order.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at an executor that does not answer.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Longest reply, bytes.
const REPLY_BYTES_MAX: u64 = 64 * 1024;

/// The executor of one run, by the directory of its files.
#[derive(Clone, Debug)]
pub(crate) struct Executor {
    directory: PathBuf,
}

impl Executor {
    /// The executor whose files are there, if there is one.
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Starts a run and returns when the task runs, or says why it does not.
    pub(crate) async fn launch(&self, binary: &Path, spec: &RunSpec) -> Result<(), Outcome> {
        let retry =
            |error: io::Error| Outcome::StartFailed { error: error.to_string(), recoverable: true };
        let (directory, spec) = (self.directory.clone(), spec.clone());
        blocking(move || {
            files::create_directory(&directory)?;
            files::write_json(&directory.join(SPEC_FILE), &spec)
        })
        .await
        .map_err(retry)?;
        let mut command = std::process::Command::new(binary);
        command
            .args(["executor", "launch"])
            .arg(&self.directory)
            // What the agent knows by its environment is none of the task's business.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let launcher = tokio::process::Command::from(command).output();
        let output = timeout(ANSWER_TIMEOUT, launcher).await.map_err(io::Error::from).flatten();
        let output = output.map_err(retry)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let error = format!("the executor could not be launched: {said}");
            return Err(Outcome::StartFailed { error, recoverable: true });
        }
        self.started().await
    }

    /// Waits until the task runs, or says why it does not.
    pub(crate) async fn started(&self) -> Result<(), Outcome> {
        match timeout(ANSWER_TIMEOUT, self.ask(&Request::Started)).await {
            Ok(Ok(Response::Ended { outcome: outcome @ Outcome::StartFailed { .. } })) => {
                Err(outcome)
            }
            // Also when it has already ended: the wait that follows says how.
            Ok(Ok(Response::Running { .. } | Response::Ended { .. })) => Ok(()),
            Ok(Ok(Response::Done | Response::Refused { .. }) | Err(_)) | Err(_) => {
                match self.read_outcome() {
                    Some(outcome @ Outcome::StartFailed { .. }) => Err(outcome),
                    Some(Outcome::Exited { .. }) => Ok(()),
                    None if self.identity().is_some_and(|identity| identity.is_alive()) => Ok(()),
                    None => {
                        Err(Outcome::StartFailed { error: self.last_words(), recoverable: true })
                    }
                }
            }
        }
    }

    /// Finds a run again after the agent was restarted. False: it never happened and never will.
    pub(crate) async fn recover(&self) -> io::Result<bool> {
        if !self.directory.exists() {
            return Ok(false);
        }
        let directory = self.directory.clone();
        let given_up = blocking(move || claim(&directory)).await?;
        Ok(!given_up)
    }

    /// Waits for the end. May be dropped and called again.
    pub(crate) async fn wait(&self) -> Outcome {
        // The executor claims its run before it says who it is: give it time to.
        let mut unknown_left = 50_u32;
        loop {
            if let Some(outcome) = self.read_outcome() {
                return outcome;
            }
            match self.identity() {
                None if unknown_left == 0 => return self.lost(),
                None => unknown_left -= 1,
                Some(identity) if !identity.is_alive() => {
                    return self.read_outcome().unwrap_or_else(|| {
                        // What cannot be killed is no longer ours to judge; the end is reported all the same.
                        drop(identity.kill_session());
                        self.lost()
                    });
                }
                Some(_) => {}
            }
            if let Ok(Response::Ended { outcome }) = self.ask(&Request::Wait).await {
                return outcome;
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// Asks for the end of the task. The end itself is seen by [`Self::wait`].
    pub(crate) async fn kill(&self, signal: &str, timeout_ms: u64) -> io::Result<()> {
        self.order(&Request::Kill { signal: signal.to_owned(), timeout_ms }).await
    }

    /// Sends a signal to the task.
    pub(crate) async fn signal(&self, signal: &str) -> io::Result<()> {
        self.order(&Request::Signal { signal: signal.to_owned() }).await
    }

    async fn order(&self, request: &Request) -> io::Result<()> {
        match timeout(ANSWER_TIMEOUT, self.ask(request)).await?? {
            Response::Done | Response::Ended { .. } => Ok(()),
            Response::Refused { error } => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
            Response::Running { .. } => Err(io::Error::other("the executor gave a wrong answer")),
        }
    }

    async fn ask(&self, request: &Request) -> io::Result<Response> {
        // The path of a socket is at most 107 bytes long; through the directory's descriptor it always fits.
        let directory = fs::File::open(&self.directory)?;
        let path = format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd());
        let mut stream = UnixStream::connect(path).await?;
        let mut bytes = serde_json::to_vec(request)?;
        bytes.push(b'\n');
        stream.write_all(&bytes).await?;
        let mut line = Vec::new();
        BufReader::new(stream.take(REPLY_BYTES_MAX)).read_until(b'\n', &mut line).await?;
        Ok(serde_json::from_slice(&line)?)
    }

    fn identity(&self) -> Option<ExecutorIdentity> {
        files::read_json(&self.directory.join(EXECUTOR_FILE)).ok().flatten()
    }

    fn read_outcome(&self) -> Option<Outcome> {
        files::read_json(&self.directory.join(EXIT_FILE)).ok().flatten()
    }

    fn lost(&self) -> Outcome {
        let error = Some(self.last_words());
        let result = ExitResult { exit_code: -1, signal: 0, oom_killed: false, error };
        Outcome::Exited { result, at_ms: crate::agent::time::wall_ms() }
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.directory.join(LOG_FILE)).unwrap_or_default();
        match log.lines().last() {
            Some(line) => format!("the executor is gone: {line}"),
            None => "the executor is gone and left no exit status".to_owned(),
        }
    }
}

/// Runs file work off the runtime's threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other).flatten()
}
