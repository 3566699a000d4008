//! Why a job waits for a machine, as sentences. Pure, and the same on every server: it follows from
//! the state alone.

use std::sync::Arc;

use fsm::{
    Evaluation, Instance, InstanceState, State, Text,
    pool::{InstancePool, InstanceType},
};

use crate::{
    demand::{Need, is_of_mass_loss, waiting},
    explain,
};

/// Instances that are named; the others are counted.
const NAMED_MAX: usize = 3;

/// What a blocked evaluation waits for in its job's pool; empty: it waits for no machine.
pub fn evaluation(state: &State, now: u64, row: &Evaluation) -> Vec<String> {
    let Some((name, waiting)) = waiting(state, now, row) else { return Vec::new() };
    let Some(pool) = state.instance_pools().get(&name) else { return Vec::new() };
    let mut sentences: Vec<String> = waiting
        .needs
        .iter()
        .filter_map(|need| {
            let why = need.why_none.as_ref()?;
            Some(format!("group \"{}\": not creating: {why}", need.group))
        })
        .collect();
    let can_be_helped: Vec<&Need> =
        waiting.needs.iter().filter(|need| !need.types.is_empty()).collect();
    if can_be_helped.is_empty() {
        return sentences;
    }
    if is_of_mass_loss(state, row.id) {
        sentences.push("not creating: a mass loss lasts, its nodes may come back".to_owned());
    }
    let coming: Vec<&Instance> = state
        .instances_of(&name)
        .map(AsRef::as_ref)
        .filter(|one| can_be_helped.iter().any(|need| need.types.contains(&one.kind.name)))
        .filter(|one| is_coming(state, one))
        .collect();
    for one in coming.iter().take(NAMED_MAX) {
        let what = explain::instance(state, now, one);
        sentences.push(format!("waiting for instance {} of pool {name}: {what}", short(one)));
    }
    if coming.len() > NAMED_MAX {
        sentences.push(format!("and for {} more instances", coming.len() - NAMED_MAX));
    }
    let stops = stops(state, now, pool, &can_be_helped);
    if coming.is_empty() && stops.is_empty() {
        sentences.push(format!("pool {name} is about to make an instance for it"));
    }
    sentences.extend(stops);
    sentences
}

/// What keeps a pool from making more instances of types that some needs can use.
fn stops(state: &State, now: u64, pool: &InstancePool, needs: &[&Need]) -> Vec<String> {
    let is_wanted = |name: &Text| needs.iter().any(|need| need.types.contains(name));
    let spent = state.price_of_pool(&pool.name);
    let is_paid = |kind: &InstanceType| {
        let price = spent.saturating_add(kind.price_micro);
        pool.max_price_micro == 0 || price <= pool.max_price_micro
    };
    let is_free = |(name, kind): (&Text, &Arc<InstanceType>)| {
        is_wanted(name)
            && is_paid(kind)
            && state.limit_on(&pool.name, kind, now).is_none()
            && state.backoff_on(pool, name, now).is_none()
    };
    let is_open = pool.types.iter().any(is_free);
    let at_max =
        state.instance_count(&pool.name) >= usize::try_from(pool.max).unwrap_or(usize::MAX);
    let is_bound_by_past = state.pool_histories().get(&pool.name).is_some_and(|history| {
        let most = pool.max_creates_per_hour;
        history.protected_since > 0 || (most > 0 && history.asked_lately(now) >= most)
    });
    let answers = explain::provider(state, now, &pool.provider).is_none();
    if is_open && !at_max && !is_bound_by_past && answers && pool.paused.is_none() {
        return Vec::new();
    }
    explain::pool(state, now, pool)
}

/// It may take work later, and does not yet.
fn is_coming(state: &State, row: &Instance) -> bool {
    match row.state {
        InstanceState::Requested | InstanceState::Booting => true,
        InstanceState::Bound => {
            let node = row.node.and_then(|node| state.nodes().get(&node));
            row.is_open() && node.is_some_and(|node| !node.is_schedulable())
        }
        InstanceState::ShuttingDown => false,
    }
}

fn short(row: &Instance) -> String {
    row.id.to_string().chars().take(8).collect()
}
