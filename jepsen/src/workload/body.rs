//! The JSON bodies of the jobs that workloads register.
//!
//! Pure. Every job here is as small as its purpose allows; the names of its only group and task are fixed.

use serde_json::{Value, json};

/// The only group of every job.
pub(crate) const GROUP: &str = "group";

/// A job that is stored and never runs: nothing but registrations move it.
pub(crate) fn parameterized(id: &str, meta: &Value) -> Value {
    json!({
        "ID": id,
        "Name": id,
        "Type": "batch",
        "Datacenters": ["dc1"],
        "ParameterizedJob": {},
        "Meta": meta,
        "TaskGroups": [{
            "Name": GROUP,
            "Count": 1,
            "Tasks": [{
                "Name": "task",
                "Driver": "raw_exec",
                "Config": {"command": "/bin/true"},
                "Resources": {"CPU": 10, "MemoryMB": 10}
            }]
        }]
    })
}

/// More than any count. One at a time, as jobs are changed by default, a change would still go on when its end is looked for.
const ALL_AT_ONCE: u64 = 100;

/// Disk of an allocation of a real node, MB: all of them fit on a small machine.
const REAL_DISK_MB: u64 = 10;

/// A job of simulated tasks that run until they are stopped; a change of it replaces all of them at once.
pub(crate) fn service(id: &str, count: u64, size: &Size) -> Value {
    let mut job = running(id, "service", count, size);
    job["TaskGroups"][0]["Update"] = json!({"MaxParallel": ALL_AT_ONCE});
    job
}

/// The same of real processes, which run what `config` says; with another generation they are others, and replace those that run.
pub(crate) fn real_service(
    id: &str,
    count: u64,
    size: &Size,
    (config, generation): (&Value, u64),
) -> Value {
    let mut job = service(id, count, size);
    let group = &mut job["TaskGroups"][0];
    group["EphemeralDisk"] = json!({"SizeMB": REAL_DISK_MB});
    group["Tasks"][0]["Driver"] = "raw_exec".into();
    group["Tasks"][0]["Config"] = config.clone();
    group["Tasks"][0]["Env"] = json!({"GENERATION": generation.to_string()});
    group["Tasks"][0]["LogConfig"] = json!({"MaxFiles": 1, "MaxFileSizeMB": 1});
    job
}

/// A batch job of one simulated task.
pub(crate) fn batch(id: &str, size: &Size) -> Value {
    running(id, "batch", 1, size)
}

fn running(id: &str, kind: &str, count: u64, size: &Size) -> Value {
    let ports = size.ports.iter().map(|(label, value)| {
        if *value == 0 { json!({"Label": label}) } else { json!({"Label": label, "Value": value}) }
    });
    let (dynamic, reserved): (Vec<Value>, Vec<Value>) =
        ports.partition(|port| port.get("Value").is_none());
    json!({
        "ID": id,
        "Name": id,
        "Type": kind,
        "Datacenters": ["dc1"],
        "Meta": {"count": count.to_string()},
        "TaskGroups": [{
            "Name": GROUP,
            "Count": count,
            "Networks": [{"Mode": "host", "DynamicPorts": dynamic, "ReservedPorts": reserved}],
            "Tasks": [{
                "Name": "task",
                "Driver": "mock",
                "Config": {},
                "Resources": {"CPU": size.cpu_mhz, "MemoryMB": size.memory_mb}
            }]
        }]
    })
}

/// What one allocation of a job asks for.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    /// CPU.
    pub(crate) cpu_mhz: u64,
    /// Memory.
    pub(crate) memory_mb: u64,
    /// Labels and numbers of ports; number 0 = any.
    pub(crate) ports: Vec<(&'static str, u16)>,
}

/// The body of `PUT /v1/jobs`, which demands this version if one is given.
pub(crate) fn registration(job: Value, enforce: Option<u64>) -> Value {
    let mut body = json!({"Job": job});
    if let Some(version) = enforce {
        body["EnforceIndex"] = true.into();
        body["JobModifyIndex"] = version.into();
    }
    body
}
