//! Names, reasons and messages of tasks, files, providers and job files that try to take over the
//! terminal.

use serde_json::{Value, json};

use super::{ALLOCATION, Canned, EVALUATION, NODE_B, allocation, evaluation};
use crate::cli::table::is_hidden;

/// Clears the screen, names the window, goes back over the line, paints, turns text round.
const HOSTILE: &str = "x\u{1b}[2J\u{1b}]0;y\u{7}\r\u{8}\u{9b}31m\u{7f}\u{202e}z";
/// What commands compare, look up or reckon with.
const PLAIN: [&str; 14] = [
    "ID",
    "JobID",
    "NodeID",
    "EvalID",
    "DeploymentID",
    "Status",
    "ClientStatus",
    "DesiredStatus",
    "Type",
    "State",
    "ModTime",
    "Time",
    "Namespace",
    "SchedulingEligibility",
];

/// The same answer from somebody who means harm.
fn hostile(answer: &Value) -> Value {
    match answer {
        Value::String(text) => format!("{text}{HOSTILE}").into(),
        Value::Array(items) => items.iter().map(hostile).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| {
                let is_plain = PLAIN.contains(&key.as_str()) && value.is_string();
                (key.clone(), if is_plain { value.clone() } else { hostile(value) })
            });
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => answer.clone(),
    }
}

fn canned() -> Canned {
    let mut one = allocation("failed");
    one["ClientDescription"] = "Failed tasks".into();
    one["TaskStates"] = json!({"server": {"State": "dead", "Failed": true, "Events": [
        {"Type": "Driver Failure", "Time": 1, "DisplayMessage": "failed", "Message": "failed"}]}});
    let mut blocked = evaluation("blocked");
    blocked["StatusDescription"] = "waits".into();
    blocked["FailedTGAllocs"] = json!({"web": {"ConstraintFiltered": {"missing": 1}}});
    let job = json!({"ID": "web", "Name": "web", "Type": "service", "Status": "running",
        "StatusDescription": "waits", "Version": 1, "Meta": {"a": "b"},
        "TaskGroups": [{"Name": "web", "Count": 1, "Tasks": [{"Name": "t", "Driver": "mock"}]}]});
    let file = json!({"Name": "trace", "IsDir": false, "Size": 14, "FileMode": "-rw-r--r--",
        "ModTime": "2026-01-02T03:04:05Z", "ContentType": "text/plain"});
    let folder = json!({"Name": "local", "IsDir": true, "Size": 0, "FileMode": "drwxr-xr-x",
        "ModTime": "2026-01-02T03:04:05Z", "ContentType": "x"});
    let on = |canned: Canned, route: &str, answer: Value| canned.on(route, &hostile(&answer));
    let canned = on(Canned::default(), "GET /v1/allocations", json!([one]));
    let canned = on(canned, &format!("GET /v1/allocation/{ALLOCATION}"), one.clone());
    let canned = on(canned, &format!("GET /v1/client/fs/stat/{ALLOCATION}"), folder.clone());
    let canned = on(canned, &format!("GET /v1/client/fs/ls/{ALLOCATION}"), json!([file, folder]));
    let canned = on(canned, "GET /v1/jobs", json!([job]));
    let canned = on(canned, "GET /v1/job/web", job.clone());
    let canned = on(canned, "GET /v1/job/web/allocations", json!([one]));
    let canned = on(canned, "GET /v1/job/web/evaluations", json!([blocked]));
    let canned = on(canned, "GET /v1/job/web/versions", json!({"Versions": [job], "Diffs": null}));
    let canned = on(canned, "GET /v1/evaluations", json!([blocked]));
    let canned = on(canned, &format!("GET /v1/evaluation/{EVALUATION}"), blocked);
    let canned = on(canned, &format!("GET /v1/evaluation/{EVALUATION}/allocations"), json!([one]));
    let node = json!({"ID": NODE_B, "Name": "agent-2", "Datacenter": "dc1", "NodePool": "default",
        "Status": "ready", "SchedulingEligibility": "eligible", "Drain": false,
        "Attributes": {"os": "x"}, "Meta": {"rack": "r1"}, "Health": {"Status": "ok"}});
    let canned = on(canned, "GET /v1/nodes/offline", json!([]));
    let canned = on(canned, "GET /v1/nodes", json!([node]));
    let canned = on(canned, &format!("GET /v1/node/{NODE_B}"), node);
    let canned = on(canned, &format!("GET /v1/node/{NODE_B}/allocations"), json!([one]));
    canned.fail("GET /v1/deployments", 500, HOSTILE).fail("GET /v1/namespaces", 500, HOSTILE)
}

#[test]
fn nothing_that_others_have_written_takes_over_the_terminal() {
    let server = canned().start();
    let mut escaped = 0;
    for command in [
        "alloc status aaaa",
        "alloc status -json aaaa",
        "alloc fs aaaa web/local",
        "alloc fs -stat aaaa web/local",
        "job status",
        "job status web",
        "job status -json web",
        "job inspect web",
        "job history web",
        "job allocs web",
        "eval list",
        "eval status eeee",
        "node status",
        "node status -verbose 1111",
        "deployment list",
        "namespace list",
        "job status nothing",
    ] {
        let ran = server.run(command);
        let shown = format!("{}{}", ran.out, ran.err);
        let is_raw = |c: char| is_hidden(c) && c != '\n' && c != '\t';
        assert!(!shown.contains(is_raw), "{command}: {shown:?}");
        escaped += u32::from(shown.contains("u{1b}") || shown.contains("\\u001b"));
    }
    assert!(escaped >= 13, "only {escaped} of them have shown anything of it");
    // A failure with words of somebody else.
    assert!(server.run("deployment list").err.contains("u{1b}"));
}
