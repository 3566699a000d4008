//! `bench writes`: compare-and-set registrations of a parameterized job with 256 bytes of meta. A
//! run has jobs of its own, so that the expected index of each is known; every acknowledged write
//! must have been based on the one before it, and a sample is read back on every server.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::Context as _;
use fsm::{
    Command, EvaluationId, Index, JobKey, Rejection, Reply, Text,
    job::{DeregisterJob, JobSpec, RegisterJob},
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Progress, Report,
    arguments::WritesArgs,
    cluster::{self, Cluster, Operations},
    fsync::{self, Baseline},
    http::Connection,
    load::{self, Lanes, Outcome, Work, drive, fresh_id},
    measure::{Window, milliseconds, rate},
};

/// Bytes of meta in each job.
const META_BYTES: usize = 256;
/// Jobs that are read back on every server.
const SAMPLE: usize = 100;
/// Jobs that are purged afterwards on lanes of this many.
const CLEAN_IN_FLIGHT: u32 = 512;

/// The job of a bench write.
pub(super) fn template() -> anyhow::Result<JobSpec> {
    let job = json!({
        "ID": "bench",
        "Name": "bench",
        "Type": "batch",
        "ParameterizedJob": { "Payload": "forbidden" },
        "Meta": { "payload": "" },
        "TaskGroups": [{
            "Name": "g",
            "Tasks": [{ "Name": "t", "Driver": "mock", "Config": {} }],
        }],
    });
    spec_of(&job)
}

/// A job as the servers take it.
pub(super) fn spec_of(job: &serde_json::Value) -> anyhow::Result<JobSpec> {
    match jobspec::to_spec(job) {
        Ok(conversion) => Ok(conversion.spec),
        Err(errors) => {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::bail!("the job of the benchmark is not valid: {}", texts.join("; "))
        }
    }
}

/// Registrations of one lane's jobs, each based on the last.
pub(super) struct Registrations {
    template: JobSpec,
    prefix: String,
    /// Number of the lane; part of the jobs' names.
    lane: usize,
    /// Jobs by number with the index they are at; 0: not there yet.
    jobs: Vec<(Text, Index)>,
    idle: VecDeque<usize>,
    /// Every write is a new job.
    unique: bool,
    written: u64,
    /// Writes that may still be sent.
    left: u64,
    /// Writes that found another index than the one of the last acknowledged write.
    pub(super) conflicts: u64,
    /// Writes of unknown outcome, after which another index is no surprise.
    unknown: u64,
}

impl Registrations {
    /// Deals `keys` jobs out to `lanes` lanes; none: each write is a new job.
    pub(super) fn deal(keys: u32, lanes: usize) -> anyhow::Result<Vec<Self>> {
        let template = template()?;
        let run = fsm::EvaluationId(ground::rt::random_id()).to_string();
        let prefix = format!("bench-{}", &run[..8]);
        let each = |lane: usize| {
            let names = (lane..keys as usize).step_by(lanes);
            let jobs: Vec<(Text, Index)> =
                names.map(|number| (Text::from(format!("{prefix}-{number}")), 0)).collect();
            Self {
                template: template.clone(),
                prefix: prefix.clone(),
                lane,
                idle: (0..jobs.len()).collect(),
                left: jobs.len() as u64,
                jobs,
                unique: keys == 0,
                written: 0,
                conflicts: 0,
                unknown: 0,
            }
        };
        Ok((0..lanes).map(each).collect())
    }

    /// No more bound on the number of writes.
    fn go_on(&mut self) {
        self.left = u64::MAX;
    }

    /// Names of all jobs that may be registered.
    pub(super) fn names(&self) -> impl Iterator<Item = &Text> {
        self.jobs.iter().map(|(name, _)| name)
    }

    fn acknowledged(&self) -> impl DoubleEndedIterator<Item = &(Text, Index)> {
        self.jobs.iter().filter(|(_, index)| *index > 0)
    }

    fn command(&mut self, number: usize) -> Command {
        let (name, index) = self.jobs[number].clone();
        let mut spec = self.template.clone();
        spec.key = JobKey { namespace: spec.key.namespace, id: name };
        self.written += 1;
        // Another text each time: registering the same spec again changes nothing.
        let payload = format!("{:x>width$}", self.written, width = META_BYTES);
        spec.meta = [(Text::from("payload"), Text::from(payload))].into();
        Command::from(RegisterJob {
            enforce_index: Some(index),
            ..RegisterJob::new(Arc::new(spec), EvaluationId(fresh_id()))
        })
    }
}

impl Work for Registrations {
    fn next(&mut self) -> Option<(u64, Command)> {
        self.left = self.left.checked_sub(1)?;
        if self.unique {
            let name = format!("{}-{}-{}", self.prefix, self.lane, self.jobs.len());
            self.jobs.push((Text::from(name), 0));
            self.idle.push_back(self.jobs.len() - 1);
        }
        let number = self.idle.pop_front()?;
        Some((number as u64, self.command(number)))
    }

    fn done(&mut self, number: u64, outcome: Outcome) {
        let Ok(number) = usize::try_from(number) else { return };
        match outcome {
            Outcome::Applied(Reply::Job { job_modify_index, .. }) => {
                self.jobs[number].1 = job_modify_index;
            }
            Outcome::Applied(Reply::Rejected(Rejection::JobIndexConflict { found, .. })) => {
                self.conflicts += 1;
                self.jobs[number].1 = match found {
                    fsm::command::IndexConflict::Other(index) => index,
                    fsm::command::IndexConflict::Missing => 0,
                    // The answer to a wrong index says which one is right.
                    fsm::command::IndexConflict::Exists => Index::MAX,
                };
            }
            Outcome::Applied(_) | Outcome::Failed(_) => self.unknown += 1,
        }
        if !self.unique {
            self.idle.push_back(number);
        }
    }
}

/// A connection per lane, to the asked servers in turn.
pub(super) async fn lanes(
    addresses: &[&str],
    count: u32,
    in_flight: u32,
    unary: bool,
) -> anyhow::Result<Lanes> {
    let mut channels = Vec::new();
    for number in 0..count as usize {
        channels.push(cluster::channel(addresses[number % addresses.len()]).await?);
    }
    Ok(Lanes { channels, in_flight, unary })
}

/// Purges jobs.
pub(super) async fn clean(
    cluster: &Cluster,
    names: impl Iterator<Item = Text>,
) -> anyhow::Result<()> {
    let lanes = lanes(&[&cluster.leader().rpc], 2, CLEAN_IN_FLIGHT, false).await?;
    let commands = names.map(|name| {
        Command::from(DeregisterJob {
            job: JobKey { namespace: Text::from("default"), id: name },
            purge: true,
            evaluation: EvaluationId(fresh_id()),
            evaluation_priority: None,
            no_shutdown_delay: false,
        })
    });
    load::send_all(&lanes, commands).await.map(drop)
}

pub(super) async fn run(
    arguments: &WritesArgs,
    cluster: &Cluster,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let asked = cluster.asked(arguments.ask)?;
    let addresses: Vec<&str> = asked.iter().map(|server| &*server.rpc).collect();
    let streams = arguments.streams.min(arguments.in_flight);
    let lanes = lanes(&addresses, streams, arguments.in_flight, arguments.unary).await?;
    let mut works = Registrations::deal(arguments.keys, lanes.channels.len())?;
    if arguments.keys > 0 {
        progress(&format!("registering {} jobs", arguments.keys));
        let (registered, tally) = drive(&lanes, works, Window::open()).await?;
        let why = tally.failure.unwrap_or_default();
        anyhow::ensure!(tally.failed == 0, "{} registrations failed: {why}", tally.failed);
        works = registered;
    }
    works.iter_mut().for_each(Registrations::go_on);
    let baseline_time = Duration::from_secs(arguments.seconds.clamp(4, 10));
    let mut baseline = baseline_of(arguments, baseline_time, progress).await?;
    progress(&format!("{} s of warm-up, {} s of writes", arguments.warm_up, arguments.seconds));
    let window = Window::after(arguments.warm_up, arguments.seconds);
    let ((works, tally), (before, after)) =
        tokio::try_join!(drive(&lanes, works, window), gauges_around(cluster, window))?;
    if let (Some(first), Some(second)) =
        (&mut baseline, baseline_of(arguments, baseline_time, progress).await?)
    {
        first.merge(&second);
    }
    let mut report = Report::default();
    describe(arguments, &mut report, &asked, &tally, &window);
    let conflicts: u64 = works.iter().map(|work| work.conflicts).sum();
    let unknown: u64 = works.iter().map(|work| work.unknown).sum();
    report.add("conflicts", conflicts.to_string(), conflicts);
    if tally.acknowledged == 0 {
        report.problems.push("not one write was acknowledged".to_owned());
    }
    if conflicts > unknown {
        let problem = format!("{conflicts} conflicts with {unknown} writes of unknown outcome");
        report.problems.push(problem);
    }
    if let Some(baseline) = &baseline {
        compare(&mut report, &tally, baseline);
    }
    let done = Operations::writes(tally.acknowledged);
    cluster.describe(&before, &after, &done, &mut report);
    read_back(cluster, &works, &mut report).await?;
    if !arguments.cluster.keep && !arguments.cluster.up {
        progress("purging the jobs");
        let names = works.iter().flat_map(|work| work.names().cloned()).collect::<Vec<_>>();
        clean(cluster, names.into_iter()).await?;
    }
    Ok(report)
}

fn describe(
    arguments: &WritesArgs,
    report: &mut Report,
    asked: &[&cluster::Server],
    tally: &load::Tally,
    window: &Window,
) {
    let how = if arguments.unary { "unary calls" } else { "the batch stream" };
    let keys = match arguments.keys {
        0 => "unique jobs".to_owned(),
        keys => format!("{keys} jobs"),
    };
    let asked: Vec<&str> = asked.iter().map(|server| &*server.name).collect();
    let what = format!(
        "{keys}, {} in flight over {how}, {} connections to {}, {} s",
        arguments.in_flight,
        arguments.streams.min(arguments.in_flight),
        asked.join(" "),
        arguments.seconds
    );
    report.add("writes", what.clone(), what);
    let per_second = rate(tally.acknowledged, window.seconds());
    report.add("writes per second", format!("{per_second:.0}"), per_second);
    report.add("latency", tally.latencies.shown(), tally.latencies.json());
    let failure = tally.failure.as_ref().map_or_else(String::new, |text| format!(" ({text})"));
    report.add("errors", format!("{}{failure}", tally.failed), tally.failed);
}

async fn baseline_of(
    arguments: &WritesArgs,
    time: Duration,
    progress: Progress<'_>,
) -> anyhow::Result<Option<Baseline>> {
    let Some(directory) = &arguments.fsync_baseline else { return Ok(None) };
    progress("measuring append + fdatasync");
    let measured = fsync::measure(directory.clone(), time).await;
    measured.map(Some).with_context(|| format!("append + fdatasync in {}", directory.display()))
}

fn compare(report: &mut Report, tally: &load::Tally, baseline: &Baseline) {
    report.add("append, fdatasync", baseline.append.shown(), baseline.append.json());
    report.add("fdatasync in a filled file", baseline.filled.shown(), baseline.filled.json());
    let ratio = |base: Duration| {
        let base = base.as_secs_f64();
        if base > 0.0 { tally.latencies.quantile(500).as_secs_f64() / base } else { 0.0 }
    };
    let (append, filled) = (baseline.append.quantile(500), baseline.filled.quantile(500));
    let shown = format!(
        "{:.2} × append + fdatasync ({}), {:.2} × the same in a filled file ({})",
        ratio(append),
        milliseconds(append),
        ratio(filled),
        milliseconds(filled)
    );
    let value = json!({ "append": ratio(append), "filled": ratio(filled) });
    report.add("p50 against the disk", shown, value);
}

/// What the servers say at the window's begin and end.
pub(super) async fn gauges_around(
    cluster: &Cluster,
    window: Window,
) -> anyhow::Result<(Vec<cluster::Gauges>, Vec<cluster::Gauges>)> {
    tokio::time::sleep_until(window.begin.into()).await;
    let before = cluster.gauges().await?;
    tokio::time::sleep_until(window.end.into()).await;
    Ok((before, cluster.gauges().await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JobAnswer {
    job_modify_index: Index,
}

/// Reads the last written jobs on every server.
async fn read_back(
    cluster: &Cluster,
    works: &[Registrations],
    report: &mut Report,
) -> anyhow::Result<()> {
    let each = SAMPLE.div_ceil(works.len().max(1));
    let sample: Vec<&(Text, Index)> =
        works.iter().flat_map(|work| work.acknowledged().rev().take(each)).collect();
    for server in &cluster.servers {
        let mut connection = Connection::open(&server.http).await?;
        for (name, index) in &sample {
            let job: JobAnswer = connection.get_json(&format!("/v1/job/{name}")).await?;
            // A write of unknown outcome may have come later than the last acknowledged one.
            let unknown = works.iter().any(|work| work.unknown > 0);
            if job.job_modify_index != *index && !(unknown && job.job_modify_index > *index) {
                report.problems.push(format!(
                    "{} has {name} at index {}, acknowledged was {index}",
                    server.name, job.job_modify_index
                ));
            }
        }
    }
    let shown = format!("{} jobs on each of {} servers", sample.len(), cluster.servers.len());
    report.add("read back", shown, sample.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use fsm::command::JobCommand;

    fn enforced(command: &Command) -> (Text, Option<Index>) {
        let Command::Job(JobCommand::RegisterJob(RegisterJob { spec, enforce_index, .. })) =
            command
        else {
            panic!("{command:?} is no registration")
        };
        assert_eq!(spec.meta.values().map(|text| text.len()).sum::<usize>(), META_BYTES);
        assert!(spec.parameterized.is_some());
        (spec.key.id.clone(), *enforce_index)
    }

    #[test]
    fn each_write_is_based_on_the_one_before() {
        let mut works = Registrations::deal(3, 2).unwrap();
        let work = &mut works[0];
        assert_eq!(work.names().count(), 2);
        let (first, command) = work.next().unwrap();
        let (name, index) = enforced(&command);
        assert_eq!(index, Some(0));
        let reply = |job_modify_index| {
            Outcome::Applied(Reply::Job { evaluation: None, job_modify_index, found: true })
        };
        work.done(first, reply(17));
        let (second, _) = work.next().unwrap();
        assert_ne!(first, second, "the other job comes first");
        assert!(work.next().is_none(), "the first pass writes each job once");
        work.done(second, reply(18));
        work.go_on();
        let (number, command) = work.next().unwrap();
        assert_eq!((number, enforced(&command)), (first, (name, Some(17))));
    }

    #[test]
    fn unique_writes_never_use_a_name_twice() {
        let mut works = Registrations::deal(0, 2).unwrap();
        let mut names = std::collections::BTreeSet::new();
        for work in &mut works {
            work.go_on();
            for _ in 0..10 {
                let (_, command) = work.next().unwrap();
                assert!(names.insert(enforced(&command).0));
            }
        }
    }
}
