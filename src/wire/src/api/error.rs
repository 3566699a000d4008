//! Why a request to a server failed. Every edge answers with the same errors.

use std::fmt;

/// Why a request to a server failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// No leader was found before the deadline; nothing was proposed.
    #[error("No cluster leader")]
    NoLeader,
    /// The deadline passed. With `proposed` the write may still take effect.
    #[error("{}", if *.proposed {
        "timed out waiting for the write to commit: its outcome is unknown, read before retrying"
    } else { "timed out: nothing was changed" })]
    Timeout { proposed: bool },
    /// Leadership was lost after the command was handed to Raft.
    #[error(
        "leadership was lost while the write was under way: its outcome is unknown, read before retrying"
    )]
    Unknown,
    /// The server is overloaded. Nothing was changed.
    #[error("{what} limit reached ({limit}); retry after {retry_after_ms} ms")]
    Overloaded { what: Limit, limit: u64, retry_after_ms: u64 },
    /// The server is starting or stopping. Nothing was changed.
    #[error("server is not ready: {0}")]
    NotReady(String),
    /// The disk is almost full. Nothing was changed.
    #[error("writes are turned away: {0}")]
    DiskFull(String),
    /// Nobody may send this by this edge. Nothing was changed.
    #[error("{0}")]
    Forbidden(String),
    /// The request is invalid. Nothing was changed.
    #[error("{0}")]
    Invalid(String),
}

/// The bounds that a request can run into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Evaluations that wait for a worker.
    PendingEvaluations,
    /// Commands of one leader that are not applied yet.
    Proposals,
    /// Reports of nodes that wait for their entry.
    NodeReports,
    /// Requirements of sources of capacity that wait for their entry.
    Requirements,
    /// Streams of requirements over gRPC.
    RequirementStreams,
    /// Bodies of all HTTP requests under way.
    RequestBytes,
    /// Bodies of all HTTP answers under way.
    ResponseBytes,
    /// Lists over large tables that are built at the same time.
    LargeLists,
    /// Requests that compute much: plans, parsing, large bodies.
    CostlyRequests,
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::PendingEvaluations => "pending evaluations",
            Self::Proposals => "proposals under way",
            Self::NodeReports => "waiting node reports",
            Self::Requirements => "waiting capacity requirements",
            Self::RequirementStreams => "streams of capacity requirements",
            Self::RequestBytes => "request body bytes",
            Self::ResponseBytes => "response body bytes",
            Self::LargeLists => "large lists",
            Self::CostlyRequests => "requests that compute much",
        })
    }
}
