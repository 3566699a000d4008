//! Answers to writes.

use serde::{Deserialize, Serialize};

/// The answer to a write: what it did, and the log entry that did it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Written<T> {
    #[serde(flatten)]
    pub of: T,
    /// Index of the log entry.
    pub index: u64,
    /// Always `true`.
    pub known_leader: bool,
    /// Always 0.
    pub last_contact: u64,
}
