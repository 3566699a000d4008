//! `/v1/system/…`.

use fsm::right::Right;
use leader::GarbageCollector;
use serde_json::Value;

use super::{
    answer::Answer,
    call::Call,
    error::Error,
    route::{Route, Subject},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::write("/v1/system/gc", Subject::Cluster, Right::Management, collect_garbage),
        Route::write(
            "/v1/system/reconcile/summaries",
            Subject::Cluster,
            Right::Management,
            reconcile,
        ),
    ]
}

/// Forgets all that has ended, however short ago. The rules are judged again where the commands are
/// applied, so this server's view will do.
async fn collect_garbage(call: Call) -> Result<Answer, Error> {
    // What a job leaves behind is free once the job is gone: the second round finds it.
    for _round in 0..2 {
        let state = call.read().await?.state;
        for command in GarbageCollector::forced(state.at(), &state) {
            call.api.write(&call.caller, command, None, call.options.timeout).await?;
        }
    }
    call.answer(&Value::Null, None)
}

/// Summaries are derived from the allocations with every change: they cannot be wrong.
async fn reconcile(call: Call) -> Result<Answer, Error> {
    call.answer(&Value::Null, None)
}
