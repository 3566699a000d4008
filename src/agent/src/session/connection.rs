//! Connections to the servers: which server is asked, when another one is tried, and how long a
//! call may take. Any server answers any call, so the agent stays with one until it fails and then
//! goes round.
//!
//! A channel carries at most [`NODES_PER_CHANNEL`] nodes: each holds one endless stream and a
//! server admits 200 streams per connection unless told otherwise; a call that waits for a stream
//! would look like a dead server.

use std::{
    sync::Arc,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chance::mix;
use futures_util::{StreamExt, future::BoxFuture};
use ground::rt::{Instant, Semaphore, SemaphorePermit};
use prost::Message;
use tonic::{Code, Status, transport::Endpoint};
use wire::rpc::{
    method::Method,
    transport::{Lane, ReplyStream, Transport, call},
};

/// Nodes that share a channel to a server.
pub(crate) const NODES_PER_CHANNEL: u32 = 60;
/// Servers known at a time.
const SERVERS_MAX: usize = 32;
/// Nodes of this process that register at the same time.
const REGISTERING_MAX: usize = 64;

/// The log says that no server serves this process when none has for this long: an election is no
/// news.
const SILENCE_SAID: Duration = Duration::from_secs(4);

/// Whether any server serves this process, for two lines of the log: a server that answers without
/// a leader does not.
#[derive(Debug, Default)]
struct Reach {
    /// The first call in vain since the last that was answered.
    silent_since: Option<Instant>,
    /// The log has it.
    is_said: bool,
}

impl Reach {
    /// A call was tried on all servers in vain. Returns how long that has been so, if it is to be
    /// said.
    fn failed(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.silent_since.get_or_insert(now);
        let silence = now.saturating_duration_since(since);
        let is_news = silence >= SILENCE_SAID && !self.is_said;
        self.is_said |= is_news;
        is_news.then_some(silence)
    }

    /// A call was answered. Returns how long there was no answer, if that was said.
    fn answered(&mut self, now: Instant) -> Option<Duration> {
        let since = self.silent_since.take();
        let was_said = std::mem::take(&mut self.is_said);
        since.filter(|_| was_said).map(|since| now.saturating_duration_since(since))
    }
}

/// The servers known to this process and its way to them.
pub struct Servers {
    transport: Arc<dyn Transport>,
    configured: Vec<String>,
    /// Invariant: not empty, at most [`SERVERS_MAX`].
    addresses: Mutex<Arc<[String]>>,
    /// Where the servers answer HTTP, as they have said last; at most [`SERVERS_MAX`].
    http: Mutex<Arc<[String]>>,
    rpc_timeout: Duration,
    /// Taken while registering, so that thousands of simulated nodes do not all do it at once.
    registering: Semaphore,
    reach: Mutex<Reach>,
}

/// The servers' addresses cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There are none.
    #[error("the agent needs the address of at least one server")]
    None,
    /// One does not parse.
    #[error("`{0}` is not the address of a server (expected host:port)")]
    Bad(String),
}

impl Servers {
    /// Knows these addresses (`host:port`, with or without `http://`) and reaches them by this
    /// transport.
    pub(crate) fn new(
        addresses: &[String],
        transport: Arc<dyn Transport>,
        rpc_timeout: Duration,
    ) -> Result<Arc<Self>, AddressError> {
        let configured = addresses
            .iter()
            .map(|given| host_and_port(given).ok_or_else(|| AddressError::Bad(given.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        if configured.is_empty() {
            return Err(AddressError::None);
        }
        let configured: Vec<_> = configured.into_iter().take(SERVERS_MAX).collect();
        let addresses = Mutex::new(configured.clone().into());
        let registering = Semaphore::new(REGISTERING_MAX);
        let http = Mutex::default();
        let reach = Mutex::default();
        Ok(Arc::new(Self {
            transport,
            configured,
            addresses,
            http,
            rpc_timeout,
            registering,
            reach,
        }))
    }

    fn reach(&self) -> MutexGuard<'_, Reach> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call was answered, if only by a refusal.
    fn answered(&self) {
        let away = self.reach().answered(Instant::now());
        if let Some(away) = away {
            tracing::info!(away_ms = away.as_millis(), "the servers answer again");
        }
    }

    /// A call failed on every server.
    fn failed(&self, status: &Status) {
        let silence = self.reach().failed(Instant::now());
        if let Some(silence) = silence {
            tracing::warn!(
                silent_ms = silence.as_millis(),
                message = status.message(),
                "no server serves this agent: none is reached, or they have no leader; its tasks run on"
            );
        }
    }

    /// Takes over the list that a server has sent; the configured ones stay known.
    pub(crate) fn learn(&self, sent: &[String]) {
        if sent.is_empty() {
            return;
        }
        let mut addresses = self.configured.clone();
        for address in sent.iter().filter_map(|sent| host_and_port(sent)) {
            if !addresses.contains(&address) && addresses.len() < SERVERS_MAX {
                addresses.push(address);
            }
        }
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if **known != *addresses {
            tracing::info!(servers = ?addresses, "the list of servers changed");
            self.transport.keep_only(&addresses);
            *known = addresses.into();
        }
    }

    /// Takes over where the servers answer HTTP.
    pub(crate) fn learn_http(&self, sent: &[String]) {
        let sent: Vec<_> =
            sent.iter().filter_map(|sent| host_and_port(sent)).take(SERVERS_MAX).collect();
        if !sent.is_empty() {
            *self.http.lock().unwrap_or_else(PoisonError::into_inner) = sent.into();
        }
    }

    /// Where the servers answer HTTP; nothing before the first registration.
    pub fn http(&self) -> Arc<[String]> {
        Arc::clone(&self.http.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The servers known, by the addresses that agents call.
    pub fn known(&self) -> Arc<[String]> {
        Arc::clone(&self.addresses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A turn to register.
    pub(crate) async fn register_turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so there is always a turn in the end.
        self.registering.acquire().await.ok()
    }

    fn address(&self, position: usize) -> String {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses[position.checked_rem(addresses.len()).unwrap_or(0)].clone()
    }

    fn count(&self) -> usize {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// An address as the transport takes it; `None` for what is none.
fn host_and_port(address: &str) -> Option<String> {
    let bare = address.strip_prefix("http://").unwrap_or(address);
    let endpoint = Endpoint::from_shared(format!("http://{bare}")).ok()?;
    endpoint.uri().port_u16().map(|_| bare.to_owned())
}

/// One node's way to the servers.
pub(crate) struct Connection {
    servers: Arc<Servers>,
    lane: Lane,
    current: AtomicUsize,
}

impl Connection {
    /// The way of node `number`; the first server differs, so that nodes spread.
    pub(crate) fn new(servers: Arc<Servers>, number: u32, first: u64) -> Self {
        let count = servers.count() as u64;
        let current = usize::try_from(mix(first).checked_rem(count).unwrap_or(0)).unwrap_or(0);
        let lane = Lane::Agent(number / NODES_PER_CHANNEL);
        Self { servers, lane, current: AtomicUsize::new(current) }
    }

    /// The servers known.
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The server behind that mark is of no use: the next one is asked, unless somebody has moved
    /// on already.
    pub(crate) fn failed(&self, position: usize) {
        let next = position.saturating_add(1).checked_rem(self.servers.count()).unwrap_or(0);
        let moved =
            self.current.compare_exchange(position, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            tracing::debug!(from = position, to = next, "trying another server");
        }
    }

    /// One call with its deadline, tried on each server at most once.
    pub(crate) async fn call<Q: Message, P: Message + Default>(
        &self,
        method: &Method<Q, P>,
        request: &Q,
    ) -> Result<P, Status> {
        let Servers { transport, rpc_timeout, .. } = &*self.servers;
        let mut last = Status::unavailable("no server was asked");
        for _ in 0..self.servers.count() {
            let position = self.current.load(Ordering::Relaxed);
            let to = self.servers.address(position);
            match call(&**transport, &to, method, self.lane, request, *rpc_timeout).await {
                Err(status) if is_about_server(&status) => {
                    self.failed(position);
                    last = status;
                }
                answered => {
                    self.servers.answered();
                    return answered;
                }
            }
        }
        self.servers.failed(&last);
        Err(last)
    }

    /// Asks the present server for a stream; with it comes a mark for [`Self::failed`].
    pub(crate) fn open<Q: Message, P>(
        &self,
        method: &Method<Q, P>,
        request: &Q,
    ) -> (BoxFuture<'static, Result<ReplyStream, Status>>, usize) {
        let position = self.current.load(Ordering::Relaxed);
        let to = self.servers.address(position);
        let body = request.encode_to_vec().into();
        let input = futures_util::stream::once(std::future::ready(body)).boxed();
        (self.servers.transport.stream(&to, method.path(), self.lane, input), position)
    }
}

/// Another server may answer better.
pub(crate) fn is_about_server(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Unimplemented
    )
}

/// Growing pauses between tries, with jitter: 250 ms doubled up to a limit.
#[derive(Debug)]
pub(crate) struct Backoff {
    tries: u32,
    max: Duration,
    seed: u64,
}

impl Backoff {
    /// From the start.
    pub(crate) fn new(max: Duration, seed: u64) -> Self {
        Self { tries: 0, max, seed }
    }

    /// The next pause: between half and the whole of the step.
    pub(crate) fn next(&mut self) -> Duration {
        let step = Duration::from_millis(250 << self.tries.min(10)).min(self.max);
        self.tries = self.tries.saturating_add(1);
        self.seed = mix(self.seed);
        let ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX);
        let half = ms / 2;
        Duration::from_millis(
            half.saturating_add(self.seed.checked_rem(half.saturating_add(1)).unwrap_or(0)),
        )
    }

    /// It worked.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::rpc::transport::GrpcTransport;

    fn servers(address: &str) -> Result<Arc<Servers>, AddressError> {
        let transport = Arc::new(GrpcTransport::from_agents());
        Servers::new(&[address.to_owned()], transport, Duration::from_secs(1))
    }

    #[test]
    fn servers_that_do_not_serve_are_said_once_and_so_is_the_end_of_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut reach = Reach::default();
        assert_eq!(reach.failed(at(0)), None, "an election is no news");
        assert_eq!(reach.answered(at(1)), None);
        assert_eq!(reach.failed(at(2)), None);
        assert_eq!(reach.failed(at(6)), Some(Duration::from_secs(4)));
        assert_eq!(reach.failed(at(60)), None);
        assert_eq!(reach.answered(at(70)), Some(Duration::from_secs(68)));
        assert_eq!(reach.answered(at(71)), None);
    }

    #[tokio::test]
    async fn addresses_are_checked_and_learned_ones_bounded() {
        for bad in ["nowhere", "http://nowhere", "https://a:1", ""] {
            assert_eq!(servers(bad).err(), Some(AddressError::Bad(bad.to_owned())));
        }
        let servers = servers("http://127.0.0.1:1").expect("a valid address");
        assert_eq!(servers.address(0), "127.0.0.1:1");
        let many: Vec<_> = (0..100).map(|n| format!("127.0.0.1:{}", 1000 + n)).collect();
        servers.learn(&many);
        assert_eq!(servers.count(), SERVERS_MAX);
        servers.learn(&[]);
        assert_eq!(servers.count(), SERVERS_MAX);
        servers.learn(&["127.0.0.1:2".to_owned(), "bad".to_owned()]);
        assert_eq!(servers.count(), 2);
    }

    #[test]
    fn backoff_grows_to_its_limit() {
        let mut backoff = Backoff::new(Duration::from_secs(4), 1);
        let pauses: Vec<_> = (0..8).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= Duration::from_millis(250), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(4)), "{pauses:?}");
        assert!(pauses[7] >= Duration::from_secs(2), "{pauses:?}");
    }
}
