//! `bench reads`: linearizable GETs of bench jobs over kept HTTP connections, or read indexes of
//! the leader over gRPC.

use std::time::Instant;

use anyhow::Context as _;
use fsm::Text;
use proto::v1 as pb;

use super::{
    Progress, Report,
    arguments::ReadsArgs,
    cluster::{self, Cluster, Operations},
    http::Connection,
    load::drive,
    measure::{Latencies, Window, rate},
    writes::{self, Registrations, gauges_around},
};

/// Lanes and writes under way while the jobs are registered.
const PREPARE: (u32, u32) = (2, 512);

#[derive(Default)]
struct Found {
    latencies: Latencies,
    failed: u64,
    failure: Option<String>,
}

impl Found {
    fn note(&mut self, window: &Window, begun: Instant, result: Result<(), String>) {
        let now = Instant::now();
        match result {
            Ok(()) if window.contains(now) => self.latencies.add(now - begun),
            Ok(()) => {}
            Err(error) => {
                self.failed += 1;
                self.failure.get_or_insert(error);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.latencies.merge(&other.latencies);
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }
}

pub(super) async fn run(
    arguments: &ReadsArgs,
    cluster: &Cluster,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let mut names: Vec<Text> = Vec::new();
    if !arguments.read_index {
        progress(&format!("registering {} jobs", arguments.keys));
        let (streams, in_flight) = PREPARE;
        let lanes = writes::lanes(&[&cluster.leader().rpc], streams, in_flight, false).await?;
        let works = Registrations::deal(arguments.keys, lanes.channels.len())?;
        let (works, tally) = drive(&lanes, works, Window::open()).await?;
        anyhow::ensure!(tally.failed == 0, "registering failed: {:?}", tally.failure);
        names = works.iter().flat_map(|work| work.names().cloned()).collect();
    }
    progress(&format!("{} s of warm-up, {} s of reads", arguments.warm_up, arguments.seconds));
    let window = Window::after(arguments.warm_up, arguments.seconds);
    let reading = async {
        if arguments.read_index {
            read_indexes(arguments, cluster, window).await
        } else {
            read_jobs(arguments, cluster, &names, window).await
        }
    };
    let (found, (before, after)) = tokio::try_join!(reading, gauges_around(cluster, window))?;
    let mut report = Report::default();
    describe(arguments, cluster, &found, &window, &mut report)?;
    let done = Operations::reads(found.latencies.count());
    cluster.describe(&before, &after, &done, &mut report);
    if !arguments.cluster.keep && !arguments.cluster.up {
        writes::clean(cluster, names.into_iter()).await?;
    }
    Ok(report)
}

fn describe(
    arguments: &ReadsArgs,
    cluster: &Cluster,
    found: &Found,
    window: &Window,
    report: &mut Report,
) -> anyhow::Result<()> {
    let asked: Vec<&str> =
        cluster.asked(arguments.ask)?.iter().map(|server| &*server.name).collect();
    let what = match (arguments.read_index, arguments.stale) {
        (true, _) => "ReadIndex calls to the leader".to_owned(),
        (false, true) => format!("stale GETs on {}", asked.join(" ")),
        (false, false) => format!("linearizable GETs on {}", asked.join(" ")),
    };
    let what = format!("{what}, {} in flight, {} s", arguments.in_flight, arguments.seconds);
    report.add("reads", what.clone(), what);
    let per_second = rate(found.latencies.count(), window.seconds());
    report.add("reads per second", format!("{per_second:.0}"), per_second);
    report.add("latency", found.latencies.shown(), found.latencies.json());
    let failure = found.failure.as_ref().map_or_else(String::new, |text| format!(" ({text})"));
    report.add("errors", format!("{}{failure}", found.failed), found.failed);
    if found.latencies.count() == 0 {
        report.problems.push("not one read was answered".to_owned());
    }
    Ok(())
}

async fn read_jobs(
    arguments: &ReadsArgs,
    cluster: &Cluster,
    names: &[Text],
    window: Window,
) -> anyhow::Result<Found> {
    let asked = cluster.asked(arguments.ask)?;
    let query = if arguments.stale { "?stale" } else { "" };
    let mut readers = Vec::new();
    for number in 0..arguments.in_flight as usize {
        let address = &asked[number % asked.len()].http;
        let mut connection =
            Connection::open(address).await.with_context(|| format!("connection to {address}"))?;
        // Each reader goes through all jobs from a place of its own so that they do not follow each
        // other.
        let first = names.len() * number / arguments.in_flight as usize;
        let names: Vec<Text> = names[first..].iter().chain(&names[..first]).cloned().collect();
        readers.push(tokio::spawn(async move {
            let mut found = Found::default();
            let mut path = String::new();
            for name in names.iter().cycle() {
                let begun = Instant::now();
                if begun >= window.end {
                    break;
                }
                path.clear();
                path.push_str("/v1/job/");
                path.push_str(name);
                path.push_str(query);
                let result = match connection.get(&path).await {
                    Ok((200, body)) if contains(body, name.as_bytes()) => Ok(()),
                    Ok((status, body)) => {
                        Err(format!("HTTP {status}: {}", String::from_utf8_lossy(body)))
                    }
                    Err(error) => Err(error.to_string()),
                };
                let broken = result.is_err();
                found.note(&window, begun, result);
                if broken && found.failed > 100 {
                    break;
                }
            }
            found
        }));
    }
    let mut found = Found::default();
    for reader in readers {
        found.merge(reader.await?);
    }
    Ok(found)
}

fn contains(body: &[u8], name: &[u8]) -> bool {
    body.windows(name.len()).any(|window| window == name)
}

async fn read_indexes(
    arguments: &ReadsArgs,
    cluster: &Cluster,
    window: Window,
) -> anyhow::Result<Found> {
    let channel = cluster::channel(&cluster.leader().rpc).await?;
    let mut callers = Vec::new();
    for _ in 0..arguments.in_flight {
        let mut client = cluster::client(channel.clone());
        callers.push(tokio::spawn(async move {
            let mut found = Found::default();
            while Instant::now() < window.end && found.failed < 100 {
                let begun = Instant::now();
                let reply = client.read_index(pb::ReadIndexRequest { from: 0 }).await;
                found.note(&window, begun, reply.map(drop).map_err(|status| status.to_string()));
            }
            found
        }));
    }
    let mut found = Found::default();
    for caller in callers {
        found.merge(caller.await?);
    }
    Ok(found)
}
