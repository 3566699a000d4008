//! The command line against a canned HTTP server: what is asked, what is printed, how it exits.
#![expect(clippy::unwrap_used, reason = "tests")]

mod agents;
mod capacity;
mod hostile;
mod lives;
mod pools;
mod scaling;
mod small_flags;
mod unbuilt;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::entry;
use super::output::Output;

const NODE_A: &str = "11111111-1111-4111-8111-111111111111";
const NODE_B: &str = "11111111-2222-4222-8222-222222222222";
const EVALUATION: &str = "eeeeeeee-1111-4111-8111-111111111111";
const BLOCKED: &str = "bbbbbbbb-1111-4111-8111-111111111111";
const ALLOCATION: &str = "aaaaaaaa-1111-4111-8111-111111111111";

/// Answers by `METHOD /path`; several answers are given one after the other, the last one for good.
#[derive(Default)]
pub(super) struct Canned {
    answers: BTreeMap<String, Vec<(u16, String)>>,
    /// What follows the page of a route.
    tokens: BTreeMap<String, &'static str>,
}

/// One request as the server saw it.
#[derive(Debug, Clone)]
struct Seen {
    line: String,
    head: String,
    body: String,
}

pub(super) struct Server {
    pub(super) address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

struct Ran {
    code: u8,
    out: String,
    err: String,
}

impl Canned {
    pub(super) fn on(mut self, route: &str, answer: &Value) -> Self {
        self.answers.entry(route.to_owned()).or_default().push((200, answer.to_string()));
        self
    }

    fn followed_by(mut self, route: &str, token: &'static str) -> Self {
        self.tokens.insert(route.to_owned(), token);
        self
    }

    pub(super) fn fail(mut self, route: &str, status: u16, text: &str) -> Self {
        self.answers.entry(route.to_owned()).or_default().push((status, text.to_owned()));
        self
    }

    pub(super) fn start(self) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&seen);
        let mut canned = self;
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &mut canned, &recorded);
            }
        });
        Server { address, seen }
    }
}

fn answer(mut stream: TcpStream, canned: &mut Canned, seen: &Mutex<Vec<Seen>>) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let (head, body_start) = loop {
        let length = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..length]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break (String::from_utf8(bytes[..end].to_vec()).unwrap(), end + 4);
        }
        assert!(length > 0, "the request ended in its head");
    };
    let length = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.parse().unwrap());
    while bytes.len() < body_start + length {
        let count = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..count]);
    }
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    let body = String::from_utf8(bytes[body_start..].to_vec()).unwrap();
    let route = line.split('?').next().unwrap().to_owned();
    seen.lock().unwrap().push(Seen { line, head, body });
    let next = canned.tokens.get(&route).map(|token| format!("X-Nomad-NextToken: {token}\r\n"));
    let (status, text) = match canned.answers.get_mut(&route) {
        Some(list) if list.len() > 1 => list.remove(0),
        Some(list) => list[0].clone(),
        None => (404, format!("no canned answer for {route}")),
    };
    let (length, next) = (text.len(), next.unwrap_or_default());
    write!(
        stream,
        "HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n{next}Connection: close\r\n\r\n{text}"
    )
    .unwrap();
}

impl Server {
    fn run(&self, arguments: &str) -> Ran {
        let address = self.address.clone();
        run(arguments, &move |name| (name == "NOMAD_ADDR").then(|| address.clone()))
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|seen| seen.line.clone()).collect()
    }

    fn request(&self, method: &str) -> Seen {
        let seen = self.seen.lock().unwrap();
        seen.iter().find(|seen| seen.line.starts_with(method)).unwrap().clone()
    }
}

fn run(arguments: &str, variable: &dyn Fn(&str) -> Option<String>) -> Ran {
    let output = Arc::new(Output::memory(false));
    let words =
        std::iter::once("quorate").chain(arguments.split(' ').filter(|word| !word.is_empty()));
    let words = words.map(Into::into).collect();
    let code = entry::run(words, variable, &output, |context| {
        context.now = || UNIX_EPOCH + Duration::from_hours(492_312);
        context.poll_interval = Duration::from_millis(1);
        context.read_failure_max = Duration::from_millis(20);
    });
    let (out, err) = output.printed();
    Ran { code, out, err }
}

fn job_file(directory: &tempfile::TempDir) -> String {
    let path = directory.path().join("web.json");
    std::fs::write(&path, json!({"Job": {"ID": "web", "Type": "service"}}).to_string()).unwrap();
    path.display().to_string()
}

fn evaluation(status: &str) -> Value {
    json!({"ID": EVALUATION, "JobID": "web", "TriggeredBy": "job-register", "Status": status})
}

fn allocation(status: &str) -> Value {
    json!({"ID": ALLOCATION, "NodeID": NODE_A, "NodeName": "agent-1", "TaskGroup": "web",
        "DesiredStatus": "run", "ClientStatus": status, "JobID": "web", "Name": "web.web[0]"})
}

fn registered() -> Canned {
    Canned::default().on("PUT /v1/jobs", &json!({"EvalID": EVALUATION, "JobModifyIndex": 7}))
}

fn evaluation_route(suffix: &str) -> String {
    format!("GET /v1/evaluation/{EVALUATION}{suffix}")
}

#[test]
fn job_run_follows_until_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let server = registered()
        .on(&evaluation_route(""), &evaluation("pending"))
        .on(&evaluation_route(""), &evaluation("complete"))
        .on(&evaluation_route("/allocations"), &json!([]))
        .on(&evaluation_route("/allocations"), &json!([allocation("pending")]))
        .on(&evaluation_route("/allocations"), &json!([allocation("running")]))
        .start();
    let ran = server.run(&format!("job run -check-index 5 {}", job_file(&directory)));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let at = "2026-03-01T00:00:00Z";
    assert_eq!(
        ran.out,
        format!(
            "==> {at}: Monitoring evaluation \"eeeeeeee\"
    {at}: Evaluation triggered by job \"web\"
    {at}: Evaluation status changed: \"pending\" -> \"complete\"
    {at}: Allocation \"aaaaaaaa\" created: node \"agent-1\", group \"web\"
    {at}: Allocation \"aaaaaaaa\" status changed: \"pending\" -> \"running\"
==> {at}: Evaluation \"eeeeeeee\" finished with status \"complete\"\n"
        )
    );
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body["Job"]["ID"], "web");
    assert_eq!((&body["EnforceIndex"], &body["JobModifyIndex"]), (&json!(true), &json!(5)));
    assert_eq!(body["Submission"]["Format"], "json");
}

/// What an update keeps is modified, what it stops is stopped, and only what is younger than the
/// evaluation was created by it.
#[test]
fn job_run_tells_modified_from_created() {
    let directory = tempfile::tempdir().unwrap();
    let mut complete = evaluation("complete");
    complete["CreateIndex"] = json!(20);
    let with = |id: &str, index: u64, desired: &str| {
        let mut row = allocation("running");
        row["ID"] = json!(format!("{id}{}", &ALLOCATION[8..]));
        row["CreateIndex"] = json!(index);
        row["DesiredStatus"] = json!(desired);
        row
    };
    let rows = json!([
        with("11111111", 12, "run"),
        with("22222222", 12, "stop"),
        with("33333333", 21, "run")
    ]);
    let server = registered()
        .on(&evaluation_route(""), &complete)
        .on(&evaluation_route("/allocations"), &rows)
        .start();
    let ran = server.run(&format!("job run {}", job_file(&directory)));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    for (id, what) in [("11111111", "modified"), ("22222222", "stopped"), ("33333333", "created")] {
        let line = format!("Allocation \"{id}\" {what}: node \"agent-1\", group \"web\"\n");
        assert_eq!(ran.out.matches(&line).count(), 1, "{}", ran.out);
    }
}

#[test]
fn job_run_exits_2_when_not_all_could_be_placed() {
    let directory = tempfile::tempdir().unwrap();
    let mut complete = evaluation("complete");
    complete["BlockedEval"] = json!(BLOCKED);
    complete["FailedTGAllocs"] = json!({"web": {"NodesEvaluated": 1, "NodesExhausted": 1,
        "DimensionExhausted": {"memory": 1}, "CoalescedFailures": 1}});
    let server = registered()
        .on(&evaluation_route(""), &complete)
        .on(&evaluation_route("/allocations"), &json!([]))
        .start();
    let file = job_file(&directory);
    let ran = server.run(&format!("job run {file}"));
    assert_eq!(ran.code, 2, "{}{}", ran.out, ran.err);
    assert!(ran.out.ends_with(
        "but failed to place all allocations:
    Task Group \"web\" (failed to place 2 allocations):
      * Resources exhausted on 1 node
      * Dimension \"memory\" exhausted on 1 node
    Evaluation \"bbbbbbbb\" waits for capacity to place the remainder\n"
    ));
    let ran = server.run(&format!("job run -output=json {file}"));
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, report["Evaluation"]["BlockedEval"].as_str()), (2, Some(BLOCKED)));
}

#[test]
fn job_run_exits_1_when_an_allocation_fails() {
    let directory = tempfile::tempdir().unwrap();
    let mut failed = allocation("failed");
    failed["TaskStates"] = json!({"web": {"Failed": true, "Events":
        [{"Type": "Driver Failure", "DisplayMessage": "no such file: web"}]}});
    let server = registered()
        .on(&evaluation_route(""), &evaluation("complete"))
        .on(&evaluation_route("/allocations"), &json!([allocation("pending")]))
        .on(&evaluation_route("/allocations"), &json!([failed]))
        .start();
    let ran = server.run(&format!("job run {}", job_file(&directory)));
    assert_eq!(ran.code, 1);
    let expected = "\"pending\" -> \"failed\" (task \"web\": no such file: web)";
    assert!(ran.out.contains(expected), "{}", ran.out);
}

/// As when an allocation of the job fails while the registration waits for its turn: the newer
/// evaluation sees the new version too.
#[test]
fn job_run_goes_on_with_the_evaluation_that_supersedes_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let of = |id: &str, index: u64, status: &str, wait_until: &str| {
        json!({"ID": id, "JobID": "web", "Namespace": "default", "Status": status,
            "CreateIndex": index, "WaitUntil": wait_until})
    };
    let none = "0001-01-01T00:00:00Z";
    let canceled = of(EVALUATION, 10, "canceled", none);
    let newer = of(BLOCKED, 13, "complete", none);
    let rows = json!([
        of("1", 9, "complete", none),
        canceled,
        of("2", 11, "pending", "2026-03-01T01:00:00Z"),
        of("3", 12, "blocked", none),
        newer,
        of("4", 14, "pending", none)
    ]);
    let server = registered()
        .on(&evaluation_route(""), &canceled)
        .on("GET /v1/job/web/evaluations", &rows)
        .on("GET /v1/job/web/evaluations", &json!([canceled]))
        .on(&format!("GET /v1/evaluation/{BLOCKED}"), &newer)
        .on(&format!("GET /v1/evaluation/{BLOCKED}/allocations"), &json!([allocation("running")]))
        .start();
    let file = job_file(&directory);
    let ran = server.run(&format!("job run {file}"));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let line = "Evaluation \"eeeeeeee\" was superseded by \"bbbbbbbb\"\n";
    assert!(ran.out.contains(line), "{}", ran.out);
    assert!(ran.out.ends_with("Evaluation \"bbbbbbbb\" finished with status \"complete\"\n"));
    assert_eq!(server.run(&format!("job run {file}")).code, 1, "nothing took its place");
}

#[test]
fn job_run_detached_and_without_evaluation() {
    let directory = tempfile::tempdir().unwrap();
    let file = job_file(&directory);
    let server = registered().start();
    let ran = server.run(&format!("job run -detach {file}"));
    assert_eq!(ran.out, format!("Job registration successful\nEvaluation ID: {EVALUATION}\n"));
    assert_eq!(server.lines(), ["PUT /v1/jobs"]);
    let server =
        Canned::default().on("PUT /v1/jobs", &json!({"EvalID": "", "Warnings": "w"})).start();
    let ran = server.run(&format!("job run {file}"));
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "Job Warnings:\nw\n\nJob registration successful\n")
    );
}

#[test]
fn a_refused_write_is_not_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let file = job_file(&directory);
    let server = Canned::default().fail("PUT /v1/jobs", 500, "No cluster leader").start();
    let ran = server.run(&format!("job run {file}"));
    assert_eq!(ran.code, 1);
    assert_eq!(ran.err, "Error: No cluster leader (HTTP 500 from PUT /v1/jobs)\n");
    assert_eq!(server.lines().len(), 1);
    let ran = server.run("job run nothing.json");
    assert!(ran.err.starts_with("Error: cannot open the job file nothing.json: "), "{}", ran.err);
}

#[test]
fn reads_that_are_followed_survive_an_election() {
    let directory = tempfile::tempdir().unwrap();
    let server = registered()
        .fail(&evaluation_route(""), 500, "No cluster leader")
        .on(&evaluation_route(""), &evaluation("complete"))
        .on(&evaluation_route("/allocations"), &json!([allocation("running")]))
        .start();
    let ran = server.run(&format!("job run {}", job_file(&directory)));
    assert_eq!(ran.code, 0);
    assert!(ran.err.contains("still trying: No cluster leader"), "{}", ran.err);
}

#[test]
fn connection_refused_says_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = run(&format!("job status -address {free}"), &|_| None);
    assert_eq!(ran.code, 1);
    for part in [&format!("http://{free}"), "quorate up", "QUORATE_ADDR", "refused"] {
        assert!(ran.err.contains(part), "{part} is not in {}", ran.err);
    }
}

#[test]
fn flags_win_over_our_variables_over_nomads() {
    let server = Canned::default().on("GET /v1/jobs", &json!([])).start();
    let address = server.address.clone();
    let variable = move |name: &str| match name {
        "QUORATE_ADDR" => Some(address.clone()),
        "NOMAD_ADDR" => Some("http://127.0.0.1:1".to_owned()),
        "QUORATE_TOKEN" => Some(String::new()),
        "NOMAD_TOKEN" => Some("secret".to_owned()),
        "NOMAD_NAMESPACE" => Some("ignored".to_owned()),
        _ => None,
    };
    let ran = run("job status -namespace=team", &variable);
    assert_eq!(ran.out, "No jobs; register one with: quorate job run FILE\n");
    let seen = server.request("GET");
    assert_eq!(seen.line, "GET /v1/jobs?namespace=team");
    assert!(seen.head.to_lowercase().contains("x-nomad-token: secret"), "{}", seen.head);
}

#[test]
fn job_status_lists_and_shows() {
    let job = json!({"ID": "web", "Name": "web", "Namespace": "default", "Type": "service", "Priority": 50,
        "Status": "running", "Datacenters": ["dc1"], "NodePool": "default", "Version": 2,
        "JobModifyIndex": 7, "SubmitTime": 1_772_323_199_000_000_000_u64});
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([job]))
        .on("GET /v1/job/web", &job)
        .on("GET /v1/job/web/summary", &json!({"Summary": {"web": {"Running": 1, "Queued": 1}}}))
        .on("GET /v1/job/web/allocations", &json!([allocation("running")]))
        .on(
            "GET /v1/job/web/evaluations",
            &json!([{"ID": BLOCKED, "Status": "blocked", "FailedTGAllocs": {"web": {"NodesEvaluated": 0, "NodesInPool": 1}}}]),
        )
        .on("GET /v1/job/web/deployment", &Value::Null)
        .start();
    let ran = server.run("job status");
    assert_eq!(
        ran.out,
        "ID   Type     Priority  Status   Submit Date\nweb  service  50        running  2026-02-28T23:59:59Z\n"
    );
    let ran = server.run("job status we");
    assert_eq!(
        ran.out,
        "ID            = web
Name          = web
Submit Date   = 2026-02-28T23:59:59Z
Type          = service
Priority      = 50
Datacenters   = dc1
Namespace     = default
Node Pool     = default
Status        = running
Periodic      = false
Parameterized = false
Version       = 2
Modify Index  = 7

Summary
Task Group  Queued  Starting  Running  Failed  Complete  Lost  Unknown
web         1       0         1        0       0         0     0

Placement Failure
Task Group \"web\" (failed to place 1 allocation):
  * No nodes were eligible for evaluation

Allocations
ID        Node ID   Task Group  Version  Desired  Status   Created  Modified
aaaaaaaa  11111111  web         0        run      running  N/A      N/A\n"
    );
    let ran = server.run("job status -json web");
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap(), job);
}

#[test]
fn job_stop_needs_the_whole_id() {
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("DELETE /v1/job/web", &json!({"EvalID": EVALUATION}))
        .start();
    let ran = server.run("job stop we");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("the only job that starts with it is \"web\""), "{}", ran.err);
    let ran = server.run("job stop -purge -detach web");
    assert_eq!((ran.code, ran.out), (0, format!("Evaluation ID: {EVALUATION}\n")));
    assert_eq!(server.request("DELETE").line, "DELETE /v1/job/web?purge=true&namespace=default");
}

#[test]
fn one_id_in_several_namespaces_is_not_chosen_between() {
    let jobs = json!([
        {"ID": "web", "Namespace": "default", "Type": "service", "Status": "running"},
        {"ID": "web", "Namespace": "team", "Type": "service", "Status": "running"},
    ]);
    let server = Canned::default().on("GET /v1/jobs", &jobs).start();
    let ran = server.run("job stop -namespace=* web");
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("\"web\" matches several jobs; choose one with -namespace:"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("web  team "), "{}", ran.err);
    assert!(server.lines().iter().all(|line| line.starts_with("GET")), "{:?}", server.lines());
    let ran = server.run("job status -namespace=*");
    assert!(ran.out.starts_with("ID   Namespace  Type"), "{}", ran.out);
}

#[test]
fn nomads_short_forms_work_and_what_is_not_built_is_named() {
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("GET /v1/job/web", &json!({"ID": "web", "Version": 1}))
        .on("GET /v1/job/web/versions", &json!({"Versions": [{"ID": "web", "Version": 0}]}))
        .on("PUT /v1/job/web/evaluate", &json!({"EvalID": EVALUATION}))
        .start();
    assert_eq!(server.run("status").out, server.run("job status").out);
    let ran = server.run("inspect web");
    let shown: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown, json!({"Job": {"ID": "web", "Version": 1}}));
    let old = server.run("job inspect -version 0 web");
    assert_eq!(serde_json::from_str::<Value>(&old.out).unwrap()["Job"]["Version"], json!(0));
    assert!(server.run("job inspect -version 7 web").err.contains("has no version 7"));
    let ran = server.run("job eval -detach web");
    assert_eq!((ran.code, ran.out.contains(EVALUATION)), (0, true), "{}", ran.err);
    assert!(!server.run("job plam web.hcl").err.contains("Nomad's"));
}

#[test]
fn job_inspect_prints_the_file_as_it_was_registered() {
    let jobs = json!([{"ID": "web", "Namespace": "default"}]);
    let source = "job \"web\" {\n}\n";
    let server = Canned::default()
        .on("GET /v1/jobs", &jobs)
        .on("GET /v1/job/web/submission", &json!({"Source": source, "Format": "hcl2"}))
        .start();
    assert_eq!(server.run("job inspect -hcl web").out, source);
    assert_eq!(server.run("job inspect -hcl -version 3 web").out, source);
    let lines = server.lines();
    assert!(lines.iter().any(|line| line.ends_with("&version=3")), "{lines:?}");
    let json = Canned::default()
        .on("GET /v1/jobs", &jobs)
        .on("GET /v1/job/web/submission", &json!({"Source": "{}", "Format": "json"}))
        .start()
        .run("job inspect -hcl web");
    assert!(json.code == 1 && json.err.contains("registered from JSON"), "{}", json.err);
    let none = Canned::default()
        .on("GET /v1/jobs", &jobs)
        .fail("GET /v1/job/web/submission", 404, "job source not found")
        .start()
        .run("job inspect -hcl web");
    assert!(none.code == 1 && none.err.contains("no source is kept"), "{}", none.err);
}

#[test]
fn eval_delete_names_what_it_deletes() {
    let server = Canned::default()
        .on("GET /v1/evaluations", &json!([{"ID": EVALUATION}]))
        .on("DELETE /v1/evaluations", &json!({"Count": 1}))
        .start();
    let ran = server.run("eval delete -yes eeee");
    assert_eq!((ran.code, ran.out.trim()), (0, "Successfully deleted 1 evaluation"), "{}", ran.err);
    let sent = |server: &Server| -> Value {
        let seen = server.seen.lock().unwrap();
        serde_json::from_str(&seen.last().unwrap().body).unwrap()
    };
    assert_eq!(sent(&server), json!({"EvalIDs": [EVALUATION]}));
    server.run("eval delete -filter x");
    assert_eq!(sent(&server), json!({"Filter": "x"}));
    assert!(server.run("eval delete").code != 0);
    let paused = "eval broker is enabled; eval broker must be paused to delete evals";
    let refused = Canned::default()
        .on("GET /v1/evaluations", &json!([{"ID": EVALUATION}]))
        .fail("DELETE /v1/evaluations", 400, paused)
        .start()
        .run("eval delete eeee");
    assert!(refused.code == 1 && refused.err.contains(paused), "{}", refused.err);
}

/// Nothing is asked of a server when a command line asks for what no server does.
#[test]
fn flags_that_are_not_built_are_named() {
    let server = two_nodes()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("GET /v1/allocations", &json!([allocation("running")]))
        .on("DELETE /v1/job/web", &json!({"EvalID": EVALUATION}))
        .on(&format!("PUT /v1/allocation/{ALLOCATION}/stop"), &json!({"EvalID": EVALUATION}))
        .on(&format!("PUT /v1/node/{NODE_B}/drain"), &json!({}))
        .start();
    for (line, flag) in
        [("job run -policy-override web.hcl", "policy-override"), ("node status -ui", "ui")]
    {
        let ran = server.run(line);
        let named = ran.err.contains(&format!("not built yet: -{flag}, a flag of Nomad's"));
        assert!(ran.code == 1 && named, "{line}: {}{}", ran.out, ran.err);
    }
    assert!(server.lines().is_empty(), "{:?}", server.lines());
}

#[test]
fn job_validate_and_history() {
    let directory = tempfile::tempdir().unwrap();
    let server = Canned::default()
        .on(
            "PUT /v1/validate/job",
            &json!({"ValidationErrors": ["group has no tasks"], "Error": "1 error"}),
        )
        .on("PUT /v1/validate/job", &json!({"ValidationErrors": null, "Error": ""}))
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on(
            "GET /v1/job/web/versions",
            &json!({"Versions": [{"Version": 1, "Stable": true}, {"Version": 0}]}),
        )
        .start();
    let file = job_file(&directory);
    let ran = server.run(&format!("job validate {file}"));
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (1, "Job \"web\" is not valid:\n  * group has no tasks\n")
    );
    assert_eq!(server.run(&format!("job validate {file}")).out, "Job \"web\" is valid\n");
    let ran = server.run("job history -version 1 web");
    assert_eq!(ran.out, "Version     = 1\nStable      = true\nSubmit Date = N/A\n");
    assert!(server.run("job history -version 9 web").err.contains("has no version 9"));
}

#[test]
fn a_servers_error_is_shown_where_it_stands_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.hcl");
    let source = "job \"web\" {\n  group \"g\" {\n    count = 1\n    task \"t\" {\n      driver = \"mock\"\n    }\n  }\n}\n";
    std::fs::write(&path, source).unwrap();
    let error = "Job.TaskGroups[0].Count: must be at least 2\nsomething else";
    let warning = "Job.TaskGroups[0].Tasks[0].Driver: no node has it";
    let answer = json!({"Warnings": warning, "Error": "", "ValidationErrors": []});
    let server = Canned::default()
        .fail("PUT /v1/jobs", 400, error)
        .fail("PUT /v1/job/web/plan", 400, error)
        .on(
            "PUT /v1/validate/job",
            &json!({"ValidationErrors": error.split('\n').collect::<Vec<_>>()}),
        )
        .on("PUT /v1/validate/job", &answer)
        .start();
    for command in ["run", "plan", "validate"] {
        let ran = server.run(&format!("job {command} {}", path.display()));
        assert_eq!(ran.code, if command == "plan" { 255 } else { 1 }, "{}", ran.err);
        assert!(ran.err.contains("error: must be at least 2\n"), "{command}: {}", ran.err);
        assert!(ran.err.contains("web.hcl:3:13\n"), "{command}: {}", ran.err);
        assert!(ran.err.contains("something else\n"), "{command}: {}", ran.err);
        assert!(!ran.err.contains("TaskGroups"), "{command}: {}", ran.err);
    }
    let ran = server.run(&format!("job validate {}", path.display()));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("Job Warnings:\nwarning: no node has it\n"), "{}", ran.out);
    assert!(ran.out.contains("web.hcl:5:16\n"), "{}", ran.out);
}

#[test]
fn a_namespace_in_the_file_goes_over_the_flag_also_to_validate() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("team.json");
    std::fs::write(&path, json!({"Job": {"ID": "web", "Namespace": "team"}}).to_string()).unwrap();
    let file = path.display();
    let server =
        registered().on("PUT /v1/validate/job", &json!({"ValidationErrors": null})).start();
    for line in ["job run -detach", "job validate"] {
        let ran = server.run(&format!("{line} -namespace=other {file}"));
        assert_eq!(ran.code, 0, "{line}: {}{}", ran.out, ran.err);
    }
    let expected = ["PUT /v1/jobs?namespace=team", "PUT /v1/validate/job?namespace=team"];
    assert_eq!(server.lines(), expected);
}

fn two_nodes() -> Canned {
    let node = |id: &str, name: &str| {
        json!({"ID": id, "Name": name, "Datacenter": "dc1", "NodePool": "default", "Status": "ready",
            "SchedulingEligibility": "eligible", "Drain": false, "Health": { "Status": "ok" }})
    };
    Canned::default()
        .on("GET /v1/nodes/offline", &json!([]))
        .on("GET /v1/nodes", &json!([node(NODE_A, "agent-1"), node(NODE_B, "agent-2")]))
}

#[test]
fn ambiguous_prefixes_list_their_matches() {
    let server = two_nodes().start();
    let ran = server.run("node status 111");
    assert_eq!(ran.code, 1);
    assert_eq!(
        ran.err,
        format!(
            "Error: \"111\" matches 2 nodes; type more of the id:
ID                                    Name     DC   Status
{NODE_A}  agent-1  dc1  ready
{NODE_B}  agent-2  dc1  ready\n"
        )
    );
    assert_eq!(server.request("GET").line, "GET /v1/nodes?prefix=11");
    let ran = server.run("node status");
    assert_eq!(
        ran.out,
        "ID        Node Pool  DC   Name     Class   Drain  Eligibility  Health  Status
11111111  default    dc1  agent-1  <none>  false  eligible     ok      ready
11111111  default    dc1  agent-2  <none>  false  eligible     ok      ready
2 nodes: 2 ready\n"
    );
    assert!(server.run("node status agent-9").err.contains("or that name"));
}

#[test]
fn a_name_that_is_also_the_beginning_of_another_id_is_not_chosen_between() {
    let node = |id: &str, name: &str| json!({"ID": id, "Name": name, "Status": "ready"});
    let server = Canned::default()
        .on("GET /v1/nodes", &json!([node(NODE_A, "bb"), node(BLOCKED, "agent-2")]))
        .start();
    let ran = server.run("node drain -enable -detach bb");
    assert_eq!(ran.code, 1);
    assert!(ran.err.starts_with("Error: \"bb\" matches 2 nodes;"), "{}", ran.err);
    assert!(server.lines().iter().all(|line| line.starts_with("GET")), "{:?}", server.lines());
}

#[test]
fn an_id_may_be_typed_without_its_dashes() {
    let server = two_nodes().on(&format!("GET /v1/node/{NODE_B}"), &json!({"ID": NODE_B})).start();
    let ran = server.run(&format!("node status -json {}", &NODE_B.replace('-', "")[..10]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains(NODE_B), "{}", ran.out);
}

/// A node that is offline and not registered is named as others are; a prefix of two is refused.
#[test]
fn an_offline_node_that_is_not_registered_comes_online_by_its_beginning() {
    let server = Canned::default()
        .on("GET /v1/nodes", &json!([]))
        .on(
            "GET /v1/nodes/offline",
            &json!([{ "ID": NODE_A, "Name": "" }, { "ID": BLOCKED, "Name": "old" }]),
        )
        .on(
            &format!("PUT /v1/node/{BLOCKED}/eligibility"),
            &json!({ "Warnings": "not registered" }),
        )
        .start();
    for typed in ["bbbb", "old"] {
        let ran = server.run(&format!("node online {typed}"));
        assert_eq!((ran.code, &*ran.err), (0, "Warning: not registered\n"), "{typed}: {}", ran.out);
    }
    let ran = server.run("node offline -reason x 9999");
    assert!(ran.err.starts_with("Error: no node has an id that starts with"), "{}", ran.err);
    assert!(ran.err.ends_with("list them with: quorate node status\n"), "{}", ran.err);
}

/// Settings of node life are changed as they were read: somebody else's change is not undone.
#[test]
fn node_life_is_set_with_the_index_that_was_read() {
    let path = "/v1/operator/scheduler/configuration";
    let shown = json!({ "ModifyIndex": 7, "SchedulerConfig":
        { "SchedulerAlgorithm": "spread", "NodeLife": { "SuspendMs": 1, "StrikeFailures": 3 } } });
    let server = Canned::default()
        .on(&format!("GET {path}"), &shown)
        .on(&format!("PUT {path}"), &json!({ "Updated": true }))
        .on(&format!("PUT {path}"), &json!({ "Updated": false }))
        .start();
    let command =
        "operator scheduler set-config -node-life SuspendMs=15m -node-life AffinityMetaKey=12";
    let ran = server.run(command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let sent = server.request("PUT");
    assert_eq!(sent.line, format!("PUT {path}?cas=7"));
    let body: Value = serde_json::from_str(&sent.body).unwrap();
    assert_eq!(body["NodeLife"], json!({ "SuspendMs": 900_000, "AffinityMetaKey": "12" }));
    assert_eq!(body["SchedulerAlgorithm"], "spread");
    let ran = server.run(command);
    assert!(ran.code == 1 && ran.err.contains("do not have index 7 any more"), "{}", ran.err);
    server.run(&format!("{command} -check-index 5"));
    assert_eq!(server.lines().last().unwrap(), &format!("PUT {path}?cas=5"));
}

/// What an operator says of a node, with reason and actor; and what `node status` makes of it.
#[test]
fn operators_take_nodes_out_of_service() {
    let path = format!("/v1/node/{NODE_B}");
    let suspended = json!({
        "ID": NODE_B, "Name": "agent-2", "Status": "ready", "SchedulingEligibility": "ineligible",
        "Health": { "Status": "suspended", "Reason": "flaky", "Detail": "no executor",
            "Since": "2026-11-25T10:00:00Z", "Until": "2026-11-25T10:15:00Z", "Strikes": 2 },
        "Readiness": { "Status": "ready", "Reason": "", "At": "0001-01-01T00:00:00Z" },
        "Shortage": { "Reason": "disk: 3 MiB left", "Since": "2026-11-25T09:30:00Z" },
        "Eligibility": { "Ineligible": true, "By": "alice@web1", "Reason": "broken fan",
            "At": "2026-11-25T09:00:00Z" },
        "Events": [{ "Timestamp": "2026-11-25T10:00:00Z", "Message": "Node suspended: flaky" }],
    });
    let loss =
        json!({ "Active": true, "Since": "2026-11-25T10:00:00Z", "StillDown": 3, "Count": 4 });
    let server = Canned::default()
        .on("GET /v1/nodes", &json!([suspended.clone()]))
        .on("GET /v1/operator/mass-loss", &loss)
        .on("PUT /v1/operator/mass-loss/confirm", &json!({}))
        .on(&format!("GET {path}"), &suspended)
        .on(&format!("GET {path}/allocations"), &json!([]))
        .on(&format!("PUT {path}/suspend"), &json!({}))
        .on(&format!("PUT {path}/unsuspend"), &json!({}))
        .on(&format!("PUT {path}/eligibility"), &json!({ "Warnings": "it is not registered" }))
        .start();
    let out = server.run("node status").out;
    assert!(out.starts_with("Mass loss since 2026-11-25T10:00:00Z: 3 of 4 nodes"), "{out}");
    assert!(out.contains("ineligible   flaky   suspended\n"), "{out}");
    let counts = "1 node: 1 ineligible, 1 short of resources, 1 suspended (flaky)\n";
    assert!(out.ends_with(counts), "{out}");
    let out = server.run(&format!("node status {NODE_B}")).out;
    assert!(out.contains("alice@web1 (unverified)"), "{out}");
    assert!(out.contains("2026-11-25T10:15:00Z"), "{out}");
    assert!(out.contains("the servers"), "whose word the suspension is: {out}");
    assert!(out.contains("Drain        no"), "{out}");
    assert!(out.contains("Short        refuses new work  disk: 3 MiB left"), "{out}");
    assert!(out.contains("Node suspended: flaky"), "{out}");

    assert_eq!(server.run(&format!("node suspend -reason fan -for 1h {NODE_B}")).code, 0);
    let body = server.request("PUT").body;
    assert!(
        body.contains("\"For\":3600000000000") && body.contains("\"Reason\":\"fan\""),
        "{body}"
    );
    assert_ne!(server.run(&format!("node suspend {NODE_B}")).code, 0, "a reason is required");
    assert_eq!(server.run(&format!("node unsuspend {NODE_B}")).code, 0);
    let ran = server.run(&format!("node offline -reason fan {NODE_B}"));
    assert_eq!(ran.err, "Warning: it is not registered\n");
    assert_eq!(ran.out, format!("Node \"{NODE_B}\" is now ineligible for scheduling\n"));
    assert_eq!(server.run("node confirm-loss").code, 0);
    let ran = Canned::default().start().run("node confirm-loss");
    assert_eq!((ran.code, &*ran.err), (1, "Error: there is no mass loss to confirm\n"));
}

#[test]
fn node_eligibility_and_drain() {
    let path = format!("/v1/node/{NODE_B}");
    let draining = json!({"ID": NODE_B, "Drain": true, "DrainStrategy": {}});
    let server = two_nodes()
        .on(&format!("PUT {path}/eligibility"), &json!({}))
        .on(&format!("PUT {path}/drain"), &json!({}))
        .on(&format!("GET {path}"), &draining)
        .on(&format!("GET {path}"), &json!({"ID": NODE_B, "Drain": false, "DrainStrategy": null}))
        .on(&format!("GET {path}/allocations"), &json!([allocation("running")]))
        .on(&format!("GET {path}/allocations"), &json!([allocation("complete")]))
        .start();
    let ran = server.run("node eligibility -disable agent-2");
    assert_eq!(ran.out, format!("Node \"{NODE_B}\" is now ineligible for scheduling\n"));
    assert!(server.request("PUT").body.contains("\"Eligibility\":\"ineligible\""));
    assert!(server.request("PUT").body.contains('@'), "the actor is user@host");
    let ran = server.run("node drain -enable -deadline 10m -ignore-system agent-2");
    assert_eq!(
        ran.out,
        format!(
            "Node \"{NODE_B}\" is draining\nAllocation \"aaaaaaaa\" is complete\nDraining of node \"{NODE_B}\" is complete\n"
        )
    );
    let body = server
        .seen
        .lock()
        .unwrap()
        .iter()
        .rfind(|seen| seen.line.contains("/drain"))
        .unwrap()
        .body
        .clone();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert!(body["Actor"].as_str().unwrap().contains('@'), "{body}");
    assert_eq!(
        body["DrainSpec"],
        json!({"Deadline": 600_000_000_000_u64, "IgnoreSystemJobs": true})
    );
    assert_eq!(server.run("node drain agent-2").code, 1);
    let asked = server.lines().len();
    for deadline in ["0s", "0h0ms"] {
        let ran = server.run(&format!("node drain -enable -detach -deadline {deadline} agent-2"));
        assert!(ran.code == 1 && ran.err.contains("-no-deadline"), "{}{}", ran.out, ran.err);
    }
    assert_eq!(server.lines().len(), asked, "{:?}", server.lines());
    assert_eq!(server.run("node drain -enable -disable agent-2").code, 1);
    assert_eq!(server.run("node eligibility agent-2").code, 1);
}

#[test]
fn servers_peers_and_evaluations() {
    let server = Canned::default()
        .on("GET /v1/agent/members", &json!({"Members": [{"Name": "server-1", "Addr": "127.0.0.1",
            "Port": 4648, "Status": "alive", "Tags": {"port": "4647", "dc": "dc1", "region": "global",
            "build": "0.1.0", "raft_vsn": "3"}}]}))
        .on("GET /v1/status/leader", &json!("127.0.0.1:4647"))
        .on("GET /v1/operator/raft/configuration", &json!({"Servers": [{"ID": "1", "Node": "server-1",
            "Address": "127.0.0.1:4647", "Leader": true, "Voter": true, "RaftProtocol": "3"}]}))
        .on("PUT /v1/operator/raft/transfer-leadership", &json!({}))
        .on("PUT /v1/system/gc", &json!(null))
        .on("GET /v1/evaluations", &json!([evaluation("complete")]))
        .start();
    assert_eq!(
        server.run("server members").out,
        "Name      Address    Port  Status  Leader  Raft Version  Build  Datacenter  Region
server-1  127.0.0.1  4647  alive   true    3             0.1.0  dc1         global\n"
    );
    assert_eq!(
        server.run("operator raft list-peers").out,
        "Node      ID  Address         State   Voter  RaftProtocol
server-1  1   127.0.0.1:4647  leader  true   3\n"
    );
    let ran = server.run("operator raft transfer-leadership -peer-address 127.0.0.1:4657");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(server.request("PUT").line.ends_with("?address=127.0.0.1%3A4657"));
    assert_eq!(server.run("operator raft transfer-leadership").code, 1);
    assert_eq!(server.run("system gc").code, 0);
    let ran = server.run("eval list -status complete");
    assert!(ran.out.contains("eeeeeeee  0         job-register  web"), "{}", ran.out);
    assert_eq!(server.lines().last().unwrap(), "GET /v1/evaluations?status=complete");
}

/// Workers belong to one server: its own address is asked, and what no flag names is not sent.
#[test]
fn workers_of_a_named_server_are_set_at_its_address() {
    let config = json!({"server_id": "2", "num_schedulers": 0, "enabled_schedulers": ["batch"]});
    let workers = json!({"server_id": "2", "schedulers": [{"id": "0", "status": "paused",
        "workload_status": "paused", "started": "2026-11-25T19:00:00Z", "enabled_schedulers": ["batch"]}]});
    let second = Canned::default()
        .on("GET /v1/agent/schedulers/config", &config)
        .on("PUT /v1/agent/schedulers/config", &config)
        .on("GET /v1/agent/schedulers", &workers)
        .start();
    let members = json!({"Members": [{"Name": "server-2",
        "Tags": {"http_addr": second.address.trim_start_matches("http://")}}]});
    let first = Canned::default().on("GET /v1/agent/members", &members).start();
    let ran = first.run("operator scheduler workers -num 0 -kinds batch,_core -server server-2");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let sent: Value = serde_json::from_str(&second.request("PUT").body).unwrap();
    assert_eq!(sent, json!({"num_schedulers": 0, "enabled_schedulers": ["batch", "_core"]}));
    let expected = format!(
        "Server  = {}\nWorkers = 0\nKinds   = batch\n\n\
         ID  Status  Workload  Since\n0   paused  paused    2026-11-25T19:00:00Z\n",
        second.address
    );
    assert_eq!(ran.out, expected);
    assert_eq!(second.run("operator scheduler workers").out, expected);
    assert_eq!(second.lines().iter().filter(|line| line.starts_with("PUT")).count(), 1);
    let ran = first.run("operator scheduler workers -server other");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("no server is called \"other\"; there are: server-2"), "{}", ran.err);
}

#[test]
fn a_page_of_evaluations_says_how_to_get_the_next() {
    let server = Canned::default()
        .on("GET /v1/evaluations", &json!([evaluation("complete")]))
        .followed_by("GET /v1/evaluations", "7.eeeeeeee")
        .start();
    for style in ["", " -json"] {
        let ran = server.run(&format!("eval list -per-page 1{style}"));
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(!ran.out.contains("There are more"), "{}", ran.out);
        assert_eq!(ran.err, "\nThere are more: repeat the command with -page-token=7.eeeeeeee\n");
    }
    server.run("eval list -page-token=7.eeeeeeee");
    assert_eq!(server.lines().last().unwrap(), "GET /v1/evaluations?next_token=7.eeeeeeee");
}

#[test]
fn help_and_usage() {
    let help = run("-help", &|_| None);
    assert_eq!(help.code, 0);
    assert!(help.out.contains("Examples:") && help.out.contains("quorate up"), "{}", help.out);
    assert!(!help.out.contains("executor") && !help.out.contains("demo-web"), "{}", help.out);
    for noun in
        ["job run", "job status", "node drain", "alloc logs", "eval list", "server", "agent", "up"]
    {
        let ran = run(&format!("{noun} --help"), &|_| None);
        assert!(ran.code == 0 && ran.out.contains("Examples:"), "{noun}: {}{}", ran.out, ran.err);
    }
    let ran = run("job stats", &|_| None);
    assert_eq!(ran.code, 1);
    assert!(ran.err.starts_with("Error: unrecognized subcommand 'stats'"), "{}", ran.err);
    let first = format!("Quorate v{}\n", ground::version::QUORATE);
    assert_eq!(run("-version", &|_| None).out, first);
    // Of a test nobody says what it was built of.
    let rest = format!(
        "Commit     = unknown\nBuild Date = unknown\nGeneration = {}\nSpeaks     = Nomad {}\n",
        fsm::GENERATION,
        ground::version::NOMAD
    );
    assert_eq!(run("version", &|_| None).out, first + &rest);
    let shown: Value = serde_json::from_str(&run("version -json", &|_| None).out).unwrap();
    assert_eq!(shown["Generation"], json!(fsm::GENERATION));
    assert_eq!(shown["Commit"], Value::Null);
    assert_eq!(run("up --servers 4", &|_| None).code, 1);
}

#[test]
fn commands_that_ask_no_server_ignore_its_address() {
    let ran = run("version", &|_| Some("unix:///run/api.sock".to_owned()));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = run("job status", &|_| Some("unix:///run/api.sock".to_owned()));
    assert!(ran.err.contains("the address unix:///run/api.sock cannot be used"), "{}", ran.err);
}

#[test]
fn examples_are_hcl_of_every_job_type() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut types = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "hcl") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let body: Value = hcl::from_str(&source).unwrap();
        if body.get("pool").is_some() {
            jobspec::parse_pool(&path.display().to_string(), &source).unwrap();
            continue;
        }
        let (_, job) = body["job"].as_object().unwrap().iter().next().unwrap();
        types.push(job["type"].as_str().unwrap().to_owned());
    }
    types.sort();
    assert_eq!(types, ["batch", "batch", "batch", "service", "service", "sysbatch", "system"]);
}

#[test]
fn a_page_that_is_not_ours_is_explained() {
    let server = Canned::default().fail("GET /v1/jobs", 200, "<html>").start();
    let ran = server.run("job status");
    assert!(ran.err.contains("Is that the HTTP address of a Quorate server?"), "{}", ran.err);
}

/// Nomad's flags of the scheduler's settings; without any there is nothing to do.
#[test]
fn settings_of_the_scheduler_are_changed_by_flags() {
    let path = "/v1/operator/scheduler/configuration";
    let shown = json!({ "ModifyIndex": 7, "SchedulerConfig": { "SchedulerAlgorithm": "binpack",
        "PreemptionConfig": { "SystemSchedulerEnabled": true, "ServiceSchedulerEnabled": false } } });
    let server = Canned::default()
        .on(&format!("GET {path}"), &shown)
        .on(&format!("PUT {path}"), &json!({ "Updated": true }))
        .start();
    let ran = server.run("operator scheduler set-config");
    assert!(ran.code == 1 && ran.err.contains("name a setting to change"), "{}", ran.err);
    let ran = server.run(
        "operator scheduler set-config -scheduler-algorithm=spread -preempt-service-scheduler=true",
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body["SchedulerAlgorithm"], "spread");
    let preemption = json!({ "SystemSchedulerEnabled": true, "ServiceSchedulerEnabled": true });
    assert_eq!(body["PreemptionConfig"], preemption);
}
