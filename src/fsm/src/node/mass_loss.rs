//! Mass loss: when a large share of the ready nodes goes silent at the same time, it is more likely
//! that the servers cannot hear them than that the machines are gone. Nothing is reaped until most
//! of them are back, an operator confirms the loss, or a day has passed. Their allocations are
//! replaced as those of any other lost node.

use super::{EndMassLoss, Liveness, MassLoss, MassLossEnd, Node};
use crate::{
    apply::{Outcome, Turn, not_found},
    command::{Rejection, Reply},
    effect::Effect,
    id::{NodeId, TimeMs},
    limits,
    plant::{Plant, is_planted},
    state::State,
};

impl State {
    /// Whether a mass loss ends without an operator at log time `at`. Cost: its nodes.
    pub fn is_mass_loss_over(&self, loss: &MassLoss, at: TimeMs) -> bool {
        let is_down = |node: &Node| match node.liveness {
            Liveness::Disconnected | Liveness::Down => true,
            Liveness::Initializing | Liveness::Ready => false,
        };
        let down = loss.nodes.iter().filter_map(|id| self.nodes.get(id));
        let down = down.filter(|node| is_down(node)).count();
        down.saturating_mul(2) < loss.nodes.len()
            || at >= loss.since.saturating_add(limits::MASS_LOSS_MS_MAX)
    }

    /// When a node may be reaped, as far as its own row says: the leader asks for it then.
    pub fn reap_due_at(&self, node: &Node) -> Option<TimeMs> {
        node.lost_at
            .filter(|_| node.liveness == Liveness::Down && node.instance.is_none())
            .map(|lost_at| lost_at.saturating_add(self.node_life().lost_grace_ms))
    }

    /// Why a node is not reaped at log time `at`.
    pub fn why_not_reaped(&self, node: &Node, at: TimeMs) -> Option<&'static str> {
        if self.reap_due_at(node).is_none_or(|due| at < due) {
            return Some("the node is not due to be reaped");
        }
        if self.mass_loss().is_some() && !is_planted(Plant::ReapInMassLoss) {
            return Some("nothing is reaped during a mass loss");
        }
        if self.open_allocations_of_node(node.id).next().is_some() {
            return Some("allocations of the node have not ended");
        }
        if node.eligibility.ineligible && self.is_offline_table_full() {
            return Some("the table of offline nodes is full, and the node is ineligible");
        }
        None
    }

    /// No more ineligible nodes can be remembered without being registered.
    pub fn is_offline_table_full(&self) -> bool {
        self.offline_nodes.len() >= limits::OFFLINE_NODES_MAX
    }
}

impl Turn<'_> {
    /// Looks at the nodes that were missed: `missed` in this entry, and others within `window_ms`.
    pub(super) fn notice_mass_loss(&mut self, missed: &[NodeId], window_ms: u64) {
        if missed.is_empty() {
            return;
        }
        if let Some(loss) = self.state.mass_loss() {
            let mut loss = (**loss).clone();
            loss.nodes.extend_from_slice(missed);
            loss.nodes.sort_unstable();
            loss.nodes.dedup();
            return self.put_mass_loss(loss);
        }
        let life = self.state.node_life();
        let last_end = self.state.mass_losses.get(&()).and_then(|loss| loss.end.clone());
        let after_last = last_end.map_or(0, |end| end.at.saturating_add(1));
        let since = self.at.saturating_sub(window_ms).max(after_last);
        let mut nodes: Vec<_> = self.state.census.lost_since(since).collect();
        let lost = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
        let were_ready = lost.saturating_add(self.state.census.of(Liveness::Ready).into());
        let share = were_ready.saturating_mul(life.mass_loss_percent.into());
        if lost < life.mass_loss_nodes_min.into() || lost.saturating_mul(100) <= share {
            return;
        }
        nodes.sort_unstable();
        for id in &nodes {
            let Ok(mut node) = self.node(*id) else { continue };
            let message = format!("Mass loss: {lost} of {were_ready} ready nodes went silent");
            self.event(&mut node, &message);
            self.put_node(node);
        }
        let create_index = self.index;
        let lost = nodes.clone();
        self.put_mass_loss(MassLoss {
            since: self.at,
            nodes,
            end: None,
            create_index,
            modify_index: create_index,
        });
        // Members of capacity groups that are likely there still serve again, and the places of
        // some may have been filled.
        for id in lost {
            if let Some(instance) = self.state.nodes.get(&id).and_then(|node| node.instance) {
                self.take_place(instance.id);
            }
        }
    }

    pub(crate) fn end_mass_loss(&mut self, command: &EndMassLoss) -> Outcome {
        let EndMassLoss { by } = command;
        let loss = self.state.mass_loss().cloned().ok_or_else(|| not_found("mass loss"))?;
        if by.is_none() && !self.state.is_mass_loss_over(&loss, self.at) {
            return Err(Rejection::Invalid("most nodes of the mass loss are still down".into()));
        }
        let end = MassLossEnd { at: self.at, by: by.clone().unwrap_or_default() };
        self.put_mass_loss(MassLoss { end: Some(end), ..(*loss).clone() });
        Ok(Reply::Done)
    }

    fn put_mass_loss(&mut self, mut loss: MassLoss) {
        loss.modify_index = self.index;
        self.state.mass_losses.put(loss, self.changes);
        self.effects.insert(Effect::MassLoss);
    }
}
