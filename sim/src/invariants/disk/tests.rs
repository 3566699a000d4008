//! A disk that is as it should be trips nothing; each kind of wrong one is found.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use fsm::{Command, Proposal, codec, state::Head, upkeep::Tick};
use raft::{StoredMembership, applied, storage::wal::EntryId};

use super::*;

const SERVER: u64 = 7;

fn id(index: Index) -> EntryId {
    EntryId { index, term: 1 }
}

#[expect(clippy::unnecessary_wraps, reason = "as disks give it")]
fn voted(term: u64, number: u64) -> Option<DiskVote> {
    Some(DiskVote { term, number, elected: false })
}

fn tick(at: u64) -> Proposal {
    Proposal { at, epoch: None, request: None, command: Command::from(Tick) }
}

fn payload(at: u64) -> Bytes {
    [&[1], codec::encode(&tick(at)).as_ref()].concat().into()
}

fn loaded(state: &State) -> Loaded {
    let membership = StoredMembership::default();
    let meta = applied::meta(state.head(), &membership, state.digest());
    Loaded { state: state.clone(), meta }
}

type Known = BTreeMap<Index, (u64, Digest)>;

/// A log of three entries, purged up to the first; a snapshot of the first, an engine of the second; and what replicas showed.
fn whole() -> (Remains, Known) {
    let mut state = State::genesis(&mut ChangeSet::default());
    let mut known = Known::new();
    let mut states = Vec::new();
    for index in 1..=3 {
        state.apply(index, 1, &tick(index * 10), &mut ChangeSet::default());
        known.insert(index, (1, state.digest()));
        states.push(state.clone());
    }
    let remains = Remains {
        vote: voted(1, SERVER),
        purged: Some(id(1)),
        entries: vec![(id(2), payload(20)), (id(3), payload(30))],
        snapshot: Some(loaded(&states[0])),
        engine: Some(loaded(&states[1])),
        set_aside: Vec::new(),
    };
    (remains, known)
}

fn judged(remains: &Remains, known: &Known) -> BTreeSet<&'static str> {
    Disks::default().found(SERVER, remains, known, true).iter().map(|one| one.0).collect()
}

#[test]
fn a_disk_as_it_should_be_trips_nothing() {
    let (remains, known) = whole();
    let mut disks = Disks::default();
    for _ in 0..2 {
        assert_eq!(disks.found(SERVER, &remains, &known, true), []);
    }
    assert_eq!(committed(&remains, &known), 3);
}

#[test]
fn i2_logs_that_do_not_match_are_found() {
    let (remains, known) = whole();
    let mut disks = Disks::default();
    disks.found(SERVER, &remains, &known, true);
    let (mut other, _) = whole();
    other.entries[1].1 = payload(31);
    let broken = disks.found(8, &other, &Known::new(), true);
    assert!(broken.iter().any(|one| one.0 == "I2"), "{broken:?}");
    let (mut forked, _) = whole();
    (forked.purged, forked.snapshot) = (None, None);
    forked.entries[0].0.term = 0;
    let broken = disks.found(9, &forked, &Known::new(), true);
    assert!(broken.iter().any(|one| one.1.contains("follows term")), "{broken:?}");
}

#[test]
fn i6_a_log_that_is_purged_beyond_a_state_is_found() {
    let (mut remains, known) = whole();
    (remains.purged, remains.entries) = (Some(id(2)), remains.entries.split_off(1));
    assert_eq!(judged(&remains, &known), BTreeSet::from(["I6"]));
    let broken = Disks::default().found(SERVER, &remains, &known, false);
    assert_eq!(broken, [], "a start brings the snapshot up to the engine first");
    remains.engine = None;
    assert!(!Disks::default().found(SERVER, &remains, &known, false).is_empty());
}

#[test]
fn i7_a_vote_that_the_disk_does_not_hold_is_found() {
    let (mut remains, known) = whole();
    let mut disks = Disks::default();
    disks.votes(SERVER, (2, 9), voted(2, 9)).unwrap();
    disks.votes(SERVER, (2, 9), voted(3, 5)).unwrap();
    assert!(disks.votes(SERVER, (2, 9), voted(2, 8)).is_err());
    assert!(disks.votes(SERVER, (2, 9), None).is_err());
    let elected = voted(2, 8).map(|vote| DiskVote { elected: true, ..vote });
    disks.votes(SERVER, (2, 9), elected).unwrap();
    let broken = disks.found(SERVER, &remains, &known, true);
    assert!(broken.iter().any(|one| one.0 == "I7"), "{broken:?}");
    remains.vote = voted(2, 9);
    assert_eq!(disks.found(SERVER, &remains, &known, true), []);
}

#[test]
fn i11_damage_that_is_taken_for_the_end_of_a_log_or_for_content_is_found() {
    let (before, known) = whole();
    assert_eq!(rotten(&before, &before, &known), []);
    let worse = |change: fn(&mut Remains)| {
        let (mut after, _) = whole();
        change(&mut after);
        rotten(&before, &after, &known)
    };
    assert_eq!(worse(|after| after.snapshot = None), [], "a damaged one is set aside");
    assert!(!worse(|after| drop(after.entries.pop())).is_empty());
    assert!(!worse(|after| after.entries[0].1 = payload(21)).is_empty());
    assert!(!worse(|after| after.vote = None).is_empty());
    assert!(!worse(|after| after.purged = None).is_empty());
    let other = |after: &mut Remains| {
        let engine = &mut after.engine.as_mut().unwrap().state;
        engine.load_done(Head { at: engine.at() + 1, ..engine.head() });
    };
    assert!(!worse(other).is_empty());
}

#[test]
fn i9_a_state_that_is_not_that_of_its_index_is_found() {
    let (remains, mut known) = whole();
    known.get_mut(&2).unwrap().1 = Digest(5);
    assert_eq!(judged(&remains, &known), BTreeSet::from(["I9"]));
    let (mut skipped, known) = whole();
    skipped.entries[1].1 = payload(29);
    let broken = Disks::default().found(SERVER, &skipped, &known, true);
    assert!(broken.iter().any(|one| one.1.contains("replayed")), "{broken:?}");
}

#[test]
fn i9_a_state_with_members_of_before_is_found() {
    let (mut remains, mut known) = whole();
    remains.entries[0].1 = Bytes::from_static(&[2, 1]);
    known.clear();
    known.insert(3, (1, Digest::default()));
    let mut disks = Disks::default();
    // The replay of the snapshot meets the change of the members at 2, which the engine has not heard of.
    remains.entries.truncate(1);
    known.insert(
        2,
        (1, {
            let mut state = remains.snapshot.as_ref().unwrap().state.clone();
            state.advance(2, 1);
            state.digest()
        }),
    );
    remains.engine = None;
    assert_eq!(disks.found(SERVER, &remains, &known, false), []);
    let mut state = remains.snapshot.as_ref().unwrap().state.clone();
    state.advance(2, 1);
    remains.engine = Some(loaded(&state));
    let broken = disks.found(SERVER, &remains, &known, false);
    assert!(broken.iter().any(|one| one.1.contains("members")), "{broken:?}");
}

#[test]
fn i11_what_does_not_decode_or_was_set_aside_is_found() {
    let (mut remains, known) = whole();
    remains.set_aside = vec!["/data/snapshots/1.damaged".to_owned()];
    assert_eq!(judged(&remains, &known), BTreeSet::from(["I11"]));
    let (mut remains, known) = whole();
    remains.entries[1].1 = Bytes::from_static(&[1, 2, 3]);
    assert_eq!(judged(&remains, &known), BTreeSet::from(["I11"]));
}
