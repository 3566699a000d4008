//! What a server would come back with, read from a copy of its disk as it lies there: vote, log, and the two states that the log is purged behind.
//!
//! It reads the way a start does, but on a copy, and starts nothing: whatever it finds is judged by [`crate::invariants::disk`]. It must never
//! change the disk that it is given a copy of.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use fsm::{Proposal, codec};
use ground::disk::{Disk, fault::FaultDisk};
use prost::Message as _;
use proto::v1 as pb;
use raft::storage::{
    shadow::{self, Loaded, Shadow},
    snapshot_file::SnapshotDirectory,
    wal::{EntryId, Options, Wal},
};

/// First byte of an entry's payload, as the log keeps it.
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// What an entry holds, as far as a replay has to know.
pub(crate) enum Content {
    /// A change of the state.
    Command(Box<Proposal>),
    /// A change of the members, as it was written.
    Membership(Bytes),
    /// The first entry of a term.
    Blank,
}

/// A vote as the log keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DiskVote {
    pub(crate) term: u64,
    pub(crate) number: u64,
    /// That one was elected, perhaps without this vote.
    pub(crate) elected: bool,
}

/// What is on a disk.
pub(crate) struct Remains {
    /// What it votes for.
    pub(crate) vote: Option<DiskVote>,
    /// The last entry that is purged.
    pub(crate) purged: Option<EntryId>,
    /// What is left of the log.
    pub(crate) entries: Vec<(EntryId, Bytes)>,
    /// The newest snapshot file.
    pub(crate) snapshot: Option<Loaded>,
    /// The state behind the one in memory.
    pub(crate) engine: Option<Loaded>,
    /// Something was set aside as damaged, or would be by a start.
    pub(crate) set_aside: Vec<String>,
}

impl Remains {
    /// The term of the entry at this index, if it is known.
    pub(crate) fn term(&self, index: u64) -> Option<u64> {
        if let Some(purged) = self.purged.filter(|purged| purged.index == index) {
            return Some(purged.term);
        }
        let at = self.entries.binary_search_by_key(&index, |(id, _)| id.index).ok()?;
        Some(self.entries[at].0.term)
    }

    /// Where the log ends.
    pub(crate) fn last(&self) -> u64 {
        let last = self.entries.last().map(|(id, _)| id.index);
        last.or(self.purged.map(|id| id.index)).unwrap_or(0)
    }
}

/// Decodes an entry's payload.
pub(crate) fn content(payload: &Bytes) -> Result<Content, String> {
    match payload.first() {
        Some(&COMMAND) => {
            let proposal = codec::decode(&payload[1..]).map_err(|error| error.to_string())?;
            Ok(Content::Command(Box::new(proposal)))
        }
        Some(&MEMBERSHIP) => Ok(Content::Membership(payload.slice(1..))),
        Some(_) | None => Ok(Content::Blank),
    }
}

/// Reads the vote and the log of a copy of a disk; none when there is no log yet.
fn open_log(disk: &Arc<dyn Disk>, options: Options) -> Result<Option<Wal>, String> {
    let path = Path::new("/data/log");
    if !disk.exists(path).map_err(|error| error.to_string())? {
        return Ok(None);
    }
    let opened = Wal::open(Arc::clone(disk), path, options);
    opened.map(|(log, _, _)| Some(log)).map_err(|error| format!("the log does not open: {error}"))
}

/// A vote of its bytes.
fn decode_vote(bytes: Bytes) -> Result<DiskVote, String> {
    let vote = pb::Vote::decode(bytes).map_err(|error| format!("vote: {error}"))?;
    let number = vote.voted_for.unwrap_or(0);
    Ok(DiskVote { term: vote.term, number, elected: vote.committed })
}

/// What a disk holds of what a server may have said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    /// What it votes for.
    pub(crate) vote: Option<DiskVote>,
    /// The last entry, in the log or in a snapshot.
    pub(crate) last: u64,
}

/// The vote and the last entry that a disk holds for certain.
pub(crate) fn promises(disk: FaultDisk, options: Options) -> Result<Held, String> {
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let Some(log) = open_log(&disk, options)? else { return Ok(Held::default()) };
    let vote = log.vote().map(decode_vote).transpose()?;
    // What was installed is held before the log says from where on it goes on.
    let snapshots = Path::new("/data/snapshots");
    let has_snapshots = disk.exists(snapshots).map_err(|error| error.to_string())?;
    let newest = if has_snapshots {
        let opened = SnapshotDirectory::open(Arc::clone(&disk), snapshots);
        opened.and_then(|found| found.newest_meta()).map_err(|error| error.to_string())?
    } else {
        None
    };
    let installed = newest.map_or(0, |(_, meta)| meta.head.index);
    Ok(Held { vote, last: log.last().map_or(0, |id| id.index).max(installed) })
}

/// Reads everything. `copy` is changed as a start would change it.
pub(crate) fn open(copy: FaultDisk, options: Options) -> Result<Option<Remains>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let disk: Arc<dyn Disk> = Arc::new(copy.clone());
    let Some(log) = open_log(&disk, options)? else { return Ok(None) };
    let entries = log.read(0..u64::MAX, usize::MAX).map_err(|error| format!("log: {error}"))?;
    let entries = entries.into_iter().map(|entry| (entry.id, entry.payload)).collect();
    let snapshots = SnapshotDirectory::open(Arc::clone(&disk), Path::new("/data/snapshots"));
    let snapshot = snapshots.and_then(|found| found.newest()).map_err(failed)?;
    // A start that died while it opened the engine gives it up, rightly.
    let opening = disk.exists(Path::new("/data/state/OPENING")).map_err(failed)?;
    let engine = if opening {
        None
    } else {
        let engine_disk = Arc::clone(&disk);
        let open = Arc::new(move |path: &Path| shadow::open_twin(Arc::clone(&engine_disk), path));
        let opened = Shadow::open(Arc::clone(&disk), Path::new("/data/state"), open);
        opened.map_err(|error| format!("the state does not open: {error}"))?.1
    };
    let files = copy.files().into_iter().map(|(path, _)| path.display().to_string());
    let set_aside = files.filter(|name| {
        name.ends_with(".damaged") || (!opening && name.starts_with("/data/state/set-aside"))
    });
    Ok(Some(Remains {
        vote: log.vote().map(decode_vote).transpose()?,
        purged: log.purged(),
        entries,
        snapshot: snapshot.map(|(_, loaded)| loaded),
        engine,
        set_aside: set_aside.collect(),
    }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use raft::storage::wal::LogEntry;

    use super::*;

    #[test]
    fn synced_entries_are_found_and_nothing_else_is_promised() {
        let disk = FaultDisk::new(1);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let path = Path::new("/data/log");
        let (log, mut writer, _) =
            Wal::open(Arc::clone(&shared), path, Options::default()).unwrap();
        let vote = pb::Vote { term: 3, voted_for: Some(9), committed: true };
        log.save_vote(vote.encode_to_vec().into(), Box::new(|done| done.unwrap())).unwrap();
        let entry =
            |index| LogEntry { id: EntryId { index, term: 3 }, payload: Bytes::from_static(&[0]) };
        log.append(vec![entry(1), entry(2)], Box::new(|done| done.unwrap())).unwrap();
        while writer.step().unwrap() {}
        log.append(vec![entry(3)], Box::new(drop)).unwrap();
        assert!(writer.begin().unwrap());
        let options = Options::default;
        let held = promises(disk.durable_copy(), options()).unwrap();
        let vote = Some(DiskVote { term: 3, number: 9, elected: true });
        assert_eq!(held, Held { vote, last: 2 });
        shared.create_dir_all(Path::new("/data/state")).unwrap();
        shared.create_dir_all(Path::new("/data/snapshots")).unwrap();
        let remains = open(disk.copy(0), options()).unwrap().unwrap();
        assert_eq!((remains.last(), remains.term(2), remains.purged), (3, Some(3), None));
        assert!(remains.engine.is_none() && remains.snapshot.is_none());
        assert!(matches!(content(&remains.entries[0].1), Ok(Content::Blank)));
        assert!(open(FaultDisk::new(2), options()).unwrap().is_none(), "there is no log");
    }
}
