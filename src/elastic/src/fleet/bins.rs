//! What a pool has already: the room of its instances that are there or coming, and which of them
//! idle.

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    ClassId, Index, Instance, InstanceId, InstancePool, InstanceState, Liveness, Node, State, Text,
    node::GainKey, pool::Behavior,
};

use super::Look;
use crate::{
    demand::{Bin, Gained},
    overhead::{Overhead, Room as FreeRoom},
};

/// The room of a pool's instances that are there or coming, and whose each is.
pub(super) fn bins(
    look: &mut Look<'_>,
    pool: &InstancePool,
    overhead: &Overhead,
) -> (Vec<Bin>, BTreeMap<usize, InstanceId>) {
    let (mut bins, mut owners) = (Vec::new(), BTreeMap::new());
    let (state, rows) = (look.state, look.rows);
    let open = rows.iter().filter(|row| row.behavior == Behavior::Run);
    for row in open.filter(|row| row.member_drain().is_none()) {
        let kind = row.kind.name.clone();
        let bin = match row.state {
            InstanceState::ShuttingDown => continue,
            InstanceState::Requested | InstanceState::Booting => {
                let room = overhead.room(&row.kind);
                Bin { kind, room, gained: None, is_spent: false }
            }
            InstanceState::Bound => {
                let Some(node) = row.node.and_then(|node| state.nodes().get(&node)) else {
                    continue;
                };
                let gained = if node.is_schedulable() {
                    let Some(gained) = gained(state, node) else { continue };
                    Some(gained)
                } else if node.liveness == Liveness::Initializing && node.suspension().is_none() {
                    None
                } else {
                    continue;
                };
                let room = room_of(state, overhead, &kind, node);
                Bin { kind, room, gained, is_spent: is_spent(look, pool, row) }
            }
        };
        owners.insert(bins.len(), row.id);
        bins.push(bin);
    }
    (bins, owners)
}

/// It has been idle for so long that it would go: what waits for it did not come. Until then that
/// is due.
fn is_spent(look: &mut Look<'_>, pool: &InstancePool, row: &Instance) -> bool {
    if !look.state.is_empty_instance(row) {
        return false;
    }
    let at = idle_since(look.state, row).saturating_add(pool.idle_timeout_ms);
    if at > look.now {
        look.due(at);
    }
    at <= look.now
}

/// What a node leaves to others, beside what system jobs take of it, or will.
fn room_of(state: &State, overhead: &Overhead, kind: &Text, node: &Node) -> FreeRoom {
    let usage = state.usage(node.id);
    let resources = &node.description.resources;
    let slots = match resources.allocations_max {
        0 => u32::MAX,
        most => most.saturating_sub(usage.allocations),
    };
    let ports = usage.ports.iter().map(|((port, _), _)| *port).collect();
    let resources = resources.available().minus(usage.resources);
    let mut room = FreeRoom { resources, slots, ports };
    overhead.take_absent(kind, &mut room, |job| {
        state.open_allocations_of_node(node.id).any(|row| row.job == *job)
    });
    room
}

/// Idle machines of one type.
#[derive(Default)]
pub(super) struct Idle {
    /// By the class of its node the first gain of such a one.
    pub(super) gains: BTreeMap<ClassId, Index>,
    /// The room that each really has; of many that are alike one.
    pub(super) rooms: Vec<FreeRoom>,
}

/// Types of which an instance is there, idle and open.
pub(super) fn idle_machines<'a>(
    state: &State,
    overhead: &Overhead,
    rows: &'a [Arc<Instance>],
) -> BTreeMap<&'a Text, Idle> {
    let mut idle: BTreeMap<&Text, Idle> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_open() && state.is_empty_instance(row)) {
        let node = row.node.and_then(|node| state.nodes().get(&node));
        let Some(node) = node.filter(|node| node.is_schedulable()) else { continue };
        if let Some(Gained { index, class }) = gained(state, node) {
            let known = idle.entry(&row.kind.name).or_default();
            let first = known.gains.entry(class).or_insert(index);
            *first = index.min(*first);
            let room = room_of(state, overhead, &row.kind.name, node);
            if !known.rooms.contains(&room) {
                known.rooms.push(room);
            }
        }
    }
    idle
}

fn gained(state: &State, node: &Node) -> Option<Gained> {
    let index = state.capacity_gains().get(&GainKey::Node(node.id))?.index;
    Some(Gained { index, class: node.class })
}

/// Since when nothing runs there although it could. One that was away has its time anew.
pub(super) fn idle_since(state: &State, row: &Instance) -> u64 {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    row.last_busy_at.max(row.bound_at).max(node.map_or(0, |node| node.liveness_at))
}

/// Its agent is heard. What is not is no spare machine, and goes by the probe timeout.
pub(super) fn is_ready(state: &State, row: &Instance) -> bool {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    node.is_some_and(|node| node.liveness == Liveness::Ready)
}
