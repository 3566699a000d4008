//! Schedules system and sysbatch jobs: one instance of each group on every node that may run it.
//!
//! Each node is its own question: an instance is never moved to another node, and a node without room gets a blocked evaluation of its own.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{Allocation, ClientStatus, JobKind, JobSpec, Node, NodeId, Placement, Plan, TaskGroup};

use crate::{
    candidates::{Memory, holds_what_it_runs, in_pool, matches_datacenter},
    evaluate,
    plan::Draft,
    reconcile::{self, Reason},
    service::Texts,
    stack::{Obstacle, Stack},
    update::Differences,
};

/// Shortest pause between steps of a rolling update.
const ROLLING_MS_MIN: u64 = 1_000;

/// Brings each node to one instance per group.
pub(crate) fn schedule<'a>(
    mut draft: Draft<'a>,
    spec: &'a JobSpec,
    memory: &'a mut Memory,
) -> Plan {
    let job = &draft.pass.evaluation.job;
    let allocations: Vec<&Allocation> =
        draft.pass.state.allocations_of_job(job).map(|allocation| &**allocation).collect();
    for group in &spec.groups {
        draft.queued.insert(group.name.clone(), 0);
    }
    let stack = Stack::new(&draft.pass, spec, &allocations, memory);
    let mut work = Work {
        version: draft.target.version(),
        kind: draft.target.kind(draft.pass.evaluation),
        draft,
        spec,
        stack,
        exhausted: BTreeSet::new(),
        texts: Texts::default(),
    };
    let mut by_group: BTreeMap<&str, Vec<&Allocation>> = BTreeMap::new();
    for allocation in allocations {
        by_group.entry(&allocation.group).or_default().push(allocation);
    }
    for (number, group) in spec.groups.iter().enumerate() {
        let own = by_group.remove(&*group.name).unwrap_or_default();
        if !work.group(number, group, &own) {
            break;
        }
    }
    for allocation in by_group.into_values().flatten().filter(|allocation| allocation.is_live()) {
        if !work.stop(allocation, Reason::NotNeeded) {
            break;
        }
    }
    let exhausted: Vec<NodeId> = work.exhausted.into_iter().collect();
    evaluate::finish_per_node(work.draft, &exhausted)
}

/// What becomes of a live allocation.
enum Fate {
    Keep,
    Stop(Reason),
    InPlace,
    Replace,
}

struct Work<'a> {
    draft: Draft<'a>,
    spec: &'a JobSpec,
    version: (u64, u64),
    kind: JobKind,
    stack: Stack<'a>,
    /// Nodes without room for a group.
    exhausted: BTreeSet<NodeId>,
    texts: Texts,
}

impl<'a> Work<'a> {
    /// Handles one group on all nodes; false when the plan is full.
    fn group(&mut self, number: usize, group: &TaskGroup, allocations: &[&'a Allocation]) -> bool {
        let mut differences = Differences::default();
        let mut unhealthy = 0;
        let mut updates: Vec<&Allocation> = Vec::new();
        // Nodes on which the group is there or has finished, and the last that ended elsewhere.
        let mut settled = BTreeSet::new();
        let mut previous: BTreeMap<NodeId, &Allocation> = BTreeMap::new();
        for allocation in allocations {
            if !allocation.is_live() {
                if self.has_finished(allocation) {
                    settled.insert(allocation.node);
                } else if previous
                    .get(&allocation.node)
                    .is_none_or(|last| last.create_index < allocation.create_index)
                {
                    previous.insert(allocation.node, allocation);
                }
                continue;
            }
            match self.fate(number, group, allocation, &mut differences) {
                Fate::Keep => {
                    let min = group.update.map_or(0, |update| update.healthy_ms_min);
                    if self.is_current(allocation)
                        && !reconcile::is_healthy(allocation, min, self.draft.pass.now)
                    {
                        unhealthy += 1;
                    }
                    settled.insert(allocation.node);
                }
                Fate::Stop(reason) => {
                    if !self.stop(allocation, reason) {
                        return false;
                    }
                    // Replaced only where the job still wants it: a migrating one on a node in service.
                    previous.insert(allocation.node, allocation);
                }
                Fate::InPlace => {
                    if !self.draft.update_in_place(allocation) {
                        return false;
                    }
                    settled.insert(allocation.node);
                }
                Fate::Replace => {
                    updates.push(allocation);
                    settled.insert(allocation.node);
                }
            }
        }
        self.update(number, group, &updates, unhealthy)
            && (group.count == 0 || self.fill(number, group, &settled, &previous))
    }

    fn is_current(&self, allocation: &Allocation) -> bool {
        (allocation.job_create_index, allocation.job_version) == self.version
    }

    /// A sysbatch instance that ended by itself is done until the job changes.
    fn has_finished(&self, allocation: &Allocation) -> bool {
        self.kind == JobKind::Sysbatch
            && self.is_current(allocation)
            && !allocation.is_server_terminal()
            && matches!(allocation.client, ClientStatus::Complete | ClientStatus::Failed)
    }

    fn fate(
        &mut self,
        number: usize,
        group: &TaskGroup,
        allocation: &Allocation,
        differences: &mut Differences,
    ) -> Fate {
        if reconcile::is_lost(&self.draft.pass, allocation) {
            return Fate::Stop(Reason::Lost);
        }
        if group.count == 0 {
            return Fate::Stop(Reason::NotNeeded);
        }
        if allocation.transition.migrate || allocation.transition.reschedule {
            return Fate::Stop(Reason::Migrating);
        }
        let state = self.draft.pass.state;
        let Some(node) = state.nodes.get(&allocation.node) else {
            return Fate::Stop(Reason::Lost);
        };
        if !self.is_wanted_on(node) {
            return Fate::Stop(Reason::NodeNotWanted);
        }
        if self.is_current(allocation) {
            return Fate::Keep;
        }
        if !self.stack.may_run_on(number, node) {
            return Fate::Stop(Reason::NodeNotWanted);
        }
        if !differences.replaces(state, allocation, self.spec, group)
            && holds_what_it_runs(state, node)
        {
            return Fate::InPlace;
        }
        // A node out of service cannot take the new version; the old one goes on until it can.
        if node.is_schedulable() { Fate::Replace } else { Fate::Keep }
    }

    fn is_wanted_on(&self, node: &Node) -> bool {
        in_pool(node, self.spec) && matches_datacenter(self.spec, &node.description.datacenter)
    }

    fn stop(&mut self, allocation: &Allocation, reason: Reason) -> bool {
        let text = self.texts.of(reason);
        let done = self.draft.stop(allocation, &text, reason == Reason::Lost);
        if done {
            self.stack.release(allocation);
        }
        done
    }

    /// Replaces instances of older versions, `max_parallel` at a time.
    fn update(
        &mut self,
        number: usize,
        group: &TaskGroup,
        updates: &[&Allocation],
        unhealthy: u32,
    ) -> bool {
        let update = group.update.filter(|update| update.max_parallel > 0);
        let limit = update
            .map_or(usize::MAX, |update| update.max_parallel.saturating_sub(unhealthy) as usize);
        if updates.len() > limit {
            let pause = update.map_or(0, |update| update.stagger_ms).max(ROLLING_MS_MIN);
            let wait_until = self.draft.pass.now.saturating_add(pause);
            evaluate::follow_up_rolling(&mut self.draft, wait_until);
        }
        for allocation in updates.iter().take(limit) {
            let Some(position) = self.stack.position(allocation.node) else { continue };
            if !self.draft.has_room() || !self.stop(allocation, Reason::Updating) {
                return false;
            }
            if !self.place(number, group, position, Some(allocation)) {
                self.draft.pop_stop();
                self.stack.restore(allocation);
            }
        }
        true
    }

    /// Places an instance on every candidate that has none.
    fn fill(
        &mut self,
        number: usize,
        group: &TaskGroup,
        settled: &BTreeSet<NodeId>,
        previous: &BTreeMap<NodeId, &Allocation>,
    ) -> bool {
        for position in self.stack.positions() {
            let node = self.stack.node(position).id;
            if settled.contains(&node) {
                continue;
            }
            if !self.draft.has_room() {
                return false;
            }
            self.place(number, group, position, previous.get(&node).copied());
        }
        true
    }

    /// Places an instance on one node; false if it cannot be there.
    fn place(
        &mut self,
        number: usize,
        group: &TaskGroup,
        position: usize,
        previous: Option<&Allocation>,
    ) -> bool {
        match self.stack.try_node(number, position) {
            Ok(choice) => {
                self.stack.take(number, choice.position);
                let placement = Placement {
                    id: self.draft.next_allocation_id(),
                    group: group.name.clone(),
                    name_index: 0,
                    node: choice.node,
                    ports: Vec::new(),
                    previous: previous.map(|previous| previous.id),
                    reschedules: Vec::new(),
                    metrics: Some(choice.metrics),
                };
                self.draft.place(placement);
                true
            }
            Err((Obstacle::Filtered, _)) => false,
            Err((Obstacle::Exhausted, metrics)) => {
                self.exhausted.insert(self.stack.node(position).id);
                *self.draft.queued.entry(group.name.clone()).or_default() += 1;
                self.draft
                    .failed_groups
                    .entry(group.name.clone())
                    .and_modify(|known| known.coalesced_failures += 1)
                    .or_insert(*metrics);
                false
            }
        }
    }
}
