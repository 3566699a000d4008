//! What the command line accepts and refuses, and what its words mean.

#![expect(clippy::unwrap_used, reason = "tests")]

use clap::CommandFactory;
use serde_json::json;

use super::*;
use crate::{
    checker::coverage::{self, Asked},
    history::{Function, Kind, Op, Process},
    store::test_record,
};

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn arguments_are_parsed_or_refused() {
    let parse = |line: &str| Cli::try_parse_from(line.split(' '));
    let line = "jepsen test -w register --nemesis kill,pause --time-limit 5 --node-count 5 \
                --concurrency 3n -r 50 --seed 9";
    let Action::Test(test) = parse(line).unwrap().command else { panic!("not a test") };
    assert_eq!(test.nemesis, Nemeses::Named(vec![FaultClass::Kill, FaultClass::Pause]));
    assert_eq!(test.run.concurrency, Concurrency::PerServer(3));
    assert_eq!((test.run.time_limit, test.run.seed), (Some(Duration::from_secs(5)), Some(9)));
    let line = "jepsen selftest";
    let Action::Selftest(selftest) = parse(line).unwrap().command else { panic!("not that") };
    assert_eq!((selftest.nemesis, selftest.run.time_limit), (None, None));
    assert!(selftest.plants.contains(&"late-registration".to_owned()));
    let Action::Test(test) = parse("jepsen test --nemesis none").unwrap().command else {
        panic!("not a test")
    };
    assert_eq!(test.nemesis, Nemeses::Named(Vec::new()));
    for bad in [
        "jepsen",
        "jepsen test --nemesis fire",
        "jepsen test --node-count 4",
        "jepsen test --concurrency n",
        "jepsen test --rate 0",
        "jepsen test --time-limit -1",
        "jepsen test -w water",
        "jepsen analyze x.edn --model list",
        "jepsen test --ops-per-key 0",
        "jepsen test --nodes n1,n2",
        "jepsen test --nodes n1,n2,n3 --node-count 3",
        "jepsen test --snapshot-threshold 4095",
        "jepsen test --read-mode fresh",
        "jepsen test --test-count 0",
        "jepsen test --unsafe-no-fsync --plant M4",
    ] {
        assert!(parse(bad).unwrap_err().use_stderr(), "{bad}");
    }
}

/// The arguments of `jepsen test` with these flags.
fn test_arguments(flags: &str) -> TestArguments {
    let words = ["jepsen", "test"].into_iter().chain(flags.split_whitespace());
    let Action::Test(test) = Cli::try_parse_from(words).unwrap().command else {
        panic!("not a test")
    };
    test
}

#[test]
fn flags_of_other_harnesses_are_understood() {
    let test = test_arguments("");
    assert_eq!((test.run.nodes().unwrap(), test.test_count, test.planted()), (None, 1, None));
    assert_eq!((test.read_mode, test.lose_unsynced), (ReadMode::Default, false));
    assert_eq!(test.run.snapshot_threshold, SNAPSHOT_LOG_BYTES);
    let flags = "--nodes n1,n2,n3,n4,n5 --unsafe-no-fsync --read-mode stale --test-count 4 \
                 --snapshot-threshold 4096 --nemesis transfer-leader,packet,truncate-wal,corrupt";
    let test = test_arguments(flags);
    assert_eq!(test.run.nodes().unwrap(), Some(5));
    assert_eq!((test.planted(), test.test_count), (Some("skip-log-sync"), 4));
    assert_eq!((test.read_mode, test.run.snapshot_threshold), (ReadMode::Stale, 4096));
    let classes = [FaultClass::Transfer, FaultClass::Delay, FaultClass::Loss, FaultClass::Corrupt];
    assert_eq!(test.nemesis, Nemeses::Named(classes.to_vec()));
    test.check().unwrap();
    let record = unresolved(&test.run, "quorate".into()).unwrap();
    assert_eq!((record.snapshot_log_bytes, record.nodes.len()), (4096, 5));
    let help = Cli::command().find_subcommand_mut("test").unwrap().render_help().to_string();
    assert!(help.contains("[default: 65536]"), "{help}");
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    for bad in [
        "-w bank --read-mode stale",
        "--system etcd --read-mode stale",
        "--system etcd --unsafe-no-fsync",
        "--lose-unsynced --nemesis pause",
    ] {
        assert!(test_arguments(bad).check().is_err(), "{bad}");
    }
    for good in ["-w set --read-mode consistent", "--lose-unsynced --nemesis all"] {
        assert!(test_arguments(good).check().is_ok(), "{good}");
    }
}

#[test]
fn kills_that_lose_the_unsynced_are_cuts_of_the_power() {
    let nemesis = vec![FaultClass::Kill, FaultClass::Pause, FaultClass::Power];
    let mut record = TestRecord { nemesis, ..test_record() };
    lose_unsynced(&mut record, None);
    assert_eq!(record.nemesis, [FaultClass::Power, FaultClass::Pause]);
    assert_eq!(record.injected(), record.nemesis);
    // Without the means it stays asked for.
    record.nemesis = vec![FaultClass::Kill];
    lose_unsynced(&mut record, Some("it needs root".to_owned()));
    assert_eq!(record.nemesis, [FaultClass::Power]);
    assert_eq!(record.unavailable[&FaultClass::Power], "it needs root");
    assert_eq!(record.injected(), []);
}

#[test]
fn a_named_class_without_means_stays_asked_for_and_all_leaves_out_what_cannot_be_built() {
    let tools = Tools { faketime: Some("/nowhere".into()), ..Tools::default() };
    let named = Nemeses::Named(vec![FaultClass::Kill, FaultClass::Clock]);
    let (classes, unavailable) = named.resolve(System::Quorate, &tools);
    assert_eq!(classes, [FaultClass::Kill, FaultClass::Clock]);
    assert_eq!(unavailable.len(), 1);
    let (classes, unavailable) = Nemeses::All.resolve(System::Quorate, &tools);
    assert!(classes.contains(&FaultClass::Kill) && !classes.contains(&FaultClass::Clock));
    assert!(unavailable[&FaultClass::Clock].contains("/nowhere"));
    assert!(Nemeses::All.need_disk_faults() && !named.need_disk_faults());
}

#[test]
fn all_without_a_server_that_has_disk_faults_is_unknown_and_says_what_to_build() {
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("release").join("quorate");
    std::fs::create_dir(directory.path().join("release")).unwrap();
    std::fs::write(&binary, "nothing of the kind").unwrap();
    let faketime = Some("/nowhere".into());
    let tools = Tools { binary: Some(binary), faketime, ..Tools::default() };
    let (classes, unavailable) = Nemeses::All.resolve(System::Quorate, &tools);
    let disks = [FaultClass::DiskFull, FaultClass::SlowDisk, FaultClass::HangDisk];
    assert!(disks.iter().all(|class| classes.contains(class)), "{classes:?}");
    // What needs more than a build is skipped in sight.
    assert!(!classes.contains(&FaultClass::Clock), "{classes:?}");
    let installed = |class: &FaultClass| {
        let f = Function::Fault(class.begin());
        Op::new(Process::Nemesis, Kind::Info, f, json!({"outcome": "installed"}))
    };
    let done = classes.iter().filter(|class| !unavailable.contains_key(class));
    let mut history: Vec<Op> = done.map(installed).collect();
    let asked = Asked { classes: &classes, unavailable: &unavailable, at_least: 1 };
    let report = coverage::check(&history, &asked);
    assert_eq!(report.valid, Verdict::Unknown);
    let why = report.classes["disk-full"].reason.as_deref().unwrap();
    assert!(why.ends_with("cargo build --bin quorate --features faults --release"), "{why}");
    history.extend(disks.iter().map(installed));
    assert_eq!(coverage::check(&history, &asked).valid, Verdict::True);
    // Nobody can build another system so.
    let (classes, _) = Nemeses::All.resolve(System::Etcd, &tools);
    assert!(disks.iter().all(|class| !classes.contains(class)), "{classes:?}");
}

/// Seen in a run that cut links of etcd for two minutes, and nothing ever came by there.
#[test]
fn links_of_etcd_are_cut_in_namespaces_only() {
    let asked = Nemeses::Named(vec![FaultClass::Kill, FaultClass::Partition]);
    let unavailable = |system, namespaces| {
        let tools = Tools { namespaces, ..Tools::default() };
        asked.resolve(system, &tools).1.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(unavailable(System::Etcd, false), [FaultClass::Partition]);
    assert_eq!(unavailable(System::Etcd, true), []);
    assert_eq!(unavailable(System::Quorate, false), []);
}
