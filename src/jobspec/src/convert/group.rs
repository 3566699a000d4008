//! Task groups. Owns what a group needs (tasks, distinct names, one leader, room for logs) and what
//! of it is not built yet.

use std::collections::BTreeSet;

use fsm::{
    JobKind, Text,
    job::{Constraint, SIGNALS_ATTRIBUTE, Task, TaskGroup},
};
use serde_json::Value;

use super::{
    bounded, check_name, condition,
    fields::{Fields, Report, quoted},
    network, policy,
    policy::Inherited,
    scaling, service, task,
};

/// Ephemeral disk of a group that asks for none, MiB.
const DISK_MB_DEFAULT: u64 = 300;
/// Least ephemeral disk, MiB (Nomad's minimum).
const DISK_MB_MIN: i64 = 10;

/// Reads one group.
pub(super) fn read(
    value: &Value,
    path: String,
    job_name: &str,
    inherited: &Inherited,
    report: &mut Report,
) -> Option<TaskGroup> {
    let mut fields = Fields::new(value, path, report)?;
    let name = name(&mut fields, report);
    refuse_unsupported(&mut fields, &name, report);
    let conditions = condition::read(&mut fields, inherited.kind, true, report);
    let spreads = condition::spreads(&mut fields, inherited.kind, report);
    let restart = policy::restart(&mut fields, policy::restart_default(inherited.kind), report);
    let network = network::read(&mut fields, report);
    let mut services = service::Services::new(job_name, &name, network.as_ref());
    services.read(&mut fields, None, report);
    let disk_mb = disk_mb(&mut fields, report);
    let tasks = tasks(&mut fields, inherited, restart, &mut services, report);
    let has_checks = services.has_checks();
    let (count, scaling) = scaling::read(&mut fields, inherited.kind, report);
    let shutdown_delay_ms = fields.duration_ms("ShutdownDelay", report).unwrap_or(0);
    services.check_delays(shutdown_delay_ms, &tasks, report);
    let group = TaskGroup {
        count,
        scaling,
        constraints: with_signals(conditions.constraints, &tasks),
        affinities: conditions.affinities,
        spreads,
        tasks,
        meta: fields.text_map("Meta", report),
        restart,
        reschedule: policy::reschedule(&mut fields, "ReschedulePolicy", inherited, report),
        update: policy::update(&mut fields, inherited, false, report),
        migrate: policy::migrate(&mut fields, inherited, report),
        network,
        disk_mb,
        shutdown_delay_ms,
        max_run_ms: max_run_ms(&mut fields, inherited.kind, report),
        services_json: services.into_text(),
        name,
    };
    policy::check_health(&mut fields, group.update, has_checks, report);
    policy::check_step(&fields, &group, inherited.kind, report);
    check_logs(&fields, &group, report);
    fields.finish(report);
    Some(group)
}

fn name(fields: &mut Fields<'_>, report: &mut Report) -> Text {
    let path = fields.at("Name");
    let name = fields.text("Name", report).unwrap_or_default();
    check_name(name, path, report);
    Text::from(name)
}

/// A task that asks for a signal needs a node that knows it.
fn with_signals(mut constraints: Vec<Constraint>, tasks: &[Task]) -> Vec<Constraint> {
    let asked = tasks.iter().map(|task| &*task.kill_signal);
    let asked: BTreeSet<&str> = asked.filter(|signal| !signal.is_empty()).collect();
    if asked.is_empty() {
        return constraints;
    }
    let needed = Constraint {
        left: format!("${{attr.{SIGNALS_ATTRIBUTE}}}").into(),
        operand: "set_contains".into(),
        right: Vec::from_iter(asked).join(",").into(),
    };
    if !constraints.contains(&needed) {
        constraints.push(needed);
    }
    constraints
}

fn refuse_unsupported(fields: &mut Fields<'_>, name: &str, report: &mut Report) {
    let owner = format!("group {}", quoted(name));
    for (field, what) in [
        ("Volumes", "volume blocks are"),
        ("Disconnect", "disconnect blocks are"),
        ("MaxClientDisconnect", "max_client_disconnect is"),
        ("StopAfterClientDisconnect", "stop_after_client_disconnect is"),
        ("PreventRescheduleOnLost", "prevent_reschedule_on_lost is"),
    ] {
        fields.refuse(field, &owner, what, report);
    }
    task::refuse_consul(fields, &owner, report);
}

/// Longest run of an instance; nobody ends a service for its age.
fn max_run_ms(fields: &mut Fields<'_>, kind: JobKind, report: &mut Report) -> u64 {
    let Some(max_ms) = fields.duration_ms("MaxRunDuration", report) else { return 0 };
    let path = fields.at("MaxRunDuration");
    match kind {
        JobKind::Batch | JobKind::Sysbatch if max_ms > 0 => {}
        JobKind::Batch | JobKind::Sysbatch => report.error(path, "must be longer than 0s"),
        JobKind::Service | JobKind::System => {
            let kind = kind.name();
            let message = format!(
                "only batch and sysbatch jobs end after a time, this one is {kind}: remove it"
            );
            report.error(path, message);
        }
    }
    max_ms
}

fn disk_mb(fields: &mut Fields<'_>, report: &mut Report) -> u64 {
    let Some(mut disk) = fields.object("EphemeralDisk", report) else { return DISK_MB_DEFAULT };
    let size = disk.count::<u64>("SizeMB", DISK_MB_MIN, report).unwrap_or(DISK_MB_DEFAULT);
    for (field, what) in [("Sticky", "sticky disks"), ("Migrate", "migrated disks")] {
        if disk.boolean(field, report) == Some(true) {
            let path = disk.at(field);
            report.warning(format!(
                "{path}: {what} are not supported yet, a new disk is always empty"
            ));
        }
    }
    disk.finish(report);
    size
}

fn tasks(
    fields: &mut Fields<'_>,
    inherited: &Inherited,
    restart: fsm::job::RestartPolicy,
    services: &mut service::Services<'_>,
    report: &mut Report,
) -> Vec<Task> {
    let path = fields.at("Tasks");
    let list = fields.list("Tasks", report);
    if list.is_empty() {
        report.error(path.clone(), "a group needs at least one task: add one");
    }
    let mut tasks: Vec<Task> = Vec::new();
    for (path, item) in bounded(list, &path, report) {
        let at_name = format!("{path}.Name");
        let Some(task) = task::read(item, path, inherited, restart, services, report) else {
            continue;
        };
        if tasks.iter().any(|other| other.name == task.name) {
            let message = format!("another task is called {}: rename one", quoted(&task.name));
            report.error(at_name, message);
        }
        tasks.push(task);
    }
    if tasks.iter().filter(|task| task.leader).count() > 1 {
        report.error(path, "only one task of a group can be the leader");
    }
    tasks
}

fn check_logs(fields: &Fields<'_>, group: &TaskGroup, report: &mut Report) {
    for (position, task) in group.tasks.iter().enumerate() {
        if task.logs.disabled {
            continue;
        }
        let logs_mb = u64::from(task.logs.files_max) * u64::from(task.logs.file_mb_max);
        if logs_mb >= group.disk_mb {
            let message = format!(
                "logs of {logs_mb} MB do not fit the group's disk of {} MB: enlarge EphemeralDisk.SizeMB or keep fewer logs",
                group.disk_mb
            );
            report.error(format!("{}[{position}].LogConfig", fields.at("Tasks")), message);
        }
    }
}
