//! Keeps a node in touch with the servers: registration, heartbeats, readiness, and the stream of
//! its allocations.
//!
//! ```text
//!  register ─► all statuses ─► Ready ─► heartbeat … ─┬─ INITIALIZING: all statuses, Ready
//!     ▲                                              ├─ NOT_FOUND: register again
//!     └──────────────────────────────────────────────┘
//!  stream: complete set, then changes; when it breaks: heartbeat at once, another server, complete set again
//! ```
//! The node becomes ready only after the servers have all of its statuses. Otherwise they would
//! judge its allocations by old ones.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chance::mix;
use fsm::node::Readiness;
use futures_util::{FutureExt, StreamExt};
use ground::rt::{self, Instant, Notify, sleep, sleep_until, timeout, watch};
use prost::Message;
use proto::v1::{self, Liveness};
use tonic::{Code, Status};
use wire::rpc::{method, words};

use crate::{
    machine::shortage::Shortages,
    session::{
        connection::{Backoff, Connection, is_about_server},
        meta::NodeMeta,
        readiness::{AfterTask, CheckTimer, Checked, Checks},
        status::{Ends, Outbox, Registered, current},
    },
    time::{Clock, later},
};

/// Longest pause between two tries to register.
const REGISTER_RETRY_MAX: Duration = Duration::from_secs(15);
/// Longest pause between two tries to open the stream.
const STREAM_RETRY_MAX: Duration = Duration::from_secs(10);
/// How long opening the stream may take.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// A registration that ends sooner than this does not reset the backoff.
const STANDING_MIN: Duration = Duration::from_secs(10);
/// How long sending all statuses may take. After that a heartbeat is sent first.
const STATUSES_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause between two tries to report readiness.
const SAY_RETRY_MAX: Duration = Duration::from_secs(5);
/// After a change of leader or a broken stream, the heartbeats of nodes are spread over this time,
/// ms.
const EPOCH_SPREAD_MS: u64 = 500;

/// The receiver of the servers' messages: the real node or a simulated one.
pub(crate) trait Node: Send + Sync + 'static {
    /// Takes over a batch of the stream.
    fn apply(&self, batch: v1::AllocationBatch) -> impl Future<Output = ()> + Send;
    /// Puts the status of every allocation into the outbox.
    fn report_all(&self);
}

/// The state of a node's contact with the servers.
pub(crate) struct Standing<N> {
    pub(crate) node: Arc<N>,
    pub(crate) registration: v1::RegisterRequest,
    /// Metadata changed at run time. It overrides the registration's.
    pub(crate) meta: Arc<NodeMeta>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) outbox: Arc<Outbox>,
    /// `None` while the node is not registered.
    pub(crate) registered: watch::Sender<Option<Registered>>,
    /// Notified when a server does not know the node.
    pub(crate) unknown: Arc<Notify>,
    /// Asks for a heartbeat at once.
    pub(crate) nudge: Arc<Notify>,
    pub(crate) clock: Clock,
    pub(crate) checks: Checks,
    /// What the machine is short of. Each heartbeat carries it, and a change is sent at once.
    pub(crate) shortages: Arc<Shortages>,
    /// Decides when readiness is checked.
    pub(crate) timer: Mutex<CheckTimer>,
    /// Notified when `timer` has changed.
    pub(crate) timer_changed: Notify,
}

/// The newest index that the servers have sent since a registration.
#[derive(Default)]
struct Seen {
    registered: Option<Registered>,
    index: u64,
}

impl Seen {
    /// Begins with a registration. A stream must be at least as new as the registration's index,
    /// because that includes what was placed before the agent started.
    fn begin(&mut self, registered: Registered) {
        if self.registered != Some(registered) {
            *self = Self { registered: Some(registered), index: registered.index };
        }
    }

    /// Refuses a message that is older than one seen before. The complete set of a server that lags
    /// lacks the newest allocations, and the node would take them for removed. A server that is
    /// asked for a minimum index waits until it has it. If no server has that index any more, it
    /// says so, and the node registers again.
    fn check(&mut self, index: u64) -> Result<(), Status> {
        if index < self.index {
            let known = self.index;
            let message = format!("the server is behind: it is at {index}, {known} was shown");
            return Err(Status::unavailable(message));
        }
        self.index = index;
        Ok(())
    }
}

impl<N: Node> Standing<N> {
    /// Keeps the node registered, for ever.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut backoff = Backoff::new(REGISTER_RETRY_MAX, self.seed());
        let mut meta = self.meta.subscribe();
        loop {
            // Metadata set from now on is not in this registration, so that it causes another one.
            meta.mark_unchanged();
            let reply = self.register().await;
            self.connection.servers().learn(&reply.servers);
            self.connection.servers().learn_http(&reply.http_servers);
            let registered = Registered { incarnation: reply.incarnation, index: reply.index };
            self.registered.send_replace(Some(registered));
            tracing::info!(
                node = %node_name(&self.registration),
                incarnation = reply.incarnation,
                ttl_ms = reply.heartbeat_ttl_ms,
                "registered"
            );
            let begun = Instant::now();
            let over = self.heartbeats(reply.incarnation, reply.heartbeat_ttl_ms);
            rt::select! {
                biased;
                // An error cannot happen: this node owns the sender.
                _ = meta.changed() => tracing::info!("the node's metadata was changed"),
                () = over => {}
            }
            self.registered.send_replace(None);
            if begun.elapsed() > STANDING_MIN {
                backoff.reset();
            } else {
                // The registration did not last. Wait, so that tries do not follow each other
                // without a pause.
                sleep(backoff.next()).await;
            }
        }
    }

    /// Keeps the stream of allocations open, for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut registered = self.registered.subscribe();
        let mut backoff = Backoff::new(STREAM_RETRY_MAX, self.seed());
        let mut seen = Seen::default();
        loop {
            let Some(current) = current(&mut registered).await else { return };
            seen.begin(current);
            let ended = rt::select! {
                biased;
                _ = registered.wait_for(|value| *value != Some(current)) => continue,
                ended = self.stream(current.incarnation, &mut seen, &mut backoff) => ended,
            };
            match ended {
                Ok(()) => tracing::debug!("the stream of allocations ended"),
                Err(status) => {
                    tracing::debug!(code = ?status.code(), message = status.message(), "the stream of allocations broke");
                    if is_unknown(&status) {
                        self.unknown.notify_one();
                    }
                }
            }
            self.nudge.notify_one();
            sleep(backoff.next()).await;
        }
    }

    async fn stream(
        &self,
        incarnation: u64,
        seen: &mut Seen,
        backoff: &mut Backoff,
    ) -> Result<(), Status> {
        let request = v1::StreamAllocationsRequest {
            node_id: self.registration.node_id.clone(),
            incarnation,
            index_min: seen.index,
        };
        let (opened, server) = self.connection.open(&method::STREAM_ALLOCATIONS, &request);
        let opened = timeout(STREAM_OPEN_TIMEOUT, opened).await;
        let opened = opened
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("the stream did not open in time")));
        let move_on = |status: Status| {
            if is_about_server(&status) {
                self.connection.failed(server);
            }
            status
        };
        let mut stream = opened.map_err(move_on)?;
        while let Some(message) = stream.next().await {
            let batch = v1::AllocationBatch::decode(message.map_err(move_on)?)
                .map_err(|error| move_on(Status::internal(error.to_string())))?;
            seen.check(batch.index).map_err(move_on)?;
            backoff.reset();
            self.node.apply(batch).await;
        }
        Ok(())
    }

    async fn register(&self) -> v1::RegisterReply {
        let mut backoff = Backoff::new(REGISTER_RETRY_MAX, self.seed());
        let mut tries = 0_u32;
        loop {
            let turn = self.connection.servers().register_turn().await;
            let meta = self.meta.effective().into_iter().collect();
            let request = v1::RegisterRequest { meta, ..self.registration.clone() };
            let answer = self.connection.call(&method::REGISTER, &request).await;
            drop(turn);
            match answer {
                Ok(reply) => return reply,
                Err(status) => {
                    tries = tries.saturating_add(1);
                    // A cluster that is just starting refuses the first tries. That is not worth a
                    // warning.
                    if tries.is_power_of_two() && tries >= 4 || !is_about_server(&status) {
                        tracing::warn!(
                            node = %node_name(&self.registration), code = ?status.code(), message = status.message(), tries,
                            "cannot register"
                        );
                    }
                }
            }
            sleep(backoff.next()).await;
        }
    }

    /// Sends heartbeats until the node has to register again.
    async fn heartbeats(&self, incarnation: u64, ttl_ms: u64) {
        let mut ttl_ms = ttl_ms;
        let mut epoch = None;
        let mut beat = 0_u64;
        let mut backoff = Backoff::new(Duration::from_secs(5), self.seed());
        // Drop a notice about the incarnation before.
        self.unknown.notified().now_or_never();
        self.timer().begin();
        self.become_ready().await;
        let mut initializes = true;
        let mut due = later(self.interval(ttl_ms, beat));
        let mut shortage = self.shortages.subscribe();
        if self.shortages.is_short() {
            // The servers believe that a new incarnation has no shortage, so report it.
            shortage.mark_changed();
        }
        loop {
            rt::select! {
                biased;
                () = self.unknown.notified() => return,
                () = sleep_until(due) => {}
                changed = shortage.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    due = due.min(later(self.spread(beat)));
                    continue;
                }
                () = self.nudge.notified() => {
                    // Spread, because all nodes of a server come here when it dies.
                    due = due.min(later(self.spread(beat)));
                    beat = beat.wrapping_add(1);
                    continue;
                }
            }
            beat = beat.wrapping_add(1);
            let request = v1::HeartbeatRequest {
                node_id: self.registration.node_id.clone(),
                incarnation,
                shortage: self.shortages.reason(),
            };
            match self.connection.call(&method::HEARTBEAT, &request).await {
                Ok(reply) => {
                    backoff.reset();
                    self.connection.servers().learn(&reply.servers);
                    self.connection.servers().learn_http(&reply.http_servers);
                    ttl_ms = reply.heartbeat_ttl_ms;
                    let leader_changed =
                        epoch.replace(reply.epoch).is_some_and(|old| old != reply.epoch);
                    due = later(if leader_changed {
                        self.spread(beat)
                    } else {
                        self.interval(ttl_ms, beat)
                    });
                    let did = std::mem::replace(
                        &mut initializes,
                        reply.liveness() == Liveness::Initializing,
                    );
                    if initializes && reply.check_readiness && !(did && self.timer().is_wanted()) {
                        self.become_ready().await;
                    } else {
                        self.want_check(reply.check_readiness);
                    }
                }
                Err(status) if is_unknown(&status) => {
                    tracing::info!(
                        message = status.message(),
                        "the servers do not know this node any more"
                    );
                    return;
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), message = status.message(), "no heartbeat");
                    due = later(backoff.next());
                }
            }
        }
    }

    /// Sends all statuses, then requests a readiness check, which is reported.
    async fn become_ready(&self) {
        self.node.report_all();
        if timeout(STATUSES_TIMEOUT, self.outbox.empty()).await.is_err() {
            // The next heartbeat tells that the node is still initializing, and this is called
            // again.
            self.nudge.notify_one();
            return;
        }
        self.want_check(true);
    }

    fn want_check(&self, is_wanted: bool) {
        self.timer().want(is_wanted);
        self.timer_changed.notify_one();
    }

    fn timer(&self) -> MutexGuard<'_, CheckTimer> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks readiness whenever it is due, one check at a time, for ever.
    pub(crate) async fn check_readiness(self: Arc<Self>) {
        let mut registered = self.registered.subscribe();
        let mut ends = self.outbox.ends();
        let mut seen = Ends::default();
        loop {
            let Some(current) = current(&mut registered).await else { return };
            let due_at = self.timer().due_at(Instant::now());
            let due = async {
                match due_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            rt::select! {
                biased;
                _ = registered.wait_for(|value| *value != Some(current)) => continue,
                () = self.timer_changed.notified() => continue,
                changed = ends.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = *ends.borrow_and_update();
                    let seen = std::mem::replace(&mut seen, now);
                    let is_due = match self.checks.after_task {
                        AfterTask::Never => false,
                        AfterTask::Failed => now.failed > seen.failed,
                        AfterTask::Always => now != seen,
                    };
                    if is_due {
                        self.timer().task_ended();
                    }
                    continue;
                }
                () = due => {}
            }
            let found = match &self.checks.probe {
                Some(probe) => probe.check().await,
                None => Checked::new(Readiness::Ok, ""),
            };
            if self.timer().found(Instant::now(), &found) {
                self.say(current, found, &mut registered).await;
            }
        }
    }

    /// Reports the result of a check until the servers have it or the registration is over.
    async fn say(
        &self,
        current: Registered,
        found: Checked,
        registered: &mut watch::Receiver<Option<Registered>>,
    ) {
        let mut backoff = Backoff::new(SAY_RETRY_MAX, self.seed());
        loop {
            let mut answer = self.say_once(current.incarnation, &found).await;
            // After a missed heartbeat the servers want a report of statuses first. A node without
            // allocations has had nothing to report, so send an empty report.
            if answer.as_ref().is_err_and(|status| status.code() == Code::FailedPrecondition) {
                self.node.report_all();
                if timeout(STATUSES_TIMEOUT, self.outbox.empty()).await.is_err() {
                    continue;
                }
                answer = match self.report_nothing(current.incarnation).await {
                    Ok(_) => self.say_once(current.incarnation, &found).await,
                    Err(status) => Err(status),
                };
            }
            match answer {
                Ok(_) => {
                    let Checked { readiness, reason } = &found;
                    let (node, readiness) = (node_name(&self.registration), readiness.name());
                    tracing::info!(%node, readiness, reason, "readiness was reported");
                    self.timer().acknowledged(Instant::now(), found);
                    return;
                }
                Err(status) if is_unknown(&status) => {
                    self.unknown.notify_one();
                    return;
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), message = status.message(), "readiness was not reported yet");
                }
            }
            rt::select! {
                biased;
                _ = registered.wait_for(|value| *value != Some(current)) => return,
                () = sleep(backoff.next()) => {}
            }
        }
    }

    async fn say_once(&self, incarnation: u64, found: &Checked) -> Result<v1::ReadyReply, Status> {
        let sequence = self.timer().next_sequence(self.clock.now().since_boot_ms);
        let request = v1::ReadyRequest {
            node_id: self.registration.node_id.clone(),
            incarnation,
            readiness: words::readiness_to_pb(found.readiness).into(),
            reason: found.reason.clone(),
            sequence,
        };
        self.connection.call(&method::READY, &request).await
    }

    async fn report_nothing(&self, incarnation: u64) -> Result<v1::UpdateAllocationsReply, Status> {
        let request = v1::UpdateAllocationsRequest {
            node_id: self.registration.node_id.clone(),
            incarnation,
            statuses: Vec::new(),
        };
        self.connection.call(&method::UPDATE_ALLOCATIONS, &request).await
    }

    /// Time to the next heartbeat: between 40 and 60 percent of the TTL, so that one lost heartbeat
    /// does no harm.
    fn interval(&self, ttl_ms: u64, beat: u64) -> Duration {
        let ttl_ms = ttl_ms.clamp(100, 24 * 3600 * 1000);
        let fifth = ttl_ms / 5;
        let spread = mix(self.seed() ^ (beat << 8)).checked_rem(fifth).unwrap_or(0);
        Duration::from_millis(fifth.saturating_mul(2).saturating_add(spread))
    }

    fn spread(&self, beat: u64) -> Duration {
        Duration::from_millis(mix(self.seed() ^ beat) % EPOCH_SPREAD_MS)
    }

    fn seed(&self) -> u64 {
        self.registration.node_id.iter().fold(0, |seed, byte| mix(seed ^ u64::from(*byte)))
    }
}

/// Whether the servers do not know the node, so that it must register again.
fn is_unknown(status: &Status) -> bool {
    status.code() == Code::NotFound
}

fn node_name(registration: &v1::RegisterRequest) -> &str {
    &registration.name
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_lags_is_not_believed() {
        let mut seen = Seen::default();
        seen.begin(Registered { incarnation: 1, index: 5 });
        assert!(seen.check(4).is_err(), "it does not know what there was before the agent started");
        assert!(seen.check(7).is_ok());
        assert!(seen.check(7).is_ok());
        let refused = seen.check(6).unwrap_err();
        assert!(is_about_server(&refused), "another server is asked");
        seen.begin(Registered { incarnation: 1, index: 5 });
        assert!(seen.check(6).is_err(), "another stream of the same registration");
        seen.begin(Registered { incarnation: 1, index: 6 });
        assert!(seen.check(6).is_ok(), "the servers have said anew what holds");
    }
}
