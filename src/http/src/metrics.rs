//! `/v1/metrics`: the numbers of a server, in the forms of `src/ground/src/metrics.rs`.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use fsm::{Job, right::Right};
use ground::{
    metrics::{Names, PROMETHEUS, exposition, nomad, number, summary},
    telemetry,
};
use wire::api::ReadMode;

use super::{
    answer::Answer,
    call::Call,
    error::Error,
    route::{Route, Subject},
};

/// Groups of jobs that have numbers of their own under Nomad's names.
const GROUPS_MAX: usize = 20_000;

pub(super) fn routes() -> Vec<Route> {
    vec![Route::read("/v1/metrics", Subject::Agent, Right::Nothing, metrics)]
}

async fn metrics(call: Call) -> Result<Answer, Error> {
    let names = call.parameter("names").unwrap_or("");
    let names = Names::parse(names)
        .ok_or_else(|| Error::bad(format!("names must be nomad or absent, not `{names}`")))?;
    let (mut gauges, mut samples) = (call.api.gauges(), call.api.samples());
    gauges.extend(call.requests.counts());
    samples.extend(call.requests.times());
    if let Some((sent, dropped)) = telemetry::traced() {
        gauges.insert("nomad.traces.sent".to_owned(), number(sent));
        gauges.insert("nomad.traces.dropped".to_owned(), number(dropped));
    }
    if names == Names::Nomad {
        let snapshot =
            call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await?;
        // Only the leader shows them.
        if gauges.get("nomad.raft.is_leader") == Some(&1.0) {
            gauges.extend(summaries(&snapshot.state));
        }
        gauges.extend(health(&gauges));
        gauges.extend(requests(&gauges));
        let reads = samples.iter().filter(|(name, _)| name.starts_with("nomad.http.request{"));
        let reads = reads.filter(|(name, _)| !name.contains("{kind=write"));
        let queries = reads.map(|(_, sample)| sample.count()).sum();
        gauges.insert("nomad.nomad.rpc.query".to_owned(), number(queries));
        let host = nomad::label(&call.api.this_member().name);
        (gauges, samples) = nomad::renamed(&gauges, &samples, &host);
    }
    let form = call.parameter("format").unwrap_or("");
    let body = match (form, names) {
        ("", _) => return call.answer(&summary(&gauges, &samples, names, wall_clock_ms()), None),
        ("prometheus", Names::Own) => exposition(&gauges, &samples),
        ("prometheus", Names::Nomad) => nomad::exposition(&gauges, &samples),
        (other, _) => {
            return Err(Error::bad(format!("format must be prometheus or absent, not `{other}`")));
        }
    };
    Ok(Answer::of_type(PROMETHEUS, body.into()))
}

/// Counts of instances by job and group, under Nomad's names.
fn summaries(state: &fsm::State) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let mut left_out = 0;
    for job in state.jobs().iter() {
        let index = state.job_index(&job.key);
        let counted: BTreeMap<_, _> =
            index.into_iter().flat_map(|index| index.summary_of(job.create_index)).collect();
        let groups = state.current_spec(job).into_iter().flat_map(|spec| &spec.groups);
        for group in groups {
            if all.len() >= GROUPS_MAX * 7 {
                left_out += 1;
                continue;
            }
            let counts = counted.get(&group.name).map(|counts| **counts).unwrap_or_default();
            let queued = job.queued.get(&group.name).copied().unwrap_or(counts.queued);
            let labels = labels_of(job, &group.name);
            for (what, count) in [
                ("queued", queued),
                ("starting", counts.starting),
                ("running", counts.running),
                ("failed", counts.failed),
                ("lost", counts.lost),
                ("complete", counts.complete),
                ("unknown", counts.unknown),
            ] {
                let name = format!("nomad.nomad.job_summary.{what}{{{labels}}}");
                all.insert(name, f64::from(count));
            }
        }
    }
    all.insert("nomad.nomad.job_summary.left_out".to_owned(), number(left_out));
    all
}

/// Children have their parents beside their own ids.
fn labels_of(job: &Job, group: &str) -> String {
    let id = &*job.key.id;
    let child = [("/dispatch-", "dispatch_id"), ("/periodic-", "periodic_id")];
    let child = child.into_iter().find_map(|(mark, label)| {
        let (parent, own) = id.rsplit_once(mark)?;
        let (own, parent) = (nomad::label(own), nomad::label(parent));
        Some(format!(",{label}={own},parent_id={parent}"))
    });
    let [id, namespace, group] = [id, &job.key.namespace, group].map(nomad::label);
    format!("job={id},namespace={namespace},task_group={group}{}", child.unwrap_or_default())
}

/// What Nomad's autopilot would say.
fn health(gauges: &BTreeMap<String, f64>) -> [(String, f64); 1] {
    let of = |name: &str| gauges.get(&format!("nomad.raft.{name}")).copied().unwrap_or(0.0);
    let healthy = of("has_majority") > 0.0 && of("voters_alive") >= of("voters");
    [("nomad.nomad.autopilot.healthy".to_owned(), f64::from(u8::from(healthy)))]
}

/// Requests by HTTP in the place of those between Nomad's servers.
fn requests(gauges: &BTreeMap<String, f64>) -> [(String, f64); 2] {
    let all = gauges.iter().filter(|(name, _)| name.starts_with("nomad.http.requests{"));
    let failed = |name: &str| name.contains("{code=5");
    let (mut requests, mut errors) = (0.0, 0.0);
    for (name, count) in all {
        requests += count;
        errors += if failed(name) { *count } else { 0.0 };
    }
    let name = |what: &str| format!("nomad.nomad.rpc.{what}");
    [(name("request"), requests), (name("request_error"), errors)]
}

/// Only shown, never decided on.
fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
