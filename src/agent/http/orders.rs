//! Orders to allocations: signals and restarts, with Nomad's bodies. An empty task name means all tasks.

use axum::{
    Json,
    extract::{Path, State},
};
use fsm::AllocationId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Files, HttpError};
use crate::agent::{executor::process::parse_signal, shell::Order};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SignalBody {
    signal: String,
    #[serde(default)]
    task: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct RestartBody {
    task_name: String,
    all_tasks: bool,
}

pub(super) async fn signal(
    State(files): State<Files>,
    Path(allocation): Path<String>,
    Json(body): Json<SignalBody>,
) -> Result<Json<Value>, HttpError> {
    if parse_signal(&body.signal).is_none() {
        return Err(HttpError::BadRequest(format!("unknown signal `{}`", body.signal)));
    }
    let order = Order::Signal { task: named(body.task), signal: body.signal };
    carry_out(&files, &allocation, order).await
}

pub(super) async fn restart(
    State(files): State<Files>,
    Path(allocation): Path<String>,
    Json(body): Json<RestartBody>,
) -> Result<Json<Value>, HttpError> {
    if body.all_tasks && !body.task_name.is_empty() {
        return Err(HttpError::BadRequest(
            "a task and all tasks cannot both be restarted".to_owned(),
        ));
    }
    let order = Order::Restart { task: named(body.task_name) };
    carry_out(&files, &allocation, order).await
}

fn named(task: String) -> Option<String> {
    Some(task).filter(|task| !task.is_empty())
}

async fn carry_out(
    files: &Files,
    allocation: &str,
    order: Order,
) -> Result<Json<Value>, HttpError> {
    files.directory(allocation)?;
    let id: AllocationId =
        allocation.parse().map_err(|_| HttpError::NotFound(allocation.to_owned()))?;
    let (Order::Restart { task } | Order::Signal { task, .. }) = &order;
    let view = files.node.view(id);
    if let Some(task) = task
        && !view.is_some_and(|view| view.status.tasks.contains_key(task))
    {
        return Err(HttpError::NotFound(format!("unknown task name \"{task}\"")));
    }
    files.node.order(id, order).await.map_err(HttpError::BadRequest)?;
    Ok(Json(json!({})))
}
