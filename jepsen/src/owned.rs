//! What the harness owns outside its run directory: mounts, frozen file systems, network namespaces, links, agents that servers have started.
//!
//! Every such thing is written into a ledger file *before* it is made and taken out after it is undone. The file outlives the
//! harness: the guard undoes what is left in it when the harness dies, and the next run does so when the guard died too.
//! Nothing that is not in a ledger is ever undone, and a ledger whose harness lives is never touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::machines;

/// Where ledgers are, below the store.
const DIRECTORY: &str = ".owned";
/// How often an unmount is tried: a process that was killed may still be on its way out.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A thing to be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A mounted file system.
    Mount(PathBuf),
    /// A frozen file system.
    Frozen(PathBuf),
    /// A network namespace.
    Namespace(String),
    /// A network link in the root namespace.
    Link(String),
    /// The agents in this record of machines. Undone only when no server lives that could start others.
    Agents(PathBuf),
}

impl Thing {
    fn line(&self) -> String {
        match self {
            Self::Mount(path) => format!("mount {}", path.display()),
            Self::Frozen(path) => format!("frozen {}", path.display()),
            Self::Namespace(name) => format!("namespace {name}"),
            Self::Link(name) => format!("link {name}"),
            Self::Agents(record) => format!("agents {}", record.display()),
        }
    }

    fn parse(line: &str) -> Result<Self> {
        match line.split_once(' ') {
            Some(("mount", path)) => Ok(Self::Mount(path.into())),
            Some(("frozen", path)) => Ok(Self::Frozen(path.into())),
            Some(("namespace", name)) => Ok(Self::Namespace(name.to_owned())),
            Some(("link", name)) => Ok(Self::Link(name.to_owned())),
            Some(("agents", record)) => Ok(Self::Agents(record.into())),
            Some(_) | None => bail!("bad line {line:?} in a ledger"),
        }
    }

    /// Undoes it; no error if it is not there (any more).
    fn undo(&self) -> Result<()> {
        match self {
            Self::Mount(path) => unmount(path),
            Self::Frozen(path) if is_mounted(path)? => {
                // Fails if it is not frozen, which is what we want.
                run("fsfreeze", &["--unfreeze", &path.to_string_lossy()]).ok();
                Ok(())
            }
            Self::Namespace(name) if Path::new("/run/netns").join(name).exists() => {
                run("ip", &["netns", "del", name])
            }
            Self::Link(name) if Path::new("/sys/class/net").join(name).exists() => {
                run("ip", &["link", "del", name])
            }
            Self::Agents(record) => machines::end(record).map(|_| ()),
            Self::Frozen(_) | Self::Namespace(_) | Self::Link(_) => Ok(()),
        }
    }
}

/// The ledger of this process.
pub(crate) struct Ledger {
    path: PathBuf,
    things: Vec<Thing>,
}

impl Ledger {
    /// A new ledger below `store`, after undoing what dead harnesses left there; says what it undid.
    pub(crate) fn open(store: &Path) -> Result<(Self, Vec<String>)> {
        let directory = store.join(DIRECTORY);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let undone = sweep(&directory)?;
        let own = std::process::id();
        let started = start_time(own).context("cannot read our own start time")?;
        let mut path = directory.join(format!("{own}-{started}"));
        for number in 1.. {
            if !path.exists() {
                break;
            }
            path.set_extension(number.to_string());
        }
        let ledger = Self { path, things: Vec::new() };
        ledger.write()?;
        Ok((ledger, undone))
    }

    /// Where it is kept.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes a thing that is about to be made.
    pub(crate) fn add(&mut self, thing: Thing) -> Result<()> {
        self.things.push(thing);
        self.write()
    }

    /// Undoes a thing and forgets it.
    pub(crate) fn undo(&mut self, thing: &Thing) -> Result<()> {
        thing.undo()?;
        self.things.retain(|other| other != thing);
        self.write()
    }

    /// Undoes everything, the newest first.
    pub(crate) fn undo_all(&mut self) -> Result<()> {
        while let Some(thing) = self.things.last().cloned() {
            self.undo(&thing)?;
        }
        Ok(())
    }

    /// Replaces the file in one step, so that a reader never sees half a ledger.
    fn write(&self) -> Result<()> {
        let text: String = self.things.iter().map(|thing| thing.line() + "\n").collect();
        let mut fresh = self.path.clone().into_os_string();
        fresh.push(".new");
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &self.path))
            .with_context(|| format!("cannot write the ledger {}", self.path.display()))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // What cannot be undone stays in the ledger, for the guard and the next run.
        if self.undo_all().is_ok() {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Undoes everything in a ledger file and removes it; returns what it undid. A file that is gone holds nothing.
pub(crate) fn undo_file(path: &Path) -> Result<Vec<String>> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(Vec::new()) };
    let mut undone = Vec::new();
    for line in text.lines().rev() {
        Thing::parse(line)?.undo().with_context(|| format!("cannot undo {line:?}"))?;
        undone.push(line.to_owned());
    }
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(undone)
}

/// Undoes the ledgers whose harness is dead.
fn sweep(directory: &Path) -> Result<Vec<String>> {
    let mut undone = Vec::new();
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((pid, rest)) = name.split_once('-') else { continue };
        let started = rest.split('.').next().unwrap_or_default();
        let lives =
            pid.parse().ok().and_then(start_time).is_some_and(|time| time.to_string() == started);
        if !lives {
            undone.extend(undo_file(&path)?);
        }
    }
    Ok(undone)
}

/// When a process started; tells it from a later one with the same number.
fn start_time(pid: u32) -> Option<u64> {
    Some(launch::Stat::read(pid)?.start_ticks)
}

/// Whether something is mounted exactly there.
pub(crate) fn is_mounted(path: &Path) -> Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?;
    let wanted = path.to_string_lossy().replace(' ', "\\040");
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(&wanted)))
}

fn unmount(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    for attempt in 1..=TRIES {
        if !is_mounted(path)? {
            return Ok(());
        }
        match run("umount", &[&text]) {
            Ok(()) => {}
            Err(error) if attempt == TRIES => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    }
    bail!("{text} is mounted again and again")
}

/// Runs a tool to its end; what it said on standard error is in the error.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {} ({})", arguments.join(" "), said.trim(), output.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn things_read_back_and_bad_lines_are_refused() {
        for thing in [
            Thing::Mount("/a b/c".into()),
            Thing::Frozen("/x".into()),
            Thing::Namespace("n1".to_owned()),
            Thing::Link("br".to_owned()),
            Thing::Agents("/x/machines.log".into()),
        ] {
            assert_eq!(Thing::parse(&thing.line()).unwrap(), thing);
        }
        assert!(Thing::parse("everything /").is_err());
        assert!(Thing::parse("mount").is_err());
    }

    #[test]
    fn ledgers_of_the_dead_are_undone_and_those_of_the_living_are_not() {
        let store = tempfile::tempdir().unwrap();
        let (mut ledger, undone) = Ledger::open(store.path()).unwrap();
        assert_eq!(undone, Vec::<String>::new());
        let gone = store.path().join("gone");
        ledger.add(Thing::Mount(gone.clone())).unwrap();
        // A dead one: our own number with another start time.
        let dead = ledger.path().with_file_name(format!("{}-1", std::process::id()));
        fs::copy(ledger.path(), &dead).unwrap();
        let (second, undone) = Ledger::open(store.path()).unwrap();
        assert_eq!(undone, [format!("mount {}", gone.display())]);
        assert!(!dead.exists());
        assert!(ledger.path().exists() && second.path() != ledger.path());
        ledger.undo(&Thing::Mount(gone)).unwrap();
        let path = ledger.path().to_owned();
        drop(ledger);
        assert!(!path.exists());
    }

    #[test]
    fn mounts_are_recognised() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self")).unwrap());
    }
}
