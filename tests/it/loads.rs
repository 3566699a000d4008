//! Requests that cost as much as a client can make them, all at once: the cluster keeps its leader and takes writes.
#![expect(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{Client, Cluster, Options, is_full, stored_job};

/// What attacks: a request that is made again and again on so many connections.
struct Load {
    what: &'static str,
    connections: usize,
    method: &'static str,
    path: &'static str,
    body: Vec<u8>,
}

fn json_load(what: &'static str, connections: usize, path: &'static str, body: &Value) -> Load {
    Load { what, connections, method: "PUT", path, body: body.to_string().into_bytes() }
}

/// A job of 1,000 groups.
fn large_job() -> Value {
    let group = |number: usize| {
        json!({ "Name": format!("group-{number}"), "Count": 10, "Tasks": [{
            "Name": "task", "Driver": "mock", "Config": { "run_for": "24h" },
            "Resources": { "CPU": 20, "MemoryMB": 16 } }] })
    };
    let groups: Vec<Value> = (0..1_000).map(group).collect();
    json!({ "Job": {
        "ID": "large", "Name": "large", "Type": "service", "Datacenters": ["*"], "TaskGroups": groups } })
}

fn loads() -> Vec<Load> {
    let lines = "  meta {\n    key = \"${1 + 1}\"\n  }\n";
    let hcl = format!("job \"x\" {{\n{}}}\n", lines.repeat((1 << 20) / lines.len()));
    let many = json!({ "Job": { "ID": "x", "Meta": { "x": "\\u0000".repeat(700_000) } } });
    let nested = [b"[".repeat(100), b"{\"a\":[1,2,3]},".repeat(200_000)].concat();
    let pattern = "/v1/jobs?meta=true&filter=Meta.value%20matches%20%22a(%3F%3A%5Bab%5D%7B1000%7D)%7B1%7D%5B%5Eab%5D%22";
    vec![
        json_load("plans", 4, "/v1/job/large/plan", &large_job()),
        json_load("registrations", 2, "/v1/jobs", &large_job()),
        json_load("parses", 16, "/v1/jobs/parse", &json!({ "JobHCL": hcl, "Canonicalize": true })),
        json_load("large bodies", 8, "/v1/jobs", &many),
        Load {
            what: "nested bodies",
            connections: 4,
            method: "PUT",
            path: "/v1/jobs",
            body: nested,
        },
        Load { what: "patterns", connections: 3, method: "GET", path: pattern, body: Vec::new() },
    ]
}

/// Connections of HTTP/2 that say nothing after their beginning.
fn silent(address: SocketAddr) -> Vec<TcpStream> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(preface).unwrap();
        stream
    };
    (0..20).map(open).collect()
}

/// Each kind of load alone would cost the leader its leadership where it parsed and planned on the
/// threads of Raft.
#[test]
fn the_leader_keeps_its_leadership_under_all_loads_at_once() {
    let timings = |options: Options| {
        // Twice the program's own: other tests run beside this one.
        let options = options.with("raft.heartbeat_ms", 200).with("raft.election_min_ms", 800);
        options.with("raft.election_max_ms", 1_200)
    };
    let cluster = Cluster::start(timings(Options::new(3)));
    let leader = cluster.leader();
    let client = cluster.client(leader);
    for number in 0..3 {
        client.put("/v1/jobs", &stored_job(&format!("text-{number}"), &"ab".repeat(50_000))).ok();
    }
    let term = client.metric("raft.term");
    let _silent = silent(cluster.rpc(leader));
    let lasts = Duration::from_secs(if is_full() { 30 } else { 8 });
    let (over, loads) = (AtomicBool::new(false), loads());
    let answered = thread::scope(|scope| {
        for load in &loads {
            for _ in 0..load.connections {
                let client = Client::new(cluster.http(leader), Duration::from_secs(10));
                let over = &over;
                scope.spawn(move || attack(&client, load, over));
            }
        }
        let answered = write_honestly(&cluster, leader, lasts);
        over.store(true, Ordering::Relaxed);
        answered
    });
    assert_eq!(client.metric("raft.term"), term, "the leader kept its leadership");
    assert_eq!(cluster.leader(), leader);
    let (all, failed, slowest) = answered;
    assert!(failed * 100 <= all, "{failed} of {all} writes failed");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    cluster.check_invariants(&cluster.all());
}

/// Gives a request up after a while, and so looks again whether it is over.
fn attack(client: &Client, load: &Load, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let Ok(answer) = client.try_send(load.method, load.path, &load.body) else { continue };
        assert!(answer.status < 500 || answer.status == 503, "{}: {answer:?}", load.what);
    }
}

/// Registers small jobs for so long: how many, how many failed, and the slowest.
fn write_honestly(cluster: &Cluster, leader: usize, lasts: Duration) -> (usize, usize, Duration) {
    let client = Client::new(cluster.http(leader), Duration::from_secs(20));
    let begun = Instant::now();
    let (mut all, mut failed, mut slowest) = (0, 0, Duration::ZERO);
    while begun.elapsed() < lasts {
        let asked = Instant::now();
        let answer = client.try_put("/v1/jobs", &stored_job(&format!("honest-{all}"), "x"));
        failed += usize::from(!answer.is_ok_and(|answer| answer.status == 200));
        all += 1;
        slowest = slowest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    (all, failed, slowest)
}
