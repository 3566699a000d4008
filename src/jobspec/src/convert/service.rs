//! Service blocks: checked for names and references, kept as JSON with their defaults, in stored
//! form. Nothing is registered anywhere yet; each block gives a warning that says so.

use std::collections::BTreeSet;

use fsm::{
    Text,
    job::{Network, Task},
};
use serde_json::Value;

use super::{
    bounded,
    fields::{Fields, Report, quoted},
    stored,
};
use crate::canonical::canonicalize_service;

/// Fields of a service that are kept as they are.
const KEPT: [&str; 17] = [
    "Id",
    "Tags",
    "CanaryTags",
    "EnableTagOverride",
    "AddressMode",
    "Address",
    "CheckRestart",
    "Meta",
    "CanaryMeta",
    "TaggedAddresses",
    "OnUpdate",
    "Provider",
    "Cluster",
    "Kind",
    "Weights",
    "Namespace",
    "TaskName",
];

/// Fields of a check that are kept as they are.
const CHECK_KEPT: [&str; 26] = [
    "Advertise",
    "Id",
    "Name",
    "Command",
    "Args",
    "Path",
    "Protocol",
    "Expose",
    "AddressMode",
    "Interval",
    "Timeout",
    "InitialStatus",
    "TLSSkipVerify",
    "TLSServerName",
    "Header",
    "Method",
    "CheckRestart",
    "GRPCService",
    "GRPCUseTLS",
    "TaskName",
    "SuccessBeforePassing",
    "FailuresBeforeCritical",
    "FailuresBeforeWarning",
    "Body",
    "OnUpdate",
    "Notes",
];

/// The services of a group and its tasks.
pub(super) struct Services<'g> {
    job_name: &'g str,
    group: &'g str,
    ports: BTreeSet<Text>,
    list: Vec<Value>,
    /// Task, name and port of each.
    there: BTreeSet<(String, String, String)>,
}

impl<'g> Services<'g> {
    pub(super) fn new(job_name: &'g str, group: &'g str, network: Option<&Network>) -> Self {
        let ports = network.map_or(&[][..], |network| &network.ports);
        let ports = ports.iter().map(|port| Text::clone(&port.label)).collect();
        Self { job_name, group, ports, list: Vec::new(), there: BTreeSet::new() }
    }

    /// Adds the `Services` of a group, or of the task of that name.
    pub(super) fn read(
        &mut self,
        fields: &mut Fields<'_>,
        task: Option<&str>,
        report: &mut Report,
    ) {
        let list = fields.list("Services", report);
        for (path, item) in bounded(list, &fields.at("Services"), report) {
            let Some(mut fields) = Fields::new(item, path, report) else { continue };
            let name = self.name(&mut fields, task, report);
            self.check(&mut fields, &name, report);
            self.check_duplicate(&mut fields, &name, task, report);
            fields.finish(report);
            let mut kept = item.clone();
            if let Value::Object(map) = &mut kept {
                map.insert("Name".to_owned(), name.clone().into());
                if let Some(task) = task {
                    map.insert("TaskName".to_owned(), task.into());
                }
                // Some clients fill in defaults before they send a job, others leave that to
                // servers.
                canonicalize_service(map, &name);
            }
            report.warning(format!(
                "service {}: service blocks are stored but not registered anywhere yet",
                quoted(&name)
            ));
            self.list.push(stored::block(&kept));
        }
    }

    /// What is looked up by its name is asked for a while after it is gone from there: Nomad's
    /// warnings of services that end at once.
    pub(super) fn check_delays(&self, group_delay_ms: u64, tasks: &[Task], report: &mut Report) {
        let group = self.group;
        let owners: BTreeSet<&str> = self.there.iter().map(|(task, ..)| task.as_str()).collect();
        for task in tasks.iter().filter(|task| task.shutdown_delay_ms == 0) {
            if owners.contains(&*task.name) {
                report.warning(format!(
                    "task {} in group {} defines services, but has no shutdown_delay set",
                    quoted(&task.name),
                    quoted(group)
                ));
            }
        }
        let mut delays = tasks.iter().map(|task| task.shutdown_delay_ms).chain([group_delay_ms]);
        if owners.contains("") && delays.all(|delay_ms| delay_ms == 0) {
            report.warning(format!(
                "group {} defines services, but neither the group nor any of its tasks have shutdown_delay set",
                quoted(group)
            ));
        }
    }

    /// The name of a service: `BASE` and its parts are put in here, all else is the agent's.
    fn name(&self, fields: &mut Fields<'_>, task: Option<&str>, report: &mut Report) -> String {
        let (job, group) = (self.job_name, self.group);
        let base = format!("{job}-{group}-{}", task.unwrap_or("group"));
        let Some(name) = fields.text_filled("Name", report) else {
            return if task.is_some() { base } else { format!("{job}-{group}") };
        };
        name.replace("${BASE}", &base)
            .replace("${JOB}", job)
            .replace("${TASKGROUP}", group)
            .replace("${TASK}", task.unwrap_or("group"))
    }

    /// Two services of one owner with one name and port are one too many.
    fn check_duplicate(
        &mut self,
        fields: &mut Fields<'_>,
        name: &str,
        task: Option<&str>,
        report: &mut Report,
    ) {
        let port = fields.text_filled("PortLabel", report).unwrap_or_default().to_owned();
        let task = task.or(fields.text("TaskName", report)).unwrap_or_default().to_owned();
        if !self.there.insert((task, name.to_owned(), port)) {
            let message = format!("service {} is there twice with this port", quoted(name));
            report.error(fields.at("Name"), message);
        }
    }

    fn check(&self, fields: &mut Fields<'_>, name: &str, report: &mut Report) {
        let owner = format!("service {}", quoted(name));
        fields.refuse("Connect", &owner, "connect blocks are", report);
        fields.refuse("Identity", &owner, "identity blocks are", report);
        let known = name.split("${").enumerate().map(|(place, part)| {
            // What stands for a reference counts as one letter.
            if place == 0 {
                part.to_owned()
            } else {
                format!("x{}", part.split_once('}').map_or("", |p| p.1))
            }
        });
        if !is_service_name(&known.collect::<String>()) {
            let message = format!(
                "{} is not a service's name: letters, digits and dashes between them, at most 63 (RFC 1123)",
                quoted(name)
            );
            report.error(fields.at("Name"), message);
        }
        for (field, allowed) in [
            ("Provider", &["consul", "nomad"][..]),
            ("AddressMode", &["auto", "host", "driver", "alloc", "alloc_ipv6"]),
            ("OnUpdate", &["require_healthy", "ignore_warnings", "ignore"]),
        ] {
            one_of(fields, field, allowed, report);
        }
        fields.ignore(&KEPT);
        self.check_port(fields, report);
        let has_port = fields.text_filled("PortLabel", report).is_some();
        let checks = fields.list("Checks", report);
        if !checks.is_empty() {
            report.warning(format!("{owner}: checks are stored but not run yet"));
        }
        for (path, check) in bounded(checks, &fields.at("Checks"), report) {
            let Some(mut check) = Fields::new(check, path, report) else { continue };
            check_check(&mut check, has_port, report);
            self.check_port(&mut check, report);
            check.ignore(&CHECK_KEPT);
            check.finish(report);
        }
    }

    fn check_port(&self, fields: &mut Fields<'_>, report: &mut Report) {
        let path = fields.at("PortLabel");
        let Some(label) = fields.text_filled("PortLabel", report) else { return };
        let literal = label.parse::<u16>().is_ok() || label.contains("${");
        if !literal && !self.ports.contains(label) {
            let message = format!(
                "the group's network has no port {}: add it there or correct the label",
                quoted(label)
            );
            report.error(path, message);
        }
    }

    /// Whether any service has checks.
    pub(super) fn has_checks(&self) -> bool {
        let checks = self.list.iter().filter_map(|service| service.get("Checks")?.as_array());
        checks.into_iter().any(|checks| !checks.is_empty())
    }

    /// The services as a JSON array in stored form; empty when there are none.
    pub(super) fn into_text(self) -> Text {
        if self.list.is_empty() {
            return Text::from("");
        }
        stored::text(&Value::Array(self.list))
    }
}

/// A name as DNS has it.
fn is_service_name(name: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 63
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && ends(name.chars().next())
        && ends(name.chars().last())
}

fn one_of(fields: &mut Fields<'_>, name: &'static str, allowed: &[&str], report: &mut Report) {
    if let Some(value) = fields.text_filled(name, report)
        && !allowed.contains(&value)
    {
        let message = format!("{} is none of {}", quoted(value), allowed.join(", "));
        report.error(fields.at(name), message);
    }
}

/// A check has a type, what its type needs, and times of a second at least.
fn check_check(check: &mut Fields<'_>, has_port: bool, report: &mut Report) {
    let types = ["http", "tcp", "grpc", "script"];
    let Some(kind) = check.text_filled("Type", report) else {
        report.error(check.at("Type"), "is missing: use http, tcp, grpc or script");
        return;
    };
    one_of(check, "Type", &types, report);
    let needed = match kind {
        "http" => Some("Path"),
        "script" => Some("Command"),
        _ => None,
    };
    if let Some(needed) = needed
        && check.text_filled(needed, report).is_none()
    {
        report.error(check.at(needed), format!("is missing: a check of type {kind} needs it"));
    }
    if kind != "script" && !has_port && check.text_filled("PortLabel", report).is_none() {
        let message = "neither the check nor its service has a port: name one";
        report.error(check.at("PortLabel"), message);
    }
    for name in ["Interval", "Timeout"] {
        match check.duration_ms(name, report) {
            Some(1_000..) => {}
            Some(_) => report.error(check.at(name), "must be at least 1s"),
            None => report.error(check.at(name), "is missing: a check needs it"),
        }
    }
}
