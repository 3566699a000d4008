//! `/v1/system/…` and `/v1/metrics`.

use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    http::StatusCode,
    routing::{get, put},
};
use serde_json::{Value, json};

use leader::GarbageCollector;

use super::{Context, answer::Answer, call::Call, error::Error, time};
use crate::api::Sample;

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/metrics", get(metrics))
        .route("/v1/system/gc", put(collect_garbage).post(collect_garbage))
        .route("/v1/system/reconcile/summaries", put(reconcile).post(reconcile))
}

async fn metrics(call: Call) -> Result<Answer, Error> {
    let (gauges, samples) = (call.api.gauges(), call.api.samples());
    match call.parameter("format").unwrap_or("") {
        "prometheus" => {
            let mut text = String::new();
            for (name, value) in &gauges {
                let (help, name) = (help_of(name), prometheus_name(name));
                writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}")
                    .map_err(|error| Error::internal(error.to_string()))?;
            }
            for (name, sample) in &samples {
                prometheus_histogram(&mut text, &format!("{name}_seconds"), sample)
                    .map_err(|error| Error::internal(error.to_string()))?;
            }
            Ok(Answer {
                status: StatusCode::OK,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                body: text.into(),
                meta: None,
            })
        }
        "" => {
            let gauges: Vec<Value> = gauges
                .iter()
                .map(|(name, value)| json!({ "Name": name, "Value": value, "Labels": {} }))
                .collect();
            let answer = json!({
                "Timestamp": time::rfc3339(wall_clock_ms()),
                "Gauges": gauges,
                "Points": [],
                "Counters": [],
                "Samples": samples.iter().map(sample_ms).collect::<Vec<_>>(),
            });
            call.answer(&answer, None)
        }
        other => Err(Error::bad(format!("format must be prometheus or absent, not `{other}`"))),
    }
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

/// A sample in milliseconds, as Nomad's are, with quantiles beside the mean.
fn sample_ms((name, sample): (&String, &Sample)) -> Value {
    let count = sample.count();
    json!({
        "Name": name,
        "Labels": {},
        "Count": count,
        "Sum": ms(sample.sum_us),
        "Mean": mean_ms(sample),
        "Max": ms(sample.max_us),
        "P50": ms(sample.quantile_us(50)),
        "P99": ms(sample.quantile_us(99)),
    })
}

/// A histogram in the text format: buckets add up, and bounds are in seconds.
fn prometheus_histogram(text: &mut String, name: &str, sample: &Sample) -> std::fmt::Result {
    let (help, name) = (help_of(name), prometheus_name(name));
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram")?;
    let mut total = 0;
    let bounded = sample.buckets.len().saturating_sub(1);
    for (bound, count) in sample.buckets.iter().take(bounded) {
        total += count;
        writeln!(text, "{name}_bucket{{le=\"{}\"}} {total}", seconds(*bound))?;
    }
    let count = sample.count();
    writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}")?;
    writeln!(text, "{name}_sum {}\n{name}_count {count}", seconds(sample.sum_us))
}

/// What a family of metrics is about, by the beginning of their names; docs/operations.md has each.
const HELP: [(&str, &str); 15] = [
    ("nomad.raft.log.", "Writes of the log on disk since the start."),
    ("nomad.raft.", "Consensus: term, indexes, whether this server leads."),
    ("nomad.state.", "The state: its rows, its copy on disk."),
    ("nomad.disk.", "Whether the disk is nearly full."),
    ("nomad.worker.", "Scheduling workers of this server since the start."),
    ("nomad.nodes.changes.", "Changes of nodes since this server leads."),
    ("nomad.nodes.", "Nodes by what they are and do."),
    ("nomad.broker.", "Evaluations in the leader's broker."),
    ("nomad.blocked_evals.", "Evaluations that wait for capacity."),
    ("nomad.plan.", "Plans at the leader."),
    ("nomad.heartbeat.", "Heartbeats that the leader expects."),
    ("nomad.pools.", "Instance pools: machines, price, use."),
    ("nomad.providers.", "Calls of this server to providers of machines."),
    ("nomad.process.", "Memory and processor time of this process."),
    ("nomad.leader.", "The machines of the leader."),
];

fn help_of(name: &str) -> &'static str {
    let family = HELP.iter().find(|(beginning, _)| name.starts_with(beginning));
    family.map_or("See docs/operations.md.", |(_, help)| help)
}

/// Only shown, never decided on.
fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn prometheus_name(name: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut out: String = name.chars().map(|c| if legal(c) { c } else { '_' }).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

/// Forgets all that has ended, however short ago. The rules are judged again where the commands are applied, so this server's view will do.
async fn collect_garbage(call: Call) -> Result<Answer, Error> {
    // What a job leaves behind is free once the job is gone: the second round finds it.
    for _round in 0..2 {
        let state = call.read().await?.state;
        for command in GarbageCollector::forced(state.at(), &state) {
            call.api.write(call.caller, command, None, call.options.timeout).await?;
        }
    }
    call.answer(&Value::Null, None)
}

/// Summaries are derived from the allocations with every change: they cannot be wrong.
async fn reconcile(call: Call) -> Result<Answer, Error> {
    call.answer(&Value::Null, None)
}
