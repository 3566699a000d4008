//! What a row may be: the bounds of jobs, nodes, namespaces and pools. The edges check earlier, to
//! say more; `apply` checks here whatever way a command came, because a row that is too large costs
//! every server.
//!
//! Each check says what is too much, how much it is, and the bound.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    codec,
    command::Rejection,
    id::Text,
    job::{
        Affinity, JobKind, JobSpec, Periodic, Spread, Submission, Task, TaskGroup, TaskResources,
    },
    limits,
    node::NodeDescription,
    pool::InstancePool,
    resources::Resources,
    settings::{Namespace, NodePool},
};

/// Why a row cannot be like this.
type Checked = Result<(), String>;

/// The rejection of a row that is over a bound.
pub(crate) fn refused(why: String) -> Rejection {
    Rejection::Invalid(why.into())
}

/// Refuses one more row of a table that is full.
pub(crate) fn check_room(what: &str, rows: usize, max: usize) -> Result<(), Rejection> {
    if rows < max {
        return Ok(());
    }
    Err(refused(format!("there are {rows} {what}, at most {max} may be: delete some")))
}

/// A text, cut to so many bytes.
pub(crate) fn cut(text: &Text, bytes_max: usize) -> Text {
    if text.len() <= bytes_max {
        return text.clone();
    }
    let end = text.floor_char_boundary(bytes_max);
    text.get(..end).unwrap_or_default().into()
}

/// Refuses notes about a drain that are over the bound of a meta map.
pub(crate) fn check_drain_meta(meta: &BTreeMap<Text, Text>) -> Result<(), Rejection> {
    check_map("the drain's meta", meta, limits::META_BYTES_MAX).map_err(refused)
}

/// Refuses a tag of a version that has no name, or one too long.
pub(crate) fn check_tag(name: &Text, description: &Text) -> Result<(), Rejection> {
    named("the tag", name).map_err(refused)?;
    let bytes_max = limits::DESCRIPTION_BYTES_MAX;
    short("the description of the tag", description, bytes_max).map_err(refused)
}

/// Refuses what a scaling event says at too great length.
pub(crate) fn check_scaling_event(message: &Text, meta_json: &Text) -> Checked {
    let bytes_max = limits::SCALING_TEXT_BYTES_MAX;
    short("the message of a scaling event", message, bytes_max)?;
    short("the meta of a scaling event", meta_json, bytes_max)
}

fn at_most(what: &str, has: u64, max: u64) -> Checked {
    if has <= max { Ok(()) } else { Err(format!("{what} is {has}, at most {max} may be")) }
}

pub(crate) fn few(what: &str, has: usize, max: usize) -> Checked {
    if has <= max { Ok(()) } else { Err(format!("{has} {what}, at most {max} may be")) }
}

fn at_most_bytes(what: &str, has: usize, max: usize) -> Checked {
    if has <= max { Ok(()) } else { Err(format!("{what} has {has} bytes, at most {max} may be")) }
}

fn short(what: &str, text: &str, max: usize) -> Checked {
    at_most_bytes(what, text.len(), max)
}

fn named(what: &str, name: &str) -> Checked {
    if name.is_empty() {
        return Err(format!("{what} has no name"));
    }
    short(what, name, limits::NAME_BYTES_MAX)
}

fn bytes_of(map: &BTreeMap<Text, Text>) -> usize {
    map.iter()
        .fold(0, |sum, (key, value)| sum.saturating_add(key.len()).saturating_add(value.len()))
}

/// Entries and bytes of a map that people fill.
fn check_map(what: &str, map: &BTreeMap<Text, Text>, bytes_max: usize) -> Checked {
    few(&format!("entries of {what}"), map.len(), limits::LIST_MAX)?;
    let bytes = bytes_of(map);
    if bytes > bytes_max {
        return Err(format!("{what} has {bytes} bytes, at most {bytes_max} may be"));
    }
    Ok(())
}

fn check_resources(what: &str, resources: Resources) -> Checked {
    let Resources { cpu_mhz, memory_mb, disk_mb } = resources;
    for (name, amount) in [("cpu", cpu_mhz), ("memory", memory_mb), ("disk", disk_mb)] {
        at_most(&format!("{name} of {what}"), amount, limits::SIZE_MAX)?;
    }
    Ok(())
}

fn check_times(times: &[(&str, u64)]) -> Checked {
    for &(what, ms) in times {
        at_most(&format!("{what}, in ms,"), ms, limits::JOB_TIME_MS_MAX)?;
    }
    Ok(())
}

fn check_weights(affinities: &[Affinity], spreads: &[Spread]) -> Checked {
    if let Some(wrong) = affinities.iter().find(|one| !(-100..=100).contains(&one.weight)) {
        return Err(format!("weight of an affinity is {}, from -100 to 100 may be", wrong.weight));
    }
    for spread in spreads {
        at_most("weight of a spread", spread.weight.into(), 100)?;
        for target in &spread.targets {
            at_most("percent of a spread", target.percent.into(), 100)?;
        }
    }
    Ok(())
}

impl Periodic {
    fn check(&self, kind: JobKind) -> Checked {
        if !matches!(kind, JobKind::Batch | JobKind::Sysbatch) {
            let kind = kind.name();
            return Err(format!("a periodic job is of type batch or sysbatch, not {kind}"));
        }
        if self.specs.is_empty() {
            return Err("0 lines of cron in the job, at least 1 must be".into());
        }
        few("lines of cron in the job", self.specs.len(), limits::CRONS_MAX)?;
        for text in self.specs.iter().chain([&self.time_zone]) {
            short("a line of cron, or its time zone,", text, limits::CRON_BYTES_MAX)?;
        }
        Ok(())
    }
}

impl JobSpec {
    /// Why a job cannot be like this.
    pub fn check(&self) -> Checked {
        named("job", &self.key.id)?;
        short("name of the job", &self.name, limits::NAME_BYTES_MAX)?;
        at_most("priority", self.priority.into(), limits::JOB_PRIORITY_MAX.into())?;
        if self.parameterized.is_some() && self.periodic.is_some() {
            return Err("the job is periodic and parameterized: it can be one of the two".into());
        }
        if let Some(block) = &self.periodic {
            block.check(self.kind)?;
        }
        if self.is_parent() {
            // The names of its children begin with it.
            let kind = if self.periodic.is_some() { "periodic" } else { "parameterized" };
            let what = format!("id of a {kind} job");
            short(&what, &self.key.id, limits::PARENT_ID_BYTES_MAX)?;
        }
        few("task groups in the job", self.groups.len(), limits::LIST_MAX)?;
        let count = self.groups.iter().map(|group| u64::from(group.count)).sum();
        at_most("count of all groups", count, limits::JOB_COUNT_MAX)?;
        check_weights(&self.affinities, &self.spreads)?;
        let mut names = BTreeSet::new();
        for group in &self.groups {
            named("a task group", &group.name)?;
            if !names.insert(&group.name) {
                return Err(format!("two task groups are called \"{}\"", group.name));
            }
            group.check().map_err(|why| format!("group \"{}\": {why}", group.name))?;
        }
        at_most_bytes("the job", self.bytes(), limits::JOB_BYTES_MAX)
    }

    /// Its encoded size, bytes, of which [`limits::JOB_BYTES_MAX`] may be. That of a periodic or
    /// parameterized job has room for the id and name of a child: none of its launches is refused
    /// for its size.
    pub fn bytes(&self) -> usize {
        let child = self.key.id.len().saturating_add(limits::LAUNCH_NAME_BYTES_MAX);
        let room = if self.is_parent() { child.saturating_mul(2) } else { 0 };
        codec::encoded_len(self).saturating_add(room)
    }
}

impl Submission {
    /// Why a submission cannot be like this.
    pub(crate) fn check(&self) -> Checked {
        few("variables of the submission", self.variable_flags.len(), limits::LIST_MAX)?;
        at_most_bytes("the submission", self.bytes(), limits::SUBMISSION_BYTES_MAX)
    }
}

impl TaskGroup {
    fn check(&self) -> Checked {
        few("tasks", self.tasks.len(), limits::LIST_MAX)?;
        let ports = self.network.as_ref().map_or(0, |network| network.ports.len());
        few("ports", ports, limits::LIST_MAX)?;
        at_most("disk", self.disk_mb, limits::SIZE_MAX)?;
        check_weights(&self.affinities, &self.spreads)?;
        let migrate = &self.migrate;
        check_times(&[
            ("shutdown_delay", self.shutdown_delay_ms),
            ("max_run_duration", self.max_run_ms),
            ("interval of restart", self.restart.interval_ms),
            ("delay of restart", self.restart.delay_ms),
            ("min_healthy_time of migrate", migrate.healthy_ms_min),
            ("healthy_deadline of migrate", migrate.healthy_deadline_ms),
        ])?;
        if let Some(update) = &self.update {
            at_most("update canary", u64::from(update.canaries), limits::JOB_COUNT_MAX)?;
            check_times(&[
                ("stagger of update", update.stagger_ms),
                ("min_healthy_time of update", update.healthy_ms_min),
                ("healthy_deadline of update", update.healthy_deadline_ms),
                ("progress_deadline of update", update.progress_deadline_ms),
            ])?;
        }
        if let Some(policy) = &self.reschedule {
            check_times(&[
                ("interval of reschedule", policy.interval_ms),
                ("delay of reschedule", policy.delay_ms),
                ("max_delay of reschedule", policy.delay_ms_max),
            ])?;
        }
        if let Some(why) = self.scaling.as_ref().and_then(|scaling| scaling.refuses(self.count)) {
            return Err(why);
        }
        let mut names = BTreeSet::new();
        for task in &self.tasks {
            named("a task", &task.name)?;
            if !names.insert(&task.name) {
                return Err(format!("two tasks are called \"{}\"", task.name));
            }
            task.check().map_err(|why| format!("task \"{}\": {why}", task.name))?;
        }
        Ok(())
    }
}

impl Task {
    fn check(&self) -> Checked {
        let resources = &self.resources;
        at_most("cpu", resources.cpu_mhz, limits::SIZE_MAX)?;
        at_most("memory", resources.memory_mb, limits::SIZE_MAX)?;
        if resources.memory_mb_max != TaskResources::UNLIMITED {
            at_most("memory_max", resources.memory_mb_max, limits::SIZE_MAX)?;
        }
        let restart = &self.restart;
        check_times(&[
            ("kill_timeout", self.kill_timeout_ms),
            ("shutdown_delay", self.shutdown_delay_ms),
            ("interval of restart", restart.interval_ms),
            ("delay of restart", restart.delay_ms),
        ])?;
        at_most("max_files of logs", self.logs.files_max.into(), limits::LOG_FILES_MAX)?;
        at_most("max_file_size of logs", self.logs.file_mb_max.into(), limits::LOG_FILE_MB_MAX)?;
        check_weights(&self.affinities, &[])?;
        let file = &self.dispatch_payload;
        if file.is_empty() {
            return Ok(());
        }
        check_payload_file(file).map_err(|why| format!("dispatch_payload: \"{file}\" {why}"))
    }
}

/// Why a payload cannot be put into a file of this name, which is to be below a task's `local/`.
pub fn check_payload_file(file: &str) -> Result<(), &'static str> {
    if file.len() > limits::PAYLOAD_FILE_BYTES_MAX {
        return Err("is too long: use at most 240 bytes");
    }
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    if !file.split('/').all(is_name) || file.contains(['\\', '\0']) {
        return Err(
            "is not a path below local/: write it without \"..\" and without a slash first",
        );
    }
    Ok(())
}

impl NodeDescription {
    /// Why a node cannot be like this.
    pub fn check(&self) -> Checked {
        let texts = [
            &self.name,
            &self.datacenter,
            &self.class,
            &self.pool,
            &self.http_address,
            &self.version,
            &self.start.rival,
            &self.resources.address,
        ];
        for text in texts {
            short("a text of the node", text, limits::NODE_TEXT_BYTES_MAX)?;
        }
        few("drivers of the node", self.drivers.len(), limits::NODE_DRIVERS_MAX)?;
        few("attributes of the node", self.attributes.len(), limits::LIST_MAX)?;
        few("meta entries of the node", self.meta.len(), limits::LIST_MAX)?;
        let ports = usize::from(u16::MAX).saturating_add(1);
        few("reserved ports of the node", self.resources.reserved_ports.len(), ports)?;
        let mut bytes = bytes_of(&self.attributes).saturating_add(bytes_of(&self.meta));
        for (name, driver) in &self.drivers {
            few("attributes of a driver", driver.attributes.len(), limits::LIST_MAX)?;
            let texts = name.len().saturating_add(driver.description.len());
            bytes = bytes.saturating_add(texts).saturating_add(bytes_of(&driver.attributes));
        }
        if bytes > limits::NODE_BYTES_MAX {
            let max = limits::NODE_BYTES_MAX;
            return Err(format!(
                "attributes, meta and drivers of the node have {bytes} bytes, at most {max} may be"
            ));
        }
        check_resources("the node", self.resources.total)?;
        check_resources("the node's reserve", self.resources.reserved)
    }
}

impl Namespace {
    /// Why a namespace cannot be like this.
    pub fn check(&self) -> Checked {
        short("description", &self.description, limits::DESCRIPTION_BYTES_MAX)?;
        check_map("meta", &self.meta, limits::META_BYTES_MAX)
    }
}

impl NodePool {
    /// Why a node pool cannot be like this.
    pub fn check(&self) -> Checked {
        short("description", &self.description, limits::DESCRIPTION_BYTES_MAX)?;
        check_map("meta", &self.meta, limits::META_BYTES_MAX)
    }
}

impl InstancePool {
    /// Refuses texts that are longer than a pool file has any use for.
    pub(crate) fn check_bytes(&self) -> Checked {
        short("provider", &self.provider, limits::NAME_BYTES_MAX)?;
        for (name, kind) in &self.types {
            let node = &kind.node;
            let texts = [&kind.provider_type, &kind.quota_group, &kind.image];
            for text in texts.into_iter().chain([&node.datacenter, &node.class]) {
                short(&format!("a text of type \"{name}\""), text, limits::NAME_BYTES_MAX)?;
            }
            few("drivers of a type", node.drivers.len(), limits::NODE_DRIVERS_MAX)?;
            for driver in &node.drivers {
                short("a driver of a type", driver, limits::NAME_BYTES_MAX)?;
            }
            for (what, map) in [("attributes", &node.attributes), ("meta", &node.meta)] {
                let what = format!("{what} of type \"{name}\"");
                check_map(&what, map, limits::TYPE_BYTES_MAX)?;
            }
        }
        Ok(())
    }
}
