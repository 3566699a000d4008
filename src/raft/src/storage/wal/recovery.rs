//! Opening a log: what the segments hold, what may be cut, and what is damage.
//!
//! Rules, in order of the scan from the oldest segment to the newest:
//! - Segment numbers follow each other; each header says where the segment before ends, and what
//!   follows that place is ignored (an earlier open cut or copied it).
//! - Every batch up to that end must be intact and follow the one before.
//! - In the newest segment, bytes that are not an intact batch are *cut* when they can only be a
//!   write that never finished: the bad 512-byte sectors are all zero and nothing follows. The
//!   first batch of a segment was durable before the file got its name, so it is never cut.
//! - Anything else is damage: the log does not open, and the error says where and what to do.
//!
//! What was read may exist only in the page cache, so nothing goes on from it: unless the newest
//! segment holds its first batch alone, its last batch is copied into a new segment, which then is
//! made durable under its name in one step. It must never change a byte of an existing segment.

use super::format::{
    BatchCheck, BatchHead, BatchShape, HeaderFault, LogEnd, Record, SECTOR, SegmentHeader,
    check_batch, find_batch, is_zero,
};
use super::index::Index;
use super::segment::{self, Housekeeper};
use super::writer::{Files, Segment, WalWriter, place};
use super::{Inner, LogState, Options, Shared, Stats, Wal};
use bytes::Bytes;
use fsm::generation::{OtherGeneration, WHAT_TO_DO};
use ground::{
    disk::{Disk, OpenMode},
    plant::{Plant, is_planted},
};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

const SEGMENT_BYTES_MIN: u64 = 4096;
const SEGMENT_BYTES_LIMIT: u64 = 2 << 30;

/// Why a log did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The options make no sense.
    #[error("log options: {0}")]
    Options(String),
    /// Acknowledged data may be gone; this server must not go on from it.
    #[error(
        "log file {} is damaged at byte {offset}: {found}; restore this server: stop it, move its \
         data directory away and let it rejoin with a new id",
        file.display()
    )]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What stands there.
        found: String,
    },
    /// The log was written by a binary of another generation.
    #[error("log file {} is {other}: {WHAT_TO_DO}", file.display())]
    Generation {
        /// The segment.
        file: PathBuf,
        /// The generation it names.
        other: OtherGeneration,
    },
    /// The disk refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

/// What an open found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Live entries.
    pub entries: u64,
    /// Segments on disk, the one to be written included.
    pub segments: u64,
    /// The unfinished write that was cut.
    pub cut: Option<Cut>,
    /// The last batch was copied into a new segment.
    pub copied: bool,
}

/// An unfinished write at the end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// Where the log ended.
    pub offset: u64,
}

/// A batch that was read, before it counts.
struct Batch {
    head: BatchHead,
    end: LogEnd,
    /// With each record's offset in its segment.
    records: Vec<(Record, usize)>,
    first: bool,
}

struct Scan {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    cache_bytes_max: usize,
    segments: VecDeque<Segment>,
    state: LogState,
    /// `None` until the oldest checkpoint is read.
    index: Option<Index>,
    /// The newest batch read; all before it are in `state` and `index`.
    last: Option<Batch>,
    cut: Option<Cut>,
}

pub(super) fn open(
    disk: Arc<dyn Disk>,
    directory: &Path,
    options: Options,
) -> Result<(Wal, WalWriter, Recovery), OpenError> {
    check_options(&options)?;
    let headers = list_segments(&*disk, directory)?;
    let mut scan = Scan {
        disk: Arc::clone(&disk),
        directory: directory.to_path_buf(),
        cache_bytes_max: options.cache_bytes_max,
        segments: VecDeque::new(),
        state: LogState::default(),
        index: None,
        last: None,
        cut: None,
    };
    for (position, header) in headers.iter().enumerate() {
        scan.segment(header, headers.get(position + 1).map(|next| next.previous.offset))?;
    }
    let resume = scan.cut.is_none() && scan.last.as_ref().is_some_and(|batch| batch.first);
    let last = scan.last.take();
    let files = Files {
        housekeeper: Housekeeper::new(Arc::clone(&disk), directory.to_path_buf()),
        disk,
        directory: directory.to_path_buf(),
        options,
        segments: VecDeque::new(),
        end: LogEnd::default(),
        sequence: 0,
        state: LogState::default(),
    };
    let (files, copied) = match last {
        Some(batch) if resume => (scan.resume(files, batch)?, false),
        last => scan.go_on_in_new_segment(files, last)?,
    };
    scan.check_holes(&files)?;
    Ok(assemble(scan, files, copied))
}

fn check_options(options: &Options) -> Result<(), OpenError> {
    let (first, max) = (options.segment_bytes_first, options.segment_bytes_max);
    if !first.is_multiple_of(SECTOR as u64) || !max.is_multiple_of(SECTOR as u64) {
        return Err(OpenError::Options(format!("segment sizes must be multiples of {SECTOR}")));
    }
    if first < SEGMENT_BYTES_MIN || first > max || max > SEGMENT_BYTES_LIMIT {
        return Err(OpenError::Options(format!(
            "segment sizes {first} to {max} are not within {SEGMENT_BYTES_MIN} to \
             {SEGMENT_BYTES_LIMIT}"
        )));
    }
    Ok(())
}

/// Makes the directory's names durable, removes segments in the making and reads all headers.
fn list_segments(disk: &dyn Disk, directory: &Path) -> Result<Vec<SegmentHeader>, OpenError> {
    let on = |action| {
        let path = directory.to_path_buf();
        move |source| OpenError::Io { action, path, source }
    };
    if !disk.exists(directory).map_err(on("look for"))? {
        disk.create_dir_all(directory).map_err(on("create"))?;
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        disk.sync_dir(parent.unwrap_or(Path::new("."))).map_err(on("sync the parent of"))?;
    }
    let mut numbers = Vec::new();
    for name in disk.list(directory).map_err(on("list"))? {
        if segment::is_temporary(&name) {
            disk.remove_file(&directory.join(&name)).map_err(on("remove an unused file from"))?;
        } else if let Some(number) = segment::number_in(&name) {
            numbers.push(number);
        }
    }
    disk.sync_dir(directory).map_err(on("sync"))?;
    let mut headers: Vec<SegmentHeader> = Vec::new();
    for number in numbers {
        let file = segment::path(directory, number);
        let damaged =
            |found: &str| OpenError::Damaged { file: file.clone(), offset: 0, found: found.into() };
        let header = read_header(disk, &file)?;
        if header.number != number {
            return Err(damaged("the header names another segment"));
        }
        if headers.last().is_some_and(|last| last.number + 1 != number) {
            return Err(damaged("the segment before it is missing"));
        }
        if header.previous.segment + 1 != number {
            return Err(damaged("the header does not follow the segment before"));
        }
        headers.push(header);
    }
    Ok(headers)
}

fn read_header(disk: &dyn Disk, file: &Path) -> Result<SegmentHeader, OpenError> {
    let mut sector = [0; SECTOR];
    let read =
        disk.open(file, OpenMode::Read).and_then(|opened| opened.read_exact_at(&mut sector, 0));
    match read {
        // The decoder refuses what a short file leaves of the buffer.
        Err(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
            let path = file.to_path_buf();
            return Err(OpenError::Io { action: "read the header of", path, source });
        }
        Ok(()) | Err(_) => {}
    }
    SegmentHeader::decode(&sector).map_err(|fault| match fault {
        HeaderFault::Generation(other) => OpenError::Generation { file: file.to_path_buf(), other },
        HeaderFault::Damaged(found) => {
            OpenError::Damaged { file: file.to_path_buf(), offset: 0, found: found.to_owned() }
        }
    })
}

impl Scan {
    /// Reads a segment up to its end: the one the next segment declares, or as far as it goes.
    fn segment(
        &mut self,
        header: &SegmentHeader,
        declared_end: Option<u64>,
    ) -> Result<(), OpenError> {
        let path = segment::path(&self.directory, header.number);
        let on = |action, source| OpenError::Io { action, path: path.clone(), source };
        let mode = if declared_end.is_some() { OpenMode::Read } else { OpenMode::ReadWrite };
        let file = self.disk.open(&path, mode).map_err(|source| on("open", source))?;
        let image = Bytes::from(self.disk.read(&path).map_err(|source| on("read", source))?);
        if image.len() as u64 != header.bytes {
            let found = format!("the file has {} of {} bytes", image.len(), header.bytes);
            return Err(self.damaged(header.number, image.len().min(SECTOR), found));
        }
        self.segments.push_back(Segment {
            number: header.number,
            bytes: header.bytes,
            file: Arc::from(file),
            index_max: None,
        });
        let declared_end = declared_end.map(|end| usize::try_from(end).unwrap_or(usize::MAX));
        let mut offset = SECTOR;
        while declared_end != Some(offset) {
            match self.batch(header, &image, offset, declared_end)? {
                Some(next) => offset = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Reads the batch at the offset; `None` where the log ends.
    fn batch(
        &mut self,
        header: &SegmentHeader,
        image: &Bytes,
        offset: usize,
        declared_end: Option<usize>,
    ) -> Result<Option<usize>, OpenError> {
        let number = header.number;
        let newest = declared_end.is_none();
        let first = offset == SECTOR;
        if newest && !first && offset == image.len() {
            return Ok(None);
        }
        match check_batch(image, number, offset) {
            BatchCheck::Valid(head, shape) => {
                let end = offset + shape.bytes;
                if declared_end.is_some_and(|declared| end > declared) {
                    let found = "a batch runs past the end the next segment declares".to_owned();
                    return Err(self.damaged(number, offset, found));
                }
                self.accept(header, image, head, shape)?;
                Ok(Some(end))
            }
            BatchCheck::Damaged { offset, found } => Err(self.damaged(number, offset, found)),
            BatchCheck::Torn(..) | BatchCheck::Blank if !newest || first => {
                let found = "a durable batch has sectors of zeros".to_owned();
                Err(self.damaged(number, offset, found))
            }
            BatchCheck::Torn(_, shape) => {
                let rest = &image[offset + shape.bytes..];
                if !is_zero(rest) {
                    let found = "an unfinished batch is followed by data".to_owned();
                    return Err(self.damaged(number, offset, found));
                }
                self.cut(number, offset)
            }
            BatchCheck::Blank if is_zero(&image[offset..]) => Ok(None),
            BatchCheck::Blank => {
                if let Some(later) = find_batch(image, number, offset) {
                    let found = format!("zeros stand before the batch at byte {later}");
                    return Err(self.damaged(number, offset, found));
                }
                self.cut(number, offset)
            }
        }
    }

    fn cut(&mut self, number: u64, offset: usize) -> Result<Option<usize>, OpenError> {
        if is_planted(Plant::TornTailIsFatal) {
            return Err(self.damaged(number, offset, "planted bug".to_owned()));
        }
        let file = segment::path(&self.directory, number);
        self.cut = Some(Cut { file, offset: offset as u64 });
        Ok(None)
    }

    /// Decodes an intact batch, and counts the one before it.
    fn accept(
        &mut self,
        header: &SegmentHeader,
        image: &Bytes,
        head: BatchHead,
        shape: BatchShape,
    ) -> Result<(), OpenError> {
        let offset = usize::try_from(head.start.offset).expect("an offset in the image");
        let first = offset == SECTOR;
        let previous = if first { header.previous } else { head.start };
        let expected = self.last.as_ref().map_or(head.sequence, |last| last.head.sequence + 1);
        if head.previous != previous || head.sequence != expected {
            let found = format!("batch {} where {expected} must follow", head.sequence);
            return Err(self.damaged(header.number, offset, found));
        }
        let mut at = offset + shape.records_offset;
        let records_end = at + head.records_bytes as usize;
        let mut records = Vec::with_capacity(head.records as usize);
        while at < records_end {
            let (record, next) = Record::decode(image, at, records_end)
                .map_err(|found| self.damaged(header.number, at, found))?;
            records.push((record, at));
            at = next;
        }
        if records.len() != head.records as usize {
            let found = format!("a batch has {} of {} records", records.len(), head.records);
            return Err(self.damaged(header.number, offset, found));
        }
        let end = LogEnd { segment: header.number, offset: (offset + shape.bytes) as u64 };
        let batch = Batch { head, end, records, first };
        if let Some(before) = self.last.replace(batch) {
            self.count(before)?;
        }
        Ok(())
    }

    /// Lets a batch count.
    fn count(&mut self, batch: Batch) -> Result<(), OpenError> {
        let number = batch.head.start.segment;
        for (position, (record, offset)) in batch.records.into_iter().enumerate() {
            let fault = if (batch.first && position == 0) == matches!(record, Record::Checkpoint(_))
            {
                self.record(number, &record, offset).err()
            } else {
                Some("a checkpoint belongs at the start of a segment and nowhere else".to_owned())
            };
            if let Some(found) = fault {
                return Err(self.damaged(number, offset, found));
            }
        }
        Ok(())
    }

    /// Applies a record that stands at this offset of this segment.
    fn record(&mut self, segment: u64, record: &Record, offset: usize) -> Result<(), String> {
        if let Record::Checkpoint(state) = record {
            if self.index.is_none() {
                self.state = state.clone();
            } else if self.state != *state {
                return Err("the checkpoint disagrees with the segments before".to_owned());
            }
        }
        let (state, cache_bytes_max) = (&self.state, self.cache_bytes_max);
        let index = self.index.get_or_insert_with(|| Index::new(state, cache_bytes_max));
        match record {
            Record::Entry { id, payload } => {
                if let Some(expected) = index.expected()
                    && expected != id.index
                {
                    return Err(format!("entry {} where {expected} must follow", id.index));
                }
                index.push_durable(*id, place(segment, 0, offset), payload.len());
                let file = self.segments.iter_mut().rev().find(|file| file.number == segment);
                let file = file.expect("a record is in a segment that was read");
                file.index_max = file.index_max.max(Some(id.index));
            }
            Record::Truncate(after) => index.truncate(*after),
            Record::Purge(upto) => index.purge(*upto),
            Record::Vote(_) | Record::Committed(_) | Record::Checkpoint(_) => {}
        }
        self.state.apply(record);
        Ok(())
    }

    /// Goes on in the newest segment, behind its first batch.
    fn resume(&mut self, mut files: Files, batch: Batch) -> Result<Files, OpenError> {
        files.end = batch.end;
        files.sequence = batch.head.sequence;
        self.count(batch)?;
        files.state = self.state.clone();
        files.segments = std::mem::take(&mut self.segments);
        Ok(files)
    }

    /// Goes on in a new segment, with a copy of the last batch when its sync is not proven.
    fn go_on_in_new_segment(
        &mut self,
        mut files: Files,
        last: Option<Batch>,
    ) -> Result<(Files, bool), OpenError> {
        let mut copied = Vec::new();
        if let Some(batch) = last {
            if batch.first {
                files.end = batch.end;
                files.sequence = batch.head.sequence;
                self.count(batch)?;
            } else {
                files.end = batch.head.start;
                files.sequence = batch.head.sequence - 1;
                copied = batch.records;
            }
        }
        let mut records = vec![Record::Checkpoint(self.state.clone())];
        records.extend(copied.into_iter().map(|(record, _)| record));
        files.state = self.state.clone();
        files.segments = std::mem::take(&mut self.segments);
        let number = files.end.segment + 1;
        let path = segment::path(&self.directory, number);
        let shape = BatchShape::of(records.iter().map(Record::size).sum());
        let needed = segment::bytes_needed(shape.bytes, 0);
        let offsets = files
            .prepare_now(number, files.options.segment_bytes_first, needed)
            .and_then(|spare| files.begin_segment(spare, &records))
            .map_err(|source| OpenError::Io { action: "create", path, source })?;
        std::mem::swap(&mut self.segments, &mut files.segments);
        for (record, offset) in records.iter().zip(offsets) {
            self.record(number, record, offset)
                .map_err(|found| self.damaged(number, offset, found))?;
        }
        std::mem::swap(&mut self.segments, &mut files.segments);
        Ok((files, records.len() > 1))
    }

    fn check_holes(&self, files: &Files) -> Result<(), OpenError> {
        let Some(hole) = self.index.as_ref().and_then(Index::hole) else {
            return Ok(());
        };
        let oldest = files.segments.front().map_or(0, |segment| segment.number);
        let found = format!(
            "entries {} to {} were in an older segment that is missing",
            hole.start,
            hole.end - 1
        );
        Err(self.damaged(oldest, 0, found))
    }

    fn damaged(&self, number: u64, offset: usize, found: String) -> OpenError {
        let file = segment::path(&self.directory, number);
        OpenError::Damaged { file, offset: offset as u64, found }
    }
}

fn assemble(scan: Scan, files: Files, copied: bool) -> (Wal, WalWriter, Recovery) {
    let index = scan.index.expect("every log has a checkpoint");
    let recovery = Recovery {
        entries: index.len() as u64,
        segments: files.segments.len() as u64,
        cut: scan.cut,
        copied,
    };
    if let Some(cut) = &recovery.cut {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            "cut an unfinished write from the end of the log"
        );
    }
    tracing::info!(
        directory = %files.directory.display(),
        segments = recovery.segments,
        entries = recovery.entries,
        last = index.last().map(|last| last.index),
        "log opened"
    );
    let segments =
        files.segments.iter().map(|segment| (segment.number, Arc::clone(&segment.file))).collect();
    let shared = Shared {
        vote: scan.state.vote,
        committed: scan.state.committed,
        queue: VecDeque::new(),
        queue_bytes: 0,
        queue_bytes_max: files.options.queue_bytes_max,
        segments,
        threaded: false,
        closed: false,
        poisoned: None,
        stats: Stats {
            disk_bytes: files.segments.iter().map(|segment| segment.bytes).sum(),
            ..Stats::default()
        },
        index,
    };
    let inner = Inner {
        shared: Mutex::new(shared),
        work: Condvar::new(),
        work_for_task: ground::rt::Notify::new(),
        room: Condvar::new(),
        died: ground::rt::watch::channel(None).0,
    };
    let wal = Wal { inner: Arc::new(inner) };
    let writer = WalWriter::new(wal.clone(), files);
    (wal, writer, recovery)
}
