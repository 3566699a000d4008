//! Messages whose parts are counted before they are decoded.
//!
//! A part of two bytes on the wire (a field without content) becomes a message of hundreds in memory,
//! so the length of a message bounds nothing: 60 MB of `1a 00` took 4.4 GB.

use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Parts (strings, bytes, messages) of one message. The largest that honest senders make has about
/// 60,000: the statuses of 1,000 tasks with ten events each.
pub const PARTS_MAX: u32 = 250_000;
/// Messages up to this length are not counted, bytes.
const SMALL_BYTES: usize = 16 << 10;
/// How deep parts are looked into; no message of ours is deeper.
const DEPTH_MAX: u32 = 8;

/// What [`ProstCodec`] is, for messages with so many parts.
#[derive(Clone, Debug)]
pub struct CountingCodec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for CountingCodec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T, U> Codec for CountingCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CountingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        CountingDecoder(self.0.decoder())
    }
}

/// Decodes what has few enough parts.
#[derive(Clone, Debug)]
pub struct CountingDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for CountingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        check(prost::bytes::Buf::chunk(buffer)).map_err(Status::out_of_range)?;
        self.0.decode(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Refuses a message with too many parts.
pub fn check(message: &[u8]) -> Result<(), String> {
    if message.len() <= SMALL_BYTES || parts(message, DEPTH_MAX).is_none_or(|n| n <= PARTS_MAX) {
        return Ok(());
    }
    Err(format!("a message of more than {PARTS_MAX} parts: send fewer at a time"))
}

/// Parts of a message, those within parts included, or a number above [`PARTS_MAX`]; none: these bytes are no message.
///
/// What a part is (text, bytes, a message) the wire does not say. What reads as a message counts as one,
/// so the count is never too small. Takes time for each byte once per level.
fn parts(mut bytes: &[u8], depth: u32) -> Option<u32> {
    let mut count = 0u32;
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        // Field numbers begin with 1.
        if key >> 3 == 0 {
            return None;
        }
        let skipped = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                0
            }
            1 => 8,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let part = bytes.get(..length)?;
                let within = if depth > 0 { parts(part, depth - 1) } else { None };
                count = count.saturating_add(1).saturating_add(within.unwrap_or(0));
                if count > PARTS_MAX {
                    return Some(count);
                }
                length
            }
            5 => 4,
            _ => return None,
        };
        bytes = bytes.get(skipped..)?;
    }
    Some(count)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(place).ok()?)?;
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn field(content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x1a];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    }

    #[test]
    fn a_message_of_many_parts_is_refused_at_any_depth() {
        let many = [0x1a, 0x00].repeat(PARTS_MAX as usize + 1);
        assert!(check(&many).is_err());
        assert!(check(&many[2..]).is_ok(), "one less");
        let mut within = field(&many);
        for _ in 1..DEPTH_MAX {
            assert!(check(&within).is_err());
            within = field(&within);
        }
        // A message of its own for every few parts.
        let few = field(&[0x1a, 0x00].repeat(9));
        assert!(check(&few.repeat(PARTS_MAX as usize / 10 + 1)).is_err());
        // Behind fields of all other kinds.
        let others = [&[0x08, 0x96, 0x01][..], &[0x0d; 5], &[0x09; 9], &many].concat();
        assert!(check(&others).is_err());
    }

    #[test]
    fn what_is_no_message_counts_as_one_part() {
        for content in [vec![0; 1 << 20], vec![b'a'; 1 << 20], vec![0xff; 1 << 20]] {
            assert_eq!(parts(&field(&content), DEPTH_MAX), Some(1));
        }
        assert_eq!(parts(&[0x1a, 0x05, 0x00], DEPTH_MAX), None, "cut off");
        assert_eq!(parts(&[0x1b], DEPTH_MAX), None, "a group");
    }

    /// As large as a report may be: 1,000 tasks with ten events each.
    #[test]
    fn the_largest_honest_message_is_taken() {
        use crate::v1::{AllocationStatus, TaskEvent, TaskState, UpdateAllocationsRequest};
        let text = || "started by the executor with a process of its own".to_owned();
        let event = TaskEvent { kind: text(), message: text(), ..TaskEvent::default() };
        let task = TaskState { events: vec![event; 10], ..TaskState::default() };
        let tasks = (0..1_000).map(|number| (format!("task-{number}"), task.clone())).collect();
        let status = AllocationStatus { tasks, ..AllocationStatus::default() };
        let report = UpdateAllocationsRequest { statuses: vec![status; 2], ..Default::default() };
        check(&report.encode_to_vec()).unwrap();
    }
}
