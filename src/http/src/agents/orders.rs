//! Orders to allocations: signals and restarts, with Nomad's bodies, whatever their content type
//! says. An empty task name means all tasks.

use agent::{executor::process::parse_signal, node::shell::Order};
use axum::{
    Json,
    extract::{Path, State},
};
use bytes::Bytes;
use fsm::AllocationId;
use ground::caller::Caller;
use serde_json::{Value, json};

use super::{Files, HttpError};
use crate::{body::Fields, serve::CalledBy};

/// A body of JSON; an empty one is null.
pub(super) fn json_of(bytes: &[u8]) -> Result<Value, HttpError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(bytes).map_err(|error| {
        HttpError::BadRequest(format!("the request body is not what is expected: {error}"))
    })
}

pub(super) async fn signal(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    Path(allocation): Path<String>,
    bytes: Bytes,
) -> Result<Json<Value>, HttpError> {
    let body = json_of(&bytes)?;
    let fields = Fields::of(&body)?;
    let signal = fields.text("Signal")?.unwrap_or_default();
    if signal.is_empty() {
        let text = "Signal is required, for example {\"Signal\": \"SIGHUP\"}".to_owned();
        return Err(HttpError::BadRequest(text));
    }
    if parse_signal(signal).is_none() {
        return Err(HttpError::BadRequest(format!("invalid signal \"{signal}\"")));
    }
    let order = Order::Signal { task: task_of(&fields, "Task")?, signal: signal.to_owned() };
    carry_out(&files, &caller, &allocation, order).await
}

pub(super) async fn restart(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    Path(allocation): Path<String>,
    bytes: Bytes,
) -> Result<Json<Value>, HttpError> {
    let body = json_of(&bytes)?;
    let fields = Fields::of(&body)?;
    let (task, all) = (task_of(&fields, "TaskName")?, fields.flag("AllTasks")?);
    if all && task.is_some() {
        return Err(HttpError::BadRequest(
            "a task and all tasks cannot both be restarted".to_owned(),
        ));
    }
    let order = if all { Order::RestartAll } else { Order::Restart { task } };
    carry_out(&files, &caller, &allocation, order).await
}

/// The task that a field names; an empty name is none.
fn task_of(fields: &Fields<'_>, name: &str) -> Result<Option<String>, HttpError> {
    Ok(fields.text(name)?.filter(|task| !task.is_empty()).map(str::to_owned))
}

/// `/v1/client/allocation/ID/gc`: deletes the files of an allocation that has ended.
pub(super) async fn collect(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    Path(allocation): Path<String>,
) -> Result<Json<Value>, HttpError> {
    files.directory(&caller, &allocation)?;
    let id: AllocationId =
        allocation.parse().map_err(|_| HttpError::NotFound(allocation.clone()))?;
    if files.node.collect(Some(id)) == 0 {
        let text = "No such allocation on client, or allocation not eligible for GC".to_owned();
        return Err(HttpError::BadRequest(text));
    }
    tracing::info!(%caller, %id, "the files of an ended allocation are deleted on request");
    Ok(Json(json!({})))
}

/// `/v1/client/gc`: deletes the files of all allocations that have ended.
pub(super) async fn collect_all(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
) -> Json<Value> {
    let collected = files.node.collect(None);
    tracing::info!(%caller, collected, "the files of ended allocations are deleted on request");
    Json(json!({}))
}

async fn carry_out(
    files: &Files,
    caller: &Caller,
    allocation: &str,
    order: Order,
) -> Result<Json<Value>, HttpError> {
    files.directory(caller, allocation)?;
    let id: AllocationId =
        allocation.parse().map_err(|_| HttpError::NotFound(allocation.to_owned()))?;
    let view = files.node.view(id);
    if let Some(task) = order.task()
        && !view.is_some_and(|view| view.status.tasks.contains_key(task))
    {
        return Err(HttpError::NotFound(format!("unknown task name \"{task}\"")));
    }
    tracing::info!(%caller, %id, ?order, "an allocation is given an order");
    files.node.order(id, order).await.map_err(HttpError::BadRequest)?;
    Ok(Json(json!({})))
}
