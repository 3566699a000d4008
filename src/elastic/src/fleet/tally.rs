//! What became of instances in this leadership, for dashboards.

use fsm::{Instance, InstanceState, pool::ShutdownCause};

use super::Home;

/// What became of instances in this leadership.
#[derive(Default, Debug)]
pub(super) struct Tally {
    bound: u64,
    /// From the intent until the node was bound, ms.
    bound_ms: u64,
    bound_ms_max: u64,
    /// They did not come up.
    failed: u64,
    /// They were ended before they came up, for another reason.
    aborted: u64,
    /// They went without being ended.
    disappeared: u64,
    /// They are gone after they were ended.
    gone: u64,
    /// From the shutdown until the provider said that the machine is gone, ms.
    gone_ms: u64,
    gone_ms_max: u64,
}

impl Tally {
    pub(super) fn count(&mut self, at: u64, old: Option<&Home>, new: Option<&Instance>) {
        use InstanceState::{Booting, Bound, Requested, ShuttingDown};
        let shutdown = new.and_then(|row| row.shutdown.as_ref());
        match (old.map(|home| home.state), new.map(|row| row.state)) {
            (Some(Requested | Booting), Some(Bound)) => {
                let took = new.map_or(0, |row| row.bound_at.saturating_sub(row.requested_at));
                self.bound += 1;
                self.bound_ms = self.bound_ms.saturating_add(took);
                self.bound_ms_max = self.bound_ms_max.max(took);
            }
            (Some(Requested | Booting), Some(ShuttingDown)) => {
                match shutdown.map(|shutdown| shutdown.cause) {
                    Some(ShutdownCause::Expired | ShutdownCause::BootFailed) => self.failed += 1,
                    Some(_) | None => self.aborted += 1,
                }
            }
            // The provider refused it.
            (Some(Requested), None) => self.failed += 1,
            (Some(Booting | Bound), None) => self.disappeared += 1,
            (Some(ShuttingDown), None) => {
                let took = at.saturating_sub(old.map_or(at, |home| home.shutdown_at));
                self.gone += 1;
                self.gone_ms = self.gone_ms.saturating_add(took);
                self.gone_ms_max = self.gone_ms_max.max(took);
            }
            _ => {}
        }
    }

    pub(super) fn gauges(&self, put: &mut dyn FnMut(&str, u64)) {
        put("pools.instances.came_up", self.bound);
        put("pools.instances.came_up_total_ms", self.bound_ms);
        put("pools.instances.came_up_longest_ms", self.bound_ms_max);
        put("pools.instances.failed", self.failed);
        put("pools.instances.aborted", self.aborted);
        put("pools.instances.disappeared", self.disappeared);
        put("pools.instances.gone", self.gone);
        put("pools.instances.gone_total_ms", self.gone_ms);
        put("pools.instances.gone_longest_ms", self.gone_ms_max);
    }
}
