//! `/v1/client/…`: requests about a node's files, logs and processes, passed on to that node's agent.
//!
//! ```text
//!  /client/fs/logs/ALLOC ─► allocation ─► node ─► its HTTP address ─► same path and query ─► body streamed through
//! ```
//! Must never hold a body: neither side's pace is the other's, and logs may be followed for hours.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Uri, header},
    response::{IntoResponse, Response},
    routing::any,
};
use fsm::{AllocationId, Liveness, Node, NodeId, State};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::{
    Context,
    call::{Call, PROXIED_HEADER},
    error::Error,
};

/// How long an agent may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/client/fs/{verb}/{id}", any(proxy))
        .route("/v1/client/allocation/{id}/{verb}", any(proxy))
        .route("/v1/client/stats", any(proxy))
        .route("/v1/client/gc", any(proxy))
        .route("/v1/client/metadata", any(proxy))
}

async fn proxy(call: Call) -> Response {
    match forward(&call).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn forward(call: &Call) -> Result<Response, Error> {
    if call.headers.contains_key(PROXIED_HEADER) {
        return Err(Error::bad(
            "this server was asked as if it were the node's agent: the node's HTTP address is wrong",
        ));
    }
    let snapshot = call.read().await?;
    let address = agent_address(call, &snapshot.state)?;
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
    send(call, &address, request).await
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
            let id: NodeId = call
                .parameter("node_id")
                .ok_or_else(|| Error::bad("node_id is required: this server runs no client"))?
                .parse()
                .map_err(|error| Error::bad(format!("node_id: {error}")))?;
            state.nodes().get(&id).ok_or_else(|| Error::not_found("node"))?
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

fn node_of_allocation(state: &State, id: AllocationId) -> Result<&Node, Error> {
    let allocation = state.allocations().get(&id).ok_or_else(|| Error::not_found("alloc"))?;
    state
        .nodes()
        .get(&allocation.node)
        .map(|node| &**node)
        .ok_or_else(|| Error::agent_unreachable(format!("node {} is gone", allocation.node)))
}

async fn send(call: &Call, address: &str, request: Request<Body>) -> Result<Response, Error> {
    let unreachable = |what: String| {
        Error::agent_unreachable(format!("the agent at {address} does not answer: {what}"))
    };
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| unreachable("connecting took too long".to_owned()))?
        .map_err(|error| unreachable(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let closing = call.closing.clone();
    // Ends with the response's body, or with the server.
    tokio::spawn(async move {
        let result = match closing {
            Some(closing) => tokio::select! {
                result = connection => result,
                () = closing.closed() => Ok(()),
            },
            None => connection.await,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection to an agent broke off");
        }
    });
    let response = timeout(call.options.timeout, sender.send_request(request))
        .await
        .map_err(|_| unreachable("no answer in time".to_owned()))?
        .map_err(|error| unreachable(error.to_string()))?;
    let (parts, body) = response.into_parts();
    let mut answer = Response::new(Body::new(body));
    *answer.status_mut() = parts.status;
    let content_type = parts
        .headers
        .get(header::CONTENT_TYPE)
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_static("text/plain"));
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(answer)
}
