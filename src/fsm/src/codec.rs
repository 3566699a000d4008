//! The one place where bincode meets bytes. Everything Quorate persists is a frame, little endian:
//!
//! ```text
//! magic u16 | kind u16 | generation u16 | crc32c u32 of the payload | length u32 | payload
//! ```
//!
//! Kinds are explicit numbers outside bincode; the generation is that of all bytes
//! ([`GENERATION`]). Decoding takes a slice, never a reader (a hostile length prefix must not
//! allocate), limits sizes, and refuses trailing bytes. Recursive types are not allowed in frames.

use bincode::{
    config::{Configuration, Limit, LittleEndian, Varint},
    enc::write::SizeWriter,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    generation::{self, GENERATION, OtherGeneration},
    tables::tables,
};

const MAGIC: u16 = 0x5152; // "RQ"
/// Length of the header, bytes.
pub const HEADER_BYTES: usize = 14;
/// Longest payload, bytes.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// A type with a persisted form.
pub trait Frame: Serialize + DeserializeOwned {
    /// Number of the type: a row's is that of its table.
    const KIND: u16;
}

/// Bytes that are not the frame that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short, or the wrong magic number.
    #[error("not a frame ({0} bytes)")]
    NotAFrame(usize),
    /// Another type.
    #[error("frame of kind {found}, expected {expected}")]
    Kind {
        /// Kind in the frame.
        found: u16,
        /// Kind asked for.
        expected: u16,
    },
    /// Written by a binary of another generation.
    #[error("frame of kind {kind} is {other}")]
    Generation {
        kind: u16,
        /// The generation in the frame.
        other: OtherGeneration,
    },
    /// The length in the header is not that of the bytes.
    #[error("frame of kind {kind} says {said} bytes, has {has}")]
    Length {
        kind: u16,
        /// Length in the header.
        said: usize,
        /// Length found.
        has: usize,
    },
    /// The checksum is wrong: the bytes are damaged.
    #[error("frame of kind {kind} has a wrong checksum: the bytes are damaged")]
    Checksum { kind: u16 },
    /// The payload is not of the type.
    #[error("frame of kind {kind} does not decode: {detail}")]
    Payload {
        kind: u16,
        /// Detail from the decoder.
        detail: String,
    },
}

fn config() -> Configuration<LittleEndian, Varint, Limit<PAYLOAD_BYTES_MAX>> {
    bincode::config::standard().with_limit::<PAYLOAD_BYTES_MAX>()
}

/// The frame of a value.
pub fn encode<T: Frame>(value: &T) -> Bytes {
    let mut out = Vec::with_capacity(256);
    encode_to(value, &mut out);
    out.into()
}

/// Bytes of the frame of a value, counted without making it.
pub fn encoded_len<T: Frame>(value: &T) -> usize {
    let mut payload = SizeWriter::default();
    bincode::serde::encode_into_writer(value, &mut payload, bincode::config::standard())
        .expect("a derived Serialize that is only counted cannot fail");
    HEADER_BYTES.saturating_add(payload.bytes_written)
}

/// Appends the frame of a value.
pub fn encode_to<T: Frame>(value: &T, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    bincode::serde::encode_into_std_write(value, out, bincode::config::standard())
        .expect("a derived Serialize into a Vec cannot fail");
    let frame = out.get_mut(start..).unwrap_or_default();
    let Some((header, payload)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else { return };
    let length = u32::try_from(payload.len()).expect("a payload is below 4 GiB");
    let crc = crc32c::crc32c(payload);
    let fields = MAGIC
        .to_le_bytes()
        .into_iter()
        .chain(T::KIND.to_le_bytes())
        .chain(GENERATION.to_le_bytes())
        .chain(crc.to_le_bytes())
        .chain(length.to_le_bytes());
    for (slot, byte) in header.iter_mut().zip(fields) {
        *slot = byte;
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The kind of a frame and its payload, checked against generation, length and checksum.
pub fn open(bytes: &[u8]) -> Result<(u16, &[u8]), DecodeError> {
    let parts = || {
        let magic = u16::from_le_bytes(field(bytes, 0)?);
        let kind = u16::from_le_bytes(field(bytes, 2)?);
        let generation = u16::from_le_bytes(field(bytes, 4)?);
        let crc = u32::from_le_bytes(field(bytes, 6)?);
        let length = u32::from_le_bytes(field(bytes, 10)?);
        (magic == MAGIC).then_some((kind, generation, crc, length))
    };
    let (kind, generation, crc, length) = parts().ok_or(DecodeError::NotAFrame(bytes.len()))?;
    generation::check(u32::from(generation))
        .map_err(|other| DecodeError::Generation { kind, other })?;
    let payload = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let said = usize::try_from(length).unwrap_or(usize::MAX);
    if said != payload.len() {
        return Err(DecodeError::Length { kind, said, has: payload.len() });
    }
    if crc32c::crc32c(payload) != crc {
        return Err(DecodeError::Checksum { kind });
    }
    Ok((kind, payload))
}

/// The value of a frame.
pub fn decode<T: Frame>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (kind, payload) = open(bytes)?;
    if kind != T::KIND {
        return Err(DecodeError::Kind { found: kind, expected: T::KIND });
    }
    let (value, used) = bincode::serde::decode_from_slice(payload, config())
        .map_err(|error| DecodeError::Payload { kind, detail: error.to_string() })?;
    if used != payload.len() {
        return Err(DecodeError::Payload { kind, detail: "trailing bytes".to_owned() });
    }
    Ok(value)
}

macro_rules! frames {
    ($($(#[$doc:meta])* $kind:literal => $type:ty;)*) => {
        $(impl Frame for $type {
            const KIND: u16 = $kind;
        })*
        /// The kinds of what is no row.
        #[cfg(test)]
        const OTHER_KINDS: &[u16] = &[$($kind),*];
    };
}

macro_rules! row_frames {
    ($($(#[$doc:meta])* $number:literal $id:ident $field:ident $row:ty,)*) => {
        $(impl Frame for $row {
            const KIND: u16 = $number;
        })*
    };
}

tables!(row_frames);

/// Every kind in use.
#[cfg(test)]
pub(crate) fn kinds() -> Vec<u16> {
    let rows = crate::table::TableId::ALL.into_iter().map(|table| u16::from(table.byte()));
    rows.chain(OTHER_KINDS.iter().copied()).collect()
}

frames! {
    13 => crate::state::Head;
    32 => crate::command::Proposal;
    33 => crate::command::Reply;
    34 => crate::plan::Plan;
    35 => crate::job::JobSpec;
}

#[cfg(test)]
mod tests {
    #![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::settings::Namespace;

    #[test]
    fn kinds_are_distinct() {
        let mut distinct = kinds();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), kinds().len());
    }

    #[test]
    fn a_frame_of_another_generation_is_refused_with_both_numbers() {
        let mut bytes = encode(&Namespace::default()).to_vec();
        let other = GENERATION + 1;
        bytes[4..6].copy_from_slice(&other.to_le_bytes());
        let error = decode::<Namespace>(&bytes).unwrap_err();
        let found = OtherGeneration(u32::from(other));
        assert_eq!(error, DecodeError::Generation { kind: 7, other: found });
        let expected = format!(
            "frame of kind 7 is of generation {other}, this binary reads generation {GENERATION}"
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn the_length_of_a_frame_is_counted_without_making_it() {
        for description in ["", "théâtre", &"x".repeat(100_000)] {
            let row = Namespace { description: description.into(), ..Namespace::default() };
            assert_eq!(encoded_len(&row), encode(&row).len());
        }
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let row = Namespace {
            name: "team".into(),
            description: "théâtre".into(),
            ..Namespace::default()
        };
        let bytes = encode(&row).to_vec();
        assert_eq!(decode::<Namespace>(&bytes), Ok(row));
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1;
            assert!(decode::<Namespace>(&damaged).is_err(), "flip at {position} was accepted");
            assert!(decode::<Namespace>(&bytes[..position]).is_err(), "cut at {position}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(decode::<Namespace>(&longer).is_err());
    }
}
