//! What every GET route answers on a scripted cluster, byte for byte, against
//! `src/http/golden/every_read.txt`; `UPDATE=1` rewrites it.
//!
//! The script makes a row of every kind, and of most with several states. Each route is asked with
//! every id that may stand in its path.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use fsm::{
    ClientStatus, DeploymentId, EvaluationStatus, JobKind, State, Text,
    deployment::{DeploymentGoal, NewDeployment},
    evaluation::{Metrics, NodeScore},
    node::Readiness,
    pool::ShutdownCause,
    testing::{Driver, GROUP, job, rolling_job},
};
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};
use crate::{
    route::{Is, Subject, Takes},
    routes,
};

/// Queries that change what a list or object shows.
const QUERIES: [(&str, &str); 9] = [
    ("/v1/jobs", "?meta=true&namespace=*"),
    ("/v1/allocations", "?resources=true&task_states=false&namespace=*"),
    ("/v1/evaluations", "?namespace=*&per_page=2"),
    ("/v1/evaluation/{id}", "?related=true"),
    ("/v1/nodes", "?resources=true&os=true"),
    ("/v1/job/{job}/versions", "?diffs=true"),
    ("/v1/job/{job}/allocations", "?all=true"),
    ("/v1/deployments", "?namespace=*"),
    ("/v1/namespaces", "?prefix=d"),
];

/// Routes whose answers tell of this process, of its time, or of the bytes of rows.
const UNSTEADY: [&str; 3] = ["/v1/agent/self", "/v1/metrics", "/v1/operator/state-digest"];

/// Jobs, pools and namespaces, as a client makes them.
async fn written(server: &TestServer) {
    let put = async |path: &str, body: Value| {
        server.put(path, &body).await.ok();
    };
    put(
        "/v1/namespace/dev",
        json!({ "Name": "dev", "Description": "of developers", "Meta": { "team": "a" } }),
    )
    .await;
    put(
        "/v1/node/pool/fast",
        json!({ "Name": "fast", "Description": "", "Meta": { "disk": "nvme" } }),
    )
    .await;
    let pool = json!({
        "Provider": "local",
        "Max": 3,
        "Types": [{
            "Name": "small", "ProviderType": "t1", "CPU": 4_000, "MemoryMB": 8_192, "DiskMB": 100_000,
            "Price": 0.05, "QuotaGroup": "vcpu", "Node": { "Drivers": ["mock"] },
        }],
        "Capacity": [
            { "Name": "web", "Unit": 4_096, "Max": 3, "MemberPort": 8_080, "Headroom": { "Percent": 20 } },
        ],
    });
    put("/v1/instance-pool/gpu", pool).await;
    let mut clock = web_job("clock");
    clock["Type"] = "batch".into();
    clock["Periodic"] = json!({ "Spec": "0 3 * * *", "ProhibitOverlap": true });
    let mut template = web_job("template");
    template["Type"] = "batch".into();
    template["ParameterizedJob"] =
        json!({ "Payload": "optional", "MetaRequired": ["who"], "MetaOptional": ["why"] });
    let mut full = web_job("full");
    full["Meta"] = json!({ "owner": "team a" });
    full["Constraints"] =
        json!([{ "LTarget": "${attr.kernel.name}", "RTarget": "linux", "Operand": "=" }]);
    full["Spreads"] = json!([{ "Attribute": "${node.datacenter}", "Weight": 50 }]);
    full["TaskGroups"][0]["Networks"] = json!([{ "DynamicPorts": [{ "Label": "http" }], "ReservedPorts": [{ "Label": "ssh", "Value": 22 }] }]);
    full["TaskGroups"][0]["Scaling"] =
        json!({ "Min": 1, "Max": 9, "Enabled": true, "Policy": { "cooldown": "1m" } });
    full["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "A": "b" });
    for job in [clock, template, full] {
        put(
            "/v1/jobs",
            json!({ "Job": job, "Submission": { "Source": "job {}", "Format": "hcl2" } }),
        )
        .await;
    }
    put("/v1/job/template/dispatch", json!({ "Payload": "aGVsbG8=", "Meta": { "who": "alice" } }))
        .await;
    put(
        "/v1/job/full/scale",
        json!({ "Target": { "Group": "web" }, "Count": 3, "Message": "more" }),
    )
    .await;
}

/// Nodes, allocations, evaluations, deployments, instances and requirements in many states.
fn lived(driver: &mut Driver) {
    let nodes = ["a", "b", "c", "d"].map(|name| driver.node(name));
    driver.drain("b", true);
    driver.suspend("c", Some(60_000));
    driver.now += 20_000;
    driver.register_job(rolling_job("web", 2, |update| update.canaries = 1));
    for name in 0..2 {
        driver.run("web", name, nodes[0]);
    }
    let spec = rolling_job("web", 2, |update| (update.canaries, update.auto_revert) = (1, true));
    let changed = driver.register_job(fsm::JobSpec { priority: 70, ..spec });
    let mut canary = driver.placement(GROUP, 2, nodes[0]);
    canary.canary = true;
    let id = canary.id;
    canary.metrics = Some(std::sync::Arc::new(Metrics {
        nodes_evaluated: 4,
        nodes_filtered: 1,
        nodes_in_pool: 4,
        nodes_available: BTreeMap::from([("dc1".into(), 3)]),
        constraint_filtered: BTreeMap::from([("${attr.kernel.name} = linux".into(), 1)]),
        scores: vec![NodeScore {
            node: nodes[0],
            parts: BTreeMap::from([("binpack".into(), 250_000)]),
            total: 250_000,
        }],
        ..Metrics::default()
    }));
    let mut plan = driver.plan(changed).with(canary);
    let goal = DeploymentGoal { canaries: 1, total: 2 };
    plan.deployment = Some(NewDeployment {
        id: DeploymentId([0xde; 16]),
        goals: BTreeMap::from([(GROUP.into(), goal)]),
    });
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.report_health(id, ClientStatus::Running, true);
    // A job whose instances end in every way, and one that finds no room.
    driver.register_job(job("work", JobKind::Batch, 4));
    for (name, status) in
        (0..).zip([ClientStatus::Complete, ClientStatus::Failed, ClientStatus::Lost])
    {
        let id = driver.run("work", name, nodes[0]);
        if status != ClientStatus::Lost {
            driver.report(id, status);
        }
    }
    let failing = driver.run("work", 3, nodes[3]);
    driver.report_node_failure(failing);
    let large = driver.register_job(job("large", JobKind::System, 1));
    let mut plan = driver.plan(large);
    let outcome = plan.outcome.as_mut().expect("it has one");
    outcome.status = EvaluationStatus::Complete;
    outcome.queued.insert(GROUP.into(), 1);
    outcome.failed_groups.insert(
        GROUP.into(),
        Metrics {
            nodes_evaluated: 3,
            nodes_exhausted: 2,
            nodes_in_pool: 4,
            nodes_available: BTreeMap::from([("dc1".into(), 3)]),
            dimension_exhausted: BTreeMap::from([("memory".into(), 2)]),
            coalesced_failures: 1,
            ..Metrics::default()
        },
    );
    driver.commit_plan(plan);
    driver.register_job(job("gone", JobKind::Service, 1));
    driver.register_job(job("gone", JobKind::Service, 2));
    driver.deregister_job("gone", false);
    // Instances: one that serves, one that boots, one that is shut down.
    let serving = driver.instance("gpu", "small", "i");
    assert!(driver.state.instances().contains(&serving));
    driver.request_instance("gpu", "small");
    let ending = driver.request_instance("gpu", "small");
    driver.made(ending);
    driver.shut_down(ending, ShutdownCause::Operator);
    driver.require("lb1", 1, &[("web", 8_192)]);
    driver.decide("web", 8_192);
    driver.readiness_as("d", Readiness::Retry, "disk is full");
    driver.eligibility("a", false);
    driver.liveness("b", fsm::Liveness::Down);
}

/// What may stand in a path, by what the route is about and the name in it.
fn ids(state: &State, subject: Subject, path: &str) -> Vec<String> {
    let names = |names: &mut dyn Iterator<Item = &Text>| names.map(ToString::to_string).collect();
    if path.contains("{job}") {
        let keys = state.jobs().iter();
        return keys.map(|job| crate::percent::encode(&job.key.id)).collect();
    }
    match subject {
        Subject::Allocation => state.allocations().iter().map(|row| row.id.to_string()).collect(),
        Subject::Evaluation => state.evaluations().iter().map(|row| row.id.to_string()).collect(),
        Subject::Deployment => state.deployments().iter().map(|row| row.id.to_string()).collect(),
        Subject::Node => state.nodes().iter().map(|row| row.id.to_string()).collect(),
        Subject::NodePool => names(&mut state.node_pools().iter().map(|row| &row.name)),
        Subject::NamedNamespace => names(&mut state.namespaces().iter().map(|row| &row.name)),
        Subject::Machines if path.contains("/capacity/") => vec!["web".to_owned()],
        Subject::Machines if path.contains("/instance/") => {
            state.instances().iter().map(|row| row.id.to_string()).collect()
        }
        Subject::Machines => names(&mut state.instance_pools().iter().map(|row| &row.name)),
        Subject::ScalingPolicy => Vec::new(),
        Subject::Namespace
        | Subject::Namespaces
        | Subject::NodePools
        | Subject::Variable
        | Subject::Several
        | Subject::Agent
        | Subject::Cluster
        | Subject::Access => vec!["x".to_owned()],
    }
}

/// The path with an id in the place of its names.
fn with_id(path: &str, id: &str) -> String {
    let words = path.split('/').map(|word| if word.starts_with('{') { id } else { word });
    words.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_read_answers_the_same_bytes_as_before() {
    let server = TestServer::start(TestCluster::new()).await;
    written(&server).await;
    server.cluster.with_driver(lived);
    let state = server.cluster.state();
    let mut found = String::new();
    for row in routes() {
        let is_read = row.takes == Takes::Read && row.is == Is::Built;
        if !is_read || UNSTEADY.contains(&row.path) || row.path.starts_with("/v1/client/") {
            continue;
        }
        let named = row.path.contains('{');
        let of_row = if named { ids(&state, row.subject, row.path) } else { vec![String::new()] };
        let queries = QUERIES.iter().filter(|(path, _)| *path == row.path).map(|(_, query)| *query);
        for query in std::iter::once("").chain(queries) {
            for id in &of_row {
                let path = format!("{}{query}", with_id(row.path, id));
                let answer = server.get(&path).await;
                let build = ground::version::QUORATE;
                let text =
                    answer.text.replace(&format!("\"build\":\"{build}\""), "\"build\":\"VERSION\"");
                writeln!(found, "{path} {} {text}", answer.status).expect("a string takes it");
            }
        }
    }
    server.stop().await;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/every_read.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).expect("the file is written");
    }
    let expected = std::fs::read_to_string(&path).expect("the golden file; UPDATE=1 writes it");
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(found, expected, "run with UPDATE=1 if that is meant");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "routes came or went");
}
