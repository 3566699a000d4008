//! Scaling blocks of groups: bounds of the count, and a policy that an autoscaler reads and nothing
//! here does.

use fsm::{JobKind, Text, job::Scaling};

use super::{
    fields::{Fields, Report, is_empty, quoted},
    stored,
    task::{CONFIG_DEPTH_MAX, is_deeper},
};

/// The one kind of policy that a group can have.
const HORIZONTAL: &str = "horizontal";

/// Count and scaling of a group. A group that names no count begins with the least that it may
/// have.
pub(super) fn read(
    fields: &mut Fields<'_>,
    kind: JobKind,
    report: &mut Report,
) -> (u32, Option<Scaling>) {
    let count = count(fields, kind, report);
    let Some(value) = fields.value("Scaling") else { return (count.unwrap_or(1), None) };
    let path = fields.at("Scaling");
    if kind.is_per_node() {
        if !is_empty(value) {
            let kind = kind.name();
            let message = format!("{kind} jobs run once per node: remove the scaling block");
            report.error(path, message);
        }
        return (count.unwrap_or(1), None);
    }
    let Some(mut block) = Fields::new(value, path, report) else { return (1, None) };
    let min = block.count("Min", 0, report);
    let count = count.or(min).unwrap_or(1);
    let scaling = scaling(&mut block, min.unwrap_or(count), report);
    if let Some(why) = scaling.as_ref().and_then(|scaling| scaling.refuses(count)) {
        report.error(fields.at("Count"), why);
    }
    block.ignore(&["ID", "Namespace", "Target", "CreateIndex", "ModifyIndex"]);
    block.finish(report);
    (count, scaling)
}

fn count(fields: &mut Fields<'_>, kind: JobKind, report: &mut Report) -> Option<u32> {
    let count = fields.count("Count", 0, report)?;
    if kind.is_per_node() && count > 1 {
        let message = format!(
            "{} jobs run once on every feasible node: the count is 0 or 1, not {count}",
            kind.name()
        );
        report.error(fields.at("Count"), message);
    }
    Some(count)
}

fn scaling(block: &mut Fields<'_>, min: u32, report: &mut Report) -> Option<Scaling> {
    let enabled = block.boolean("Enabled", report).unwrap_or(true);
    let written = block.text_filled("Type", report).unwrap_or(HORIZONTAL);
    if written != HORIZONTAL {
        let message = format!("{} is not \"{HORIZONTAL}\", which a group has", quoted(written));
        report.error(block.at("Type"), message);
    }
    let policy_json = policy(block, report);
    let max = block.value("Max").is_some();
    let Some(max) = block.count("Max", 0, report) else {
        if !max {
            report.error(block.at("Max"), "maximum count must be specified and non-negative");
        }
        return None;
    };
    if max < min {
        let message = format!("maximum count must not be less than minimum count: {max} < {min}");
        report.error(block.at("Max"), message);
        return None;
    }
    Some(Scaling { enabled, min, max, policy_json, kind: HORIZONTAL.into() })
}

fn policy(block: &mut Fields<'_>, report: &mut Report) -> Text {
    let Some(policy) = block.value("Policy") else { return Text::from("") };
    if !policy.is_object() {
        report.error(block.at("Policy"), "expected an object that the autoscaler reads");
        return Text::from("");
    }
    if is_deeper(policy, CONFIG_DEPTH_MAX) {
        let message = format!("is nested more than {CONFIG_DEPTH_MAX} deep");
        report.error(block.at("Policy"), message);
        return Text::from("");
    }
    stored::text(policy)
}
