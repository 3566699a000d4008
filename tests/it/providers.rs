//! `quorate provider check` with the example program, which must pass, and with copies of it that break one rule each.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::program;

const EXAMPLE: &str = "examples/providers/local.py";

/// A program and the folder of its machines. Dropping it destroys what is left of them.
struct Subject {
    directory: TempDir,
    script: PathBuf,
}

/// The example's text.
pub(crate) fn example() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE)).unwrap()
}

/// Whether there is a python3; says so if not.
pub(crate) fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: there is no python3");
    }
    found
}

impl Subject {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("provider.py");
        fs::write(&script, text).unwrap();
        Self { directory, script }
    }

    fn machines(&self) -> PathBuf {
        self.directory.path().join("machines")
    }

    fn arguments(&self) -> [String; 4] {
        let machines = self.machines().display().to_string();
        ["-directory".into(), machines, "-quorate".into(), env!("CARGO_BIN_EXE_quorate").into()]
    }

    /// The report, and whether the exit code is 0.
    fn check(&self, seconds: u32) -> (Value, bool) {
        let output = program()
            .args(["provider", "check", "-json", "-timeout", &seconds.to_string(), "--", "python3"])
            .arg(&self.script)
            .args(self.arguments())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout);
        (report.unwrap_or_else(|error| panic!("{error}: {errors}")), output.status.success())
    }
}

impl Subject {
    /// Makes calls, and returns the hello and the replies.
    fn talk(&self, calls: &[Value]) -> Vec<Value> {
        let mut child = Command::new("python3")
            .arg(&self.script)
            .args(self.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for call in calls {
            writeln!(stdin, "{call}").unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        fs::write(&self.script, example()).unwrap();
        let entries = fs::read_dir(self.machines()).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let destroy = |name| json!({"id": 1, "call": "destroy", "provider_id": name});
        self.talk(&names.map(destroy).collect::<Vec<_>>());
    }
}

/// The example with other text in one place: the named check must fail and say why.
fn check_fails(old: &str, new: &str, name: &str, why: &str) {
    if !has_python() {
        return;
    }
    let text = example();
    assert_eq!(text.matches(old).count(), 1, "the example has changed: {old}");
    let subject = Subject::new(&text.replace(old, new));
    let (report, is_success) = subject.check(8);
    assert!(!is_success && report["Passed"] == false, "{report:#}");
    let mut checks = report["Checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["Name"] == name).unwrap();
    assert_eq!(check["Result"], "fail", "{report:#}");
    assert!(check["Why"].as_str().unwrap().contains(why), "{report:#}");
}

#[test]
fn the_example_passes() {
    if !has_python() {
        return;
    }
    let subject = Subject::new(&example());
    let (report, is_success) = subject.check(60);
    assert!(is_success && report["Passed"] == true, "{report:#}");
    assert!(report["LeftBehind"].is_null(), "{report:#}");
    let left = fs::read_dir(subject.machines()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.collect();
    left.sort_unstable();
    assert_eq!(left, ["destroyed", "lock"]);
    let lines = program()
        .args(["provider", "check", "--", "python3"])
        .arg(&subject.script)
        .args(subject.arguments())
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&lines.stdout);
    assert!(table.ends_with("\n\n13 of 13 checks passed\n"), "{table}");
}

/// A create may be late: a server that was stopped for a while goes on and sends it.
#[test]
fn the_example_makes_no_destroyed_machine_again() {
    if !has_python() {
        return;
    }
    let subject = Subject::new(&example());
    let key = "5f1c8a52-0c3e-4a57-9d6e-4f3b7b0f2a11";
    let create = json!({"id": 2, "call": "create", "cluster": "c", "key": key, "tags": {}, "agent_config": ""});
    let replies = subject.talk(&[
        json!({"id": 1, "call": "destroy", "cluster": "c", "instance": key, "provider_id": key}),
        create,
        json!({"id": 3, "call": "list", "cluster": "c"}),
    ]);
    assert_eq!(replies[1]["result"]["state"], "gone", "{replies:?}");
    assert_eq!(replies[2]["error"]["class"], "fatal", "{replies:?}");
    assert_eq!(replies[3]["result"]["machines"], json!([]), "{replies:?}");
}

#[test]
fn a_program_that_ignores_the_key_fails() {
    check_fails(
        "folder = folder_of(call[\"key\"])",
        "folder = folder_of(str(uuid.uuid4()))",
        "create-again",
        "first made machine",
    );
}

#[test]
fn a_list_without_tags_fails() {
    check_fails(
        "\"tags\": one[\"tags\"]}\n",
        "\"tags\": {}}\n",
        "list-tags",
        "is listed without tag quorate-behavior",
    );
}

#[test]
fn a_destroy_that_does_nothing_fails() {
    check_fails(
        "def destroy(call):\n",
        "def destroy(call):\n    return {\"state\": \"gone\"}\n",
        "destroy",
        "destroy answered `gone`, and 8 s later the list still has",
    );
}

#[test]
fn two_replies_to_one_call_fail() {
    let reply = "print(json.dumps({\"id\": request[\"id\"], **answer(request)}), flush=True)";
    let second = "print(json.dumps({\"id\": request[\"id\"], \"result\": {}}), flush=True)";
    check_fails(reply, &format!("{reply}\n    {second}"), "one-reply", "a second reply");
}

#[test]
fn text_that_is_not_json_fails() {
    check_fails(
        "def create(call):\n",
        "def create(call):\n    print(\"making a machine\", flush=True)\n",
        "json-lines",
        "is not a JSON object: `making a machine`",
    );
}
