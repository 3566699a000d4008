//! The only file of the server core that names the runtime: tasks, time, channels, randomness.
//!
//! Production and simulation run the same tokio code. A simulation is a current-thread runtime with
//! a paused clock and a seed ([`enter_simulation`]): then time is virtual, every random choice
//! follows from the seed, and [`run_blocking`] needs no other thread, so that one seed gives one
//! trace. Nothing in the core may start a thread of its own or read a clock by other means
//! (docs/adr/0002).
//!
//! Several simulated servers share the thread: the tasks of each form a [`Group`], which a spawned
//! task inherits from the one that spawns it, so that [`kill_group`] ends a whole server at once,
//! as `kill -9` does.

mod threads;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use chance::Dice;
use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{
    TokioInstant, TokioMpsc, TokioMutex, TokioOneshot, TokioRuntime, TokioWatch,
};
use rand::{SeedableRng, rngs::SmallRng};
pub use threads::{Runtimes, Threads, heavy_threads, thread_time};
pub use tokio::{
    select,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc, oneshot, watch},
    task::{AbortHandle, JoinError, JoinHandle, JoinSet},
    time::{Instant, Sleep, error::Elapsed, sleep, sleep_until, timeout},
};

thread_local! {
    static SIMULATION: RefCell<Option<Dice>> = const { RefCell::new(None) };
    static SIMULATION_STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
    static CURRENT_GROUP: Cell<Option<Group>> = const { Cell::new(None) };
    /// Groups that are paused.
    static PAUSED: Cell<usize> = const { Cell::new(0) };
    static GROUPS: RefCell<Groups> = const { RefCell::new(Groups { made: 0, live: BTreeMap::new() }) };
}

/// Makes every random choice on this thread follow from `seed`, and blocking work run on it.
pub fn enter_simulation(seed: u64) {
    SIMULATION.set(Some(Dice::new(seed)));
}

/// Whether this thread simulates.
pub fn is_simulation() -> bool {
    SIMULATION.with_borrow(Option::is_some)
}

/// Random bits: from the operating system, or from the seed in simulation.
pub fn random_u64() -> u64 {
    let simulated = SIMULATION.with_borrow_mut(|dice| dice.as_mut().map(Dice::bits));
    simulated.unwrap_or_else(|| getrandom::u64().expect("the operating system has random numbers"))
}

/// Sixteen random bytes, for ids and tokens.
pub fn random_id() -> [u8; 16] {
    let mut id = [0u8; 16];
    id[..8].copy_from_slice(&random_u64().to_le_bytes());
    id[8..].copy_from_slice(&random_u64().to_le_bytes());
    id[6] = (id[6] & 0x0f) | 0x40; // a version 4 UUID (RFC 9562 section 5.4)
    id[8] = (id[8] & 0x3f) | 0x80;
    id
}

/// Waits until a flag is set, or its owner is gone.
pub async fn until_true(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|set| *set).await);
}

/// Waits until a flag is not set, or its owner is gone.
pub async fn until_false(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|set| !*set).await);
}

/// Virtual time since the simulation first asked.
pub fn simulated_elapsed() -> Duration {
    let started = SIMULATION_STARTED.get().unwrap_or_else(|| {
        let now = Instant::now();
        SIMULATION_STARTED.set(Some(now));
        now
    });
    started.elapsed()
}

/// How long a simulated disk takes for a sync: as a rule a few milliseconds, now and then a stall,
/// more on a disk that was made slow.
pub fn simulated_sync_time() -> Duration {
    let chance = random_u64();
    let micros =
        if chance.is_multiple_of(256) { 20_000 + chance % 200_000 } else { 300 + chance % 2_700 };
    let slow_us_max = with_group(0, |state| state.sync_slow_us_max);
    let slow_us = if slow_us_max == 0 { 0 } else { random_u64() % slow_us_max };
    Duration::from_micros(micros + slow_us)
}

/// Of so many pieces of blocking work one waits for long where threads are busy.
const BUSY_EVERY: u64 = 32;

/// How long simulated blocking work waits for a thread, or its result for whoever asked: as a rule
/// less than a millisecond.
fn simulated_work_time() -> Duration {
    if let Some(ordered) = with_group(None, |state| state.next_work.take()) {
        return ordered;
    }
    let chance = random_u64();
    let usual = chance / BUSY_EVERY % 1_000;
    let busy_us_max = with_group(0, |state| state.busy_us_max);
    let is_late = busy_us_max > 0 && chance.is_multiple_of(BUSY_EVERY);
    Duration::from_micros(if is_late { random_u64() % busy_us_max } else { usual })
}

/// The tasks of one simulated server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Group(u64);

struct GroupState {
    tasks: Vec<AbortHandle>,
    /// Length of `tasks` at which those that have ended are let go.
    prune_at: usize,
    wall: WallClock,
    /// Longest extra time of a sync.
    sync_slow_us_max: u64,
    /// How long blocking work waits at most where threads are busy; 0: they are not.
    busy_us_max: u64,
    /// How long the next blocking work waits.
    next_work: Option<Duration>,
    /// While paused: who has to be polled when it goes on.
    paused: Option<Vec<Waker>>,
}

/// How a group's wall clock differs from virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    /// Ahead by so much at `since`.
    pub offset_ms: i64,
    /// Gains so many milliseconds in a thousand from then on.
    pub drift_per_mille: i64,
    /// Virtual time at which this was set.
    pub since: Duration,
}

impl WallClock {
    fn offset_at(&self, now: Duration) -> i64 {
        let passed = i64::try_from(now.saturating_sub(self.since).as_millis()).unwrap_or(i64::MAX);
        self.offset_ms.saturating_add(passed.saturating_mul(self.drift_per_mille) / 1_000)
    }
}

struct Groups {
    made: u64,
    live: BTreeMap<Group, GroupState>,
}

/// Fewest task handles that a group gathers before it drops those of ended tasks.
const GROUP_PRUNE_MIN: usize = 256;

/// A new group without tasks. Only a simulation has groups.
pub fn new_group() -> Group {
    GROUPS.with_borrow_mut(|groups| {
        groups.made += 1;
        let group = Group(groups.made);
        let state = GroupState {
            tasks: Vec::new(),
            prune_at: GROUP_PRUNE_MIN,
            wall: WallClock::default(),
            sync_slow_us_max: 0,
            busy_us_max: 0,
            next_work: None,
            paused: None,
        };
        groups.live.insert(group, state);
        group
    })
}

/// Ends all tasks of a group at once: none of them is polled again, and what they spawn while they
/// are dropped never runs.
pub fn kill_group(group: Group) {
    let killed = GROUPS.with_borrow_mut(|groups| groups.live.remove(&group));
    let Some(killed) = killed else { return };
    if killed.paused.is_some() {
        PAUSED.set(PAUSED.get() - 1);
    }
    for task in killed.tasks {
        task.abort();
    }
}

/// Stops a group as SIGSTOP does: none of its tasks is polled until [`resume_group`], while time
/// and messages go on.
pub fn pause_group(group: Group) {
    GROUPS.with_borrow_mut(|groups| {
        if let Some(state) = groups.live.get_mut(&group)
            && state.paused.is_none()
        {
            state.paused = Some(Vec::new());
            PAUSED.set(PAUSED.get() + 1);
        }
    });
}

/// Lets a paused group go on.
pub fn resume_group(group: Group) {
    let waiting = GROUPS.with_borrow_mut(|groups| groups.live.get_mut(&group)?.paused.take());
    let Some(waiting) = waiting else { return };
    PAUSED.set(PAUSED.get() - 1);
    for waker in waiting {
        waker.wake();
    }
}

/// Whether a group is paused; then the waker is called when it goes on.
fn is_paused(group: Group, context: &Context<'_>) -> bool {
    PAUSED.get() > 0
        && GROUPS.with_borrow_mut(|groups| {
            let paused = groups.live.get_mut(&group).and_then(|state| state.paused.as_mut());
            paused.is_some_and(|waiting| {
                waiting.push(context.waker().clone());
                true
            })
        })
}

/// Moves the wall clock of a group's server against virtual time.
pub fn set_wall_clock(group: Group, wall: WallClock) {
    of_group(group, |state| state.wall = wall);
}

/// Makes the syncs of a group's server slower, each by a random time up to this; 0: as usual.
pub fn set_sync_slow(group: Group, us_max: u64) {
    of_group(group, |state| state.sync_slow_us_max = us_max);
}

/// Makes the threads for blocking work of a group's server busy: now and then work waits for a
/// random time up to this; 0: as usual.
pub fn set_busy(group: Group, us_max: u64) {
    of_group(group, |state| state.busy_us_max = us_max);
}

/// Lets the next blocking work of a group's server, whichever that is, wait for this long before it
/// is done.
pub fn delay_next_work(group: Group, delay: Duration) {
    of_group(group, |state| state.next_work = Some(delay));
}

/// What is done with the state of a group that lives.
fn of_group<T>(group: Group, work: impl FnOnce(&mut GroupState) -> T) -> Option<T> {
    GROUPS.with_borrow_mut(|groups| groups.live.get_mut(&group).map(work))
}

fn with_group<T>(otherwise: T, work: impl FnOnce(&mut GroupState) -> T) -> T {
    CURRENT_GROUP.get().and_then(|group| of_group(group, work)).unwrap_or(otherwise)
}

/// The wall clock's offset for the task that asks.
pub fn wall_offset_ms() -> i64 {
    let now = simulated_elapsed();
    with_group(0, |state| state.wall.offset_at(now))
}

/// A task, whatever it is.
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A future that knows its group while it runs, and while it is dropped.
struct Grouped<T> {
    group: Group,
    /// Invariant: there until the drop.
    future: Option<Boxed<T>>,
}

impl<T> Future for Grouped<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if is_paused(self.group, context) {
            return Poll::Pending;
        }
        let outer = CURRENT_GROUP.replace(Some(self.group));
        let future = self.future.as_mut().expect("taken by the drop only");
        let polled = future.as_mut().poll(context);
        CURRENT_GROUP.set(outer);
        polled
    }
}

impl<T> Drop for Grouped<T> {
    fn drop(&mut self) {
        let outer = CURRENT_GROUP.replace(Some(self.group));
        self.future = None;
        CURRENT_GROUP.set(outer);
    }
}

/// Starts a task in a group; in one that was killed it never runs.
pub fn spawn_in<T>(group: Group, future: T) -> JoinHandle<T::Output>
where
    T: Future + Send + 'static,
    T::Output: Send + 'static,
{
    spawn_boxed_in(group, Box::pin(future))
}

fn spawn_boxed_in<T: Send + 'static>(group: Group, future: Boxed<T>) -> JoinHandle<T> {
    let task = tokio::spawn(Grouped { group, future: Some(future) });
    enlist(group, task.abort_handle());
    task
}

/// Starts a task, in the group of the task that starts it.
pub fn spawn<T>(future: T) -> JoinHandle<T::Output>
where
    T: Future + Send + 'static,
    T::Output: Send + 'static,
{
    spawn_boxed(Box::pin(future))
}

/// By what tasks come to, and not by what they are: the runtime's part of a task is compiled once
/// for each type, and there are hundreds.
fn spawn_boxed<T: Send + 'static>(future: Boxed<T>) -> JoinHandle<T> {
    match CURRENT_GROUP.get() {
        None => tokio::spawn(future),
        Some(group) => spawn_boxed_in(group, future),
    }
}

/// Starts a task of a set, in the group of the task that starts it.
pub fn spawn_into<F>(set: &mut JoinSet<()>, future: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    spawn_boxed_into(set, Box::pin(future));
}

fn spawn_boxed_into(set: &mut JoinSet<()>, future: Boxed<()>) {
    match CURRENT_GROUP.get() {
        None => drop(set.spawn(future)),
        Some(group) => {
            let task = set.spawn(Grouped { group, future: Some(future) });
            enlist(group, task);
        }
    }
}

/// Has a task end with its group; at once when the group is no more.
fn enlist(group: Group, task: AbortHandle) {
    GROUPS.with_borrow_mut(|groups| match groups.live.get_mut(&group) {
        Some(state) => {
            if state.tasks.len() >= state.prune_at {
                state.tasks.retain(|task| !task.is_finished());
                state.prune_at = GROUP_PRUNE_MIN.max(state.tasks.len() * 2);
            }
            state.tasks.push(task);
        }
        None => task.abort(),
    });
}

/// Runs work that computes or blocks for long, away from the async threads. It is done also when
/// whoever asked for it has gone. On a simulated server it is done at one moment, some time after
/// it was asked for, and its result comes some time later.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run_boxed(Box::new(work)).await
}

async fn run_boxed<T: Send + 'static>(work: Box<dyn FnOnce() -> T + Send>) -> T {
    let task = match CURRENT_GROUP.get() {
        Some(group) => spawn_in(group, async move {
            sleep(simulated_work_time()).await;
            let result = work();
            sleep(simulated_work_time()).await;
            result
        }),
        // Storage that is tried out alone needs no clock.
        None if is_simulation() => return work(),
        None => tokio::task::spawn_blocking(work),
    };
    value_of(task).await
}

/// What a task comes to; its panic goes on here. Only the end of its runtime cancels one: then
/// whoever waits is about to end too.
async fn value_of<T>(task: impl Future<Output = Result<T, JoinError>>) -> T {
    match task.await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
    }
}

/// The runtime as openraft sees it: tokio, with our source of randomness.
#[derive(Debug)]
pub struct Rt(TokioRuntime);

impl AsyncRuntime for Rt {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = TokioMpsc;
    type Watch = TokioWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        SmallRng::seed_from_u64(random_u64())
    }

    fn new(threads: usize) -> Self {
        Self(<TokioRuntime as AsyncRuntime>::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

/// The value behind a mutex, also after a thread has panicked that held it.
pub fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    /// A task that counts, and starts another one that counts.
    async fn count_twice(counter: Arc<AtomicU64>) {
        let other = Arc::clone(&counter);
        spawn(async move {
            loop {
                other.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        loop {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn simulated_blocking_work_comes_late_and_is_done_without_its_asker() {
        enter_simulation(1);
        let group = new_group();
        let done = Arc::new(AtomicU64::new(0));
        let work = || {
            let done = Arc::clone(&done);
            async move { run_blocking(move || done.fetch_add(1, Ordering::Relaxed)).await }
        };
        assert_eq!(spawn_in(group, work()).await.unwrap(), 0);

        let delay = Duration::from_millis(200);
        delay_next_work(group, delay);
        let impatient = timeout(delay / 10, work());
        assert!(spawn_in(group, impatient).await.unwrap().is_err());
        assert_eq!(done.load(Ordering::Relaxed), 1, "nobody waits for it, and it is to come");
        while done.load(Ordering::Relaxed) < 2 {
            sleep(delay / 10).await;
        }

        delay_next_work(group, delay);
        spawn_in(group, work());
        tokio::task::yield_now().await;
        kill_group(group);
        sleep(2 * delay).await;
        assert_eq!(done.load(Ordering::Relaxed), 2, "it died with its server");
    }

    #[tokio::test]
    async fn one_of_32_pieces_of_work_is_late_where_threads_are_busy() {
        enter_simulation(1);
        let group = new_group();
        let times = || spawn_in(group, async { [(); 1_000].map(|()| simulated_work_time()) });
        let longest = Duration::from_millis(1);
        assert!(times().await.unwrap().iter().all(|time| *time <= longest));
        set_busy(group, 1_000_000);
        let late = times().await.unwrap().iter().filter(|time| **time > longest).count();
        assert!((10..60).contains(&late), "{late} of 1,000");
    }

    #[tokio::test]
    async fn a_killed_group_never_runs_again_and_others_go_on() {
        let (first, second) = (new_group(), new_group());
        let (killed, alive) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let task = spawn_in(first, count_twice(Arc::clone(&killed)));
        let (of_a_set, counter) = (Arc::new(AtomicU64::new(0)), Arc::clone(&killed));
        let set_counter = Arc::clone(&of_a_set);
        let owner = spawn_in(first, async move {
            let mut set = JoinSet::new();
            spawn_into(&mut set, async move {
                loop {
                    set_counter.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
            drop(set.join_next().await);
            counter.fetch_add(1, Ordering::Relaxed);
        });
        spawn_in(second, count_twice(Arc::clone(&alive)));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        kill_group(first);
        let (killed_at, alive_at) = (killed.load(Ordering::Relaxed), alive.load(Ordering::Relaxed));
        let of_a_set_at = of_a_set.load(Ordering::Relaxed);
        assert!(killed_at > 10 && of_a_set_at > 5, "all tasks of the group ran");
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(killed.load(Ordering::Relaxed), killed_at);
        assert_eq!(of_a_set.load(Ordering::Relaxed), of_a_set_at);
        assert!(owner.await.expect_err("it was killed").is_cancelled());
        assert!(alive.load(Ordering::Relaxed) > alive_at + 10);
        assert!(task.await.expect_err("it was killed").is_cancelled());
        let late = spawn_in(first, std::future::ready(1));
        assert!(late.await.expect_err("its group is gone").is_cancelled());
        kill_group(second);
    }

    #[tokio::test]
    async fn a_paused_group_stands_still_until_it_is_resumed() {
        let group = new_group();
        let counter = Arc::new(AtomicU64::new(0));
        spawn_in(group, count_twice(Arc::clone(&counter)));
        let run = async || {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            counter.load(Ordering::Relaxed)
        };
        assert!(run().await > 10);
        pause_group(group);
        let stopped_at = run().await;
        assert_eq!(run().await, stopped_at);
        resume_group(group);
        assert!(run().await > stopped_at + 10);
        pause_group(group);
        kill_group(group);
        assert_eq!(PAUSED.get(), 0, "a killed group is not counted as paused");
    }

    #[test]
    fn a_wall_clock_drifts_from_the_time_it_was_set() {
        let wall =
            WallClock { offset_ms: -500, drift_per_mille: 200, since: Duration::from_secs(10) };
        assert_eq!(wall.offset_at(Duration::from_secs(10)), -500);
        assert_eq!(wall.offset_at(Duration::from_secs(20)), 1_500);
        assert_eq!(WallClock::default().offset_at(Duration::from_secs(20)), 0);
    }
}
