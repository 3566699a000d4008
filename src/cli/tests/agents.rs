//! What agents are asked: logs, files, statistics, metadata, orders; and the small nouns beside
//! them.

use serde_json::{Value, json};

use super::{ALLOCATION, Canned, NODE_B, allocation, two_nodes};

#[test]
fn alloc_logs_prints_bytes_and_tails() {
    let mut one = allocation("running");
    one["TaskStates"] = json!({"server": {"State": "running"}});
    let server = Canned::default()
        .on("GET /v1/allocations", &json!([one]))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &one)
        .fail(&format!("GET /v1/client/fs/logs/{ALLOCATION}"), 200, "one\ntwo\nthree\n")
        .start();
    assert_eq!(server.run("alloc logs -stderr aaaa").out, "one\ntwo\nthree\n");
    assert_eq!(
        server.lines().last().unwrap(),
        &format!(
            "GET /v1/client/fs/logs/{ALLOCATION}?task=server&type=stderr&follow=false&plain=true&origin=start&offset=0"
        )
    );
    assert_eq!(server.run("alloc logs -tail -n 2 aaaa").out, "two\nthree\n");
    server.run("alloc logs -f -tail -n 1 aaaa");
    let followed = "follow=true&plain=true&origin=end&offset=6";
    assert!(server.lines().last().unwrap().ends_with(followed), "{:?}", server.lines());
    // No bytes before the end would be the beginning of the newest file.
    server.run("alloc logs -f -tail -n 0 aaaa");
    let nothing_old = "follow=true&plain=true&origin=start&offset=18446744073709551615";
    assert!(server.lines().last().unwrap().ends_with(nothing_old), "{:?}", server.lines());
    assert!(server.run("alloc logs -task x aaaa").err.contains("its tasks are: server"));
    let ran = server.run("alloc status aaaa");
    assert!(ran.out.contains("Task \"server\" is \"running\""), "{}", ran.out);
}

#[test]
fn alloc_status_shows_what_a_task_may_use_at_most() {
    for (max, shown) in [(0, None), (512, Some("Max: 512 MiB")), (-1, Some("Max: unlimited"))] {
        let mut row = allocation("running");
        row["TaskStates"] = json!({"server": {"State": "running"}});
        row["AllocatedResources"] = json!({"Tasks": {"server": {"Cpu": {"CpuShares": 100},
            "Memory": {"MemoryMB": 64, "MemoryMaxMB": max}}}, "Shared": {"DiskMB": 300}});
        let server = Canned::default()
            .on("GET /v1/allocations", &json!([row]))
            .on(&format!("GET /v1/allocation/{ALLOCATION}"), &row)
            .start();
        let out = server.run("alloc status aaaa").out;
        let mut lines = out.lines().skip_while(|line| !line.starts_with("100 MHz")).map(str::trim);
        assert!(lines.next().is_some_and(|line| line.ends_with("300 MiB")), "{out}");
        assert_eq!(lines.next().filter(|line| line.starts_with("Max")), shown, "{out}");
    }
}

#[test]
fn alloc_fs_lists_describes_and_prints() {
    let file = json!({"Name": "trace", "IsDir": false, "Size": 14, "FileMode": "-rw-r--r--",
        "ModTime": "2026-01-02T03:04:05.678Z", "ContentType": "text/plain; charset=utf-8"});
    let folder = json!({"Name": "local", "IsDir": true, "Size": 4096, "FileMode": "drwxr-xr-x",
        "ModTime": "2026-01-02T03:04:05Z", "ContentType": "application/octet-stream"});
    let stat = format!("GET /v1/client/fs/stat/{ALLOCATION}");
    let server = Canned::default()
        .on("GET /v1/allocations", &json!([allocation("running")]))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &allocation("running"))
        .on(&stat, &folder)
        .on(&stat, &file)
        .on(&format!("GET /v1/client/fs/ls/{ALLOCATION}"), &json!([file, folder]))
        .fail(&format!("GET /v1/client/fs/stream/{ALLOCATION}"), 200, "one\ntwo\nthree\n")
        .start();
    let listed = server.run("alloc fs aaaa web/local").out;
    let row = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = listed.lines().map(row).collect();
    assert_eq!(
        rows,
        [
            "Mode Size Modified Time Name",
            "-rw-r--r-- 14 B 2026-01-02T03:04:05Z trace",
            "drwxr-xr-x 4.0 KiB 2026-01-02T03:04:05Z local/"
        ]
    );
    let described = server.run("alloc fs -stat -H aaaa trace").out;
    assert!(row(&described).ends_with("14 2026-01-02T03:04:05Z trace text/plain; charset=utf-8"));
    assert_eq!(server.run("alloc fs aaaa trace").out, "one\ntwo\nthree\n");
    assert_eq!(server.run("alloc fs -tail -n 1 aaaa trace").out, "three\n");
    server.run("fs -f -c 4 aaaa trace");
    let asked = format!(
        "GET /v1/client/fs/stream/{ALLOCATION}?path=trace&follow=true&plain=true&origin=end&offset=4"
    );
    assert_eq!(server.lines().last().unwrap(), &asked);
}

#[test]
fn node_meta_and_self_ask_the_agent() {
    let meta =
        json!({"Meta": {"rack": "r2"}, "Dynamic": {"rack": "r2", "gone": null}, "Static": {}});
    let server = two_nodes()
        .on("GET /v1/agent/self", &json!({"stats": {"client": {"node_id": NODE_B}}}))
        .on("GET /v1/client/metadata", &meta)
        .on("PUT /v1/client/metadata", &meta)
        .start();
    let ran = server.run("node meta read");
    assert!(ran.out.contains("rack") && ran.out.contains("(unset)"), "{}{}", ran.out, ran.err);
    assert!(server.lines().last().unwrap().ends_with(&format!("?node_id={NODE_B}")));
    let ran = server.run("node meta apply -node-id agent-2 -unset role,x rack=r2=3");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let sent: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    let expected = json!({"NodeID": NODE_B, "Meta": {"rack": "r2=3", "role": null, "x": null}});
    assert_eq!(sent, expected);
    for bad in ["node meta apply -node-id agent-2", "node meta apply -node-id agent-2 rack"] {
        assert_eq!(server.run(bad).code, 1, "{bad}");
    }
    server.run("node status -self -json");
    assert_eq!(server.lines().last().unwrap(), &format!("GET /v1/node/{NODE_B}"));
    let alone = Canned::default().on("GET /v1/agent/self", &json!({"stats": {}})).start();
    assert!(alone.run("node status -self").err.contains("is a server, which is no node"));
}

#[test]
fn usage_of_machines_and_tasks_is_shown_when_asked_for() {
    let used = json!({"Tasks": {"server": {"ResourceUsage": {
        "CpuStats": {"Percent": 12.5, "TotalTicks": 250.4},
        "MemoryStats": {"RSS": 3 << 20, "Swap": 0}}}}});
    let host = json!({"CPUTicksConsumed": 120.6, "Memory": {"Used": 1 << 30, "Total": 4_u64 << 30},
        "AllocDirStats": {"Used": 10, "Size": 20}, "DiskStats": [],
        "CPU": [{"CPU": "cpu0", "User": 1.0, "System": 2.0, "Idle": 97.0}]});
    let node = json!({"ID": NODE_B, "Name": "agent-2"});
    let server = two_nodes()
        .on("GET /v1/allocations", &json!([allocation("running")]))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &allocation("running"))
        .on(&format!("GET /v1/client/allocation/{ALLOCATION}/stats"), &used)
        .on(&format!("GET /v1/node/{NODE_B}"), &node)
        .on(&format!("GET /v1/node/{NODE_B}/allocations"), &json!([]))
        .on("GET /v1/client/stats", &host)
        .start();
    let row = |out: &str, starts: &str| {
        let line = out.lines().find(|line| line.starts_with(starts)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let out = server.run("alloc status -stats aaaa").out;
    assert_eq!(row(&out, "server "), "server 250 MHz 12.5 % 3.0 MiB 0 B", "{out}");
    let out = server.run("node status -stats agent-2").out;
    assert_eq!(row(&out, "121 MHz"), "121 MHz 1.0 GiB/4.0 GiB 10 B/20 B", "{out}");
    assert_eq!(row(&out, "cpu0"), "cpu0 1.0 % 2.0 % 97.0 %", "{out}");
}

#[test]
fn namespaces_and_node_pools_are_kept() {
    let team = json!({"Name": "team", "Description": "old", "Meta": {"owner": "ann"}});
    let server = two_nodes()
        .on("GET /v1/namespaces", &json!([team]))
        .on("GET /v1/namespace/team", &team)
        .on("PUT /v1/namespaces", &json!({}))
        .on("DELETE /v1/namespace/team", &json!({}))
        .on("GET /v1/node/pools", &json!([{"Name": "gpu", "Description": "cards"}]))
        .on("GET /v1/node/pool/gpu", &json!({"Name": "gpu", "NodeIdentityTTL": "1h0m0s"}))
        .on("PUT /v1/node/pools", &json!({}))
        .on(
            "GET /v1/node/pool/gpu/jobs",
            &json!([{"ID": "long-name-of-a-job", "NodePool": "gpu", "JobSummary": {}}]),
        )
        .on("GET /v1/node/pool/gpu/nodes", &json!([{"ID": NODE_B, "NodePool": "gpu"}]))
        .start();
    assert!(server.run("namespace list").out.contains("team"));
    assert!(server.run("namespace status team").out.contains("owner=ann"));
    assert_eq!(server.run("namespace apply -description new team").code, 0);
    let sent: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(sent, json!({"Name": "team", "Description": "new", "Meta": {"owner": "ann"}}));
    assert_eq!(server.run("namespace delete team").code, 0);
    assert_eq!(server.run("namespace status none").code, 1);
    assert!(server.run("node pool list").out.contains("cards"));
    assert!(server.run("node pool nodes gpu").out.contains(&NODE_B[..8]));
    assert!(server.run("node pool jobs gpu").out.contains("long-name-of-a-job"));
    assert_eq!(server.run("node pool apply -meta a=b gpu").code, 0);
    let sent: Value =
        serde_json::from_str(&server.seen.lock().unwrap().last().unwrap().body).unwrap();
    let kept = json!({"Name": "gpu", "Meta": {"a": "b"}, "NodeIdentityTTL": "1h0m0s"});
    assert_eq!(sent, kept, "what no flag names stays");
    assert_eq!(server.run("node pool apply -meta a gpu").code, 1);
}

#[test]
fn tasks_are_restarted_and_signalled() {
    let mut one = allocation("running");
    one["TaskStates"] = json!({"server": {"State": "running"}});
    let server = Canned::default()
        .on("GET /v1/allocations", &json!([one]))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &one)
        .on(&format!("PUT /v1/client/allocation/{ALLOCATION}/restart"), &json!({}))
        .on(&format!("PUT /v1/client/allocation/{ALLOCATION}/signal"), &json!({}))
        .start();
    assert_eq!(server.run("alloc restart -all-tasks aaaa").code, 0);
    let sent: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(sent, json!({"TaskName": null, "AllTasks": true}));
    assert_eq!(server.run("alloc signal -s SIGHUP aaaa server").code, 0);
    assert!(server.run("alloc signal aaaa x").err.contains("its tasks are: server"));
    assert_eq!(server.run("alloc restart -all-tasks aaaa server").code, 1);
}
