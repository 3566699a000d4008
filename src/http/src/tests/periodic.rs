//! Periodic jobs over the API, as somebody asks who does not know the rules.

use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

/// A batch job that the clock starts once a year.
fn yearly(id: &str, block: &Value) -> Value {
    let mut job = web_job(id);
    job["Type"] = "batch".into();
    job["Periodic"] = json!({"Spec": "0 3 1 1 *"});
    for (name, value) in block.as_object().unwrap() {
        job["Periodic"][name] = value.clone();
    }
    job
}

async fn put(server: &TestServer, job: &Value) {
    server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
}

async fn check(server: &TestServer, path: &str, body: &Value, text: &str) {
    let refused = server.put(path, body).await;
    assert_eq!(refused.status, 400, "{path} {body}: {}", refused.text);
    assert!(refused.text.contains(text), "{path} {body}: {}", refused.text);
}

async fn children(server: &TestServer) -> Vec<Value> {
    let list = server.get("/v1/jobs?prefix=t/periodic-").await.ok();
    list.as_array().unwrap().clone()
}

#[tokio::test]
async fn a_job_that_cannot_be_forced_or_changed_is_refused_with_the_remedy() {
    let server = TestServer::start(TestCluster::new()).await;
    put(&server, &yearly("t", &json!({"ProhibitOverlap": true}))).await;
    put(&server, &yearly("off", &json!({"Enabled": false}))).await;
    put(&server, &yearly("over", &json!({}))).await;
    server.delete("/v1/job/over").await.ok();
    let mut plain = web_job("plain");
    plain["Type"] = "batch".into();
    put(&server, &plain).await;
    let made = server.put("/v1/job/t/periodic/force", &json!({})).await.ok();
    assert_ne!(made["EvalID"], "");
    let child = children(&server).await.remove(0)["ID"].as_str().unwrap().to_owned();
    for (job, text) in [
        ("plain", "is not periodic: add a periodic block"),
        ("off", "set enabled = true"),
        ("over", "is stopped: start it first"),
        (&child, "is not periodic"),
    ] {
        check(&server, &format!("/v1/job/{job}/periodic/force"), &json!({}), text).await;
    }
    check(&server, "/v1/job/t/evaluate", &json!({"JobID": "t"}), "can't evaluate periodic").await;

    // Neither becomes what the other is, stopped or not.
    let text = "from a periodic job to one that runs: stop and purge it first";
    for id in ["t", "over"] {
        let plain = json!({"Job": {"ID": id, "Name": id, "Type": "batch",
            "TaskGroups": plain["TaskGroups"]}});
        check(&server, "/v1/jobs", &plain, text).await;
    }
    let text = "from one that runs to a periodic job: stop and purge it first";
    check(&server, "/v1/jobs", &json!({"Job": yearly("plain", &json!({}))}), text).await;
    let mut service = yearly("new", &json!({}));
    service["Type"] = "service".into();
    check(
        &server,
        "/v1/jobs",
        &json!({ "Job": service }),
        "batch and sysbatch jobs can be periodic",
    )
    .await;
    let mut taken = web_job(&child);
    taken["Type"] = "batch".into();
    check(
        &server,
        "/v1/jobs",
        &json!({ "Job": taken }),
        "ends in the form of a dispatched or periodic job",
    )
    .await;
    assert_eq!(children(&server).await.len(), 1);
    server.stop().await;
}

/// A purged parent leaves its children, which can be stopped and purged after it.
#[tokio::test]
async fn children_of_a_purged_parent_are_stopped_when_it_is_asked_for() {
    let server = TestServer::start(TestCluster::new()).await;
    put(&server, &yearly("t", &json!({}))).await;
    server.put("/v1/job/t/periodic/force", &json!({})).await.ok();
    server.delete("/v1/job/t?purge=true").await.ok();
    assert_eq!(server.get("/v1/job/t").await.status, 404);
    let left = children(&server).await;
    assert_eq!((left.len(), &left[0]["Status"]), (1, &json!("pending")));
    server.delete("/v1/job/t?children=true&purge=true").await.ok();
    assert_eq!(children(&server).await, [] as [Value; 0]);
    // The same request again, after a lost reply: a job that is gone is purged, as without its
    // children.
    server.delete("/v1/job/t?children=true&purge=true").await.ok();
    server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let refused = server.delete("/v1/job/web?children=true").await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("has no children"), "{}", refused.text);
    server.stop().await;
}

/// When a job was due last is no change of it, although only its current version says so.
#[tokio::test]
async fn versions_of_a_periodic_job_differ_in_what_was_changed_alone() {
    let server = TestServer::start(TestCluster::new()).await;
    let mut job = yearly("t", &json!({}));
    put(&server, &job).await;
    job["Priority"] = 70.into();
    put(&server, &job).await;
    let versions = server.get("/v1/job/t/versions?diffs=true").await.ok();
    assert!(versions["Versions"][0]["PeriodicLaunches"]["LastDue"].is_number(), "{versions}");
    let diff = &versions["Diffs"][0];
    assert_eq!(diff["Objects"], serde_json::Value::Null, "{diff}");
    let fields = diff["Fields"].as_array().unwrap();
    assert_eq!((fields.len(), &fields[0]["Name"]), (1, &json!("Priority")), "{diff}");
    server.stop().await;
}
