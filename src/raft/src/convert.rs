//! Between openraft's types and protocol messages.

use std::collections::BTreeSet;

use openraft::{EntryPayload, entry::RaftEntry, vote::RaftLeaderIdExt};
use proto::v1 as pb;
use tonic::Status;

use super::{
    Entry, EntryData, LogId, Member, Membership, StoredMembership, TypeConfig, Vote, edge::number,
};

type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;

/// A log id of this term and index.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(LeaderId::new_committed(term, 0), index)
}

/// The term of a log id.
pub fn term_of(id: &LogId) -> u64 {
    **id.committed_leader_id()
}

/// Message of a log id.
pub fn log_id_to_pb(id: &LogId) -> pb::LogId {
    pb::LogId { term: term_of(id), index: id.index }
}

/// Log id of a message.
pub fn log_id_from_pb(id: &pb::LogId) -> Result<LogId, Status> {
    Ok(log_id(number("term", id.term)?, number("index", id.index)?))
}

/// Message of a vote.
pub fn vote_to_pb(vote: &Vote) -> pb::Vote {
    pb::Vote {
        term: vote.leader_id.term,
        voted_for: Some(vote.leader_id.voted_for),
        committed: vote.committed,
    }
}

/// Vote of a message.
pub fn vote_from_pb(vote: Option<&pb::Vote>) -> Result<Vote, Status> {
    let missing = || Status::invalid_argument("vote is missing");
    let vote = vote.ok_or_else(missing)?;
    let term = number("term", vote.term)?;
    let leader_id = LeaderId { term, voted_for: vote.voted_for.ok_or_else(missing)? };
    Ok(Vote { leader_id, committed: vote.committed })
}

/// Message of a membership.
pub fn membership_to_pb(membership: &Membership) -> pb::Membership {
    pb::Membership {
        configurations: membership
            .get_joint_config()
            .iter()
            .map(|ids| pb::Configuration { ids: ids.iter().copied().collect() })
            .collect(),
        members: membership
            .nodes()
            .map(|(id, member)| pb::Member {
                id: *id,
                name: member.name.clone(),
                rpc_address: member.rpc_address.clone(),
                http_address: member.http_address.clone(),
            })
            .collect(),
    }
}

/// Membership of a message.
pub fn membership_from_pb(message: &pb::Membership) -> Result<Membership, Status> {
    let configurations: Vec<BTreeSet<u64>> =
        message.configurations.iter().map(|one| one.ids.iter().copied().collect()).collect();
    let members = message.members.iter().map(|member| {
        let node = Member {
            name: member.name.clone(),
            rpc_address: member.rpc_address.clone(),
            http_address: member.http_address.clone(),
        };
        (member.id, node)
    });
    let members: std::collections::BTreeMap<_, _> = members.collect();
    if configurations.is_empty() && members.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configurations, members)
        .map_err(|error| Status::invalid_argument(format!("membership: {error}")))
}

/// Stored membership of its parts.
pub fn stored_membership_from_pb(
    id: Option<&pb::LogId>,
    membership: Option<&pb::Membership>,
) -> Result<StoredMembership, Status> {
    let membership = membership.map_or_else(|| Ok(Membership::default()), membership_from_pb)?;
    Ok(StoredMembership::new(id.map(log_id_from_pb).transpose()?, membership))
}

/// Message of a log entry.
pub fn entry_to_pb(entry: &Entry) -> pb::Entry {
    let payload = match &entry.payload {
        EntryPayload::Blank => pb::entry::Payload::Blank(true),
        EntryPayload::Normal(data) => pb::entry::Payload::Command(data.0.clone()),
        EntryPayload::Membership(membership) => {
            pb::entry::Payload::Membership(membership_to_pb(membership))
        }
    };
    pb::Entry { log_id: Some(log_id_to_pb(&entry.log_id)), payload: Some(payload) }
}

/// Log entry of a message.
pub fn entry_from_pb(entry: pb::Entry) -> Result<Entry, Status> {
    let id = entry.log_id.ok_or_else(|| Status::invalid_argument("entry without a log id"))?;
    let payload = match entry.payload {
        Some(pb::entry::Payload::Blank(_)) => EntryPayload::Blank,
        Some(pb::entry::Payload::Command(bytes)) => EntryPayload::Normal(EntryData(bytes)),
        Some(pb::entry::Payload::Membership(membership)) => {
            EntryPayload::Membership(membership_from_pb(&membership)?)
        }
        None => return Err(Status::invalid_argument("entry without a payload")),
    };
    Ok(<Entry as RaftEntry>::new(log_id_from_pb(&id)?, payload))
}

/// openraft's append request of a message.
pub fn append_from_pb(
    message: pb::AppendEntriesRequest,
) -> Result<openraft::raft::AppendEntriesRequest<TypeConfig>, Status> {
    Ok(openraft::raft::AppendEntriesRequest {
        vote: vote_from_pb(message.vote.as_ref())?,
        prev_log_id: message.prev_log_id.as_ref().map(log_id_from_pb).transpose()?,
        entries: message.entries.into_iter().map(entry_from_pb).collect::<Result<_, _>>()?,
        leader_commit: message.leader_commit.as_ref().map(log_id_from_pb).transpose()?,
    })
}
