//! The counts of a deployment, kept up with the changes of its allocations.
//!
//! A plan may place thousands of allocations of one deployment. What each of them changes is noted
//! in [`Touched`], and goes into the deployment's row when somebody asks for it or the entry ends:
//! the row is copied, encoded and hashed once for an entry.
//!
//! Invariant: in an active deployment the counts of healthy allocations are those of a recount
//! (`invariant.rs` does one).

use std::collections::BTreeSet;

use super::DeploymentGroup;
use crate::{
    allocation::Allocation,
    apply::Turn,
    id::{AllocationId, DeploymentId, Text},
    indexes::broken,
    limits,
    plant::{Plant, is_planted},
};

/// What an entry changed for a deployment, and what is looked at when the entry ends.
#[derive(Clone, Default, Debug)]
pub(crate) struct Touched {
    /// An allocation has become healthy, and more may be replaced.
    pub(crate) steps: bool,
    /// Groups of which an allocation is unhealthy and nothing makes up for it.
    pub(crate) failing: BTreeSet<Text>,
    /// In the order in which they were made.
    counts: Vec<Counted>,
}

/// A changed allocation, and what it counted as before.
#[derive(Clone, Debug)]
struct Counted {
    group: Text,
    was: Share,
    is: Share,
    /// It is a new canary.
    canary: Option<AllocationId>,
}

/// What an allocation counts as.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a count of its own")]
struct Share {
    placed: bool,
    healthy: bool,
    unhealthy: bool,
    healthy_canary: bool,
}

impl Share {
    fn of(row: Option<&Allocation>, id: DeploymentId) -> Self {
        let Some((row, own)) = row.and_then(|row| Some((row, row.deployment?))) else {
            return Self::default();
        };
        if own.id != id {
            return Self::default();
        }
        let healthy = own.is_healthy() == Some(true) && row.is_live();
        Self {
            placed: true,
            healthy,
            unhealthy: own.is_healthy() == Some(false),
            healthy_canary: healthy && own.canary,
        }
    }
}

fn count(count: &mut u32, was: bool, is: bool, id: DeploymentId) {
    let next = match (was, is) {
        (false, true) => count.checked_add(1),
        (true, false) => count.checked_sub(1),
        (false, false) | (true, true) => Some(*count),
    };
    *count = next.unwrap_or_else(|| broken("deployment-counts", format_args!("of {id}")));
}

impl DeploymentGroup {
    fn take_share(&mut self, was: Share, is: Share, id: DeploymentId) {
        // One that has ended stays counted.
        count(&mut self.placed, was.placed, was.placed || is.placed, id);
        count(&mut self.unhealthy, was.unhealthy, is.unhealthy, id);
        count(&mut self.healthy, was.healthy, is.healthy, id);
        count(&mut self.healthy_canaries, was.healthy_canary, is.healthy_canary, id);
    }
}

impl Turn<'_> {
    /// Takes a changed allocation into the counts of its deployment.
    pub(crate) fn count_in_deployment(&mut self, old: Option<&Allocation>, row: &Allocation) {
        let Some(id) = row.deployment.map(|own| own.id) else { return };
        let was = if is_planted(Plant::HealthCountedTwice) {
            Share { healthy: false, ..Share::of(old, id) }
        } else {
            Share::of(old, id)
        };
        let is = Share::of(Some(row), id);
        if was == is {
            return;
        }
        let active = self.state.deployments.get(&id).filter(|deployment| deployment.is_active());
        let Some(group) = active.and_then(|deployment| deployment.groups.get(&row.group)) else {
            return;
        };
        let fails = is.unhealthy
            && !was.unhealthy
            && (group.progress_deadline_ms == 0 || !self.state.may_reschedule(row));
        // Canaries change nothing until they are promoted; those of system jobs take the place of
        // others, and come in steps.
        let steps = is.healthy && !was.healthy && (!group.is_canarying() || row.per_node);
        let canary = (old.is_none() && row.canary_of == Some(id)).then_some(row.id);
        let touched = self.deployments.entry(id).or_default();
        touched.steps |= steps;
        if fails {
            touched.failing.insert(row.group.clone());
        }
        touched.counts.push(Counted { group: row.group.clone(), was, is, canary });
    }

    /// Takes into a deployment's row what the entry has changed for its counts so far.
    pub(super) fn write_counts(&mut self, id: DeploymentId) {
        let touched = self.deployments.get_mut(&id);
        let counts = touched.map(|touched| std::mem::take(&mut touched.counts)).unwrap_or_default();
        if counts.is_empty() {
            return;
        }
        let Some(deployment) = self.state.deployments.get(&id) else { return };
        let mut deployment = (**deployment).clone();
        for Counted { group: name, was, is, canary } in counts {
            let Some(group) = deployment.groups.get_mut(&name) else { continue };
            group.take_share(was, is, id);
            group.note_waiting(self.at);
            // One that makes up for another brings the deployment no further than it was.
            if group.healthy > group.healthy_max {
                group.healthy_max = group.healthy;
                group.extend(self.at);
            }
            if let Some(canary) = canary {
                let placed = deployment.placed_canaries.entry(name).or_default();
                if placed.len() < limits::PLACED_CANARIES_KEPT_MAX {
                    placed.push(canary);
                }
            }
        }
        self.put_deployment(deployment);
    }
}
