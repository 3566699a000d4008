//! Drives commands into servers over gRPC: over batch streams, or one call each. Knows nothing of
//! what the commands mean.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use fsm::{Command, Proposal, Reply, RequestId, codec, session::Request};
use proto::v1 as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};
use wire::api;

use super::{
    cluster,
    measure::{Latencies, Window},
};

/// How long a server may take for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a write that was turned away.
const PAUSE: Duration = Duration::from_millis(20);

/// Where commands come from and their outcomes go.
pub(super) trait Work: Send + 'static {
    /// The next command with a number of its own; none when there is nothing to send just now.
    fn next(&mut self) -> Option<(u64, Command)>;
    /// What became of a command.
    fn done(&mut self, number: u64, outcome: Outcome);
}

/// What became of one command.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Committed and applied.
    Applied(Reply),
    /// Turned away, or nobody knows.
    Failed(String),
}

/// How commands travel.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    /// One connection per lane.
    pub(super) channels: Vec<Channel>,
    /// Commands under way on all lanes together.
    pub(super) in_flight: u32,
    /// One call each instead of a stream.
    pub(super) unary: bool,
}

/// What came back.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Writes that were acknowledged within the window.
    pub(super) acknowledged: u64,
    /// Their latencies.
    pub(super) latencies: Latencies,
    /// Failures and rejections, at any time.
    pub(super) failed: u64,
    /// One of them.
    pub(super) failure: Option<String>,
}

impl Tally {
    fn merge(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.latencies.merge(&other.latencies);
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    fn note(&mut self, window: &Window, sent: Instant, result: &Outcome) {
        match result {
            Outcome::Applied(Reply::Rejected(rejection)) => {
                self.failed += 1;
                self.failure.get_or_insert_with(|| rejection.to_string());
            }
            Outcome::Applied(_) => {
                let now = Instant::now();
                if window.contains(now) {
                    self.acknowledged += 1;
                    self.latencies.add(now - sent);
                }
            }
            Outcome::Failed(error) => {
                self.failed += 1;
                self.failure.get_or_insert_with(|| error.clone());
            }
        }
    }
}

/// Sixteen bytes that no other command of any run has.
pub(super) fn fresh_id() -> [u8; 16] {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    static RUN: std::sync::OnceLock<[u8; 16]> = std::sync::OnceLock::new();
    let mut id = *RUN.get_or_init(ground::rt::random_id);
    id[8..].copy_from_slice(&NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    id
}

fn message(tag: u64, command: Command) -> pb::WriteRequest {
    // Time and hash are stamped by the server; the id makes a retry of the servers safe.
    let request = Request { id: RequestId(fresh_id()), stamped_at: 0, payload_hash: 0 };
    let proposal = Proposal { at: 0, epoch: None, request: Some(request), command };
    pb::WriteRequest {
        command: codec::encode(&proposal),
        request_id: bytes::Bytes::new(),
        times_forwarded: 0,
        tag,
        timeout_ms: u32::try_from(WRITE_TIMEOUT.as_millis()).unwrap_or(u32::MAX),
    }
}

fn outcome(reply: Result<pb::WriteReply, Status>) -> Outcome {
    match reply {
        Ok(pb::WriteReply { failure: Some(failure), .. }) => {
            let error = api::failure::error_of(failure);
            let text = error.map_or("an unknown failure".to_owned(), |error| error.to_string());
            Outcome::Failed(text)
        }
        Ok(reply) => match codec::decode(&reply.reply) {
            Ok(decoded) => Outcome::Applied(decoded),
            Err(error) => Outcome::Failed(format!("the reply does not decode: {error}")),
        },
        Err(status) => Outcome::Failed(format!("{}: {}", status.code(), status.message())),
    }
}

/// One write by one call.
pub(super) async fn write_once(channel: &Channel, command: Command) -> Outcome {
    let reply = cluster::client(channel.clone()).write(message(0, command)).await;
    outcome(reply.map(tonic::Response::into_inner))
}

/// Sends every lane's work until it has no more and all is answered, or the window is over. Returns
/// the works and what came back.
pub(super) async fn drive<W: Work>(
    lanes: &Lanes,
    works: Vec<W>,
    window: Window,
) -> anyhow::Result<(Vec<W>, Tally)> {
    let mut tasks = Vec::new();
    let count = u32::try_from(works.len()).unwrap_or(u32::MAX).max(1);
    for (number, work) in (0u32..).zip(works) {
        // As even as whole numbers allow.
        let share = lanes.in_flight / count + u32::from(number < lanes.in_flight % count);
        let client =
            cluster::client(lanes.channels[number as usize % lanes.channels.len()].clone());
        let unary = lanes.unary;
        tasks.push(tokio::spawn(async move {
            if unary {
                calls(client, work, share, window).await
            } else {
                stream(client, work, share, window).await
            }
        }));
    }
    let mut tally = Tally::default();
    let mut works = Vec::new();
    for task in tasks {
        let (work, one) = task.await??;
        works.push(work);
        tally.merge(one);
    }
    Ok((works, tally))
}

/// One batch stream with `share` writes under way.
async fn stream<W: Work>(
    mut client: cluster::Client,
    mut work: W,
    share: u32,
    window: Window,
) -> anyhow::Result<(W, Tally)> {
    let (sender, receiver) = mpsc::channel(share.max(1) as usize);
    let mut tally = Tally::default();
    let mut sent: Vec<Option<(u64, Instant)>> = vec![None; share as usize];
    let mut idle: Vec<usize> = (0..share as usize).rev().collect();
    let mut replies = None;
    let mut receiver = Some(receiver);
    loop {
        while Instant::now() < window.end
            && let Some(slot) = idle.pop()
        {
            let Some((number, command)) = work.next() else {
                idle.push(slot);
                break;
            };
            sent[slot] = Some((number, Instant::now()));
            sender.send(message(slot as u64, command)).await.context("the stream ended")?;
        }
        if idle.len() == share as usize {
            return Ok((work, tally));
        }
        if let Some(receiver) = receiver.take() {
            replies = Some(client.write_stream(ReceiverStream::new(receiver)).await?.into_inner());
        }
        let replies = replies.as_mut().context("the stream was opened")?;
        let reply = replies.message().await?.context("the server ended the stream")?;
        let slot = usize::try_from(reply.tag).unwrap_or(usize::MAX);
        let answered = sent.get_mut(slot).and_then(Option::take);
        let (number, begun) = answered.context("a reply to nothing that was asked")?;
        let outcome = outcome(Ok(reply));
        tally.note(&window, begun, &outcome);
        work.done(number, outcome);
        idle.push(slot);
    }
}

/// `share` callers with one write under way each.
async fn calls<W: Work>(
    client: cluster::Client,
    work: W,
    share: u32,
    window: Window,
) -> anyhow::Result<(W, Tally)> {
    let work = Arc::new(Mutex::new(work));
    let mut callers = Vec::new();
    for _ in 0..share {
        let (mut client, work) = (client.clone(), Arc::clone(&work));
        callers.push(tokio::spawn(async move {
            let mut tally = Tally::default();
            while Instant::now() < window.end {
                let Some((number, command)) = lock(&work).next() else { break };
                let begun = Instant::now();
                let reply = client.write(message(0, command)).await;
                let outcome = outcome(reply.map(tonic::Response::into_inner));
                tally.note(&window, begun, &outcome);
                let failed = matches!(outcome, Outcome::Failed(_));
                lock(&work).done(number, outcome);
                if failed {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            tally
        }));
    }
    let mut tally = Tally::default();
    for caller in callers {
        tally.merge(caller.await?);
    }
    let work = Arc::into_inner(work).context("every caller has ended")?;
    Ok((work.into_inner().unwrap_or_else(PoisonError::into_inner), tally))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A list of commands, each to be applied once; what was turned away is sent again.
pub(super) struct Commands {
    left: Vec<Command>,
    under_way: Vec<Option<Command>>,
    failures_left: u32,
    /// Rejections, in words.
    pub(super) rejected: Vec<String>,
}

impl Commands {
    /// Deals commands out to as many lists as there are lanes.
    pub(super) fn deal(commands: impl Iterator<Item = Command>, lanes: usize) -> Vec<Self> {
        let mut lists: Vec<Self> = (0..lanes)
            .map(|_| Self {
                left: Vec::new(),
                under_way: Vec::new(),
                failures_left: 10_000,
                rejected: Vec::new(),
            })
            .collect();
        for (number, command) in commands.enumerate() {
            lists[number % lanes].left.push(command);
        }
        for list in &mut lists {
            list.left.reverse();
        }
        lists
    }
}

impl Work for Commands {
    fn next(&mut self) -> Option<(u64, Command)> {
        let command = self.left.pop()?;
        self.under_way.push(Some(command.clone()));
        Some((self.under_way.len() as u64 - 1, command))
    }

    fn done(&mut self, number: u64, outcome: Outcome) {
        let slot = usize::try_from(number).ok().and_then(|number| self.under_way.get_mut(number));
        let Some(command) = slot.and_then(Option::take) else { return };
        match outcome {
            Outcome::Applied(Reply::Rejected(rejection)) => {
                self.rejected.push(rejection.to_string());
            }
            Outcome::Applied(_) => {}
            Outcome::Failed(error) if self.failures_left == 0 => self.rejected.push(error),
            Outcome::Failed(_) => {
                self.failures_left -= 1;
                self.left.push(command);
            }
        }
    }
}

/// Sends a list of commands; any rejection is an error.
pub(super) async fn send_all(
    lanes: &Lanes,
    commands: impl Iterator<Item = Command>,
) -> anyhow::Result<Tally> {
    let works = Commands::deal(commands, lanes.channels.len());
    let (works, tally) = drive(lanes, works, Window::open()).await?;
    let rejected: Vec<String> = works.into_iter().flat_map(|work| work.rejected).collect();
    match rejected.first() {
        None => Ok(tally),
        Some(first) => {
            anyhow::bail!("{} commands were refused, the first because: {first}", rejected.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fsm::upkeep::{MarkDigest, Tick};

    #[test]
    fn a_command_that_was_turned_away_is_sent_again_and_a_rejection_is_kept() {
        let mut lists =
            Commands::deal([Command::from(Tick), Command::from(MarkDigest)].into_iter(), 1);
        let list = &mut lists[0];
        assert_eq!(list.next(), Some((0, Command::from(Tick))));
        list.done(0, Outcome::Failed("overloaded".to_owned()));
        assert_eq!(list.next(), Some((1, Command::from(Tick))));
        list.done(1, Outcome::Applied(Reply::Done));
        assert_eq!(list.next(), Some((2, Command::from(MarkDigest))));
        list.done(2, Outcome::Applied(Reply::Rejected(fsm::Rejection::SessionExpired)));
        assert_eq!((list.next(), list.rejected.len()), (None, 1));
    }
}
