//! Mass losses: several agents are cut off from all servers in one moment, as when a switch fails, and come back together.
//!
//! Among the other faults only what states show is judged, because leaders change and agents restart meanwhile. When the faults are over there is one
//! more, of which everything is known: it is told, nothing is reaped although it would be due, every node that comes back while it lasts is as it was, and it ends.

use std::{collections::BTreeMap, time::Duration};

use fsm::{Index, NodeId, node::MassLoss};

use crate::{
    coverage,
    swarm::{LOSS_NODES_MIN, LOSS_PERCENT, Swarm},
    trace, verdict,
    world::{self, World},
};
use chance::Dice;
use ground::rt::{self, Instant};

/// Pause between two of them, ms.
const GAP_MS: (u64, u64) = (300, 3_000);
/// How long one lasts among other faults, ms: some end before a node is called down.
const LASTS_MS: (u64, u64) = (2_000, 14_000);
/// An agent that was in trouble when the faults ended is itself again after this time.
const AGENTS_CALM: Duration = Duration::from_secs(15);
/// From the time that servers have for something until it shows.
const SLACK: Duration = Duration::from_secs(3);
/// From the end of a cut until all nodes are in service.
const BACK: Duration = Duration::from_secs(30);
/// From then until the servers have ended the loss: they look once a second.
const ENDED: Duration = Duration::from_secs(5);

/// What a node must be when it comes back: incarnation, and index of its row.
type Life = (u64, Index);

/// Brings them for as long as the other faults last.
pub(crate) async fn run(world: World) {
    let mut dice = Dice::named(world.swarm.seed, "mass loss");
    let end = Instant::now() + Duration::from_millis(world.swarm.safety_ms);
    while Instant::now() < end {
        rt::sleep(Duration::from_millis(dice.between(GAP_MS.0, GAP_MS.1))).await;
        if world.is_calm() {
            return;
        }
        let lost = choose(&mut dice, world.swarm.agents);
        let lasts = Duration::from_millis(dice.between(LASTS_MS.0, LASTS_MS.1));
        trace::event("losses", format_args!("agents {lost:?} are out of reach for {lasts:?}"));
        coverage::hit("several agents were out of reach at once");
        let cut = world.network.cut(links(&world, &lost));
        rt::sleep(lasts).await;
        world.network.uncut(&cut);
    }
}

/// One more when the faults are over. False when something was wrong.
pub(crate) async fn at_last(world: &World) -> bool {
    rt::sleep(AGENTS_CALM).await;
    if !is_over(world).await {
        return false;
    }
    let mut dice = Dice::named(world.swarm.seed, "mass loss at the end");
    let lost = choose(&mut dice, world.swarm.agents);
    let before = lives(world);
    let names: Vec<String> = lost.iter().map(|number| agent(*number)).collect();
    let ids: Vec<NodeId> = names.iter().filter_map(|name| Some(before.get(name)?.0)).collect();
    trace::event("losses", format_args!("agents {lost:?} are out of reach at last"));
    let cut = world.network.cut_off(links(world, &lost));
    let [told, due] = deadlines(&world.swarm);
    let is_told = |world: &World| loss(world).is_some_and(|loss| has_all(&loss, &ids));
    if !world.wait("I50: a mass loss is told", told, is_told).await {
        return false;
    }
    rt::sleep(due).await;
    if !is_told(world) {
        verdict::fail("I50: a mass loss ended while its nodes were out of reach".to_owned());
    }
    world.network.uncut(&cut);
    if verdict::has_failed() || !is_over(world).await {
        return false;
    }
    let after = lives(world);
    for (name, life) in &before {
        // The loss ends when most of its nodes are back, and those that are still down are reaped at once.
        if after.get(name) != Some(life) && !world.was_late(life.0) {
            let now = after.get(name);
            verdict::fail(format!("I50: {name} was {life:?} before a mass loss, and is {now:?}"));
        }
    }
    !verdict::has_failed()
}

/// Every node is in service, and soon after that no mass loss goes on.
async fn is_over(world: &World) -> bool {
    let all = World::is_every_node_in_service;
    world.wait("every node is in service after a mass loss", BACK, all).await
        && world.wait("I50: a mass loss is over", ENDED, |world| loss(world).is_none()).await
}

/// Some agents that together are a mass loss, whichever of the others are there.
fn choose(dice: &mut Dice, agents: usize) -> Vec<usize> {
    let share = agents * LOSS_PERCENT as usize / 100 + 1;
    let least = share.max(LOSS_NODES_MIN as usize).min(agents);
    let (first, more) = (dice.index(agents), dice.index(agents - least + 1));
    (first..first + least + more).map(|number| number % agents).collect()
}

/// Until a mass loss is told at the latest, and then until its nodes would have been reaped: a time to live may be twice the shortest one, a leader
/// that changes meanwhile gives all nodes as much again, and log time may be slower.
fn deadlines(swarm: &Swarm) -> [Duration; 2] {
    let silent = Duration::from_millis(2 * swarm.heartbeat_ttl_ms + swarm.heartbeat_grace_ms);
    let grace = Duration::from_millis(swarm.life.lost_grace_ms);
    [2 * silent + SLACK, silent.max(grace) * 21 / 20 + SLACK]
}

fn loss(world: &World) -> Option<MassLoss> {
    world.newest()?.mass_loss().map(|loss| MassLoss::clone(loss))
}

fn has_all(loss: &MassLoss, ids: &[NodeId]) -> bool {
    ids.iter().all(|id| loss.nodes.contains(id))
}

/// Nodes by name.
fn lives(world: &World) -> BTreeMap<String, (NodeId, Life)> {
    let Some(state) = world.newest() else { return BTreeMap::new() };
    let life = |node: &fsm::Node| (node.id, (node.incarnation, node.create_index));
    state.nodes().iter().map(|node| (node.description.name.to_string(), life(node))).collect()
}

fn agent(number: usize) -> String {
    format!("a{number}")
}

/// The links between these agents and all servers.
fn links(world: &World, agents: &[usize]) -> Vec<(String, String)> {
    let servers: Vec<_> = (0..world.count()).map(world::address).collect();
    let both = |agent: String| {
        let each = servers.clone().into_iter();
        each.flat_map(move |address| [(agent.clone(), address.clone()), (address, agent.clone())])
    };
    agents.iter().flat_map(|number| both(agent(*number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_lost_are_a_mass_loss_whoever_else_is_there() {
        let mut dice = Dice::named(1, "losses");
        for agents in 2..=9 {
            let mut counts = std::collections::BTreeSet::new();
            for _ in 0..200 {
                let lost = choose(&mut dice, agents);
                let different: std::collections::BTreeSet<_> = lost.iter().copied().collect();
                assert!(different.len() == lost.len() && lost.iter().all(|one| *one < agents));
                assert!(lost.len() * 100 > agents * LOSS_PERCENT as usize);
                counts.insert(lost.len());
            }
            assert!(counts.first() >= Some(&(LOSS_NODES_MIN as usize)));
            assert_eq!(counts.last(), Some(&agents));
        }
    }
}
