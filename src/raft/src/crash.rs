//! A server's whole storage through thousands of crashes: log, votes, state, snapshots and installs
//! on a disk that loses power, dies in the middle of an operation, fills up and fails. What was
//! acknowledged is there afterwards, nothing else is, and what is left is a piece of the leader's
//! truth ([`super::testing`]).
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{path::Path, sync::Arc};

use chance::Dice;
use futures_util::FutureExt;
use ground::{
    disk::{
        Disk,
        fault::{ErrorRates, FaultDisk},
    },
    plant::{Plant, must_catch},
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};

use super::{
    TypeConfig,
    log_store::LogStore,
    testing::{DIRECTORY, Storage, Told, Truth, simulate},
};
use crate::storage::{
    shadow::{OpenEngine, open_twin},
    wal::{Options, Wal},
};

/// Entries of the leader.
const ENTRIES: u64 = 600;

/// How often the lives came by the places that matter.
#[derive(Debug, Default)]
struct Coverage {
    lives: u64,
    failed_opens: u64,
    dead_lives: u64,
    acknowledged: u64,
    votes: u64,
    snapshots: u64,
    installs: u64,
    torn_installs: u64,
}

fn parts(disk: &FaultDisk) -> (Arc<dyn Disk>, OpenEngine) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let engine_disk = Arc::clone(&disk);
    (disk, Arc::new(move |path| open_twin(Arc::clone(&engine_disk), path)))
}

async fn open(disk: &FaultDisk) -> anyhow::Result<Storage> {
    let (disk, open_engine) = parts(disk);
    Storage::open(&disk, &open_engine, Path::new(DIRECTORY)).await
}

fn inject(disk: &FaultDisk, choices: &mut Dice) {
    match choices.below(10) {
        0..5 => disk.stop_after(choices.below(60)),
        5 => disk.fail_sync_after(choices.below(12)),
        6 => disk.fail_write_after(choices.below(20)),
        7 => disk.set_capacity(Some(disk.used_bytes() + choices.below(20_000))),
        8 => disk.set_error_rates(ErrorRates {
            write_ppm: 20_000,
            sync_ppm: 20_000,
            read_ppm: 20_000,
        }),
        _ => {}
    }
}

fn crash(disk: &FaultDisk, choices: &mut Dice) {
    disk.set_capacity(None);
    if choices.below(4) == 0 { disk.kill() } else { disk.power_cut(choices.below(u64::MAX)) }
}

/// One thing that Raft asks for. An error ends the life: the server dies of it.
async fn act(
    storage: &mut Storage,
    truth: &Truth,
    told: &mut Told,
    choices: &mut Dice,
    coverage: &mut Coverage,
) -> std::io::Result<()> {
    let next =
        storage.wal.last().map(|id| id.index).max(storage.applied()).map_or(0, |last| last + 1);
    // A server votes before it has anything to keep.
    let choice = if told.term == 0 { 9 } else { choices.below(20) };
    match choice {
        0..9 => {
            let upto = (next + 1 + choices.below(4)).min(truth.count());
            if next < upto {
                storage.append(truth.entries(next..upto)).await?;
                told.last = told.last.max(Some(upto - 1));
                coverage.acknowledged += upto - next;
            }
        }
        9 | 10 => {
            let term = told.term + 1;
            storage.vote(term)?;
            told.term = term;
            coverage.votes += 1;
        }
        11..16 => {
            if let Some(last) = storage.wal.last()
                && storage.applied().is_none_or(|applied| applied < last.index)
            {
                storage.apply(last.index).await?;
            }
        }
        16..18 => {
            storage.snapshot(choices.below(8)).await?;
            coverage.snapshots += 1;
        }
        _ => {
            let index = next + choices.below(20);
            if index < truth.count() && index > 0 {
                coverage.torn_installs += 1;
                storage.install(truth, index).await?;
                coverage.torn_installs -= 1;
                coverage.installs += 1;
                told.last = told.last.max(Some(index));
            }
        }
    }
    Ok(())
}

/// Opens, works, crashes and reopens on one disk, so many lives long.
async fn live(seed: u64, lives: u64, truth: &Truth, coverage: &mut Coverage) {
    let disk = FaultDisk::new(seed);
    let mut choices = Dice::named(seed, "choices");
    let mut told = Told::default();
    for life in 0..lives {
        coverage.lives += 1;
        let context = format!("seed {seed}, life {life}");
        if choices.below(3) == 0 {
            disk.stop_after(choices.below(25));
        }
        let opened = open(&disk).await;
        if disk.is_stopped() {
            coverage.failed_opens += 1;
            crash(&disk, &mut choices);
            continue;
        }
        let mut storage = opened.unwrap_or_else(|error| panic!("{context}: {error:#}"));
        disk.stop_injecting();
        storage.check(truth, &told, &context).await;
        // What was found is promised from now on: others may have been told.
        told.last = told.last.max(storage.last());
        inject(&disk, &mut choices);
        for _ in 0..choices.below(25) {
            let done = act(&mut storage, truth, &mut told, &mut choices, coverage).await;
            if done.is_err() || disk.is_stopped() {
                coverage.dead_lives += 1;
                break;
            }
        }
        if choices.below(3) == 0 {
            // The crash comes between the write and the sync.
            let next = storage.last().map_or(0, |last| last + 1).min(truth.count());
            let entries = truth.entries(next..(next + 2).min(truth.count()));
            drop(storage.begin_append(entries).await);
        }
        drop(storage);
        crash(&disk, &mut choices);
    }
}

fn lives(seeds: std::ops::Range<u64>, lives: u64) -> Coverage {
    let coverage = Arc::new(std::sync::Mutex::new(Coverage::default()));
    let outside = Arc::clone(&coverage);
    simulate(seeds.start, async move {
        let truth = Truth::new(ENTRIES);
        let mut total = Coverage::default();
        for seed in seeds {
            live(seed, lives, &truth, &mut total).await;
        }
        *coverage.lock().unwrap() = total;
    });
    Arc::try_unwrap(outside).unwrap().into_inner().unwrap()
}

fn check(coverage: &Coverage) {
    let Coverage { failed_opens, dead_lives, acknowledged, votes, snapshots, installs, .. } =
        coverage;
    assert_eq!(coverage.lives, 3_000);
    let rare = [failed_opens, dead_lives, votes, snapshots, installs, &coverage.torn_installs];
    assert!(rare.iter().all(|count| **count > 50), "{coverage:?}");
    assert!(*acknowledged > 2_000, "{coverage:?}");
}

/// Two halves, so that they run beside each other.
#[test]
fn thousands_of_crashes_of_log_snapshot_and_install_lose_nothing_first_half() {
    check(&lives(0..150, 20));
}

#[test]
fn thousands_of_crashes_of_log_snapshot_and_install_lose_nothing_second_half() {
    check(&lives(1_000..1_150, 20));
}

#[test]
fn the_crashes_would_show_a_missing_sync() {
    for plant in [Plant::SkipLogSync, Plant::SkipVoteSync, Plant::PurgeBeforeSync] {
        must_catch(plant, || _ = lives(0..40, 20));
    }
}

#[test]
fn the_crashes_would_show_errors_of_the_disk_that_are_swallowed_or_made_up() {
    for plant in [Plant::SwallowSyncError, Plant::TornTailIsFatal] {
        must_catch(plant, || _ = lives(0..100, 20));
    }
}

/// `IOFlushed` is the promise that an entry survives: it comes after the sync that covers it, never
/// before, and a group shares one sync.
#[test]
fn every_acknowledgement_follows_a_sync_and_a_group_shares_one() {
    simulate(1, async {
        let disk = FaultDisk::new(1);
        let log_disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let (wal, mut writer, _) =
            Wal::open(log_disk, Path::new("/log"), Options::default()).unwrap();
        let mut log = LogStore::new(wal);
        let truth = Truth::new(100);
        let mut next = 0;
        let mut acknowledged = 0;
        for group in 1..12 {
            let mut flushed = Vec::new();
            for _ in 0..group {
                let (done, receiver) = TypeConfig::oneshot();
                let entries = truth.entries(next..next + 1);
                log.append(entries, IOFlushed::signal(done)).await.unwrap();
                flushed.push(receiver);
                next += 1;
            }
            let before = disk.counters().syncs;
            writer.begin().unwrap();
            assert_eq!(disk.counters().syncs, before, "the write alone");
            let early = flushed.iter_mut().filter_map(FutureExt::now_or_never).count();
            assert_eq!(early, 0, "acknowledged before the sync");
            writer.finish().unwrap();
            assert_eq!(disk.counters().syncs, before + 1, "one sync for {group} appends");
            let done = flushed.into_iter().filter_map(FutureExt::now_or_never);
            acknowledged += done.filter(|result| matches!(result, Ok(Ok(())))).count();
            assert_eq!(acknowledged as u64, next);
        }
        let (done, receiver) = TypeConfig::oneshot();
        disk.fail_sync_after(0);
        log.append(truth.entries(next..next + 1), IOFlushed::signal(done)).await.unwrap();
        assert!(writer.step().is_err());
        let result = receiver.now_or_never().expect("it is told at once");
        assert!(matches!(result, Ok(Err(_))), "a failed sync is told as such");
    });
}

#[test]
fn an_acknowledgement_without_a_sync_would_be_counted() {
    for plant in [Plant::SkipLogSync, Plant::SwallowSyncError] {
        must_catch(plant, every_acknowledgement_follows_a_sync_and_a_group_shares_one);
    }
}

/// Bit rot in any file of a stopped server: it starts with the true state, or it refuses and says
/// which file, where, and what to do. It never starts with less than was acknowledged.
#[test]
fn a_flipped_bit_anywhere_is_made_good_or_refused_with_the_repair() {
    simulate(7, async {
        let truth = Truth::new(120);
        let disk = FaultDisk::new(7);
        let mut told = Told::default();
        let mut storage = open(&disk).await.unwrap();
        storage.vote(3).unwrap();
        told.term = 3;
        for upto in [30, 60, 90] {
            for next in (upto - 30)..upto {
                storage.append(truth.entries(next..next + 1)).await.unwrap();
            }
            storage.apply(upto - 1).await.unwrap();
            if upto < 90 {
                storage.snapshot(5).await.unwrap();
            }
        }
        told.last = Some(89);
        drop(storage);
        disk.kill();
        let (mut refused, mut made_good) = (0, 0);
        for (path, size) in disk.files() {
            for offset in (0..size).step_by(97) {
                let copy = disk.copy(7);
                copy.corrupt(&path, offset, 1 << (offset % 8));
                let context = format!("{} flipped at {offset}", path.display());
                match open(&copy).await {
                    Ok(mut storage) => {
                        storage.check(&truth, &told, &context).await;
                        made_good += 1;
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        assert!(error.contains(path.to_str().unwrap()), "{context}: {error}");
                        assert!(error.contains("at byte"), "{context}: {error}");
                        assert!(error.contains("restore this server"), "{context}: {error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 50 && made_good > 50, "{refused} refused, {made_good} made good");
    });
}

#[test]
fn a_flipped_bit_would_be_seen_to_go_unnoticed() {
    must_catch(Plant::SkipChecksums, || {
        a_flipped_bit_anywhere_is_made_good_or_refused_with_the_repair();
    });
}
