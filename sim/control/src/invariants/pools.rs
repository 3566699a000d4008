//! Instances and their nodes, as far as rows show them: bindings are one to one, and so are
//! machines.

use std::collections::BTreeMap;

use fsm::State;

use super::Broken;

/// A node is one instance, an instance one node, and a machine has one row.
pub(super) fn bindings(state: &State, out: &mut Vec<Broken>) {
    let mut nodes = BTreeMap::new();
    let mut machines = BTreeMap::new();
    for row in state.instances().iter() {
        let id = row.id;
        if let Some(node) = row.node
            && let Some(other) = nodes.insert(node, id)
        {
            out.push(Broken("pool-binding", format!("node {node} is {other} and {id}")));
        }
        let machine = (&row.provider, &row.provider_id);
        if !row.provider_id.is_empty()
            && let Some(other) = machines.insert(machine, id)
        {
            let machine = &row.provider_id;
            out.push(Broken("pool-binding", format!("machine {machine} is {other} and {id}")));
        }
    }
    for node in state.nodes().iter() {
        let Some(instance) = node.instance else { continue };
        let row = state.instances().get(&instance.id);
        if row.is_none_or(|row| row.node != Some(node.id)) {
            let detail = format!("node {} says that it is {}", node.id, instance.id);
            out.push(Broken("pool-binding", detail));
        }
        if row.is_some_and(|row| row.is_open() != instance.open) {
            let detail = format!("node {} does not know how its instance is", node.id);
            out.push(Broken("pool-binding", detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        InstanceId,
        node::NodeInstance,
        testing::{self, Driver},
    };

    use super::*;

    fn found(state: &State) -> Vec<Broken> {
        let mut out = Vec::new();
        bindings(state, &mut out);
        out
    }

    #[test]
    fn two_instances_on_a_node_or_a_machine_are_found() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let ids = ["a", "b"].map(|name| driver.instance("gpu", "small", name));
        assert_eq!(found(&driver.state), []);
        let first = driver.instance_row(ids[0]).clone();
        for change in 0..2 {
            let mut state = driver.state.clone();
            let mut row = driver.instance_row(ids[1]).clone();
            if change == 0 {
                row.node = first.node;
            } else {
                row.provider_id = first.provider_id.clone();
            }
            testing::put(&mut state, &row);
            assert!(!found(&state).is_empty(), "change {change}");
        }
    }

    #[test]
    fn a_node_that_is_another_instance_or_open_without_reason_is_found() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let id = driver.instance("gpu", "small", "a");
        for (id, open) in [(id, false), (InstanceId([9; 16]), true)] {
            let mut state = driver.state.clone();
            let mut node = driver.node_row("a").clone();
            node.instance = Some(NodeInstance { id, open });
            testing::put(&mut state, &node);
            assert_eq!(found(&state).len(), 1);
        }
    }
}
