//! The API's JSON of a job into a validated [`JobSpec`] with Nomad's defaults. Owns what is a valid
//! job; reports everything that is wrong at once, each with its JSON path. A field that is not
//! known is ignored with a warning; one that is known and not built yet is refused.

mod condition;
mod driver;
mod fields;
mod group;
mod network;
mod periodic;
mod policy;
mod references;
mod scaling;
mod service;
mod stored;
mod task;

use std::{collections::BTreeSet, fmt};

use fsm::{
    JobKey, JobKind, JobSpec, Text,
    job::{Parameterized, TaskGroup},
    limits::{JOB_BYTES_MAX, JOB_COUNT_MAX, JOB_PRIORITY_MAX, NAME_BYTES_MAX},
};
use serde_json::Value;

use super::suggest::did_you_mean;
pub use driver::{is_checked as driver_is_checked, say_missing as say_missing_driver};
use fields::{Fields, Report, is_empty, quoted};
pub use periodic::check_to_come;
use policy::Inherited;

/// Priority of a job that asks for none.
const PRIORITY_DEFAULT: u16 = 50;
/// Groups of a job, tasks of a group, ports of a group, conditions of a block: lists a person
/// writes stay below this.
const LIST_MAX: usize = 1_000;

/// A job that can be registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// The job.
    pub spec: JobSpec,
    /// What the job asks for and does not get.
    pub warnings: Vec<String>,
}

/// Something wrong with one field of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldError {
    /// JSON path, for example `Job.TaskGroups[0].Count`.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for FieldError {}

/// Converts and validates the job (the object with `ID` and `TaskGroups`, without the `Job` around
/// it). All errors at once.
pub fn to_spec(job: &Value) -> Result<Conversion, Vec<FieldError>> {
    let mut report = Report::default();
    let spec = job_spec(job, &mut report);
    if let Some(spec) = &spec
        && report.errors.is_empty()
    {
        let bytes = spec.bytes();
        if bytes > JOB_BYTES_MAX {
            let message = format!(
                "the job is {bytes} bytes long, at most {JOB_BYTES_MAX} are allowed: move large texts out of it"
            );
            report.error("Job", message);
        }
    }
    match spec {
        Some(spec) if report.errors.is_empty() => {
            Ok(Conversion { spec, warnings: report.warnings })
        }
        _ => Err(report.errors),
    }
}

/// Fields that servers write and clients send back: no part of what a user wrote.
pub(super) const SERVER_FIELDS: [&str; 16] = [
    "PeriodicLaunches",
    "Status",
    "StatusDescription",
    "Version",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "SubmitTime",
    "Stable",
    "Dispatched",
    "DispatchIdempotencyToken",
    "NomadTokenID",
    "VersionTag",
    "UI",
    "ConsulToken",
    "VaultToken",
];

fn job_spec(job: &Value, report: &mut Report) -> Option<JobSpec> {
    let mut fields = Fields::new(job, "Job".to_owned(), report)?;
    fields.ignore(&SERVER_FIELDS);
    if fields.boolean("Stop", report) == Some(true) {
        report.warning("Stop is ignored: registering a job starts it");
    }
    refuse_unsupported(&mut fields, report);

    let id = job_id(&mut fields, report);
    let name = display_name(&mut fields, &id, report);
    let kind = job_kind(&mut fields, report);
    let priority = priority(&mut fields, report);
    let namespace = word(&mut fields, "Namespace", "default", report);
    let region = word(&mut fields, "Region", "global", report);
    let node_pool = word(&mut fields, "NodePool", "default", report);
    let all_at_once = fields.boolean("AllAtOnce", report).unwrap_or(false);
    let datacenters = datacenters(&mut fields, report);
    let conditions = condition::read(&mut fields, kind, true, report);
    let spreads = condition::spreads(&mut fields, kind, report);
    let meta = fields.text_map("Meta", report);
    let parameterized = parameterized(&mut fields, kind, report);
    let periodic = periodic::read(&mut fields, kind, report);
    if parameterized.is_some() && periodic.is_some() {
        let message = "is of a parameterized job, which starts when it is dispatched: keep one of the two blocks";
        report.error(fields.at("Periodic"), message);
    }
    let has_update = fields.value("Update").is_some_and(|block| !is_empty(block));
    let inherited = Inherited::read(&mut fields, kind, report);
    let groups = groups(&mut fields, &name, &inherited, report);
    fields.finish(report);

    let spec = JobSpec {
        key: JobKey { namespace, id: Text::from(id) },
        name,
        region,
        kind,
        priority,
        all_at_once,
        datacenters,
        node_pool,
        constraints: conditions.constraints,
        affinities: conditions.affinities,
        spreads,
        groups,
        meta,
        update: inherited.job_update(has_update),
        parameterized,
        periodic,
        dispatch: None,
    };
    references::check(&spec, report);
    Some(spec)
}

fn refuse_unsupported(fields: &mut Fields<'_>, report: &mut Report) {
    for (field, what) in [
        ("Multiregion", "multiregion blocks are"),
        ("Payload", "a payload outside a dispatch is"),
        ("VaultNamespace", "Vault namespaces are"),
        ("ConsulNamespace", "Consul namespaces are"),
    ] {
        fields.refuse(field, "job", what, report);
    }
}

/// A child that was inspected comes back as a job of its own.
fn refuse_child(parent: Option<&str>, at: String, report: &mut Report) {
    if let Some(parent) = parent {
        let message = format!(
            "it is a child of \"{parent}\", which makes its children: start another one of that, or \
             go back to a version of this one with: quorate job revert"
        );
        report.error(at, message);
    }
}

fn job_id(fields: &mut Fields<'_>, report: &mut Report) -> String {
    let path = fields.at("ID");
    let parent = fields.text_filled("ParentID", report);
    refuse_child(parent, fields.at("ParentID"), report);
    let Some(id) = fields.text_filled("ID", report) else {
        report.error(path, "a job needs an ID: add it");
        return String::new();
    };
    check_word(id, path.clone(), report);
    if parent.is_none() && JobKey::new("", id).parent().is_some() {
        let message = "ends in the form of a dispatched or periodic job: call it something else";
        report.error(path, message);
    }
    id.to_owned()
}

/// Clients that fill in defaults send 0 for "the servers' default".
fn priority(fields: &mut Fields<'_>, report: &mut Report) -> u16 {
    if fields.integer("Priority", &mut Report::default()) == Some(0) {
        return PRIORITY_DEFAULT;
    }
    fields
        .integer_in("Priority", 1..=i64::from(JOB_PRIORITY_MAX), report)
        .and_then(|priority| u16::try_from(priority).ok())
        .unwrap_or(PRIORITY_DEFAULT)
}

fn display_name(fields: &mut Fields<'_>, id: &str, report: &mut Report) -> Text {
    let path = fields.at("Name");
    match fields.text_filled("Name", report) {
        Some(name) => {
            check_name(name, path, report);
            Text::from(name)
        }
        None => Text::from(id),
    }
}

fn job_kind(fields: &mut Fields<'_>, report: &mut Report) -> JobKind {
    let path = fields.at("Type");
    let Some(name) = fields.text_filled("Type", report) else { return JobKind::Service };
    JobKind::parse(name).unwrap_or_else(|| {
        let names = JobKind::ALL.map(JobKind::name);
        let hint = did_you_mean(name, names).unwrap_or_else(|| format!("use {}", names.join(", ")));
        report.error(path, format!("{} is not a job type: {hint}", quoted(name)));
        JobKind::Service
    })
}

/// A name without blanks, with a default.
fn word(fields: &mut Fields<'_>, field: &'static str, default: &str, report: &mut Report) -> Text {
    let path = fields.at(field);
    let text = fields.text_filled(field, report).unwrap_or(default);
    check_word(text, path, report);
    Text::from(text)
}

/// A name without blanks.
fn check_word(name: &str, path: String, report: &mut Report) {
    if name.contains(' ') {
        report.error(path, format!("{} contains a blank: write it without", quoted(name)));
    } else {
        check_name(name, path, report);
    }
}

/// Names are printable and short. They may have blanks, no other white space.
fn check_name(name: &str, path: String, report: &mut Report) {
    if name.is_empty() {
        report.error(path, "must not be empty");
    } else if name.len() > NAME_BYTES_MAX {
        let message = format!("is {} bytes long, at most {NAME_BYTES_MAX} are allowed", name.len());
        report.error(path, message);
    } else if let Some(bad) = name.chars().find(|c| !is_printable(*c)) {
        let bad = bad.escape_debug();
        report.error(
            path,
            format!(
                "{} contains the character '{bad}': names have no invisible characters",
                quoted(name)
            ),
        );
    }
}

/// Whether a character shows, or is a plain blank.
pub fn is_printable(c: char) -> bool {
    let invisible = matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    c == ' ' || !(invisible || c.is_whitespace() || c.is_control())
}

fn datacenters(fields: &mut Fields<'_>, report: &mut Report) -> Vec<Text> {
    let path = fields.at("Datacenters");
    let names = bounded(fields.texts("Datacenters", report), &path, report);
    for (position, name) in names.iter().enumerate() {
        check_name(name, format!("{path}[{position}]"), report);
    }
    if names.is_empty() { vec![Text::from("*")] } else { names }
}

/// A list that a person writes is not longer than [`LIST_MAX`]; of a longer one only the beginning
/// is read, after an error, because lists are compared with themselves and with each other.
fn bounded<T>(mut list: Vec<T>, path: &str, report: &mut Report) -> Vec<T> {
    let length = list.len();
    if length > LIST_MAX {
        report.error(path, format!("has {length} entries, at most {LIST_MAX} are allowed"));
        list.truncate(LIST_MAX);
    }
    list
}

fn parameterized(
    fields: &mut Fields<'_>,
    kind: JobKind,
    report: &mut Report,
) -> Option<Parameterized> {
    let mut block = fields.object("ParameterizedJob", report)?;
    if !matches!(kind, JobKind::Batch | JobKind::Sysbatch) {
        let message = format!(
            "only batch and sysbatch jobs can be parameterized, this one is {}: set Type to \"batch\"",
            kind.name()
        );
        report.error(block.path.clone(), message);
    }
    let path = block.at("Payload");
    let payload = block.text_filled("Payload", report).unwrap_or("optional");
    if !matches!(payload, "optional" | "required" | "forbidden") {
        let message = format!("{} is none of optional, required, forbidden", quoted(payload));
        report.error(path, message);
    }
    let path = block.at("MetaRequired");
    let meta_required = bounded(block.texts("MetaRequired", report), &path, report);
    let path = block.at("MetaOptional");
    let meta_optional = bounded(block.texts("MetaOptional", report), &path, report);
    for key in meta_required.iter().chain(&meta_optional) {
        if key.is_empty() || key.contains(['\0', '=']) {
            let message = "a key is empty or has a NUL character or a =: rename it";
            report.error(block.path.clone(), message);
        }
    }
    for keys in [&meta_required, &meta_optional] {
        let mut seen = BTreeSet::new();
        for key in keys.iter().filter(|key| !seen.insert(Text::clone(key))) {
            let message = format!("{} is there twice: keep one", quoted(key));
            report.error(block.path.clone(), message);
        }
    }
    for key in meta_optional.iter().filter(|key| meta_required.contains(key)) {
        let message = format!("{} is required as well: keep it in one list", quoted(key));
        report.error(path.clone(), message);
    }
    let max = i64::from(u32::MAX);
    let max_running = block.integer_in("MaxRunning", 0..=max, report).unwrap_or(0);
    block.finish(report);
    Some(Parameterized {
        payload: Text::from(payload),
        meta_required,
        meta_optional,
        max_running: u32::try_from(max_running).unwrap_or(0),
    })
}

fn groups(
    fields: &mut Fields<'_>,
    job_name: &str,
    inherited: &Inherited,
    report: &mut Report,
) -> Vec<TaskGroup> {
    let path = fields.at("TaskGroups");
    let list = fields.list("TaskGroups", report);
    if list.is_empty() {
        report.error(path.clone(), "a job needs at least one task group: add one");
    }
    let mut groups: Vec<TaskGroup> = Vec::new();
    for (path, item) in bounded(list, &path, report) {
        if let Some(group) = group::read(item, path.clone(), job_name, inherited, report) {
            if groups.iter().any(|other| other.name == group.name) {
                let message =
                    format!("another group is called {}: rename one", quoted(&group.name));
                report.error(format!("{path}.Name"), message);
            }
            groups.push(group);
        }
    }
    let total: u64 = groups.iter().map(|group| u64::from(group.count)).sum();
    if total > JOB_COUNT_MAX {
        let message = format!(
            "the counts add up to {total}, at most {JOB_COUNT_MAX} are allowed: split the job"
        );
        report.error(path.clone(), message);
    }
    policy::check_promotion(&path, &groups, report);
    groups
}
