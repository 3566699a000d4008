//! `/v1/metrics` of an agent: what its machine has and uses, under the names of Nomad's client, in
//! the forms of `src/ground/src/metrics.rs`.

use std::collections::BTreeMap;

use agent::{Room, allocation::spec::TaskSpec, node::shell::View, time::wall_ms};
use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use ground::metrics::{Names, PROMETHEUS, exposition, nomad, number, summary};
use proto::v1::{ClientStatus, TaskPhase};
use serde_json::Value;

use super::{
    Files, HttpError,
    query::Parameters,
    statistics::{self, Use},
};
use crate::serve::CalledBy;

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
/// The same of each disk, for Nomad's names.
const OF_DISK: [(&str, &str); 5] = [
    ("size", "Size"),
    ("used", "Used"),
    ("available", "Available"),
    ("used_percent", "UsedPercent"),
    ("inodes_percent", "InodesUsedPercent"),
];
/// Beginnings of what is counted anew for Nomad's names, with other labels.
const COUNTED_ANEW: [&str; 3] =
    ["nomad.client.allocations.", "nomad.client.tasks.", "nomad.client.host.disk."];

pub(super) async fn metrics(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    query: Parameters,
) -> Result<Response, HttpError> {
    tracing::trace!(%caller, "asked for the metrics of the agent");
    let format = query.text("format");
    if !matches!(format, "" | "prometheus") {
        let text = format!("format must be prometheus or absent, not `{format}`");
        return Err(HttpError::BadRequest(text));
    }
    let names = query.text("names");
    let names = Names::parse(names).ok_or_else(|| {
        HttpError::BadRequest(format!("names must be nomad or absent, not `{names}`"))
    })?;
    let host = nomad::label(&files.own.name);
    let tasks = [
        ("running", files.node.running_tasks()),
        ("max_run_duration_exceeded", files.node.tasks_too_long()),
    ];
    let labels = labels_of(&files, names);
    let stats = statistics::fares(&files).await?;
    let mut metrics = gauges(&stats, &labels);
    metrics
        .extend(tasks.map(|(what, count)| {
            (format!("nomad.client.tasks.{what}{{{labels}}}"), number(count))
        }));
    let mut samples = BTreeMap::new();
    if names == Names::Nomad {
        metrics.retain(|name, _| !COUNTED_ANEW.iter().any(|anew| name.starts_with(anew)));
        metrics.extend(disks(&stats, &labels));
        let (views, waiting) = files.node.views();
        metrics.extend(counts(&views, waiting, &labels));
        metrics.extend(room(&views, files.own.room, &labels));
        metrics.extend(usage(&files, &views, &labels).await?);
        (metrics, samples) = nomad::renamed(&metrics, &samples, &host);
    }
    if format.is_empty() {
        return Ok(Json(summary(&metrics, &samples, names, wall_ms())).into_response());
    }
    let text = match names {
        Names::Own => exposition(&metrics, &samples),
        Names::Nomad => nomad::exposition(&metrics, &samples),
    };
    Ok(([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response())
}

fn labels_of(files: &Files, names: Names) -> String {
    let own = &files.own;
    let labels = format!("node_id={},host={}", own.node, nomad::label(&own.name));
    match names {
        Names::Own => labels,
        Names::Nomad => {
            let [datacenter, class, pool] =
                [&own.datacenter, &own.node_class, &own.node_pool].map(|text| nomad::label(text));
            format!("{labels},datacenter={datacenter},node_class={class},node_pool={pool}")
        }
    }
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

fn disks(stats: &Value, labels: &str) -> BTreeMap<String, f64> {
    let disks = stats["DiskStats"].as_array().into_iter().flatten();
    let of_disks = disks.flat_map(|disk| {
        OF_DISK.iter().filter_map(move |(name, field)| {
            let device = nomad::label(disk["Device"].as_str()?);
            let key = format!("nomad.client.host.disk.{name}{{{labels},disk={device}}}");
            Some((key, disk[field].as_f64()?))
        })
    });
    of_disks.collect()
}

/// Allocations and tasks by what they do.
fn counts(views: &[View], waiting: usize, labels: &str) -> BTreeMap<String, f64> {
    let status = |view: &&View, one: ClientStatus| view.status.client_status() == one;
    let terminal = views.iter().filter(|view| view.terminal).count();
    let running = views.iter().filter(|view| status(view, ClientStatus::Running)).count();
    let pending = views.iter().filter(|view| status(view, ClientStatus::Pending)).count();
    let phases: Vec<TaskPhase> = views
        .iter()
        .flat_map(|view| view.status.tasks.values())
        .map(proto::v1::TaskState::phase)
        .collect();
    let in_phase =
        |wanted: &[TaskPhase]| phases.iter().filter(|phase| wanted.contains(phase)).count();
    let all = [
        ("allocations.terminal", terminal),
        ("allocations.running", running),
        ("allocations.pending", pending),
        ("allocations.blocked", waiting),
        ("tasks.pending", in_phase(&[TaskPhase::Pending, TaskPhase::Unspecified])),
        ("tasks.running", in_phase(&[TaskPhase::Running])),
        ("tasks.dead", in_phase(&[TaskPhase::Dead])),
    ];
    let named =
        all.map(|(name, count)| (format!("nomad.client.{name}{{{labels}}}"), number(count as u64)));
    named.into()
}

/// What the live allocations were given, and what is left.
fn room(views: &[View], all: Room, labels: &str) -> BTreeMap<String, f64> {
    let mut given = Room::default();
    for view in views.iter().filter(|view| !view.terminal) {
        for task in &view.spec.tasks {
            given.cpu_mhz = given.cpu_mhz.saturating_add(task.cpu_mhz);
            given.memory_mb = given.memory_mb.saturating_add(task.memory_mb);
        }
        given.disk_mb = given.disk_mb.saturating_add(view.spec.disk_mb);
    }
    let of = [
        ("cpu", given.cpu_mhz, all.cpu_mhz),
        ("memory", given.memory_mb, all.memory_mb),
        ("disk", given.disk_mb, all.disk_mb),
    ];
    let named = of.into_iter().flat_map(|(what, given, all)| {
        let left = all.saturating_sub(given);
        [("allocated", given), ("unallocated", left)].map(|(which, count)| {
            (format!("nomad.client.{which}.{what}{{{labels}}}"), number(count))
        })
    });
    named.collect()
}

/// What the tasks that run use.
async fn usage(
    files: &Files,
    views: &[View],
    labels: &str,
) -> Result<BTreeMap<String, f64>, HttpError> {
    let live = views.iter().filter(|view| !view.terminal);
    let tasks: Vec<(&View, &TaskSpec)> =
        live.flat_map(|view| view.spec.tasks.iter().map(move |task| (view, task))).collect();
    let asked = tasks.iter().map(|(view, task)| {
        (files.shared.state.allocation(view.spec.id).runs(), task.name.clone())
    });
    let used = statistics::uses(files, asked.collect()).await?;
    let mut all = BTreeMap::new();
    for ((view, task), used) in tasks.into_iter().zip(used) {
        let Some(used) = used else { continue };
        let spec = &view.spec;
        let [job, namespace, group, name] =
            [&spec.job_id, &spec.namespace, &spec.group, &task.name].map(|text| nomad::label(text));
        let labels = format!(
            "{labels},alloc_id={},job={job},namespace={namespace},task={name},task_group={group}",
            spec.id
        );
        let named = of_task(task, &used.whole, files.own.core_mhz);
        all.extend(
            named.map(|(name, value)| (format!("nomad.client.allocs.{name}{{{labels}}}"), value)),
        );
    }
    Ok(all)
}

fn of_task(task: &TaskSpec, used: &Use, core_mhz: u64) -> [(&'static str, f64); 13] {
    let mib = |mb: u64| number(mb.saturating_mul(1 << 20));
    let percent = used.user + used.system;
    let max = Some(task.memory_max_mb).filter(|max| *max != fsm::job::TaskResources::UNLIMITED);
    [
        ("cpu.total_percent", percent),
        ("cpu.user", used.user),
        ("cpu.system", used.system),
        ("cpu.total_ticks", statistics::ticks(percent, core_mhz)),
        ("cpu.allocated", number(task.cpu_mhz)),
        ("cpu.throttled_time", 0.0),
        ("cpu.throttled_periods", 0.0),
        ("memory.rss", number(used.resident)),
        ("memory.usage", number(used.resident)),
        ("memory.swap", number(used.swapped)),
        ("memory.cache", 0.0),
        ("memory.allocated", mib(task.memory_mb)),
        ("memory.max_allocated", mib(max.unwrap_or(0))),
    ]
}
