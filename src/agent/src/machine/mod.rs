//! The machine below the agent: its files, boots, addresses and users, what it has and uses, and
//! what it is short of.

pub(crate) mod address;
pub mod beneath;
pub(crate) mod boot;
pub(crate) mod files;
pub(crate) mod filled;
pub(crate) mod shortage;
pub mod usage;
pub(crate) mod users;
