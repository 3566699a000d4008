//! Fails the deployments that make no progress until their deadline.
//!
//! All else that follows from a deployment is decided in `apply`, with the report that it follows
//! from (ADR 0018). The deadlines are in the rows, and `apply` judges each again; this machine only
//! says when to propose. Invariant: `timers` holds exactly one entry per deployment with a
//! deadline.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Command, DeploymentId, Effect, Index, State,
    deployment::ExpireDeployments,
    plant::{Plant, is_planted},
};

use crate::{
    limits,
    machine::{Ids, Machine, Stepped},
};

/// A deadline that is watched.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// As the row has it.
    due_at: u64,
    /// Not before the pause after the last proposal is over.
    fires_at: u64,
}

/// The watch over the deadlines of deployments.
#[derive(Default, Debug)]
pub(crate) struct DeploymentWatch {
    wanted: BTreeMap<DeploymentId, Timer>,
    timers: BTreeSet<(u64, DeploymentId)>,
}

impl DeploymentWatch {
    fn follow(&mut self, state: &State, id: DeploymentId) {
        let deadline = state.deployments().get(&id).and_then(|row| row.progress_deadline());
        match deadline {
            Some(at) if self.wanted.get(&id).is_some_and(|timer| timer.due_at == at) => {}
            Some(at) => self.set(id, Timer { due_at: at, fires_at: at }),
            None => self.unset(id),
        }
    }

    fn set(&mut self, id: DeploymentId, timer: Timer) {
        self.unset(id);
        self.wanted.insert(id, timer);
        self.timers.insert((timer.fires_at, id));
    }

    fn unset(&mut self, id: DeploymentId) {
        if let Some(timer) = self.wanted.remove(&id) {
            self.timers.remove(&(timer.fires_at, id));
        }
    }
}

impl Machine for DeploymentWatch {
    fn restore(&mut self, now: u64, state: &State) {
        self.wanted.clear();
        self.timers.clear();
        for row in state.deployments().iter() {
            self.follow(state, row.id);
        }
        if is_planted(Plant::DeadlineAnew) {
            let ids: Vec<_> = self.wanted.keys().copied().collect();
            for id in ids {
                let due_at = now.saturating_add(limits::DUE_RETRY_MS);
                self.set(id, Timer { due_at, fires_at: due_at });
            }
        }
    }

    fn take(&mut self, _now: u64, state: &State, _index: Index, effect: &Effect) {
        if let Effect::Deployment(id) = effect {
            self.follow(state, *id);
        }
    }

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        let mut ids = Vec::new();
        while ids.len() < limits::DEPLOYMENTS_BATCH_MAX
            && let Some((_, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now)
        {
            let row = state.deployments().get(&id);
            match row.and_then(|row| row.progress_deadline()) {
                Some(due_at) if due_at <= now => {
                    let fires_at = now.saturating_add(limits::DUE_RETRY_MS);
                    self.set(id, Timer { due_at, fires_at });
                    // Machines may be on their way, and no effect tells when they are not any more.
                    if row.is_some_and(|row| !state.late_groups(row, now).is_empty()) {
                        ids.push(id);
                    }
                }
                Some(due_at) => self.set(id, Timer { due_at, fires_at: due_at }),
                None => self.unset(id),
            }
        }
        if !ids.is_empty() {
            stepped.commands.push(Command::from(ExpireDeployments { ids }));
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        Some(self.timers.first()?.0)
    }

    fn gauges(&self, _now: u64, put: &mut dyn FnMut(&str, u64)) {
        put("deployments.watched", self.wanted.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fsm::{
        ClientStatus, DeploymentStatus,
        deployment::{DeploymentGoal, NewDeployment},
        testing::{Driver, GROUP, rolling_job},
    };

    use super::*;

    const ID: DeploymentId = DeploymentId([1; 16]);

    /// A deployment of two instances, of which one was placed.
    fn begun() -> (Driver, fsm::AllocationId) {
        let mut driver = Driver::default();
        let node = driver.node("a");
        let spec = rolling_job("t", 2, |update| update.progress_deadline_ms = 60_000);
        let evaluation = driver.register_job(spec);
        let mut plan = driver.plan(evaluation);
        let goal = DeploymentGoal { canaries: 0, total: 2 };
        let goals = BTreeMap::from([(GROUP.into(), goal)]);
        plan.deployment = Some(NewDeployment { id: ID, goals });
        driver.commit_plan(plan);
        let id = driver.place("t", 0, node);
        (driver, id)
    }

    fn step(machine: &mut DeploymentWatch, now: u64, state: &State) -> Vec<Command> {
        let mut stepped = Stepped::default();
        machine.step(now, state, &mut || [0; 16], &mut stepped);
        stepped.commands
    }

    /// A leader that takes over goes on with the deadline of the row. A command is proposed again
    /// only after a pause.
    #[test]
    fn a_deployment_is_failed_at_its_deadline_whoever_leads() {
        let (mut driver, id) = begun();
        let placed = driver.now;
        let mut machine = DeploymentWatch::default();
        machine.restore(placed + 50_000, &driver.state);
        assert_eq!(machine.next_deadline(), Some(placed + 60_000));
        driver.at_ms(placed - fsm::testing::START_MS + 55_000);
        driver.report_health(id, ClientStatus::Running, true);
        machine.take(driver.now, &driver.state, 1, &Effect::Deployment(ID));
        let due = placed + 115_000;
        assert_eq!(machine.next_deadline(), Some(due));
        assert_eq!(step(&mut machine, due - 1, &driver.state), []);
        let expire = Command::from(ExpireDeployments { ids: vec![ID] });
        assert_eq!(step(&mut machine, due, &driver.state), std::slice::from_ref(&expire));
        assert_eq!(step(&mut machine, due + 1, &driver.state), []);
        let again = due + limits::DUE_RETRY_MS;
        assert_eq!(machine.next_deadline(), Some(again));
        assert_eq!(step(&mut machine, again, &driver.state), std::slice::from_ref(&expire));
        driver.now = again;
        driver.accept(expire);
        let row = driver.state.deployments().get(&ID).expect("it is kept");
        assert_eq!(row.status, DeploymentStatus::Failed);
        machine.take(again, &driver.state, 2, &Effect::Deployment(ID));
        assert_eq!(machine.next_deadline(), None);
    }
}
