//! `bench dispatch`: single dispatches of a parameterized job while it has few children, and again
//! when very many of them are over; and what a page of their list takes.
//!
//! Nothing of either may grow with the number of children. They are real ones: each is placed, runs
//! on a simulated node, and ends.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use fsm::EvaluationId;
use serde_json::{Value, json};

use super::{
    Progress, Report,
    arguments::DispatchArgs,
    cluster::{Cluster, Operations},
    http::Connection,
    measure::{Latencies, rate},
    schedule,
};

/// Dispatches in one call.
const BATCH: u32 = 1_000;
/// Children that are under way while many are made; a queue that is too long only takes memory.
const UNDER_WAY_MAX: u64 = 5_000;
/// Rows of a page.
const PAGE: usize = 100;
/// Looks at each page.
const LOOKS: u32 = 50;
const POLL: Duration = Duration::from_millis(100);

/// The job under measurement, as the leader shows it.
struct Parent<'a> {
    id: String,
    leader: Connection,
    arguments: &'a DispatchArgs,
    begin: Instant,
}

pub(super) async fn run(
    arguments: &DispatchArgs,
    cluster: &Cluster,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let run = EvaluationId(ground::rt::random_id()).to_string();
    let _nodes = schedule::nodes(arguments.nodes, cluster, progress).await?;
    let leader = Connection::open(&cluster.leader().http).await?;
    let id = format!("bench-{}", &run[..8]);
    let mut parent = Parent { id, leader, arguments, begin: Instant::now() };
    let _: Value = parent.leader.put_json("/v1/jobs", &json!({ "Job": job(&parent.id) })).await?;
    let mut report = Report::default();
    let before = cluster.gauges().await?;
    let singles = u64::from(arguments.singles);
    // Connections and caches are warm in both measurements.
    parent.dispatch_each().await?;
    parent.await_over(singles).await?;
    let few = parent.measure("with few children", &mut report).await?;
    parent.await_over(2 * singles).await?;
    parent.dispatch_many(&mut report, progress).await?;
    let over = over_before_last(arguments);
    let many = parent.measure(&format!("with {over} children over"), &mut report).await?;
    parent.await_over(over + singles).await?;
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let ratio = many.as_micros() as f64 / few.as_micros().max(1) as f64;
    report.add("ratio of the medians", format!("{ratio:.2}"), ratio);
    progress("reading all pages");
    parent.read_all_pages(over + singles, &mut report).await?;
    let after = cluster.gauges().await?;
    cluster.describe(&before, &after, &operations(arguments), &mut report);
    if !arguments.cluster.keep && !arguments.cluster.up {
        progress("purging the jobs");
        let path = format!("/v1/job/{}?purge=true&children=true", parent.id);
        parent.leader.delete(&path).await?;
    }
    Ok(report)
}

/// The children that are over when the last singles begin.
pub(super) fn over_before_last(arguments: &DispatchArgs) -> u64 {
    2 * u64::from(arguments.singles) + u64::from(arguments.children)
}

/// Each is dispatched, placed, runs and ends. What the pages of their list take is in it too.
pub(super) fn operations(arguments: &DispatchArgs) -> Operations {
    Operations::dispatches(over_before_last(arguments) + u64::from(arguments.singles))
}

fn job(id: &str) -> Value {
    json!({
        "ID": id,
        "Name": id,
        "Type": "batch",
        "Datacenters": ["*"],
        "ParameterizedJob": {},
        "TaskGroups": [{
            "Name": "g",
            "EphemeralDisk": { "SizeMB": 10 },
            "Tasks": [{
                "Name": "t",
                "Driver": "mock",
                "Config": { "run_for": "10ms" },
                "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
                "Resources": { "CPU": 10, "MemoryMB": 10 },
            }],
        }],
    })
}

impl Parent<'_> {
    /// Single dispatches, one after the other.
    async fn dispatch_each(&mut self) -> anyhow::Result<Latencies> {
        let path = format!("/v1/job/{}/dispatch", self.id);
        let mut latencies = Latencies::default();
        for _ in 0..self.arguments.singles {
            let begun = Instant::now();
            let _: Value = self.leader.put_json(&path, &json!({ "Payload": "aGVsbG8=" })).await?;
            latencies.add(begun.elapsed());
        }
        Ok(latencies)
    }

    /// Measures dispatches and pages; the median of the dispatches.
    async fn measure(&mut self, when: &str, report: &mut Report) -> anyhow::Result<Duration> {
        let latencies = self.dispatch_each().await?;
        report.add(&format!("dispatch {when}"), latencies.shown(), latencies.json());
        for (page, order) in [("first page", ""), ("last page", "&reverse=true")] {
            let path = format!("/v1/jobs?prefix={}/dispatch-&per_page={PAGE}{order}", self.id);
            let mut latencies = Latencies::default();
            for _ in 0..LOOKS {
                let begun = Instant::now();
                let rows: Vec<Value> = self.leader.get_json(&path).await?;
                latencies.add(begun.elapsed());
                ensure!(rows.len() == PAGE, "a page has {} rows", rows.len());
            }
            report.add(&format!("{page} {when}"), latencies.shown(), latencies.json());
        }
        Ok(latencies.quantile(500))
    }

    /// Makes children by batches, and waits until they are over.
    async fn dispatch_many(
        &mut self,
        report: &mut Report,
        progress: Progress<'_>,
    ) -> anyhow::Result<()> {
        let path = format!("/v1/job/{}/dispatch/batch", self.id);
        let (begin, mut told) = (Instant::now(), Instant::now());
        let (mut left, mut made) = (self.arguments.children, 2 * u64::from(self.arguments.singles));
        while left > 0 {
            let count = left.min(BATCH);
            let dispatches = vec![json!({ "Payload": "aGVsbG8=" }); count as usize];
            let answer: Value =
                self.leader.put_json(&path, &json!({ "Dispatches": dispatches })).await?;
            let answers = answer["Dispatched"].as_array().map_or(&[][..], Vec::as_slice);
            if let Some(refused) = answers.iter().find(|answer| answer["Error"] != "") {
                bail!("a dispatch was refused: {refused}");
            }
            left -= count;
            made += u64::from(count);
            if told.elapsed() > Duration::from_secs(5) {
                progress(&format!("{left} of {} to be dispatched", self.arguments.children));
                told = Instant::now();
            }
            self.await_over(made.saturating_sub(UNDER_WAY_MAX)).await?;
        }
        self.await_over(made).await?;
        let seconds = begin.elapsed().as_secs_f64();
        let per_second = rate(u64::from(self.arguments.children), seconds);
        let shown = format!("{} in {seconds:.1} s, {per_second:.0}/s", self.arguments.children);
        report.add("children made and over", shown, per_second);
        Ok(())
    }

    /// Waits until so many children are over.
    async fn await_over(&mut self, count: u64) -> anyhow::Result<()> {
        let path = format!("/v1/job/{}/summary", self.id);
        loop {
            let summary: Value = self.leader.get_json(&path).await?;
            if summary["Children"]["Dead"].as_u64().is_some_and(|dead| dead >= count) {
                return Ok(());
            }
            if self.begin.elapsed() > Duration::from_secs(self.arguments.timeout) {
                let counts = &summary["Children"];
                bail!(
                    "{count} children were not over after {} s: {counts}",
                    self.arguments.timeout
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Reads the whole list by pages: it has every child once.
    async fn read_all_pages(&mut self, count: u64, report: &mut Report) -> anyhow::Result<()> {
        let begin = Instant::now();
        let (mut last, mut read, mut pages) = (String::new(), 0u64, 0u64);
        loop {
            // The token of a page is the id of its first row.
            let path =
                format!("/v1/jobs?prefix={}/dispatch-&per_page={PAGE}&next_token={last}", self.id);
            let rows: Vec<Value> = self.leader.get_json(&path).await?;
            pages += 1;
            let is_last = rows.len() < PAGE;
            // A page begins with the row that ended the one before.
            read += rows.len() as u64 - u64::from(pages > 1);
            match rows.last().and_then(|row| row["ID"].as_str()) {
                Some(id) if !is_last => last = format!("default.{id}"),
                Some(_) | None => break,
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let shown = format!("{read} children in {pages} pages, {seconds:.1} s");
        report.add("whole list", shown, seconds);
        if read != count {
            let problem = format!("{read} of {count} children are listed: see gc.children_max");
            report.problems.push(problem);
        }
        Ok(())
    }
}
