//! Scaling over the API, as an autoscaler speaks it.

use fsm::{JobKey, NodeId};
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);

async fn scaled() -> TestServer {
    let server = TestServer::start(TestCluster::new()).await;
    let mut job = web_job("web");
    let policy = json!({"cooldown": "1m", "check": [{"cpu": [{"source": "nomad-apm"}]}]});
    job["TaskGroups"][0]["Count"] = 2.into();
    job["TaskGroups"][0]["Update"] = json!({"MaxParallel": 0});
    job["TaskGroups"][0]["Scaling"] = json!({"Min": 1, "Max": 5, "Policy": policy});
    server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    server
}

fn to(count: &Value) -> Value {
    json!({"Count": count, "Target": {"Group": "web"}, "Message": "busy", "Meta": {"a": [1]}})
}

async fn scale(server: &TestServer, body: &Value) -> super::socket::TestResponse {
    server.put("/v1/job/web/scale", body).await
}

#[tokio::test]
async fn a_scale_is_answered_as_a_registration_and_leaves_an_event() {
    let server = scaled().await;
    let before: Value = server.get("/v1/job/web").await.ok();
    let answer = scale(&server, &to(&json!(4))).await.ok();
    let job: Value = server.get("/v1/job/web").await.ok();
    assert_eq!(job["TaskGroups"][0]["Count"], 4);
    assert_eq!(answer["JobModifyIndex"], job["JobModifyIndex"]);
    assert_ne!(before["JobModifyIndex"], job["JobModifyIndex"]);
    let status: Value = server.get("/v1/job/web/scale").await.ok();
    assert_eq!(status["JobModifyIndex"], job["JobModifyIndex"]);
    let group = &status["TaskGroups"]["web"];
    assert_eq!((&group["Desired"], &group["Placed"]), (&json!(4), &json!(0)));
    let event = &group["Events"][0];
    assert_eq!((&event["Count"], &event["PreviousCount"]), (&json!(4), &json!(2)));
    assert_eq!((&event["EvalID"], &event["Error"]), (&answer["EvalID"], &json!(false)));
    assert_eq!((&event["Meta"], &event["Message"]), (&json!({"a": [1]}), &json!("busy")));

    // What failed is said without a count.
    let mut said = to(&Value::Null);
    said["Error"] = true.into();
    let answer = scale(&server, &said).await.ok();
    assert_eq!((&answer["EvalID"], &answer["EvalCreateIndex"]), (&json!(""), &json!(0)));
    let status: Value = server.get("/v1/job/web/scale").await.ok();
    let event = &status["TaskGroups"]["web"]["Events"][0];
    assert_eq!((&event["Count"], &event["EvalID"]), (&Value::Null, &Value::Null));
    server.stop().await;
}

/// An autoscaler blocks on the index that it was told: it rises with the job's allocations and
/// events, and not with those of others. A count is moved whatever is said about it: what is too
/// long for an event is cut, or left out, and says so.
#[tokio::test]
async fn a_message_too_long_for_an_event_does_not_prevent_the_scaling() {
    let server = scaled().await;
    let mut body = to(&json!(3));
    body["Message"] = "ä".repeat(3_000).into();
    body["Meta"] = json!({ "policy": "x".repeat(5_000) });
    let answer = scale(&server, &body).await.ok();
    let warnings = answer["Warnings"].as_str().unwrap();
    assert!(warnings.contains("Message has 6000 bytes, of which 4096 are kept"), "{warnings}");
    assert!(warnings.contains("Meta has 5013 bytes, at most 4096 are kept"), "{warnings}");
    let status: Value = server.get("/v1/job/web/scale").await.ok();
    let group = &status["TaskGroups"]["web"];
    assert_eq!(group["Desired"], 3);
    let event = &group["Events"][0];
    let message = event["Message"].as_str().unwrap();
    assert!(message.starts_with("ää") && message.ends_with("ä… (cut: it had 6000 bytes)"));
    assert!((4_094..=4_096).contains(&message.len()), "{}", message.len());
    let note = json!({ "quorate.left_out": "Meta has 5013 bytes, at most 4096 are kept" });
    assert_eq!(event["Meta"], note);

    // What fits is kept as it is.
    let mut body = to(&json!(4));
    body["Message"] = "x".repeat(4_096).into();
    let answer = scale(&server, &body).await.ok();
    assert_eq!(answer["Warnings"], "");
    let status: Value = server.get("/v1/job/web/scale").await.ok();
    assert_eq!(status["TaskGroups"]["web"]["Events"][0]["Message"], body["Message"]);
    server.stop().await;
}

#[tokio::test]
async fn the_index_of_the_status_is_that_of_the_job() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let mut answers = Vec::new();
    for id in ["web", "db"] {
        answers.push(server.put("/v1/jobs", &json!({ "Job": web_job(id) })).await.ok());
    }
    let index = async || server.get("/v1/job/web/scale").await.index();
    let before = index().await;
    let evaluation = |answer: &Value| answer["EvalID"].as_str().unwrap().parse().unwrap();
    cluster.place(&JobKey::new("default", "db"), evaluation(&answers[1]), NODE);
    let mut said = to(&Value::Null);
    said["Error"] = true.into();
    server.put("/v1/job/db/scale", &said).await.ok();
    assert_eq!(index().await, before);
    cluster.place(&JobKey::new("default", "web"), evaluation(&answers[0]), NODE);
    let placed = index().await;
    assert!(placed > before);
    scale(&server, &said).await.ok();
    assert!(index().await > placed);
    server.stop().await;
}

#[tokio::test]
async fn a_job_that_cannot_be_scaled_is_refused_in_nomads_words() {
    let server = scaled().await;
    let with = |name: &str, value: Value| {
        let mut body = to(&json!(3));
        body[name] = value;
        body
    };
    for (body, status, text) in [
        (to(&json!(6)), 400, "group count was greater than scaling policy maximum: 6 > 5"),
        (to(&json!(0)), 400, "group count was less than scaling policy minimum: 0 < 1"),
        (to(&json!(-1)), 400, "scaling action count can't be negative"),
        (to(&json!("x")), 400, "Count: expected"),
        (with("Target", json!({})), 400, "missing task group name for scaling action"),
        (with("Target", json!({"Group": "x"})), 400, "does not exist in job"),
        (with("Target", json!({"Group": "web", "Job": "y"})), 400, "did not match URL"),
        (with("Error", json!(true)), 400, "should not contain count if error is true"),
        (with("JobModifyIndex", json!(99)), 500, "Enforcing job modify index 99"),
        (with("Meta", json!("x")), 400, "Meta: expected an object"),
    ] {
        let refused = scale(&server, &body).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.text);
        assert!(refused.text.contains(text), "{body}: {}", refused.text);
    }
    let unknown = server.put("/v1/job/nothing/scale", &to(&json!(3))).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    assert_eq!(server.get("/v1/job/nothing/scale").await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn policies_are_listed_by_job_and_type_and_found_by_id() {
    let server = scaled().await;
    server.put("/v1/jobs", &json!({ "Job": web_job("other") })).await.ok();
    let list: Value = server.get("/v1/scaling/policies").await.ok();
    let [stub] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    let target = json!({"Namespace": "default", "Job": "web", "Group": "web"});
    assert_eq!((&stub["Target"], &stub["Type"]), (&target, &json!("horizontal")));
    for (query, rows) in [
        ("job=web", 1),
        ("job=we", 0),
        ("type=horizontal", 1),
        ("type=cluster", 0),
        ("job=web&type=horizontal", 1),
        ("filter=Enabled+==+true", 1),
        ("filter=Min+==+2", 0),
        ("namespace=other", 0),
    ] {
        let found: Value = server.get(&format!("/v1/scaling/policies?{query}")).await.ok();
        assert_eq!(found.as_array().unwrap().len(), rows, "{query}");
    }
    let id = stub["ID"].as_str().unwrap();
    let policy: Value = server.get(&format!("/v1/scaling/policy/{id}")).await.ok();
    assert_eq!((&policy["Min"], &policy["Max"]), (&json!(1), &json!(5)));
    assert_eq!(policy["Policy"]["check"][0]["cpu"][0]["source"], "nomad-apm");
    assert_eq!(policy["ModifyIndex"], stub["ModifyIndex"]);
    let search = json!({"Prefix": &id[..6], "Context": "scaling_policy"});
    let found = server.put("/v1/search", &search).await.ok();
    assert_eq!(found["Matches"], json!({"scaling_policy": [id]}));
    for unknown in ["x", "11111111-1111-8111-8111-111111111111"] {
        let missing = server.get(&format!("/v1/scaling/policy/{unknown}")).await;
        assert_eq!((missing.status, missing.text.as_str()), (404, "policy not found"));
    }
    // A stopped job has none.
    server.send("DELETE", "/v1/job/web", &[], b"").await.ok();
    assert_eq!(server.get("/v1/scaling/policies").await.ok(), json!([]));
    server.stop().await;
}

/// The Go client's `TestJobs_Register_PreserveResources`.
#[tokio::test]
async fn a_registration_keeps_the_resources_of_tasks() {
    let server = scaled().await;
    let mut job: Value = server.get("/v1/job/web").await.ok();
    let before = job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"].clone();
    job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = 777.into();
    let cpu = async |body: Value| -> Value {
        server.put("/v1/jobs", &body).await.ok();
        let job: Value = server.get("/v1/job/web").await.ok();
        job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"].clone()
    };
    assert_eq!(cpu(json!({"Job": job, "PreserveResources": true})).await, before);
    assert_eq!(cpu(json!({"Job": job, "PreserveResources": false})).await, 777);
    server.stop().await;
}

#[tokio::test]
async fn a_registration_keeps_the_counts_that_scaling_set() {
    let server = scaled().await;
    scale(&server, &to(&json!(4))).await.ok();
    let mut job: Value = server.get("/v1/job/web").await.ok();
    job["TaskGroups"][0]["Count"] = 1.into();
    job["Meta"] = json!({"a": "b"});
    let count = async |body: Value| -> Value {
        server.put("/v1/jobs", &body).await.ok();
        let job: Value = server.get("/v1/job/web").await.ok();
        job["TaskGroups"][0]["Count"].clone()
    };
    assert_eq!(count(json!({"Job": job, "PreserveCounts": true})).await, 4);
    assert_eq!(count(json!({"Job": job})).await, 1);
    server.stop().await;
}
