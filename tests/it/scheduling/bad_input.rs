//! Bad input to a running program: a clear error with the right status or exit code, and nothing else happens.

use std::{fs, process::Output};

use serde_json::{Value, json};

use super::{Stage, group, job, task};
use crate::harness::program;

fn job_with(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut job = job("service", "web", 1);
    change(&mut job);
    json!({ "Job": job }).to_string().into_bytes()
}

type Case = (&'static str, &'static str, Vec<u8>, u16, &'static str);

fn bodies() -> Vec<Case> {
    let put = |body: Vec<u8>, status, text| ("PUT", "/v1/jobs", body, status, text);
    vec![
        put(b"{\"Job\": {".to_vec(), 400, "line 1"),
        put(b"\xff\xfe".to_vec(), 400, "JSON"),
        put(Vec::new(), 400, "body is required"),
        put(b"[1, 2]".to_vec(), 400, "expected an object"),
        put(b"{}".to_vec(), 400, "Job must be specified"),
        put(vec![b' '; 10 << 20], 413, "larger than the limit of 4194304 bytes"),
        put(b"[".repeat(100_000), 400, "recursion"),
        put(job_with(|job| job["Type"] = 7.into()), 400, "Type"),
        put(job_with(|job| job["Type"] = "daemon".into()), 400, "daemon"),
        put(job_with(|job| job["ID"] = "".into()), 400, "ID"),
        put(job_with(|job| job["ID"] = "a\nb".into()), 400, "ID"),
        put(job_with(|job| job["Priority"] = 1_000.into()), 400, "Priority"),
        put(job_with(|job| job["TaskGroups"] = json!([])), 400, "TaskGroups"),
        put(job_with(|job| group(job)["Count"] = (-1).into()), 400, "Count"),
        put(job_with(|job| group(job)["Count"] = "many".into()), 400, "Count"),
        put(job_with(|job| group(job)["Name"] = "a\nb".into()), 400, "Name"),
        put(job_with(|job| task(job)["Name"] = "../../etc".into()), 400, "Name"),
        put(job_with(|job| task(job)["Resources"]["CPU"] = 0.into()), 400, "CPU"),
        put(job_with(|job| task(job)["Resources"]["MemoryMB"] = 1.into()), 400, "MemoryMB"),
        put(job_with(|job| task(job)["Driver"] = Value::Null), 400, "Driver"),
        put(
            job_with(|job| task(job)["Templates"] = json!([{ "DestPath": "x" }])),
            400,
            "Templates",
        ),
        put(job_with(|job| task(job)["Vault"] = json!({ "Policies": ["p"] })), 400, "Vault"),
        put(
            job_with(|job| task(job)["Artifacts"] = json!([{ "GetterSource": "x" }])),
            400,
            "Artifacts",
        ),
        put(
            job_with(|job| group(job)["Volumes"] = json!({ "v": { "Type": "host" } })),
            400,
            "Volumes",
        ),
        put(job_with(|job| job["Periodic"] = json!({ "Spec": "* * * * *" })), 400, "Periodic"),
        put(
            job_with(|job| job["Multiregion"] = json!({ "Regions": [{ "Name": "global" }] })),
            400,
            "Multiregion",
        ),
        put(job_with(|job| job["Datacenters"] = "dc1".into()), 400, "Datacenters"),
        (
            "PUT",
            "/v1/jobs",
            job_with(|job| {
                job["Constraints"] =
                    json!([{ "LTarget": "${meta.a}", "Operand": "~", "RTarget": "b" }]);
            }),
            400,
            "~",
        ),
        ("PUT", "/v1/job/other", job_with(|_| ()), 400, "does not match"),
        ("PUT", "/v1/jobs?namespace=nowhere", job_with(|_| ()), 400, "nowhere"),
    ]
}

fn paths() -> Vec<Case> {
    const NONE: &str = "00000000-0000-0000-0000-000000000001";
    let none = |path: &'static str, text| ("GET", path, Vec::new(), 404, text);
    assert_eq!(NONE.len(), 36);
    vec![
        none("/v1/job/nothing", "job not found"),
        none("/v1/node/00000000-0000-0000-0000-000000000001", "node not found"),
        none("/v1/allocation/00000000-0000-0000-0000-000000000001", "alloc not found"),
        none("/v1/evaluation/00000000-0000-0000-0000-000000000001", "eval not found"),
        none("/v1/nothing", "unknown path"),
        ("GET", "/v1/node/xyz", Vec::new(), 400, "xyz"),
        ("GET", "/v1/jobs?index=many", Vec::new(), 400, "index"),
        ("GET", "/v1/jobs?per_page=-1", Vec::new(), 400, "per_page"),
        ("GET", "/v1/jobs?filter=x", Vec::new(), 400, "filter"),
        ("PATCH", "/v1/jobs", Vec::new(), 405, "PATCH"),
        (
            "PUT",
            "/v1/node/00000000-0000-0000-0000-000000000001/drain",
            b"{\"DrainSpec\": {\"Deadline\": 1}}".to_vec(),
            404,
            "node",
        ),
        (
            "PUT",
            "/v1/node/00000000-0000-0000-0000-000000000001/drain",
            b"{\"DrainSpec\": {\"Deadline\": \"soon\"}}".to_vec(),
            400,
            "Deadline",
        ),
        (
            "PUT",
            "/v1/node/00000000-0000-0000-0000-000000000001/eligibility",
            b"{\"Eligibility\": \"maybe\"}".to_vec(),
            400,
            "maybe",
        ),
        (
            "PUT",
            "/v1/allocation/00000000-0000-0000-0000-000000000001/stop",
            b"{}".to_vec(),
            404,
            "alloc",
        ),
        ("PUT", "/v1/job/nothing/evaluate", b"{}".to_vec(), 404, "job"),
        ("GET", "/v1/job/web/services", Vec::new(), 501, "not supported"),
    ]
}

/// Everything a client can see. The digest would not do: it also moves with log time.
fn contents(stage: &Stage) -> Vec<String> {
    let lists = [
        "jobs?namespace=*",
        "nodes",
        "evaluations?namespace=*",
        "allocations?namespace=*",
        "namespaces",
        "node/pools",
        "operator/scheduler/configuration",
    ];
    lists.iter().map(|list| stage.client.get(&format!("/v1/{list}")).text).collect()
}

/// Issue: bad input end to end: each a clear error with the right status, the state unchanged, the server well.
#[test]
fn bad_requests_change_nothing() {
    let stage = Stage::start(1);
    let before = contents(&stage);
    for (method, path, body, status, text) in bodies().into_iter().chain(paths()) {
        let answer = stage.client.send(method, path, &body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        assert_eq!(answer.status, status, "{method} {path} {shown}: {}", answer.text);
        assert!(answer.text.contains(text), "{method} {path} {shown}: {}", answer.text);
    }
    assert_eq!(contents(&stage), before, "the state is as it was");
    assert!(!stage.cluster.log(0).contains("panicked"));
    assert_eq!(stage.client.delete("/v1/job/nothing").status, 200, "as in Nomad");
    stage.finish();
}

#[track_caller]
fn check_refused(output: Output, texts: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    for text in texts {
        assert!(message.contains(text), "{text} is not in: {message}");
    }
}

/// Issue: a configuration with an unknown key, a bad value or a missing one ends the program with 1 and a message that names it.
#[test]
fn bad_configurations_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.toml");
    let run = |kind: &str, text: &str| {
        fs::write(&path, text).unwrap();
        let mut command = program();
        command.arg(kind).arg("--config").arg(&path).current_dir(directory.path());
        command.output().unwrap()
    };
    let server = "name = \"a\"\ndata_dir = \"data\"\nrpc.address = \"127.0.0.1:4647\"\n\
                  cluster.bootstrap_expect = [\"127.0.0.1:4647\"]\n";
    check_refused(
        run("server", &format!("{server}raft.heartbeet_ms = 7\n")),
        &["bad.toml:5", "unknown key raft.heartbeet_ms", "did you mean raft.heartbeat_ms?"],
    );
    check_refused(
        run("server", &format!("{server}raft.preset = \"moon\"\n")),
        &["raft.preset", "moon"],
    );
    check_refused(run("server", "name = \n"), &["bad.toml:1"]);
    check_refused(run("server", "name = \"a\"\ndata_dir = \"x\"\n"), &["cluster.bootstrap_expect"]);
    check_refused(run("agent", "data_dir = \"x\"\n"), &["servers"]);
    check_refused(
        run("agent", "data_dir = \"x\"\nservers = [\"127.0.0.1:1\"]\ndriver.mock = true\n"),
        &["unknown key driver", "did you mean drivers"],
    );
    assert!(!directory.path().join("data").exists(), "nothing was begun");
}

/// Issue: job files with what is not supported, or does not exist, are refused by name with exit code 1, and nothing reaches the servers.
#[test]
fn bad_job_files_are_refused_by_name() {
    let stage = Stage::start(1);
    let before = contents(&stage);
    let path = stage.cluster.directory().join("bad.nomad.hcl");
    let address = format!("http://{}", stage.cluster.http(0));
    let run = |group: &str, task: &str| {
        let text = format!(
            "job \"web\" {{\n  group \"g\" {{\n    {group}\n    task \"t\" {{\n      driver = \"mock\"\n      {task}\n    }}\n  }}\n}}\n"
        );
        fs::write(&path, text).unwrap();
        let mut command = program();
        command.args(["job", "run", "--address", &address]).arg(&path);
        command.output().unwrap()
    };
    check_refused(
        run("", "template {\n data = \"x\"\n destination = \"y\"\n }"),
        &["template", "bad.nomad.hcl:6"],
    );
    check_refused(run("", "vault {\n policies = [\"p\"]\n }"), &["vault"]);
    check_refused(run("volume \"v\" {\n type = \"host\"\n source = \"s\"\n }", ""), &["volume"]);
    check_refused(run("", "resource {\n cpu = 1\n }"), &["resource", "resources"]);
    check_refused(run("count = -1", ""), &["at least 0", "bad.nomad.hcl:3"]);
    let cpu = run("", "resources {\n cpu = 0\n }");
    check_refused(cpu, &["must be at least 1", "bad.nomad.hcl:7"]);
    check_refused(run("", "resources {"), &["bad.nomad.hcl:"]);
    fs::remove_file(&path).unwrap();
    let mut command = program();
    command.args(["job", "run", "--address", &address]).arg(&path);
    check_refused(command.output().unwrap(), &["bad.nomad.hcl"]);
    assert_eq!(contents(&stage), before, "the state is as it was");
    stage.finish();
}
