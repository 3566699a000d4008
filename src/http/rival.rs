//! Asks the agent that registered last for a node whether it still runs: another start of an agent
//! wants to register as the same node, and may be a copy of its folder.

use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use futures_util::{FutureExt, future::BoxFuture};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// How long an agent may take to answer. One that has ended refuses the connection at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer, bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The start of the agent at an address, as it names it. `newcomer` is where the other agent serves,
/// for the log of the one that is asked.
pub fn start_at(address: String, newcomer: String) -> BoxFuture<'static, Option<[u8; 16]>> {
    async move {
        let asked = timeout(ANSWER_TIMEOUT, ask(&address, &newcomer)).await;
        asked.ok()?.inspect_err(|error| {
            tracing::debug!(address, %error, "the agent of a node's last start does not answer");
        }).ok()?
    }
    .boxed()
}

async fn ask(address: &str, newcomer: &str) -> anyhow::Result<Option<[u8; 16]>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::get(format!("/v1/agent/health?rival={newcomer}"))
        .header("host", address)
        .body(Body::empty())?;
    let response = sender.send_request(request).await?;
    let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await?;
    let answer: serde_json::Value = serde_json::from_slice(&body)?;
    let start = answer["start"].as_str().and_then(|text| text.parse::<fsm::NodeId>().ok());
    Ok(start.map(|id| id.0))
}
