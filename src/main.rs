//! Entry point of the `quorate` binary: everything is in [`quorate::cli`].

use std::process::ExitCode;

/// Applying entries and writing the state to disk is mostly allocation (docs/adr/0006).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    quorate::cli::entry::main()
}
