//! The stages of an allocation: their order, retries and undo, restarts of the agent and boots.

use super::*;
use crate::allocation::preparation::{Again, Place, Scope, StageRule};

const DIRECTORY: StageId = StageId(0);
const NETWORK: StageId = StageId(1);
const FILES: StageId = StageId(2);
const MOUNT: StageId = StageId(3);

/// Two stages of each scope: one in the allocation's directory, one outside.
fn rules() -> StageRules {
    use self::{Place::Directory, Place::Outside, Scope::Allocation, Scope::Task};
    let rule = |name, scope, again, place| StageRule { name, scope, again, place };
    StageRules::of(vec![
        rule("directory", Allocation, Again::AfterAgent, Directory),
        rule("network", Allocation, Again::AfterBoot, Outside),
        rule("files", Task, Again::AfterAgent, Directory),
        rule("mount", Task, Again::Never, Outside),
    ])
}

fn prepare(stage: StageId, task: Option<usize>) -> Action {
    Action::Prepare { stage, task, again: false }
}

fn again(stage: StageId, task: Option<usize>) -> Action {
    Action::Prepare { stage, task, again: true }
}

fn undo(stage: StageId, task: Option<usize>) -> Action {
    Action::Undo { stage, task }
}

fn start(task: usize, attempt: u32) -> Action {
    Action::Start { task, attempt }
}

impl Bench {
    /// A new allocation with two tasks and the stages of [`rules`].
    fn with_stages() -> Self {
        let mut bench = Self::running(&["a", "b"], |_| {});
        bench.rules = rules();
        bench.runner = AllocationRunner::new(&bench.policy, [5; 16], 0, bench.now);
        bench
    }

    /// The same with all tasks running.
    fn prepared() -> Self {
        let mut bench = Self::with_stages();
        bench.start();
        bench.succeed();
        bench.started(0);
        bench.started(1);
        bench.runner.take_changed();
        bench.runner.take_unstored();
        bench
    }

    pub(super) fn taken(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    fn done(&mut self, stage: StageId, task: Option<usize>) -> Vec<Action> {
        self.step(|runner, step| runner.prepared((stage, task), step));
        self.taken()
    }

    pub(super) fn fails(
        &mut self,
        stage: StageId,
        task: Option<usize>,
        fault: Fault,
    ) -> AfterFailure {
        let error = ("cannot prepare it", "no space left", fault);
        self.step(|runner, step| runner.prepare_failed((stage, task), error, step))
    }

    fn undone(&mut self, stage: StageId, task: Option<usize>) -> Vec<Action> {
        self.step(|runner, step| runner.undone((stage, task), step));
        self.taken()
    }

    /// All that is asked for of stages succeeds. Returns the other actions.
    fn succeed(&mut self) -> Vec<Action> {
        let mut others = Vec::new();
        while !self.actions.is_empty() {
            for action in self.taken() {
                match action {
                    Action::Prepare { stage, task, .. } => {
                        self.step(|runner, step| runner.prepared((stage, task), step));
                    }
                    Action::Undo { stage, task } => {
                        self.step(|runner, step| runner.undone((stage, task), step));
                    }
                    Action::Abandon { .. } | Action::Start { .. } | Action::Kill { .. } => {
                        others.push(action);
                    }
                }
            }
        }
        others
    }

    /// The agent ends, and the next one reads what was stored.
    fn reload(&mut self) {
        let stored = serde_json::to_string(&self.runner).expect("it is stored");
        self.runner = serde_json::from_str(&stored).expect("it is read");
    }

    fn said(&self, task: &str) -> Vec<(String, String)> {
        let status = self.runner.status(&self.policy, [5; 16]);
        let events = status.tasks[task].events.iter();
        events.map(|event| (event.kind.clone(), event.message.clone())).collect()
    }
}

#[test]
fn the_allocation_is_prepared_once_and_each_task_by_itself() {
    let mut bench = Bench::with_stages();
    bench.start();
    assert_eq!(bench.taken(), [prepare(DIRECTORY, None)]);
    assert_eq!(bench.done(DIRECTORY, None), [prepare(NETWORK, None)]);
    assert!(bench.runner.take_unstored(), "it leaves something outside the directory");
    assert!(!bench.runner.is_changed(), "there is nothing to report yet");
    let both = [prepare(FILES, Some(0)), prepare(FILES, Some(1))];
    assert_eq!(bench.done(NETWORK, None), both);
    assert!(!bench.runner.is_changed(), "what is in the directory goes with it");
    assert_eq!(bench.done(FILES, Some(1)), [prepare(MOUNT, Some(1))]);
    assert_eq!(bench.done(MOUNT, Some(1)), [start(1, 1)], "it does not wait for the other");
    assert_eq!(bench.done(FILES, Some(0)), [prepare(MOUNT, Some(0))]);
    assert_eq!(bench.done(MOUNT, Some(0)), [start(0, 1)]);
    bench.started(0);
    bench.exited(0, &BAD);
    assert_eq!(bench.after(13), [start(0, 2)], "a restart needs no preparation");
}

#[test]
fn a_shortage_is_waited_out_with_growing_pauses_and_said_once() {
    for task in [None, Some(0)] {
        let mut bench = Bench::with_stages();
        bench.start();
        if task.is_some() {
            bench.done(DIRECTORY, None);
            bench.done(NETWORK, None);
        }
        let stage = if task.is_some() { FILES } else { DIRECTORY };
        let mut pauses = Vec::new();
        for try_number in 0..20 {
            bench.actions.clear();
            let is_news = try_number == 0;
            assert_eq!(bench.fails(stage, task, Fault::Shortage), AfterFailure::Waits { is_news });
            assert_eq!(bench.runner.take_changed(), is_news, "it is reported once");
            let pause = bench.runner.next_deadline().expect("a pause") - bench.now.since_boot_ms;
            pauses.push(pause / 1_000);
            assert_eq!(bench.after(pause - 1), []);
            assert_eq!(bench.after(1), [prepare(stage, task)]);
        }
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
        let waits = ("Task Setup".to_owned(), "Waits, the machine is short: no space left".into());
        assert_eq!(bench.said("a").split_off(1), vec![waits.clone()]);
        assert_eq!(bench.said("b").contains(&waits), task.is_none());
        assert_eq!(bench.status(), "pending");
        bench.stop();
        assert_eq!((bench.status(), bench.said("a").len()), ("complete", 3));
    }
}

#[test]
fn a_stage_that_may_pass_is_tried_a_few_times_and_then_fails() {
    let mut bench = Bench::with_stages();
    bench.start();
    for _ in 0..10 {
        let after = bench.fails(DIRECTORY, None, Fault::Passing);
        assert!(matches!(after, AfterFailure::Waits { .. }), "{after:?}");
        bench.after(30_000);
    }
    assert_eq!(bench.fails(DIRECTORY, None, Fault::Passing), AfterFailure::Failed);
    assert_eq!(bench.status(), "failed");
    let said = bench.said("b");
    assert_eq!(said[1].1, "Waits, it may pass: no space left");
    assert_eq!(said[2], ("Setup Failure".into(), "cannot prepare it: no space left".into()));
}

#[test]
fn a_stage_of_the_allocation_that_fails_fails_all_tasks_and_what_was_begun_is_undone() {
    let mut bench = Bench::with_stages();
    bench.start();
    bench.done(DIRECTORY, None);
    assert_eq!(bench.fails(NETWORK, None, Fault::Node), AfterFailure::Failed);
    assert_eq!(bench.taken(), [undo(NETWORK, None)], "it may be half-finished");
    let status = bench.runner.status(&bench.policy, [5; 16]);
    assert_eq!(status.client_status, v1::ClientStatus::Failed as i32);
    assert!(status.tasks.values().all(|task| task.failed));
    assert_eq!(status.node_failure, "cannot prepare it: no space left");
    assert!(bench.runner.is_terminal() && !bench.runner.is_over());
    assert_eq!(bench.undone(NETWORK, None), [], "the directory is kept until it is collected");
    assert!(bench.runner.is_over());
    assert!(!bench.step(AllocationRunner::restart_all), "it has ended for good");
}

/// Its sibling ends by the rule for a failed sibling, and has not failed itself.
#[test]
fn a_stage_of_a_task_that_fails_fails_that_task() {
    let mut bench = Bench::with_stages();
    bench.start();
    bench.done(DIRECTORY, None);
    bench.done(NETWORK, None);
    bench.done(FILES, Some(1));
    bench.done(MOUNT, Some(1));
    bench.started(1);
    assert_eq!(bench.fails(FILES, Some(0), Fault::Task), AfterFailure::Failed);
    assert_eq!(bench.taken(), [Action::Kill { task: 1 }], "nothing is undone before its end");
    assert_eq!(bench.status(), "running");
    assert_eq!(bench.exited(1, &OK), [undo(MOUNT, Some(1))]);
    assert_eq!(bench.status(), "failed");
    let status = bench.runner.status(&bench.policy, [5; 16]);
    assert!(status.tasks["a"].failed && !status.tasks["b"].failed);
    assert_eq!(bench.undone(MOUNT, Some(1)), [undo(NETWORK, None)]);
    bench.undone(NETWORK, None);
    assert!(bench.runner.is_over());
}

#[test]
fn a_task_that_failed_in_preparation_can_be_restarted_while_its_sibling_ends() {
    let mut bench = Bench::with_stages();
    bench.start();
    bench.done(DIRECTORY, None);
    bench.done(NETWORK, None);
    bench.done(FILES, Some(1));
    bench.done(MOUNT, Some(1));
    bench.started(1);
    bench.fails(FILES, Some(0), Fault::Task);
    bench.actions.clear();
    assert!(bench.step(AllocationRunner::restart_all));
    assert_eq!(bench.after(0), [prepare(FILES, Some(0))]);
    assert_eq!(bench.done(FILES, Some(0)), [prepare(MOUNT, Some(0))]);
    assert_eq!(bench.done(MOUNT, Some(0)), [start(0, 1)]);
}

#[test]
fn a_stop_abandons_what_is_under_way_and_undoes_it_when_it_has_ended() {
    for succeeds in [true, false] {
        let mut bench = Bench::with_stages();
        bench.start();
        bench.done(DIRECTORY, None);
        bench.done(NETWORK, None);
        bench.done(FILES, Some(0));
        let expected = [Action::Abandon { task: Some(0) }, Action::Abandon { task: Some(1) }];
        assert_eq!(bench.stop(), expected);
        assert_eq!(bench.status(), "complete", "the report does not wait for the undo");
        assert_eq!(bench.runner.next_deadline(), None);
        let undoes = if succeeds {
            bench.done(MOUNT, Some(0))
        } else {
            assert_eq!(bench.fails(MOUNT, Some(0), Fault::Shortage), AfterFailure::Abandoned);
            bench.taken()
        };
        assert_eq!(undoes, [undo(MOUNT, Some(0))]);
        assert_eq!(bench.undone(MOUNT, Some(0)), [], "the other task has one under way");
        assert_eq!(bench.done(FILES, Some(1)), [undo(NETWORK, None)]);
        assert!(!bench.runner.is_over());
        bench.undone(NETWORK, None);
        assert!(bench.runner.is_over());
    }
}

#[test]
fn stages_are_undone_in_reverse_order_and_an_undo_that_fails_is_tried_again() {
    let mut bench = Bench::prepared();
    bench.stop();
    bench.exited(0, &OK);
    let tasks = bench.exited(1, &OK);
    assert_eq!(tasks, [undo(MOUNT, Some(0)), undo(MOUNT, Some(1))]);
    assert_eq!(bench.status(), "complete");
    assert!(bench.runner.take_changed() && bench.runner.take_unstored());
    let mut pauses = Vec::new();
    for failures in 1..=7 {
        let now = bench.now;
        assert_eq!(bench.runner.undo_failed((MOUNT, Some(1)), now), failures);
        let pause = bench.runner.next_deadline().expect("a pause") - now.since_boot_ms;
        pauses.push(pause / 1_000);
        assert_eq!(bench.after(pause - 1), []);
        assert_eq!(bench.after(1), [undo(MOUNT, Some(1))]);
        assert!(bench.runner.take_unstored() && !bench.runner.take_changed());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(bench.undone(MOUNT, Some(1)), []);
    assert_eq!(bench.undone(MOUNT, Some(0)), [undo(NETWORK, None)]);
    bench.undone(NETWORK, None);
    assert!(bench.runner.is_over() && bench.runner.take_unstored());
    assert_eq!((bench.after(60_000), bench.runner.next_deadline()), (vec![], None));
}

/// The stages say what is done again. Beside a task that runs, that holds up nothing.
#[test]
fn after_a_restart_of_the_agent_stages_are_done_again_beside_the_tasks() {
    let mut bench = Bench::prepared();
    bench.reload();
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), [again(DIRECTORY, None)]);
    // A task that ends meanwhile waits for it before its restart.
    bench.exited(0, &BAD);
    assert_eq!(bench.after(13), []);
    let after = bench.fails(DIRECTORY, None, Fault::Shortage);
    assert_eq!(after, AfterFailure::Waits { is_news: true });
    assert_eq!((bench.status(), bench.taken()), ("running", vec![]));
    assert_eq!(bench.after(1_000), [again(DIRECTORY, None)]);
    let both = [again(FILES, Some(0)), again(FILES, Some(1))];
    assert_eq!(bench.done(DIRECTORY, None), both);
    assert_eq!(bench.done(FILES, Some(0)), [start(0, 2)]);
    assert_eq!(bench.fails(FILES, Some(1), Fault::Node), AfterFailure::GoesOn);
    assert_eq!((bench.taken(), bench.runner.next_deadline()), (vec![], None));
    assert_eq!(bench.runner.tasks()[1].phase, Phase::Running);
    bench.exited(1, &BAD);
    assert_eq!(bench.after(13), [start(1, 2)], "what was given up counts as done");
}

#[test]
fn nothing_is_done_again_for_tasks_that_are_being_stopped() {
    let mut bench = Bench::prepared();
    bench.stop();
    bench.reload();
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), []);
    bench.step(|runner, step| runner.resume(0, step));
    assert_eq!(bench.taken(), [Action::Kill { task: 0 }]);
    bench.exited(0, &OK);
    let both = [undo(MOUNT, Some(0)), undo(MOUNT, Some(1))];
    assert_eq!(bench.exited(1, &OK), both);
}

#[test]
fn a_task_without_a_process_fails_when_it_cannot_be_prepared_again() {
    let mut bench = Bench::prepared();
    bench.exited(0, &BAD);
    bench.exited(1, &BAD);
    bench.reload();
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), [], "nothing runs, so nothing is done before the restart");
    assert_eq!(bench.after(13), [again(DIRECTORY, None)]);
    assert_eq!(bench.fails(DIRECTORY, None, Fault::Node), AfterFailure::Failed);
    assert_eq!(bench.status(), "failed");
}

#[test]
fn a_stage_undone_by_a_boot_is_done_again_although_the_agent_restarts_before() {
    let mut bench = Bench::prepared();
    bench.rewind(true);
    assert_eq!(bench.taken(), [], "the servers have not said that it may start");
    bench.reload();
    bench.rewind(false);
    bench.start();
    assert_eq!(bench.taken(), [again(DIRECTORY, None)]);
    assert_eq!(bench.done(DIRECTORY, None), [again(NETWORK, None)]);
    bench.done(NETWORK, None);
    assert_eq!(bench.done(FILES, Some(0)), [start(0, 2)], "the mount survives a boot");
}

#[test]
fn a_stage_in_which_the_agent_was_killed_is_begun_anew() {
    let mut bench = Bench::with_stages();
    bench.start();
    bench.done(DIRECTORY, None);
    bench.reload();
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), [], "it waits until the servers say that it may start");
    bench.start();
    assert_eq!(bench.taken(), [again(DIRECTORY, None)]);
    assert_eq!(bench.done(DIRECTORY, None), [prepare(NETWORK, None)], "it was not complete");
    // The servers do not want it any more.
    bench.reload();
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.stop(), [undo(NETWORK, None)]);
    // Killed once more, in the undo.
    bench.reload();
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), [undo(NETWORK, None)]);
    bench.undone(NETWORK, None);
    assert!(bench.runner.is_over());
}

#[test]
fn an_allocation_of_which_only_processes_are_known_is_prepared_again_and_undone() {
    let mut bench = Bench::with_stages();
    bench.runner.found(&[Some(3), None], &bench.rules);
    assert!(bench.runner.take_changed(), "it must be stored");
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), [again(DIRECTORY, None)], "it runs in its directory");
    bench.step(|runner, step| runner.resume(0, step));
    bench.done(DIRECTORY, None);
    assert_eq!(bench.done(NETWORK, None), [again(FILES, Some(0))]);
    bench.started(0);
    bench.stop();
    let ends = bench.exited(0, &OK);
    assert_eq!(ends, [Action::Abandon { task: Some(0) }, undo(MOUNT, Some(1))]);
    assert_eq!(bench.undone(MOUNT, Some(1)), []);
    assert_eq!(bench.done(FILES, Some(0)), [undo(MOUNT, Some(0))]);
    assert_eq!(bench.undone(MOUNT, Some(0)), [undo(NETWORK, None)]);
    bench.undone(NETWORK, None);
    assert!(bench.runner.is_over());
}

/// Stages stand elsewhere in the list of a newer agent, or are gone from it.
#[test]
fn stages_are_stored_by_name() {
    let mut bench = Bench::prepared();
    let names = bench.rules.names();
    let rule = |name, scope, place| StageRule { name, scope, again: Again::Never, place };
    let mut newer = vec![
        rule("identity", Scope::Allocation, Place::Directory),
        rule("mount", Scope::Task, Place::Outside),
        rule("files", Scope::Task, Place::Directory),
        rule("network", Scope::Allocation, Place::Outside),
        rule("directory", Scope::Allocation, Place::Directory),
    ];
    let rules = StageRules::of(newer.clone());
    bench.reload();
    assert_eq!(bench.runner.check(2, &names, &rules), Ok(()));
    bench.rules = rules;
    bench.step(AllocationRunner::resumed);
    assert_eq!(bench.taken(), [prepare(StageId(0), None)], "the stage that is new");
    bench.done(StageId(0), None);
    bench.stop();
    bench.exited(0, &OK);
    let both = [undo(StageId(1), Some(0)), undo(StageId(1), Some(1))];
    assert_eq!(bench.exited(1, &OK), both);

    newer.remove(3);
    let mut bench = Bench::prepared();
    let refused = bench.runner.check(2, &names, &StageRules::of(newer));
    assert_eq!(refused, Err("this agent does not have its stage `network`".to_owned()));
    assert!(
        Bench::prepared().runner.check(3, &names, &self::rules()).is_err(),
        "another allocation"
    );
}

#[test]
#[should_panic(expected = "an undo that was not asked for is done")]
fn a_stage_that_is_not_being_undone_cannot_be_undone() {
    Bench::prepared().undone(NETWORK, None);
}

#[test]
#[should_panic(expected = "a stage that was not asked for is prepared")]
fn a_stage_that_is_complete_cannot_be_completed() {
    Bench::prepared().done(NETWORK, None);
}
