//! Tests of the fault disk: it must be as cruel as it says, and no crueller.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

const PATH: &str = "/data/file";

fn written(seed: u64) -> (FaultDisk, Box<dyn DiskFile>) {
    let disk = FaultDisk::new(seed);
    disk.create_dir_all(Path::new("/data")).unwrap();
    let file = disk.open(Path::new(PATH), OpenMode::CreateNew).unwrap();
    file.write_all_at(&[1; 2048], 0).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir(Path::new("/data")).unwrap();
    (disk, file)
}

#[test]
fn synced_bytes_and_names_survive_any_power_cut() {
    for seed in 0..200 {
        let (disk, file) = written(seed);
        file.write_all_at(&[2; 2048], 2048).unwrap();
        disk.power_cut(seed);
        let image = disk.read(Path::new(PATH)).unwrap();
        assert_eq!(image[..2048], [1; 2048]);
        assert!(image[2048..].chunks(SECTOR).all(|part| part.iter().all(|b| *b == part[0])));
        assert!(file.sync_data().is_err(), "handles die with the process");
    }
}

#[test]
fn unsynced_bytes_are_sometimes_lost_kept_and_torn_out_of_order() {
    let (mut lost, mut kept, mut holes) = (0, 0, 0);
    for seed in 0..200 {
        let (disk, file) = written(seed);
        file.write_all_at(&[2; 2048], 0).unwrap();
        disk.power_cut(seed);
        let image = disk.read(Path::new(PATH)).unwrap();
        let sectors: Vec<u8> = image.chunks(SECTOR).map(|sector| sector[0]).collect();
        lost += u32::from(sectors == [1; 4]);
        kept += u32::from(sectors == [2; 4]);
        holes += u32::from(sectors.windows(2).any(|pair| pair == [1, 2]));
    }
    assert!(lost > 20 && kept > 20 && holes > 10, "{lost} {kept} {holes}");
}

#[test]
fn an_unsynced_name_can_vanish_and_a_kill_keeps_it() {
    let mut vanished = 0;
    for seed in 0..100 {
        let (disk, _) = written(seed);
        disk.rename(Path::new(PATH), Path::new("/data/other")).unwrap();
        disk.kill();
        assert_eq!(disk.list(Path::new("/data")).unwrap(), ["other"]);
        disk.power_cut(seed);
        vanished += u32::from(disk.list(Path::new("/data")).unwrap() == ["file"]);
    }
    assert!((20..80).contains(&vanished), "{vanished}");
}

#[test]
fn a_removed_directory_comes_back_with_its_files_until_the_one_above_is_synced() {
    let mut back = 0;
    for seed in 0..100 {
        for synced in [false, true] {
            let (disk, _) = written(seed);
            disk.remove_dir_all(Path::new("/data")).unwrap();
            if synced {
                disk.sync_dir(Path::new("/")).unwrap();
            }
            let durable = disk.durable_copy();
            disk.power_cut(seed);
            let there = disk.exists(Path::new(PATH)).unwrap();
            for (disk, there) in [(&durable, !synced), (&disk, there)] {
                assert_eq!(disk.exists(Path::new(PATH)).unwrap(), there, "seed {seed}");
                assert_eq!(disk.list(Path::new("/")).unwrap() == ["data"], there, "seed {seed}");
            }
            assert!(!(there && synced), "seed {seed}: its removal was durable");
            back += u32::from(there);
        }
    }
    assert!((20..80).contains(&back), "{back}");
}

#[test]
fn a_failed_sync_leaves_clean_pages_that_are_not_durable() {
    let mut lost = 0;
    for seed in 0..50 {
        let (disk, file) = written(seed);
        file.write_all_at(&[2; 512], 0).unwrap();
        disk.fail_sync_after(0);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(disk.read(Path::new(PATH)).unwrap()[0], 2, "still in the page cache");
        disk.power_cut(seed);
        lost += u32::from(disk.read(Path::new(PATH)).unwrap()[0] == 1);
    }
    assert!((10..40).contains(&lost), "{lost}");
}

#[test]
fn a_full_disk_writes_what_fits() {
    let (disk, file) = written(1);
    disk.set_capacity(Some(2560));
    let error = file.write_all_at(&[3; 1024], 2048).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.size().unwrap(), 2560);
    assert_eq!(disk.free_bytes(Path::new("/")).unwrap(), 0);
    file.write_all_at(&[3; 1024], 0).unwrap();
}

#[test]
fn a_stopped_disk_refuses_everything_until_the_restart() {
    let (disk, file) = written(1);
    disk.stop_after(1);
    file.write_all_at(&[2; 512], 0).unwrap();
    assert!(file.sync_data().is_err());
    assert!(disk.is_stopped());
    assert!(disk.read(Path::new(PATH)).is_err());
    disk.kill();
    assert_eq!(disk.read(Path::new(PATH)).unwrap()[0], 2);
}

#[test]
fn a_disk_stops_in_a_directory_it_is_told_of() {
    let (disk, file) = written(1);
    disk.create_dir_all(Path::new("/snapshots")).unwrap();
    disk.stop_after_touching("/snapshots", 1);
    file.write_all_at(&[2; 512], 0).unwrap();
    file.sync_data().unwrap();
    let other = disk.open(Path::new("/snapshots/1"), OpenMode::CreateNew).unwrap();
    assert!(other.write_all_at(&[1; 512], 0).is_err(), "the operation after the first one");
    assert!(disk.is_stopped());
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let run = |seed| {
        let (disk, file) = written(seed);
        for number in 0..20_u8 {
            file.write_all_at(&[number; 1500], u64::from(number) * 700).unwrap();
        }
        disk.power_cut(seed);
        disk.read(Path::new(PATH)).unwrap()
    };
    let runs = |seeds: std::ops::Range<u64>| seeds.map(run).collect::<Vec<_>>();
    assert_eq!(runs(0..10), runs(0..10));
    assert_ne!(runs(0..10), runs(10..20));
}

#[test]
fn a_durable_copy_holds_what_is_synced_and_nothing_else() {
    let (disk, file) = written(1);
    file.write_all_at(&[2; 512], 0).unwrap();
    disk.open(Path::new("/data/unsynced"), OpenMode::CreateNew).unwrap();
    let copy = disk.durable_copy();
    assert_eq!(copy.read(Path::new(PATH)).unwrap(), [1; 2048]);
    assert_eq!(copy.files(), [(PathBuf::from(PATH), 2048)]);
    assert_eq!(disk.files().len(), 2);
    assert_eq!(disk.used_bytes(), 2048);
    assert_eq!(disk.read(Path::new(PATH)).unwrap()[0], 2, "the disk itself goes on");
}
