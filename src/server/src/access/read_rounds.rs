//! Read indexes for many reads at once: reads that wait at the same time share one request to the
//! leader.
//!
//! ```text
//!  reads ─► bounded queue ─► one round for all that wait ─► every one of them
//!                            (this server's Raft, or one call to the leader)
//! ```
//! Invariant: a read is only answered from a round that began after the read was queued, or it
//! would miss a write acknowledged before it. A round that hangs holds up the next one for
//! [`ROUND_WAIT`] only.

use std::{sync::Arc, time::Duration};

use fsm::Index;
use ground::{
    plant::{Plant, is_planted},
    rt::{self, mpsc, oneshot, watch},
};
use openraft::ReadPolicy;
use proto::v1 as pb;
use raft::WatchReceiver;
use wire::{api::ApiError, published::StateCell, rpc::method};

use crate::member::contact::Contact;

/// Reads that may wait for a round; further reads wait for a place in the queue.
const WAITING_MAX: usize = 8_192;
/// How long a round is waited for before the next one may begin.
const ROUND_WAIT: Duration = Duration::from_millis(20);
/// One request to the leader, so that a hung one does not eat the whole deadline of a read.
const ROUND_TIMEOUT: Duration = Duration::from_secs(3);

type Waiting = oneshot::Sender<Result<Index, ApiError>>;

/// The end of the queue that takes reads in.
#[derive(Clone)]
pub(crate) struct ReadRounds(mpsc::Sender<Waiting>);

/// The end of the queue that rounds take reads from.
pub(crate) type Queue = mpsc::Receiver<Waiting>;

pub(crate) fn channel() -> (ReadRounds, Queue) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (ReadRounds(sender), receiver)
}

impl ReadRounds {
    /// The index that a read which begins now has to wait for. May be dropped at any time.
    pub(crate) async fn read_index(&self) -> Result<Index, ApiError> {
        let (waiting, answer) = oneshot::channel();
        let stopping = || ApiError::NotReady("the server is stopping".to_owned());
        self.0.send(waiting).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }
}

/// Runs rounds until the server stops.
pub(crate) async fn run(
    contact: Arc<Contact>,
    cell: Arc<StateCell>,
    mut stop: watch::Receiver<bool>,
    mut queue: Queue,
) {
    loop {
        let first = rt::select! {
            biased;
            () = rt::until_true(&mut stop) => return,
            first = queue.recv() => first,
        };
        let Some(first) = first else { return };
        let mut waiting = vec![first];
        while waiting.len() < WAITING_MAX
            && let Ok(next) = queue.try_recv()
        {
            waiting.push(next);
        }
        let (contact, cell) = (Arc::clone(&contact), Arc::clone(&cell));
        let round = rt::spawn(async move {
            let result = rt::timeout(ROUND_TIMEOUT, round(&contact, &cell)).await;
            let result = result.unwrap_or(Err(ApiError::NoLeader));
            for one in waiting {
                // The receiver of a read that was given up is gone.
                drop(one.send(result.clone()));
            }
        });
        // Whether the round ended or still hangs, the next one may begin.
        drop(rt::timeout(ROUND_WAIT, round).await);
    }
}

async fn round(contact: &Contact, cell: &StateCell) -> Result<Index, ApiError> {
    if contact.leads().is_some() {
        return read_index(contact, cell).await.map(|(index, _)| index);
    }
    let address = contact.leader_address()?;
    let request = pb::ReadIndexRequest { from: contact.id };
    let reply: Result<pb::ReadIndexReply, _> =
        contact.call(&address, &method::READ_INDEX, &request, ROUND_TIMEOUT).await;
    reply.map(|reply| reply.index).map_err(|status| {
        tracing::debug!(%status, "no read index from the leader");
        ApiError::NoLeader
    })
}

/// The index a linearizable read has to wait for, and the term, from this server as the leader.
pub(crate) async fn read_index(
    contact: &Contact,
    cell: &StateCell,
) -> Result<(Index, u64), ApiError> {
    if is_planted(Plant::LeaseWithoutMargin)
        && contact.last_contact()
            < Duration::from_millis(3 * contact.settings.timing.election_ms_max)
    {
        return Ok((cell.applied(), contact.raft.metrics().borrow_watched().current_term));
    }
    let (read, _) = contact.raft.get_read_log_id(ReadPolicy::ReadIndex).await.map_err(|error| {
        tracing::debug!(%error, "no read index");
        ApiError::NoLeader
    })?;
    Ok((read.index(), contact.raft.metrics().borrow_watched().current_term))
}
