//! `/v1/system/…`.

use axum::{Router, routing::put};
use leader::GarbageCollector;
use serde_json::Value;

use super::{Context, answer::Answer, call::Call, error::Error};

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/system/gc", put(collect_garbage).post(collect_garbage))
        .route("/v1/system/reconcile/summaries", put(reconcile).post(reconcile))
}

/// Forgets all that has ended, however short ago. The rules are judged again where the commands are applied, so this server's view will do.
async fn collect_garbage(call: Call) -> Result<Answer, Error> {
    // What a job leaves behind is free once the job is gone: the second round finds it.
    for _round in 0..2 {
        let state = call.read().await?.state;
        for command in GarbageCollector::forced(state.at(), &state) {
            call.api.write(call.caller, command, None, call.options.timeout).await?;
        }
    }
    call.answer(&Value::Null, None)
}

/// Summaries are derived from the allocations with every change: they cannot be wrong.
async fn reconcile(call: Call) -> Result<Answer, Error> {
    call.answer(&Value::Null, None)
}
