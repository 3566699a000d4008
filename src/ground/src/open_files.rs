//! The limit of open files. Usual soft limits are far below what a server with its clients, or an
//! agent with its tasks, needs; the hard one is what a process was given.
//!
//! A program that was not written for many files may break with a high soft limit (`select`), so
//! that tasks get back what the agent had.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What to do when a process cannot start its threads.
pub const NO_THREADS: &str = "cannot start threads: there are too few processes, descriptors or too little memory \
     (see ulimit -u, -n and -v, and the limits of its unit or container)";

/// The soft limit before it was raised.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// How many files this process may have open.
pub fn max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit to the hard one.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    BEFORE.get_or_init(|| limit.current);
    set(limit.maximum);
}

/// What the soft limit was before it was raised, if it was.
pub fn before() -> Option<u64> {
    BEFORE.get().copied().flatten()
}

/// Sets the soft limit; none is the hard one.
pub fn set(soft: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = soft.or(maximum);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current, maximum }) {
        tracing::warn!(%error, "the limit of open files could not be set");
    }
}
