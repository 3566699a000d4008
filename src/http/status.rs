//! `/v1/status/…` and `/v1/regions`.

use axum::{Router, routing::get};
use serde_json::{Value, json};

use super::{Context, answer::Answer, call::Call, error::Error};

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/status/leader", get(leader))
        .route("/v1/status/peers", get(peers))
        .route("/v1/regions", get(regions))
}

/// The leader's gRPC address as far as this server knows; empty when it knows none.
async fn leader(call: Call) -> Result<Answer, Error> {
    let address = call
        .api
        .members()
        .into_iter()
        .find(|member| member.leader)
        .map_or_else(String::new, |member| member.rpc_address);
    call.answer(&Value::from(address), None)
}

async fn peers(call: Call) -> Result<Answer, Error> {
    let addresses: Vec<_> =
        call.api.members().into_iter().map(|member| member.rpc_address).collect();
    call.answer(&json!(addresses), None)
}

async fn regions(call: Call) -> Result<Answer, Error> {
    call.answer(&json!([call.options.region]), None)
}
