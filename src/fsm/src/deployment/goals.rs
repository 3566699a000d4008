//! What the deployment of a system job is to reach: it follows nodes that come and go.

use std::collections::BTreeMap;

use super::{Deployment, DeploymentGoal, DeploymentGroup};
use crate::{
    apply::Turn,
    id::{Text, TimeMs},
};

impl DeploymentGroup {
    /// So many nodes are there for it at `at`.
    fn set_total(&mut self, total: u32, at: TimeMs) {
        // What was on nodes that are gone is not to be reached again.
        if total < self.goal.total {
            self.healthy_max = self.healthy;
        }
        self.goal.total = total;
        self.note_waiting(at);
    }
}

impl Turn<'_> {
    /// The nodes of a system job have changed while it is rolled out.
    pub(super) fn set_totals(
        &mut self,
        mut row: Deployment,
        goals: &BTreeMap<Text, DeploymentGoal>,
    ) {
        for (name, goal) in goals {
            if let Some(group) = row.groups.get_mut(name) {
                group.set_total(goal.total, self.at);
            }
        }
        self.deployments.entry(row.id).or_default();
        self.put_deployment(row);
    }
}
