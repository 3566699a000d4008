//! The outbox of a node. It holds the newest unacknowledged status of each allocation, and sends
//! them in batches until the servers have them. Invariant: a status leaves the outbox only when a
//! server has acknowledged or finally refused it, a newer one has replaced it, or the servers have
//! forgotten the allocation.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::AllocationId;
use ground::rt::{Instant, Notify, sleep, sleep_until, watch};
use prost::Message;
use proto::v1;
use tonic::Code;
use wire::rpc::method;

use crate::{
    session::connection::{Backoff, Connection},
    time::{later, wall_ms},
};

/// A registration in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) incarnation: u64,
    /// Raft index of the registration.
    pub(crate) index: u64,
}

/// Shortest time between two batches.
const BATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Slow answers are a sign of busy servers. The pause before the next batch is the time of the last
/// answer times this number, so that the batch carries more.
const PAUSE_PER_ANSWER: u32 = 4;
/// Longest pause between two batches while they are acknowledged.
const PACED_MAX: Duration = Duration::from_secs(2);
/// How many statuses a batch has at most.
const BATCH_STATUSES_MAX: usize = 1024;
/// Encoded size of a batch, bytes; one status may exceed it.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Longest pause after a failed batch.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The statuses to send.
#[derive(Debug)]
pub(crate) struct Outbox {
    statuses: Mutex<Statuses>,
    filled: Notify,
    emptied: Notify,
    ends: watch::Sender<Ends>,
}

#[derive(Default, Debug)]
struct Statuses {
    pending: BTreeMap<AllocationId, v1::AllocationStatus>,
    /// The task states that the servers have, for allocations that have not ended. A status whose
    /// tasks are the same is sent without them. While a status with other tasks is unacknowledged,
    /// there is no entry, because it is unknown which of them the servers have.
    tasks: BTreeMap<AllocationId, Tasks>,
}

type Tasks = BTreeMap<String, v1::TaskState>;

/// The form in which a status is sent: without tasks if the servers have the same ones.
fn as_sent(
    tasks: &mut BTreeMap<AllocationId, Tasks>,
    id: AllocationId,
    status: &v1::AllocationStatus,
) -> v1::AllocationStatus {
    if tasks.get(&id) != Some(&status.tasks) {
        tasks.remove(&id);
        return status.clone();
    }
    v1::AllocationStatus {
        id: status.id.clone(),
        sequence: status.sequence,
        client_status: status.client_status,
        description: status.description.clone(),
        tasks: Tasks::new(),
        same_tasks: true,
        deployment_id: status.deployment_id.clone(),
        healthy: status.healthy,
        node_failure: status.node_failure.clone(),
    }
}

impl Statuses {
    /// Removes a status that was sent, unless a newer one has replaced it.
    fn take_sent(&mut self, sent: &v1::AllocationStatus) -> Option<AllocationId> {
        let id = AllocationId::from_slice(&sent.id)?;
        if self.pending.get(&id).is_some_and(|now| now.sequence <= sent.sequence) {
            self.pending.remove(&id);
        }
        Some(id)
    }
}

/// How many allocations were reported as ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) completed: u64,
    pub(crate) failed: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            statuses: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            ends: watch::Sender::new(Ends::default()),
        }
    }
}

impl Outbox {
    /// Adds a new status, in place of an older one.
    pub(crate) fn report(&self, id: AllocationId, status: v1::AllocationStatus) {
        let client = status.client_status();
        self.put(id, status);
        if client == v1::ClientStatus::Failed {
            self.ends.send_modify(|ends| ends.failed = ends.failed.saturating_add(1));
        } else if client == v1::ClientStatus::Complete {
            self.ends.send_modify(|ends| ends.completed = ends.completed.saturating_add(1));
        }
    }

    /// Adds a status that was reported before, to be sent complete: the servers may have lost it.
    pub(crate) fn repeat(&self, id: AllocationId, status: v1::AllocationStatus) {
        self.lock().tasks.remove(&id);
        self.put(id, status);
    }

    fn put(&self, id: AllocationId, status: v1::AllocationStatus) {
        let mut statuses = self.lock();
        if statuses.pending.get(&id).is_none_or(|known| known.sequence <= status.sequence) {
            statuses.pending.insert(id, status);
        }
        drop(statuses);
        self.filled.notify_one();
    }

    /// Subscribes to reports of ended allocations.
    pub(crate) fn ends(&self) -> watch::Receiver<Ends> {
        self.ends.subscribe()
    }

    /// Whether a status of the allocation is not acknowledged yet.
    pub(crate) fn is_pending(&self, id: AllocationId) -> bool {
        self.lock().pending.contains_key(&id)
    }

    /// Drops the status of an allocation that the servers have forgotten.
    pub(crate) fn forget(&self, id: AllocationId) {
        let mut statuses = self.lock();
        statuses.pending.remove(&id);
        statuses.tasks.remove(&id);
        if statuses.pending.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Waits until every status is acknowledged.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.lock().pending.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Statuses> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch(&self, statuses_max: usize) -> Vec<v1::AllocationStatus> {
        let mut bytes = 0_usize;
        let mut statuses = self.lock();
        let Statuses { pending, tasks } = &mut *statuses;
        let pending = pending.iter().take(statuses_max);
        pending
            .map(|(id, status)| as_sent(tasks, *id, status))
            .take_while(|status| {
                let first = bytes == 0;
                bytes = bytes.saturating_add(status.encoded_len());
                first || bytes <= BATCH_BYTES_MAX
            })
            .collect()
    }

    /// Records that the servers have these statuses.
    fn acknowledge(&self, sent: Vec<v1::AllocationStatus>) {
        let mut statuses = self.lock();
        for status in sent {
            let Some(id) = statuses.take_sent(&status) else { continue };
            match status.client_status() {
                v1::ClientStatus::Pending | v1::ClientStatus::Running => {
                    if !status.same_tasks {
                        statuses.tasks.insert(id, status.tasks);
                    }
                }
                v1::ClientStatus::Unspecified
                | v1::ClientStatus::Complete
                | v1::ClientStatus::Failed
                | v1::ClientStatus::Lost
                | v1::ClientStatus::Unknown => {
                    statuses.tasks.remove(&id);
                }
            }
        }
        self.sent(statuses);
    }

    /// Drops a status that the servers will never accept.
    fn give_up(&self, refused: &v1::AllocationStatus) {
        let mut statuses = self.lock();
        if let Some(id) = statuses.take_sent(refused) {
            statuses.tasks.remove(&id);
        }
        self.sent(statuses);
    }

    fn sent(&self, statuses: MutexGuard<'_, Statuses>) {
        let empty = statuses.pending.is_empty();
        drop(statuses);
        if empty {
            self.emptied.notify_waiters();
        } else {
            self.filled.notify_one();
        }
    }
}

/// The status of an allocation that does not run here although a server thinks so.
pub(crate) fn not_running(
    message: &v1::Allocation,
    status: v1::ClientStatus,
    description: &str,
) -> v1::AllocationStatus {
    let dead = v1::TaskState {
        phase: v1::TaskPhase::Dead.into(),
        failed: status == v1::ClientStatus::Failed,
        finished_at_ms: wall_ms(),
        ..Default::default()
    };
    let tasks = message.tasks.iter().map(|task| (task.name.clone(), dead.clone())).collect();
    // An allocation that was to be stopped anyway says nothing about the health of its version.
    let is_unhealthy = message.run || status == v1::ClientStatus::Failed;
    v1::AllocationStatus {
        id: message.id.clone(),
        sequence: message.client_sequence.saturating_add(1),
        client_status: status.into(),
        description: description.to_owned(),
        node_failure: String::new(),
        deployment_id: message.deployment_id.clone(),
        healthy: (is_unhealthy && !message.deployment_id.is_empty()).then_some(false),
        tasks,
        same_tasks: false,
    }
}

/// Sends batches for ever. `registered` is `None` while the node is not registered. `unknown` is
/// notified when the servers do not know the node or its incarnation.
pub(crate) async fn send_statuses(
    node_id: [u8; 16],
    connection: Arc<Connection>,
    outbox: Arc<Outbox>,
    mut registered: watch::Receiver<Option<Registered>>,
    unknown: Arc<Notify>,
) {
    let mut backoff = Backoff::new(RETRY_MAX, u64::from(node_id[0]));
    let mut next_at = Instant::now();
    let mut statuses_max = BATCH_STATUSES_MAX;
    loop {
        let filled = outbox.filled.notified();
        let statuses = outbox.batch(statuses_max);
        if statuses.is_empty() {
            filled.await;
            continue;
        }
        sleep_until(next_at).await;
        let Some(current) = current(&mut registered).await else { return };
        // Collect again, so that statuses that came during the pause are sent too.
        let statuses = outbox.batch(statuses_max);
        let request = v1::UpdateAllocationsRequest {
            node_id: node_id.to_vec().into(),
            incarnation: current.incarnation,
            statuses,
        };
        let asked_at = Instant::now();
        let sent = connection.call(&method::UPDATE_ALLOCATIONS, &request).await;
        next_at = later(pause_after(asked_at.elapsed()));
        match sent {
            Ok(_) => {
                backoff.reset();
                statuses_max = statuses_max.saturating_mul(2).min(BATCH_STATUSES_MAX);
                outbox.acknowledge(request.statuses);
            }
            Err(status) => {
                tracing::debug!(code = ?status.code(), message = status.message(), "statuses not taken");
                if status.code() == Code::NotFound {
                    unknown.notify_one();
                }
                if status.code() == Code::InvalidArgument {
                    // One status that the servers cannot read must not hold up the others. Halve
                    // the batch until that status is alone.
                    if let [alone] = request.statuses.as_slice() {
                        tracing::error!(message = status.message(), status = ?alone, "a status is refused for good");
                        outbox.give_up(alone);
                        statuses_max = BATCH_STATUSES_MAX;
                    } else {
                        statuses_max = (request.statuses.len() / 2).max(1);
                    }
                    continue;
                }
                sleep(backoff.next()).await;
            }
        }
    }
}

/// The pause before the next batch, given how long the last answer took.
fn pause_after(answer: Duration) -> Duration {
    answer.saturating_mul(PAUSE_PER_ANSWER).clamp(BATCH_INTERVAL, PACED_MAX)
}

/// Waits for a registration. `None`: there will be none any more.
pub(crate) async fn current(
    registered: &mut watch::Receiver<Option<Registered>>,
) -> Option<Registered> {
    registered.wait_for(Option::is_some).await.ok().and_then(|value| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(id: u8, sequence: u64) -> v1::AllocationStatus {
        v1::AllocationStatus { id: vec![id; 16].into(), sequence, ..Default::default() }
    }

    #[test]
    fn only_what_was_sent_is_acknowledged() {
        let outbox = Outbox::default();
        let id = AllocationId([1; 16]);
        outbox.report(id, status(1, 1));
        let sent = outbox.batch(BATCH_STATUSES_MAX);
        outbox.report(id, status(1, 2));
        outbox.report(id, status(1, 1));
        outbox.acknowledge(sent);
        assert!(outbox.is_pending(id), "the newer status was never sent");
        let sent = outbox.batch(BATCH_STATUSES_MAX);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].sequence, 2);
        outbox.acknowledge(sent);
        assert!(!outbox.is_pending(id));
    }

    /// A change of health alone is sent without the tasks if the servers have them. What the
    /// servers may lack is sent complete.
    #[test]
    fn tasks_that_the_servers_have_are_left_out() {
        let outbox = Outbox::default();
        let id = AllocationId([1; 16]);
        let running = |sequence, restarts| {
            let task = v1::TaskState { restarts, ..Default::default() };
            let tasks = [("server".to_owned(), task)].into();
            let client_status = v1::ClientStatus::Running.into();
            v1::AllocationStatus { tasks, client_status, ..status(1, sequence) }
        };
        let sent = |outbox: &Outbox| {
            let batch = outbox.batch(BATCH_STATUSES_MAX);
            let [one] = batch.as_slice() else { panic!("one is sent: {batch:?}") };
            assert_eq!(one.same_tasks, one.tasks.is_empty());
            (one.same_tasks, batch)
        };
        let says = |sequence, restarts, leaves_out: bool| {
            outbox.report(id, running(sequence, restarts));
            let (left_out, batch) = sent(&outbox);
            assert_eq!(left_out, leaves_out, "of {sequence}");
            batch
        };
        says(1, 0, false);
        // It may not have come.
        outbox.acknowledge(says(2, 0, false));
        says(3, 0, true);
        outbox.acknowledge(says(4, 1, false));
        outbox.acknowledge(says(5, 1, true));
        // What was sent meanwhile may have come, and be other than what is said now.
        says(6, 2, false);
        outbox.acknowledge(says(7, 1, false));
        // Servers that ask for all of it may have lost it.
        outbox.repeat(id, running(7, 1));
        assert!(!sent(&outbox).0);
        // An answer to what was sent before is of servers that have it.
        outbox.acknowledge(sent(&outbox).1);
        // What is refused for good they do not have.
        outbox.give_up(&says(8, 2, false)[0]);
        outbox.acknowledge(says(9, 2, false));
        outbox.forget(id);
        says(10, 2, false);
    }

    #[test]
    fn busy_servers_get_fewer_and_larger_batches() {
        for (answer_ms, pause_ms) in [(0, 200), (50, 200), (100, 400), (400, 1600), (60_000, 2000)]
        {
            let pause = pause_after(Duration::from_millis(answer_ms));
            assert_eq!(pause, Duration::from_millis(pause_ms), "{answer_ms} ms");
        }
    }

    #[test]
    fn an_allocation_stopped_before_its_start_is_not_unhealthy() {
        let mut message =
            v1::Allocation { deployment_id: vec![7; 16].into(), ..Default::default() };
        let mut says = |run, status| {
            message.run = run;
            not_running(&message, status, "").healthy
        };
        assert_eq!(says(false, v1::ClientStatus::Complete), None);
        assert_eq!(says(true, v1::ClientStatus::Complete), Some(false));
        assert_eq!(says(false, v1::ClientStatus::Failed), Some(false));
    }

    #[tokio::test]
    async fn a_forgotten_allocation_is_not_waited_for() {
        let outbox = Arc::new(Outbox::default());
        let id = AllocationId([1; 16]);
        outbox.report(id, status(1, 1));
        let waits = Arc::clone(&outbox);
        let waits = tokio::spawn(async move { waits.empty().await });
        tokio::task::yield_now().await;
        outbox.forget(id);
        let waited = tokio::time::timeout(Duration::from_mins(1), waits).await;
        assert!(matches!(waited, Ok(Ok(()))), "nobody woke it");
    }

    #[test]
    fn batches_are_bounded() {
        let outbox = Outbox::default();
        for number in 0..2000_u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            outbox.report(
                AllocationId(id),
                v1::AllocationStatus { id: id.to_vec().into(), ..Default::default() },
            );
        }
        assert_eq!(outbox.batch(BATCH_STATUSES_MAX).len(), BATCH_STATUSES_MAX);
        let large = Outbox::default();
        for id in 0..3 {
            let description = "x".repeat(BATCH_BYTES_MAX);
            large.report(
                AllocationId([id; 16]),
                v1::AllocationStatus { description, ..status(id, 1) },
            );
        }
        assert_eq!(large.batch(BATCH_STATUSES_MAX).len(), 1);
    }
}
