//! Dispatch on real servers and agents: payload and meta reach the task, tokens, children under their parent, `max_running` in order, batches.

use std::{io::Write as _, process::Stdio, time::Instant};

use serde_json::{Value, json};

use super::{SECOND, Stage, group, job, run_script, task};
use crate::{
    harness::{PATIENCE, program, wait_for},
    recompute::{list_of, text},
};

/// A parameterized job whose children end at once.
fn parent(id: &str, block: &Value) -> Value {
    let mut job = job("batch", id, 1);
    job["ParameterizedJob"] = block.clone();
    task(&mut job)["Resources"] = json!({ "CPU": 20, "MemoryMB": 10 });
    job
}

/// "hello" in base64.
const HELLO: &str = "aGVsbG8=";

impl Stage {
    /// A dispatch that is taken.
    #[track_caller]
    fn dispatch(&self, job: &str, query: &str, body: &Value) -> Value {
        self.client.put(&format!("/v1/job/{job}/dispatch{query}"), body).ok()
    }

    fn children(&self, job: &str) -> Vec<Value> {
        list_of(self.client.get(&format!("/v1/jobs?prefix={job}/dispatch-")).ok())
    }

    /// Ids of all children, read by pages of 100.
    fn pages(&self, job: &str, order: &str) -> Vec<String> {
        let (mut ids, mut token) = (Vec::new(), String::new());
        loop {
            let path =
                format!("/v1/jobs?prefix={job}/dispatch-&per_page=100{order}&next_token={token}");
            let url = format!("http://{}{path}", self.cluster.http(0));
            let mut answer = ureq::get(url).call().unwrap();
            let next = answer.headers().get("x-nomad-nexttoken").cloned();
            let rows: Value = answer.body_mut().read_json().unwrap();
            let rows = list_of(rows);
            assert!(rows.len() <= 100);
            ids.extend(rows.iter().map(|row| text(row, "ID").to_owned()));
            match next {
                Some(next) => next.to_str().unwrap().clone_into(&mut token),
                None => return ids,
            }
        }
    }

    fn counts(&self, job: &str) -> Value {
        self.client.get(&format!("/v1/job/{job}/summary")).ok()["Children"].clone()
    }

    /// Waits until so many children are dead, which is all of them.
    #[track_caller]
    fn await_dead(&self, job: &str, count: u64) {
        wait_for(&format!("{count} children of {job} are over"), PATIENCE, || {
            let now = self.counts(job);
            let over = json!({ "Pending": 0, "Running": 0, "Dead": count, "Waiting": 0 });
            (now == over).then_some(())
        });
    }

    /// Runs the program with this standard input.
    fn quorate_with(&self, arguments: &[&str], input: &[u8]) -> (i32, String) {
        let address = format!("http://{}", self.cluster.http(0));
        let mut command = program();
        command.args(arguments).arg("-address").arg(address);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut started = command.spawn().unwrap();
        started.stdin.take().unwrap().write_all(input).unwrap();
        let done = started.wait_with_output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }
}

/// The payload is a file below `local/`, meta is in the environment, and a child is shown with its parent.
#[test]
fn a_task_gets_payload_and_meta_of_its_dispatch() {
    let stage = Stage::start(1);
    let _agent = stage.node("n1", &[]);
    let mut render = parent("render", &json!({ "MetaRequired": ["who"], "Payload": "required" }));
    render["Meta"] = json!({ "kept": "yes" });
    let script = "test \"$(cat $NOMAD_TASK_DIR/in/put)\" = hello && \
        test \"$NOMAD_META_who\" = eve && test \"$NOMAD_META_kept\" = yes && \
        test \"$NOMAD_JOB_PARENT_ID\" = render";
    run_script(&mut render, script);
    task(&mut render)["DispatchPayload"] = json!({ "File": "in/put" });
    stage.register(&render);
    let body = json!({ "Payload": HELLO, "Meta": { "who": "eve" }, "Priority": 70, "IdPrefixTemplate": "x" });
    let made = stage.dispatch("render", "?idempotency_token=one", &body);
    let id = text(&made, "DispatchedJobID").to_owned();
    assert!(id.starts_with("render/dispatch-x-"), "{id}");
    assert_eq!(made["EvalCreateIndex"], made["JobCreateIndex"]);
    stage.await_evaluation(text(&made, "EvalID"));
    stage.await_dead("render", 1);
    let ended = stage.allocations(&id.replace('/', "%2F"));
    assert_eq!(text(&ended[0], "ClientStatus"), "complete", "{ended:?}");
    let child = stage.client.get(&format!("/v1/job/{id}")).ok();
    assert_eq!(text(&child, "ParentID"), "render");
    assert_eq!((&child["Dispatched"], &child["Priority"]), (&json!(true), &json!(70)));
    assert_eq!(text(&child, "Payload"), HELLO);
    assert_eq!(text(&child, "DispatchIdempotencyToken"), "one");
    assert_eq!(child["ParameterizedJob"], Value::Null);
    assert_eq!(text(&stage.children("render")[0], "ParentID"), "render");

    let again = stage.dispatch("render", "?idempotency_token=one", &body);
    assert_eq!(text(&again, "DispatchedJobID"), id);
    assert_eq!(again["JobCreateIndex"], made["JobCreateIndex"]);
    assert_eq!(stage.children("render").len(), 1);
    let refused = stage.client.put("/v1/job/render/dispatch", &json!({ "Payload": HELLO }));
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("Meta lacks required keys [\"who\"]"), "{}", refused.text);
    stage.finish();
}

/// `job dispatch` follows what it starts; `job status` shows children under their parent.
#[test]
fn the_command_line_dispatches_and_shows_children() {
    let stage = Stage::start(1);
    let _agent = stage.node("n1", &[]);
    let mut render = parent("render", &json!({ "MetaOptional": ["who"] }));
    run_script(&mut render, "test \"$(cat $NOMAD_TASK_DIR/input)\" = \"$NOMAD_META_who\"");
    task(&mut render)["DispatchPayload"] = json!({ "File": "input" });
    stage.register(&render);
    let dispatch = ["job", "dispatch", "-meta", "who=eve", "render", "-"];
    let (code, shown) = stage.quorate_with(&dispatch, b"eve");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("Dispatched Job ID = render/dispatch-"), "{shown}");
    let (code, shown) = stage.quorate_with(&["job", "dispatch", "-meta", "no=1", "render"], b"");
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("Meta has keys [\"no\"]"), "{shown}");
    stage.await_dead("render", 1);
    let (code, shown) = stage.quorate_with(&["job", "status", "render"], b"");
    assert_eq!(code, 0, "{shown}");
    for part in ["Parameterized Job Summary", "Dispatched Jobs", "render/dispatch-", "dead"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    stage.finish();
}

/// Never more than three are alive, what waits says its place, and all is done in the order in which it came, also by a leader that was not there
/// at the beginning.
#[test]
fn max_running_is_kept_in_order_over_a_leader_change() {
    let mut stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let mut queue = parent("queue", &json!({ "MaxRunning": 3 }));
    task(&mut queue)["Config"] = json!({ "run_for": "300ms" });
    stage.register(&queue);
    let made: Vec<String> = (0..20)
        .map(|_| text(&stage.dispatch("queue", "", &json!({})), "DispatchedJobID").to_owned())
        .collect();
    let last = stage.client.get(&format!("/v1/job/{}", made[19])).ok();
    let why = text(&last, "StatusDescription");
    assert!(why.starts_with("waits to start: position "), "{why}");
    let (_, shown) = stage.quorate_with(&["job", "status", made[19].as_str()], b"");
    assert!(shown.contains("pending (waits to start: position"), "{shown}");
    let mut killed = false;
    wait_for("all are over", PATIENCE, || {
        let now = stage.counts("queue");
        let count = |name: &str| now[name].as_u64().unwrap();
        assert!(count("Pending") + count("Running") - count("Waiting") <= 3, "{now}");
        if count("Dead") >= 5 && !killed {
            killed = true;
            let leader = stage.cluster.leader();
            stage.cluster.kill(leader);
            stage.cluster.start_one(leader);
            stage.client = stage.cluster.client((leader + 1) % 3);
        }
        (count("Dead") == 20).then_some(())
    });
    let started = |id: &String| {
        let rows = stage.evaluations(&id.replace('/', "%2F"));
        rows.iter().map(|row| row["CreateIndex"].as_u64().unwrap()).min().unwrap()
    };
    let order: Vec<u64> = made.iter().map(started).collect();
    assert!(order.is_sorted(), "{order:?}");
    stage.finish();
}

/// One call dispatches many, each with an answer of its own; sent again it makes nothing. It is at least five times as fast as one call for each.
#[test]
fn a_batch_dispatches_many_at_once() {
    let stage = Stage::start(3);
    stage.register(&parent("many", &json!({ "MaxRunning": 1, "MetaOptional": ["n"] })));
    let one = |number: usize, token: &str| {
        json!({ "Meta": { "n": number.to_string() }, "Payload": HELLO,
            "IdempotencyToken": format!("{token}{number}") })
    };
    let singles = Instant::now();
    for number in 0..50 {
        stage.dispatch("many", &format!("?idempotency_token=s{number}"), &one(number, "s"));
    }
    let each_single = singles.elapsed() / 50;
    let mut dispatches: Vec<Value> = (0..1_000).map(|number| one(number, "b")).collect();
    dispatches[7]["Meta"] = json!({ "unknown": "1" });
    let body = json!({ "Dispatches": dispatches });
    let batch = Instant::now();
    let answer = stage.client.put("/v1/job/many/dispatch/batch", &body).ok();
    let each_of_many = batch.elapsed() / 1_000;
    let answers = list_of(answer["Dispatched"].clone());
    assert_eq!(answers.len(), 1_000);
    assert!(text(&answers[7], "Error").contains("Meta has keys"), "{}", answers[7]);
    assert!(answers.iter().enumerate().all(|(n, row)| n == 7 || text(row, "Error").is_empty()));
    let again = stage.client.put("/v1/job/many/dispatch/batch", &body).ok();
    for (first, second) in answers.iter().zip(list_of(again["Dispatched"].clone())) {
        assert_eq!(text(first, "DispatchedJobID"), text(&second, "DispatchedJobID"));
        assert_eq!(second["Existed"], text(&second, "Error").is_empty());
    }
    let counts = stage.counts("many");
    assert_eq!(counts, json!({ "Pending": 1_049, "Running": 0, "Dead": 0, "Waiting": 1_048 }));
    let pages = stage.pages("many", "");
    assert_eq!(pages.len(), 1_049);
    assert!(pages.is_sorted());
    let mut newest_first = stage.pages("many", "&reverse=true");
    newest_first.reverse();
    assert_eq!(newest_first, pages);
    eprintln!("a dispatch alone takes {each_single:?}, one of a batch {each_of_many:?}");
    assert!(each_single > each_of_many * 5, "{each_single:?} alone, {each_of_many:?} of a batch");
    let refused = stage.client.delete("/v1/job/many?purge=true");
    assert!(refused.text.contains("1048 children of job \"many\" wait"), "{}", refused.text);
    let (code, shown) = stage.quorate_with(&["job", "stop", "-children", "-purge", "many"], b"");
    assert_eq!(code, 0, "{shown}");
    assert_eq!(stage.client.get("/v1/jobs").ok(), json!([]));
    stage.finish();
}

/// Children that all fail at once: each is tried again once, after its delay, and no more than that is made of it; the single evaluation of another
/// job does not wait for them.
#[test]
fn failing_children_neither_storm_nor_starve_another_job() {
    const COUNT: usize = 150;
    let stage = Stage::start(3);
    let _agent = stage.cluster.agent("sim", Some(20));
    stage.await_ready_nodes(20);
    let mut fails = parent("fails", &json!({}));
    task(&mut fails)["Config"] = json!({ "run_for": "10ms", "exit_code": 1 });
    group(&mut fails)["ReschedulePolicy"] = json!({ "Attempts": 1, "Unlimited": false, "Interval": 3_600 * SECOND,
        "Delay": 5 * SECOND, "DelayFunction": "constant" });
    stage.register(&fails);
    let dispatches: Vec<Value> = (0..COUNT).map(|_| json!({})).collect();
    let body = json!({ "Dispatches": dispatches });
    let answer = stage.client.put("/v1/job/fails/dispatch/batch", &body).ok();
    let began = Instant::now();
    stage.schedule(&job("service", "single", 1));
    let single = began.elapsed();
    let left = stage.counts("fails")["Dead"].as_u64().unwrap();
    stage.await_dead("fails", COUNT as u64);
    eprintln!(
        "placed in {single:?} beside {COUNT} failing children, {left} of them over; all over after {:?}",
        began.elapsed()
    );
    for child in list_of(answer["Dispatched"].clone()) {
        let id = text(&child, "DispatchedJobID").replace('/', "%2F");
        let tries = stage.allocations(&id);
        assert_eq!(tries.len(), 2, "{tries:?}");
        let time = |one: &Value, field: &str| one[field].as_u64().unwrap();
        // It fails at once.
        let failed = tries.iter().map(|one| time(one, "CreateTime")).min().unwrap();
        let again = tries.iter().map(|one| time(one, "CreateTime")).max().unwrap();
        assert!(again >= failed + 4 * SECOND, "its delay was not kept: {tries:?}");
        let evaluations = stage.evaluations(&id);
        assert!(evaluations.len() <= 4, "a storm: {evaluations:?}");
    }
    stage.finish();
}
