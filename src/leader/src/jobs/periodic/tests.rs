//! The machine against the real state machine, with a clock that the test sets (D4).

use fsm::{
    command::JobCommand,
    job::{JobKind, JobSpec},
    testing::{Driver, START_MS, job, job_key, register},
};

use super::*;

const START_S: i64 = (START_MS / 1000).cast_signed();

fn periodic(name: &str, lines: &[&str], change: impl FnOnce(&mut Periodic)) -> JobSpec {
    let mut block = Periodic {
        enabled: true,
        specs: lines.iter().map(|line| (*line).into()).collect(),
        time_zone: "UTC".into(),
        ..Periodic::default()
    };
    change(&mut block);
    JobSpec { periodic: Some(block), ..job(name, JobKind::Batch, 1) }
}

/// A state machine and the watch of its leader.
struct World {
    driver: Driver,
    watch: PeriodicWatch,
    reports: Vec<Report>,
    proposed: usize,
    looks: usize,
    ids: u8,
}

impl World {
    fn new(jobs: &[JobSpec]) -> Self {
        let mut driver = Driver { checked: false, ..Driver::default() };
        for spec in jobs {
            let evaluation = driver.evaluation_id();
            driver.accept(register(spec.clone(), evaluation));
        }
        let watch = PeriodicWatch::default();
        let reports = Vec::new();
        let mut world = Self { driver, watch, reports, proposed: 0, looks: 0, ids: 0 };
        world.take_over();
        world
    }

    /// Another leader.
    fn take_over(&mut self) {
        self.watch = PeriodicWatch::default();
        self.watch.restore(self.driver.now, &self.driver.state);
    }

    fn put(&mut self, spec: JobSpec) {
        self.put_at((self.driver.now / 1000).cast_signed(), spec);
    }

    /// Registers by a server that takes this for the time.
    fn put_at(&mut self, now_s: i64, spec: JobSpec) {
        let evaluation = self.driver.evaluation_id();
        let key = spec.key.clone();
        let mut command = register(spec, evaluation);
        if let Command::Job(JobCommand::RegisterJob(command)) = &mut command {
            command.now_s = now_s;
        }
        self.driver.accept(command);
        self.tell(&key);
    }

    fn tell(&mut self, key: &JobKey) {
        let state = &self.driver.state;
        self.watch.take(self.driver.now, state, 1, &Effect::Job(key.clone()));
    }

    /// Steps once; nothing of it is applied.
    fn look(&mut self) -> Vec<Launch> {
        let mut stepped = Stepped::default();
        let ids = &mut self.ids;
        let mut ids = || {
            *ids += 1;
            let mut id = [0xee; 16];
            id[0] = *ids;
            id
        };
        self.watch.step(self.driver.now, &self.driver.state, &mut ids, &mut stepped);
        self.reports.append(&mut stepped.reports);
        self.looks += 1;
        let launches = stepped.commands.into_iter().flat_map(|command| {
            let Command::Job(JobCommand::LaunchPeriodic(command)) = command else {
                panic!("{command:?}")
            };
            command.launches
        });
        launches.collect()
    }

    /// Steps and applies until nothing is to be done at this time.
    fn settle(&mut self) {
        loop {
            let launches = self.look();
            if launches.is_empty()
                && self.watch.next_deadline().is_none_or(|at| at > self.driver.now)
            {
                return;
            }
            for launch in launches {
                self.proposed += 1;
                let key = launch.job.clone();
                self.driver.commit(LaunchPeriodic { launches: vec![launch] }.into());
                self.tell(&key);
            }
        }
    }

    /// Lets the clock run.
    fn run(&mut self, ms: u64) {
        self.driver.now += ms;
        self.settle();
    }

    /// Seconds since the start for which there are children.
    fn children(&self, parent: &str) -> Vec<i64> {
        let rows = self.driver.state.jobs().iter();
        let own = rows.filter(|row| row.key.parent() == Some(parent));
        let mut times: Vec<i64> = own
            .map(|row| row.key.id.rsplit_once('-').expect("a child's id").1)
            .map(|time| time.parse::<i64>().expect("a time") - START_S)
            .collect();
        times.sort_unstable();
        times
    }

    fn known(&self, name: &str) -> Launches {
        self.driver.job_row(name).periodic.expect("periodic")
    }
}

fn each_second() -> World {
    World::new(&[periodic("t", &["* * * * * * *"], |_| {})])
}

#[test]
fn a_job_is_launched_when_it_is_due_and_nothing_happens_between() {
    let mut world = World::new(&[periodic("t", &["*/10 * * * * * *"], |_| {})]);
    world.settle();
    assert_eq!(world.watch.next_deadline(), Some(START_MS + 10_000));
    for _ in 0..59 {
        world.run(500);
    }
    assert_eq!(world.children("t"), [10, 20]);
    world.run(500);
    assert_eq!(world.children("t"), [10, 20, 30]);
    assert_eq!(world.proposed, 3);
    assert_eq!(world.known("t").missed, 0);
    assert_eq!(world.reports, []);
}

#[test]
fn two_jobs_of_one_due_time_and_one_id_in_two_namespaces_are_launched_each() {
    let mut spec = periodic("a", &["0 * * * *", "0 * * * *"], |_| {});
    let other = periodic("b", &["0 * * * *"], |_| {});
    let mut world = World::new(&[spec.clone(), other]);
    let name = "team".into();
    let namespace = fsm::settings::Namespace { name, ..Default::default() };
    world.driver.accept(fsm::settings::UpsertNamespace { namespace }.into());
    spec.key.namespace = "team".into();
    world.put(spec);
    world.settle();
    world.run(3_600_000);
    let keys: Vec<String> = world
        .driver
        .state
        .jobs()
        .iter()
        .filter(|row| row.key.parent().is_some())
        .map(|row| format!("{}", row.key))
        .collect();
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert_eq!(keys.iter().filter(|key| key.contains("team")).count(), 1, "{keys:?}");
}

/// L5: one missed launch is made up, and the others are counted and said.
#[test]
fn after_an_outage_the_last_due_time_is_made_up() {
    let mut world = World::new(&[periodic("t", &["*/10 * * * * * *"], |_| {})]);
    world.run(10_000);
    world.driver.now += 65_000;
    world.take_over();
    world.settle();
    assert_eq!(world.children("t"), [10, 70]);
    assert_eq!(world.known("t").missed, 5);
    let missed =
        Report::LaunchesMissed { job: world.driver.job_row("t").key.to_string().into(), count: 5 };
    assert_eq!(world.reports, [missed]);
    world.run(5_000);
    assert_eq!(world.children("t"), [10, 70, 80]);
    let mut gauges = BTreeMap::new();
    world.watch.gauges(0, &mut |name, value| {
        gauges.insert(name.to_owned(), value);
    });
    assert_eq!((gauges["periodic.missed"], gauges["periodic.dealt_with"]), (5, 2));
}

/// Each due time is launched once or counted, whichever step of a launch a leader is lost at.
#[test]
fn leaders_that_are_lost_at_any_step_of_a_launch_lose_no_due_time() {
    let mut world = each_second();
    world.settle();
    for round in 0..60_u64 {
        world.driver.now += 1_000;
        let launches = world.look();
        match round % 4 {
            // Before it proposed; after its entry was applied, and nobody heard of it.
            0 => world.take_over(),
            1 => {
                for launch in launches.clone() {
                    world.driver.commit(LaunchPeriodic { launches: vec![launch] }.into());
                }
                world.take_over();
            }
            // Its entry is applied after the next leader's.
            2 => {
                world.take_over();
                world.settle();
                for launch in launches {
                    world.driver.commit(LaunchPeriodic { launches: vec![launch] }.into());
                }
            }
            _ => {
                for launch in launches {
                    world.driver.commit(LaunchPeriodic { launches: vec![launch] }.into());
                }
                world.tell(&job_key("t"));
            }
        }
    }
    world.settle();
    let (children, known) = (world.children("t"), world.known("t"));
    assert_eq!(known.last_due_s, START_S + 60);
    assert_eq!(children.len() as u64 + known.missed, 60, "{children:?} {known:?}");
}

/// The entry of the leader before is applied after the next one has proposed: what that one counted
/// as missed is launched, so its own launch is refused, and counted anew.
#[test]
fn a_launch_that_is_applied_late_is_not_counted_as_missed() {
    let mut world = each_second();
    world.run(1_000);
    world.driver.now += 1_000;
    let late = world.look();
    world.take_over();
    world.driver.now += 1_000;
    let next = world.look();
    assert_eq!(next[0].missed, 1, "it knows of no launch for the second before");
    for launches in [late, next] {
        world.driver.commit(LaunchPeriodic { launches }.into());
        world.tell(&job_key("t"));
    }
    assert_eq!(world.known("t").missed, 0);
    world.settle();
    assert_eq!((world.children("t"), world.known("t").missed), (vec![1, 2, 3], 0));
    assert_eq!(world.watch.counts.overtaken, 1);
}

/// As after an outage of all servers, when log time goes on from their clocks.
#[test]
fn log_time_that_leaps_launches_nothing_twice_and_no_storm() {
    let mut world = each_second();
    world.run(1_000);
    world.run(1_000);
    let before = world.proposed;
    world.run(3_601_000);
    assert_eq!(world.proposed, before + 1, "one is made up");
    assert_eq!(world.children("t"), [1, 2, 3_603]);
    assert_eq!(world.known("t").missed, 3_600);
    assert!(world.looks < 20, "{} steps", world.looks);
    world.take_over();
    world.run(1_000);
    assert_eq!(world.children("t"), [1, 2, 3_603, 3_604], "and it goes on at once");
}

/// What was due before a registration, or a change of the cron, is neither launched nor missed,
/// whoever leads next.
#[test]
fn a_new_cron_makes_nothing_up() {
    for late_s in [47_i64, 109] {
        let mut world = World::new(&[]);
        world.driver.now += late_s.cast_unsigned() * 1_000;
        world.settle();
        world.put(periodic("t", &["*/10 * * * * * *"], |_| {}));
        world.settle();
        world.take_over();
        world.settle();
        assert_eq!((world.children("t"), world.known("t").missed), (vec![], 0));
        world.run(10_000);
        let first = (late_s + 10) / 10 * 10;
        assert_eq!((world.children("t"), world.known("t").missed), (vec![first], 0));
        world.put(periodic("t", &["*/2 * * * * * *"], |_| {}));
        world.settle();
        world.take_over();
        world.settle();
        assert_eq!((world.children("t"), world.known("t").missed), (vec![first], 0));
    }
}

/// A job that was registered by a server that knew another time starts when it is due by log time,
/// and loses no due time to another leader after that.
#[test]
fn a_registration_from_the_future_keeps_nothing_from_starting() {
    let mut world = World::new(&[]);
    world.put_at(i64::MAX, periodic("t", &["*/10 * * * * * *"], |_| {}));
    world.settle();
    world.run(10_000);
    assert_eq!(world.children("t"), [10]);
    world.driver.now += 25_000;
    world.take_over();
    world.settle();
    assert_eq!((world.children("t"), world.known("t").missed), (vec![10, 30], 1));
}

#[test]
fn a_changed_job_takes_effect() {
    let mut world = World::new(&[periodic("t", &["*/10 * * * * * *"], |_| {})]);
    world.run(10_000);
    world.run(5_000);
    world.put(periodic("t", &["*/20 * * * * * *"], |_| {}));
    world.run(4_000);
    world.run(1_000);
    world.run(10_000);
    assert_eq!(world.children("t"), [10, 20], "no longer at 30");
    world.put(periodic("t", &["* * * * * * *"], |block| block.enabled = false));
    world.run(10_000);
    assert_eq!(world.watch.next_deadline(), None);
    world.put(periodic("t", &["* * * * * * *"], |_| {}));
    world.run(1_000);
    assert_eq!(world.children("t"), [10, 20, 41], "what was due while it was off is not made up");
    world.driver.deregister_job("t", false);
    world.tell(&job_key("t"));
    world.run(1_000);
    assert_eq!(world.watch.next_deadline(), None);
    world.driver.deregister_job("t", true);
    world.tell(&job_key("t"));
    world.put(periodic("t", &["* * * * * * *"], |_| {}));
    world.run(1_000);
    assert_eq!(world.children("t"), [10, 20, 41, 43], "registered anew");
    assert_eq!(world.known("t").missed, 0);
}

/// A change that leaves the clock alone loses no due time, also when the launch that was asked for
/// came too late for it.
#[test]
fn a_change_of_something_else_loses_no_due_time() {
    let mut world = each_second();
    world.run(1_000);
    world.driver.now += 1_000;
    let asked = world.look();
    assert_eq!(asked.len(), 1);
    let changed = JobSpec { priority: 70, ..periodic("t", &["* * * * * * *"], |_| {}) };
    world.put(changed);
    world.driver.reject(LaunchPeriodic { launches: asked }.into());
    world.settle();
    assert_eq!(world.children("t"), [1, 2]);
    assert_eq!(world.known("t").missed, 0);
}

#[test]
fn a_launch_that_is_lost_is_asked_for_again_and_stays_the_same() {
    let mut world = each_second();
    world.driver.now += 1_000;
    let first = world.look();
    assert_eq!(first.len(), 1);
    world.driver.now += 1_000;
    assert_eq!(world.look(), [], "it is under way");
    assert_eq!(
        world.watch.next_deadline(),
        Some(world.driver.now - 1_000 + limits::LAUNCH_RETRY_MS)
    );
    world.driver.now += 1_000;
    assert_eq!(world.look(), first);
    world.driver.accept(LaunchPeriodic { launches: first }.into());
    world.tell(&job_key("t"));
    world.settle();
    let (children, known) = (world.children("t"), world.known("t"));
    assert_eq!((children, known.missed), (vec![1, 3], 1));
}

#[test]
fn an_overlap_is_said() {
    let mut world = World::new(&[periodic("t", &["* * * * * * *"], |block| {
        block.prohibit_overlap = true;
    })]);
    for _ in 0..3 {
        world.run(1_000);
    }
    assert_eq!(world.children("t"), [1]);
    assert_eq!(world.known("t").overlapped, 2);
    let said = |report: &&Report| matches!(report, Report::LaunchOverlapped { count: 1, .. });
    assert_eq!(world.reports.iter().filter(said).count(), 2);
}

/// Edges refuse such a line; one that got past them starts nothing, and is said.
#[test]
fn a_line_that_cannot_be_read_is_said_and_starts_nothing() {
    let mut world = World::new(&[periodic("t", &["61 * * * *"], |_| {})]);
    world.settle();
    assert!(matches!(world.reports[..], [Report::CronUnreadable { .. }]), "{:?}", world.reports);
    assert_eq!(world.watch.next_deadline(), None);
    let mut over = World::new(&[periodic("t", &["0 0 1 1 * 2001"], |_| {})]);
    over.settle();
    assert_eq!(over.watch.next_deadline(), None, "it comes no more");
}

/// Between due times a step is one look at the first of them.
#[test]
fn many_jobs_cost_nothing_between_due_times() {
    let jobs: Vec<JobSpec> =
        (0..10_000).map(|number| periodic(&format!("t{number}"), &["0 0 1 1 *"], |_| {})).collect();
    let mut world = World::new(&jobs);
    world.settle();
    assert_eq!(world.watch.jobs.len(), 10_000);
    assert!(world.looks <= 12, "{} steps to begin", world.looks);
    for _ in 0..100 {
        assert_eq!(world.look(), []);
    }
    // Nothing but the first due time was looked at: no row is read again.
    assert!(world.watch.changed.is_empty() && world.watch.asked.is_empty());
    assert!(world.watch.next_deadline() > Some(world.driver.now + 3_600_000));
}
