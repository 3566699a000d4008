//! Panics and process exit. A panic ends the process with a marker, because a replica that broke an invariant must stop, except inside
//! [`contained`], which wraps one scheduling turn and nothing else.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Exit code of a process that broke an invariant.
const INVARIANT_EXIT: i32 = 70;

/// Makes every panic outside [`contained`] end the process. Only `main` calls this.
pub fn install_panic_hook() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default(info);
        if !CONTAINED.get() {
            tracing::error!("QUORATE-INVARIANT: panic, this process ends");
            exit_now(INVARIANT_EXIT);
        }
    }));
}

/// Runs one scheduling turn; a panic in it becomes its message.
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

    /// NW-08: the panic of one turn is an error of that turn.
    #[test]
    fn a_contained_panic_is_an_error() {
        assert_eq!(contained(|| 7), Ok(7));
        let error = contained(|| -> u8 { panic!("no nodes in {}", "dc1") });
        assert_eq!(error, Err("panic: no nodes in dc1".to_owned()));
        assert_eq!(contained(|| 8), Ok(8));
    }
}
