//! The present life of the machine: a process id or a clock of another boot means nothing.

use std::{fs, io};

/// Names the machine's present life.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The id of this boot of the machine.
pub fn read_boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string(BOOT_ID)?;
    let id: fsm::NodeId = text.trim().parse().map_err(io::Error::other)?;
    Ok(id.0)
}
