//! What a server keeps on disk, under Raft.
//!
//! It owns the data directory's lock and the write-ahead log. Nothing here knows openraft: the
//! adapter in `crate` speaks its types and stands on these.

pub mod applied;
pub mod lock;
mod other_generation;
pub mod shadow;
pub mod snapshot_file;
#[cfg(test)]
pub(crate) mod testing;
pub mod wal;
