//! Quorate.

pub mod disk;
pub mod storage;
