//! The agent's state directory: the node's identity, and the state of its allocations. A file lock
//! lets only one process use it at a time.
//!
//! ```text
//!  data_dir/LOCK  identity.json
//!           runs/<allocation id>/state.json          what is to run and how far it got
//!                                tasks/<task>/<attempt>/   the executor's files
//!           allocs/<allocation id>/alloc/logs alloc/data
//!                                  <task>/local  <task>/secrets
//! ```
//! Tasks may write into `allocs`. `runs` belongs to the agent: tasks of other users cannot read it,
//! and no task is told its path.
//!
//! Invariants: a run is in `state.json` before its executor is launched, so that a restarted agent
//! finds every process. Whatever is stored can be read back.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{OpenOptionsExt, PermissionsExt, chown, fchown},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use fsm::{
    AllocationId, GENERATION,
    generation::{OtherGeneration, Stamp},
};
use ground::{removal::remove_tree, rt};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{
    allocation::{
        preparation::StageRules,
        runner::AllocationRunner,
        spec::{AllocationSpec, TaskSpec},
    },
    machine::{
        boot::{BOOT_ID, read_boot_id},
        files,
        users::find_user,
    },
};

/// The state file, in the agent's own folder of an allocation.
const STATE_FILE: &str = "state.json";
/// The folder with the working directories of allocations, by id.
pub(crate) const ALLOCATIONS: &str = "allocs";
/// The folder with the agent's own folders of allocations, by id.
pub(crate) const RUNS: &str = "runs";
/// In the agent's own folder of an allocation: the files of its executors.
const TASKS: &str = "tasks";

/// The node's identity. It is made once, together with the directory.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct NodeIdentity {
    generation: u16,
    pub(crate) node_id: [u8; 16],
    /// The servers remember the secret from the first registration. So another agent cannot take
    /// the id.
    pub(crate) secret: [u8; 16],
    directory_id: [u8; 16],
}

impl NodeIdentity {
    fn generate() -> Self {
        let [node_id, secret, directory_id] = std::array::from_fn(|_| rt::random_id());
        Self { generation: GENERATION, node_id, secret, directory_id }
    }

    /// Identifies the pair of directory and boot, which is an incarnation of the node. Both ids are
    /// random and have 16 bytes, so their sum is unique for the pair.
    pub(crate) fn incarnation_identity(&self, boot_id: [u8; 16]) -> [u8; 16] {
        std::array::from_fn(|i| self.directory_id[i].wrapping_add(boot_id[i]))
    }

    /// The identity of the simulated node `number`. It is derived from this one, so that it stays
    /// the same as long as the directory exists.
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

/// The stored state of an allocation.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredAllocation {
    pub(crate) generation: u16,
    pub(crate) boot_id: [u8; 16],
    /// The agent stopped the allocation's tasks when it ended, or the machine has booted. The tasks
    /// start again.
    pub(crate) suspended: bool,
    /// The names of the agent's stages. The runner names a stage by its position here.
    stages: Vec<String>,
    pub(crate) spec: Arc<AllocationSpec>,
    pub(crate) runner: AllocationRunner,
}

/// The content of the directory at the agent's start.
pub(crate) struct Loaded {
    pub(crate) stored: Vec<StoredAllocation>,
    /// Allocations whose stored state cannot be read.
    pub(crate) unreadable: Vec<(AllocationId, io::Error)>,
    /// Allocations that have folders but no stored state.
    pub(crate) unknown: BTreeSet<AllocationId>,
}

/// The locked directory.
#[derive(Debug)]
pub struct StateDirectory {
    root: PathBuf,
    /// Keeps the lock.
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

    /// Like [`Self::open`], with the boot id as an argument, for simulations.
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
        files::create_directory(&root.join(ALLOCATIONS)).map_err(fail)?;
        let runs = root.join(RUNS);
        files::create_directory(&runs).map_err(fail)?;
        fs::set_permissions(&runs, fs::Permissions::from_mode(0o700)).map_err(fail)?;
        let identity_path = root.join("identity.json");
        // An earlier process may have been killed before it synced the name of the file, so that a
        // power cut could remove it. Sync the name now.
        files::sync_directory(&root).map_err(fail)?;
        // Check the generation first: another generation may have other fields.
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
        self.root.join(ALLOCATIONS)
    }

    /// Where the agent's own folders of all allocations are.
    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join(RUNS)
    }

    /// The directory of an allocation.
    pub fn allocation(&self, id: AllocationId) -> AllocationDirectory {
        let name = id.to_string();
        AllocationDirectory { root: self.allocations().join(&name), own: self.runs().join(name) }
    }

    /// Loads all stored allocations. One that cannot be read does not stop the others; it is left
    /// on disk.
    pub(crate) fn load(&self, rules: &StageRules) -> io::Result<Loaded> {
        let (mut stored, mut unreadable) = (Vec::new(), Vec::new());
        let mut unknown = BTreeSet::new();
        for id in self.ids()? {
            match self.allocation(id).load(id, rules) {
                Ok(Some(allocation)) => stored.push(allocation),
                Ok(None) => drop(unknown.insert(id)),
                Err(error) => unreadable.push((id, error)),
            }
        }
        Ok(Loaded { stored, unreadable, unknown })
    }

    /// The allocations that have a folder.
    fn ids(&self) -> io::Result<BTreeSet<AllocationId>> {
        let mut ids = BTreeSet::new();
        for folder in [self.allocations(), self.runs()] {
            for entry in fs::read_dir(folder)? {
                ids.extend(
                    entry?.file_name().to_str().and_then(|name| name.parse::<AllocationId>().ok()),
                );
            }
        }
        Ok(ids)
    }

    /// The path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// The working directory of one allocation, and the agent's own folder for it.
#[derive(Clone, Debug)]
pub struct AllocationDirectory {
    root: PathBuf,
    own: PathBuf,
}

impl AllocationDirectory {
    /// The path of the working directory.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// Shared by the tasks.
    pub(crate) fn shared(&self) -> PathBuf {
        self.root.join("alloc")
    }
    /// Log files.
    pub fn logs(&self) -> PathBuf {
        self.root.join("alloc/logs")
    }
    /// A task's own directory.
    pub(crate) fn task(&self, task: &str) -> PathBuf {
        self.root.join(task)
    }
    /// The files of all executors.
    pub fn runs(&self) -> PathBuf {
        self.own.join(TASKS)
    }
    /// The files of the executor of one attempt.
    pub(crate) fn run(&self, task: &str, attempt: u32) -> PathBuf {
        self.runs().join(task).join(attempt.to_string())
    }

    /// Makes the directory with the folders that the tasks share, and the folder of the executors'
    /// files.
    pub(crate) fn prepare_shared(&self) -> io::Result<()> {
        files::create_directory(&self.runs())?;
        let shared = HeldDirectory::of(&self.root)?.make("alloc")?;
        shared.make("logs")?;
        for name in ["data", "tmp"] {
            shared.make(name)?.set_mode(0o1777)?;
        }
        Ok(())
    }

    /// Makes the directories of a task.
    pub(crate) fn prepare_task(&self, task: &TaskSpec) -> io::Result<()> {
        let own = HeldDirectory::of(&self.root)?.make(&task.name)?;
        let [local, tmp, secrets] = ["local", "tmp", "secrets"].map(|name| own.make(name));
        let directories = [own, local?, tmp?, secrets?];
        if let Some(secrets) = directories.last() {
            secrets.set_mode(0o700)?;
        }
        if let Some((uid, gid)) = owner_of(task) {
            for directory in &directories {
                directory.give_to(uid, gid)?;
            }
        }
        Ok(())
    }

    /// Puts the payload (base64) that the job was dispatched with into the file that the task
    /// names.
    pub(crate) fn put_payload(&self, task: &TaskSpec, payload: &str) -> io::Result<()> {
        let local = HeldDirectory::of(&self.root)?.make(&task.name)?.make("local")?;
        local.put_payload(&task.dispatch_payload, payload, owner_of(task))
    }

    /// Deletes what an earlier allocation of this id has left. The stored state stays: it is that
    /// of the present one.
    pub(crate) fn clear(&self) -> io::Result<()> {
        remove_tree(&self.runs())?;
        remove_tree(&self.root)
    }

    /// Stores the state of the allocation.
    pub(crate) fn store(&self, stored: &StoredAllocation) -> io::Result<()> {
        files::create_directory(&self.own)?;
        files::write_json(&self.own.join(STATE_FILE), stored)
    }

    /// Loads the stored state. `None`: there is none.
    fn load(&self, id: AllocationId, rules: &StageRules) -> io::Result<Option<StoredAllocation>> {
        let path = self.own.join(STATE_FILE);
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        // Check the generation first: another generation may have other fields.
        if let Some(stamp) = files::read_json::<Stamp>(&path)? {
            stamp.check().map_err(|other| invalid(format!("it is {other}")))?;
        }
        let Some(mut stored) = files::read_json::<StoredAllocation>(&path)? else {
            return Ok(None);
        };
        stored.spec.check().map_err(|error| invalid(error.to_string()))?;
        if stored.spec.id != id {
            return Err(invalid("it is that of another allocation".to_owned()));
        }
        let tasks = stored.spec.tasks.len();
        stored.runner.check(tasks, &stored.stages, rules).map_err(invalid)?;
        stored.stages = rules.names();
        Ok(Some(stored))
    }

    /// The newest run of a task that has files.
    pub(crate) fn last_attempt(&self, task: &str) -> Option<u32> {
        let entries = fs::read_dir(self.runs().join(task)).ok()?;
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).max()
    }

    /// Deletes all files of an allocation. None of its tasks may run any more. If something remains
    /// (for example because a file system is mounted there), the next start of the agent finds a
    /// folder without stored state, and tries again.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.own)?;
        remove_tree(&self.root)
    }
}

/// The user and group of a task's directories. A user that does not exist is reported when the task
/// is started, not here.
fn owner_of(task: &TaskSpec) -> Option<(u32, u32)> {
    let user = Some(&task.user).filter(|user| !user.is_empty());
    user.and_then(|user| find_user(user).ok())
}

/// A directory, held by its file descriptor. A task that owns the parent directory can put a link
/// in its place at any time. Work through the descriptor still reaches the real directory, and
/// never the target of a link.
struct HeldDirectory(OwnedFd);

impl HeldDirectory {
    /// Opens an allocation's directory, and makes it first if necessary.
    fn of(path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        // The parent belongs to the agent, so it can be opened by path.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = Self(rustix::fs::open(parent, flags, Mode::empty())?);
        parent.make(&name.to_string_lossy())
    }

    /// Opens a directory inside this one, and makes it first if necessary. Refuses a symbolic link
    /// and a mount point: the caller would change the owner and mode of a foreign directory.
    fn make(&self, name: &str) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.0, name, Mode::from(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // `O_PATH` works without permission to read the directory.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let held = rustix::fs::openat2(&self.0, name, flags, Mode::empty(), within);
        let held = held.map_err(|error| {
            let error = io::Error::from(error);
            let message = format!("{name} is not the directory it was: {error}");
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

    /// Writes the payload (base64) to a file below this directory. If the file exists, it is left
    /// as it is, because the task may have changed it.
    fn put_payload(&self, file: &str, payload: &str, owner: Option<(u32, u32)>) -> io::Result<()> {
        let payload = BASE64_STANDARD
            .decode(payload)
            .map_err(|_| io::Error::other("the stored payload is no base64"))?;
        let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
        let mut held = Self(self.0.try_clone()?);
        for part in folders.split('/').filter(|part| !part.is_empty()) {
            held = held.make(part)?;
            if let Some((uid, gid)) = owner {
                held.give_to(uid, gid)?;
            }
        }
        let path = held.path().join(name);
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(());
        }
        // Written to a temporary file and renamed, so that a crash of the agent leaves no
        // half-written file.
        let temporary = held.path().join(format!(".{name}.tmp"));
        remove_tree(&temporary)?;
        let mut options = OpenOptions::new();
        let mut written = options.write(true).create_new(true).mode(0o644).open(&temporary)?;
        if let Some((uid, gid)) = owner {
            fchown(&written, Some(uid), Some(gid))?;
        }
        written.write_all(&payload)?;
        fs::rename(&temporary, &path)
    }

    /// A path that leads to the held directory, even if it has been renamed.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl StoredAllocation {
    /// A state in this binary's format.
    pub(crate) fn new(
        boot_id: [u8; 16],
        suspended: bool,
        rules: &StageRules,
        (spec, runner): (Arc<AllocationSpec>, AllocationRunner),
    ) -> Self {
        let stages = rules.names();
        Self { generation: GENERATION, boot_id, suspended, stages, spec, runner }
    }
}

/// The folders with the executors' files of all allocations in an agent's data directory.
pub fn run_directories(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(data_dir.join(RUNS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path().join(TASKS))).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{testing, time::Moment};

    /// The stored state of an allocation with one task.
    fn stored(id: u8) -> StoredAllocation {
        let spec = AllocationSpec::parse(testing::message([id; 16], "job", &["a"])).unwrap();
        let spec = Arc::new(spec);
        let runner = AllocationRunner::new(&spec.policy, spec.id.0, 0, Moment::default());
        StoredAllocation::new([9; 16], false, &StageRules::default(), (spec, runner))
    }

    /// All directories of an allocation and its tasks.
    fn prepare(directory: &AllocationDirectory, spec: &AllocationSpec) -> io::Result<()> {
        directory.prepare_shared()?;
        for task in &spec.tasks {
            directory.prepare_task(task)?;
            if !task.dispatch_payload.is_empty() {
                directory.put_payload(task, &spec.payload)?;
            }
        }
        Ok(())
    }

    fn directory_in(root: &Path) -> AllocationDirectory {
        AllocationDirectory { root: root.join("allocation"), own: root.join("own") }
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
            let directory = directory_in(root.path());
            let spec = stored(1).spec;
            prepare(&directory, &spec).unwrap();
            prepare(&directory, &spec).unwrap();
            assert_eq!(mode(&directory.task("a").join("secrets")), 0o700);
            assert_eq!(mode(&directory.shared().join("tmp")), 0o1777);
            let replaced = directory.task("a").join(name);
            fs::remove_dir(&replaced).unwrap();
            symlink(&foreign, &replaced).unwrap();
            let error = prepare(&directory, &spec).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            assert_eq!(mode(&foreign), 0o755, "{name}");
        }
    }

    /// The complete file exists before the task starts. Changes of the task survive, and nothing is
    /// written through a link.
    #[test]
    fn a_payload_is_put_into_its_file_once() {
        let root = tempfile::tempdir().unwrap();
        let directory = directory_in(root.path());
        let mut message = testing::message([1; 16], "job", &["a", "b"]);
        message.payload = b"hello".to_vec().into();
        message.tasks[0].dispatch_payload = "in/put".to_owned();
        let spec = AllocationSpec::parse(message.clone()).unwrap();
        prepare(&directory, &spec).unwrap();
        let file = directory.task("a").join("local/in/put");
        assert_eq!(fs::read(&file).unwrap(), b"hello");
        assert_eq!(fs::read_dir(directory.task("b").join("local")).unwrap().count(), 0);
        fs::write(&file, "changed").unwrap();
        prepare(&directory, &spec).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"changed");
        let foreign = root.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        remove_tree(file.parent().unwrap()).unwrap();
        symlink(&foreign, file.parent().unwrap()).unwrap();
        prepare(&directory, &spec).unwrap_err();
        assert_eq!(fs::read_dir(&foreign).unwrap().count(), 0);
        message.tasks[0].dispatch_payload = "../put".to_owned();
        AllocationSpec::parse(message).unwrap_err();
    }

    /// One unreadable state does not stop the others: another allocation's state, half a file, a
    /// task name that leaves the directory.
    #[test]
    fn an_allocation_that_cannot_be_read_does_not_keep_the_others_from_being_loaded() {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let [good, other, half, pathless] =
            [1, 2, 3, 4].map(|id| state.allocation(AllocationId([id; 16])));
        good.store(&stored(1)).unwrap();
        other.store(&stored(1)).unwrap();
        half.store(&stored(3)).unwrap();
        let path = half.own.join(STATE_FILE);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let mut outside = stored(4);
        Arc::make_mut(&mut outside.spec).tasks[0].name = "../../x".to_owned();
        Arc::make_mut(&mut outside.spec).policy.tasks[0].name = "../../x".to_owned();
        pathless.store(&outside).unwrap();
        let nothing = state.allocation(AllocationId([5; 16]));
        prepare(&nothing, &stored(5).spec).unwrap();
        let loaded = state.load(&StageRules::default()).unwrap();
        let ids: Vec<_> = loaded.stored.iter().map(|one| one.spec.id.0[0]).collect();
        let unreadable: Vec<_> = loaded.unreadable.iter().map(|(id, _)| id.0[0]).collect();
        let unknown: Vec<_> = loaded.unknown.iter().map(|id| id.0[0]).collect();
        assert_eq!((ids, unreadable, unknown), (vec![1], vec![2, 3, 4], vec![5]));
    }

    /// The agent reads only files up to this size. A larger state is refused before anything is
    /// started.
    #[test]
    fn a_state_that_could_not_be_read_back_is_not_stored() {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let directory = state.allocation(AllocationId([1; 16]));
        directory.store(&stored(1)).unwrap();
        let mut large = stored(1);
        let spec = Arc::make_mut(&mut large.spec);
        let text = "\u{1}".repeat(usize::try_from(files::FILE_BYTES_MAX / 6).unwrap());
        spec.meta.insert("large".to_owned(), text);
        let error = directory.store(&large).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
        assert_eq!(
            state.load(&StageRules::default()).unwrap().stored.len(),
            1,
            "the one before is still there"
        );
    }

    #[test]
    fn nothing_is_left_of_what_is_deleted() {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let one = state.allocation(AllocationId([1; 16]));
        one.store(&stored(1)).unwrap();
        prepare(&one, &stored(1).spec).unwrap();
        one.remove().unwrap();
        one.remove().unwrap();
        let loaded = state.load(&StageRules::default()).unwrap();
        assert!(loaded.stored.is_empty() && loaded.unknown.is_empty());
        assert!(!one.root().exists() && !one.own.exists());
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
        let newer = format!(r#"{{"generation":{},"name":"a"}}"#, GENERATION + 1);
        for (generation, file) in [(1, r#"{"format":1}"#), (GENERATION + 1, newer.as_str())] {
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
