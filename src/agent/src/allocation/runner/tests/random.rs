//! An allocation under random results, orders, kills of the agent and boots, beside a model of what
//! is there on the machine.

use std::collections::BTreeSet;

use chance::Dice;
use serde_json::Value;

use super::*;
use crate::allocation::preparation::{Again, Place, Scope, StageRule};

type StageKey = (Option<usize>, StageId);

const TASKS: usize = 2;

/// A machine with an allocation, and the agent that runs it.
struct Machine {
    bench: Bench,
    stages: Vec<StageRule>,
    dice: Dice,
    /// What the agent has stored.
    stored: Option<Value>,
    /// Prepares and undos whose result is to come.
    under_way: Vec<Action>,
    /// Stages outside the directory that have left something.
    traces: BTreeSet<StageKey>,
    /// Stages that hold.
    complete: BTreeSet<StageKey>,
    /// Stages that have held since they were undone last.
    ever_complete: BTreeSet<StageKey>,
    /// Tasks with a process, and whether the agent has been told that it started.
    processes: Vec<(usize, bool)>,
    /// Each result is good.
    is_calm: bool,
    seen: Seen,
}

/// That the test is worth something.
#[derive(Default)]
struct Seen {
    starts: usize,
    undos: usize,
    kills_in_prepare: usize,
    kills_in_undo: usize,
    retries: usize,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let count = 1 + dice.below(6);
        let stages: Vec<_> = (0..count)
            .map(|number| StageRule {
                name: ["one", "two", "three", "four", "five", "six", "seven"]
                    [usize::try_from(number).expect("a small number")],
                scope: if dice.below(2) == 0 { Scope::Allocation } else { Scope::Task },
                again: match dice.below(3) {
                    0 => Again::Never,
                    1 => Again::AfterBoot,
                    _ => Again::AfterAgent,
                },
                place: if dice.below(3) == 0 { Place::Directory } else { Place::Outside },
            })
            .collect();
        let mut bench = Bench::running(&["a", "b"], |message| {
            message.shutdown_delay_ms = dice.below(2) * 50;
        });
        bench.rules = StageRules::of(stages.clone());
        bench.runner = AllocationRunner::new(&bench.policy, [5; 16], 0, bench.now);
        bench.start();
        Self {
            bench,
            stages,
            dice,
            stored: None,
            under_way: Vec::new(),
            traces: BTreeSet::new(),
            complete: BTreeSet::new(),
            ever_complete: BTreeSet::new(),
            processes: Vec::new(),
            is_calm: false,
            seen: Seen::default(),
        }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        !self.is_calm && self.dice.below(one_in) == 0
    }

    fn rule(&self, stage: StageId) -> StageRule {
        self.stages[usize::from(stage.0)]
    }

    fn of_scope(&self, task: Option<usize>) -> Vec<StageKey> {
        let scope = if task.is_some() { Scope::Task } else { Scope::Allocation };
        let stages = (0..).map(StageId).zip(&self.stages);
        stages.filter(|(_, rule)| rule.scope == scope).map(|(stage, _)| (task, stage)).collect()
    }

    /// Whether the stored state says that the stage is begun.
    fn is_stored(&self, (task, stage): StageKey) -> bool {
        let Some(stored) = &self.stored else { return false };
        let preparations = &stored["preparations"];
        let one = match task {
            Some(task) => &preparations["tasks"][task],
            None => &preparations["allocation"],
        };
        one["begun"].as_u64().expect("a set of bits") & 1 << stage.0 != 0
    }

    /// As the shell: store, then act.
    fn publish(&mut self) {
        let runner = &mut self.bench.runner;
        let is_unstored = runner.take_unstored();
        if runner.take_changed() || is_unstored {
            self.stored = Some(serde_json::to_value(runner).expect("it is stored"));
        }
        for action in self.bench.taken() {
            self.act(action);
        }
        if self.bench.runner.is_terminal() {
            assert_eq!(self.processes, [], "it is told that all tasks have ended");
        }
        if self.bench.runner.is_over() {
            assert_eq!(self.traces, BTreeSet::new(), "all is undone");
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Prepare { stage, task, again } => {
                let key = (task, stage);
                assert!(!again || self.ever_complete.contains(&key), "{key:?} is repeated");
                let uses_it = |of: usize| task.is_none_or(|task| task == of);
                let is_used = self.processes.iter().any(|(of, _)| uses_it(*of));
                assert!(again || !is_used, "{key:?} is made anew below a process");
                if self.rule(stage).place == Place::Outside {
                    assert!(self.is_stored(key), "an agent that is killed must find {key:?}");
                    self.traces.insert(key);
                }
                for earlier in self.of_scope(task).into_iter().take_while(|one| *one != key) {
                    assert!(self.complete.contains(&earlier), "{earlier:?} comes before {key:?}");
                }
                self.under_way.push(action);
            }
            Action::Undo { stage, task } => {
                let key = (task, stage);
                assert_eq!(self.processes, [], "nothing is undone below a process");
                assert!(self.is_stored(key));
                let later = self.traces.iter().filter(|(of, other)| {
                    (*of == task && *other > stage) || (task.is_none() && of.is_some())
                });
                assert_eq!(later.count(), 0, "{key:?} is undone after those that came later");
                self.under_way.push(action);
            }
            Action::Start { task, .. } => {
                let needed = self.of_scope(None).into_iter().chain(self.of_scope(Some(task)));
                for stage in needed {
                    assert!(self.complete.contains(&stage), "{task} starts without {stage:?}");
                }
                self.seen.starts += 1;
                self.processes.push((task, false));
            }
            Action::Kill { .. } | Action::Abandon { .. } => {}
        }
    }

    /// One stage that is under way ends.
    fn finish(&mut self) {
        let at = self.dice.below(self.under_way.len() as u64);
        let action = self.under_way.remove(usize::try_from(at).expect("an index"));
        let fails = self.chance(3);
        let fault = match self.dice.below(8) {
            0 => Fault::Task,
            1 => Fault::Node,
            2 => Fault::Passing,
            _ => Fault::Shortage,
        };
        match action {
            Action::Prepare { stage, task, .. } if fails => {
                self.seen.retries += 1;
                if self.bench.fails(stage, task, fault) == AfterFailure::GoesOn {
                    self.complete.insert((task, stage));
                }
            }
            Action::Prepare { stage, task, .. } => {
                self.complete.insert((task, stage));
                self.ever_complete.insert((task, stage));
                self.bench.step(|runner, step| runner.prepared((stage, task), step));
            }
            Action::Undo { stage, task } if fails => {
                let now = self.bench.now;
                self.bench.runner.undo_failed((stage, task), now);
            }
            Action::Undo { stage, task } => {
                self.seen.undos += 1;
                self.traces.remove(&(task, stage));
                self.complete.remove(&(task, stage));
                self.bench.step(|runner, step| runner.undone((stage, task), step));
            }
            Action::Abandon { .. } | Action::Start { .. } | Action::Kill { .. } => {}
        }
    }

    /// Something happens to a process.
    fn change(&mut self) {
        let at = self.dice.below(self.processes.len() as u64);
        let at = usize::try_from(at).expect("an index");
        let (task, is_told) = self.processes[at];
        let is_ending = self.bench.runner.tasks()[task].phase == Phase::Killing;
        if !is_told {
            self.processes[at].1 = true;
            self.bench.started(task);
        } else if is_ending || self.chance(4) {
            self.processes.remove(at);
            let exit = if self.dice.below(2) == 0 { &OK } else { &BAD };
            self.bench.step(|runner, step| runner.exited(task, exit, step));
        }
    }

    fn lose(&mut self, is_lost: impl Fn(Again) -> bool) {
        let stages = self.stages.clone();
        self.complete.retain(|(_, stage)| !is_lost(stages[usize::from(stage.0)].again));
    }

    /// The agent is killed, perhaps with the machine, and starts again.
    fn kill(&mut self, booted: bool) {
        for action in std::mem::take(&mut self.under_way) {
            let succeeds = self.dice.below(2) == 0;
            match action {
                Action::Prepare { .. } => self.seen.kills_in_prepare += 1,
                Action::Undo { stage, task } => {
                    self.seen.kills_in_undo += 1;
                    if succeeds {
                        self.traces.remove(&(task, stage));
                        self.complete.remove(&(task, stage));
                    }
                }
                Action::Abandon { .. } | Action::Start { .. } | Action::Kill { .. } => {}
            }
        }
        self.lose(
            |again| if booted { again >= Again::AfterBoot } else { again == Again::AfterAgent },
        );
        let Some(stored) = self.stored.clone() else {
            assert_eq!(self.traces, BTreeSet::new(), "nobody would find them");
            self.complete.clear();
            let (policy, now) = (&self.bench.policy, self.bench.now);
            self.bench.runner = AllocationRunner::new(policy, [5; 16], 0, now);
            return self.bench.start();
        };
        self.bench.runner = serde_json::from_value(stored).expect("it is read");
        // What was not stored is not known to be complete.
        if booted {
            self.processes.clear();
            self.bench.now.since_boot_ms = 1;
            self.bench.rewind(true);
        } else {
            self.bench.step(AllocationRunner::resumed);
            for task in 0..TASKS {
                let runs = self.processes.iter().any(|(of, _)| *of == task);
                let known = &self.bench.runner.tasks()[task];
                if !known.may_have_process() {
                    assert!(!runs, "a run is stored before it starts");
                } else if !runs {
                    self.bench.step(|runner, step| runner.never_started(task, step));
                } else if known.phase != Phase::Starting {
                    self.bench.step(|runner, step| runner.resume(task, step));
                }
            }
        }
    }

    fn random_step(&mut self) {
        self.publish();
        if self.chance(40) {
            let booted = self.dice.below(3) == 0;
            return self.kill(booted);
        }
        if self.chance(90) {
            self.bench.step(AllocationRunner::restart_all);
            return;
        }
        if self.chance(120) {
            return self.bench.step(AllocationRunner::stop);
        }
        match self.dice.below(4) {
            0 | 1 if !self.under_way.is_empty() => self.finish(),
            2 if !self.processes.is_empty() => self.change(),
            _ => {
                let next = self.bench.runner.next_deadline();
                let now = self.bench.now.since_boot_ms;
                self.bench.now.since_boot_ms = next.unwrap_or(now + 1).max(now);
                self.bench.step(AllocationRunner::tick);
                self.bench.start();
            }
        }
    }
}

#[test]
fn tasks_start_prepared_and_everything_is_undone_whatever_happens() {
    let mut sum = Seen::default();
    for seed in 0..500 {
        let mut machine = Machine::new(seed);
        for _ in 0..150 {
            machine.random_step();
        }
        // Nothing goes wrong from here on: what is to run comes to run, and what is stopped ends.
        machine.is_calm = true;
        for _ in 0..200 {
            machine.random_step();
        }
        let tasks = machine.bench.runner.tasks();
        let is_settled = |task: &TaskRunner| task.phase == Phase::Running || task.is_dead();
        assert!(tasks.iter().all(is_settled), "seed {seed}: {tasks:?}");
        machine.bench.step(AllocationRunner::stop);
        for _ in 0..200 {
            machine.random_step();
        }
        assert!(machine.bench.runner.is_over(), "seed {seed}: {:?}", machine.bench.runner);
        let Seen { starts, undos, kills_in_prepare, kills_in_undo, retries } = machine.seen;
        sum.starts += starts;
        sum.undos += undos;
        sum.kills_in_prepare += kills_in_prepare;
        sum.kills_in_undo += kills_in_undo;
        sum.retries += retries;
    }
    let Seen { starts, undos, kills_in_prepare, kills_in_undo, retries } = sum;
    let least = starts.min(undos).min(kills_in_prepare).min(kills_in_undo).min(retries);
    assert!(
        least > 100,
        "{starts} starts, {undos} undos, {kills_in_prepare} and {kills_in_undo} kills, {retries} retries"
    );
}
