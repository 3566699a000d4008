//! Panics and process exit. A panic ends the process with a marker, because a replica that broke an
//! invariant must stop, except inside [`contained`], which wraps one scheduling turn of a server or
//! one allocation of an agent and nothing else.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use crate::open_files;

static WANTED_MEMORY: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Exit code of a process that broke an invariant.
const INVARIANT_EXIT: i32 = 70;
/// What to do when there is no memory.
pub const MEMORY_REMEDY: &str =
    "free some, or raise the limit (ulimit -v, and those of its unit or container)";
/// Exit code of a process that gets no thread or no memory (`EX_OSERR` of `sysexits`).
const SHORTAGE_EXIT: i32 = 71;

/// Makes every panic outside [`contained`] end the process. Only `main` calls this.
pub fn install_panic_hook() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if CONTAINED.get() {
            default(info);
            return;
        }
        if info.payload_as_str().is_some_and(is_want_of_threads) {
            tracing::error!("{}", open_files::NO_THREADS);
            exit_now(SHORTAGE_EXIT);
        }
        default(info);
        if WANTED_MEMORY.load(Ordering::Relaxed) {
            tracing::error!("there is no memory: {MEMORY_REMEDY}");
            exit_now(SHORTAGE_EXIT);
        }
        tracing::error!("QUORATE-INVARIANT: panic, this process ends");
        exit_now(INVARIANT_EXIT);
    }));
}

/// Whether a panic of the runtime or the standard library is for want of threads: of the machine
/// then, and of no invariant.
fn is_want_of_threads(text: &str) -> bool {
    text.starts_with("OS can't spawn worker thread")
        || text.starts_with("failed to spawn thread")
        // A library that takes a thread's start for granted.
        || text.contains("Os { code: 11,")
}

/// An error with what is short, if a thread could not be started (`EAGAIN`).
pub fn explained(error: anyhow::Error) -> anyhow::Error {
    let is_refused = format!("{error:#}").contains("(os error 11)");
    if is_refused { error.context(open_files::NO_THREADS) } else { error }
}

/// A call for memory was refused: a panic that follows is for want of it.
pub fn note_want_of_memory() {
    WANTED_MEMORY.store(true, Ordering::Relaxed);
}

/// Runs one turn; a panic in it becomes its message.
pub fn contained<T>(turn: impl FnOnce() -> T) -> Result<T, String> {
    CONTAINED.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(turn));
    CONTAINED.set(false);
    result.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        format!("panic: {}", text.unwrap_or_else(|| "no message".to_owned()))
    })
}

/// Runs what can fail alone, one allocation of an agent, to its end; a panic in it becomes its
/// message.
pub async fn contained_task<T>(task: impl Future<Output = T>) -> Result<T, String> {
    let mut task = Box::pin(task);
    std::future::poll_fn(|context| match contained(|| task.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

#[expect(clippy::exit, reason = "the one place from which a process ends early")]
fn exit_now(code: i32) -> ! {
    std::process::exit(code)
}

/// The exit code of a server that cannot go on.
pub fn failure() -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_start_is_explained() {
        let refused = std::io::Error::from_raw_os_error(11);
        let shown = format!("{:#}", explained(anyhow::Error::new(refused).context("the state")));
        assert!(shown.contains("ulimit -u") && shown.contains("the state"), "{shown}");
        let other = format!("{:#}", explained(anyhow::anyhow!("the port is in use")));
        assert_eq!(other, "the port is in use");
        let text = "called `Result::unwrap()` on an `Err` value: Os { code: 11, kind: WouldBlock }";
        assert!(is_want_of_threads(text));
    }

    /// NW-08: the panic of one turn is an error of that turn.
    #[test]
    fn a_contained_panic_is_an_error() {
        assert_eq!(contained(|| 7), Ok(7));
        let error = contained(|| -> u8 { panic!("no nodes in {}", "dc1") });
        assert_eq!(error, Err("panic: no nodes in dc1".to_owned()));
        assert_eq!(contained(|| 8), Ok(8));
    }
}
