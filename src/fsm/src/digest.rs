//! How replicas compare their states: per table the wrapping sum of a 128-bit hash over (key,
//! encoded row).
//!
//! The sum does not depend on the order of changes and is kept up to date row by row. A
//! [`DigestMark`] stores the digest as of the entry before it; servers report theirs; the leader
//! commits the majority's as a verdict, and a replica that disagrees stops.

use serde::{Deserialize, Serialize};

use crate::{
    apply::{Outcome, Turn},
    command::{Rejection, Reply},
    effect::Effect,
    id::Index,
    limits,
    table::Row,
    upkeep::MarkDigest,
};

/// A wrapping sum of row hashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Digest(pub u128);

impl Digest {
    /// Adds a row's hash.
    pub fn add(&mut self, hash: u128) {
        self.0 = self.0.wrapping_add(hash);
    }

    /// Takes a row's hash out.
    pub fn remove(&mut self, hash: u128) {
        self.0 = self.0.wrapping_sub(hash);
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Hash of one row: the first 16 bytes of BLAKE3 over key length, key, frame.
pub fn row_hash(disk_key: &[u8], frame: &[u8]) -> u128 {
    let mut bytes =
        Vec::with_capacity(frame.len().saturating_add(disk_key.len()).saturating_add(4));
    bytes.extend_from_slice(&u32::try_from(disk_key.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(disk_key);
    bytes.extend_from_slice(frame);
    joined_hash(&bytes)
}

/// [`row_hash`] of a row whose key length (little endian, 4 bytes), key and frame stand one after
/// the other already.
pub fn joined_hash(bytes: &[u8]) -> u128 {
    let hash = blake3::hash(bytes);
    let first: [u8; 16] = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u128::from_le_bytes(first)
}

/// The digest of the state as of the entry before `index`, waiting for the servers' reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DigestMark {
    /// Index of the mark.
    pub index: Index,
    /// This replica's digest. Not part of the replicated comparison of marks themselves: equal on
    /// replicas that agree.
    pub digest: Digest,
    /// What the majority found, once known.
    pub verdict: Option<Digest>,
}

impl Row for DigestMark {
    type Key = u64;

    fn key(&self) -> u64 {
        self.index
    }
}

/// What the majority found for a mark.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DigestVerdict {
    /// Index of the mark.
    pub mark: Index,
    /// The majority's digest.
    pub digest: Digest,
}

impl Turn<'_> {
    pub(crate) fn mark_digest(&mut self, _: &MarkDigest) -> Reply {
        let digest = self.digest_before.unwrap_or_default();
        while self.state.digest_marks.len() >= limits::DIGEST_MARKS_MAX {
            let oldest = self.state.digest_marks.iter().next().map(|mark| mark.index);
            let Some(oldest) = oldest else { break };
            self.state.digest_marks.remove(&oldest, self.changes);
        }
        let mark = DigestMark { index: self.index, digest, verdict: None };
        self.state.digest_marks.put(mark, self.changes);
        self.effects.insert(Effect::DigestMark);
        Reply::Done
    }

    pub(crate) fn digest_verdict(&mut self, command: &DigestVerdict) -> Outcome {
        let DigestVerdict { mark, digest } = *command;
        let Some(row) = self.state.digest_marks.get(&mark).cloned() else {
            return Err(Rejection::NotFound { what: "digest mark".into() });
        };
        let mut row = (*row).clone();
        row.verdict = Some(digest);
        self.state.digest_marks.put(row, self.changes);
        self.effects.insert(Effect::DigestMark);
        Ok(Reply::Done)
    }
}
