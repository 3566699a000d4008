//! What servers say of themselves while no majority of them answers, and after it.
#![expect(clippy::unwrap_used, clippy::float_cmp, clippy::cast_precision_loss, reason = "tests")]

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Client, Cluster, Options, PATIENCE, is_full, wait_for, wait_until};

/// Within this the loss is seen; longer where other tests run beside.
fn lost_within() -> Duration {
    if is_full() { Duration::from_secs(3) } else { Duration::from_secs(20) }
}

/// The same for its end.
fn back_within() -> Duration {
    if is_full() { Duration::from_secs(2) } else { Duration::from_secs(20) }
}

const LOST: &str = "no majority of the servers answers";
const BACK: &str = "a majority of the servers answers again";

/// How the others are taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
}

/// All that a server says of its leader and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    health: u16,
    live: u16,
    leader: String,
    /// Members with the mark of a leader, in the Raft configuration.
    marked: usize,
    failed: usize,
    is_leader: bool,
    has_majority: bool,
    known_leader: Option<bool>,
}

fn said(client: &Client) -> Said {
    let members = client.get("/v1/agent/members").ok();
    let failed = |member: &&Value| member["Status"] == "failed";
    let configuration = client.get("/v1/operator/raft/configuration?stale").ok();
    let marked = |server: &&Value| server["Leader"] == true;
    Said {
        health: client.get("/v1/agent/health").status,
        live: client.get("/v1/agent/live").status,
        leader: client.get("/v1/status/leader").ok().as_str().unwrap().to_owned(),
        marked: configuration["Servers"].as_array().unwrap().iter().filter(marked).count(),
        failed: members["Members"].as_array().unwrap().iter().filter(failed).count(),
        is_leader: client.metric("raft.is_leader") > 0.0,
        has_majority: client.metric("raft.has_majority") > 0.0,
        known_leader: client.get("/v1/jobs?stale").known_leader,
    }
}

fn lines(cluster: &Cluster, server: usize, text: &str) -> usize {
    cluster.log(server).lines().filter(|line| line.contains(text)).count()
}

/// Takes a majority away and gives it back; what stays is the leader, and with five servers a follower of it, or a follower alone.
fn a_lost_majority_is_seen(servers: usize, fault: Fault, stays_leader: bool) {
    let mut cluster = Cluster::start(Options::new(servers));
    let leader = cluster.leader();
    let followers = cluster.others(&[leader]);
    let kept = servers - (servers / 2 + 1);
    let staying: Vec<usize> = if stays_leader {
        std::iter::once(leader).chain(followers).take(kept).collect()
    } else {
        followers.into_iter().take(kept).collect()
    };
    for server in &staying {
        let before = wait_for("all are heard", PATIENCE, || {
            Some(said(&cluster.client(*server))).filter(|said| said.failed == 0)
        });
        assert!(before.has_majority && !before.leader.is_empty(), "{before:?}");
        let client = cluster.client(*server);
        assert_eq!(client.metric("raft.voters"), servers as f64);
        wait_until("all voters answer", PATIENCE, || {
            client.metric("raft.voters_alive") == servers as f64
        });
        assert_eq!(client.metric("raft.failures_tolerated"), (servers / 2) as f64);
    }
    let agent = cluster.agent("agent", None);
    wait_until("the agent is registered", PATIENCE, || agent.log().contains("registered"));
    let before: Vec<(usize, usize)> = staying
        .iter()
        .map(|one| (lines(&cluster, *one, LOST), lines(&cluster, *one, BACK)))
        .collect();
    let taken = cluster.others(&staying);
    match fault {
        Fault::Kill => cluster.kill_together(&taken),
        Fault::Freeze => taken.iter().for_each(|one| cluster.freeze(*one, true)),
    }
    let begun = Instant::now();
    let alone = Said {
        health: 500,
        live: 200,
        leader: String::new(),
        marked: 0,
        failed: taken.len(),
        is_leader: false,
        has_majority: false,
        known_leader: Some(false),
    };
    for server in &staying {
        let client = cluster.client(*server);
        let left = lost_within().saturating_sub(begun.elapsed());
        let mut last = None;
        let seen = launch::wait_for(left, || {
            let now = said(&client);
            let is_seen = now == alone;
            last = Some(now);
            is_seen.then_some(())
        });
        assert!(seen.is_some(), "{fault:?}, leader stays {stays_leader}: {last:?}");
        let health = client.get("/v1/agent/health").json;
        assert_eq!(health["server"]["message"], "No cluster leader");
        assert!(client.metric("raft.without_majority_ms") > 0.0);
        assert_eq!(client.metric("raft.failures_tolerated"), 0.0);
    }
    wait_until("the agent says it", PATIENCE, || {
        agent.log().contains("no server serves this agent")
    });
    match fault {
        Fault::Kill => taken.iter().for_each(|one| cluster.start_one(*one)),
        Fault::Freeze => taken.iter().for_each(|one| cluster.freeze(*one, false)),
    }
    let begun = Instant::now();
    for server in &staying {
        let client = cluster.client(*server);
        let left = back_within().saturating_sub(begun.elapsed());
        wait_until("it is over", left, || {
            let now = said(&client);
            now.health == 200
                && now.has_majority
                && !now.leader.is_empty()
                && now.known_leader == Some(true)
        });
    }
    wait_until("the agent says that it is over", PATIENCE, || {
        agent.log().contains("the servers answer again")
    });
    for (server, (lost, back)) in staying.iter().zip(before) {
        wait_until("the log says that it is over", PATIENCE, || {
            lines(&cluster, *server, BACK) > back
        });
        let (lost, back) =
            (lines(&cluster, *server, LOST) - lost, lines(&cluster, *server, BACK) - back);
        assert!(
            lost == back && (1..=2).contains(&lost),
            "{lost} and {back}:\n{}",
            cluster.log(*server)
        );
    }
}

#[test]
fn a_leader_whose_followers_are_killed_says_that_it_leads_no_more() {
    a_lost_majority_is_seen(3, Fault::Kill, true);
}

#[test]
fn a_leader_whose_followers_stand_still_says_that_it_leads_no_more() {
    a_lost_majority_is_seen(3, Fault::Freeze, true);
}

#[test]
fn a_follower_that_is_left_alone_says_so() {
    a_lost_majority_is_seen(3, Fault::Freeze, false);
}

/// The follower hears its leader all the time: only the leader can tell it that the majority is lost.
#[test]
fn a_follower_of_a_leader_without_majority_says_so() {
    a_lost_majority_is_seen(5, Fault::Kill, true);
}
