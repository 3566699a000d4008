//! How many workers a server has at the moment, what they take, and what each of them does.
//!
//! Orders go to the workers through a watch channel, so that they end every wait for work at once.
//! What is leased is never given back for an order: it is finished.
//!
//! ```text
//!  PUT ─► settings ─┐
//!                   ├─► Orders (numbered) ─► each worker: take, pause, leave
//!  leadership ──────┘                              └─► its desk: seen, workload ─► GET
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::JobKind;
use ground::{
    clock,
    rt::{self, Instant, Notify, watch},
};
use wire::api::{WorkerChange, WorkerInfo, WorkerSettings, WorkerStatus, Workload};

/// How long a change waits for workers whose dequeue is under way at another server.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// What every worker of a server is told.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    /// Grows with each change.
    number: u64,
    settings: WorkerSettings,
    /// This server leads others, so that only a share of its workers takes something.
    leads_others: bool,
    /// That share, in thousandths.
    leader_share: u32,
}

/// What one worker has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Lease evaluations of these kinds.
    Take(Vec<JobKind>),
    /// Take nothing, and wait for another order.
    Pause,
    /// There are fewer workers now: end.
    Leave,
}

impl Orders {
    /// How many workers take something.
    fn active(&self) -> usize {
        let WorkerSettings { number, .. } = self.settings;
        if !self.leads_others {
            return number;
        }
        let share = usize::try_from(self.leader_share).unwrap_or(usize::MAX);
        number.saturating_mul(share).div_ceil(1_000).min(number)
    }

    /// The order for a worker.
    pub(crate) fn of(&self, worker: usize) -> Order {
        if self.settings.number != 0 && worker >= self.settings.number {
            Order::Leave
        } else if worker < self.active() {
            Order::Take(self.settings.kinds.clone())
        } else {
            Order::Pause
        }
    }
}

/// What a worker says of itself.
#[derive(Debug)]
struct Desk {
    since_ms: u64,
    /// Number of the orders that it acts by.
    seen: u64,
    workload: Workload,
    /// It holds leases.
    is_busy: bool,
    has_stopped: bool,
}

/// The workers of a server, seen from outside.
#[derive(Debug)]
pub(crate) struct Control {
    orders: watch::Sender<Orders>,
    desks: Mutex<BTreeMap<usize, Desk>>,
    /// A worker has seen new orders, begun or ended leases, or gone.
    moved: Notify,
    /// All workers have given back what they had: the server stops.
    are_done: watch::Sender<bool>,
}

impl Control {
    /// Workers as the server's file says; `leader_share` in thousandths.
    pub(crate) fn new(settings: WorkerSettings, leader_share: u32) -> Self {
        let orders = Orders { number: 1, settings, leads_others: false, leader_share };
        Self {
            orders: watch::channel(orders).0,
            desks: Mutex::default(),
            moved: Notify::new(),
            are_done: watch::channel(false).0,
        }
    }

    /// The settings now.
    pub(crate) fn settings(&self) -> WorkerSettings {
        self.orders.borrow().settings.clone()
    }

    /// Every worker, by number.
    pub(crate) fn workers(&self) -> Vec<WorkerInfo> {
        let orders = self.orders.borrow().clone();
        let desks = self.desks();
        let info = |(id, desk): (&usize, &Desk)| WorkerInfo {
            id: *id,
            kinds: orders.settings.kinds.clone(),
            since_ms: desk.since_ms,
            status: status_of(desk, &orders.of(*id)),
            workload: desk.workload,
        };
        desks.iter().map(info).collect()
    }

    /// Changes the settings. Answers once every worker acts by them or finishes what it leased
    /// before: from then on nothing is leased against them.
    pub(crate) async fn set(&self, change: WorkerChange) -> WorkerSettings {
        self.orders.send_if_modified(|orders| {
            let old = orders.settings.clone();
            let WorkerChange { number, kinds } = change;
            orders.settings.number = number.unwrap_or(old.number);
            orders.settings.kinds = kinds.unwrap_or_else(|| old.kinds.clone());
            let is_new = orders.settings != old;
            orders.number += u64::from(is_new);
            is_new
        });
        drop(rt::timeout(SETTLE_MAX, self.settled()).await);
        self.settings()
    }

    /// Waits until no worker acts by earlier orders.
    async fn settled(&self) {
        loop {
            let moved = self.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            let (number, workers) = {
                let orders = self.orders.borrow();
                (orders.number, orders.settings.number)
            };
            let is_settled = {
                let desks = self.desks();
                (0..workers).all(|worker| desks.contains_key(&worker))
                    && desks.values().all(|desk| desk.seen >= number || desk.is_busy)
            };
            if is_settled {
                return;
            }
            moved.await;
        }
    }

    /// Whether this server leads others.
    pub(crate) fn set_leads_others(&self, leads_others: bool) {
        self.orders.send_if_modified(|orders| {
            let is_new = orders.leads_others != leads_others;
            orders.leads_others = leads_others;
            orders.number += u64::from(is_new);
            is_new
        });
    }

    /// Orders as they come.
    pub(crate) fn orders(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }

    /// Gives a desk to each worker that is to be there and has none; their numbers.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let number = self.settings().number;
        let mut desks = self.desks();
        let missing: Vec<usize> = (0..number).filter(|one| !desks.contains_key(one)).collect();
        for one in &missing {
            let workload = Workload::WaitingToDequeue;
            let since_ms = clock::wall_ms();
            let desk = Desk { since_ms, seen: 0, workload, is_busy: false, has_stopped: false };
            desks.insert(*one, desk);
        }
        missing
    }

    /// A worker acts by these orders from now on.
    pub(crate) fn saw(&self, worker: usize, orders: &Orders) {
        self.at_desk(worker, |desk| desk.seen = orders.number);
        self.moved.notify_waiters();
    }

    /// A worker does something else.
    pub(crate) fn does(&self, worker: usize, workload: Workload) {
        self.at_desk(worker, |desk| desk.workload = workload);
    }

    /// A worker has leases, or none any more.
    pub(crate) fn is_busy(&self, worker: usize, is_busy: bool) {
        self.at_desk(worker, |desk| desk.is_busy = is_busy);
        self.moved.notify_waiters();
    }

    /// A worker has ended; its desk goes with it unless its server stops.
    pub(crate) fn left(&self, worker: usize, server_stops: bool) {
        if server_stops {
            self.at_desk(worker, |desk| desk.has_stopped = true);
        } else {
            self.desks().remove(&worker);
        }
        self.moved.notify_waiters();
    }

    /// All workers have ended.
    pub(crate) fn done(&self) {
        self.are_done.send_replace(true);
    }

    /// Waits until all workers have ended, but not longer than `limit`.
    pub(crate) async fn until_done(&self, limit: Duration) {
        let begun = Instant::now();
        if rt::timeout(limit, rt::until_true(&mut self.are_done.subscribe())).await.is_err() {
            tracing::warn!(waited = ?begun.elapsed(), "workers have not given back all leases");
        }
    }

    fn at_desk(&self, worker: usize, work: impl FnOnce(&mut Desk)) {
        if let Some(desk) = self.desks().get_mut(&worker) {
            work(desk);
        }
    }

    fn desks(&self) -> MutexGuard<'_, BTreeMap<usize, Desk>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn status_of(desk: &Desk, order: &Order) -> WorkerStatus {
    if desk.has_stopped {
        return WorkerStatus::Stopped;
    }
    match order {
        Order::Take(_) => WorkerStatus::Started,
        Order::Pause | Order::Leave if desk.workload == Workload::Paused => WorkerStatus::Paused,
        Order::Pause | Order::Leave => WorkerStatus::Pausing,
    }
}

/// A wait for work, of so long or without end: over at once when there are new orders or the server
/// stops.
pub(crate) async fn idle(
    stop: &mut watch::Receiver<bool>,
    orders: &mut watch::Receiver<Orders>,
    wait: Option<Duration>,
) {
    let over = async {
        match wait {
            Some(wait) => rt::sleep(wait).await,
            None => std::future::pending().await,
        }
    };
    rt::select! {
        biased;
        () = rt::until_true(stop) => {}
        _ = orders.changed() => {}
        () = over => {}
    }
}

/// The place of one worker in [`Control`].
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) control: Arc<Control>,
    pub(crate) worker: usize,
}

impl Seat {
    pub(crate) fn does(&self, workload: Workload) {
        self.control.does(self.worker, workload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(number: usize, leads_others: bool, leader_share: u32) -> Orders {
        let settings = WorkerSettings { number, kinds: vec![JobKind::Batch] };
        Orders { number: 1, settings, leads_others, leader_share }
    }

    /// The share of a leader's workers is rounded up; a lone server has no one to leave work to.
    #[test]
    fn a_leader_of_others_uses_its_share_rounded_up() {
        let active = |number, share| orders(number, true, share).active();
        assert_eq!([1, 2, 4, 5].map(|number| active(number, 250)), [1, 1, 1, 2]);
        assert_eq!([active(4, 500), active(4, 1_000), active(4, 0)], [2, 4, 0]);
        assert_eq!(orders(4, false, 250).active(), 4);
    }

    /// The longest wait for work, 30 s after a version mismatch, and the one without end of a
    /// paused worker are cut short by a stop and by new orders (NW-04, NW-07).
    #[tokio::test(start_paused = true)]
    async fn a_wait_for_work_is_cut_short() {
        let control = Control::new(orders(1, false, 1_000).settings, 1_000);
        let (stopping, stop) = watch::channel(false);
        let begun = Instant::now();
        let wait = async |wait: Option<Duration>, after: Duration, cut: &dyn Fn()| {
            let (mut stop, mut orders) = (stop.clone(), control.orders());
            let cuts = async {
                rt::sleep(after).await;
                cut();
            };
            let waits = idle(&mut stop, &mut orders, wait);
            futures_util::future::join(waits, cuts).await;
            begun.elapsed().as_secs()
        };
        let (long, second) = (Some(Duration::from_secs(30)), Duration::from_secs(1));
        assert_eq!(wait(long, second, &|| control.set_leads_others(true)).await, 1);
        assert_eq!(wait(None, second, &|| control.set_leads_others(false)).await, 2);
        assert_eq!(wait(long, second, &|| {}).await, 32);
        assert_eq!(wait(None, second, &|| _ = stopping.send_replace(true)).await, 33);
        assert_eq!(wait(long, Duration::ZERO, &|| {}).await, 33, "it stops");
    }

    #[test]
    fn zero_pauses_and_a_smaller_number_lets_go() {
        let take = Order::Take(vec![JobKind::Batch]);
        let of = |orders: &Orders| [0, 1, 2].map(|worker| orders.of(worker));
        assert_eq!(of(&orders(0, false, 500)), [Order::Pause, Order::Pause, Order::Pause]);
        assert_eq!(of(&orders(2, false, 500)), [take.clone(), take.clone(), Order::Leave]);
        assert_eq!(of(&orders(2, true, 500)), [take, Order::Pause, Order::Leave]);
    }
}
