//! The machine of one allocation, with its tasks and its stages.

mod random;
mod stages;

use super::*;
use crate::{allocation::spec::group_policy, testing};

const OK: ExitResult =
    ExitResult { exit_code: 0, signal: 0, oom_killed: false, error: None, lost: false };
const BAD: ExitResult =
    ExitResult { exit_code: 7, signal: 0, oom_killed: false, error: None, lost: false };

#[derive(Clone)]
struct Bench {
    policy: GroupPolicy,
    rules: StageRules,
    runner: AllocationRunner,
    now: Moment,
    actions: Vec<Action>,
    /// Sum of what [`AllocationRunner::tick`] has returned.
    too_long: usize,
}

impl Bench {
    /// An allocation whose tasks have all started.
    fn running(tasks: &[&str], adjust: impl FnOnce(&mut v1::Allocation)) -> Self {
        let mut message = testing::message([5; 16], "job", tasks);
        adjust(&mut message);
        let policy = group_policy(&message).expect("a valid message");
        let now = Moment { since_boot_ms: 1000, wall_ms: 5_000_000 };
        let runner = AllocationRunner::new(&policy, [5; 16], 3, now);
        let (rules, actions) = (StageRules::default(), Vec::new());
        let mut bench = Self { policy, rules, runner, now, actions, too_long: 0 };
        bench.start();
        for task in 0..tasks.len() {
            bench.started(task);
        }
        bench.actions.clear();
        bench
    }

    /// One step of the machine. What it asks for is kept in `actions`.
    fn step<T>(&mut self, step: impl FnOnce(&mut AllocationRunner, &mut Step<'_>) -> T) -> T {
        let Self { policy, rules, now, actions, .. } = self;
        step(&mut self.runner, &mut Step { policy, rules, now: *now, out: actions })
    }

    fn start(&mut self) {
        self.step(AllocationRunner::start);
    }

    fn started(&mut self, task: usize) {
        self.step(|runner, step| runner.started(task, step));
    }

    fn exited(&mut self, task: usize, exit: &ExitResult) -> Vec<Action> {
        self.step(|runner, step| runner.exited(task, exit, step));
        std::mem::take(&mut self.actions)
    }

    fn stop(&mut self) -> Vec<Action> {
        self.step(AllocationRunner::stop);
        std::mem::take(&mut self.actions)
    }

    fn after(&mut self, ms: u64) -> Vec<Action> {
        self.now.since_boot_ms += ms;
        self.too_long += self.step(AllocationRunner::tick);
        std::mem::take(&mut self.actions)
    }

    fn rewind(&mut self, booted: bool) {
        self.step(|runner, step| runner.rewind(booted, step));
    }

    /// The status as the servers get it.
    fn status(&self) -> &'static str {
        let told = self.runner.status(&self.policy, [5; 16]).client_status;
        wire::rpc::words::client_status(told).expect("a known status").name()
    }
}

#[test]
fn a_failing_task_is_restarted_by_policy_then_fails_and_takes_its_siblings_along() {
    let mut bench = Bench::running(&["a", "b"], |_| {});
    assert_eq!(bench.exited(0, &BAD), []);
    assert_eq!(bench.status(), "running");
    assert_eq!(bench.after(13), [Action::Start { task: 0, attempt: 2 }]);
    bench.started(0);
    assert_eq!(bench.exited(0, &BAD), [Action::Kill { task: 1 }]);
    assert_eq!(bench.status(), "running", "the sibling's process may still exist");
    bench.exited(1, &OK);
    assert_eq!(bench.status(), "failed");
    let report = bench.runner.status(&bench.policy, [5; 16]);
    assert_eq!(report.tasks["a"].restarts, 1);
    assert!(!report.tasks["b"].failed);
}

#[test]
fn a_restart_of_all_tasks_starts_those_that_have_ended() {
    let mut bench = Bench::running(&["a", "b", "c"], |_| {});
    bench.exited(0, &OK);
    assert_eq!(bench.exited(1, &BAD), []); // It waits for its restart.
    let ran = bench.step(|runner, step| runner.restart(&[0, 1], false, step));
    assert_eq!(ran, 0, "a plain restart is for what runs");
    assert!(bench.step(AllocationRunner::restart_all));
    assert_eq!(std::mem::take(&mut bench.actions), [Action::Kill { task: 2 }]);
    let starts = [0, 1].map(|task| Action::Start { task, attempt: 2 });
    assert_eq!(bench.after(0), starts);
    bench.exited(2, &BAD);
    assert_eq!(bench.after(0), [Action::Start { task: 2, attempt: 2 }], "no failure");
    for task in 0..3 {
        bench.started(task);
    }
    assert_eq!(bench.status(), "running");
    let report = bench.runner.status(&bench.policy, [5; 16]);
    let first = &report.tasks["a"];
    assert_eq!((first.restarts, first.finished_at_ms, first.failed), (1, 0, false));
    assert!(first.events.iter().any(|event| event.kind == "Restart Signaled"));
}

#[test]
fn tasks_ended_by_anothers_failure_restart_with_it() {
    let mut bench = Bench::running(&["a", "b"], |message| {
        message.tasks[0].restart =
            Some(v1::RestartPolicy { fail: true, interval_ms: 1, ..v1::RestartPolicy::default() });
    });
    assert_eq!(bench.exited(0, &BAD), [Action::Kill { task: 1 }]);
    assert!(bench.step(AllocationRunner::restart_all));
    assert_eq!(bench.after(0), [Action::Start { task: 0, attempt: 2 }], "none is killed twice");
    bench.exited(1, &BAD);
    assert_eq!(bench.after(0), [Action::Start { task: 1, attempt: 2 }]);
}

/// Holds however often it happens, and although the policy allows no restart. The other task
/// keeps running.
#[test]
fn a_run_lost_with_the_agent_starts_again_at_once_and_uncounted() {
    let mut bench = Bench::running(&["a", "b"], |message| {
        message.tasks[0].restart =
            Some(v1::RestartPolicy { fail: true, ..v1::RestartPolicy::default() });
    });
    for attempt in 2..6 {
        bench.step(|runner, step| runner.lost(0, step));
        assert_eq!((bench.status(), bench.after(0)), ("running", vec![]), "not before it may");
        bench.start();
        let started = std::mem::take(&mut bench.actions);
        assert_eq!(started, [Action::Start { task: 0, attempt }]);
        bench.started(0);
    }
    let report = bench.runner.status(&bench.policy, [5; 16]);
    assert_eq!((report.tasks["a"].restarts, report.node_failure.as_str()), (0, ""));
    let kinds: Vec<_> = report.tasks["a"].events.iter().map(|event| &*event.kind).collect();
    assert!(kinds.ends_with(&["Terminated", "Restarting", "Started"]), "{kinds:?}");
    assert_eq!(bench.exited(0, &BAD), [Action::Kill { task: 1 }], "an end that was seen counts");
}

#[test]
fn a_run_that_was_to_end_and_was_lost_with_the_agent_has_ended() {
    let mut bench = Bench::running(&["a"], |_| {});
    assert_eq!(bench.stop(), [Action::Kill { task: 0 }]);
    bench.step(|runner, step| runner.lost(0, step));
    bench.start();
    assert_eq!((bench.status(), bench.after(60_000)), ("complete", vec![]));
}

#[test]
fn an_allocation_that_has_ended_or_is_to_end_is_not_restarted() {
    let mut ended = Bench::running(&["a"], |_| {});
    ended.exited(0, &OK);
    assert!(!ended.step(AllocationRunner::restart_all));
    let mut stopped = Bench::running(&["a", "b"], |_| {});
    stopped.exited(0, &OK);
    stopped.stop();
    assert!(!stopped.step(AllocationRunner::restart_all));
    assert_eq!((ended.after(9), stopped.after(9)), (vec![], vec![]));
}

#[test]
fn the_leader_is_stopped_first() {
    let mut bench = Bench::running(&["a", "b"], |message| message.tasks[1].leader = true);
    assert_eq!(bench.stop(), [Action::Kill { task: 1 }]);
    assert_eq!(bench.exited(1, &BAD), [Action::Kill { task: 0 }]);
    bench.exited(0, &BAD);
    assert_eq!(bench.status(), "complete");
}

/// The servers give its resources to others once they know of its end.
#[test]
fn an_allocation_whose_leader_has_ended_runs_as_long_as_any_of_its_tasks() {
    let mut bench = Bench::running(&["a", "b"], |message| message.tasks[1].leader = true);
    assert_eq!(bench.exited(1, &OK), [Action::Kill { task: 0 }]);
    assert_eq!(bench.status(), "running");
    bench.exited(0, &BAD);
    assert_eq!(bench.status(), "complete");
}

#[test]
fn a_task_stopped_while_it_restarts_does_not_start_again() {
    for booted in [None, Some(false), Some(true)] {
        let mut bench = Bench::running(&["a"], |_| {});
        bench.step(|runner, step| runner.restart(&[0], true, step));
        assert_eq!(std::mem::take(&mut bench.actions), [Action::Kill { task: 0 }]);
        bench.stop();
        match booted {
            None => assert_eq!(bench.exited(0, &BAD), []),
            Some(booted) => bench.rewind(booted),
        }
        assert_eq!(bench.after(60_000), []);
        assert_eq!(bench.status(), "complete", "{booted:?}");
    }
}

#[test]
fn a_second_restart_is_taken_while_the_first_waits_for_the_end() {
    let mut bench = Bench::running(&["a", "b"], |_| {});
    let restart = |bench: &mut Bench, tasks: &[usize], named| {
        let taken = bench.step(|runner, step| runner.restart(tasks, named, step));
        (taken, std::mem::take(&mut bench.actions))
    };
    let (taken, asked) = restart(&mut bench, &[0], true);
    assert_eq!((taken, asked), (1, vec![Action::Kill { task: 0 }]));
    assert_eq!(bench.runner.ending_to_restart(&[0, 1]), [(0, 1)]);
    assert_eq!(restart(&mut bench, &[0], true), (1, vec![]), "it is asked to end once");
    let (taken, asked) = restart(&mut bench, &[0, 1], false);
    assert_eq!((taken, asked), (2, vec![Action::Kill { task: 1 }]));
    bench.exited(0, &BAD);
    assert_eq!(bench.runner.ending_to_restart(&[0, 1]), [(1, 1)]);
    assert_eq!(bench.after(0), [Action::Start { task: 0, attempt: 2 }], "one start for both");
    assert_eq!(restart(&mut bench, &[0], true).0, 0, "it does not run yet");
    let report = bench.runner.status(&bench.policy, [5; 16]);
    let said: Vec<_> = report.tasks["a"].events.iter().skip(3).collect();
    let said: Vec<_> = said.iter().map(|event| (&*event.kind, &*event.message)).collect();
    let expected = [
        ("Restart Signaled", "User requested task to restart"),
        ("Restart Signaled", "User requested task to restart"),
        ("Restart Signaled", "User requested running tasks to restart"),
        ("Terminated", "Exit Code: 7"),
        ("Restarting", "Task restarting in 0s"),
    ];
    assert_eq!(said, expected);
    bench.stop();
    assert_eq!(restart(&mut bench, &[1], true).0, 0, "it is to end for good");
}

#[test]
fn signals_reach_what_is_to_end_until_it_has_ended() {
    let mut bench = Bench::running(&["a"], |message| message.tasks[0].shutdown_delay_ms = 50);
    assert_eq!(bench.stop(), []);
    assert!(bench.runner.signaled(0, "SIGUSR1", bench.now), "in its delay");
    assert_eq!(bench.after(50), [Action::Kill { task: 0 }]);
    assert!(bench.runner.signaled(0, "SIGUSR1", bench.now), "in its kill_timeout");
    bench.exited(0, &OK);
    assert!(!bench.runner.signaled(0, "SIGUSR1", bench.now));
    let report = bench.runner.status(&bench.policy, [5; 16]);
    let kinds: Vec<_> = report.tasks["a"].events.iter().map(|event| &*event.kind).collect();
    let (killing, delay) = ("Killing", "Waiting for shutdown delay");
    let expected = ["Started", killing, delay, "Signaling", "Signaling", "Terminated", "Killed"];
    assert_eq!(kinds[2..], expected, "the kill begins with its delay");
}

#[test]
fn delays_are_waited_for_before_the_signal() {
    let mut bench = Bench::running(&["a"], |message| {
        message.shutdown_delay_ms = 100;
        message.tasks[0].shutdown_delay_ms = 50;
    });
    assert_eq!(bench.stop(), []);
    assert_eq!(bench.after(99), []);
    assert_eq!(bench.after(1), []);
    assert_eq!(bench.after(49), []);
    assert_eq!(bench.after(1), [Action::Kill { task: 0 }]);
    assert_eq!(bench.stop(), [], "a second wish to stop changes nothing");
}

/// The shutdown delay begins when the time is over. Errors of the tasks at that end are no
/// failure.
#[test]
fn an_allocation_that_runs_too_long_is_stopped_and_complete() {
    let mut bench = Bench::running(&["a", "b"], |message| {
        message.max_run_ms = 1_000;
        message.shutdown_delay_ms = 100;
    });
    assert_eq!(bench.runner.next_deadline(), Some(bench.now.since_boot_ms + 1_000));
    assert_eq!(bench.after(999), []);
    assert_eq!((bench.after(1), bench.too_long), (vec![], 2));
    assert_eq!(bench.after(100), [Action::Kill { task: 0 }, Action::Kill { task: 1 }]);
    assert_eq!(bench.too_long, 2, "they are counted once");
    bench.exited(0, &BAD);
    bench.exited(1, &BAD);
    assert_eq!(bench.status(), "complete");
    let report = bench.runner.status(&bench.policy, [5; 16]);
    assert_eq!(report.description, RUN_TIME_OVER);
    assert_eq!(report.client_status, v1::ClientStatus::Complete as i32);
    assert_eq!((bench.after(60_000), bench.runner.next_deadline()), (vec![], None));

    // What failed before its time has failed.
    let mut bench = Bench::running(&["a"], |message| {
        message.max_run_ms = 1_000;
        message.tasks[0].restart = Some(v1::RestartPolicy { fail: true, ..Default::default() });
    });
    bench.exited(0, &BAD);
    bench.after(5_000);
    assert_eq!((bench.status(), bench.too_long), ("failed", 0));
}

#[test]
fn a_task_stopped_while_it_starts_is_killed_once_it_has_started() {
    let mut bench = Bench::running(&["a"], |_| {});
    bench.exited(0, &BAD);
    bench.after(13);
    assert_eq!(bench.stop(), []);
    bench.started(0);
    assert_eq!(bench.actions, [Action::Kill { task: 0 }]);
    bench.exited(0, &BAD);
    assert_eq!(bench.status(), "complete");
}

#[test]
fn a_kill_is_asked_for_again_once_for_each_run_that_is_found() {
    let mut bench = Bench::running(&["a", "b"], |_| {});
    bench.stop();
    for task in [1, 0] {
        bench.step(|runner, step| runner.resume(task, step));
        assert_eq!(std::mem::take(&mut bench.actions), [Action::Kill { task }]);
    }
}

#[test]
fn a_task_that_waits_for_its_restart_can_be_stopped() {
    let mut bench = Bench::running(&["a"], |_| {});
    bench.exited(0, &BAD);
    assert_eq!(bench.stop(), []);
    assert_eq!(bench.status(), "complete");
    assert_eq!(bench.runner.next_deadline(), None);
}

#[test]
fn a_boot_ends_what_was_about_to_be_stopped() {
    for booted in [true, false] {
        let mut bench = Bench::running(&["a"], |message| message.shutdown_delay_ms = 100);
        assert_eq!(bench.stop(), []);
        bench.now.since_boot_ms = 5;
        bench.rewind(booted);
        assert_eq!(bench.actions, []);
        assert_eq!(bench.status(), "complete");
        assert_eq!(bench.runner.next_deadline(), None);
    }
}

#[test]
fn a_boot_ends_those_that_waited_for_the_end_of_their_leader() {
    let mut bench = Bench::running(&["a", "b"], |message| message.tasks[1].leader = true);
    assert_eq!(bench.stop(), [Action::Kill { task: 1 }]);
    bench.rewind(true);
    assert_eq!(bench.actions, []);
    assert_eq!(bench.status(), "complete");
}

#[test]
fn a_restart_that_a_boot_cut_off_is_not_made_twice() {
    let mut bench = Bench::running(&["a"], |_| {});
    assert_eq!(bench.step(|runner, step| runner.restart(&[0], true, step)), 1);
    bench.rewind(true);
    bench.actions.clear();
    bench.start();
    assert_eq!(bench.actions, [Action::Start { task: 0, attempt: 2 }]);
    bench.started(0);
    bench.actions.clear();
    assert_eq!(bench.exited(0, &OK), []);
    assert_eq!(bench.status(), "complete");
}

#[test]
fn sequences_rise_from_what_the_servers_know() {
    let mut bench = Bench::running(&["a"], |_| {});
    assert!(bench.runner.take_changed());
    assert_eq!(bench.runner.sequence, 4);
    assert!(!bench.runner.take_changed());
    bench.runner.raise_sequence(9);
    assert!(bench.runner.take_changed());
    assert_eq!(bench.runner.sequence, 10);
}

#[test]
fn a_run_ended_by_the_agent_starts_again_and_events_are_bounded() {
    let mut bench = Bench::running(&["a", "b"], |_| {});
    bench.exited(1, &OK);
    bench.rewind(false);
    bench.start();
    assert_eq!(bench.actions, [Action::Start { task: 0, attempt: 2 }]);
    for _ in 0..20 {
        bench.started(0);
        bench.actions.clear();
        bench.rewind(true);
        bench.start();
        bench.actions.clear();
    }
    let report = bench.runner.status(&bench.policy, [5; 16]);
    assert_eq!(report.tasks["a"].events.len(), 10);
    assert_eq!(report.tasks["a"].restarts, 0);
    assert_eq!(report.tasks["b"].phase(), v1::TaskPhase::Dead);
}

fn watched(tasks: &[&str], deployment: u8) -> Bench {
    Bench::running(tasks, |message| watch(message, deployment))
}

fn watch(message: &mut v1::Allocation, deployment: u8) {
    message.deployment_id = vec![deployment; 16].into();
    (message.healthy_ms_min, message.healthy_deadline_ms) = (1_000, 5_000);
    let restart = v1::RestartPolicy { attempts: 1, interval_ms: 60_000, delay_ms: 10, fail: true };
    message.restart = Some(restart);
}

impl Bench {
    /// The deployment's number and the verdict.
    fn health(&self) -> (u8, Option<bool>) {
        let status = self.runner.status(&self.policy, [5; 16]);
        (status.deployment_id.first().copied().unwrap_or(0), status.healthy)
    }

    /// The agent ends and starts again after `ms`. Its tasks keep running.
    fn restart_agent(&mut self, ms: u64) {
        let stored = serde_json::to_string(&self.runner).expect("it is stored");
        self.runner = serde_json::from_str(&stored).expect("it is read");
        self.now.since_boot_ms += ms;
        self.step(|runner, step| runner.resume(0, step));
    }
}

/// The deadline is when health is decided. The verdict never changes afterwards.
#[test]
fn an_allocation_is_healthy_once_all_tasks_ran_for_long_enough() {
    let mut bench = watched(&["a", "b"], 1);
    assert_eq!(bench.runner.next_deadline(), Some(2_000));
    bench.after(999);
    assert_eq!(bench.health(), (1, None));
    bench.after(1);
    assert_eq!(bench.health(), (1, Some(true)));
    assert_eq!(bench.runner.next_deadline(), None);
    bench.exited(0, &BAD);
    bench.after(20_000);
    bench.restart_agent(1);
    assert_eq!(bench.health(), (1, Some(true)));
}

/// A restart of a task resets the time; a restart of the agent does not.
#[test]
fn only_a_restart_of_a_task_begins_anew() {
    let mut bench = watched(&["a"], 1);
    bench.restart_agent(900);
    assert_eq!(bench.health(), (1, None));
    bench.exited(0, &BAD);
    bench.after(13);
    bench.started(0);
    bench.after(999);
    assert_eq!(bench.health(), (1, None));
    bench.after(1);
    assert_eq!(bench.health(), (1, Some(true)));
}

#[test]
fn an_allocation_is_unhealthy_when_a_task_ends_or_its_time_is_over() {
    let mut bench = watched(&["a"], 1);
    for _ in 0..2 {
        bench.exited(0, &BAD);
        bench.after(13);
        bench.started(0);
    }
    assert_eq!((bench.status(), bench.health()), ("failed", (1, Some(false))));
    let mut bench = watched(&["a"], 1);
    bench.exited(0, &BAD);
    bench.restart_agent(4_999);
    assert_eq!(bench.health(), (1, None));
    bench.after(1);
    assert_eq!(bench.health(), (1, Some(false)), "it has had its time");
}

/// After an in-place update the running instance is judged again, for as long as a new one.
#[test]
fn another_deployment_asks_again() {
    let mut bench = watched(&["a"], 1);
    bench.after(1_000);
    let mut message = testing::message([5; 16], "job", &["a"]);
    watch(&mut message, 2);
    bench.policy = group_policy(&message).expect("a valid message");
    bench.runner.take_changed();
    bench.runner.revise(&bench.policy, bench.now);
    assert!(bench.runner.take_changed());
    assert_eq!(bench.health(), (2, None));
    assert_eq!(bench.runner.next_deadline(), Some(bench.now.since_boot_ms + 1_000));
    let mut ending = bench.clone();
    for _ in 0..2 {
        ending.exited(0, &BAD);
        ending.after(13);
        ending.started(0);
    }
    assert_eq!(ending.health(), (2, Some(false)), "it does not do in its new place");
    bench.after(999);
    assert_eq!(bench.health(), (2, None));
    bench.restart_agent(1);
    assert_eq!(bench.health(), (2, Some(true)));
    bench.stop();
    assert_eq!(bench.health(), (2, Some(true)));
}

/// A changed limit of the run is a change to store and report; a repeated one is not.
#[test]
fn another_run_time_is_a_change() {
    let mut bench = watched(&["a"], 1);
    bench.runner.take_changed();
    bench.runner.revise(&bench.policy, bench.now);
    assert!(!bench.runner.take_changed());
    bench.policy.max_run_ms = 5_000;
    bench.runner.revise(&bench.policy, bench.now);
    assert!(bench.runner.take_changed());
}

/// A stop that waits for shutdown delays goes on at once when they are removed.
#[test]
fn a_stop_goes_on_when_its_delays_are_taken_away() {
    let mut bench = watched(&["a"], 1);
    bench.policy.shutdown_delay_ms = 60_000;
    bench.policy.tasks[0].shutdown_delay_ms = 60_000;
    bench.stop();
    let due = bench.runner.next_deadline().unwrap_or_default();
    assert!(due >= bench.now.since_boot_ms + 60_000, "the group's delay");
    bench.policy.shutdown_delay_ms = 0;
    bench.runner.revise(&bench.policy, bench.now);
    assert_eq!(bench.runner.next_deadline(), Some(bench.now.since_boot_ms));
    bench.after(0);
    assert!(bench.runner.next_deadline() > Some(bench.now.since_boot_ms), "the task's delay");
    bench.policy.tasks[0].shutdown_delay_ms = 0;
    bench.runner.revise(&bench.policy, bench.now);
    bench.after(0);
    assert_eq!(bench.runner.tasks()[0].phase, Phase::Killing);
}

/// After a boot no time of the old boot counts.
#[test]
fn a_boot_begins_the_watch_anew() {
    let mut bench = watched(&["a"], 1);
    bench.now.since_boot_ms = 5;
    bench.rewind(true);
    assert_eq!(bench.runner.next_deadline(), Some(5_005));
    bench.start();
    bench.started(0);
    bench.after(1_000);
    assert_eq!(bench.health(), (1, Some(true)));
}
