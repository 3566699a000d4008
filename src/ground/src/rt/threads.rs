//! Which threads do what, so that no request is stronger than the cluster.
//!
//! ```text
//!  core   usual priority   Raft and its transport, connections of peers, what a leader does
//!  edge   lower            connections of clients and agents, and requests that cost little
//!  heavy  lowest           requests that cost much, lists; passes of the scheduler
//! ```
//! Invariant: no thread of the core parses, plans, filters or schedules what a client asks for.
//! Where everything is one runtime (tests, the simulation), all are [`Threads::HERE`].

use std::{future::Future, io, thread, time::Duration};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{JoinHandle, JoinSet},
};

/// Priorities of threads (`nice`, setpriority(2)): each step is about a fifth of the share. The
/// edge is hardly lowered: other programs of a busy machine are not to go first.
const EDGE_NICE: i32 = 2;
const HEAVY_NICE: i32 = 10;
/// Threads of the core at least: one may be in a long piece of applying while the other beats.
const CORE_THREADS_MIN: usize = 2;

/// The runtimes of a process.
#[derive(Debug)]
pub struct Runtimes {
    core: Runtime,
    edge: Runtime,
    heavy: Runtime,
}

impl Runtimes {
    /// Starts them. Threads that did blocking work stay idle for so long; none: as tokio has it.
    pub fn start(keep_alive: Option<Duration>) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.max(CORE_THREADS_MIN);
        Ok(Self {
            core: runtime("core", threads, keep_alive, None)?,
            edge: runtime("edge", threads, keep_alive, Some(EDGE_NICE))?,
            heavy: runtime("heavy", heavy_threads(), keep_alive, Some(HEAVY_NICE))?,
        })
    }

    /// Runs a future, which starts everything else, on the core.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.core.block_on(future)
    }

    /// Where connections of clients and agents are served.
    pub fn edge(&self) -> Threads {
        Threads(Some(self.edge.handle().clone()))
    }

    /// Where requests that cost much are served, and passes of the scheduler are made.
    pub fn heavy(&self) -> Threads {
        Threads(Some(self.heavy.handle().clone()))
    }

    /// Ends what requests are under way. Work of the core that blocks is waited for, unless a
    /// thread may hang in a disk call.
    pub fn end(self, may_hang: bool) {
        self.edge.shutdown_background();
        self.heavy.shutdown_background();
        if may_hang {
            self.core.shutdown_background();
        }
    }
}

/// Threads for requests that cost much: half of the processors.
pub fn heavy_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).div_ceil(2)
}

/// Processor time that the calling thread has used so far.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn runtime(
    name: &str,
    threads: usize,
    keep_alive: Option<Duration>,
    nice: Option<i32>,
) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(keep_alive) = keep_alive {
        builder.thread_keep_alive(keep_alive);
    }
    if let Some(nice) = nice {
        // Of the calling thread alone: on Linux each has a priority of its own. It may always be
        // lowered.
        builder.on_thread_start(move || {
            if let Err(error) = rustix::process::setpriority_process(None, nice) {
                tracing::debug!(%error, nice, "a thread keeps its priority");
            }
        });
    }
    builder.thread_name(name).worker_threads(threads).enable_all().build()
}

/// Threads on which something runs.
#[derive(Clone, Debug)]
pub struct Threads(Option<Handle>);

impl Threads {
    /// Wherever whoever asks runs.
    pub const HERE: Self = Self(None);

    /// The runtime of whoever asks, to be used by others too.
    pub fn current() -> Self {
        if super::is_simulation() { Self::HERE } else { Self(Handle::try_current().ok()) }
    }

    /// Starts a task there.
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.0 {
            Some(there) => there.spawn(future),
            None => super::spawn(future),
        }
    }

    /// Starts a task of a set there.
    pub fn spawn_into(
        &self,
        set: &mut JoinSet<()>,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        match &self.0 {
            Some(there) => drop(set.spawn_on(future, there)),
            None => super::spawn_into(set, future),
        }
    }

    /// Runs a future there. It ends at its next wait when whoever asked has gone.
    pub async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let Some(there) = &self.0 else { return future.await };
        let mut task = Wanted(there.spawn(future));
        super::value_of(&mut task.0).await
    }

    /// [`run_blocking`](super::run_blocking) on one of these threads.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match &self.0 {
            Some(there) => super::value_of(there.spawn_blocking(work)).await,
            None => super::run_blocking(work).await,
        }
    }

    /// Calls what starts tasks by itself, so that they run there.
    pub fn within<T>(&self, starts: impl FnOnce() -> T) -> T {
        let _guard = self.0.as_ref().map(Handle::enter);
        starts()
    }
}

/// A task that ends with whoever waits for it.
struct Wanted<T>(JoinHandle<T>);

impl<T> Drop for Wanted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::mpsc;

    use rustix::process::getpriority_process;
    use tokio::sync::oneshot;

    use super::*;

    fn priority() -> i32 {
        getpriority_process(None).unwrap()
    }

    #[test]
    fn each_runtime_has_its_priority() {
        let runtimes = Runtimes::start(None).unwrap();
        let (edge, heavy) = (runtimes.edge(), runtimes.heavy());
        let usual = priority();
        runtimes.block_on(async {
            let here = super::super::spawn(async { priority() });
            assert_eq!(here.await.unwrap(), usual, "the core");
            assert_eq!(super::super::run_blocking(priority).await, usual);
            for (threads, nice) in [(&edge, EDGE_NICE), (&heavy, HEAVY_NICE)] {
                assert_eq!(threads.run(async { priority() }).await, nice);
                assert_eq!(threads.spawn(async { priority() }).await.unwrap(), nice);
                assert_eq!(threads.run_blocking(priority).await, nice);
                assert_eq!(
                    threads.within(|| tokio::spawn(async { priority() })).await.unwrap(),
                    nice
                );
            }
            assert_eq!(Threads::HERE.run(async { priority() }).await, usual);
        });
        runtimes.end(false);
    }

    /// All threads of the edge and the heavy place hang, and the core goes on.
    #[test]
    fn work_elsewhere_holds_no_thread_of_the_core() {
        let runtimes = Runtimes::start(None).unwrap();
        let mut held = Vec::new();
        for threads in [runtimes.edge(), runtimes.heavy()] {
            for _ in 0..64 {
                let (release, hang) = mpsc::sync_channel::<()>(1);
                drop(threads.spawn(async move { hang.recv() }));
                held.push(release);
            }
        }
        runtimes.block_on(async {
            super::super::spawn(super::super::sleep(Duration::from_millis(1))).await.unwrap();
        });
        drop(held);
        runtimes.end(false);
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_ends() {
        let (alive, mut gone) = oneshot::channel::<()>();
        let (started, begun) = oneshot::channel();
        let threads = Threads::current();
        let asked = tokio::spawn(async move {
            let work = async move {
                let _alive = alive;
                started.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            threads.run(work).await;
        });
        begun.await.unwrap();
        assert!(gone.try_recv().is_err());
        asked.abort();
        assert!(gone.await.is_err(), "dropped with its asker");
    }
}
