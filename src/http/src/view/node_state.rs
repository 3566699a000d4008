//! The state of a node as people read it: health, readiness, eligibility, and why it gets no work.
//! An actor is what a client said, so each comes with `…Verified: false`.

use fsm::{
    Node, State,
    node::{
        Eligibility, Liveness, MassLoss, NodeFailure, OfflineNode, Readiness, SuspendReason,
        Suspension,
    },
};
use shapes::{NodeEligibility, NodeHealth, NodeHealthStub, NodeReadiness, NodeShortage};

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
pub(super) fn health_stub(node: &Node) -> NodeHealthStub {
    match node.suspension() {
        None => NodeHealthStub {
            status: "ok".to_owned(),
            until: time::ZERO_TIME.to_owned(),
            ..NodeHealthStub::default()
        },
        Some(suspension) => NodeHealthStub {
            detail: suspension.detail.to_string(),
            reason: suspension.reason.name().to_owned(),
            status: "suspended".to_owned(),
            until: time::rfc3339(suspension.until.unwrap_or(0)),
        },
    }
}

/// Health with all that it comes from.
pub(super) fn health(node: &Node) -> NodeHealth {
    let NodeHealthStub { detail, reason, status, until } = health_stub(node);
    let suspension = node.suspension();
    NodeHealth {
        by: suspension.map_or_else(String::new, |suspension| suspension.by.to_string()),
        by_verified: false,
        detail,
        failures: node.failures.iter().map(failure).collect(),
        reason,
        since: time::rfc3339(suspension.map_or(0, |suspension| suspension.since)),
        status,
        strike_at: time::rfc3339(node.strike_at),
        strikes: node.strikes,
        until,
    }
}

fn failure(failure: &NodeFailure) -> shapes::NodeFailure {
    shapes::NodeFailure {
        at: time::rfc3339(failure.at),
        detail: failure.detail.to_string(),
        job: failure.job.id.to_string(),
        namespace: failure.job.namespace.to_string(),
    }
}

/// The last result of the readiness check.
pub(super) fn readiness(node: &Node) -> NodeReadiness {
    match &node.check {
        None => NodeReadiness {
            at: time::ZERO_TIME.to_owned(),
            reason: String::new(),
            status: "unknown".to_owned(),
        },
        Some(check) => NodeReadiness {
            at: time::rfc3339(check.at),
            reason: check.reason.to_string(),
            status: check.readiness.name().to_owned(),
        },
    }
}

/// What the machine is short of.
pub(super) fn shortage(node: &Node) -> NodeShortage {
    let shortage = node.shortage.as_ref();
    NodeShortage {
        reason: shortage.map_or_else(String::new, |shortage| shortage.reason.to_string()),
        since: time::rfc3339(shortage.map_or(0, |shortage| shortage.since)),
    }
}

/// Whether an operator allows new work.
pub(super) fn eligibility(eligibility: &Eligibility) -> NodeEligibility {
    NodeEligibility {
        at: time::rfc3339(eligibility.at),
        by: eligibility.by.to_string(),
        by_drain: eligibility.by_drain,
        by_verified: false,
        index: eligibility.index,
        ineligible: eligibility.ineligible,
        reason: eligibility.reason.to_string(),
    }
}

/// An ineligible node that is not registered.
pub(crate) fn offline_node(row: &OfflineNode) -> shapes::OfflineNode {
    shapes::OfflineNode {
        at: time::rfc3339(row.eligibility.at),
        by: row.eligibility.by.to_string(),
        by_verified: false,
        id: row.node.to_string(),
        index: row.eligibility.index,
        name: row.name.to_string(),
        reason: row.eligibility.reason.to_string(),
    }
}

/// A mass loss: `StillDown` of its nodes have not come back and are not forgotten.
pub(crate) fn mass_loss(state: &State, loss: &MassLoss) -> shapes::MassLoss {
    let registered = loss.nodes.iter().filter_map(|id| state.nodes().get(id));
    let still_down = registered.filter(|node| is_silent(node)).count();
    let end = loss.end.as_ref();
    shapes::MassLoss {
        active: end.is_none(),
        count: loss.nodes.len(),
        create_index: loss.create_index,
        ended_at: time::rfc3339(end.map_or(0, |end| end.at)),
        ended_by: end.map_or_else(String::new, |end| end.by.to_string()),
        ended_by_verified: false,
        modify_index: loss.modify_index,
        nodes: loss.nodes.iter().map(ToString::to_string).collect(),
        since: time::rfc3339(loss.since),
        still_down,
    }
}
