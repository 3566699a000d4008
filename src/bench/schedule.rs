//! `bench schedule`: many allocations on simulated nodes, timed to the last plan, to the last start
//! and until the disk has caught up, and then checked by an independent recomputation.

use std::time::{Duration, Instant};

use anyhow::bail;
use fsm::{
    Command, EvaluationId, JobKey, Text,
    job::{JobSpec, RegisterJob},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Progress, Report,
    arguments::ScheduleArgs,
    cluster::{Cluster, Gauges, Operations},
    http::Connection,
    load::{self, fresh_id},
    measure::{Latencies, rate},
    up::SimulatedNodes,
    verify, writes,
};

/// How long simulated nodes may take to be ready: a fixed part and one per 1,000.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);
/// Looks take at most this part of the time.
const POLL_SHARE: u32 = 10;
/// A server closes a connection that asks nothing for 30 s.
const POLL_MAX: Duration = Duration::from_secs(10);
const REGISTER_IN_FLIGHT: u32 = 256;

/// When things were seen to be reached, from the first registration on.
#[derive(Default)]
struct Times {
    registered: Option<Duration>,
    placed: Option<Duration>,
    running: Option<Duration>,
    on_disk: Option<Duration>,
}

pub(super) async fn run(
    arguments: &ScheduleArgs,
    cluster: &Cluster,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let run = EvaluationId(ground::rt::random_id()).to_string();
    let prefix = format!("bench-{}", &run[..8]);
    let template = writes::spec_of(&job(arguments, &prefix))?;
    let _nodes = nodes(arguments.nodes, cluster, progress).await?;
    let jobs: Vec<String> =
        (0..arguments.jobs).map(|number| format!("{prefix}-{number:05}")).collect();
    let before = cluster.gauges().await?;
    let mut times = Times::default();
    let followed =
        follow(arguments, cluster, (&template, &prefix), &jobs, &mut times, progress).await;
    let mut report = Report::default();
    if let Err(error) = followed {
        report.problems.push(format!("{error:#}"));
    }
    let after = cluster.gauges().await?;
    describe(arguments, cluster, &prefix, &times, &mut report).await?;
    describe_memory(arguments, &before, &after, &mut report);
    cluster.describe(&before, &after, &operations(arguments), &mut report);
    progress("recomputing the placements");
    for server in &cluster.servers {
        // Every server has to show a right state, and the same.
        let (live, problems) = verify::check(server, &jobs, arguments.count).await?;
        let shown = format!("{live} live allocations, {} problems", problems.len());
        report.add(&format!("check on {}", server.name), shown, problems.len());
        report
            .problems
            .extend(problems.iter().map(|problem| format!("{}: {problem}", server.name)));
    }
    if !arguments.cluster.keep && !arguments.cluster.up {
        progress("purging the jobs");
        writes::clean(cluster, jobs.iter().map(|job| Text::from(job.as_str()))).await?;
    }
    Ok(report)
}

/// The allocations that are placed, start and run.
pub(super) fn operations(arguments: &ScheduleArgs) -> Operations {
    Operations::allocations(u64::from(arguments.jobs) * u64::from(arguments.count))
}

/// Starts so many simulated nodes; none: there must be some.
pub(super) async fn nodes(
    count: u32,
    cluster: &Cluster,
    progress: Progress<'_>,
) -> anyhow::Result<Option<SimulatedNodes>> {
    let ready = ready_nodes(cluster).await?;
    if count == 0 {
        anyhow::ensure!(ready > 0, "the cluster has no ready node, and --nodes is 0");
        return Ok(None);
    }
    let servers: Vec<String> = cluster.servers.iter().map(|server| server.rpc.clone()).collect();
    let nodes = SimulatedNodes::start(count, &servers, progress)?;
    wait_for_nodes(cluster, ready + count as usize).await?;
    Ok(Some(nodes))
}

async fn ready_nodes(cluster: &Cluster) -> anyhow::Result<usize> {
    let nodes = verify::nodes(cluster.leader()).await?;
    Ok(nodes.iter().filter(|node| node.status == "ready").count())
}

async fn wait_for_nodes(cluster: &Cluster, wanted: usize) -> anyhow::Result<()> {
    let thousands = u32::try_from(wanted / 1_000).unwrap_or(u32::MAX);
    let timeout = READY_TIMEOUT.saturating_mul(thousands.saturating_add(1));
    let begin = Instant::now();
    loop {
        let ready = ready_nodes(cluster).await?;
        if ready >= wanted {
            return Ok(());
        }
        if begin.elapsed() > timeout {
            bail!("only {ready} of {wanted} nodes were ready after {} s", timeout.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn job(arguments: &ScheduleArgs, id: &str) -> Value {
    let ports: Vec<Value> =
        (0..arguments.ports).map(|number| json!({ "Label": format!("p{number}") })).collect();
    let networks = if ports.is_empty() { json!([]) } else { json!([{ "DynamicPorts": ports }]) };
    let mut job = json!({
        "ID": id,
        "Name": id,
        "Type": "service",
        "Datacenters": ["*"],
        "TaskGroups": [{
            "Name": "g",
            "Count": arguments.count,
            "EphemeralDisk": { "SizeMB": 10 },
            "Networks": networks,
            "Tasks": [{
                "Name": "t",
                "Driver": "mock",
                "Config": {},
                "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
                "Resources": { "CPU": arguments.cpu, "MemoryMB": arguments.memory },
            }],
        }],
    });
    if arguments.spread {
        job["Spreads"] = json!([{ "Attribute": "${node.datacenter}", "Weight": 50 }]);
        job["Affinities"] = json!([{ "LTarget": "${node.class}", "RTarget": "bench", "Operand": "=", "Weight": 50 }]);
    }
    job
}

/// Registers the jobs and watches until everything is placed, runs, and is on disk.
async fn follow(
    arguments: &ScheduleArgs,
    cluster: &Cluster,
    (template, prefix): (&JobSpec, &str),
    jobs: &[String],
    times: &mut Times,
    progress: Progress<'_>,
) -> anyhow::Result<()> {
    let mut commands = Vec::with_capacity(jobs.len());
    for id in jobs {
        let mut spec = template.clone();
        spec.key = JobKey::new(spec.key.namespace.clone(), id.as_str());
        spec.name = Text::from(id.as_str());
        commands.push(Command::from(RegisterJob {
            enforce_index: Some(0),
            ..RegisterJob::new(spec.into(), EvaluationId(fresh_id()))
        }));
    }
    let lanes = writes::lanes(&[&cluster.leader().rpc], 2, REGISTER_IN_FLIGHT, false).await?;
    progress(&format!("registering {} jobs × {}", arguments.jobs, arguments.count));
    let begin = Instant::now();
    load::send_all(&lanes, commands.into_iter()).await?;
    times.registered = Some(begin.elapsed());
    let wanted = u64::from(arguments.jobs) * u64::from(arguments.count);
    let mut connection = Connection::open(&cluster.leader().http).await?;
    let timeout = Duration::from_secs(arguments.timeout);
    let mut told = Instant::now();
    while times.running.is_none() || times.on_disk.is_none() {
        let look = Instant::now();
        let (placed, running) = if times.running.is_none() {
            counts(&mut connection, prefix).await?
        } else {
            (wanted, wanted)
        };
        if placed >= wanted {
            times.placed.get_or_insert(begin.elapsed());
        }
        if running >= wanted {
            times.running.get_or_insert(begin.elapsed());
        }
        if times.placed.is_some() && disk_has_caught_up(cluster).await? {
            times.on_disk.get_or_insert(begin.elapsed());
        }
        if begin.elapsed() > timeout {
            bail!("after {} s {placed} of {wanted} are placed, {running} run", timeout.as_secs());
        }
        if told.elapsed() > Duration::from_secs(5) {
            progress(&format!("{placed} of {wanted} placed, {running} running"));
            told = Instant::now();
        }
        tokio::time::sleep((look.elapsed() * POLL_SHARE).clamp(POLL, POLL_MAX)).await;
    }
    Ok(())
}

async fn disk_has_caught_up(cluster: &Cluster) -> anyhow::Result<bool> {
    let gauges = cluster.gauges().await?;
    Ok(gauges.iter().all(|gauges| gauges.value("state.shadow_lag_groups") == 0.0))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JobStub {
    job_summary: JobSummary,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JobSummary {
    summary: std::collections::BTreeMap<String, GroupCounts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GroupCounts {
    running: u64,
    starting: u64,
}

/// Placed and running allocations of the run.
async fn counts(connection: &mut Connection, prefix: &str) -> anyhow::Result<(u64, u64)> {
    let jobs: Vec<JobStub> = connection.get_json(&format!("/v1/jobs?prefix={prefix}")).await?;
    let groups = jobs.iter().flat_map(|job| job.job_summary.summary.values());
    Ok(groups.fold((0, 0), |(placed, running), group| {
        (placed + group.running + group.starting, running + group.running)
    }))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Evaluation {
    #[serde(rename = "JobID")]
    job_id: String,
    status: String,
    create_time: u64,
    modify_time: u64,
}

async fn describe(
    arguments: &ScheduleArgs,
    cluster: &Cluster,
    prefix: &str,
    times: &Times,
    report: &mut Report,
) -> anyhow::Result<()> {
    let wanted = u64::from(arguments.jobs) * u64::from(arguments.count);
    let what = format!(
        "{} jobs × {} = {wanted} allocations on {} nodes",
        arguments.jobs, arguments.count, arguments.nodes
    );
    report.add("scheduled", what.clone(), what);
    let mut connection = Connection::open(&cluster.leader().http).await?;
    let evaluations: Vec<Evaluation> = connection.get_json("/v1/evaluations").await?;
    let mut latencies = Latencies::default();
    let (mut first, mut last) = (u64::MAX, 0);
    for evaluation in evaluations.iter().filter(|one| one.job_id.starts_with(prefix)) {
        first = first.min(evaluation.create_time);
        if evaluation.status == "complete" {
            last = last.max(evaluation.modify_time);
            let took = evaluation.modify_time.saturating_sub(evaluation.create_time);
            latencies.add(Duration::from_nanos(took));
        }
    }
    if times.placed.is_some() {
        let span = Duration::from_nanos(last.saturating_sub(first)).as_secs_f64();
        report.add("last plan applied after", format!("{span:.2} s (log time)"), span);
        let per_second = rate(wanted, span);
        report.add("placements per second", format!("{per_second:.0}"), per_second);
        let jobs_per_second = rate(u64::from(arguments.jobs), span);
        report.add("jobs per second", format!("{jobs_per_second:.0}"), jobs_per_second);
    }
    report.add("evaluations", latencies.shown(), latencies.json());
    for (name, time) in [
        ("all registered after", times.registered),
        ("all placed seen after", times.placed),
        ("all running after", times.running),
        ("disk caught up after", times.on_disk),
    ] {
        let shown =
            time.map_or("not reached".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
        report.add(name, shown, time.map_or(Value::Null, |time| time.as_secs_f64().into()));
    }
    Ok(())
}

/// Growth of each server's memory per allocation.
fn describe_memory(
    arguments: &ScheduleArgs,
    before: &[Gauges],
    after: &[Gauges],
    report: &mut Report,
) {
    let wanted = f64::from(arguments.jobs) * f64::from(arguments.count);
    let growth: Vec<f64> = before
        .iter()
        .zip(after)
        .map(|(before, after)| {
            let grown =
                after.value("process.resident_bytes") - before.value("process.resident_bytes");
            (grown / wanted).round()
        })
        .collect();
    let shown: Vec<String> = growth.iter().map(|bytes| format!("{bytes:.0}")).collect();
    let shown = format!("{} bytes on each server", shown.join(", "));
    report.add("resident growth per allocation", shown, growth);
}
