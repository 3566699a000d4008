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
    io::{self, Write as _},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{OpenOptionsExt, PermissionsExt, chown, fchown},
    },
    path::{Path, PathBuf},
};

use fsm::{
    AllocationId, GENERATION,
    generation::{self, OtherGeneration, Stamp},
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{
    allocation_runner::AllocationRunner, executor::process::find_user, files, spec::AllocationSpec,
};
use crate::{base64, rt};

/// In an allocation's directory: what is stored of it.
const STATE_FILE: &str = "state.json";
/// Names the machine's present life.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Who the node is; made once with the directory.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct NodeIdentity {
    generation: u16,
    pub(crate) node_id: [u8; 16],
    /// Fixed at the first registration: another agent cannot take the id.
    pub(crate) secret: [u8; 16],
    directory_id: [u8; 16],
}

impl NodeIdentity {
    fn generate() -> Self {
        let [node_id, secret, directory_id] = std::array::from_fn(|_| rt::random_id());
        Self { generation: GENERATION, node_id, secret, directory_id }
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
            let low = chance::mix(word(0..8) ^ key);
            let high = chance::mix(word(8..16) ^ key.rotate_left(32) ^ low);
            let mut out = [0; 16];
            out[..8].copy_from_slice(&low.to_le_bytes());
            out[8..].copy_from_slice(&high.to_le_bytes());
            out
        };
        Self {
            generation: GENERATION,
            node_id: spread(self.node_id, 1),
            secret: spread(self.secret, 2),
            directory_id: spread(self.directory_id, 3),
        }
    }
}

/// What is stored of an allocation.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredAllocation {
    pub(crate) generation: u16,
    pub(crate) boot_id: [u8; 16],
    /// Nothing runs because the agent stopped it when it ended, or the machine has booted: it is to start again.
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
    #[error(
        "the state directory {0} is {1}: start the binary that wrote it, or stop its tasks, move the directory \
         away and let the node register anew"
    )]
    Generation(PathBuf, OtherGeneration),
}

impl StateDirectory {
    /// Opens or makes the directory and locks it.
    pub(crate) fn open(path: &Path) -> Result<(Self, NodeIdentity), StateError> {
        let fail = |source| StateError::Io { path: BOOT_ID.into(), source };
        Self::open_in_boot(path, read_boot_id().map_err(fail)?)
    }

    /// The same on a machine that calls its present life by this id.
    pub(crate) fn open_in_boot(
        path: &Path,
        boot_id: [u8; 16],
    ) -> Result<(Self, NodeIdentity), StateError> {
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
        // A process that was killed just before it synced the name leaves one that a power cut takes back.
        files::sync_directory(&root).map_err(fail)?;
        // A file of another generation need not have the fields of this one.
        if let Some(stamp) = files::read_json::<Stamp>(&identity_path).map_err(fail)? {
            stamp.check().map_err(|other| StateError::Generation(root.clone(), other))?;
        }
        let identity = match files::read_json::<NodeIdentity>(&identity_path).map_err(fail)? {
            Some(identity) => identity,
            None => {
                let identity = NodeIdentity::generate();
                files::write_json(&identity_path, &identity).map_err(fail)?;
                identity
            }
        };
        Ok((Self { root, _lock: lock, boot_id }, identity))
    }

    /// Where the directories of all allocations are.
    pub(crate) fn allocations(&self) -> PathBuf {
        self.root.join("allocs")
    }

    /// The directory of an allocation.
    pub(crate) fn allocation(&self, id: AllocationId) -> AllocationDirectory {
        AllocationDirectory { root: self.allocations().join(id.to_string()) }
    }

    /// All stored allocations. What cannot be read is left where it is.
    pub(crate) fn load(&self) -> io::Result<Loaded> {
        self.load_by(delete)
    }

    fn load_by(&self, delete: impl Fn(&Path) -> io::Result<()>) -> io::Result<Loaded> {
        let (mut stored, mut unreadable) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(self.allocations())? {
            let directory = entry?.path();
            match files::read_json::<StoredAllocation>(&directory.join(STATE_FILE)) {
                Ok(Some(allocation)) => match generation::check(u32::from(allocation.generation)) {
                    Ok(()) => stored.push(allocation),
                    Err(other) => {
                        let error = io::Error::other(format!("it is {other}"));
                        unreadable.push((directory, error));
                    }
                },
                // Without a state nothing was ever started in it. What stays of it does no harm.
                Ok(None) => {
                    if let Err(error) = delete(&directory) {
                        tracing::warn!(directory = %directory.display(), %error, "cannot delete a directory without a state");
                    }
                }
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
        files::create_directory(&self.logs())?;
        for directory in [shared.join("data"), shared.join("tmp")] {
            HeldDirectory::make(&directory)?.set_mode(0o1777)?;
        }
        HeldDirectory::make(&self.runs())?.set_mode(0o700)?;
        for task in &spec.tasks {
            let root = self.task(&task.name);
            let [local, tmp, secrets] = ["local", "tmp", "secrets"].map(|name| root.join(name));
            let directories = [root, local, tmp, secrets]
                .iter()
                .map(|path| HeldDirectory::make(path))
                .collect::<io::Result<Vec<_>>>()?;
            if let Some(secrets) = directories.last() {
                secrets.set_mode(0o700)?;
            }
            // Whether the user exists is judged when the task is started.
            let owner = Some(&task.user).filter(|user| !user.is_empty());
            let owner = owner.and_then(|user| find_user(user).ok());
            if let Some((uid, gid)) = owner {
                for directory in &directories {
                    directory.give_to(uid, gid)?;
                }
            }
            if let Some(local) = directories.get(1).filter(|_| !task.dispatch_payload.is_empty()) {
                local.put_payload(&task.dispatch_payload, &spec.payload, owner)?;
            }
        }
        Ok(())
    }

    /// Stores how far it got.
    pub(crate) fn store(&self, stored: &StoredAllocation) -> io::Result<()> {
        files::create_directory(&self.root)?;
        files::write_json(&self.root.join(STATE_FILE), stored)
    }

    /// Deletes everything.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.remove_by(delete)
    }

    /// The state goes last: while anything else is left, the next agent knows the allocation that it belongs to.
    fn remove_by(&self, delete: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name() != STATE_FILE {
                delete(&entry.path())?;
            }
        }
        delete(&self.root)
    }
}

/// Deletes a file, or a directory with all that is in it. What is gone is no error, and a link is not followed.
fn delete(path: &Path) -> io::Result<()> {
    let deleted = fs::symlink_metadata(path).and_then(|found| {
        if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    });
    match deleted {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// A directory by its descriptor. A task that owns the one above can put a link in its place at any time: what is done here is done to the directory
/// all the same, and never to what a link leads to.
struct HeldDirectory(OwnedFd);

impl HeldDirectory {
    /// Makes a directory, if it is not there; refuses a link.
    fn make(path: &Path) -> io::Result<Self> {
        files::create_directory(path)?;
        // A descriptor of this kind needs no permission to read the directory.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
            let error = io::Error::from(error);
            let message = format!("{} is not the directory it was: {error}", path.display());
            io::Error::new(error.kind(), message)
        })?;
        Ok(Self(held))
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.path(), fs::Permissions::from_mode(mode))
    }

    fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        chown(self.path(), Some(uid), Some(gid))
    }

    /// Makes a file of the payload (which is in base64) at a path below it, unless there is one: what a task has made of it stays.
    fn put_payload(&self, file: &str, payload: &str, owner: Option<(u32, u32)>) -> io::Result<()> {
        let payload = base64::decode(payload)
            .ok_or_else(|| io::Error::other("the stored payload is no base64"))?;
        let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
        let mut held = Self(self.0.try_clone()?);
        for part in folders.split('/').filter(|part| !part.is_empty()) {
            held = Self::make(&held.path().join(part))?;
            if let Some((uid, gid)) = owner {
                held.give_to(uid, gid)?;
            }
        }
        let path = held.path().join(name);
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(());
        }
        // Whole or not at all: the agent may end between the two.
        let temporary = held.path().join(format!(".{name}.tmp"));
        delete(&temporary)?;
        let mut options = OpenOptions::new();
        let mut written = options.write(true).create_new(true).mode(0o644).open(&temporary)?;
        if let Some((uid, gid)) = owner {
            fchown(&written, Some(uid), Some(gid))?;
        }
        written.write_all(&payload)?;
        fs::rename(&temporary, &path)
    }

    /// Leads to the directory itself, whatever its name is by now.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl StoredAllocation {
    /// A value of this binary's generation.
    pub(crate) fn new(
        boot_id: [u8; 16],
        suspended: bool,
        spec: AllocationSpec,
        runner: AllocationRunner,
    ) -> Self {
        Self { generation: GENERATION, boot_id, suspended, spec, runner }
    }
}

/// The id of this boot of the machine.
pub(crate) fn read_boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string(BOOT_ID)?;
    let id: fsm::NodeId = text.trim().parse().map_err(io::Error::other)?;
    Ok(id.0)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use super::*;
    use crate::agent::{testing, time::Moment};

    /// An allocation with one task, as it is stored.
    fn stored(id: u8) -> StoredAllocation {
        let spec = AllocationSpec::parse(testing::message([id; 16], "job", &["a"])).unwrap();
        let runner = AllocationRunner::new(&spec.policy, spec.id.0, 0, Moment::default());
        StoredAllocation::new([9; 16], false, spec, runner)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_is_refused_and_what_it_leads_to_left_alone() {
        for name in ["local", "tmp", "secrets"] {
            let root = tempfile::tempdir().unwrap();
            let foreign = root.path().join("foreign");
            fs::create_dir(&foreign).unwrap();
            fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();
            let directory = AllocationDirectory { root: root.path().join("allocation") };
            let spec = stored(1).spec;
            directory.prepare(&spec).unwrap();
            directory.prepare(&spec).unwrap();
            assert_eq!(mode(&directory.task("a").join("secrets")), 0o700);
            assert_eq!(mode(&directory.shared().join("tmp")), 0o1777);
            let replaced = directory.task("a").join(name);
            fs::remove_dir(&replaced).unwrap();
            symlink(&foreign, &replaced).unwrap();
            let error = directory.prepare(&spec).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            assert_eq!(mode(&foreign), 0o755, "{name}");
        }
    }

    /// The file is there whole before the task starts; what the task makes of it stays, and nothing is written through a link.
    #[test]
    fn a_payload_is_put_into_its_file_once() {
        let root = tempfile::tempdir().unwrap();
        let directory = AllocationDirectory { root: root.path().join("allocation") };
        let mut message = testing::message([1; 16], "job", &["a", "b"]);
        message.payload = b"hello".to_vec().into();
        message.tasks[0].dispatch_payload = "in/put".to_owned();
        let spec = AllocationSpec::parse(message.clone()).unwrap();
        directory.prepare(&spec).unwrap();
        let file = directory.task("a").join("local/in/put");
        assert_eq!(fs::read(&file).unwrap(), b"hello");
        assert_eq!(fs::read_dir(directory.task("b").join("local")).unwrap().count(), 0);
        fs::write(&file, "changed").unwrap();
        directory.prepare(&spec).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"changed");
        let foreign = root.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        symlink(&foreign, file.parent().unwrap()).unwrap();
        directory.prepare(&spec).unwrap_err();
        assert_eq!(fs::read_dir(&foreign).unwrap().count(), 0);
        message.tasks[0].dispatch_payload = "../put".to_owned();
        AllocationSpec::parse(message).unwrap_err();
    }

    #[test]
    fn what_cannot_be_deleted_keeps_its_state_and_does_not_keep_the_others_from_being_loaded() {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let [stays, empty] = [1, 2].map(|id| state.allocation(AllocationId([id; 16])));
        stays.store(&stored(1)).unwrap();
        stays.prepare(&stored(1).spec).unwrap();
        empty.prepare(&stored(2).spec).unwrap();
        let own = stays.task("a");
        let busy = |path: &Path| {
            if path == own || path == empty.root() {
                Err(io::Error::from(io::ErrorKind::ResourceBusy))
            } else {
                delete(path)
            }
        };
        assert!(stays.remove_by(busy).is_err());
        let loaded = state.load_by(busy).unwrap();
        let ids: Vec<_> = loaded.stored.iter().map(|one| one.spec.id).collect();
        assert_eq!(ids, [AllocationId([1; 16])]);
        stays.remove().unwrap();
        stays.remove().unwrap();
        let loaded = state.load().unwrap();
        assert!(loaded.stored.is_empty() && loaded.unreadable.is_empty());
        assert!(!stays.root().exists() && !empty.root().exists());
    }

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
    fn a_directory_of_another_generation_is_refused_and_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        drop(StateDirectory::open(directory.path()).unwrap());
        let path = directory.path().join("identity.json");
        for (generation, file) in [(1, r#"{"format":1}"#), (9, r#"{"generation":9,"name":"a"}"#)] {
            fs::write(&path, file).unwrap();
            let text = StateDirectory::open(directory.path()).err().unwrap().to_string();
            let both = format!(
                "is of generation {generation}, this binary reads generation {GENERATION}: "
            );
            assert!(text.contains(&both), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), file);
        }
    }

    #[test]
    fn simulated_identities_are_stable_and_distinct() {
        let identity = NodeIdentity::generate();
        let ids: std::collections::BTreeSet<_> =
            (0..1000).map(|number| identity.derive(number).node_id).collect();
        assert_eq!(ids.len(), 1000);
        assert_eq!(identity.derive(5).secret, identity.derive(5).secret);
    }
}
