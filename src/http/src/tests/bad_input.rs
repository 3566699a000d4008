//! Bad input: a status, a text that says what is wrong, and no change.

use fsm::NodeId;
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);
const UNKNOWN: &str = "00000000-0000-0000-0000-000000000000";

fn job_with(change: impl FnOnce(&mut Value)) -> String {
    let mut job = web_job("web");
    change(&mut job);
    json!({ "Job": job }).to_string()
}

/// Method, path, body, expected status, and a part of the expected text.
type Case = (&'static str, String, String, u16, &'static str);

fn case(
    method: &'static str,
    path: &str,
    body: impl Into<String>,
    status: u16,
    text: &'static str,
) -> Case {
    (method, path.to_owned(), body.into(), status, text)
}

/// Options that are not built are refused by name.
fn options() -> Vec<Case> {
    vec![
        case("PUT", "/v1/namespaces", r#"{"Name": "a", "Quota": "q"}"#, 501, "Quota"),
        case("PUT", "/v1/namespaces", r#"{"Name": "a", "Capabilities": {}}"#, 501, "Capabilities"),
        case(
            "PUT",
            "/v1/node/pools",
            r#"{"Name": "a", "SchedulerConfiguration": {}}"#,
            501,
            "SchedulerConfiguration of a node pool is not supported",
        ),
    ]
}

fn bodies() -> Vec<Case> {
    let group = |job: &mut Value, name: &str, value: Value| job["TaskGroups"][0][name] = value;
    vec![
        case("PUT", "/v1/jobs", "", 400, "body is required"),
        case("PUT", "/v1/jobs", "{\n  \"Job\": {,", 400, "line 2 column 11"),
        case("PUT", "/v1/jobs", "[]", 400, "request body: expected an object, found a list"),
        case("PUT", "/v1/jobs", "{}", 400, "Job must be specified"),
        case("PUT", "/v1/jobs", r#"{"Job": 7}"#, 400, "Job: expected an object"),
        case("PUT", "/v1/jobs", r#"{"Job": {"Namespace": 7}}"#, 400, "Namespace: expected a text"),
        case("PUT", "/v1/jobs", "[".repeat(100_000), 400, "recursion limit"),
        case("PUT", "/v1/jobs", "\u{1F4A5}", 400, "not valid JSON"),
        case("PUT", "/v1/jobs", job_with(|job| job["ID"] = "".into()), 400, "ID"),
        case("PUT", "/v1/jobs", job_with(|job| group(job, "Count", json!(-1))), 400, "Count"),
        case("PUT", "/v1/jobs", job_with(|job| group(job, "Count", json!("2x"))), 400, "Count"),
        case("PUT", "/v1/jobs", job_with(|job| group(job, "Name", json!("a\tb"))), 400, "Name"),
        case(
            "PUT",
            "/v1/jobs",
            job_with(|job| job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = 0.into()),
            400,
            "CPU",
        ),
        case(
            "PUT",
            "/v1/jobs",
            r#"{"Job": {}, "EnforceIndex": "yes"}"#,
            400,
            "EnforceIndex: expected true or false, found the text \"yes\"",
        ),
        case(
            "PUT",
            "/v1/jobs",
            r#"{"Job": {}, "EnforceIndex": true, "JobModifyIndex": -1}"#,
            400,
            "JobModifyIndex: expected a whole number",
        ),
        case("PUT", "/v1/jobs", r#"{"Job": {}, "EvalPriority": 101}"#, 400, "evaluation priority"),
        case("PUT", "/v1/job/other", job_with(|_| ()), 400, "does not match"),
        case(
            "PUT",
            "/v1/jobs?namespace=a",
            job_with(|j| j["Namespace"] = "b".into()),
            400,
            "namespace \"a\" does not exist",
        ),
        case("PUT", "/v1/jobs", job_with(|j| j["Region"] = "mars".into()), 500, "to region"),
        case("PUT", "/v1/job/web", job_with(|j| j["Region"] = "mars".into()), 500, "to region"),
        case("PUT", "/v1/validate/job", job_with(|j| j["Region"] = "mars".into()), 500, "region"),
        case("PUT", "/v1/jobs", job_with(|j| j["Region"] = 7.into()), 400, "Job.Region: expected"),
        case("PUT", "/v1/jobs?namespace=*", job_with(|_| ()), 400, "only allowed on lists"),
        case(
            "PUT",
            "/v1/jobs",
            job_with(|j| j["Namespace"] = "gone".into()),
            400,
            "does not exist",
        ),
        case("PUT", "/v1/job/web/evaluate", r#"{"JobID": "other"}"#, 400, "JobID"),
        case("PUT", "/v1/job/web/evaluate", r#"{"EvalOptions": 1}"#, 400, "EvalOptions"),
        case("PUT", "/v1/jobs/parse", r#"{"JobHCL": ""}"#, 400, "empty"),
        case("PUT", "/v1/jobs/parse", r#"{"JobHCL": "job \"x\" {"}"#, 400, ""),
        case("PUT", "/v1/jobs/parse", r#"{"JobHCL": "x", "Variables": "a=1"}"#, 400, "Variables"),
        case("PUT", "/v1/namespaces", "{}", 400, "name is required"),
        case("PUT", "/v1/namespaces", r#"{"Name": "a b"}"#, 400, "namespace name"),
        case(
            "PUT",
            "/v1/namespaces",
            r#"{"Name": "a", "Meta": {"k": 1}}"#,
            400,
            "Meta.k: expected a text",
        ),
        case("PUT", "/v1/namespace/a", r#"{"Name": "b"}"#, 400, "path says \"a\""),
        case("PUT", "/v1/node/pool/all", "{}", 400, "built in"),
        case(
            "PUT",
            "/v1/operator/scheduler/configuration",
            r#"{"SchedulerAlgorithm": "random"}"#,
            400,
            "binpack or spread",
        ),
        case(
            "PUT",
            "/v1/operator/scheduler/configuration",
            r#"{"PreemptionConfig": {"BatchSchedulerEnabled": "yes"}}"#,
            400,
            "PreemptionConfig.BatchSchedulerEnabled",
        ),
    ]
}

fn nodes() -> Vec<Case> {
    let node = |verb: &str| format!("/v1/node/{NODE}/{verb}");
    let unknown = |verb: &str| format!("/v1/node/{UNKNOWN}/{verb}");
    vec![
        case("PUT", &format!("{}?enable=true", node("drain")), "", 400, "DrainSpec"),
        case(
            "PUT",
            &node("drain"),
            r#"{"DrainSpec": {"Deadline": "soon"}}"#,
            400,
            "DrainSpec.Deadline",
        ),
        case("PUT", &node("drain"), r#"{"DrainSpec": 1}"#, 400, "DrainSpec: expected an object"),
        case(
            "PUT",
            &node("drain"),
            r#"{"DrainSpec": {"Deadline": 1}, "Meta": {"message": 1}}"#,
            400,
            "Meta",
        ),
        case("PUT", &node("eligibility"), r#"{"Eligibility": "maybe"}"#, 400, "\"maybe\""),
        case("PUT", &node("eligibility"), "{}", 400, "eligible"),
        case(
            "PUT",
            &node("eligibility"),
            format!(r#"{{"NodeID": "{UNKNOWN}", "Eligibility": "eligible"}}"#),
            400,
            "NodeID",
        ),
        case("PUT", &unknown("drain"), r#"{"DrainSpec": {}}"#, 404, "node not found"),
        case("PUT", &unknown("evaluate"), "", 404, "node not found"),
        case("PUT", &unknown("purge"), "", 404, "node not found"),
        case("GET", "/v1/node/xyz", "", 400, "not a UUID"),
    ]
}

fn reads() -> Vec<Case> {
    vec![
        case("GET", "/v1/job/gone", "", 404, "job not found"),
        case("GET", "/v1/job/gone/summary", "", 404, "job not found"),
        case("GET", "/v1/job/gone/versions", "", 404, "job versions not found"),
        case("GET", "/v1/job/web/submission", "", 404, "job source not found"),
        case("GET", &format!("/v1/allocation/{UNKNOWN}"), "", 404, "alloc not found"),
        case("GET", &format!("/v1/evaluation/{UNKNOWN}"), "", 404, "eval not found"),
        case("GET", &format!("/v1/node/{UNKNOWN}"), "", 404, "node not found"),
        case("GET", &format!("/v1/deployment/{UNKNOWN}"), "", 404, "deployment not found"),
        case("GET", "/v1/namespace/gone", "", 404, "namespace not found"),
        case("GET", "/v1/node/pool/gone", "", 404, "node pool not found"),
        case("GET", "/v1/node/pool/gone/nodes", "", 404, "node pool not found"),
        case("GET", "/v1/allocation/12", "", 400, "not a UUID"),
        case("GET", "/v1/allocations?prefix=xyz", "", 400, "prefix"),
        case("GET", "/v1/jobs?filter=Name+%3D+x", "", 400, "filter expression: column 6"),
        case("GET", "/v1/evaluations/count?filter=Name", "", 400, "filter expression: column 5"),
        case("POST", "/v1/search", r#"{"Context":"cats"}"#, 400, "Context"),
        case("POST", "/v1/search/fuzzy", r#"{"Text":"a"}"#, 400, "at least 2 characters"),
        case("GET", "/v1/jobs?region=mars", "", 500, "No path to region"),
        case("GET", "/v1/jobs?index=x", "", 400, "index"),
        case("GET", "/v1/jobs?index=5&wait=5", "", 400, "wait"),
        case("GET", "/v1/jobs?per_page=-1", "", 400, "per_page"),
        case("GET", "/v1/evaluations?next_token=x", "", 400, "next_token"),
        case("GET", "/v1/jobs?stale=perhaps", "", 400, "stale"),
        case("GET", "/v1/job/%ff", "", 400, "percent-encoding"),
        case("GET", "/v1/job/web?namespace=*", "", 400, "only allowed on lists"),
        case("GET", "/v1/job/web/versions?diffs=perhaps", "", 400, "diffs"),
        case("GET", "/v1/job/web/versions?diff_version=x", "", 400, "diff_version"),
        case("GET", "/v1/agent/health?type=robot", "", 400, "type"),
        case("GET", "/v1/agent/health?type=client", "", 500, "client not enabled"),
    ]
}

fn routes() -> Vec<Case> {
    vec![
        case("GET", "/", "", 404, "unknown path"),
        case("GET", "/v1/nothing", "", 404, "unknown path \"/v1/nothing\""),
        case("GET", "/v2/jobs", "", 404, "unknown path"),
        case("DELETE", "/v1/jobs", "", 405, "method DELETE is not allowed"),
        case("PATCH", "/v1/job/web", "", 405, "not allowed"),
        case("PUT", "/v1/job/web/summary", "{}", 405, "not allowed"),
        case("GET", "/v1/job/web/evaluate", "", 405, "not allowed"),
        case("DELETE", "/v1/job/web/summary", "", 405, "not allowed"),
        case("DELETE", &format!("/v1/node/{NODE}"), "", 405, "not allowed"),
        case("PUT", "/v1/job/web/plan", "{}", 400, "Job must be specified"),
        case("PUT", "/v1/job/web/dispatch", "{}", 404, "job not found"),
        case("PUT", "/v1/job/web/dispatch", r#"{"Payload": "%"}"#, 400, "Payload: expected base64"),
        case(
            "PUT",
            "/v1/job/web/dispatch",
            r#"{"IdPrefixTemplate": "a/b"}"#,
            400,
            "cannot be in an id",
        ),
        case(
            "PUT",
            "/v1/job/web/dispatch",
            r#"{"Meta": {"a": 1}}"#,
            400,
            "Meta.a: expected a text",
        ),
        case("PUT", "/v1/job/web/dispatch/batch", "{}", 400, "Dispatches has 0 entries"),
        case("GET", "/v1/job/web/dispatch", "", 405, "not allowed"),
        case("PUT", "/v1/job/web/revert", "", 400, "body is required"),
        case(
            "PUT",
            "/v1/job/web/stable",
            r#"{"JobID": "web", "JobVersion": 9, "Stable": true}"#,
            404,
            "job not found",
        ),
        case("GET", "/v1/job/web/services", "", 501, "/v1/job/web/services is not supported"),
        case("PUT", "/v1/job/web/periodic/force", "{}", 404, "job not found"),
        case("DELETE", "/v1/job/web/versions/v1/tag", "", 404, "job not found"),
        case("GET", "/v1/job/web/versions/v1/tag", "", 405, "not allowed"),
        case("GET", "/v1/search", "", 405, "GET"),
        case("GET", "/v1/acl/tokens", "", 501, "/v1/acl/tokens"),
        case("GET", "/v1/operator/snapshot", "", 501, "snapshot"),
        case("DELETE", "/v1/operator/raft/peer", "", 400, "id or address is missing"),
        case("DELETE", "/v1/operator/raft/peer?id=77", "", 400, "no server has id 77"),
        case("DELETE", "/v1/operator/raft/peer?id=1&address=a", "", 400, "not both"),
        case("DELETE", "/v1/operator/raft/peer?id=2", "", 400, "a majority would not answer"),
        case("DELETE", "/v1/operator/raft/peer?id=2&force=maybe", "", 400, "force"),
        case("GET", "/v1/event/stream", "", 501, "event/stream"),
        case("DELETE", "/v1/evaluations", "", 400, "body is required"),
        case("DELETE", "/v1/evaluations", "{}", 400, "deleted by either ID or filter"),
        case(
            "DELETE",
            "/v1/evaluations",
            format!(r#"{{"EvalIDs": ["{UNKNOWN}"], "Filter": "x"}}"#),
            400,
            "by both ID and filter",
        ),
        case(
            "DELETE",
            "/v1/evaluations",
            r#"{"Filter": "Status = x"}"#,
            400,
            "filter expression: column 8",
        ),
        case("DELETE", "/v1/evaluations", r#"{"Filter": "Status == x"}"#, 400, "must be paused"),
        case("DELETE", "/v1/evaluations", r#"{"EvalIDs": ["x"]}"#, 400, "not a UUID"),
        case(
            "DELETE",
            "/v1/evaluations",
            format!(r#"{{"EvalIDs": ["{UNKNOWN}"]}}"#),
            400,
            "eval broker must be paused",
        ),
    ]
}

async fn check(cases: Vec<Case>) {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "");
    let server = TestServer::start(cluster.clone()).await;
    let digest = |state: &fsm::State| (state.jobs().digest(), state.nodes().digest());
    let before = digest(&cluster.state());
    for (method, path, body, status, text) in cases {
        let response = server.send(method, &path, &[], body.as_bytes()).await;
        let short: String = body.chars().take(200).collect();
        assert_eq!(response.status, status, "{method} {path} {short}: {response:?}");
        assert!(response.text.contains(text), "{method} {path} {short}: {response:?}");
    }
    assert_eq!(digest(&cluster.state()), before, "a refused request changed the state");
    server.stop().await;
}

#[tokio::test]
async fn bad_bodies_are_refused() {
    check(bodies().into_iter().chain(options()).collect()).await;
}

#[tokio::test]
async fn bad_node_requests_are_refused() {
    check(nodes()).await;
}

#[tokio::test]
async fn bad_reads_are_refused() {
    check(reads()).await;
}

#[tokio::test]
async fn unknown_and_unsupported_routes_are_told_apart() {
    check(routes()).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_a_text() {
    let server = TestServer::start(TestCluster::new()).await;
    let response = server.send("PUT", "/v1/jobs", &[], &vec![b' '; 10 << 20]).await;
    assert_eq!(response.status, 413);
    assert!(response.text.contains("4194304"), "{response:?}");
    server.stop().await;
}

#[tokio::test]
async fn validation_reports_errors_without_registering() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let good = server.put("/v1/validate/job", &json!({ "Job": web_job("web") })).await.ok();
    assert_eq!(good["ValidationErrors"], json!([]));
    let mut job = web_job("web");
    job["TaskGroups"] = json!([]);
    let bad = server.put("/v1/validate/job", &json!({ "Job": job })).await.ok();
    assert!(bad["Error"].as_str().unwrap().contains("TaskGroups"), "{bad}");
    assert!(cluster.state().jobs().is_empty());
    server.stop().await;
}
