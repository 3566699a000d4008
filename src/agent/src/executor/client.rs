//! The agent's side of an executor: launch it, find it again, ask it, and read what it wrote when
//! it is gone.

use std::{
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use ground::rt::run_blocking;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{Instant, sleep, timeout},
};

use super::{
    EXIT_FILE, ExecutorIdentity, LOG_FILE, RunSpec, SHORTAGE_EXIT, SOCKET_FILE, SPEC_FILE, claim,
    control::{Request, Response},
    process::{KILL_PAUSE, KILL_ROUNDS_MAX, Marker, parse_signal},
    survivors::find_executor,
};
use crate::{
    machine::{
        beneath::{Folder, read_tail},
        files,
    },
    task::run::{ExitResult, Fault, Outcome},
    time::later,
};

/// How long an executor may take to start its task, or to answer an order.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at an executor that does not answer.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Looks at an executor that has written down the end of its run, until it is gone.
const SETTLE_LOOKS_MAX: u32 = 10;
/// Between two tries to find out who has a run's claim.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);
/// How long an executor may take to answer when its task is to end: within the 5 s after the kill
/// timeout.
const KILL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The end of an executor's own log that is looked at, bytes.
const LAST_WORDS_BYTES_MAX: u64 = 4_096;
/// Longest reply, bytes.
const REPLY_BYTES_MAX: u64 = 64 * 1024;

/// What an agent that was restarted finds of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// It goes on, or how it ended is known, or will be.
    There,
    /// It never happened and never will.
    Never,
    /// Its executor went while no agent was there, and nothing says how it ended. Nothing lives of
    /// it.
    Lost,
}

/// The executor of one run, by the directory of its files.
#[derive(Clone, Debug)]
pub(crate) struct Executor {
    directory: PathBuf,
    /// Who it is, once that was said or read: a task can remove the file.
    known: Arc<OnceLock<ExecutorIdentity>>,
}

impl Executor {
    /// The executor whose files are there, if there is one.
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory, known: Arc::default() }
    }

    /// Writes down what is to be run. Blocks.
    pub(crate) fn prepare(&self, spec: &RunSpec) -> io::Result<()> {
        files::create_directory(&self.directory)?;
        files::write_json(&self.directory.join(SPEC_FILE), spec)
    }

    /// Starts a run that was prepared, and returns when the task runs, or says why it does not and
    /// never will.
    pub(crate) async fn launch(&self, binary: &Path) -> Result<(), Outcome> {
        let mut command = std::process::Command::new(binary);
        command
            .args(["executor", "launch"])
            .arg(&self.directory)
            // What the agent knows by its environment is none of the task's business.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let launcher = tokio::process::Command::from(command).output();
        let output = timeout(ANSWER_TIMEOUT, launcher).await.map_err(io::Error::from).flatten();
        let (problem, fault) = match output {
            Ok(output) if output.status.success() => {
                if let Ok(identity) = serde_json::from_slice(&output.stdout) {
                    self.known.get_or_init(|| identity);
                }
                return self.started().await;
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let is_short = output.status.code() == Some(SHORTAGE_EXIT.into());
                let fault = if is_short { Fault::Shortage } else { Fault::Node };
                (format!("the executor could not be launched: {said}"), fault)
            }
            Err(error) => (error.to_string(), Fault::of(&error)),
        };
        // A launcher that failed or is late may have started the executor, or do so yet.
        if self.take_claim().await {
            return Err(start_failed(problem, fault));
        }
        self.started().await
    }

    /// Waits until the task has started. An error says why it has not and never will. Returns `Ok`
    /// too if the executor has claimed the run but does not answer: it may start the task at any
    /// time, and [`Self::wait`] says how that ends.
    pub(crate) async fn started(&self) -> Result<(), Outcome> {
        match timeout(ANSWER_TIMEOUT, self.ask(&Request::Started)).await {
            Ok(Ok(Response::Ended { outcome: outcome @ Outcome::StartFailed { .. } })) => {
                Err(outcome)
            }
            // Also when it has already ended: the wait that follows says how.
            Ok(Ok(Response::Running { .. } | Response::Ended { .. })) => {
                // Remembered as long as it can be read.
                drop(self.identity().await);
                Ok(())
            }
            Ok(Ok(Response::Done | Response::Refused { .. }) | Err(_)) | Err(_) => {
                match self.outcome().await {
                    Some(outcome @ Outcome::StartFailed { .. }) => Err(outcome),
                    Some(Outcome::Exited { .. }) => Ok(()),
                    None => self.give_up().await,
                }
            }
        }
    }

    /// Finds a run again after the agent was restarted.
    pub(crate) async fn recover(&self) -> Found {
        // One that lives has claimed it, whatever its files say.
        drop(self.identity().await);
        if self.lives() {
            return Found::There;
        }
        let has_files = self.directory.exists();
        if self.take_claim().await {
            if !has_files {
                // A task that removed the files of its executor may have outlived it.
                self.kill_rest(None).await;
            }
            return Found::Never;
        }
        // It may have said how it ended until it was gone.
        if !self.is_gone().await || self.outcome().await.is_some() {
            return Found::There;
        }
        self.kill_rest(self.known.get().copied()).await;
        Found::Lost
    }

    /// Nobody is there who could end the run, or say how it ended. Of a claimed run.
    async fn is_gone(&self) -> bool {
        match self.identity().await {
            Ok(Some(identity)) => identity.is_alive().is_ok_and(|alive| !alive),
            Ok(None) => self.never_began().await,
            Err(_) => false,
        }
    }

    /// Gives up a start that nobody answers for, if it is not the executor's already.
    async fn give_up(&self) -> Result<(), Outcome> {
        if self.lives() && !self.directory.exists() {
            // Its task has removed the files: it has begun, and is waited for and ended without
            // them.
            return Ok(());
        }
        if self.take_claim().await || self.never_began().await {
            return Err(start_failed(self.last_words(), Fault::Node));
        }
        Ok(())
    }

    /// Claims the run for the agent. `true`: the executor never starts the task, however late it
    /// comes. After an I/O error it is unknown who has the claim, so this tries again until it is
    /// known: a wrong guess would start the task twice or not at all.
    async fn take_claim(&self) -> bool {
        loop {
            let directory = self.directory.clone();
            match run_blocking(move || claim(&directory)).await {
                Ok(taken) => return taken,
                // An executor cannot claim a run without a directory either.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
                Err(error) => {
                    let directory = self.directory.display();
                    tracing::warn!(%directory, %error, "cannot find out whether a task was started");
                }
            }
            sleep(CLAIM_PAUSE).await;
        }
    }

    /// Of a claimed run: the executor has ended without saying who it is, which it does before it
    /// starts anything. While it may still come to that, it holds the socket.
    async fn never_began(&self) -> bool {
        let nobody = |error: io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        let unsaid = matches!(ExecutorIdentity::read(&self.directory), Ok(None));
        self.connect().await.is_err_and(nobody) && unsaid && !self.lives()
    }

    /// Waits for the end. May be dropped and called again.
    pub(crate) async fn wait(&self) -> Outcome {
        loop {
            if let Some(outcome) = self.outcome().await {
                return outcome;
            }
            if let Ok(Some(identity)) = self.identity().await
                && identity.is_alive().is_ok_and(|alive| !alive)
            {
                if let Some(outcome) = self.outcome().await {
                    return outcome;
                }
                self.kill_rest(Some(identity)).await;
                return self.lost();
            }
            if let Ok(Response::Ended { outcome }) = self.ask(&Request::Wait).await {
                return outcome;
            }
            if self.never_began().await {
                return self.lost();
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// Kills the processes that an executor left behind when it died: those of its session, those
    /// that have left the session, and those forked meanwhile. The end of the run is reported even
    /// if some cannot be killed.
    async fn kill_rest(&self, identity: Option<ExecutorIdentity>) {
        let marker = Marker::of_run(&self.directory);
        for _ in 0..KILL_ROUNDS_MAX {
            let marker = marker.clone();
            let killed = run_blocking(move || -> io::Result<usize> {
                let session = identity.map_or(Ok(0), |identity| identity.kill_session())?;
                Ok(session.saturating_add(marker.map_or(Ok(0), |marker| marker.kill())?))
            });
            if killed.await.is_ok_and(|killed| killed == 0) {
                break;
            }
            sleep(KILL_PAUSE).await;
        }
    }

    /// Asks the executor to end the task; [`Self::wait`] returns when it has ended. An executor
    /// that does not answer (a task can remove its socket or stop the process) is killed after the
    /// timeout, and its task with it.
    pub(crate) async fn kill(&self, signal: &str, timeout_ms: u64) -> io::Result<()> {
        let request = Request::Kill { signal: signal.to_owned(), timeout_ms };
        let deadline = later(Duration::from_millis(timeout_ms));
        let mut is_signaled = false;
        loop {
            let error = match timeout(KILL_ANSWER_TIMEOUT, self.ask(&request)).await {
                Ok(Ok(response)) => return done(response),
                Ok(Err(error)) => error,
                Err(late) => late.into(),
            };
            let Some(identity) = self.identity().await? else { return Err(error) };
            if !identity.is_alive()? {
                return Ok(());
            }
            if !is_signaled {
                let directory = self.directory.display();
                tracing::warn!(%directory, %error, "an executor does not answer: its task is ended without it");
                if let Some(signal) = parse_signal(signal) {
                    run_blocking(move || identity.signal_family(signal)).await?;
                }
                is_signaled = true;
            }
            if Instant::now() >= deadline {
                return run_blocking(move || identity.kill_run()).await;
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// Sends a signal to the task.
    pub(crate) async fn signal(&self, signal: &str) -> io::Result<()> {
        self.order(&Request::Signal { signal: signal.to_owned() }).await
    }

    async fn order(&self, request: &Request) -> io::Result<()> {
        done(timeout(ANSWER_TIMEOUT, self.ask(request)).await??)
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        // The path of a socket is at most 107 bytes long; through the directory's descriptor it
        // always fits.
        let directory = Folder::open(&self.directory)?;
        UnixStream::connect(directory.link(SOCKET_FILE)).await
    }

    async fn ask(&self, request: &Request) -> io::Result<Response> {
        let mut stream = self.connect().await?;
        let mut bytes = serde_json::to_vec(request)?;
        bytes.push(b'\n');
        stream.write_all(&bytes).await?;
        let mut line = Vec::new();
        BufReader::new(stream.take(REPLY_BYTES_MAX)).read_until(b'\n', &mut line).await?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Who it is, as was said, as its file says, or as `/proc` does when the task has removed or
    /// spoiled that.
    async fn identity(&self) -> io::Result<Option<ExecutorIdentity>> {
        if let Some(known) = self.known.get() {
            return Ok(Some(*known));
        }
        let directory = self.directory.clone();
        let read = run_blocking(move || find_executor(&directory)).await?;
        if let Some(read) = read {
            self.known.get_or_init(|| read);
        }
        Ok(read)
    }

    /// Whether it is known, and runs.
    fn lives(&self) -> bool {
        self.known.get().is_some_and(|known| known.is_alive().is_ok_and(|lives| lives))
    }

    /// How it ended, by the file that its executor leaves. While that one lives it is no end: the
    /// executor ends a moment after it has written it.
    async fn outcome(&self) -> Option<Outcome> {
        let outcome = files::read_json(&self.directory.join(EXIT_FILE)).ok().flatten()?;
        for _ in 0..SETTLE_LOOKS_MAX {
            if !self.lives() {
                return Some(outcome);
            }
            sleep(LOOK_PAUSE).await;
        }
        None
    }

    fn lost(&self) -> Outcome {
        // The node is not to blame for a task that removes the files of its executor.
        let lost = self.directory.exists();
        let removed = || "the task has removed the folder of its executor".to_owned();
        let error = Some(if lost { self.last_words() } else { removed() });
        let result = ExitResult { exit_code: -1, error, lost, ..ExitResult::default() };
        Outcome::Exited { result, at_ms: crate::time::wall_ms() }
    }

    fn last_words(&self) -> String {
        let log = self.directory.join(LOG_FILE);
        let log = read_tail(&log, LAST_WORDS_BYTES_MAX).unwrap_or_default();
        match log.lines().last() {
            Some(line) => format!("the executor is gone: {line}"),
            None => "the executor is gone and left no exit status".to_owned(),
        }
    }
}

fn done(response: Response) -> io::Result<()> {
    match response {
        Response::Done | Response::Ended { .. } => Ok(()),
        Response::Refused { error } => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        Response::Running { .. } => Err(io::Error::other("the executor gave a wrong answer")),
    }
}

fn start_failed(error: String, fault: Fault) -> Outcome {
    Outcome::StartFailed { error, recoverable: true, fault }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use tokio::net::UnixListener;

    use super::{super::EXECUTOR_FILE, *};

    /// The files of a run, the socket that its executor was given, and the agent's side of it.
    fn launched() -> (tempfile::TempDir, UnixListener, Executor) {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET_FILE)).unwrap();
        let executor = Executor::at(directory.path().to_owned());
        (directory, listener, executor)
    }

    /// Takes a connection and says nothing.
    async fn keep_silent(listener: &UnixListener) {
        drop(listener.accept().await.unwrap());
    }

    fn spec(directory: &Path) -> RunSpec {
        RunSpec {
            command: "true".to_owned(),
            args: Vec::new(),
            env: std::collections::BTreeMap::new(),
            directory: directory.to_owned(),
            user: String::new(),
            logs_directory: directory.to_owned(),
            log_name: "task".to_owned(),
            log_files_max: 1,
            open_files: None,
            log_file_bytes_max: 1 << 20,
        }
    }

    fn has_failed(started: &Result<(), Outcome>) -> bool {
        matches!(started, Err(Outcome::StartFailed { recoverable: true, .. }))
    }

    #[tokio::test]
    async fn an_executor_that_comes_after_its_start_was_given_up_finds_the_claim_taken() {
        let (directory, listener, executor) = launched();
        let (started, ()) = tokio::join!(executor.started(), keep_silent(&listener));
        assert!(has_failed(&started), "{started:?}");
        assert!(!claim(directory.path()).unwrap(), "the task would start");
    }

    #[tokio::test]
    async fn an_executor_that_comes_after_its_launcher_failed_finds_the_claim_taken() {
        let (directory, _listener, executor) = launched();
        executor.prepare(&spec(directory.path())).unwrap();
        let started = executor.launch(Path::new("/bin/false")).await;
        assert!(has_failed(&started), "{started:?}");
        assert!(!claim(directory.path()).unwrap(), "the task would start");
    }

    #[tokio::test]
    async fn a_start_that_its_executor_has_claimed_is_not_given_up() {
        let (directory, listener, executor) = launched();
        assert!(claim(directory.path()).unwrap());
        executor.prepare(&spec(directory.path())).unwrap();
        let launch = executor.launch(Path::new("/bin/false"));
        let (started, ()) = tokio::join!(launch, keep_silent(&listener));
        assert_eq!(started, Ok(()));
    }

    #[tokio::test]
    async fn an_executor_that_ended_before_it_said_who_it_is_has_started_nothing() {
        let (directory, listener, executor) = launched();
        assert!(claim(directory.path()).unwrap());
        drop(listener);
        let started = executor.started().await;
        assert!(has_failed(&started), "{started:?}");
        let ended = executor.wait().await;
        assert!(
            matches!(&ended, Outcome::Exited { result, .. } if result.exit_code == -1),
            "{ended:?}"
        );
    }

    /// By what is left of the run: no folder, no claim, a claim alone, an executor that is gone,
    /// how the run ended.
    #[tokio::test]
    async fn a_restarted_agent_tells_what_never_began_from_what_was_lost_and_what_has_ended() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("run");
        let found = || async { Executor::at(directory.clone()).recover().await };
        assert_eq!(found().await, Found::Never);
        fs::create_dir(&directory).unwrap();
        assert_eq!(found().await, Found::Never);
        // The look has taken the claim, as an executor would.
        assert_eq!(found().await, Found::Lost);
        let boot_id = crate::machine::boot::read_boot_id().unwrap();
        let gone = ExecutorIdentity { pid: i32::MAX, start_ticks: 1, boot_id };
        files::write_json(&directory.join(EXECUTOR_FILE), &gone).unwrap();
        assert_eq!(found().await, Found::Lost);
        let outcome = Outcome::Exited { result: ExitResult::default(), at_ms: 1 };
        files::write_json(&directory.join(EXIT_FILE), &outcome).unwrap();
        assert_eq!(found().await, Found::There);
    }

    #[test]
    fn a_run_whose_claim_cannot_be_read_is_neither_found_nor_given_up() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("run");
        fs::write(&directory, "").unwrap();
        let executor = Executor::at(directory.clone());
        // One thread does file work in order: the first look comes before the repair.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (found, claimed) = runtime.block_on(async {
            let repair = run_blocking(move || {
                fs::remove_file(&directory)?;
                fs::create_dir(&directory)?;
                claim(&directory)
            });
            tokio::join!(executor.recover(), repair)
        });
        assert!(claimed.unwrap());
        assert_eq!(found, Found::Lost, "an executor that is gone has claimed it");
    }
}
