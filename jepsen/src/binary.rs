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

use crate::{probe::found, report::note, system::System};

/// The user asked for something impossible; exit code 254.
#[derive(Debug)]
pub(crate) struct BadArguments(pub(crate) String);

/// The run cannot take place on this machine; exit code 2.
#[derive(Debug)]
pub(crate) struct SkippedRun(pub(crate) String);

impl std::fmt::Display for SkippedRun {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "skipped: {}", self.0)
    }
}

impl std::error::Error for SkippedRun {}

impl std::fmt::Display for BadArguments {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BadArguments {}

/// What a server binary has to be able to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Contain deliberate bugs (feature `plant`).
    pub(crate) plant: bool,
    /// Have a disk that can be told to fail (feature `faults`).
    pub(crate) faults: bool,
}

impl Needs {
    fn features(self) -> Vec<&'static str> {
        let plant = self.plant.then_some("plant");
        plant.into_iter().chain(self.faults.then_some("faults")).collect()
    }
}

/// The binary to test. One with features is copied below `store`, because cargo builds it in the
/// place of the ordinary one.
pub(crate) fn locate(
    system: System,
    given: Option<&Path>,
    needs: Needs,
    store: &Path,
) -> Result<PathBuf> {
    if let Some(given) = given {
        let found = given.canonicalize().ok().filter(|path| path.is_file());
        return found.ok_or_else(|| {
            BadArguments(format!("--binary {}: there is no such file", given.display())).into()
        });
    }
    match system {
        System::Quorate => locate_own(needs, store),
        System::Etcd => Ok(found(system.binary()).map_err(|error| {
            SkippedRun(format!("{error}: install etcd-server, or name it with --binary"))
        })?),
    }
}

fn locate_own(needs: Needs, store: &Path) -> Result<PathBuf> {
    let own = env::current_exe().context("cannot find the harness's own executable")?;
    let directory = own.parent().context("the harness's executable has no directory")?;
    let binary = directory.join("quorate");
    let features = needs.features();
    match env::var_os("CARGO") {
        Some(cargo) => build(&cargo, directory, &features)?,
        None if needs.plant => {
            return Err(BadArguments(
                "planted bugs need a server built with `cargo build --bin quorate --features \
                 plant`: give it with --binary, or run the harness with `cargo run -p jepsen`"
                    .to_owned(),
            )
            .into());
        }
        // Without the feature `faults` the classes that need it are never installed: the run is unknown, and its report says what to build.
        None if binary.is_file() => return Ok(binary),
        None => {
            return Err(BadArguments(format!(
                "there is no server binary {}: build it with `cargo build --bin quorate`, or give \
                 one with --binary",
                binary.display()
            ))
            .into());
        }
    }
    if features.is_empty() {
        return Ok(binary);
    }
    let place = store.join("binaries");
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let copy = place.join(format!("quorate-{}", features.join("-")));
    // Written under another name first: a running copy cannot be overwritten, but it can be replaced.
    let fresh = place.join(format!("quorate-{}", std::process::id()));
    fs::copy(&binary, &fresh)
        .and_then(|_| fs::rename(&fresh, &copy))
        .with_context(|| format!("cannot copy the server binary to {}", copy.display()))?;
    copy.canonicalize().with_context(|| format!("cannot resolve {}", copy.display()))
}

/// Builds into the directory the harness itself runs from: `<target>/<profile>`.
fn build(cargo: &OsString, directory: &Path, features: &[&str]) -> Result<()> {
    let target = directory.parent().context("the build directory has no parent")?;
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let mut command = Command::new(cargo);
    // Of the whole workspace, as `cargo test` and `cargo run` build it: for one package alone cargo builds most dependencies once more, with fewer features.
    command
        .args(["build", "--workspace", "--bin", "quorate", "--profile", profile])
        .arg("--target-dir")
        .arg(target);
    if let Some(manifest) = env::var_os("CARGO_MANIFEST_DIR") {
        // Cargo sets it to this package's directory; the workspace is one above.
        command.arg("--manifest-path").arg(Path::new(&manifest).join("../Cargo.toml"));
    }
    if !features.is_empty() {
        let features: Vec<_> = features.iter().map(|one| format!("quorate/{one}")).collect();
        command.args(["--features", &features.join(",")]);
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
        let locate = |path: &Path| {
            super::locate(System::Quorate, Some(path), Needs::default(), store.path())
        };
        let error = locate(&missing).unwrap_err();
        assert!(error.downcast_ref::<BadArguments>().unwrap().0.contains("no such file"));
        assert!(locate(store.path()).is_err(), "a directory is no binary");
        fs::write(&missing, "x").unwrap();
        let found = locate(&missing).unwrap();
        assert_eq!(found, missing.canonicalize().unwrap());
    }
}
