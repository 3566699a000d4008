//! One run of a task: why it did not start, or how it ended. Drivers and executors report it; the
//! task's machine ([`super::runner`]) decides what follows.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// What caused a run not to start. It decides whether the try counts against the task's restarts,
/// and whether the servers count it against the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The job: its command, user, or configuration.
    Task,
    /// The node: its driver, executor, or directories. The servers count it against the node's
    /// health.
    Node,
    /// The machine is short of a resource. The agent retries for as long as that lasts. It counts
    /// against neither the task nor the node.
    Shortage,
    /// Something that may pass, such as a timeout or a limit of the task's user. A few tries are
    /// free, then it counts against the task. It never counts against the node.
    Passing,
}

impl Fault {
    /// The fault behind an I/O error in the agent's own work on this machine.
    pub(crate) fn of(error: &io::Error) -> Self {
        let shortages = [
            Errno::AGAIN,
            Errno::DQUOT,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::NOSPC,
        ];
        let found = Errno::from_io_error(error);
        // An error without an errno: the file was too large to be read back. That never changes.
        if found.is_none() && error.kind() == io::ErrorKind::FileTooLarge {
            return Self::Task;
        }
        if found.is_some_and(|found| shortages.contains(&found)) {
            return Self::Shortage;
        }
        // Only root may change the owner of files to the user that a job names.
        if found == Some(Errno::PERM) {
            return Self::Task;
        }
        // An error without an errno comes from this program, for example a timeout.
        let kind = error.kind();
        if kind == io::ErrorKind::OutOfMemory {
            Self::Shortage
        } else if matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
            Self::Passing
        } else {
            Self::Node
        }
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ExitResult {
    /// Exit code; 128 + signal when a signal ended it.
    pub(crate) exit_code: i32,
    /// The signal that ended it, or 0.
    pub(crate) signal: i32,
    /// The kernel's out-of-memory killer ended it.
    pub(crate) oom_killed: bool,
    /// Why the exit code is unknown, if it is.
    pub(crate) error: Option<String>,
    /// The executor is gone, so it is unknown how the run ended.
    #[serde(default)]
    pub(crate) lost: bool,
}

impl ExitResult {
    /// Whether the run ended with success.
    pub(crate) fn is_success(&self) -> bool {
        self.exit_code == 0 && self.signal == 0 && self.error.is_none()
    }
}

/// The exit code of a run that a signal ended: 128 + signal. The addition saturates, because a mock
/// task may name any number.
pub(crate) fn code_of_signal(signal: i32) -> i32 {
    signal.saturating_add(128)
}

/// How a run ended, or why it never began.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It ran.
    Exited {
        /// How it ended.
        result: ExitResult,
        /// When, wall clock, ms.
        at_ms: u64,
    },
    /// The run could not be started.
    StartFailed {
        /// Why.
        error: String,
        /// Another try may help.
        recoverable: bool,
        fault: Fault,
    },
}

/// Why a run could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct StartError {
    pub(crate) message: String,
    /// Another try may help.
    pub(crate) recoverable: bool,
    pub(crate) fault: Fault,
}

impl StartError {
    /// An error of the job itself, which another try would not change.
    pub(crate) fn impossible(message: impl Into<String>) -> Self {
        Self { message: message.into(), recoverable: false, fault: Fault::Task }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_machine_have_a_fault() {
        let table = [
            (Errno::IO, Fault::Node),
            (Errno::ROFS, Fault::Node),
            (Errno::ACCESS, Fault::Node),
            (Errno::NOENT, Fault::Node),
            (Errno::MFILE, Fault::Shortage),
            (Errno::NFILE, Fault::Shortage),
            (Errno::AGAIN, Fault::Shortage),
            (Errno::NOMEM, Fault::Shortage),
            (Errno::NOSPC, Fault::Shortage),
            (Errno::PERM, Fault::Task),
        ];
        for (errno, fault) in table {
            assert_eq!(Fault::of(&io::Error::from(errno)), fault, "{errno:?}");
        }
        let late = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(Fault::of(&late), Fault::Passing);
    }
}
