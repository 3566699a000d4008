//! Crashes between every two steps of a snapshot, and every kind of damage to a file.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{disk::fault::FaultDisk, storage::testing::Life};

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
fn what_is_written_is_read_and_the_older_goes() {
    let disk = FaultDisk::new(1);
    let directory = open(&disk);
    assert!(directory.newest().unwrap().is_none());
    assert!(directory.newest_meta().unwrap().is_none());
    let mut life = life();
    life.set("long", CHUNK_BYTES * 2 + 3);
    let first = directory.write(&life.state, &life.meta()).unwrap();
    life.set("more", 10);
    let second = directory.write(&life.state, &life.meta()).unwrap();
    assert!(!disk.exists(&first).unwrap());
    let (path, loaded) = directory.newest().unwrap().unwrap();
    assert_eq!(path, second);
    assert_eq!(loaded.meta, life.meta());
    assert_eq!(loaded.state.digest(), life.state.digest());
    assert_eq!(directory.newest_meta().unwrap().unwrap(), (second, life.meta()));
}

/// Found by the simulation: one failed read took the only snapshot away from a log that was purged up to it.
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
        for cut in 0..6 {
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
            if cut == 0 {
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
