//! An older copy of a server's data directory is put back: a machine went back to a snapshot.
#![expect(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]

use std::{fs, path::Path};

use crate::harness::{Cluster, Options, PATIENCE, stored_job, wait_for, wait_until};

const OLDER: &str = "is older than what server";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

fn write(cluster: &Cluster, server: usize, name: &str, count: usize) {
    for number in 0..count {
        let job = stored_job(&format!("{name}-{number}"), "x");
        cluster.client(server).put("/v1/jobs", &job).ok();
    }
}

/// The jobs of that name that a server knows.
fn count(cluster: &Cluster, server: usize, name: &str) -> usize {
    let jobs = cluster.client(server).get("/v1/jobs").ok();
    let ids = jobs.as_array().unwrap().iter().filter_map(|job| job["ID"].as_str());
    ids.filter(|id| id.starts_with(name)).count()
}

/// The id under which a server is a voter, as another one shows it.
fn voting_id(cluster: &Cluster, of: usize, shown_by: usize) -> Option<String> {
    let answer = cluster.client(shown_by).try_get("/v1/operator/raft/configuration").ok()?;
    let answer: serde_json::Value = serde_json::from_str(&answer.text).ok()?;
    let address = cluster.rpc(of).to_string();
    let servers = answer["Servers"].as_array()?;
    let mut voters = servers.iter().filter(|one| one["Voter"] == true);
    let own = voters.find(|one| one["Address"] == address.as_str())?;
    own["ID"].as_str().map(str::to_owned)
}

/// Keeps a copy of the directory of a server, which goes on then and acknowledges more.
fn keep_a_copy(cluster: &mut Cluster, server: usize) {
    let leader = cluster.leader();
    write(cluster, leader, "before", 20);
    cluster.await_equal(&cluster.all());
    cluster.terminate(server);
    copy(&cluster.data(server), &cluster.directory().join("copy"));
    cluster.start_one(server);
    cluster.await_ready_all();
    let leader = cluster.leader();
    write(cluster, leader, "after", 20);
    cluster.await_equal(&cluster.all());
}

/// Ends a server and puts the older copy in the place of its directory.
fn put_back(cluster: &mut Cluster, server: usize) {
    cluster.kill(server);
    cluster.wipe(server);
    copy(&cluster.directory().join("copy"), &cluster.data(server));
}

/// It votes under another id, has everything, and what it had is kept.
fn check_joined_anew(cluster: &mut Cluster, server: usize, old_id: &str) {
    let other = cluster.others(&[server])[0];
    let new = wait_for("it votes under another id", PATIENCE, || {
        voting_id(cluster, server, other).filter(|id| id != old_id)
    });
    cluster.await_ready_all();
    cluster.await_equal(&cluster.all());
    for one in cluster.all() {
        assert_eq!(count(cluster, one, "after"), 20, "acknowledged, on {one}");
    }
    let log = cluster.log(server);
    assert!(log.contains(OLDER) && log.contains("joins anew under another id"), "{log}");
    let kept = cluster.data(server).join("retired-1");
    assert!(kept.join("server.json").is_file() && kept.join("log").is_dir());
    assert_eq!(cluster.client(server).metric("raft.ids_retired"), 1.0);
    write(cluster, server, "later", 3);
    // It starts like any other then.
    cluster.restart(server);
    cluster.await_ready_all();
    assert_eq!(voting_id(cluster, server, other), Some(new));
    assert_eq!(cluster.client(server).metric("raft.takes_part"), 1.0);
    cluster.check_invariants(&cluster.all());
}

#[test]
fn a_follower_whose_directory_went_back_joins_anew_while_the_leader_lives() {
    let mut cluster = Cluster::start(Options::new(3));
    let old = cluster.others(&[cluster.leader()])[0];
    keep_a_copy(&mut cluster, old);
    let id = wait_for("its id", PATIENCE, || voting_id(&cluster, old, old));
    put_back(&mut cluster, old);
    cluster.start_one(old);
    check_joined_anew(&mut cluster, old, &id);
}

/// The other follower has heard of it, too, up to a moment before its end: it is told, or the other one has all that it acknowledged.
#[test]
fn a_follower_whose_directory_went_back_does_not_vote_when_the_leader_dies() {
    let mut cluster = Cluster::start(Options::new(3));
    let old = cluster.others(&[cluster.leader()])[0];
    keep_a_copy(&mut cluster, old);
    let leader = cluster.leader();
    put_back(&mut cluster, old);
    cluster.start_one(old);
    cluster.kill(leader);
    cluster.start_one(leader);
    wait_until("it votes, whatever its id", PATIENCE, || {
        let takes_part = cluster.client(old).try_get("/v1/status/leader");
        let is_led = takes_part.is_ok_and(|answer| answer.status == 200);
        is_led && voting_id(&cluster, old, old).is_some()
    });
    cluster.await_ready_all();
    cluster.await_equal(&cluster.all());
    for one in cluster.all() {
        assert_eq!(count(&cluster, one, "after"), 20, "acknowledged, on {one}");
    }
    write(&cluster, old, "later", 3);
    cluster.check_invariants(&cluster.all());
}

#[test]
fn a_leader_whose_directory_went_back_joins_anew() {
    let mut cluster = Cluster::start(Options::new(3));
    let old = cluster.leader();
    keep_a_copy(&mut cluster, old);
    wait_until("it leads again", PATIENCE, || {
        let path = format!("/v1/operator/raft/transfer-leadership?address={}", cluster.rpc(old));
        drop(cluster.client(old).try_put(&path, &serde_json::Value::Null));
        cluster.leader() == old
    });
    let id = wait_for("its id", PATIENCE, || voting_id(&cluster, old, old));
    put_back(&mut cluster, old);
    cluster.start_one(old);
    check_joined_anew(&mut cluster, old, &id);
}

/// Where an operator wants to look first. The marker holds when nobody remembers any more.
#[test]
fn a_server_that_may_not_join_anew_ends_and_says_what_to_do() {
    let options = Options::new(3).with("cluster.rejoin_after_rollback", false);
    let mut cluster = Cluster::start(options);
    let old = cluster.others(&[cluster.leader()])[0];
    keep_a_copy(&mut cluster, old);
    put_back(&mut cluster, old);
    cluster.start_one(old);
    assert!(!cluster.await_exit(old).success());
    assert!(cluster.log(old).contains(OLDER), "{}", cluster.log(old));
    assert!(cluster.log(old).contains("away and start again"), "{}", cluster.log(old));
    let others = cluster.others(&[old]);
    cluster.kill_together(&others);
    for one in &others {
        cluster.start_one(*one);
    }
    cluster.await_ready(&others);
    cluster.start_one(old);
    assert!(!cluster.await_exit(old).success(), "by a supervisor");
    cluster.set(old, "cluster.rejoin_after_rollback", true);
    cluster.start_one(old);
    cluster.await_ready_all();
    cluster.await_equal(&cluster.all());
    assert_eq!(count(&cluster, old, "after"), 20);
    assert!(cluster.data(old).join("retired-1/log").is_dir());
}

/// Nobody remembers, and nobody else holds more: it is as new as it can be.
#[test]
fn a_server_alone_starts_with_an_older_directory() {
    let mut cluster = Cluster::start(Options::new(1));
    keep_a_copy(&mut cluster, 0);
    put_back(&mut cluster, 0);
    cluster.start_one(0);
    cluster.await_ready_all();
    assert_eq!((count(&cluster, 0, "before"), count(&cluster, 0, "after")), (20, 0));
}

/// A server that was only killed has promised nothing that it does not know, however often.
#[test]
fn a_server_that_was_only_killed_keeps_its_id() {
    let mut cluster = Cluster::start(Options::new(3));
    let ids = |cluster: &Cluster| -> Vec<_> {
        cluster.all().iter().map(|one| voting_id(cluster, *one, *one)).collect()
    };
    wait_until("all show the members", PATIENCE, || ids(&cluster).iter().all(Option::is_some));
    let before = ids(&cluster);
    for round in 0..6 {
        let leader = cluster.leader();
        write(&cluster, leader, &format!("round-{round}"), 10);
        // The leader in half of the rounds.
        let killed = if round % 2 == 0 { leader } else { cluster.others(&[leader])[0] };
        cluster.kill(killed);
        cluster.start_one(killed);
        cluster.await_ready_all();
    }
    assert_eq!(ids(&cluster), before);
    let logs: String = cluster.all().into_iter().map(|one| cluster.log(one)).collect();
    assert!(!logs.contains(OLDER));
}
