//! Instances: `/v1/instances` and `/v1/instance/ID…`. The token of an instance stays out.

use fsm::{
    Command, InstanceId, State, Text,
    pool::{Behavior, SetInstanceBehavior, ShutDownInstance, ShutdownCause},
    right::Right,
    table::TableId,
};
use jobspec::suggest::did_you_mean;
use serde_json::{Value, json};
use wire::api::ReadMode;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    list::IdPrefix,
    node,
    route::{Route, Subject},
    view,
};

/// A sentence about an instance also depends on its pool, and on what that has been through.
const TABLES: &[TableId] = &[TableId::Instances, TableId::InstancePools, TableId::PoolHistories];

pub(super) fn routes() -> Vec<Route> {
    vec![
        // Nomad lacks instances: each is the machine of a node.
        Route::read("/v1/instances", Subject::Machines, Right::NodeRead, list),
        Route::read("/v1/instance/{id}", Subject::Machines, Right::NodeRead, read),
        Route::write("/v1/instance/{id}/behavior", Subject::Machines, Right::NodeWrite, behavior),
        Route::write("/v1/instance/{id}/shutdown", Subject::Machines, Right::NodeWrite, shut_down),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = IdPrefix::of(&call)?;
    let pool: Option<Text> = call.parameter("pool").filter(|pool| !pool.is_empty()).map(Into::into);
    let now = call.clock();
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> = match &pool {
            Some(pool) => state.instances_of(pool).collect(),
            None => state.instances().iter().collect(),
        };
        let rows = rows.into_iter().filter(|row| prefix.matches(&row.id.0)).collect();
        list.fill(rows, |row| row.id, |row| view::instance(state, now(), row))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let id: InstanceId = call.id(1)?;
    let index = |state: &State| state.instances().get(&id).map(|row| row.modify_index);
    let now = call.clock();
    let view =
        |state: &State| state.instances().get(&id).map(|row| view::instance(state, now(), row));
    call.item("instance", &[TableId::Instances], index, view).await
}

async fn behavior(call: Call) -> Result<Answer, Error> {
    let id: InstanceId = call.id(1)?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    fields.known(&["Behavior", "DeadlineMs", "Reason", "Actor"])?;
    let word = fields.text("Behavior")?.unwrap_or("");
    let behavior = Behavior::ALL.into_iter().find(|behavior| behavior.name() == word);
    let Some(behavior) = behavior else {
        let hint = did_you_mean(word, Behavior::ALL.map(Behavior::name));
        let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
        let shown: String = word.chars().take(64).collect();
        let text = format!("Behavior must be run, hold or drain, not \"{shown}\"{hint}");
        return Err(Error::bad(text));
    };
    let deadline_ms = fields.number("DeadlineMs")?;
    if deadline_ms.is_some() && behavior != Behavior::Drain {
        return Err(Error::bad("DeadlineMs is of a drain: Behavior must be drain"));
    }
    let (by, reason) = (fields.actor()?, fields.note("Reason")?);
    let snapshot = call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await?;
    let node = snapshot.state.instances().get(&id).and_then(|row| row.node);
    let wanted = node.map_or(0, |node| node::evaluations_wanted(&snapshot.state, node));
    let evaluation_ids = call.evaluation_ids(wanted);
    let command = SetInstanceBehavior { id, behavior, deadline_ms, by, reason, evaluation_ids };
    let written = call.write(Command::from(command)).await?;
    let made = written.reply.evaluations();
    let ids: Vec<Value> = made.iter().map(|id| id.to_string().into()).collect();
    call.answer_write(&written, json!({ "EvalIDs": ids }))
}

async fn shut_down(call: Call) -> Result<Answer, Error> {
    let id: InstanceId = call.id(1)?;
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    fields.known(&["Reason", "Actor"])?;
    let (by, reason) = (fields.actor()?, fields.note("Reason")?);
    let cause = ShutdownCause::Operator;
    let command = ShutDownInstance { id, cause, reason, by, evaluation_ids: Vec::new() };
    let written = call.write(Command::from(command)).await?;
    call.answer_write(&written, json!({}))
}
