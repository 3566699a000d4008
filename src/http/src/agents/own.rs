//! What an agent says of itself: who it is, and the node's metadata.

use std::sync::Arc;

use agent::session::meta::{Changes, MetaError, NodeMeta};
use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use ground::{caller::Caller, version::Build};
use serde_json::{Map, Value, json};

use super::{Files, HttpError, REQUEST_BYTES_MAX, forward, orders::json_of, query::Parameters};
use crate::{body::Fields, serve::CalledBy};

/// `/v1/agent/self`.
pub(super) async fn this(State(files): State<Files>, CalledBy(caller): CalledBy) -> Json<Value> {
    tracing::trace!(%caller, "asked who the agent is");
    let own = &files.own;
    let (live, _) = files.node.counts();
    let facts = Build::own().facts();
    let build: Map<_, _> =
        facts.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    Json(json!({
        "config": {
            "Region": own.region,
            "Datacenter": own.datacenter,
            "NodeName": own.name,
            "Version": { "Version": ground::version::QUORATE },
            "Server": { "Enabled": false },
            "Client": { "Enabled": true },
            "ACL": { "Enabled": false },
        },
        // That of a server, which this is not.
        "member": { "Name": "", "Addr": "", "Port": 0, "Tags": {}, "Status": "none" },
        "stats": {
            "quorate": build,
            "client": {
                "node_id": own.node.to_string(),
                "known_servers": own.servers.known().join(","),
                "num_allocations": live.to_string(),
            },
        },
    }))
}

/// `GET /v1/client/metadata`.
pub(super) async fn metadata(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    query: Parameters,
    request: Request,
) -> Response {
    if files.is_for_other(&request, query.text("node_id")) {
        return forward::pass_on(&files, request).await;
    }
    tracing::trace!(%caller, "asked for the metadata of the node");
    shown(&files.own.meta).into_response()
}

/// `PUT /v1/client/metadata`.
pub(super) async fn set_metadata(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    query: Parameters,
    request: Request,
) -> Response {
    match change(&files, &caller, &query, request).await {
        Ok(answer) => answer,
        Err(error) => error.into_response(),
    }
}

async fn change(
    files: &Files,
    caller: &Caller,
    query: &Parameters,
    request: Request,
) -> Result<Response, HttpError> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, REQUEST_BYTES_MAX)
        .await
        .map_err(|error| HttpError::BadRequest(format!("the request body: {error}")))?;
    let parsed = json_of(&body)?;
    let fields = Fields::of(&parsed)?;
    let named = match query.text("node_id") {
        "" => fields.text("NodeID")?.unwrap_or_default(),
        named => named,
    };
    let request = Request::from_parts(head, Body::from(body));
    if files.is_for_other(&request, named) {
        return Ok(forward::pass_on(files, request).await);
    }
    let changes = changes_of(&fields)?;
    if changes.is_empty() {
        return Err(HttpError::BadRequest("missing required Meta object".to_owned()));
    }
    tracing::info!(%caller, keys = changes.len(), "the node's metadata is set on request");
    let meta = Arc::clone(&files.own.meta);
    let stored = move || {
        meta.apply(changes).map_err(|error| match error {
            MetaError::Invalid(text) => HttpError::BadRequest(text),
            MetaError::Io(error) => HttpError::Io(error),
        })
    };
    files.work.run(stored).await?;
    Ok(shown(&files.own.meta).into_response())
}

/// What is to be set; a null takes its key away.
fn changes_of(fields: &Fields<'_>) -> Result<Changes, HttpError> {
    let Some(meta) = fields.object("Meta")? else { return Ok(Changes::new()) };
    let one = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Ok((key.clone(), Some(text.clone()))),
        Value::Null => Ok((key.clone(), None)),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let text = format!("{}: expected a text or null, found {value}", meta.place(key));
            Err(HttpError::BadRequest(text))
        }
    };
    meta.entries().map(one).collect()
}

fn shown(meta: &NodeMeta) -> Json<Value> {
    Json(json!({
        "Meta": meta.effective(), "Dynamic": meta.changes(), "Static": meta.configured(),
    }))
}
