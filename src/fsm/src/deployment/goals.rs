//! What the deployment of a system job is to reach: it follows nodes that come and go.

use std::collections::BTreeMap;

use super::{Deployment, DeploymentGroup};
use crate::{
    allocation::Allocation,
    apply::Turn,
    id::{DeploymentId, Text, TimeMs},
    plan::Plan,
};

impl DeploymentGroup {
    /// So many nodes are there for it at `at`, and `others` of them have an instance that is no
    /// canary. Returns whether it has more canaries to get.
    fn set_total(&mut self, total: u32, others: u32, at: TimeMs) -> bool {
        // What was on nodes that are gone is not to be reached again.
        if total < self.goal.total {
            self.healthy_max = self.healthy;
        }
        self.goal.total = total;
        let before = self.goal.canaries;
        if self.is_canarying() {
            self.goal.canaries = self.canaries_max.min(total.saturating_sub(others)).max(1);
        }
        self.note_waiting(at);
        self.goal.canaries > before
    }
}

impl Turn<'_> {
    /// Sets what the deployment of a system job is to reach on the nodes of today, as a plan says.
    pub(super) fn set_totals(&mut self, mut row: Deployment, plan: &Plan) {
        let others = self.beside_canaries(row.id, plan);
        let mut more = false;
        for (name, goal) in plan.deployment.iter().flat_map(|new| &new.goals) {
            if let Some(group) = row.groups.get_mut(name) {
                let others = others.get(name).copied().unwrap_or(0);
                more |= group.set_total(goal.total, others, self.at);
            }
        }
        // No report of health asks for the next canary if those that there are are healthy.
        self.deployments.entry(row.id).or_default().steps |= more;
        self.put_deployment(row);
    }

    /// Live instances of a deployment that are no canaries, by group; also those that the plan
    /// updates in place.
    fn beside_canaries(&self, id: DeploymentId, plan: &Plan) -> BTreeMap<Text, u32> {
        let owns = |row: &Allocation| row.deployment.filter(|own| own.id == id);
        let members = self.state.allocations_of_job(&plan.job);
        let members = members.filter(|row| owns(row).is_some_and(|own| !own.canary));
        let updated = plan.in_place.iter().filter_map(|one| self.state.allocations.get(&one.id));
        let updated = updated.filter(|row| owns(row).is_none());
        let mut counts = BTreeMap::new();
        for row in members.chain(updated).filter(|row| row.is_live()) {
            let count: &mut u32 = counts.entry(row.group.clone()).or_default();
            *count = count.saturating_add(1);
        }
        counts
    }
}
