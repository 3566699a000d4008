//! `/v1/agent/schedulers…`: the scheduling workers of the server that is asked.

use fsm::{JobKind, limits::WORKERS_MAX, right::Right};
use serde_json::{Value, json};
use wire::api::{WorkerChange, WorkerInfo, WorkerSettings};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    route::{Route, Subject},
    time,
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/agent/schedulers", Subject::Agent, Right::AgentRead, workers),
        Route::read("/v1/agent/schedulers/config", Subject::Agent, Right::AgentRead, settings),
        Route::write("/v1/agent/schedulers/config", Subject::Agent, Right::AgentWrite, set),
    ]
}

async fn workers(call: Call) -> Result<Answer, Error> {
    let workers: Vec<Value> = call.api.workers().iter().map(worker).collect();
    let answer = json!({ "server_id": server_id(&call), "schedulers": workers });
    call.answer(&answer, None)
}

fn worker(worker: &WorkerInfo) -> Value {
    // Nomad's `_core` is its garbage collection, which every worker does there.
    let kinds: Vec<_> = worker.kinds.iter().map(|kind| kind.name()).chain(["_core"]).collect();
    json!({
        "id": worker.id.to_string(),
        "enabled_schedulers": kinds,
        "started": time::rfc3339(worker.since_ms),
        "status": worker.status.name(),
        "workload_status": worker.workload.name(),
    })
}

async fn settings(call: Call) -> Result<Answer, Error> {
    let settings = call.api.worker_settings();
    call.answer(&shown(&call, &settings), None)
}

/// What is left out stays. The server's id may be there, so that an answer can be sent back.
async fn set(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    fields.known(&["server_id", "num_schedulers", "enabled_schedulers"])?;
    if fields.value("num_schedulers").and_then(Value::as_i64).is_some_and(|number| number < 0) {
        // Nomad's only word for it.
        return Err(Error::bad("Invalid request"));
    }
    let number = fields.number("num_schedulers")?.map(|number| {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let text = || format!("num_schedulers is {number}: it must be 0 to {WORKERS_MAX}");
        if number <= WORKERS_MAX { Ok(number) } else { Err(Error::bad(text())) }
    });
    let words = fields.texts("enabled_schedulers")?;
    let kinds = words.map(|words| {
        if words.is_empty() {
            let text = "enabled_schedulers must name a kind; num_schedulers 0 pauses the workers";
            return Err(Error::bad(text));
        }
        JobKind::parse_all(&words).map_err(|unknown| {
            let known = "service, batch, system, sysbatch or _core";
            Error::bad(format!("enabled_schedulers: \"{unknown}\" is not {known}"))
        })
    });
    let change = WorkerChange { number: number.transpose()?, kinds: kinds.transpose()? };
    let settings = call.api.set_workers(&call.caller, change).await;
    call.answer(&shown(&call, &settings), None)
}

fn shown(call: &Call, settings: &WorkerSettings) -> Value {
    let kinds: Vec<_> = settings.kinds.iter().map(|kind| kind.name()).collect();
    json!({
        "server_id": server_id(call),
        "num_schedulers": settings.number,
        "enabled_schedulers": kinds,
    })
}

fn server_id(call: &Call) -> String {
    call.api.this_member().id.to_string()
}
