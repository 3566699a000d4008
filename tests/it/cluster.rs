//! Consensus on real servers: what was acknowledged is there, on every server, whichever servers die at whichever moment.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{
    Agent, Client, Cluster, Options, PATIENCE, service_job, stored_job, wait_for, wait_until,
};

/// Clients that write jobs without a pause, each to all the servers in turn, and remember what was acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, Instant>>>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster, writers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(BTreeMap::new()));
        let writers = (0..writers).map(|writer| {
            let clients: Vec<Client> = cluster
                .all()
                .into_iter()
                .map(|server| Client::new(cluster.http(server), Duration::from_secs(12)))
                .collect();
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            thread::spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = format!("load-{writer}-{number}");
                    let client = &clients[(writer + number) % clients.len()];
                    let started = Instant::now();
                    let answer = client.try_put("/v1/jobs", &stored_job(&id, &id));
                    if answer.is_ok_and(|answer| answer.status == 200) {
                        acknowledged.lock().unwrap().insert(id, started);
                    }
                }
            })
        });
        let writers = writers.collect();
        Self { stop, acknowledged, writers }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn await_more(&self, more: usize) {
        let target = self.count() + more;
        wait_until(&format!("{more} more writes are acknowledged"), PATIENCE, || {
            self.count() >= target
        });
    }

    /// How long after `moment` the first write was acknowledged that was sent after it. Called at once after it.
    fn next_acknowledged(&self, moment: Instant) -> Duration {
        wait_for("a write is acknowledged again", PATIENCE, || {
            let acknowledged = self.acknowledged.lock().unwrap();
            acknowledged.values().any(|started| *started > moment).then(|| moment.elapsed())
        })
    }

    fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.join().unwrap();
        }
        Arc::try_unwrap(self.acknowledged).unwrap().into_inner().unwrap().into_keys().collect()
    }
}

/// Asserts that a server has every one of these jobs.
fn check_jobs(client: &Client, ids: &[String]) {
    let list = client.get("/v1/jobs").ok();
    let list = list.as_array().unwrap();
    let known: std::collections::BTreeSet<&str> =
        list.iter().map(|job| job["ID"].as_str().unwrap()).collect();
    let missing: Vec<_> = ids.iter().filter(|id| !known.contains(id.as_str())).collect();
    assert!(missing.is_empty(), "acknowledged writes are lost: {missing:?}");
}

/// A running service with everything about its tasks that a restart would change.
struct Service {
    _agent: Agent,
    before: Vec<Value>,
}

const COUNT: usize = 5;

impl Service {
    fn start(cluster: &Cluster) -> Self {
        let agent = cluster.agent("agent", Some(3));
        let client = cluster.client(0);
        client.put("/v1/jobs", &service_job("web", 5)).ok();
        let before = wait_for("the service runs", PATIENCE, || {
            let tasks = Self::tasks(&client)?;
            let running = tasks.iter().filter(|task| task["Status"] == "running").count();
            (running == COUNT).then_some(tasks)
        });
        Self { _agent: agent, before }
    }

    fn tasks(client: &Client) -> Option<Vec<Value>> {
        let answer = client.try_get("/v1/job/web/allocations").ok()?;
        let mut tasks: Vec<Value> = answer
            .json
            .as_array()?
            .iter()
            .map(|one| {
                json!({
                    "ID": one["ID"], "Node": one["NodeID"], "Status": one["ClientStatus"],
                    "Desired": one["DesiredStatus"],
                    "Restarts": one["TaskStates"]["task"]["Restarts"],
                    "StartedAt": one["TaskStates"]["task"]["StartedAt"],
                })
            })
            .collect();
        tasks.sort_by_key(|task| task["ID"].to_string());
        Some(tasks)
    }

    /// No task was stopped, moved, started or restarted.
    fn check(&self, client: &Client) {
        assert_eq!(Self::tasks(client).unwrap(), self.before);
    }
}

#[test]
fn three_servers_answer_the_same_and_every_server_reads_what_any_wrote() {
    let cluster = Cluster::start(Options::new(3));
    for round in 0..10 {
        for writer in cluster.all() {
            let id = format!("job-{writer}");
            let value = format!("{round}-{writer}");
            cluster.client(writer).put("/v1/jobs", &stored_job(&id, &value)).ok();
            for reader in cluster.all() {
                let job = cluster.client(reader).get(&format!("/v1/job/{id}")).ok();
                assert_eq!(job["Meta"]["value"], json!(value), "read on server {}", reader + 1);
            }
        }
    }
    let (index, digest) = cluster.await_equal(&cluster.all());
    assert!(index >= 30, "{index}");
    assert_eq!(digest.len(), 32, "{digest}");
    let lists: Vec<String> =
        cluster.all().into_iter().map(|one| cluster.client(one).get("/v1/jobs").text).collect();
    assert!(lists.iter().all(|list| *list == lists[0]), "{lists:?}");
    cluster.check_invariants(&cluster.all());
    let servers = cluster.client(1).get("/v1/operator/raft/configuration").ok();
    let servers = servers["Servers"].as_array().unwrap();
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|server| server["Voter"] == true), "{servers:?}");
}

#[test]
fn a_leader_killed_under_load_loses_no_acknowledged_write_and_no_task_restarts() {
    let mut cluster = Cluster::start(Options::new(3));
    let service = Service::start(&cluster);
    let load = Load::start(&cluster, 6);
    for round in 1..=2 {
        load.await_more(50);
        let leader = cluster.leader();
        let killed = Instant::now();
        cluster.kill(leader);
        let took = load.next_acknowledged(killed);
        eprintln!(
            "round {round}: the next write was acknowledged {took:?} after the leader's death"
        );
        service.check(&cluster.client(cluster.others(&[leader])[0]));
        load.await_more(20);
        cluster.start_one(leader);
        cluster.await_ready(&[leader]);
    }
    let acknowledged = load.finish();
    assert!(acknowledged.len() >= 140);
    for server in cluster.all() {
        check_jobs(&cluster.client(server), &acknowledged);
        service.check(&cluster.client(server));
    }
    cluster.await_equal(&cluster.all());
    cluster.check_invariants(&cluster.all());
}

#[test]
fn all_servers_killed_at_once_come_back_by_themselves_with_everything() {
    let mut cluster = Cluster::start(Options::new(3));
    let service = Service::start(&cluster);
    let mut acknowledged = Vec::new();
    for _ in 0..2 {
        let load = Load::start(&cluster, 4);
        load.await_more(50);
        cluster.kill_together(&cluster.all());
        acknowledged.extend(load.finish());
        cluster.start_all();
        cluster.await_ready_all();
        for server in cluster.all() {
            check_jobs(&cluster.client(server), &acknowledged);
        }
    }
    cluster.client(0).put("/v1/jobs", &stored_job("after", "all")).ok();
    service.check(&cluster.client(0));
    cluster.await_equal(&cluster.all());
    cluster.check_invariants(&cluster.all());
}

#[test]
fn five_servers_lose_the_leader_and_a_follower_at_once_and_go_on() {
    let mut cluster = Cluster::start(Options::new(5));
    let service = Service::start(&cluster);
    let load = Load::start(&cluster, 5);
    load.await_more(50);
    let leader = cluster.leader();
    let dead = [leader, cluster.others(&[leader])[1]];
    let alive = cluster.others(&dead);
    let killed = Instant::now();
    cluster.kill_together(&dead);
    let took = load.next_acknowledged(killed);
    eprintln!("the next write was acknowledged {took:?} after the death of two of five");
    load.await_more(20);
    let acknowledged = load.finish();
    for server in &alive {
        check_jobs(&cluster.client(*server), &acknowledged);
        service.check(&cluster.client(*server));
    }
    cluster.await_equal(&alive);
    for server in dead {
        cluster.start_one(server);
    }
    cluster.await_ready(&dead);
    cluster.await_equal(&cluster.all());
    service.check(&cluster.client(dead[0]));
    cluster.check_invariants(&cluster.all());
}

#[test]
fn with_three_of_five_dead_writes_and_reads_fail_clearly_and_stale_reads_answer() {
    let mut cluster = Cluster::start(Options::new(5));
    cluster.client(0).put("/v1/jobs", &stored_job("kept", "1")).ok();
    cluster.await_equal(&cluster.all());
    let leader = cluster.leader();
    // Once with the leader among the survivors, who must not go on alone, once without.
    let followers = cluster.others(&[leader]);
    cluster.kill_together(&followers[..3]);
    check_no_majority(&cluster, &[(leader, "alone-1"), (followers[3], "alone-2")]);

    cluster.start_one(followers[0]);
    cluster.await_ready(&[followers[0], leader]);
    // The write that nobody acknowledged may be there or not, but all agree.
    let alive = cluster.others(&followers[1..3]);
    cluster.await_equal(&alive);
    let leader = cluster.leader();
    cluster.kill(leader);
    let survivors: Vec<usize> = alive.into_iter().filter(|server| *server != leader).collect();
    let survivors: Vec<_> = survivors.into_iter().zip(["alone-3", "alone-4"]).collect();
    check_no_majority(&cluster, &survivors);

    cluster.start_one(leader);
    followers[1..3].iter().for_each(|server| cluster.start_one(*server));
    cluster.await_ready_all();
    cluster.client(leader).put("/v1/jobs", &stored_job("again", "2")).ok();
    cluster.await_equal(&cluster.all());
}

/// Servers without a majority take no write (each of a job with its id), answer no linearizable
/// read, and answer stale ones. All at once, since each waits for a leader until its time is up.
fn check_no_majority(cluster: &Cluster, servers: &[(usize, &str)]) {
    thread::scope(|scope| {
        for (server, id) in servers {
            let client = cluster.client(*server);
            let (write, read) = (client.clone(), client.clone());
            scope.spawn(move || {
                let write = write.put("/v1/jobs", &stored_job(id, "x"));
                assert!((500..=504).contains(&write.status), "{}", write.status);
                let clear = ["No cluster leader", "outcome is unknown", "timed out"];
                assert!(clear.iter().any(|text| write.text.contains(text)), "{}", write.text);
            });
            scope.spawn(move || {
                let read = read.get("/v1/job/kept");
                assert!((500..=504).contains(&read.status), "{}", read.status);
                assert!(read.text.contains("No cluster leader"), "{}", read.text);
            });
            let stale = client.get("/v1/job/kept?stale");
            assert_eq!(stale.ok()["Meta"]["value"], json!("1"));
        }
    });
    for (server, id) in servers {
        let written = cluster.client(*server).get(&format!("/v1/job/{id}?stale"));
        assert_eq!(written.status, 404, "the write was not committed");
    }
}

#[test]
fn leadership_moves_on_request_and_a_stopped_server_hands_it_over() {
    let mut cluster = Cluster::start(Options::new(3));
    let old = cluster.leader();
    let target = cluster.others(&[old])[0];
    let address = cluster.rpc(target);
    let path = format!("/v1/operator/raft/transfer-leadership?address={address}");
    // From a server that neither leads nor will.
    let bystander = cluster.others(&[old, target])[0];
    let answer = cluster.client(bystander).put(&path, &Value::Null).ok();
    assert_eq!(answer["To"]["Address"], json!(address.to_string()));
    wait_until("the target leads", PATIENCE, || {
        let answer = cluster.client(target).get("/v1/status/leader");
        answer.json == json!(address.to_string())
    });
    cluster.client(old).put("/v1/jobs", &stored_job("moved", "1")).ok();
    let unknown = cluster
        .client(old)
        .put("/v1/operator/raft/transfer-leadership?address=127.0.0.1:1", &Value::Null);
    assert_eq!(unknown.status, 400);
    assert!(unknown.text.contains("no server has address 127.0.0.1:1"), "{}", unknown.text);

    let load = Load::start(&cluster, 3);
    load.await_more(20);
    let leader = cluster.leader();
    let stopped = Instant::now();
    let status = cluster.terminate(leader);
    assert_eq!(status.code(), Some(0), "{status}");
    let took = load.next_acknowledged(stopped);
    eprintln!("the next write was acknowledged {took:?} after the leader was told to stop");
    assert!(cluster.log(leader).contains("handed leadership over"), "it did not hand over");
    let acknowledged = load.finish();
    cluster.start_one(leader);
    cluster.await_ready(&[leader]);
    check_jobs(&cluster.client(leader), &acknowledged);
    cluster.await_equal(&cluster.all());
    for server in cluster.all() {
        let status = cluster.terminate(server);
        assert_eq!(status.code(), Some(0), "server {}: {status}", server + 1);
    }
}

#[test]
fn a_server_that_starts_alone_names_no_leader_and_shows_no_old_state() {
    let mut cluster = Cluster::start(Options::new(3));
    cluster.client(0).put("/v1/jobs", &stored_job("kept", "1")).ok();
    cluster.await_equal(&cluster.all());
    let leader = cluster.leader();
    cluster.kill_together(&cluster.all());
    // The one that led, and one that followed: both have a vote for the old leader on disk.
    for server in [leader, cluster.others(&[leader])[0]] {
        cluster.start_one(server);
        let client = cluster.client(server);
        wait_until("it listens", PATIENCE, || client.try_get("/v1/agent/health").is_ok());
        assert_eq!(client.get("/v1/status/leader").ok(), json!(""));
        let members = client.get("/v1/operator/raft/configuration").ok();
        let servers = members["Servers"].as_array().unwrap();
        assert!(servers.iter().all(|server| server["Leader"] == json!(false)), "{members}");
        let stale = client.get("/v1/job/kept?stale");
        assert_eq!(stale.status, 503, "{}", stale.text);
        assert!(stale.text.contains("has not heard a leader"), "{}", stale.text);
        cluster.kill(server);
    }
    cluster.start_all();
    cluster.await_ready_all();
    for server in cluster.all() {
        let client = cluster.client(server);
        assert_eq!(client.get("/v1/job/kept?stale").ok()["Meta"]["value"], json!("1"));
    }
}

#[test]
fn all_servers_told_to_stop_at_once_do_not_wait_for_a_successor() {
    let mut cluster = Cluster::start(Options::new(3));
    let leader = cluster.leader();
    for server in cluster.others(&[leader]) {
        cluster.terminate(server);
    }
    let status = cluster.terminate(leader);
    assert_eq!(status.code(), Some(0), "{status}");
    let log = cluster.log(leader);
    assert!(log.contains("no majority answers: leadership is not handed over"), "{log}");
}

/// Lines at ERROR are for people who come: in a healthy life there is none, whoever starts, leads, hands over and stops.
#[test]
fn a_healthy_life_logs_no_error_and_names_what_people_asked() {
    let mut cluster = Cluster::start(Options::new(3));
    let agent = cluster.agent("one", None);
    let leader = cluster.leader();
    cluster.client(leader).put("/v1/jobs", &stored_job("kept", "1")).ok();
    let to = cluster.others(&[leader])[0];
    let transfer = format!("/v1/operator/raft/transfer-leadership?address={}", cluster.rpc(to));
    cluster.client(leader).put(&transfer, &Value::Null).ok();
    wait_until("the other one leads", PATIENCE, || cluster.leader() == to);
    cluster.client(to).delete("/v1/job/kept").ok();
    for server in cluster.all() {
        assert!(cluster.terminate(server).success());
        cluster.start_one(server);
        cluster.await_ready(&[server]);
    }
    for server in cluster.all() {
        assert!(cluster.terminate(server).success());
    }
    let logs: Vec<String> = cluster.all().into_iter().map(|server| cluster.log(server)).collect();
    for log in logs.iter().chain([&agent.log()]) {
        for line in log.lines() {
            assert!(!line.contains("ERROR"), "{line}");
            // What Rust prints of values is for who knows their types.
            assert!(!line.contains("Some(") && !line.contains(" { "), "{line}");
        }
    }
    let said = |server: usize, what: &str, of: &str| {
        let is_it =
            |line: &str| line.contains(what) && line.contains(of) && line.contains("index=");
        let count =
            logs[server].lines().filter(|line| line.contains("INFO") && is_it(line)).count();
        assert_eq!(count, 1, "{what}: {}", logs[server]);
    };
    said(leader, "job registered", "default/kept");
    said(to, "job stopped", "default/kept");
}
