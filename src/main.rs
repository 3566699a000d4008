//! Entry point of the `quorate` binary: everything is in [`quorate::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    quorate::cli::entry::main()
}
