//! Node pools: `/v1/node/pools` and `/v1/node/pool/NAME…`.

use fsm::{
    Command, State, Text,
    right::Right,
    settings::{DeleteNodePool, NodePool, UpsertNodePool},
    table::TableId,
};
use serde_json::{Value, json};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    namespace::{meta_of, name_of},
    route::{Route, Subject},
    view,
};

const TABLES: &[TableId] = &[TableId::NodePools];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/node/pools", Subject::NodePools, Right::NodePoolRead, list),
        Route::write("/v1/node/pools", Subject::NodePool, Right::NodePoolWrite, upsert),
        Route::write("/v1/node/pool", Subject::NodePool, Right::NodePoolWrite, upsert),
        Route::read("/v1/node/pool/{name}", Subject::NodePool, Right::NodePoolRead, read),
        Route::write("/v1/node/pool/{name}", Subject::NodePool, Right::NodePoolWrite, upsert),
        Route::delete("/v1/node/pool/{name}", Subject::NodePool, Right::NodePoolDelete, delete),
        // Nomad asks for `node:read` as well.
        Route::read("/v1/node/pool/{name}/nodes", Subject::NodePool, Right::NodePoolRead, nodes),
        // Nomad asks for `list-jobs` as well, and leaves out what the caller may not see.
        Route::read("/v1/node/pool/{name}/jobs", Subject::NodePool, Right::NodePoolRead, jobs),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> =
            state.node_pools().iter().filter(|p| p.name.starts_with(&prefix)).collect();
        list.fill(rows, |pool| pool.name.clone(), |pool| view::node_pool(pool))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(2).into();
    let index = |state: &State| state.node_pools().get(&name).map(|pool| pool.modify_index);
    let view = |state: &State| state.node_pools().get(&name).map(|pool| view::node_pool(pool));
    call.item("node pool", TABLES, index, view).await
}

async fn upsert(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    if fields.object("SchedulerConfiguration")?.is_some() {
        return Err(Error::unsupported("SchedulerConfiguration of a node pool"));
    }
    let command = Command::from(UpsertNodePool {
        pool: NodePool {
            name: name_of(&call, &fields, 2)?,
            description: fields.text("Description")?.unwrap_or("").into(),
            meta: meta_of(&fields)?,
            identity_ttl_ms: identity_ttl_ms(&fields)?,
            create_index: 0,
            modify_index: 0,
        },
    });
    let written = call.write(command).await?;
    call.answer_write(&written, json!({}))
}

fn identity_ttl_ms(fields: &Fields<'_>) -> Result<u64, Error> {
    // Nomad's clients send an empty text for none.
    if fields.value("NodeIdentityTTL").is_some_and(|ttl| ttl.as_str() == Some("")) {
        return Ok(0);
    }
    let nanoseconds = fields.nanoseconds("NodeIdentityTTL")?.unwrap_or(0);
    let ttl = u64::try_from(nanoseconds)
        .map_err(|_| Error::bad("NodeIdentityTTL must not be negative"))?;
    Ok(ttl.div_ceil(1_000_000))
}

async fn delete(call: Call) -> Result<Answer, Error> {
    let written =
        call.write(Command::from(DeleteNodePool { name: call.segment(2).into() })).await?;
    call.answer_write(&written, json!({}))
}

/// Nodes of a pool; `all` holds every node.
async fn nodes(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(2).into();
    call.list(&[TableId::Nodes, TableId::NodePools], move |state, list| {
        state.node_pools().get(&name).ok_or_else(|| Error::not_found("node pool"))?;
        let rows: Vec<_> = state
            .nodes()
            .iter()
            .filter(|node| &*name == "all" || node.description.pool == name)
            .collect();
        list.fill_stubs(
            rows,
            |node| node.id,
            |node| view::node_stub(node, false, false),
            |node| view::node(node),
        )
    })
    .await
}

/// Jobs that ask for a pool.
async fn jobs(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(2).into();
    let namespaces = call.namespaces();
    call.list(&[TableId::Jobs, TableId::Allocations, TableId::NodePools], move |state, list| {
        state.node_pools().get(&name).ok_or_else(|| Error::not_found("node pool"))?;
        let rows: Vec<_> = state
            .jobs()
            .iter()
            .filter(|job| namespaces.contains(&job.key.namespace))
            .filter(|job| state.current_spec(job).is_some_and(|spec| spec.node_pool == name))
            .collect();
        list.fill_stubs(
            rows,
            |job| job.key.clone(),
            |job| view::job_stub(state, job, false).unwrap_or(Value::Null),
            |job| view::job(state, job).unwrap_or(Value::Null),
        )
    })
    .await
}
