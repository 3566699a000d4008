//! `quorate executor`: the process between the agent and one run of a task. It owns the run's log
//! pipes, passes on signals, enforces the kill timeout, kills the processes that the task leaves
//! behind, and records how the run ended. It outlives the agent: it has its own session, and shares
//! no pipe and no parent with the agent.
//!
//! ```text
//!  agent ──spawns──► executor launch DIR ──spawns──► executor run DIR ──spawns──► task (own process group)
//!                    (own process group;             (own session, reaper of orphaned descendants;
//!                     binds the socket; exits)         claim, executor.json, exit.json, control.sock in DIR)
//! ```
//!
//! Invariants:
//!
//! - Whoever creates the file `claim` decides about the run: the executor before it starts
//!   anything, or an agent that gives the run up.
//! - The executor writes `executor.json`, which says which process it is, before it starts the
//!   task.
//! - `exit.json` is on disk before anybody is told of the end, and the executor exits only after
//!   that. If the disk is full, it reports the end first and tries to write the file for a minute.

pub(crate) mod client;
mod control;
mod logs;
pub mod process;
mod supervise;
pub(crate) mod survivors;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{fs::OpenOptionsExt, net::UnixListener, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use serde::{Deserialize, Serialize};

pub use logs::indexes as log_indexes;

use crate::{
    machine::files,
    task::run::{Fault, Outcome},
};

/// Written by the agent: what to run.
pub(crate) const SPEC_FILE: &str = "spec.json";
/// Created by whoever decides whether the run happens.
pub(crate) const CLAIM_FILE: &str = "claim";
/// Written by the executor: who it is.
pub(crate) const EXECUTOR_FILE: &str = "executor.json";
/// Written by the executor: how the run ended.
pub(crate) const EXIT_FILE: &str = "exit.json";
/// Where the executor listens.
pub(crate) const SOCKET_FILE: &str = "control.sock";
/// What the executor itself has to say.
pub(crate) const LOG_FILE: &str = "executor.log";

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunSpec {
    /// Program: a path, or a name looked up in the `PATH` of `env`.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: std::collections::BTreeMap<String, String>,
    /// Its working directory.
    pub directory: PathBuf,
    /// User to run as; empty: the executor's.
    pub user: String,
    /// Directory of the log files.
    pub logs_directory: PathBuf,
    /// Log files are called `<log_name>.stdout.<n>` and `<log_name>.stderr.<n>`.
    pub log_name: String,
    /// Log files kept of each kind; 0: output is not kept.
    pub log_files_max: u32,
    /// Size at which a log file is full, bytes.
    pub log_file_bytes_max: u64,
    /// Files that the task may have open (soft limit); none: as the executor.
    #[serde(default)]
    pub open_files: Option<u64>,
}

/// Who an executor is: a process id alone may have been given to another process since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExecutorIdentity {
    pub pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) boot_id: [u8; 16],
}

/// Exit code of a launcher that failed by a shortage of the machine (`EX_TEMPFAIL` of `sysexits`).
const SHORTAGE_EXIT: u8 = 75;

/// `quorate executor (launch|run) DIRECTORY`: called by the agent, not by people.
pub fn main(args: &[String]) -> ExitCode {
    let outcome = match args {
        [mode, directory] if mode == "launch" => launch(Path::new(directory)),
        [mode, directory] if mode == "run" => run(Path::new(directory)),
        _ => Err(io::Error::other("usage: quorate executor (launch|run) DIRECTORY")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            if matches!(Fault::of(&error), Fault::Shortage | Fault::Passing) {
                ExitCode::from(SHORTAGE_EXIT)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Binds the socket, starts the real executor and exits, so that the executor has no parent that
/// waits for it. The executor inherits the socket as its standard input. So the agent can connect
/// at once, even before the executor is ready.
fn launch(directory: &Path) -> io::Result<()> {
    std::env::set_current_dir(directory)?;
    // The path of a socket is at most 107 bytes long, hence the relative one.
    match fs::remove_file(SOCKET_FILE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(SOCKET_FILE)?;
    let log: File = OpenOptions::new().create(true).append(true).mode(0o600).open(LOG_FILE)?;
    let executor = Command::new(own_binary()?)
        .arg0("quorate-executor")
        .args(["executor", "run"])
        // The executor is found by it when its files are gone.
        .arg(std::env::current_dir()?)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    // The agent learns it from here: a task can remove the file as soon as it runs.
    let pid = i32::try_from(executor.id()).map_err(io::Error::other)?;
    let identity = process::identity_of(pid)?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&identity)?)
}

fn run(directory: &Path) -> io::Result<()> {
    std::env::set_current_dir(directory)?;
    if !claim(Path::new("."))? {
        return Ok(());
    }
    rustix::process::setsid()?;
    // Orphaned descendants become children of this process, so that none escapes it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let own = process::own_identity()?;
    files::write_json(Path::new("./executor.json"), &own)?;
    match begin() {
        Ok((spec, runtime)) => runtime.block_on(supervise::supervise(spec)),
        Err(error) => {
            // The agent would take an executor that ends without a word for one that was killed.
            let fault = Fault::of(&error);
            let failed =
                Outcome::StartFailed { error: error.to_string(), recoverable: true, fault };
            files::write_json(Path::new("./exit.json"), &failed)?;
            Err(error)
        }
    }
}

/// What a run needs before its task is started.
fn begin() -> io::Result<(RunSpec, tokio::runtime::Runtime)> {
    let spec = files::read_json::<RunSpec>(Path::new(SPEC_FILE))?
        .ok_or_else(|| io::Error::other("there is no spec.json"))?;
    Ok((spec, tokio::runtime::Builder::new_current_thread().enable_all().build()?))
}

/// Takes the decision over a run: true for exactly one caller.
pub(crate) fn claim(directory: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).create_new(true).open(directory.join(CLAIM_FILE));
    match file {
        Ok(_) => File::open(directory)?.sync_all().map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// This process's binary, also after it was replaced on disk by an upgrade.
pub(crate) fn own_binary() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    if path.exists() {
        return Ok(path);
    }
    let replaced =
        path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("/proc/self/exe")))
}

/// The executor's standard error is its log file; a full disk is no reason to end.
fn complain(error: &io::Error) {
    if writeln!(io::stderr(), "executor: {error}").is_err() {
        // There is nobody left to tell.
    }
}
