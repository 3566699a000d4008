//! The only file of the server core that names the runtime: tasks, time, channels, randomness.
//!
//! Production and simulation run the same tokio code. A simulation is a current-thread runtime with a paused clock and a seed
//! ([`enter_simulation`]): then time is virtual, every random choice follows from the seed, and [`run_blocking`] runs in place, so that one seed
//! gives one trace. Nothing in the core may start a thread of its own or read a clock by other means (docs/adr/0002).

use std::{cell::Cell, future::Future, time::Duration};

use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{
    TokioInstant, TokioMpsc, TokioMutex, TokioOneshot, TokioRuntime, TokioWatch,
};
use rand::{SeedableRng, rngs::SmallRng};
pub use tokio::{
    select,
    sync::{Notify, Semaphore, mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, error::Elapsed, sleep, sleep_until, timeout},
};

thread_local! {
    static SIMULATION: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes every random choice on this thread follow from `seed`, and blocking work run in place.
pub fn enter_simulation(seed: u64) {
    SIMULATION.set(Some(seed));
}

/// Whether this thread simulates.
pub fn is_simulation() -> bool {
    SIMULATION.get().is_some()
}

fn split_mix(state: u64) -> (u64, u64) {
    // Constants of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    let next = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = next;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (next, z ^ (z >> 31))
}

/// Random bits: from the operating system, or from the seed in simulation.
pub fn random_u64() -> u64 {
    if let Some(state) = SIMULATION.get() {
        let (next, value) = split_mix(state);
        SIMULATION.set(Some(next));
        return value;
    }
    getrandom::u64().expect("the operating system has random numbers")
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

/// Starts a task.
pub fn spawn<T>(future: T) -> JoinHandle<T::Output>
where
    T: Future + Send + 'static,
    T::Output: Send + 'static,
{
    tokio::spawn(future)
}

/// Runs work that computes or blocks for long, away from the async threads; in place when simulating.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if is_simulation() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("blocking work was cancelled: {error}"),
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
        TokioRuntime::spawn(future)
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
