//! Instance pools and instances. The token of an instance stays out.

use elastic::explain;
use fsm::{
    State, Text, TimeMs,
    pool::{Instance, InstancePool, InstanceState, Pause},
};
use serde_json::{Map, Value, json};

use super::{id_or_empty, text};
use crate::time;

/// The states of an instance, as they are counted.
const STATES: [&str; 5] = ["requested", "booting", "idle", "running", "shutdown"];

/// A pool with its settings, and what it does now.
pub(crate) fn instance_pool(state: &State, now: TimeMs, pool: &InstancePool) -> Value {
    let mut counts: Map<String, Value> =
        STATES.iter().map(|word| ((*word).to_owned(), 0.into())).collect();
    for row in state.instances_of(&pool.name) {
        let count = &mut counts[explain::state_word(state, row)];
        *count = (count.as_u64().unwrap_or(0) + 1).into();
    }
    let mut object = jobspec::instance_pool_json(pool);
    let more = [
        ("Paused", pool.paused.as_ref().map_or(Value::Null, paused)),
        ("Counts", counts.into()),
        ("Waits", explain::pool(state, now, pool).into()),
        ("CreateIndex", pool.create_index.into()),
        ("ModifyIndex", pool.modify_index.into()),
    ];
    object.extend(more.map(|(name, value)| (name.to_owned(), value)));
    object.into()
}

fn paused(pause: &Pause) -> Value {
    json!({
        "By": text(&pause.by),
        "ByVerified": false,
        "Reason": text(&pause.reason),
        "At": time::rfc3339(pause.at),
    })
}

/// An instance.
pub(crate) fn instance(state: &State, now: TimeMs, row: &Instance) -> Value {
    let on_node = row.node.into_iter().flat_map(|node| state.open_allocations_of_node(node));
    let running: Vec<String> = on_node.map(|allocation| allocation.id.to_string()).collect();
    let deadline_at = match row.state {
        InstanceState::Requested | InstanceState::Booting => row.deadline_at,
        InstanceState::Bound | InstanceState::ShuttingDown => 0,
    };
    json!({
        "ID": row.id.to_string(),
        "Pool": text(&row.pool),
        "Type": text(&row.kind.name),
        "ProviderType": text(&row.kind.provider_type),
        "ProviderID": text(&row.provider_id),
        "Address": text(&row.address),
        "Price": jobspec::price_json(row.kind.price_micro),
        "State": explain::state_word(state, row),
        "Behavior": row.behavior.name(),
        "NodeID": id_or_empty(row.node),
        "Running": running,
        "LastAllocID": id_or_empty(row.last_allocation),
        "LastBusy": time::rfc3339(row.last_busy_at),
        "Deadline": time::rfc3339(deadline_at),
        "Reason": explain::instance(state, now, row),
        "CreateIndex": row.create_index,
        "ModifyIndex": row.modify_index,
    })
}

/// A provider, as leaders found it.
pub(crate) fn provider(state: &State, now: TimeMs, name: &Text) -> Value {
    let row = state.provider_states().get(name);
    let pools = state.instance_pools().iter().filter(|pool| pool.provider == *name);
    let pools: Vec<&str> = pools.map(|pool| &*pool.name).collect();
    let status = match row {
        None => "unknown",
        Some(row) if row.is_answering() => "answering",
        Some(_) => "failing",
    };
    json!({
        "Name": text(name),
        "Status": status,
        "Since": time::rfc3339(row.map_or(0, |row| row.since)),
        "Failing": row.map_or("", |row| &row.failing),
        "LastError": row.map_or("", |row| &row.last_error),
        "LastErrorAt": time::rfc3339(row.map_or(0, |row| row.error_at)),
        "Creates": row.map_or(0, |row| row.creates),
        "Destroys": row.map_or(0, |row| row.destroys),
        "Pools": pools,
        "Reason": explain::provider(state, now, name).unwrap_or_default(),
    })
}
