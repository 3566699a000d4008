//! `cargo xtask`: chores of the repository as plain Rust, so that it polices itself with cargo alone.
//!
//! Owns the command line of the chores. Must never change a file: `tidy` reads and reports.

mod arrows;
mod tidy;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "\
Usage: cargo xtask <CHORE>

Chores:
  tidy    Check the rules of docs/style.md that a compiler does not know; the same checks run with `cargo test -p xtask`";

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next();
    if let Some(unknown) = arguments.next() {
        anyhow::bail!("unexpected argument `{unknown}`\n\n{USAGE}");
    }
    match chore.as_deref() {
        Some("tidy") => tidy(),
        Some("-h" | "--help" | "help") | None => {
            writeln!(std::io::stdout(), "{USAGE}")?;
            Ok(if chore.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(unknown) => anyhow::bail!("unknown chore `{unknown}`\n\n{USAGE}"),
    }
}

/// The repository's root: the parent of this package.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("xtask is a folder of the repository").to_path_buf()
}

fn tidy() -> anyhow::Result<ExitCode> {
    let repository = tidy::Repository::read(&root())?;
    let mut output = std::io::stdout().lock();
    for warning in repository.warnings() {
        writeln!(output, "warning: {warning}")?;
    }
    let mut failures = 0_usize;
    for (name, check) in tidy::CHECKS {
        for failure in check(&repository) {
            failures += 1;
            writeln!(output, "error: {name}: {failure}")?;
        }
    }
    let files = repository.files.len();
    if failures == 0 {
        writeln!(output, "tidy: {files} files, {} checks, nothing to say", tidy::CHECKS.len())?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(output, "tidy: {failures} error(s) in {files} files")?;
    Ok(ExitCode::FAILURE)
}
