//! Evaluations: which of them a worker may have, and what becomes of those that wait or fail.
//!
//! [`dispatch`] is the machine; it holds broker and blocked evaluations together.

pub mod blocked;
pub mod broker;
pub mod dispatch;
pub mod index_wait;
pub mod reap;
pub mod turn;
