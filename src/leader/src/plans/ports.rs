//! Concrete ports for placements: chosen by the leader's applier, where everything that holds a
//! port is known, so that two schedulers never collide. Deterministic by allocation id.

use std::collections::BTreeSet;

use fsm::{
    Placement, State, TaskGroup,
    plant::{Plant, is_planted},
    resources::{Dimension, Port, PortHolder},
};

/// Ports for one placement, static ones as asked and dynamic ones from the node's range.
pub fn pick(
    state: &State,
    placement: &Placement,
    group: &TaskGroup,
) -> Result<Vec<Port>, Dimension> {
    let Some(network) = &group.network else { return Ok(Vec::new()) };
    let Some(node) = state.nodes().get(&placement.node) else { return Ok(Vec::new()) };
    let resources = &node.description.resources;
    let usage = state.usage_without(placement.node, &placement.preempts);
    let mut taken = BTreeSet::new();
    let forgets = is_planted(Plant::ReservedPortsForgotten);
    let reserved = |port: u16| !forgets && resources.reserved_ports.binary_search(&port).is_ok();
    for ask in network.ports.iter().filter(|ask| ask.value != 0) {
        // A port whose holder is being stopped, or evicted for this placement, is free for its
        // successor, which the agent starts after the holder has ended.
        let held = usage.port(ask.value) == Some(PortHolder::Live);
        if held || reserved(ask.value) || !taken.insert(ask.value) {
            return Err(Dimension::Ports);
        }
    }
    let (low, high) = (resources.dynamic_port_min, resources.dynamic_port_max);
    let size = u64::from(high.saturating_sub(low)) + 1;
    let seed = placement.id.0[..8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let mut step = 0;
    let mut ports = Vec::with_capacity(network.ports.len());
    for ask in &network.ports {
        let mut value = ask.value;
        while value == 0 {
            if low == 0 || step >= size {
                return Err(Dimension::Ports);
            }
            let offset = (seed.wrapping_add(step)) % size;
            let port = low + u16::try_from(offset).map_err(|_| Dimension::Ports)?;
            step += 1;
            if usage.port(port).is_none() && !reserved(port) && taken.insert(port) {
                value = port;
            }
        }
        ports.push(Port { label: ask.label.clone(), value, to: ask.to });
    }
    Ok(ports)
}
