//! `/v1/status/…` and `/v1/regions`.

use fsm::right::Right;
use serde_json::{Value, json};

use super::{
    answer::Answer,
    call::Call,
    error::Error,
    route::{Route, Subject},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/status/leader", Subject::Cluster, Right::Nothing, leader),
        Route::read("/v1/status/peers", Subject::Cluster, Right::Nothing, peers),
        Route::read("/v1/regions", Subject::Cluster, Right::Nothing, regions),
    ]
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
