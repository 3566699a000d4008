//! Numbers of a server for dashboards.

use std::{collections::BTreeMap, time::Duration};

use fsm::{
    JobStatus, Liveness, State, TimeMs, job::GroupSummary, node::SuspendReason, pool::Behavior,
    resources::Resources,
};
use ground::version::Build;
use raft::WatchReceiver;
use wire::api::Presence;

use crate::core::Core;

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

/// Nodes by what they are and do. Those by liveness add up to the nodes; `free` and `busy` to the
/// nodes that may take work or have some.
fn node_gauges(state: &State, put: &mut impl FnMut(&str, u64)) {
    let census = state.census();
    for liveness in Liveness::ALL {
        put(&format!("nodes.{}", liveness.name()), census.of(liveness).into());
    }
    put("nodes.free", state.occupancy().free().len() as u64);
    put("nodes.busy", state.occupancy().busy().len() as u64);
    for reason in SuspendReason::ALL {
        let name = reason.name().replace('-', "_");
        put(&format!("nodes.suspended.{name}"), census.suspended(reason).into());
    }
    put("nodes.ineligible", census.ineligible().into());
    put("nodes.draining", census.draining().into());
    put("nodes.short", census.short().into());
    put("nodes.offline", state.offline_nodes().len() as u64);
    put("nodes.offline_table_full", state.is_offline_table_full().into());
    let lost = state.mass_loss().map_or(0, |loss| loss.nodes.len() as u64);
    put("nodes.mass_loss", lost);
}

/// Jobs and allocations by status, as the summaries of jobs count them; those of purged jobs are
/// not counted.
fn status_gauges(state: &State, put: &mut impl FnMut(&str, u64)) {
    let mut jobs: BTreeMap<&str, u64> =
        [JobStatus::Pending, JobStatus::Running, JobStatus::Dead].map(|one| (one.name(), 0)).into();
    let mut all = GroupSummary::default();
    for job in state.jobs().iter() {
        *jobs.entry(job.status.name()).or_default() += 1;
        let index = state.job_index(&job.key);
        for (_, of) in index.iter().flat_map(|index| index.summary_of(job.create_index)) {
            let GroupSummary { complete, failed, running, starting, lost, unknown, .. } = of;
            all.complete += complete;
            all.failed += failed;
            all.running += running;
            all.starting += starting;
            all.lost += lost;
            all.unknown += unknown;
        }
    }
    for (status, count) in jobs {
        put(&format!("jobs.by_status{{status={status}}}"), count);
    }
    let GroupSummary { complete, failed, running, starting, lost, unknown, .. } = all;
    let counts = [
        ("pending", starting),
        ("running", running),
        ("complete", complete),
        ("failed", failed),
        ("lost", lost),
        ("unknown", unknown),
    ];
    for (status, count) in counts {
        put(&format!("allocations.by_status{{status={status}}}"), count.into());
    }
}

/// What the nodes of each pool have, keep back and have given to allocations; nodes that are down
/// do not count.
fn capacity_gauges(state: &State, put: &mut impl FnMut(&str, u64)) {
    let mut pools: BTreeMap<String, [Resources; 3]> = BTreeMap::new();
    for node in state.nodes().iter().filter(|node| node.liveness != Liveness::Down) {
        let resources = &node.description.resources;
        let pool = node.description.pool.to_string();
        let [total, reserved, allocated] = pools.entry(pool).or_default();
        *total = total.plus(resources.total);
        *reserved = reserved.plus(resources.reserved);
        *allocated = allocated.plus(state.usage(node.id).resources);
    }
    for (pool, of) in pools {
        for (word, resources) in ["total", "reserved", "allocated"].into_iter().zip(of) {
            let labels = format!("{{node_pool={pool},of={word}}}");
            put(&format!("node_pools.cpu_mhz{labels}"), resources.cpu_mhz);
            put(&format!("node_pools.memory_mb{labels}"), resources.memory_mb);
            put(&format!("node_pools.disk_mb{labels}"), resources.disk_mb);
        }
    }
}

/// Instance pools: what each has, what that costs in an hour, and how much of it is used.
fn pool_gauges(state: &State, now: TimeMs, put: &mut impl FnMut(&str, u64)) {
    for pool in state.instance_pools().iter() {
        let mut words: BTreeMap<&str, u64> =
            ["requested", "booting", "idle", "running", "shutdown", "held", "draining"]
                .map(|word| (word, 0))
                .into();
        let (mut price, mut capacity, mut used) = (0, Resources::default(), Resources::default());
        for row in state.instances_of(&pool.name) {
            *words.entry(elastic::explain::state_word(state, row)).or_default() += 1;
            match row.behavior {
                Behavior::Run => {}
                Behavior::Hold => *words.entry("held").or_default() += 1,
                Behavior::Drain => *words.entry("draining").or_default() += 1,
            }
            price += row.kind.price_micro;
            if let Some(node) = row.node.and_then(|node| state.nodes().get(&node)) {
                capacity = capacity.plus(node.description.resources.available());
                used = used.plus(state.usage(node.id).resources);
            }
        }
        for (word, count) in words {
            let labels = format!("{{pool={},state={word}}}", pool.name);
            put(&format!("pools.instances.by_state{labels}"), count);
        }
        let mut gauge =
            |name: &str, value: u64| put(&format!("pools.{name}{{pool={}}}", pool.name), value);
        gauge("max", pool.max.into());
        gauge("price_per_hour_micro", price);
        gauge("cpu_mhz", capacity.cpu_mhz);
        gauge("cpu_used_mhz", used.cpu_mhz);
        gauge("memory_mb", capacity.memory_mb);
        gauge("memory_used_mb", used.memory_mb);
        let limits = state.provider_limits().iter().filter(|limit| limit.pool == pool.name);
        let limits = limits.filter(|limit| state.is_in_force(limit, now));
        gauge("limits", limits.count() as u64);
        let history = state.pool_histories().get(&pool.name);
        let is_protected = history.is_some_and(|history| history.protected_since > 0);
        gauge("protected", is_protected.into());
        let asked = history.map_or(0, |history| history.asked_lately(now));
        gauge("creates_of_the_hour", asked.into());
        let kinds = pool.types.keys();
        let failing = kinds.filter(|kind| state.backoff_on(pool, kind, now).is_some());
        gauge("types_in_backoff", failing.count() as u64);
    }
}

/// How providers do, as leaders noted it.
fn provider_state_gauges(state: &State, now: TimeMs, put: &mut impl FnMut(&str, u64)) {
    for row in state.provider_states().iter() {
        let mut gauge = |name: &str, value: u64| {
            put(&format!("providers.{name}{{provider={}}}", row.provider), value);
        };
        gauge("answering", row.is_answering().into());
        let failing_ms = if row.is_answering() { 0 } else { now.saturating_sub(row.since) };
        gauge("failing_ms", failing_ms);
        gauge("creates_under_way", row.creates.into());
        gauge("destroys_under_way", row.destroys.into());
    }
}

/// Calls to providers that this server has made, by operation and outcome.
fn provider_gauges(core: &Core, put: &mut impl FnMut(&str, u64)) {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    for (name, provider) in &*core.providers {
        for ((operation, outcome), tally) in provider.tallies() {
            let of = format!("{{operation={operation},outcome={outcome},provider={name}}}");
            put(&format!("providers.calls{of}"), tally.calls);
            put(&format!("providers.call_total_ms{of}"), ms(tally.total));
            put(&format!("providers.call_longest_ms{of}"), ms(tally.longest));
        }
    }
}

/// Who leads, and how far the servers are from losing their majority.
fn contact_gauges(core: &Core, put: &mut impl FnMut(&str, u64)) {
    let contact = &core.contact;
    put("raft.is_leader", u64::from(contact.leads_majority()));
    let lost = contact.is_majority_lost();
    put("raft.has_majority", u64::from(!lost));
    let silence = if lost { contact.last_contact() } else { Duration::ZERO };
    put("raft.without_majority_ms", u64::try_from(silence.as_millis()).unwrap_or(u64::MAX));
    let census = contact.census();
    put("raft.voters", census.voters as u64);
    put("raft.voters_alive", census.alive as u64);
    put("raft.takes_part", core.contact.promises.may_take_part().into());
    put("raft.ids_retired", core.ids_retired);
    put("raft.failures_tolerated", census.may_fail() as u64);
    let members = contact.member_infos();
    let peers = members.iter().filter(|member| member.id != core.id);
    put(
        "raft.peers_heard",
        peers.filter(|member| member.presence == Presence::Alive).count() as u64,
    );
    let metrics = core.raft.metrics().borrow_watched().clone();
    let newest = metrics.last_log_index.unwrap_or(0);
    for (id, matched) in metrics.replication.iter().flatten().filter(|(id, _)| **id != core.id) {
        let Some(member) = members.iter().find(|member| member.id == *id) else { continue };
        let lag = newest.saturating_sub(matched.as_ref().map_or(0, raft::LogId::index));
        put(&format!("raft.follower_lag_entries{{peer={}}}", member.name), lag);
    }
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
    contact_gauges(core, &mut put);
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
    if let Some(free) = core.contact.free_bytes() {
        put("disk.free_bytes", free);
    }
    let snapshot = core.snapshots.newest_bytes().unwrap_or(0);
    put("disk.data_bytes", wal.disk_bytes.saturating_add(lag.disk_bytes).saturating_add(snapshot));
    let build: Vec<String> =
        Build::own().facts().iter().map(|(name, value)| format!("{name}={value}")).collect();
    put(&format!("build.info{{{}}}", build.join(",")), 1);
    core.worker_stats.gauges(&mut put);
    put("state.jobs", state.jobs().len() as u64);
    put("state.nodes", state.nodes().len() as u64);
    put("state.evaluations", state.evaluations().len() as u64);
    put("state.allocations", state.allocations().len() as u64);
    node_gauges(&state, &mut put);
    status_gauges(&state, &mut put);
    capacity_gauges(&state, &mut put);
    pool_gauges(&state, core.contact.time.now(), &mut put);
    provider_state_gauges(&state, core.contact.time.now(), &mut put);
    provider_gauges(core, &mut put);
    put("process.resident_bytes", resident_bytes());
    put("process.cpu_ms", cpu_ms());
    if let Some(services) = core.leading() {
        services.gauges(&mut put);
    }
    let time = &core.contact.time;
    let times =
        [("log_time.lag_ms", time.behind_ms()), ("clock.ahead_ms", time.clock_ahead_ms(core.id))];
    for (name, ms) in times {
        #[expect(clippy::cast_precision_loss, reason = "gauges are approximate beyond 2^53")]
        out.extend(ms.map(|ms| (format!("nomad.{name}"), ms as f64)));
    }
    out
}

#[cfg(test)]
mod tests {
    use fsm::{
        ClientStatus, JobKind,
        node::{Health, Readiness},
        testing::{Driver, job, node_id},
    };

    use super::*;

    fn shown(state: &State) -> BTreeMap<String, u64> {
        let mut out = BTreeMap::new();
        node_gauges(state, &mut |name, value| {
            out.insert(name.to_owned(), value);
        });
        out
    }

    /// The same numbers from the rows.
    fn recounted(state: &State) -> BTreeMap<String, u64> {
        let mut out: BTreeMap<String, u64> =
            shown(state).into_keys().map(|name| (name, 0)).collect();
        let mut add = |name: &str| *out.get_mut(name).expect("a gauge of that name") += 1;
        for node in state.nodes().iter() {
            add(&format!("nodes.{}", node.liveness.name()));
            let mut rows = state.allocations_of_node(node.id);
            if rows.any(|row| !row.client.is_terminal()) {
                add("nodes.busy");
            } else if node.is_schedulable() {
                add("nodes.free");
            }
            if let Health::Suspended(suspension) = &node.health {
                let reason = suspension.reason.name().replace('-', "_");
                add(&format!("nodes.suspended.{reason}"));
            }
            if node.eligibility.ineligible {
                add("nodes.ineligible");
            }
            if node.drain.is_some() {
                add("nodes.draining");
            }
            if node.shortage.is_some() {
                add("nodes.short");
            }
        }
        state.offline_nodes().iter().for_each(|_| add("nodes.offline"));
        let lost = state.mass_loss().map_or(0, |loss| loss.nodes.len());
        (0..lost).for_each(|_| add("nodes.mass_loss"));
        out
    }

    #[test]
    fn gauges_of_nodes_equal_a_recount() {
        let mut driver = Driver::default();
        driver.register_job(job("t", JobKind::Batch, 9));
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        for (number, name) in (0..).zip(names) {
            driver.node(name);
            driver.run("t", number, node_id(name));
        }
        let check = |driver: &Driver| assert_eq!(shown(&driver.state), recounted(&driver.state));
        check(&driver);
        driver.readiness("a", Readiness::Retry);
        driver.readiness("b", Readiness::Fatal);
        driver.suspend("c", None);
        driver.drain("d", true);
        driver.eligibility("e", false);
        driver.eligibility("later", false);
        driver.register_node("new");
        let rows: Vec<_> =
            driver.state.allocations_of_node(node_id("f")).map(|row| row.id).collect();
        driver.report(rows[0], ClientStatus::Complete);
        check(&driver);
        for name in ["f", "g", "h", "i"] {
            driver.liveness(name, Liveness::Down);
        }
        check(&driver);
        let shown = shown(&driver.state);
        let seen = ["ready", "initializing", "down", "busy", "mass_loss", "offline", "draining"];
        for name in seen {
            assert!(shown[&format!("nodes.{name}")] > 0, "{name}: {shown:?}");
        }
        let live = Liveness::ALL.map(|liveness| shown[&format!("nodes.{}", liveness.name())]);
        assert_eq!(live.iter().sum::<u64>(), driver.state.nodes().len() as u64);
    }
}
