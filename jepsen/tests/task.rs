//! The task of real agents, as a process: it holds its lock, tells that it begins and that it was asked to end, and does not outlive the harness.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

/// A place as the harness makes it, and the lock that the harness holds.
fn place(directory: &Path) -> File {
    fs::create_dir(directory.join("locks")).unwrap();
    File::create(directory.join("journal.jsonl")).unwrap();
    File::create(directory.join("look")).unwrap();
    // Its parent works where its agent wrote this: the test is the executor.
    File::create(directory.join("spec.json")).unwrap();
    std::env::set_current_dir(directory).unwrap();
    let alive = File::create(directory.join("alive")).unwrap();
    flock(&alive, FlockOperation::LockExclusive).unwrap();
    alive
}

fn task(directory: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_jepsen"))
        .arg("task")
        .arg(directory)
        .args(["0", "a4"])
        // Its digits say that it ends at once when asked.
        .env("NOMAD_ALLOC_ID", "00")
        .spawn()
        .unwrap()
}

/// The events in the journal, once there are so many.
fn events(directory: &Path, count: usize) -> Vec<String> {
    let end = Instant::now() + Duration::from_mins(1);
    loop {
        let text = fs::read_to_string(directory.join("journal.jsonl")).unwrap();
        let event = |line: &str| {
            let rest = line.split_once("\"event\":\"").unwrap().1;
            rest.split('"').next().unwrap().to_owned()
        };
        let found: Vec<String> = text.lines().map(event).collect();
        if found.len() >= count || Instant::now() >= end {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_held(directory: &Path) -> bool {
    let lock = File::open(directory.join("locks/00")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

#[test]
fn it_tells_what_becomes_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let alive = place(directory);
    let mut first = task(directory);
    assert_eq!(events(directory, 1), ["start"]);
    assert!(is_held(directory));
    let mut second = task(directory);
    assert_eq!(events(directory, 2), ["start", "twice"]);
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    assert!(first.wait().unwrap().success());
    assert_eq!(events(directory, 3), ["start", "twice", "end"]);
    assert!(!is_held(directory));

    let mut third = task(directory);
    assert_eq!(events(directory, 4), ["start", "twice", "end", "start"]);
    drop(alive);
    assert!(second.wait().unwrap().success());
    assert!(third.wait().unwrap().success());
    assert_eq!(events(directory, 4).len(), 4, "nobody asked them to end");
}
