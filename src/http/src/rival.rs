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
use wire::api::Rivalry;

/// How long an agent may take to answer. One that has ended refuses the connection at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer, bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The start of the agent at an address, as it names it. It is told which start is meant and where
/// the other one serves: if it is meant, it logs that.
pub fn start_at(rivalry: Rivalry) -> BoxFuture<'static, Option<[u8; 16]>> {
    async move {
        let asked = timeout(ANSWER_TIMEOUT, ask(&rivalry)).await;
        asked.ok()?.inspect_err(|error| {
            tracing::debug!(address = rivalry.address, %error, "the agent of a node's last start does not answer");
        }).ok()?
    }
    .boxed()
}

async fn ask(rivalry: &Rivalry) -> anyhow::Result<Option<[u8; 16]>> {
    let Rivalry { address, newcomer, start } = rivalry;
    let start = fsm::NodeId(*start);
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::get(format!("/v1/agent/health?rival={newcomer}&start={start}"))
        .header("host", address)
        .body(Body::empty())?;
    let response = sender.send_request(request).await?;
    let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await?;
    let answer: serde_json::Value = serde_json::from_slice(&body)?;
    let start = answer["start"].as_str().and_then(|text| text.parse::<fsm::NodeId>().ok());
    Ok(start.map(|id| id.0))
}
