//! What a server's disk may lose, and what it must not get away with: every loss is either made good from what is left, or refused with a
//! clear error; never silent.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use serde_json::{Value, json};

use crate::harness::{Cluster, Options, PATIENCE, stored_job, wait_for, wait_until};

/// Servers that write a snapshot after every 64 KiB of log and keep few entries behind it.
fn snapshotting(servers: usize) -> Options {
    Options::new(servers).with("raft.snapshot_log_bytes", 64 << 10).with("raft.log_entries_kept", 5)
}

/// Writes jobs through a server until it has a snapshot of some of them, and more jobs after it.
fn fill(cluster: &Cluster, server: usize) {
    let client = cluster.client(server);
    let value = "v".repeat(2_000);
    let mut number = 0;
    let mut write = |count: usize| {
        for _ in 0..count {
            number += 1;
            client.put("/v1/jobs", &stored_job(&format!("fill-{number}"), &value)).ok();
        }
    };
    write(80);
    wait_until("a snapshot is written", PATIENCE, || {
        write(5);
        !snapshots(cluster, server).is_empty()
    });
    wait_until("the log is purged", PATIENCE, || {
        write(5);
        is_purged(cluster, server)
    });
    // The row is longer than one value of the engine may be.
    client.put("/v1/jobs", &stored_job("long", &"l".repeat(300_000))).ok();
    write(3);
}

fn snapshots(cluster: &Cluster, server: usize) -> Vec<PathBuf> {
    files(&cluster.data(server).join("snapshots"), ".snapshot")
}

/// Whether the log does not begin with the first entry any more.
fn is_purged(cluster: &Cluster, server: usize) -> bool {
    let metrics = cluster.client(server).get("/v1/metrics").ok();
    let name = json!("nomad.raft.log.first_index");
    let gauges = metrics["Gauges"].as_array().unwrap();
    let gauge = gauges.iter().find(|gauge| gauge["Name"] == name).unwrap();
    gauge["Value"].as_f64().unwrap() > 20.0
}

fn files(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect();
    paths.sort();
    paths
}

/// What a lone server knows, for comparison after a restart that adds entries of its own.
fn content(cluster: &Cluster, server: usize) -> Value {
    let mut jobs = cluster.client(server).get("/v1/jobs").ok();
    for job in jobs.as_array_mut().unwrap() {
        let id = job["ID"].as_str().unwrap().to_owned();
        *job = cluster.client(server).get(&format!("/v1/job/{id}")).ok();
    }
    jobs
}

/// Kills a follower of three, changes its directory, starts it again, and expects it back with everything.
fn check_damage_is_made_good(damage: impl FnOnce(&Path), from: &str) -> Cluster {
    let mut cluster = Cluster::start(snapshotting(3));
    let leader = cluster.leader();
    let server = cluster.others(&[leader])[0];
    fill(&cluster, leader);
    wait_until("the follower has a snapshot", PATIENCE, || is_purged(&cluster, server));
    let before = cluster.await_equal(&cluster.all());
    cluster.kill(server);
    damage(&cluster.data(server));
    cluster.start_one(server);
    cluster.await_ready(&[server]);
    let after = cluster.await_equal(&cluster.all());
    assert!(after.0 >= before.0);
    let log = cluster.log(server);
    let expected = format!("loaded the state from=\"{from}\"");
    let last = log.lines().rfind(|line| line.contains("loaded the state")).unwrap();
    assert!(last.contains(&expected), "{last}");
    assert_eq!(content(&cluster, server), content(&cluster, leader));
    cluster.check_invariants(&[server]);
    cluster
}

fn remove(path: &Path) {
    fs::remove_dir_all(path).unwrap();
}

#[test]
fn deleted_snapshots_are_not_missed_because_the_state_is_on_disk() {
    check_damage_is_made_good(|data| remove(&data.join("snapshots")), "the state on disk");
}

#[test]
fn a_deleted_state_is_rebuilt_from_the_snapshot_and_the_log() {
    check_damage_is_made_good(|data| remove(&data.join("state")), "a snapshot file");
}

#[test]
fn a_state_that_was_being_opened_when_the_server_died_is_rebuilt_loudly() {
    let mark = |data: &Path| fs::write(data.join("state/OPENING"), "").unwrap();
    let cluster = check_damage_is_made_good(mark, "a snapshot file");
    let all: String = cluster.all().into_iter().map(|server| cluster.log(server)).collect();
    let loud = "the last start died while opening the state: it is set aside and rebuilt";
    assert!(all.lines().any(|line| line.contains("ERROR") && line.contains(loud)));
}

#[test]
fn a_damaged_state_is_set_aside_and_rebuilt_loudly() {
    let damage = |data: &Path| {
        let engine = fs::read_to_string(data.join("state/CURRENT")).unwrap();
        let path = data.join("state").join(engine.trim()).join("db");
        let mut bytes = fs::read(&path).unwrap();
        for byte in bytes.iter_mut().step_by(97) {
            *byte ^= 0x55;
        }
        fs::write(path, bytes).unwrap();
    };
    let cluster = check_damage_is_made_good(damage, "a snapshot file");
    let all: String = cluster.all().into_iter().map(|server| cluster.log(server)).collect();
    // sled finds nothing it can trust, or fails.
    let loud = ["rebuilding the state on disk from a snapshot file", "set aside and rebuilt"];
    assert!(all.lines().any(|line| loud.iter().any(|text| line.contains(text))));
}

#[test]
fn a_damaged_snapshot_is_set_aside() {
    let damage = |data: &Path| {
        let path = files(&data.join("snapshots"), ".snapshot").pop().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let cluster = check_damage_is_made_good(damage, "the state on disk");
    let damaged: usize = cluster
        .all()
        .into_iter()
        .map(|server| files(&cluster.data(server).join("snapshots"), ".damaged").len())
        .sum();
    assert_eq!(damaged, 1);
}

#[test]
fn without_a_snapshot_a_deleted_state_is_rebuilt_from_the_log_alone() {
    let mut cluster = Cluster::start(Options::new(1));
    for number in 0..50 {
        cluster.client(0).put("/v1/jobs", &stored_job(&format!("job-{number}"), "1")).ok();
    }
    let before = content(&cluster, 0);
    for directory in ["state", "snapshots"] {
        cluster.kill(0);
        remove(&cluster.data(0).join(directory));
        cluster.start_one(0);
        cluster.await_ready_all();
        assert_eq!(content(&cluster, 0), before);
    }
}

/// Kills a lone server, damages its directory, and expects it to refuse with this text, also the second time.
fn check_refusal(options: Options, damage: impl FnOnce(&Path), texts: &[&str]) {
    let mut cluster = Cluster::start(options);
    fill(&cluster, 0);
    cluster.kill(0);
    damage(&cluster.data(0));
    for _ in 0..2 {
        cluster.start_one(0);
        let status = cluster.await_exit(0);
        check_failure(status, &cluster.log(0), texts);
    }
}

#[track_caller]
fn check_failure(status: ExitStatus, log: &str, texts: &[&str]) {
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    for text in texts {
        assert!(log.contains(text), "`{text}` is not in the log:\n{log}");
    }
}

#[test]
fn a_log_that_begins_after_the_end_of_what_is_left_is_refused() {
    let damage = |data: &Path| {
        remove(&data.join("state"));
        remove(&data.join("snapshots"));
    };
    let texts = ["what lies between is not on this server any more", "joins anew"];
    check_refusal(snapshotting(1), damage, &texts);
}

#[test]
fn a_state_without_its_log_is_refused() {
    let texts = ["has a state but its log is gone", "joins anew"];
    check_refusal(snapshotting(1), |data| remove(&data.join("log")), &texts);
}

#[test]
fn a_flipped_byte_in_the_log_is_refused_with_the_repair() {
    let damage = |data: &Path| {
        let path = files(&data.join("log"), "").into_iter().find(|path| {
            fs::metadata(path).unwrap().len() > 4096
                && fs::read(path).unwrap().windows(8).any(|window| window == b"vvvvvvvv")
        });
        let path = path.unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(8).position(|window| window == b"vvvvvvvv").unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    check_refusal(snapshotting(1), damage, &["damaged"]);
}

#[test]
fn a_missing_identity_beside_a_log_is_refused() {
    let damage = |data: &Path| fs::remove_file(data.join("server.json")).unwrap();
    check_refusal(snapshotting(1), damage, &["has a log but no server.json"]);
}

/// The members as (name, voter).
fn members(cluster: &Cluster, server: usize) -> Vec<(String, String, bool)> {
    let answer = cluster.client(server).get("/v1/operator/raft/configuration").ok();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let servers = answer["Servers"].as_array().unwrap().iter();
    servers.map(|one| (text(&one["ID"]), text(&one["Address"]), one["Voter"] == true)).collect()
}

#[test]
fn an_empty_disk_joins_with_a_new_id_through_snapshot_and_log() {
    let mut cluster = Cluster::start(snapshotting(3));
    let leader = cluster.leader();
    let server = cluster.others(&[leader])[0];
    fill(&cluster, leader);
    let before = members(&cluster, leader);
    let address = cluster.rpc(server).to_string();
    let id_of = |members: &[(String, String, bool)]| {
        members.iter().find(|one| one.1 == address).map(|one| one.0.clone()).unwrap()
    };
    cluster.kill(server);
    cluster.wipe(server);
    cluster.start_one(server);
    cluster.await_ready(&[server]);
    let after = wait_for("the new server votes in place of the old", PATIENCE, || {
        let now = members(&cluster, leader);
        let done = now.len() == 3 && now.iter().all(|one| one.2) && id_of(&now) != id_of(&before);
        done.then_some(now)
    });
    assert_eq!(after.len(), 3);
    assert!(cluster.log(server).contains("installed a snapshot"), "it got a snapshot");
    cluster.await_equal(&cluster.all());
    assert_eq!(content(&cluster, server), content(&cluster, leader));

    // It counts: with another server dead the two make a majority, and it comes back by itself as what it is now.
    let other = cluster.others(&[leader, server])[0];
    cluster.kill(other);
    cluster.client(server).put("/v1/jobs", &stored_job("with-the-new-one", "1")).ok();
    cluster.restart(server);
    assert_eq!(id_of(&members(&cluster, server)), id_of(&after));
    cluster.start_one(other);
    cluster.await_ready(&[other]);
    cluster.await_equal(&cluster.all());
}

#[test]
fn a_server_that_was_away_for_long_catches_up_by_snapshot() {
    let mut cluster = Cluster::start(snapshotting(3));
    let leader = cluster.leader();
    let server = cluster.others(&[leader])[0];
    cluster.kill(server);
    fill(&cluster, leader);
    cluster.start_one(server);
    cluster.await_ready(&[server]);
    cluster.await_equal(&cluster.all());
    assert!(cluster.log(server).contains("installed a snapshot"), "it got a snapshot");
    assert_eq!(content(&cluster, server), content(&cluster, leader));
    // And what it installed is what it starts from.
    cluster.restart(server);
    cluster.await_equal(&cluster.all());
}

/// What was sent to it without an answer must not keep the leader from cutting its log, however long it is away.
#[test]
fn a_server_that_stands_still_does_not_keep_the_log_from_being_cut() {
    let cluster = Cluster::start(snapshotting(3));
    let leader = cluster.leader();
    let server = cluster.others(&[leader])[0];
    cluster.freeze(server, true);
    fill(&cluster, leader);
    cluster.freeze(server, false);
    cluster.await_equal(&cluster.all());
    assert!(cluster.log(server).contains("installed a snapshot"), "it got a snapshot");
}

/// Nor must it be kept by one that refuses what was meant for the server before it.
#[test]
fn a_server_that_waits_to_join_does_not_keep_the_log_from_being_cut() {
    let mut cluster = Cluster::start(snapshotting(3));
    let nobody = Cluster::prepare(Options::new(3));
    let leader = cluster.leader();
    let server = cluster.others(&[leader])[0];
    let joins = cluster.all().into_iter().map(|one| cluster.rpc(one)).collect();
    cluster.kill(server);
    cluster.wipe(server);
    cluster.expect(server, vec![cluster.rpc(server), nobody.rpc(1), nobody.rpc(2)]);
    cluster.start_one(server);
    fill(&cluster, leader);
    cluster.kill(server);
    cluster.expect(server, joins);
    cluster.start_one(server);
    cluster.await_ready(&[server]);
    cluster.await_equal(&cluster.all());
}

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let mut cluster = Cluster::prepare(Options::new(1));
    cluster.start_all();
    cluster.await_ready_all();
    let mut second = Cluster::prepare(Options::new(1));
    let data = cluster.data(0);
    second.set(0, "data_dir", format!("{:?}", data.to_str().unwrap()));
    second.start_one(0);
    let status = second.await_exit(0);
    check_failure(
        status,
        &second.log(0),
        &["is in use by another process (pid ", "data directory"],
    );
    cluster.client(0).put("/v1/jobs", &stored_job("unharmed", "1")).ok();
    cluster.restart(0);
    assert_eq!(cluster.client(0).get("/v1/job/unharmed").ok()["Meta"]["value"], json!("1"));
}

#[test]
fn a_member_of_another_cluster_is_refused() {
    let mut home = Cluster::start(Options::new(3));
    let mut abroad = Cluster::start(Options::new(3));
    home.client(0).put("/v1/jobs", &stored_job("home", "1")).ok();
    abroad.client(0).put("/v1/jobs", &stored_job("abroad", "1")).ok();
    let (home_before, abroad_before) =
        (home.await_equal(&home.all()).1, abroad.await_equal(&abroad.all()).1);

    // The directory of a server of one cluster under the addresses of a server of the other.
    let (stranger, replaced) =
        (home.others(&[home.leader()])[0], abroad.others(&[abroad.leader()])[0]);
    home.kill(stranger);
    abroad.kill(replaced);
    let own = abroad.data(replaced);
    fs::rename(&own, own.with_extension("own")).unwrap();
    fs::rename(home.data(stranger), &own).unwrap();
    abroad.start_one(replaced);
    let status = abroad.await_exit(replaced);
    let texts = ["belongs to another cluster than the data directory", "check the addresses"];
    check_failure(status, &abroad.log(replaced), &texts);

    // Nobody took anything from the other side.
    fs::rename(&own, home.data(stranger)).unwrap();
    fs::rename(own.with_extension("own"), &own).unwrap();
    home.start_one(stranger);
    abroad.start_one(replaced);
    home.await_ready_all();
    abroad.await_ready_all();
    assert_eq!(home.client(stranger).get("/v1/job/abroad").status, 404);
    assert_eq!(abroad.client(replaced).get("/v1/job/home").status, 404);
    home.await_equal(&home.all());
    abroad.await_equal(&abroad.all());
    assert_ne!(home_before, abroad_before);
}

#[test]
fn a_full_disk_turns_writes_away_and_answers_reads() {
    let mut cluster = Cluster::start(Options::new(3));
    cluster.client(0).put("/v1/jobs", &stored_job("before", "1")).ok();
    for server in cluster.all() {
        cluster.set(server, "limits.free_bytes_min", 1u64 << 60);
    }
    cluster.kill_together(&cluster.all());
    cluster.start_all();
    cluster.await_ready_all();
    for server in cluster.all() {
        let refused = cluster.client(server).put("/v1/jobs", &stored_job("full", "1"));
        assert_eq!(refused.status, 503, "{}", refused.text);
        for text in ["writes are turned away", "below the limit of", "free some space"] {
            assert!(refused.text.contains(text), "{}", refused.text);
        }
        assert_eq!(cluster.client(server).get("/v1/job/before").ok()["Meta"]["value"], json!("1"));
        assert_eq!(cluster.client(server).get("/v1/job/full").status, 404);
    }
    for server in cluster.all() {
        cluster.set(server, "limits.free_bytes_min", 0);
    }
    cluster.kill_together(&cluster.all());
    cluster.start_all();
    cluster.await_ready_all();
    cluster.client(1).put("/v1/jobs", &stored_job("after", "1")).ok();
    cluster.await_equal(&cluster.all());
}

/// Two servers with each other's directory refuse each other's requests, and there is no leader.
#[test]
fn swapped_data_directories_are_named_and_work_again_where_they_belong() {
    let mut cluster = Cluster::start(Options::new(3));
    cluster.client(0).put("/v1/jobs", &stored_job("before", "v")).ok();
    let swap = |cluster: &Cluster| {
        let (one, two) = (cluster.data(0), cluster.data(1));
        let aside = one.with_extension("aside");
        fs::rename(&one, &aside).unwrap();
        fs::rename(&two, &one).unwrap();
        fs::rename(&aside, &two).unwrap();
    };
    cluster.kill_together(&[0, 1]);
    swap(&cluster);
    for server in [0, 1] {
        cluster.start_one(server);
        assert!(!cluster.await_exit(server).success());
        let log = cluster.log(server);
        let belongs = format!("at {}: move it there", cluster.rpc(server));
        assert!(log.contains("belongs to server") && log.contains(&belongs), "{log}");
        assert!(log.contains(&cluster.rpc(1 - server).to_string()), "{log}");
    }
    swap(&cluster);
    for server in [0, 1] {
        cluster.start_one(server);
    }
    cluster.await_ready_all();
    cluster.client(1).get("/v1/job/before").ok();
}
