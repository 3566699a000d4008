//! Service blocks: checked for names and references, kept as JSON in canonical form. Nothing is registered anywhere yet; each block
//! gives a warning that says so.

use std::collections::BTreeSet;

use fsm::{Text, job::Network};
use serde_json::{Map, Value};

use super::{
    bounded,
    fields::{Fields, Report, quoted},
};

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
    job_id: &'g str,
    group: &'g str,
    ports: BTreeSet<Text>,
    list: Vec<Value>,
}

impl<'g> Services<'g> {
    pub(super) fn new(job_id: &'g str, group: &'g str, network: Option<&Network>) -> Self {
        let ports = network.map_or(&[][..], |network| &network.ports);
        let ports = ports.iter().map(|port| Text::clone(&port.label)).collect();
        Self { job_id, group, ports, list: Vec::new() }
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
            let default = match task {
                Some(task) => format!("{}-{}-{task}", self.job_id, self.group),
                None => format!("{}-{}", self.job_id, self.group),
            };
            let name = fields.text_filled("Name", report).map_or(default, str::to_owned);
            self.check(&mut fields, &name, report);
            fields.finish(report);
            let mut kept = without_nulls(item);
            if let Value::Object(map) = &mut kept {
                map.insert("Name".to_owned(), name.clone().into());
                if let Some(task) = task {
                    map.insert("TaskName".to_owned(), task.into());
                }
            }
            report.warning(format!(
                "service {}: service blocks are stored but not registered anywhere yet",
                quoted(&name)
            ));
            self.list.push(kept);
        }
    }

    fn check(&self, fields: &mut Fields<'_>, name: &str, report: &mut Report) {
        let owner = format!("service {}", quoted(name));
        fields.refuse("Connect", &owner, "connect blocks are", report);
        fields.refuse("Identity", &owner, "identity blocks are", report);
        fields.ignore(&KEPT);
        self.check_port(fields, report);
        let checks = fields.list("Checks", report);
        if !checks.is_empty() {
            report.warning(format!("{owner}: checks are stored but not run yet"));
        }
        for (path, check) in bounded(checks, &fields.at("Checks"), report) {
            let Some(mut check) = Fields::new(check, path, report) else { continue };
            let path = check.at("Type");
            match check.text_filled("Type", report) {
                Some("http" | "tcp" | "grpc" | "script") => {}
                Some(other) => {
                    let message = format!("{} is none of http, tcp, grpc, script", quoted(other));
                    report.error(path, message);
                }
                None => report.error(path, "is missing: use http, tcp, grpc or script"),
            }
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

    /// The services as a JSON array in canonical form; empty when there are none.
    pub(super) fn into_text(self) -> Text {
        if self.list.is_empty() {
            return Text::from("");
        }
        Text::from(canonical(&Value::Array(self.list)).to_string())
    }
}

fn without_nulls(value: &Value) -> Value {
    let Value::Object(map) = value else { return value.clone() };
    let kept = map.iter().filter(|(_, value)| !value.is_null());
    Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
}

/// The same value with keys in order, whatever order the JSON library keeps.
pub(super) fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            let sorted: Map<String, Value> =
                entries.into_iter().map(|(key, value)| (key.clone(), canonical(value))).collect();
            Value::Object(sorted)
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
