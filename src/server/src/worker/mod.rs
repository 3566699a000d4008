//! Scheduling workers. Every server runs them, leader and follower: lease from the leader, wait
//! until the local state has caught up, plan on a snapshot, submit to the leader, wait for what it
//! says, acknowledge.
//!
//! | wait | sequence |
//! |---|---|
//! | index | woken by apply; looks after 20, 80, 320, 1000 ms; after 5 s the lease is released |
//! | | (no delivery), and no worker leases before the server has caught up |
//! | dequeue error | 20 ms, times 4 up to 10 s; not logged in the first 10 s |
//! | resubmit | 500 ms, times 4 up to 10 s; for no leader, a disabled queue, an unknown outcome |
//! | full plan queue | 20 ms, times 4 up to 1 s; the same plan, and no attempt |
//! | scheduler version mismatch | 30 s |
//!
//! Every wait for work ends at once when the workers are paused or set otherwise (`control.rs`);
//! what is leased is finished. Every wait ends at once when the server stops, and what is leased is
//! given back.

mod backoff;
mod control;
mod leader_link;
mod lease;
mod stats;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use fsm::{Index, JobKind};
use ground::rt::{self, Instant, JoinSet, watch};
use leader::broker::NackReason;
use scheduler::Memory;
use tonic::{Code, Status};
use wire::{
    api::{Dequeue, Lease, Workload},
    published::StateCell,
};

use crate::{
    leadership::{leading::Leading, worker_calls},
    member::{contact::Contact, identity::Cluster},
    worker::leader_link::LeaderLink,
};

pub(crate) use self::control::Control;
pub use self::lease::make_pass;
pub(crate) use self::stats::WorkerStats;
use self::{
    backoff::Backoffs,
    control::{Order, Orders, Seat},
};

const DEQUEUE_WAIT: Duration = Duration::from_millis(500);
/// How long to wait for the local state after a release for lag, before the next check of whether
/// it still lags.
const LAG_WAIT: Duration = Duration::from_secs(5);
const QUIET_START: Duration = Duration::from_secs(10);
const VERSION_WAIT: Duration = Duration::from_secs(30);
/// Pause before the next look at whether this server has a cluster.
const CLUSTER_WAIT: Duration = Duration::from_millis(100);
/// Leases taken at once when the queue is deep.
const LEASES_MAX: u32 = 4;
/// How long a server that stops may take to give its leases back.
pub(crate) const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

/// What the workers of a server share.
#[derive(Clone)]
pub(crate) struct Workplace {
    pub(crate) contact: Arc<Contact>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) cell: Arc<StateCell>,
    pub(crate) leading: Arc<Leading>,
    pub(crate) stats: Arc<WorkerStats>,
    pub(crate) control: Arc<Control>,
    /// Where passes are made.
    pub(crate) passes: rt::Threads,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Starts workers as the settings ask for them, until the server stops and all have given back what
/// they had.
pub(crate) async fn run(place: Workplace) {
    let Workplace { control, leading, mut stop, .. } = place.clone();
    let (mut orders, mut leads_others) = (control.orders(), leading.leads_others());
    let mut workers = JoinSet::new();
    while !*stop.borrow() {
        control.set_leads_others(*leads_others.borrow_and_update());
        orders.mark_unchanged();
        for number in control.missing() {
            rt::spawn_into(&mut workers, Worker::new(&place, number).run());
        }
        rt::select! {
            biased;
            () = rt::until_true(&mut stop) => {}
            _ = leads_others.changed() => {}
            _ = orders.changed() => {}
            // One that left may be wanted again by now.
            _ = workers.join_next(), if !workers.is_empty() => {}
        }
    }
    while workers.join_next().await.is_some() {}
    control.done();
}

struct Worker {
    link: LeaderLink,
    cluster: Arc<Cluster>,
    cell: Arc<StateCell>,
    stats: Arc<WorkerStats>,
    seat: Seat,
    orders: watch::Receiver<Orders>,
    stop: watch::Receiver<bool>,
    /// Candidate nodes of the last pass, kept as long as the nodes do not change.
    memory: Arc<Mutex<Memory>>,
    /// Where passes are made.
    passes: rt::Threads,
    /// Leases that are not ended; the first is being worked on.
    hand: VecDeque<Lease>,
    backoffs: Backoffs,
    started: Instant,
}

/// What a dequeue came to.
enum Dequeued {
    Leases(Vec<Lease>),
    Failed(Status),
    /// New orders, or the server stops.
    Interrupted,
}

impl Worker {
    fn new(place: &Workplace, worker: usize) -> Self {
        let Workplace { contact, cluster, cell, leading, stats, control, passes, stop } =
            place.clone();
        let link = LeaderLink { contact, leading };
        let (orders, seat) = (control.orders(), Seat { control, worker });
        let (memory, started) = (Arc::default(), Instant::now());
        let (hand, backoffs) = (VecDeque::new(), Backoffs::default());
        Self {
            link,
            cluster,
            cell,
            stats,
            seat,
            orders,
            stop,
            memory,
            passes,
            hand,
            backoffs,
            started,
        }
    }

    /// Works until its server stops or there are to be fewer workers.
    async fn run(mut self) {
        let Seat { control, worker } = self.seat.clone();
        tracing::debug!(worker, "worker started");
        while !self.is_stopping() {
            let orders = self.orders.borrow_and_update().clone();
            match orders.of(worker) {
                Order::Leave => break,
                Order::Pause => {
                    self.seat.does(Workload::Paused);
                    control.saw(worker, &orders);
                    self.idle(None).await;
                }
                Order::Take(kinds) => {
                    self.seat.does(Workload::WaitingToDequeue);
                    control.saw(worker, &orders);
                    self.take(kinds).await;
                }
            }
        }
        control.left(worker, self.is_stopping());
        tracing::debug!(worker, "worker ended");
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    async fn idle(&mut self, wait: Option<Duration>) {
        control::idle(&mut self.stop, &mut self.orders, wait).await;
    }

    /// One round: leases, and works on what it got.
    async fn take(&mut self, kinds: Vec<JobKind>) {
        if kinds.is_empty() {
            return self.idle(None).await;
        }
        if self.cluster.get().is_none() {
            return self.idle(Some(CLUSTER_WAIT)).await;
        }
        if let Some(index) = self.lags_behind() {
            return self.catch_up(index).await;
        }
        let begun = Instant::now();
        match self.dequeue(kinds).await {
            Dequeued::Interrupted => {}
            Dequeued::Leases(leases) => {
                self.backoffs.dequeue.reset();
                if !leases.is_empty() {
                    self.stats.times.dequeue.record(begun.elapsed());
                    self.work_on(leases).await;
                }
            }
            Dequeued::Failed(status) if status.code() == Code::Unimplemented => {
                tracing::warn!(%status, "the leader is of another version");
                self.back_off(VERSION_WAIT).await;
            }
            Dequeued::Failed(status) => {
                if self.started.elapsed() > QUIET_START {
                    tracing::debug!(%status, "no leases from the leader");
                }
                let wait = self.backoffs.dequeue.next_wait();
                self.back_off(wait).await;
            }
        }
    }

    async fn back_off(&mut self, wait: Duration) {
        self.seat.does(Workload::BackingOff);
        self.idle(Some(wait)).await;
    }

    /// The index that this server has to reach before it leases again, if it is behind.
    fn lags_behind(&self) -> Option<Index> {
        let index = self.stats.caught_up_at();
        (self.cell.applied() < index).then_some(index)
    }

    /// Waits until this server has applied an index, for a while.
    async fn catch_up(&mut self, index: Index) {
        self.seat.does(Workload::WaitingForIndex);
        let cell = Arc::clone(&self.cell);
        rt::select! {
            biased;
            () = rt::until_true(&mut self.stop) => {}
            _ = self.orders.changed() => {}
            _ = lease::until_applied(&cell, index, LAG_WAIT) => {}
        }
    }

    async fn dequeue(&mut self, kinds: Vec<JobKind>) -> Dequeued {
        let request = Dequeue {
            server: self.link.server(),
            kinds,
            leases_max: LEASES_MAX,
            wait: DEQUEUE_WAIT,
            scheduler_version: scheduler::SCHEDULER_VERSION,
        };
        let answer = if let Some(services) = self.link.services() {
            rt::select! {
                biased;
                () = rt::until_true(&mut self.stop) => return Dequeued::Interrupted,
                // A local dequeue that is dropped has leased nothing.
                _ = self.orders.changed() => return Dequeued::Interrupted,
                answer = worker_calls::dequeue(&services, &request) => answer,
            }
        } else {
            // The answer of another server may be on its way with leases. New orders wait for it;
            // when this server stops, they are given back if they come in time.
            let mut asked = Box::pin(self.link.clone().dequeue(request));
            rt::select! {
                biased;
                () = rt::until_true(&mut self.stop) => {
                    rt::spawn(give_back_when_answered(self.link.clone(), asked));
                    return Dequeued::Interrupted;
                }
                answer = &mut asked => answer,
            }
        };
        answer.map_or_else(Dequeued::Failed, Dequeued::Leases)
    }

    /// Works on leases one after the other. When the server stops, those that are not ended are
    /// given back at once, also the one whose plan is under way: its token is not good any more
    /// then, so that the plan either was applied or is refused.
    async fn work_on(&mut self, leases: Vec<Lease>) {
        let Seat { control, worker } = self.seat.clone();
        let count = leases.len() as u64;
        self.stats.held.fetch_add(count, Ordering::Relaxed);
        control.is_busy(worker, true);
        self.hand = leases.into();
        let mut stop = self.stop.clone();
        let is_finished = rt::select! {
            biased;
            () = rt::until_true(&mut stop) => false,
            () = self.work_through() => true,
        };
        if !is_finished {
            let all = std::mem::take(&mut self.hand);
            drop(rt::timeout(GIVE_BACK_MAX, self.give_back(all)).await);
        }
        self.stats.held.fetch_sub(count, Ordering::Relaxed);
        control.is_busy(worker, false);
    }

    async fn work_through(&mut self) {
        while let Some(lease) = self.hand.front().cloned() {
            self.process(&lease).await;
            self.hand.pop_front();
        }
    }

    async fn give_back(&self, leases: VecDeque<Lease>) {
        let all = leases.iter().map(|lease| self.nack(lease, NackReason::Shutdown));
        futures_util::future::join_all(all).await;
    }
}

/// Gives leases back that come for a worker that has stopped.
async fn give_back_when_answered(
    link: LeaderLink,
    asked: impl Future<Output = Result<Vec<Lease>, Status>>,
) {
    for lease in asked.await.unwrap_or_default() {
        if let Err(status) = link.nack(lease.key(), NackReason::Shutdown).await {
            tracing::debug!(%status, "a lease was not given back");
        }
    }
}
