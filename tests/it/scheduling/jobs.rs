//! Service and batch jobs through their lives.

use std::collections::BTreeMap;

use serde_json::json;

use super::{SECOND, Stage, group, ids, job, numbers, task};
use crate::{
    harness::{PATIENCE, wait_for, wait_until},
    recompute::text,
};

/// Issue: service jobs register, scale, update in place and destructively by `max_parallel`, stop and purge (S1, S10, S13, R1–R3).
#[test]
fn a_service_scales_updates_and_stops() {
    let stage = Stage::start(1);
    let _agents = [stage.node("one", &[]), stage.node("two", &[])];
    let mut web = job("service", "web", 3);
    let evaluation = stage.schedule(&web);
    assert_eq!(text(&evaluation, "Status"), "complete");
    assert_eq!(evaluation["QueuedAllocations"], json!({ "group": 0 }));
    let first = stage.await_running("web", 3);
    assert_eq!(numbers(&first), [0, 1, 2]);

    group(&mut web)["Count"] = 6.into();
    stage.schedule(&web);
    let six = stage.await_running("web", 6);
    assert_eq!(numbers(&six), [0, 1, 2, 3, 4, 5]);
    assert_eq!(ids(&six[..3]), ids(&first), "scaling up moves nothing");

    web["Priority"] = 70.into();
    stage.schedule(&web);
    let updated = stage.await_live("all have the new version", "web", |live| {
        live.iter().all(|one| one["JobVersion"] == 2)
    });
    assert_eq!(ids(&updated), ids(&six), "a priority changes in place");

    group(&mut web)["Count"] = 4.into();
    stage.schedule(&web);
    let four = stage.await_running("web", 4);
    assert_eq!(ids(&four), ids(&six[..4]), "scaling down stops the highest numbers");

    web["Update"]["MaxParallel"] = 2.into();
    task(&mut web)["Config"]["run_for"] = "25h".into();
    stage.schedule(&web);
    let replaced = stage.await_live("all were replaced", "web", |live| {
        live.len() == 4
            && live.iter().all(|one| one["JobVersion"] == 4 && one["ClientStatus"] == "running")
    });
    assert_eq!(numbers(&replaced), [0, 1, 2, 3]);
    assert!(replaced.iter().all(|one| !ids(&four).contains(&text(one, "ID"))));
    let mut steps: BTreeMap<u64, usize> = BTreeMap::new();
    for one in &replaced {
        *steps.entry(one["CreateIndex"].as_u64().unwrap()).or_default() += 1;
    }
    assert!(steps.values().all(|size| *size <= 2), "max_parallel is 2: {steps:?}");
    assert!(steps.len() >= 2, "{steps:?}");

    stage.stop("web", false);
    stage.await_ended("web");
    wait_until("the job is dead", PATIENCE, || {
        stage.client.get("/v1/job/web").ok()["Status"] == "dead"
    });
    assert!(stage.blocked("web").is_empty());
    stage.stop("web", true);
    let gone = stage.client.get("/v1/job/web");
    assert_eq!((gone.status, gone.text.as_str()), (404, "job not found"));
    stage.finish();
}

/// Issue: a job registered, stopped and registered again runs again; purged and registered again it is a new one (D6, R7).
#[test]
fn a_job_comes_back_after_stop_and_after_purge() {
    let stage = Stage::start(1);
    let _agent = stage.node("one", &[]);
    let web = job("service", "web", 2);
    stage.schedule(&web);
    let first = stage.await_running("web", 2);
    stage.stop("web", false);
    stage.await_ended("web");
    stage.schedule(&web);
    let second = stage.await_running("web", 2);
    assert!(second.iter().all(|one| !ids(&first).contains(&text(one, "ID"))));
    // Its end is evaluated first: a registration that supersedes that evaluation would take over what it finds unchanged, as in Nomad.
    let answer = stage.client.delete("/v1/job/web?purge=true").ok();
    stage.await_evaluation(text(&answer, "EvalID"));
    stage.schedule(&web);
    let third = stage.await_running("web", 2);
    assert_eq!(numbers(&third), [0, 1]);
    assert!(third.iter().all(|one| !ids(&second).contains(&text(one, "ID"))));

    // Groups come and go in one registration (R7).
    let mut changed = web.clone();
    group(&mut changed)["Name"] = "other".into();
    stage.schedule(&changed);
    let renamed = stage.await_live("the other group runs", "web", |live| {
        live.len() == 2
            && live
                .iter()
                .all(|one| one["TaskGroup"] == "other" && one["ClientStatus"] == "running")
    });
    assert_eq!(numbers(&renamed), [0, 1]);
    stage.finish();
}

/// Issue: batch jobs run to their end once; failed ones again as their policy says (S22, R9, R22).
#[test]
fn a_batch_job_runs_once_and_fails_as_often_as_its_policy_allows() {
    let stage = Stage::start(1);
    let _agent = stage.node("one", &[]);
    let mut sums = job("batch", "sums", 4);
    stage.schedule(&sums);
    let done = stage.await_ended("sums");
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|one| one["ClientStatus"] == "complete"), "{done:?}");
    wait_until("the job is dead", PATIENCE, || {
        stage.client.get("/v1/job/sums").ok()["Status"] == "dead"
    });
    let again = stage.client.put("/v1/job/sums/evaluate", &json!({ "JobID": "sums" })).ok();
    stage.await_evaluation(text(&again, "EvalID"));
    stage.schedule(&sums);
    assert_eq!(stage.allocations("sums").len(), 4, "what is done is not done again");
    task(&mut sums)["Config"]["run_for"] = "50ms".into();
    stage.schedule(&sums);
    wait_until("the changed job has run", PATIENCE, || {
        let all = stage.allocations("sums");
        all.len() == 8 && all.iter().all(|one| one["ClientStatus"] == "complete")
    });

    let mut fails = job("batch", "fails", 1);
    task(&mut fails)["Config"] = json!({ "run_for": "10ms", "exit_code": 3 });
    group(&mut fails)["ReschedulePolicy"] = json!({
        "Attempts": 1, "Interval": SECOND * 3600, "Delay": SECOND * 5,
        "DelayFunction": "constant", "Unlimited": false,
    });
    stage.schedule(&fails);
    let both = wait_for("the second attempt failed", PATIENCE, || {
        let all = stage.allocations("fails");
        let failed = all.iter().filter(|one| one["ClientStatus"] == "failed").count();
        (failed == 2).then_some(all)
    });
    assert_eq!(both.len(), 2);
    let (old, new) = if both[0]["NextAllocation"] == "" { (1, 0) } else { (0, 1) };
    assert_eq!(both[old]["NextAllocation"], both[new]["ID"]);
    assert_eq!(both[new]["RescheduleTracker"]["Events"][0]["PrevAllocID"], both[old]["ID"]);
    stage.await_settled();
    assert_eq!(stage.allocations("fails").len(), 2, "no third attempt");
    stage.finish();
}
