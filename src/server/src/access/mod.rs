//! Reads and writes on any server, reports of nodes in batches, and calls to providers of machines.

use std::time::Duration;

use ground::rt::Instant;

pub(crate) mod provider_calls;
pub(crate) mod read_rounds;
pub(crate) mod reads;
pub(crate) mod reports;
pub(crate) mod writes;

/// Pause before the next attempt to find a leader.
const LEADER_RETRY: Duration = Duration::from_millis(25);

/// The time that is left.
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
