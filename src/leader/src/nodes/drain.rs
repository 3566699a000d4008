//! The drainer: which allocations of draining nodes move now, and which drains are done.
//!
//! It owns the set of draining nodes and decides from a snapshot. It never moves anything: it sets
//! the migrate flag, and a scheduler stops and replaces what is flagged. Called again with the same
//! state it names the same allocations; once they are flagged it names them no more.
//!
//! Order on a node: services, a few at a time; batch and sysbatch jobs are left to end by
//! themselves; system jobs go when everything else has ended, or stay with `ignore_system`. At the
//! deadline, or with `force`, everything that is left goes at once. The drain is complete when
//! nothing of it runs on the node any more as its agent reports it (GH-14348).
//!
//! How many of a service group go: of `count` instances, `migrate.max_parallel` may be missing at a
//! time. An instance counts as there when it is wanted, not flagged, on a node that is heard from,
//! and has been running for `migrate.healthy_ms_min`, elsewhere with all of its tasks since their
//! last start. A member of a deployment that goes on counts only while it is healthy there, so that
//! a drain and a rollout do not each take `max_parallel`. So `there − (count − max_parallel)` of
//! those that count may go. An instance that has not started serves nobody and goes at once; a
//! member that is not healthy goes when enough others are there.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, AllocationId, ClientStatus, JobKey, JobKind, Liveness, Node, NodeId, State, Text,
    command::Command,
    job::MigrateStrategy,
    node::{AdvanceDrains, Drain},
};

use crate::limits;

#[cfg(test)]
mod tests;

/// The drainer.
#[derive(Default, Debug)]
pub struct Drainer {
    draining: BTreeSet<NodeId>,
    due_at: Option<u64>,
}

/// What one pass found.
#[derive(Default)]
struct Pass {
    now: u64,
    migrate: BTreeSet<AllocationId>,
    complete: Vec<NodeId>,
    /// Service instances that may go when enough others are there, by job and group.
    candidates: BTreeMap<(JobKey, Text), Vec<(u32, AllocationId)>>,
    /// When the answer may differ although the state does not.
    next_at: Option<u64>,
}

impl Drainer {
    /// Takes over the drains from the state at the start of a leadership.
    pub fn restore(&mut self, now: u64, state: &State) {
        for node in state.nodes().iter() {
            self.node_changed(now, node);
        }
    }

    /// A node row is new or has changed.
    pub fn node_changed(&mut self, now: u64, node: &Node) {
        // A node that does not drain matters too: an instance on it that counts as there again may
        // let an instance on another node go.
        if node.drain.is_none() {
            self.draining.remove(&node.id);
        } else {
            self.draining.insert(node.id);
        }
        self.state_changed(now);
    }

    /// A node was reaped or purged.
    pub fn node_gone(&mut self, node: NodeId) {
        self.draining.remove(&node);
    }

    /// Allocations or jobs changed, any of them: a replacement on another node may let the next
    /// instance go. Changes that come close together are looked at together.
    pub fn state_changed(&mut self, now: u64) {
        if !self.draining.is_empty() {
            self.due_by(now + limits::DRAIN_COALESCE_MS);
        }
    }

    /// Looks at the drains if it is time to.
    pub fn poll(&mut self, now: u64, state: &State) -> Option<Command> {
        if self.due_at.is_none_or(|at| at > now) {
            return None;
        }
        self.due_at = None;
        self.draining.retain(|id| state.nodes().get(id).is_some_and(|node| node.drain.is_some()));
        let mut pass = Pass { now, ..Pass::default() };
        for id in &self.draining {
            if let Some(node) = state.nodes().get(id)
                && let Some(drain) = &node.drain
            {
                pass.look_at_node(state, node.id, drain);
            }
        }
        pass.choose_candidates(state);
        if let Some(at) = pass.next_at {
            self.due_by(at);
        }
        if pass.migrate.is_empty() && pass.complete.is_empty() {
            return None;
        }
        let more = pass.migrate.len() > limits::MIGRATIONS_BATCH_MAX;
        let pause_ms = if more { limits::DRAIN_COALESCE_MS } else { limits::DUE_RETRY_MS };
        self.due_by(now + pause_ms);
        Some(Command::from(AdvanceDrains {
            migrate: pass.migrate.into_iter().take(limits::MIGRATIONS_BATCH_MAX).collect(),
            complete: pass.complete,
            evaluation_ids: Vec::new(),
        }))
    }

    /// When to poll next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.due_at
    }

    /// Nodes that drain.
    pub fn len(&self) -> usize {
        self.draining.len()
    }

    /// No node drains.
    pub fn is_empty(&self) -> bool {
        self.draining.is_empty()
    }

    fn due_by(&mut self, at: u64) {
        self.due_at = Some(self.due_at.map_or(at, |known| known.min(at)));
    }
}

impl Pass {
    fn look_at_node(&mut self, state: &State, id: NodeId, drain: &Drain) {
        let left: Vec<_> = state.left_to_drain(id, drain).collect();
        if left.is_empty() {
            self.complete.push(id);
            return;
        }
        let everything = drain.force || drain.deadline_at.is_some_and(|at| at <= self.now);
        if let Some(at) = drain.deadline_at.filter(|_| !everything) {
            self.look_again(at);
        }
        let only_system = left.iter().all(|row| state.is_of_system_job(row));
        for row in left.into_iter().filter(|row| is_unflagged(row)) {
            if everything || only_system {
                self.migrate.insert(row.id);
            } else if kind_of(state, row) == Some(JobKind::Service) {
                self.look_at_service(row);
            }
        }
    }

    fn look_at_service(&mut self, row: &Allocation) {
        match row.client {
            ClientStatus::Pending => {
                self.migrate.insert(row.id);
            }
            ClientStatus::Running => {
                let group = (row.job.clone(), row.group.clone());
                self.candidates.entry(group).or_default().push((row.name_index, row.id));
            }
            ClientStatus::Unknown
            | ClientStatus::Complete
            | ClientStatus::Failed
            | ClientStatus::Lost => {}
        }
    }

    /// Of each group, lets as many go as the others allow, lowest name first.
    fn choose_candidates(&mut self, state: &State) {
        for ((job, group), mut candidates) in std::mem::take(&mut self.candidates) {
            let spec = state.jobs().get(&job).filter(|row| !row.stop);
            let spec = spec.and_then(|row| state.current_spec(row));
            let Some(group) = spec.and_then(|spec| spec.group(&group)) else {
                continue;
            };
            let mut there = BTreeSet::new();
            for row in state.allocations_of_job(&job).filter(|row| row.group == group.name) {
                if self.is_there(state, row, &group.migrate) {
                    there.insert(row.id);
                }
            }
            let needed = group.count.saturating_sub(group.migrate.max_parallel);
            let needed = usize::try_from(needed).unwrap_or(usize::MAX);
            candidates.sort_unstable();
            let (serving, others): (Vec<_>, Vec<_>) =
                candidates.into_iter().map(|(_, id)| id).partition(|id| there.contains(id));
            if there.len() >= needed {
                self.migrate.extend(serving.into_iter().take(there.len() - needed));
                let others = others.into_iter().filter(|id| {
                    state.allocations().get(id).is_some_and(|row| is_unproven(state, row))
                });
                self.migrate.extend(others);
            }
        }
    }

    fn is_there(&mut self, state: &State, row: &Allocation, migrate: &MigrateStrategy) -> bool {
        let Some(node) = state.nodes().get(&row.node) else { return false };
        let heard = match node.liveness {
            Liveness::Initializing | Liveness::Ready => true,
            Liveness::Disconnected | Liveness::Down => false,
        };
        if !heard || !is_unflagged(row) || row.client != ClientStatus::Running {
            return false;
        }
        if is_unproven(state, row) {
            return false;
        }
        // An instance that is to go need not run without a break: it might never go.
        let since =
            if node.drain.is_some() { Some(row.client_at) } else { row.all_running_since() };
        let Some(since) = since else { return false };
        let healthy_at = since.saturating_add(migrate.healthy_ms_min);
        if healthy_at > self.now {
            self.look_again(healthy_at);
        }
        healthy_at <= self.now
    }

    fn look_again(&mut self, at: u64) {
        self.next_at = Some(self.next_at.map_or(at, |known| known.min(at)));
    }
}

fn is_unflagged(row: &Allocation) -> bool {
    row.is_live() && !row.transition.migrate
}

/// Whether an allocation belongs to a deployment that goes on, and is not healthy in it.
fn is_unproven(state: &State, row: &Allocation) -> bool {
    row.deployment.filter(|own| own.is_healthy() != Some(true)).is_some_and(|own| {
        state.deployments().get(&own.id).is_some_and(|deployment| deployment.is_active())
    })
}

/// The kind of job that an allocation runs; none when the job's version is gone, and then its
/// scheduler ends it anyway.
fn kind_of(state: &State, row: &Allocation) -> Option<JobKind> {
    Some(state.allocation_spec(row)?.kind)
}
