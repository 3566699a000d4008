//! What may happen to a node from one state to a later one of the same log.

use std::collections::BTreeSet;

use fsm::{
    ClientStatus, Liveness, Node, NodeId, State,
    node::{MassLoss, SuspendReason},
};

use super::Broken;

/// I50: while a mass loss lasts, no node goes but those that an operator `purged`. The states may be several entries apart.
pub fn check_kept(old: &State, new: &State, purged: &BTreeSet<NodeId>) -> Vec<Broken> {
    let lasting = |state: &State| {
        let loss = state.mass_losses().get(&())?;
        loss.end.is_none().then_some(loss.create_index)
    };
    let one_entry = new.index() == old.index() + 1;
    let Some(began) = lasting(old).filter(|began| one_entry || lasting(new) == Some(*began)) else {
        return Vec::new();
    };
    // One that registered again meanwhile is another row.
    let is_kept = |before: &Node| {
        let after = new.nodes().get(&before.id);
        after.is_some_and(|after| after.create_index == before.create_index)
    };
    let gone = old.nodes().iter().filter(|node| !is_kept(node) && !purged.contains(&node.id));
    gone.map(|node| {
        let id = node.id;
        Broken("I50", format!("{id} was reaped during the mass loss that began at {began}"))
    })
    .collect()
}

/// The mass loss that lasts although fewer than half of its nodes are away.
pub(crate) fn loss_that_is_over(state: &State) -> Option<&MassLoss> {
    let loss = state.mass_losses().get(&()).filter(|loss| loss.end.is_none())?;
    (count_away(state, &loss.nodes) * 2 < loss.nodes.len()).then_some(loss)
}

/// How many of these nodes are registered and not heard.
fn count_away(state: &State, nodes: &[NodeId]) -> usize {
    let is_away = |id: &&NodeId| {
        let node = state.nodes().get(id);
        node.is_some_and(|node| match node.liveness {
            Liveness::Disconnected | Liveness::Down => true,
            Liveness::Initializing | Liveness::Ready => false,
        })
    };
    nodes.iter().filter(is_away).count()
}

/// A step that is judged.
pub(super) struct NodeStep<'a> {
    pub(super) old: &'a State,
    pub(super) new: &'a State,
    /// The states are one entry apart.
    pub(super) one_entry: bool,
}

impl NodeStep<'_> {
    /// What is wrong with it.
    pub(super) fn judge(&self, out: &mut Vec<Broken>) {
        self.incarnations(out);
        if !self.one_entry {
            return;
        }
        self.flaky_share(out);
        self.mass_loss(out);
        for after in self.new.nodes().iter() {
            match self.old.nodes().get(&after.id) {
                Some(before) => {
                    self.liveness(before, after, out);
                    self.strikes(before, after, out);
                    self.affinity(before, after, out);
                }
                None => self.came_back(after, out),
            }
        }
    }

    /// B14: a node's incarnation never falls.
    fn incarnations(&self, out: &mut Vec<Broken>) {
        for before in self.old.nodes().iter() {
            let after = self.new.nodes().get(&before.id);
            if after.is_some_and(|after| after.incarnation < before.incarnation) {
                let detail = format!("the incarnation of node {} fell", before.id);
                out.push(Broken("I7", detail));
            }
        }
        for row in self.old.tombstones().iter() {
            let after = self.new.nodes().get(&row.node);
            if after.is_some_and(|after| after.incarnation <= row.incarnation) {
                let detail = format!("node {} came back in an old incarnation", row.node);
                out.push(Broken("I7", detail));
            }
        }
    }

    /// I50: at most a share of the nodes is suspended for failures, but one always may be. One that comes back suspended was before.
    fn flaky_share(&self, out: &mut Vec<Broken>) {
        let is_flaky =
            |node: &Node| node.suspension().is_some_and(|one| one.reason == SuspendReason::Flaky);
        let is_new =
            |after: &Node| self.old.nodes().get(&after.id).is_some_and(|before| !is_flaky(before));
        let flaky = self.new.nodes().iter().filter(|node| is_flaky(node)).count();
        let begins = self.new.nodes().iter().any(|node| is_flaky(node) && is_new(node));
        let percent = self.old.node_life().suspended_percent_max as usize;
        // Between states that are further apart some may have registered first.
        let nodes = if self.one_entry { 0 } else { self.new.nodes().len() };
        let most = (nodes.max(self.old.nodes().len()) * percent / 100).max(1);
        if begins && flaky > most {
            let detail = format!("{flaky} nodes are suspended as flaky, {most} may be");
            out.push(Broken("I50", detail));
        }
    }

    /// I50: the servers end a mass loss only when most of its nodes are heard again, or after a day.
    fn mass_loss(&self, out: &mut Vec<Broken>) {
        let lasts =
            |state: &State| state.mass_losses().get(&()).filter(|one| one.end.is_none()).cloned();
        let Some(before) = lasts(self.old) else { return };
        let Some(row) = self.new.mass_losses().get(&()) else {
            out.push(Broken("I50", "a mass loss was forgotten".to_owned()));
            return;
        };
        let MassLoss { since, nodes, end, .. } = &**row;
        if *since != before.since || before.nodes.iter().any(|node| !nodes.contains(node)) {
            out.push(Broken("I50", "a mass loss became another one".to_owned()));
        }
        let Some(end) = end.as_ref().filter(|end| end.by.is_empty()) else { return };
        let is_away = |id: &&NodeId| {
            let node = self.old.nodes().get(id);
            node.is_some_and(|node| {
                matches!(node.liveness, Liveness::Down | Liveness::Disconnected)
            })
        };
        let away = nodes.iter().filter(is_away).count();
        if away * 2 >= nodes.len() && end.at < since + fsm::limits::MASS_LOSS_MS_MAX {
            let detail = format!("a mass loss is over while {away} of {} are away", nodes.len());
            out.push(Broken("I50", detail));
        }
    }

    /// I50: a liveness is followed by few others, and whoever begins to initialize gets the whole time for it.
    fn liveness(&self, before: &Node, after: &Node, out: &mut Vec<Broken>) {
        let id = after.id;
        let follows = match before.liveness {
            Liveness::Initializing => [Liveness::Ready, Liveness::Down].as_slice(),
            Liveness::Ready => &[Liveness::Initializing, Liveness::Disconnected, Liveness::Down],
            Liveness::Disconnected => &[Liveness::Initializing, Liveness::Down],
            Liveness::Down => &[Liveness::Initializing],
        };
        if before.liveness != after.liveness && !follows.contains(&after.liveness) {
            let (from, to) = (before.liveness.name(), after.liveness.name());
            out.push(Broken("I50", format!("{id} went from {from} to {to}")));
        }
        let begins = before.liveness != after.liveness && after.liveness == Liveness::Initializing;
        let due_at = self.new.at() + self.old.node_life().ready_deadline_ms;
        if begins && after.ready_deadline_at != due_at {
            let deadline_at = after.ready_deadline_at;
            let detail = format!("{id} has to be ready at {deadline_at}, not at {due_at}");
            out.push(Broken("I50", detail));
        }
    }

    /// I50: strikes come one at a time, and none within the window of the one before.
    fn strikes(&self, before: &Node, after: &Node, out: &mut Vec<Broken>) {
        if (before.strikes, before.strike_at) == (after.strikes, after.strike_at) {
            return;
        }
        let id = after.id;
        if after.strikes > before.strikes + 1 {
            let (from, to) = (before.strikes, after.strikes);
            out.push(Broken("I50", format!("{id} went from {from} strikes to {to} at once")));
        }
        let since_ms = self.new.at() - before.strike_at;
        let window_ms = self.old.node_life().strike_window_ms;
        if before.strike_at > 0 && since_ms < window_ms {
            let detail = format!("{id} has a strike {since_ms} ms after another one");
            out.push(Broken("I50", detail));
        }
    }

    /// I50: a node's affinity key is that of what started there last, and empty after a cool-down.
    fn affinity(&self, before: &Node, after: &Node, out: &mut Vec<Broken>) {
        let (id, key) = (after.id, &after.affinity_key);
        let clears = before.suspension().is_some_and(|one| one.clears_affinity);
        if clears && after.suspension().is_none() && !key.is_empty() {
            out.push(Broken("I50", format!("{id} keeps key {key} after its cool-down")));
        }
        if before.affinity_key == *key || key.is_empty() {
            return;
        }
        let meta_key = self.old.node_life().affinity_meta_key;
        let started = self.new.allocations().iter().any(|row| {
            let was = self.old.allocations().get(&row.id);
            let starts = was.is_some_and(|was| was.client == ClientStatus::Pending)
                && row.client != ClientStatus::Pending;
            let spec = self.new.allocation_spec(row);
            let value = spec.and_then(|spec| {
                let group = spec.group(&row.group).and_then(|group| group.meta.get(&meta_key));
                group.or_else(|| spec.meta.get(&meta_key))
            });
            row.node == id && starts && value == Some(key)
        });
        if !started {
            out.push(Broken("I50", format!("{id} has key {key}, and nothing of it started")));
        }
    }

    /// I50: what a reaped node was suspended for, and its strikes, are as they were.
    fn came_back(&self, after: &Node, out: &mut Vec<Broken>) {
        let Some(was) = self.old.tombstones().get(&after.id) else { return };
        if was.health != after.health
            || (was.strikes, was.strike_at) != (after.strikes, after.strike_at)
        {
            let (id, health) = (after.id, &after.health);
            let detail = format!("{id} was {:?} when it was reaped and is {health:?}", was.health);
            out.push(Broken("I50", detail));
        }
    }
}
