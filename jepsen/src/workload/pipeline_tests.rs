//! The whole pipeline (clients, history, checker) of every workload against a small server: a good one must
//! pass, and each deliberately broken one must be caught.
//!
//! With `QUORATE_TESTS=full` every bug is hunted; else two of each workload, which show that the way from a wrong
//! answer to a verdict is whole. Nothing here depends on the speed of the machine: a run goes on until its bug has
//! struck often enough, and a bug is hunted again until it is seen.

use std::collections::BTreeSet;

use super::fake_server::{Bug, FakeServer};
use super::*;
use crate::{
    checker::Verdict,
    checker::judgement::Judgement,
    checker::{
        allocations, capacity, elastic, evaluations, final_workload, job_versions, linearizable,
        list_append, set_full, stats, watch,
    },
    store::Readiness,
};

/// How often a bug must have made a difference.
const STRIKES: u64 = 20;
/// Operations of a run, at least.
const OPERATIONS_MIN: usize = 800;
/// How long a run may take until its bug has struck so often.
const RUN_MAX: Duration = Duration::from_mins(10);
/// Runs in one of which a bug must be seen: whether a strike shows depends on who asks meanwhile.
const RUNS_MAX: usize = 8;
/// Bugs of a workload that the short form hunts.
const BUGS_FEW: usize = 2;

const LOAD: Load = Load {
    concurrency: 8,
    rate: 4_000.0,
    timeout: Duration::from_mins(1),
    seed: 42,
    system: System::Quorate,
    read_mode: ReadMode::Default,
    last_phase: LastPhase {
        pause: Duration::from_millis(10),
        step_timeout_min: Duration::from_secs(30),
    },
};

/// For servers that may never answer what the last phase waits for.
const LOAD_OF_BROKEN: Load = Load {
    last_phase: LastPhase { step_timeout_min: Duration::from_secs(1), ..LOAD.last_phase },
    ..LOAD
};

/// Whether this is the full form of the tests.
fn is_full() -> bool {
    std::env::var_os("QUORATE_TESTS").is_some_and(|form| form == "full")
}

/// The bugs that this form of the tests hunts.
fn hunted(bugs: &[Bug]) -> &[Bug] {
    if is_full() { bugs } else { &bugs[..bugs.len().min(BUGS_FEW)] }
}

/// A history of this workload against a server with this bug, and the time the last phase may take.
fn run(kind: WorkloadKind, bug: Bug, last_phase: Duration) -> Vec<Op> {
    let load = if bug == Bug::None { LOAD } else { LOAD_OF_BROKEN };
    run_under(kind, bug, last_phase, 100, load)
}

/// The same under this load, with this many operations per key.
fn run_under(
    kind: WorkloadKind,
    bug: Bug,
    last_phase: Duration,
    ops_per_key: u64,
    load: Load,
) -> Vec<Op> {
    let server = FakeServer::start(bug);
    let recorder = Recorder::in_memory();
    let clients = clients(kind, &server.targets, load, ops_per_key, &recorder, Fixtures::default());
    let (clients, stop) = (&*clients, &AtomicBool::new(false));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..load.concurrency {
            scope.spawn(move || clients.work(number, stop));
        }
        // The same fault a real run records; nothing here depends on it but the checker's demand for one.
        let fault = serde_json::json!({"outcome": "installed"});
        recorder.record(Op::new(Process::Nemesis, Kind::Info, Function::KillAgent, fault));
        let enough = || {
            let has_struck = bug == Bug::None || server.strikes() >= STRIKES;
            recorder.progress()[0] >= OPERATIONS_MIN && has_struck
        };
        while !enough() && begin.elapsed() < RUN_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let main = begin.elapsed();
    let (strikes, operations) = (server.strikes(), recorder.progress()[0]);
    assert!(bug == Bug::None || strikes >= STRIKES, "{kind:?}: {bug:?} struck too seldom");
    clients.last_phase(Instant::now() + last_phase);
    let whole = begin.elapsed();
    eprintln!(
        "{kind:?}, {bug:?}: {strikes} strikes in {operations} operations, {main:.1?} of {whole:.1?}"
    );
    recorder.snapshot().0
}

fn judge(kind: WorkloadKind, history: &[Op]) -> Judgement {
    let time_max = Duration::from_mins(2);
    let judgement = match kind {
        WorkloadKind::Register => {
            linearizable::check(history, time_max).map(linearizable::Report::into_judgement)
        }
        WorkloadKind::Set => set_full::check(history, set_full::OF_PAGES),
        WorkloadKind::Append => list_append::check(history),
        WorkloadKind::Queue => evaluations::check(history),
        WorkloadKind::Bank => capacity::check(history, time_max),
        WorkloadKind::Jobs => job_versions::check(history, time_max),
        WorkloadKind::Allocs => allocations::check(history, None),
        WorkloadKind::Watch => watch::check(history),
        WorkloadKind::Elastic => elastic::check(history),
    };
    judgement.expect("clients write histories that can be judged")
}

/// A good server passes in every respect, although connections break.
fn passes(kind: WorkloadKind) -> Vec<Op> {
    // Of this `watch` leaves the last 30 s to others, and waits in rounds before.
    let last_phase = Duration::from_secs(if is_full() { 60 } else { 33 });
    let history = run(kind, Bug::None, last_phase);
    let judgement = judge(kind, &history);
    assert_eq!(judgement.valid, Verdict::True, "{judgement:#?}");
    assert!(judgement.operations > 700, "{judgement:#?}");
    let stats = stats::check(&history, kind.required());
    assert_eq!(stats.valid, Verdict::True, "{stats:#?}");
    assert!(stats.total.info > 5, "broken connections are seen: {stats:?}");
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let served = final_workload::check(kind, &history, &nodes, Readiness::Milliseconds(0));
    let served = served.expect("it can be judged");
    assert_eq!(served.valid, Verdict::True, "{served:?}");
    let mut retired = BTreeSet::new();
    for op in history.iter().filter(|op| op.process != Process::Nemesis) {
        assert!(!retired.contains(&op.process), "a number is used again after an info: {op:?}");
        if op.kind == Kind::Info {
            retired.insert(op.process);
        }
    }
    assert!(!retired.is_empty());
    history
}

/// Every one of these bugs is found, with evidence.
fn catches(kind: WorkloadKind, bugs: &[Bug]) {
    // A broken server may never settle; for the rounds of `watch` there are runs of their own.
    let last_phase = match kind {
        WorkloadKind::Allocs | WorkloadKind::Watch => 2,
        WorkloadKind::Register
        | WorkloadKind::Set
        | WorkloadKind::Append
        | WorkloadKind::Queue
        | WorkloadKind::Bank
        | WorkloadKind::Jobs
        | WorkloadKind::Elastic => 60,
    };
    catches_with(kind, hunted(bugs), Duration::from_secs(last_phase));
}

fn catches_with(kind: WorkloadKind, bugs: &[Bug], last_phase: Duration) {
    for bug in bugs {
        let mut judgement = judge(kind, &run(kind, *bug, last_phase));
        for _ in 1..RUNS_MAX {
            if judgement.valid != Verdict::False {
                judgement = judge(kind, &run(kind, *bug, last_phase));
            }
        }
        assert_eq!(judgement.valid, Verdict::False, "{bug:?}: {judgement:#?}");
        let shown = &judgement.violations[0];
        assert!(!shown.title.is_empty() && !shown.entries.is_empty(), "{bug:?}: {shown:#?}");
    }
}

#[test]
fn register() {
    let history = passes(WorkloadKind::Register);
    let stats = stats::check(&history, WorkloadKind::Register.required());
    assert!(stats.by_function["cas"].fail > 5, "conflicts are seen: {stats:?}");
    let bugs = [Bug::StaleReads, Bug::LostWrites, Bug::BlindCas, Bug::FalseFailures];
    catches(WorkloadKind::Register, &bugs);
}

#[test]
fn set() {
    passes(WorkloadKind::Set);
    let bugs = [
        Bug::StaleReads,
        Bug::LostWrites,
        Bug::FalseFailures,
        Bug::DoubledRows,
        Bug::TornPages,
        Bug::LostPages,
    ];
    catches(WorkloadKind::Set, &bugs);
}

#[test]
fn stale_reads_are_asked_for_and_caught() {
    let load = Load { read_mode: ReadMode::Stale, ..LOAD_OF_BROKEN };
    for kind in [WorkloadKind::Register, WorkloadKind::Set] {
        assert!(kind.has_read_modes());
        // The server answers only stale reads wrongly; that they are asked for is what makes it strike.
        let judged = || {
            let bug = Bug::UnsteadyStaleReads;
            judge(kind, &run_under(kind, bug, Duration::from_mins(1), 100, load)).valid
        };
        assert!((0..RUNS_MAX).any(|_| judged() == Verdict::False), "{kind:?}");
    }
}

#[test]
fn modes_of_reads_are_parameters_of_any_path() {
    assert_eq!(ReadMode::Default.path("/v1/job/r1"), "/v1/job/r1");
    assert_eq!(ReadMode::Consistent.path("/v1/job/r1"), "/v1/job/r1?consistent=true");
    assert_eq!(ReadMode::Stale.path("/v1/jobs?prefix=s"), "/v1/jobs?prefix=s&stale=true");
}

#[test]
fn append() {
    passes(WorkloadKind::Append);
    let bugs = [Bug::StaleReads, Bug::LostWrites, Bug::BlindCas, Bug::FalseFailures];
    catches(WorkloadKind::Append, &bugs);
}

#[test]
fn queue() {
    passes(WorkloadKind::Queue);
    catches(WorkloadKind::Queue, &[Bug::LostEvaluations, Bug::DoubledEvaluations]);
}

#[test]
fn an_evaluation_that_is_never_processed_is_found_by_the_last_phase() {
    let history = run(WorkloadKind::Queue, Bug::StuckEvaluations, Duration::from_secs(2));
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let ready = Readiness::Milliseconds(0);
    let served = final_workload::check(WorkloadKind::Queue, &history, &nodes, ready);
    let served = served.expect("it can be judged");
    assert_eq!(served.valid, Verdict::False, "{served:?}");
    assert!(served.silent[0].contains("are pending"), "{served:?}");
}

#[test]
fn jobs() {
    passes(WorkloadKind::Jobs);
    let bugs = [
        Bug::StaleReads,
        Bug::LostWrites,
        Bug::BlindCas,
        Bug::FalseFailures,
        Bug::SkippedVersions,
        Bug::NeedlessVersions,
        Bug::UnforgottenVersions,
    ];
    catches(WorkloadKind::Jobs, &bugs);
}

#[test]
fn bank() {
    passes(WorkloadKind::Bank);
    let bugs = [
        Bug::StaleReads,
        Bug::Overcommit,
        Bug::SharedPorts,
        Bug::DoubledNames,
        Bug::Comeback,
        Bug::LostMarks,
        Bug::KeptBodies,
    ];
    catches(WorkloadKind::Bank, &bugs);
}

#[test]
fn allocs() {
    passes(WorkloadKind::Allocs);
    catches(WorkloadKind::Allocs, &[Bug::StaleReads, Bug::DoubledNames, Bug::Comeback]);
}

#[test]
fn watch() {
    let bugs = [
        Bug::StaleReads,
        Bug::LostWrites,
        Bug::FalseFailures,
        Bug::DoubledRows,
        Bug::HastyWatchers,
        Bug::HastyHeaders,
        Bug::LateHeaders,
        Bug::MissingRows,
        Bug::UnsteadyStaleReads,
        Bug::NoContact,
        Bug::ForgottenKeys,
        Bug::OpenNamespaces,
    ];
    // All beside each other: most of their time they wait, and those with rounds 40 s.
    std::thread::scope(|scope| {
        scope.spawn(|| passes(WorkloadKind::Watch));
        if is_full() {
            scope.spawn(|| {
                catches_with(WorkloadKind::Watch, &[Bug::DeafWatchers], Duration::from_mins(1));
            });
        }
        for some in hunted(&bugs).chunks(4) {
            scope.spawn(|| catches_with(WorkloadKind::Watch, some, Duration::from_secs(2)));
        }
    });
}

#[test]
fn a_job_that_never_gets_what_it_asks_for_is_found_by_the_last_phase() {
    let history = run(WorkloadKind::Allocs, Bug::Stingy, Duration::from_secs(2));
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let ready = Readiness::Milliseconds(0);
    let served = final_workload::check(WorkloadKind::Allocs, &history, &nodes, ready);
    let served = served.expect("it can be judged");
    assert_eq!(served.valid, Verdict::False, "{served:?}");
    assert!(served.silent[0].contains("allocations"), "{served:?}");
}

#[test]
fn a_last_phase_goes_on_while_it_is_answered() {
    // Hundreds of keys, of which each is written once and read twice.
    let begin = Duration::from_secs(2);
    let history = run_under(WorkloadKind::Register, Bug::None, begin, 2, LOAD);
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let ready = Readiness::Milliseconds(0);
    let served = final_workload::check(WorkloadKind::Register, &history, &nodes, ready);
    let served = served.expect("it can be judged");
    assert!(served.keys > 200, "{served:?}");
    assert_eq!(served.valid, Verdict::True, "{served:?}");
}

#[test]
fn a_key_of_which_much_is_unknown_is_given_up_early() {
    let mut random = Dice::numbered(1, 0);
    let mut keys = KeyPool::new(1, 200);
    assert_eq!(keys.take(&mut random), 0);
    for _ in 1..DOUBTS_PER_KEY {
        keys.doubt(0);
    }
    assert_eq!(keys.take(&mut random), 0);
    keys.doubt(0);
    assert_eq!(keys.take(&mut random), 1);
}
