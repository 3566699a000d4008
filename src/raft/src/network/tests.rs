//! What goes out to a peer and what comes back, over a transport that answers as a test says.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use ground::disk::RealDisk;
use openraft::{base::BoxStream as RaftStream, entry::RaftEntry};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use wire::rpc::transport::ReplyStream;

use super::{super::Entry, *};

/// Answers calls by its first function, streams of requests by its second.
struct Fake<C, S>(C, S);

impl<C, S> Transport for Fake<C, S>
where
    C: Fn(Bytes) -> Result<Bytes, Status> + Send + Sync + 'static,
    S: Fn(RaftStream<'static, Bytes>) -> Result<ReplyStream, Status> + Send + Sync + 'static,
{
    fn unary(
        &self,
        _to: &str,
        _path: &'static str,
        _lane: Lane,
        body: Bytes,
        _timeout: Duration,
    ) -> futures_util::future::BoxFuture<'static, Result<Bytes, Status>> {
        futures_util::future::ready((self.0)(body)).boxed()
    }

    fn stream(
        &self,
        _to: &str,
        _path: &'static str,
        _lane: Lane,
        input: RaftStream<'static, Bytes>,
    ) -> futures_util::future::BoxFuture<'static, Result<ReplyStream, Status>> {
        futures_util::future::ready((self.1)(input)).boxed()
    }
}

fn no_calls(_: Bytes) -> Result<Bytes, Status> {
    Err(Status::unavailable("nobody"))
}

fn no_streams(_: RaftStream<'static, Bytes>) -> Result<ReplyStream, Status> {
    Err(Status::unavailable("nobody"))
}

fn peer(transport: impl Transport + 'static, lane: Lane, snapshot_piece_bytes: u64) -> Peer {
    let network = Network {
        id: 1,
        cluster: Arc::default(),
        transport: Arc::new(transport),
        disk: Arc::new(RealDisk),
        snapshot_piece_bytes,
        contact: Arc::new(LeaderContact::new(ground::clock::Clock::default())),
        promises: Arc::new(Promises::new(Promise::default())),
    };
    network.peer(2, &Member::default(), lane)
}

fn id(index: u64) -> super::super::LogId {
    convert::log_id(1, index)
}

/// A request with one entry, or with none but what comes before.
fn request(prev: Option<u64>, entry: Option<u64>) -> AppendEntriesRequest<TypeConfig> {
    AppendEntriesRequest {
        vote: Vote::new(1, 1),
        prev_log_id: prev.map(id),
        entries: entry.map(|index| Entry::new_blank(id(index))).into_iter().collect(),
        leader_commit: None,
    }
}

fn option() -> RPCOption {
    RPCOption::new(Duration::from_secs(1))
}

#[tokio::test]
async fn a_peer_that_is_down_is_dialled_only_after_the_pause_in_the_request_stream() {
    let asked = Arc::new(AtomicBool::new(false));
    let had_asked = Arc::clone(&asked);
    let dialled = move |input| {
        assert!(had_asked.load(Ordering::Relaxed), "dialled before the pause of openraft");
        no_streams(input)
    };
    let mut peer = peer(Fake(no_calls, dialled), Lane::Append, SNAPSHOT_PIECE_BYTES);
    let requests = stream::once(async move {
        asked.store(true, Ordering::Relaxed);
        request(None, None)
    });
    let result = peer.stream_append(requests.boxed(), option()).await;
    assert!(matches!(result, Err(RPCError::Unreachable(_))), "an unreachable peer is an error");
}

#[tokio::test]
async fn a_snapshot_that_is_never_taken_in_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("one.snapshot");
    let damaged: fn() -> Result<u64, Status> = || Err(Status::data_loss("damaged"));
    for (last, least, most) in [(damaged, 3, 3), (|| Ok(0), 6, 60)] {
        std::fs::write(&path, "abc").unwrap();
        let pieces = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&pieces);
        let take_in = move |body: Bytes| {
            counted.fetch_add(1, Ordering::Relaxed);
            let piece = pb::SnapshotChunkRequest::decode(body).unwrap();
            let end = piece.offset + piece.data.len() as u64;
            let next_offset = if piece.done { last()? } else { end };
            let reply = pb::SnapshotChunkReply { next_offset, vote: None };
            Ok(Bytes::from(reply.encode_to_vec()))
        };
        let peer = peer(Fake(take_in, no_streams), Lane::Snapshot, 1);
        let file = SnapshotFile { path: path.clone() };
        let snapshot = Snapshot { meta: super::super::SnapshotMeta::default(), snapshot: file };
        assert!(peer.send_snapshot(Vote::new(1, 1), snapshot).await.is_err());
        let sent = pieces.load(Ordering::Relaxed);
        assert!((least..=most).contains(&sent), "{sent} pieces");
        assert_eq!(path.exists(), sent > 3, "what is damaged here too is not sent again");
    }
}

/// Found by the simulation (seed 31942): a leader that was deposed while it was cut off took a
/// reply that had been under way all the time for one to the commit index it had just sent, and
/// answered a read with a state that had been written over.
#[tokio::test]
async fn a_reply_to_entries_does_not_answer_the_commit_index_that_follows() {
    let (ask, requests) = mpsc::channel(3);
    let (answer, replies) = mpsc::channel(3);
    let replies: Mutex<Option<ReplyStream>> =
        Mutex::new(Some(ReceiverStream::new(replies).boxed()));
    let serve = move |input: RaftStream<'static, Bytes>| {
        // Takes every request as soon as there is one.
        tokio::spawn(input.for_each(|_| std::future::ready(())));
        replies.lock().unwrap().take().ok_or_else(|| Status::internal("one stream"))
    };
    let mut peer = peer(Fake(no_calls, serve), Lane::Append, SNAPSHOT_PIECE_BYTES);
    for one in [request(None, Some(1)), request(Some(1), None), request(Some(1), Some(2))] {
        ask.try_send(one).unwrap();
    }
    let mut seen = peer.stream_append(ReceiverStream::new(requests), option()).await.unwrap();
    tokio::task::yield_now().await;
    let reply = |index| {
        let reply = stream_result_to_pb(Ok(Some(id(index)))).encode_to_vec();
        answer.try_send(Ok(Bytes::from(reply))).unwrap();
    };
    reply(1);
    assert!(seen.next().now_or_never().is_none(), "it would answer the second request too");
    reply(1);
    let matching = |found: Option<Option<_>>| match found {
        Some(Some(Ok(Ok(Some(found))))) => Some(found),
        _ => None,
    };
    assert_eq!(matching(seen.next().now_or_never()), Some(id(1)), "the third has an entry");
    reply(2);
    assert_eq!(matching(seen.next().now_or_never()), Some(id(2)));
}
