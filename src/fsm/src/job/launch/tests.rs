//! Launches: each due time has one child or is counted, whoever asks and how often.

use crate::{
    command::{Command, JobCommand, Rejection, Reply},
    evaluation::{EvaluationStatus, Trigger},
    job::{
        ForcePeriodic, Job, JobKind, JobSpec, JobStatus, Launch, LaunchPeriodic, Launches,
        Parameterized, Periodic,
    },
    limits,
    testing::{Driver, START_MS, job, job_key, outcome, register, reload},
};

const NIGHT: i64 = 2_000_000_000;

fn periodic(name: &str, change: impl FnOnce(&mut Periodic)) -> JobSpec {
    let mut block = Periodic {
        enabled: true,
        specs: vec!["@daily".into()],
        time_zone: "UTC".into(),
        ..Periodic::default()
    };
    change(&mut block);
    JobSpec { periodic: Some(block), ..job(name, JobKind::Batch, 1) }
}

fn put(driver: &mut Driver, spec: JobSpec) {
    let evaluation = driver.evaluation_id();
    driver.accept(register(spec, evaluation));
}

fn with_job(change: impl FnOnce(&mut Periodic)) -> Driver {
    let mut driver = Driver::default();
    put(&mut driver, periodic("t", change));
    driver
}

fn launch(driver: &mut Driver, due_s: i64, missed: u64) -> Launch {
    let row = driver.job_row("t");
    let job_modify_index = row.job_modify_index;
    let last_due_s = row.periodic.map_or(0, |known| known.last_due_s);
    let evaluation = driver.evaluation_id();
    Launch { job: job_key("t"), job_modify_index, last_due_s, due_s, missed, evaluation }
}

fn command(launches: Vec<Launch>) -> Command {
    LaunchPeriodic { launches }.into()
}

fn start(driver: &mut Driver, due_s: i64, missed: u64) {
    let one = launch(driver, due_s, missed);
    assert_eq!(driver.accept(command(vec![one])), Reply::Done);
}

fn refuse(driver: &mut Driver, one: Launch, text: &str) {
    let why = driver.reject(command(vec![one]));
    assert!(why.to_string().contains(text), "{why}");
}

fn launches(driver: &Driver) -> Launches {
    driver.job_row("t").periodic.expect("it is periodic")
}

fn children(driver: &Driver) -> Vec<&Job> {
    let rows = driver.state.jobs().iter();
    rows.map(|row| &**row).filter(|row| row.key.parent() == Some("t")).collect()
}

fn end(driver: &mut Driver, child: &str) {
    for id in driver.open_evaluations(child) {
        let mut plan = driver.plan(id);
        plan.outcome = Some(outcome(EvaluationStatus::Complete));
        driver.commit_plan(plan);
    }
    assert_eq!(driver.job_row(child).status, JobStatus::Dead);
}

#[test]
fn a_launch_makes_a_child_of_its_due_time_with_its_evaluation() {
    let mut driver = with_job(|_| {});
    assert_eq!(driver.open_evaluations("t"), [], "a parent is never evaluated");
    assert_eq!(driver.job_row("t").status, JobStatus::Running);
    let since_s = i64::try_from(START_MS / 1000).expect("small");
    assert_eq!(launches(&driver), Launches { since_s, ..Launches::default() });
    start(&mut driver, NIGHT, 2);
    let made = children(&driver);
    assert_eq!(made.len(), 1);
    assert_eq!(&*made[0].key.id, "t/periodic-2000000000");
    let spec = driver.state.current_spec(made[0]).expect("its spec");
    assert!(spec.periodic.is_none() && spec.dispatch.is_none());
    assert_eq!(&*spec.name, "t/periodic-2000000000");
    let [id] = driver.open_evaluations("t/periodic-2000000000")[..] else { panic!() };
    assert_eq!(driver.evaluation(id).trigger, Trigger::PeriodicJob);
    let expected = Launches { since_s, last_due_s: NIGHT, missed: 2, overlapped: 0 };
    assert_eq!(launches(&driver), expected);
}

#[test]
fn a_due_time_is_launched_once_whoever_asks() {
    let mut driver = with_job(|_| {});
    start(&mut driver, NIGHT, 0);
    for (due_s, missed) in [(NIGHT, 0), (NIGHT - 1, 7), (i64::MIN, 0)] {
        driver.term += 1;
        driver.state = reload(&driver.state);
        let again = launch(&mut driver, due_s, missed);
        refuse(&mut driver, again, "its last due time is 2000000000");
    }
    // Its child may be gone, as garbage.
    end(&mut driver, "t/periodic-2000000000");
    driver.deregister_job("t/periodic-2000000000", true);
    let again = launch(&mut driver, NIGHT, 0);
    refuse(&mut driver, again, "its last due time is 2000000000");
    assert_eq!(launches(&driver).missed, 0, "what is refused counts nothing");
    start(&mut driver, NIGHT + 60, 0);
    assert_eq!(children(&driver).len(), 1);
}

/// A leader that proposes before it has heard of the last launch counts that one as missed.
#[test]
fn a_launch_that_does_not_know_of_the_last_one_is_refused() {
    let mut driver = with_job(|_| {});
    let first = launch(&mut driver, NIGHT, 0);
    let second = launch(&mut driver, NIGHT + 60, 1);
    assert_eq!(driver.accept(command(vec![first])), Reply::Done);
    let text = "was launched for 2000000000 meanwhile: what was missed before 2000000060 is counted from 0";
    refuse(&mut driver, second.clone(), text);
    let ahead = Launch { last_due_s: NIGHT + 1, ..second.clone() };
    refuse(&mut driver, ahead, "counted from 2000000001");
    assert_eq!((launches(&driver).last_due_s, launches(&driver).missed), (NIGHT, 0));
    let anew = Launch { last_due_s: NIGHT, missed: 0, ..second };
    assert_eq!(driver.accept(command(vec![anew])), Reply::Done);
    assert_eq!((launches(&driver).missed, children(&driver).len()), (0, 2));
}

#[test]
fn launches_of_one_entry_are_judged_each_alone() {
    let mut driver = with_job(|_| {});
    let first = launch(&mut driver, NIGHT, 0);
    let second = Launch { last_due_s: NIGHT, ..launch(&mut driver, NIGHT + 60, 1) };
    let lost = Launch { job: job_key("nobody"), ..launch(&mut driver, NIGHT, 0) };
    let entry = vec![first.clone(), lost.clone(), first, second];
    assert_eq!(driver.accept(command(entry)), Reply::Done);
    assert_eq!(children(&driver).len(), 2);
    assert_eq!((launches(&driver).last_due_s, launches(&driver).missed), (NIGHT + 60, 1));
    refuse(&mut driver, lost, "job not found");
    assert_eq!(driver.accept(command(vec![])), Reply::Done);
    let one = launch(&mut driver, NIGHT + 90, 0);
    let many = vec![one; limits::LAUNCHES_MAX + 1];
    assert!(matches!(driver.reject(command(many)), Rejection::Invalid(_)));
}

#[test]
fn an_overlap_is_passed_and_counted() {
    let mut driver = with_job(|block| block.prohibit_overlap = true);
    start(&mut driver, NIGHT, 0);
    start(&mut driver, NIGHT + 60, 3);
    assert_eq!(children(&driver).len(), 1);
    let passed = launches(&driver);
    assert_eq!((passed.last_due_s, passed.missed, passed.overlapped), (NIGHT + 60, 3, 1));
    end(&mut driver, "t/periodic-2000000000");
    start(&mut driver, NIGHT + 120, 0);
    assert_eq!(children(&driver).len(), 2);
    assert_eq!(launches(&driver).overlapped, 1);
}

#[test]
fn a_job_that_changed_or_is_off_is_not_launched() {
    let mut driver = with_job(|_| {});
    let before = launch(&mut driver, NIGHT, 0);
    put(&mut driver, periodic("t", |block| block.specs = vec!["@hourly".into()]));
    refuse(&mut driver, before, "has changed since it was due");
    put(&mut driver, periodic("t", |block| block.enabled = false));
    let off = launch(&mut driver, NIGHT, 0);
    refuse(&mut driver, off, "set enabled = true");
    put(&mut driver, periodic("t", |_| {}));
    driver.deregister_job("t", false);
    let stopped = launch(&mut driver, NIGHT, 0);
    refuse(&mut driver, stopped, "is stopped: start it first");
    driver.deregister_job("t", true);
    driver.register_job(job("t", JobKind::Batch, 1));
    let other = launch(&mut driver, NIGHT, 0);
    refuse(&mut driver, other, "is not periodic: add a periodic block");
    assert_eq!(children(&driver).len(), 0);
}

/// A new line, or a start after a stop, does not make up what was due before. Another change does
/// not lose what is due.
#[test]
fn due_times_count_since_the_clock_was_set() {
    let mut driver = with_job(|_| {});
    start(&mut driver, NIGHT, 5);
    let first = launches(&driver);
    driver.now += 10_000;
    put(&mut driver, JobSpec { priority: 70, ..periodic("t", |_| {}) });
    assert_eq!(launches(&driver), first);
    driver.now += 10_000;
    put(&mut driver, periodic("t", |block| block.time_zone = "Europe/Berlin".into()));
    let second = launches(&driver);
    assert_eq!(second, Launches { since_s: first.since_s + 20, ..first });
    driver.deregister_job("t", false);
    driver.now += 10_000;
    put(&mut driver, periodic("t", |block| block.time_zone = "Europe/Berlin".into()));
    assert_eq!(launches(&driver), Launches { since_s: first.since_s + 30, ..first });
    driver.deregister_job("t", true);
    put(&mut driver, periodic("t", |_| {}));
    assert_eq!(launches(&driver).last_due_s, 0, "another job");
}

/// Log time lags behind after an outage, so due times count from the wall clock of whoever
/// registers. One that was ahead is found out by the first launch, so that no due time after it is
/// lost.
#[test]
fn due_times_count_from_the_wall_clock_of_the_registration() {
    let mut driver = Driver::default();
    let log_s = i64::try_from(START_MS / 1000).expect("small");
    let mut stamped = |now_s, zone: &str| {
        let spec = periodic("t", |block| block.time_zone = zone.into());
        let mut command = register(spec, driver.evaluation_id());
        if let Command::Job(JobCommand::RegisterJob(command)) = &mut command {
            command.now_s = now_s;
        }
        driver.accept(command);
        launches(&driver).since_s
    };
    assert_eq!(stamped(log_s + 47, "UTC"), log_s + 47);
    assert_eq!(stamped(log_s + 99, "UTC"), log_s + 47, "nothing has changed");
    assert_eq!(stamped(log_s - 99, "Europe/Berlin"), log_s, "not before log time");
    assert_eq!(stamped(i64::MAX, "UTC"), i64::MAX);
    start(&mut driver, NIGHT, 0);
    assert_eq!(launches(&driver).since_s, NIGHT);
}

#[test]
fn a_forced_launch_is_one_more_and_may_overlap() {
    let mut driver = with_job(|block| block.prohibit_overlap = true);
    start(&mut driver, NIGHT, 0);
    let force = |driver: &mut Driver, due_s| -> Command {
        let evaluation = driver.evaluation_id();
        ForcePeriodic { job: job_key("t"), due_s, evaluation }.into()
    };
    for due_s in [NIGHT - 100, NIGHT + 60] {
        let asked = force(&mut driver, due_s);
        let made = driver.accept(asked);
        assert!(matches!(made, Reply::Job { evaluation: Some(_), .. }), "{made:?}");
    }
    assert_eq!(launches(&driver).last_due_s, NIGHT, "it is no due time");
    let again = force(&mut driver, NIGHT + 60);
    assert!(driver.reject(again).to_string().contains("in this second already"));
    for child in [NIGHT - 100, NIGHT, NIGHT + 60] {
        end(&mut driver, &format!("t/periodic-{child}"));
    }
    start(&mut driver, NIGHT + 60, 0);
    assert_eq!(children(&driver).len(), 3, "the due time has a child already");
    assert_eq!(launches(&driver).last_due_s, NIGHT + 60);
    // One that was forced in the second of a due time is no overlap of itself.
    let asked = force(&mut driver, NIGHT + 120);
    driver.accept(asked);
    start(&mut driver, NIGHT + 120, 0);
    assert_eq!((children(&driver).len(), launches(&driver).overlapped), (4, 0));
    start(&mut driver, NIGHT + 180, 0);
    assert_eq!((children(&driver).len(), launches(&driver).overlapped), (4, 1));
    driver.deregister_job("t", false);
    let stopped = force(&mut driver, NIGHT + 120);
    assert!(driver.reject(stopped).to_string().contains("is stopped"));
}

#[test]
fn a_job_that_cannot_be_periodic_is_refused() {
    let mut driver = Driver::default();
    let mut check = |spec: JobSpec, text: &str| {
        let evaluation = driver.evaluation_id();
        let why = driver.reject(register(spec, evaluation)).to_string();
        assert!(why.contains(text), "{why}");
    };
    for kind in [JobKind::Service, JobKind::System] {
        check(JobSpec { kind, ..periodic("t", |_| {}) }, "batch or sysbatch");
    }
    let both = Some(Parameterized::default());
    check(JobSpec { parameterized: both, ..periodic("t", |_| {}) }, "one of the two");
    check(periodic("t", |block| block.specs.clear()), "0 lines of cron");
    check(periodic("t", |block| block.specs = vec!["".into(); 65]), "65 lines of cron");
    check(periodic("t", |block| block.specs = vec!["*".repeat(2_000).into()]), "2000 bytes");
    check(periodic("t", |block| block.time_zone = "z".repeat(2_000).into()), "2000 bytes");
    check(periodic(&"x".repeat(230), |_| {}), "230 bytes");
}

/// A node that comes runs the launch that goes on, and not each that ever was.
#[test]
fn launches_on_every_node_that_are_over_do_not_run_on_one_that_comes() {
    let mut driver = Driver::default();
    put(&mut driver, JobSpec { kind: JobKind::Sysbatch, ..periodic("t", |_| {}) });
    start(&mut driver, NIGHT, 0);
    end(&mut driver, "t/periodic-2000000000");
    start(&mut driver, NIGHT + 60, 0);
    assert_eq!(children(&driver)[1].kind, JobKind::Sysbatch);
    let before = driver.open_evaluations("t/periodic-2000000060").len();
    driver.node("late");
    assert_eq!(driver.open_evaluations("t"), []);
    assert_eq!(driver.open_evaluations("t/periodic-2000000000"), []);
    assert_eq!(driver.open_evaluations("t/periodic-2000000060").len(), before + 1);
}

/// A launch that is refused would be asked for again for ever.
#[test]
fn the_largest_periodic_job_is_launched() {
    let name = "x".repeat(limits::PARENT_ID_BYTES_MAX);
    let with_meta = |bytes: usize| {
        let mut spec = JobSpec { name: "".into(), ..periodic(&name, |_| ()) };
        spec.meta.insert("m".into(), "x".repeat(bytes).into());
        spec
    };
    let rest = limits::JOB_BYTES_MAX - with_meta(limits::JOB_BYTES_MAX / 2).bytes();
    let largest = with_meta(limits::JOB_BYTES_MAX / 2 + rest);
    assert_eq!(largest.bytes(), limits::JOB_BYTES_MAX);
    let one_more = with_meta(limits::JOB_BYTES_MAX / 2 + rest + 1);
    assert!(one_more.check().is_err_and(|why| why.contains("the job")));
    let mut driver = Driver::default();
    put(&mut driver, largest);
    let launch = Launch {
        job: job_key(&name),
        job_modify_index: driver.job_row(&name).job_modify_index,
        last_due_s: 0,
        due_s: i64::MAX,
        missed: 0,
        evaluation: driver.evaluation_id(),
    };
    assert_eq!(driver.accept(command(vec![launch])), Reply::Done);
}
