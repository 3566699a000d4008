//! Dispatch on real servers and agents: payload and meta reach the task, tokens, children under their parent, `max_running` in order, batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{SECOND, Stage, group, job, run_script, task};
use crate::{
    harness::{Client, PATIENCE, is_full, program, wait_for},
    recompute::{list_of, text},
    reply_cutter::ReplyCutter,
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
    assert_eq!(child["ParameterizedJob"]["MetaRequired"], json!(["who"]));
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
        assert!(count("Pending") + count("Running") <= 3, "{now}");
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
    assert_eq!(counts, json!({ "Pending": 1, "Running": 0, "Dead": 0, "Waiting": 1_048 }));
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

/// One reply of twenty is lost and its dispatch repeated with the same token, at another server: there are as many children as dispatches.
#[test]
fn lost_replies_make_no_child_twice() {
    const CLIENTS: usize = 8;
    let count = if is_full() { 1_000 } else { 100 };
    let stage = Stage::start(3);
    stage.register(&parent("cut", &json!({ "MaxRunning": 1 })));
    let cutter = |server| ReplyCutter::start(stage.cluster.http(server), server as u64, 5);
    let cutters: Vec<ReplyCutter> = stage.cluster.all().into_iter().map(cutter).collect();
    let clients: Vec<Client> =
        cutters.iter().map(|cutter| Client::new(cutter.address(), PATIENCE)).collect();
    let dispatch_all = |first: usize| -> Vec<String> {
        let numbers = (first..count).step_by(CLIENTS);
        numbers.map(|number| dispatch_until_answered(&clients, number)).collect()
    };
    let answered: Vec<String> = thread::scope(|scope| {
        let started: Vec<_> =
            (0..CLIENTS).map(|first| scope.spawn(move || dispatch_all(first))).collect();
        started.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let cuts: usize = cutters.iter().map(ReplyCutter::cuts).sum();
    assert!(cuts >= count / 50, "{cuts} replies of {count} were lost");
    eprintln!("{count} dispatches, {cuts} replies lost");
    let answered: BTreeSet<String> = answered.into_iter().collect();
    assert_eq!(answered.len(), count, "each token has a child of its own");
    assert_eq!(stage.pages("cut", ""), Vec::from_iter(answered), "and there are no others");
    let counts = stage.counts("cut");
    assert_eq!(counts, json!({ "Pending": 1, "Running": 0, "Dead": 0, "Waiting": count - 1 }));
    let (code, shown) = stage.quorate_with(&["job", "stop", "-children", "-purge", "cut"], b"");
    assert_eq!(code, 0, "{shown}");
    stage.finish();
}

/// Dispatches with the token of that number until there is an answer, each time by another server.
fn dispatch_until_answered(clients: &[Client], number: usize) -> String {
    let path = format!("/v1/job/cut/dispatch?idempotency_token=token-{number}");
    let mut servers = clients.iter().cycle().skip(number % clients.len());
    wait_for(&format!("dispatch {number} is answered"), PATIENCE, || {
        let answer = servers.next()?.try_put(&path, &json!({ "Payload": HELLO })).ok()?;
        Some(text(&answer.ok(), "DispatchedJobID").to_owned())
    })
}

/// Children that all fail at once: each is tried again once, after its delay, and no more than that is made of it; the single evaluations of other
/// jobs do not wait for them, whenever they come. So it is with the instances of one job.
#[test]
fn failing_children_neither_storm_nor_starve_another_job() {
    let count: u64 = if is_full() { 1_000 } else { 150 };
    let stage = Stage::start(3);
    let _agent = stage.cluster.agent("sim", Some(NODES));
    stage.await_ready_nodes(NODES as usize);
    let failing = |mut job: Value| {
        task(&mut job)["Config"] = json!({ "run_for": "10ms", "exit_code": 1 });
        task(&mut job)["Resources"] = json!({ "CPU": 20, "MemoryMB": 10 });
        group(&mut job)["ReschedulePolicy"] = json!({ "Attempts": 1, "Unlimited": false,
            "Interval": 3_600 * SECOND, "Delay": 5 * SECOND, "DelayFunction": "constant" });
        job
    };
    stage.register(&failing(parent("fails", &json!({}))));
    stage.register(&failing(job("batch", "crowd", CROWD)));
    let dispatches: Vec<Value> = (0..count).map(|_| json!({})).collect();
    let body = json!({ "Dispatches": dispatches });
    let answer = stage.client.put("/v1/job/fails/dispatch/batch", &body).ok();
    let began = Instant::now();
    let mut placed = Vec::new();
    let mut left_by_first = None;
    loop {
        let registered = Instant::now();
        let single = stage.schedule(&job("service", &format!("single-{}", placed.len()), 1));
        assert_eq!(text(&single, "BlockedEval"), "", "it has room");
        let now = stage.counts("fails");
        placed.push(registered.elapsed());
        let left = |name: &str| now[name].as_u64().unwrap();
        left_by_first.get_or_insert(left("Pending") + left("Waiting"));
        if now["Dead"] == json!(count) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{now}");
    }
    let slowest = placed.iter().max().unwrap();
    eprintln!(
        "{} jobs placed beside {count} failing children in {:?} to {slowest:?}, the first while {left_by_first:?} were not looked at; all over after {:?}",
        placed.len(),
        placed.iter().min().unwrap(),
        began.elapsed()
    );
    // It came behind all children, and its turn was among the first.
    assert!(left_by_first.unwrap() >= count / 2, "it waited for children: {left_by_first:?}");
    // A debug build computes several times as long, beside other tests on the same cores.
    let bound = Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 2 });
    assert!(*slowest <= bound, "another job waited: {placed:?}");
    for child in list_of(answer["Dispatched"].clone()) {
        stage.check_tries(&text(&child, "DispatchedJobID").replace('/', "%2F"), 1, 3);
    }
    // What failed on a node is one report, and what is tried again within 5 s one evaluation.
    stage.check_tries("crowd", CROWD, NODES as usize + 5);
    stage.finish();
}

/// Instances of the one job that fail at once, on so many nodes.
const CROWD: u32 = 50;
const NODES: u32 = 20;

impl Stage {
    /// Each of the instances was tried twice, the second time after its delay of 5 s, and no more than so
    /// many evaluations were made of them within 5 s.
    #[track_caller]
    fn check_tries(&self, job: &str, instances: u32, evaluations_max: usize) {
        let tries = self.allocations(job);
        assert_eq!(tries.len(), 2 * instances as usize, "{tries:?}");
        let time = |one: &Value| one["CreateTime"].as_u64().unwrap();
        let mut made: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for one in &tries {
            made.entry(text(one, "Name")).or_default().push(time(one));
        }
        for times in made.values() {
            // It fails at once.
            let apart = times.iter().max().unwrap() - times.iter().min().unwrap();
            assert!(times.len() == 2 && apart >= 4 * SECOND, "its delay was not kept: {tries:?}");
        }
        let mut evaluations: Vec<u64> = self.evaluations(job).iter().map(time).collect();
        evaluations.sort_unstable();
        let within = |first: &u64| {
            evaluations.iter().filter(|one| (*first..first + 5 * SECOND).contains(one)).count()
        };
        let most = evaluations.iter().map(within).max().unwrap();
        assert!(most <= evaluations_max, "{most} within 5 s, a storm of {job}: {evaluations:?}");
    }
}
