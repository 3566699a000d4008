//! Servers on disks that hang, fill up and fail.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use wire::api::ApiError;

use super::testing::{FREE_BYTES_MIN, Servers};

/// A leader whose disk hangs still sends heartbeats: without the watchdog no other server would
/// ever take over.
#[test]
fn a_leader_whose_disk_hangs_hands_over_and_then_ends_itself() {
    let servers = Servers::start(3);
    let old = servers.leader_among(&[0, 1, 2]);
    servers.write(old, "before").unwrap();
    servers.disks[old].stall();
    let others: Vec<usize> = (0..3).filter(|server| *server != old).collect();
    let new = servers.leader_among(&others);
    servers.write(new, "after").unwrap();
    let why = servers.why_failed(old);
    assert!(why.contains("hangs") && why.contains("has not returned for"), "{why}");
    assert!(why.contains("data/log"), "{why}");
    for server in others {
        assert!(servers.has(server, "before") && servers.has(server, "after"));
    }
}

#[test]
fn a_follower_whose_disk_hangs_ends_itself_and_the_others_go_on() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let follower = (leader + 1) % 3;
    servers.write(leader, "before").unwrap();
    // Only the log's disk is watched. Before it uses the log, a server saves its cluster id.
    servers.wait("it knows its cluster", || servers.core(follower).cluster_id());
    servers.disks[follower].stall();
    servers.write(leader, "while-it-hangs").unwrap();
    let why = servers.why_failed(follower);
    assert!(why.contains("hangs"), "{why}");
    servers.write(leader, "after").unwrap();
}

/// fsyncgate: after a failed sync the content of the disk is unknown, and a second sync that
/// succeeds proves nothing.
#[test]
fn a_failed_sync_ends_the_server_at_once_and_acknowledges_nothing() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    servers.write(0, "kept").unwrap();
    servers.disks[0].fail_sync_after(0);
    let result = servers.write_within(0, "lost", Duration::from_secs(2));
    assert!(result.is_err(), "acknowledged without a sync: {result:?}");
    let why = servers.why_failed(0);
    assert!(why.contains("a sync in /data/log failed: injected: sync error"), "{why}");
    assert!(why.contains("start it again"), "{why}");
    // The disk works again; this server must still not go on.
    assert!(servers.write_within(0, "later", Duration::from_secs(1)).is_err());
}

#[test]
fn a_state_that_cannot_be_written_ends_the_server() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    let core = servers.core(0);
    servers.write(0, "kept").unwrap();
    // The next sync is the engine's barrier, or the log's if a chore of the server comes first:
    // that ends the server as well.
    servers.disks[0].fail_sync_after(0);
    let barrier = servers.runtime().block_on(core.shadow.barrier());
    let why = servers.why_failed(0);
    assert!(barrier.is_err() || why.contains("log"), "{why}");
    assert!(why.contains("cannot be written") && why.contains("sync error"), "{why}");
    let again = servers.runtime().block_on(core.shadow.barrier());
    assert!(again.is_err() || why.contains("log"), "a second barrier proves nothing");
}

#[test]
fn a_server_without_room_takes_no_writes_and_does_not_lead() {
    let servers = Servers::start(3);
    let full = servers.leader_among(&[0, 1, 2]);
    servers.write(full, "before").unwrap();
    servers.fill(full);
    let others: Vec<usize> = (0..3).filter(|server| *server != full).collect();
    let new = servers.leader_among(&others);
    let refused = servers.write(full, "refused").unwrap_err();
    let ApiError::DiskFull(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains("/data has 0 MiB free") && why.contains("free some space"), "{why}");
    for server in &others {
        servers.write(*server, "taken").unwrap();
    }
    // Once a second disk is full, no majority has room: every server refuses writes before any disk
    // is really full.
    let second = others.into_iter().find(|server| *server != new).unwrap();
    servers.fill(second);
    let why = servers.wait("the leader knows", || match servers.write(new, "probe") {
        Err(ApiError::DiskFull(why)) => Some(why),
        Ok(_) | Err(_) => None,
    });
    assert!(why.contains("2 of 3 servers") && why.contains(&format!("s{second}")), "{why}");
    // With free space again, all servers take writes.
    for disk in &servers.disks {
        disk.set_capacity(None);
    }
    for server in 0..3 {
        servers.wait("writes are taken again", || servers.write(server, "again").ok());
    }
    assert!(!servers.has(new, "refused"));
}

#[test]
fn a_lone_server_without_room_refuses_and_lets_in_again() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    servers.write(0, "before").unwrap();
    servers.fill(0);
    servers.wait("it refuses", || {
        matches!(servers.write(0, "more"), Err(ApiError::DiskFull(_))).then_some(())
    });
    servers.disks[0].set_capacity(None);
    servers.wait("it lets in again", || servers.write(0, "more").ok());
    assert!(servers.core(0).failed().borrow().is_none(), "nothing ended");
}

/// openraft stops at any error of a snapshot builder, and the snapshot would be due again at each
/// start.
#[test]
fn a_snapshot_without_room_ends_nobody() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    servers.write(0, "before").unwrap();
    let disk = &servers.disks[0];
    disk.set_capacity(Some(disk.used_bytes() + 2 * FREE_BYTES_MIN));
    let core = servers.core(0);
    servers.runtime().block_on(core.raft.trigger().snapshot()).unwrap();
    servers.wait("it is put off", || core.snapshots.is_put_off().then_some(()));
    servers.write(0, "meanwhile").unwrap();
    disk.set_capacity(None);
    servers.wait("it is made up for", || {
        core.snapshots.newest_meta().unwrap().filter(|(_, meta)| meta.head.index > 1).map(drop)
    });
    servers.write(0, "after").unwrap();
    assert!(core.failed().borrow().is_none());
}

#[test]
fn a_stop_does_not_wait_for_a_disk_that_hangs() {
    let mut servers = Servers::start(1);
    servers.leader_among(&[0]);
    servers.write(0, "before").unwrap();
    servers.disks[0].stall();
    let why = servers.stop_within(0, Duration::from_secs(2)).unwrap_err().to_string();
    assert!(
        why.contains("did not stop within 2s") && why.contains("under /data may hang"),
        "{why}"
    );
}

#[test]
fn a_stop_with_a_disk_that_works_is_clean() {
    let mut servers = Servers::start(1);
    servers.leader_among(&[0]);
    servers.write(0, "before").unwrap();
    servers.stop_within(0, super::testing::PATIENCE).unwrap();
}
