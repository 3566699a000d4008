//! The process of a program, alone in its process group, and its end: SIGTERM, some time, SIGKILL.
//!
//! Invariant: no signal is sent after the process was waited for, so that none reaches a stranger
//! with its number.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use ground::rt;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::provider::without_settings;

/// How long a program may take to end after SIGTERM.
const END_GRACE: Duration = Duration::from_secs(3);
/// How long a program that has closed its standard output may take to exit by itself.
const EXIT_GRACE: Duration = Duration::from_millis(200);
/// Between two looks at whether it has exited.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// Between two looks while it works: its standard output says the same sooner, unless something
/// else holds that open.
const SLOW_LOOK_PAUSE: Duration = Duration::from_secs(1);

/// A program that runs, or has exited and was not waited for yet. Dropping it ends it, and takes as
/// long as that takes.
pub(super) struct OwnChild {
    child: Child,
    pid: Pid,
    is_reaped: bool,
}

/// How a program ended.
pub(super) struct Ending {
    pub(super) status: Option<ExitStatus>,
    /// It went on after SIGTERM.
    pub(super) was_killed: bool,
}

impl OwnChild {
    /// Starts a program with pipes at its standard input and output.
    pub(super) fn start(command: &[String], stderr: Stdio) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
        };
        let child = without_settings(&mut Command::new(program))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, is_reaped: false })
    }

    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Ends the program and whatever is left in its process group. `by_itself`: it may be about to
    /// exit.
    pub(super) async fn end(mut self, by_itself: bool) -> Ending {
        if by_itself {
            self.exits_within(EXIT_GRACE).await;
        }
        self.signal(Signal::TERM);
        let was_killed = !self.exits_within(END_GRACE).await;
        Ending { status: self.kill(), was_killed }
    }

    /// Waits until the program has exited.
    pub(super) async fn exited(&self) {
        while !self.has_exited() {
            rt::sleep(SLOW_LOOK_PAUSE).await;
        }
    }

    async fn exits_within(&self, limit: Duration) -> bool {
        let wait = async {
            while !self.has_exited() {
                rt::sleep(LOOK_PAUSE).await;
            }
        };
        rt::timeout(limit, wait).await.is_ok()
    }

    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    fn signal(&self, signal: Signal) {
        // The group may be gone, which is what was wanted.
        kill_process_group(self.pid, signal).ok();
    }

    fn kill(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        self.is_reaped = true;
        self.child.wait().ok()
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        if self.is_reaped {
            return;
        }
        self.signal(Signal::TERM);
        let mut waited = Duration::ZERO;
        while !self.has_exited() && waited < END_GRACE {
            std::thread::sleep(LOOK_PAUSE);
            waited += LOOK_PAUSE;
        }
        self.kill();
    }
}
