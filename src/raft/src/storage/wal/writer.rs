//! The writer: turns the queue into batches, one write and one sync each.
//!
//! A sans-io machine over the disk seam. [`WalWriter::begin`] writes a batch, [`WalWriter::finish`]
//! syncs it and calls back; [`WalWriter::step`] does both. In production a thread steps it, in
//! simulation a task does, with its own delays between the two halves. It must never write a batch
//! before the one before it is durable, nor anything at all after an error.

use super::format::{BatchShape, LogEnd, RECORD_HEAD, Record, SECTOR, SegmentHeader, encode_batch};
use super::segment::{self, Housekeeper, Spare};
use super::{Done, EntryId, LOCK, LogState, Options, Place, Request, Wal, same};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use ground::{
    disk::{Disk, DiskFile, is_full},
    plant::{Plant, is_planted},
};

/// Segments grow by this factor up to their largest size.
const SEGMENT_GROWTH: u64 = 4;

/// The one consumer of a log's queue. Dropping it fails what is queued and poisons the log.
pub struct WalWriter {
    wal: Wal,
    files: Files,
    in_flight: Option<InFlight>,
}

/// The segments and the place in them.
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) directory: PathBuf,
    pub(super) options: Options,
    pub(super) housekeeper: Housekeeper,
    /// Oldest first; the last one is written to.
    pub(super) segments: VecDeque<Segment>,
    /// Where the next batch goes; everything before is durable or in flight.
    pub(super) end: LogEnd,
    pub(super) sequence: u64,
    /// What the log comes to at `end`.
    pub(super) state: LogState,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) file: Arc<dyn DiskFile>,
    /// The highest index of an entry in it.
    pub(super) index_max: Option<u64>,
}

/// A batch that is written and not yet durable.
struct InFlight {
    dones: Vec<Done>,
    written: Vec<(u64, u64, Place)>,
    bytes: u64,
    payload_bytes: usize,
    plant_skip_sync: bool,
}

impl WalWriter {
    pub(super) fn new(wal: Wal, files: Files) -> Self {
        Self { wal, files, in_flight: None }
    }

    /// Writes and syncs one batch of what is queued; `false` when nothing asks for one.
    pub fn step(&mut self) -> io::Result<bool> {
        let begun = self.begin()?;
        self.finish()?;
        Ok(begun)
    }

    /// Writes one batch of what is queued; `false` when nothing asks for one.
    ///
    /// # Panics
    /// When the batch before is not finished.
    pub fn begin(&mut self) -> io::Result<bool> {
        assert!(self.in_flight.is_none(), "a batch is begun before the one before is durable");
        let Some(requests) = self.take_requests()? else {
            return Ok(false);
        };
        let mut batch = Batch::default();
        for request in requests {
            batch.add(request);
        }
        let result = self.files.housekeeper.check().and_then(|()| self.write(&mut batch));
        self.in_flight = Some(InFlight {
            plant_skip_sync: batch.plant_skip_sync(),
            dones: batch.dones,
            written: batch.written,
            bytes: batch.bytes,
            payload_bytes: batch.payload_bytes,
        });
        match result {
            Ok(()) => Ok(true),
            Err(error) => Err(self.die("write", &error)),
        }
    }

    /// Makes the batch that was begun durable and calls back; nothing without one.
    pub fn finish(&mut self) -> io::Result<()> {
        let Some(in_flight) = self.in_flight.take() else {
            return Ok(());
        };
        if in_flight.bytes > 0 && !in_flight.plant_skip_sync {
            let current = self.files.current();
            let result = current.file.sync_data();
            if let Err(error) = result
                && !is_planted(Plant::SwallowSyncError)
            {
                self.in_flight = Some(in_flight);
                return Err(self.die("sync", &error));
            }
        }
        let mut shared = self.wal.lock();
        for (index, ticket, place) in &in_flight.written {
            shared.index.written(*index, *ticket, *place);
        }
        shared.index.evict();
        shared.queue_bytes -= in_flight.payload_bytes;
        shared.stats.batches += u64::from(in_flight.bytes > 0);
        shared.stats.entries += in_flight.written.len() as u64;
        shared.stats.bytes += in_flight.bytes;
        drop(shared);
        self.wal.inner.room.notify_all();
        for done in in_flight.dones {
            done(Ok(()));
        }
        self.remove_purged();
        self.prepare_next();
        match self.files.housekeeper.check() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.die("removal of an old segment", &error)),
        }
    }

    /// Starts the threads of production: one that writes, one that makes and removes files.
    pub fn spawn_thread(mut self, name: &str) -> io::Result<WalThread> {
        self.files.housekeeper.spawn_thread(name)?;
        let wal = self.wal.clone();
        wal.lock().threaded = true;
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || self.run())?;
        Ok(WalThread { wal, thread: Some(thread) })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let wal = self.wal.clone();
            let mut shared = wal.lock();
            while !shared.has_work() && !shared.closed {
                shared = wal.inner.work.wait(shared).expect(LOCK);
            }
            let ended = shared.closed && shared.queue.is_empty();
            drop(shared);
            if ended {
                return Ok(());
            }
            self.step()?;
        }
    }

    /// Takes a batch's worth of requests from the queue.
    fn take_requests(&mut self) -> io::Result<Option<Vec<Request>>> {
        let mut shared = self.wal.lock();
        if let Some((kind, message)) = &shared.poisoned {
            return Err(io::Error::new(*kind, message.to_string()));
        }
        if shared.queue.is_empty() || !(shared.has_work() || shared.closed) {
            return Ok(None);
        }
        let (mut entries, mut bytes) = (0, 0);
        let mut requests = Vec::new();
        while let Some(request) = shared.queue.front() {
            entries += match request {
                Request::Append { entries, .. } => entries.len(),
                Request::Vote { .. }
                | Request::Truncate { .. }
                | Request::Purge { .. }
                | Request::Committed { .. }
                | Request::Barrier { .. } => 1,
            };
            bytes += request.payload_bytes();
            let options = &self.files.options;
            let over = entries > options.batch_entries_max || bytes > options.batch_bytes_max;
            if over && !requests.is_empty() {
                break;
            }
            requests.extend(shared.queue.pop_front());
        }
        Ok(Some(requests))
    }

    fn write(&mut self, batch: &mut Batch) -> io::Result<()> {
        if batch.records.is_empty() {
            return Ok(());
        }
        let shape = BatchShape::of(batch.records.iter().map(Record::size).sum());
        let current = self.files.current();
        if self.files.end.offset + shape.bytes as u64 > current.bytes {
            batch.bytes += self.files.roll_over(shape.bytes)?;
            let current = self.files.current();
            let mut shared = self.wal.lock();
            shared.segments.insert(current.number, Arc::clone(&current.file));
            shared.stats.rollovers += 1;
            shared.stats.disk_bytes += current.bytes;
        }
        let start = self.files.end;
        let offsets = self.files.append(&batch.records)?;
        batch.bytes += self.files.end.offset - start.offset;
        batch.place(start, &offsets);
        Ok(())
    }

    fn remove_purged(&mut self) {
        let files = &mut self.files;
        let purged = files.state.purged.map_or(0, |purged| purged.index + 1);
        while files.segments.len() > 1
            && files.segments[0].index_max.is_none_or(|index| index < purged)
        {
            let oldest = files.segments.pop_front().expect("there are two");
            let mut shared = self.wal.lock();
            shared.segments.remove(&oldest.number);
            shared.stats.disk_bytes -= oldest.bytes;
            drop(shared);
            files.housekeeper.remove(oldest.number);
        }
    }

    /// Has the next segment made once this one is half full.
    fn prepare_next(&mut self) {
        let current = self.files.current();
        if self.files.end.offset * 2 > current.bytes {
            self.files.housekeeper.want(current.number + 1, self.files.next_bytes());
        }
    }

    /// Ends the log after an error of the disk, and lets it be known.
    fn die(&mut self, what: &str, error: &io::Error) -> io::Error {
        let directory = self.files.directory.display();
        let message = format!("a {what} in {directory} failed: {error}");
        let returned = self.poison(error);
        self.wal.inner.died.send_replace(Some(message.into()));
        returned
    }

    /// Fails everything that waits and all that will come.
    fn poison(&mut self, error: &io::Error) -> io::Error {
        let message: Arc<str> = format!("the log is poisoned: {error}").into();
        let mut shared = self.wal.lock();
        if shared.poisoned.is_none() {
            shared.poisoned = Some((error.kind(), message));
        }
        let waiting = std::mem::take(&mut shared.queue);
        drop(shared);
        self.wal.inner.room.notify_all();
        let dones = self.in_flight.take().map(|in_flight| in_flight.dones).unwrap_or_default();
        for done in dones.into_iter().chain(waiting.into_iter().filter_map(Request::done)) {
            done(Err(same(error)));
        }
        same(error)
    }
}

impl Drop for WalWriter {
    fn drop(&mut self) {
        let ended = io::Error::other("the log's writer has ended");
        drop(self.poison(&ended));
    }
}

impl Files {
    /// Writes one batch at the end; it is not durable yet. Returns each record's offset in it.
    fn append(&mut self, records: &[Record]) -> io::Result<Vec<usize>> {
        let current = self.segments.back_mut().expect("an open log has a segment");
        let start = self.end;
        let (bytes, offsets) = encode_batch(self.sequence + 1, start, start, records);
        current.file.write_all_at(&bytes, start.offset)?;
        self.sequence += 1;
        self.end.offset += bytes.len() as u64;
        for record in records {
            self.state.apply(record);
            if let Record::Entry { id, .. } = record {
                current.index_max = current.index_max.max(Some(id.index));
            }
        }
        Ok(offsets)
    }

    /// Goes on in the prepared segment, or in a new one with room for a batch of this size.
    /// Returns the bytes written.
    fn roll_over(&mut self, batch_bytes: usize) -> io::Result<u64> {
        let number = self.current().number + 1;
        let bytes = self.next_bytes();
        let checkpoint = [Record::Checkpoint(self.state.clone())];
        let first = BatchShape::of(checkpoint.iter().map(Record::size).sum());
        let needed = segment::bytes_needed(first.bytes, batch_bytes);
        let prepared = self.housekeeper.take();
        let spare = match prepared.filter(|spare| spare.number == number && spare.bytes >= needed) {
            Some(spare) => spare,
            None => self.prepare_now(number, bytes, needed)?,
        };
        self.begin_segment(spare, &checkpoint)?;
        Ok((SECTOR + first.bytes) as u64)
    }

    /// Makes a segment at once; a small one when the disk has no room for the usual size.
    pub(super) fn prepare_now(&self, number: u64, bytes: u64, needed: u64) -> io::Result<Spare> {
        let disk = &*self.disk;
        match segment::prepare(disk, &self.directory, number, bytes.max(needed)) {
            Err(error) if is_full(&error) => {
                let smallest = self.options.segment_bytes_first.max(needed);
                segment::prepare(disk, &self.directory, number, smallest)
            }
            result => result,
        }
    }

    /// Starts a segment with these records as its first batch, durably, and moves the end there.
    /// Returns each record's offset in the file.
    pub(super) fn begin_segment(
        &mut self,
        spare: Spare,
        records: &[Record],
    ) -> io::Result<Vec<usize>> {
        let (number, bytes) = (spare.number, spare.bytes);
        let header = SegmentHeader { number, bytes, previous: self.end };
        let start = LogEnd { segment: number, offset: SECTOR as u64 };
        let (batch, mut offsets) = encode_batch(self.sequence + 1, start, self.end, records);
        let mut first = header.encode().to_vec();
        first.extend_from_slice(&batch);
        let file = segment::activate(&*self.disk, &self.directory, spare, &first)?;
        self.sequence += 1;
        self.end = LogEnd { segment: number, offset: first.len() as u64 };
        let mut index_max = None;
        for record in records {
            self.state.apply(record);
            if let Record::Entry { id, .. } = record {
                index_max = index_max.max(Some(id.index));
            }
        }
        self.segments.push_back(Segment { number, bytes, file, index_max });
        for offset in &mut offsets {
            *offset += SECTOR;
        }
        Ok(offsets)
    }

    fn current(&self) -> &Segment {
        self.segments.back().expect("an open log has a segment")
    }

    fn next_bytes(&self) -> u64 {
        let current = self.segments.back().map_or(0, |segment| segment.bytes);
        (current.saturating_mul(SEGMENT_GROWTH))
            .clamp(self.options.segment_bytes_first, self.options.segment_bytes_max)
    }
}

/// Requests on their way to becoming one write.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    /// For each entry its record's number and its ticket.
    entries: Vec<(usize, u64)>,
    dones: Vec<Done>,
    written: Vec<(u64, u64, Place)>,
    bytes: u64,
    payload_bytes: usize,
}

impl Batch {
    fn add(&mut self, request: Request) {
        self.payload_bytes += request.payload_bytes();
        match request {
            Request::Append { entries, done } => {
                for (entry, ticket) in entries {
                    self.entries.push((self.records.len(), ticket));
                    self.records.push(Record::Entry { id: entry.id, payload: entry.payload });
                }
                self.dones.push(done);
            }
            Request::Vote { vote, done } => {
                self.records.push(Record::Vote(vote));
                self.dones.push(done);
            }
            Request::Truncate { after } => self.records.push(Record::Truncate(after)),
            Request::Purge { upto } => self.records.push(Record::Purge(upto)),
            Request::Committed { id } => self.records.push(Record::Committed(id)),
            Request::Barrier { done } => self.dones.push(done),
        }
    }

    /// Notes where the entries went.
    fn place(&mut self, start: LogEnd, offsets: &[usize]) {
        for (number, ticket) in &self.entries {
            if let Record::Entry { id: EntryId { index, .. }, .. } = &self.records[*number] {
                let place = place(start.segment, start.offset, offsets[*number]);
                self.written.push((*index, *ticket, place));
            }
        }
    }

    fn plant_skip_sync(&self) -> bool {
        let votes = self.records.iter().any(|record| matches!(record, Record::Vote(_)));
        (votes && is_planted(Plant::SkipVoteSync)) || (!votes && is_planted(Plant::SkipLogSync))
    }
}

/// The place of a payload whose record is at `offset` of the batch at `start`.
pub(super) fn place(segment: u64, start: u64, offset: usize) -> Place {
    let offset = start + (offset + RECORD_HEAD) as u64;
    Place { segment, offset: u32::try_from(offset).expect("a segment is under 4 GiB") }
}

impl Request {
    fn done(self) -> Option<Done> {
        match self {
            Self::Append { done, .. } | Self::Vote { done, .. } | Self::Barrier { done } => {
                Some(done)
            }
            Self::Truncate { .. } | Self::Purge { .. } | Self::Committed { .. } => None,
        }
    }
}

/// A log's writer thread.
#[derive(Debug)]
pub struct WalThread {
    wal: Wal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl WalThread {
    /// Writes what is queued, ends the thread and says whether all went well.
    pub fn close(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        self.wal.close();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the log's writer thread has panicked")),
        }
    }
}

impl Drop for WalThread {
    fn drop(&mut self) {
        // The error was given to every request already.
        drop(self.join());
    }
}
