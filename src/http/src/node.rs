//! Nodes: `/v1/nodes…` and `/v1/node/ID…`.

use std::collections::BTreeSet;

use fsm::{
    Command, EvaluationId, Extent, NodeId, Reply, State, Text,
    node::{Drain, EvaluateNode, ReapNode, SetDrain, SetEligibility, SuspendNode, UnsuspendNode},
    right::Right,
    table::TableId,
};
use serde_json::{Value, json};
use wire::api::{ReadMode, Written};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    list::{IdPrefix, value_of},
    namespace::meta_of,
    route::{Route, Subject},
    view,
};

const TABLES: &[TableId] = &[TableId::Nodes];
/// Evaluation ids beyond the jobs that the snapshot shows on the node.
const IDS_SLACK: usize = 8;
/// Evaluation ids in one command; the state machine derives more if it needs them.
const IDS_MAX: usize = 4_096;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/nodes", Subject::Node, Right::NodeRead, list),
        // Nomad lacks it: nodes that were set aside and are not registered.
        Route::read("/v1/nodes/offline", Subject::Node, Right::NodeRead, offline),
        Route::read("/v1/node/{id}", Subject::Node, Right::NodeRead, read),
        Route::read("/v1/node/{id}/allocations", Subject::Node, Right::NodeRead, allocations),
        Route::write("/v1/node/{id}/evaluate", Subject::Node, Right::NodeWrite, evaluate),
        Route::write("/v1/node/{id}/eligibility", Subject::Node, Right::NodeWrite, eligibility),
        // Nomad lacks suspensions: they set a node aside as its eligibility does.
        Route::write("/v1/node/{id}/suspend", Subject::Node, Right::NodeWrite, suspend),
        Route::write("/v1/node/{id}/unsuspend", Subject::Node, Right::NodeWrite, unsuspend),
        Route::write("/v1/node/{id}/drain", Subject::Node, Right::NodeWrite, drain),
        Route::write("/v1/node/{id}/purge", Subject::Node, Right::NodeWrite, purge),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = IdPrefix::of(&call)?;
    let with_resources = call.flag("resources")?;
    let with_os = call.flag("os")?;
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> = state.nodes().iter().filter(|n| prefix.matches(&n.id.0)).collect();
        list.fill_stubs(
            rows,
            |n| n.id,
            |n| view::node_stub(n, with_resources, with_os),
            |n| view::node(n),
        )
    })
    .await
}

/// Ineligible nodes that are not registered.
async fn offline(call: Call) -> Result<Answer, Error> {
    let prefix = IdPrefix::of(&call)?;
    call.list(&[TableId::OfflineNodes], move |state, list| {
        let rows = state.offline_nodes().iter();
        let rows: Vec<_> = rows.filter(|row| prefix.matches(&row.node.0)).collect();
        list.fill(rows, |row| row.node, |row| view::offline_node(row))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let id: NodeId = call.id(1)?;
    let index = |state: &State| state.nodes().get(&id).map(|node| node.modify_index);
    let view = |state: &State| state.nodes().get(&id).map(|node| view::node(node));
    call.item("node", TABLES, index, view).await
}

/// Of a node that nobody knows there are none, whatever its id looks like.
async fn allocations(call: Call) -> Result<Answer, Error> {
    let Ok(id) = call.id::<NodeId>(1) else {
        return call.list(&[TableId::Allocations], |_, _| Ok(())).await;
    };
    let extent = move |state: &State| Extent::allocations_of_node(state, id);
    call.list_within(&[TableId::Allocations], extent, move |state, list| {
        let rows: Vec<_> = state.allocations_of_node(id).collect();
        list.fill(rows, |a| (a.create_index, a.id), |a| value_of(&view::allocation(state, a)))
    })
    .await
}

/// Enough ids for one evaluation of each job on the node and of each system job.
async fn evaluation_ids(call: &Call, node: NodeId) -> Result<Vec<EvaluationId>, Error> {
    let snapshot = call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await?;
    Ok(call.evaluation_ids(evaluations_wanted(&snapshot.state, node)))
}

pub(super) fn evaluations_wanted(state: &State, node: NodeId) -> usize {
    let on_node: BTreeSet<_> = state.allocations_of_node(node).map(|a| &a.job).collect();
    let per_node = state
        .jobs()
        .iter()
        .filter(|job| !job.stop && job.kind.is_per_node() && !on_node.contains(&job.key))
        .count();
    (on_node.len() + per_node + IDS_SLACK).min(IDS_MAX)
}

fn answer_node(call: &Call, written: &Written) -> Result<Answer, Error> {
    call.answer_write(written, node_answer(written))
}

fn node_answer(written: &Written) -> Value {
    let modify_index = if let Reply::Node { modify_index, .. } = &written.reply {
        *modify_index
    } else {
        written.index
    };
    let made = written.reply.evaluations();
    let ids: Vec<String> = made.iter().map(ToString::to_string).collect();
    json!({
        "NodeModifyIndex": modify_index,
        "EvalCreateIndex": if ids.is_empty() { 0 } else { written.index },
        "EvalIDs": ids,
    })
}

async fn evaluate(call: Call) -> Result<Answer, Error> {
    let node: NodeId = call.id(1)?;
    let evaluation_ids = evaluation_ids(&call, node).await?;
    let written = call.write(Command::from(EvaluateNode { node, evaluation_ids })).await?;
    answer_node(&call, &written)
}

/// The node id of a body, when there is one, must be that of the path.
fn check_node_id(fields: &Fields<'_>, node: NodeId) -> Result<(), Error> {
    match fields.text("NodeID")?.filter(|id| !id.is_empty()) {
        Some(id) if id.parse() != Ok(node) => {
            Err(Error::bad("NodeID does not match the node in the request path"))
        }
        Some(_) | None => Ok(()),
    }
}

async fn eligibility(call: Call) -> Result<Answer, Error> {
    let node: NodeId = call.id(1)?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    check_node_id(&fields, node)?;
    let eligible = match fields.text("Eligibility")? {
        Some("eligible") => true,
        Some("ineligible") => false,
        Some(other) => {
            let text =
                format!("Eligibility must be \"eligible\" or \"ineligible\", not \"{other}\"");
            return Err(Error::bad(text));
        }
        None => return Err(Error::bad("Eligibility must be \"eligible\" or \"ineligible\"")),
    };
    let (by, reason) = (fields.actor()?, fields.note("Reason")?);
    let evaluation_ids = evaluation_ids(&call, node).await?;
    let command = Command::from(SetEligibility { node, eligible, by, reason, evaluation_ids });
    let written = call.write(command).await?;
    let mut answer = node_answer(&written);
    answer["Warnings"] = if is_unregistered(&written.reply) {
        let word = if eligible { "eligible" } else { "ineligible" };
        format!("node {node} is not registered: it will be {word} when it registers").into()
    } else {
        "".into()
    };
    call.answer_write(&written, answer)
}

/// The incarnations of nodes that are registered begin with 1.
fn is_unregistered(reply: &Reply) -> bool {
    matches!(reply, Reply::Node { incarnation: 0, .. })
}

async fn suspend(call: Call) -> Result<Answer, Error> {
    let node: NodeId = call.id(1)?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    check_node_id(&fields, node)?;
    let (by, reason) = (fields.actor()?, fields.note("Reason")?);
    if reason.is_empty() {
        return Err(Error::bad("Reason is required: it says why the node gets no work"));
    }
    let for_ms = match fields.nanoseconds("For")?.map(u64::try_from) {
        None => None,
        Some(Ok(nanoseconds @ 1..)) => Some(nanoseconds.div_ceil(1_000_000)),
        Some(Ok(0) | Err(_)) => {
            return Err(Error::bad(
                "For must be longer than 0; without it the node is suspended until it is unsuspended",
            ));
        }
    };
    let command = Command::from(SuspendNode { node, by, reason, for_ms });
    let written = call.write(command).await?;
    answer_node(&call, &written)
}

async fn unsuspend(call: Call) -> Result<Answer, Error> {
    let node: NodeId = call.id(1)?;
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    check_node_id(&fields, node)?;
    let (by, reason) = (fields.actor()?, fields.note("Reason")?);
    let written = call.write(Command::from(UnsuspendNode { node, by, reason })).await?;
    answer_node(&call, &written)
}

async fn drain(call: Call) -> Result<Answer, Error> {
    let node: NodeId = call.id(1)?;
    let body = call.json()?;
    if body.is_null() {
        return Err(Error::bad(
            "a JSON request body with DrainSpec is required; the `enable` parameter alone is not supported",
        ));
    }
    let fields = Fields::of(&body)?;
    check_node_id(&fields, node)?;
    let meta = meta_of(&fields)?;
    if !fields.note("Reason")?.is_empty() {
        return Err(Error::unsupported("Reason of a drain"));
    }
    let owner = fields.actor()?;
    let mark_eligible = fields.flag("MarkEligible")?;
    let snapshot = call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await?;
    let drain = match fields.object("DrainSpec")? {
        Some(spec) => Some(drain_of(&spec, snapshot.state.at(), owner)?),
        None => None,
    };
    let evaluation_ids = call.evaluation_ids(evaluations_wanted(&snapshot.state, node));
    let command = Command::from(SetDrain { node, drain, mark_eligible, meta, evaluation_ids });
    let written = call.write(command).await?;
    answer_node(&call, &written)
}

/// A deadline below 0 forces at once, 0 never forces.
fn drain_of(spec: &Fields<'_>, now: u64, owner: Text) -> Result<Drain, Error> {
    let deadline = spec.nanoseconds("Deadline")?.unwrap_or(0);
    let deadline_at = match u64::try_from(deadline) {
        Ok(0) | Err(_) => None,
        Ok(nanoseconds) => Some(now.saturating_add(nanoseconds.div_ceil(1_000_000))),
    };
    Ok(Drain {
        started_at: now,
        deadline_at,
        force: deadline < 0,
        ignore_system: spec.flag("IgnoreSystemJobs")?,
        owner,
        cancelable: true,
    })
}

async fn purge(call: Call) -> Result<Answer, Error> {
    let node: NodeId = call.id(1)?;
    let evaluation_ids = evaluation_ids(&call, node).await?;
    let command = Command::from(ReapNode { node, incarnation: None, force: true, evaluation_ids });
    let written = call.write(command).await?;
    answer_node(&call, &written)
}
