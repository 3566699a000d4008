//! The metrics of real servers in Prometheus' text format, read strictly, and by `promtool` where it is installed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    process::{Command, Stdio},
};

use serde_json::json;

use super::{Stage, pools};
use crate::harness::{Client, PATIENCE, wait_for, wait_until};

/// A family: its type, and its lines as (name, labels, value).
#[derive(Debug)]
struct Family<'a> {
    kind: &'a str,
    lines: Vec<(&'a str, BTreeMap<&'a str, &'a str>, f64)>,
}

fn is_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

/// The families of a text in which each has one help, one type and then its lines, and nothing else stands.
fn families(text: &str) -> BTreeMap<&str, Family<'_>> {
    assert!(text.ends_with('\n'));
    let mut families = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
        assert!(is_name(name) && help.ends_with('.'), "{line}");
        assert!(!help.contains("docs/"), "{name} is not described");
        let (of, kind) =
            lines.next().and_then(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).unwrap();
        assert_eq!(of, name);
        let mut family = Family { kind, lines: Vec::new() };
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            family.lines.push(parsed(line));
        }
        assert!(!family.lines.is_empty(), "{name} has no line");
        assert!(families.insert(name, family).is_none(), "{name} is there twice");
    }
    families
}

fn parsed(line: &str) -> (&str, BTreeMap<&str, &str>, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
        None => (series, ""),
    };
    let mut parsed = BTreeMap::new();
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (label, value) = label.split_once('=').unwrap();
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
        assert!(is_name(label) && !value.contains(['"', '\\']), "{line}");
        assert!(parsed.insert(label, value).is_none(), "{line}");
    }
    (name, parsed, value.parse().unwrap())
}

/// What the text format and the usual rules of naming ask for.
fn check(text: &str) {
    for (name, Family { kind, lines }) in &families(text) {
        assert!(name.starts_with("nomad_"), "{name}");
        assert!(!["_ms", "_mb", "_us"].iter().any(|unit| name.ends_with(unit)), "{name}");
        let series: BTreeSet<_> = lines.iter().map(|(name, labels, _)| (name, labels)).collect();
        assert_eq!(series.len(), lines.len(), "{name} has a line twice");
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name} is a {kind}");
        match *kind {
            "gauge" | "counter" => assert!(lines.iter().all(|(line, ..)| line == name), "{name}"),
            "histogram" => check_histogram(name, lines),
            other => panic!("{name} is a {other}"),
        }
    }
}

fn check_histogram(name: &str, lines: &[(&str, BTreeMap<&str, &str>, f64)]) {
    let of = |part: &str| {
        let part = format!("{name}_{part}");
        lines.iter().filter(move |(name, ..)| *name == part)
    };
    assert!(name.ends_with("_seconds"), "{name}");
    assert_eq!(of("count").count(), of("sum").count(), "{name}");
    assert!(of("count").count() > 0, "{name}");
    for (_, labels, count) in of("count") {
        let mut last = (f64::NEG_INFINITY, 0.0);
        for (_, bucket, value) in of("bucket") {
            let mut rest = bucket.clone();
            let bound: f64 = rest.remove("le").unwrap().parse().unwrap();
            if rest == *labels {
                assert!(bound > last.0 && *value >= last.1, "{name}: buckets add up");
                last = (bound, *value);
            }
        }
        assert_eq!(last, (f64::INFINITY, *count), "{name}: the last bucket has all");
    }
}

/// What `promtool check metrics` says; nothing where it is not installed.
fn complaints(text: &str) -> Option<String> {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().ok()?;
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || !said.is_empty(), "{output:?}");
    Some(said)
}

/// Metrics of three servers with machines of two pools, calls to a provider and a capacity group obey the format, and `promtool` has nothing to
/// say against them. Each of an operator's numbers of workers and plans is there, in both forms.
#[test]
fn metrics_obey_prometheus() {
    let stage = Stage::of(pools::options().with_machines());
    stage.pool(3, json!([pools::kind("small")]));
    stage.declare_in("balanced", 8_080, &json!({}));
    stage.register(&pools::job("web", 1));
    stage.await_running("web", 1);
    wait_until("calls are counted", PATIENCE, || {
        stage.cluster.all().into_iter().any(|server| {
            let text = stage.cluster.client(server).get("/v1/metrics?format=prometheus").text;
            text.contains("nomad_providers_call_seconds_count")
        })
    });
    for server in stage.cluster.all() {
        let text = stage.cluster.client(server).get("/v1/metrics?format=prometheus").text;
        check(&text);
        if let Some(said) = complaints(&text) {
            assert_eq!(said, "", "server {server}");
        }
    }
    let _agent = stage.cluster.agent("agent", None);
    let address = wait_for("the agent's address", PATIENCE, || {
        let nodes = stage.client.get("/v1/nodes").ok();
        let node = nodes.as_array()?.iter().find(|node| node["Name"] == "agent")?.clone();
        let node = stage.client.get(&format!("/v1/node/{}", node["ID"].as_str()?)).ok();
        node["HTTPAddr"].as_str()?.parse().ok()
    });
    let of_agent = Client::new(address, PATIENCE).get("/v1/metrics?format=prometheus").text;
    check(&of_agent);
    if let Some(said) = complaints(&of_agent) {
        assert_eq!(said, "", "the agent");
    }
    let leader = stage.cluster.client(stage.cluster.leader());
    check_what_is_shown(&leader);
    check_what_operators_watch(&leader);
    stage.client.delete("/v1/job/web?purge=true").ok();
    stage.await_empty();
}

/// Requests, room, capacity and counts by status are there, and add up.
fn check_what_operators_watch(leader: &Client) {
    let text = leader.get("/v1/metrics?format=prometheus").text;
    let families = families(&text);
    let sum = |name: &str, label: (&str, &str)| -> f64 {
        let family = families.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        let of = family.lines.iter().filter(|(_, labels, _)| labels.get(label.0) == Some(&label.1));
        of.map(|(.., value)| value).sum()
    };
    assert!(sum("nomad_http_requests_total", ("route", "metrics")) >= 1.0);
    let timed = &families["nomad_http_request_seconds"].lines;
    let is_read = |labels: &BTreeMap<&str, &str>| labels.get("kind") == Some(&"read");
    assert!(timed.iter().any(|(name, labels, _)| name.ends_with("_count") && is_read(labels)));
    assert!(sum("nomad_allocations_by_status", ("status", "running")) >= 1.0);
    assert!(sum("nomad_jobs_by_status", ("status", "running")) >= 1.0);
    let memory = |of| sum("nomad_node_pools_memory_bytes", ("of", of));
    assert!(memory("total") > memory("allocated") && memory("allocated") > 0.0);
    for name in ["nomad_disk_free_bytes", "nomad_disk_data_bytes", "nomad_build_info"] {
        assert!(families[name].lines[0].2 > 0.0, "{name}");
    }
    assert_eq!(families["nomad_build_info"].lines[0].1["generation"], fsm::GENERATION.to_string());
}

fn check_what_is_shown(leader: &crate::harness::Client) {
    let text = leader.get("/v1/metrics?format=prometheus").text;
    let families = families(&text);
    let json = leader.get("/v1/metrics").ok();
    let named = |list: &str| -> BTreeSet<String> {
        let all = json[list].as_array().unwrap().iter();
        all.map(|one| one["Name"].as_str().unwrap().to_owned()).collect()
    };
    let (gauges, counters, samples) = (named("Gauges"), named("Counters"), named("Samples"));
    let histograms = [
        "worker.dequeue_eval",
        "worker.wait_for_index",
        "worker.invoke_scheduler.service",
        "worker.invoke_scheduler.batch",
        "worker.invoke_scheduler.system",
        "worker.invoke_scheduler.sysbatch",
        "worker.submit_plan",
        "worker.send_ack",
        "plan.evaluate",
        "plan.apply",
    ];
    for name in histograms {
        let family = format!("nomad_{}_seconds", name.replace('.', "_"));
        assert_eq!(families[&*family].kind, "histogram");
        assert!(samples.contains(&format!("nomad.{name}")), "{name}");
    }
    let numbers = [
        ("worker.evaluations_created", "_total"),
        ("worker.evaluations_blocked", "_total"),
        ("worker.evaluations_reblocked", "_total"),
        ("worker.evaluations_followed_up", "_total"),
        ("plan.node_rejected", "_total"),
        ("plan.queue_full", "_total"),
        ("plan.queue_depth", ""),
        ("broker.service.ready", ""),
        ("broker.batch.waiting", ""),
        ("broker.sysbatch.pending", ""),
        ("broker.system.unacked", ""),
        ("blocked_evals.total_blocked", ""),
    ];
    for (name, suffix) in numbers {
        let family = format!("nomad_{}{suffix}", name.replace('.', "_"));
        assert!(families.contains_key(&*family), "{family}");
        let list = if suffix.is_empty() { &gauges } else { &counters };
        assert!(list.contains(&format!("nomad.{name}")), "{name}");
    }
    for kind in ["service", "batch", "system", "sysbatch"] {
        assert!(families.contains_key(&*format!("nomad_broker_{kind}_oldest_ready_seconds")));
    }
    let of_pool = |family: &str, pool: &str| {
        families[family].lines.iter().any(|(_, labels, _)| labels.get("pool") == Some(&pool))
    };
    assert!(of_pool("nomad_pools_max", "burst") && of_pool("nomad_pools_max", "balanced"));
    assert_eq!(families["nomad_capacity_required"].lines[0].1["group"], "web");
}
