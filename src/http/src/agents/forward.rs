//! Requests that servers answer: an agent passes them on, as Nomad's clients do, and their answers
//! back as they come: statuses, headers and the waits of blocking queries included.

use std::sync::atomic::Ordering;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::Files;
use crate::{
    forward::{ForwardError, connect},
    serve::Closing,
};

/// Marks what a server passes on to the agent of a node: nobody else is to answer it.
const PROXIED: &str = "x-quorate-proxied";
/// Marks what an agent passes on, which is meant for a server.
const FORWARDED: &str = "x-quorate-forwarded";

/// Paths below `/v1/agent/` that are about the servers, whoever is asked.
const ABOUT_SERVERS: [&str; 4] =
    ["/v1/agent/members", "/v1/agent/servers", "/v1/agent/join", "/v1/agent/force-leave"];

impl Files {
    /// The next one of so many servers is asked from now on.
    fn move_on(&self, from: usize, count: usize) {
        let next = from.saturating_add(1).checked_rem(count).unwrap_or(0);
        let moved = self.server.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            tracing::debug!(from, to = next, "requests are passed on to another server");
        }
    }

    /// A request about this node that names another one, and that no server has sent here.
    pub(super) fn is_for_other(&self, request: &Request, node: &str) -> bool {
        !request.headers().contains_key(PROXIED)
            && !node.is_empty()
            && node.parse() != Ok(self.own.node)
    }
}

/// Answers for allocations of this node, and passes on what is about others.
pub(super) async fn if_elsewhere(
    State(files): State<Files>,
    request: Request,
    next: Next,
) -> Response {
    let place = if request.uri().path().starts_with("/v1/client/fs/") { 5 } else { 4 };
    let id = request.uri().path().split('/').nth(place).unwrap_or_default().parse();
    let is_here = id.map_or(true, |id| files.node.view(id).is_some());
    if is_here || request.headers().contains_key(PROXIED) || files.own.servers.http().is_empty() {
        return next.run(request).await;
    }
    pass_on(&files, request).await
}

/// Answers for this node, and passes on what names another one.
pub(super) async fn if_other_node(
    State(files): State<Files>,
    query: super::query::Parameters,
    request: Request,
    next: Next,
) -> Response {
    if files.is_for_other(&request, query.text("node_id")) {
        return pass_on(&files, request).await;
    }
    next.run(request).await
}

/// Whatever this agent has no answer to.
pub(super) async fn everything_else(State(files): State<Files>, request: Request) -> Response {
    let path = request.uri().path();
    let is_own = path.starts_with("/v1/client/")
        || path.starts_with("/v1/agent/") && !ABOUT_SERVERS.contains(&path);
    if is_own || request.headers().contains_key(PROXIED) || !path.starts_with("/v1/") {
        return super::unsupported(request.into_parts().0.uri).await;
    }
    pass_on(&files, request).await
}

/// Sends a request to a server: the one that answered last, or the next one that can be reached.
pub(super) async fn pass_on(files: &Files, mut request: Request) -> Response {
    let failed = |text: String| (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
    if request.headers().contains_key(FORWARDED) {
        return failed(
            "this agent was asked as if it were a server: a server's HTTP address is wrong"
                .to_owned(),
        );
    }
    request.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
    let servers = files.own.servers.http();
    let closing = request.extensions().get::<Closing>().cloned();
    let mut last = "No known servers".to_owned();
    for _ in 0..servers.len() {
        let position = files.server.load(Ordering::Relaxed).checked_rem(servers.len()).unwrap_or(0);
        let address = &servers[position];
        match connect(address, closing.clone()).await {
            Ok(link) => {
                let sent = address_to(&mut request, address)
                    .map_err(|error| format!("the path cannot be passed on: {error}"));
                if let Err(text) = sent {
                    return failed(text);
                }
                return match link.send(request, None).await {
                    Ok(answer) => answer,
                    Err(error) => failed(broken(address, &error)),
                };
            }
            Err(error) => {
                last = broken(address, &error);
                files.move_on(position, servers.len());
            }
        }
    }
    failed(last)
}

fn broken(address: &str, error: &ForwardError) -> String {
    format!("the server at {address} does not answer: {error}")
}

fn address_to(request: &mut Request, address: &str) -> Result<(), axum::http::Error> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>()?;
    let host = HeaderValue::from_str(address)?;
    request.headers_mut().insert(header::HOST, host);
    Ok(())
}
