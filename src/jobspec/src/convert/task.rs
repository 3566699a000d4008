//! Tasks. Owns what a task needs (name, driver, resources within reason, a signal that exists) and
//! what of it is not built yet.

use std::collections::BTreeSet;

use fsm::{
    Text,
    job::{LogConfig, RestartPolicy, SIGNALS, Task, TaskResources},
};
use serde_json::Value;

use super::{
    bounded, check_name, condition, driver,
    fields::{Fields, Report, is_empty, quoted},
    policy,
    policy::Inherited,
    service::Services,
    stored,
};
use crate::{schema::TASK_SCALING, suggest::did_you_mean};

/// MHz of a task that asks for none.
const CPU_MHZ_DEFAULT: u64 = 100;
/// MiB of a task that asks for none.
const MEMORY_MB_DEFAULT: u64 = 300;
/// Least memory of a task, MiB (Nomad's minimum).
const MEMORY_MB_MIN: i64 = 10;
/// Pause between the kill signal and SIGKILL, ms (Nomad's `DefaultKillTimeout`).
const KILL_TIMEOUT_MS_DEFAULT: u64 = 5_000;
/// Log files kept, and MiB of each.
const LOGS_DEFAULT: (u32, u32) = (10, 10);
/// Levels of nesting in a driver's configuration.
pub(super) const CONFIG_DEPTH_MAX: usize = 64;

/// Directories of every allocation, beside which those of its tasks stand. An agent refuses them,
/// so no task of that name would run.
const NAMES_RESERVED: [&str; 1] = ["alloc"];
/// Longest name of a task, bytes: that of a directory.
const TASK_NAME_BYTES_MAX: usize = 255;

/// Reads one task.
pub(super) fn read(
    value: &Value,
    path: String,
    inherited: &Inherited,
    restart: RestartPolicy,
    services: &mut Services<'_>,
    report: &mut Report,
) -> Option<Task> {
    let mut fields = Fields::new(value, path, report)?;
    let path = fields.at("Name");
    let name = fields.text("Name", report).unwrap_or_default();
    check_task_name(name, path, report);
    refuse_unsupported(&mut fields, name, report);
    let path = fields.at("Driver");
    let driver_name = fields.text_filled("Driver", report).unwrap_or_default();
    if driver_name.is_empty() {
        report.error(path, "a task needs a driver: add it, for example \"raw_exec\"");
    }
    services.read(&mut fields, Some(name), report);
    let conditions = condition::read(&mut fields, inherited.kind, false, report);
    let task = Task {
        name: Text::from(name),
        driver: Text::from(driver_name),
        user: Text::from(fields.text("User", report).unwrap_or_default()),
        config_json: config(&mut fields, driver_name, report),
        env: environment(&mut fields, report),
        meta: fields.text_map("Meta", report),
        constraints: conditions.constraints,
        affinities: conditions.affinities,
        resources: resources(&mut fields, name, report),
        kill_timeout_ms: fields
            .duration_ms("KillTimeout", report)
            .unwrap_or(KILL_TIMEOUT_MS_DEFAULT),
        kill_signal: kill_signal(&mut fields, report),
        leader: fields.boolean("Leader", report).unwrap_or(false),
        shutdown_delay_ms: fields.duration_ms("ShutdownDelay", report).unwrap_or(0),
        restart: policy::restart(&mut fields, restart, report),
        logs: logs(&mut fields, report),
        identity_json: identities(&mut fields, name, report),
        dispatch_payload: dispatch_payload(&mut fields, report),
    };
    fields.finish(report);
    Some(task)
}

fn check_task_name(name: &str, path: String, report: &mut Report) {
    if name.len() > TASK_NAME_BYTES_MAX {
        let message = format!(
            "is {} bytes long, at most {TASK_NAME_BYTES_MAX} are allowed for a task",
            name.len()
        );
        report.error(path, message);
    } else if NAMES_RESERVED.contains(&name) {
        let message = format!(
            "{} names a directory that every allocation has: call the task something else",
            quoted(name)
        );
        report.error(path, message);
    } else {
        check_name(name, path.clone(), report);
        if name.contains(['/', '\\']) || name == "." || name == ".." {
            let message = format!("{} names a directory on the node: use no slashes", quoted(name));
            report.error(path, message);
        }
    }
}

fn refuse_unsupported(fields: &mut Fields<'_>, name: &str, report: &mut Report) {
    let owner = format!("task {}", quoted(name));
    for (field, what) in [
        ("Templates", "template blocks are"),
        ("Artifacts", "artifact blocks are"),
        ("Vault", "vault blocks are"),
        ("VolumeMounts", "volume_mount blocks are"),
        ("CSIPluginConfig", "csi_plugin blocks are"),
        ("Lifecycle", "lifecycle blocks are"),
        ("Secrets", "secret blocks are"),
        ("Actions", "action blocks are"),
        ("Schedule", "schedule blocks are"),
        ("Kind", "task kinds (Connect sidecars and gateways) are"),
    ] {
        fields.refuse(field, &owner, what, report);
    }
    if fields.value("ScalingPolicies").is_some_and(|value| !is_empty(value)) {
        report.error(fields.at("ScalingPolicies"), format!("{owner}: {TASK_SCALING}"));
    }
    refuse_consul(fields, &owner, report);
}

/// The file that gets the payload of a dispatch: a path below the task's `local/`.
fn dispatch_payload(fields: &mut Fields<'_>, report: &mut Report) -> Text {
    let Some(mut block) = fields.object("DispatchPayload", report) else { return Text::default() };
    let path = block.at("File");
    let file = block.text_filled("File", report).unwrap_or_default();
    block.finish(report);
    if file.is_empty() {
        report
            .error(path, "a dispatch_payload block needs a file: name one, for example \"input\"");
    } else if let Err(why) = fsm::job::check_payload_file(file) {
        report.error(path, format!("{} {why}", quoted(file)));
    }
    Text::from(file)
}

/// The identity blocks of a task, checked and kept.
fn identities(fields: &mut Fields<'_>, name: &str, report: &mut Report) -> Text {
    let mut kept = serde_json::Map::new();
    let mut names = BTreeSet::new();
    let own = fields.value("Identity").filter(|own| !is_default_identity(own));
    if let Some(own) = own
        && check_identity(own, fields.at("Identity"), &mut names, report)
    {
        kept.insert("Identity".to_owned(), stored_identity(own));
    }
    let list = fields.list("Identities", report);
    let list = bounded(list, &fields.at("Identities"), report);
    let others = list.into_iter().filter_map(|(path, item)| {
        check_identity(item, path, &mut names, report).then(|| stored_identity(item))
    });
    let others: Vec<_> = others.collect();
    if !others.is_empty() {
        kept.insert("Identities".to_owned(), others.into());
    }
    if kept.is_empty() {
        return Text::from("");
    }
    report.warning(format!(
        "task {}: identity blocks are stored, but there are no identities yet: the task gets no token",
        quoted(name)
    ));
    stored::text(&kept.into())
}

/// An identity as it is kept. The one without a name is called so by servers.
fn stored_identity(value: &Value) -> Value {
    let mut kept = stored::block(value);
    if let Value::Object(map) = &mut kept {
        map.entry("Name").or_insert_with(|| "default".into());
    }
    kept
}

fn check_identity(
    value: &Value,
    path: String,
    names: &mut BTreeSet<String>,
    report: &mut Report,
) -> bool {
    let Some(mut fields) = Fields::new(value, path, report) else { return false };
    let name = fields.text_filled("Name", report).unwrap_or("default").to_owned();
    if !names.insert(name.clone()) {
        let message = format!("another identity is called {}: rename one", quoted(&name));
        report.error(fields.at("Name"), message);
    }
    drop(fields.texts("Audience", report));
    for flag in ["Env", "File"] {
        fields.boolean(flag, report);
    }
    for text in ["Filepath", "ChangeSignal", "ServiceName"] {
        fields.text(text, report);
    }
    fields.duration_ms("TTL", report);
    if let Some(mode) = fields.text_filled("ChangeMode", report)
        && !matches!(mode, "noop" | "signal" | "restart")
    {
        let message = format!("{} is none of noop, signal, restart", quoted(mode));
        report.error(fields.at("ChangeMode"), message);
    }
    fields.ignore(&["Aud"]);
    fields.finish(report);
    true
}

/// Refuses a Consul block that is not the one servers fill in.
pub(super) fn refuse_consul(fields: &mut Fields<'_>, owner: &str, report: &mut Report) {
    let set = fields.value("Consul").is_some_and(|consul| {
        let filled_in = consul
            .as_object()
            .is_some_and(|map| map.values().all(|value| is_empty(value) || value == "default"));
        !filled_in
    });
    if set {
        let message = format!(
            "{owner}: consul blocks are not supported yet: remove it or run this job elsewhere"
        );
        report.error(fields.at("Consul"), message);
    }
}

/// Servers fill in an identity named `default` that reaches neither the environment nor a file.
fn is_default_identity(identity: &Value) -> bool {
    let Value::Object(map) = identity else { return false };
    map.iter().all(|(key, value)| {
        is_empty(value)
            || match key.as_str() {
                "Name" => value == "default",
                "Aud" | "Audience" => value
                    .as_array()
                    .is_some_and(|list| list.iter().all(|aud| aud == "nomadproject.io")),
                _ => false,
            }
    })
}

fn config(fields: &mut Fields<'_>, driver: &str, report: &mut Report) -> Text {
    let path = fields.at("Config");
    let nothing = Value::Object(serde_json::Map::new());
    let config = fields.value("Config").unwrap_or(&nothing);
    if !config.is_object() {
        report.error(path, "expected an object with the driver's settings");
        return Text::from("{}");
    }
    if is_deeper(config, CONFIG_DEPTH_MAX) {
        report.error(path, format!("is nested more than {CONFIG_DEPTH_MAX} deep"));
        return Text::from("{}");
    }
    stored::text(&driver::checked(driver, config, &path, report))
}

pub(super) fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return matches!(value, Value::Array(_) | Value::Object(_));
    };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, below)),
        Value::Object(map) => map.values().any(|item| is_deeper(item, below)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn environment(
    fields: &mut Fields<'_>,
    report: &mut Report,
) -> std::collections::BTreeMap<Text, Text> {
    let env = fields.text_map("Env", report);
    for key in env.keys().filter(|key| key.contains('=')) {
        let path = format!("{}[{}]", fields.at("Env"), quoted(key));
        report.error(path, "an environment name cannot contain \"=\"");
    }
    env
}

fn resources(fields: &mut Fields<'_>, name: &str, report: &mut Report) -> TaskResources {
    let default =
        TaskResources { cpu_mhz: CPU_MHZ_DEFAULT, memory_mb: MEMORY_MB_DEFAULT, memory_mb_max: 0 };
    let Some(mut block) = fields.object("Resources", report) else { return default };
    let owner = format!("task {}", quoted(name));
    for (field, what) in [
        ("Cores", "reserved cores are"),
        ("Devices", "device blocks are"),
        ("NUMA", "numa blocks are"),
        ("SecretsMB", "a secrets size is"),
        ("Networks", "networks of a task (use the group's) are"),
        ("DiskMB", "a disk of a task (use the group's ephemeral_disk) is"),
    ] {
        block.refuse(field, &owner, what, report);
    }
    block.ignore(&["IOPS"]);
    let given = block.value("MemoryMB").is_some();
    let asked = block.count("MemoryMB", MEMORY_MB_MIN, report);
    let memory_mb = asked.unwrap_or(default.memory_mb);
    let is_unlimited = block.value("MemoryMaxMB").and_then(Value::as_i64) == Some(-1);
    let memory_mb_max = if is_unlimited {
        TaskResources::UNLIMITED
    } else {
        block.count("MemoryMaxMB", 0, report).unwrap_or(0)
    };
    let comparable = memory_mb_max != 0 && (asked.is_some() || !given);
    if comparable && memory_mb_max < memory_mb {
        let message = format!(
            "must be at least MemoryMB ({memory_mb}), or -1 for no limit, is {memory_mb_max}"
        );
        report.error(block.at("MemoryMaxMB"), message);
    }
    let cpu_mhz = block.count("CPU", 1, report).unwrap_or(default.cpu_mhz);
    block.finish(report);
    TaskResources { cpu_mhz, memory_mb, memory_mb_max }
}

/// Empty where nothing is said.
fn kill_signal(fields: &mut Fields<'_>, report: &mut Report) -> Text {
    let path = fields.at("KillSignal");
    let Some(written) = fields.text_filled("KillSignal", report) else { return Text::from("") };
    // `HUP`, `hup` and `SIGHUP` are one signal.
    let capitals = written.to_ascii_uppercase();
    let signal = if capitals.starts_with("SIG") { capitals } else { format!("SIG{capitals}") };
    if !SIGNALS.contains(&signal.as_str()) && !report.is_full() {
        let hint =
            did_you_mean(&signal, SIGNALS).unwrap_or_else(|| "use for example SIGTERM".to_owned());
        report.error(path, format!("{} is not a signal: {hint}", quoted(written)));
    }
    Text::from(signal)
}

fn logs(fields: &mut Fields<'_>, report: &mut Report) -> LogConfig {
    let (files_max, file_mb_max) = LOGS_DEFAULT;
    let default = LogConfig { files_max, file_mb_max, disabled: false };
    let Some(mut block) = fields.object("LogConfig", report) else { return default };
    let files_max = block.count("MaxFiles", 1, report).unwrap_or(files_max);
    let file_mb_max = block.count("MaxFileSizeMB", 1, report).unwrap_or(file_mb_max);
    // `Enabled` is how older versions said it.
    let enabled = block.boolean("Enabled", report);
    let disabled = block.boolean("Disabled", report).unwrap_or(enabled == Some(false));
    block.finish(report);
    LogConfig { files_max, file_mb_max, disabled }
}
