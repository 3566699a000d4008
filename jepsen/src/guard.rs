//! The guard: a second process that kills the servers if the harness dies.
//!
//! The harness tells it, line by line, which processes exist (`watch PID`) and which it has reaped
//! (`forget PID`). When the pipe closes, for whatever reason (exit, panic, Ctrl-C, SIGKILL), the guard kills
//! what is left, undoes what is left in the harness's ledger (`ledger PATH`, see [`crate::owned`]), and ends. It runs in its own process group, so Ctrl-C in a terminal does not reach it. It holds
//! a pidfd per process: a number that the kernel gave to someone else is never signalled.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::owned;

/// The hidden subcommand that runs [`serve`].
pub(crate) const SUBCOMMAND: &str = "guard";

/// A running guard process; ends when dropped.
pub(crate) struct Guard {
    process: Child,
    /// `Some` until the guard is dropped.
    orders: Option<ChildStdin>,
}

impl Guard {
    /// Starts a guard from the harness's own executable.
    pub(crate) fn start(executable: &Path) -> Result<Self> {
        let mut process = Command::new(executable)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start the guard {}", executable.display()))?;
        let orders = process.stdin.take();
        Ok(Self { process, orders })
    }

    /// Has this process killed if the harness dies.
    pub(crate) fn watch(&mut self, pid: u32) -> Result<()> {
        self.order("watch", pid)
    }

    /// Takes back [`Guard::watch`]; must be called once the process was reaped.
    pub(crate) fn forget(&mut self, pid: u32) -> Result<()> {
        self.order("forget", pid)
    }

    /// Has everything in this ledger undone if the harness dies.
    pub(crate) fn keep(&mut self, ledger: &Path) -> Result<()> {
        self.order("ledger", ledger.display())
    }

    fn order(&mut self, verb: &str, object: impl Display) -> Result<()> {
        let orders = self.orders.as_mut().context("the guard has no pipe")?;
        orders
            .write_all(format!("{verb} {object}\n").as_bytes())
            .context("the guard process is gone; servers would outlive the harness")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.orders = None;
        // The guard ends by itself once its pipe is closed.
        self.process.wait().ok();
    }
}

/// What the guard was told to care for.
#[derive(Default)]
struct Care {
    watched: BTreeMap<i32, OwnedFd>,
    ledger: Option<PathBuf>,
}

/// The guard's own main loop.
pub(crate) fn serve(orders: impl BufRead) -> Result<()> {
    let mut care = Care::default();
    let outcome = orders
        .lines()
        .map(|line| line.context("cannot read orders"))
        .try_for_each(|line| care.obey(&line?));
    for process in care.watched.values() {
        // Fails only if the process ended by itself.
        pidfd_send_signal(process, Signal::KILL).ok();
    }
    // A harness that ended well has removed its ledger. Unmounting is tried until the killed processes are gone.
    let undone = care.ledger.map_or(Ok(Vec::new()), |ledger| owned::undo_file(&ledger));
    outcome.and(undone.map(|_| ()))
}

impl Care {
    fn obey(&mut self, line: &str) -> Result<()> {
        let number =
            |text: &str| text.parse::<i32>().with_context(|| format!("bad order {line:?}"));
        match line.split_once(' ') {
            Some(("watch", pid)) => {
                let number = number(pid)?;
                let pid = Pid::from_raw(number).with_context(|| format!("bad order {line:?}"))?;
                // If it cannot be opened it ended before we came to it.
                if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
                    self.watched.insert(number, process);
                }
            }
            Some(("forget", pid)) => {
                self.watched.remove(&number(pid)?);
            }
            Some(("ledger", path)) => self.ledger = Some(path.into()),
            Some(_) | None => bail!("bad order {line:?}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn kills_what_is_watched_and_spares_what_is_forgotten() {
        let (mut doomed, mut spared) = (sleeper(), sleeper());
        let orders =
            format!("watch {}\nwatch {}\nforget {}\n", doomed.id(), spared.id(), spared.id());
        serve(orders.as_bytes()).unwrap();
        assert_eq!(doomed.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(spared.try_wait().unwrap().is_none());
        spared.kill().unwrap();
        spared.wait().unwrap();
    }

    #[test]
    fn kills_even_when_an_order_is_bad() {
        let mut doomed = sleeper();
        let orders = format!("watch {}\nwatch me\n", doomed.id());
        let error = serve(orders.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("bad order \"watch me\""), "{error}");
        assert_eq!(doomed.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn the_ledger_of_a_dead_harness_is_undone() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger");
        std::fs::write(&ledger, "mount /nowhere/at/all\n").unwrap();
        serve(format!("ledger {}\n", ledger.display()).as_bytes()).unwrap();
        assert!(!ledger.exists());
        serve(format!("ledger {}\n", ledger.display()).as_bytes()).unwrap();
    }
}
