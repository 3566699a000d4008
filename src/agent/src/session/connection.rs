//! Connections to the servers: which server is called, when another one is tried, and how long a
//! call may take. Any server answers any call. So the agent stays with one server until it fails,
//! then tries the next in the list.
//!
//! A channel carries at most [`NODES_PER_CHANNEL`] nodes. Each node holds one endless stream, and a
//! server accepts 200 streams per connection by default. A call that waits for a free stream would
//! look like a dead server.

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
/// How many servers are known at most.
const SERVERS_MAX: usize = 32;
/// How many nodes of this process may register at the same time.
const REGISTERING_MAX: usize = 64;

/// If no server has served this process for this long, the log says so. An election is shorter and
/// not worth a warning.
const SILENCE_SAID: Duration = Duration::from_secs(4);

/// Tracks whether any server serves this process, for two log messages. A server that answers
/// without a leader does not serve it.
#[derive(Debug, Default)]
struct Reach {
    /// When the first failed call since the last answered one failed.
    silent_since: Option<Instant>,
    /// The log has the message already.
    is_said: bool,
}

impl Reach {
    /// Records that a call failed on all servers. Returns how long none has served, if that is to
    /// be logged now.
    fn failed(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.silent_since.get_or_insert(now);
        let silence = now.saturating_duration_since(since);
        let is_news = silence >= SILENCE_SAID && !self.is_said;
        self.is_said |= is_news;
        is_news.then_some(silence)
    }

    /// Records that a call was answered. Returns how long none was, if that was logged.
    fn answered(&mut self, now: Instant) -> Option<Duration> {
        let since = self.silent_since.take();
        let was_said = std::mem::take(&mut self.is_said);
        since.filter(|_| was_said).map(|since| now.saturating_duration_since(since))
    }
}

/// The servers that this process knows, and the transport to them.
pub struct Servers {
    transport: Arc<dyn Transport>,
    configured: Vec<String>,
    /// Invariant: not empty, at most [`SERVERS_MAX`].
    addresses: Mutex<Arc<[String]>>,
    /// The servers' HTTP addresses, as last sent by one of them; at most [`SERVERS_MAX`].
    http: Mutex<Arc<[String]>>,
    rpc_timeout: Duration,
    /// Limits registrations in progress, so that thousands of simulated nodes do not register at
    /// once.
    registering: Semaphore,
    reach: Mutex<Reach>,
}

/// Why the servers' addresses cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No address is given.
    #[error("the agent needs the address of at least one server")]
    None,
    /// An address does not parse.
    #[error("`{0}` is not the address of a server (expected host:port)")]
    Bad(String),
}

impl Servers {
    /// Servers at these addresses (`host:port`, with or without `http://`), reached by this
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

    /// A server answered a call, even if it refused it.
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

    /// Takes over the list of servers that a server has sent. The configured ones stay in it.
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

    /// Takes over the servers' HTTP addresses.
    pub(crate) fn learn_http(&self, sent: &[String]) {
        let sent: Vec<_> =
            sent.iter().filter_map(|sent| host_and_port(sent)).take(SERVERS_MAX).collect();
        if !sent.is_empty() {
            *self.http.lock().unwrap_or_else(PoisonError::into_inner) = sent.into();
        }
    }

    /// The servers' HTTP addresses; empty before the first registration.
    pub fn http(&self) -> Arc<[String]> {
        Arc::clone(&self.http.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The addresses of the known servers, as agents call them.
    pub fn known(&self) -> Arc<[String]> {
        Arc::clone(&self.addresses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until this node may register.
    pub(crate) async fn register_turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed, so this cannot fail.
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

/// An address in the form of the transport; `None` if it is not one.
fn host_and_port(address: &str) -> Option<String> {
    let bare = address.strip_prefix("http://").unwrap_or(address);
    let endpoint = Endpoint::from_shared(format!("http://{bare}")).ok()?;
    endpoint.uri().port_u16().map(|_| bare.to_owned())
}

/// One node's connection to the servers.
pub(crate) struct Connection {
    servers: Arc<Servers>,
    lane: Lane,
    current: AtomicUsize,
}

impl Connection {
    /// The connection of node `number`. `first` picks the first server, so that nodes spread over
    /// the servers.
    pub(crate) fn new(servers: Arc<Servers>, number: u32, first: u64) -> Self {
        let count = servers.count() as u64;
        let current = usize::try_from(mix(first).checked_rem(count).unwrap_or(0)).unwrap_or(0);
        let lane = Lane::Agent(number / NODES_PER_CHANNEL);
        Self { servers, lane, current: AtomicUsize::new(current) }
    }

    /// The known servers.
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Moves on from the server at `position` to the next one, unless another call has done so
    /// already.
    pub(crate) fn failed(&self, position: usize) {
        let next = position.saturating_add(1).checked_rem(self.servers.count()).unwrap_or(0);
        let moved =
            self.current.compare_exchange(position, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            tracing::debug!(from = position, to = next, "trying another server");
        }
    }

    /// Makes a call, with a timeout, on each server at most once.
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

    /// Opens a stream to the current server. Returns it with the server's position, for
    /// [`Self::failed`].
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

/// Whether the error is about the server, so that another one may answer better.
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

/// Growing pauses between tries, with jitter: 250 ms, doubled up to a limit.
#[derive(Debug)]
pub(crate) struct Backoff {
    tries: u32,
    max: Duration,
    seed: u64,
}

impl Backoff {
    /// A backoff that begins with the shortest pause.
    pub(crate) fn new(max: Duration, seed: u64) -> Self {
        Self { tries: 0, max, seed }
    }

    /// The next pause: between half and all of the current step.
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

    /// Begins with the shortest pause again, after a success.
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
