//! Finding the server binary, and building it when the harness runs under cargo.
//!
//! Under `cargo run` the binary is always (re)built first, so that a stale one is never tested by mistake;
//! elsewhere it must exist already.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::report::note;

/// The user asked for something impossible; exit code 254.
#[derive(Debug)]
pub(crate) struct BadArguments(pub(crate) String);

impl std::fmt::Display for BadArguments {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BadArguments {}

/// The binary to test. One with deliberate bugs is copied below `store`, because cargo builds it in the
/// place of the ordinary one.
pub(crate) fn locate(given: Option<&Path>, plant: bool, store: &Path) -> Result<PathBuf> {
    if let Some(given) = given {
        let found = given.canonicalize().ok().filter(|path| path.is_file());
        return found.ok_or_else(|| {
            BadArguments(format!("--binary {}: there is no such file", given.display())).into()
        });
    }
    let own = env::current_exe().context("cannot find the harness's own executable")?;
    let directory = own.parent().context("the harness's executable has no directory")?;
    let binary = directory.join("quorate");
    match env::var_os("CARGO") {
        Some(cargo) => build(&cargo, directory, plant)?,
        None if binary.is_file() && !plant => return Ok(binary),
        None if plant => {
            return Err(BadArguments(
                "planted bugs need a server built with `cargo build --bin quorate --features \
                 plant`: give it with --binary, or run the harness with `cargo run -p jepsen`"
                    .to_owned(),
            )
            .into());
        }
        None => {
            return Err(BadArguments(format!(
                "there is no server binary {}: build it with `cargo build --bin quorate`, or give \
                 one with --binary",
                binary.display()
            ))
            .into());
        }
    }
    if !plant {
        return Ok(binary);
    }
    let place = store.join("planted");
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let copy = place.join("quorate");
    // Written under another name first: a running copy cannot be overwritten, but it can be replaced.
    let fresh = place.join(format!("quorate-{}", std::process::id()));
    fs::copy(&binary, &fresh)
        .and_then(|_| fs::rename(&fresh, &copy))
        .with_context(|| format!("cannot copy the server binary to {}", copy.display()))?;
    copy.canonicalize().with_context(|| format!("cannot resolve {}", copy.display()))
}

/// Builds into the directory the harness itself runs from: `<target>/<profile>`.
fn build(cargo: &OsString, directory: &Path, plant: bool) -> Result<()> {
    let target = directory.parent().context("the build directory has no parent")?;
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let mut command = Command::new(cargo);
    command
        .args(["build", "--package", "quorate", "--bin", "quorate", "--profile", profile])
        .arg("--target-dir")
        .arg(target);
    if let Some(manifest) = env::var_os("CARGO_MANIFEST_DIR") {
        // Cargo sets it to this package's directory; the workspace is one above.
        command.arg("--manifest-path").arg(Path::new(&manifest).join("../Cargo.toml"));
    }
    if plant {
        command.args(["--features", "plant"]);
    }
    note("building the server binary");
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("building the server binary failed: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_given_binary_must_exist() {
        let store = tempfile::tempdir().unwrap();
        let missing = store.path().join("none");
        let error = locate(Some(&missing), false, store.path()).unwrap_err();
        assert!(error.downcast_ref::<BadArguments>().unwrap().0.contains("no such file"));
        assert!(
            locate(Some(store.path()), false, store.path()).is_err(),
            "a directory is no binary"
        );
        fs::write(&missing, "x").unwrap();
        let found = locate(Some(&missing), true, store.path()).unwrap();
        assert_eq!(found, missing.canonicalize().unwrap());
    }
}
