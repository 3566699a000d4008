//! The numbers under the names that dashboards made for Nomad ask for: `/v1/metrics?names=nomad`,
//! in both forms.
//!
//! [`NAMES`] is the one table: it makes the answers, and docs/operations.md has it. Names, types
//! (summaries in ms), units and labels are Nomad's, and nothing else obeys the rules of Prometheus'
//! lint here. What Nomad has no name for is left out, and so is what this program does not measure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{
    Families, Kind, Sample, described, family, legal, mean_ms, ms, number, split, write_line,
};

/// What a series is for Prometheus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Gauge,
    Counter,
    /// A summary in milliseconds.
    Timer,
}
use Form::{Counter, Gauge, Timer};

/// A series.
struct Row {
    /// Nomad's name. `*` is the same word as in ours; a label in braces stands for its value.
    name: &'static str,
    form: Form,
    from: From,
}

/// Where its numbers come from.
enum From {
    /// A metric of ours, with its labels.
    Ours(&'static str),
    /// Made for this alone by who answers, under Nomad's name: what it is.
    Made(&'static str),
}

const fn ours(name: &'static str, form: Form, ours: &'static str) -> Row {
    Row { name, form, from: From::Ours(ours) }
}

const fn made(name: &'static str, form: Form, what: &'static str) -> Row {
    Row { name, form, from: From::Made(what) }
}

#[rustfmt::skip]
const NAMES: [Row; 84] = [
    ours("nomad.nomad.broker.total_ready", Gauge, "nomad.broker.total_ready"),
    ours("nomad.nomad.broker.total_unacked", Gauge, "nomad.broker.total_unacked"),
    ours("nomad.nomad.broker.total_pending", Gauge, "nomad.broker.total_pending"),
    ours("nomad.nomad.broker.total_waiting", Gauge, "nomad.broker.total_waiting"),
    ours("nomad.nomad.broker.total_cancelable", Gauge, "nomad.broker.total_cancelable"),
    ours("nomad.nomad.broker.*.ready", Gauge, "nomad.broker.*.ready"),
    ours("nomad.nomad.broker.*.unacked", Gauge, "nomad.broker.*.unacked"),
    ours("nomad.nomad.blocked_evals.total_blocked", Gauge, "nomad.blocked_evals.total_blocked"),
    ours("nomad.nomad.blocked_evals.total_escaped", Gauge, "nomad.blocked_evals.total_escaped"),
    ours("nomad.nomad.plan.queue_depth", Gauge, "nomad.plan.queue_depth"),
    ours("nomad.nomad.plan.node_rejected", Counter, "nomad.plan.node_rejected"),
    ours("nomad.nomad.plan.evaluate", Timer, "nomad.plan.evaluate"),
    ours("nomad.nomad.plan.apply", Timer, "nomad.plan.apply"),
    ours("nomad.nomad.plan.submit", Timer, "nomad.worker.submit_plan"),
    ours("nomad.nomad.worker.dequeue_eval", Timer, "nomad.worker.dequeue_eval"),
    ours("nomad.nomad.worker.wait_for_index", Timer, "nomad.worker.wait_for_index"),
    ours("nomad.nomad.worker.submit_plan", Timer, "nomad.worker.submit_plan"),
    ours("nomad.nomad.worker.send_ack", Timer, "nomad.worker.send_ack"),
    ours("nomad.nomad.worker.invoke_scheduler.*", Timer, "nomad.worker.invoke_scheduler.*"),
    ours("nomad.nomad.heartbeat.active", Gauge, "nomad.heartbeat.active"),
    ours("nomad.nomad.job_status.{status}", Gauge, "nomad.jobs.by_status"),
    made("nomad.nomad.job_summary.queued", Gauge, "Instances of a group that are not placed."),
    made("nomad.nomad.job_summary.starting", Gauge, "Instances of a group that are placed and not yet running."),
    made("nomad.nomad.job_summary.running", Gauge, "Instances of a group that are running."),
    made("nomad.nomad.job_summary.failed", Gauge, "Instances of a group that are ended with an error."),
    made("nomad.nomad.job_summary.lost", Gauge, "Instances of a group that are on nodes that were lost."),
    made("nomad.nomad.job_summary.complete", Gauge, "Instances of a group that are ended well."),
    made("nomad.nomad.job_summary.unknown", Gauge, "Instances of a group that are on disconnected nodes."),
    made("nomad.nomad.job_summary.left_out", Gauge, "Groups beyond the first so many that have no numbers here."),
    made("nomad.nomad.autopilot.healthy", Gauge, "1: a majority answers, and so do all voters."),
    ours("nomad.nomad.autopilot.failure_tolerance", Gauge, "nomad.raft.failures_tolerated"),
    made("nomad.nomad.rpc.request", Counter, "Requests by HTTP."),
    made("nomad.nomad.rpc.query", Counter, "Requests by HTTP that read."),
    made("nomad.nomad.rpc.request_error", Counter, "Requests by HTTP that failed by the server."),
    ours("nomad.raft.apply", Counter, "nomad.raft.applied_index"),
    ours("nomad.raft.appliedIndex", Gauge, "nomad.raft.applied_index"),
    ours("nomad.raft.lastIndex", Gauge, "nomad.raft.last_index"),
    ours("nomad.raft.commitIndex", Gauge, "nomad.raft.commit_index"),
    ours("nomad.raft.term", Gauge, "nomad.raft.term"),
    ours("nomad.raft.state.leader", Gauge, "nomad.raft.is_leader"),
    ours("nomad.runtime.alloc_bytes", Gauge, "nomad.process.resident_bytes"),
    ours("nomad.runtime.sys_bytes", Gauge, "nomad.process.resident_bytes"),
    ours("nomad.client.uptime", Gauge, "nomad.client.uptime"),
    made("nomad.client.allocated.cpu", Gauge, "What allocations of this agent were given, MHz."),
    made("nomad.client.allocated.memory", Gauge, "What allocations of this agent were given, MiB."),
    made("nomad.client.allocated.disk", Gauge, "What allocations of this agent were given, MiB."),
    made("nomad.client.unallocated.cpu", Gauge, "What is left for allocations of this agent, MHz."),
    made("nomad.client.unallocated.memory", Gauge, "What is left for allocations of this agent, MiB."),
    made("nomad.client.unallocated.disk", Gauge, "What is left for allocations of this agent, MiB."),
    made("nomad.client.allocations.pending", Gauge, "Allocations of this agent that are pending."),
    made("nomad.client.allocations.running", Gauge, "Allocations of this agent that are running."),
    made("nomad.client.allocations.terminal", Gauge, "Allocations of this agent that have ended and are kept."),
    made("nomad.client.allocations.blocked", Gauge, "Allocations of this agent that wait for the end of others."),
    made("nomad.client.tasks.pending", Gauge, "Tasks of this agent that are pending."),
    made("nomad.client.tasks.running", Gauge, "Tasks of this agent that are running."),
    made("nomad.client.tasks.dead", Gauge, "Tasks of this agent that are dead."),
    ours("nomad.client.host.cpu.total", Gauge, "nomad.client.host.cpu.total_percent"),
    ours("nomad.client.host.cpu.total_percent", Gauge, "nomad.client.host.cpu.total_percent"),
    ours("nomad.client.host.cpu.user", Gauge, "nomad.client.host.cpu.user"),
    ours("nomad.client.host.cpu.system", Gauge, "nomad.client.host.cpu.system"),
    ours("nomad.client.host.cpu.idle", Gauge, "nomad.client.host.cpu.idle"),
    ours("nomad.client.host.cpu.total_ticks", Gauge, "nomad.client.host.cpu.total_ticks"),
    ours("nomad.client.host.memory.total", Gauge, "nomad.client.host.memory.total"),
    ours("nomad.client.host.memory.available", Gauge, "nomad.client.host.memory.available"),
    ours("nomad.client.host.memory.used", Gauge, "nomad.client.host.memory.used"),
    ours("nomad.client.host.memory.free", Gauge, "nomad.client.host.memory.free"),
    made("nomad.client.host.disk.size", Gauge, "Size, bytes, of a disk of this machine."),
    made("nomad.client.host.disk.used", Gauge, "Used, bytes, of a disk of this machine."),
    made("nomad.client.host.disk.available", Gauge, "Available, bytes, of a disk of this machine."),
    made("nomad.client.host.disk.used_percent", Gauge, "Used, percent, of a disk of this machine."),
    made("nomad.client.host.disk.inodes_percent", Gauge, "Inodes that are used, percent, of a disk of this machine."),
    made("nomad.client.allocs.cpu.total_percent", Gauge, "Processor time in use by a task, percent of a core."),
    made("nomad.client.allocs.cpu.user", Gauge, "Processor time in use by a task in user mode, percent of a core."),
    made("nomad.client.allocs.cpu.system", Gauge, "Processor time in use by a task in system mode, percent of a core."),
    made("nomad.client.allocs.cpu.total_ticks", Gauge, "Processor time in use by a task, MHz."),
    made("nomad.client.allocs.cpu.allocated", Gauge, "What a task was given, MHz."),
    made("nomad.client.allocs.cpu.throttled_time", Gauge, "Always 0: tasks are not throttled."),
    made("nomad.client.allocs.cpu.throttled_periods", Gauge, "Always 0: tasks are not throttled."),
    made("nomad.client.allocs.memory.rss", Gauge, "Resident memory of a task, bytes."),
    made("nomad.client.allocs.memory.usage", Gauge, "Resident memory of a task, bytes."),
    made("nomad.client.allocs.memory.swap", Gauge, "Swapped memory of a task, bytes."),
    made("nomad.client.allocs.memory.cache", Gauge, "Always 0: not measured."),
    made("nomad.client.allocs.memory.allocated", Gauge, "What a task was given, bytes."),
    made("nomad.client.allocs.memory.max_allocated", Gauge, "What a task may use at most, bytes; 0: what it was given, or all."),
];

/// What each server knows, and a sum over servers would count again: only the leader says it.
const OF_LEADER: &str = "nomad.nomad.job_";

/// A value as it can stand in a key: labels are separated by commas there.
pub fn label(value: &str) -> String {
    value.replace(',', "_")
}

/// All numbers under Nomad's names, each with the label `host`.
pub fn renamed(
    metrics: &BTreeMap<String, f64>,
    samples: &BTreeMap<String, Sample>,
    host: &str,
) -> (BTreeMap<String, f64>, BTreeMap<String, Sample>) {
    let is_server = metrics.contains_key("nomad.raft.term");
    let leads = !is_server || metrics.get("nomad.raft.is_leader") == Some(&1.0);
    let of_all = metrics.iter().flat_map(|(key, value)| {
        let names = names_of(key, host).filter(|name| leads || !name.starts_with(OF_LEADER));
        names.map(|name| (name, *value))
    });
    let times = samples
        .iter()
        .flat_map(|(key, sample)| names_of(key, host).map(|name| (name, sample.clone())));
    (of_all.collect(), times.collect())
}

/// What Nomad calls a metric of ours, or one that was made for this, with its labels.
fn names_of<'k>(key: &'k str, host: &'k str) -> impl Iterator<Item = String> + use<'k> {
    let (name, mut labels) = split(key);
    labels.entry("host").or_insert(host);
    NAMES.iter().filter_map(move |row| {
        let pattern = match row.from {
            From::Ours(pattern) => pattern,
            From::Made(_) => row.name,
        };
        let mut said = row.name.replace('*', word_of(pattern, name)?);
        let mut labels = labels.clone();
        if let Some((stem, label)) = row.name.strip_suffix('}').and_then(|n| n.split_once('{')) {
            said = format!("{stem}{}", labels.remove(label)?);
        }
        let labels: Vec<String> = labels.iter().map(|(l, value)| format!("{l}={value}")).collect();
        write!(said, "{{{}}}", labels.join(",")).expect("a text takes everything");
        Some(said)
    })
}

/// The word at the place of the pattern's `*`, empty without one; none: it is another name.
fn word_of<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    let Some((before, behind)) = pattern.split_once('*') else {
        return (pattern == name).then_some("");
    };
    let word = name.strip_prefix(before)?.strip_suffix(behind)?;
    (!word.is_empty() && !word.contains('.')).then_some(word)
}

/// What a series is, and what it is about, by Nomad's name.
pub(super) fn form_of(name: &str) -> (Form, &'static str) {
    let fits = |row: &&Row| match row.name.split_once('{') {
        Some((stem, _)) => name.starts_with(stem),
        None => word_of(row.name, name).is_some(),
    };
    let row = NAMES.iter().find(fits).expect("only what the table names is asked for");
    let what = match row.from {
        From::Ours(ours) => described(ours).1,
        From::Made(what) => what,
    };
    (row.form, what)
}

/// What it is in JSON.
pub(super) fn kind_of(name: &str) -> Kind {
    match form_of(name).0 {
        Gauge | Timer => Kind::Gauge,
        Counter => Kind::Counter,
    }
}

/// Metrics under Nomad's names in Prometheus' text format, as go-metrics writes it.
pub fn exposition(metrics: &BTreeMap<String, f64>, samples: &BTreeMap<String, Sample>) -> String {
    let mut families = Families::new();
    for (key, value) in metrics {
        let (base, labels) = split(key);
        let (form, what) = form_of(base);
        let kind = match form {
            Gauge => "gauge",
            Counter => "counter",
            Timer => "summary",
        };
        let name = legal(base);
        write_line(family(&mut families, &name, (kind, what)), &name, &labels, *value);
    }
    for (key, sample) in samples {
        let (base, mut labels) = split(key);
        let name = legal(base);
        let lines = family(&mut families, &name, ("summary", form_of(base).1));
        let count = sample.count();
        write_line(lines, &format!("{name}_sum"), &labels, mean_ms(sample) * number(count));
        write_line(lines, &format!("{name}_count"), &labels, number(count));
        for (quantile, percent) in [("0.5", 50), ("0.9", 90), ("0.99", 99)] {
            labels.insert("quantile", quantile);
            write_line(lines, &name, &labels, ms(sample.quantile_us(percent)));
        }
    }
    families.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What public dashboards and alerts ask for: Grafana's 6278 and 6281, mr-karan's
    /// nomad-monitoring, Zabbix' template, the autoscaler.
    const ASKED_FOR: &str = include_str!("../../golden/nomad_series.txt");

    /// The names of a row in Prometheus' form, `*` and labels as some value of theirs.
    fn families_of(row: &Row) -> Vec<String> {
        let words: &[&str] = if row.name.contains('*') {
            &["service", "batch", "system", "sysbatch"]
        } else if row.name.contains('{') {
            &["pending", "running", "dead"]
        } else {
            &[""]
        };
        let name = row.name.replace("{status}", "*");
        words.iter().map(|word| legal(&name.replace('*', word))).collect()
    }

    #[test]
    fn a_metric_that_dashboards_ask_for_is_there_or_known_to_be_missing() {
        let known: BTreeSet<String> = NAMES.iter().flat_map(families_of).collect();
        for line in ASKED_FOR.lines().filter(|line| !line.starts_with('#')) {
            let (name, missing) = match line.split_once(" missing: ") {
                Some((name, why)) => (name, !why.is_empty()),
                None => (line, false),
            };
            assert_eq!(known.contains(name), !missing, "{line}");
        }
    }

    #[test]
    fn docs_have_the_table() {
        let lines = NAMES.iter().map(|row| {
            let (from, what) = match row.from {
                From::Ours(ours) => (format!("`{ours}`"), described(ours).1),
                From::Made(what) => ("only here".to_owned(), what),
            };
            let form = format!("{:?}", row.form).to_lowercase();
            format!("| `{}` | {form} | {from} | {} |\n", row.name, what.trim_end_matches('.'))
        });
        let table: String = lines.collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let docs = std::fs::read_to_string(path).expect("the docs");
        let (begin, end) = ("| Nomad's name | form | from | what |\n|---|---|---|---|\n", "\n");
        let (before, rest) = docs.split_once(begin).expect("the table's head");
        let behind = rest.find("\n\n").map_or("", |at| &rest[at..]);
        let found = rest.strip_suffix(behind).unwrap_or(rest).to_owned() + end;
        if std::env::var_os("UPDATE").is_some() {
            let docs = format!("{before}{begin}{}{behind}", table.trim_end());
            std::fs::write(path, docs).expect("the docs are written");
        } else {
            assert_eq!(found, table, "run with UPDATE=1 if that is meant");
        }
    }

    #[test]
    fn numbers_have_nomads_names_forms_and_labels() {
        let metrics = [
            ("nomad.broker.total_ready", 2.0),
            ("nomad.broker.service.ready", 1.0),
            ("nomad.broker.oldest_ready_ms", 9.0),
            ("nomad.jobs.by_status{status=running}", 3.0),
            ("nomad.raft.applied_index", 7.0),
            ("nomad.raft.is_leader", 1.0),
            ("nomad.raft.term", 4.0),
            ("nomad.nomad.job_summary.running{job=web,namespace=default,task_group=a}", 5.0),
            ("nomad.client.uptime{host=n1,node_id=x}", 6.0),
        ];
        let mut metrics: BTreeMap<String, f64> =
            metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let sample = Sample {
            buckets: vec![(1_000, 0), (2_000, 3), (4_000, 1)],
            sum_us: 9_000,
            max_us: 3_000,
        };
        let samples = BTreeMap::from([("nomad.worker.invoke_scheduler.batch".to_owned(), sample)]);
        let (named, times) = renamed(&metrics, &samples, "s1");
        let text = exposition(&named, &times);
        for line in [
            "# TYPE nomad_nomad_broker_total_ready gauge",
            "nomad_nomad_broker_total_ready{host=\"s1\"} 2",
            "nomad_nomad_broker_service_ready{host=\"s1\"} 1",
            "nomad_nomad_job_status_running{host=\"s1\"} 3",
            "# TYPE nomad_raft_apply counter",
            "nomad_raft_apply{host=\"s1\"} 7",
            "nomad_raft_appliedIndex{host=\"s1\"} 7",
            "nomad_nomad_job_summary_running{host=\"s1\",job=\"web\",namespace=\"default\",task_group=\"a\"} 5",
            "nomad_client_uptime{host=\"n1\",node_id=\"x\"} 6",
            "# TYPE nomad_nomad_worker_invoke_scheduler_batch summary",
            "nomad_nomad_worker_invoke_scheduler_batch{host=\"s1\",quantile=\"0.5\"} 2",
            "nomad_nomad_worker_invoke_scheduler_batch_sum{host=\"s1\"} 9",
            "nomad_nomad_worker_invoke_scheduler_batch_count{host=\"s1\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("oldest"), "Nomad has no name for it");
        // Numbers of jobs are those of the leader alone.
        metrics.insert("nomad.raft.is_leader".to_owned(), 0.0);
        let (named, _) = renamed(&metrics, &samples, "s1");
        assert!(!named.keys().any(|name| name.contains("job_")), "{named:?}");
        assert!(named.keys().any(|name| name.starts_with("nomad.nomad.broker")));
    }
}
