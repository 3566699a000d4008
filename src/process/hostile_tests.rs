//! Messages that no honest server, agent or client sends: each is refused, and nobody ends by it.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fsm::{
    Command, JobKind, Proposal, Rejection, Reply, codec,
    digest::{Digest, DigestVerdict},
    job::RegisterJob,
    upkeep::{MarkDigest, Tick},
};
use proto::v1::{self as pb, cluster_server::Cluster, raft_server::Raft};
use raft::WatchReceiver as _;
use server::{Core, grpc::cluster::ClusterService};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Endpoint,
};
use wire::rpc::transport::BytesCodec;

use super::{HEADER_BYTES_MAX, PEER_WINDOW_BYTES, STREAMS_MAX, WINDOW_BYTES, testing::Servers};

/// What a leader puts on its messages to a follower.
struct Forged {
    header: pb::PeerHeader,
    vote: pb::Vote,
    last: pb::LogId,
}

fn forged(leader: &Core, follower: &Core) -> Forged {
    let metrics = leader.raft.metrics().borrow_watched().clone();
    let cluster = Bytes::copy_from_slice(leader.raft_service().cluster.get().unwrap());
    let vote = pb::Vote { term: metrics.current_term, voted_for: Some(leader.id), committed: true };
    let last = follower.raft.metrics().borrow_watched().clone();
    let index = last.last_log_index.unwrap();
    Forged {
        header: pb::PeerHeader { cluster_id: cluster, from: leader.id, to: follower.id },
        last: pb::LogId { term: vote.term, index },
        vote,
    }
}

/// Sends each message to a follower and expects that it is refused.
fn refused(servers: &Servers, follower: usize, send: impl AsyncFn(&Core) -> Status) {
    let core = servers.core(follower);
    let status = servers.runtime().block_on(send(&core));
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
}

fn everybody_lives(servers: &mut Servers, count: usize, name: &str) {
    for server in 0..count {
        servers.write(server, &format!("{name}-{server}")).unwrap();
        assert!(servers.core(server).failed().borrow().is_none(), "server {server} has ended");
    }
    for server in 0..count {
        servers.restart(server, |_| {});
        servers.wait("it is back", || servers.has(server, &format!("{name}-0")).then_some(()));
    }
}

/// What HTTP/2 lets a server say of its bounds in its first frame (RFC 9113, section 6.5.2).
fn settings_of(servers: &Servers, first: &'static [u8]) -> BTreeMap<u16, u32> {
    let address = servers.rpc(0);
    servers.runtime().block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(first).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(head[3], 4, "the first frame is SETTINGS");
        let mut body = vec![0; usize::from(head[2])];
        stream.read_exact(&mut body).await.unwrap();
        let setting = |pair: &[u8]| {
            let value = u32::from_be_bytes(pair[2..].try_into().unwrap());
            (u16::from_be_bytes([pair[0], pair[1]]), value)
        };
        body.chunks(6).map(setting).collect()
    })
}

#[test]
fn a_server_says_its_bounds_to_every_connection() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    let (streams, window, headers) = (3, 4, 6);
    for (first, window_bytes) in [(&b""[..], WINDOW_BYTES), (b"\x02", PEER_WINDOW_BYTES)] {
        let settings = settings_of(&servers, first);
        assert_eq!(settings[&streams], STREAMS_MAX);
        assert_eq!(settings[&headers], HEADER_BYTES_MAX);
        assert_eq!(settings[&window], window_bytes);
    }
}

/// 60 MB of `1a 00` took more than 4.4 GB.
#[test]
fn messages_of_many_parts_are_refused_by_every_service() {
    let servers = Servers::start(1);
    servers.leader_among(&[0]);
    let parts = Bytes::from([0x1a, 0x00].repeat(7 << 20));
    let endpoint = Endpoint::from_shared(format!("http://{}", servers.rpc(0))).unwrap();
    let refused = servers.runtime().block_on(async {
        let mut client = Grpc::new(endpoint.connect().await.unwrap());
        let mut statuses = Vec::new();
        for path in [
            "/quorate.v1.Agent/UpdateAllocations",
            "/quorate.v1.Agent/Register",
            "/quorate.v1.Cluster/Probe",
            "/quorate.v1.Scheduler/SubmitPlan",
        ] {
            client.ready().await.unwrap();
            let mut request = Request::new(parts.clone());
            request.metadata_mut().insert("quorate-generation", fsm::GENERATION.into());
            let path = PathAndQuery::from_static(path);
            let reply: Result<tonic::Response<Bytes>, _> =
                client.unary(request, path, BytesCodec).await;
            statuses.push(reply.unwrap_err());
        }
        statuses
    });
    for status in refused {
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        assert!(status.message().contains("more than 250000 parts"), "{status:?}");
    }
}

/// openraft adds to a term without looking: with the last term of the type a server panicked, and
/// had that term on its disk.
#[test]
fn numbers_that_no_server_sends_are_refused_on_every_raft_call() {
    let mut servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let follower = (leader + 1) % 3;
    servers.write(follower, "before").unwrap();
    let known = forged(&servers.core(leader), &servers.core(follower));
    let Forged { header, vote, last } = known;
    let far = vote.term + (1 << 32) + 1;
    for term in [u64::MAX, u64::MAX - 1, 1 << 63, far] {
        for leadership_transfer in [false, true] {
            let vote = pb::Vote { term, voted_for: Some(99), committed: false };
            let last_log_id = Some(pb::LogId { term: vote.term, index: u64::MAX });
            let votes = pb::VoteRequest {
                header: Some(header.clone()),
                vote: Some(vote),
                last_log_id,
                leadership_transfer,
            };
            refused(&servers, follower, async |core| {
                core.raft_service().vote(Request::new(votes.clone())).await.unwrap_err()
            });
            refused(&servers, follower, async |core| {
                core.raft_service().pre_vote(Request::new(votes.clone())).await.unwrap_err()
            });
        }
        let vote = pb::Vote { term, ..vote };
        append_refused(
            &servers,
            follower,
            &pb::AppendEntriesRequest {
                header: Some(header.clone()),
                vote: Some(vote),
                ..Default::default()
            },
        );
        refused(&servers, follower, async |core| {
            let request = pb::TransferLeaderRequest {
                header: Some(header.clone()),
                from_leader: Some(vote),
                to_node: core.id,
                last_log_id: None,
            };
            core.raft_service().transfer_leader(Request::new(request)).await.unwrap_err()
        });
        snapshot_refused(&servers, follower, &header, &vote, |_| {});
    }
    snapshot_refused(&servers, follower, &header, &vote, |piece| piece.size = u64::MAX);
    snapshot_refused(&servers, follower, &header, &vote, |piece| piece.offset = u64::MAX);
    snapshot_refused(&servers, follower, &header, &vote, |piece| {
        piece.last_log_id = Some(pb::LogId { term: 1, index: u64::MAX });
    });
    for end in [u64::MAX, u64::MAX - 1] {
        let end = Some(pb::LogId { term: last.term, index: end });
        let heartbeat = pb::AppendEntriesRequest {
            header: Some(header.clone()),
            vote: Some(vote),
            ..Default::default()
        };
        let (prev_log_id, leader_commit) = (end, end);
        append_refused(
            &servers,
            follower,
            &pb::AppendEntriesRequest { prev_log_id, ..heartbeat.clone() },
        );
        append_refused(
            &servers,
            follower,
            &pb::AppendEntriesRequest { leader_commit, ..heartbeat },
        );
    }
    everybody_lives(&mut servers, 3, "after");
}

fn append_refused(servers: &Servers, follower: usize, message: &pb::AppendEntriesRequest) {
    refused(servers, follower, async |core| {
        core.raft_service().append_entries(Request::new(message.clone())).await.unwrap_err()
    });
    refused(servers, follower, async |core| {
        let one = futures_util::stream::iter([Ok(message.clone())]);
        let mut replies = core.raft_service().append_stream(Box::pin(one));
        loop {
            match futures_util::StreamExt::next(&mut replies).await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return status,
                None => return Status::ok("the stream ended without an error"),
            }
        }
    });
}

fn snapshot_refused(
    servers: &Servers,
    follower: usize,
    header: &pb::PeerHeader,
    vote: &pb::Vote,
    change: impl Fn(&mut pb::SnapshotChunkRequest),
) {
    let mut piece = pb::SnapshotChunkRequest {
        header: Some(header.clone()),
        vote: Some(*vote),
        size: 1,
        data: Bytes::from_static(b"x"),
        ..Default::default()
    };
    change(&mut piece);
    refused(servers, follower, async |core| {
        core.raft_service().snapshot_chunk(Request::new(piece.clone())).await.unwrap_err()
    });
}

/// Stored, such an entry ends the follower at each start.
#[test]
fn an_entry_that_cannot_be_applied_is_not_stored() {
    let mut servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let follower = (leader + 1) % 3;
    servers.write(follower, "before").unwrap();
    let known = forged(&servers.core(leader), &servers.core(follower));
    let Forged { header, vote, last } = known;
    let nobody = pb::Membership::default();
    let payloads = [
        pb::entry::Payload::Command(Bytes::from_static(b"no command")),
        pb::entry::Payload::Command(Bytes::new()),
        pb::entry::Payload::Membership(nobody),
    ];
    for payload in payloads {
        let log_id = Some(pb::LogId { term: vote.term, index: last.index + 1 });
        append_refused(
            &servers,
            follower,
            &pb::AppendEntriesRequest {
                header: Some(header.clone()),
                vote: Some(vote),
                prev_log_id: Some(last),
                entries: vec![pb::Entry { log_id, payload: Some(payload) }],
                leader_commit: log_id,
                silence_ms: 0,
            },
        );
    }
    everybody_lives(&mut servers, 3, "after");
}

fn write(
    servers: &Servers,
    server: usize,
    command: Command,
    times_forwarded: u32,
) -> Result<Reply, Status> {
    let proposal = Proposal { at: 0, epoch: None, request: None, command };
    let request = pb::WriteRequest {
        command: codec::encode(&proposal),
        request_id: Bytes::new(),
        times_forwarded,
        tag: 0,
        timeout_ms: 10_000,
    };
    let service = ClusterService(servers.core(server));
    let reply = servers.runtime().block_on(service.write(Request::new(request)))?;
    Ok(codec::decode(&reply.into_inner().reply).unwrap())
}

/// A verdict that names a digest ends every server that has another one, which is all of them.
#[test]
fn a_forged_digest_verdict_is_refused() {
    let mut servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    servers.write(leader, "before").unwrap();
    let verdict = DigestVerdict { mark: 1, digest: Digest::default() };
    for (server, times_forwarded) in [(leader, 0), (leader, 1), ((leader + 1) % 3, 0)] {
        for command in [Command::from(MarkDigest), verdict.clone().into(), Command::from(Tick)] {
            let status = write(&servers, server, command, times_forwarded).unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
            assert!(status.message().contains("is not taken from"), "{status:?}");
        }
    }
    everybody_lives(&mut servers, 3, "after");
}

/// HTTP refuses it too, but this way does not go through HTTP.
#[test]
fn a_job_of_four_billion_instances_is_refused() {
    let servers = Servers::start(1);
    let leader = servers.leader_among(&[0]);
    let mut spec = fsm::testing::job("wide", JobKind::Service, 1);
    spec.groups[0].count = u32::MAX;
    let command = RegisterJob::new(Arc::new(spec), fsm::EvaluationId([7; 16]));
    let reply = write(&servers, leader, command.into(), 0).unwrap();
    let Reply::Rejected(Rejection::Invalid(why)) = reply else { panic!("{reply:?}") };
    assert!(why.contains("at most 50000 may be"), "{why}");
}
