//! Tests of the log: round trips, damage, full and failing disks. Crashes are in `crash`.
#![expect(clippy::unwrap_used, reason = "tests")]

mod crash;

use super::format::SECTOR;
use super::*;
use fsm::{GENERATION, generation::WHAT_TO_DO};
use ground::{disk::RealDisk, disk::fault::FaultDisk};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

const DIRECTORY: &str = "/data/log";

/// Small enough that a few entries fill a segment.
fn options() -> Options {
    Options {
        segment_bytes_first: 4096,
        segment_bytes_max: 16 << 10,
        batch_entries_max: 8,
        batch_bytes_max: 4096,
        queue_bytes_max: 1 << 20,
        cache_bytes_max: 2000,
    }
}

fn open(disk: &FaultDisk) -> (Wal, WalWriter, Recovery) {
    Wal::open(Arc::new(disk.clone()), Path::new(DIRECTORY), options()).unwrap()
}

fn open_error(disk: &FaultDisk) -> OpenError {
    Wal::open(Arc::new(disk.clone()), Path::new(DIRECTORY), options()).map(|_| ()).unwrap_err()
}

fn id(index: u64, term: u64) -> EntryId {
    EntryId { index, term }
}

/// An entry whose payload follows from its id, of 0 to 699 bytes.
fn entry(index: u64, term: u64) -> LogEntry {
    let length = usize::try_from((index * 37 + term * 101) % 700).unwrap();
    let payload =
        (0..length).map(|at| (at as u64 * 7 + index + term).to_le_bytes()[0]).collect::<Vec<_>>();
    LogEntry { id: id(index, term), payload: payload.into() }
}

fn entries(range: Range<u64>, term: u64) -> Vec<LogEntry> {
    range.map(|index| entry(index, term)).collect()
}

fn ignore() -> Done {
    Box::new(drop)
}

fn acked() -> (Done, Arc<Mutex<Option<io::Result<()>>>>) {
    let slot = Arc::new(Mutex::new(None));
    let inside = Arc::clone(&slot);
    let done = Box::new(move |result| {
        let before = inside.lock().unwrap().replace(result);
        assert!(before.is_none(), "done is called once");
    });
    (done, slot)
}

fn drain(writer: &mut WalWriter) {
    while writer.step().unwrap() {}
}

/// Appends each entry in a batch of its own.
fn append_each(wal: &Wal, writer: &mut WalWriter, entries: Vec<LogEntry>) {
    for entry in entries {
        wal.append(vec![entry], ignore()).unwrap();
        drain(writer);
    }
}

fn check_entries(wal: &Wal, expected: &[LogEntry]) {
    let mut found: Vec<LogEntry> = Vec::new();
    loop {
        let next = found.last().map_or(0, |entry: &LogEntry| entry.id.index + 1);
        let more = wal.read(next..u64::MAX, 1000).unwrap();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    let ids = |entries: &[LogEntry]| entries.iter().map(|entry| entry.id).collect::<Vec<_>>();
    assert_eq!(ids(&found), ids(expected));
    assert_eq!(found, expected);
}

fn segment_files(disk: &FaultDisk) -> Vec<PathBuf> {
    let names = disk.list(Path::new(DIRECTORY)).unwrap();
    names
        .into_iter()
        .filter(|name| segment::number_in(name).is_some())
        .map(|name| Path::new(DIRECTORY).join(name))
        .collect()
}

#[test]
fn entries_are_readable_before_they_are_durable_and_after_a_reopen() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, recovery) = open(&disk);
    assert_eq!(recovery, Recovery { segments: 1, ..Recovery::default() });
    assert_eq!((wal.first(), wal.last(), wal.vote(), wal.committed()), (None, None, None, None));
    let (done, slot) = acked();
    wal.append(entries(0..5, 1), done).unwrap();
    wal.save_vote(Bytes::from_static(b"me"), ignore()).unwrap();
    check_entries(&wal, &entries(0..5, 1));
    assert!(slot.lock().unwrap().is_none());
    assert_eq!(wal.vote().as_deref(), Some(&b"me"[..]));
    drain(&mut writer);
    assert!(matches!(*slot.lock().unwrap(), Some(Ok(()))));
    drop(writer);

    let (wal, mut writer, recovery) = open(&disk);
    assert_eq!((recovery.entries, recovery.copied), (5, true));
    check_entries(&wal, &entries(0..5, 1));
    assert_eq!((wal.first(), wal.last()), (Some(0), Some(id(4, 1))));
    assert_eq!(wal.vote().as_deref(), Some(&b"me"[..]));
    append_each(&wal, &mut writer, entries(5..7, 2));
    drop(writer);
    check_entries(&open(&disk).0, &[entries(0..5, 1), entries(5..7, 2)].concat());
}

#[test]
fn a_reopen_without_writes_makes_no_new_segment() {
    let disk = FaultDisk::new(1);
    drop(open(&disk));
    for _ in 0..5 {
        let (_, _, recovery) = open(&disk);
        assert_eq!((recovery.segments, recovery.copied), (1, false));
    }
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..2, 1));
    drop(writer);
    for _ in 0..5 {
        let (wal, _, recovery) = open(&disk);
        assert_eq!(recovery.segments, 2);
        check_entries(&wal, &entries(0..2, 1));
    }
}

#[test]
fn a_log_spans_many_segments_and_is_read_within_a_byte_cap() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..300, 3));
    let stats = wal.stats();
    assert!(stats.segments > 8 && stats.rollovers == stats.segments - 1, "{stats:?}");
    assert_eq!((stats.entries, stats.batches), (300, 300));
    assert!(stats.cache_bytes <= 2000 && stats.queue_bytes == 0, "{stats:?}");
    check_entries(&wal, &entries(0..300, 3));
    assert_eq!(wal.read(10..300, 0).unwrap().len(), 1);
    assert_eq!(wal.read(295..999, usize::MAX).unwrap(), entries(295..300, 3));
    assert_eq!(wal.read(10..10, 999).unwrap(), []);
    let disk_bytes = segment_files(&disk).iter().map(|file| disk.read(file).unwrap().len()).sum();
    assert_eq!(usize::try_from(stats.disk_bytes), Ok(disk_bytes));
    drop(writer);
    let (wal, _, _) = open(&disk);
    check_entries(&wal, &entries(0..300, 3));
    assert_eq!(wal.id(150), Some(id(150, 3)));
}

/// Also when the next segment has been made already, of the usual size, because this one is half
/// full.
#[test]
fn a_batch_larger_than_a_segment_gets_a_larger_one() {
    for before in 0..24 {
        let disk = FaultDisk::new(1);
        let (wal, mut writer, _) = open(&disk);
        let large = |index| LogEntry { id: id(index, 1), payload: vec![7; 70_000].into() };
        let mut all = entries(0..before, 1);
        all.extend([large(before), entry(before + 1, 1), large(before + 2)]);
        append_each(&wal, &mut writer, all.clone());
        drop(writer);
        let (wal, _, _) = open(&disk);
        check_entries(&wal, &all);
    }
}

#[test]
fn a_truncated_index_is_appended_again() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..20, 1));
    wal.truncate_after(Some(9)).unwrap();
    check_entries(&wal, &entries(0..10, 1));
    wal.append(entries(10..15, 2), ignore()).unwrap();
    // Truncated again before anything of it was written.
    wal.truncate_after(Some(11)).unwrap();
    wal.append(entries(12..14, 3), ignore()).unwrap();
    let expected = [entries(0..10, 1), entries(10..12, 2), entries(12..14, 3)].concat();
    check_entries(&wal, &expected);
    drain(&mut writer);
    check_entries(&wal, &expected);
    drop(writer);
    let (wal, mut writer, _) = open(&disk);
    check_entries(&wal, &expected);
    wal.truncate_after(None).unwrap();
    wal.truncate_after(Some(99)).unwrap();
    drain(&mut writer);
    drop(writer);
    let (wal, mut writer, _) = open(&disk);
    assert_eq!((wal.first(), wal.last()), (None, None));
    append_each(&wal, &mut writer, entries(5..6, 4));
    check_entries(&wal, &entries(5..6, 4));
}

#[test]
fn a_purge_removes_old_segments_and_keeps_the_vote() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    wal.save_vote(Bytes::from_static(b"vote of term 3"), ignore()).unwrap();
    append_each(&wal, &mut writer, entries(0..200, 3));
    wal.save_committed(id(180, 3)).unwrap();
    let before = segment_files(&disk).len();
    wal.purge(id(149, 3)).unwrap();
    check_entries(&wal, &entries(150..200, 3));
    assert_eq!(segment_files(&disk).len(), before, "the purge is not durable yet");
    drain(&mut writer);
    assert!(segment_files(&disk).len() < before - 3);
    assert_eq!(wal.stats().segments, segment_files(&disk).len() as u64);
    wal.purge(id(100, 3)).unwrap();
    assert_eq!(wal.purged(), Some(id(149, 3)), "a purge never goes back");
    for _ in 0..3 {
        drop(writer);
        let wal;
        (wal, writer, _) = open(&disk);
        check_entries(&wal, &entries(150..200, 3));
        assert_eq!((wal.purged(), wal.committed()), (Some(id(149, 3)), Some(id(180, 3))));
        assert_eq!(wal.vote().as_deref(), Some(&b"vote of term 3"[..]));
    }
}

#[test]
fn a_purge_beyond_the_end_leaves_an_empty_log_that_goes_on_after_it() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..100, 1));
    wal.purge(id(500, 4)).unwrap();
    drain(&mut writer);
    assert_eq!(segment_files(&disk).len(), 1);
    drop(writer);
    let (wal, mut writer, _) = open(&disk);
    assert_eq!((wal.first(), wal.last(), wal.id(500)), (None, Some(id(500, 4)), Some(id(500, 4))));
    let error = wal.append(entries(100..101, 4), ignore()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = wal.truncate_after(Some(400)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    append_each(&wal, &mut writer, entries(501..503, 4));
    check_entries(&wal, &entries(501..503, 4));
}

#[test]
fn purged_segments_stay_readable_for_a_read_that_began_before() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..200, 3));
    let found = wal.lock().index.select(0..20, usize::MAX);
    let files = wal.lock().segments.clone();
    wal.purge(id(199, 3)).unwrap();
    drain(&mut writer);
    assert_eq!(segment_files(&disk).len(), 1);
    assert_eq!(segment::read_entries(found, &files).unwrap(), entries(0..20, 3));
}

#[test]
fn committed_rides_with_the_next_batch_and_causes_none() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    wal.append(entries(0..9, 1), ignore()).unwrap();
    drain(&mut writer);
    for index in 0..5 {
        wal.save_committed(id(index, 1)).unwrap();
    }
    assert_eq!(wal.committed(), Some(id(4, 1)));
    assert!(!writer.step().unwrap());
    assert_eq!(wal.stats().batches, 1);
    wal.append(entries(9..10, 1), ignore()).unwrap();
    drain(&mut writer);
    wal.save_committed(id(7, 1)).unwrap();
    drop(writer);
    let (wal, mut writer, _) = open(&disk);
    assert_eq!(wal.committed(), Some(id(4, 1)));
    wal.save_committed(id(8, 1)).unwrap();
    wal.close();
    drain(&mut writer);
    drop(writer);
    assert_eq!(open(&disk).0.committed(), Some(id(8, 1)), "a graceful stop writes it");
}

#[test]
fn committed_that_names_an_entry_which_is_not_there_is_not_told() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    wal.append(entries(0..3, 1), ignore()).unwrap();
    wal.save_committed(id(3, 1)).unwrap();
    drain(&mut writer);
    assert_eq!(wal.committed(), None);
    wal.append(entries(3..4, 1), ignore()).unwrap();
    assert_eq!(wal.committed(), Some(id(3, 1)));
}

#[test]
fn done_comes_after_the_sync_and_in_order() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    let order = Arc::new(AtomicUsize::new(0));
    let check = |number: usize| -> Done {
        let (disk, order) = (disk.clone(), Arc::clone(&order));
        Box::new(move |result| {
            result.unwrap();
            assert_eq!(order.fetch_add(1, Ordering::SeqCst), number);
            for file in segment_files(&disk) {
                assert_eq!(disk.unsynced_writes(&file), 0, "{}", file.display());
            }
        })
    };
    for number in 0..100 {
        match number % 3 {
            0 => wal.save_vote(Bytes::from_static(b"vote"), check(number)).unwrap(),
            1 => wal.barrier(check(number)).unwrap(),
            _ => wal
                .append(entries(number as u64 / 3..number as u64 / 3 + 1, 1), check(number))
                .unwrap(),
        }
    }
    let syncs = disk.counters().syncs;
    assert!(writer.begin().unwrap());
    assert_eq!((order.load(Ordering::SeqCst), disk.counters().syncs), (0, syncs));
    writer.finish().unwrap();
    assert!(order.load(Ordering::SeqCst) > 0);
    drain(&mut writer);
    assert_eq!(order.load(Ordering::SeqCst), 100);
    assert!(disk.counters().syncs - syncs < 60, "group commit shares syncs");
}

#[test]
fn a_bad_request_is_refused_and_does_no_harm() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..3, 1));
    let (done, slot) = acked();
    let error = wal.append(vec![entry(3, 1), entry(5, 1)], done).unwrap_err();
    assert_eq!(error.to_string(), "entry 5 appended where 4 must follow");
    assert!(matches!(*slot.lock().unwrap(), Some(Err(_))));
    let huge = LogEntry { id: id(3, 1), payload: vec![0; PAYLOAD_BYTES_MAX + 1].into() };
    assert!(wal.append(vec![huge], ignore()).is_err());
    append_each(&wal, &mut writer, entries(3..4, 1));
    check_entries(&wal, &entries(0..4, 1));
    assert_eq!(wal.poisoned(), None);
    let bad = Options { segment_bytes_first: 5000, ..options() };
    let error = Wal::open(Arc::new(disk), Path::new(DIRECTORY), bad).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Options(_)), "{error}");
}

/// Ten small batches and one of several sectors in one segment; returns its path and the offset
/// of the last batch.
fn ending_in_a_large_batch(disk: &FaultDisk) -> (PathBuf, usize) {
    let big = Options { segment_bytes_first: 32 << 10, segment_bytes_max: 32 << 10, ..options() };
    let (wal, mut writer, _) =
        Wal::open(Arc::new(disk.clone()), Path::new(DIRECTORY), big).unwrap();
    append_each(&wal, &mut writer, entries(0..10, 1));
    let end = usize::try_from(wal.stats().bytes).unwrap();
    wal.append(entries(10..18, 1), ignore()).unwrap();
    drain(&mut writer);
    let file = segment_files(disk).remove(0);
    let first = disk.read(&file).unwrap();
    let start = (0..first.len()).step_by(SECTOR).filter(|at| first[*at..].starts_with(b"QBAT"));
    let start = start.max().unwrap();
    assert!(start >= end);
    (file, start)
}

#[test]
fn a_torn_last_batch_is_cut_at_every_sector_and_refused_within_one() {
    let disk = FaultDisk::new(1);
    let (file, start) = ending_in_a_large_batch(&disk);
    let intact = disk.read(&file).unwrap();
    let end = intact.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(end - start > 4 * SECTOR);
    for cut in (start..end).step_by(SECTOR).chain((start..end).step_by(61)) {
        let mut image = intact.clone();
        image[cut..].fill(0);
        let torn = FaultDisk::new(2);
        torn.create_dir_all(Path::new(DIRECTORY)).unwrap();
        torn.replace(&file, &image);
        let sector = cut - cut % SECTOR;
        let blank = format::is_zero(&image[sector..sector + SECTOR]);
        if !blank && image[sector..sector + SECTOR] != intact[sector..sector + SECTOR] {
            let error = open_error(&torn).to_string();
            assert!(error.contains("is damaged at byte"), "{cut}: {error}");
            continue;
        }
        for _ in 0..3 {
            let (wal, mut writer, recovery) = open(&torn);
            if cut > start {
                assert_eq!(recovery.entries, 10, "{cut}");
            }
            check_entries(&wal, &entries(0..10, 1));
            append_each(&wal, &mut writer, entries(10..12, 2));
            wal.truncate_after(Some(9)).unwrap();
            drain(&mut writer);
        }
    }
}

#[test]
fn sectors_lost_out_of_order_are_cut_and_garbage_is_not() {
    let disk = FaultDisk::new(1);
    let (file, start) = ending_in_a_large_batch(&disk);
    let intact = disk.read(&file).unwrap();
    let torn_at = |sector: usize, fill: u8| {
        let mut image = intact.clone();
        image[start + sector * SECTOR..start + (sector + 1) * SECTOR].fill(fill);
        let torn = FaultDisk::new(2);
        torn.create_dir_all(Path::new(DIRECTORY)).unwrap();
        torn.replace(&file, &image);
        torn
    };
    for sector in 0..4 {
        let (wal, _, recovery) = open(&torn_at(sector, 0));
        assert_eq!(recovery.cut, Some(Cut { file: file.clone(), offset: start as u64 }));
        check_entries(&wal, &entries(0..10, 1));
        assert!(matches!(open_error(&torn_at(sector, 0xA5)), OpenError::Damaged { .. }));
    }
    let mut image = intact.clone();
    let end = image.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    image[end.next_multiple_of(SECTOR) + 100] = 1;
    let garbage = FaultDisk::new(2);
    garbage.create_dir_all(Path::new(DIRECTORY)).unwrap();
    garbage.replace(&file, &image);
    assert!(matches!(open_error(&garbage), OpenError::Damaged { .. }));
}

#[test]
fn a_flipped_byte_anywhere_in_synced_data_is_refused() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..60, 1));
    drop(writer);
    // The reopen seals the segment before, so that everything in it counts as durable.
    let (_, writer, _) = open(&disk);
    drop(writer);
    let files = segment_files(&disk);
    for (number, file) in files.iter().enumerate() {
        let image = disk.read(file).unwrap();
        let next = files.get(number + 1).map(|next| disk.read(next).unwrap());
        let end = next.map_or_else(
            || image.iter().rposition(|byte| *byte != 0).unwrap(),
            |next| usize::try_from(u64::from_le_bytes(next[40..48].try_into().unwrap())).unwrap(),
        );
        for offset in (0..end).step_by(if end > 8192 { 29 } else { 7 }) {
            disk.corrupt(file, offset, 0x10);
            let error = open_error(&disk);
            let text = error.to_string();
            match error {
                OpenError::Damaged { file: named, .. } => assert_eq!(&named, file, "{text}"),
                OpenError::Generation { .. } | OpenError::Options(_) | OpenError::Io { .. } => {
                    panic!("{text}")
                }
            }
            assert!(text.contains("move its data directory away and let it rejoin"), "{text}");
            disk.corrupt(file, offset, 0x10);
        }
    }
    check_entries(&open(&disk).0, &entries(0..60, 1));
}

#[test]
fn a_log_of_another_generation_is_refused_and_left_as_it_is() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..3, 1));
    drop(writer);
    let file = segment_files(&disk).pop().unwrap();
    let mut image = disk.read(&file).unwrap();
    image[12..16].copy_from_slice(&1u32.to_le_bytes());
    let checksum = crc32c::crc32c(&image[12..512]);
    image[8..12].copy_from_slice(&checksum.to_le_bytes());
    disk.replace(&file, &image);
    let text = open_error(&disk).to_string();
    let both = format!(
        "log file {} is of generation 1, this binary reads generation {GENERATION}: ",
        file.display()
    );
    assert_eq!(text, format!("{both}{WHAT_TO_DO}"));
    assert_eq!(segment_files(&disk), std::slice::from_ref(&file));
    assert_eq!(disk.read(&file).unwrap(), image);
}

#[test]
fn a_missing_or_short_segment_is_refused() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..100, 1));
    drop(writer);
    let files = segment_files(&disk);
    let image = disk.read(&files[1]).unwrap();
    disk.remove_file(&files[1]).unwrap();
    assert!(open_error(&disk).to_string().contains("the segment before it is missing"));
    disk.replace(&files[1], &image[..image.len() - SECTOR]);
    assert!(matches!(open_error(&disk), OpenError::Damaged { .. }));
    disk.replace(&files[1], b"");
    assert!(matches!(open_error(&disk), OpenError::Damaged { .. }));
    disk.replace(&files[1], &image);
    let first = disk.read(&files[0]).unwrap();
    disk.remove_file(&files[0]).unwrap();
    let error = open_error(&disk).to_string();
    assert!(error.contains("were in an older segment that is missing"), "{error}");
    disk.replace(&files[0], &first);
    check_entries(&open(&disk).0, &entries(0..100, 1));
}

#[test]
fn a_read_finds_bit_rot_in_a_running_log() {
    let disk = FaultDisk::new(1);
    let (wal, mut writer, _) = open(&disk);
    append_each(&wal, &mut writer, entries(0..100, 1));
    let file = segment_files(&disk).remove(0);
    let image = disk.read(&file).unwrap();
    let payload = entry(2, 1).payload;
    let place = image.windows(payload.len()).position(|part| part == payload).unwrap();
    disk.corrupt(&file, place + 3, 1);
    assert_eq!(wal.read(0..2, usize::MAX).unwrap(), entries(0..2, 1));
    let error = wal.read(2..3, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("log segment 1 is damaged at byte"), "{error}");
    disk.fail_read_after(0);
    assert!(wal.read(0..1, usize::MAX).is_err());
    assert_eq!(wal.poisoned(), None, "a failed read changes nothing");
}

fn check_poisoned(disk: &FaultDisk, wal: &Wal, writer: &mut WalWriter, kind: io::ErrorKind) {
    let (done, slot) = acked();
    assert_eq!(wal.append(entries(1000..1001, 9), done).unwrap_err().kind(), kind);
    assert_eq!(slot.lock().unwrap().take().unwrap().unwrap_err().kind(), kind);
    assert_eq!(wal.save_vote(Bytes::new(), ignore()).unwrap_err().kind(), kind);
    assert!(wal.purge(id(0, 1)).is_err() && wal.truncate_after(None).is_err());
    assert!(wal.barrier(ignore()).is_err() && wal.save_committed(id(0, 1)).is_err());
    assert!(wal.poisoned().unwrap().contains("poisoned"));
    let counters = disk.counters();
    assert_eq!(writer.step().unwrap_err().kind(), kind);
    assert_eq!(disk.counters(), counters, "nothing is written again");
}

#[test]
fn a_full_disk_poisons_the_log_and_loses_nothing_acknowledged() {
    for capacity in (20_000..60_000).step_by(3_000) {
        let full = until_full(capacity, io::ErrorKind::StorageFull);
        let over_quota = until_full(capacity, io::ErrorKind::QuotaExceeded);
        assert!(full > 10, "{capacity}: {full}");
        assert_eq!(over_quota, full, "{capacity}: a quota is as good as a disk of that size");
    }
}

/// Appends until there is no room, which fails as `kind`; how many entries that were.
fn until_full(capacity: u64, kind: io::ErrorKind) -> u64 {
    let disk = FaultDisk::new(capacity);
    let (wal, mut writer, _) = open(&disk);
    disk.set_capacity(Some(capacity));
    disk.set_full_kind(kind);
    let mut durable = 0;
    loop {
        let (done, slot) = acked();
        wal.append(entries(durable..durable + 1, 1), done).unwrap();
        let stepped = writer.step();
        let result = slot.lock().unwrap().take().expect("answered");
        assert_eq!(stepped.is_ok(), result.is_ok());
        if let Err(error) = result {
            assert_eq!(error.kind(), kind);
            break;
        }
        durable += 1;
    }
    check_poisoned(&disk, &wal, &mut writer, kind);
    disk.set_capacity(None);
    disk.power_cut(capacity);
    drop(writer);
    check_entries(&open(&disk).0, &entries(0..durable, 1));
    durable
}

#[test]
fn a_failed_sync_poisons_the_log_and_its_batch_never_counts_by_accident() {
    for seed in 0..100 {
        let disk = FaultDisk::new(seed);
        let (wal, mut writer, _) = open(&disk);
        append_each(&wal, &mut writer, entries(0..20, 1));
        disk.fail_sync_after(0);
        let (first, first_slot) = acked();
        let (second, second_slot) = acked();
        wal.append(entries(20..24, 1), first).unwrap();
        wal.append(entries(24..32, 1), second).unwrap();
        assert!(writer.step().is_err());
        assert!(matches!(*first_slot.lock().unwrap(), Some(Err(_))));
        assert!(matches!(*second_slot.lock().unwrap(), Some(Err(_))), "queued requests fail too");
        check_poisoned(&disk, &wal, &mut writer, io::ErrorKind::Other);
        drop(writer);
        // The page cache still shows the batch, clean. The restarted process finds it and tells
        // others; so it must be durable, whatever the power does next.
        disk.kill();
        let (wal, writer, _) = open(&disk);
        let last = wal.last();
        assert_eq!(last, Some(id(23, 1)));
        drop(writer);
        disk.power_cut(seed);
        let (wal, _, _) = open(&disk);
        assert_eq!(wal.last(), last, "seed {seed}");
        check_entries(&wal, &entries(0..24, 1));
    }
}

#[test]
fn dropping_the_writer_fails_what_waits() {
    let disk = FaultDisk::new(1);
    let (wal, writer, _) = open(&disk);
    let (done, slot) = acked();
    wal.append(entries(0..1, 1), done).unwrap();
    drop(writer);
    assert!(matches!(*slot.lock().unwrap(), Some(Err(_))));
    assert!(wal.poisoned().is_some());
}

#[test]
fn a_thread_writes_a_real_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/log");
    let options = || Options { queue_bytes_max: 4000, ..options() };
    let (wal, writer, _) = Wal::open(Arc::new(RealDisk), &path, options()).unwrap();
    let thread = writer.spawn_thread("log-test").unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    for index in 0..500 {
        let answered = Arc::clone(&answered);
        let done = Box::new(move |result: io::Result<()>| {
            result.unwrap();
            answered.fetch_add(1, Ordering::SeqCst);
        });
        wal.append(vec![entry(index, 1)], done).unwrap();
        assert!(wal.stats().queue_bytes <= 4000 + 1000);
        if index == 250 {
            wal.purge(id(200, 1)).unwrap();
        }
    }
    thread.close().unwrap();
    assert_eq!(answered.load(Ordering::SeqCst), 500);
    assert!(wal.append(entries(500..501, 1), ignore()).is_err());
    let stats = wal.stats();
    assert!(stats.batches < 500 && stats.rollovers > 5, "{stats:?}");

    let (wal, writer, recovery) = Wal::open(Arc::new(RealDisk), &path, options()).unwrap();
    assert_eq!(recovery.entries, 299);
    check_entries(&wal, &entries(201..500, 1));
    let thread = writer.spawn_thread("log-test").unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    wal.save_vote(Bytes::from_static(b"v"), Box::new(move |result| sender.send(result).unwrap()))
        .unwrap();
    receiver.recv().unwrap().unwrap();
    drop(thread);
    let (wal, _, _) = Wal::open(Arc::new(RealDisk), &path, options()).unwrap();
    assert_eq!(wal.vote().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_commit_index_that_waits_for_a_batch_keeps_no_append_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { queue_bytes_max: 1000, ..options() };
    let (wal, writer, _) = Wal::open(Arc::new(RealDisk), directory.path(), options).unwrap();
    let thread = writer.spawn_thread("log-test").unwrap();
    wal.save_committed(id(0, 1)).unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let appender = std::thread::spawn(move || {
        let large = LogEntry { id: id(0, 1), payload: vec![0; 2000].into() };
        wal.append(vec![large], Box::new(move |result| sender.send(result).unwrap())).unwrap();
    });
    let answered = receiver.recv_timeout(std::time::Duration::from_mins(1));
    answered.expect("nobody writes what it waits for").unwrap();
    appender.join().unwrap();
    thread.close().unwrap();
}
