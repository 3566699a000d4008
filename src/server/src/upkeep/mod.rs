//! Tasks that keep a server and its membership in order.

pub(crate) mod bootstrap;
pub(crate) mod digests;
pub(crate) mod housekeeping;
pub(crate) mod removal;
pub(crate) mod rollback;
pub(crate) mod watchdog;
