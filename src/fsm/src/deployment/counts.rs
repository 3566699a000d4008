//! The counts of a deployment, kept up with each change of an allocation.
//!
//! Invariant: in an active deployment the counts of healthy allocations are those of a recount
//! (`invariant.rs` does one).

use std::collections::BTreeSet;

use super::{Deployment, DeploymentGroup};
use crate::{
    allocation::Allocation,
    apply::Turn,
    id::{DeploymentId, Text},
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
}

/// What an allocation counts as.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
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
        let Some(deployment) = self.state.deployments.get(&id).filter(|row| row.is_active()) else {
            return;
        };
        let mut deployment: Deployment = (**deployment).clone();
        let Some(group) = deployment.groups.get_mut(&row.group) else { return };
        group.take_share(was, is, id);
        if old.is_none() && row.canary_of == Some(id) {
            let placed = deployment.placed_canaries.entry(row.group.clone()).or_default();
            if placed.len() < limits::PLACED_CANARIES_KEPT_MAX {
                placed.push(row.id);
            }
        }
        group.note_waiting(self.at);
        // One that makes up for another brings the deployment no further than it was.
        let progress = group.healthy > group.healthy_max;
        group.healthy_max = group.healthy_max.max(group.healthy);
        if progress {
            group.extend(self.at);
        }
        let fails = is.unhealthy
            && !was.unhealthy
            && (group.progress_deadline_ms == 0 || !self.state.may_reschedule(row));
        // Canaries change nothing until they are promoted; those of system jobs take the place of others, and come in steps.
        let steps = is.healthy && !was.healthy && (!group.is_canarying() || row.per_node);
        let touched = self.deployments.entry(id).or_default();
        touched.steps |= steps;
        if fails {
            touched.failing.insert(row.group.clone());
        }
        self.put_deployment(deployment);
    }
}
