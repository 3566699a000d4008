//! The simulator as a program: a seed repeats byte for byte, and a handful of seeds pass.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

fn sim(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sim")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

/// P7: a run of three servers with a crash of the leader gives the same trace twice.
#[test]
fn the_same_seed_gives_the_same_trace() {
    let (passed, text) = sim(&["determinism", "--seed", "1", "--servers", "3"]);
    assert!(passed, "{text}");
    assert!(text.contains("the traces are equal"), "{text}");
}

/// The trace of a run that passes.
fn trace_of(arguments: &[&str]) -> String {
    let (passed, text) = sim(&[&["run"], arguments].concat());
    assert!(passed, "{text}");
    text.split("trace ").nth(1).unwrap().trim().to_owned()
}

#[test]
fn another_seed_gives_another_trace() {
    let trace_of = |seed| trace_of(&["--seed", seed, "--servers", "1"]);
    assert_ne!(trace_of("1"), trace_of("2"));
}

/// Whatever seeds mean by then: the file says it all.
#[test]
fn a_kept_plan_is_the_run_that_its_seed_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kept.toml");
    let path = path.to_str().unwrap();
    let drawn = ["--seed", "3", "--without", "bit-rot,machines", "--safety-ms", "5000"];
    let (saved, text) = sim(&[&["plan"], &drawn[..], &["--save", path]].concat());
    assert!(saved, "{text}");
    assert_eq!(trace_of(&drawn), trace_of(&["--plan", path]));
}

/// `.ci/run` runs all plans that are kept, and 2,000 seeds.
#[test]
fn two_seeds_pass() {
    for seed in ["0", "1"] {
        trace_of(&["--seed", seed]);
    }
}

#[test]
fn bad_arguments_are_refused() {
    assert!(!sim(&["run", "--seed", "1", "--servers", "0"]).0);
    assert!(!sim(&["run", "--seed", "x"]).0);
}

/// A mistyped range runs nothing, which must not look like success.
#[test]
fn no_seeds_are_no_success() {
    for range in [["--from", "7", "--to", "7"], ["--from", "2000", "--to", "200"]] {
        for verb in ["many", "control"] {
            let (passed, text) = sim(&[verb, range[0], range[1], range[2], range[3]]);
            assert!(!passed, "{text}");
            assert!(text.contains("there is no seed from"), "{text}");
        }
    }
}
