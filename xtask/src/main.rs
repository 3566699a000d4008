//! `cargo xtask`: chores of the repository as plain Rust, so that it polices itself with cargo alone.
//!
//! Owns the command line of the chores. Must never change a file: `tidy` reads and reports.

mod arrows;
mod comments;
mod tidy;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

const USAGE: &str = "\
Usage: cargo xtask <CHORE>

Chores:
  tidy                       Check the rules of docs/style.md that a compiler does not know;
                             the same checks run with `cargo test -p xtask`
  comments SEED PACKAGE...   Print ten comments of each package (folders of src, such as
                             `scheduler agent http`), drawn by the seed, for somebody who has
                             not seen the files to say what they mean";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["tidy"] => tidy(),
        ["comments", seed, packages @ ..] if !packages.is_empty() => comments(seed, packages),
        ["-h" | "--help" | "help"] => usage(ExitCode::SUCCESS),
        [] => usage(ExitCode::FAILURE),
        [chore @ ("tidy" | "comments"), ..] => {
            anyhow::bail!("`{chore}` takes other arguments\n\n{USAGE}")
        }
        [unknown, ..] => anyhow::bail!("unknown chore `{unknown}`\n\n{USAGE}"),
    }
}

fn usage(code: ExitCode) -> anyhow::Result<ExitCode> {
    writeln!(std::io::stdout(), "{USAGE}")?;
    Ok(code)
}

fn comments(seed: &str, packages: &[&str]) -> anyhow::Result<ExitCode> {
    let seed = seed.parse().with_context(|| format!("the seed is a number, not `{seed}`"))?;
    let repository = tidy::Repository::read(&root())?;
    for package in packages {
        let drawn = comments::draw(&repository, package, seed, comments::DRAWN)?;
        write!(std::io::stdout(), "{drawn}")?;
    }
    Ok(ExitCode::SUCCESS)
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
