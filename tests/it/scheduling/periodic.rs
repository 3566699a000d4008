//! Periodic jobs on real servers: each due time has one child or is counted, whichever leaders are killed; forced launches; what the command line says.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Stage, job};
use crate::{
    harness::{PATIENCE, is_full, wait_for},
    recompute::{list_of, text},
};

/// Due times of one round, after which the leader is killed. In full: a minute with six leaders.
const SHORT: (i64, usize) = (3, 3);
const FULL: (i64, usize) = (10, 6);

fn periodic(id: &str, block: &Value) -> Value {
    let mut job = job("batch", id, 1);
    job["Periodic"] = block.clone();
    job
}

impl Stage {
    /// Last due time, missed and overlapped ones of a job.
    fn launches(&self, job: &str) -> Option<(i64, i64, i64)> {
        let answer = self.client.try_get(&format!("/v1/job/{job}")).ok()?;
        let job: Value = serde_json::from_str(&answer.text).ok()?;
        let known = &job["PeriodicLaunches"];
        let number = |field: &str| known[field].as_i64();
        Some((number("LastDue")?, number("Missed")?, number("Overlapped")?))
    }

    /// Unix seconds of the children of a job.
    fn launched(&self, job: &str) -> BTreeSet<i64> {
        let rows = list_of(self.client.get(&format!("/v1/jobs?prefix={job}/periodic-")).ok());
        let times: Vec<i64> = rows
            .iter()
            .map(|row| text(row, "ID").rsplit_once('-').unwrap().1.parse().unwrap())
            .collect();
        let set: BTreeSet<i64> = times.iter().copied().collect();
        assert_eq!(set.len(), times.len(), "a due time has two children");
        set
    }
}

/// I51: a job that is due each second, and a leader that is killed again and again: of all due times between the first and the last each was
/// launched once or is counted as missed.
#[test]
fn each_second_is_launched_once_or_counted_while_leaders_are_killed() {
    let (seconds, kills) = if is_full() { FULL } else { SHORT };
    let mut stage = Stage::start(3);
    stage.register(&periodic("tick", &json!({ "Spec": "* * * * * * *" })));
    for _ in 0..kills {
        let await_more = |stage: &Stage| {
            let from = wait_for("the job is launched", PATIENCE, || {
                stage.launches("tick").map(|known| known.0).filter(|last| *last > 0)
            });
            wait_for("it is launched again and again", PATIENCE, || {
                stage.launches("tick").filter(|known| known.0 >= from + seconds)
            });
        };
        await_more(&stage);
        let leader = stage.cluster.leader();
        let survivor = stage.cluster.others(&[leader])[0];
        stage.cluster.kill(leader);
        stage.client = stage.cluster.client(survivor);
        stage.cluster.restart(leader);
        stage.cluster.await_ready_all();
    }
    stage.client.delete("/v1/job/tick").ok();
    let (last, missed, overlapped) = stage.launches("tick").unwrap();
    let children = stage.launched("tick");
    let first = *children.first().unwrap();
    assert_eq!(children.last(), Some(&last), "the last due time was launched");
    let due = last - first + 1;
    // What was missed before the first launch came before `first`.
    let launched = i64::try_from(children.len()).unwrap();
    eprintln!("{due} due times: {launched} launched, {missed} missed");
    assert_eq!((launched + missed, overlapped), (due, 0), "{children:?}");
    for child in children {
        let evaluations = stage.evaluations(&format!("tick/periodic-{child}"));
        let made = evaluations.iter().filter(|row| text(row, "TriggeredBy") == "periodic-job");
        assert_eq!(made.count(), 1, "{child} is started once");
    }
    stage.cluster.check_invariants(&stage.cluster.all());
}

/// The children are ordinary jobs, which know their parent; a forced one comes beside the due times.
#[test]
fn a_periodic_job_is_forced_shown_and_stopped() {
    let stage = Stage::start(1);
    let _agent = stage.node("n1", &[]);
    let mut nightly = periodic(
        "nightly",
        &json!({ "Specs": ["0 3 1 1 *", "@yearly"], "TimeZone": "Europe/Berlin", "ProhibitOverlap": true }),
    );
    super::run_script(&mut nightly, "test \"$NOMAD_JOB_PARENT_ID\" = nightly");
    let plan = stage.client.put("/v1/job/nightly/plan", &json!({ "Job": nightly })).ok();
    assert!(text(&plan, "NextPeriodicLaunch").ends_with("-12-31T23:00:00Z"), "{plan}");
    assert_eq!(stage.register(&nightly), "", "a parent has no evaluation");
    let stub = list_of(stage.client.get("/v1/jobs?prefix=nightly").ok()).remove(0);
    assert_eq!((&stub["Periodic"], text(&stub, "Status")), (&json!(true), "running"));

    let made = stage.client.put("/v1/job/nightly/periodic/force", &json!({})).ok();
    assert!(!text(&made, "EvalID").is_empty() && made["EvalCreateIndex"].as_u64() > Some(0));
    let child = stage.launched("nightly").first().copied().unwrap();
    let child = format!("nightly/periodic-{child}");
    stage.await_evaluation(text(&made, "EvalID"));
    let ended = stage.await_ended(&child);
    assert_eq!(text(&ended[0], "ClientStatus"), "complete", "{ended:?}");
    let row = stage.client.get(&format!("/v1/job/{child}")).ok();
    assert_eq!((text(&row, "ParentID"), &row["Periodic"]), ("nightly", &Value::Null));

    let (code, shown) = stage.quorate(&["job", "status", "nightly"]);
    assert_eq!(code, 0, "{shown}");
    for line in [
        "Periodic             = true",
        "Next Periodic Launch = ",
        "Missed Launches      = 0",
        &child,
    ] {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    let again = wait_for("the next second", PATIENCE, || {
        let (code, said) = stage.quorate(&["job", "periodic", "force", "-detach", "nightly"]);
        (code == 0).then_some(said)
    });
    assert!(again.contains("Force periodic successful"), "{again}");
    assert_eq!(stage.launched("nightly").len(), 2);

    stage.client.delete("/v1/job/nightly").ok();
    let refused = stage.client.put("/v1/job/nightly/periodic/force", &json!({}));
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("is stopped"), "{}", refused.text);
    let over = periodic("over", &json!({ "Spec": "0 0 * * * 2024" }));
    let refused = stage.client.put("/v1/jobs", &json!({ "Job": over }));
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("Job.Periodic.Spec: ") && refused.text.contains("never comes"));
}
