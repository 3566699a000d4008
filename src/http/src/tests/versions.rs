//! Versions of a job over the API: their differences, going back, tags; and plans, which write
//! nothing.

use std::sync::Arc;

use chance::Dice;
use fsm::{
    Command, EvaluationId, EvaluationStatus, JobKey, NodeId,
    plan::ApplyPlans,
    settings::{SchedulerConfiguration, SetSchedulerConfiguration},
    upkeep::Tick,
};
use scheduler::Pass;
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);

async fn with_versions(counts: &[u64]) -> (TestServer, Arc<TestCluster>) {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    for count in counts {
        server.put("/v1/jobs", &json!({ "Job": with_count(*count) })).await.ok();
    }
    (server, cluster)
}

fn with_count(count: u64) -> Value {
    let mut job = web_job("web");
    job["TaskGroups"][0]["Count"] = count.into();
    job
}

async fn versions(server: &TestServer, query: &str) -> Value {
    server.get(&format!("/v1/job/web/versions{query}")).await.ok()
}

/// A version shows the status that the job had, and does not change when the job does; the job
/// shows that of today.
#[tokio::test]
async fn the_history_says_what_was() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": with_count(1) })).await.ok();
    let first = versions(&server, "").await["Versions"][0].clone();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    assert_eq!(server.get("/v1/job/web").await.ok()["Status"], "running");
    server.put("/v1/jobs", &json!({ "Job": with_count(2) })).await.ok();
    let both = versions(&server, "").await;
    assert_eq!(both["Versions"][1], first);
    assert_eq!(
        (&first["Status"], &both["Versions"][0]["Status"]),
        (&json!("pending"), &json!("running"))
    );
    let stable = json!({ "JobID": "web", "JobVersion": 0, "Stable": true });
    server.put("/v1/job/web/stable", &stable).await.ok();
    let marked = versions(&server, "").await;
    let now = &marked["Versions"][1];
    assert_eq!((&now["Status"], &now["Stable"]), (&json!("running"), &json!(true)));
    assert!(now["ModifyIndex"].as_u64() > first["ModifyIndex"].as_u64());
    assert_eq!(marked["Versions"][0], both["Versions"][0]);
    server.stop().await;
}

#[tokio::test]
async fn versions_are_listed_with_what_differs() {
    let (server, _) = with_versions(&[1, 2, 5]).await;
    let plain = versions(&server, "").await;
    assert_eq!(plain["Versions"].as_array().unwrap().len(), 3);
    assert_eq!(plain["Diffs"], Value::Null);
    let count_of = |diff: &Value| {
        let field = &diff["TaskGroups"][0]["Fields"][0];
        (field["Name"].clone(), field["Old"].clone(), field["New"].clone())
    };
    let with = versions(&server, "?diffs=true").await;
    let diffs = with["Diffs"].as_array().unwrap();
    assert_eq!(diffs.len(), 2, "the first version differs from nothing");
    assert_eq!(count_of(&diffs[0]), ("Count".into(), "2".into(), "5".into()));
    assert_eq!(count_of(&diffs[1]), ("Count".into(), "1".into(), "2".into()));
    let against = versions(&server, "?diffs=true&diff_version=0").await;
    assert_eq!(count_of(&against["Diffs"][0]), ("Count".into(), "1".into(), "5".into()));
    assert_eq!(against["Diffs"][2]["Type"], "None");
    let missing = server.get("/v1/job/web/versions?diff_tag=none").await;
    assert_eq!(missing.status, 404, "{}", missing.text);
    // A stop is a version of its own, and the one before keeps what it was.
    server.send("DELETE", "/v1/job/web", &[], b"").await.ok();
    let stopped = versions(&server, "?diffs=true").await;
    assert_eq!(
        (&stopped["Versions"][0]["Version"], &stopped["Versions"][0]["Stop"]),
        (&json!(3), &json!(true))
    );
    assert_eq!(stopped["Versions"][1]["Stop"], false);
    assert_eq!(stopped["Diffs"][0]["Fields"][0]["Name"], "Stop");
    server.stop().await;
}

/// D6: a version that is not there, that runs already or that somebody has gone on from is refused.
#[tokio::test]
async fn a_revert_runs_an_earlier_version_as_a_new_one() {
    let (server, _) = with_versions(&[1, 2, 5]).await;
    let revert = async |mut body: Value| {
        if body["JobID"].is_null() {
            body["JobID"] = "web".into();
        }
        server.put("/v1/job/web/revert", &body).await
    };
    for verb in ["revert", "stable"] {
        for (body, text) in [
            (json!({}), "JobID must be specified"),
            (json!({ "JobID": "web" }), "JobVersion must be specified"),
        ] {
            let refused = server.put(&format!("/v1/job/web/{verb}"), &body).await;
            assert_eq!(refused.status, 400, "{}", refused.text);
            assert!(refused.text.contains(text), "{}", refused.text);
        }
    }
    for (body, status, text) in [
        (json!({ "JobVersion": 2 }), 400, "can't revert to current version"),
        (json!({ "JobVersion": 9 }), 404, "at version 9 not found"),
        (
            json!({ "JobVersion": 0, "EnforcePriorVersion": 1 }),
            400,
            "Current job has version 2; enforcing version 1",
        ),
        (json!({ "JobVersion": 0, "JobID": "db" }), 400, "JobID not same"),
    ] {
        let refused = revert(body).await;
        assert_eq!(refused.status, status, "{}", refused.text);
        assert!(refused.text.contains(text), "{}", refused.text);
    }
    assert_eq!(versions(&server, "").await["Versions"].as_array().unwrap().len(), 3);
    let done =
        revert(json!({ "JobID": "web", "JobVersion": 0, "EnforcePriorVersion": 2 })).await.ok();
    assert!(done["EvalID"].as_str().unwrap().len() == 36, "{done}");
    let job = server.get("/v1/job/web").await.ok();
    assert_eq!((&job["Version"], &job["TaskGroups"][0]["Count"]), (&json!(3), &json!(1)));
    // A version that is a stop is gone back to as it was: with what it stopped, and stopped. So the
    // version before it can be told from it.
    server.send("DELETE", "/v1/job/web", &[], b"").await.ok();
    server.put("/v1/jobs", &json!({ "Job": with_count(7) })).await.ok();
    let shown = async || {
        let job = server.get("/v1/job/web").await.ok();
        (job["Version"].clone(), job["Stop"].clone(), job["TaskGroups"][0]["Count"].clone())
    };
    assert_eq!(shown().await, (json!(5), json!(false), json!(7)));
    let stopped = revert(json!({ "JobVersion": 4 })).await.ok();
    assert!(stopped["EvalID"].as_str().unwrap().len() == 36, "{stopped}");
    assert_eq!(shown().await, (json!(6), json!(true), json!(1)));
    revert(json!({ "JobVersion": 5 })).await.ok();
    assert_eq!(shown().await, (json!(7), json!(false), json!(7)));
    revert(json!({ "JobVersion": 3 })).await.ok();
    assert_eq!(shown().await, (json!(8), json!(false), json!(1)));
    // Also the stop of what runs.
    revert(json!({ "JobVersion": 6 })).await.ok();
    assert_eq!(shown().await, (json!(9), json!(true), json!(1)));
    server.stop().await;
}

#[tokio::test]
async fn versions_are_tagged_and_marked_as_stable() {
    let (server, _) = with_versions(&[1, 2]).await;
    let path = "/v1/job/web/versions/good/tag";
    server.put(path, &json!({ "Version": 0, "Description": "it works" })).await.ok();
    let tag = versions(&server, "").await["Versions"][1]["VersionTag"].clone();
    assert_eq!((&tag["Name"], &tag["Description"]), (&json!("good"), &json!("it works")));
    assert!(tag["TaggedTime"].as_u64().unwrap() > 0);
    let against = versions(&server, "?diff_tag=good").await;
    assert_eq!(against["Diffs"][0]["TaskGroups"][0]["Fields"][0]["New"], "2");
    let taken = server.put(path, &json!({ "Version": 1 })).await;
    assert!(taken.status == 400 && taken.text.contains("already exists"), "{}", taken.text);
    for unseen in ["%00", "%20", "a%E2%80%8Bb"] {
        let refused = server.put(&format!("/v1/job/web/versions/{unseen}/tag"), &json!({})).await;
        assert!(
            refused.status == 400 && refused.text.contains("is no name of a tag"),
            "{}",
            refused.text
        );
    }
    server.send("DELETE", path, &[], b"").await.ok();
    assert_eq!(versions(&server, "").await["Versions"][1]["VersionTag"], Value::Null);
    let gone = server.send("DELETE", path, &[], b"").await;
    assert!(gone.status == 400 && gone.text.contains("not found"), "{}", gone.text);
    let stable = json!({ "JobID": "web", "JobVersion": 1, "Stable": true });
    server.put("/v1/job/web/stable", &stable).await.ok();
    assert_eq!(versions(&server, "").await["Versions"][0]["Stable"], true);
    assert_eq!(server.get("/v1/job/web").await.ok()["Stable"], true);
    let unclear =
        server.put("/v1/job/web/stable", &json!({ "JobID": "web", "JobVersion": 1 })).await;
    assert!(unclear.status == 400 && unclear.text.contains("Stable must"), "{}", unclear.text);
    let mut wrong = stable;
    wrong["JobVersion"] = 7.into();
    assert_eq!(server.put("/v1/job/web/stable", &wrong).await.status, 400);
    // Another job's tags are its own, and a job that is named like a verb is a job.
    assert_eq!(server.put("/v1/job/db/versions/good/tag", &json!({})).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_plan_says_what_a_registration_would_do_and_writes_nothing() {
    let (server, cluster) = with_versions(&[2]).await;
    let evaluation: EvaluationId = {
        let rows = server.get("/v1/evaluations").await.ok();
        rows[0]["ID"].as_str().unwrap().parse().unwrap()
    };
    cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    let before = cluster.state().digest();
    let plan = async |job: Value, diff: bool| {
        server.put("/v1/job/web/plan", &json!({ "Job": job, "Diff": diff })).await
    };
    let more = plan(with_count(3), true).await.ok();
    let counts = &more["Annotations"]["DesiredTGUpdates"]["web"];
    assert_eq!((&counts["Place"], &counts["InPlaceUpdate"]), (&json!(2), &json!(1)), "{more}");
    let group = &more["Diff"]["TaskGroups"][0];
    assert_eq!(group["Updates"], json!({ "create": 2, "in-place update": 1 }));
    assert_eq!(group["Fields"][0]["Annotations"], json!(["forces create"]));
    let mut job = with_count(1);
    job["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "A": "b" });
    let answer = plan(job, true).await.ok();
    let counts = &answer["Annotations"]["DesiredTGUpdates"]["web"];
    assert_eq!(
        (&counts["Place"], &counts["DestructiveUpdate"]),
        (&json!(0), &json!(1)),
        "{answer}"
    );
    assert_eq!(
        answer["Diff"]["TaskGroups"][0]["Tasks"][0]["Annotations"],
        json!(["forces create/destroy update"])
    );
    assert_eq!(answer["FailedTGAllocs"], Value::Null);
    assert_eq!(answer["CreatedEvals"], Value::Null, "everything finds room");
    let current = server.get("/v1/job/web").await.ok();
    assert_eq!(answer["JobModifyIndex"], current["JobModifyIndex"]);
    // What does not fit is said with its reasons.
    let mut large = with_count(3);
    large["TaskGroups"][0]["Tasks"][0]["Resources"] = json!({ "CPU": 900_000, "MemoryMB": 64 });
    let failed = plan(large, false).await.ok();
    assert_eq!(failed["Diff"], Value::Null);
    assert_eq!(failed["CreatedEvals"][0]["Status"], "blocked", "{failed}");
    assert_eq!(failed["FailedTGAllocs"]["web"]["DimensionExhausted"]["cpu"], 1, "{failed}");
    // A job that does not exist is all new; one that may not be registered has no plan.
    let mut new = web_job("db");
    let added = server.put("/v1/job/db/plan", &json!({ "Job": new, "Diff": true })).await.ok();
    assert_eq!((&added["JobModifyIndex"], &added["Diff"]["Type"]), (&json!(0), &json!("Added")));
    new["NodePool"] = "gone".into();
    let refused = server.put("/v1/job/db/plan", &json!({ "Job": new })).await;
    assert!(refused.status == 400 && refused.text.contains("node pool"), "{}", refused.text);
    let other = server.put("/v1/job/web/plan", &json!({ "Job": web_job("db") })).await;
    assert_eq!(other.status, 400, "{}", other.text);
    assert_eq!(cluster.state().digest(), before, "a plan writes nothing");
    server.stop().await;
}

/// Runs an evaluation as a worker and the applier would, reports what it placed as running, and
/// says what the plan did.
fn process(cluster: &TestCluster, id: EvaluationId, sequence: &mut u64) -> (Value, Vec<String>) {
    let state = cluster.state();
    let evaluation = state.evaluations().get(&id).unwrap().clone();
    let pass = Pass { state: &state, evaluation: &evaluation, now: state.at(), attempt: 0 };
    let plan = scheduler::schedule(&pass).unwrap();
    let spec = state.jobs().get(&evaluation.job).and_then(|job| state.current_spec(job).cloned());
    let done = scheduler::annotate(&state, &plan, spec.as_deref());
    let counts = json!(crate::view::desired_updates(&done));
    let outcome = plan.outcome.clone().unwrap();
    let failed = outcome.failed_groups.keys().map(ToString::to_string).collect();
    let placed: Vec<_> = plan.placements.iter().map(|placed| (placed.id, placed.node)).collect();
    cluster.must(Command::from(ApplyPlans { plans: vec![Arc::new(plan)] }));
    for (id, node) in placed {
        *sequence += 1;
        cluster.report(id, node, *sequence);
    }
    (counts, failed)
}

fn pending(cluster: &TestCluster) -> Vec<EvaluationId> {
    let state = cluster.state();
    let open = state.evaluations().iter().filter(|row| row.status == EvaluationStatus::Pending);
    open.filter(|row| row.wait_until <= state.at()).map(|row| row.id).collect()
}

#[tokio::test]
async fn a_terminal_deployment_says_so_whatever_is_asked_of_it() {
    let (server, cluster) = with_versions(&[]).await;
    let mut job = with_count(2);
    job["TaskGroups"][0]["Update"] = json!({ "MaxParallel": 1 });
    let registered = server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    process(&cluster, registered["EvalID"].as_str().unwrap().parse().unwrap(), &mut 0);
    let id = server.get("/v1/job/web/deployment").await.ok()["ID"].as_str().unwrap().to_owned();
    let promote =
        async || server.put(&format!("/v1/deployment/promote/{id}"), &json!({})).await.text;
    assert!(promote().await.contains("either All or Groups"));
    let unclear = server.put(&format!("/v1/deployment/pause/{id}"), &json!({})).await;
    assert!(unclear.status == 400 && unclear.text.contains("Pause must"), "{}", unclear.text);
    server.put(&format!("/v1/deployment/fail/{id}"), &json!({})).await.ok();
    assert!(promote().await.contains("can't promote terminal deployment"));
    server.stop().await;
}

/// A job whose instances wait already: the plan of the same job names the evaluation that they wait
/// in.
#[tokio::test]
async fn a_plan_names_the_evaluation_that_waits_for_room() {
    let (server, cluster) = with_versions(&[]).await;
    let mut job = with_count(3);
    job["TaskGroups"][0]["Tasks"][0]["Resources"] = json!({ "CPU": 900_000, "MemoryMB": 64 });
    let registered = server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    let body = json!({ "Job": job, "Diff": true });
    let first = server.put("/v1/job/web/plan", &body).await.ok();
    assert_eq!(first["CreatedEvals"][0]["Status"], "blocked", "{first}");
    process(&cluster, registered["EvalID"].as_str().unwrap().parse().unwrap(), &mut 0);
    let again = server.put("/v1/job/web/plan", &body).await.ok();
    let waiting = &server.get("/v1/evaluations?status=blocked").await.ok()[0];
    assert_eq!(again["CreatedEvals"].as_array().unwrap().len(), 1, "{again}");
    assert_eq!(again["CreatedEvals"][0]["ID"], waiting["ID"], "{again}");
    server.stop().await;
}

/// What a change of a task comes to is told by its own difference: instances that are replaced
/// later, after the canaries, are so all the same.
#[tokio::test]
async fn a_task_is_told_by_what_differs_in_it() {
    let (server, cluster) = with_versions(&[]).await;
    let mut job = with_count(2);
    job["TaskGroups"][0]["Update"] = json!({ "MaxParallel": 1, "Canary": 1 });
    let registered = server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    process(&cluster, registered["EvalID"].as_str().unwrap().parse().unwrap(), &mut 0);
    let planned = async |change: fn(&mut Value)| {
        let mut changed = job.clone();
        change(&mut changed["TaskGroups"][0]["Tasks"][0]);
        let body = json!({ "Job": changed, "Diff": true });
        let answer = server.put("/v1/job/web/plan", &body).await.ok();
        let group = answer["Diff"]["TaskGroups"][0].clone();
        (group["Updates"].clone(), group["Tasks"][0]["Annotations"].clone())
    };
    let replaced = planned(|task| task["Env"] = json!({ "A": "b" })).await;
    assert_eq!(replaced.0, json!({ "canary": 1, "ignore": 2 }));
    assert_eq!(replaced.1, json!(["forces create/destroy update"]));
    let kept = planned(|task| task["KillTimeout"] = 7_000_000_000_u64.into()).await;
    assert_eq!(kept.0, json!({ "in-place update": 2 }));
    assert_eq!(kept.1, json!(["forces in-place update"]));
    server.stop().await;
}

/// A job that starts others is planned as one of these.
#[tokio::test]
async fn a_periodic_job_is_planned_as_its_launch() {
    let (server, cluster) = with_versions(&[]).await;
    let before = cluster.state().digest();
    for block in [
        json!({ "Periodic": { "Spec": "@daily", "TimeZone": "UTC", "Enabled": true } }),
        json!({ "ParameterizedJob": {} }),
    ] {
        let planned = async |cpu: u64| {
            let mut job = web_job("night");
            job["Type"] = "batch".into();
            job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = cpu.into();
            for (name, value) in block.as_object().unwrap() {
                job[name] = value.clone();
            }
            let body = json!({ "Job": job, "Diff": true });
            server.put("/v1/job/night/plan", &body).await.ok()
        };
        let small = planned(100).await;
        assert_eq!(planned(900_000).await["CreatedEvals"][0]["JobID"], "night");
        assert_eq!(small["Annotations"]["DesiredTGUpdates"]["web"]["Place"], 2, "{small}");
        assert_eq!(small["Diff"]["TaskGroups"][0]["Updates"], json!({ "create": 2 }));
        assert_eq!(small["FailedTGAllocs"], Value::Null);
        let large = planned(900_000).await;
        assert!(large["FailedTGAllocs"]["web"].is_object(), "{large}");
    }
    assert_eq!(cluster.state().digest(), before);
    // Also one that is there.
    let mut job = web_job("night");
    job["Type"] = "batch".into();
    job["Periodic"] = json!({ "Spec": "@daily", "TimeZone": "UTC", "Enabled": true });
    server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    job["Periodic"]["Spec"] = "@hourly".into();
    let changed = server.put("/v1/job/night/plan", &json!({ "Job": job, "Diff": true })).await.ok();
    assert_eq!(changed["Annotations"]["DesiredTGUpdates"]["web"]["Place"], 2, "{changed}");
    assert_eq!(changed["Diff"]["Type"], "Edited");
    server.stop().await;
}

/// A plan is that of the registration with the same flags.
#[tokio::test]
async fn a_plan_keeps_the_counts_that_its_registration_would() {
    let (server, _) = with_versions(&[5]).await;
    let count = async |keeps: bool| {
        let body = json!({ "Job": with_count(1), "Diff": true, "PreserveCounts": keeps });
        let answer = server.put("/v1/job/web/plan", &body).await.ok();
        answer["Annotations"]["DesiredTGUpdates"]["web"]["Place"].clone()
    };
    assert_eq!((count(false).await, count(true).await), (json!(1), json!(5)));
    server.stop().await;
}

/// 200 random changes of random jobs on a fleet that is too small: a plan says the counts of each
/// group, the evictions and the groups that fail, as the registration behind it then has them.
#[tokio::test]
async fn plans_predict_what_registrations_do() {
    let cluster = TestCluster::new();
    for number in 1..=6 {
        cluster.add_node(NodeId([number; 16]), "10.0.0.7:4646");
    }
    let mut configuration = SchedulerConfiguration::default();
    configuration.preemption.service = true;
    cluster.must(Command::from(SetSchedulerConfiguration {
        configuration,
        keep_node_life: true,
        enforce_index: None,
    }));
    let server = TestServer::start(cluster.clone()).await;
    let mut dice = Dice::new(7);
    let mut sequence = 0;
    let mut jobs: Vec<Value> = (0..8).map(|number| web_job(&format!("job-{number}"))).collect();
    for job in &mut jobs {
        job["Priority"] = [20, 50, 90][dice.index(3)].into();
    }
    let mut seen = std::collections::BTreeMap::<&str, u64>::new();
    for step in 0..200 {
        let job = &mut jobs[dice.index(8)];
        let group = &mut job["TaskGroups"][0];
        match dice.below(5) {
            0 => group["Count"] = dice.below(16).into(),
            1 => group["Tasks"][0]["Resources"]["CPU"] = (200 + 200 * dice.below(10)).into(),
            2 => group["Tasks"][0]["Env"] = json!({ "STEP": step.to_string() }),
            3 => {
                let parallel = dice.below(4);
                let canaries = if parallel > 0 { dice.below(3) } else { 0 };
                group["Update"] = json!({ "MaxParallel": parallel, "Canary": canaries });
            }
            _ => {
                let rack = if dice.one_in(3) { "r2" } else { "r1" };
                job["Constraints"] =
                    json!([{ "LTarget": "${meta.rack}", "RTarget": rack, "Operand": "=" }]);
            }
        }
        let id = job["ID"].as_str().unwrap();
        let body = json!({ "Job": job });
        let planned = server.put(&format!("/v1/job/{id}/plan"), &body).await.ok();
        let registered = server.put("/v1/jobs", &body).await.ok();
        let evaluation = registered["EvalID"].as_str().unwrap().parse().unwrap();
        let (counts, failed) = process(&cluster, evaluation, &mut sequence);
        assert_eq!(planned["Annotations"]["DesiredTGUpdates"], counts, "step {step}: {body}");
        let processed = server.get(&format!("/v1/evaluation/{evaluation}")).await.ok();
        let kept = &processed["PlanAnnotations"];
        assert_eq!(kept["DesiredTGUpdates"], counts, "step {step}: {body}");
        let evicted = planned["Annotations"]["PreemptedAllocs"].as_array();
        let evicted = evicted.map(Vec::as_slice).unwrap_or_default();
        let of_whom = |row: &Value| row["JobID"].as_str().is_some_and(|of| of != id);
        assert!(evicted.iter().all(of_whom), "step {step}: {evicted:?}");
        let evicts = !evicted.is_empty();
        assert_eq!(kept["PreemptedAllocs"] != Value::Null, evicts, "step {step}: {kept}");
        let predicted = planned["FailedTGAllocs"].as_object();
        let predicted: Vec<&String> =
            predicted.into_iter().flat_map(|groups| groups.keys()).collect();
        assert_eq!(predicted, failed.iter().collect::<Vec<_>>(), "step {step}: {body}");
        for name in [
            "Place",
            "Canary",
            "Stop",
            "InPlaceUpdate",
            "DestructiveUpdate",
            "Preemptions",
            "Ignore",
        ] {
            *seen.entry(name).or_default() += counts["web"][name].as_u64().unwrap();
        }
        *seen.entry("failed").or_default() += failed.len() as u64;
        // The rest of the cluster settles, and what was placed becomes healthy.
        for _ in 0..4 {
            for id in pending(&cluster) {
                if pending(&cluster).contains(&id) {
                    process(&cluster, id, &mut sequence);
                }
            }
        }
        for _ in 0..15 {
            cluster.must(Command::from(Tick));
        }
    }
    assert!(seen.values().all(|count| *count > 5), "each kind of change has to come up: {seen:?}");
    server.stop().await;
}

/// A child is made by its parent, and goes back to its own versions: also after a stop, as `job
/// start` does it.
#[tokio::test]
async fn a_child_goes_back_to_its_own_versions() {
    let server = TestServer::start(TestCluster::new()).await;
    let mut job = web_job("render");
    job["Type"] = "batch".into();
    job["ParameterizedJob"] = json!({ "MaxRunning": 1 });
    server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    let dispatch = async || {
        let made = server.put("/v1/job/render/dispatch", &json!({})).await.ok();
        made["DispatchedJobID"].as_str().unwrap().to_owned()
    };
    let id = dispatch().await;
    let path = format!("/v1/job/{}", id.replace('/', "%2F"));
    let scale = json!({ "Count": 3, "Target": { "Group": "web" } });
    server.put(&format!("{path}/scale"), &scale).await.ok();
    server.delete(&path).await.ok();
    let revert = async |version: u64| {
        let body = json!({ "JobID": id, "JobVersion": version });
        server.put(&format!("{path}/revert"), &body).await
    };
    let answer = revert(1).await.ok();
    assert_ne!(answer["EvalID"], json!(""));
    revert(0).await.ok();
    let child: Value = server.get(&path).await.ok();
    assert_eq!((&child["Version"], &child["Stop"]), (&json!(4), &json!(false)));
    assert_eq!(child["TaskGroups"][0]["Count"], json!(2));

    for (path, body) in [
        ("/v1/jobs".to_owned(), json!({ "Job": child })),
        (format!("{path}/plan"), json!({ "Job": child })),
    ] {
        let refused = server.put(&path, &body).await;
        assert_eq!(refused.status, 400, "{path}");
        let words = "it is a child of \"render\", which makes its children";
        assert!(refused.text.contains(words), "{}", refused.text);
        assert!(!refused.text.contains("elsewhere"), "{}", refused.text);
    }
    server.stop().await;
}
