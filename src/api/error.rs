//! Why a request to a server failed. Every edge answers with the same errors.

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
    Timeout {
        /// The command had been handed to Raft.
        proposed: bool,
    },
    /// Leadership was lost after the command was handed to Raft.
    #[error(
        "leadership was lost while the write was under way: its outcome is unknown, read before retrying"
    )]
    Unknown,
    /// Too much is under way.
    #[error("{what} limit reached ({limit}); retry after {retry_after_ms} ms")]
    Overloaded {
        /// Which limit.
        what: &'static str,
        /// Its value.
        limit: u64,
        /// When to come back.
        retry_after_ms: u64,
    },
    /// This server is starting or stopping. Nothing was changed.
    #[error("server is not ready: {0}")]
    NotReady(String),
    /// The disk is almost full.
    #[error("writes are turned away: {0}")]
    DiskFull(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
}
