//! Providers of machines, as leaders found them: `/v1/providers` and `/v1/provider/NAME`.

use std::collections::BTreeSet;

use fsm::{Extent, State, Text, right::Right, table::TableId};

use super::{
    answer::Answer,
    call::Call,
    error::Error,
    route::{Route, Subject},
    view,
};

/// What a provider shows is in these.
const TABLES: &[TableId] = &[TableId::ProviderStates, TableId::InstancePools];

pub(super) fn routes() -> Vec<Route> {
    vec![
        // Nomad lacks providers: they are settings of the cluster.
        Route::read("/v1/providers", Subject::Machines, Right::OperatorRead, list),
        Route::read("/v1/provider/{name}", Subject::Machines, Right::OperatorRead, read),
    ]
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
