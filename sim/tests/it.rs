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

#[test]
fn another_seed_gives_another_trace() {
    let trace_of = |seed| {
        let (passed, text) = sim(&["run", "--seed", seed, "--servers", "1"]);
        assert!(passed, "{text}");
        text.split("trace ").nth(1).unwrap().trim().to_owned()
    };
    assert_ne!(trace_of("1"), trace_of("2"));
}

#[test]
fn a_handful_of_seeds_and_all_regressions_pass() {
    let (passed, text) = sim(&["many", "--from", "0", "--to", "6"]);
    assert!(passed, "{text}");
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
        for verb in ["many", "a1"] {
            let (passed, text) = sim(&[verb, range[0], range[1], range[2], range[3]]);
            assert!(!passed, "{text}");
            assert!(text.contains("there is no seed from"), "{text}");
        }
    }
}
