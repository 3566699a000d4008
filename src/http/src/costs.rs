//! Decides where reads are answered: on the edge's threads, or on the heavy ones if the latest
//! reads of the route held a thread for long.
//!
//! The number of rows does not say what a list costs: a hundred evaluations of a job with a
//! thousand groups are 60 MB. So the processor time of reads is measured. A read that waits for a
//! change holds no thread and costs nothing while it waits.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ground::rt::{Threads, thread_time};

/// A route whose reads hold a thread for longer at a time is answered on the heavy threads: what an
/// honest write may wait for.
const LONG: Duration = Duration::from_millis(2);
/// Each cheaper read lowers the cost of its route by one part of so many: 100 ms become 2 ms with
/// about thirty of them.
const FORGOTTEN: u32 = 8;

/// By route: the longest time for which one poll of a lately answered read held its thread.
#[derive(Debug, Default)]
pub(super) struct Costs(Mutex<BTreeMap<Box<str>, Duration>>);

impl Costs {
    /// Answers a read of a route where what such reads cost lately says.
    pub(super) async fn answer<T: Send + 'static>(
        self: Arc<Self>,
        heavy: &Threads,
        route: Box<str>,
        read: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let is_long = self.of(&route) > LONG;
        let measured = async move {
            let (answer, longest) = measured(read).await;
            self.note(route, longest);
            answer
        };
        if is_long { heavy.run(measured).await } else { measured.await }
    }

    fn of(&self, route: &str) -> Duration {
        let costs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        costs.get(route).copied().unwrap_or_default()
    }

    fn note(&self, route: Box<str>, longest: Duration) {
        let mut costs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cost = costs.entry(route).or_default();
        *cost = longest.max(cost.saturating_sub(*cost / FORGOTTEN));
    }
}

/// The output of a future, and the longest processor time of one of its polls.
async fn measured<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let mut future = pin!(future);
    let mut longest = Duration::ZERO;
    let output = poll_fn(|context| {
        let begin = thread_time();
        let polled = future.as_mut().poll(context);
        longest = longest.max(thread_time().saturating_sub(begin));
        polled
    })
    .await;
    (output, longest)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::thread;

    use super::*;
    use ground::rt::Runtimes;

    /// Computes for so long, and says on which thread.
    fn compute(time: Duration) -> Option<String> {
        let end = thread_time() + time;
        while thread_time() < end {}
        thread::current().name().map(str::to_owned)
    }

    #[test]
    fn reads_that_compute_long_move_to_the_heavy_threads_and_back() {
        let runtimes = Runtimes::start(None).unwrap();
        let heavy = runtimes.heavy();
        let costs: Arc<Costs> = Arc::default();
        let read = |route: &str, time| {
            Arc::clone(&costs).answer(&heavy, route.into(), async move { compute(time) })
        };
        runtimes.block_on(async {
            let here = compute(Duration::ZERO);
            assert_eq!(read("/v1/evaluations", 10 * LONG).await, here, "nothing is known yet");
            assert_eq!(read("/v1/evaluations", LONG / 100).await.unwrap(), "heavy");
            assert_eq!(read("/v1/nodes", LONG / 100).await, here, "another route");
            for _ in 0..FORGOTTEN * 3 {
                read("/v1/evaluations", LONG / 100).await;
            }
            assert_eq!(read("/v1/evaluations", LONG / 100).await, here, "cheap again");
        });
        runtimes.end(false);
    }

    /// Waiting costs nothing, however long.
    #[tokio::test(start_paused = true)]
    async fn a_wait_is_no_cost() {
        let costs: Arc<Costs> = Arc::default();
        let wait = tokio::time::sleep(Duration::from_mins(5));
        Arc::clone(&costs).answer(&Threads::HERE, "/v1/jobs".into(), wait).await;
        assert!(costs.of("/v1/jobs") < LONG);
    }
}
