//! What clients of Nomad send and read, request by request.

use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

async fn server() -> TestServer {
    TestServer::start(TestCluster::new()).await
}

/// Query, body, job: the first that names a namespace wins.
#[tokio::test]
async fn the_namespace_of_the_query_goes_over_those_of_the_body() {
    let server = server().await;
    for name in ["dev", "ops"] {
        server.put("/v1/namespaces", &json!({ "Name": name })).await.ok();
    }
    for (id, query, of_body, of_job, expected) in [
        ("a", "?namespace=dev", Value::Null, json!("default"), "dev"),
        ("b", "?namespace=dev", json!("ops"), json!("default"), "dev"),
        ("c", "", json!("ops"), json!("dev"), "ops"),
        ("d", "", Value::Null, json!("dev"), "dev"),
        ("e", "?namespace=", Value::Null, Value::Null, "default"),
    ] {
        let mut job = web_job(id);
        job["Namespace"] = of_job;
        let body = json!({ "Job": job, "Namespace": of_body });
        server.put(&format!("/v1/jobs{query}"), &body).await.ok();
        let found = server.get(&format!("/v1/job/{id}?namespace={expected}")).await.ok();
        assert_eq!(found["Namespace"], expected, "{id}");
    }
    server.stop().await;
}

#[tokio::test]
async fn nulls_in_maps_and_lists_say_nothing() {
    let server = server().await;
    let mut job = web_job("web");
    job["Meta"] = json!({ "a": null, "b": "c" });
    job["Datacenters"] = json!(["dc1", null]);
    server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    let found = server.get("/v1/job/web").await.ok();
    assert_eq!(found["Meta"], json!({ "a": "", "b": "c" }));
    assert_eq!(found["Datacenters"], json!(["dc1"]));
    let body = json!({ "Name": "dev", "Meta": { "a": null } });
    server.put("/v1/namespaces", &body).await.ok();
    assert_eq!(server.get("/v1/namespace/dev").await.ok()["Meta"], json!({ "a": "" }));
    server.stop().await;
}

#[tokio::test]
async fn a_parsed_job_has_every_key_and_a_plan_its_index() {
    let server = server().await;
    let source = "job \"a\" {\n group \"g\" {\n task \"t\" {\n driver = \"mock\"\n resources {\n cpu = 5\n}\n}\n}\n}\n";
    let parsed = server.put("/v1/jobs/parse", &json!({ "JobHCL": source })).await.ok();
    for key in ["Type", "Datacenters", "Meta", "Periodic"] {
        assert_eq!(parsed.get(key), Some(&Value::Null), "{key}");
    }
    server.put("/v1/jobs", &json!({ "Job": parsed })).await.ok();
    let planned = server.put("/v1/job/a/plan", &json!({ "Job": parsed })).await.ok();
    assert!(planned["Index"].as_u64().unwrap() > 0, "{planned}");
    server.stop().await;
}

#[tokio::test]
async fn servers_are_not_joined_or_made_to_leave_from_here() {
    let server = server().await;
    let put = async |path: &str| server.send("PUT", path, &[], b"").await;
    let joined = put("/v1/agent/join?address=nobody").await.ok();
    assert_eq!(joined["num_joined"], 0);
    assert!(joined["error"].as_str().unwrap().contains("its own configuration"), "{joined}");
    assert_eq!(put("/v1/agent/join").await.status, 400);
    assert_eq!(put("/v1/agent/force-leave?node=nobody").await.status, 200);
    assert_eq!(put("/v1/agent/force-leave").await.status, 400);
    let members = server.get("/v1/agent/members").await.ok();
    let name = members["Members"][0]["Name"].as_str().unwrap();
    let refused = put(&format!("/v1/agent/force-leave?node={name}")).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("remove-peer"), "{}", refused.text);
    server.stop().await;
}
