//! Round trips of every write, and what failures of the cluster look like.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, http::Request};
use fsm::{EvaluationId, JobKey, NodeId, job::RegisterJob};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use wire::api::{ApiError, Limit};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};
use crate::{HttpOptions, router};

const NODE: NodeId = NodeId([0x11; 16]);

#[tokio::test]
async fn a_job_is_registered_changed_stopped_and_purged() {
    let server = TestServer::start(TestCluster::new()).await;
    let first = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let index = first["JobModifyIndex"].as_u64().unwrap();
    assert_eq!(first["EvalCreateIndex"], json!(index));
    assert_eq!(first["Index"], json!(index));
    let evaluation = first["EvalID"].as_str().unwrap();
    let evaluation = server.get(&format!("/v1/evaluation/{evaluation}")).await.ok();
    assert_eq!(evaluation["TriggeredBy"], json!("job-register"));

    let mut changed = web_job("web");
    changed["TaskGroups"][0]["Count"] = 3.into();
    let second = server.send("POST", "/v1/job/web", &[], body(&changed).as_bytes()).await.ok();
    assert!(second["JobModifyIndex"].as_u64().unwrap() > index);
    let job = server.get("/v1/job/web").await.ok();
    assert_eq!(job["Version"], json!(1));
    assert_eq!(job["TaskGroups"][0]["Count"], json!(3));
    let versions = server.get("/v1/job/web/versions").await.ok();
    assert_eq!(versions["Versions"][1]["Version"], json!(0));

    let evaluated = server.put("/v1/job/web/evaluate", &json!({ "JobID": "web" })).await.ok();
    assert_ne!(evaluated["EvalID"], json!(""));
    let stopped = server.delete("/v1/job/web?eval_priority=70").await.ok();
    let evaluation = stopped["EvalID"].as_str().unwrap();
    let evaluation = server.get(&format!("/v1/evaluation/{evaluation}")).await.ok();
    assert_eq!(evaluation["Priority"], json!(70));
    assert_eq!(server.get("/v1/job/web").await.ok()["Stop"], json!(true));
    server.delete("/v1/job/web?purge=true").await.ok();
    assert_eq!(server.get("/v1/job/web").await.status, 404);
    let unknown = server.delete("/v1/job/web").await.ok();
    assert_eq!(unknown["EvalID"], json!(""));
    server.stop().await;
}

/// A job that is registered after a purge is another one: what is shown of it is its own, and that
/// of the purged one comes with `all`.
#[tokio::test]
async fn a_purged_job_is_another_job() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let key = JobKey::new("default", "web");
    let old = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = old["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&key, evaluation, NODE).to_string();
    let summary = server.get("/v1/job/web/summary").await.ok();
    assert_eq!(summary["Summary"]["web"]["Running"], json!(1));
    server.delete("/v1/job/web?purge=true").await.ok();
    let ids = |list: Value| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|row| row["ID"].as_str().unwrap().to_owned()).collect()
    };
    let left = ids(server.get("/v1/job/web/allocations").await.ok());
    assert_eq!(left, [allocation.as_str()], "nobody else has the name");

    let new = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let new = new["EvalID"].as_str().unwrap();
    let summary = server.get("/v1/job/web/summary").await.ok();
    assert_eq!(summary["Summary"]["web"]["Running"], json!(0));
    let stub = server.get("/v1/jobs").await.ok();
    assert_eq!(stub[0]["JobSummary"]["Summary"]["web"]["Running"], json!(0));
    assert_eq!(ids(server.get("/v1/job/web/allocations").await.ok()), Vec::<String>::new());
    assert_eq!(ids(server.get("/v1/job/web/allocations?all=true").await.ok()), [allocation]);
    assert_eq!(ids(server.get("/v1/job/web/evaluations").await.ok()), [new]);
    assert!(ids(server.get("/v1/job/web/evaluations?all=true").await.ok()).len() >= 2);
    server.stop().await;
}

#[tokio::test]
async fn evaluations_are_deleted_while_the_broker_is_paused() {
    let server = TestServer::start(TestCluster::new()).await;
    let made = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let delete = json!({ "EvalIDs": [made["EvalID"]] });
    let ask =
        async || server.send("DELETE", "/v1/evaluations", &[], delete.to_string().as_bytes()).await;
    assert_eq!(ask().await.status, 400);
    let path = "/v1/operator/scheduler/configuration";
    server.put(path, &json!({ "PauseEvalBroker": true })).await.ok();
    assert_eq!(ask().await.ok()["Count"], json!(1));
    assert_eq!(server.get("/v1/evaluations").await.ok(), json!([]));
    let again = ask().await;
    assert_eq!((again.status, again.text.trim()), (404, "eval not found"));
    server.stop().await;
}

#[tokio::test]
async fn fields_that_clients_read_are_not_null_where_nomad_has_a_value() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let nobody = NodeId([0x22; 16]);
    assert_eq!(server.get(&format!("/v1/node/{nobody}/allocations")).await.ok(), json!([]));
    assert_eq!(server.get(&format!("/v1/node/{NODE}")).await.ok()["SecretID"], json!(""));
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let id = cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    let row = server.get(&format!("/v1/allocation/{id}")).await.ok();
    assert!(row["NetworkStatus"].is_object(), "{row}");
    assert_eq!(row["EvalID"], registered["EvalID"]);
    for path in ["/v1/quotas", "/v1/operator/license", "/v1/sentinel/policies"] {
        let refused = server.get(path).await;
        assert_eq!(refused.status, 501, "{path}");
        assert!(refused.text.contains("Nomad Enterprise only endpoint"), "{}", refused.text);
    }
    server.stop().await;
}

fn body(job: &Value) -> String {
    json!({ "Job": job }).to_string()
}

#[tokio::test]
async fn ids_with_slashes_work_encoded_and_raw() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("plain") })).await.ok();
    for id in ["a/b", "a/summary"] {
        // Registering such an id is up to the translation of jobs; here only the path counts.
        let spec = cluster.state().jobs().get(&JobKey::new("default", "plain")).cloned().unwrap();
        let mut spec = fsm::JobSpec::clone(cluster.state().current_spec(&spec).unwrap());
        spec.key = JobKey::new("default", id);
        cluster.must(fsm::Command::from(RegisterJob::new(
            Arc::new(spec),
            EvaluationId(*blake3::hash(id.as_bytes()).as_bytes().first_chunk().unwrap()),
        )));
    }
    for (path, id) in
        [("/v1/job/a/b", "a/b"), ("/v1/job/a%2Fb", "a/b"), ("/v1/job/a%2Fsummary", "a/summary")]
    {
        assert_eq!(server.get(path).await.ok()["ID"], json!(id), "{path}");
    }
    for (path, id) in [
        ("/v1/job/a/b/summary", "a/b"),
        ("/v1/job/a%2Fb/summary", "a/b"),
        ("/v1/job/a/summary/summary", "a/summary"),
    ] {
        assert_eq!(server.get(path).await.ok()["JobID"], json!(id), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn compare_and_set_has_the_texts_that_clients_know() {
    let server = TestServer::start(TestCluster::new()).await;
    let register = |index: u64| {
        let body = json!({ "Job": web_job("web"), "EnforceIndex": true, "JobModifyIndex": index });
        let server = &server;
        async move { server.put("/v1/jobs", &body).await }
    };
    let missing = register(5).await;
    assert_eq!(missing.status, 500);
    assert_eq!(missing.text, "Enforcing job modify index 5: job does not exist");
    let created = register(0).await.ok();
    let exists = register(0).await;
    assert_eq!(exists.text, "Enforcing job modify index 0: job already exists");
    let index = created["JobModifyIndex"].as_u64().unwrap();
    let conflict = register(index + 1).await;
    let expected = format!(
        "Enforcing job modify index {}: job exists with conflicting job modify index: {index}",
        index + 1
    );
    assert_eq!(conflict.text, expected);
    register(index).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn a_stopped_job_shows_the_index_that_compare_and_set_asks_for() {
    let server = TestServer::start(TestCluster::new()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let stopped = server.delete("/v1/job/web").await.ok()["JobModifyIndex"].clone();
    assert_ne!(stopped, registered["JobModifyIndex"]);
    let shown = server.get("/v1/job/web").await.ok();
    assert_eq!((&shown["JobModifyIndex"], &shown["Stop"]), (&stopped, &json!(true)));
    let versions = server.get("/v1/job/web/versions").await.ok();
    assert_eq!(versions["Versions"][0]["JobModifyIndex"], stopped);
    let again = json!({ "Job": web_job("web"), "EnforceIndex": true, "JobModifyIndex": stopped });
    server.put("/v1/jobs", &again).await.ok();
    let versions = server.get("/v1/job/web/versions").await.ok();
    assert_eq!(versions["Versions"][1]["JobModifyIndex"], stopped, "the stop is a version");
    assert_eq!(versions["Versions"][2]["JobModifyIndex"], registered["JobModifyIndex"]);
    server.stop().await;
}

#[tokio::test]
async fn a_job_names_the_region_of_its_servers_or_none() {
    let options = HttpOptions { region: "eu".to_owned(), ..HttpOptions::default() };
    let server = TestServer::start_with(TestCluster::new(), options).await;
    for region in [Value::Null, json!(""), json!("global"), json!("eu")] {
        let mut job = web_job("web");
        job["Region"] = region;
        server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    }
    // What is shown can be registered again.
    let shown = server.get("/v1/job/web").await.ok();
    server.put("/v1/jobs", &json!({ "Job": shown })).await.ok();
    let mut elsewhere = web_job("web");
    elsewhere["Region"] = "mars".into();
    let refused = server.put("/v1/jobs", &json!({ "Job": elsewhere })).await;
    assert_eq!((refused.status, refused.text.as_str()), (500, "No path to region"));
    server.stop().await;
}

#[tokio::test]
async fn an_idempotency_key_makes_a_retry_one_write() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let body = body(&web_job("web"));
    let headers = [("Idempotency-Key", "one")];
    let first = server.send("PUT", "/v1/jobs", &headers, body.as_bytes()).await.ok();
    let again = server.send("PUT", "/v1/jobs", &headers, body.as_bytes()).await.ok();
    assert_eq!(first, again);
    assert_eq!(cluster.state().evaluations().len(), 1);
    let other = json!({ "Job": web_job("other") }).to_string();
    let reused = server.send("PUT", "/v1/jobs", &headers, other.as_bytes()).await;
    assert_eq!(reused.status, 409, "{reused:?}");
    let token = [("Idempotency-Key", "one"), ("X-Nomad-Token", "mine")];
    server.send("PUT", "/v1/jobs", &token, other.as_bytes()).await.ok();
    let empty = [("Idempotency-Key", "")];
    assert_eq!(server.send("PUT", "/v1/jobs", &empty, other.as_bytes()).await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn an_allocation_is_stopped() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "");
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let id = cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    let stopped = server.put(&format!("/v1/allocation/{id}/stop"), &json!({})).await.ok();
    let evaluation = stopped["EvalID"].as_str().unwrap();
    let evaluation = server.get(&format!("/v1/evaluation/{evaluation}")).await.ok();
    assert_eq!(evaluation["TriggeredBy"], json!("alloc-stop"));
    let unknown = "/v1/allocation/00000000-0000-0000-0000-000000000000/stop";
    assert_eq!(server.put(unknown, &json!({})).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_node_is_drained_marked_evaluated_and_purged() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "");
    let server = TestServer::start(cluster.clone()).await;
    let node = || async { server.get(&format!("/v1/node/{NODE}")).await.ok() };
    let put = |verb: &'static str, body: Value| {
        let server = &server;
        async move { server.put(&format!("/v1/node/{NODE}/{verb}"), &body).await }
    };
    let hour = 3_600_000_000_000_u64;
    put("drain", json!({ "DrainSpec": { "Deadline": hour, "IgnoreSystemJobs": true } })).await.ok();
    let draining = node().await;
    assert_eq!(draining["Drain"], json!(true));
    assert_eq!(draining["SchedulingEligibility"], json!("ineligible"));
    assert_eq!(draining["DrainStrategy"]["IgnoreSystemJobs"], json!(true));
    put("drain", json!({ "DrainSpec": { "Deadline": -1 } })).await.ok();
    assert_eq!(node().await["DrainStrategy"]["Deadline"], json!(-1));
    put("drain", json!({ "DrainSpec": null, "MarkEligible": true })).await.ok();
    let ended = node().await;
    assert_eq!(ended["DrainStrategy"], Value::Null);
    assert_eq!(ended["SchedulingEligibility"], json!("eligible"));

    let marked =
        put("eligibility", json!({ "NodeID": NODE.to_string(), "Eligibility": "ineligible" }))
            .await
            .ok();
    assert_eq!(marked["EvalIDs"], json!([]));
    assert!(marked["NodeModifyIndex"].as_u64().unwrap() > 0);
    assert_eq!(node().await["SchedulingEligibility"], json!("ineligible"));
    put("eligibility", json!({ "Eligibility": "eligible" })).await.ok();
    assert_eq!(node().await["SchedulingEligibility"], json!("eligible"));
    put("evaluate", json!({})).await.ok();
    put("purge", json!({})).await.ok();
    assert_eq!(server.get(&format!("/v1/node/{NODE}")).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn namespaces_and_node_pools_come_and_go() {
    let server = TestServer::start(TestCluster::new()).await;
    for (noun, list) in [("namespace", "namespaces"), ("node/pool", "node/pools")] {
        let body = json!({ "Name": "blue", "Description": "d", "Meta": { "k": "v" } });
        server.put(&format!("/v1/{list}"), &body).await.ok();
        let read = server.get(&format!("/v1/{noun}/blue")).await.ok();
        assert_eq!(read["Meta"], json!({ "k": "v" }), "{noun}");
        server.put(&format!("/v1/{noun}/blue"), &json!({ "Description": "e" })).await.ok();
        assert_eq!(server.get(&format!("/v1/{noun}/blue")).await.ok()["Description"], json!("e"));
        let names = server.get(&format!("/v1/{list}?prefix=bl")).await.ok();
        assert_eq!(names.as_array().unwrap().len(), 1, "{noun}");
        server.delete(&format!("/v1/{noun}/blue")).await.ok();
        assert_eq!(server.get(&format!("/v1/{noun}/blue")).await.status, 404, "{noun}");
        assert_eq!(server.delete(&format!("/v1/{noun}/blue")).await.status, 404, "{noun}");
        assert_eq!(server.delete(&format!("/v1/{noun}/default")).await.status, 400, "{noun}");
    }
    server.put("/v1/namespaces", &json!({ "Name": "used" })).await.ok();
    server.put("/v1/jobs?namespace=used", &json!({ "Job": web_job("web") })).await.ok();
    let in_use = server.delete("/v1/namespace/used").await;
    assert_eq!(in_use.status, 409, "{in_use:?}");
    server.stop().await;
}

#[tokio::test]
async fn the_scheduler_configuration_is_compared_and_set() {
    let server = TestServer::start(TestCluster::new()).await;
    let path = "/v1/operator/scheduler/configuration";
    let read = server.get(path).await.ok();
    let mut configuration = read["SchedulerConfig"].clone();
    configuration["SchedulerAlgorithm"] = "spread".into();
    configuration["RejectJobRegistration"] = true.into();
    let cas = format!("{path}?cas={}", read["ModifyIndex"]);
    assert_eq!(server.put(&cas, &configuration).await.ok()["Updated"], json!(true));
    assert_eq!(server.put(&cas, &configuration).await.ok()["Updated"], json!(false));
    let read = server.get(path).await.ok();
    assert_eq!(read["SchedulerConfig"]["SchedulerAlgorithm"], json!("spread"));
    let refused = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn leadership_is_transferred_to_a_voter() {
    let server = TestServer::start(TestCluster::new()).await;
    let path = "/v1/operator/raft/transfer-leadership";
    let done = server.put(&format!("{path}?id=2"), &json!({})).await.ok();
    assert_eq!(done["From"]["ID"], json!("0000000000000001"));
    assert_eq!(done["To"], json!({ "ID": "0000000000000002", "Address": "10.0.0.2:4647" }));
    let done = server.put(&format!("{path}?address=10.0.0.1:4647"), &json!({})).await.ok();
    assert_eq!(done["Noop"], json!(true));
    for query in ["id=9", "address=10.9.9.9:1", "id=1&address=10.0.0.1:4647"] {
        assert_eq!(server.put(&format!("{path}?{query}"), &json!({})).await.status, 400);
    }
    server.stop().await;
}

#[tokio::test]
async fn failures_of_the_cluster_have_their_status() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let overloaded = || ApiError::Overloaded {
        what: Limit::PendingEvaluations,
        limit: 10,
        retry_after_ms: 1_500,
    };
    for (failure, status, text) in [
        (ApiError::NoLeader, 500, "No cluster leader"),
        (ApiError::Timeout { proposed: false }, 504, "timed out"),
        (ApiError::Timeout { proposed: true }, 504, "outcome is unknown"),
        (ApiError::Unknown, 500, "outcome is unknown"),
        (overloaded(), 429, "pending evaluations limit reached (10)"),
        (ApiError::NotReady("recovering".to_owned()), 503, "recovering"),
        (ApiError::DiskFull("1 MiB left".to_owned()), 503, "1 MiB left"),
        (ApiError::Invalid("no".to_owned()), 400, "no"),
    ] {
        *cluster.failure.lock().unwrap() = Some(failure.clone());
        for response in [
            server.get("/v1/jobs").await,
            server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await,
        ] {
            assert_eq!(response.status, status, "{failure:?}");
            assert!(response.text.contains(text), "{response:?}");
            assert!(response.headers["content-type"].starts_with("text/plain"));
        }
        let health = server.get("/v1/agent/health").await;
        assert_eq!(health.status, 500);
        assert_eq!(health.json()["server"]["ok"], json!(false));
    }
    *cluster.failure.lock().unwrap() = Some(overloaded());
    assert_eq!(server.get("/v1/jobs").await.headers["retry-after"], "2");
    server.stop().await;
}

#[tokio::test]
async fn an_answer_larger_than_its_bound_is_refused() {
    let options = HttpOptions { response_bytes_max: 100, ..HttpOptions::default() };
    let server = TestServer::start_with(TestCluster::new(), options).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let response = server.get("/v1/jobs").await;
    assert_eq!(response.status, 400);
    assert!(response.text.contains("per_page"), "{response:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let options = HttpOptions { timeout: Duration::from_millis(100), ..HttpOptions::default() };
    let server = TestServer::start_with(TestCluster::new(), options).await;
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let head =
        "PUT /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn bodies_beyond_what_all_may_take_are_turned_away() {
    let options = HttpOptions { request_bodies_bytes_max: 64 << 10, ..HttpOptions::default() };
    let server = TestServer::start_with(TestCluster::new(), options).await;
    // By their bytes, and by what these become.
    for body in [b" ".repeat(100_000), b"[{},{}]".repeat(100)] {
        let response = server.send("PUT", "/v1/jobs", &[], &body).await;
        assert_eq!(response.status, 429, "{response:?}");
        assert!(response.text.contains("request body bytes limit reached (65536)"), "{response:?}");
        server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    }
    server.stop().await;
}

/// 24 MiB of it took 2.75 GB.
#[tokio::test]
async fn a_body_that_becomes_too_much_is_refused_before_it_is_read() {
    let server = TestServer::start(TestCluster::new()).await;
    let objects = |bytes: usize| [b"[".to_vec(), b"{\"\":0},".repeat(bytes / 7), b"0]".to_vec()];
    for (path, bytes) in [("/v1/jobs", 4 << 20), ("/v1/job/web/dispatch/batch", 24 << 20)] {
        let response = server.send("PUT", path, &[], &objects(bytes - 9).concat()).await;
        assert_eq!(response.status, 413, "{path}: {response:?}");
        assert!(response.text.contains("the values of the request body take"), "{response:?}");
        // Few enough: then its meaning is looked at.
        let response = server.send("PUT", path, &[], &objects(1_000).concat()).await;
        assert!([400, 404].contains(&response.status), "{path}: {response:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn answers_beyond_what_all_may_take_are_turned_away_until_one_is_gone() {
    let options = HttpOptions { response_bodies_bytes_max: 150 << 10, ..HttpOptions::default() };
    // Without a connection, so that the answers are as unread as they can be.
    let server = TowerToHyperService::new(router(TestCluster::new(), options));
    let ask = |method: &str, path: &str, body: String| {
        let request = Request::builder().method(method).uri(path).body(Body::from(body)).unwrap();
        server.call(request)
    };
    let get = |path: &str| ask("GET", path, String::new());
    let mut large = web_job("large");
    large["Meta"]["large"] = "x".repeat(100_000).into();
    assert_eq!(ask("PUT", "/v1/jobs", body(&large)).await.unwrap().status(), 200);

    for path in ["/v1/job/large", "/v1/job/large?pretty", "/v1/jobs?meta", "/v1/job/large/versions"]
    {
        let unread = get(path).await.unwrap();
        assert_eq!(unread.status(), 200, "{path}");
        for second in ["/v1/job/large", "/v1/job/large/versions", "/v1/jobs?meta"] {
            let refused = get(second).await.unwrap();
            assert_eq!(refused.status(), 429, "{second} beside {path}");
            assert_eq!(refused.headers()["retry-after"], "1");
            let text = axum::body::to_bytes(refused.into_body(), 1_000).await.unwrap();
            assert!(text.starts_with(b"response body bytes limit reached (153600)"), "{text:?}");
        }
        assert_eq!(get("/v1/jobs").await.unwrap().status(), 200, "short ones do not count");
        drop(unread);
    }
}
