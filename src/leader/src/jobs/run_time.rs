//! Stops the allocations that run longer than their group may, for agents that do not do it
//! themselves.
//!
//! An agent ends them at the time itself; the deadlines in the state are later than that. They are
//! an index of the state, and `apply` judges each again; this machine only says when to propose,
//! and counts what was stopped.

use std::collections::BTreeSet;

use fsm::{
    AllocationId, Command, Effect, Index, State, TimeMs,
    allocation::{ExpireRuns, RUN_TIME_OVER},
};

use crate::{
    limits,
    machine::{Ids, Machine, Stepped},
};

/// The watch over the longest runs.
#[derive(Default, Debug)]
pub(crate) struct RunWatch {
    /// The first deadline, as the state has it.
    due_at: Option<TimeMs>,
    /// Not before the pause after the last proposal is over.
    fires_at: Option<TimeMs>,
    /// Proposed, and not known to be over.
    asked: BTreeSet<AllocationId>,
    /// Stopped since this leadership began.
    stopped: u64,
}

impl RunWatch {
    fn follow(&mut self, state: &State) {
        let due_at = state.run_deadlines().next().map(|(at, _)| at);
        if due_at != self.due_at {
            (self.due_at, self.fires_at) = (due_at, due_at);
        }
    }

    /// Counts what was asked for and has come about. The agent, or somebody else, may have been
    /// first.
    fn count(&mut self, state: &State) {
        let stopped = &mut self.stopped;
        self.asked.retain(|id| {
            let Some(row) = state.allocations().get(id) else { return false };
            let is_ours = row.is_server_terminal() && &*row.desired_description == RUN_TIME_OVER;
            *stopped += u64::from(is_ours);
            !is_ours && state.run_deadline(row).is_some()
        });
    }
}

impl Machine for RunWatch {
    fn restore(&mut self, _now: u64, state: &State) {
        self.count(state);
        self.asked.clear();
        (self.due_at, self.fires_at) = (None, None);
        self.follow(state);
    }

    fn take(&mut self, _now: u64, state: &State, _index: Index, effect: &Effect) {
        if let Effect::NodeAllocations(_) | Effect::NodeReport(_) = effect {
            self.count(state);
            self.follow(state);
        }
    }

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        if self.fires_at.is_none_or(|at| at > now) {
            return;
        }
        let due = state.run_deadlines().take_while(|(at, _)| *at <= now).map(|(_, id)| id);
        let ids: Vec<_> = due.take(limits::RUNS_BATCH_MAX).collect();
        if ids.is_empty() {
            self.follow(state);
            return;
        }
        self.fires_at = Some(now.saturating_add(limits::DUE_RETRY_MS));
        self.asked.extend(&ids);
        stepped.commands.push(Command::from(ExpireRuns { ids }));
    }

    fn next_deadline(&self) -> Option<u64> {
        self.fires_at
    }

    fn gauges(&self, _now: u64, put: &mut dyn FnMut(&str, u64)) {
        put("allocations.max_run_duration_exceeded", self.stopped);
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        ClientStatus, JobKind,
        testing::{Driver, START_MS, job},
    };

    use super::*;
    use fsm::command::AllocationCommand;

    fn step(machine: &mut RunWatch, now: u64, state: &State) -> Vec<Command> {
        let mut stepped = Stepped::default();
        machine.step(now, state, &mut || [0; 16], &mut stepped);
        stepped.commands
    }

    fn stopped(machine: &RunWatch) -> u64 {
        let mut count = None;
        machine.gauges(0, &mut |name, value| {
            assert_eq!(name, "allocations.max_run_duration_exceeded");
            count = Some(value);
        });
        count.expect("the count")
    }

    /// The deadline is that of the row, whoever leads; a command is proposed again only after a
    /// pause, and the next one is waited for.
    #[test]
    fn an_allocation_that_runs_too_long_is_stopped_whoever_leads() {
        let mut driver = Driver::default();
        let node = driver.node("a");
        let mut spec = job("t", JobKind::Batch, 2);
        spec.groups[0].max_run_ms = 60_000;
        driver.register_job(spec);
        let mut machine = RunWatch::default();
        machine.restore(driver.now, &driver.state);
        assert_eq!(machine.next_deadline(), None);
        let first = driver.run("t", 0, node);
        let (due_at, _) = driver.state.run_deadlines().next().expect("a deadline");
        machine.take(driver.now, &driver.state, 1, &Effect::NodeAllocations(node));
        assert_eq!(machine.next_deadline(), Some(due_at));
        driver.at_ms(driver.now - START_MS + 10_000);
        let second = driver.run("t", 1, node);

        let mut other = RunWatch::default();
        other.restore(due_at - 1, &driver.state);
        assert!(step(&mut other, due_at - 1, &driver.state).is_empty());
        let commands = step(&mut other, due_at, &driver.state);
        let [Command::Allocation(AllocationCommand::ExpireRuns(command))] = &commands[..] else {
            panic!("{commands:?}")
        };
        assert_eq!(command.ids, [first]);
        assert!(step(&mut other, due_at + 1, &driver.state).is_empty(), "it is under way");
        assert_eq!(step(&mut other, due_at + limits::DUE_RETRY_MS, &driver.state).len(), 1);

        driver.at_ms(due_at - START_MS);
        driver.accept(commands[0].clone());
        other.take(due_at, &driver.state, 2, &Effect::NodeAllocations(node));
        other.take(due_at, &driver.state, 2, &Effect::NodeAllocations(node));
        assert_eq!((stopped(&other), stopped(&machine)), (1, 0), "it counts once");
        let (next, id) = driver.state.run_deadlines().next().expect("the second's");
        assert_eq!((other.next_deadline(), id), (Some(next), second));
        // The agent ends it while the command is under way.
        assert_eq!(step(&mut other, next, &driver.state).len(), 1);
        driver.report(second, ClientStatus::Complete);
        other.take(due_at, &driver.state, 3, &Effect::NodeAllocations(node));
        assert_eq!(other.next_deadline(), None);
        driver.at_ms(next - START_MS);
        driver.accept(ExpireRuns { ids: vec![second] }.into());
        other.take(next, &driver.state, 4, &Effect::NodeAllocations(node));
        assert_eq!((stopped(&other), other.asked.len()), (1, 0));
    }
}
