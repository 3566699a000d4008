//! Crashes between every two steps of a snapshot, full disks, every kind of damage to a file, and
//! files of another generation.
#![expect(clippy::unwrap_used, reason = "tests")]

use fsm::{GENERATION, generation::WHAT_TO_DO, table::TableId};
use ground::disk::fault::FaultDisk;

use super::*;
use crate::storage::testing::Life;

const PATH: &str = "/server/snapshots";

fn open(disk: &FaultDisk) -> SnapshotDirectory {
    SnapshotDirectory::open(Arc::new(disk.clone()), Path::new(PATH)).unwrap()
}

fn life() -> Life {
    let mut life = Life::new();
    life.set("short", 10);
    life.set("another", 2_000);
    life
}

#[test]
fn a_written_snapshot_is_read_and_the_older_goes() {
    let disk = FaultDisk::new(1);
    let directory = open(&disk);
    assert!(directory.newest().unwrap().is_none());
    assert!(directory.newest_meta().unwrap().is_none());
    let mut life = life();
    life.set("long", CHUNK_BYTES * 2 + 3);
    let first = directory.write(&life.state, &life.meta()).unwrap();
    let (before, of_before) = (life.state.clone(), life.meta());
    life.set("more", 10);
    let second = directory.write(&life.state, &life.meta()).unwrap();
    assert!(!disk.exists(&first).unwrap());
    // One that was begun before a newer one came ends after it.
    directory.write(&before, &of_before).unwrap();
    let (path, loaded) = directory.newest().unwrap().unwrap();
    assert_eq!(path, second);
    assert_eq!(loaded.meta, life.meta());
    assert_eq!(loaded.state.digest(), life.state.digest());
    assert_eq!(directory.newest_meta().unwrap().unwrap(), (second, life.meta()));
}

/// Does something right after the next time that a directory was listed.
#[derive(Debug)]
struct Racing {
    disk: FaultDisk,
    next: std::sync::Mutex<Option<fn(&FaultDisk)>>,
}

impl Disk for Racing {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let names = self.disk.list(directory);
        if let Some(act) = self.next.lock().unwrap().take() {
            act(&self.disk);
        }
        names
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }
}

/// A snapshot is built by a task of its own while one is sent, or another is installed.
#[test]
fn a_file_that_is_replaced_since_it_was_listed_harms_nobody() {
    let disk = FaultDisk::new(1);
    let racing = Arc::new(Racing { disk: disk.clone(), next: None.into() });
    let directory = SnapshotDirectory::open(Arc::clone(&racing) as _, Path::new(PATH)).unwrap();
    let mut life = life();
    directory.write(&life.state, &life.meta()).unwrap();

    *racing.next.lock().unwrap() = Some(|disk| {
        let mut life = self::life();
        life.set("more", 10);
        open(disk).write(&life.state, &life.meta()).unwrap();
    });
    let found = directory.newest_meta().unwrap().map(|(_, meta)| meta);
    life.set("more", 10);
    assert_eq!(found, Some(life.meta()), "the one that took its place");

    *racing.next.lock().unwrap() = Some(|disk| {
        let oldest = open(disk).names().unwrap().into_iter().min().unwrap();
        disk.remove_file(&Path::new(PATH).join(oldest)).unwrap();
    });
    life.set("most", 10);
    directory.write(&life.state, &life.meta()).unwrap();
    assert_eq!(names(&disk).len(), 1);
}

/// Found by the simulation: one failed read took the only snapshot away from a log that was purged
/// up to it.
#[test]
fn a_file_that_cannot_be_read_is_not_set_aside() {
    let disk = FaultDisk::new(1);
    let directory = open(&disk);
    let life = life();
    let path = directory.write(&life.state, &life.meta()).unwrap();
    let mut failures = 0;
    for calls in 0.. {
        disk.fail_read_after(calls);
        let meta = directory.newest_meta();
        let whole = directory.newest();
        assert!(disk.exists(&path).unwrap(), "read {calls}");
        if let (Ok(_), Ok(_)) = (&meta, &whole) {
            break;
        }
        failures += 1;
        for error in [meta.err(), whole.err()].into_iter().flatten() {
            assert_ne!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
    assert!(failures > 4, "each of its reads failed once");
    disk.fail_read_after(u64::MAX);
    assert_eq!(directory.newest_meta().unwrap().unwrap(), (path, life.meta()));
}

#[test]
fn a_crash_between_any_two_steps_leaves_the_old_or_the_new_file() {
    for stop in 0.. {
        let mut ended = false;
        for cut in 0..12 {
            let disk = FaultDisk::new(stop);
            let mut life = life();
            let old = life.meta();
            open(&disk).write(&life.state, &old).unwrap();
            life.set("newer", 3_000);
            let new = life.meta();
            disk.stop_after(stop);
            let directory = SnapshotDirectory::open(Arc::new(disk.clone()), Path::new(PATH));
            let written = directory.and_then(|directory| directory.write(&life.state, &new));
            ended = written.is_ok() && !disk.is_stopped();
            if cut < 6 {
                disk.kill();
            } else {
                disk.power_cut(cut);
            }
            let directory = open(&disk);
            let (_, loaded) = directory.newest().unwrap().unwrap();
            let context = format!("stopped at {stop}, cut {cut}");
            assert!(loaded.meta == new || loaded.meta == old, "{context}");
            assert!(written.is_err() || loaded.meta == new, "{context}: it was said to be there");
            let names = disk.list(Path::new(PATH)).unwrap();
            assert!(names.iter().all(|name| name.ends_with(".snapshot")), "{context}: {names:?}");
            disk.power_cut(cut);
            let again = open(&disk).newest_meta().unwrap().unwrap().1;
            assert_eq!(again, loaded.meta, "{context}: what was seen is durable");
            // And the next one works.
            life.set("next", 10);
            directory.write(&life.state, &life.meta()).unwrap();
            assert_eq!(directory.newest().unwrap().unwrap().1.meta, life.meta());
            assert_eq!(disk.list(Path::new(PATH)).unwrap().len(), 1, "{context}");
        }
        if ended {
            assert!(stop > 8, "the disk was stopped at {stop} places only");
            return;
        }
    }
}

#[test]
fn a_received_file_is_adopted_whole_or_not_at_all() {
    let source = FaultDisk::new(1);
    let mut life = life();
    let path = open(&source).write(&life.state, &life.meta()).unwrap();
    let bytes = source.read(&path).unwrap();
    let meta = life.meta();
    for stop in 0.. {
        let disk = FaultDisk::new(stop);
        let directory = open(&disk);
        disk.stop_after(stop);
        let receive = || -> io::Result<PathBuf> {
            let (incoming, file) = directory.receive("1-3-100")?;
            let half = bytes.len() / 2;
            file.write_all_at(&bytes[..half], 0)?;
            file.write_all_at(&bytes[half..], half as u64)?;
            file.sync_all()?;
            drop(file);
            directory.adopt(&incoming, &meta)
        };
        let adopted = receive();
        let ended = adopted.is_ok() && !disk.is_stopped();
        disk.power_cut(stop);
        let found = open(&disk).newest().unwrap();
        assert!(adopted.is_err() || found.is_some(), "stopped at {stop}");
        assert!(found.is_none_or(|(_, loaded)| loaded.meta == meta), "stopped at {stop}");
        if ended {
            break;
        }
    }
    // A part of a file is no file.
    let disk = FaultDisk::new(7);
    let directory = open(&disk);
    let (incoming, file) = directory.receive("1-3-100").unwrap();
    file.write_all_at(&bytes[..bytes.len() - 1], 0).unwrap();
    assert!(directory.adopt(&incoming, &meta).is_err());
    assert!(directory.newest().unwrap().is_none());
    life.set("own", 1);
}

#[test]
fn a_piece_that_was_not_synced_begins_the_transfer_anew() {
    let disk = FaultDisk::new(1);
    let directory = open(&disk);
    let part = |offset| Received::Part(offset);
    assert_eq!(directory.receive_piece("1-3-6", 0, b"abc", false).unwrap(), part(3));
    disk.fail_sync_after(0);
    assert!(directory.receive_piece("1-3-6", 3, b"def", true).is_err());
    // What the failed sync has lost, another one would not write.
    assert_eq!(directory.receive_piece("1-3-6", 3, b"def", true).unwrap(), part(0));
    assert_eq!(directory.receive_piece("1-3-6", 0, b"abc", false).unwrap(), part(3));
    let whole = directory.receive_piece("1-3-6", 3, b"def", true).unwrap();
    assert!(matches!(whole, Received::Whole(_)));
    // Nor is room kept for what did not fit.
    assert_eq!(directory.receive_piece("1-4-6", 0, b"abc", false).unwrap(), part(3));
    disk.set_capacity(Some(disk.used_bytes()));
    assert!(directory.receive_piece("1-4-6", 3, b"def", false).is_err());
    assert!(!disk.list(Path::new(PATH)).unwrap().contains(&"1-4-6.incoming".to_owned()));
}

#[test]
fn a_flipped_byte_anywhere_is_refused() {
    let disk = FaultDisk::new(3);
    let life = life();
    let path = open(&disk).write(&life.state, &life.meta()).unwrap();
    let bytes = disk.read(&path).unwrap();
    for offset in 0..bytes.len() {
        let mask = 1 << (offset % 8);
        disk.corrupt(&path, offset, mask);
        let error = read(&disk, &path).err();
        let error = error.unwrap_or_else(|| panic!("a flip at {offset} went unnoticed"));
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert!(check(&disk, &path).is_err(), "a flip at {offset}");
        disk.corrupt(&path, offset, mask);
    }
    read(&disk, &path).unwrap();
}

#[test]
fn a_torn_file_is_refused_at_every_length() {
    let disk = FaultDisk::new(4);
    let life = life();
    let path = open(&disk).write(&life.state, &life.meta()).unwrap();
    let bytes = disk.read(&path).unwrap();
    for length in 0..bytes.len() {
        disk.replace(&path, &bytes[..length]);
        assert!(read(&disk, &path).is_err(), "{length} of {} bytes", bytes.len());
    }
    let mut longer = bytes.clone();
    longer.push(0);
    disk.replace(&path, &longer);
    assert!(read(&disk, &path).is_err(), "a byte after the end");
}

#[test]
fn a_damaged_file_is_set_aside_and_an_older_whole_one_is_used() {
    let disk = FaultDisk::new(5);
    let mut life = life();
    let directory = open(&disk);
    let old = directory.write(&life.state, &life.meta()).unwrap();
    let old_meta = life.meta();
    let bytes = disk.read(&old).unwrap();
    life.set("newer", 10);
    let new = directory.write(&life.state, &life.meta()).unwrap();
    disk.replace(&old, &bytes);
    let size = disk.read(&new).unwrap().len();
    disk.corrupt(&new, size / 2, 4);
    let directory = open(&disk);
    assert_eq!(directory.newest_meta().unwrap().unwrap(), (old.clone(), old_meta.clone()));
    assert_eq!(directory.newest().unwrap().unwrap().1.meta, old_meta);
    assert!(disk.exists(&new.with_extension("damaged")).unwrap());
    assert!(!disk.exists(&new).unwrap());
}

/// What is in the directory, by name.
fn names(disk: &FaultDisk) -> Vec<String> {
    disk.list(Path::new(PATH)).unwrap()
}

#[test]
fn a_snapshot_without_room_is_put_off_until_it_fits_and_leaves_nothing_behind() {
    let mut life = life();
    for name in ["a", "b", "c"] {
        life.set(name, CHUNK_BYTES);
    }
    let measured = FaultDisk::new(1);
    let path = open(&measured).write(&life.state, &life.meta()).unwrap();
    let size = measured.read(&path).unwrap().len() as u64;

    let disk = FaultDisk::new(1);
    let directory = open(&disk);
    assert!(directory.has_room() && !directory.is_put_off());
    disk.set_capacity(Some(RESERVE_BYTES + size - 1));
    assert!(directory.has_room(), "nothing is known of the size yet");
    assert!(directory.write_if_room(&life.state, &life.meta()).unwrap().is_none());
    assert!(directory.is_put_off() && !directory.has_room());
    assert_eq!(names(&disk), [""; 0]);
    disk.set_capacity(Some(RESERVE_BYTES + size));
    assert!(directory.has_room() && !directory.is_put_off());
    assert!(directory.write_if_room(&life.state, &life.meta()).unwrap().is_some());
    // The next one is taken to be as large.
    assert!(!directory.has_room() && directory.is_put_off());

    // One that cannot wait takes what there is; if that is not enough, the log gets it back.
    life.set("newer", 10);
    let used = disk.used_bytes();
    disk.set_capacity(Some(used + size / 2));
    let error = directory.write(&life.state, &life.meta()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!((disk.used_bytes(), names(&disk).len()), (used, 1));
    disk.set_capacity(Some(used + size * 2));
    directory.write(&life.state, &life.meta()).unwrap();
}

/// A file with one row, as another binary writes it.
fn put_file(disk: &FaultDisk, magic: &[u8], meta: &[u8], key: &[u8], frame: &[u8]) {
    let path = Path::new(PATH).join(format!("{:020}-{:020}.snapshot", 900, 1));
    let file = disk.open(&path, OpenMode::CreateNew).unwrap();
    let mut write = |bytes: &[u8], offset: u64| file.write_all_at(bytes, offset);
    let mut output = Output { write: &mut write, offset: 0 };
    output.put(magic).unwrap();
    output.chunk(meta).unwrap();
    let mut rows = Vec::new();
    put_row(&mut rows, key, frame).unwrap();
    output.chunk(&rows).unwrap();
    output.end(1).unwrap();
}

/// The same frame, of the generation after it.
fn raised(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[4] += 1;
    frame
}

#[test]
fn a_file_of_another_generation_is_refused_and_no_name_changes() {
    let life = life();
    let meta = life.meta().encode();
    let (key, frame) = life.state.frames().next().unwrap();
    let unknown_table = [99u8, 1];
    assert!(TableId::from_byte(99).is_none());
    let newer: [[&[u8]; 4]; 4] = [
        [b"QRSNAP01", &meta, &key, &frame],
        [&MAGIC, &raised(&meta), &key, &frame],
        [&MAGIC, &meta, &key, &raised(&frame)],
        [&MAGIC, &meta, &unknown_table, &frame],
    ];
    for (number, [magic, meta, key, frame]) in newer.into_iter().enumerate() {
        let disk = FaultDisk::new(1);
        let old = open(&disk).write(&life.state, &life.meta()).unwrap();
        put_file(&disk, magic, meta, key, frame);
        if number < 2 {
            // Not even what is damaged is set aside.
            disk.corrupt(&old, 40, 1);
        }
        let before = names(&disk);
        let opened = SnapshotDirectory::open(Arc::new(disk.clone()), Path::new(PATH));
        let found = opened.and_then(|directory| directory.newest());
        let error = found.err().unwrap().to_string();
        assert!(error.ends_with(WHAT_TO_DO), "{number}: {error}");
        let generation = [1, GENERATION + 1, GENERATION + 1].get(number).copied();
        if let Some(found) = generation {
            let both =
                format!("of generation {found}, this binary reads generation {GENERATION}: ");
            assert!(error.contains(&both), "{number}: {error}");
        }
        assert!(error.contains("0900-"), "{number}: the file is not named: {error}");
        assert_eq!(names(&disk), before, "{number}");
    }
}

#[test]
fn a_transfer_takes_the_place_of_those_that_were_interrupted() {
    let source = FaultDisk::new(1);
    let mut life = life();
    life.set("more", 10);
    let path = open(&source).write(&life.state, &life.meta()).unwrap();
    let bytes = source.read(&path).unwrap();
    let (half, index) = (bytes.len() / 2, life.index());
    let whole = format!("1-{index}-{}", bytes.len());
    let older = format!("1-{}-1000", index - 1);
    let newer = format!("1-{}-1000", index + 1);
    let disk = FaultDisk::new(2);
    let directory = open(&disk);
    let receive = |name: &str, offset: usize, piece: &[u8], done: bool| {
        directory.receive_piece(name, offset as u64, piece, done).unwrap()
    };
    let incoming = |transfers: &[&String]| -> Vec<String> {
        transfers.iter().map(|name| format!("{name}.incoming")).collect()
    };

    assert_eq!(receive(&older, 0, &[1; 400], false), Received::Part(400));
    assert_eq!(names(&disk), incoming(&[&older]));
    assert_eq!(receive(&whole, 0, &bytes[..half], false), Received::Part(half as u64));
    assert_eq!(names(&disk), incoming(&[&whole]));
    // The other leader is still at it: it begins anew, and disturbs nobody.
    assert_eq!(receive(&older, 400, &[1; 400], false), Received::Part(0));
    assert_eq!(receive(&older, 0, &[1; 400], false), Received::Part(400));
    assert_eq!(names(&disk), incoming(&[&older, &whole]));
    let received = receive(&whole, half, &bytes[half..], true);
    let Received::Whole(received) = received else { panic!("{received:?}") };
    // What is whole waits for openraft.
    receive(&newer, 0, &[1; 10], false);
    assert_eq!(names(&disk), incoming(&[&whole, &newer]));
    let adopted = directory.adopt(&received, &life.meta()).unwrap();
    // Sent once more because the answer was late: nobody needs it.
    assert_eq!(receive(&whole, 0, &bytes, true), Received::Whole(received));
    let newest = format!("1-{}-1000", index + 2);
    receive(&newest, 0, &[1; 10], false);
    let mut expected = incoming(&[&newest]);
    expected.insert(0, adopted.file_name().unwrap().to_str().unwrap().to_owned());
    assert_eq!(names(&disk), expected);
}
