//! `/v1/client/…`: requests about a node's files, logs and processes, passed on to that node's
//! agent.
//!
//! ```text
//!  /client/fs/logs/ALLOC ─► allocation ─► node ─► its HTTP address ─► same path and query ─► body streamed through
//! ```
//!
//! Bodies are streamed and never held in memory: client and agent have different speeds, and logs
//! may be followed for hours.

use axum::{
    body::Body,
    http::{HeaderValue, Request, Uri, header},
};
use fsm::{AllocationId, Liveness, Node, NodeId, State, right::Right};

use super::{
    answer::Answer,
    call::{Call, PROXIED_HEADER},
    error::Error,
    route::{Route, Subject, may},
};
use crate::forward::{ForwardError, connect};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/client/fs/ls/{id}", Subject::Allocation, may!(ReadFs), proxy),
        Route::read("/v1/client/fs/stat/{id}", Subject::Allocation, may!(ReadFs), proxy),
        Route::read("/v1/client/fs/cat/{id}", Subject::Allocation, may!(ReadFs), proxy),
        Route::read("/v1/client/fs/readat/{id}", Subject::Allocation, may!(ReadFs), proxy),
        Route::read("/v1/client/fs/stream/{id}", Subject::Allocation, may!(ReadFs), proxy),
        Route::read("/v1/client/fs/logs/{id}", Subject::Allocation, may!(ReadLogs, ReadFs), proxy),
        Route::read("/v1/client/allocation/{id}/stats", Subject::Allocation, may!(ReadJob), proxy),
        Route::read("/v1/client/allocation/{id}/checks", Subject::Allocation, may!(ReadJob), proxy),
        Route::read("/v1/client/allocation/{id}/pause", Subject::Allocation, may!(ReadJob), proxy),
        Route::write(
            "/v1/client/allocation/{id}/pause",
            Subject::Allocation,
            may!(SubmitJob, PauseAllocation),
            proxy,
        ),
        Route::write(
            "/v1/client/allocation/{id}/restart",
            Subject::Allocation,
            may!(AllocLifecycle),
            proxy,
        ),
        Route::write(
            "/v1/client/allocation/{id}/signal",
            Subject::Allocation,
            may!(AllocLifecycle),
            proxy,
        ),
        Route::read(
            "/v1/client/allocation/{id}/gc",
            Subject::Allocation,
            may!(SubmitJob, GcAllocation),
            proxy,
        ),
        Route::write(
            "/v1/client/allocation/{id}/gc",
            Subject::Allocation,
            may!(SubmitJob, GcAllocation),
            proxy,
        ),
        Route::read("/v1/client/allocation/{id}/exec", Subject::Allocation, may!(AllocExec), proxy),
        // The agent of the next allocation asks, as an agent.
        Route::read(
            "/v1/client/allocation/{id}/snapshot",
            Subject::Allocation,
            Right::Internal,
            proxy,
        ),
        Route::read("/v1/client/stats", Subject::Node, Right::NodeRead, proxy),
        Route::read("/v1/client/gc", Subject::Node, Right::NodeWrite, proxy),
        Route::write("/v1/client/gc", Subject::Node, Right::NodeWrite, proxy),
        Route::read("/v1/client/metadata", Subject::Node, Right::NodeRead, proxy),
        Route::write("/v1/client/metadata", Subject::Node, Right::NodeWrite, proxy),
    ]
}

async fn proxy(call: Call) -> Result<Answer, Error> {
    if call.headers.contains_key(PROXIED_HEADER) {
        return Err(Error::bad(
            "this server was asked as if it were the node's agent: the node's HTTP address is wrong",
        ));
    }
    let snapshot = call.read().await?;
    let address = agent_address(&call, &snapshot.state)?;
    drop(snapshot);
    let path = call.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(path.parse::<Uri>().map_err(|error| Error::bad(error.to_string()))?)
        .header(header::HOST, &address)
        .header(PROXIED_HEADER, "1")
        .body(Body::from(call.body.clone()))
        .map_err(|error| Error::internal(error.to_string()))?;
    for name in [header::AUTHORIZATION, "x-nomad-token".parse().map_err(header_name)?] {
        if let Some(value) = call.headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    send(&call, &address, request).await
}

fn header_name(error: axum::http::header::InvalidHeaderName) -> Error {
    Error::internal(error.to_string())
}

/// The address of the agent that a request is for.
fn agent_address(call: &Call, state: &State) -> Result<String, Error> {
    let node = match (call.segment(1), call.segment(2)) {
        ("fs", _) => node_of_allocation(state, call.id(3)?)?,
        ("allocation", _) => node_of_allocation(state, call.id(2)?)?,
        _ => {
            let typed = named_node(call)?;
            let id: NodeId =
                typed.parse().map_err(|error| Error::bad(format!("node_id: {error}")))?;
            state.nodes().get(&id).ok_or_else(|| Error::unknown("node", &typed))?
        }
    };
    let name = &node.description.name;
    match node.liveness {
        Liveness::Down | Liveness::Disconnected => {
            let status = node.liveness.name();
            let text = format!("node {} ({name}) is {status}: its agent cannot be asked", node.id);
            Err(Error::agent_unreachable(text))
        }
        Liveness::Initializing | Liveness::Ready if node.description.http_address.is_empty() => {
            let text = format!("node {} ({name}) has no HTTP address", node.id);
            Err(Error::agent_unreachable(text))
        }
        Liveness::Initializing | Liveness::Ready => Ok(node.description.http_address.to_string()),
    }
}

/// The node that the query or the body names.
fn named_node(call: &Call) -> Result<String, Error> {
    let in_body = || Some(call.json().ok()?.get("NodeID")?.as_str()?.to_owned());
    let named = call.parameter("node_id").map(str::to_owned).filter(|id| !id.is_empty());
    named
        .or_else(in_body)
        .filter(|id| !id.is_empty())
        .ok_or_else(|| Error::bad("No local Node and node_id not provided"))
}

fn node_of_allocation(state: &State, id: AllocationId) -> Result<&Node, Error> {
    let found = state.allocations().get(&id);
    let allocation = found.ok_or_else(|| Error::unknown("allocation", &id.to_string()))?;
    state
        .nodes()
        .get(&allocation.node)
        .map(|node| &**node)
        .ok_or_else(|| Error::agent_unreachable(format!("node {} is gone", allocation.node)))
}

async fn send(call: &Call, address: &str, request: Request<Body>) -> Result<Answer, Error> {
    let unreachable = |error: ForwardError| {
        Error::agent_unreachable(format!("the agent at {address} does not answer: {error}"))
    };
    let link = connect(address, call.closing.clone()).await.map_err(unreachable)?;
    // A restart is answered when the tasks have ended, which their `kill_timeout` bounds: it is
    // waited for as long as its client waits.
    let is_restart = call.segment(1) == "allocation" && call.segment(3) == "restart";
    let patience = (!is_restart).then_some(call.options.timeout);
    let answered = link.send(request, patience).await;
    let mut answer = answered.map_err(unreachable)?;
    answer
        .headers_mut()
        .entry(header::CONTENT_TYPE)
        .or_insert_with(|| HeaderValue::from_static("text/plain"));
    Ok(Answer::passed_on(answer))
}
