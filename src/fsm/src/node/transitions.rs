//! Nodes: registration, readiness, liveness, suspension, eligibility, drain, reaping. Each touches
//! its own axis of the node's state only.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    CapacityGain, EarlyEligibility, Eligibility, EvaluateNode, GainKey, Health, Liveness, Node,
    NodeDescription, NodeEvent, NodeLiveness, NodeReadiness, Readiness, ReapNode, RegisterNode,
    SuspendReason, Tombstone, TombstoneRow, computed_class,
};
use crate::{
    allocation::{Allocation, ClientStatus},
    apply::{Outcome, Turn, not_found, text},
    command::{Rejection, Reply},
    effect::Effect,
    evaluation::Trigger,
    id::{ClassId, EvaluationId, JobKey, NodeId},
    limits,
};

/// Eligibilities that may wait for nodes to come.
pub(super) const EARLY_ELIGIBILITIES_MAX: usize = 10_000;

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
        let RegisterNode { node: id, secret, identity, ref description, ref evaluation_ids } =
            *command;
        let class = computed_class(description);
        let Some(old) = self.state.nodes.get(&id).cloned() else {
            let node = self.new_node(id, secret, identity, description, class);
            return Ok(Self::node_reply(node, Vec::new()));
        };
        if old.secret != secret {
            return Err(Rejection::SecretMismatch);
        }
        let mut node = (*old).clone();
        node.description = Arc::clone(description);
        node.class = class;
        let reborn = old.identity != identity;
        let mut jobs = BTreeMap::new();
        if reborn {
            node.identity = identity;
            node.incarnation = node.incarnation.saturating_add(1);
            self.event(&mut node, "Node re-registered with a new incarnation");
            jobs = self.lose_allocations(id, "the agent restarted without its state");
        }
        let returns = matches!(node.liveness, Liveness::Down | Liveness::Disconnected);
        if reborn || returns {
            self.set_liveness(&mut node, Liveness::Initializing);
        }
        // The class leaves out what is unique to a node, which constraints may ask for as well.
        let fits_more = old.class != class
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

    fn new_node(
        &mut self,
        id: NodeId,
        secret: [u8; 16],
        identity: [u8; 16],
        description: &Arc<NodeDescription>,
        class: ClassId,
    ) -> Node {
        let buried = self.state.tombstones.remove(&id, self.changes);
        let early = self.state.early_eligibilities.remove(&id, self.changes);
        let mut node = Node {
            id,
            secret,
            identity,
            incarnation: buried.map_or(0, |row| row.tombstone.incarnation).saturating_add(1),
            description: Arc::clone(description),
            class,
            liveness: Liveness::Initializing,
            liveness_at: self.at,
            ready_deadline_at: self.at.saturating_add(limits::READY_MS_MAX),
            lost_at: None,
            missed_index: 0,
            synced_index: 0,
            health: Health::Ok,
            strikes: 0,
            strike_at: 0,
            eligibility: early.map_or_else(Eligibility::default, |row| row.eligibility.clone()),
            drain: None,
            instance: None,
            affinity_key: text(""),
            create_index: self.index,
            modify_index: self.index,
            events: Vec::new(),
        };
        self.event(&mut node, "Node registered");
        self.put_node(node.clone());
        node
    }

    pub(crate) fn node_readiness(&mut self, command: &NodeReadiness) -> Outcome {
        let NodeReadiness { node: id, incarnation, readiness, ref evaluation_ids } = *command;
        let mut node = self.node_of(id, incarnation)?;
        if node.liveness != Liveness::Initializing {
            return Ok(Self::node_reply(node, Vec::new()));
        }
        match readiness {
            Readiness::Retry => Ok(Self::node_reply(node, Vec::new())),
            Readiness::Fatal => {
                self.suspend(id, SuspendReason::ReadinessFailed);
                self.node(id).map(|node| Self::node_reply(node, Vec::new()))
            }
            Readiness::Ok => {
                if node.missed_index > node.synced_index {
                    return Err(Rejection::Invalid(
                        "report the allocations' statuses first: a heartbeat was missed".into(),
                    ));
                }
                self.set_liveness(&mut node, Liveness::Ready);
                node.lost_at = None;
                self.event(&mut node, "Node is ready");
                let jobs = self.jobs_of_node(&node, Trigger::NodeUpdate);
                self.put_node(node.clone());
                if node.is_schedulable() {
                    self.gains.insert(id);
                }
                let made = self.evaluate(&jobs, Some(&node), evaluation_ids);
                self.node(id).map(|node| Self::node_reply(node, made))
            }
        }
    }

    pub(crate) fn node_liveness(&mut self, command: &NodeLiveness) -> Reply {
        let NodeLiveness { changes, evaluation_ids } = command;
        let mut jobs = BTreeMap::new();
        let mut last = None;
        for change in changes {
            let Ok(mut node) = self.node_of(change.node, change.incarnation) else { continue };
            if !node.liveness.may_become(change.liveness) || change.liveness == Liveness::Ready {
                continue;
            }
            match change.liveness {
                Liveness::Down => {
                    node.lost_at = Some(self.at);
                    node.missed_index = self.index;
                    self.event(&mut node, "Node heartbeat missed");
                    self.end_stopping_allocations(node.id);
                }
                Liveness::Disconnected => {
                    node.missed_index = self.index;
                    self.event(&mut node, "Node is disconnected");
                }
                Liveness::Initializing => self.event(&mut node, "Node is heard from again"),
                Liveness::Ready => {}
            }
            self.set_liveness(&mut node, change.liveness);
            jobs.extend(self.jobs_of_node(&node, Trigger::NodeUpdate));
            self.put_node(node.clone());
            last = Some(node);
        }
        let single = if changes.len() == 1 { last.as_ref() } else { None };
        Reply::Evaluations(self.evaluate(&jobs, single, evaluation_ids))
    }

    pub(crate) fn reap_node(&mut self, command: &ReapNode) -> Outcome {
        let ReapNode { node: id, incarnation, force, ref evaluation_ids } = *command;
        let node = match incarnation {
            Some(incarnation) => self.node_of(id, incarnation)?,
            None => self.node(id)?,
        };
        if !force {
            let due = node.lost_at.is_some_and(|at| {
                node.liveness == Liveness::Down
                    && at.saturating_add(limits::LOST_GRACE_MS) <= self.at
            });
            let busy = self.state.allocations_of_node(id).any(|row| !row.client.is_terminal());
            if !due || busy || node.instance.is_some() {
                return Err(Rejection::Invalid("the node is not due to be reaped".into()));
            }
        }
        let mut jobs = self.lose_allocations(id, "the node was purged");
        jobs.extend(self.per_node_jobs_for(&node, Trigger::NodeUpdate));
        let tombstone = Tombstone { incarnation: node.incarnation, at: self.at };
        self.bury_old_tombstones();
        if !force {
            self.keep_eligibility(&node);
        }
        self.state.tombstones.put(TombstoneRow { node: id, tombstone }, self.changes);
        if let Some(row) = self.state.nodes.remove(&id, self.changes) {
            self.state.index_node(Some(&row), None);
        }
        self.state.capacity_gains.remove(&GainKey::Node(id), self.changes);
        self.gains.remove(&id);
        self.effects.insert(Effect::Node(id));
        let made = self.evaluate(&jobs, None, evaluation_ids);
        Ok(Self::node_reply(node, made))
    }

    /// A node that comes back while its tombstone stands is still out of service if it was: only an
    /// operator takes that back.
    fn keep_eligibility(&mut self, node: &Node) {
        let room = self.state.early_eligibilities.len() < EARLY_ELIGIBILITIES_MAX;
        if node.eligibility.ineligible && room {
            let row = EarlyEligibility { node: node.id, eligibility: node.eligibility.clone() };
            self.state.early_eligibilities.put(row, self.changes);
        }
    }

    fn bury_old_tombstones(&mut self) {
        let old: Vec<_> = self
            .state
            .tombstones
            .iter()
            .filter(|row| row.tombstone.at.saturating_add(limits::TOMBSTONE_MS) <= self.at)
            .cloned()
            .collect();
        for row in old {
            self.state.tombstones.remove(&row.node, self.changes);
            let kept = self.state.early_eligibilities.get(&row.node);
            if kept.is_some_and(|kept| kept.eligibility.at <= row.tombstone.at) {
                self.state.early_eligibilities.remove(&row.node, self.changes);
            }
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
            node.ready_deadline_at = self.at.saturating_add(limits::READY_MS_MAX);
        }
    }

    /// Jobs with allocations on the node that have not ended, and jobs that run once on every node
    /// like it.
    pub(super) fn jobs_of_node(&self, node: &Node, trigger: Trigger) -> BTreeMap<JobKey, Trigger> {
        let mut jobs = self.per_node_jobs_for(node, trigger);
        for row in self.state.allocations_of_node(node.id) {
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
                    .filter(|job| !job.stop)
                    .and_then(|job| self.state.current_spec(job));
                spec.is_some_and(|spec| {
                    node.description.matches(&spec.node_pool, &spec.datacenters)
                })
            })
            .map(|key| (key.clone(), trigger))
            .collect()
    }

    /// Marks what had not ended on a node as lost; answers with the jobs concerned.
    fn lose_allocations(&mut self, id: NodeId, why: &str) -> BTreeMap<JobKey, Trigger> {
        let rows: Vec<_> = self
            .state
            .allocations_of_node(id)
            .filter(|row| !row.client.is_terminal())
            .cloned()
            .collect();
        let mut jobs = BTreeMap::new();
        for row in rows {
            jobs.insert(row.job.clone(), Trigger::NodeUpdate);
            self.lose((*row).clone(), why);
        }
        jobs
    }

    /// What was being stopped on a node that is down has ended as far as anyone can know.
    fn end_stopping_allocations(&mut self, id: NodeId) {
        let rows: Vec<_> = self
            .state
            .allocations_of_node(id)
            .filter(|row| row.is_server_terminal() && !row.client.is_terminal())
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

    pub(super) fn node(&self, id: NodeId) -> Result<Node, Rejection> {
        self.state.nodes.get(&id).map(|row| (**row).clone()).ok_or_else(|| not_found("node"))
    }

    pub(super) fn node_of(&self, id: NodeId, incarnation: u64) -> Result<Node, Rejection> {
        let node = self.node(id)?;
        if node.incarnation == incarnation { Ok(node) } else { Err(Rejection::StaleIncarnation) }
    }

    pub(super) fn event(&self, node: &mut Node, message: &str) {
        node.events.push(NodeEvent { at: self.at, index: self.index, message: message.into() });
        let excess = node.events.len().saturating_sub(limits::NODE_EVENTS_MAX);
        node.events.drain(..excess);
    }

    pub(super) fn node_reply(node: Node, evaluations: Vec<EvaluationId>) -> Reply {
        Reply::Node { incarnation: node.incarnation, modify_index: node.modify_index, evaluations }
    }
}
