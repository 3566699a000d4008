//! Agents' status reports, gathered over a few milliseconds so that many nodes share one log entry.
//! While an entry of this server is under way, reports gather for the next: the busier the cluster,
//! the more of them share an entry.

use std::time::Duration;

use fsm::{
    Command,
    allocation::{ClientUpdate, NodeReport, UpdateAllocations},
};
use ground::rt::{self, JoinHandle, mpsc, oneshot, watch};
use wire::api::{ApiError, Limit, Written};

use crate::access::writes::Writes;

/// How long the first report of an entry waits for others.
const GATHER: Duration = Duration::from_millis(25);
/// Allocation updates in one entry.
const UPDATES_MAX: usize = 2_000;
/// Size of the reports in one entry, bytes, about: far below what the log takes in one entry.
const BYTES_MAX: usize = 4 << 20;
/// Reports that may wait.
const WAITING_MAX: usize = 16_384;
const TIMEOUT: Duration = Duration::from_secs(10);

type Waiting = (NodeReport, oneshot::Sender<Result<Written, ApiError>>);

/// The end of the queue that takes reports in.
#[derive(Clone)]
pub(crate) struct Reports(mpsc::Sender<Waiting>);

/// The end of the queue that entries are made from.
pub(crate) type Queue = mpsc::Receiver<Waiting>;

pub(crate) fn channel() -> (Reports, Queue) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Reports(sender), receiver)
}

impl Reports {
    /// Hands a report in and waits until it is applied.
    pub(crate) async fn submit(&self, report: NodeReport) -> Result<Written, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send((report, reply)).map_err(|_| ApiError::Overloaded {
            what: Limit::NodeReports,
            limit: WAITING_MAX as u64,
            retry_after_ms: 500,
        })?;
        // The server is stopping, perhaps after the report was proposed.
        answer.await.map_err(|_| ApiError::Unknown)?
    }
}

pub(crate) async fn run(writes: Writes, mut stop: watch::Receiver<bool>, mut queue: Queue) {
    let mut under_way: Option<JoinHandle<()>> = None;
    loop {
        let first = rt::select! {
            biased;
            () = rt::until_true(&mut stop) => return,
            first = queue.recv() => first,
        };
        let Some((report, reply)) = first else { return };
        rt::sleep(GATHER).await;
        if let Some(entry) = under_way.take() {
            rt::select! {
                biased;
                () = rt::until_true(&mut stop) => return,
                // However it ended, those whose reports it had were told.
                _ = entry => {}
            }
        }
        let (mut updates, mut bytes) = (report.updates.len(), bytes_of(&report));
        let mut reports = vec![report];
        let mut replies = vec![reply];
        while updates < UPDATES_MAX
            && bytes < BYTES_MAX
            && let Ok((report, reply)) = queue.try_recv()
        {
            updates += report.updates.len();
            bytes += bytes_of(&report);
            reports.push(report);
            replies.push(reply);
        }
        let writes = writes.clone();
        under_way = Some(rt::spawn(async move {
            let command = Command::from(UpdateAllocations { reports });
            let result = writes.write(command, None, TIMEOUT).await;
            for reply in replies {
                drop(reply.send(result.clone()));
            }
        }));
    }
}

/// Size of a report in an entry, about: its texts, and a guess for the rest.
fn bytes_of(report: &NodeReport) -> usize {
    let of_event = |event: &fsm::TaskEvent| 40 + event.kind.len() + event.message.len();
    let of_task = |task: &fsm::TaskState| {
        40 + task.state.len() + task.events.iter().map(of_event).sum::<usize>()
    };
    let of_update = |update: &ClientUpdate| {
        let tasks = update.tasks.iter().flatten();
        let tasks = tasks.map(|(name, task)| name.len() + of_task(task));
        40 + update.description.len() + tasks.sum::<usize>()
    };
    report.updates.iter().map(of_update).sum()
}
