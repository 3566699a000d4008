//! The numbers of a server or an agent as Nomad's JSON and in Prometheus' text format. Counts
//! nothing itself.
//!
//! A metric's name may end with labels in braces: `pools.max{pool=burst}`. Prometheus' form has
//! base units and counters:
//!
//! ```text
//! nomad.broker.oldest_ready_ms   ─► nomad_broker_oldest_ready_seconds           gauge
//! nomad.worker.acknowledged      ─► nomad_worker_acknowledged_total             counter
//! nomad.pools.memory_mb{pool=p}  ─► nomad_pools_memory_bytes{pool="p"}          gauge
//! nomad.worker.submit_plan       ─► nomad_worker_submit_plan_seconds            histogram
//! ```
//! Invariant: all lines of a family stand together under one `# HELP` and one `# TYPE`.

pub mod nomad;

use std::{collections::BTreeMap, fmt::Write as _};

use calendar::DateTime;
use serde_json::{Value, json};

/// What Prometheus' text format is called in a header.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A histogram of durations since the start of what it is about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Upper bound of each bucket in µs (the last one takes all that is longer), and its count.
    pub buckets: Vec<(u64, u64)>,
    pub sum_us: u64,
    pub max_us: u64,
}

impl Sample {
    /// How many durations there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The bound, in µs, below which so many percent of them were: that of a bucket, and never more
    /// than the longest.
    pub fn quantile_us(&self, percent: u64) -> u64 {
        let wanted = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        let is_last = |bound: u64| self.buckets.last().is_some_and(|(last, _)| *last == bound);
        match found {
            Some((bound, _)) if !is_last(*bound) => (*bound).min(self.max_us),
            Some(_) | None => self.max_us,
        }
    }
}

/// Under which names metrics are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    Own,
    /// Those of [`nomad`].
    Nomad,
}

impl Names {
    /// What a request's `names` asks for; none: there are no others.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Own),
            "nomad" => Some(Self::Nomad),
            _ => None,
        }
    }
}

/// All metrics in the form of go-metrics' summary. Counters count from the start on, so they have
/// no rate.
pub fn summary(
    metrics: &BTreeMap<String, f64>,
    samples: &BTreeMap<String, Sample>,
    names: Names,
    now_ms: u64,
) -> Value {
    let (mut gauges, mut counters) = (Vec::new(), Vec::new());
    for (key, value) in metrics {
        let (name, labels) = split(key);
        let kind = match names {
            Names::Own => described(name).0,
            Names::Nomad => nomad::kind_of(name),
        };
        match kind {
            Gauge => gauges.push(json!({ "Name": name, "Value": value, "Labels": labels })),
            Counter => {
                let each = if *value > 0.0 { 1.0 } else { 0.0 };
                counters.push(json!({
                    "Name": name, "Labels": labels, "Count": whole(*value), "Sum": value, "Rate": 0.0,
                    "Min": each, "Max": each, "Mean": each, "Stddev": 0.0,
                }));
            }
        }
    }
    let seconds = i64::try_from(now_ms / 1_000).unwrap_or(i64::MAX);
    let now = DateTime::from_unix(seconds).rfc3339();
    json!({
        // As Go prints a time.
        "Timestamp": format!("{} +0000 UTC", now.trim_end_matches('Z').replace('T', " ")),
        "Gauges": gauges,
        "Points": [],
        "Counters": counters,
        "Samples": samples.iter().map(sample_ms).collect::<Vec<_>>(),
    })
}

/// Clients read a count as a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole")]
fn whole(count: f64) -> u64 {
    count as u64
}

/// A metric's name and its labels.
fn split(key: &str) -> (&str, BTreeMap<&str, &str>) {
    let Some((name, labels)) = key.split_once('{') else { return (key, BTreeMap::new()) };
    let labels = labels.strip_suffix('}').unwrap_or(labels);
    (name, labels.split(',').filter_map(|label| label.split_once('=')).collect())
}

/// A count as metrics have it.
#[expect(clippy::cast_precision_loss, reason = "shown only")]
pub fn number(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "shown only")]
fn ms(us: u64) -> f64 {
    us as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "shown only")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1_000_000.0
}

#[expect(clippy::cast_precision_loss, reason = "shown only")]
fn mean_ms(sample: &Sample) -> f64 {
    ms(sample.sum_us) / sample.count().max(1) as f64
}

/// The lower bound of the first bucket that has something: durations are not kept one by one.
fn min_ms(sample: &Sample) -> f64 {
    let filled = sample.buckets.iter().position(|(_, count)| *count > 0);
    let below = filled.and_then(|place| sample.buckets.get(place.checked_sub(1)?));
    ms(below.map_or(0, |(bound, _)| *bound))
}

/// As if every duration were the upper bound of its bucket.
fn stddev_ms(sample: &Sample) -> f64 {
    let mean = mean_ms(sample);
    let squares = sample.buckets.iter().map(|(bound, count)| {
        let off = ms((*bound).min(sample.max_us)) - mean;
        off * off * number(*count)
    });
    (squares.sum::<f64>() / number(sample.count().max(1))).sqrt()
}

/// A sample in milliseconds, as Nomad's are, with quantiles beside the mean.
fn sample_ms((key, sample): (&String, &Sample)) -> Value {
    let ((name, labels), count) = (split(key), sample.count());
    json!({
        "Name": name,
        "Labels": labels,
        "Count": count,
        "Sum": ms(sample.sum_us),
        "Rate": 0.0,
        "Mean": mean_ms(sample),
        "Min": min_ms(sample),
        "Max": ms(sample.max_us),
        "Stddev": stddev_ms(sample),
        "P50": ms(sample.quantile_us(50)),
        "P99": ms(sample.quantile_us(99)),
    })
}

/// What a family of Prometheus' text format is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Gauge,
    /// It only grows while the server runs, or while it leads.
    Counter,
}
use Kind::{Counter, Gauge};

/// What metrics are about, by the beginning of their names behind `nomad.`; the first that fits
/// holds. docs/operations.md, docs/pools.md and docs/capacity.md have each.
const DESCRIBED: [(&str, Kind, &str); 80] = [
    ("client.uptime", Gauge, "Seconds since the machine of this agent started."),
    (
        "client.tasks.max_run_duration_exceeded",
        Counter,
        "Tasks that this agent ended because of max_run_duration.",
    ),
    ("client.allocations.running", Gauge, "Allocations that run on this agent."),
    (
        "client.allocations.known",
        Gauge,
        "Allocations that this agent keeps, also those that ended.",
    ),
    ("client.tasks.running", Gauge, "Tasks that run on this agent."),
    ("client.host.memory.", Gauge, "Memory of this agent's machine, bytes."),
    ("client.host.disk.", Gauge, "The disk of the agent's allocations, bytes."),
    ("client.host.cpu.total_ticks", Gauge, "Processor time in use on this agent's machine, MHz."),
    ("client.host.cpu.", Gauge, "Use of a processor of this agent's machine, percent."),
    ("client.", Gauge, "The machine of this agent, and what runs there."),
    ("raft.log.first_index", Gauge, "First index in the log on disk."),
    ("raft.log.", Counter, "Writes of the log on disk since the start."),
    ("raft.is_leader", Gauge, "Whether this server leads, and a majority answers it."),
    (
        "raft.has_majority",
        Gauge,
        "Whether a majority answers this server as the leader, or the leader that it hears.",
    ),
    ("raft.without_majority_ms", Gauge, "How long no majority has answered; 0 while one does."),
    ("raft.voters_alive", Gauge, "Voters that answer this server, itself included."),
    ("raft.voters", Gauge, "Voters of the Raft configuration."),
    ("raft.takes_part", Gauge, "1 once this server has asked the others what it acknowledged."),
    (
        "raft.ids_retired",
        Gauge,
        "Ids of this data directory that were older than what they had acknowledged.",
    ),
    ("raft.failures_tolerated", Gauge, "How many more voters may fail."),
    ("raft.peers_heard", Gauge, "Other servers that answer this one."),
    ("raft.follower_lag_entries", Gauge, "Entries that a follower lacks, as its leader knows."),
    ("raft.term", Gauge, "The Raft term of this server."),
    ("raft.last_index", Gauge, "Index of the last entry in the log of this server."),
    ("raft.commit_index", Gauge, "Index of the last entry that this server knows to be committed."),
    ("raft.applied_index", Gauge, "Index of the last entry that this server has applied."),
    ("state.shadow_lag_groups", Gauge, "Groups of entries that the state on disk is behind."),
    ("state.shadow_lag_bytes", Gauge, "Bytes that the state on disk is behind."),
    ("state.disk_bytes", Gauge, "Size of the state on disk."),
    ("state.jobs", Gauge, "Jobs that are there."),
    ("state.nodes", Gauge, "Nodes that are there."),
    ("state.evaluations", Gauge, "Evaluations that are there."),
    ("state.allocations", Gauge, "Allocations that are there, also those that ended."),
    ("disk.full", Gauge, "Whether the disk is nearly full."),
    ("disk.free_bytes", Gauge, "Bytes that are free on the disk of the data directory."),
    ("disk.data_bytes", Gauge, "Bytes of the log, the state and the newest snapshot on disk."),
    (
        "clock.ahead_ms",
        Gauge,
        "How far the clock of this server is ahead of the majority's; below 0: behind it.",
    ),
    (
        "log_time.lag_ms",
        Gauge,
        "How far log time is behind the clocks of the servers; below 0: ahead of them.",
    ),
    ("build.info", Gauge, "Always 1; of what this program was built."),
    ("http.requests", Counter, "Requests by the noun of their route and the code of their answer."),
    ("jobs.by_status", Gauge, "Jobs by status."),
    ("allocations.by_status", Gauge, "Allocations of the jobs that are there, by status."),
    (
        "node_pools.",
        Gauge,
        "What the nodes of a node pool have in total, keep back, and have given to allocations.",
    ),
    ("traces.", Counter, "Spans for the collector of traces."),
    ("worker.leases", Gauge, "Evaluations that workers of this server hold."),
    (
        "worker.evaluations_",
        Counter,
        "Evaluations by what plans of this server's workers made of them.",
    ),
    ("worker.", Counter, "Scheduling workers of this server since the start."),
    ("nodes.changes.", Counter, "Changes of nodes since this server leads."),
    ("nodes.suspended.", Gauge, "Suspended nodes by reason."),
    ("nodes.", Gauge, "Nodes by what they are and do."),
    ("broker.oldest_ready_ms", Gauge, "How long the oldest ready evaluation has been ready."),
    ("broker.total_", Gauge, "Evaluations in the leader's broker."),
    ("broker.", Gauge, "Evaluations in the leader's broker, of one kind of job."),
    ("blocked_evals.", Gauge, "Evaluations that wait for capacity."),
    ("plan.queue_depth", Gauge, "Plans that wait at the leader."),
    ("plan.", Counter, "Plans at the leader, since it leads."),
    ("heartbeat.", Gauge, "Heartbeats that the leader expects."),
    ("pools.calls", Gauge, "Calls to providers that are under way."),
    ("pools.oldest_probe_ms", Gauge, "Longest time since a booting instance was described."),
    ("pools.instances.came_up_longest_ms", Gauge, "Longest time from an intent to a node."),
    ("pools.instances.gone_longest_ms", Gauge, "Longest time from a shutdown until it is done."),
    (
        "pools.instances.by_state",
        Gauge,
        "Instances of a pool by state; those held or draining are in another one too.",
    ),
    ("pools.instances.", Counter, "What became of instances since this server leads."),
    ("pools.", Gauge, "Instance pools: machines, price, use."),
    ("providers.call_longest_ms", Gauge, "Longest call of this server to a provider."),
    ("providers.", Counter, "Calls of this server to providers since the start."),
    (
        "capacity.members_",
        Counter,
        "What members of a capacity group were told since this server leads.",
    ),
    ("capacity.decisions", Counter, "What a capacity group came to, by reason."),
    ("capacity.", Gauge, "Capacity groups: what is required, decided and there."),
    ("process.cpu_ms", Counter, "Processor time of this process."),
    ("process.", Gauge, "Memory of this process."),
    ("periodic.jobs", Gauge, "Periodic jobs that the leader watches."),
    ("periodic.dealt_with", Counter, "Due times of periodic jobs that were launched or passed."),
    ("periodic.missed", Counter, "Due times that passed without a launch."),
    ("periodic.overlapped", Counter, "Due times at which a child was still alive."),
    ("periodic.overtaken", Counter, "Launches that another change of their job came before."),
    (
        "allocations.max_run_duration_exceeded",
        Counter,
        "Allocations that the leader stopped because their agents did not end them in time.",
    ),
    ("deployments.", Gauge, "Deployments with a deadline that the leader watches."),
    ("leader.", Gauge, "The machines of the leader."),
    ("", Gauge, "See docs/operations.md."),
];

fn described(name: &str) -> (Kind, &'static str) {
    let name = name.strip_prefix("nomad.").unwrap_or(name);
    let found = DESCRIBED.iter().find(|(beginning, ..)| name.starts_with(beginning));
    let (_, kind, help) = found.expect("the last beginning fits every name");
    (*kind, help)
}

/// Lines of families by the family's name.
type Families = BTreeMap<String, String>;

/// Where the lines of a family go; its head is written first.
fn family<'a>(
    families: &'a mut Families,
    name: &str,
    (kind, help): (&str, &str),
) -> &'a mut String {
    families
        .entry(name.to_owned())
        .or_insert_with(|| format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"))
}

/// All metrics in Prometheus' text format.
pub fn exposition(gauges: &BTreeMap<String, f64>, samples: &BTreeMap<String, Sample>) -> String {
    let mut families = Families::new();
    for (key, value) in gauges {
        let (base, labels) = split(key);
        let (kind, help) = described(base);
        let (name, value) = in_base_unit(base, kind, *value);
        let word = if kind == Counter { "counter" } else { "gauge" };
        let lines = family(&mut families, &name, (word, help));
        write_line(lines, &name, &labels, value);
    }
    for (key, sample) in samples {
        let (base, labels) = split(key);
        let name = legal(&format!("{base}_seconds"));
        let lines = family(&mut families, &name, ("histogram", timed(base)));
        write_histogram(lines, &name, labels, sample);
    }
    families.into_values().collect()
}

/// What the durations of a sample are of.
fn timed(name: &str) -> &'static str {
    match name.strip_prefix("nomad.").unwrap_or(name).split('.').next().unwrap_or("") {
        "http" => "How long requests took until their answer began, by route and kind.",
        "worker" => "How long steps of this server's workers took.",
        "plan" => "How long the leader took for entries of plans.",
        "leader" => "How long a step of the leader's machines took.",
        "providers" => "How long calls to a provider took.",
        "capacity" => "From a requirement of capacity until a member serves.",
        _ => described(name).1,
    }
}

/// Names of Nomad's that say no unit, or end as only a counter's may, and the end that they have in
/// Prometheus' form.
const RENAMED: [(&str, &str); 10] = [
    ("nomad.client.host.memory.total", "nomad.client.host.memory.size_bytes"),
    ("nomad.client.host.memory.available", "nomad.client.host.memory.available_bytes"),
    ("nomad.client.host.memory.used", "nomad.client.host.memory.used_bytes"),
    ("nomad.client.host.memory.free", "nomad.client.host.memory.free_bytes"),
    ("nomad.client.host.disk.size", "nomad.client.host.disk.size_bytes"),
    ("nomad.client.host.disk.used", "nomad.client.host.disk.used_bytes"),
    ("nomad.client.host.disk.available", "nomad.client.host.disk.available_bytes"),
    ("nomad.client.host.cpu.total_ticks", "nomad.client.host.cpu.used_mhz"),
    ("nomad.client.host.cpu.total_percent", "nomad.client.host.cpu.busy"),
    ("nomad.client.uptime", "nomad.client.uptime_seconds"),
];

/// The name and value of a number in seconds and bytes; a counter's name ends in `_total`.
fn in_base_unit(name: &str, kind: Kind, value: f64) -> (String, f64) {
    const MIB: f64 = 1_048_576.0;
    let renamed = RENAMED.iter().find(|(from, _)| *from == name);
    let name = renamed.map_or(name, |(_, to)| *to);
    let (stem, unit, value) = if let Some(stem) = name.strip_suffix("_ms") {
        (stem, "_seconds", value / 1_000.0)
    } else if let Some(stem) = name.strip_suffix("_mb") {
        (stem, "_bytes", value * MIB)
    } else {
        (name, "", value)
    };
    match kind {
        Gauge => (legal(&format!("{stem}{unit}")), value),
        Counter => {
            let stem = stem.strip_suffix("_total").unwrap_or(stem);
            (legal(&format!("{stem}{unit}_total")), value)
        }
    }
}

fn write_line(lines: &mut String, name: &str, labels: &BTreeMap<&str, &str>, value: f64) {
    lines.push_str(name);
    let labels: Vec<String> =
        labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
    if !labels.is_empty() {
        lines.push('{');
        lines.push_str(&labels.join(","));
        lines.push('}');
    }
    writeln!(lines, " {value}").expect("a text takes everything");
}

/// Buckets add up, and bounds are in seconds.
fn write_histogram(
    lines: &mut String,
    name: &str,
    mut labels: BTreeMap<&str, &str>,
    sample: &Sample,
) {
    let count = number(sample.count());
    write_line(lines, &format!("{name}_sum"), &labels, seconds(sample.sum_us));
    write_line(lines, &format!("{name}_count"), &labels, count);
    let bucket = format!("{name}_bucket");
    let bounded = sample.buckets.len().saturating_sub(1);
    let mut total = 0;
    for (bound, count) in sample.buckets.iter().take(bounded) {
        total += count;
        let bound = seconds(*bound).to_string();
        let mut labels = labels.clone();
        labels.insert("le", &bound);
        write_line(lines, &bucket, &labels, number(total));
    }
    labels.insert("le", "+Inf");
    write_line(lines, &bucket, &labels, count);
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn legal(name: &str) -> String {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut out: String = name.chars().map(|c| if is_legal(c) { c } else { '_' }).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_labels_share_a_family_and_have_base_units() {
        let gauges = [
            ("nomad.pools.memory_mb{pool=a-b}", 2.0),
            ("nomad.pools.memory_mb{pool=a_b}", 1.0),
            ("nomad.pools.instances.gone_total_ms", 250.0),
            ("nomad.worker.acknowledged", 7.0),
            ("nomad.worker.leases", 1.0),
        ];
        let gauges = gauges.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let sample = Sample { buckets: vec![(1, 0), (2, 3), (4, 1)], sum_us: 9, max_us: 3 };
        let samples = [("nomad.providers.call{operation=list,provider=p}".to_owned(), sample)];
        let text = exposition(&gauges, &samples.into());
        let help = |name: &str, kind: &str, help: &str| {
            format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")
        };
        let expected = [
            help("nomad_pools_instances_gone_seconds_total", "counter", described("pools.instances.gone").1),
            "nomad_pools_instances_gone_seconds_total 0.25\n".to_owned(),
            help("nomad_pools_memory_bytes", "gauge", described("pools.memory_mb").1),
            "nomad_pools_memory_bytes{pool=\"a-b\"} 2097152\n".to_owned(),
            "nomad_pools_memory_bytes{pool=\"a_b\"} 1048576\n".to_owned(),
            help("nomad_providers_call_seconds", "histogram", "How long calls to a provider took."),
            "nomad_providers_call_seconds_sum{operation=\"list\",provider=\"p\"} 0.000009\n".to_owned(),
            "nomad_providers_call_seconds_count{operation=\"list\",provider=\"p\"} 4\n".to_owned(),
            "nomad_providers_call_seconds_bucket{le=\"0.000001\",operation=\"list\",provider=\"p\"} 0\n".to_owned(),
            "nomad_providers_call_seconds_bucket{le=\"0.000002\",operation=\"list\",provider=\"p\"} 3\n".to_owned(),
            "nomad_providers_call_seconds_bucket{le=\"+Inf\",operation=\"list\",provider=\"p\"} 4\n".to_owned(),
            help("nomad_worker_acknowledged_total", "counter", described("worker.acknowledged").1),
            "nomad_worker_acknowledged_total 7\n".to_owned(),
            help("nomad_worker_leases", "gauge", described("worker.leases").1),
            "nomad_worker_leases 1\n".to_owned(),
        ];
        assert_eq!(text, expected.concat());
    }

    #[test]
    fn json_has_counters_and_samples_beside_gauges_as_go_metrics_has() {
        let metrics =
            [("nomad.worker.leases", 2.0), ("nomad.worker.acknowledged{kind=batch}", 7.0)];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
        let buckets = vec![(1_000, 0), (2_000, 3), (u64::MAX, 1)];
        let sample = Sample { buckets, sum_us: 10_000, max_us: 4_000 };
        let samples = [("nomad.worker.submit_plan".to_owned(), sample)].into();
        let shown = summary(&metrics, &samples, Names::Own, 951_782_400_999);
        assert_eq!(shown["Timestamp"], "2000-02-29 00:00:00 +0000 UTC");
        let gauge = json!([{ "Name": "nomad.worker.leases", "Value": 2.0, "Labels": {} }]);
        assert_eq!(shown["Gauges"], gauge);
        let counter = &shown["Counters"][0];
        assert_eq!(counter["Name"], "nomad.worker.acknowledged");
        assert_eq!((&counter["Count"], &counter["Labels"]["kind"]), (&json!(7), &json!("batch")));
        let sample = &shown["Samples"][0];
        assert_eq!((&sample["Mean"], &sample["Min"]), (&json!(2.5), &json!(1.0)));
        assert_eq!((&sample["Max"], &sample["Count"]), (&json!(4.0), &json!(4)));
        for summed in [counter, sample] {
            for field in ["Name", "Labels", "Count", "Rate", "Sum", "Min", "Max", "Mean", "Stddev"]
            {
                assert!(!summed[field].is_null(), "{field}: {summed}");
            }
        }
        assert!((sample["Stddev"].as_f64().unwrap_or(0.0) - 0.9).abs() < 0.1, "{sample}");
    }

    #[test]
    fn a_label_is_escaped_and_a_name_is_made_legal() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(legal("9.a-b"), "_9_a_b");
        assert_eq!(split("a{b=c,d=e}"), ("a", BTreeMap::from([("b", "c"), ("d", "e")])));
        assert_eq!(split("a.b"), ("a.b", BTreeMap::new()));
    }
}
