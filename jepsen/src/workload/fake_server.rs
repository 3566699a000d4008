//! Test only: a small server with jobs, evaluations, nodes and allocations, and bugs on demand.
//!
//! Two addresses serve one state. Some connections break off before or after the work. A bug strikes by
//! counting the events it is about, and each strike is counted, so that a test can wait until there were
//! enough of them: nothing depends on the speed of the machine.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Target;

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// The second address answers reads from a copy that is refreshed now and then.
    StaleReads,
    /// Some registrations are acknowledged and not kept.
    LostWrites,
    /// The version is compared before the lock is taken.
    BlindCas,
    /// Some registrations are kept although the answer says that nothing was done.
    FalseFailures,
    /// Some lists show a row twice.
    DoubledRows,
    /// Some changes of a node's eligibility are acknowledged and not kept.
    LostMarks,
    /// Some jobs by themselves are shown as they were.
    KeptBodies,
    /// Some evaluations are acknowledged and not kept.
    LostEvaluations,
    /// Some evaluations are made twice.
    DoubledEvaluations,
    /// Some evaluations are never processed.
    StuckEvaluations,
    /// Some versions are left out.
    SkippedVersions,
    /// An unchanged registration makes a version.
    NeedlessVersions,
    /// A job that was purged goes on where it was.
    UnforgottenVersions,
    /// What is placed need not fit.
    Overcommit,
    /// Ports are given out twice.
    SharedPorts,
    /// Some names are placed twice.
    DoubledNames,
    /// Some allocations that were stopped run again.
    Comeback,
    /// Jobs get one allocation less than they ask for.
    Stingy,
    /// Some blocking queries sleep to their end, whatever happens.
    DeafWatchers,
    /// Some blocking queries are answered at once, without news.
    HastyWatchers,
    /// Some lists claim an index that they do not show.
    HastyHeaders,
    /// Some answers claim an index below that of their body.
    LateHeaders,
    /// Some lists leave the first row out.
    MissingRows,
    /// Some stale reads are answered from an old copy.
    UnsteadyStaleReads,
    /// Answers do not tell the contact with the leader.
    NoContact,
    /// Idempotency keys are not looked at.
    ForgottenKeys,
    /// Some lists show other namespaces too.
    OpenNamespaces,
    /// The first row of some pages is left out.
    TornPages,
    /// Behind a row that has gone meanwhile the list ends.
    LostPages,
}

#[derive(Clone)]
struct Job {
    meta: Value,
    spec: Value,
    version: u64,
    stop: bool,
    create: u64,
    modify: u64,
    /// Newest first.
    versions: Vec<Value>,
}

#[derive(Clone)]
struct Allocation {
    id: u64,
    job: String,
    index: u64,
    node: usize,
    version: u64,
    running: bool,
    cpu: u64,
    memory: u64,
    ports: Vec<(String, u64)>,
    create: u64,
    modify: u64,
}

#[derive(Clone, Default)]
struct State {
    jobs: BTreeMap<String, Job>,
    purged: BTreeMap<String, u64>,
    evaluations: Vec<Value>,
    allocations: Vec<Allocation>,
    next_allocation: u64,
    drained: [bool; NODES],
    ineligible: [bool; NODES],
    index: u64,
}

#[derive(Default)]
struct Server {
    state: State,
    copy: State,
    /// By idempotency key.
    answers: BTreeMap<String, Answer>,
    requests: u64,
    events: u64,
    strikes: u64,
}

const NODES: usize = 3;
/// Ended allocations that are still listed.
const ENDED_MAX: usize = 40;
const CPU_MHZ: u64 = 1_000;
const MEMORY_MB: u64 = 1_000;

/// A running server.
pub(crate) struct FakeServer {
    /// Its two addresses.
    pub(crate) targets: Vec<Target>,
    server: Arc<Mutex<Server>>,
}

impl FakeServer {
    /// Starts a server with this bug.
    pub(crate) fn start(bug: Bug) -> Self {
        let server = Arc::new(Mutex::new(Server::default()));
        server.lock().unwrap().state.index = 1;
        let targets = (0..2)
            .map(|number| {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let http = listener.local_addr().unwrap();
                let server = Arc::clone(&server);
                std::thread::spawn(move || {
                    for socket in listener.incoming() {
                        let (socket, server) = (socket.unwrap(), Arc::clone(&server));
                        std::thread::spawn(move || converse(&socket, number, &server, bug));
                    }
                });
                Target { name: format!("n{}", number + 1), http }
            })
            .collect();
        Self { targets, server }
    }

    /// How often the bug made a difference.
    pub(crate) fn strikes(&self) -> u64 {
        self.server.lock().unwrap().strikes
    }
}

type Answer = (u16, String);

fn converse(socket: &TcpStream, number: usize, server: &Mutex<Server>, bug: Bug) -> Option<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let (method, path) = line.split_once(' ')?;
        let (method, path) = (method.to_owned(), path.split(' ').next()?.to_owned());
        let mut length = 0;
        let mut key = None;
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let (name, value) = line.split_once(':').unwrap_or(("", ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
            if name.eq_ignore_ascii_case("idempotency-key") {
                key = Some(value.trim().to_owned());
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (index, (status, answer)) = if method == "GET" {
            look(&path, number, server, bug)
        } else {
            if line_breaks(server) {
                return None;
            }
            let answer = write_once(&method, &path, &body, key, server, bug);
            if line_breaks(server) {
                return None;
            }
            (0, answer)
        };
        let (answer, token) = page(&path, answer, server, bug);
        let mut writer = socket;
        let contact = if bug == Bug::NoContact {
            server.lock().unwrap().strikes += 1;
            ""
        } else {
            "x-nomad-lastcontact: 0\r\nx-nomad-knownleader: true\r\n"
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\nx-nomad-index: {index}\r\n{contact}{token}content-length: {}\r\n\r\n",
            answer.len()
        );
        writer.write_all((head + &answer).as_bytes()).ok()?;
    }
}

/// The page that was asked for, and the header that tells of the next one.
fn page(path: &str, body: String, server: &Mutex<Server>, bug: Bug) -> (String, String) {
    let rows: Value = serde_json::from_str(&body).unwrap_or_default();
    let (Some(count), Value::Array(mut rows)) = (parameter(path, "per_page"), rows) else {
        return (body, String::new());
    };
    if path.contains("reverse=true") {
        rows.reverse();
    }
    let token = path.rsplit_once("next_token=").map_or("", |(_, token)| token);
    let first = if token.is_empty() {
        0
    } else {
        let id = |row: &Value| row["ID"].as_str().unwrap_or_default().to_owned();
        let is_there = rows.iter().any(|row| id(row) == token);
        let reverse = path.contains("reverse=true");
        let before = |row: &Value| if reverse { *id(row) > *token } else { *id(row) < *token };
        if !is_there && server.lock().unwrap().strike_of(bug, &[Bug::LostPages]) {
            rows.len()
        } else {
            rows.partition_point(before)
        }
    };
    let torn = first > 0 && server.lock().unwrap().strike_of(bug, &[Bug::TornPages]);
    let mut rows = rows.split_off(first + usize::from(torn && first < rows.len()));
    let rest = rows.split_off(rows.len().min(usize::try_from(count).unwrap()));
    let token = rest.first().and_then(|row| row["ID"].as_str());
    let header = token.map(|token| format!("x-nomad-nexttoken: {token}\r\n"));
    (Value::Array(rows).to_string(), header.unwrap_or_default())
}

/// Answers a read; one that asks for an index waits until it is exceeded, or for its time.
fn look(path: &str, number: usize, server: &Mutex<Server>, bug: Bug) -> (u64, Answer) {
    let Some(seen) = parameter(path, "index") else { return read(path, number, server, bug) };
    let wait = parameter(path, "wait").unwrap_or(1_000);
    let end = Instant::now() + Duration::from_millis(wait);
    let deaf = server.lock().unwrap().strike_of(bug, &[Bug::DeafWatchers]);
    let mut hasty = None;
    loop {
        let (index, answer) = read(path, number, server, bug);
        if Instant::now() >= end || (index > seen && !deaf) {
            return (index, answer);
        }
        // What waits has to wait; whether it does is decided once.
        let strike = || server.lock().unwrap().strike_of(bug, &[Bug::HastyWatchers]);
        if *hasty.get_or_insert_with(strike) {
            return (index, answer);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number that a query gives this parameter, whatever its unit.
fn parameter(path: &str, name: &str) -> Option<u64> {
    let (_, query) = path.split_once('?')?;
    let value = query.split('&').find_map(|one| one.strip_prefix(name)?.strip_prefix('='))?;
    value.trim_end_matches("ms").parse().ok()
}

/// One request in 23 sees its connection broken.
fn line_breaks(server: &Mutex<Server>) -> bool {
    let mut server = server.lock().unwrap();
    server.requests += 1;
    server.requests.is_multiple_of(23)
}

fn read(path: &str, number: usize, server: &Mutex<Server>, bug: Bug) -> (u64, Answer) {
    let mut server = server.lock().unwrap();
    server.requests += 1;
    if server.requests.is_multiple_of(40) {
        server.copy = server.state.clone();
    }
    let stale = bug == Bug::StaleReads && number == 1;
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let fresh = show(&server.state, path, query);
    if stale {
        let old = show(&server.copy, path, query);
        server.strikes += u64::from(old != fresh);
        return (index_of(&server.copy, path, query), old);
    }
    let index = index_of(&server.state, path, query);
    let is_list = path == "/v1/jobs";
    let is_stale = query.split('&').any(|one| one == "stale=true");
    if is_list && !query.starts_with("namespace=*") && server.strike_of(bug, &[Bug::OpenNamespaces])
    {
        return (index, show(&server.state, path, &format!("namespace=*&{query}")));
    }
    let old = show(&server.copy, path, query);
    if path.starts_with("/v1/job/")
        && old.0 == 200
        && old != fresh
        && server.strike_of(bug, &[Bug::KeptBodies])
    {
        return (index, old);
    }
    if is_stale && server.strike_of(bug, &[Bug::UnsteadyStaleReads]) {
        return (index_of(&server.copy, path, query), show(&server.copy, path, query));
    }
    if server.strike_of(bug, &[Bug::LateHeaders]) {
        return (index - 1, fresh);
    }
    if is_list && server.strike_of(bug, &[Bug::HastyHeaders]) {
        return (index + 3, fresh);
    }
    if is_list
        && let Ok(Value::Array(mut rows)) = serde_json::from_str(&fresh.1)
        && !rows.is_empty()
        && server.strike_of(bug, &[Bug::MissingRows])
    {
        rows.remove(0);
        return (index, (200, Value::Array(rows).to_string()));
    }
    if bug == Bug::DoubledRows
        && fresh.0 == 200
        && let Ok(Value::Array(mut rows)) = serde_json::from_str(&fresh.1)
        && let Some(last) = rows.last().cloned()
    {
        server.events += 1;
        if server.events.is_multiple_of(10) {
            server.strikes += 1;
            rows.push(last);
        }
        return (index, (200, Value::Array(rows).to_string()));
    }
    (index, fresh)
}

/// The index that an answer says it was read at: that of a job, or of everything.
fn index_of(state: &State, path: &str, query: &str) -> u64 {
    let mut parts = path.trim_start_matches("/v1/").split('/');
    let job = (parts.next() == Some("job")).then(|| parts.next()).flatten();
    let has_index_of_job = matches!(parts.next(), None | Some("versions"));
    let job = job.filter(|_| has_index_of_job).and_then(|id| state.jobs.get(&key_of(id, query)));
    job.map_or(state.index, |job| job.modify)
}

fn show(state: &State, path: &str, query: &str) -> Answer {
    let found = |value: Value| (200, value.to_string());
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
    match parts.as_slice() {
        ["jobs"] => {
            let prefix = query.split('&').find_map(|one| one.strip_prefix("prefix="));
            let prefix = prefix.unwrap_or("");
            let everywhere = query.starts_with("namespace=*");
            let rows = state.jobs.iter().filter(|(key, _)| {
                let (namespace, id) = key.split_once('/').unwrap_or(("default", key));
                id.starts_with(prefix) && (everywhere || namespace == "default")
            });
            found(rows.map(|(id, job)| job_view(id, job)).collect())
        }
        ["job", id] => match state.jobs.get(&key_of(id, query)) {
            Some(job) => found(job_view(&key_of(id, query), job)),
            None => (404, "job not found".to_owned()),
        },
        ["job", id, "versions"] => match state.jobs.get(&key_of(id, query)) {
            Some(job) => {
                let mut versions = job.versions.clone();
                versions[0] = job_view(&key_of(id, query), job);
                found(json!({"Versions": versions}))
            }
            None => (404, "job versions not found".to_owned()),
        },
        ["job", id, "evaluations"] => {
            let rows = state.evaluations.iter().filter(|row| row["JobID"] == *id);
            found(rows.cloned().collect())
        }
        ["evaluations"] => found(json!(state.evaluations)),
        ["nodes"] => found((0..NODES).map(|node| node_view(state, node)).collect()),
        ["allocations"] => found(state.allocations.iter().map(allocation_view).collect()),
        _ => (404, format!("unknown path {path}")),
    }
}

/// The key of a job: its id, with its namespace before it if that is not the default one.
fn key_of(id: &str, query: &str) -> String {
    let namespace = query.split('&').find_map(|one| one.strip_prefix("namespace="));
    match namespace.unwrap_or("default") {
        "default" => id.to_owned(),
        other => format!("{other}/{id}"),
    }
}

fn job_view(key: &str, job: &Job) -> Value {
    let (namespace, id) = key.split_once('/').unwrap_or(("default", key));
    json!({
        "ID": id,
        "Namespace": namespace,
        "Meta": job.meta,
        "Version": job.version,
        "Stop": job.stop,
        "Status": if job.stop { "dead" } else { "running" },
        "CreateIndex": job.create,
        "ModifyIndex": job.modify,
        "JobModifyIndex": job.modify,
    })
}

fn node_view(state: &State, node: usize) -> Value {
    json!({
        "ID": format!("node-{node}"),
        "Status": "ready",
        "Drain": state.drained[node],
        "SchedulingEligibility": if state.ineligible[node] { "ineligible" } else { "eligible" },
        "NodeResources": {
            "Cpu": {"CpuShares": CPU_MHZ},
            "Memory": {"MemoryMB": MEMORY_MB},
            "MinDynamicPort": 20_000,
            "MaxDynamicPort": 20_999,
        },
        "ReservedResources": {"Cpu": {"CpuShares": 0}, "Memory": {"MemoryMB": 0}},
    })
}

fn allocation_view(allocation: &Allocation) -> Value {
    let ports = |wanted: bool| -> Value {
        let ports = allocation.ports.iter().filter(|(label, _)| (label == "static") == wanted);
        ports.map(|(label, value)| json!({"Label": label, "Value": value})).collect()
    };
    json!({
        "ID": format!("allocation-{}", allocation.id),
        "Name": format!("{}.group[{}]", allocation.job, allocation.index),
        "JobID": allocation.job,
        "NodeID": format!("node-{}", allocation.node),
        "DesiredStatus": if allocation.running { "run" } else { "stop" },
        "ClientStatus": if allocation.running { "running" } else { "complete" },
        "JobVersion": allocation.version,
        "NextAllocation": "",
        "CreateIndex": allocation.create,
        "ModifyIndex": allocation.modify,
        "AllocatedResources": {
            "Tasks": {"task": {
                "Cpu": {"CpuShares": allocation.cpu},
                "Memory": {"MemoryMB": allocation.memory},
            }},
            "Shared": {"Networks": [
                {"ReservedPorts": ports(true), "DynamicPorts": ports(false)},
            ]},
        },
    })
}

/// A write under a key that was used gets the answer that it had then.
fn write_once(
    method: &str,
    path: &str,
    body: &Value,
    key: Option<String>,
    server: &Mutex<Server>,
    bug: Bug,
) -> Answer {
    let Some(key) = key else { return write(method, path, body, server, bug) };
    let before = server.lock().unwrap().answers.get(&key).cloned();
    if let Some(answer) = before {
        if bug != Bug::ForgottenKeys {
            return answer;
        }
        server.lock().unwrap().strikes += 1;
    }
    let answer = write(method, path, body, server, bug);
    server.lock().unwrap().answers.insert(key, answer.clone());
    answer
}

fn write(method: &str, path: &str, body: &Value, server: &Mutex<Server>, bug: Bug) -> Answer {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
    match (method, parts.as_slice()) {
        ("PUT", ["jobs"]) => register(body, server, bug),
        ("PUT", ["namespace"]) => (200, "{}".to_owned()),
        ("PUT", ["job", id, "evaluate"]) => {
            let mut server = server.lock().unwrap();
            if !server.state.jobs.contains_key(*id) {
                return (404, "job not found".to_owned());
            }
            server.state.index += 1;
            let id = server.evaluate(id, bug);
            (200, json!({"EvalID": id, "JobModifyIndex": 1}).to_string())
        }
        ("DELETE", ["job", id]) => {
            let key = key_of(id, query);
            server.lock().unwrap().deregister(&key, query.ends_with("purge=true"), bug)
        }
        ("PUT", ["node", id, "drain"]) => {
            let node: usize = id.trim_start_matches("node-").parse().unwrap();
            let mut server = server.lock().unwrap();
            server.state.index += 1;
            server.state.drained[node] = !body["DrainSpec"].is_null();
            server.state.ineligible[node] = server.state.drained[node];
            server.schedule_all(bug);
            (200, "{}".to_owned())
        }
        ("PUT", ["node", id, "eligibility"]) => {
            let node: usize = id.trim_start_matches("node-").parse().unwrap();
            let mut server = server.lock().unwrap();
            if !server.strike_of(bug, &[Bug::LostMarks]) {
                server.state.index += 1;
                server.state.ineligible[node] = body["Eligibility"] == "ineligible";
            }
            (200, "{}".to_owned())
        }
        _ => (404, format!("unknown path {path}")),
    }
}

fn register(body: &Value, server: &Mutex<Server>, bug: Bug) -> Answer {
    let namespace = body["Job"]["Namespace"].as_str().unwrap_or("default");
    let query = format!("namespace={namespace}");
    let id = key_of(body["Job"]["ID"].as_str().unwrap(), &query);
    let enforced = body["EnforceIndex"].as_bool().unwrap_or(false);
    let stored = |server: &Server| server.state.jobs.get(&id).map_or(0, |job| job.modify);
    let early = stored(&server.lock().unwrap());
    if bug == Bug::BlindCas {
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut server = server.lock().unwrap();
    let version = if bug == Bug::BlindCas { early } else { stored(&server) };
    if enforced && body["JobModifyIndex"] != version {
        let text = format!(
            "Enforcing job modify index {}: job exists with conflicting job modify index: {version}",
            body["JobModifyIndex"]
        );
        return (500, text);
    }
    server.strikes += u64::from(enforced && version != stored(&server));
    server.state.index += 3;
    let index = server.state.index;
    let odd = server.strike_of(bug, &[Bug::LostWrites, Bug::FalseFailures]);
    let lost = odd && bug == Bug::LostWrites;
    let mut modify = index;
    if !lost {
        modify = server.store(&id, &body["Job"], bug);
    }
    let evaluation = if body["Job"]["ParameterizedJob"].is_null() && !lost {
        server.schedule(&id, bug);
        server.evaluate(&id, bug)
    } else {
        String::new()
    };
    if odd && bug == Bug::FalseFailures {
        return (500, "No cluster leader: the write was not proposed".to_owned());
    }
    (200, json!({"EvalID": evaluation, "JobModifyIndex": modify}).to_string())
}

impl Server {
    /// Whether the bug, if it is one of these, strikes at this event: every tenth time, or each time if
    /// such events are rare.
    fn strike_of(&mut self, bug: Bug, about: &[Bug]) -> bool {
        if !about.contains(&bug) {
            return false;
        }
        self.events += 1;
        let is_rare = matches!(bug, Bug::LostPages | Bug::HastyWatchers);
        let strikes = is_rare || self.events.is_multiple_of(10);
        self.strikes += u64::from(strikes);
        strikes
    }

    /// Stores a job; its index.
    fn store(&mut self, id: &str, spec: &Value, bug: Bug) -> u64 {
        let index = self.state.index;
        let old = self.state.jobs.get(id).cloned();
        let same = old.as_ref().is_some_and(|old| !old.stop && old.spec == *spec);
        if same && matches!(bug, Bug::NeedlessVersions | Bug::ForgottenKeys) {
            self.strikes += 1;
        } else if same {
            return old.map_or(0, |old| old.modify);
        }
        let mut version = old.as_ref().map_or(0, |old| old.version + 1);
        if old.is_some() && self.strike_of(bug, &[Bug::SkippedVersions]) {
            version += 1;
        }
        if old.is_none()
            && bug == Bug::UnforgottenVersions
            && let Some(last) = self.state.purged.get(id)
        {
            version = last + 1;
            self.strikes += 1;
        }
        let create = old.as_ref().map_or(index, |old| old.create);
        let mut job = Job {
            meta: spec["Meta"].clone(),
            spec: spec.clone(),
            version,
            stop: false,
            create,
            modify: index,
            versions: old.map(|old| old.versions).unwrap_or_default(),
        };
        job.versions.insert(0, job_view(id, &job));
        job.versions.truncate(6);
        self.state.jobs.insert(id.to_owned(), job);
        index
    }

    fn deregister(&mut self, id: &str, purge: bool, bug: Bug) -> Answer {
        self.state.index += 1;
        let index = self.state.index;
        let Some(job) = self.state.jobs.get_mut(id) else {
            return (200, json!({"EvalID": "", "JobModifyIndex": 0}).to_string());
        };
        if !job.stop {
            job.version += 1;
            job.stop = true;
            let version = job_view(id, job);
            job.versions.insert(0, version);
            job.versions.truncate(6);
        }
        job.modify = index;
        let version = job.version;
        self.schedule(id, bug);
        if purge {
            self.state.jobs.remove(id);
            self.state.purged.insert(id.to_owned(), version);
        }
        (200, json!({"EvalID": "", "JobModifyIndex": index}).to_string())
    }

    /// Makes an evaluation, processed at once.
    fn evaluate(&mut self, job: &str, bug: Bug) -> String {
        let about = [Bug::LostEvaluations, Bug::DoubledEvaluations, Bug::StuckEvaluations];
        let odd = self.strike_of(bug, &about);
        let id = format!("evaluation-{}", self.state.index);
        let row = json!({
            "ID": id,
            "JobID": job,
            "TriggeredBy": "job-register",
            "Status": if odd && bug == Bug::StuckEvaluations { "pending" } else { "complete" },
            "ModifyIndex": self.state.index,
        });
        if !(odd && bug == Bug::LostEvaluations) {
            self.state.evaluations.push(row.clone());
        }
        if odd && bug == Bug::DoubledEvaluations {
            let mut twin = row;
            twin["ID"] = format!("{id}-again").into();
            self.state.evaluations.push(twin);
        }
        id
    }

    fn schedule_all(&mut self, bug: Bug) {
        let jobs: Vec<String> = self.state.jobs.keys().cloned().collect();
        for id in &jobs {
            self.schedule(id, bug);
        }
    }

    /// Stops what a job does not want any more or wants in a newer version, and places what is missing.
    fn schedule(&mut self, id: &str, bug: Bug) {
        let Some(job) = self.state.jobs.get(id).cloned() else { return };
        let group = &job.spec["TaskGroups"][0];
        if group["Tasks"][0]["Driver"] != "mock" || job.spec["Type"] != "service" {
            return;
        }
        let mut count = if job.stop { 0 } else { group["Count"].as_u64().unwrap() };
        if bug == Bug::Stingy && count > 0 {
            count -= 1;
            self.strikes += 1;
        }
        let (index, drained) = (self.state.index, self.state.drained);
        for allocation in self.state.allocations.iter_mut().filter(|found| found.job == id) {
            let wanted = allocation.index < count && !drained[allocation.node];
            let is_newest = allocation.version == job.version;
            if allocation.running && !(wanted && is_newest) {
                allocation.running = false;
                allocation.modify = index;
            }
        }
        for name in 0..count {
            let has = |found: &Allocation| found.running && found.job == id && found.index == name;
            let placed = self.state.allocations.iter().any(has);
            if placed && !self.strike_of(bug, &[Bug::DoubledNames]) {
                continue;
            }
            self.place(id, name, &job, bug);
        }
        self.forget_old();
        let old = |found: &Allocation| !found.running && found.job == id;
        if self.state.allocations.iter().any(old) && self.strike_of(bug, &[Bug::Comeback]) {
            let again = self.state.allocations.iter_mut().rev().find(|found| old(found)).unwrap();
            (again.running, again.modify) = (true, index);
        }
    }

    /// Of the allocations that have ended only the newest are kept.
    fn forget_old(&mut self) {
        let ended = self.state.allocations.iter().filter(|found| !found.running).count();
        let mut surplus = ended.saturating_sub(ENDED_MAX);
        self.state.allocations.retain(|found| {
            let forget = !found.running && surplus > 0;
            surplus -= usize::from(forget);
            !forget
        });
    }

    fn place(&mut self, id: &str, name: u64, job: &Job, bug: Bug) {
        let group = &job.spec["TaskGroups"][0];
        let resources = &group["Tasks"][0]["Resources"];
        let (cpu, memory) =
            (resources["CPU"].as_u64().unwrap(), resources["MemoryMB"].as_u64().unwrap());
        let fixed = group["Networks"][0]["ReservedPorts"][0]["Value"].as_u64();
        for node in 0..NODES {
            let here = self.state.allocations.iter();
            let here: Vec<&Allocation> =
                here.filter(|found| found.running && found.node == node).collect();
            let used = |of: fn(&Allocation) -> u64| here.iter().map(|found| of(found)).sum::<u64>();
            let fits = used(|found| found.cpu) + cpu <= CPU_MHZ
                && used(|found| found.memory) + memory <= MEMORY_MB;
            let taken = |port: u64| here.iter().any(|f| f.ports.iter().any(|(_, p)| *p == port));
            let clash = fixed.is_some_and(taken);
            if self.state.ineligible[node]
                || (!fits && bug != Bug::Overcommit)
                || (clash && bug != Bug::SharedPorts)
            {
                continue;
            }
            let dynamic = (20_000..20_999).find(|port| !taken(*port)).unwrap();
            self.strikes += u64::from(!fits || clash);
            let mut ports = vec![("dynamic".to_owned(), dynamic)];
            ports.extend(fixed.map(|port| ("static".to_owned(), port)));
            let allocation = Allocation {
                id: self.state.next_allocation,
                job: id.to_owned(),
                index: name,
                node,
                version: job.version,
                running: true,
                cpu,
                memory,
                ports,
                create: self.state.index,
                modify: self.state.index,
            };
            self.state.allocations.push(allocation);
            self.state.next_allocation += 1;
            return;
        }
    }
}
