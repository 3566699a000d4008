//! What is stored beside the rows of a state: where in the log it is, and the membership as of
//! there. Storage keeps these as they are; `raft::applied` makes and reads them.

use fsm::{codec, codec::Frame, digest::Digest, state::Head};
use serde::{Deserialize, Serialize};

/// Position, membership and digest of a stored state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AppliedMeta {
    /// Log position and time.
    pub head: Head,
    /// Index and term of the entry that set the membership.
    pub membership_log_id: Option<(u64, u64)>,
    /// The membership as a protocol message.
    pub membership: Vec<u8>,
    /// Digest of the rows and the head.
    pub digest: Digest,
}

impl Frame for AppliedMeta {
    const KIND: u16 = 64;
}

impl AppliedMeta {
    /// The frame.
    pub fn encode(&self) -> bytes::Bytes {
        codec::encode(self)
    }
}
