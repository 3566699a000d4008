//! Starts servers and agents as processes of this machine, and ends them.
//!
//! `quorate up`, `quorate bench`, the integration tests and `jepsen` all run clusters. What they
//! share is here; what one of them alone needs stays there: `up` keeps its data folder and starts
//! dead processes again, `jepsen` puts servers into network namespaces and onto disks that fail.
//!
//! ```text
//!  Port ─► Settings ─► (caller) Command ─► Member ─► log file
//!  reserved  file         which program,     one process, its signals, its end
//!                         which environment
//!  Cluster: the Ports, folders and Members of several servers on loopback
//! ```
//!
//! The caller makes the [`std::process::Command`], so this package knows no program: it depends on
//! none of the packages that it starts. A process gets a signal only while it is our unreaped
//! child, so its number cannot belong to another process. Dropping a [`Member`] kills its process,
//! also in a panic.

mod cluster;
mod http;
mod log;
mod member;
mod port;
mod process;
mod settings;

use std::{
    thread,
    time::{Duration, Instant},
};

pub use cluster::{Cluster, NotReady, Server};
pub use http::{Answer, Client, client};
pub use log::Log;
pub use member::{Group, Member};
pub use port::Port;
pub use process::{Identity, Stat};
pub use rustix::process::Signal;
pub use settings::Settings;

/// Pause between two attempts of [`wait_for`].
const POLL: Duration = Duration::from_millis(20);

/// Repeats the attempt until it returns a value; `None` if `timeout` is over before.
pub fn wait_for<T>(timeout: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + timeout;
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(POLL);
    }
}
