//! Nodes: registration, liveness, reaping. Each transition touches its own part of the node's state
//! only; health is in `health.rs`, what operators say in `service.rs`.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    CapacityGain, EvaluateNode, GainKey, Health, Liveness, Node, NodeChange, NodeDescription,
    NodeEvent, NodeLiveness, OfflineNode, ReapNode, RegisterNode, Tombstone, computed_class,
};
use crate::{
    allocation::{Allocation, ClientStatus},
    apply::{Outcome, Turn, not_found},
    bounds::refused,
    command::{Rejection, Reply},
    effect::Effect,
    evaluation::Trigger,
    id::{EvaluationId, JobKey, NodeId, TimeMs},
    limits,
    plant::{Plant, is_planted},
    pool::Instance,
};

impl Turn<'_> {
    pub(crate) fn put_node(&mut self, mut node: Node) {
        node.modify_index = self.index;
        self.effects.insert(Effect::Node(node.id));
        let old = self.state.nodes.get(&node.id).cloned();
        self.state.index_node(old.as_deref(), Some(&node));
        self.state.nodes.put(node, self.changes);
    }

    pub(crate) fn record_gain(&mut self, id: NodeId) {
        let Some(node) = self.state.nodes.get(&id).cloned() else { return };
        for key in [GainKey::Class(node.class), GainKey::Node(id)] {
            self.state.capacity_gains.put(CapacityGain { key, index: self.index }, self.changes);
        }
        self.effects.insert(Effect::Capacity { class: node.class, node: id });
    }

    pub(crate) fn register_node(&mut self, command: &RegisterNode) -> Outcome {
        let RegisterNode {
            node: id,
            secret,
            identity,
            ref description,
            instance,
            ref evaluation_ids,
        } = *command;
        let known = self.state.nodes.get(&id).cloned();
        if known.as_ref().is_some_and(|known| known.secret != secret) {
            return Err(Rejection::SecretMismatch);
        }
        description.check().map_err(refused)?;
        if let Some(old) = &known
            && !description.start.rival.is_empty()
            && old.description.start.nonce != description.start.nonce
        {
            return Ok(Reply::Rejected(self.refuse_copy(old, description)));
        }
        let bind = |proof| self.bind(id, known.as_deref(), &description.pool, proof);
        let binding = instance.map(bind).transpose()?;
        let Some(old) = known else {
            let node = self.new_node(id, secret, identity, description, binding);
            return Ok(Self::node_reply(node, Vec::new()));
        };
        if let Some(bound) = old.instance
            && old.description.pool != description.pool
        {
            let message = format!(
                "the node is instance {} of pool \"{}\" and cannot move to pool \"{}\"",
                bound.id, old.description.pool, description.pool
            );
            return Err(Rejection::Invalid(message.into()));
        }
        let mut node = (*old).clone();
        if let Some(row) = binding {
            self.put_binding(row, &mut node);
        }
        node.description = Arc::clone(description);
        node.class = computed_class(description);
        let reborn = old.identity != identity;
        let mut jobs = BTreeMap::new();
        if reborn {
            node.identity = identity;
            node.incarnation = node.incarnation.saturating_add(1);
            (node.check, node.check_sequence, node.shortage) = (None, 0, None);
            let message = "Node re-registered with a new incarnation";
            self.record(&mut node, NodeChange::Registered, message);
            jobs = self.lose_allocations(
                id,
                "the machine booted, or the agent restarted without its state",
            );
        }
        let returns = matches!(node.liveness, Liveness::Down | Liveness::Disconnected);
        if reborn || returns {
            self.set_liveness(&mut node, Liveness::Initializing);
        }
        // The class leaves out what is unique to a node, which constraints may ask for as well.
        let fits_more = old.class != node.class
            || old.description.resources != description.resources
            || old.description.pool != description.pool
            || old.description.name != description.name
            || old.description.attributes != description.attributes
            || old.description.meta != description.meta;
        if fits_more && node.is_schedulable() {
            self.gains.insert(id);
            jobs.extend(self.jobs_of_node(&node, Trigger::NodeUpdate));
        }
        if node != *old {
            self.put_node(node.clone());
        }
        let made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        let node = self.state.nodes.get(&id).map_or(node, |row| (**row).clone());
        Ok(Self::node_reply(node, made))
    }

    /// A copied folder makes two agents one node, and what is wanted once would run twice. The
    /// refusal is an event of the node, so that people who look at it see it.
    fn refuse_copy(&mut self, old: &Node, description: &NodeDescription) -> Rejection {
        let (newcomer, rival) = (&description.http_address, &description.start.rival);
        let message = format!(
            "The agent at {newcomer} is refused: it has a copy of this node's folder, and the agent at {rival} runs"
        );
        if old.events.last().is_none_or(|last| *last.message != *message) {
            let mut node = old.clone();
            self.event(&mut node, &message);
            self.put_node(node);
        }
        Rejection::InUse(message.into())
    }

    fn new_node(
        &mut self,
        id: NodeId,
        secret: [u8; 16],
        identity: [u8; 16],
        description: &Arc<NodeDescription>,
        binding: Option<Instance>,
    ) -> Node {
        let buried = self.state.tombstones.remove(&id, self.changes);
        let offline = self.state.offline_nodes.remove(&id, self.changes);
        let mut node = Node {
            secret,
            identity,
            liveness_at: self.at,
            ready_deadline_at: self.ready_deadline(),
            create_index: self.index,
            ..Node::new(id, Arc::clone(description))
        };
        if let Some(buried) = buried {
            let Tombstone { incarnation, health, failures, strikes, strike_at, .. } = &*buried;
            node.incarnation = incarnation.saturating_add(1);
            node.health = health.clone();
            node.failures.clone_from(failures);
            (node.strikes, node.strike_at) = (*strikes, *strike_at);
        }
        if let Some(offline) = offline {
            node.eligibility = offline.eligibility.clone();
        }
        if let Some(row) = binding {
            self.put_binding(row, &mut node);
        }
        self.record(&mut node, NodeChange::Registered, "Node registered");
        self.put_node(node.clone());
        node
    }

    pub(crate) fn node_liveness(&mut self, command: &NodeLiveness) -> Reply {
        let NodeLiveness { changes, window_ms, evaluation_ids } = command;
        let mut jobs = BTreeMap::new();
        let mut last = None;
        let mut missed = Vec::new();
        for change in changes {
            let Ok(mut node) = self.node_of(change.node, change.incarnation) else { continue };
            if !node.liveness.may_become(change.liveness) || change.liveness == Liveness::Ready {
                continue;
            }
            match change.liveness {
                Liveness::Down => {
                    node.lost_at = Some(self.at);
                    self.miss(&mut node, &mut missed);
                    self.record(&mut node, NodeChange::Down, "Node heartbeat missed");
                    self.end_stopping_allocations(node.id);
                }
                Liveness::Disconnected => {
                    self.miss(&mut node, &mut missed);
                    self.record(&mut node, NodeChange::Disconnected, "Node is disconnected");
                }
                Liveness::Initializing => {
                    let message = "Node is heard from again";
                    self.record(&mut node, NodeChange::Initializing, message);
                }
                Liveness::Ready => {}
            }
            self.set_liveness(&mut node, change.liveness);
            jobs.extend(self.jobs_of_node(&node, Trigger::NodeUpdate));
            self.put_node(node.clone());
            last = Some(node);
        }
        self.notice_mass_loss(&missed, *window_ms);
        let single = if changes.len() == 1 { last.as_ref() } else { None };
        Reply::Evaluations(self.evaluate(&jobs, single, evaluation_ids))
    }

    /// A heartbeat is missing. A node that is disconnected already was missed before.
    fn miss(&self, node: &mut Node, missed: &mut Vec<NodeId>) {
        node.missed_index = self.index;
        if node.liveness != Liveness::Disconnected {
            node.missed_at = self.at;
            node.was_ready = node.liveness == Liveness::Ready;
            if node.was_ready {
                missed.push(node.id);
            }
        }
    }

    pub(crate) fn reap_node(&mut self, command: &ReapNode) -> Outcome {
        let ReapNode { node: id, incarnation, force, ref evaluation_ids } = *command;
        let node = match incarnation {
            Some(incarnation) => self.node_of(id, incarnation)?,
            None => self.node(id)?,
        };
        if let Some(instance) = node.instance {
            let message = format!(
                "the node is instance {} of pool \"{}\": shut that down instead",
                instance.id, node.description.pool
            );
            return Err(Rejection::InUse(message.into()));
        }
        if !force && let Some(why) = self.state.why_not_reaped(&node, self.at) {
            return Err(Rejection::Invalid(why.into()));
        }
        let mut jobs = self.lose_allocations(id, "the node was purged");
        jobs.extend(self.per_node_jobs_for(&node, Trigger::NodeUpdate));
        let (incarnation, modify_index) = (node.incarnation, node.modify_index);
        self.bury_old_tombstones();
        if !force {
            self.keep_offline(&node);
        }
        let mut tombstone = Tombstone {
            node: id,
            incarnation: node.incarnation,
            at: self.at,
            health: Health::Ok,
            failures: Vec::new(),
            strikes: 0,
            strike_at: 0,
        };
        if force {
            self.announce(id, NodeChange::Purged, "an operator purged it".into());
        } else {
            let detail = "it was down for longer than the grace";
            self.announce(id, NodeChange::Reaped, detail.into());
            (tombstone.health, tombstone.failures) = (node.health, node.failures);
            (tombstone.strikes, tombstone.strike_at) = (node.strikes, node.strike_at);
        }
        self.state.tombstones.put(tombstone, self.changes);
        self.remove_node(id);
        let evaluations = self.evaluate(&jobs, None, evaluation_ids);
        Ok(Reply::Node { incarnation, modify_index, evaluations })
    }

    /// Forgets a node whose machine is gone: it cannot come back, so that nothing of it is kept.
    pub(crate) fn forget_node(
        &mut self,
        node: &Node,
        why: &str,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        let mut jobs = self.lose_allocations(node.id, why);
        jobs.extend(self.per_node_jobs_for(node, Trigger::NodeUpdate));
        self.remove_node(node.id);
        self.evaluate(&jobs, None, ids)
    }

    fn remove_node(&mut self, id: NodeId) {
        if let Some(row) = self.state.nodes.remove(&id, self.changes) {
            self.state.index_node(Some(&row), None);
        }
        self.state.capacity_gains.remove(&GainKey::Node(id), self.changes);
        self.gains.remove(&id);
        self.effects.insert(Effect::Node(id));
    }

    /// A node that comes back is still out of service if an operator took it out.
    fn keep_offline(&mut self, node: &Node) {
        if node.eligibility.ineligible && !is_planted(Plant::OfflineExpires) {
            let name = node.description.name.clone();
            let row = OfflineNode { node: node.id, name, eligibility: node.eligibility.clone() };
            self.state.offline_nodes.put(row, self.changes);
        }
    }

    fn bury_old_tombstones(&mut self) {
        let tombstone_ms = self.state.node_life().tombstone_ms;
        let old: Vec<_> = self
            .state
            .tombstones
            .iter()
            .filter(|row| row.at.saturating_add(tombstone_ms) <= self.at)
            .map(|row| row.node)
            .collect();
        for node in old {
            self.state.tombstones.remove(&node, self.changes);
        }
    }

    pub(crate) fn evaluate_node(&mut self, command: &EvaluateNode) -> Outcome {
        let EvaluateNode { node: id, ref evaluation_ids } = *command;
        let node = self.node(id)?;
        let jobs = self.jobs_of_node(&node, Trigger::NodeUpdate);
        let made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        Ok(Self::node_reply(node, made))
    }

    pub(super) fn set_liveness(&mut self, node: &mut Node, liveness: Liveness) {
        node.liveness = liveness;
        node.liveness_at = self.at;
        if liveness == Liveness::Initializing {
            node.ready_deadline_at = self.ready_deadline();
        }
    }

    fn ready_deadline(&self) -> TimeMs {
        self.at.saturating_add(self.state.node_life().ready_deadline_ms)
    }

    /// Jobs with allocations on the node that have not ended, and jobs that run once on every node
    /// like it.
    pub(crate) fn jobs_of_node(&self, node: &Node, trigger: Trigger) -> BTreeMap<JobKey, Trigger> {
        let mut jobs = self.per_node_jobs_for(node, trigger);
        for row in self.state.open_allocations_of_node(node.id) {
            if row.is_live() {
                jobs.insert(row.job.clone(), trigger);
            }
        }
        jobs
    }

    pub(super) fn per_node_jobs_for(
        &self,
        node: &Node,
        trigger: Trigger,
    ) -> BTreeMap<JobKey, Trigger> {
        self.state
            .per_node_jobs
            .iter()
            .filter(|key| {
                let spec = self
                    .state
                    .jobs
                    .get(key)
                    .filter(|job| !job.stop && !job.is_past_launch())
                    .and_then(|job| self.state.current_spec(job));
                spec.is_some_and(|spec| {
                    node.description.matches(&spec.node_pool, &spec.datacenters)
                })
            })
            .map(|key| (key.clone(), trigger))
            .collect()
    }

    /// Marks what had not ended on a node as lost; answers with the jobs that miss it now. What was
    /// to end is missed by nobody: an evaluation would bring a job that is over to life.
    fn lose_allocations(&mut self, id: NodeId, why: &str) -> BTreeMap<JobKey, Trigger> {
        let rows: Vec<_> = self.state.open_allocations_of_node(id).cloned().collect();
        let mut jobs = BTreeMap::new();
        for row in rows {
            if row.is_live() {
                jobs.insert(row.job.clone(), Trigger::NodeUpdate);
            }
            self.lose((*row).clone(), why);
        }
        jobs
    }

    /// What was being stopped on a node that is down has ended as far as anyone can know.
    fn end_stopping_allocations(&mut self, id: NodeId) {
        let rows: Vec<_> = self
            .state
            .open_allocations_of_node(id)
            .filter(|row| row.is_server_terminal())
            .cloned()
            .collect();
        for row in rows {
            self.lose((*row).clone(), "the node went down while the allocation was stopped");
        }
    }

    fn lose(&mut self, mut row: Allocation, why: &str) {
        row.client = ClientStatus::Lost;
        row.client_description = why.into();
        row.client_at = self.at;
        row.server_modify_index = self.index;
        self.put_allocation(row);
    }

    pub(crate) fn node(&self, id: NodeId) -> Result<Node, Rejection> {
        self.state.nodes.get(&id).map(|row| (**row).clone()).ok_or_else(|| not_found("node"))
    }

    pub(super) fn node_of(&self, id: NodeId, incarnation: u64) -> Result<Node, Rejection> {
        let node = self.node(id)?;
        if node.incarnation == incarnation { Ok(node) } else { Err(Rejection::StaleIncarnation) }
    }

    pub(crate) fn event(&self, node: &mut Node, message: &str) {
        node.events.push(NodeEvent {
            at: self.at,
            index: self.index,
            message: message.into(),
            deadline_reached: false,
        });
        let excess = node.events.len().saturating_sub(limits::NODE_EVENTS_MAX);
        node.events.drain(..excess);
    }

    pub(super) fn node_reply(node: Node, evaluations: Vec<EvaluationId>) -> Reply {
        Reply::Node { incarnation: node.incarnation, modify_index: node.modify_index, evaluations }
    }
}
