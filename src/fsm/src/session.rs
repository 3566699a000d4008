//! Client sessions: a retried request takes effect once. Replies are kept, bounded by count and log time; a request older than the floor
//! is refused, because nobody knows any more whether it was applied.

use serde::{Deserialize, Serialize};

use crate::{
    command::Reply,
    id::{Index, RequestId, TimeMs},
    table::{Row, TableId},
};

/// A client's request as it stands in a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The client's id for it.
    pub id: RequestId,
    /// Log time stamped by the first server that saw it.
    pub stamped_at: TimeMs,
    /// Hash of the command, so that one id cannot stand for two requests.
    pub payload_hash: u64,
}

/// A kept reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Session {
    /// The request.
    pub request: Request,
    /// Index at which it was applied.
    pub index: Index,
    /// Its reply.
    pub reply: Reply,
}

impl Row for Session {
    type Key = RequestId;
    const TABLE: TableId = TableId::Sessions;
    fn key(&self) -> RequestId {
        self.request.id
    }
}
