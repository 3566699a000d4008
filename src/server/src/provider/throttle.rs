//! What every provider is called through: two rates, the end of a call at its deadline, counts, and
//! a line of log for failures.
//!
//! A provider that says when to ask again is not asked before: calls of the same lane fail at once
//! with what it said. Must never repeat a call: whoever asked decides whether it is still wanted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use elastic::call::{Answer, ErrorClass, Operation, ProviderError};
use futures_util::future::BoxFuture;
use ground::rt::{Instant, locked, sleep_until, timeout};

use super::{Context, Provider, ProviderKind};

/// Between two calls of a lane in the long run.
const PAUSE: Duration = Duration::from_millis(100);
/// Calls that may follow each other without a pause after a silence.
const BURST: u32 = 10;
/// Longest that a provider can keep itself from being asked.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);
/// Between two lines of log about one class of error.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Calls that share a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaneName {
    /// Create and list.
    Fleet,
    /// Destroy, set-tags and describe.
    Machine,
}

/// The rate of one lane.
#[derive(Default)]
struct Lane {
    /// When a call without a burst would be due.
    due: Option<Instant>,
    /// Until when the provider is not asked, and what it said.
    refused: Option<(Instant, ProviderError)>,
}

impl Lane {
    /// What the provider has said, while it holds.
    fn refusal(&mut self, now: Instant) -> Option<ProviderError> {
        let (until, error) = self.refused.as_ref()?;
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            self.refused = None;
            return None;
        }
        Some(ProviderError { retry_after_ms: Some(whole_ms(left)), ..error.clone() })
    }

    /// When the next call may go out, which is taken; or why it may not within that time.
    fn take_turn(&mut self, now: Instant, patience: Duration) -> Result<Instant, ProviderError> {
        if let Some(error) = self.refusal(now) {
            return Err(error);
        }
        let due = self.due.map_or(now, |due| due.max(now));
        let turn = (due - PAUSE * (BURST - 1)).max(now);
        let wait = turn - now;
        if wait >= patience {
            let error = ProviderError::new(ErrorClass::RateLimited, "too many calls are waiting");
            return Err(ProviderError { retry_after_ms: Some(whole_ms(wait)), ..error });
        }
        self.due = Some(due + PAUSE);
        Ok(turn)
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// How often calls of one kind ended in one way, and how long they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub calls: u64,
    /// All of them together.
    pub total: Duration,
    pub longest: Duration,
}

#[derive(Default)]
struct Logged {
    at: Option<Instant>,
    /// Errors since then of which there is no line.
    unsaid: u64,
}

/// A provider behind two rates, counted.
pub struct Throttled {
    name: Arc<str>,
    inner: Arc<dyn Provider>,
    fleet: Mutex<Lane>,
    machine: Mutex<Lane>,
    tallies: Mutex<BTreeMap<(&'static str, &'static str), Tally>>,
    logged: Mutex<BTreeMap<ErrorClass, Logged>>,
}

impl Throttled {
    /// The provider of this name in the configuration.
    pub fn new(name: &str, inner: Arc<dyn Provider>) -> Self {
        Self {
            name: name.into(),
            inner,
            fleet: Mutex::default(),
            machine: Mutex::default(),
            tallies: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls so far by operation and outcome: `ok`, the name of an error's class, or `held-back`
    /// for those that the provider never saw because it had said when to ask again, or because too
    /// many waited.
    pub fn tallies(&self) -> BTreeMap<(&'static str, &'static str), Tally> {
        locked(&self.tallies).clone()
    }

    fn lane(&self, operation: &Operation) -> &Mutex<Lane> {
        match lane_name(operation) {
            LaneName::Fleet => &self.fleet,
            LaneName::Machine => &self.machine,
        }
    }

    async fn await_turn(
        &self,
        lane: &Mutex<Lane>,
        patience: Duration,
    ) -> Result<(), ProviderError> {
        let turn = locked(lane).take_turn(Instant::now(), patience)?;
        sleep_until(turn).await;
        // Meanwhile an earlier call may have been told to come later.
        locked(lane).refusal(Instant::now()).map_or(Ok(()), Err)
    }

    fn count(&self, operation: &'static str, outcome: &'static str, took: Duration) {
        let mut tallies = locked(&self.tallies);
        let tally = tallies.entry((operation, outcome)).or_default();
        tally.calls += 1;
        tally.total += took;
        tally.longest = tally.longest.max(took);
    }

    fn log(&self, operation: &'static str, error: &ProviderError, now: Instant) {
        let mut logged = locked(&self.logged);
        let last = logged.entry(error.class).or_default();
        if last.at.is_some_and(|at| now - at < LOG_PAUSE) {
            last.unsaid += 1;
            return;
        }
        let unsaid = std::mem::take(&mut last.unsaid);
        last.at = Some(now);
        drop(logged);
        let (provider, class) = (&*self.name, error.class.name());
        tracing::warn!(
            provider,
            operation,
            class,
            detail = &*error.detail,
            retry_after_ms = error.retry_after_ms,
            unsaid,
            "a call to a provider failed"
        );
    }
}

fn lane_name(operation: &Operation) -> LaneName {
    match operation {
        Operation::Create(_) | Operation::List => LaneName::Fleet,
        Operation::Destroy { .. } | Operation::SetTags { .. } | Operation::Describe { .. } => {
            LaneName::Machine
        }
    }
}

impl Provider for Throttled {
    fn call(
        &self,
        operation: Operation,
        context: Context,
    ) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        Box::pin(async move {
            let name = operation.name();
            let lane = self.lane(&operation);
            let asked = Instant::now();
            if let Err(error) = self.await_turn(lane, context.time_left).await {
                self.count(name, "held-back", Duration::ZERO);
                return Err(error);
            }
            let began = Instant::now();
            let time_left = context.time_left.saturating_sub(began - asked);
            let call = self.inner.call(operation, Context { time_left, ..context });
            let result = timeout(time_left, call).await.unwrap_or_else(|_| {
                let detail = format!("no answer within {} ms", time_left.as_millis());
                Err(ProviderError::new(ErrorClass::Transient, &detail))
            });
            let now = Instant::now();
            let outcome = result.as_ref().map_or_else(|error| error.class.name(), |_| "ok");
            self.count(name, outcome, now - began);
            if let Err(error) = &result {
                self.log(name, error, now);
                if let (ErrorClass::RateLimited, Some(ms @ 1..)) =
                    (error.class, error.retry_after_ms)
                {
                    let until = now + Duration::from_millis(ms).min(RETRY_AFTER_MAX);
                    locked(lane).refused = Some((until, error.clone()));
                }
            }
            result
        })
    }

    fn reload(&self, kind: &ProviderKind) -> bool {
        self.inner.reload(kind)
    }

    fn needs_one_host(&self) -> bool {
        self.inner.needs_one_host()
    }
}

#[cfg(test)]
mod tests {
    use elastic::call::{Description, MachineState};
    use fsm::InstanceId;

    use super::*;

    /// Answers after a while, by what is left of a script of errors.
    struct Scripted {
        errors: Mutex<Vec<ProviderError>>,
        takes: Duration,
    }

    impl Provider for Scripted {
        fn reload(&self, _: &ProviderKind) -> bool {
            true
        }

        fn call(
            &self,
            operation: Operation,
            _: Context,
        ) -> BoxFuture<'_, Result<Answer, ProviderError>> {
            Box::pin(async move {
                ground::rt::sleep(self.takes).await;
                if let Some(error) = locked(&self.errors).pop() {
                    return Err(error);
                }
                let words = operation.name().into();
                let state = MachineState::Up;
                Ok(Answer::Described(Description { state, address: "".into(), words }))
            })
        }
    }

    fn throttled(errors: Vec<ProviderError>, takes: Duration) -> Throttled {
        let inner = Scripted { errors: Mutex::new(errors), takes };
        Throttled::new("test", Arc::new(inner))
    }

    fn context(ms: u64) -> Context {
        let time_left = Duration::from_millis(ms);
        let known = std::collections::BTreeSet::new();
        Context { cluster: "c".into(), servers: Vec::new(), time_left, known }
    }

    fn describe() -> Operation {
        Operation::Describe { instance: InstanceId([1; 16]), provider_id: "".into() }
    }

    fn limited(retry_after_ms: Option<u64>) -> ProviderError {
        let error = ProviderError::new(ErrorClass::RateLimited, "slow down");
        ProviderError { retry_after_ms, ..error }
    }

    #[tokio::test(start_paused = true)]
    async fn ten_calls_go_at_once_and_then_ten_a_second() {
        let provider = throttled(Vec::new(), Duration::ZERO);
        let began = Instant::now();
        for _ in 0..30 {
            assert!(provider.call(Operation::List, context(60_000)).await.is_ok());
        }
        let took = whole_ms(began.elapsed());
        assert!((2_000..2_100).contains(&took), "{took} ms");
        // The other lane is free.
        assert!(provider.call(describe(), context(1)).await.is_ok());
        let late = provider.call(Operation::List, context(50)).await;
        assert!(late.is_err_and(|error| error.class == ErrorClass::RateLimited));
        assert_eq!(provider.tallies()[&("list", "ok")].calls, 30);
        assert_eq!(provider.tallies()[&("list", "held-back")].calls, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_is_not_asked_before_the_time_that_it_named() {
        let provider = throttled(vec![limited(Some(5_000))], Duration::from_millis(10));
        let refused = provider.call(Operation::List, context(1_000)).await;
        assert_eq!(refused, Err(limited(Some(5_000))));
        ground::rt::sleep(Duration::from_secs(2)).await;
        let held = provider.call(Operation::List, context(1_000)).await;
        assert_eq!(held, Err(limited(Some(3_000))), "it was not asked");
        assert!(provider.call(describe(), context(1_000)).await.is_ok(), "the other lane");
        ground::rt::sleep(Duration::from_secs(3)).await;
        assert!(provider.call(Operation::List, context(1_000)).await.is_ok());
        let tallies = provider.tallies();
        assert_eq!(tallies[&("list", "rate-limited")].calls, 1);
        assert_eq!(tallies[&("list", "held-back")].calls, 1);
        assert_eq!(tallies[&("list", "ok")].longest, Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_is_over_or_not_named_stops_nothing() {
        let provider = throttled(vec![limited(None), limited(Some(0))], Duration::ZERO);
        for _ in 0..2 {
            assert!(provider.call(Operation::List, context(1_000)).await.is_err());
        }
        assert!(provider.call(Operation::List, context(1_000)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_beyond_reason_is_cut() {
        let provider = throttled(vec![limited(Some(u64::MAX))], Duration::ZERO);
        assert!(provider.call(Operation::List, context(1_000)).await.is_err());
        ground::rt::sleep(RETRY_AFTER_MAX).await;
        assert!(provider.call(Operation::List, context(1_000)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_at_its_deadline_with_an_unknown_outcome() {
        let provider = throttled(Vec::new(), Duration::from_mins(1));
        let result = provider.call(Operation::List, context(1_000)).await;
        let error = result.expect_err("too late");
        assert_eq!(
            (error.class, &*error.detail),
            (ErrorClass::Transient, "no answer within 1000 ms")
        );
        assert_eq!(provider.tallies()[&("list", "transient")].longest, Duration::from_secs(1));
    }
}
