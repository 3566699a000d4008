//! The agent's state directory: who the node is, and what it was running. One process at a time holds it, by a lock.
//!
//! ```text
//!  data_dir/LOCK  identity.json
//!           allocs/<allocation id>/state.json        what is to run and how far it got
//!                                  alloc/logs alloc/data
//!                                  <task>/local  <task>/secrets
//!                                  .run/<task>/<attempt>/   the executor's files
//! ```
//! Invariant: an attempt is in `state.json` before its executor is launched, so that a restarted agent finds every process.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use fsm::AllocationId;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{
    allocation_runner::AllocationRunner, executor::process::find_user, files, spec::AllocationSpec,
};

/// Version of the stored formats.
const FORMAT: u32 = 1;

/// Who the node is; made once with the directory.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct NodeIdentity {
    format: u32,
    /// The node's id.
    pub(crate) node_id: [u8; 16],
    /// Fixed at the first registration: another agent cannot take the id.
    pub(crate) secret: [u8; 16],
    directory_id: [u8; 16],
}

impl NodeIdentity {
    fn generate() -> io::Result<Self> {
        let random = || {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
            Ok::<_, io::Error>(bytes)
        };
        Ok(Self { format: FORMAT, node_id: random()?, secret: random()?, directory_id: random()? })
    }

    /// What makes an incarnation: the directory and the boot. Both are random and 16 bytes, so their sum names the pair.
    pub(crate) fn incarnation_identity(&self, boot_id: [u8; 16]) -> [u8; 16] {
        std::array::from_fn(|i| self.directory_id[i].wrapping_add(boot_id[i]))
    }

    /// The identity of simulated node `number`: derived, so that it is stable in the directory.
    pub(crate) fn derive(&self, number: u32) -> Self {
        let spread = |bytes: [u8; 16], salt: u64| -> [u8; 16] {
            let word = |range: std::ops::Range<usize>| {
                u64::from_le_bytes(bytes[range].try_into().expect("half of 16 bytes is 8"))
            };
            let key = u64::from(number) ^ (salt << 40);
            let low = super::restart::mix(word(0..8) ^ key);
            let high = super::restart::mix(word(8..16) ^ key.rotate_left(32) ^ low);
            let mut out = [0; 16];
            out[..8].copy_from_slice(&low.to_le_bytes());
            out[8..].copy_from_slice(&high.to_le_bytes());
            out
        };
        Self {
            format: FORMAT,
            node_id: spread(self.node_id, 1),
            secret: spread(self.secret, 2),
            directory_id: spread(self.directory_id, 3),
        }
    }
}

/// What is stored of an allocation.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredAllocation {
    pub(crate) format: u32,
    pub(crate) boot_id: [u8; 16],
    /// The agent stopped the tasks itself when it ended: they are to start again.
    pub(crate) suspended: bool,
    pub(crate) spec: AllocationSpec,
    pub(crate) runner: AllocationRunner,
}

/// What was in the directory.
pub(crate) struct Loaded {
    pub(crate) stored: Vec<StoredAllocation>,
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
}

/// The locked directory.
#[derive(Debug)]
pub(crate) struct StateDirectory {
    root: PathBuf,
    /// Held, not used.
    _lock: File,
    pub(crate) boot_id: [u8; 16],
}

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the state directory {0} is held by another agent")]
    Locked(PathBuf),
    #[error("cannot use the state directory {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the state directory has format {0}, which this version does not know")]
    Format(u32),
}

impl StateDirectory {
    /// Opens or makes the directory and locks it.
    pub(crate) fn open(path: &Path) -> Result<(Self, NodeIdentity), StateError> {
        let fail = |source| StateError::Io { path: path.to_owned(), source };
        let absolute = std::path::absolute(path).map_err(fail)?;
        files::create_directory(&absolute).map_err(fail)?;
        let root = fs::canonicalize(&absolute).map_err(fail)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join("LOCK"))
            .map_err(fail)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StateError::Locked(root)),
            Err(error) => return Err(fail(error.into())),
        }
        files::create_directory(&root.join("allocs")).map_err(fail)?;
        let identity_path = root.join("identity.json");
        let identity = match files::read_json::<NodeIdentity>(&identity_path).map_err(fail)? {
            Some(identity) if identity.format == FORMAT => identity,
            Some(identity) => return Err(StateError::Format(identity.format)),
            None => {
                let identity = NodeIdentity::generate().map_err(fail)?;
                files::write_json(&identity_path, &identity).map_err(fail)?;
                identity
            }
        };
        let boot_id = read_boot_id().map_err(fail)?;
        Ok((Self { root, _lock: lock, boot_id }, identity))
    }

    /// The directory of an allocation.
    pub(crate) fn allocation(&self, id: AllocationId) -> AllocationDirectory {
        AllocationDirectory { root: self.root.join("allocs").join(id.to_string()) }
    }

    /// All stored allocations. What cannot be read is left where it is.
    pub(crate) fn load(&self) -> io::Result<Loaded> {
        let (mut stored, mut unreadable) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(self.root.join("allocs"))? {
            let directory = entry?.path();
            match files::read_json::<StoredAllocation>(&directory.join("state.json")) {
                Ok(Some(allocation)) if allocation.format == FORMAT => stored.push(allocation),
                Ok(Some(allocation)) => {
                    let error = io::Error::other(format!("unknown format {}", allocation.format));
                    unreadable.push((directory, error));
                }
                // Without a state nothing was ever started in it.
                Ok(None) => fs::remove_dir_all(&directory)?,
                Err(error) => unreadable.push((directory, error)),
            }
        }
        stored.sort_by_key(|allocation| allocation.spec.id);
        Ok(Loaded { stored, unreadable })
    }

    /// The file system that the directory is on.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

/// The directory of one allocation.
#[derive(Clone, Debug)]
pub(crate) struct AllocationDirectory {
    root: PathBuf,
}

impl AllocationDirectory {
    /// Its path.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
    /// Shared by the tasks.
    pub(crate) fn shared(&self) -> PathBuf {
        self.root.join("alloc")
    }
    /// Log files.
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("alloc/logs")
    }
    /// A task's own directory.
    pub(crate) fn task(&self, task: &str) -> PathBuf {
        self.root.join(task)
    }
    /// The files of all executors.
    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join(".run")
    }
    /// The files of the executor of one attempt.
    pub(crate) fn run(&self, task: &str, attempt: u32) -> PathBuf {
        self.runs().join(task).join(attempt.to_string())
    }

    /// Makes the directories.
    pub(crate) fn prepare(&self, spec: &AllocationSpec) -> io::Result<()> {
        let shared = self.shared();
        for directory in [self.logs(), shared.join("data"), shared.join("tmp")] {
            files::create_directory(&directory)?;
        }
        for directory in [shared.join("data"), shared.join("tmp")] {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777))?;
        }
        let run = self.runs();
        files::create_directory(&run)?;
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700))?;
        for task in &spec.tasks {
            let root = self.task(&task.name);
            let secrets = root.join("secrets");
            for directory in [root.join("local"), root.join("tmp"), secrets.clone()] {
                files::create_directory(&directory)?;
            }
            fs::set_permissions(&secrets, fs::Permissions::from_mode(0o700))?;
            // Whether the user exists is judged when the task is started.
            if !task.user.is_empty()
                && let Ok((uid, gid)) = find_user(&task.user)
            {
                for directory in [root.clone(), root.join("local"), root.join("tmp"), secrets] {
                    chown(directory, Some(uid), Some(gid))?;
                }
            }
        }
        Ok(())
    }

    /// Stores how far it got.
    pub(crate) fn store(&self, stored: &StoredAllocation) -> io::Result<()> {
        files::create_directory(&self.root)?;
        files::write_json(&self.root.join("state.json"), stored)
    }

    /// Deletes everything.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl StoredAllocation {
    /// A value of the present format.
    pub(crate) fn new(
        boot_id: [u8; 16],
        suspended: bool,
        spec: AllocationSpec,
        runner: AllocationRunner,
    ) -> Self {
        Self { format: FORMAT, boot_id, suspended, spec, runner }
    }
}

/// The id of this boot of the machine.
pub(crate) fn read_boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let id: fsm::NodeId = text.trim().parse().map_err(io::Error::other)?;
    Ok(id.0)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_identity_is_made_once_and_the_directory_is_held_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let (held, first) = StateDirectory::open(directory.path()).unwrap();
        let again = StateDirectory::open(directory.path());
        assert!(matches!(again, Err(StateError::Locked(_))));
        drop(held);
        let (_held, second) = StateDirectory::open(directory.path()).unwrap();
        assert_eq!(first.node_id, second.node_id);
        assert_ne!(first.node_id, first.secret);
        assert_ne!(first.incarnation_identity([1; 16]), first.incarnation_identity([2; 16]));
    }

    #[test]
    fn simulated_identities_are_stable_and_distinct() {
        let identity = NodeIdentity::generate().unwrap();
        let ids: std::collections::BTreeSet<_> =
            (0..1000).map(|number| identity.derive(number).node_id).collect();
        assert_eq!(ids.len(), 1000);
        assert_eq!(identity.derive(5).secret, identity.derive(5).secret);
    }
}
