//! Deployments with canaries: in one of two seeds services begin their versions with canaries, are promoted by people or by themselves, and are paused,
//! failed and taken back. From dice of its own: no throw in here moves one of the older dice.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Command, Deployment, DeploymentId, DeploymentStatus, EvaluationId, InstanceState, JobKind,
    JobSpec, State,
    command::DeploymentCommand,
    deployment::{
        DeploymentGroup, FailDeployment, PauseDeployment, PromoteDeployment, SetAllocationHealth,
    },
    job::{HealthCheck, UpdateStrategy},
};

use crate::{coverage::Event, world::World};
use chance::Dice;

/// Work comes to a machine that was just bound so late, ms.
const WORK_COMES_MS: u64 = 30_000;

/// A leader looks again so late at a deployment that waited for machines, ms.
const LOOKS_AGAIN_MS: u64 = 30_000;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x726f_6c6c_6f75_7431;

/// What people do with deployments in one step.
#[derive(Clone)]
pub(crate) struct Steering {
    /// Percent of steps before which somebody looks at a deployment.
    percent: u64,
    dice: Dice,
}

/// The steering of one step of a seed, if the seed has any.
pub(crate) fn steering(seed: u64, step: u64) -> Option<Steering> {
    let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
    if dice.percent(50) {
        return None;
    }
    let percent = dice.between(10, 60);
    Some(Steering { percent, dice: Dice::numbered(seed ^ LABEL, step) })
}

impl World {
    /// Gives a service that is updated in steps canaries, deadlines and a way back, and most system jobs steps as well.
    pub(crate) fn draw_rollout(&mut self, spec: &mut JobSpec) {
        let Some(Steering { dice, .. }) = &mut self.steering else { return };
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

    /// Before a step: sometimes somebody promotes, pauses, resumes or fails a deployment, or says of an instance how it is.
    pub(crate) fn steer_deployments(&mut self) {
        let Some(Steering { percent, mut dice }) = self.steering.clone() else { return };
        if !dice.percent(percent) {
            return;
        }
        let truth = self.log.truth();
        let active: Vec<Arc<Deployment>> =
            truth.deployments().iter().filter(|row| row.is_active()).cloned().collect();
        if let Some(back) = active.iter().find(|row| is_way_back(truth, row))
            && dice.percent(40)
        {
            let evaluation = EvaluationId(self.ids.next());
            return self.ask(FailDeployment { id: back.id, evaluation }.into());
        }
        let Some(row) = dice.pick(&active) else { return };
        let id = row.id;
        let canaries = row.groups.values().filter(|group| group.is_canarying());
        let are_healthy = canaries.clone().count() > 0
            && canaries.clone().all(DeploymentGroup::has_healthy_canaries);
        let allocations: Vec<_> = truth.allocations_of_deployment(&row).map(|one| one.id).collect();
        let evaluation = EvaluationId(self.ids.next());
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
        self.ask(command);
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

/// What an entry did to deployments, for the coverage.
pub(crate) fn note(before: &State, after: &State, coverage: &mut crate::Coverage) {
    for row in after.deployments().iter().filter(|row| row.modify_index == after.index()) {
        let Some(old) = before.deployments().get(&row.id) else {
            coverage.count(Event::DeploymentBegun);
            continue;
        };
        if row.status != old.status {
            match row.status {
                DeploymentStatus::Successful => coverage.count(Event::DeploymentSuccessful),
                DeploymentStatus::Failed => {
                    coverage.count(Event::DeploymentFailed);
                    if row.description.contains("- rolling back") {
                        coverage.count(Event::DeploymentReverted);
                    }
                    if row.description.starts_with("Failed due to progress") {
                        coverage.count(Event::DeploymentExpired);
                    }
                }
                DeploymentStatus::Running
                | DeploymentStatus::Paused
                | DeploymentStatus::Cancelled => {}
            }
        }
        let promoted = |row: &Deployment| row.groups.values().any(|group| group.promoted);
        if promoted(row) && !promoted(old) {
            coverage.count(Event::DeploymentPromoted);
        }
    }
}

/// The deadlines that a leader has proposed to draw the consequence of.
#[derive(Default)]
pub(crate) struct Expiries {
    acted_on: BTreeSet<(DeploymentId, u64)>,
    /// When a deployment beyond its deadline was last seen to wait for a machine.
    waited_at: BTreeMap<DeploymentId, u64>,
}

impl Expiries {
    /// After a step of the services: I46: a deadline that is over is acted on in that step, or was before, whoever leads.
    pub(crate) fn looked(
        &mut self,
        now: u64,
        state: &State,
        commands: &[Command],
    ) -> Option<String> {
        let named: BTreeSet<DeploymentId> = commands
            .iter()
            .filter_map(|command| {
                if let Command::Deployment(DeploymentCommand::ExpireDeployments(command)) = command
                {
                    Some(&command.ids)
                } else {
                    None
                }
            })
            .flatten()
            .copied()
            .collect();
        let due = state.deployments().iter().filter_map(|row| {
            let deadline = row.progress_deadline().filter(|deadline| *deadline <= now)?;
            Some((row, deadline))
        });
        let mut late = None;
        for (row, deadline) in due {
            let id = row.id;
            if waits_for_a_machine(state, row, deadline, now) {
                self.waited_at.insert(id, now);
            }
            // No effect tells when no machine comes any more: a leader looks again after a while.
            let waited_at = self.waited_at.get(&id);
            let may_wait = waited_at.is_some_and(|at| at + LOOKS_AGAIN_MS > now);
            if named.contains(&id) {
                self.acted_on.insert((id, deadline));
            } else if !may_wait && !self.acted_on.contains(&(id, deadline)) {
                let ms = now - deadline;
                late = Some(format!("I46: the deadline of deployment {id} passed {ms} ms ago"));
            }
        }
        late
    }
}

/// A group of it has no room, and a machine that was asked for before the deadline is on its way, or was there just now.
fn waits_for_a_machine(state: &State, row: &Deployment, deadline: u64, now: u64) -> bool {
    let job = state.jobs().get(&row.job);
    let Some(spec) = job.and_then(|job| state.current_spec(job)) else { return false };
    let comes = |one: &Arc<fsm::Instance>| match one.state {
        InstanceState::Requested | InstanceState::Booting => true,
        InstanceState::Bound => one.bound_at + WORK_COMES_MS > now,
        InstanceState::ShuttingDown => false,
    };
    let waits = row.groups.values().any(|group| group.waits_for_room);
    let mut instances = state.instances().iter().filter(|one| one.pool == spec.node_pool);
    waits && instances.any(|one| one.requested_at <= deadline && comes(one))
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
