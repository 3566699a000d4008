//! Servers on disks that hang, fill up and fail: three real cores over loopback sockets, each on a [`FaultDisk`].
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use fsm::{Command, Reply, state::Namespace};
use tokio::{net::TcpListener, runtime::Runtime};

use super::{
    api::{Api, ApiError, ReadMode},
    core::{Core, Parts, RaftTiming, Settings},
    run::{RunningServer, Sockets},
};
use crate::{
    disk::{Disk, fault::FaultDisk},
    http::HttpOptions,
    rpc::transport::GrpcTransport,
    storage::{shadow, wal},
};

pub(super) const PATIENCE: Duration = Duration::from_mins(1);
const FREE_BYTES_MIN: u64 = 1 << 20;

pub(super) struct Servers {
    /// There until the drop.
    runtime: Option<Runtime>,
    disks: Vec<FaultDisk>,
    running: Vec<RunningServer>,
}

impl Servers {
    pub(super) fn start(count: usize) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let disks: Vec<FaultDisk> = (0..count).map(|seed| FaultDisk::new(seed as u64)).collect();
        let running = runtime.block_on(async {
            let mut sockets = Vec::new();
            for _ in 0..count {
                let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let rpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sockets.push(Sockets { http, rpc });
            }
            let address = |sockets: &Sockets| sockets.rpc.local_addr().unwrap().to_string();
            let addresses: Vec<String> = sockets.iter().map(address).collect();
            let mut running = Vec::new();
            for (number, sockets) in sockets.into_iter().enumerate() {
                let settings = settings(number, &addresses);
                let parts = parts(&disks[number]);
                let options = HttpOptions::default();
                let server = RunningServer::on(settings, parts, sockets, options, None);
                running.push(server.await.unwrap());
            }
            running
        });
        Self { runtime: Some(runtime), disks, running }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken by the drop only")
    }

    pub(super) fn core(&self, server: usize) -> Arc<Core> {
        Arc::clone(&self.running[server].core)
    }

    pub(super) fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(std::time::Instant::now() < end, "not within {PATIENCE:?}: {what}");
            self.runtime().block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
        }
    }

    pub(super) fn leader_among(&self, servers: &[usize]) -> usize {
        self.wait("a leader", || {
            servers.iter().copied().find(|server| self.running[*server].core.leading().is_some())
        })
    }

    pub(super) fn write(&self, server: usize, name: &str) -> Result<u64, ApiError> {
        self.write_within(server, name, PATIENCE)
    }

    pub(super) fn write_within(
        &self,
        server: usize,
        name: &str,
        within: Duration,
    ) -> Result<u64, ApiError> {
        let namespace = Namespace { name: name.into(), ..Namespace::default() };
        let core = self.core(server);
        let written = self.runtime().block_on(core.write(
            Command::UpsertNamespace(namespace),
            None,
            within,
        ))?;
        assert_eq!(written.reply, Reply::Done);
        Ok(written.index)
    }

    pub(super) fn has(&self, server: usize, name: &str) -> bool {
        let core = self.core(server);
        let read = core.read(ReadMode::Linearizable, 0, PATIENCE);
        let snapshot = self.runtime().block_on(read).unwrap();
        snapshot.state.namespaces.get(&name.into()).is_some()
    }

    /// Leaves so much room that nothing fails, and less than the watermark.
    fn fill(&self, server: usize) {
        let disk = &self.disks[server];
        disk.set_capacity(Some(disk.used_bytes() + FREE_BYTES_MIN / 2));
    }

    fn why_failed(&self, server: usize) -> String {
        let failed = self.running[server].core.failed();
        self.wait("the server ends itself", || failed.borrow().clone())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for disk in &self.disks {
            disk.set_capacity(None);
            // A thread that hangs in the disk would be waited for.
            disk.kill();
        }
        for server in std::mem::take(&mut self.running) {
            server.abort();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn settings(number: usize, addresses: &[String]) -> Settings {
    Settings {
        name: format!("s{number}"),
        region: "global".to_owned(),
        datacenter: "dc1".to_owned(),
        data_directory: PathBuf::from("/data"),
        rpc_address: addresses[number].clone(),
        http_address: "127.0.0.1:1".to_owned(),
        bootstrap_expect: addresses.to_vec(),
        join: Vec::new(),
        timing: RaftTiming { heartbeat_ms: 250, election_ms_min: 1_000, election_ms_max: 1_500 },
        workers: 1,
        heartbeat: leader::heartbeat::HeartbeatConfig::default(),
        snapshot_log_bytes: 1 << 30,
        log_entries_kept: 1_000,
        free_bytes_min: FREE_BYTES_MIN,
        pending_evaluations_max: 1_000,
        gc: leader::GcConfig::default(),
        nack_ms: 60_000,
    }
}

fn parts(disk: &FaultDisk) -> Parts {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let engine_disk = Arc::clone(&disk);
    Parts {
        disk,
        transport: Arc::new(GrpcTransport::new(std::collections::BTreeMap::new())),
        open_engine: Arc::new(move |path| shadow::open_twin(Arc::clone(&engine_disk), path)),
        wal: wal::Options {
            segment_bytes_first: 16 << 10,
            segment_bytes_max: 64 << 10,
            ..wal::Options::default()
        },
        snapshot_piece_bytes: crate::raft::network::SNAPSHOT_PIECE_BYTES,
    }
}

/// A leader whose disk hangs still heartbeats: without the watch nobody would ever take over.
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
    // What is watched is the log; before it, a server saves which cluster it is of.
    servers.wait("it knows its cluster", || servers.core(follower).cluster_id());
    servers.disks[follower].stall();
    servers.write(leader, "while-it-hangs").unwrap();
    let why = servers.why_failed(follower);
    assert!(why.contains("hangs"), "{why}");
    servers.write(leader, "after").unwrap();
}

/// fsyncgate: after a failed sync nobody knows what the disk holds, and a second sync that succeeds proves nothing.
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
    // The medium works again, and this server must not go on as if nothing had been.
    assert!(servers.write_within(0, "later", Duration::from_secs(1)).is_err());
}

#[test]
fn a_state_that_cannot_be_written_ends_the_server() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    let core = servers.core(0);
    servers.write(0, "kept").unwrap();
    // The next sync is the engine's barrier, or, should a chore of the server come first, the log's: that ends it as well.
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
    // With a second one full there is no majority with room: every server refuses, before any disk is really full.
    let second = others.into_iter().find(|server| *server != new).unwrap();
    servers.fill(second);
    let why = servers.wait("the leader knows", || match servers.write(new, "probe") {
        Err(ApiError::DiskFull(why)) => Some(why),
        Ok(_) | Err(_) => None,
    });
    assert!(why.contains("2 of 3 servers") && why.contains(&format!("s{second}")), "{why}");
    // And they let in again.
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
