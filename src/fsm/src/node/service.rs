//! Transitions that take a node out of service and bring it back: suspension, eligibility, drain.

use std::collections::BTreeMap;

use super::{
    AdvanceDrains, EarlyEligibility, Eligibility, Health, Liveness, SetDrain, SetEligibility,
    SuspendNode, SuspendReason, UnsuspendNodes, transitions::EARLY_ELIGIBILITIES_MAX,
};
use crate::{
    apply::{Outcome, Turn},
    command::{Rejection, Reply},
    evaluation::Trigger,
    id::NodeId,
    limits,
};

impl Turn<'_> {
    pub(crate) fn suspend_node(&mut self, command: &SuspendNode) -> Outcome {
        let SuspendNode { node: id, incarnation, reason } = *command;
        let node = self.node_of(id, incarnation)?;
        // It may have become ready, or gone away, while the leader's command was on its way.
        let is_late = reason == SuspendReason::ReadinessFailed;
        if !is_late || node.must_be_ready_at().is_some_and(|at| at <= self.at) {
            self.suspend(id, reason);
        }
        self.node(id).map(|node| Self::node_reply(node, Vec::new()))
    }

    /// Takes a node out of service for `SUSPEND_MS`, doubled per strike, unless too much of the
    /// fleet is suspended already.
    pub(crate) fn suspend(&mut self, id: NodeId, reason: SuspendReason) {
        let Ok(mut node) = self.node(id) else { return };
        let calm_ms = self.at.saturating_sub(node.strike_at);
        let forgiven = calm_ms.checked_div(limits::STRIKE_DECAY_MS).unwrap_or(0);
        let strikes = node.strikes.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        let length = limits::SUSPEND_MS
            .saturating_mul(1u64.checked_shl(strikes).unwrap_or(u64::MAX))
            .min(limits::SUSPEND_MS_MAX);
        let until = self.at.saturating_add(length);
        node.health = match node.health {
            Health::Ok => {
                if !self.may_suspend_another() {
                    self.event(&mut node, "Not suspended: too many nodes are suspended already");
                    self.put_node(node);
                    return;
                }
                Health::Suspended { reason, since: self.at, until }
            }
            Health::Suspended { reason, since, until: old } => {
                Health::Suspended { reason, since, until: old.max(until) }
            }
        };
        node.strikes = strikes.saturating_add(1);
        node.strike_at = self.at;
        self.event(&mut node, &format!("Node suspended: {}", reason.name()));
        self.put_node(node);
    }

    fn may_suspend_another(&self) -> bool {
        let all = u64::try_from(self.state.nodes.len()).unwrap_or(u64::MAX);
        let suspended = self.state.nodes.iter().filter(|node| node.health != Health::Ok).count();
        let share = all.saturating_mul(limits::SUSPENDED_PERCENT_MAX).checked_div(100);
        let allowed = share.unwrap_or(0).max(1);
        u64::try_from(suspended).unwrap_or(u64::MAX) < allowed
    }

    pub(crate) fn unsuspend_nodes(&mut self, command: &UnsuspendNodes) -> Reply {
        let UnsuspendNodes { nodes } = command;
        for id in nodes {
            let Ok(mut node) = self.node(*id) else { continue };
            let Health::Suspended { until, .. } = node.health else { continue };
            if self.at < until {
                continue;
            }
            node.health = Health::Ok;
            if node.liveness == Liveness::Ready {
                self.set_liveness(&mut node, Liveness::Initializing);
            }
            node.ready_deadline_at = self.at.saturating_add(limits::READY_MS_MAX);
            self.event(&mut node, "Suspension is over: readiness is checked again");
            self.put_node(node);
        }
        Reply::Done
    }

    pub(crate) fn set_eligibility(&mut self, command: &SetEligibility) -> Outcome {
        let SetEligibility { node: id, eligible, ref by, ref reason, ref evaluation_ids } =
            *command;
        let eligibility = Eligibility {
            ineligible: !eligible,
            by: by.clone(),
            reason: reason.clone(),
            at: self.at,
            index: self.index,
        };
        let Ok(mut node) = self.node(id) else {
            return self.set_early_eligibility(id, eligibility);
        };
        if eligible && node.drain.is_some() {
            return Err(Rejection::Invalid(
                "can't set node eligibility to eligible while the node is draining".into(),
            ));
        }
        if node.eligibility.ineligible != eligible {
            return Ok(Self::node_reply(node, Vec::new()));
        }
        node.eligibility = eligibility;
        let word = if eligible { "eligible" } else { "ineligible" };
        self.event(&mut node, &format!("Node marked as {word} for scheduling"));
        self.put_node(node.clone());
        let mut made = Vec::new();
        if node.is_schedulable() {
            self.gains.insert(id);
            let mut jobs = self.per_node_jobs_for(&node, Trigger::NodeUpdate);
            // The node may have changed meanwhile, so that what runs once on nodes like it is not
            // wanted here any more.
            let rows = self.state.allocations_of_node(id);
            let here = rows.filter(|row| row.per_node && row.is_live());
            jobs.extend(here.map(|row| (row.job.clone(), Trigger::NodeUpdate)));
            made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        }
        self.node(id).map(|node| Self::node_reply(node, made))
    }

    fn set_early_eligibility(&mut self, node: NodeId, eligibility: Eligibility) -> Outcome {
        if eligibility.ineligible {
            if self.state.early_eligibilities.len() >= EARLY_ELIGIBILITIES_MAX {
                let message = "too many eligibilities wait for nodes that do not exist";
                return Err(Rejection::Invalid(message.into()));
            }
            let row = EarlyEligibility { node, eligibility };
            self.state.early_eligibilities.put(row, self.changes);
        } else {
            self.state.early_eligibilities.remove(&node, self.changes);
        }
        Ok(Reply::Node { incarnation: 0, modify_index: self.index, evaluations: Vec::new() })
    }

    pub(crate) fn set_drain(&mut self, command: &SetDrain) -> Outcome {
        let SetDrain { node: id, ref drain, mark_eligible, ref evaluation_ids } = *command;
        let mut node = self.node(id)?;
        if let Some(drain) = drain {
            let mut drain = drain.clone();
            // The proposer's times say how long, not when: its state may be hours old on an idle
            // cluster.
            let length = |until: u64| until.saturating_sub(drain.started_at);
            drain.deadline_at =
                drain.deadline_at.map(|until| self.at.saturating_add(length(until)));
            drain.started_at = node.drain.as_ref().map_or(self.at, |running| running.started_at);
            if !node.eligibility.ineligible {
                node.eligibility = Eligibility {
                    ineligible: true,
                    by: drain.owner.clone(),
                    reason: "drain".into(),
                    at: self.at,
                    index: self.index,
                };
            }
            node.drain = Some(drain);
            self.event(&mut node, "Node drain strategy set");
        } else {
            if node.drain.take().is_some() {
                self.event(&mut node, "Node drain disabled");
            }
            if mark_eligible {
                node.eligibility = Eligibility::default();
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
            if node.drain.as_ref().is_some_and(|drain| !left(drain)) {
                node.drain = None;
                self.event(&mut node, "Node drain complete");
                self.put_node(node);
            }
        }
        Reply::Evaluations(self.evaluate(&jobs, None, evaluation_ids))
    }
}
