//! Every gRPC message into its service, job files into their parser, and logs and snapshots into
//! their decoders: mutated at random from seeds, the same in every run. Nothing panics, nobody
//! ends, and memory stays bounded. HTTP has the same in `http/tests`, frames in `fsm`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chance::Dice;
use fsm::{
    Command, JobKind, Proposal, State, codec,
    job::RegisterJob,
    settings::{Namespace, UpsertNamespace},
    table::ChangeSet,
};
use ground::{
    disk::{Disk, OpenMode, fault::FaultDisk},
    rt,
};
use prost::Message;
use proto::v1::{
    self as pb, agent_server::Agent, cluster_server::Cluster, raft_server::Raft,
    scheduler_server::Scheduler,
};
use raft::{
    StoredMembership, WatchReceiver as _, applied,
    service::RaftService,
    storage::{
        snapshot_file::{self, SnapshotDirectory},
        wal::{self, EntryId, Wal},
    },
};
use server::grpc::{agent::AgentService, cluster::ClusterService, scheduler::SchedulerService};
use tonic::Request;

use super::testing::Servers;

/// How long one call may take before the next message is sent: some wait for the rest of a cluster.
const CALL_MAX: Duration = Duration::from_millis(20);
/// Time for one of the tests: all of them are far below a minute.
const TIME_MAX: Duration = Duration::from_secs(5);
/// What the process may grow by in a test, KiB.
const GROWTH_KIB_MAX: u64 = 1 << 20;

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Runs `one` with numbers from 0 on until the time is over, at least a hundred times, and looks at
/// memory.
fn repeat(mut one: impl FnMut(u64)) {
    let (begun, before) = (Instant::now(), resident_kib());
    let mut number = 0;
    while number < 100 || begun.elapsed() < TIME_MAX {
        one(number);
        number += 1;
    }
    let growth = resident_kib().saturating_sub(before);
    assert!(growth < GROWTH_KIB_MAX, "{growth} KiB after {number} messages");
}

/// Flips, cuts, repeats, or puts numbers near the end of a type in.
fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let at = dice.index(bytes.len() + 1);
        match dice.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = u8::try_from(dice.below(256)).unwrap(),
            2 => bytes.truncate(at),
            3 => {
                bytes.splice(at..at, [0xff; 9].into_iter().chain([1]));
            }
            4 => {
                let end = (at + dice.index(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => bytes.push(u8::try_from(dice.below(256)).unwrap()),
        }
    }
}

/// A message after damage to its bytes, if it is still one of its type.
fn damaged<M: Message + Default>(message: &M, dice: &mut Dice) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    if dice.one_in(20) {
        bytes = (0..dice.below(200)).map(|_| u8::try_from(dice.below(256)).unwrap()).collect();
    } else {
        mutate(&mut bytes, dice);
    }
    M::decode(&*bytes).ok()
}

/// A command's frame with damage that its checksum does not show.
fn frame(dice: &mut Dice) -> Bytes {
    let command: Command = if dice.one_in(2) {
        let spec = Arc::new(fsm::testing::job("web", JobKind::Service, 2));
        let (enforce_index, evaluation_priority) = (None, None);
        let evaluation = fsm::EvaluationId([7; 16]);
        let (submission, preserve_counts) = (None, false);
        RegisterJob {
            enforce_index,
            evaluation_priority,
            submission,
            preserve_counts,
            ..RegisterJob::new(spec, evaluation)
        }
        .into()
    } else {
        UpsertNamespace { namespace: Namespace { name: "n".into(), ..Namespace::default() } }.into()
    };
    let whole = codec::encode(&Proposal { at: 1, epoch: None, request: None, command });
    let mut payload = whole[codec::HEADER_BYTES..].to_vec();
    mutate(&mut payload, dice);
    let mut frame = whole[..codec::HEADER_BYTES].to_vec();
    frame[6..10].copy_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
    frame[10..14].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    frame.extend(payload);
    frame.into()
}

struct Services {
    raft: RaftService,
    cluster: ClusterService,
    scheduler: SchedulerService,
    agent: AgentService,
}

/// Calls a method with the damaged message; it may be given up, and must not panic.
macro_rules! call {
    ($dice:expr, $service:expr, $method:ident, $message:expr) => {
        if let Some(message) = damaged(&$message, $dice) {
            drop(rt::timeout(CALL_MAX, $service.$method(Request::new(message))).await);
        }
    };
}

impl Services {
    async fn raft(&self, known: (&pb::PeerHeader, u64, u64), dice: &mut Dice) {
        let (header, term, last) = known;
        let header = Some(header.clone());
        let id = |index| Some(pb::LogId { term, index });
        let vote = |committed| Some(pb::Vote { term, voted_for: Some(stranger(term)), committed });
        let entry = |payload| pb::Entry { log_id: id(last + 1), payload: Some(payload) };
        let commands = pb::entry::Payload::Command(frame(dice));
        let append = pb::AppendEntriesRequest {
            header: header.clone(),
            vote: vote(true),
            prev_log_id: id(last),
            entries: vec![entry(commands), entry(pb::entry::Payload::Blank(true))],
            leader_commit: id(last),
            silence_ms: dice.bits(),
        };
        call!(dice, self.raft, append_entries, append);
        if let Some(message) = damaged(&append, dice) {
            let one = futures_util::stream::iter([Ok(message)]);
            let mut replies = self.raft.append_stream(Box::pin(one));
            drop(rt::timeout(CALL_MAX, futures_util::StreamExt::next(&mut replies)).await);
        }
        let (vote_of, last_log_id) = (vote(false), id(last));
        let leadership_transfer = dice.one_in(2);
        let asks = pb::VoteRequest {
            header: header.clone(),
            vote: vote_of,
            last_log_id,
            leadership_transfer,
        };
        call!(dice, self.raft, pre_vote, asks);
        call!(dice, self.raft, vote, asks);
        let transfer = pb::TransferLeaderRequest {
            header: header.clone(),
            from_leader: vote(true),
            to_node: 9,
            last_log_id: id(last),
        };
        call!(dice, self.raft, transfer_leader, transfer);
        let piece = pb::SnapshotChunkRequest {
            header,
            vote: vote(true),
            last_log_id: id(last + 5),
            membership_log_id: id(0),
            membership: Some(pb::Membership::default()),
            size: 5,
            offset: 0,
            data: Bytes::from_static(b"bytes"),
            done: true,
        };
        call!(dice, self.raft, snapshot_chunk, piece);
    }

    async fn cluster(&self, dice: &mut Dice) {
        let write = pb::WriteRequest {
            command: frame(dice),
            request_id: Bytes::new(),
            times_forwarded: u32::try_from(dice.below(3)).unwrap(),
            tag: 1,
            timeout_ms: 10,
        };
        // As it is as well: only its frame is damaged.
        drop(rt::timeout(CALL_MAX, self.cluster.write(Request::new(write.clone()))).await);
        call!(dice, self.cluster, write, write);
        call!(dice, self.cluster, read_index, pb::ReadIndexRequest { from: 1 });
        call!(dice, self.cluster, probe, pb::ProbeRequest { from: 1, ..Default::default() });
        let join = pb::JoinRequest {
            node_id: 9,
            name: "s9".to_owned(),
            rpc_address: "127.0.0.1:1".to_owned(),
            http_address: "127.0.0.1:1".to_owned(),
        };
        call!(dice, self.cluster, join, join);
        call!(
            dice,
            self.cluster,
            transfer_leadership,
            pb::TransferLeadershipRequest { to: Some(9) }
        );
        call!(dice, self.cluster, remove_peer, pb::RemovePeerRequest { id: 9, force: true });
        let plan = pb::SubmitPlanRequest { plan: frame(dice), ..Default::default() };
        call!(dice, self.scheduler, submit_plan, plan);
        call!(dice, self.scheduler, dequeue, pb::DequeueRequest::default());
        call!(dice, self.scheduler, ack, pb::AckRequest::default());
        call!(dice, self.scheduler, nack, pb::NackRequest::default());
    }

    async fn agent(&self, dice: &mut Dice) {
        let id: Bytes = vec![3; 16].into();
        let register = pb::RegisterRequest {
            node_id: id.clone(),
            secret: id.clone(),
            identity: id.clone(),
            name: "n".to_owned(),
            datacenter: "dc1".to_owned(),
            resources: Some(pb::NodeResources { dynamic_port_max: 9, ..Default::default() }),
            start: id.clone(),
            ..Default::default()
        };
        call!(dice, self.agent, register, register);
        let node_id = id.clone();
        let shortage = "disk".to_owned();
        let beat = pb::HeartbeatRequest { node_id, incarnation: 1, shortage };
        call!(dice, self.agent, heartbeat, beat);
        let ready = pb::ReadyRequest { node_id: id.clone(), incarnation: 1, ..Default::default() };
        call!(dice, self.agent, ready, ready);
        let stream =
            pb::StreamAllocationsRequest { node_id: id.clone(), incarnation: 1, index_min: 0 };
        call!(dice, self.agent, stream_allocations, stream);
        let status = pb::AllocationStatus { id: id.clone(), sequence: 1, ..Default::default() };
        let report =
            pb::UpdateAllocationsRequest { node_id: id, incarnation: 1, statuses: vec![status] };
        call!(dice, self.agent, update_allocations, report);
    }
}

/// A server that is none of the cluster.
fn stranger(term: u64) -> u64 {
    term.wrapping_add(1_000_003)
}

#[test]
fn no_message_ends_a_server() {
    let servers = Servers::start(1);
    let core = servers.core(servers.leader_among(&[0]));
    let services = Services {
        raft: core.raft_service(),
        cluster: ClusterService(core.clone()),
        scheduler: SchedulerService(core.clone()),
        agent: AgentService::new(core.clone(), None),
    };
    let cluster = Bytes::copy_from_slice(services.raft.cluster.get().unwrap());
    let header = pb::PeerHeader { cluster_id: cluster, from: 9, to: core.id };
    repeat(|seed| {
        let mut dice = Dice::numbered(33, seed);
        let metrics = core.raft.metrics().borrow_watched().clone();
        let known = (metrics.current_term, metrics.last_log_index.unwrap_or(0));
        servers.runtime().block_on(async {
            services.raft((&header, known.0, known.1), &mut dice).await;
            services.cluster(&mut dice).await;
            services.agent(&mut dice).await;
        });
        assert_eq!(*core.failed().borrow(), None, "seed {seed} has ended the server");
    });
    let metrics = core.raft.metrics().borrow_watched().clone();
    assert!(metrics.running_state.is_ok(), "{:?}", metrics.running_state);
}

#[test]
fn no_job_file_breaks_its_parser() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut files: Vec<String> = std::fs::read_dir(examples)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "hcl"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    files.sort();
    assert!(files.len() > 3);
    repeat(|seed| {
        let mut dice = Dice::numbered(34, seed);
        let mut bytes = dice.choose(&files).into_bytes();
        mutate(&mut bytes, &mut dice);
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(job) = jobspec::parse("job.hcl", &text) {
            let errors = jobspec::to_spec(&job).err().unwrap_or_default();
            // As HCL and as JSON, which it is not: what has no place is shown all the same.
            for file in ["job.hcl", "job.json"] {
                let lines =
                    errors.iter().map(|error| (jobspec::Severity::Error, error.to_string()));
                let (placed, others) = jobspec::placed(file, &text, lines);
                assert_eq!(placed.iter().count() + others.len(), errors.len(), "{placed}");
            }
        }
        drop(jobspec::parse_pool("pool.hcl", &text));
    });
}

/// A segment of a log with its file's name, and a snapshot file.
fn storage_seeds() -> [(Option<String>, Vec<u8>); 2] {
    let disk = FaultDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let folder = Path::new("/log");
    let (wal, mut writer, _) = Wal::open(Arc::clone(&shared), folder, log_options()).unwrap();
    let entries = (1..20)
        .map(|index| wal::LogEntry { id: EntryId { index, term: 1 }, payload: vec![7; 90].into() });
    wal.append(entries.collect(), Box::new(drop)).unwrap();
    wal.save_vote(Bytes::from_static(b"vote"), Box::new(drop)).unwrap();
    while writer.step().unwrap() {}
    let names = shared.list(folder).unwrap();
    let is_segment = |name: &String| Path::new(name).extension().is_some_and(|end| end == "wal");
    let name = names.into_iter().find(is_segment).unwrap();
    let log = shared.read(&folder.join(&name)).unwrap();
    let state = State::genesis(&mut ChangeSet::default());
    let meta = applied::meta(state.head(), &StoredMembership::default(), state.digest());
    let snapshots = SnapshotDirectory::open(Arc::clone(&shared), Path::new("/snapshots")).unwrap();
    let snapshot = shared.read(&snapshots.write(&state, &meta).unwrap()).unwrap();
    [(Some(name), log), (None, snapshot)]
}

fn log_options() -> wal::Options {
    wal::Options {
        segment_bytes_first: 8 << 10,
        segment_bytes_max: 16 << 10,
        ..wal::Options::default()
    }
}

#[test]
fn no_damaged_log_or_snapshot_breaks_its_decoder() {
    let seeds = storage_seeds();
    repeat(|seed| {
        let mut dice = Dice::numbered(35, seed);
        let (log, mut bytes) = dice.choose(&seeds);
        mutate(&mut bytes, &mut dice);
        let disk = FaultDisk::new(seed);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let folder = Path::new("/log");
        shared.create_dir_all(folder).unwrap();
        let path = folder.join(log.as_deref().unwrap_or("x.snapshot"));
        let file = shared.open(&path, OpenMode::Create).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        drop(file);
        if log.is_some() {
            drop(Wal::open(shared, folder, log_options()));
        } else {
            drop(snapshot_file::read(&*shared, &path));
        }
    });
}
