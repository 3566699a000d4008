//! `quorate pool` and `quorate instance`.

use super::*;

const INSTANCE_A: &str = "3f2a9c01-1111-4111-8111-111111111111";
const INSTANCE_B: &str = "3f2a9c02-1111-4111-8111-111111111111";

fn gpu() -> Value {
    json!({
        "Name": "gpu", "Provider": "local", "Min": 0, "Max": 3, "PriceFactor": 1.5,
        "IdleTimeoutMs": 60_000, "BootTimeoutMs": 600_000, "ProbeTimeoutMs": 600_000,
        "MaxConcurrentCreates": 0,
        "Types": [{ "Name": "small", "ProviderType": "t1", "CPU": 1_000, "MemoryMB": 512,
            "DiskMB": 1_024, "Price": 0.05, "Preemptible": true, "QuotaGroup": "vcpu" }],
        "Paused": null, "ModifyIndex": 42,
        "Counts": { "requested": 1, "booting": 0, "idle": 2, "running": 0, "shutdown": 0 },
        "Waits": ["not creating type small: quota vcpu until 12:03:10: 8 of 8 used"],
    })
}

fn instance(id: &str, state: &str, behavior: &str) -> Value {
    json!({
        "ID": id, "Pool": "gpu", "Type": "small", "ProviderType": "t1", "ProviderID": "i-1",
        "Address": "10.0.0.9", "Price": 0.05, "State": state, "Behavior": behavior,
        "NodeID": NODE_A, "Running": [], "LastAllocID": "", "LastBusy": "0001-01-01T00:00:00Z",
        "Deadline": "0001-01-01T00:00:00Z", "Reason": "idle for 40 s, goes after 60 s",
    })
}

fn instances() -> Value {
    json!([
        instance(INSTANCE_A, "idle", "run"),
        instance(INSTANCE_B, "idle", "hold"),
        instance("44444444-1111-4111-8111-111111111111", "requested", "run"),
    ])
}

fn write(directory: &tempfile::TempDir, text: &str) -> String {
    let path = directory.path().join("gpu.hcl");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn pool_apply_sends_the_pool_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(
        &directory,
        "pool \"gpu\" {\n  provider = \"local\"\n  max = 3\n  type \"small\" {\n    cpu = 1000\n    memory = 512\n  }\n}\n",
    );
    let server = Canned::default().on("PUT /v1/instance-pool/gpu", &json!({})).start();
    let ran = server.run(&format!("pool apply -check-index 0 {file}"));
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.ends_with("quorate pool status gpu\n"), "{}", ran.out);
    let seen = server.request("PUT");
    assert_eq!(seen.line, "PUT /v1/instance-pool/gpu?cas=0");
    let body: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!((&body["Max"], &body["Types"][0]["CPU"]), (&json!(3), &json!(1_000)));

    let changed = Canned::default()
        .fail("PUT /v1/instance-pool/gpu", 409, "the modify index is 42, not 7")
        .start();
    let ran = changed.run(&format!("pool apply -check-index 7 {file}"));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("the modify index is 42, not 7\n  Look at it"), "{}", ran.err);
}

#[test]
fn pool_apply_points_at_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(&directory, "pool \"gpu\" {\n  provder = \"local\"\n  max = 3\n}\n");
    let server = Canned::default().start();
    let ran = server.run(&format!("pool apply {file}"));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("did you mean \"provider\"?"), "{}", ran.err);
    assert!(ran.err.contains("gpu.hcl:2:3"), "{}", ran.err);
    assert!(server.lines().is_empty(), "nothing is sent");
    let ran = server.run("pool apply /nowhere/gpu.hcl");
    assert!(ran.err.starts_with("Error: cannot open the pool file"), "{}", ran.err);
}

#[test]
fn pools_are_listed_and_shown() {
    let server = Canned::default()
        .on("GET /v1/instance-pools", &json!([gpu()]))
        .on("GET /v1/instance-pool/gpu", &gpu())
        .on("GET /v1/instances", &instances())
        .start();
    let out = server.run("pool list").out;
    assert!(out.contains("gpu   local     0    3    1 requested, 2 idle  small  false"), "{out}");
    let out = server.run("pool status gpu").out;
    for part in [
        "Size              = 0 to 3\n",
        "Idle Timeout      = 1m\n",
        "small  t1             1000 MHz  512 MiB  1024 MiB  0.05     true         vcpu\n",
        // The held one is not counted.
        "small  2          2000 MHz  1024 MiB  2048 MiB\n",
        "Waits\nnot creating type small: quota vcpu until 12:03:10: 8 of 8 used\n",
        "3f2a9c02  gpu   small  idle       hold      11111111  idle for 40 s, goes after 60 s\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(server.lines().last().unwrap(), "GET /v1/instances?pool=gpu");
    let json: Value = serde_json::from_str(&server.run("pool status -json gpu").out).unwrap();
    assert_eq!(json, gpu());
    let ran = server.run("pool status gone");
    let missing = "Error: there is no instance pool \"gone\"; list them with: quorate pool list\n";
    assert_eq!((ran.code, &*ran.err), (1, missing));
    let empty = Canned::default().on("GET /v1/instance-pools", &json!([])).start();
    assert!(empty.run("pool list").out.contains("quorate pool apply FILE"));
}

#[test]
fn pools_are_paused_resumed_and_deleted() {
    let server = Canned::default()
        .on("PUT /v1/instance-pool/gpu/pause", &json!({}))
        .on("PUT /v1/instance-pool/gpu/resume", &json!({}))
        .on("DELETE /v1/instance-pool/gpu", &json!({}))
        .start();
    let ran = server.run("pool pause -reason repair gpu");
    assert_eq!(ran.out, "Pool \"gpu\" is paused, until: quorate pool resume gpu\n");
    let body = server.request("PUT").body;
    assert!(body.contains("\"Reason\":\"repair\"") && body.contains("\"Actor\":\""), "{body}");
    assert_ne!(server.run("pool pause gpu").code, 0, "a reason is required");
    assert_eq!(server.run("pool resume gpu").code, 0);
    assert_eq!(server.run("pool delete gpu").code, 0);
    let used = Canned::default()
        .fail("DELETE /v1/instance-pool/gpu", 409, "pool \"gpu\" has 1 instances: drain them")
        .start();
    assert!(used.run("pool delete gpu").err.contains("drain them"));
}

#[test]
fn instances_are_listed_shown_and_explained() {
    let one = instance(INSTANCE_A, "idle", "run");
    let server = Canned::default()
        .on("GET /v1/instances", &json!([one]))
        .on(&format!("GET /v1/instance/{INSTANCE_A}"), &one)
        .start();
    let out = server.run("instance list -pool gpu").out;
    assert!(out.contains("3f2a9c01  gpu   small  idle   run"), "{out}");
    assert_eq!(server.lines()[0], "GET /v1/instances?pool=gpu");
    let out = server.run("instance status 3f2a9c").out;
    assert!(out.contains("What It Does     = idle for 40 s, goes after 60 s"), "{out}");
    assert!(out.contains("Provider ID      = i-1\n"), "{out}");
    let out = server.run("instance why 3f2a").out;
    assert_eq!(out, "idle: idle for 40 s, goes after 60 s\n");
    let ran = server.run("instance why 99");
    assert!(ran.err.contains("no instance has an id that starts with \"99\""), "{}", ran.err);
}

/// A create that was refused has no instance: the pool says why.
#[test]
fn a_pool_says_why_it_makes_nothing() {
    let mut free = gpu();
    (free["Name"], free["Waits"]) = ("cpu".into(), json!([]));
    let server = Canned::default()
        .on("GET /v1/instance-pool/gpu", &gpu())
        .on("GET /v1/instance-pool/cpu", &free)
        .fail("GET /v1/instance-pool/down", 400, "no")
        .on("GET /v1/instances", &json!([]))
        .start();
    let ran = server.run("instance why gpu");
    let quota = "not creating type small: quota vcpu until 12:03:10: 8 of 8 used\n";
    assert_eq!((ran.code, &*ran.out), (0, quota));
    let out = server.run("instance why cpu").out;
    assert!(
        out.starts_with("nothing stops pool \"cpu\" (instances: 1 requested, 2 idle)"),
        "{out}"
    );
    let ran = server.run("instance why tpu");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("no instance has an id that starts with \"tpu\""), "{}", ran.err);
    assert_eq!(server.run("instance why down").code, 1);
}

#[test]
fn an_ambiguous_instance_lists_its_matches() {
    let server = Canned::default().on("GET /v1/instances", &instances()).start();
    let ran = server.run("instance shutdown 3f2a");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("matches 2 instances; type more of the id"), "{}", ran.err);
    assert!(ran.err.contains(INSTANCE_A) && ran.err.contains(INSTANCE_B), "{}", ran.err);
}

#[test]
fn operators_say_what_they_want_of_an_instance() {
    for (verb, says) in [
        ("hold", "is held, until: quorate instance run"),
        ("run", "is given work, and goes when it idles"),
        ("drain", "drains: it goes when nothing runs on it"),
        ("shutdown", "is shut down: its provider is asked to destroy it"),
    ] {
        let path = if verb == "shutdown" { verb } else { "behavior" };
        let route = format!("PUT /v1/instance/{INSTANCE_A}/{path}");
        let server = Canned::default().on(&route, &json!({})).start();
        let ran = server.run(&format!("instance {verb} -reason disk {INSTANCE_A}"));
        assert!(ran.code == 0 && ran.out.contains(says), "{}{}", ran.out, ran.err);
        let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
        assert_eq!(body["Reason"], "disk");
        assert!(body["Actor"].as_str().unwrap().contains('@'), "{body}");
        let behavior = if verb == "shutdown" { Value::Null } else { json!(verb) };
        assert_eq!(body.get("Behavior").unwrap_or(&Value::Null), &behavior);
    }
}

#[test]
fn a_node_shows_its_instance() {
    let path = format!("/v1/node/{NODE_A}");
    let node = json!({ "ID": NODE_A, "Name": "agent-1", "NodePool": "gpu", "Status": "ready",
        "Instance": { "ID": INSTANCE_A, "Open": false } });
    let server = Canned::default()
        .on(&format!("GET {path}"), &node)
        .on(&format!("GET {path}/allocations"), &json!([]))
        .start();
    let out = server.run(&format!("node status {NODE_A}")).out;
    assert!(out.contains("= 3f2a9c01 of pool gpu, no new work\n"), "{out}");
}

#[test]
fn help_of_pools_has_examples() {
    for noun in ["pool apply", "pool status", "pool pause", "instance hold", "instance why"] {
        let ran = run(&format!("{noun} --help"), &|_| None);
        assert!(ran.code == 0 && ran.out.contains("Example"), "{noun}: {}{}", ran.out, ran.err);
    }
    let ran = run("pool apply --help", &|_| None);
    assert!(ran.out.contains("type \"small\" {"), "{}", ran.out);
}

#[test]
fn providers_say_whether_they_answer() {
    let cloud = json!({
        "Name": "cloud",
        "Status": "failing",
        "Since": "2026-11-28T12:03:10Z",
        "Failing": "list",
        "LastError": "fatal: token expired",
        "LastErrorAt": "2026-11-28T12:04:10Z",
        "Creates": 3,
        "Destroys": 1,
        "Pools": ["gpu", "web"],
        "Reason": "provider cloud has not answered as it should since 12:03:10 (list)",
    });
    let server = Canned::default()
        .on("GET /v1/providers", &json!([cloud]))
        .on("GET /v1/provider/cloud", &cloud)
        .start();
    for line in ["provider status", "provider status cloud"] {
        let ran = server.run(line);
        let row = "cloud  failing  2026-11-28T12:03:10Z  3        1         gpu,web  fatal: token expired";
        assert!(ran.out.contains(row), "{} {}", ran.out, ran.err);
    }
    let ran = server.run("provider status gone");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("no pool names a provider \"gone\""), "{}", ran.err);
    let empty = Canned::default().on("GET /v1/providers", &json!([])).start();
    assert!(empty.run("provider status").out.contains("quorate pool apply FILE"));
}
