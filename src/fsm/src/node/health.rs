//! Health: readiness checks, failures, strikes, suspensions.
//!
//! ```text
//!  check: ready ──────► Ready; ends `unhealthy` and `readiness-failed` at once
//!         not ready ──► Initializing: wait, at the deadline `readiness-failed`
//!                       Ready: `unhealthy`
//!         fatal ──────► `readiness-fatal` for SuspendMaxMs
//!  StrikeFailures failures within StrikeWindowMs ──► one strike ──► `flaky` for SuspendMs · 2ⁿ
//!  time or an operator ends `flaky`, `readiness-fatal`, `operator` ──► Initializing: checked again
//! ```
//! What runs on a suspended node goes on. No transition looks at anything but the state.

use std::collections::BTreeSet;

use super::{
    CheckResult, EndSuspensions, Health, Liveness, Node, NodeChange, NodeFailure, NodeReadiness,
    Readiness, SuspendLateNodes, SuspendNode, SuspendReason, Suspension, UnsuspendNode,
};
use crate::{
    allocation::ClientStatus,
    apply::{Outcome, Turn},
    bounds,
    command::{Rejection, Reply},
    evaluation::Trigger,
    id::{EvaluationId, JobKey, NodeId, Text, TimeMs},
    limits,
    plant::{Plant, is_planted},
    settings::NodeLife,
};

impl Turn<'_> {
    pub(crate) fn node_readiness(&mut self, command: &NodeReadiness) -> Outcome {
        let NodeReadiness { node: id, incarnation, readiness, ref reason, sequence, .. } = *command;
        let mut node = self.node_of(id, incarnation)?;
        let is_silent = match node.liveness {
            Liveness::Disconnected | Liveness::Down => true,
            Liveness::Initializing | Liveness::Ready => false,
        };
        if is_silent || sequence <= node.check_sequence {
            return Ok(Self::node_reply(node, Vec::new()));
        }
        let reason = clip(reason);
        let last = node.check.take();
        let is_new = last.as_ref().is_none_or(|last| last.readiness != readiness);
        let is_same = last.as_ref().is_some_and(|last| !is_new && last.reason == reason);
        node.check = if is_same {
            last
        } else {
            Some(CheckResult { readiness, reason: reason.clone(), at: self.at })
        };
        match readiness {
            Readiness::Ok => {
                return self.check_succeeded(node, sequence, &command.evaluation_ids);
            }
            Readiness::Retry if node.liveness == Liveness::Ready => {
                self.suspend(&mut node, SuspendReason::Unhealthy, reason, "".into(), None);
            }
            Readiness::Retry if is_new => {
                self.event(&mut node, &format!("Readiness check: not ready: {reason}"));
            }
            Readiness::Retry => {}
            Readiness::Fatal => {
                let until = self.at.saturating_add(self.state.node_life().suspend_ms_max);
                let cause = SuspendReason::ReadinessFatal;
                self.suspend(&mut node, cause, reason, "".into(), Some(until));
            }
        }
        self.put_check(node, sequence);
        self.node(id).map(|node| Self::node_reply(node, Vec::new()))
    }

    fn check_succeeded(
        &mut self,
        mut node: Node,
        sequence: u64,
        evaluation_ids: &[EvaluationId],
    ) -> Outcome {
        let id = node.id;
        let becomes_ready = node.liveness == Liveness::Initializing;
        if becomes_ready && node.missed_index > node.synced_index {
            return Err(Rejection::Invalid(
                "report the allocations' statuses first: a heartbeat was missed".into(),
            ));
        }
        let recovers =
            node.suspension().is_some_and(|suspension| suspension.reason.ends_with_success());
        if becomes_ready {
            self.set_liveness(&mut node, Liveness::Ready);
            node.lost_at = None;
            self.record(&mut node, NodeChange::Ready, "Node is ready");
            if let Some(instance) = node.instance {
                self.instance_ready(instance.id);
            }
        }
        if recovers {
            self.end_suspension(&mut node, "Suspension is over: the readiness check succeeded");
            if let Some(instance) = node.instance {
                self.instance_ready(instance.id);
            }
        }
        self.put_check(node.clone(), sequence);
        if !becomes_ready && !recovers {
            return Ok(Self::node_reply(node, Vec::new()));
        }
        let jobs = self.jobs_of_node(&node, Trigger::NodeUpdate);
        if node.is_schedulable() {
            self.gains.insert(id);
        }
        let made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        self.node(id).map(|node| Self::node_reply(node, made))
    }

    /// Stores what a report changed, and that it was taken: an older one that comes later, also
    /// after the node has begun to initialize again, changes nothing.
    fn put_check(&mut self, mut node: Node, sequence: u64) {
        node.check_sequence = sequence;
        self.put_node(node);
    }

    /// An allocation failed by the node's fault. Failures that come close together make one strike.
    pub(crate) fn note_failure(&mut self, id: NodeId, job: &JobKey, detail: &Text) {
        let Ok(mut node) = self.node(id) else { return };
        let life = self.state.node_life();
        let detail = clip(detail);
        node.failures.push(NodeFailure { at: self.at, job: job.clone(), detail });
        let excess = node.failures.len().saturating_sub(limits::NODE_FAILURES_MAX);
        node.failures.drain(..excess);
        if self.makes_a_strike(&node, &life) || is_planted(Plant::StrikePerFailure) {
            self.strike(&mut node, &life);
        }
        self.put_node(node);
    }

    fn makes_a_strike(&self, node: &Node, life: &NodeLife) -> bool {
        let is_within = |at: TimeMs| at.saturating_add(life.strike_window_ms) > self.at;
        if node.strike_at > 0 && is_within(node.strike_at) {
            return false;
        }
        let recent: Vec<_> = node.failures.iter().filter(|failure| is_within(failure.at)).collect();
        if u32::try_from(recent.len()).unwrap_or(u32::MAX) < life.strike_failures {
            return false;
        }
        let jobs: BTreeSet<&JobKey> = recent.iter().map(|failure| &failure.job).collect();
        // A job that runs nowhere may be what is wrong, and not the node.
        life.strike_failures == 1
            || jobs.len() > 1
            || jobs.first().is_some_and(|job| self.runs_elsewhere(job, node.id))
    }

    /// Whether an allocation of the job runs on another node.
    fn runs_elsewhere(&self, job: &JobKey, node: NodeId) -> bool {
        let Some(index) = self.state.job_index(job) else { return false };
        let running = index.summary.values().map(|group| group.running);
        let running = running.fold(0u32, u32::saturating_add);
        let here = self.state.open_allocations_of_node(node);
        let here = here.filter(|row| row.client == ClientStatus::Running && row.job == *job);
        usize::try_from(running).unwrap_or(usize::MAX) > here.count()
    }

    /// Counts a strike, and suspends the node unless too many nodes are suspended for strikes.
    fn strike(&mut self, node: &mut Node, life: &NodeLife) {
        let calm_ms = self.at.saturating_sub(node.strike_at);
        let forgiven = calm_ms.checked_div(life.strike_forgive_ms).unwrap_or(0);
        let before = node.strikes.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        node.strikes = before.saturating_add(1);
        node.strike_at = self.at;
        let failures = std::mem::take(&mut node.failures);
        let last = failures.last().map_or_else(Text::default, |failure| failure.detail.clone());
        let (strikes, count) = (node.strikes, failures.len());
        let message = format!("Strike {strikes}: {count} failures of the node, the last: {last}");
        self.record(node, NodeChange::Strike, &message);
        if !self.may_suspend_another(node, life) {
            let limit = life.suspended_percent_max;
            let message = format!(
                "Not suspended: more than {limit} % of the nodes would be suspended as flaky"
            );
            self.event(node, &message);
            return;
        }
        let length = life
            .suspend_ms
            .saturating_mul(1u64.checked_shl(before).unwrap_or(u64::MAX))
            .min(life.suspend_ms_max);
        let until = self.at.saturating_add(length);
        self.suspend(node, SuspendReason::Flaky, last, "".into(), Some(until));
    }

    fn may_suspend_another(&self, node: &Node, life: &NodeLife) -> bool {
        if node.suspension().is_some_and(|suspension| suspension.reason == SuspendReason::Flaky) {
            return true;
        }
        let all = u64::try_from(self.state.nodes.len()).unwrap_or(u64::MAX);
        let share = all.saturating_mul(life.suspended_percent_max.into()).checked_div(100);
        u64::from(self.state.census.suspended(SuspendReason::Flaky)) < share.unwrap_or(0).max(1)
    }

    fn suspend(
        &mut self,
        node: &mut Node,
        reason: SuspendReason,
        detail: Text,
        by: Text,
        until: Option<TimeMs>,
    ) {
        let clears_affinity = reason.clears_affinity();
        let message = if detail.is_empty() {
            format!("Node suspended: {}", reason.name())
        } else {
            format!("Node suspended: {}: {detail}", reason.name())
        };
        let new = Suspension { reason, detail, by, since: self.at, until, clears_affinity };
        let old = node.suspension().map(|old| old.reason);
        match &mut node.health {
            Health::Ok => node.health = Health::Suspended(new),
            Health::Suspended(old) => old.merge(new),
        }
        let now = node.suspension().map(|now| now.reason);
        if now != old || reason == SuspendReason::Operator {
            self.record(node, NodeChange::Suspended, &message);
        }
        if let Some(instance) = node.instance.filter(|_| reason.is_of_check()) {
            self.instance_not_ready(instance.id, &message.into());
        }
    }

    pub(crate) fn suspend_node(&mut self, command: &SuspendNode) -> Outcome {
        let SuspendNode { node: id, ref by, ref reason, for_ms } = *command;
        let mut node = self.node(id)?;
        let until = for_ms.map(|length| self.at.saturating_add(length));
        self.suspend(&mut node, SuspendReason::Operator, clip(reason), clip(by), until);
        self.put_node(node);
        self.node(id).map(|node| Self::node_reply(node, Vec::new()))
    }

    pub(crate) fn unsuspend_node(&mut self, command: &UnsuspendNode) -> Outcome {
        let UnsuspendNode { node: id, ref by, ref reason } = *command;
        let mut node = self.node(id)?;
        if node.health == Health::Ok {
            return Err(Rejection::Invalid("the node is not suspended".into()));
        }
        let message = match (&*clip(by), &*clip(reason)) {
            ("", "") => "Suspension is over".to_owned(),
            (by, "") => format!("Suspension is over: lifted by {by}"),
            ("", reason) => format!("Suspension is over: {reason}"),
            (by, reason) => format!("Suspension is over: {reason} (lifted by {by})"),
        };
        self.end_suspension(&mut node, &message);
        self.return_from_suspension(node);
        self.node(id).map(|node| Self::node_reply(node, Vec::new()))
    }

    /// A node may have become ready, or gone away, while the leader's command was on its way.
    pub(crate) fn suspend_late_nodes(&mut self, command: &SuspendLateNodes) -> Reply {
        for id in &command.nodes {
            let Ok(mut node) = self.node(*id) else { continue };
            if node.must_be_ready_at().is_none_or(|due| due > self.at) {
                continue;
            }
            let detail = node.check.as_ref().filter(|last| last.readiness != Readiness::Ok);
            let detail = detail.map_or_else(
                || "it was not ready by its deadline".into(),
                |last| last.reason.clone(),
            );
            self.suspend(&mut node, SuspendReason::ReadinessFailed, detail, "".into(), None);
            self.put_node(node);
        }
        Reply::Done
    }

    pub(crate) fn end_suspensions(&mut self, command: &EndSuspensions) -> Reply {
        for id in &command.nodes {
            let Ok(mut node) = self.node(*id) else { continue };
            let until = node.suspension().and_then(|suspension| suspension.until);
            if until.is_none_or(|until| until > self.at) {
                continue;
            }
            self.end_suspension(&mut node, "Suspension is over: its time has passed");
            self.return_from_suspension(node);
        }
        Reply::Done
    }

    fn end_suspension(&mut self, node: &mut Node, message: &str) {
        let Health::Suspended(suspension) = std::mem::take(&mut node.health) else { return };
        if suspension.clears_affinity && !is_planted(Plant::AffinityKept) {
            node.affinity_key = "".into();
        }
        self.record(node, NodeChange::SuspensionEnded, message);
    }

    /// Stores a node whose suspension has ended. A live one takes its place in its capacity group
    /// when it is ready. One that a mass loss has silenced counts as a member from now on, and
    /// another may have filled its place.
    fn return_from_suspension(&mut self, mut node: Node) {
        self.check_again(&mut node);
        let is_silent = matches!(node.liveness, Liveness::Down | Liveness::Disconnected);
        let is_lost =
            is_silent && self.state.mass_loss().is_some_and(|loss| loss.nodes.contains(&node.id));
        let instance = node.instance.filter(|_| is_lost);
        self.put_node(node);
        if let Some(instance) = instance {
            self.take_place(instance.id);
        }
    }

    /// A live node is ready only after another check.
    fn check_again(&mut self, node: &mut Node) {
        match node.liveness {
            Liveness::Ready | Liveness::Initializing => {
                self.set_liveness(node, Liveness::Initializing);
            }
            Liveness::Disconnected | Liveness::Down => {}
        }
    }
}

/// The text, cut to what a row keeps.
pub(crate) fn clip(text: &Text) -> Text {
    bounds::cut(text, limits::NODE_REASON_BYTES_MAX)
}
