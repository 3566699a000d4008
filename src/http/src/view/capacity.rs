//! Capacity groups: what is asked for, what is there, who serves.

use elastic::sums::GroupSums;
use fsm::{State, Text, capacity::CapacitySource, pool::Instance};
use serde_json::{Map, Value, json};

use super::{id_or_empty, text};
use crate::time;

/// The names of all groups: those that are declared, and those that are not any more and have
/// members left.
pub(crate) fn capacity_groups(state: &State) -> Vec<Text> {
    let declared = state.instance_pools().iter().flat_map(|pool| pool.groups.keys().cloned());
    let targets = state.capacity_targets().iter().map(|row| row.name.clone());
    let mut names: Vec<Text> = declared.chain(targets).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether there is anything to show of a group.
pub(crate) fn is_capacity_group(state: &State, name: &Text) -> bool {
    state.capacity_group(name).is_some() || state.capacity_targets().get(name).is_some()
}

/// A group: its settings, and amounts in its dimension.
pub(crate) fn capacity_group(state: &State, name: &Text) -> Option<Value> {
    let declared = state.capacity_group(name);
    let target = state.capacity_targets().get(name);
    let pool =
        declared.map(|(pool, _)| &pool.name).or_else(|| target.map(|target| &target.pool))?;
    let mut object = declared.map_or_else(Map::new, |(_, group)| {
        let mut settings = jobspec::capacity_group_json(group);
        settings.remove("Name");
        settings
    });
    let sums = GroupSums::of(state, name);
    let phases: Map<String, Value> =
        sums.members.iter().map(|(phase, count)| (phase.name().into(), (*count).into())).collect();
    let decision = target.and_then(|target| target.decision);
    let sources: Vec<Value> =
        state.capacity_sources().iter().filter_map(|row| source(row, name)).collect();
    let indexes = match target {
        Some(target) => (target.create_index, target.modify_index),
        None => declared.map_or((0, 0), |(pool, _)| (pool.modify_index, pool.modify_index)),
    };
    let more = json!({
        "Group": text(name),
        "Pool": text(pool),
        "Deleted": declared.is_none(),
        "Required": target.map_or(0, |target| target.required),
        "Predicted": decision.map_or(0, |decision| decision.predicted),
        "Desired": decision.map_or(0, |decision| decision.desired),
        "DecidedAt": time::rfc3339(decision.map_or(0, |decision| decision.at)),
        "Current": sums.current,
        "OnTheWay": sums.on_the_way,
        "Draining": sums.draining,
        "Members": sums.active(),
        "MembersByPhase": phases,
        "Sources": sources,
        "ExpiredSources": target.map_or(0, |target| target.expired),
        "CreateIndex": indexes.0,
        "ModifyIndex": indexes.1,
    });
    let Value::Object(more) = more else { unreachable!("an object was just made") };
    object.extend(more);
    Some(object.into())
}

/// What a source says of a group; none: nothing.
fn source(row: &CapacitySource, group: &Text) -> Option<Value> {
    let asked = row.amounts.get(group)?;
    Some(json!({
        "Source": text(&row.name),
        "Epoch": row.epoch,
        "Seq": row.seq,
        "Amount": asked.amount,
        "Since": time::rfc3339(asked.since),
        "Expires": time::rfc3339(row.expires_at),
    }))
}

/// Who serves, by place.
pub(crate) fn capacity_members(state: &State, name: &Text) -> Option<Value> {
    if !is_capacity_group(state, name) {
        return None;
    }
    let port = state.capacity_group(name).map_or(0, |(_, group)| group.member_port);
    let rows = state.active_members(name);
    let rows = rows.iter().map(|row| {
        json!({
            "Instance": row.id.to_string(),
            "Node": id_or_empty(row.node),
            "Address": member_address(state, row),
            "Port": port,
            "Since": time::rfc3339(row.bound_at),
            "Place": row.place(),
        })
    });
    Some(rows.collect())
}

/// As the provider says, or as the node's agent does.
fn member_address<'a>(state: &'a State, row: &'a Instance) -> &'a str {
    if !row.address.is_empty() {
        return &row.address;
    }
    let node = row.node.and_then(|node| state.nodes().get(&node));
    node.map_or("", |node| &node.description.resources.address)
}
