//! The folder of the machines of one host, and the folder of each in it.
//!
//! ```text
//!  <directory>/scope             a link to nowhere, whose text names the directory
//!              ports/<n>         a link to nowhere, whose text is the instance that has this range of ports
//!              destroyed/<id>    that instance was destroyed: never make it again
//!              <id>/machine.json agent.toml process.json agent.log data/
//! ```
//! A machine's folder is locked while it is made, changed or removed. A lock counts only if the
//! folder still has its name: whoever waited for the lock of a removed folder starts over. The lock
//! goes with the process that holds it, and a child holds it until it runs the agent's program:
//! whoever has the lock sees every agent that was started under it.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fsm::InstanceId;
use ground::{
    removal::remove_tree,
    rt::{self, Instant},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::io_error;

/// The agent's configuration.
pub(super) const AGENT_CONFIG: &str = "agent.toml";
/// What the agent prints.
pub(super) const AGENT_LOG: &str = "agent.log";
const MACHINE_FILE: &str = "machine.json";
const PROCESS_FILE: &str = "process.json";
/// How long a destroyed instance is remembered, and the folder of a dead one kept.
const KEPT: Duration = Duration::from_hours(24);
/// Ranges of ports, and so machines of one directory.
pub(super) const PORT_RANGES: u16 = 100;
/// Between two tries for a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A machine as its provider remembers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct MachineFile {
    /// Where it was made.
    pub(super) scope: String,
    pub(super) tags: BTreeMap<String, String>,
}

/// Who its agent is: a number alone may have been given to another process since.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ProcessFile {
    pub(super) pid: i32,
    pub(super) start_ticks: u64,
    pub(super) boot_id: String,
}

/// The folder of all machines.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    root: PathBuf,
    /// Name of the host and of the directory.
    scope: String,
}

impl Directory {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        for sub in ["", "ports", "destroyed"] {
            make(&path.join(sub))?;
        }
        // The path is found again in command lines: it must be the same for every server.
        let root = path.canonicalize()?;
        let scope = root.join("scope");
        // Links are made whole or not at all, by one process.
        match symlink(format!("{:016x}", rt::random_u64()), &scope) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let name = fs::read_link(&scope)?;
        let host = rustix::system::uname();
        let scope = format!("{}/{}", host.nodename().to_string_lossy(), name.display());
        Ok(Self { root, scope })
    }

    pub(super) fn path(&self) -> &Path {
        &self.root
    }

    pub(super) fn scope(&self) -> &str {
        &self.scope
    }

    pub(super) fn folder(&self, instance: InstanceId) -> Folder {
        Folder { path: self.root.join(instance.to_string()) }
    }

    /// Instances that have a folder.
    pub(super) fn instances(&self) -> io::Result<Vec<InstanceId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            found.extend(
                entry?.file_name().to_str().and_then(|name| name.parse::<InstanceId>().ok()),
            );
        }
        found.sort_unstable();
        Ok(found)
    }

    fn marker(&self, instance: InstanceId) -> PathBuf {
        self.root.join("destroyed").join(instance.to_string())
    }

    /// Remembers that the instance was destroyed, before anything of it is.
    pub(super) fn mark_destroyed(&self, instance: InstanceId) -> io::Result<()> {
        let path = self.marker(instance);
        fs::write(&path, "").map_err(|error| io_error(&path, &error))
    }

    pub(super) fn is_destroyed(&self, instance: InstanceId) -> io::Result<bool> {
        self.marker(instance).try_exists()
    }

    /// The number of a range of ports that no other machine here has; none: all are taken.
    pub(super) fn take_ports(&self, instance: InstanceId) -> io::Result<Option<u16>> {
        if let Some(number) = self.ports_of(instance)? {
            return Ok(Some(number));
        }
        for number in 0..PORT_RANGES {
            match symlink(instance.to_string(), self.root.join("ports").join(number.to_string())) {
                Ok(()) => return Ok(Some(number)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn ports_of(&self, instance: InstanceId) -> io::Result<Option<u16>> {
        let mut taken = self.taken_ports()?.into_iter();
        Ok(taken.find(|(_, holder)| *holder == Some(instance)).map(|(number, _)| number))
    }

    fn taken_ports(&self) -> io::Result<Vec<(u16, Option<InstanceId>)>> {
        let mut taken = Vec::new();
        for number in 0..PORT_RANGES {
            match fs::read_link(self.root.join("ports").join(number.to_string())) {
                Ok(holder) => {
                    taken.push((number, holder.to_str().and_then(|name| name.parse().ok())));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    pub(super) fn free_ports(&self, instance: InstanceId) -> io::Result<()> {
        match self.ports_of(instance)? {
            Some(number) => remove(&self.root.join("ports").join(number.to_string())),
            None => Ok(()),
        }
    }

    /// Forgets destroyed instances after their time, and ports of folders that somebody has
    /// removed.
    pub(super) fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("destroyed"))? {
            let path = entry?.path();
            if is_old(&path)? {
                remove(&path)?;
            }
        }
        for (number, holder) in self.taken_ports()? {
            let gone = holder.is_none_or(|holder| !self.folder(holder).path.exists());
            if gone {
                remove(&self.root.join("ports").join(number.to_string()))?;
            }
        }
        Ok(())
    }
}

/// The folder of one machine, which need not exist.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

/// Held while a machine is made, changed or removed.
#[derive(Debug)]
pub(super) struct FolderLock(#[expect(dead_code, reason = "held for its lock")] File);

/// How a lock was not got.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// There is no folder.
    Absent,
    /// Another process holds it at the deadline.
    Late,
}

impl Folder {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn make(&self) -> io::Result<()> {
        make(&self.path)
    }

    pub(super) fn lock(&self, deadline: Instant) -> io::Result<Result<FolderLock, NotLocked>> {
        loop {
            let folder = match File::open(&self.path) {
                Ok(folder) => folder,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Err(NotLocked::Absent));
                }
                Err(error) => return Err(io_error(&self.path, &error)),
            };
            match folder.try_lock() {
                Ok(()) => {
                    let own = folder.metadata()?;
                    match fs::metadata(&self.path) {
                        Ok(named) if (named.dev(), named.ino()) == (own.dev(), own.ino()) => {
                            return Ok(Ok(FolderLock(folder)));
                        }
                        Ok(_) => continue,
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        Err(error) => return Err(io_error(&self.path, &error)),
                    }
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    return Ok(Err(NotLocked::Late));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(io_error(&self.path, &error)),
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    pub(super) fn machine(&self) -> io::Result<Option<MachineFile>> {
        read(&self.path.join(MACHINE_FILE))
    }

    pub(super) fn write_machine(&self, machine: &MachineFile) -> io::Result<()> {
        write(&self.path.join(MACHINE_FILE), &serde_json::to_vec(machine)?)
    }

    pub(super) fn process(&self) -> io::Result<Option<ProcessFile>> {
        read(&self.path.join(PROCESS_FILE))
    }

    pub(super) fn write_process(&self, process: &ProcessFile) -> io::Result<()> {
        write(&self.path.join(PROCESS_FILE), &serde_json::to_vec(process)?)
    }

    pub(super) fn write_agent_config(&self, text: &str) -> io::Result<()> {
        write(&self.path.join(AGENT_CONFIG), text.as_bytes())
    }

    /// Nothing in it has been written for so long that nobody will look for the cause of its end.
    pub(super) fn is_old(&self) -> io::Result<bool> {
        for name in ["", AGENT_LOG] {
            match is_old(&self.path.join(name)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Removes all of it. The lock of the folder must be held.
    pub(super) fn remove(&self, _: &FolderLock) -> io::Result<()> {
        remove_tree(&self.path)
    }
}

fn make(path: &Path) -> io::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| io_error(path, &error))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_old(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => {
            let age = SystemTime::now().duration_since(found.modified()?);
            Ok(age.is_ok_and(|age| age > KEPT))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error(path, &error)),
    }
}

/// The value in a file, or none when there is no file.
fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => {
            let value = serde_json::from_slice(&bytes);
            value.map(Some).map_err(|error| io_error(path, &error.into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(path, &error)),
    }
}

/// Replaces a file as a whole. It has a secret. Nothing is synced: no machine outlives the host's
/// power.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut options = File::options();
        options.create(true).truncate(true).write(true).mode(0o600);
        options.open(&temporary)?.write_all(bytes)?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| io_error(path, &error))
}
