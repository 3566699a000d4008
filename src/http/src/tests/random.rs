//! Random requests, the same in every run: whatever comes in, an answer goes out, and it never
//! blames the server.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use fsm::{EvaluationId, JobKey, NodeId};
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, prop_oneof},
    sample::select,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    cluster::{TestCluster, web_job},
    socket::{TestServer, send},
};

const NODE: NodeId = NodeId([0x11; 16]);
const ALLOCATION: &str = "abababab-abab-abab-0000-000000000002";

const SEGMENTS: [&str; 57] = [
    "instances",
    "instance",
    "instance-pools",
    "providers",
    "instance-pool",
    "behavior",
    "shutdown",
    "pause",
    "jobs",
    "job",
    "web",
    "allocations",
    "allocation",
    "evaluations",
    "evaluation",
    "nodes",
    "node",
    "11111111-1111-1111-1111-111111111111",
    ALLOCATION,
    "summary",
    "versions",
    "force",
    "periodic",
    "tag",
    "evaluate",
    "drain",
    "eligibility",
    "suspend",
    "unsuspend",
    "offline",
    "mass-loss",
    "confirm",
    "purge",
    "stop",
    "pools",
    "pool",
    "default",
    "namespaces",
    "namespace",
    "operator",
    "raft",
    "configuration",
    "scheduler",
    "state-digest",
    "invariants",
    "transfer-leadership",
    "agent",
    "health",
    "members",
    "metrics",
    "validate",
    "parse",
    "count",
    "system",
    "a%2Fb",
    "%e2%82%ac",
    "",
];
/// Beginnings of paths that lead somewhere.
const ROOTS: [&str; 12] = [
    "jobs",
    "job/web",
    "job",
    "allocations",
    "allocation/abababab-abab-abab-0000-000000000002",
    "evaluations",
    "nodes",
    "node/11111111-1111-1111-1111-111111111111",
    "node/pool",
    "namespace",
    "operator",
    "agent",
];
const PARAMETERS: [&str; 22] = [
    "namespace=*",
    "namespace=",
    "namespace=x",
    "prefix=",
    "prefix=w",
    "prefix=1f",
    "per_page=1",
    "per_page=18446744073709551615",
    "next_token=default.web",
    "next_token=9.1",
    "reverse=true",
    "stale",
    "stale=false",
    "index=1&wait=1ms",
    "pretty",
    "meta=1",
    "all=true",
    "related=true",
    "purge=true",
    "type=server",
    "format=prometheus",
    "%f0%9f%92%a5=%00",
];
const BODIES: [&str; 18] = [
    "",
    "null",
    "[]",
    "{}",
    "0",
    "\"x\"",
    "{\"Job\":null}",
    "{\"Job\":{\"ID\":\"web\"}}",
    "{\"Job\":{\"TaskGroups\":[[]]}}",
    "{\"DrainSpec\":{\"Deadline\":-9223372036854775808}}",
    "{\"DrainSpec\":{\"Deadline\":9223372036854775807}}",
    "{\"Eligibility\":\"eligible\"}",
    "{\"Reason\":\"x\",\"For\":9223372036854775807}",
    "{\"NodeLife\":{\"SuspendMs\":1}}",
    "{\"Name\":\"x\",\"Meta\":{\"a\":\"b\"}}",
    "{\"SchedulerAlgorithm\":\"spread\"}",
    "{\"JobHCL\":\"job \\\"a\\\" {}\"}",
    "{\"EvalPriority\":1e400}",
];

fn requests() -> impl Strategy<Value = (&'static str, String, &'static str)> {
    let method = prop_oneof![
        Just("GET"),
        Just("GET"),
        Just("PUT"),
        Just("POST"),
        Just("DELETE"),
        Just("PATCH")
    ];
    let anywhere = vec(select(&SEGMENTS[..]), 1..6).prop_map(|segments| segments.join("/"));
    let inside = (select(&ROOTS[..]), vec(select(&SEGMENTS[..]), 0..3))
        .prop_map(|(root, segments)| [&[root], &segments[..]].concat().join("/"));
    let path = prop_oneof![anywhere, inside];
    let parameters = vec(select(&PARAMETERS[..]), 0..4);
    (method, path, parameters, select(&BODIES[..])).prop_map(|(method, path, parameters, body)| {
        let path = format!("/v1/{path}?{}", parameters.join("&"));
        (method, path, body)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn random_requests_never_break_the_server() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "");
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    assert_eq!(allocation.to_string(), ALLOCATION);

    let address = server.address;
    let runtime = tokio::runtime::Handle::current();
    let answered = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&answered);
    let run = move || {
        let config = Config { cases: 1_500, failure_persistence: None, ..Config::default() };
        let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        TestRunner::new_with_rng(config, seed).run(&requests(), |(method, path, body)| {
            let response = runtime.block_on(send(address, method, &path, &[], body.as_bytes()));
            let expected = [200, 400, 404, 405, 409, 501];
            assert!(expected.contains(&response.status), "{method} {path} {body}: {response:?}");
            assert!(response.status == 200 || !response.text.is_empty(), "{method} {path}");
            if response.status != 404 {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered > 200, "only {answered} requests found an endpoint");
    server.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_http_end_their_connection_only() {
    let server = TestServer::start(TestCluster::new()).await;
    for garbage in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
    {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    server.get("/v1/jobs").await.ok();
    server.stop().await;
}
