//! Random commands about deployments, and the parts of plans and reports that touch them.

use std::collections::BTreeMap;

use super::Maker;
use crate::{
    command::Command,
    deployment::{
        DeploymentGoal, ExpireDeployments, FailDeployment, NewDeployment, PauseDeployment,
        PromoteDeployment, SetAllocationHealth,
    },
    id::{AllocationId, DeploymentId, JobKey},
    job::{HealthCheck, JobSpec, UpdateStrategy},
};

impl Maker<'_> {
    pub(super) fn update_strategy(&mut self, spec: &mut JobSpec) {
        for group in &mut spec.groups {
            group.update = (!self.dice.one_in(3)).then(|| UpdateStrategy {
                stagger_ms: 0,
                max_parallel: u32::from(!self.dice.one_in(9)),
                healthy_ms_min: 1_000,
                healthy_deadline_ms: 2_000,
                progress_deadline_ms: self.dice.choose(&[0, 1_000, 600_000]),
                health_check: HealthCheck::TaskStates,
                canaries: self.dice.choose(&[0, 0, 1, 2]),
                auto_promote: self.dice.one_in(2),
                auto_revert: self.dice.one_in(2),
            });
        }
    }

    fn deployment(&mut self) -> DeploymentId {
        let rows = self.state.deployments.iter();
        let all = self.dice.one_in(5);
        let ids: Vec<_> = rows.filter(|row| all || row.is_active()).map(|row| row.id).collect();
        let unknown = DeploymentId(self.id(4));
        self.dice.pick(&ids).unwrap_or(unknown)
    }

    pub(super) fn new_deployment(&mut self, key: &JobKey) -> Option<NewDeployment> {
        if self.dice.one_in(2) {
            return None;
        }
        let job = self.state.jobs.get(key);
        let spec = job.and_then(|job| self.state.current_spec(job))?;
        let mut goals = BTreeMap::new();
        for group in &spec.groups {
            let canaries = u32::from(self.dice.one_in(2));
            goals.insert(group.name.clone(), DeploymentGoal { canaries, total: group.count });
        }
        let few = if self.dice.one_in(9) { 4 } else { u64::MAX };
        Some(NewDeployment { id: DeploymentId(self.id(few)), goals })
    }

    pub(super) fn health(&mut self, id: AllocationId) -> Option<(DeploymentId, bool)> {
        let own = self.state.allocations.get(&id).and_then(|row| row.deployment);
        let other = self.deployment();
        let id = own.map(|own| own.id).filter(|_| !self.dice.one_in(9)).unwrap_or(other);
        (!self.dice.one_in(3)).then(|| (id, !self.dice.one_in(4)))
    }

    pub(super) fn deployment_command(&mut self) -> Command {
        let id = self.deployment();
        let evaluation = self.new_evaluation();
        match self.dice.below(8) {
            0 | 1 => {
                let groups = self.dice.one_in(3).then(|| vec![crate::testing::GROUP.into()]);
                PromoteDeployment { id, groups, evaluation }.into()
            }
            2 => FailDeployment { id, evaluation }.into(),
            3 => PauseDeployment { id, pause: self.dice.one_in(2), evaluation }.into(),
            4 | 5 => {
                let (healthy, unhealthy) = (vec![self.allocation()], vec![self.allocation()]);
                let unhealthy = if self.dice.one_in(3) { unhealthy } else { Vec::new() };
                SetAllocationHealth { id, healthy, unhealthy, evaluation }.into()
            }
            _ => ExpireDeployments { ids: vec![id, self.deployment()] }.into(),
        }
    }
}
