//! Tests of the fault injector on real processes that do nothing.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use super::*;
use crate::checker::Verdict;
use crate::checker::coverage;
use crate::cluster::Setup;

/// Three servers that only sleep, all started.
fn sleepers() -> (tempfile::TempDir, Mutex<Cluster>, Vec<Endpoint>) {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup {
        binary: PathBuf::from("/bin/sh"),
        directory: directory.path().to_owned(),
        servers: 3,
        plant: None,
        guard: None,
    };
    let mut cluster = Cluster::create(setup).unwrap();
    for (server, endpoint) in cluster.endpoints().to_vec().iter().enumerate() {
        let script = directory.path().join(&endpoint.name).join("server");
        std::fs::write(script, "exec sleep 1000").unwrap();
        cluster.start(server).unwrap();
    }
    let endpoints = cluster.endpoints().to_vec();
    (directory, Mutex::new(cluster), endpoints)
}

#[test]
fn faults_are_installed_overlap_and_heal() {
    let (_directory, cluster, endpoints) = sleepers();
    let recorder = Recorder::in_memory();
    let mut nemesis = Nemesis::new(&cluster, &endpoints, &recorder, Random::stream(5, 0));
    let stop = AtomicBool::new(false);
    let schedule =
        Schedule { quiet: Duration::from_millis(20), interval: Duration::from_millis(60) };
    let classes = [FaultClass::Kill, FaultClass::Pause];
    std::thread::scope(|scope| {
        scope.spawn(|| nemesis.torment(&classes, schedule, &stop).unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            let covered = coverage::check(&recorder.snapshot().0, &classes);
            if covered.classes.values().all(|attempts| attempts.installed >= 3) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let report = coverage::check(&recorder.snapshot().0, &classes);
    assert_eq!(report.valid, Verdict::True, "{report:?}");
    nemesis.heal_all().unwrap();
    let mut cluster = cluster.lock().unwrap();
    assert_eq!(cluster.running_and(false), [0, 1, 2]);
    assert_eq!(cluster.exits(), []);
}

#[test]
fn links_without_traffic_do_not_count_as_partitioned() {
    let (_directory, cluster, endpoints) = sleepers();
    let recorder = Recorder::in_memory();
    let mut nemesis = Nemesis::new(&cluster, &endpoints, &recorder, Random::stream(5, 0));
    let outcome = nemesis.strike_links(Shape::One, Flow::Held);
    nemesis.conclude(FaultClass::Partition, outcome);
    let outcome = nemesis.strike_links(Shape::Primaries, Flow::Cut);
    nemesis.conclude(FaultClass::Partition, outcome);
    let report = coverage::check(&recorder.snapshot().0, &[FaultClass::Partition]);
    assert_eq!(report.valid, Verdict::Unknown);
    let attempts = &report.classes["partition"];
    assert_eq!((attempts.installed, attempts.skipped, attempts.indeterminate), (0, 1, 1));
}

#[test]
fn aims_have_the_size_they_say() {
    let mut random = Random::stream(1, 0);
    let mut size = |aim: Aim, count| aim.servers(count, &[2], &mut random).len();
    assert_eq!((size(Aim::One, 5), size(Aim::Minority, 5), size(Aim::Majority, 5)), (1, 2, 3));
    assert_eq!((size(Aim::Minority, 3), size(Aim::Majority, 3), size(Aim::All, 3)), (1, 2, 3));
    assert_eq!(Aim::Primaries.servers(3, &[2], &mut random), [2]);
    assert!(Aim::Primaries.servers(3, &[], &mut random).is_empty());
}

#[test]
fn short_runs_get_short_schedules() {
    let seconds = Duration::from_secs;
    assert_eq!(Schedule::default_interval(seconds(30)), seconds(5));
    assert_eq!(Schedule::default_interval(seconds(300)), seconds(10));
    assert_eq!(Schedule::default_interval(seconds(3)), seconds(1));
    assert_eq!(Schedule::new(seconds(5), seconds(30)).quiet, seconds(5));
    assert_eq!(Schedule::new(seconds(5), seconds(6)).quiet, seconds(1));
}
