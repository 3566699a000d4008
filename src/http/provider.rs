//! Providers of machines, as leaders found them: `/v1/providers` and `/v1/provider/NAME`.

use std::collections::BTreeSet;

use axum::{Router, routing::get};
use fsm::{Extent, State, Text, table::TableId};

use super::{Context, answer::Answer, call::Call, error::Error, view};

/// What a provider shows is in these.
const TABLES: &[TableId] = &[TableId::ProviderStates, TableId::InstancePools];

pub(crate) fn routes() -> Router<Context> {
    Router::new().route("/v1/providers", get(list)).route("/v1/provider/{name}", get(read))
}

/// The providers that pools name, and those that a leader has called.
fn names(state: &State) -> BTreeSet<Text> {
    let of_pools = state.instance_pools().iter().map(|pool| pool.provider.clone());
    let called = state.provider_states().iter().map(|row| row.provider.clone());
    of_pools.chain(called).collect()
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    let now = call.clock();
    call.list(TABLES, move |state, list| {
        let rows: Vec<Text> =
            names(state).into_iter().filter(|name| name.starts_with(&prefix)).collect();
        list.fill(rows, Text::clone, |name| view::provider(state, now(), name))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(1).into();
    let is_there = |state: &State| names(state).contains(&name);
    let extent = |state: &State| if is_there(state) { Extent::Whole } else { Extent::Nothing };
    let now = call.clock();
    let view = |state: &State| is_there(state).then(|| view::provider(state, now(), &name));
    call.derived("provider", TABLES, extent, view).await
}
