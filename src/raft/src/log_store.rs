//! The Raft log and vote in the write-ahead log. Order is everything here: votes, appends,
//! truncations and purges go through the log's one queue, so that none of them becomes durable
//! before an earlier one.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
};

use bytes::{BufMut, Bytes, BytesMut};
use ground::rt::oneshot;
use openraft::{
    EntryPayload, LogState, OptionalSend,
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogReader, RaftLogStorage},
};
use prost::Message;
use proto::v1 as pb;

use super::{Entry, EntryData, LogId, TypeConfig, Vote, convert};
use crate::storage::wal::{self, EntryId, Wal};

/// Bytes of entries in one read, so that a message fits the transport.
const READ_BYTES_MAX: usize = 4 << 20;

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// openraft's view of the write-ahead log.
#[derive(Clone)]
pub struct LogStore {
    wal: Wal,
}

impl LogStore {
    /// A view of an open log.
    pub fn new(wal: Wal) -> Self {
        Self { wal }
    }

    fn read(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        self.wal.read(start..end, bytes_max)?.into_iter().map(decode).collect()
    }
}

fn encode(entry: &Entry) -> wal::LogEntry {
    let payload = match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[BLANK]),
        EntryPayload::Normal(data) => {
            let mut out = BytesMut::with_capacity(data.0.len() + 1);
            out.put_u8(COMMAND);
            out.put_slice(&data.0);
            out.freeze()
        }
        EntryPayload::Membership(membership) => {
            let mut out = BytesMut::new();
            out.put_u8(MEMBERSHIP);
            out.put_slice(&convert::membership_to_pb(membership).encode_to_vec());
            out.freeze()
        }
    };
    wal::LogEntry { id: entry_id(&entry.log_id), payload }
}

fn decode(entry: wal::LogEntry) -> io::Result<Entry> {
    let id = convert::log_id(entry.id.term, entry.id.index);
    let payload = match entry.payload.first() {
        Some(&BLANK) => EntryPayload::Blank,
        Some(&COMMAND) => EntryPayload::Normal(EntryData(entry.payload.slice(1..))),
        Some(&MEMBERSHIP) => {
            let message =
                pb::Membership::decode(entry.payload.slice(1..)).map_err(io::Error::other)?;
            EntryPayload::Membership(
                convert::membership_from_pb(&message).map_err(io::Error::other)?,
            )
        }
        _ => {
            let message = format!("log entry {} has an unknown kind of payload", entry.id.index);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    };
    Ok(<Entry as RaftEntry>::new(id, payload))
}

fn entry_id(id: &LogId) -> EntryId {
    EntryId { term: convert::term_of(id), index: id.index }
}

fn log_id(id: EntryId) -> LogId {
    convert::log_id(id.term, id.index)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let last = self.wal.last().map_or(0, |id| id.index.saturating_add(1));
        self.read(start, end.min(last), usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        let Some(bytes) = self.wal.vote() else { return Ok(None) };
        let message = pb::Vote::decode(bytes).map_err(io::Error::other)?;
        convert::vote_from_pb(Some(&message)).map(Some).map_err(io::Error::other)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let purged = self.wal.purged().map(log_id);
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: self.wal.last().map(log_id).or(purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (done, durable) = oneshot::channel();
        let bytes = convert::vote_to_pb(vote).encode_to_vec().into();
        self.wal.save_vote(bytes, Box::new(move |result| drop(done.send(result))))?;
        durable.await.map_err(|_| io::Error::other("the log stopped"))?
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        match committed {
            Some(id) => self.wal.save_committed(entry_id(&id)),
            None => Ok(()),
        }
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.wal.committed().map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(|entry| encode(&entry)).collect();
        self.wal.append(entries, Box::new(move |result| callback.io_completed(result)))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.wal.truncate_after(last.map(|id| id.index))
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.wal.purge(entry_id(&upto))
    }
}
