//! What servers do when others lag, are cut off or cannot be reached: real cores over loopback
//! sockets.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, time::Duration};

use fsm::{
    Command, NodeId, Proposal, Rejection, Reply, RequestId, codec, limits,
    node::{Drain, SetDrain},
    settings::{Namespace, UpsertNamespace},
    upkeep::Tick,
};
use futures_util::{FutureExt, StreamExt, stream::BoxStream};
use ground::rt;
use proto::v1::{self as pb, agent_server::Agent, raft_server::Raft};
use raft::{EntryData, WatchReceiver as _};
use server::{Core, grpc::agent::AgentService};
use tonic::{Code, Request, Status};
use wire::api::{AgentApi, Api, ApiError, PeerApi};

use super::testing::{CALLER, PATIENCE, Servers};

type Stream = BoxStream<'static, Result<pb::AllocationBatch, Status>>;

/// The log can never take such an entry, and a server whose log fails ends itself: retries of the
/// request would end one server after the other.
#[test]
fn a_change_too_large_for_the_log_is_refused_and_ends_nobody() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    for server in [leader, (leader + 1) % 3] {
        let description = "x".repeat(33 << 20).into();
        let huge = Namespace { name: "huge".into(), description, ..Namespace::default() };
        let core = servers.core(server);
        let write = core.write(&CALLER, UpsertNamespace { namespace: huge }.into(), None, PATIENCE);
        let error = servers.runtime().block_on(write).unwrap_err();
        assert!(matches!(error, ApiError::Invalid(_)), "{error}");
        assert!(error.to_string().contains("over the limit"), "{error}");
    }
    servers.write(leader, "small").unwrap();
    let ended = (0..3).filter(|server| servers.core(*server).failed().borrow().is_some());
    assert_eq!(ended.count(), 0, "nobody ended");
}

/// Else whoever sends a megabyte that is refused each time fills the disks of all servers.
#[test]
fn a_large_change_that_is_refused_takes_no_place_in_the_log() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    servers.write(leader, "small").unwrap();
    let before = servers.core(leader).applied();
    for server in (0..3).cycle().take(60) {
        let description = "x".repeat(1 << 20).into();
        let large = Namespace { name: "large".into(), description, ..Namespace::default() };
        let core = servers.core(server);
        let write =
            core.write(&CALLER, UpsertNamespace { namespace: large }.into(), None, PATIENCE);
        let written = servers.runtime().block_on(write).unwrap();
        let Reply::Rejected(Rejection::Invalid(why)) = written.reply else { panic!("taken") };
        assert!(why.contains("bytes, at most"), "{why}");
        assert!(written.index >= before && written.index <= servers.core(leader).applied());
    }
    let entries = servers.core(leader).applied() - before;
    assert!(entries < 20, "{entries} entries, where a few moved log time on");
    servers.write(leader, "after").unwrap();
}

#[test]
fn a_server_far_behind_stamps_a_write_anew_instead_of_calling_it_expired() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let behind = (leader + 1) % 3;
    servers.write(behind, "before").unwrap();
    servers.core(behind).hold_apply(true);
    // Log time moves past the window in which requests are remembered.
    let core = servers.core(leader);
    let at = core.writes.log_time() + limits::SESSION_MS_MAX + 60_000;
    let tick = Proposal { at, epoch: None, request: None, command: Command::from(Tick) };
    let moved = core.raft.client_write(EntryData(codec::encode(&tick)));
    servers.runtime().block_on(moved).unwrap();
    let core = servers.core(behind);
    let mut write = Box::pin(async move {
        let name = Namespace { name: "fresh".into(), ..Namespace::default() };
        core.write(&CALLER, UpsertNamespace { namespace: name }.into(), None, PATIENCE).await
    });
    let entered = servers.runtime().enter();
    assert!(write.as_mut().now_or_never().is_none(), "stamped while the server is behind");
    drop(entered);
    let write = servers.runtime().spawn(write);
    servers.core(behind).hold_apply(false);
    let written = servers.runtime().block_on(write).unwrap().unwrap();
    assert_eq!(written.reply, fsm::Reply::Done);
    assert!(servers.has(leader, "fresh"));
}

/// Otherwise its nodes would stay with it while the next leader marks them down.
#[test]
fn a_leader_that_nobody_answers_takes_no_heartbeats() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    for other in (0..3).filter(|server| *server != leader) {
        let core = servers.core(other);
        servers.runtime().block_on(core.raft.shutdown()).unwrap();
    }
    let core = servers.core(leader);
    let beat = pb::HeartbeatRequest {
        node_id: vec![1; 16].into(),
        incarnation: 1,
        shortage: String::new(),
    };
    servers.wait("heartbeats are refused", || {
        let answer = servers.runtime().block_on(core.heartbeat(&CALLER, beat.clone()));
        (answer.unwrap_err().code() == Code::Unavailable).then_some(())
    });
    assert!(core.leading().is_some(), "it does not know better");
}

#[test]
fn a_server_that_cannot_be_reached_does_not_become_a_voter() {
    let servers = Servers::start(1);
    let leader = servers.leader_among(&[0]);
    let core = servers.core(leader);
    let request = |rpc_address: String| pb::JoinRequest {
        node_id: 99,
        name: "s9".to_owned(),
        rpc_address,
        http_address: "127.0.0.1:1".to_owned(),
    };
    let own = core.settings.rpc_address.clone();
    for (address, why) in
        [("127.0.0.1:1".to_owned(), "no answer at"), (own, "another server answers at")]
    {
        let admitted = servers
            .runtime()
            .block_on(async { rt::timeout(PATIENCE, core.admit(&CALLER, request(address))).await });
        let status = admitted.unwrap().unwrap_err();
        assert!(status.message().contains(why) && status.message().contains("advertise"));
    }
    assert_eq!(core.contact.settled_voters().unwrap(), [core.id]);
    servers.write(leader, "after").unwrap();
}

/// The second request would get the first one's reply and take no effect. Clients of a busy cluster
/// send this many within a moment.
#[test]
fn no_two_requests_have_one_id() {
    let servers = Servers::start(1);
    let core = servers.core(servers.leader_among(&[0]));
    let ids: Vec<RequestId> = (0..100_000).map(|_| core.writes.fresh_request()).collect();
    let distinct: BTreeSet<_> = ids.iter().map(|id| id.0).collect();
    assert_eq!(distinct.len(), ids.len());
    assert!(
        ids.is_sorted_by_key(|id| id.0.first_chunk::<6>().copied()),
        "they lie in the order of time"
    );
}

#[test]
fn a_server_alone_is_in_touch_with_itself() {
    let servers = Servers::start(1);
    let core = servers.core(servers.leader_among(&[0]));
    assert_eq!(core.contact.majority_age(), Some(Duration::ZERO));
}

/// The server sets the start of a drain, so it differs between attempts; the client's request is
/// the same.
#[test]
fn a_drain_that_is_asked_for_again_under_its_id_is_the_same_drain() {
    let servers = Servers::start(1);
    let core = servers.core(servers.leader_among(&[0]));
    let ask = |started_at, lasts| {
        let deadline_at = Some(started_at + lasts);
        let drain = Drain {
            started_at,
            deadline_at,
            force: false,
            ignore_system: false,
            owner: "operator".into(),
            cancelable: false,
        };
        let command = Command::from(SetDrain {
            node: NodeId([1; 16]),
            drain: Some(drain),
            mark_eligible: false,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids: Vec::new(),
        });
        let id = Some(RequestId([7; 16]));
        servers.runtime().block_on(core.write(&CALLER, command, id, PATIENCE)).unwrap().reply
    };
    let at = core.writes.log_time();
    let first = ask(at, 60_000);
    assert_eq!(ask(at + 5_000, 60_000), first);
    assert_ne!(ask(at + 5_000, 90_000), first, "another deadline is another request");
}

#[test]
fn a_leader_of_an_older_term_is_not_heard() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let core = servers.core((leader + 1) % 3);
    servers.write(leader, "written").unwrap();
    let header = header(&servers, leader, &core);
    let vote = pb::Vote { term: 0, ..pb::Vote::default() };
    let heartbeat = pb::AppendEntriesRequest {
        header: Some(header),
        vote: Some(vote),
        ..pb::AppendEntriesRequest::default()
    };
    let told = core.raft_service();
    let term = || core.raft.metrics().borrow_watched().current_term;
    for _ in 0..20 {
        servers.wait("it hears the leader", || core.contact.leader());
        let before = term();
        drop(servers.runtime().block_on(told.append_entries(Request::new(heartbeat.clone()))));
        // On a busy machine an election may have begun meanwhile.
        assert!(core.contact.leader().is_some() || term() > before, "the leader of now was heard");
    }
}

/// A snapshot that is damaged on one server ends no other server.
#[test]
fn a_damaged_snapshot_is_refused_before_raft_hears_of_it() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let core = servers.core((leader + 1) % 3);
    servers.write(leader, "written").unwrap();
    let header = header(&servers, leader, &core);
    let leading = servers.core(leader);
    let term = leading.leading().unwrap().epoch;
    let data = vec![7; 1_000];
    let piece = pb::SnapshotChunkRequest {
        header: Some(header),
        vote: Some(pb::Vote { term, voted_for: Some(leading.id), committed: true }),
        last_log_id: Some(pb::LogId { term, index: 1 << 40 }),
        size: data.len() as u64,
        data: data.into(),
        done: true,
        ..pb::SnapshotChunkRequest::default()
    };
    let told = core.raft_service();
    let answer = servers.runtime().block_on(told.snapshot_chunk(Request::new(piece)));
    assert_eq!(answer.unwrap_err().code(), Code::DataLoss);
    servers.write((leader + 1) % 3, "after").unwrap();
    assert!(core.applied() < 1 << 40);
}

/// The header of a message from the leader to another server.
fn header(servers: &Servers, leader: usize, to: &Core) -> pb::PeerHeader {
    // Two servers are enough for the write, so the third may join later.
    let cluster = servers.wait("it has joined", || to.raft_service().cluster.get().copied());
    let from = servers.core(leader).id;
    pb::PeerHeader { cluster_id: cluster.to_vec().into(), from, to: to.id }
}

/// No server sends anything to a removed server, so it has to ask whether it was taken out.
#[test]
fn a_server_that_was_taken_out_while_it_was_down_ends() {
    let mut servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let (core, away) = (servers.core(leader), (leader + 1) % 3);
    let id = servers.core(away).id;
    let votes =
        |core: &Core| core.contact.settled_voters().is_some_and(|voters| voters.contains(&id));
    servers.wait("it votes", || votes(&core).then_some(()));
    servers.restart(away, |servers| {
        let change = openraft::ChangeMembers::RemoveVoters(BTreeSet::from([id]));
        servers.runtime().block_on(core.raft.change_membership(change, false)).unwrap();
        servers.wait("it does not vote", || (!votes(&core)).then_some(()));
    });
    let why = servers.why_failed(away);
    assert!(why.starts_with("this server was taken out of its cluster"), "{why}");
    assert!(!votes(&core));
}

/// The next message of a stream.
fn next(servers: &Servers, stream: &mut Stream) -> Result<pb::AllocationBatch, Code> {
    let message = servers.runtime().block_on(async { rt::timeout(PATIENCE, stream.next()).await });
    message.unwrap().unwrap().map_err(|status| status.code())
}

/// Registers a node; returns its incarnation and the index of its registration.
fn register(servers: &Servers, server: usize) -> (u64, u64) {
    let request = pb::RegisterRequest {
        node_id: vec![1; 16].into(),
        secret: vec![2; 16].into(),
        identity: vec![3; 16].into(),
        name: "a".to_owned(),
        datacenter: "dc1".to_owned(),
        ..pb::RegisterRequest::default()
    };
    let agents = AgentService::new(servers.core(server), None);
    let reply = servers.runtime().block_on(agents.register(Request::new(request)));
    let reply = reply.unwrap().into_inner();
    (reply.incarnation, reply.index)
}

fn stream(servers: &Servers, server: usize, incarnation: u64, index_min: u64) -> Stream {
    let node_id = vec![1; 16].into();
    let request = pb::StreamAllocationsRequest { node_id, incarnation, index_min };
    let agents = AgentService::new(servers.core(server), None);
    let opened = servers.runtime().block_on(agents.stream_allocations(Request::new(request)));
    opened.unwrap().into_inner()
}

/// An older state lacks the newest allocations: the agent would take them for removed.
#[test]
fn a_stream_shows_nothing_older_than_what_its_node_was_shown() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let behind = (leader + 1) % 3;
    let (incarnation, index) = register(&servers, leader);
    // The server knows the node before it lags.
    assert!(next(&servers, &mut stream(&servers, behind, incarnation, index)).is_ok());
    servers.core(behind).hold_apply(true);
    let shown = servers.write(leader, "news").unwrap();
    let mut held = stream(&servers, behind, incarnation, shown);
    assert_eq!(next(&servers, &mut held), Err(Code::Unavailable));
    servers.core(behind).hold_apply(false);
    let batch = next(&servers, &mut stream(&servers, behind, incarnation, shown)).unwrap();
    assert!(batch.complete && batch.index >= shown);
}

/// This happens after a restore from an older copy: the index may never come, so the node registers
/// again and gets the present state.
#[test]
fn a_node_that_was_shown_what_nobody_has_any_more_registers_again() {
    let servers = Servers::start(1);
    let leader = servers.leader_among(&[0]);
    let (incarnation, index) = register(&servers, leader);
    let mut lost = stream(&servers, leader, incarnation, index + 1_000);
    assert_eq!(next(&servers, &mut lost), Err(Code::NotFound));
}

/// Otherwise its node would hear nothing of what the others decide.
#[test]
fn a_stream_ends_at_a_server_that_has_lost_touch() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let (incarnation, index) = register(&servers, leader);
    let mut held = stream(&servers, leader, incarnation, index);
    assert!(next(&servers, &mut held).is_ok());
    for other in (0..3).filter(|server| *server != leader) {
        let core = servers.core(other);
        servers.runtime().block_on(core.raft.shutdown()).unwrap();
    }
    assert_eq!(next(&servers, &mut held), Err(Code::Unavailable));
}
