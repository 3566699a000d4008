//! Crashes between every two steps of the writer, over the twin engine on a disk that forgets, and
//! sled in real directories.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, fs};

use fsm::{
    GENERATION,
    digest::{Digest, row_hash},
    generation::WHAT_TO_DO,
    table::TableId,
};

use bytes::Bytes;
use ground::{
    disk::{RealDisk, fault::FaultDisk},
    plant::must_catch,
};

use super::{
    layout::{PACK, PIECE, VALUE_BYTES_MAX},
    *,
};
use crate::storage::testing::Life;

mod replicas;

const PATH: &str = "/server/state";

fn twin(disk: &FaultDisk) -> OpenEngine {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Arc::new(move |path| open_twin(Arc::clone(&disk), path))
}

fn open(disk: &FaultDisk) -> io::Result<(StateDirectory, Option<Loaded>)> {
    StateDirectory::open(Arc::new(disk.clone()), Path::new(PATH), twin(disk))
}

fn write(directory: &mut StateDirectory, group: Group) -> io::Result<()> {
    let mut pending = Pending::default();
    pending.add(group);
    directory.write(&mut pending)
}

/// What a crash may leave and what it must leave.
#[derive(Default)]
struct Promise {
    /// The digest at every index that was handed over.
    known: BTreeMap<Index, Digest>,
    /// The highest index that was said to be durable.
    durable: Index,
}

impl Promise {
    fn write(&mut self, directory: &mut StateDirectory, life: &mut Life) -> io::Result<()> {
        self.known.insert(life.index(), life.state.digest());
        write(directory, life.take())
    }

    fn check(&self, loaded: Option<&Loaded>, context: &str) {
        let Some(loaded) = loaded else {
            assert_eq!(self.durable, 0, "{context}: what was durable is gone");
            return;
        };
        let index = loaded.meta.head.index;
        assert!(index >= self.durable, "{context}: {index} of {}", self.durable);
        assert_eq!(self.known.get(&index), Some(&loaded.state.digest()), "{context}");
    }
}

/// Everything a writer does, in an order that has each step after each kind of step.
fn live(disk: &FaultDisk, promise: &mut Promise) -> io::Result<()> {
    let (mut directory, loaded) = open(disk)?;
    let mut life = loaded.map_or_else(Life::new, |loaded| Life::from(loaded.state));
    life.set("short", 10);
    life.set("long", VALUE_BYTES_MAX * 2 + 7);
    promise.write(&mut directory, &mut life)?;
    promise.durable = directory.barrier()?;
    life.set("long", VALUE_BYTES_MAX + 1);
    promise.write(&mut directory, &mut life)?;
    life.set("long", 100);
    promise.write(&mut directory, &mut life)?;
    promise.durable = directory.barrier()?;
    life.request(1, 70);
    promise.write(&mut directory, &mut life)?;
    life.set("long", VALUE_BYTES_MAX * 3);
    life.set("from-a-snapshot", 50);
    promise.known.insert(life.index(), life.state.digest());
    life.take();
    directory.replace(&life.state, &life.meta())?;
    promise.durable = life.index();
    life.remove("long");
    // Later than the window of the sessions before it.
    life.request(fsm::limits::SESSION_MS_MAX * 2, 3);
    promise.write(&mut directory, &mut life)?;
    promise.durable = directory.barrier()?;
    assert_eq!(promise.durable, life.index());
    Ok(())
}

#[test]
fn a_crash_between_any_two_steps_leaves_a_whole_state_not_older_than_the_barrier() {
    let mut ends = 0;
    for stop in 0.. {
        let mut ended = false;
        for cut in 0..12 {
            let disk = FaultDisk::new(stop);
            let mut promise = Promise::default();
            disk.stop_after(stop);
            ended = live(&disk, &mut promise).is_ok() && !disk.is_stopped();
            if cut < 6 {
                disk.kill();
            } else {
                disk.power_cut(cut);
            }
            let context = format!("stopped at {stop}, cut {cut}");
            let (directory, loaded) = open(&disk).unwrap();
            promise.check(loaded.as_ref(), &context);
            // What was loaded is durable, whoever wrote it: the log may be purged by it.
            promise.durable = loaded.as_ref().map_or(0, |loaded| loaded.meta.head.index);
            drop(directory);
            disk.power_cut(cut);
            let (mut directory, loaded) = open(&disk).unwrap();
            promise.check(loaded.as_ref(), &context);
            // And it goes on from there.
            let mut life = loaded.map_or_else(Life::new, |loaded| Life::from(loaded.state));
            life.set("after", 5);
            promise.write(&mut directory, &mut life).unwrap();
            promise.durable = directory.barrier().unwrap();
            assert_eq!(promise.durable, life.index());
            drop(directory);
            disk.power_cut(cut);
            promise.check(open(&disk).unwrap().1.as_ref(), &context);
        }
        if ended {
            ends = stop;
            break;
        }
    }
    assert!(ends > 20, "the disk was stopped at {ends} places only");
}

#[test]
fn the_crashes_would_show_an_index_ahead_of_its_rows_and_an_install_in_place() {
    for plant in [Plant::IndexBeforeRows, Plant::InstallInPlace] {
        must_catch(
            plant,
            a_crash_between_any_two_steps_leaves_a_whole_state_not_older_than_the_barrier,
        );
    }
}

#[test]
fn a_crash_while_opening_sets_the_engine_aside_or_keeps_it_and_never_loops() {
    for stop in 0.. {
        let disk = FaultDisk::new(stop);
        let mut promise = Promise::default();
        live(&disk, &mut promise).unwrap();
        disk.stop_after(stop);
        let opened = open(&disk).is_ok();
        let ended = opened && !disk.is_stopped();
        disk.kill();
        let marked = disk.exists(&Path::new(PATH).join("OPENING")).unwrap();
        let (mut directory, loaded) = open(&disk).unwrap();
        match loaded {
            Some(loaded) => promise.check(Some(&loaded), &format!("stopped at {stop}")),
            None => {
                assert!(marked, "stopped at {stop}: it was set aside without a reason");
                assert!(disk.exists(&Path::new(PATH).join("set-aside")).unwrap());
                let life = Life::new();
                directory.replace(&life.state, &life.meta()).unwrap();
            }
        }
        drop(directory);
        assert!(open(&disk).unwrap().1.is_some(), "stopped at {stop}: the next start finds it");
        if ended {
            assert!(stop > 3);
            return;
        }
    }
}

#[test]
fn an_engine_that_does_not_match_its_digest_is_set_aside() {
    let disk = FaultDisk::new(1);
    live(&disk, &mut Promise::default()).unwrap();
    let current = disk.read(&Path::new(PATH).join("CURRENT")).unwrap();
    let rows = Path::new(PATH).join(String::from_utf8(current).unwrap()).join("rows");
    let bytes = disk.read(&rows).unwrap();
    for offset in (0..bytes.len()).step_by(41) {
        disk.replace(&rows, &bytes);
        disk.corrupt(&rows, offset, 0x20);
        let read = open_twin(Arc::new(disk.clone()), rows.parent().unwrap())
            .and_then(|engine| Layout::load(&*engine));
        assert!(read.is_err() || read.unwrap().1.is_none(), "a flip at {offset} went unnoticed");
    }
    let (_, loaded) = open(&disk).unwrap();
    assert!(loaded.is_none());
    assert!(disk.exists(&Path::new(PATH).join("set-aside")).unwrap());
}

/// An engine as another binary leaves it; `change` gets the key and the frame of each namespace.
fn write_as_another_binary(
    disk: &FaultDisk,
    change: fn(&mut Vec<u8>, &mut Vec<u8>),
    change_meta: fn(&mut Vec<u8>),
) {
    let (mut directory, _) = open(disk).unwrap();
    let mut life = Life::new();
    life.set("row", 10);
    let mut meta = life.meta();
    let mut rows: Vec<(Bytes, Option<Bytes>)> = Vec::new();
    for (mut key, frame) in life.state.frames() {
        let mut frame = frame.to_vec();
        meta.digest.remove(row_hash(&key, &frame));
        if key.first() == Some(&TableId::Namespaces.byte()) {
            change(&mut key, &mut frame);
        }
        meta.digest.add(row_hash(&key, &frame));
        rows.push((key.into(), Some(frame.into())));
    }
    let mut meta = meta.encode().to_vec();
    change_meta(&mut meta);
    rows.push((Bytes::from_static(META_KEY), Some(meta.into())));
    directory.engine.write(&mut rows.into_iter()).unwrap();
    directory.engine.barrier().unwrap();
}

/// A binary that is started by mistake must not take the state away from the one that wrote it.
#[test]
fn an_engine_of_another_generation_is_refused_and_left_as_it_is() {
    let raise = |frame: &mut Vec<u8>| frame[4] += 1;
    let disks = [FaultDisk::new(1), FaultDisk::new(2), FaultDisk::new(3)];
    write_as_another_binary(&disks[0], |_, frame| frame[4] += 1, |_| ());
    write_as_another_binary(&disks[1], |key, _| key[0] = 99, |_| ());
    write_as_another_binary(&disks[2], |_, _| (), raise);
    let next = GENERATION + 1;
    let other = &*format!("is of generation {next}, this binary reads generation {GENERATION}: ");
    let says = [other, "key of table 99, which this binary does not have: ", other];
    for (disk, says) in disks.iter().zip(says) {
        let before = disk.files();
        for _ in 0..2 {
            let error = open(disk).err().unwrap().to_string();
            assert!(error.contains("/server/state/engine-000001: "), "{error}");
            assert!(error.contains(says), "{error}");
            assert!(error.ends_with(WHAT_TO_DO), "{error}");
            assert_eq!(disk.files(), before);
        }
    }
    let disk = FaultDisk::new(4);
    write_as_another_binary(&disk, |_, _| (), |_| ());
    assert!(open(&disk).unwrap().1.is_some(), "its own loads");
}

#[test]
fn sled_of_another_format_is_refused_and_left_where_it_is() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("state");
    let (directory, _) = open_real(&path);
    let engine = path.join(&directory.name);
    drop(directory);
    fs::remove_dir_all(&engine).unwrap();
    drop(sled::Config::new().path(&engine).segment_size(1 << 16).open().unwrap());
    let opened = StateDirectory::open(Arc::new(RealDisk), &path, Arc::new(open_sled));
    let error = opened.err().unwrap().to_string();
    assert!(error.ends_with(WHAT_TO_DO), "{error}");
    assert_eq!(RealDisk.list(&path).unwrap(), ["CURRENT", "engine-000001"]);
}

/// The engine as it is after a kill, which leaves what the page cache has.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn open_real(path: &Path) -> (StateDirectory, Option<Loaded>) {
    StateDirectory::open(Arc::new(RealDisk), path, Arc::new(open_sled)).unwrap()
}

#[test]
fn sled_keeps_long_rows_that_grow_shrink_and_go() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("state");
    let (mut directory, loaded) = open_real(&path);
    assert!(loaded.is_none());
    let mut life = Life::new();
    let lengths =
        [10, VALUE_BYTES_MAX - 200, VALUE_BYTES_MAX * 2, 300_000, VALUE_BYTES_MAX + 1, 20];
    for (number, length) in lengths.into_iter().enumerate() {
        life.set("row", length);
        life.set("other", 40);
        write(&mut directory, life.take()).unwrap();
        assert_eq!(directory.barrier().unwrap(), life.index());
        // Killed here.
        let killed = temporary.path().join(format!("killed-{number}"));
        copy(&path, &killed);
        let (_, loaded) = open_real(&killed);
        let loaded = loaded.unwrap();
        assert_eq!(loaded.state.digest(), life.state.digest());
        assert_eq!(loaded.meta, life.meta());
        assert!(Life::length(&loaded.state, "row") >= length);
    }
    let mut pieces = 0;
    let mut count = |key: &[u8], _: &[u8]| {
        pieces += u32::from(key.first() == Some(&PIECE));
        Ok(())
    };
    directory.engine.iterate(&mut count).unwrap();
    assert_eq!(pieces, 0, "the pieces of longer values are gone");
    life.set("row", 300_000);
    write(&mut directory, life.take()).unwrap();
    life.remove("row");
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    pieces = 0;
    directory
        .engine
        .iterate(&mut |key, _| {
            pieces += u32::from(key.first() == Some(&PIECE));
            Ok(())
        })
        .unwrap();
    assert_eq!(pieces, 0, "a removed row takes its pieces along");
    drop(directory);
    assert_eq!(open_real(&path).1.unwrap().state.digest(), life.state.digest());
}

#[test]
fn sled_directories_that_a_crash_left_behind_are_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("state");
    let (mut directory, _) = open_real(&path);
    let mut life = Life::new();
    life.set("kept", 100);
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    // Before the switch: the new engine is half built.
    let before = temporary.path().join("before");
    copy(&path, &before);
    drop(open_sled(&before.join("engine-000002")).unwrap());
    let (_, loaded) = open_real(&before);
    assert_eq!(loaded.unwrap().meta, life.meta());
    assert!(!before.join("engine-000002").exists());
    // After it: the old one is still there.
    let old = temporary.path().join("old");
    copy(&path.join("engine-000001"), &old);
    life.set("newer", 100);
    life.take();
    directory.replace(&life.state, &life.meta()).unwrap();
    drop(directory);
    copy(&old, &path.join("engine-000001"));
    let (directory, loaded) = open_real(&path);
    assert_eq!(loaded.unwrap().meta, life.meta());
    assert_eq!(directory.name, "engine-000002");
    assert!(!path.join("engine-000001").exists());
}

/// The server ends for want of room and is started again and again meanwhile.
#[test]
fn an_engine_that_does_not_open_for_want_of_room_stays() {
    let disk = FaultDisk::new(1);
    let (mut directory, _) = open(&disk).unwrap();
    let mut life = Life::new();
    life.set("kept", 100);
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    drop(directory);
    let refused: [fn() -> io::Error; 2] = [
        || io::ErrorKind::StorageFull.into(),
        || io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()),
    ];
    for refused in refused {
        for _ in 0..2 {
            let short: OpenEngine = Arc::new(move |_| Err(refused()));
            let opened = StateDirectory::open(Arc::new(disk.clone()), Path::new(PATH), short);
            assert_eq!(opened.err().map(|error| error.kind()), Some(refused().kind()));
        }
    }
    assert_eq!(open(&disk).unwrap().1.unwrap().meta, life.meta());
}

/// sled's threads may hold the file for some time after the engine is dropped.
#[test]
fn an_engine_that_is_still_held_is_waited_for() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("state");
    let (mut directory, _) = open_real(&path);
    let mut life = Life::new();
    life.set("kept", 100);
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    let held = fs::File::open(path.join(&directory.name).join("db")).unwrap();
    drop(directory);
    while rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {}
    let opened = std::thread::scope(|threads| {
        let opening = threads.spawn(|| open_real(&path).1.unwrap().meta);
        while !path.join("OPENING").exists() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(held);
        opening.join().unwrap()
    });
    assert_eq!(opened, life.meta());
}

#[test]
fn a_half_built_state_beside_an_empty_engine_is_removed() {
    let disk = FaultDisk::new(1);
    drop(open(&disk).unwrap());
    for _ in 0..3 {
        let half = Path::new(PATH).join("engine-000002");
        disk.create_dir_all(&half).unwrap();
        let (directory, loaded) = open(&disk).unwrap();
        assert!(loaded.is_none() && !disk.exists(&half).unwrap());
        assert_eq!(directory.name, "engine-000001");
    }
}

#[test]
fn an_opening_mark_sets_sled_aside() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("state");
    let (mut directory, _) = open_real(&path);
    let mut life = Life::new();
    life.set("row", 10);
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    drop(directory);
    fs::write(path.join("OPENING"), "").unwrap();
    let (directory, loaded) = open_real(&path);
    assert!(loaded.is_none());
    assert!(path.join("set-aside/db").exists());
    assert!(!path.join("OPENING").exists());
    assert_eq!(directory.name, "engine-000002", "the name of what is set aside is not used again");
    drop(directory);
    assert!(open_real(&path).1.is_none(), "it does not come back by itself");
}

/// The keys of an engine that begin with this byte.
fn count(directory: &StateDirectory, first: u8) -> usize {
    let mut found = 0;
    let mut count = |key: &[u8], _: &[u8]| {
        found += usize::from(key.first() == Some(&first));
        Ok(())
    };
    directory.engine.iterate(&mut count).unwrap();
    found
}

#[test]
fn sessions_share_values_and_go_with_them() {
    let disk = FaultDisk::new(1);
    let (mut directory, _) = open(&disk).unwrap();
    let mut life = Life::new();
    let window = fsm::limits::SESSION_MS_MAX;
    let sessions = fsm::table::TableId::Sessions.byte();
    life.request(window, 300);
    write(&mut directory, life.take()).unwrap();
    let packs = count(&directory, PACK);
    assert!((2..100).contains(&packs), "300 sessions are in {packs} values");
    life.request(window + window / 2, 300);
    write(&mut directory, life.take()).unwrap();
    assert_eq!(count(&directory, sessions), 0, "none has a value of its own");
    directory.barrier().unwrap();
    drop(directory);

    let (mut directory, loaded) = open(&disk).unwrap();
    let mut life = Life::from(loaded.unwrap().state);
    assert_eq!(life.state.sessions().len(), 600);
    // The first 300 are out of the window one by one, in packs that were loaded.
    for late in [10, 200, 1_000] {
        life.request(window * 2 + late, 1);
        write(&mut directory, life.take()).unwrap();
        directory.barrier().unwrap();
        let (_, loaded) = open(&disk).unwrap();
        assert_eq!(loaded.unwrap().state.digest(), life.state.digest(), "after {late}");
    }
    assert_eq!(life.state.sessions().len(), 303);
    life.request(window * 9, 1);
    write(&mut directory, life.take()).unwrap();
    assert_eq!(life.state.sessions().len(), 1);
    assert_eq!(count(&directory, PACK), 1, "the packs of sessions that are gone are gone");
}

#[test]
fn sessions_of_before_there_were_packs_load_and_go() {
    let disk = FaultDisk::new(1);
    let (mut directory, _) = open(&disk).unwrap();
    let mut life = Life::new();
    life.request(1, 5);
    let group = life.take();
    let rows = group.changes.rows.into_iter();
    let rows = rows.map(|change| (change.key, change.row.map(|row| row.frame())));
    let meta = (Bytes::from_static(META_KEY), Some(group.meta.encode()));
    directory.engine.write(&mut rows.chain([meta])).unwrap();
    directory.barrier().unwrap();
    drop(directory);
    let (mut directory, loaded) = open(&disk).unwrap();
    let mut life = Life::from(loaded.unwrap().state);
    let sessions = fsm::table::TableId::Sessions.byte();
    assert_eq!((life.state.sessions().len(), count(&directory, sessions)), (5, 5));
    life.request(fsm::limits::SESSION_MS_MAX * 3, 1);
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    assert_eq!(count(&directory, sessions), 0);
    assert_eq!(open(&disk).unwrap().1.unwrap().state.digest(), life.state.digest());
}

/// An engine that counts the rows it is given.
struct Counting(Box<dyn Engine>, Arc<std::sync::atomic::AtomicUsize>);

impl Engine for Counting {
    fn read(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        self.0.read(key)
    }
    fn iterate(&self, visit: Visit<'_>) -> io::Result<()> {
        self.0.iterate(visit)
    }
    fn write(&mut self, rows: Rows<'_>) -> io::Result<()> {
        let mut counted = rows.inspect(|_| {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        self.0.write(&mut counted)
    }
    fn barrier(&mut self) -> io::Result<()> {
        self.0.barrier()
    }
    fn disk_bytes(&self) -> u64 {
        self.0.disk_bytes()
    }
}

#[tokio::test]
async fn changes_of_a_row_that_wait_together_are_written_once_and_a_barrier_has_all() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("state");
    let written = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    let open: OpenEngine =
        Arc::new(move |path| Ok(Box::new(Counting(open_sled(path)?, Arc::clone(&counter)))));
    let (shadow, _) = Shadow::open(Arc::new(RealDisk), &path, Arc::clone(&open)).unwrap();
    let mut life = Life::new();
    for number in 0..500 {
        life.set("hot", 10 + number);
        shadow.write(life.take()).await.unwrap();
    }
    assert_eq!(shadow.barrier().await.unwrap(), life.index());
    assert_eq!(shadow.lag().groups, 0);
    let rows = written.load(std::sync::atomic::Ordering::Relaxed);
    assert!(rows < 100, "{rows} rows were written for 500 changes of one");
    life.set("late", 10);
    shadow.write(life.take()).await.unwrap();
    shadow.close().await;
    assert!(shadow.write(life.take()).await.is_err(), "it is closed");
    let (_, loaded) = open_real(&path);
    assert_eq!(loaded.unwrap().state.digest(), life.state.digest());
}
