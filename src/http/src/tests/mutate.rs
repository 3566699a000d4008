//! Valid requests of every endpoint, mutated at random, the same in every run: an answer comes in
//! time, it never blames the server, and what is refused changes nothing.

use std::{fmt::Write as _, time::Duration};

use chance::Dice;
use fsm::{EvaluationId, JobKey, NodeId, State, table::TableId};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    cluster::{TestCluster, web_job},
    socket::{TestResponse, TestServer, send},
};

const NODE: NodeId = NodeId([0x11; 16]);
/// Requests of a run.
const ROUNDS: u32 = 4_000;
/// After so many requests what was deleted is put back.
const ROUNDS_UNTIL_REPAIR: u32 = 40;
/// No answer takes longer, on a loaded machine either.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct Request {
    method: &'static str,
    path: String,
    query: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

/// A job that says something about everything a job can say.
fn rich_job() -> Value {
    let policy =
        json!({ "Attempts": 3, "Interval": 60_000_000_000_u64, "Delay": "5s", "Mode": "fail" });
    let condition = json!({ "LTarget": "${attr.os.name}", "Operand": "=", "RTarget": "debian" });
    let weighted =
        json!({ "LTarget": "${node.datacenter}", "Operand": "=", "RTarget": "dc1", "Weight": 50 });
    let spread = json!({ "Attribute": "${meta.rack}", "Weight": 30,
        "SpreadTarget": [{ "Value": "r1", "Percent": 60 }] });
    let update = json!({ "Stagger": "1s", "MaxParallel": 2, "HealthCheck": "task_states",
        "MinHealthyTime": "1s", "HealthyDeadline": "1m", "ProgressDeadline": "2m",
        "AutoRevert": false, "Canary": 0 });
    let reschedule = json!({ "Attempts": 1, "Interval": "1h", "Delay": "5s",
        "DelayFunction": "exponential", "MaxDelay": "1m", "Unlimited": false });
    let migrate = json!({ "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": "1s", "HealthyDeadline": "1m" });
    let service = json!({ "Name": "web", "PortLabel": "http", "Tags": ["a"], "Meta": { "k": "v" },
        "Checks": [{ "Name": "alive", "Type": "http", "Path": "/", "Interval": "10s", "Timeout": "2s" }] });
    let mut job = web_job("rich");
    for (name, value) in [
        ("Region", json!("global")),
        ("Namespace", json!("default")),
        ("NodePool", json!("default")),
        ("Datacenters", json!(["dc1", "dc*"])),
        ("Priority", json!(70)),
        ("AllAtOnce", json!(false)),
        ("Meta", json!({ "owner": "me" })),
        ("Constraints", json!([condition])),
        ("Affinities", json!([weighted])),
        ("Spreads", json!([spread])),
        ("Update", update.clone()),
        ("Periodic", Value::Null),
        ("ParameterizedJob", Value::Null),
        ("Status", json!("")),
        ("Version", json!(0)),
    ] {
        job[name] = value;
    }
    for (name, value) in [
        ("Constraints", json!([condition])),
        ("Spreads", json!([spread])),
        ("RestartPolicy", policy.clone()),
        ("ReschedulePolicy", reschedule),
        ("Update", update),
        ("Migrate", migrate),
        ("EphemeralDisk", json!({ "SizeMB": 500, "Sticky": false, "Migrate": false })),
        ("Meta", json!({ "a": "b" })),
        ("ShutdownDelay", json!(0)),
        ("Services", json!([service])),
        (
            "Networks",
            json!([{ "Mode": "host", "DynamicPorts": [{ "Label": "http", "To": 80 }],
            "ReservedPorts": [{ "Label": "admin", "Value": 8_080 }] }]),
        ),
    ] {
        job["TaskGroups"][0][name] = value;
    }
    for (name, value) in [
        ("Env", json!({ "A": "${NOMAD_PORT_http}" })),
        ("Meta", json!({ "t": "u" })),
        ("User", json!("")),
        ("Leader", json!(true)),
        ("KillTimeout", json!("5s")),
        ("KillSignal", json!("SIGTERM")),
        ("RestartPolicy", policy),
        ("LogConfig", json!({ "MaxFiles": 2, "MaxFileSizeMB": 5 })),
        ("Constraints", json!([condition])),
    ] {
        job["TaskGroups"][0]["Tasks"][0][name] = value;
    }
    job
}

fn reads(allocation: &str, evaluation: &str) -> Vec<String> {
    let fixed = "jobs job/web job/web/allocations job/web/evaluations job/web/summary job/web/versions \
        job/web/deployments job/web/deployment job/web/submission allocations evaluations evaluations/count \
        nodes node/pools node/pool/default node/pool/all/nodes node/pool/default/jobs namespaces namespace/default \
        deployments volumes services vars status/leader status/peers regions agent/self agent/members agent/servers \
        agent/health operator/raft/configuration operator/scheduler/configuration operator/state-digest \
        operator/invariants operator/mass-loss nodes/offline metrics client/stats search event/stream acl/tokens operator/snapshot";
    let node = NODE.to_string();
    let by_id = [
        format!("allocation/{allocation}"),
        format!("allocation/{allocation}/services"),
        format!("evaluation/{evaluation}"),
        format!("evaluation/{evaluation}/allocations"),
        format!("node/{node}"),
        format!("node/{node}/allocations"),
        format!("client/fs/logs/{allocation}"),
        format!("client/allocation/{allocation}/stats"),
    ];
    fixed.split_whitespace().map(str::to_owned).chain(by_id).collect()
}

fn writes(allocation: &str) -> Vec<(&'static str, String, Value)> {
    let node = NODE.to_string();
    let hcl =
        "job \"h\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"mock\"\n    }\n  }\n}\n";
    let job = || json!({ "Job": rich_job() });
    vec![
        ("PUT", "jobs".into(), job()),
        ("POST", "job/rich".into(), job()),
        (
            "PUT",
            "jobs".into(),
            json!({ "Job": rich_job(), "EnforceIndex": true, "JobModifyIndex": 0, "EvalPriority": 60,
                "PreserveCounts": false, "PolicyOverride": false, "Submission": { "Source": "", "Format": "hcl2" } }),
        ),
        ("POST", "validate/job".into(), job()),
        ("PUT", "jobs/parse".into(), json!({ "JobHCL": hcl, "Canonicalize": true })),
        (
            "PUT",
            "job/web/evaluate".into(),
            json!({ "JobID": "web", "EvalOptions": { "ForceReschedule": false } }),
        ),
        ("DELETE", "job/rich".into(), Value::Null),
        ("PUT", format!("allocation/{allocation}/stop"), Value::Null),
        ("PUT", format!("node/{node}/evaluate"), Value::Null),
        (
            "PUT",
            format!("node/{node}/eligibility"),
            json!({ "NodeID": node, "Eligibility": "ineligible", "Reason": "test" }),
        ),
        (
            "PUT",
            format!("node/{node}/drain"),
            json!({ "NodeID": node, "DrainSpec": { "Deadline": 3_600_000_000_000_u64, "IgnoreSystemJobs": true },
                "MarkEligible": false, "Meta": {} }),
        ),
        (
            "PUT",
            format!("node/{node}/suspend"),
            json!({ "NodeID": node, "Reason": "disk", "For": 3_600_000_000_000_u64, "Actor": "a@b" }),
        ),
        ("PUT", format!("node/{node}/unsuspend"), json!({ "Reason": "disk", "Actor": "a@b" })),
        ("PUT", "operator/mass-loss/confirm".into(), json!({ "Actor": "a@b" })),
        ("PUT", format!("node/{node}/purge"), Value::Null),
        (
            "PUT",
            "namespaces".into(),
            json!({ "Name": "team", "Description": "d", "Meta": { "a": "b" } }),
        ),
        ("PUT", "namespace/team".into(), json!({ "Name": "team", "Description": "e" })),
        ("DELETE", "namespace/team".into(), Value::Null),
        ("PUT", "node/pools".into(), json!({ "Name": "pool", "Description": "d", "Meta": {} })),
        ("PUT", "node/pool/pool".into(), json!({ "Name": "pool" })),
        ("DELETE", "node/pool/pool".into(), Value::Null),
        (
            "PUT",
            "operator/scheduler/configuration".into(),
            json!({ "SchedulerAlgorithm": "spread", "MemoryOversubscriptionEnabled": true,
                "PreemptionConfig": { "SystemSchedulerEnabled": false }, "NodeLimitForFeasibilityChecks": 50,
                "NodeLife": { "SuspendMs": 60_000, "StrikeFailures": 5, "AffinityMetaKey": "snapshot" } }),
        ),
        ("PUT", "operator/raft/transfer-leadership".into(), Value::Null),
        ("PUT", "system/reconcile/summaries".into(), Value::Null),
        ("PUT", "system/gc".into(), Value::Null),
        ("PUT", "job/web/plan".into(), job()),
    ]
}

const METHODS: [&str; 7] = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"];

/// What may stand where a name or an id is expected.
fn odd_texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "",
        " ",
        ".",
        "..",
        "/",
        "a/b",
        "a b",
        "\u{1F4A5}",
        "\u{202e}x",
        "\0",
        "\n",
        "%",
        "*",
        "-1",
        "null",
        "true",
        "default",
        "00000000-0000-0000-0000-000000000000",
        "11111111111111111111111111111111",
        "1111",
        "${meta.x}",
        "18446744073709551616",
        "web.web[0]",
        "\"",
        "'; --",
        "<x>",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("x".repeat(300));
    texts.push("é".repeat(5_000));
    texts
}

fn odd_value(chance: &mut Dice) -> Value {
    let deep = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    match chance.index(16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(1.5),
        5 => json!(1e308),
        6 => json!(i64::MIN),
        7 => json!(i64::MAX),
        8 => json!(u64::MAX),
        9 => json!([]),
        10 => json!({}),
        11 => json!([null]),
        12 => json!({ "": { "": null } }),
        13 => deep(60 + chance.index(80)),
        14 => json!(vec![json!({ "Name": "x" }); 50]),
        _ => json!(chance.choose(&odd_texts())),
    }
}

/// All places in a value, as JSON pointers.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, item) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(item, &format!("{at}/{key}"), out);
            }
        }
        Value::Array(items) => {
            for (position, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{position}"), out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn mutate_body(body: &mut Value, chance: &mut Dice) {
    let mut all = Vec::new();
    places(body, "", &mut all);
    let place = chance.choose(&all);
    let odd = odd_value(chance);
    let Some(found) = body.pointer_mut(&place) else { return };
    match (chance.index(4), found) {
        (0, Value::Object(map)) if !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let key = chance.choose(&keys);
            let value = map.remove(&key);
            // Gone, or there under another name.
            if chance.index(2) == 0 {
                map.insert(key.to_lowercase(), value.unwrap_or(odd));
            }
        }
        (1, Value::Object(map)) => {
            map.insert(chance.choose(&["Colour", "id", "", "Job", "Namespace"]).to_owned(), odd);
        }
        (2, Value::Array(items)) => {
            let twice = items.first().cloned().unwrap_or(odd);
            items.push(twice);
        }
        (_, found) => *found = odd,
    }
}

/// The text with bytes changed, cut, doubled or removed.
fn mutate_bytes(bytes: &mut Vec<u8>, chance: &mut Dice) {
    if bytes.is_empty() {
        bytes.extend_from_slice(chance.choose(&[&b"{"[..], b"nul", b"\xff\xfe", b"[[[["]));
        return;
    }
    let at = chance.index(bytes.len());
    match chance.index(5) {
        0 => bytes.truncate(at),
        1 => bytes[at] = u8::try_from(chance.index(256)).unwrap(),
        2 => drop(bytes.remove(at)),
        3 => {
            let tail = bytes[at..].to_vec();
            bytes.extend(tail);
        }
        _ => bytes.insert(at, chance.choose(b"{}[]\",:\\0\x00\xc3")),
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'/') {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").unwrap();
        }
        out
    })
}

fn mutate_path(path: &mut String, chance: &mut Dice) {
    let mut segments: Vec<String> = path.split('/').map(str::to_owned).collect();
    let at = chance.index(segments.len());
    let odd = percent_encoded(&chance.choose(&odd_texts()));
    match chance.index(4) {
        0 => segments[at] = odd,
        1 => segments.insert(at, odd),
        2 => drop(segments.remove(at)),
        _ => {
            segments
                .push(chance.choose(&["allocations", "summary", "", "force", "stop"]).to_owned());
        }
    }
    *path = segments.join("/");
}

const PARAMETERS: [&str; 24] = [
    "namespace=*",
    "namespace=gone",
    "namespace=%00",
    "region=mars",
    "region=global",
    "prefix=%F0%9F%92%A5",
    "prefix=11",
    "per_page=0",
    "per_page=1&next_token=1",
    "per_page=99999999999999999999",
    "next_token=%22",
    "reverse=true",
    "stale",
    "stale=maybe",
    "pretty",
    "index=0",
    "index=99999999&wait=1ms",
    "index=18446744073709551615&wait=1ns&stale",
    "index=-1",
    "index=1&wait=-1s",
    "purge=true&eval_priority=101",
    "cas=18446744073709551615",
    "filter=x",
    "%zz=%",
];

fn mutate(request: &mut Request, body: &mut Value, chance: &mut Dice) {
    match chance.index(10) {
        0 => request.method = chance.choose(&METHODS),
        1 | 2 => mutate_path(&mut request.path, chance),
        3 | 4 => {
            let separator = if request.query.is_empty() { "" } else { "&" };
            write!(request.query, "{separator}{}", chance.choose(&PARAMETERS)).unwrap();
        }
        5 => {
            let (name, value) = chance.choose(&[
                ("content-type", "text/xml"),
                ("content-encoding", "gzip"),
                ("accept-encoding", "gzip, br;q=0"),
                ("idempotency-key", "k"),
                ("idempotency-key", ""),
                ("x-nomad-token", "\u{e9}"),
                ("authorization", "Bearer"),
                ("expect", "200-maybe"),
            ]);
            request.headers.push((name, value.to_owned()));
        }
        _ => mutate_body(body, chance),
    }
}

/// What clients see of the state: sessions remember refused requests as well.
fn contents(state: &State) -> Vec<fsm::digest::Digest> {
    let tables = TableId::ALL.into_iter().filter(|table| *table != TableId::Sessions);
    tables.map(|table| state.table_digest(table)).collect()
}

/// Texts of the answers with status 500 that Nomad gives as well.
const NOMADS_500: [&str; 3] =
    ["Enforcing job modify index", "No path to region", "client not enabled"];

fn check(request: &Request, response: &TestResponse) {
    let told = match response.status {
        200 | 400 | 403 | 404 | 405 | 409 | 413 | 501 => true,
        500 if request.method == "HEAD" => true,
        500 => NOMADS_500.iter().any(|text| response.text.contains(text)),
        // The test's node has no agent.
        502 => request.path.starts_with("client/"),
        _ => false,
    };
    assert!(told, "{request:?}: {response:?}");
    let silent = response.status != 200 && response.text.is_empty() && request.method != "HEAD";
    assert!(!silent, "no word of what is wrong: {request:?}: {response:?}");
    if response.status == 200 && request.method != "HEAD" && !request.query.contains("format") {
        drop(response.json());
    }
}

async fn repair(server: &TestServer) {
    let node = format!("/v1/node/{NODE}");
    if server.get(&node).await.status == 404 {
        server.cluster.add_node(NODE, "");
    }
    let scheduler = json!({ "SchedulerAlgorithm": "binpack" });
    server.put("/v1/operator/scheduler/configuration", &scheduler).await.ok();
    server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    server.put("/v1/jobs", &json!({ "Job": rich_job() })).await.ok();
    server.put("/v1/namespaces", &json!({ "Name": "team" })).await.ok();
    server.put("/v1/node/pools", &json!({ "Name": "pool" })).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn mutated_requests_are_answered_and_change_nothing_when_refused() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "");
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&JobKey::new("default", "web"), evaluation, NODE).to_string();
    repair(&server).await;
    let reads = reads(&allocation, &evaluation.to_string());
    let writes = writes(&allocation);
    let mut chance = Dice::new(20_261_121);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let (method, path, mut body) = match chance.index(3) {
            0 => ("GET", chance.choose(&reads), Value::Null),
            _ => chance.choose(&writes),
        };
        let (query, headers) = (String::new(), Vec::new());
        let mut request = Request { method, path, query, headers, body: Vec::new() };
        for _ in 0..=chance.index(3) {
            mutate(&mut request, &mut body, &mut chance);
        }
        if !body.is_null() {
            request.body = body.to_string().into_bytes();
        }
        if chance.index(8) == 0 {
            mutate_bytes(&mut request.body, &mut chance);
        }
        let before = contents(&cluster.state());
        let response = timeout(PATIENCE, deliver(&server, &request)).await;
        let response = response.unwrap_or_else(|_| panic!("round {round} hangs: {request:?}"));
        check(&request, &response);
        if response.status >= 400 {
            refused += 1;
            assert_eq!(
                contents(&cluster.state()),
                before,
                "round {round}: {request:?}: {response:?}"
            );
        } else {
            taken += 1;
        }
        if round % ROUNDS_UNTIL_REPAIR == 0 {
            let violations = fsm::invariant::check(&cluster.state());
            assert!(violations.is_empty(), "round {round}: {violations:?}");
            repair(&server).await;
        }
    }
    assert!(taken > ROUNDS / 10 && refused > ROUNDS / 3, "{taken} taken, {refused} refused");
    server.stop().await;
}

async fn deliver(server: &TestServer, request: &Request) -> TestResponse {
    let headers: Vec<(&str, &str)> =
        request.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let path = format!("/v1/{}?{}", request.path, request.query);
    send(server.address, request.method, &path, &headers, &request.body).await
}
