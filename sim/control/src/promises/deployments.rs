//! What a leader owes to deployments at each of its looks: a deadline that is over has its consequence.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{Command, Deployment, DeploymentId, InstanceState, State, command::DeploymentCommand};

/// Work comes to a machine that was just bound so late, ms.
const WORK_COMES_MS: u64 = 30_000;

/// A leader looks again so late at a deployment that waited for machines, ms.
const LOOKS_AGAIN_MS: u64 = 30_000;

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
