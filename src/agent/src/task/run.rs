//! One run of a task: why it did not start, how it ended. Said by drivers and executors, judged by
//! the task's machine.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Whose fault it is that a run did not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// What the job asks for: its command, user, or configuration.
    Task,
    /// The node's own: driver, executor, directories. The servers judge the node by it.
    Node,
    /// The machine is short of something: it is waited for, however long that takes, and nobody is
    /// judged.
    Shortage,
    /// Something that may pass, such as a timeout or a limit of the task's user: a few more tries
    /// before it counts, and the node is not judged.
    Passing,
}

impl Fault {
    /// That of an error of the agent's own work on this machine.
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
        // Without a number: it could not be read back, and never will be.
        if found.is_none() && error.kind() == io::ErrorKind::FileTooLarge {
            return Self::Task;
        }
        if found.is_some_and(|found| shortages.contains(&found)) {
            return Self::Shortage;
        }
        // Only root gives files to the user whom a job names.
        if found == Some(Errno::PERM) {
            return Self::Task;
        }
        // Without a number: made in this program, as a timeout is.
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
    /// The kernel killed it for want of memory.
    pub(crate) oom_killed: bool,
    /// When the exit code is not known: why.
    pub(crate) error: Option<String>,
    /// The executor is gone, and with it how the run ended.
    #[serde(default)]
    pub(crate) lost: bool,
}

impl ExitResult {
    /// It ended well.
    pub(crate) fn is_success(&self) -> bool {
        self.exit_code == 0 && self.signal == 0 && self.error.is_none()
    }
}

/// The exit code of a run that this signal ended. A mock task names any number.
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
    /// It could not be started.
    StartFailed {
        /// Why.
        error: String,
        /// Another try may help.
        recoverable: bool,
        fault: Fault,
    },
}

/// It could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct StartError {
    pub(crate) message: String,
    /// Another try may help.
    pub(crate) recoverable: bool,
    pub(crate) fault: Fault,
}

impl StartError {
    /// Another try does not help.
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
