//! The state of a node as people read it: health, readiness, eligibility, and why it gets no work.
//! An actor is what a client said, so each comes with `…Verified: false`.

use fsm::{
    Node, State,
    node::{
        Eligibility, Liveness, MassLoss, NodeFailure, OfflineNode, Readiness, SuspendReason,
        Suspension,
    },
};
use serde_json::{Value, json};

use super::text;
use crate::time;

/// Why a node gets no work, in one sentence; empty if nothing is in the way.
pub(super) fn status_description(node: &Node) -> String {
    let trust = node.suspension().map(suspended).or_else(|| initializing(node));
    let parts = [silent(node), trust, short(node), out_of_service(node)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn is_silent(node: &Node) -> bool {
    match node.liveness {
        Liveness::Disconnected | Liveness::Down => true,
        Liveness::Initializing | Liveness::Ready => false,
    }
}

fn silent(node: &Node) -> Option<String> {
    let since = time::rfc3339(node.liveness_at);
    is_silent(node).then(|| format!("{} since {since}: no heartbeat", node.liveness.name()))
}

fn suspended(suspension: &Suspension) -> String {
    let Suspension { reason, detail, until, .. } = suspension;
    let until = until.map(time::rfc3339);
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    match (reason, until) {
        (SuspendReason::ReadinessFatal, Some(until)) => {
            format!("suspended ({}){detail}; tried again at {until}", reason.name())
        }
        (_, Some(until)) => format!("suspended ({}) until {until}{detail}", reason.name()),
        (_, None) => format!("suspended ({}){detail}", reason.name()),
    }
}

fn initializing(node: &Node) -> Option<String> {
    if node.liveness != Liveness::Initializing {
        return None;
    }
    Some(match node.check.as_ref().filter(|check| check.readiness != Readiness::Ok) {
        Some(check) if !check.reason.is_empty() => {
            format!("initializing: readiness check: {}", check.reason)
        }
        Some(check) => format!("initializing: readiness check: {}", check.readiness.name()),
        None => "initializing: the agent has not reported that it is ready".to_owned(),
    })
}

fn short(node: &Node) -> Option<String> {
    node.shortage.as_ref().map(|shortage| format!("short of resources: {}", shortage.reason))
}

fn out_of_service(node: &Node) -> Option<String> {
    if node.drain.is_some() {
        return Some("draining".to_owned());
    }
    let eligibility = &node.eligibility;
    eligibility.ineligible.then(|| match &*eligibility.reason {
        "" => "ineligible".to_owned(),
        reason => format!("ineligible: {reason}"),
    })
}

/// Health in a list.
pub(super) fn health_stub(node: &Node) -> Value {
    match node.suspension() {
        None => {
            json!({ "Status": "ok", "Reason": "", "Detail": "", "Until": time::ZERO_TIME })
        }
        Some(suspension) => json!({
            "Status": "suspended",
            "Reason": suspension.reason.name(),
            "Detail": text(&suspension.detail),
            "Until": time::rfc3339(suspension.until.unwrap_or(0)),
        }),
    }
}

/// Health with all that it comes from.
pub(super) fn health(node: &Node) -> Value {
    let mut value = health_stub(node);
    let suspension = node.suspension();
    value["By"] = suspension.map_or_else(|| "".into(), |suspension| text(&suspension.by));
    value["ByVerified"] = false.into();
    value["Since"] = time::rfc3339(suspension.map_or(0, |suspension| suspension.since)).into();
    value["Strikes"] = node.strikes.into();
    value["StrikeAt"] = time::rfc3339(node.strike_at).into();
    value["Failures"] = node.failures.iter().map(failure).collect::<Vec<_>>().into();
    value
}

fn failure(failure: &NodeFailure) -> Value {
    json!({
        "At": time::rfc3339(failure.at),
        "Job": text(&failure.job.id),
        "Namespace": text(&failure.job.namespace),
        "Detail": text(&failure.detail),
    })
}

/// The last result of the readiness check.
pub(super) fn readiness(node: &Node) -> Value {
    match &node.check {
        None => json!({ "Status": "unknown", "Reason": "", "At": time::ZERO_TIME }),
        Some(check) => json!({
            "Status": check.readiness.name(),
            "Reason": text(&check.reason),
            "At": time::rfc3339(check.at),
        }),
    }
}

/// What the machine is short of.
pub(super) fn shortage(node: &Node) -> Value {
    let shortage = node.shortage.as_ref();
    json!({
        "Reason": shortage.map_or_else(|| "".into(), |shortage| text(&shortage.reason)),
        "Since": time::rfc3339(shortage.map_or(0, |shortage| shortage.since)),
    })
}

/// Whether an operator allows new work.
pub(super) fn eligibility(eligibility: &Eligibility) -> Value {
    json!({
        "Ineligible": eligibility.ineligible,
        "ByDrain": eligibility.by_drain,
        "By": text(&eligibility.by),
        "ByVerified": false,
        "Reason": text(&eligibility.reason),
        "At": time::rfc3339(eligibility.at),
        "Index": eligibility.index,
    })
}

/// An ineligible node that is not registered.
pub(crate) fn offline_node(row: &OfflineNode) -> Value {
    json!({
        "ID": row.node.to_string(),
        "Name": text(&row.name),
        "By": text(&row.eligibility.by),
        "ByVerified": false,
        "Reason": text(&row.eligibility.reason),
        "At": time::rfc3339(row.eligibility.at),
        "Index": row.eligibility.index,
    })
}

/// A mass loss: `StillDown` of its nodes have not come back and are not forgotten.
pub(crate) fn mass_loss(state: &State, loss: &MassLoss) -> Value {
    let registered = loss.nodes.iter().filter_map(|id| state.nodes().get(id));
    let still_down = registered.filter(|node| is_silent(node)).count();
    let end = loss.end.as_ref();
    json!({
        "Since": time::rfc3339(loss.since),
        "Nodes": loss.nodes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "Count": loss.nodes.len(),
        "StillDown": still_down,
        "Active": end.is_none(),
        "EndedAt": time::rfc3339(end.map_or(0, |end| end.at)),
        "EndedBy": end.map_or_else(|| "".into(), |end| text(&end.by)),
        "EndedByVerified": false,
        "CreateIndex": loss.create_index,
        "ModifyIndex": loss.modify_index,
    })
}
