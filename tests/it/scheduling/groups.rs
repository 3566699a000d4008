//! Capacity groups: machines follow what balancers say they need, whatever happens to balancers,
//! members and the leader meanwhile. The members are real agents, counted as processes.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use launch::Settings;
use serde_json::{Value, json};

use super::{Options, Stage};
use crate::{
    harness::{Client, Cluster, PATIENCE, wait_for, wait_until},
    recompute::{list_of, text},
};

const UNIT: u64 = 4_096;
const PORT: u16 = 8_080;
/// Between two words of a balancer.
const SPEAKS: Duration = Duration::from_millis(200);

fn options() -> Options {
    Options::new(3)
        .with("elastic.list_interval_ms", 1_000)
        .with("elastic.probe_interval_ms", 500)
        .with("elastic.destroy_retry_ms", 500)
        .with("log_level", "\"debug\"")
}

/// Three servers with a provider, and a group `web` of at most four members.
fn stage(group: &Value) -> Stage {
    let stage = Stage::of(options().with_machines());
    stage.declare(PORT, group);
    stage
}

/// A balancer: it says what it needs several times a second, to any server that answers.
struct Balancer {
    /// None: it is silent.
    needs: Arc<Mutex<Option<u64>>>,
    /// Words that were taken.
    taken: Arc<Mutex<u64>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Balancer {
    fn start(cluster: &Cluster, source: &str, amount: u64) -> Self {
        let clients: Vec<Client> =
            cluster.all().iter().map(|server| cluster.client(*server)).collect();
        let (needs, taken) = (Arc::new(Mutex::new(Some(amount))), Arc::new(Mutex::new(0)));
        let ends = Arc::new(AtomicBool::new(false));
        let (source, of) = (source.to_owned(), (needs.clone(), taken.clone(), ends.clone()));
        let thread = thread::spawn(move || {
            let (needs, taken, ends) = of;
            let mut seq = 0_u64;
            while !ends.load(Ordering::Relaxed) {
                let amount = *needs.lock().unwrap();
                if let Some(amount) = amount {
                    seq += 1;
                    let groups = json!([{ "Group": "web", "Amount": amount }]);
                    let body =
                        json!({ "Source": source, "Epoch": 1, "Seq": seq, "Groups": groups });
                    let path = "/v1/capacity/requirements";
                    let answered =
                        clients.iter().find_map(|client| client.try_put(path, &body).ok());
                    *taken.lock().unwrap() +=
                        u64::from(answered.is_some_and(|answer| answer.status == 200));
                }
                thread::sleep(SPEAKS);
            }
        });
        Self { needs, taken, ends, thread: Some(thread) }
    }

    fn need(&self, amount: u64) {
        *self.needs.lock().unwrap() = Some(amount);
    }

    fn fall_silent(&self) {
        *self.needs.lock().unwrap() = None;
    }

    fn await_taken(&self, words: u64) {
        let before = *self.taken.lock().unwrap();
        wait_until(&format!("{words} more words are taken"), PATIENCE, || {
            *self.taken.lock().unwrap() >= before + words
        });
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Stage {
    /// Declares the group `web` in the pool `burst`, with these settings beside the usual ones.
    fn declare(&self, port: u16, group: &Value) {
        self.declare_in("burst", port, group);
    }

    /// The same in any pool.
    pub(super) fn declare_in(&self, pool: &str, port: u16, group: &Value) {
        let mut web = json!({
            "Name": "web", "Unit": UNIT, "Max": 4, "MemberPort": port,
            "DrainMs": 1_000, "CooldownDownMs": 500, "RequirementTTLms": 3_000,
        });
        for (name, value) in group.as_object().unwrap() {
            web[name] = value.clone();
        }
        let kind = json!({
            "Name": "node", "CPU": 500, "MemoryMB": UNIT,
            "Node": { "Datacenter": "dc1", "Drivers": ["raw_exec"] },
        });
        let body = json!({
            "Provider": "local", "Max": 8, "IdleTimeoutMs": 500, "Types": [kind], "Capacity": [web],
        });
        self.client.put(&format!("/v1/instance-pool/{pool}"), &body).ok();
    }

    fn group(&self) -> Value {
        self.client.get("/v1/capacity/web").ok()
    }

    /// The ids of the members that serve, oldest first.
    fn serving(&self) -> Vec<String> {
        let members = list_of(self.client.get("/v1/capacity/web/members").ok());
        members.iter().map(|row| text(row, "Instance").to_owned()).collect()
    }

    fn all_instances(&self) -> BTreeMap<String, Value> {
        let rows = list_of(self.client.get("/v1/instances").ok());
        rows.into_iter().map(|row| (text(&row, "ID").to_owned(), row)).collect()
    }

    fn explained(&self) -> String {
        self.client.get("/v1/capacity/web/explain").ok()["Sentences"].to_string()
    }

    #[track_caller]
    fn await_serving(&self, count: usize) -> Vec<String> {
        wait_for(&format!("{count} members serve"), PATIENCE, || {
            Some(self.serving()).filter(|members| members.len() == count)
        })
    }

    /// Waits until rows, processes and members are so many.
    #[track_caller]
    fn await_settled_at(&self, count: usize) -> Vec<String> {
        let members = self.await_serving(count);
        wait_until(&format!("{count} rows and processes"), PATIENCE, || {
            self.all_instances().len() == count && self.cluster.machines().len() == count
        });
        members
    }

    /// Another leader, and a client of a server that has not been killed.
    fn kill_the_leader(&mut self) {
        let leader = self.cluster.leader();
        self.client = self.cluster.client(self.cluster.others(&[leader])[0]);
        self.cluster.kill(leader);
        self.cluster.start_one(leader);
        self.cluster.await_ready_all();
    }
}

/// FN-02, FN-04, FN-06: two balancers need 9,000 of members of 4,096: three. Down to one unit: the
/// two newest drain. Up again: the last one drained is back, and nothing is made.
#[test]
fn a_group_follows_what_balancers_need() {
    let stage = stage(&json!({ "DrainMs": 600_000 }));
    let first = Balancer::start(&stage.cluster, "lb1", 6_000);
    let second = Balancer::start(&stage.cluster, "lb2", 3_000);
    let three = stage.await_serving(3);
    assert_eq!(stage.all_instances().len(), 3, "nothing else was asked for");
    assert_eq!(stage.cluster.machines().len(), 3);
    let group = stage.group();
    assert_eq!((&group["Required"], &group["Current"]), (&json!(9_000), &json!(3 * UNIT)));
    let member = &stage.client.get("/v1/capacity/web/members").ok()[0];
    let place = (text(member, "Address"), member["Port"].as_u64());
    assert_eq!(place, ("127.0.0.1", Some(u64::from(PORT))));

    first.need(UNIT);
    second.need(0);
    assert_eq!(stage.await_serving(1), three[..1], "the newest two drain");
    let explained = stage.explained();
    assert!(explained.contains(" drains since "), "{explained}");

    first.need(UNIT + 1);
    // The newest was drained first, so the second was drained last.
    assert_eq!(stage.await_serving(2), three[..2]);
    let now: Vec<String> = stage.all_instances().into_keys().collect();
    let mut then = three;
    then.sort_unstable();
    assert_eq!(now, then, "nothing was made");
    stage.finish();
}

/// FN-08: a balancer that falls silent is counted until its time is over, and taken out once; its
/// members go when their drain is over, and are not there any more.
#[test]
fn a_silent_balancer_expires_once() {
    let stage = stage(&json!({}));
    let _first = Balancer::start(&stage.cluster, "lb1", UNIT);
    let second = Balancer::start(&stage.cluster, "lb2", UNIT);
    stage.await_settled_at(2);
    second.await_taken(3);
    let silent_since = Instant::now();
    second.fall_silent();
    wait_until("it is taken out", PATIENCE, || stage.group()["Required"] == UNIT);
    let after = silent_since.elapsed();
    assert!(after >= Duration::from_millis(2_700), "its last word holds for 3 s: {after:?}");
    assert_eq!(stage.group()["ExpiredSources"], 1);
    assert!(stage.explained().contains("lb2 fell silent"), "{}", stage.explained());
    stage.await_settled_at(1);
    assert_eq!(stage.group()["ExpiredSources"], 1, "once");
    stage.finish();
}

/// FN-12: all servers start anew with two members and a need of one. Exactly one is left, and
/// nothing is made, however often the need is said.
#[test]
fn a_restart_with_members_asks_for_none() {
    let mut stage = stage(&json!({ "DrainMs": 60_000 }));
    let balancer = Balancer::start(&stage.cluster, "lb1", 2 * UNIT);
    let two = stage.await_settled_at(2);
    let all = stage.cluster.all();
    stage.cluster.kill_together(&all);
    balancer.need(UNIT);
    stage.cluster.start_all();
    stage.cluster.await_ready_all();
    assert_eq!(stage.await_serving(1), two[..1]);
    balancer.await_taken(100);
    assert_eq!(stage.serving(), two[..1], "it does not swing");
    let rows = stage.all_instances();
    assert!(rows.keys().all(|id| two.contains(id)), "nothing was made: {rows:?}");
    stage.finish();
}

/// Members that vanish are made again, with other ids: their capacity does not count any more.
#[test]
fn members_that_vanish_are_made_again() {
    let stage = stage(&json!({}));
    let _balancer = Balancer::start(&stage.cluster, "lb1", 2 * UNIT);
    let two = stage.await_settled_at(2);
    let killed = Command::new("kill").arg("-9").args(stage.cluster.machines()).status();
    assert!(killed.unwrap().success());
    let others = wait_for("two others serve", PATIENCE, || {
        let members = stage.serving();
        let is_new = members.iter().all(|id| !two.contains(id));
        (members.len() == 2 && is_new).then_some(members)
    });
    assert_eq!(stage.await_settled_at(2), others);
    stage.finish();
}

/// FN-22: leaders die while members are made and while they drain: nobody is made twice, nobody is
/// lost, and nothing shrinks because a new leader has not heard the balancers yet.
#[test]
fn nothing_is_lost_or_made_twice_when_leaders_die() {
    let mut stage = stage(&json!({}));
    let balancer = Balancer::start(&stage.cluster, "lb1", 3 * UNIT);
    wait_until("members are being made", PATIENCE, || !stage.all_instances().is_empty());
    stage.kill_the_leader();
    let three = stage.await_serving(3);
    assert_eq!((stage.all_instances().len(), stage.cluster.machines().len()), (3, 3));

    stage.kill_the_leader();
    balancer.await_taken(20);
    assert_eq!(stage.serving(), three, "nothing shrank");

    balancer.need(1);
    wait_until("members drain", PATIENCE, || stage.serving().len() < 3);
    stage.kill_the_leader();
    assert_eq!(stage.await_settled_at(1), three[..1]);
    stage.finish();
}

/// A provider that lists nothing, and answers no other call.
const HANGS: &str = r#"echo '{"quorate_provider": 1, "name": "hangs"}'
while read -r line; do
    case $line in *'"list"'*)
        id=$(printf %s "$line" | sed 's/.*"id": *\([0-9]*\).*/\1/')
        echo "{\"id\": $id, \"result\": {\"scope\": \"here\", \"machines\": []}}" ;;
    esac
done"#;

/// FN-18: a provider that does not answer delays no requirement, and no reader of members.
#[test]
fn a_provider_that_hangs_delays_no_requirement() {
    let mut provider = Settings::default();
    provider.set_text("name", "local");
    provider.set_text("kind", "exec");
    provider.set_texts("command", &["/bin/sh", "-c", HANGS]);
    let stage = Stage::of(options().with_table("provider", provider));
    stage.declare(PORT, &json!({}));
    let path = "/v1/capacity/requirements";
    for seq in 1..=30_u64 {
        let groups = json!([{ "Group": "web", "Amount": UNIT * (1 + seq % 3) }]);
        let body = json!({ "Source": "lb", "Epoch": 1, "Seq": seq, "Groups": groups });
        let asked = Instant::now();
        stage.client.put(path, &body).ok();
        assert_eq!(stage.serving(), [""; 0]);
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
    wait_until("members are asked for", PATIENCE, || !stage.all_instances().is_empty());
    let explained = stage.explained();
    assert!(explained.contains("on the way: "), "{explained}");
    stage.finish();
}

/// `examples/balancer.py`, and what its members serve: they have one address here, and one port.
struct Example {
    child: Child,
    url: String,
}

impl Example {
    fn start(stage: &Stage) -> Self {
        let servers = stage.cluster.all();
        let servers =
            servers.iter().map(|server| format!("http://{}", stage.cluster.http(*server)));
        let servers = servers.collect::<Vec<_>>().join(",");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/balancer.py");
        let mut child = Command::new("python3")
            .args([script, "--servers", &servers, "--port", "0", "--mb-per-request", "100"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("balancing on ").map(str::to_owned))
            .expect("it says where it listens");
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, url }
    }

    /// The status of a request through it.
    fn get(&self, path: &str) -> u16 {
        let address: SocketAddr = self.url.strip_prefix("http://").unwrap().parse().unwrap();
        Client::new(address, PATIENCE).try_get(path).map_or(0, |answer| answer.status)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Answers every request with `ok`.
fn serve_ok(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 1_024];
            if stream.read(&mut head).is_ok() {
                let answer =
                    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
                stream.write_all(answer.as_bytes()).ok();
            }
        }
    });
}

/// The example asks for machines by its own load, and sends requests to them.
#[test]
fn the_example_of_a_balancer_gets_machines_for_its_load() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = backend.local_addr().unwrap().port();
    serve_ok(backend);
    let stage = Stage::of(options().with_machines());
    stage.declare(port, &json!({ "RequirementTTLms": 60_000 }));
    let example = Example::start(&stage);
    assert_eq!(example.get("/early"), 503, "there is no member yet");
    wait_until("a member answers", PATIENCE, || example.get("/page") == 200);
    assert!(!stage.serving().is_empty());
    let sources = stage.group()["Sources"].to_string();
    assert!(sources.contains("balancer-"), "{sources}");
    drop(example);
    wait_until("its members go when it has gone", PATIENCE, || {
        stage.all_instances().is_empty() && stage.cluster.machines().is_empty()
    });
    stage.finish();
}
