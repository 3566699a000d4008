//! The same storage on sled and real files, in a process that is killed between every two steps: of
//! a batch, a barrier, a snapshot, a purge and an install. This test binary starts itself as that
//! process; a variable says at which step it kills itself.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use ground::disk::{Disk, DiskFile, OpenMode, RealDisk};

use super::testing::{Storage, Told, Truth, simulate};
use crate::storage::shadow::{Engine, OpenEngine, Rows, Visit, open_sled};

const STEP: &str = "QUORATE_TEST_KILL_STEP";
const DIRECTORY: &str = "QUORATE_TEST_KILL_DIRECTORY";
const CHILD: &str = "kill::the_process_that_is_killed";
/// Fewer steps than this would mean that the steps are not where the work is.
const STEPS_MIN: u64 = 60;
/// More would mean that it never ends.
const STEPS_MAX: u64 = 400;

/// Counts down and kills the process at zero.
#[derive(Debug)]
struct Steps(AtomicU64);

impl Steps {
    fn pass(&self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        }
    }
}

#[derive(Debug)]
struct StepDisk(Arc<Steps>);

impl Disk for StepDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        match mode {
            OpenMode::Create | OpenMode::CreateNew => self.0.pass(),
            OpenMode::Read | OpenMode::ReadWrite => {}
        }
        let inner = RealDisk.open(path, mode)?;
        Ok(Box::new(StepFile { inner, steps: Arc::clone(&self.0) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.pass();
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.pass();
        RealDisk.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.pass();
        RealDisk.remove_dir_all(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(directory)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealDisk.read(path)
    }
}

#[derive(Debug)]
struct StepFile {
    inner: Box<dyn DiskFile>,
    steps: Arc<Steps>,
}

impl DiskFile for StepFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.steps.pass();
        self.inner.write_all_at(bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.steps.pass();
        self.inner.set_size(size)
    }

    // What was written stays in the page cache of a process that is killed, so a sync is no step of
    // its own here: power cuts are tested in `super::crash`.
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}

struct StepEngine {
    inner: Box<dyn Engine>,
    steps: Arc<Steps>,
}

impl Engine for StepEngine {
    fn read(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        self.inner.read(key)
    }

    fn iterate(&self, visit: Visit<'_>) -> io::Result<()> {
        self.inner.iterate(visit)
    }

    fn write(&mut self, rows: Rows<'_>) -> io::Result<()> {
        self.steps.pass();
        self.inner.write(rows)?;
        self.steps.pass();
        Ok(())
    }

    fn barrier(&mut self) -> io::Result<()> {
        self.steps.pass();
        self.inner.barrier()?;
        self.steps.pass();
        Ok(())
    }

    fn disk_bytes(&self) -> u64 {
        self.inner.disk_bytes()
    }
}

fn sled() -> OpenEngine {
    Arc::new(open_sled)
}

fn told_path(directory: &Path) -> PathBuf {
    directory.join("told")
}

fn tell(directory: &Path, told: &Told) {
    let last = told.last.map_or_else(|| "none".to_owned(), |last| last.to_string());
    std::fs::write(told_path(directory), format!("{last} {}", told.term)).unwrap();
}

fn was_told(directory: &Path) -> Told {
    let Ok(text) = std::fs::read_to_string(told_path(directory)) else { return Told::default() };
    let (last, term) = text.split_once(' ').unwrap();
    Told { last: last.parse().ok(), term: term.parse().unwrap() }
}

/// A life with every kind of step, each after each acknowledged one.
async fn live(directory: &Path, steps: Arc<Steps>) {
    let truth = Truth::new(60);
    let disk: Arc<dyn Disk> = Arc::new(StepDisk(Arc::clone(&steps)));
    let open_engine: OpenEngine = Arc::new(move |path| {
        steps.pass();
        let inner = open_sled(path)?;
        steps.pass();
        Ok(Box::new(StepEngine { inner, steps: Arc::clone(&steps) }))
    });
    let mut storage = Storage::open(&disk, &open_engine, &directory.join("data")).await.unwrap();
    let mut told = Told::default();
    storage.vote(2).unwrap();
    told.term = 2;
    tell(directory, &told);
    for next in 0..3 {
        storage.append(truth.entries(next * 4..next * 4 + 4)).await.unwrap();
        told.last = Some(next * 4 + 3);
        tell(directory, &told);
        storage.apply(next * 4 + 3).await.unwrap();
    }
    storage.snapshot(3).await.unwrap();
    storage.install(&truth, 30).await.unwrap();
    told.last = Some(30);
    tell(directory, &told);
    storage.append(truth.entries(31..34)).await.unwrap();
    told.last = Some(33);
    tell(directory, &told);
    storage.apply(33).await.unwrap();
    storage.snapshot(0).await.unwrap();
}

/// Does nothing unless [`every_step_can_be_the_last`] starts it with its variables.
#[test]
fn the_process_that_is_killed() {
    let (Ok(step), Some(directory)) = (std::env::var(STEP), std::env::var_os(DIRECTORY)) else {
        return;
    };
    let steps = Arc::new(Steps(AtomicU64::new(step.parse().unwrap())));
    simulate(1, async move { live(Path::new(&directory), steps).await });
}

/// Memory is enough for files that only a kill threatens.
fn temporary() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn every_step_can_be_the_last() {
    for step in 0..STEPS_MAX {
        let temporary = temporary();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--test-threads=1"])
            .env(STEP, step.to_string())
            .env(DIRECTORY, temporary.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let ended = child.status.success();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(ended || child.status.signal() == Some(9), "step {step}: {}: {said}", child.status);
        assert!(said.contains("running 1 test"), "step {step}: the child ran no test: {said}");
        let directory = temporary.path().to_path_buf();
        simulate(step, async move {
            let truth = Truth::new(60);
            let disk: Arc<dyn Disk> = Arc::new(RealDisk);
            let told = was_told(&directory);
            assert!(!ended || told == Told { last: Some(33), term: 2 });
            let context = format!("killed at step {step}");
            let data = directory.join("data");
            let mut storage = Storage::open(&disk, &sled(), &data).await.unwrap();
            storage.check(&truth, &told, &context).await;
            // And it goes on from there, and knows it after the next start.
            storage.vote(3).unwrap();
            let next = storage.last().map_or(0, |last| last + 1);
            storage.append(truth.entries(next..next + 2)).await.unwrap();
            storage.apply(next + 1).await.unwrap();
            drop(storage);
            let told = Told { last: Some(next + 1), term: 3 };
            let mut storage = Storage::open(&disk, &sled(), &data).await.unwrap();
            storage.check(&truth, &told, &context).await;
        });
        if ended {
            assert!(step > STEPS_MIN, "there were {step} steps only");
            return;
        }
    }
    panic!("the process did not end within {STEPS_MAX} steps");
}
