//! Servers that are taken out of their cluster.
#![expect(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]

use serde_json::Value;

use crate::harness::{Client, Cluster, Options, PATIENCE, stored_job, wait_for, wait_until};

fn path(cluster: &Cluster, server: usize) -> String {
    format!("/v1/operator/raft/peer?address={}", cluster.rpc(server))
}

/// Names and ids of the members, as a server knows them.
fn members(client: &Client) -> Vec<(String, String)> {
    let configuration = client.get("/v1/operator/raft/configuration").ok();
    let servers = configuration["Servers"].as_array().unwrap().iter();
    let text = |server: &Value, key| server[key].as_str().unwrap().to_owned();
    servers.map(|server| (text(server, "Node"), text(server, "ID"))).collect()
}

fn await_members(cluster: &Cluster, of: &[usize]) {
    for server in of {
        let client = cluster.client(*server);
        wait_until("the members are those that are left", PATIENCE, || {
            members(&client).len() == of.len()
        });
    }
}

/// Has a server taken out, however often leadership changes or a busy peer does not answer meanwhile.
fn take_out(client: &Client, path: &str, left: usize) {
    wait_until("it is taken out", PATIENCE, || {
        drop(client.try_delete(path));
        members(client).len() == left
    });
}

const OUT: &str = "this server was taken out of its cluster";

#[test]
fn a_server_that_is_taken_out_ends_and_does_not_come_back_by_itself() {
    let mut cluster = Cluster::start(Options::new(3));
    let leader = cluster.leader();
    let [gone, kept] = cluster.others(&[leader])[..] else { panic!() };
    // Asked of a follower, which forwards it.
    take_out(&cluster.client(kept), &path(&cluster, gone), 2);
    await_members(&cluster, &[leader, kept]);
    assert!(!cluster.await_exit(gone).success());
    assert!(cluster.log(gone).contains(OUT), "{}", cluster.log(gone));
    cluster.client(kept).put("/v1/jobs", &stored_job("after", "x")).ok();
    // By a supervisor.
    cluster.start_one(gone);
    assert!(!cluster.await_exit(gone).success());
    await_members(&cluster, &[leader, kept]);
    assert_eq!(cluster.client(kept).metric("raft.voters"), 2.0);
    // With an empty folder it is a new server, by one list of addresses for all, its own among them.
    cluster.wipe(gone);
    let list: Vec<String> =
        cluster.all().into_iter().map(|one| format!("\"{}\"", cluster.rpc(one))).collect();
    cluster.set(gone, "cluster.join", format!("[{}]", list.join(", ")));
    cluster.start_one(gone);
    cluster.await_ready_all();
    await_members(&cluster, &cluster.all());
}

/// It was away while it was taken out: only the others can tell it.
#[test]
fn a_server_that_was_taken_out_while_it_was_away_ends_when_it_comes_back() {
    let mut cluster = Cluster::start(Options::new(3));
    let leader = cluster.leader();
    let [gone, kept] = cluster.others(&[leader])[..] else { panic!() };
    let client = cluster.client(leader);
    wait_until("all are heard", PATIENCE, || client.metric("raft.voters_alive") == 3.0);
    cluster.freeze(gone, true);
    wait_until("its silence is seen", PATIENCE, || client.metric("raft.voters_alive") < 3.0);
    let refused = client.delete(&path(&cluster, kept));
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("of the 2 that would be left 1 answer"), "{}", refused.text);
    let (_, id) = wait_for("its id", PATIENCE, || {
        let name = format!("server-{}", gone + 1);
        members(&client).into_iter().find(|(node, _)| *node == name)
    });
    take_out(&client, &format!("/v1/operator/raft/peer?id={id}"), 2);
    await_members(&cluster, &[leader, kept]);
    cluster.freeze(gone, false);
    assert!(!cluster.await_exit(gone).success());
    assert!(cluster.log(gone).contains(OUT), "{}", cluster.log(gone));
    await_members(&cluster, &[leader, kept]);
}

#[test]
fn a_leader_can_be_taken_out() {
    let mut cluster = Cluster::start(Options::new(3));
    let leader = cluster.leader();
    let rest = cluster.others(&[leader]);
    take_out(&cluster.client(rest[0]), &path(&cluster, leader), 2);
    assert!(!cluster.await_exit(leader).success());
    assert!(cluster.log(leader).contains(OUT), "{}", cluster.log(leader));
    await_members(&cluster, &rest);
    cluster.client(rest[0]).put("/v1/jobs", &stored_job("after", "x")).ok();
}
