//! What a task says of itself, and what it waits for.

use super::*;

/// Nomad's type and messages of each event. An event that Nomad does not have is marked.
fn told(kind: EventKind) -> (&'static str, &'static [&'static str]) {
    match kind {
        EventKind::Received => ("Received", &["Task received by client"]),
        EventKind::TaskSetup => ("Task Setup", &["Building Task Directory"]),
        EventKind::SetupFailure => ("Setup Failure", &["no such user"]),
        EventKind::DriverFailure => ("Driver Failure", &["no such command"]),
        EventKind::Started => ("Started", &["Task started by client"]),
        EventKind::Terminated => ("Terminated", &["Exit Code: 3", "Exit Code: 137, Signal: 9"]),
        EventKind::Restarting => (
            "Restarting",
            &["Task restarting in 0s", "Restart within policy, task restarting in 10ms"],
        ),
        EventKind::NotRestarting => (
            "Not Restarting",
            &[
                "Exceeded allowed attempts 1 in interval 1s and mode is \"fail\"",
                "Error was unrecoverable",
            ],
        ),
        EventKind::Killing => ("Killing", &["Sent interrupt. Waiting 2s before force killing"]),
        EventKind::Killed => ("Killed", &["Task successfully killed"]),
        EventKind::LeaderTaskDead => ("Leader Task Dead", &["Leader Task in Group dead"]),
        EventKind::SiblingTaskFailed => ("Sibling Task Failed", &["Task's sibling \"db\" failed"]),
        EventKind::WaitingForShutdownDelay => (
            "Waiting for shutdown delay",
            &["Waiting for shutdown_delay of 5s before killing the task."],
        ),
        // The view takes the signal out of the sentence.
        EventKind::Signaling => ("Signaling", &["Task being sent a signal: SIGHUP"]),
        // Not Nomad's.
        EventKind::NodeFailure => ("Node Failure", &["The node could not prepare the task"]),
        EventKind::RestartSignaled => (
            "Restart Signaled",
            &[
                "User requested task to restart",
                "User requested running tasks to restart",
                "User requested all tasks to restart",
            ],
        ),
    }
}

#[test]
fn every_event_is_told_as_in_nomad() {
    let now = Moment { since_boot_ms: 1_000, wall_ms: 1_000_000 };
    let mode = crate::task::restart::RestartMode::Fail;
    let policy = TaskPolicy {
        name: "t".to_owned(),
        restart: RestartPolicy { attempts: 1, interval_ms: 1000, delay_ms: 10, mode },
        restart_on_success: false,
        kill_timeout_ms: 2_000,
        shutdown_delay_ms: 5_000,
        leader: false,
    };
    let mut events = Vec::new();
    let mut play = |script: &dyn Fn(&mut TaskRunner, &mut TaskStep<'_>)| {
        let (mut task, mut out) = (TaskRunner::new(now), Vec::new());
        let step = &mut TaskStep { task: 0, policy: &policy, seed: 0, now, out: &mut out };
        task.start();
        task.launch(step);
        task.started(step);
        script(&mut task, step);
        events.append(&mut task.events);
    };
    // The pause before a restart passes.
    let wait = |task: &mut TaskRunner, step: &mut TaskStep<'_>| {
        step.now.since_boot_ms = 1_020;
        task.tick(step);
        step.now = now;
        if task.is_preparing() {
            task.launch(step);
        }
    };
    let exit = |exit_code, signal| ExitResult { exit_code, signal, ..ExitResult::default() };
    let error = StartError {
        message: "no such command".to_owned(),
        recoverable: false,
        fault: Fault::Task,
    };
    play(&|task, step| task.exited(&exit(3, 0), step));
    play(&|task, step| {
        for _ in 0..2 {
            task.exited(&exit(3, 0), step);
            wait(task, step);
            task.started(step);
        }
    });
    play(&|task, step| {
        task.exited(&exit(3, 0), step);
        wait(task, step);
        task.start_failed(&error, step);
    });
    play(&|task, step| {
        task.exited(&exit(3, 0), step);
        task.setup_failed("no such user", Fault::Node, now);
    });
    play(&|task, _| {
        task.signaled("SIGHUP", now);
    });
    for named in [true, false] {
        play(&|task, step| {
            task.restart(named, step);
            task.exited(&exit(137, 9), step);
        });
    }
    play(&|task, step| {
        task.restart_ended(step);
    });
    let sibling = KillReason::SiblingFailed("db".into());
    for reason in [KillReason::Stopped, KillReason::LeaderDead, sibling] {
        play(&|task, step| {
            task.kill(&reason, step);
            task.exited(&exit(137, 9), step);
        });
    }
    let mut seen = std::collections::BTreeSet::new();
    for event in &events {
        let (name, messages) = told(event.kind);
        assert_eq!(event.kind.name(), name);
        // A pause has jitter.
        let said = event.message.replace("11ms", "10ms").replace("12ms", "10ms");
        assert!(messages.contains(&said.as_str()), "{name}: {said}");
        seen.insert((name, said));
    }
    assert_eq!(
        seen.iter().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>().len(),
        16
    );
}

/// The pauses between starts that all fail by this fault, up to twenty, and the task at the
/// end.
fn pauses(fault: Fault) -> (Vec<u64>, TaskRunner) {
    let policy = TaskPolicy {
        name: "t".to_owned(),
        restart: RestartPolicy {
            attempts: 0,
            interval_ms: 1000,
            delay_ms: 10,
            mode: crate::task::restart::RestartMode::Fail,
        },
        restart_on_success: false,
        kill_timeout_ms: 0,
        shutdown_delay_ms: 0,
        leader: false,
    };
    let short = StartError { message: "too many open files".to_owned(), recoverable: true, fault };
    let (now, mut out) = (Moment::default(), Vec::new());
    let step = &mut TaskStep { task: 0, policy: &policy, seed: 0, now, out: &mut out };
    let mut task = TaskRunner::new(now);
    task.start();
    task.launch(step);
    let mut pauses = Vec::new();
    while !task.is_dead() && pauses.len() < 20 {
        task.start_failed(&short, step);
        let Some(due) = task.next_deadline() else { break };
        pauses.push((due - step.now.since_boot_ms) / 1000);
        step.now.since_boot_ms = due;
        task.tick(step);
        task.launch(step);
    }
    (pauses, task)
}

/// A shortage of the machine is waited out with growing pauses, however long it lasts. It uses
/// up none of the job's restarts.
#[test]
fn a_shortage_is_waited_out() {
    let (pauses, task) = pauses(Fault::Shortage);
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!((pauses.len(), task.is_dead()), (20, false));
}

#[test]
fn a_fault_that_may_pass_is_tried_again_a_few_times() {
    let (pauses, task) = pauses(Fault::Passing);
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]);
    assert!(task.is_dead() && task.failed, "it does not go on for ever");
    assert_eq!(task.node_failure, None);
}
