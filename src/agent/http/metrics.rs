//! `/v1/metrics` of an agent: what its machine has and uses, under the names of Nomad's client, in the forms of `src/metrics.rs`.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::Value;

use super::{Files, HttpError, query::Parameters, statistics};
use crate::{
    agent::time::wall_ms,
    metrics::{PROMETHEUS, exposition, number, summary},
};

/// Names, and where `/v1/client/stats` has their values.
const OF_MACHINE: [(&str, &str); 11] = [
    ("allocations.running", "/Allocations/Live"),
    ("allocations.known", "/Allocations/Known"),
    ("host.cpu.total_ticks", "/CPUTicksConsumed"),
    ("host.memory.total", "/Memory/Total"),
    ("host.memory.available", "/Memory/Available"),
    ("host.memory.used", "/Memory/Used"),
    ("host.memory.free", "/Memory/Free"),
    ("host.disk.size", "/AllocDirStats/Size"),
    ("host.disk.used", "/AllocDirStats/Used"),
    ("host.disk.available", "/AllocDirStats/Available"),
    ("uptime", "/Uptime"),
];
/// The same of each processor.
const OF_CORE: [(&str, &str); 4] =
    [("total_percent", "TotalPercent"), ("idle", "Idle"), ("user", "User"), ("system", "System")];

pub(super) async fn metrics(
    State(files): State<Files>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let format = query.text("format");
    if !matches!(format, "" | "prometheus") {
        let text = format!("format must be prometheus or absent, not `{format}`");
        return Err(HttpError::BadRequest(text));
    }
    let (node, name) = (files.own.node, files.own.name.clone());
    let tasks = [
        ("running", files.node.running_tasks()),
        ("max_run_duration_exceeded", files.node.tasks_too_long()),
    ];
    let Json(stats) = statistics::of_machine(State(files)).await?;
    let labels = format!("node_id={node},host={name}");
    let mut metrics = gauges(&stats, &labels);
    metrics
        .extend(tasks.map(|(what, count)| {
            (format!("nomad.client.tasks.{what}{{{labels}}}"), number(count))
        }));
    let samples = BTreeMap::new();
    if format.is_empty() {
        return Ok(Json(summary(&metrics, &samples, wall_ms())).into_response());
    }
    Ok(([(header::CONTENT_TYPE, PROMETHEUS)], exposition(&metrics, &samples)).into_response())
}

/// The numbers of a machine, by name and labels.
fn gauges(stats: &Value, labels: &str) -> BTreeMap<String, f64> {
    let of_machine = OF_MACHINE.iter().filter_map(|(name, place)| {
        let value = stats.pointer(place)?.as_f64()?;
        Some((format!("nomad.client.{name}{{{labels}}}"), value))
    });
    let cores = stats["CPU"].as_array().into_iter().flatten();
    let of_cores = cores.flat_map(|core| {
        OF_CORE.iter().filter_map(move |(name, field)| {
            let cpu = core["CPU"].as_str()?;
            let key = format!("nomad.client.host.cpu.{name}{{{labels},cpu={cpu}}}");
            Some((key, core[field].as_f64()?))
        })
    });
    of_machine.chain(of_cores).collect()
}
