//! The position and membership of a stored state, between openraft's types and those of storage.

use std::io;

use fsm::{digest::Digest, state::Head};
use prost::Message;
use proto::v1 as pb;

use super::{LogId, StoredMembership, convert};
use crate::storage::applied::AppliedMeta;

/// The meta of a state at `head` with this membership.
pub fn meta(head: Head, membership: &StoredMembership, digest: Digest) -> AppliedMeta {
    AppliedMeta {
        head,
        membership_log_id: membership.log_id().map(|id| (id.index, convert::term_of(&id))),
        membership: convert::membership_to_pb(membership.membership()).encode_to_vec(),
        digest,
    }
}

/// The last applied log id; none before the first entry.
pub fn log_id(meta: &AppliedMeta) -> Option<LogId> {
    // An index of 0 with term 0 is the entry that initialised the cluster.
    let is_applied = meta.head.index > 0 || meta.membership_log_id.is_some();
    is_applied.then(|| convert::log_id(meta.head.term, meta.head.index))
}

/// The membership that a state was stored with.
pub fn membership(meta: &AppliedMeta) -> io::Result<StoredMembership> {
    let message = pb::Membership::decode(&*meta.membership).map_err(io::Error::other)?;
    let id = meta.membership_log_id.map(|(index, term)| pb::LogId { term, index });
    convert::stored_membership_from_pb(id.as_ref(), Some(&message)).map_err(io::Error::other)
}
