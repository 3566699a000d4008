//! `/v1/search`, `/v1/search/fuzzy` and `filter` on lists.

use std::sync::Arc;

use fsm::{AllocationId, EvaluationId, JobKey, NodeId, job::EvaluateJob};
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);

/// Jobs `web` and `db` in `default`, `web` in `other`; one instance of the first on a node.
async fn populated() -> (TestServer, Arc<TestCluster>, AllocationId) {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    server.put("/v1/namespaces", &json!({ "Name": "other" })).await.ok();
    let mut web = web_job("web");
    web["Meta"] = json!({ "owner": "ops" });
    web["TaskGroups"][0]["Services"] = json!([{ "Name": "frontend", "Provider": "nomad" }]);
    let registered = server.put("/v1/jobs", &json!({ "Job": web })).await.ok();
    let mut db = web_job("db");
    db["Priority"] = json!(70);
    server.put("/v1/jobs", &json!({ "Job": db })).await.ok();
    server.put("/v1/jobs?namespace=other", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    (server, cluster, allocation)
}

async fn search(server: &TestServer, path: &str, body: Value) -> Value {
    server.put(path, &body).await.ok()
}

#[tokio::test]
async fn a_prefix_finds_what_begins_with_it_in_its_context_and_namespace() {
    let (server, _, allocation) = populated().await;
    let id = allocation.to_string();
    for digits in [1, 2, 7, 8, 13, 36] {
        let found =
            search(&server, "/v1/search", json!({ "Prefix": &id[..digits], "Context": "allocs" }))
                .await;
        assert_eq!(found["Matches"], json!({ "allocs": [id] }), "{digits} digits");
        assert_eq!(found["Truncations"], json!({ "allocs": false }));
    }
    let all = search(&server, "/v1/search", json!({ "Prefix": "w", "Context": "all" })).await;
    assert_eq!(all["Matches"]["jobs"], json!(["web"]));
    assert_eq!(all["Matches"]["allocs"], json!([]), "w begins no id: {all}");
    assert_eq!(all["Matches"]["deployment"], json!([]));
    assert_eq!(all["Matches"]["instances"], Value::Null, "Nomad's clients do not know it");
    let nodes = search(&server, "/v1/search", json!({ "Prefix": "1111", "Context": "" })).await;
    assert_eq!(nodes["Matches"]["nodes"], json!([NODE.to_string()]));
    for (namespace, expected) in [("other", 1), ("*", 2), ("missing", 0)] {
        let path = format!("/v1/search?namespace={namespace}");
        let found = search(&server, &path, json!({ "Prefix": "we", "Context": "jobs" })).await;
        assert_eq!(found["Matches"]["jobs"].as_array().unwrap().len(), expected, "{namespace}");
    }
    let elsewhere =
        search(&server, "/v1/search?namespace=other", json!({ "Prefix": id, "Context": "allocs" }));
    assert_eq!(elsewhere.await["Matches"]["allocs"], json!([]));
    let pools = search(&server, "/v1/search", json!({ "Prefix": "def" })).await;
    assert_eq!(pools["Matches"]["node_pools"], json!(["default"]));
    assert_eq!(pools["Matches"]["namespaces"], json!(["default"]));
    server.stop().await;
}

#[tokio::test]
async fn a_search_shows_twenty_matches_and_says_that_there_are_more() {
    let (server, cluster, _) = populated().await;
    for number in 0..40_u8 {
        cluster.must(fsm::Command::from(EvaluateJob {
            job: JobKey::new("default", "web"),
            force_reschedule: false,
            evaluation: EvaluationId([0xab, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        }));
    }
    for (digits, expected, truncated) in [("ab", 20, true), ("ab0", 16, false), ("ab2", 8, false)] {
        let found =
            search(&server, "/v1/search", json!({ "Prefix": digits, "Context": "evals" })).await;
        assert_eq!(found["Matches"]["evals"].as_array().unwrap().len(), expected, "{digits}");
        assert_eq!(found["Truncations"]["evals"], truncated, "{digits}");
    }
    for number in 0..25 {
        let job = web_job(&format!("batch-{number}"));
        server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    }
    let found =
        search(&server, "/v1/search/fuzzy", json!({ "Text": "ATCH", "Context": "jobs" })).await;
    assert_eq!(found["Matches"]["jobs"].as_array().unwrap().len(), 20);
    assert_eq!(
        found["Matches"]["jobs"][0],
        json!({ "ID": "batch-0", "Scope": ["default", "batch-0"] })
    );
    assert_eq!(found["Truncations"]["jobs"], true);
    server.stop().await;
}

#[tokio::test]
async fn a_fuzzy_search_finds_parts_of_names_and_where_they_are() {
    let (server, _, allocation) = populated().await;
    let fuzzy = async |text: &str, context: &str| {
        let body = json!({ "Text": text, "Context": context });
        search(&server, "/v1/search/fuzzy", body).await["Matches"]
            [if context == "all" { "jobs" } else { context }]
        .clone()
    };
    let in_group = json!(["default", "web", "web"]);
    let in_task = json!(["default", "web", "web", "server"]);
    for (text, context, expected) in [
        ("EB", "jobs", json!([{ "ID": "web", "Scope": ["default", "web"] }])),
        ("front", "services", json!([{ "ID": "frontend", "Scope": in_group }])),
        (
            "sleep",
            "commands",
            json!([{ "ID": "/bin/sleep", "Scope": ["default", "db", "web", "server"] }, { "ID": "/bin/sleep", "Scope": in_task }]),
        ),
        (
            "eb.web[",
            "allocs",
            json!([{ "ID": "web.web[0]", "Scope": ["default", allocation.to_string()] }]),
        ),
        ("efau", "namespaces", json!([{ "ID": "default" }])),
        ("efau", "node_pools", json!([{ "ID": "default" }])),
        (&allocation.to_string(), "evals", json!([])),
        ("nothing", "all", json!([])),
    ] {
        assert_eq!(fuzzy(text, context).await, expected, "{text} in {context}");
    }
    let with_contents =
        search(&server, "/v1/search/fuzzy", json!({ "Text": "serv", "Context": "jobs" })).await;
    assert_eq!(with_contents["Matches"]["tasks"].as_array().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn lists_are_filtered_by_any_field_of_what_they_list() {
    let (server, _, allocation) = populated().await;
    let count = async |path: &str, filter: &str| {
        let filter = crate::percent::encode(filter);
        let separator = if path.contains('?') { '&' } else { '?' };
        let rows = server.get(&format!("{path}{separator}filter={filter}")).await.ok();
        rows.as_array().unwrap().len()
    };
    for (path, filter, expected) in [
        ("/v1/jobs", "ID == web", 1),
        ("/v1/jobs", "Priority == 70 or ID == web", 2),
        // Not in the stub of a list.
        ("/v1/jobs", "Meta.owner == ops", 1),
        ("/v1/jobs?namespace=*", "TaskGroups.0.Count == 2", 3),
        ("/v1/jobs", "\"dc1\" in Datacenters or Datacenters contains `*`", 2),
        ("/v1/nodes", "Status == ready", 1),
        ("/v1/nodes", "Meta.row is empty and HTTPAddr matches \"^10[.]\"", 1),
        ("/v1/allocations", "ClientStatus != lost", 1),
        ("/v1/allocations", "Job.Type == service and Job.Meta.owner == ops", 1),
        ("/v1/allocations", "ClientStatus == lost", 0),
        ("/v1/evaluations?namespace=*", "TriggeredBy == `job-register`", 3),
        ("/v1/job/web/allocations", "NodeID matches \"^1111\"", 1),
        ("/v1/job/web/evaluations", "JobID == db", 0),
        ("/v1/namespaces", "Name != other", 1),
        ("/v1/node/pools", "Name == all", 1),
    ] {
        assert_eq!(count(path, filter).await, expected, "{path} {filter}");
    }
    let by_node = format!("/v1/node/{NODE}/allocations");
    assert_eq!(count(&by_node, &format!("ID == \"{allocation}\"")).await, 1);
    let counted = server.get("/v1/evaluations/count?namespace=*&filter=JobID+%3D%3D+db").await.ok();
    assert_eq!(counted, json!({ "Count": 1 }));
    let refused = server.get("/v1/jobs?filter=Colour+%3D%3D+red").await;
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("column 1: error finding value in datum"), "{}", refused.text);
    server.stop().await;
}
