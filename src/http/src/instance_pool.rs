//! Instance pools: `/v1/instance-pools` and `/v1/instance-pool/NAME…`.

use fsm::{
    Command, Extent, State, Text,
    pool::{DeleteInstancePool, PauseInstancePool, UpsertInstancePool},
    right::Right,
    table::TableId,
};
use serde_json::json;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    namespace::name_of,
    route::{Route, Subject},
    view,
};

/// What a pool shows is in these.
const TABLES: &[TableId] = &[
    TableId::InstancePools,
    TableId::Instances,
    TableId::ProviderLimits,
    TableId::PoolHistories,
    TableId::ProviderStates,
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        // Nomad lacks instance pools: they are settings of the cluster, and cost money.
        Route::read("/v1/instance-pools", Subject::Machines, Right::OperatorRead, list),
        Route::read("/v1/instance-pool/{name}", Subject::Machines, Right::OperatorRead, read),
        Route::write("/v1/instance-pool/{name}", Subject::Machines, Right::OperatorWrite, upsert),
        Route::delete("/v1/instance-pool/{name}", Subject::Machines, Right::OperatorWrite, delete),
        Route::write(
            "/v1/instance-pool/{name}/pause",
            Subject::Machines,
            Right::OperatorWrite,
            pause,
        ),
        Route::write(
            "/v1/instance-pool/{name}/resume",
            Subject::Machines,
            Right::OperatorWrite,
            resume,
        ),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    let now = call.clock();
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> =
            state.instance_pools().iter().filter(|p| p.name.starts_with(&prefix)).collect();
        list.fill(rows, |pool| pool.name.clone(), |pool| view::instance_pool(state, now(), pool))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(1).into();
    let row = |state: &State| state.instance_pools().get(&name).cloned();
    let extent = |state: &State| if row(state).is_some() { Extent::Whole } else { Extent::Nothing };
    let now = call.clock();
    let view = |state: &State| row(state).map(|pool| view::instance_pool(state, now(), &pool));
    call.derived("instance pool", TABLES, extent, view).await
}

async fn upsert(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let name = name_of(&call, &Fields::of(&body)?, 1)?;
    let pool = jobspec::instance_pool_of(&body, &name).map_err(|errors| {
        let words =
            |error: &jobspec::FieldError| error.to_string().trim_start_matches(": ").to_owned();
        Error::bad(errors.iter().map(words).collect::<Vec<_>>().join("\n"))
    })?;
    let enforce_index = call.number("cas")?;
    let command = UpsertInstancePool { pool: pool.into(), enforce_index };
    let written = call.write(Command::from(command)).await?;
    call.answer_write(&written, json!({}))
}

async fn delete(call: Call) -> Result<Answer, Error> {
    let name = call.segment(1).into();
    let written = call.write(Command::from(DeleteInstancePool { name })).await?;
    call.answer_write(&written, json!({}))
}

async fn pause(call: Call) -> Result<Answer, Error> {
    set_pause(call, true).await
}

async fn resume(call: Call) -> Result<Answer, Error> {
    set_pause(call, false).await
}

async fn set_pause(call: Call, pause: bool) -> Result<Answer, Error> {
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    fields.known(&["Reason", "Actor"])?;
    let (by, reason) = (fields.actor()?, fields.note("Reason")?);
    if pause && reason.is_empty() {
        let text = "Reason is required: it says why the pool neither grows nor shrinks";
        return Err(Error::bad(text));
    }
    let name = call.segment(1).into();
    let command = PauseInstancePool { name, pause, by, reason };
    let written = call.write(Command::from(command)).await?;
    call.answer_write(&written, json!({}))
}
