//! Crashes by the thousand: a model of what was asked for and acknowledged against what a reopened
//! log holds, over a disk that loses power, dies in mid-operation and returns errors.
//!
//! Each life draws actions at random and remembers the log's content after every action. After a
//! crash the log must equal one of these contents, not older than the last acknowledged one.

use super::*;
use chance::Dice;
use ground::disk::fault::ErrorRates;
use proptest::prelude::*;
use std::sync::atomic::AtomicU64;

/// What a reader sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    vote: Option<Bytes>,
    purged: Option<EntryId>,
    last: Option<EntryId>,
    entries: VecDeque<LogEntry>,
}

impl Content {
    fn of(wal: &Wal) -> Self {
        Self {
            vote: wal.vote(),
            purged: wal.purged(),
            last: wal.last(),
            entries: wal.read(0..u64::MAX, usize::MAX).unwrap().into(),
        }
    }

    fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.index + 1)
    }

    fn truncate(&mut self, after: u64) {
        self.entries.retain(|entry| entry.id.index <= after);
        self.last = self.entries.back().map(|entry| entry.id).or(self.purged);
    }

    fn purge(&mut self, upto: EntryId) {
        self.entries.retain(|entry| entry.id.index > upto.index);
        self.purged = Some(upto);
        self.last = self.last.max(self.purged);
    }
}

/// The contents a crash may leave: `contents[0]` is acknowledged, the others came after it.
struct Model {
    contents: VecDeque<(u64, Content)>,
    actions: u64,
    acknowledged: Arc<AtomicU64>,
    committed: Vec<EntryId>,
    term: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            contents: VecDeque::from([(0, Content::default())]),
            actions: 0,
            acknowledged: Arc::default(),
            committed: Vec::new(),
            term: 1,
        }
    }

    fn now(&self) -> &Content {
        &self.contents.back().unwrap().1
    }

    fn change(&mut self, content: Content) -> u64 {
        self.actions += 1;
        self.contents.push_back((self.actions, content));
        self.actions
    }

    fn done(&self, action: u64) -> Done {
        let acknowledged = Arc::clone(&self.acknowledged);
        Box::new(move |result| {
            if result.is_ok() {
                let before = acknowledged.swap(action, Ordering::SeqCst);
                assert!(before < action, "acknowledged out of order");
            }
        })
    }

    /// Checks a reopened log and goes on from what it holds.
    fn reopened(&mut self, wal: &Wal) {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        let found = Content::of(wal);
        let allowed = self.contents.iter().filter(|(action, _)| *action >= acknowledged);
        let matching = allowed.clone().find(|(_, content)| *content == found);
        assert!(
            matching.is_some(),
            "acknowledged {acknowledged} of {}, found {:?} to {:?} with {} entries",
            self.actions,
            found.purged,
            found.last,
            found.entries.len(),
        );
        if let Some(committed) = wal.committed() {
            assert!(self.committed.contains(&committed), "{committed:?} was never saved");
        }
        // What was found is promised from now on: others may have been told.
        self.actions += 1;
        self.contents = VecDeque::from([(self.actions, found)]);
        self.acknowledged.store(self.actions, Ordering::SeqCst);
    }
}

/// One random action; its result does not matter, the model knows what may come of it.
fn act(model: &mut Model, wal: &Wal, writer: &mut WalWriter, choices: &mut Dice) {
    let mut content = model.now().clone();
    let ignored = match choices.below(20) {
        0..9 => {
            let most = if choices.below(8) == 0 { 12 } else { 3 };
            let count = 1 + choices.below(most);
            let added = entries(content.next()..content.next() + count, model.term);
            content.last = added.last().map(|entry| entry.id);
            content.entries.extend(added.iter().cloned());
            let action = model.change(content);
            wal.append(added, model.done(action))
        }
        9 | 10 => {
            model.term += 1;
            let vote = Bytes::from(format!("vote of term {}", model.term));
            content.vote = Some(vote.clone());
            let action = model.change(content);
            wal.save_vote(vote, model.done(action))
        }
        11 if !content.entries.is_empty() => {
            let back = 1 + choices.below(content.entries.len().min(6) as u64);
            let after = content.next().saturating_sub(back + 1);
            if content.next() <= back || content.purged.is_some_and(|purged| after < purged.index) {
                return;
            }
            model.term += 1;
            content.truncate(after);
            model.change(content);
            wal.truncate_after(Some(after))
        }
        12 if !content.entries.is_empty() => {
            let number = choices.below(content.entries.len() as u64);
            let upto = content.entries[usize::try_from(number).unwrap()].id;
            content.purge(upto);
            model.change(content);
            wal.purge(upto)
        }
        13 if choices.below(10) == 0 => {
            let upto = id(content.next() + choices.below(20), model.term);
            content.purge(upto);
            model.change(content);
            wal.purge(upto)
        }
        14 => match content.last {
            Some(last) => {
                model.committed.push(last);
                wal.save_committed(last)
            }
            None => Ok(()),
        },
        15 => writer.begin().and_then(|_| writer.finish()),
        _ => writer.step().map(drop),
    };
    drop(ignored);
}

fn inject(disk: &FaultDisk, choices: &mut Dice) {
    match choices.below(9) {
        0..4 => disk.stop_after(choices.below(120)),
        4 => disk.fail_sync_after(choices.below(30)),
        5 => disk.fail_write_after(choices.below(30)),
        6 => disk.set_capacity(Some(30_000 + choices.below(60_000))),
        7 => disk.set_error_rates(ErrorRates { write_ppm: 20_000, sync_ppm: 20_000, read_ppm: 0 }),
        _ => {}
    }
}

/// How often a run came by the rare places.
#[derive(Debug, Default)]
struct Coverage {
    cuts: u64,
    copies: u64,
    failed_opens: u64,
    failed_reads: u64,
    poisoned: u64,
    removals: u64,
    acknowledged: u64,
}

/// Opens, acts, crashes and reopens, `lives` times on the same disk.
fn run(seed: u64, lives: u64, coverage: &mut Coverage) {
    let disk = FaultDisk::new(seed);
    let mut choices = Dice::named(seed, "choices");
    let mut model = Model::new();
    for life in 0..lives {
        // A crash may also hit the open itself, or a disk that cannot be read, which is neither
        // damage nor a torn end.
        let reads_fail = match choices.below(9) {
            0..3 => {
                disk.stop_after(choices.below(12));
                false
            }
            3 => {
                disk.set_error_rates(ErrorRates { read_ppm: 200_000, ..ErrorRates::default() });
                true
            }
            _ => false,
        };
        let opened = Wal::open(Arc::new(disk.clone()), Path::new(DIRECTORY), options());
        let (wal, mut writer, recovery) = match opened {
            Ok(opened) => opened,
            Err(OpenError::Io { .. }) if disk.is_stopped() => {
                coverage.failed_opens += 1;
                crash(&disk, &mut choices);
                continue;
            }
            Err(OpenError::Io { .. }) if reads_fail => {
                coverage.failed_reads += 1;
                disk.set_error_rates(ErrorRates::default());
                continue;
            }
            Err(error) => panic!("seed {seed}, life {life}: {error}"),
        };
        disk.set_error_rates(ErrorRates::default());
        if disk.is_stopped() {
            crash(&disk, &mut choices);
            continue;
        }
        model.reopened(&wal);
        coverage.cuts += u64::from(recovery.cut.is_some());
        coverage.copies += u64::from(recovery.copied);
        inject(&disk, &mut choices);
        for _ in 0..choices.below(60) {
            act(&mut model, &wal, &mut writer, &mut choices);
            if wal.poisoned().is_some() || disk.is_stopped() {
                break;
            }
            assert_eq!(&Content::of(&wal), model.now(), "seed {seed}, life {life}");
        }
        if choices.below(2) == 0 && wal.poisoned().is_none() {
            // The crash comes between the write and the sync.
            act(&mut model, &wal, &mut writer, &mut choices);
            drop(writer.begin());
        }
        let stats = wal.stats();
        coverage.poisoned += u64::from(wal.poisoned().is_some());
        coverage.removals += recovery.segments + stats.rollovers - stats.segments;
        coverage.acknowledged += stats.batches;
        crash(&disk, &mut choices);
    }
}

fn crash(disk: &FaultDisk, choices: &mut Dice) {
    disk.set_capacity(None);
    if choices.below(4) == 0 { disk.kill() } else { disk.power_cut(choices.below(u64::MAX)) }
}

#[test]
fn thousands_of_crashes_lose_nothing_acknowledged_and_invent_nothing() {
    let mut coverage = Coverage::default();
    for seed in 0..400 {
        run(seed, 10, &mut coverage);
    }
    let Coverage { cuts, copies, failed_opens, failed_reads, poisoned, removals, acknowledged } =
        coverage;
    let rare = [cuts, copies, failed_opens, failed_reads, poisoned, removals];
    assert!(rare.iter().all(|count| *count > 100), "{coverage:?}");
    assert!(acknowledged > 10_000, "{coverage:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn any_seed_survives(seed in any::<u64>()) {
        run(seed, 4, &mut Coverage::default());
    }
}
