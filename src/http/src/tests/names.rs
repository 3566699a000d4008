//! Names with slashes and blanks in paths, lists and bodies, and what a job file's defaults and
//! warnings look like to clients.

use fsm::{EvaluationId, JobKey, NodeId};
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);

/// A job that is called like its team's things.
fn named(id: &str) -> Value {
    let mut job = web_job(id);
    job["Name"] = "My web app".into();
    job["TaskGroups"][0]["Name"] = "front end".into();
    job["TaskGroups"][0]["Tasks"][0]["Name"] = "web server".into();
    job
}

#[tokio::test]
async fn ids_with_slashes_are_found_by_either_spelling() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    // The last one ends like a verb.
    for (id, encoded) in [("team/web", "team%2Fweb"), ("team/a/summary", "team%2Fa%2Fsummary")] {
        let made = server.put(&format!("/v1/job/{encoded}"), &json!({ "Job": named(id) })).await;
        let evaluation: EvaluationId = made.ok()["EvalID"].as_str().unwrap().parse().unwrap();
        let key = JobKey::new("default", id);
        let allocation = cluster.place(&key, evaluation, NODE).to_string();
        let job = server.get(&format!("/v1/job/{encoded}")).await.ok();
        assert_eq!((&job["ID"], &job["Name"]), (&json!(id), &json!("My web app")));
        assert_eq!(job["ParentID"], json!(""));
        let summary = server.get(&format!("/v1/job/{encoded}/summary")).await.ok();
        assert_eq!(summary["Summary"]["front end"]["Running"], json!(1), "{summary}");
        let list = server.get(&format!("/v1/job/{encoded}/allocations")).await.ok();
        assert_eq!(list[0]["Name"], json!(format!("{id}.front end[0]")));
        assert_eq!(list[0]["ID"], json!(allocation));
        let row = server.get(&format!("/v1/allocation/{allocation}")).await.ok();
        assert_eq!(row["Job"]["TaskGroups"][0]["Tasks"][0]["Name"], json!("web server"));
    }
    let plain = server.get("/v1/job/team/web/summary").await.ok();
    assert_eq!(plain["JobID"], json!("team/web"));
    assert_eq!(server.get("/v1/job/team/web").await.ok()["ID"], json!("team/web"));
    for prefix in ["team/", "team%2F"] {
        let list = server.get(&format!("/v1/jobs?prefix={prefix}")).await.ok();
        assert_eq!(list.as_array().unwrap().len(), 2, "{prefix}: {list}");
    }
    assert_ne!(server.delete("/v1/job/team%2Fweb?purge=true").await.ok()["EvalID"], json!(""));
    assert_eq!(server.get("/v1/job/team/web").await.status, 404);
    for id in ["web/dispatch-1", "a b"] {
        let refused = server.put("/v1/jobs", &json!({ "Job": named(id) })).await;
        assert_eq!(refused.status, 400, "{id}: {}", refused.text);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_parsed_job_has_defaults_if_they_are_asked_for() {
    let server = TestServer::start(TestCluster::new()).await;
    let source = r#"job "a" { group "g" { task "t" { driver = "mock" } } }"#.replace("{ ", "{\n");
    let source = source.replace(" }", "\n}");
    let mut body = json!({ "JobHCL": source });
    let plain = server.put("/v1/jobs/parse", &body).await.ok();
    assert_eq!(plain["Region"], Value::Null);
    body["Canonicalize"] = true.into();
    let whole = server.put("/v1/jobs/parse", &body).await.ok();
    assert_eq!((&whole["Region"], &whole["Type"]), (&json!("global"), &json!("service")));
    assert_eq!(whole["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"], json!(100));
    server.put("/v1/jobs", &json!({ "Job": whole })).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn the_source_of_a_job_is_kept_with_its_version() {
    let server = TestServer::start(TestCluster::new()).await;
    let register = async |count: u32, submission: Value| {
        let mut job = web_job("a/b");
        job["TaskGroups"][0]["Count"] = count.into();
        server.put("/v1/jobs", &json!({ "Job": job, "Submission": submission })).await.ok()
    };
    let first = json!({
        "Source": "job \"a/b\" {}\n", "Format": "hcl2",
        "VariableFlags": {"size": "2"}, "Variables": "size = 1",
    });
    assert_eq!(register(1, first.clone()).await["Warnings"], json!(""));
    let path = "/v1/job/a%2Fb/submission";
    let mut shown = server.get(path).await.ok();
    for (name, value) in [("Namespace", json!("default")), ("JobID", json!("a/b"))] {
        assert_eq!(shown.as_object_mut().unwrap().remove(name), Some(value));
    }
    assert_eq!(shown.as_object_mut().unwrap().remove("Version"), Some(json!(0)));
    assert!(shown.as_object_mut().unwrap().remove("JobModifyIndex").is_some());
    assert_eq!(shown, first);
    // The same job with another text is the same version.
    register(1, json!({"Source": "# new", "Format": "hcl2"})).await;
    let shown = server.get(&format!("{path}?version=0")).await.ok();
    assert_eq!((&shown["Source"], &shown["VariableFlags"]), (&json!("# new"), &Value::Null));
    register(2, Value::Null).await;
    assert_eq!(server.get(path).await.status, 404, "the new version came without");
    assert_eq!(server.get(&format!("{path}?version=0")).await.ok()["Source"], json!("# new"));
    let missing = server.get(&format!("{path}?version=7")).await;
    assert_eq!((missing.status, missing.text.trim()), (404, "job source not found"));
    let large = json!({"Source": "x".repeat(1_000_000), "Format": "hcl2"});
    let answer = register(3, large).await;
    let warnings = answer["Warnings"].as_str().unwrap();
    assert!(warnings.contains("1000004 bytes exceeds maximum of 1000000 bytes"), "{warnings}");
    assert_eq!(server.get(path).await.status, 404);
    assert_eq!(server.get("/v1/job/a%2Fb").await.ok()["Version"], json!(2), "it is registered");
    server.delete("/v1/job/a%2Fb?purge=true").await.ok();
    assert_eq!(server.get(&format!("{path}?version=0")).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_job_is_validated_with_what_nothing_resolves() {
    let server = TestServer::start(TestCluster::new()).await;
    let mut job = web_job("web");
    job["TaskGroups"][0]["Tasks"][0]["Env"] =
        json!({"A": "${NOMAD_DC} ${node.clazz}", "B": "${attr.x}"});
    for path in ["/v1/validate/job", "/v1/jobs"] {
        let answer = server.put(path, &json!({ "Job": job })).await.ok();
        let said = answer["Warnings"].as_str().unwrap();
        let place = "Job.TaskGroups[0].Tasks[0].Env[\"A\"]: \"${node.clazz}\" is not known";
        assert!(said.contains(place) && said.contains("${node.class}?"), "{said}");
        assert!(!said.contains("NOMAD_DC") && !said.contains("attr.x"), "{said}");
    }
    server.stop().await;
}

/// Each way in tells of a driver that no node has, and none refuses the job.
#[tokio::test]
async fn a_driver_that_no_node_has_is_warned_of() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let told = async |driver: &str| {
        let mut job = web_job("web");
        job["TaskGroups"][0]["Tasks"][0]["Driver"] = driver.into();
        if driver != "raw_exec" {
            job["TaskGroups"][0]["Tasks"][0]["Config"] = json!({});
        }
        let mut said = Vec::new();
        for path in ["/v1/validate/job", "/v1/job/web/plan", "/v1/jobs"] {
            let answer = server.put(path, &json!({ "Job": job })).await.ok();
            said.push(answer["Warnings"].as_str().unwrap().to_owned());
            if path.ends_with("validate/job") {
                let is_checked = driver != "docker";
                assert_eq!(answer["DriverConfigValidated"], json!(is_checked), "{driver}");
            }
        }
        said.dedup();
        assert_eq!(said.len(), 1, "{said:?}");
        said.remove(0)
    };
    let place = "Job.TaskGroups[0].Tasks[0].Driver: ";
    // The first agents of a cluster without nodes have what is built here.
    assert_eq!(told("raw_exec").await, "");
    let docker = told("docker").await;
    assert!(docker.starts_with(place) && docker.contains("not built here yet"), "{docker}");
    cluster.add_node(NODE, "10.0.0.7:4646");
    assert_eq!(told("raw_exec").await, "");
    let mock = told("mock").await;
    assert!(mock.contains("no node has the driver \"mock\""), "{mock}");
    // An instance pool can make a node with it.
    let types = json!([{"Name": "small", "CPU": 1_000, "MemoryMB": 1_000,
        "Node": { "Drivers": ["mock"] }}]);
    let pool = json!({"Provider": "local", "Max": 3, "Types": types});
    server.put("/v1/instance-pool/gpu", &pool).await.ok();
    assert_eq!(told("mock").await, "");
    server.stop().await;
}

/// What a registration would be refused for, a validation says.
#[tokio::test]
async fn a_job_is_validated_against_the_cluster() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let errors = async |query: &str, change: (&str, Value)| {
        let mut job = web_job("web");
        job[change.0] = change.1;
        let path = format!("/v1/validate/job{query}");
        let answer = server.put(&path, &json!({ "Job": job })).await.ok();
        answer["ValidationErrors"].clone()
    };
    let none = json!([]);
    let missing = json!(["namespace \"nope\" does not exist"]);
    assert_eq!(errors("", ("Namespace", json!("default"))).await, none);
    assert_eq!(errors("", ("Namespace", json!("nope"))).await, missing);
    assert_eq!(errors("?namespace=nope", ("Meta", json!({}))).await, missing);
    let missing = json!(["node pool \"nope\" does not exist"]);
    assert_eq!(errors("", ("NodePool", json!("nope"))).await, missing);
    server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let other = errors("", ("Type", json!("batch"))).await;
    assert!(other[0].as_str().unwrap().contains("cannot change the type"), "{other}");
    let index = cluster.state().index();
    assert_eq!(errors("", ("Priority", json!(70))).await, none);
    assert_eq!(cluster.state().index(), index, "nothing is written");
    server.stop().await;
}

/// What `memory_max` asks for counts where oversubscription is on, and -1 is all.
#[tokio::test]
async fn memory_beyond_what_is_reserved_is_a_setting() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let path = "/v1/operator/scheduler/configuration";
    let mut configuration = server.get(path).await.ok()["SchedulerConfig"].clone();
    for (on, asked, shown, warns) in [
        (false, 512, 0, true),
        (true, 512, 512, false),
        (true, -1, -1, false),
        (false, 0, 0, false),
    ] {
        configuration["MemoryOversubscriptionEnabled"] = on.into();
        server.put(path, &configuration).await.ok();
        let id = format!("web-{on}-{asked}");
        let mut job = web_job(&id);
        job["TaskGroups"][0]["Tasks"][0]["Resources"] =
            json!({ "CPU": 100, "MemoryMB": 64, "MemoryMaxMB": asked });
        let job = json!({ "Job": job });
        let registered = server.put("/v1/jobs", &job).await.ok();
        let validated = server.put("/v1/validate/job", &job).await.ok();
        let planned = server.put(&format!("/v1/job/{id}/plan"), &job).await.ok();
        for answer in [&registered, &validated, &planned] {
            let said = answer["Warnings"].as_str().unwrap();
            let warning = "Memory oversubscription is not enabled; Task \"web.server\" memory_max value will be ignored. Update the Scheduler Configuration to allow oversubscription.";
            assert_eq!(said.contains(warning), warns, "{on} {asked}: {said}");
        }
        let stored = server.get(&format!("/v1/job/{id}")).await.ok();
        let resources = &stored["TaskGroups"][0]["Tasks"][0]["Resources"];
        assert_eq!(resources["MemoryMaxMB"], json!(asked), "what was asked for is kept");
        let evaluation = registered["EvalID"].as_str().unwrap().parse().unwrap();
        let placed = cluster.place(&JobKey::new("default", id.as_str()), evaluation, NODE);
        let placed = server.get(&format!("/v1/allocation/{placed}")).await.ok();
        let of_task = &placed["AllocatedResources"]["Tasks"]["server"]["Memory"];
        let old = &placed["TaskResources"]["server"];
        let all = [of_task, old, &placed["Resources"]].map(|one| &one["MemoryMaxMB"]);
        assert_eq!(all, [&json!(shown); 3], "{on} {asked}");
        let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(fields(old), fields(resources), "the old form has all fields");
        assert_eq!(fields(&placed["Resources"]), fields(resources));
    }
    server.stop().await;
}
