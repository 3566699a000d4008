//! Allocations of one node over starts, stops, crashes and restarts of their agent, with runs that
//! are made up.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Child, Command},
};

use super::*;
use crate::{
    driver::Drivers,
    executor::{EXECUTOR_FILE, ExecutorIdentity, claim, process::stat},
    machine::files,
    testing,
};

const RESTARTED: Origin = Origin::Stored { suspended: false, booted: false };

/// The shell of an allocation that the last agent ran with this driver, on a node that offers none
/// any more.
fn left_behind(driver: &str) -> (Shell, tempfile::TempDir) {
    let mut message = testing::message([7; 16], "job", &["a"]);
    message.tasks[0].driver = driver.to_owned();
    message.shutdown_delay_ms = 60_000;
    shell_of(message)
}

fn shell_of(message: proto::v1::Allocation) -> (Shell, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    let (state, _) = StateDirectory::open(root.path()).unwrap();
    let spec = AllocationSpec::parse(message).unwrap();
    let shared = Arc::new(Shared {
        clock: Clock::new(),
        state,
        outbox: Arc::default(),
        node_names: Arc::default(),
        meta: Arc::default(),
        executor_binary: Path::new("/bin/false").into(),
        drivers: Drivers::default(),
        stages: Stages::all(),
        shortages: Arc::default(),
        ended: Notify::new(),
        too_long: AtomicU64::new(0),
    });
    let now = shared.clock.now();
    let runner = AllocationRunner::new(&spec.policy, spec.id.0, 0, now);
    let (_, wishes) = watch::channel(Wish::default());
    let (_, orders) = mpsc::channel(1);
    let (mut shell, _) = Shell::new(shared, Arc::new(spec), runner, (wishes, orders));
    asked_to_start(&mut shell);
    started(&mut shell, 0);
    (shell, root)
}

/// The allocation as it was before its first step.
fn is_new(shell: &mut Shell) {
    let now = shell.shared.clock.now();
    shell.runner = AllocationRunner::new(&shell.spec.policy, shell.spec.id.0, 0, now);
    shell.actions.clear();
}

/// All tasks are prepared and the driver is asked to start them.
fn asked_to_start(shell: &mut Shell) {
    let (runner, mut step) = shell.step();
    runner.start(&mut step);
    prepared(shell);
    shell.actions.clear();
}

/// All that is asked for of stages succeeds. Other actions are kept.
fn prepared(shell: &mut Shell) {
    let mut others = Vec::new();
    while !shell.actions.is_empty() {
        let actions = std::mem::take(&mut shell.actions);
        let (runner, mut step) = shell.step();
        for action in actions {
            match action {
                Action::Prepare { stage, task, .. } => runner.prepared((stage, task), &mut step),
                Action::Undo { stage, task } => runner.undone((stage, task), &mut step),
                Action::Abandon { .. } => {}
                Action::Start { .. } | Action::Kill { .. } => others.push(action),
            }
        }
    }
    shell.actions = others;
}

fn started(shell: &mut Shell, task: usize) {
    let (runner, mut step) = shell.step();
    runner.started(task, &mut step);
}

fn exited(shell: &mut Shell, task: usize) {
    let (runner, mut step) = shell.step();
    runner.exited(task, &ExitResult::default(), &mut step);
}

fn tick(shell: &mut Shell) {
    let (runner, mut step) = shell.step();
    runner.tick(&mut step);
}

fn load(shared: &Shared) -> Vec<StoredAllocation> {
    shared.state.load(&shared.stages.rules).unwrap().stored
}

/// Begins and takes in what was found of the task.
async fn begin(shell: &mut Shell) {
    shell.begin(RESTARTED).await;
    let found = shell.happenings.next().await.unwrap();
    shell.take(found);
}

#[tokio::test]
async fn a_run_goes_on_when_its_driver_is_no_longer_offered() {
    let (mut shell, _root) = left_behind("mock");
    begin(&mut shell).await;
    assert!(shell.runs[0].is_some());
    assert_eq!(shell.runner.client_status().name(), "running");
}

/// The last agent was killed before it had started anything.
#[tokio::test]
async fn a_start_that_was_never_made_waits_for_the_servers() {
    for stop in [false, true] {
        let (mut shell, _root) = shell_of(testing::message([7; 16], "job", &["a"]));
        is_new(&mut shell);
        asked_to_start(&mut shell);
        begin(&mut shell).await;
        let asked = heard(&mut shell, Wish::default());
        assert_eq!(asked, [], "nobody has said yet whether it is still to run");
        let asked = heard(&mut shell, Wish { stop, start: !stop, ..Wish::default() });
        assert_eq!(asked.len(), usize::from(!stop));
        assert_eq!(shell.runner.is_terminal(), stop);
    }
}

#[tokio::test]
async fn an_allocation_that_never_started_is_reported_as_ended_when_it_is_stopped() {
    for suspended in [false, true] {
        let (mut shell, _root) = shell_of(testing::message([7; 16], "job", &["a"]));
        let (wish, wishes) = watch::channel(Wish::default());
        shell.wishes = wishes;
        let (outbox, id) = (Arc::clone(&shell.shared.outbox), shell.spec.id);
        let ended = tokio::spawn(shell.run(Origin::Stored { suspended, booted: false }));
        while !outbox.is_pending(id) {
            tokio::task::yield_now().await;
        }
        // It has come to wait by then; if not, the test says less, and does not fail.
        tokio::time::sleep(Duration::from_millis(50)).await;
        outbox.forget(id);
        wish.send_modify(|wish| wish.stop = true);
        let ended = tokio::time::timeout(Duration::from_mins(1), ended).await;
        assert!(matches!(ended, Ok(Ok(()))), "it waits for something else to happen");
        assert!(outbox.is_pending(id), "its end is told");
    }
}

/// One task has ended, the other runs.
#[tokio::test]
async fn an_order_to_restart_all_tasks_starts_the_ended_one_and_is_refused_at_the_end() {
    let (mut shell, _root) = shell_of(testing::message([7; 16], "job", &["a", "b"]));
    started(&mut shell, 1);
    exited(&mut shell, 0);
    let (answer, mut answered) = oneshot::channel();
    shell.carry_out(&Order::RestartAll, answer);
    assert_eq!(shell.actions, [Action::Kill { task: 1 }]);
    // A second one is taken while the first waits, one whose client has gone is forgotten.
    let (answer, mut second) = oneshot::channel();
    shell.carry_out(&Order::Restart { task: Some("b".to_owned()) }, answer);
    let (answer, _) = oneshot::channel();
    shell.carry_out(&Order::Restart { task: None }, answer);
    shell.answer_restarts();
    assert!(answered.try_recv().is_err() && second.try_recv().is_err(), "the task still runs");
    assert_eq!(shell.restarts.len(), 2);
    shell.actions.clear();
    exited(&mut shell, 1);
    shell.answer_restarts();
    assert_eq!((answered.await.unwrap(), second.await.unwrap()), (Ok(()), Ok(())));
    tick(&mut shell);
    assert_eq!(shell.actions, [0, 1].map(|task| Action::Start { task, attempt: 2 }));
    let (runner, mut step) = shell.step();
    runner.stop(&mut step);
    let (answer, answered) = oneshot::channel();
    shell.carry_out(&Order::RestartAll, answer);
    assert_eq!(answered.await.unwrap(), Err("Task not running".to_owned()));
}

#[tokio::test]
async fn an_update_in_place_leaves_each_run_its_task() {
    let message = testing::message([7; 16], "job", &["a", "b"]);
    let (mut shell, _root) = shell_of(message.clone());
    let mut swapped = message;
    swapped.tasks.reverse();
    swapped.tasks[0].kill_timeout_ms = 7_000;
    let spec = AllocationSpec::parse(swapped).ok().map(Arc::new);
    shell.obey(Wish { spec, ..Wish::default() });
    let tasks = &shell.spec.policy.tasks;
    let policies: Vec<_> = tasks.iter().map(|task| (&*task.name, task.kill_timeout_ms)).collect();
    assert_eq!(policies[1], ("b", 7_000), "the same version of the job, with other settings");
    let names: Vec<_> = shell.spec.tasks.iter().map(|task| &*task.name).collect();
    assert_eq!((names, policies[0].0), (vec!["a", "b"], "a"));
}

#[tokio::test]
async fn a_run_goes_on_when_its_directory_cannot_be_prepared_again() {
    let (mut shell, _root) = left_behind("mock");
    fs::write(shell.directory.root(), "not a directory").unwrap();
    begin(&mut shell).await;
    // The directory, then those of the task. The payload is there for good.
    for expected in [None, Some(0)] {
        shell.publish().await;
        let failed = shell.happenings.next().await.unwrap();
        let Happening::Prepared((_, task), Err(_)) = &failed else { panic!("it is prepared") };
        assert_eq!(*task, expected);
        shell.take(failed);
    }
    assert_eq!(shell.actions, []);
    assert!(shell.runs[0].is_some());
    assert_eq!(shell.runner.client_status().name(), "running");
    assert_eq!(shell.runner.next_deadline(), None, "it is not tried again");
}

/// A process that is the executor of the first run, as its files say.
fn executor_of(shell: &Shell) -> Child {
    let executor = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = i32::try_from(executor.id()).unwrap();
    let start_ticks = stat(pid).unwrap().unwrap().start_ticks;
    let boot_id = shell.shared.state.boot_id;
    let run = shell.directory.run("a", 1);
    files::create_directory(&run).unwrap();
    let identity = ExecutorIdentity { pid, start_ticks, boot_id };
    files::write_json(&run.join(EXECUTOR_FILE), &identity).unwrap();
    executor
}

#[tokio::test]
async fn a_run_that_cannot_be_found_again_is_killed_before_its_end_is_reported() {
    let (mut shell, _root) = left_behind("a driver of a newer version");
    let mut executor = executor_of(&shell);
    begin(&mut shell).await;
    assert!(!shell.runner.tasks()[0].may_have_process());
    assert_eq!(executor.wait().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn an_agent_that_dies_while_it_ends_its_tasks_leaves_none_and_counts_no_failure() {
    let (mut shell, _root) = left_behind("mock");
    let spec = Arc::make_mut(&mut shell.spec);
    r#"{"kill_after":"5s"}"#.clone_into(&mut spec.tasks[0].config_json);
    spec.policy.tasks[0].kill_timeout_ms = 5000;
    begin(&mut shell).await;
    shell.store(false).await.unwrap();
    let (mut executor, shared) = (executor_of(&shell), Arc::clone(&shell.shared));
    let agent = tokio::spawn(shell.suspend());
    let stored = loop {
        let stored = load(&shared).pop();
        if let Some(stored) = stored.filter(|stored| stored.suspended) {
            break stored;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    agent.abort();
    assert!(stored.runner.tasks()[0].may_have_process(), "it has not ended yet");

    let (_, wishes) = watch::channel(Wish::default());
    let (_, orders) = mpsc::channel(1);
    let mut spec = stored.spec;
    "a driver of a newer version".clone_into(&mut Arc::make_mut(&mut spec).tasks[0].driver);
    let (mut next, _) = Shell::new(shared, spec, stored.runner, (wishes, orders));
    next.begin(Origin::Stored { suspended: stored.suspended, booted: false }).await;
    assert_eq!(executor.wait().unwrap().signal(), Some(9));
    let start = Wish { start: true, ..Wish::default() };
    assert_eq!(heard(&mut next, start), [Action::Start { task: 0, attempt: 2 }]);
    assert_eq!(next.runner.status(&next.spec.policy, [7; 16]).tasks["a"].restarts, 0);
}

#[tokio::test]
async fn a_start_that_was_under_way_when_the_agent_ended_its_tasks_never_happens() {
    let (mut shell, _root) = left_behind("raw_exec");
    is_new(&mut shell);
    asked_to_start(&mut shell);
    let run = shell.directory.run("a", 1);
    files::create_directory(&run).unwrap();
    shell.begin(Origin::Stored { suspended: true, booted: false }).await;
    assert!(!claim(&run).unwrap(), "its executor would come too late");
    let start = Wish { start: true, ..Wish::default() };
    assert_eq!(heard(&mut shell, start), [Action::Start { task: 0, attempt: 2 }]);
}

#[tokio::test]
async fn a_task_that_is_only_to_be_started_does_not_keep_the_others_from_being_ended() {
    let (mut shell, _root) = left_behind("mock");
    begin(&mut shell).await;
    let mut message = testing::message([7; 16], "job", &["a", "b"]);
    message.tasks[0].driver = "raw_exec".to_owned();
    shell.spec = Arc::new(AllocationSpec::parse(message).unwrap());
    is_new(&mut shell);
    asked_to_start(&mut shell);
    started(&mut shell, 1);
    shell.runs = vec![None, shell.runs[0].take()];
    shell.happenings.push(async { Happening::Recovered(0, Ok(Recovered::Never)) }.boxed());
    tokio::time::timeout(Duration::from_mins(1), shell.suspend()).await.unwrap();
}

#[tokio::test]
async fn a_kill_that_is_tried_again_does_not_end_the_next_run() {
    let (mut shell, _root) = left_behind("mock");
    begin(&mut shell).await;
    let run = shell.runs[0].clone().unwrap();
    let watched = shell.happenings.len();
    let (answer, _answered) = oneshot::channel();
    shell.carry_out(&Order::Restart { task: None }, answer);
    shell.take(Happening::KillAgain(0, 1));
    assert_eq!(shell.happenings.len(), watched + 1, "the first run is asked to end again");
    let result = ExitResult::default();
    shell.take(Happening::Exited(0, Outcome::Exited { result, at_ms: 0 }));
    tick(&mut shell);
    prepared(&mut shell);
    shell.take(Happening::Started(0, Ok(run)));
    assert_eq!(shell.runner.tasks()[0].attempt, 2);
    let watched = shell.happenings.len();
    shell.take(Happening::KillAgain(0, 1));
    assert_eq!(shell.happenings.len(), watched, "it runs on");
    let (answer, _answered) = oneshot::channel();
    shell.carry_out(&Order::Restart { task: None }, answer);
    shell.take(Happening::KillAgain(0, 1));
    assert_eq!(shell.happenings.len(), watched, "that kill was not for the second run");
}

/// Lets the shell do what it does between two happenings. Returns what it asks for once all is
/// prepared.
fn heard(shell: &mut Shell, wish: Wish) -> Vec<Action> {
    shell.obey(wish);
    prepared(shell);
    std::mem::take(&mut shell.actions)
}

#[tokio::test]
async fn a_suspended_allocation_starts_only_when_the_servers_have_said_so() {
    for (suspended, booted) in [(true, false), (false, true)] {
        let (mut shell, _root) = left_behind("mock");
        shell.begin(Origin::Stored { suspended, booted }).await;
        assert_eq!(heard(&mut shell, Wish::default()), []);
        assert_eq!(shell.runner.client_status().name(), "running", "it has not ended");
        // An agent that is killed while it waits leaves one that was down.
        shell.publish().await;
        let stored = load(&shell.shared).remove(0);
        assert!(stored.suspended);
        let leave = Wish { start: true, ..Wish::default() };
        let start = [Action::Start { task: 0, attempt: 2 }];
        assert_eq!(heard(&mut shell, leave.clone()), start);
        assert_eq!(heard(&mut shell, leave), []);
        shell.publish().await;
        let stored = load(&shell.shared).remove(0);
        assert!(!stored.suspended);
    }
}

#[tokio::test]
async fn a_suspended_allocation_that_is_not_to_run_any_more_never_starts() {
    let (mut shell, _root) = left_behind("mock");
    shell.begin(Origin::Stored { suspended: false, booted: true }).await;
    let stop = Wish { stop: true, start: true, ..Wish::default() };
    assert_eq!(heard(&mut shell, stop), []);
    assert!(shell.runner.is_terminal());
}

#[tokio::test]
async fn an_end_that_comes_with_the_agents_is_reported() {
    let (mut shell, _root) = left_behind("mock");
    begin(&mut shell).await;
    shell.obey(Wish { stop: true, ..Wish::default() });
    assert!(shell.runner.take_changed());
    let (shared, reported) = (Arc::clone(&shell.shared), shell.runner.sequence);
    shell.suspend().await;
    let stored = load(&shared).remove(0);
    assert!(stored.runner.is_terminal());
    assert!(stored.runner.sequence > reported);
}
