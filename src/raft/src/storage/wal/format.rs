//! The bytes of the log: segment headers, batches and records, and how each is checked.
//!
//! ```text
//! segment file:  [header sector] [batch] [batch] … [zeros, never written]
//! batch:         [head 64 B | checksums of the sectors below] [table sectors] [records] [zero padding]
//! record:        length u32 | crc32c u32 | kind u8 | index u64 | term u64 | payload
//! ```
//! A batch begins and ends on a 512-byte sector, so no sector is ever written twice. Its first
//! sector and its table sectors carry their own checksum, every other sector has one in these, so
//! that recovery knows exactly which sectors the disk never wrote. A record's length counts from
//! its kind on, and its checksum covers the length and all that follows. Integers are little
//! endian. This file must never do I/O.

use super::{EntryId, LogState};
use bytes::Bytes;
use fsm::{
    GENERATION,
    generation::{self, OtherGeneration},
};
use ground::plant::{Plant, is_planted};

/// What a disk writes as a whole or not at all.
pub(super) const SECTOR: usize = 512;
/// Bytes of a record before its payload.
pub(super) const RECORD_HEAD: usize = 25;

const SEGMENT_MAGIC: [u8; 8] = *b"QUORWAL\n";
const BATCH_MAGIC: [u8; 4] = *b"QBAT";
const BATCH_HEAD: usize = 64;
/// Checksums in a batch's first sector, and in each table sector after it.
const FIRST_CHECKSUMS: usize = (SECTOR - BATCH_HEAD) / 4;
const TABLE_CHECKSUMS: usize = (SECTOR - 4) / 4;

/// A place between two batches: everything before it is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEnd {
    /// Number of the segment; 0 before the first.
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// The first sector of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Counts up by one from 1 over the life of the log.
    pub(super) number: u64,
    /// Size of the file.
    pub(super) bytes: u64,
    /// Where the segment before ends; what follows there was cut and must be ignored.
    pub(super) previous: LogEnd,
}

/// Why a segment header was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    Generation(OtherGeneration),
    Damaged(&'static str),
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        sector[..8].copy_from_slice(&SEGMENT_MAGIC);
        sector[12..16].copy_from_slice(&u32::from(GENERATION).to_le_bytes());
        for (slot, value) in [self.number, self.bytes, self.previous.segment, self.previous.offset]
            .iter()
            .enumerate()
        {
            sector[16 + slot * 8..24 + slot * 8].copy_from_slice(&value.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&sector[12..]);
        sector[8..12].copy_from_slice(&checksum.to_le_bytes());
        sector
    }

    pub(super) fn decode(image: &[u8]) -> Result<Self, HeaderFault> {
        let Some(sector) = image.get(..SECTOR) else {
            return Err(HeaderFault::Damaged("the file is shorter than its header"));
        };
        if sector[..8] != SEGMENT_MAGIC {
            return Err(HeaderFault::Damaged("this is not a log segment"));
        }
        if !matches(&sector[12..], u32_at(sector, 8)) {
            return Err(HeaderFault::Damaged("the checksum of the segment header is wrong"));
        }
        generation::check(u32_at(sector, 12)).map_err(HeaderFault::Generation)?;
        Ok(Self {
            number: u64_at(sector, 16),
            bytes: u64_at(sector, 24),
            previous: LogEnd { segment: u64_at(sector, 32), offset: u64_at(sector, 40) },
        })
    }
}

/// One fact in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Entry {
        id: EntryId,
        payload: Bytes,
    },
    Vote(Bytes),
    /// Entries after this one are gone; `None`: all of them.
    Truncate(Option<EntryId>),
    Purge(EntryId),
    Committed(EntryId),
    /// What the log before this segment came to; the first record of each segment.
    Checkpoint(LogState),
}

const KIND_ENTRY: u8 = 1;
const KIND_VOTE: u8 = 2;
const KIND_TRUNCATE: u8 = 3;
const KIND_TRUNCATE_ALL: u8 = 4;
const KIND_PURGE: u8 = 5;
const KIND_COMMITTED: u8 = 6;
const KIND_CHECKPOINT: u8 = 7;

impl Record {
    /// Bytes this record takes in a batch.
    pub(super) fn size(&self) -> usize {
        RECORD_HEAD
            + match self {
                Self::Entry { payload, .. } | Self::Vote(payload) => payload.len(),
                Self::Truncate(_) | Self::Purge(_) | Self::Committed(_) => 0,
                Self::Checkpoint(state) => checkpoint_size(state),
            }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let nothing = EntryId { index: 0, term: 0 };
        let checkpoint;
        let (kind, id, payload): (u8, EntryId, &[u8]) = match self {
            Self::Entry { id, payload } => (KIND_ENTRY, *id, payload),
            Self::Vote(vote) => (KIND_VOTE, nothing, vote),
            Self::Truncate(Some(after)) => (KIND_TRUNCATE, *after, &[]),
            Self::Truncate(None) => (KIND_TRUNCATE_ALL, nothing, &[]),
            Self::Purge(upto) => (KIND_PURGE, *upto, &[]),
            Self::Committed(id) => (KIND_COMMITTED, *id, &[]),
            Self::Checkpoint(state) => {
                checkpoint = encode_checkpoint(state);
                (KIND_CHECKPOINT, nothing, &checkpoint)
            }
        };
        let start = out.len();
        let length = u32::try_from(RECORD_HEAD - 8 + payload.len()).expect("a record is bounded");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.push(kind);
        out.extend_from_slice(&id.index.to_le_bytes());
        out.extend_from_slice(&id.term.to_le_bytes());
        out.extend_from_slice(payload);
        let checksum = record_checksum(&out[start..]);
        out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Decodes the record at the offset and returns it with the offset after it.
    pub(super) fn decode(
        image: &Bytes,
        offset: usize,
        end: usize,
    ) -> Result<(Self, usize), String> {
        let head = image.get(offset..end.min(offset + RECORD_HEAD)).unwrap_or_default();
        if head.len() < RECORD_HEAD {
            return Err("a record runs past the end of its batch".to_owned());
        }
        let next = offset + 8 + u32_at(head, 0) as usize;
        if next > end || next < offset + RECORD_HEAD {
            return Err(format!("a record has the impossible length {}", u32_at(head, 0)));
        }
        let bytes = &image[offset..next];
        if record_checksum(bytes) != u32_at(head, 4) && !is_planted(Plant::SkipChecksums) {
            return Err("the checksum of a record is wrong".to_owned());
        }
        let id = EntryId { index: u64_at(head, 9), term: u64_at(head, 17) };
        let payload = image.slice(offset + RECORD_HEAD..next);
        let record = match head[8] {
            KIND_ENTRY => Self::Entry { id, payload },
            KIND_VOTE => Self::Vote(payload),
            KIND_TRUNCATE => Self::Truncate(Some(id)),
            KIND_TRUNCATE_ALL => Self::Truncate(None),
            KIND_PURGE => Self::Purge(id),
            KIND_COMMITTED => Self::Committed(id),
            KIND_CHECKPOINT => Self::Checkpoint(
                decode_checkpoint(&payload)
                    .ok_or_else(|| "a checkpoint has the wrong form".to_owned())?,
            ),
            kind => return Err(format!("a record has the unknown kind {kind}")),
        };
        Ok((record, next))
    }
}

fn record_checksum(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..4]), &record[8..])
}

/// Checkpoint payload: a byte of flags (vote, purged, committed, last), then 16 bytes for each of
/// the three ids that is there, then the vote.
fn encode_checkpoint(state: &LogState) -> Vec<u8> {
    let mut out = Vec::with_capacity(checkpoint_size(state));
    let ids = [state.purged, state.committed, state.last];
    let mut flags = u8::from(state.vote.is_some());
    for (bit, id) in ids.iter().enumerate() {
        flags |= u8::from(id.is_some()) << (bit + 1);
    }
    out.push(flags);
    for id in ids.iter().flatten() {
        out.extend_from_slice(&id.index.to_le_bytes());
        out.extend_from_slice(&id.term.to_le_bytes());
    }
    out.extend_from_slice(state.vote.as_deref().unwrap_or_default());
    out
}

fn checkpoint_size(state: &LogState) -> usize {
    let ids = [state.purged, state.committed, state.last].iter().flatten().count();
    1 + ids * 16 + state.vote.as_ref().map_or(0, Bytes::len)
}

fn decode_checkpoint(payload: &Bytes) -> Option<LogState> {
    let flags = *payload.first()?;
    let mut ids = [None; 3];
    let mut offset = 1;
    for (bit, id) in ids.iter_mut().enumerate() {
        if flags & (1 << (bit + 1)) != 0 {
            let bytes = payload.get(offset..offset + 16)?;
            *id = Some(EntryId { index: u64_at(bytes, 0), term: u64_at(bytes, 8) });
            offset += 16;
        }
    }
    let vote = (flags & 1 != 0).then(|| payload.slice(offset..));
    let [purged, committed, last] = ids;
    (flags < 16 && (vote.is_some() || offset == payload.len())).then_some(LogState {
        vote,
        purged,
        committed,
        last,
    })
}

/// The head of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchHead {
    /// Counts up by one over the life of the log.
    pub(super) sequence: u64,
    /// Where this batch begins.
    pub(super) start: LogEnd,
    /// Where the batch before ends; all up to there was durable before this one was written.
    pub(super) previous: LogEnd,
    pub(super) records_bytes: u32,
    pub(super) records: u32,
}

/// How the bytes of a batch are laid out; follows from the size of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchShape {
    tables: usize,
    /// Sectors with a checksum in the tables.
    covered: usize,
    pub(super) records_offset: usize,
    /// All of it, in whole sectors.
    pub(super) bytes: usize,
}

impl BatchShape {
    pub(super) fn of(records_bytes: usize) -> Self {
        let covered = (BATCH_HEAD + records_bytes).saturating_sub(SECTOR).div_ceil(SECTOR - 4);
        if covered <= FIRST_CHECKSUMS {
            let records_offset = BATCH_HEAD + covered * 4;
            return Self { tables: 0, covered, records_offset, bytes: (1 + covered) * SECTOR };
        }
        let covered = records_bytes.div_ceil(SECTOR);
        let tables = (covered - FIRST_CHECKSUMS).div_ceil(TABLE_CHECKSUMS);
        Self {
            tables,
            covered,
            records_offset: (1 + tables) * SECTOR,
            bytes: (1 + tables + covered) * SECTOR,
        }
    }

    /// The covered sector's offset in the batch.
    fn sector(&self, number: usize) -> usize {
        (1 + self.tables + number) * SECTOR
    }

    /// Where in the batch the checksum of a covered sector stands.
    fn checksum(number: usize) -> usize {
        match number.checked_sub(FIRST_CHECKSUMS) {
            None => BATCH_HEAD + number * 4,
            Some(rest) => SECTOR + rest / TABLE_CHECKSUMS * SECTOR + 4 + rest % TABLE_CHECKSUMS * 4,
        }
    }
}

/// Encodes a batch at `start` and returns its bytes with the offset of each record in them.
pub(super) fn encode_batch(
    sequence: u64,
    start: LogEnd,
    previous: LogEnd,
    records: &[Record],
) -> (Vec<u8>, Vec<usize>) {
    let records_bytes: usize = records.iter().map(Record::size).sum();
    let shape = BatchShape::of(records_bytes);
    let mut out = Vec::with_capacity(shape.bytes);
    out.resize(shape.records_offset, 0);
    let mut offsets = Vec::with_capacity(records.len());
    for record in records {
        offsets.push(out.len());
        record.encode(&mut out);
    }
    out.resize(shape.bytes, 0);
    for number in 0..shape.covered {
        let sector = shape.sector(number);
        let checksum = crc32c::crc32c(&out[sector..sector + SECTOR]);
        let place = BatchShape::checksum(number);
        out[place..place + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    for table in out[SECTOR..].chunks_mut(SECTOR).take(shape.tables) {
        let checksum = crc32c::crc32c(&table[4..]);
        table[..4].copy_from_slice(&checksum.to_le_bytes());
    }
    out[..4].copy_from_slice(&BATCH_MAGIC);
    for (slot, value) in [sequence, start.segment, start.offset, previous.segment, previous.offset]
        .iter()
        .enumerate()
    {
        out[8 + slot * 8..16 + slot * 8].copy_from_slice(&value.to_le_bytes());
    }
    let bounded = |size| u32::try_from(size).expect("a batch fits a segment, which is under 4 GiB");
    out[48..52].copy_from_slice(&bounded(records_bytes).to_le_bytes());
    out[52..56].copy_from_slice(&bounded(records.len()).to_le_bytes());
    let checksum = crc32c::crc32c(&out[8..SECTOR]);
    out[4..8].copy_from_slice(&checksum.to_le_bytes());
    (out, offsets)
}

/// What stands where a batch could begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BatchCheck {
    Valid(BatchHead, BatchShape),
    /// The head is there; every bad sector was never written.
    Torn(BatchHead, BatchShape),
    /// The first sector was never written.
    Blank,
    Damaged {
        offset: usize,
        found: String,
    },
}

/// Checks the batch at an offset of a segment's image, sector by sector.
pub(super) fn check_batch(image: &[u8], segment: u64, offset: usize) -> BatchCheck {
    let damaged = |offset, found: &str| BatchCheck::Damaged { offset, found: found.to_owned() };
    let Some(first) = image.get(offset..offset + SECTOR) else {
        return damaged(offset, "the file does not end on a sector");
    };
    if is_zero(first) {
        return BatchCheck::Blank;
    }
    let Some(head) = decode_head(first) else {
        return damaged(offset, "the head of a batch is damaged");
    };
    if head.start != (LogEnd { segment, offset: offset as u64 }) {
        return damaged(offset, "a batch belongs to another place");
    }
    let shape = BatchShape::of(head.records_bytes as usize);
    let Some(batch) = image.get(offset..offset + shape.bytes) else {
        return damaged(offset, "a batch runs past the end of its segment");
    };
    let mut torn = false;
    let mut table_missing = vec![false; shape.tables];
    for (number, table) in batch[SECTOR..].chunks(SECTOR).take(shape.tables).enumerate() {
        if !matches(&table[4..], u32_at(table, 0)) {
            if !is_zero(table) {
                return damaged(offset + (1 + number) * SECTOR, "a table of checksums is damaged");
            }
            torn = true;
            table_missing[number] = true;
        }
    }
    for number in 0..shape.covered {
        let place = BatchShape::checksum(number);
        if place >= SECTOR && table_missing[place / SECTOR - 1] {
            continue;
        }
        let start = shape.sector(number);
        let sector = &batch[start..start + SECTOR];
        if !matches(sector, u32_at(batch, place)) {
            if !is_zero(sector) {
                return damaged(offset + start, "the checksum of a sector is wrong");
            }
            torn = true;
        }
    }
    if torn { BatchCheck::Torn(head, shape) } else { BatchCheck::Valid(head, shape) }
}

/// The first offset from `from` on where an intact batch head of this segment stands.
pub(super) fn find_batch(image: &[u8], segment: u64, from: usize) -> Option<usize> {
    (from..image.len().saturating_sub(SECTOR - 1)).step_by(SECTOR).find(|offset| {
        let start = LogEnd { segment, offset: *offset as u64 };
        image[*offset..].starts_with(&BATCH_MAGIC)
            && decode_head(&image[*offset..*offset + SECTOR])
                .is_some_and(|head| head.start == start)
    })
}

fn decode_head(sector: &[u8]) -> Option<BatchHead> {
    (sector[..4] == BATCH_MAGIC && matches(&sector[8..], u32_at(sector, 4))).then(|| BatchHead {
        sequence: u64_at(sector, 8),
        start: LogEnd { segment: u64_at(sector, 16), offset: u64_at(sector, 24) },
        previous: LogEnd { segment: u64_at(sector, 32), offset: u64_at(sector, 40) },
        records_bytes: u32_at(sector, 48),
        records: u32_at(sector, 52),
    })
}

/// Whether every byte is zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<16>();
    chunks.iter().all(|chunk| u128::from_ne_bytes(*chunk) == 0) && rest.iter().all(|b| *b == 0)
}

fn matches(bytes: &[u8], checksum: u32) -> bool {
    crc32c::crc32c(bytes) == checksum || is_planted(Plant::SkipChecksums)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_id() -> impl Strategy<Value = EntryId> {
        (any::<u64>(), any::<u64>()).prop_map(|(index, term)| EntryId { index, term })
    }

    fn any_bytes() -> impl Strategy<Value = Bytes> {
        prop_oneof![0..600_usize, 0..9000_usize].prop_flat_map(|length| {
            prop_oneof![Just(vec![0; length]), prop::collection::vec(any::<u8>(), length)]
                .prop_map(Bytes::from)
        })
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let ids = || prop::option::of(any_id());
        prop_oneof![
            (any_id(), any_bytes()).prop_map(|(id, payload)| Record::Entry { id, payload }),
            any_bytes().prop_map(Record::Vote),
            ids().prop_map(Record::Truncate),
            any_id().prop_map(Record::Purge),
            any_id().prop_map(Record::Committed),
            (prop::option::of(any_bytes()), ids(), ids(), ids()).prop_map(
                |(vote, purged, committed, last)| {
                    Record::Checkpoint(LogState { vote, purged, committed, last })
                }
            ),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_batch_decodes_to_its_records(records in prop::collection::vec(any_record(), 0..12)) {
            let start = LogEnd { segment: 3, offset: 0 };
            let previous = LogEnd { segment: 2, offset: 9 };
            let (bytes, offsets) = encode_batch(7, start, previous, &records);
            let BatchCheck::Valid(head, shape) = check_batch(&bytes, 3, 0) else {
                panic!("refused its own batch");
            };
            prop_assert_eq!((head.sequence, head.previous), (7, previous));
            prop_assert_eq!(shape.bytes, bytes.len());
            let image = Bytes::from(bytes);
            let end = shape.records_offset + head.records_bytes as usize;
            let mut offset = shape.records_offset;
            for (record, expected) in records.iter().zip(offsets) {
                prop_assert_eq!(offset, expected);
                let (decoded, next) = Record::decode(&image, offset, end).unwrap();
                prop_assert_eq!(&decoded, record);
                offset = next;
            }
            prop_assert_eq!(offset, end);
        }

        #[test]
        fn a_flipped_byte_is_damage_and_a_blank_sector_is_torn(
            records in prop::collection::vec(any_record(), 1..12),
            places in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 20),
        ) {
            let start = LogEnd { segment: 3, offset: 0 };
            let (bytes, _) = encode_batch(7, start, start, &records);
            for (place, mask) in places {
                let place = place.index(bytes.len());
                let mut changed = bytes.clone();
                changed[place] ^= mask;
                let sector = place / SECTOR * SECTOR;
                if is_zero(&changed[sector..sector + SECTOR]) {
                    continue;
                }
                let found = check_batch(&changed, 3, 0);
                prop_assert!(matches!(found, BatchCheck::Damaged { .. }), "{:?}", found);

                let mut changed = bytes.clone();
                changed[sector..sector + SECTOR].fill(0);
                match check_batch(&changed, 3, 0) {
                    BatchCheck::Valid(..) => prop_assert_eq!(&changed, &bytes),
                    BatchCheck::Torn(..) => prop_assert_ne!(sector, 0),
                    BatchCheck::Blank => prop_assert_eq!(sector, 0),
                    BatchCheck::Damaged { found, .. } => prop_assert!(false, "{}", found),
                }
            }
        }
    }

    #[test]
    fn shapes_hold_their_records_in_the_fewest_sectors() {
        for records_bytes in (0..70_000).chain(1_000_000..1_001_000) {
            let shape = BatchShape::of(records_bytes);
            assert!(shape.records_offset + records_bytes <= shape.bytes, "{records_bytes}");
            assert!(
                shape.bytes - shape.records_offset - records_bytes < SECTOR,
                "{records_bytes}: {shape:?}"
            );
            if shape.covered > 0 {
                let last = BatchShape::checksum(shape.covered - 1);
                assert!(last + 4 <= shape.records_offset, "{records_bytes}: {shape:?}");
            }
        }
    }

    /// The format on disk: a change of these bytes needs another generation.
    #[test]
    fn golden_bytes() {
        let header =
            SegmentHeader { number: 2, bytes: 4096, previous: LogEnd { segment: 1, offset: 512 } };
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        let mut sector = header.encode();
        sector[8..16].fill(0); // The checksum, and the generation: another one is no other format.
        assert_eq!(crc32c::crc32c(&sector), 939_308_338);
        let id = EntryId { index: 5, term: 2 };
        let state = LogState {
            vote: Some(Bytes::from_static(b"v")),
            purged: None,
            committed: Some(id),
            last: Some(id),
        };
        let records = [
            Record::Checkpoint(state),
            Record::Entry { id, payload: Bytes::from_static(b"payload") },
            Record::Vote(Bytes::from_static(b"vote")),
            Record::Truncate(Some(id)),
            Record::Truncate(None),
            Record::Purge(id),
            Record::Committed(id),
        ];
        let start = LogEnd { segment: 2, offset: 512 };
        let (bytes, _) = encode_batch(9, start, LogEnd { segment: 1, offset: 512 }, &records);
        assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (512, 237_204_749));
    }

    #[test]
    fn another_generation_is_told_from_damage() {
        let header = SegmentHeader { number: 2, bytes: 4096, previous: LogEnd::default() };
        let mut sector = header.encode();
        sector[12] = 254;
        let checksum = crc32c::crc32c(&sector[12..]);
        sector[8..12].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(
            SegmentHeader::decode(&sector),
            Err(HeaderFault::Generation(OtherGeneration(254)))
        );
        sector[13] = 9;
        assert!(matches!(SegmentHeader::decode(&sector), Err(HeaderFault::Damaged(_))));
        assert!(matches!(SegmentHeader::decode(&sector[..99]), Err(HeaderFault::Damaged(_))));
    }
}
