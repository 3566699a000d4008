//! Numbers of a server for dashboards.

use std::collections::BTreeMap;

use super::core::Core;
use crate::raft::WatchReceiver;

/// Memory of this process that is in use, as the kernel counts it; 0 where it cannot be asked.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
    let kib: u64 = line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
    kib << 10
}

/// Processor time that this process has used, ms; 0 where it cannot be asked.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in brackets: state is field 3; user and system time are fields 14 and 15, in
    // hundredths of a second (USER_HZ).
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks * 10
}

/// Numbers of this server for dashboards.
pub(super) fn gauges(core: &Core) -> BTreeMap<String, f64> {
    let mut out = BTreeMap::new();
    let mut put = |name: &str, value: u64| {
        #[expect(clippy::cast_precision_loss, reason = "gauges are approximate beyond 2^53")]
        out.insert(format!("nomad.{name}"), value as f64);
    };
    let metrics = core.raft.metrics().borrow_watched().clone();
    let state = core.cell.load();
    put("raft.term", metrics.current_term);
    put("raft.last_index", metrics.last_log_index.unwrap_or(0));
    put("raft.applied_index", core.applied());
    put("raft.commit_index", metrics.local_committed.map_or(0, |id| id.index));
    put("raft.is_leader", u64::from(core.contact.leads().is_some()));
    let lag = core.shadow_lag();
    put("state.shadow_lag_groups", lag.groups);
    put("state.shadow_lag_bytes", lag.bytes);
    put("state.disk_bytes", lag.disk_bytes);
    let wal = core.wal.stats();
    put("raft.log.first_index", core.wal.first().unwrap_or(0));
    put("raft.log.batches", wal.batches);
    put("raft.log.entries", wal.entries);
    put("raft.log.bytes", wal.bytes);
    put("disk.full", u64::from(core.contact.has_full_disk()));
    put("worker.acknowledged", core.worker_stats.acknowledged());
    put("worker.released_for_lag", core.worker_stats.released_for_lag());
    put("worker.nacked", core.worker_stats.nacked());
    put("worker.leases", core.worker_stats.held());
    put("worker.invoke_scheduler", core.worker_stats.invoked());
    put("state.jobs()", state.jobs().len() as u64);
    put("state.nodes()", state.nodes().len() as u64);
    put("state.evaluations()", state.evaluations().len() as u64);
    put("state.allocations()", state.allocations().len() as u64);
    put("process.resident_bytes", resident_bytes());
    put("process.cpu_ms", cpu_ms());
    if let Some(services) = core.leading() {
        services.gauges(&mut put);
    }
    out
}
