//! Deployments with canaries: in one of two seeds services begin their versions with canaries, are promoted by people or by themselves, and are paused,
//! failed and taken back. From dice of its own: no throw in here moves one of the older dice.

use std::sync::Arc;

use chance::Dice;
use fsm::{
    Command, Deployment, DeploymentStatus, JobKind, JobSpec, State,
    deployment::{
        DeploymentGroup, FailDeployment, PauseDeployment, PromoteDeployment, SetAllocationHealth,
    },
    job::{HealthCheck, UpdateStrategy},
};

use crate::people::World;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x726f_6c6c_6f75_7431;

/// What people do with deployments.
pub(super) struct Steering {
    seed: u64,
    /// Percent of steps before which somebody looks at a deployment.
    percent: u64,
    /// Dice of the step under way.
    dice: Dice,
}

impl Steering {
    /// The steering of a seed, if it has any.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        if dice.percent(50) {
            return None;
        }
        let percent = dice.between(10, 60);
        Some(Self { seed, percent, dice: Dice::numbered(seed ^ LABEL, u64::MAX - 1) })
    }

    /// A step begins.
    pub(super) fn begin(&mut self, step: u64) {
        self.dice = Dice::numbered(self.seed ^ LABEL, step);
    }

    /// Gives a service that is updated in steps canaries, deadlines and a way back, and most system jobs steps as well.
    pub(super) fn steer(&mut self, spec: &mut JobSpec) {
        let dice = &mut self.dice;
        if spec.kind == JobKind::System {
            draw_steps_of_nodes(spec, dice);
        }
        if spec.kind != JobKind::Service {
            return;
        }
        for update in spec.groups.iter_mut().filter_map(|group| group.update.as_mut()) {
            update.canaries = dice.pick(&[0, 1, 1, 2]).unwrap_or(0);
            update.auto_promote = update.canaries > 0 && dice.percent(50);
            update.auto_revert = dice.percent(60);
            update.progress_deadline_ms = dice.pick(&[0, 30_000, 120_000]).unwrap_or(0);
        }
    }

    /// Sometimes somebody promotes, pauses, resumes or fails a deployment, or says of an instance how it is.
    pub(super) fn steer_deployments(&self, world: &mut World) {
        let mut dice = self.dice.clone();
        if !dice.percent(self.percent) {
            return;
        }
        let truth = world.cluster.log.truth();
        let active: Vec<Arc<Deployment>> =
            truth.deployments().iter().filter(|row| row.is_active()).cloned().collect();
        if let Some(back) = active.iter().find(|row| is_way_back(truth, row))
            && dice.percent(40)
        {
            let evaluation = world.cluster.ids.evaluation();
            return world.ask(FailDeployment { id: back.id, evaluation }.into());
        }
        let Some(row) = dice.pick(&active) else { return };
        let id = row.id;
        let canaries = row.groups.values().filter(|group| group.is_canarying());
        let are_healthy = canaries.clone().count() > 0
            && canaries.clone().all(DeploymentGroup::has_healthy_canaries);
        let allocations: Vec<_> = truth.allocations_of_deployment(&row).map(|one| one.id).collect();
        let evaluation = world.cluster.ids.evaluation();
        let paused = row.status == DeploymentStatus::Paused;
        let command: Command = match dice.below(12) {
            0 => FailDeployment { id, evaluation }.into(),
            1 => PauseDeployment { id, pause: true, evaluation }.into(),
            2 => {
                let Some(one) = dice.pick(&allocations) else { return };
                let (healthy, unhealthy) =
                    if dice.percent(70) { (vec![one], vec![]) } else { (vec![], vec![one]) };
                SetAllocationHealth { id, healthy, unhealthy, evaluation }.into()
            }
            _ if paused => PauseDeployment { id, pause: false, evaluation }.into(),
            // Mostly when it can be done.
            _ if are_healthy || dice.percent(10) => {
                PromoteDeployment { id, groups: None, evaluation }.into()
            }
            _ => return,
        };
        world.ask(command);
    }
}

/// Whether a deployment goes back to what was stable before: when it fails as well, nothing is left to go back to.
fn is_way_back(state: &State, row: &Deployment) -> bool {
    let versions = state.versions_of(&row.job, row.job_create_index);
    let of_row = versions.iter().find(|version| version.version == row.job_version);
    of_row.is_some_and(|own| {
        versions.iter().any(|old| old.version < own.version && old.stable && old.spec == own.spec)
    })
}

/// Canaries of system jobs are a share of the nodes.
fn draw_steps_of_nodes(spec: &mut JobSpec, dice: &mut Dice) {
    if dice.percent(25) {
        return;
    }
    for group in &mut spec.groups {
        let canaries = dice.pick(&[0, 20, 50]).unwrap_or(0);
        group.update = Some(UpdateStrategy {
            stagger_ms: 5_000,
            max_parallel: dice.pick(&[1, 2]).unwrap_or(1),
            healthy_ms_min: 1_000,
            healthy_deadline_ms: 60_000,
            progress_deadline_ms: dice.pick(&[0, 120_000]).unwrap_or(0),
            health_check: HealthCheck::TaskStates,
            canaries,
            auto_promote: canaries > 0 && dice.percent(50),
            auto_revert: dice.percent(60),
        });
        for task in &mut group.tasks {
            task.user = dice.pick(&["", "x", "y"]).unwrap_or("").into();
        }
    }
}
