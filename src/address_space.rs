//! The limit of address space (`ulimit -v`). A process that has too little of it ends or hangs in
//! the middle of its work, in ways that say nothing of the cause: so its start says it.

use rustix::process::{Resource, getrlimit};

/// The least that a server or an agent starts with, bytes. Far more than it needs of memory:
/// threads, arenas and mapped files take address space that they do not use.
const LEAST: u64 = 512 << 20;

/// Refuses to start with too little.
pub(crate) fn check() -> anyhow::Result<()> {
    check_limit(getrlimit(Resource::As).current)
}

fn check_limit(limit: Option<u64>) -> anyhow::Result<()> {
    match limit {
        Some(limit) if limit < LEAST => anyhow::bail!(
            "the limit of address space is {} MiB, and {} MiB are needed: raise it (ulimit -v, LimitAS), and limit memory by other means (MemoryMax)",
            limit >> 20,
            LEAST >> 20
        ),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_refused() {
        assert!(check_limit(None).is_ok());
        assert!(check_limit(Some(LEAST)).is_ok());
        let refused = check_limit(Some(LEAST - 1)).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|why| why.contains("511 MiB") && why.contains("ulimit -v")));
    }
}
