//! How the machine and the tasks of an allocation fare, in the shapes of Nomad's client. Shares of
//! time are those of a moment: two looks, a quarter of a second apart.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use agent::{
    executor::ExecutorIdentity,
    machine::usage::{self, CpuTimes, Memory, Mount, ProcessUse},
    time::wall_ms,
};
use axum::{
    Json,
    extract::{Path as UrlPath, State},
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::{Files, HttpError, query::Parameters};
use crate::serve::CalledBy;

/// Between two looks.
const WINDOW: Duration = Duration::from_millis(250);

/// `/v1/client/stats`.
pub(super) async fn of_machine(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
) -> Result<Json<Value>, HttpError> {
    tracing::trace!(%caller, "asked how the machine fares");
    Ok(Json(fares(&files).await?))
}

/// How the machine fares.
pub(super) async fn fares(files: &Files) -> Result<Value, HttpError> {
    let before = files.work.run(|| Ok(usage::cpu_times())).await?;
    sleep(WINDOW).await;
    let folder = files.shared.state.root().to_owned();
    let look = move || {
        let mounts = usage::mounts();
        let disks: Vec<Value> = usage::disks(&mounts).into_iter().filter_map(disk).collect();
        let own = usage::mount_of(&mounts, &folder)
            .and_then(|mount| disk_at(&mount.source, &mount.point, &folder));
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        Ok((usage::cpu_times(), disks, own, uptime))
    };
    let (after, disks, own, uptime) = files.work.run(look).await?;
    let mhz = files.own.core_mhz;
    let cores: Vec<Value> =
        before.iter().zip(&after).map(|(old, new)| core(old, new, mhz)).collect();
    let consumed: f64 = cores.iter().filter_map(|core| core["TotalTicks"].as_f64()).sum();
    let memory = Memory::now();
    let (live, known) = files.node.counts();
    let uptime = uptime.split('.').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0_u64);
    Ok(json!({
        "Memory": {
            "Total": memory.total, "Available": memory.available, "Free": memory.free,
            "Used": memory.total.saturating_sub(memory.available),
        },
        "CPU": cores,
        "CPUTicksConsumed": consumed,
        "DiskStats": disks,
        "AllocDirStats": own,
        "DeviceStats": [],
        "Uptime": uptime,
        "Timestamp": wall_ms().saturating_mul(1_000_000),
        "Allocations": {"Live": live, "Known": known},
        "Shortage": files.shared.shortages.reason(),
    }))
}

fn core(old: &CpuTimes, new: &CpuTimes, mhz: u64) -> Value {
    let total = new.total.saturating_sub(old.total);
    let percent = |old: u64, new: u64| share(new.saturating_sub(old), total);
    let idle = percent(old.idle, new.idle);
    let used = if total == 0 { 0.0 } else { (100.0 - idle).max(0.0) };
    json!({
        "CPU": new.name,
        "User": percent(old.user, new.user),
        "System": percent(old.system, new.system),
        "Idle": idle,
        "TotalPercent": used,
        "TotalTicks": ticks(used, mhz),
    })
}

#[expect(clippy::cast_precision_loss, reason = "shares are shown to people")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

/// Percent of a core as MHz.
#[expect(clippy::cast_precision_loss, reason = "shares are shown to people")]
pub(super) fn ticks(percent: f64, mhz: u64) -> f64 {
    percent / 100.0 * mhz as f64
}

fn disk(mount: &Mount) -> Option<Value> {
    disk_at(&mount.source, &mount.point, Path::new(&mount.point))
}

fn disk_at(device: &str, point: &str, path: &Path) -> Option<Value> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let used = bytes(found.f_blocks.saturating_sub(found.f_bfree));
    let available = bytes(found.f_bavail);
    Some(json!({
        "Device": device,
        "Mountpoint": point,
        "Size": bytes(found.f_blocks),
        "Used": used,
        "Available": available,
        "UsedPercent": share(used, used.saturating_add(available)),
        "InodesUsedPercent": share(found.f_files.saturating_sub(found.f_ffree), found.f_files),
    }))
}

/// `/v1/client/allocation/ID/stats`, of all tasks that run or of one.
pub(super) async fn of_allocation(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Json<Value>, HttpError> {
    let directory = files.directory(&caller, &allocation)?;
    let id = allocation.parse().map_err(|_| HttpError::NotFound(allocation.clone()))?;
    let view = files.node.view(id);
    let known = view.into_iter().flat_map(|view| view.status.tasks.into_keys());
    let mut names: Vec<String> = known.collect();
    names.sort_unstable();
    let asked = query.text("task");
    if !asked.is_empty() {
        if !names.iter().any(|name| name == asked) {
            let text = format!("allocation \"{allocation}\" has no task \"{asked}\"");
            return Err(HttpError::NotFound(text));
        }
        names.retain(|name| name == asked);
    }
    let asked = names.iter().map(|name| (directory.runs(), name.clone())).collect();
    let found = uses(&files, asked).await?;
    let mhz = files.own.core_mhz;
    let timestamp = wall_ms().saturating_mul(1_000_000);
    let (mut tasks, mut all) = (Map::new(), Use::default());
    for (name, TaskUse { whole, by_pid }) in names.into_iter().zip(found).filter_map(both) {
        all.add(&whole);
        let by_pid: Map<_, _> =
            by_pid.into_iter().map(|(pid, one)| (pid.to_string(), one.json(mhz))).collect();
        let task = json!({
            "ResourceUsage": whole.json(mhz), "Timestamp": timestamp, "Pids": by_pid,
        });
        tasks.insert(name, task);
    }
    Ok(Json(json!({ "ResourceUsage": all.json(mhz), "Tasks": tasks, "Timestamp": timestamp })))
}

fn both<T, U>((one, other): (T, Option<U>)) -> Option<(T, U)> {
    Some((one, other?))
}

/// What a task's processes use, together and each.
pub(super) struct TaskUse {
    pub(super) whole: Use,
    by_pid: Vec<(i32, Use)>,
}

/// What tasks use, each by the folder of its allocation's runs and its name; none of those that do
/// not run.
pub(super) async fn uses(
    files: &Files,
    tasks: Vec<(PathBuf, String)>,
) -> Result<Vec<Option<TaskUse>>, HttpError> {
    let executors = files.work.run(move || {
        let found = tasks.into_iter().map(|(runs, name)| executor(&runs.join(name)));
        Ok((found.collect::<Vec<_>>(), usage::processes()))
    });
    let (executors, before) = executors.await?;
    let started = Instant::now();
    sleep(WINDOW).await;
    let after = files.work.run(|| Ok(usage::processes())).await?;
    let seconds = started.elapsed().as_secs_f64();
    let of_task = |executor: Option<i32>| {
        let pids = usage::family(&after, executor?);
        let one = |pid: i32| (pid, Use::of(pid, before.get(&pid), &after[&pid], seconds));
        let by_pid: Vec<_> = pids.into_iter().map(one).collect();
        let mut whole = Use::default();
        for (_, one) in &by_pid {
            whole.add(one);
        }
        Some(TaskUse { whole, by_pid })
    };
    Ok(executors.into_iter().map(of_task).collect())
}

/// The process that runs a task, by the newest of its attempts.
fn executor(runs: &Path) -> Option<i32> {
    let attempts = std::fs::read_dir(runs).ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse::<u64>().ok()?, entry.path()))
    });
    let (_, newest) = attempts.max_by_key(|(attempt, _)| *attempt)?;
    let identity = ExecutorIdentity::read(&newest).ok()??;
    identity.is_alive().ok()?.then_some(identity.pid)
}

/// What processes use: percent of a core, bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Use {
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) resident: u64,
    pub(super) swapped: u64,
}

impl Use {
    /// A process that was not there before has used all its time since.
    fn of(pid: i32, before: Option<&ProcessUse>, after: &ProcessUse, seconds: f64) -> Self {
        let before = before.filter(|before| before.start_ticks == after.start_ticks);
        let (user, system) = before.map_or((0, 0), |before| (before.user, before.system));
        let percent = |old: u64, new: u64| {
            let ticks = share(new.saturating_sub(old), rustix::param::clock_ticks_per_second());
            ticks / seconds
        };
        Self {
            user: percent(user, after.user),
            system: percent(system, after.system),
            resident: after.pages.saturating_mul(rustix::param::page_size() as u64),
            swapped: usage::swapped(pid),
        }
    }

    fn add(&mut self, other: &Self) {
        self.user += other.user;
        self.system += other.system;
        self.resident = self.resident.saturating_add(other.resident);
        self.swapped = self.swapped.saturating_add(other.swapped);
    }

    fn json(&self, mhz: u64) -> Value {
        let percent = self.user + self.system;
        json!({
            "CpuStats": {
                "UserMode": self.user,
                "SystemMode": self.system,
                "Percent": percent,
                "TotalTicks": ticks(percent, mhz),
                "ThrottledPeriods": 0,
                "ThrottledTime": 0,
                "Measured": ["System Mode", "User Mode", "Percent", "Total Ticks"],
            },
            "MemoryStats": {
                "RSS": self.resident,
                "Swap": self.swapped,
                "Usage": self.resident,
                "Cache": 0,
                "MaxUsage": 0,
                "KernelUsage": 0,
                "KernelMaxUsage": 0,
                "Measured": ["RSS", "Swap", "Usage"],
            },
            "DeviceStats": [],
        })
    }
}
