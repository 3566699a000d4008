//! What is stored beside the rows of a state: where in the log it is, and the membership as of there.

use std::io;

use fsm::{codec, codec::Frame, digest::Digest, state::Head};
use prost::Message;
use proto::v1 as pb;
use serde::{Deserialize, Serialize};

use crate::{
    raft::{LogId, StoredMembership},
    rpc::convert,
};

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
    const VERSION: u16 = 1;
}

impl AppliedMeta {
    /// The meta of a state at `head` with this membership.
    pub fn new(head: Head, membership: &StoredMembership, digest: Digest) -> Self {
        Self {
            head,
            membership_log_id: membership.log_id().map(|id| (id.index, convert::term_of(&id))),
            membership: convert::membership_to_pb(membership.membership()).encode_to_vec(),
            digest,
        }
    }

    /// The last applied log id; none before the first entry.
    pub fn log_id(&self) -> Option<LogId> {
        // An index of 0 with term 0 is the entry that initialised the cluster.
        let applied = self.head.index > 0 || self.membership_log_id.is_some();
        applied.then(|| convert::log_id(self.head.term, self.head.index))
    }

    /// The membership.
    pub fn stored_membership(&self) -> io::Result<StoredMembership> {
        let message = pb::Membership::decode(&*self.membership).map_err(io::Error::other)?;
        let id = self.membership_log_id.map(|(index, term)| pb::LogId { term, index });
        convert::stored_membership_from_pb(id.as_ref(), Some(&message)).map_err(io::Error::other)
    }

    /// The frame.
    pub fn encode(&self) -> bytes::Bytes {
        codec::encode(self)
    }
}
