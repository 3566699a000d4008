//! Transitions by which operators take a node out of service and bring it back: eligibility, drain.

use std::collections::BTreeMap;

use super::{
    AdvanceDrains, Drain, DrainStatus, Eligibility, LastDrain, Node, NodeChange, OfflineNode,
    SetDrain, SetEligibility, health::clip,
};
use crate::{
    apply::{Outcome, Turn},
    bounds::check_drain_meta,
    command::{Rejection, Reply},
    evaluation::Trigger,
    id::{NodeId, Text},
    limits,
};

impl Turn<'_> {
    pub(crate) fn set_eligibility(&mut self, command: &SetEligibility) -> Outcome {
        let SetEligibility { node: id, eligible, ref by, ref reason, ref evaluation_ids } =
            *command;
        let eligibility = Eligibility {
            ineligible: !eligible,
            by_drain: false,
            by: clip(by),
            reason: clip(reason),
            at: self.at,
            index: self.index,
        };
        let Ok(mut node) = self.node(id) else {
            return self.set_offline(id, eligibility);
        };
        if eligible && node.drain.is_some() {
            return Err(Rejection::Invalid(
                "can't set node eligibility to eligible while the node is draining".into(),
            ));
        }
        if eligible && !node.eligibility.ineligible {
            return Ok(Self::node_reply(node, Vec::new()));
        }
        let eligibility = eligibility.after(&node.eligibility);
        if eligibility == node.eligibility {
            return Ok(Self::node_reply(node, Vec::new()));
        }
        let (change, word) = if eligible {
            (NodeChange::Eligible, "eligible")
        } else {
            (NodeChange::Ineligible, "ineligible")
        };
        let mut message = format!("Node marked as {word} for scheduling");
        if !eligibility.reason.is_empty() {
            message = format!("{message}: {}", eligibility.reason);
        }
        node.eligibility = eligibility;
        self.record(&mut node, change, &message);
        self.put_node(node.clone());
        let mut made = Vec::new();
        if node.is_schedulable() {
            self.gains.insert(id);
            let mut jobs = self.per_node_jobs_for(&node, Trigger::NodeUpdate);
            // The node may have changed meanwhile, so that what runs once on nodes like it is not
            // wanted here any more.
            let rows = self.state.open_allocations_of_node(id);
            let here = rows.filter(|row| row.per_node && row.is_live());
            jobs.extend(here.map(|row| (row.job.clone(), Trigger::NodeUpdate)));
            made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        }
        self.node(id).map(|node| Self::node_reply(node, made))
    }

    fn set_offline(&mut self, node: NodeId, eligibility: Eligibility) -> Outcome {
        if eligibility.ineligible {
            let known = self.state.offline_nodes.get(&node).cloned();
            if known.is_none() && self.state.is_offline_table_full() {
                let message = format!(
                    "{} nodes that are not registered are offline, and no more may be: \
                     bring some online (node status -offline lists them)",
                    limits::OFFLINE_NODES_MAX
                );
                return Err(Rejection::Invalid(message.into()));
            }
            let name = known.as_ref().map_or_else(Text::default, |row| row.name.clone());
            let eligibility = match known {
                Some(known) => eligibility.after(&known.eligibility),
                None => eligibility,
            };
            self.state.offline_nodes.put(OfflineNode { node, name, eligibility }, self.changes);
        } else {
            self.state.offline_nodes.remove(&node, self.changes);
        }
        Ok(Reply::Node { incarnation: 0, modify_index: self.index, evaluations: Vec::new() })
    }

    pub(crate) fn set_drain(&mut self, command: &SetDrain) -> Outcome {
        let SetDrain { node: id, ref drain, mark_eligible, ref meta, ref evaluation_ids } =
            *command;
        check_drain_meta(meta)?;
        let mut node = self.node(id)?;
        if let Some(drain) = drain {
            let mut drain = drain.clone();
            drain.owner = clip(&drain.owner);
            // The proposer's times say how long, not when: its state may be hours old on an idle
            // cluster.
            let length = |until: u64| until.saturating_sub(drain.started_at);
            drain.deadline_at =
                drain.deadline_at.map(|until| self.at.saturating_add(length(until)));
            drain.started_at = node.drain.as_ref().map_or(self.at, |running| running.started_at);
            if !node.eligibility.ineligible {
                node.eligibility = Eligibility {
                    ineligible: true,
                    by_drain: true,
                    by: drain.owner.clone(),
                    reason: "drain".into(),
                    at: self.at,
                    index: self.index,
                };
            }
            let is_first = node.drain.is_none();
            self.begin_drain(&mut node, drain, meta);
            let done = if is_first { "set" } else { "updated" };
            let message = format!("Node drain strategy {done}");
            self.record(&mut node, NodeChange::DrainBegan, &message);
        } else {
            if self.end_drain(&mut node, DrainStatus::Canceled, meta) {
                self.record(&mut node, NodeChange::DrainEnded, "Node drain disabled");
            }
            // The end of a drain gives back what the drain took, not what an operator took.
            if mark_eligible && node.eligibility.by_drain {
                node.eligibility = Eligibility::default();
                self.announce(id, NodeChange::Eligible, "the drain has ended".into());
            }
        }
        self.put_node(node.clone());
        if node.is_schedulable() {
            self.gains.insert(id);
        }
        let jobs = self.jobs_of_node(&node, Trigger::NodeDrain);
        let made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        self.node(id).map(|node| Self::node_reply(node, made))
    }

    /// Starts a drain, or changes it.
    pub(crate) fn begin_drain(&self, node: &mut Node, drain: Drain, meta: &BTreeMap<Text, Text>) {
        node.last_drain = Some(LastDrain {
            started_at: drain.started_at,
            updated_at: self.at,
            status: DrainStatus::Draining,
            meta: meta.clone(),
        });
        node.drain = Some(drain);
    }

    /// Ends a drain; whether there was one. Without new notes those of its start stay.
    pub(crate) fn end_drain(
        &self,
        node: &mut Node,
        status: DrainStatus,
        meta: &BTreeMap<Text, Text>,
    ) -> bool {
        let Some(drain) = node.drain.take() else { return false };
        let started_at = drain.started_at;
        let noted = node.last_drain.take().map(|last| last.meta).unwrap_or_default();
        let meta = if meta.is_empty() { noted } else { meta.clone() };
        node.last_drain = Some(LastDrain { started_at, updated_at: self.at, status, meta });
        true
    }

    pub(crate) fn advance_drains(&mut self, command: &AdvanceDrains) -> Reply {
        let AdvanceDrains { migrate, complete, evaluation_ids } = command;
        let mut jobs = BTreeMap::new();
        for id in migrate {
            let Some(old) = self.state.allocations.get(id).cloned() else { continue };
            if !old.is_live() || old.transition.migrate {
                continue;
            }
            let mut row = (*old).clone();
            row.transition.migrate = true;
            row.server_modify_index = self.index;
            jobs.insert(row.job.clone(), Trigger::NodeDrain);
            self.put_allocation(row);
        }
        for id in complete {
            let Ok(mut node) = self.node(*id) else { continue };
            // The drain that the drainer saw may have been replaced by one that is about more.
            let left = |drain| self.state.left_to_drain(*id, drain).next().is_some();
            let deadline_reached = node.drain.as_ref().is_some_and(|drain| {
                drain.force || drain.deadline_at.is_some_and(|deadline| deadline <= self.at)
            });
            if node.drain.as_ref().is_some_and(|drain| !left(drain))
                && self.end_drain(&mut node, DrainStatus::Complete, &BTreeMap::new())
            {
                self.record(&mut node, NodeChange::DrainEnded, "Node drain complete");
                if let Some(event) = node.events.last_mut() {
                    event.deadline_reached = deadline_reached;
                }
                self.put_node(node);
            }
        }
        Reply::Evaluations(self.evaluate(&jobs, None, evaluation_ids))
    }
}
