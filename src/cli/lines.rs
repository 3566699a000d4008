//! Lines about what happens, for commands that follow something to its end.

use super::context::Context;
use super::time;

/// Lines about what happens, each with its time.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) context: &'a Context,
    /// Prints nothing.
    pub(crate) silent: bool,
}

impl Lines<'_> {
    /// What begins or ends.
    pub(crate) fn heading(self, text: &str) -> anyhow::Result<()> {
        self.print("==>", text)
    }

    /// What happens in between.
    pub(crate) fn detail(self, text: &str) -> anyhow::Result<()> {
        self.print("   ", text)
    }

    fn print(self, mark: &str, text: &str) -> anyhow::Result<()> {
        if self.silent {
            return Ok(());
        }
        let at = time::timestamp(self.context.now_nanoseconds());
        self.context.line(format!("{mark} {at}: {text}"))
    }
}
