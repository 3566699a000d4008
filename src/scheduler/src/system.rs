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
    work.all_groups(by_group);
    let exhausted: Vec<NodeId> = work.exhausted.into_iter().collect();
    evaluate::finish_per_node(work.draft, &exhausted)
}

/// How the instances of a group stand after what ends anyway was stopped.
#[derive(Default)]
struct Standing<'a> {
    /// To be replaced by the new version.
    updates: Vec<&'a Allocation>,
    /// Of the new version, and not healthy yet.
    unhealthy: u32,
    /// Nodes on which the group is there or has finished.
    settled: BTreeSet<NodeId>,
    /// The last that ended on a node.
    previous: BTreeMap<NodeId, &'a Allocation>,
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
    /// Everything that ends is stopped before anything is placed, so that it makes room for other groups too.
    fn all_groups(&mut self, mut by_group: BTreeMap<&str, Vec<&'a Allocation>>) {
        let groups = &self.spec.groups;
        let own: Vec<_> =
            groups.iter().map(|group| by_group.remove(&*group.name).unwrap_or_default()).collect();
        for allocation in by_group.into_values().flatten().filter(|row| row.is_live()) {
            let lost = reconcile::is_lost(&self.draft.pass, allocation);
            if !self.stop(allocation, if lost { Reason::Lost } else { Reason::NotNeeded }) {
                return;
            }
        }
        let mut standings = Vec::with_capacity(groups.len());
        for (number, (group, own)) in groups.iter().zip(&own).enumerate() {
            let Some(standing) = self.look_at(number, group, own) else { return };
            standings.push(standing);
        }
        for (number, (group, standing)) in groups.iter().zip(&standings).enumerate() {
            if !self.update(number, group, standing)
                || (group.count > 0 && !self.fill(number, group, standing))
            {
                return;
            }
        }
    }

    /// Stops and updates in place what can be decided of each allocation alone; none when the plan is full.
    fn look_at(
        &mut self,
        number: usize,
        group: &TaskGroup,
        allocations: &[&'a Allocation],
    ) -> Option<Standing<'a>> {
        let mut differences = Differences::default();
        let mut standing = Standing::default();
        for allocation in allocations {
            let node = allocation.node;
            if !allocation.is_live() {
                if self.has_finished(allocation) {
                    standing.settled.insert(node);
                } else if standing
                    .previous
                    .get(&node)
                    .is_none_or(|last| last.create_index < allocation.create_index)
                {
                    standing.previous.insert(node, allocation);
                }
                continue;
            }
            match self.fate(number, group, allocation, &mut differences) {
                Fate::Keep => {
                    let min = group.update.map_or(0, |update| update.healthy_ms_min);
                    if self.is_current(allocation)
                        && !reconcile::is_healthy(allocation, min, self.draft.pass.now)
                    {
                        standing.unhealthy += 1;
                    }
                    standing.settled.insert(node);
                }
                Fate::Stop(reason) => {
                    if !self.stop(allocation, reason) {
                        return None;
                    }
                    // Replaced only where the job still wants it: a migrating one on a node in service.
                    if reason == Reason::Ended {
                        standing.settled.insert(node);
                    } else {
                        standing.previous.insert(node, allocation);
                    }
                }
                Fate::InPlace => {
                    if !self.draft.update_in_place(allocation) {
                        return None;
                    }
                    standing.settled.insert(node);
                }
                Fate::Replace => {
                    standing.updates.push(allocation);
                    standing.settled.insert(node);
                }
            }
        }
        Some(standing)
    }

    fn is_current(&self, allocation: &Allocation) -> bool {
        (allocation.job_create_index, allocation.job_version) == self.version
    }

    /// A sysbatch instance that ended by itself, or by a drain or a user, is done until the job changes.
    fn has_finished(&self, allocation: &Allocation) -> bool {
        let has_ended = !allocation.is_server_terminal()
            && !allocation.transition.reschedule
            && matches!(allocation.client, ClientStatus::Complete | ClientStatus::Failed);
        self.kind == JobKind::Sysbatch
            && self.is_current(allocation)
            && (has_ended || allocation.is_ended_by_request())
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
        // One that is not per node is left of a job of another kind that had this id.
        if group.count == 0 || !allocation.per_node {
            return Fate::Stop(Reason::NotNeeded);
        }
        let transition = allocation.transition;
        if transition.migrate || transition.reschedule {
            let is_run_once = self.kind == JobKind::Sysbatch && self.is_current(allocation);
            let is_over = is_run_once && !transition.reschedule;
            return Fate::Stop(if is_over { Reason::Ended } else { Reason::Migrating });
        }
        let state = self.draft.pass.state;
        let Some(node) = state.nodes().get(&allocation.node) else {
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
    fn update(&mut self, number: usize, group: &TaskGroup, standing: &Standing<'_>) -> bool {
        let updates = &standing.updates;
        if updates.is_empty() {
            return true;
        }
        let update = group.update.filter(|update| update.max_parallel > 0);
        let busy = standing.unhealthy.saturating_add(self.failing(number, standing));
        let limit =
            update.map_or(usize::MAX, |update| update.max_parallel.saturating_sub(busy) as usize);
        // A node that cannot take the new version does not hold up the others.
        let mut done = 0;
        for allocation in updates {
            if done == limit {
                // What this pass placed may be healthy by then; what did not come up takes longer.
                let pause = update.map_or(0, |update| {
                    if done > 0 { update.healthy_ms_min } else { update.stagger_ms }
                });
                let pause = pause.max(reconcile::LOOK_MS_MIN);
                let wait_until = self.draft.pass.now.saturating_add(pause);
                evaluate::follow_up_rolling(&mut self.draft, wait_until);
                break;
            }
            let Some(position) = self.stack.position(allocation.node) else { continue };
            if !self.draft.has_room() || !self.stop(allocation, Reason::Updating) {
                return false;
            }
            if self.place(number, group, position, Some(allocation)) {
                done += 1;
            } else {
                self.draft.pop_stop();
                self.stack.restore(allocation);
            }
        }
        true
    }

    /// Instances of the new version that have failed and that [`Self::fill`] places once more. One that finds no room holds up nothing.
    fn failing(&mut self, number: usize, standing: &Standing<'_>) -> u32 {
        let mut failing = 0;
        for (node, last) in &standing.previous {
            let failed = last.client == ClientStatus::Failed && !last.is_server_terminal();
            if failed
                && self.is_current(last)
                && !standing.settled.contains(node)
                && let Some(position) = self.stack.position(*node)
                && self.stack.try_node(number, position).is_ok()
            {
                failing += 1;
            }
        }
        failing
    }

    /// Places an instance on every candidate that has none.
    fn fill(&mut self, number: usize, group: &TaskGroup, standing: &Standing<'_>) -> bool {
        for position in self.stack.positions() {
            let node = self.stack.node(position).id;
            if standing.settled.contains(&node) {
                continue;
            }
            if !self.draft.has_room() {
                return false;
            }
            self.place(number, group, position, standing.previous.get(&node).copied());
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
                self.stack.take(number, &choice);
                let placement = Placement {
                    id: self.draft.next_allocation_id(),
                    group: group.name.clone(),
                    name_index: 0,
                    canary: false,
                    version: None,
                    node: choice.node,
                    ports: Vec::new(),
                    previous: previous.map(|previous| previous.id),
                    preempts: choice.preempted_ids(),
                    reschedules: Vec::new(),
                    metrics: Some(choice.metrics),
                };
                self.draft.place(placement);
                true
            }
            Err((Obstacle::Filtered, _)) => false,
            Err((Obstacle::Exhausted, metrics)) => {
                self.exhausted.insert(self.stack.node(position).id);
                self.draft.fail(&group.name, 1, *metrics);
                false
            }
        }
    }
}
