//! The servers under measurement: who they are, who leads, what they say of themselves.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use proto::v1::{self as pb, cluster_client::ClusterClient};
use serde::Deserialize;
use serde_json::{Value, json};
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};
use wire::rpc::generation::Stamped;

use super::{Progress, Report, arguments::Ask, http::Connection};

/// How long the servers may take to answer and to have a leader.
const LEADER_TIMEOUT: Duration = Duration::from_mins(1);
const RETRY: Duration = Duration::from_millis(200);

/// One server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) rpc: String,
    pub(super) http: String,
    pub(super) leads: bool,
}

/// All servers that were named.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) servers: Vec<Server>,
}

pub(super) async fn channel(address: &str) -> anyhow::Result<Channel> {
    Endpoint::from_shared(format!("http://{address}"))
        .with_context(|| format!("\"{address}\" is no address"))?
        .tcp_nodelay(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .connect()
        .await
        .with_context(|| format!("no connection to {address}: is a server running there?"))
}

/// A client of servers as [`channel`] connects to.
pub(super) type Client = ClusterClient<InterceptedService<Channel, Stamped>>;

pub(super) fn client(channel: Channel) -> Client {
    ClusterClient::with_interceptor(channel, Stamped)
}

async fn probe(address: &str) -> anyhow::Result<pb::ProbeReply> {
    let request = pb::ProbeRequest::default();
    Ok(client(channel(address).await?).probe(request).await?.into_inner())
}

impl Cluster {
    /// Asks each server who it is, until one of them is known to lead.
    pub(super) async fn connect(
        addresses: &[String],
        progress: Progress<'_>,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        loop {
            match Self::probe_all(addresses).await {
                Ok(cluster) => {
                    progress(&format!(
                        "{} servers, {} leads",
                        cluster.servers.len(),
                        cluster.leader().name
                    ));
                    return Ok(cluster);
                }
                Err(error) if begin.elapsed() > LEADER_TIMEOUT => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn probe_all(addresses: &[String]) -> anyhow::Result<Self> {
        let mut servers: Vec<Server> = Vec::new();
        let mut left: Vec<String> = addresses.to_vec();
        while let Some(address) = left.pop() {
            let reply = probe(&address).await?;
            if reply.leader == 0 {
                bail!("{address} knows no leader");
            }
            let known = |rpc: &str| servers.iter().any(|server| server.rpc == rpc);
            let leader = reply.leader_rpc_address.clone();
            if leader != reply.rpc_address && !known(&leader) && !left.contains(&leader) {
                left.push(leader);
            }
            if !known(&reply.rpc_address) {
                servers.push(Server {
                    name: reply.name,
                    rpc: reply.rpc_address,
                    http: reply.http_address,
                    leads: reply.leader == reply.node_id,
                });
            }
        }
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        if servers.iter().filter(|server| server.leads).count() != 1 {
            bail!("the servers do not agree on a leader");
        }
        let mut leader = Connection::open(&servers[0].http).await?;
        // Turned away until the server has caught up.
        let _: Value = leader.get_json("/v1/jobs?prefix=bench-none").await?;
        Ok(Self { servers })
    }

    pub(super) fn leader(&self) -> &Server {
        self.servers.iter().find(|server| server.leads).expect("one leads, by construction")
    }

    /// The servers that are asked.
    pub(super) fn asked(&self, ask: Ask) -> anyhow::Result<Vec<&Server>> {
        let wanted = |server: &&Server| match ask {
            Ask::Leader => server.leads,
            Ask::Followers => !server.leads,
            Ask::All => true,
        };
        let asked: Vec<&Server> = self.servers.iter().filter(wanted).collect();
        if asked.is_empty() {
            bail!("none of the given servers is a follower");
        }
        Ok(asked)
    }

    /// Every server's gauges and counters.
    pub(super) async fn gauges(&self) -> anyhow::Result<Vec<Gauges>> {
        let mut all = Vec::new();
        for server in &self.servers {
            let mut connection = Connection::open(&server.http).await?;
            let answer: MetricsAnswer = connection.get_json("/v1/metrics").await?;
            let gauges = answer.gauges.into_iter().map(|gauge| (gauge.name, gauge.value));
            let counters = answer.counters.into_iter().map(|counter| (counter.name, counter.sum));
            all.push(Gauges(gauges.chain(counters).collect()));
        }
        Ok(all)
    }

    /// Adds what the `done` operations took of all servers between two looks, and a line per
    /// server.
    pub(super) fn describe(
        &self,
        before: &[Gauges],
        after: &[Gauges],
        done: &Operations,
        report: &mut Report,
    ) {
        let mut all = Vec::new();
        let mut cpu_ms_sum = 0.0;
        for ((server, before), after) in self.servers.iter().zip(before).zip(after) {
            let grown = |name: &str| after.value(name) - before.value(name);
            let (entries, batches) = (grown("raft.log.entries"), grown("raft.log.batches"));
            let log_mb = grown("raft.log.bytes") / f64::from(1 << 20);
            let lag = after.value("state.shadow_lag_groups");
            let cpu_ms = grown("process.cpu_ms");
            cpu_ms_sum += cpu_ms;
            let resident_mb = after.value("process.resident_bytes") / f64::from(1 << 20);
            let per_batch = if batches > 0.0 { entries / batches } else { 0.0 };
            let shown = format!(
                "{}{entries:.0} log entries in {batches:.0} syncs ({per_batch:.1} each), log {log_mb:.0} MiB, {:.1} s of processor, disk behind by {lag:.0} groups, resident {resident_mb:.0} MiB",
                if server.leads { "leader, " } else { "" },
                cpu_ms / 1e3,
            );
            report.lines.push((server.name.clone(), shown));
            all.push(json!({
                "name": server.name,
                "leads": server.leads,
                "log_entries": entries,
                "log_syncs": batches,
                "log_mib": log_mb,
                "cpu_ms": cpu_ms,
                "disk_lag_groups": lag,
                "resident_mib": resident_mb,
            }));
        }
        report.json.insert("servers".to_owned(), all.into());
        let Some(us) = done.each(cpu_ms_sum * 1e3) else { return };
        let shown = format!("{us:.1} µs, user and system of {} servers", self.servers.len());
        report.lines.push((format!("processor time per {}", done.name), shown));
        let value = json!({ "operation": done.name, "count": done.count, "us": us });
        report.json.insert("processor_time_per_operation".to_owned(), value);
    }
}

/// What the servers did while they were measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operations {
    /// One of them, and several.
    pub(super) name: &'static str,
    pub(super) names: &'static str,
    pub(super) count: u64,
}

impl Operations {
    pub(super) fn writes(count: u64) -> Self {
        Self { name: "write", names: "writes", count }
    }

    pub(super) fn reads(count: u64) -> Self {
        Self { name: "read", names: "reads", count }
    }

    pub(super) fn allocations(count: u64) -> Self {
        Self { name: "allocation", names: "allocations", count }
    }

    pub(super) fn dispatches(count: u64) -> Self {
        Self { name: "dispatch", names: "dispatches", count }
    }

    /// The share of each in what all of them took, if there was one.
    pub(super) fn each(&self, all: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "an average for people")]
        let count = self.count as f64;
        (self.count > 0).then(|| all / count)
    }
}

/// Numbers that a server tells of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauges(BTreeMap<String, f64>);

impl Gauges {
    pub(super) fn value(&self, name: &str) -> f64 {
        self.0.get(&format!("nomad.{name}")).copied().unwrap_or(0.0)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MetricsAnswer {
    gauges: Vec<Gauge>,
    counters: Vec<Counter>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Counter {
    name: String,
    sum: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Gauge {
    name: String,
    value: f64,
}
