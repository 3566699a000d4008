//! Orders to allocations: signals and restarts, with Nomad's bodies, whatever their content type says. An empty task name means all tasks.

use axum::{
    Json,
    extract::{Path, State},
};
use bytes::Bytes;
use fsm::AllocationId;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Files, HttpError};
use crate::agent::{executor::process::parse_signal, shell::Order};

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct SignalBody {
    signal: String,
    task: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RestartBody {
    task_name: Option<String>,
    all_tasks: Option<bool>,
}

/// A body of JSON; an empty one is the default.
fn body<T: DeserializeOwned + Default>(bytes: &Bytes) -> Result<T, HttpError> {
    if bytes.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(bytes).map_err(|error| {
        HttpError::BadRequest(format!("the request body is not what is expected: {error}"))
    })
}

pub(super) async fn signal(
    State(files): State<Files>,
    Path(allocation): Path<String>,
    bytes: Bytes,
) -> Result<Json<Value>, HttpError> {
    let body: SignalBody = body(&bytes)?;
    if body.signal.is_empty() {
        let text = "Signal is required, for example {\"Signal\": \"SIGHUP\"}".to_owned();
        return Err(HttpError::BadRequest(text));
    }
    if parse_signal(&body.signal).is_none() {
        return Err(HttpError::BadRequest(format!("unknown signal `{}`", body.signal)));
    }
    let order = Order::Signal { task: named(body.task), signal: body.signal };
    carry_out(&files, &allocation, order).await
}

pub(super) async fn restart(
    State(files): State<Files>,
    Path(allocation): Path<String>,
    bytes: Bytes,
) -> Result<Json<Value>, HttpError> {
    let body: RestartBody = body(&bytes)?;
    let task = named(body.task_name);
    if body.all_tasks == Some(true) && task.is_some() {
        return Err(HttpError::BadRequest(
            "a task and all tasks cannot both be restarted".to_owned(),
        ));
    }
    let order =
        if body.all_tasks == Some(true) { Order::RestartAll } else { Order::Restart { task } };
    carry_out(&files, &allocation, order).await
}

fn named(task: Option<String>) -> Option<String> {
    task.filter(|task| !task.is_empty())
}

async fn carry_out(
    files: &Files,
    allocation: &str,
    order: Order,
) -> Result<Json<Value>, HttpError> {
    files.directory(allocation)?;
    let id: AllocationId =
        allocation.parse().map_err(|_| HttpError::NotFound(allocation.to_owned()))?;
    let view = files.node.view(id);
    if let Some(task) = order.task()
        && !view.is_some_and(|view| view.status.tasks.contains_key(task))
    {
        return Err(HttpError::NotFound(format!("unknown task name \"{task}\"")));
    }
    files.node.order(id, order).await.map_err(HttpError::BadRequest)?;
    Ok(Json(json!({})))
}
