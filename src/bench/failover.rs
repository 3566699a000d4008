//! `bench failover`: kills the leader of temporary servers again and again, and measures the time
//! to the next committed write.
//!
//! The write is sent to a server that lives the moment after the kill, so the time has everything
//! in it: noticing, electing, the barrier of the new term and the write itself. Each write is read
//! back on every server at the end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use fsm::{Command, EvaluationId, JobKey, Reply, Text, job::RegisterJob};

use super::{
    Progress, Report,
    arguments::FailoverArgs,
    cluster::{self, Cluster},
    http::Connection,
    load::{self, Outcome, fresh_id},
    measure::{Latencies, milliseconds},
    up::TemporaryServers,
    writes,
};

/// How long the next write may take before the run is given up.
const WRITE_DEADLINE: Duration = Duration::from_mins(1);

pub(super) async fn run(
    arguments: &FailoverArgs,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let mut servers = TemporaryServers::start(arguments.up_data.as_deref(), progress)?;
    let addresses = servers.rpc_addresses().clone();
    let run = EvaluationId(ground::rt::random_id()).to_string();
    let (mut latencies, mut names, mut shown) = (Latencies::default(), Vec::new(), Vec::new());
    for number in 0..arguments.kills {
        let cluster = Cluster::connect(&addresses, &|_| ()).await?;
        let leader = cluster.leader().rpc.clone();
        let position = addresses.iter().position(|address| *address == leader);
        let position = position.context("the leader is one of the servers")?;
        let living = cluster.servers.iter().find(|server| !server.leads);
        let channel = cluster::channel(&living.context("two servers follow")?.rpc).await?;
        tokio::time::sleep(Duration::from_secs(arguments.pause)).await;

        let begin = Instant::now();
        servers.kill(position)?;
        let name = Text::from(format!("bench-{}-{number}", &run[..8]));
        loop {
            match load::write_once(&channel, registration(&name)?).await {
                Outcome::Applied(Reply::Rejected(rejection)) => bail!("refused: {rejection}"),
                Outcome::Applied(_) => break,
                Outcome::Failed(error) if begin.elapsed() > WRITE_DEADLINE => bail!("{error}"),
                Outcome::Failed(_) => {}
            }
        }
        let took = begin.elapsed();
        progress(&format!("kill {}: {} to the next write", number + 1, milliseconds(took)));
        latencies.add(took);
        shown.push(milliseconds(took));
        names.push(name);
        servers.restart(position)?;
    }
    let cluster = Cluster::connect(&addresses, progress).await?;
    let mut report = Report::default();
    let what = format!("{} kills of the leader of three servers", arguments.kills);
    report.add("failover", what.clone(), what);
    report.add("to the next committed write", latencies.shown(), latencies.json());
    report.add("each", shown.join(", "), shown);
    for server in &cluster.servers {
        let mut connection = Connection::open(&server.http).await?;
        for name in &names {
            let (status, _) = connection.get(&format!("/v1/job/{name}")).await?;
            if status != 200 {
                report.problems.push(format!("{} does not have {name}: {status}", server.name));
            }
        }
    }
    report.problems.extend(servers.death());
    Ok(report)
}

/// Without an expected index: a retry after an unknown outcome finds the job there.
fn registration(name: &Text) -> anyhow::Result<Command> {
    let mut spec = writes::template()?;
    spec.key = JobKey { namespace: spec.key.namespace, id: name.clone() };
    Ok(Command::from(RegisterJob::new(spec.into(), EvaluationId(fresh_id()))))
}
