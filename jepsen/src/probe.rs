//! What this machine, this user and this server binary can do: tried, not assumed.
//!
//! A class of faults whose means are missing is skipped in sight of everyone (in the run's log, `test.json` and the report),
//! with the reason found here. Probing must leave nothing behind.

use std::env;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    fault::{FaultClass, Means},
    owned::run,
};

/// What a server built with the feature `faults` contains, and no other.
const DISK_FAULTS_MARKER: &[u8] = b"QUORATE_DISK_FAULTS";
/// Where Debian and others keep libfaketime for programs with threads.
const FAKETIME_NAME: &str = "libfaketimeMT.so.1";
const LIBRARY_DIRECTORIES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib64/faketime",
    "/usr/lib/faketime",
    "/usr/local/lib/faketime",
    "/opt/homebrew/lib/faketime",
];

/// Where things are that were named on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// The server binary.
    pub(crate) binary: Option<PathBuf>,
    /// `libfaketimeMT.so.1`, if it is in no usual place.
    pub(crate) faketime: Option<PathBuf>,
    /// Links between servers are packets in namespaces, not proxies.
    pub(crate) namespaces: bool,
}

/// One line of `jepsen probe`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// The means.
    pub(crate) means: Means,
    /// Why it is missing; nothing if it is there.
    pub(crate) missing: Option<String>,
    /// The classes that need it.
    pub(crate) classes: Vec<FaultClass>,
}

/// Tries every means.
pub(crate) fn all(tools: &Tools) -> Vec<Finding> {
    use clap::ValueEnum;
    let classes = |means| {
        let needs = |class: &&FaultClass| class.means().contains(&means);
        FaultClass::value_variants().iter().filter(needs).copied().collect()
    };
    Means::ALL
        .iter()
        .map(|means| Finding {
            means: *means,
            missing: can(*means, tools).err(),
            classes: classes(*means),
        })
        .collect()
}

/// Why a class cannot be injected here, if it cannot.
pub(crate) fn missing(class: FaultClass, tools: &Tools) -> Option<String> {
    class.means().iter().find_map(|means| can(*means, tools).err())
}

/// Whether a means is there; the error is the reason why not, with what would help.
pub(crate) fn can(means: Means, tools: &Tools) -> Result<(), String> {
    match means {
        Means::DiskFaults => disk_faults(tools.binary.as_deref()),
        Means::LoopDisks => {
            root()?;
            for tool in ["mkfs.ext4", "mount", "umount"] {
                found(tool)?;
            }
            try_loop_disk().map_err(|error| format!("{error:#}"))
        }
        Means::Fsfreeze => found("fsfreeze").map(|_| ()),
        Means::Faketime => faketime(tools).map(|_| ()),
        Means::Namespaces => {
            root()?;
            for tool in ["ip", "nsenter"] {
                found(tool)?;
            }
            if found("nft").is_err() && found("iptables").is_err() {
                return Err("neither nft nor iptables is in PATH: install nftables".to_owned());
            }
            try_namespace().map_err(|error| format!("{error:#}"))
        }
        Means::Proxies if tools.namespaces => {
            Err("links are packets with --net namespaces: run it with --net proxy".to_owned())
        }
        Means::Proxies => Ok(()),
    }
}

/// The library for clocks that jump.
pub(crate) fn faketime(tools: &Tools) -> Result<PathBuf, String> {
    if let Some(given) = &tools.faketime {
        let found = given.canonicalize().ok().filter(|path| path.is_file());
        return found
            .ok_or_else(|| format!("--faketime {}: there is no such file", given.display()));
    }
    LIBRARY_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(FAKETIME_NAME))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!("{FAKETIME_NAME} was not found: install libfaketime or name it with --faketime")
        })
}

fn root() -> Result<(), String> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err("it needs root".to_owned()) }
}

/// The path of a program.
pub(crate) fn found(program: &str) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{program} is not in PATH"))
}

fn disk_faults(binary: Option<&Path>) -> Result<(), String> {
    let Some(binary) = binary else {
        return Err("there is no server binary yet: name one with --binary".to_owned());
    };
    match contains(binary, DISK_FAULTS_MARKER) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "{} was built without the feature `faults`: cargo build --bin quorate --features faults{}",
            binary.display(),
            profile_of(binary)
        )),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// What tells cargo to build into the directory that the binary is in, where that shows.
fn profile_of(binary: &Path) -> &'static str {
    let directory = binary.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    match directory {
        Some("release") => " --release",
        Some("sim") => " --profile sim",
        Some(_) | None => "",
    }
}

fn contains(path: &Path, marker: &[u8]) -> Result<bool> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut reader = BufReader::new(file);
    let mut window = Vec::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let count =
            reader.read(&mut chunk).with_context(|| format!("cannot read {}", path.display()))?;
        if count == 0 {
            return Ok(false);
        }
        window.extend_from_slice(&chunk[..count]);
        if window.windows(marker.len()).any(|part| part == marker) {
            return Ok(true);
        }
        let kept = window.len().saturating_sub(marker.len());
        window.drain(..kept);
    }
}

/// Makes, mounts, unmounts and removes a tiny file system; each try, of any thread, has a directory of its own.
fn try_loop_disk() -> Result<()> {
    static TRIES: AtomicU64 = AtomicU64::new(0);
    let number = TRIES.fetch_add(1, Ordering::Relaxed);
    let name = format!("quorate-jepsen-probe-{}-{number}", std::process::id());
    let directory = env::temp_dir().join(name);
    let (image, mount_point) = (directory.join("image"), directory.join("mount"));
    fs::create_dir_all(&mount_point)
        .with_context(|| format!("cannot create {}", mount_point.display()))?;
    let (image_text, mount_text) = (image.to_string_lossy(), mount_point.to_string_lossy());
    let tried = (|| {
        File::create(&image)
            .and_then(|file| file.set_len(8 << 20))
            .with_context(|| format!("cannot create {image_text}"))?;
        run("mkfs.ext4", &["-q", "-F", &image_text])?;
        run("mount", &["-t", "ext4", "-o", "loop", &image_text, &mount_text])?;
        run("umount", &[&mount_text])
    })();
    fs::remove_dir_all(&directory)
        .with_context(|| format!("cannot remove {}", directory.display()))?;
    tried
}

fn try_namespace() -> Result<()> {
    let name = format!("qjp{}", std::process::id());
    run("ip", &["netns", "add", &name])?;
    let within = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{name}"))
        .args(match found("nft") {
            Ok(_) => ["nft", "add", "table", "inet", "quorate_jepsen"].as_slice(),
            Err(_) => ["iptables", "-w", "-S", "INPUT"].as_slice(),
        })
        .stdout(Stdio::null())
        .output();
    run("ip", &["netns", "del", &name])?;
    let output = within.context("cannot run nsenter")?;
    anyhow::ensure!(
        output.status.success(),
        "the packet filter does not work: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_binary_shows_whether_it_has_disk_faults() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let can_fail = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            can(Means::DiskFaults, &Tools { binary: Some(path.clone()), ..Tools::default() })
        };
        assert!(can_fail(b"nothing of the kind").unwrap_err().ends_with("--features faults"));
        // Across the border of two reads.
        let mut long = vec![b'x'; (1 << 20) - 5];
        long.extend_from_slice(DISK_FAULTS_MARKER);
        can_fail(&long).unwrap();
        let none = can(Means::DiskFaults, &Tools::default()).unwrap_err();
        assert!(none.contains("--binary"), "{none}");
    }

    #[test]
    fn a_missing_means_has_a_reason() {
        let nowhere = Tools { faketime: Some("/nowhere".into()), ..Tools::default() };
        let reason = missing(FaultClass::Clock, &nowhere).unwrap();
        assert!(reason.contains("--faketime /nowhere"), "{reason}");
        let packets = Tools { namespaces: true, ..Tools::default() };
        assert!(missing(FaultClass::Delay, &packets).unwrap().contains("--net proxy"));
        assert_eq!(missing(FaultClass::Delay, &Tools::default()), None);
        assert_eq!(missing(FaultClass::Kill, &Tools::default()), None);
        assert!(found("no-such-program-anywhere").is_err());
    }
}
