//! Connections to the servers: which server is asked, when another one is tried, and how long a call may take.
//! Any server answers any call, so the agent stays with one until it fails and then goes round.
//!
//! A channel carries at most [`NODES_PER_CHANNEL`] nodes: each holds one endless stream and a server admits 200 streams per
//! connection unless told otherwise; a call that waits for a stream would look like a dead server.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::Arc,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proto::v1::agent_client::AgentClient;
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint},
};

use super::{restart::mix, settings::SettingsError};

/// Nodes that share a channel to a server.
pub(crate) const NODES_PER_CHANNEL: u32 = 60;
/// Servers known at a time.
const SERVERS_MAX: usize = 32;
/// Longest message taken from a server, bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Nodes of this process that register at the same time.
const REGISTERING_MAX: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers known to this process and its channels to them.
#[derive(Debug)]
pub(crate) struct Servers {
    configured: Vec<String>,
    state: Mutex<State>,
    rpc_timeout: Duration,
    /// Taken while registering, so that thousands of simulated nodes do not all do it at once.
    registering: Semaphore,
}

#[derive(Debug)]
struct State {
    /// Invariant: not empty, at most [`SERVERS_MAX`].
    addresses: Arc<[String]>,
    channels: BTreeMap<(String, u32), Channel>,
}

impl Servers {
    /// Knows these addresses (`host:port`, with or without `http://`).
    pub(crate) fn new(
        addresses: &[String],
        rpc_timeout: Duration,
    ) -> Result<Arc<Self>, SettingsError> {
        for address in addresses {
            endpoint(address).ok_or_else(|| SettingsError::Address(address.clone()))?;
        }
        if addresses.is_empty() {
            return Err(SettingsError::NoServers);
        }
        let configured: Vec<_> = addresses.iter().take(SERVERS_MAX).cloned().collect();
        let state = State { addresses: configured.clone().into(), channels: BTreeMap::new() };
        let registering = Semaphore::new(REGISTERING_MAX);
        Ok(Arc::new(Self { configured, state: Mutex::new(state), rpc_timeout, registering }))
    }

    /// Takes over the list that a server has sent; the configured ones stay known.
    pub(crate) fn learn(&self, sent: &[String]) {
        if sent.is_empty() {
            return;
        }
        let mut addresses = self.configured.clone();
        for address in sent {
            if !addresses.contains(address)
                && addresses.len() < SERVERS_MAX
                && endpoint(address).is_some()
            {
                addresses.push(address.clone());
            }
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state.addresses != *addresses {
            tracing::info!(servers = ?addresses, "the list of servers changed");
            state.channels.retain(|(address, _), _| addresses.contains(address));
            state.addresses = addresses.into();
        }
    }

    /// A turn to register.
    pub(crate) async fn register_turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so there is always a turn in the end.
        self.registering.acquire().await.ok()
    }

    fn channel(&self, position: usize, lane: u32) -> Channel {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let address = state.addresses[position % state.addresses.len()].clone();
        let key = (address, lane);
        if let Some(channel) = state.channels.get(&key) {
            return channel.clone();
        }
        let endpoint = endpoint(&key.0).expect("only addresses that parse are kept");
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .connect_lazy();
        state.channels.insert(key, channel.clone());
        channel
    }

    fn count(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).addresses.len()
    }
}

fn endpoint(address: &str) -> Option<Endpoint> {
    let uri =
        if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(uri).ok()?;
    endpoint.uri().port_u16().map(|_| endpoint)
}

/// One node's way to the servers.
#[derive(Debug)]
pub(crate) struct Connection {
    servers: Arc<Servers>,
    lane: u32,
    current: AtomicUsize,
}

impl Connection {
    /// The way of node `number`; the first server differs, so that nodes spread.
    pub(crate) fn new(servers: Arc<Servers>, number: u32, first: u64) -> Self {
        let count = servers.count() as u64;
        let current = usize::try_from(mix(first) % count).unwrap_or(0);
        Self { servers, lane: number / NODES_PER_CHANNEL, current: AtomicUsize::new(current) }
    }

    /// The servers known.
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// A client of the present server, and a mark for [`Self::failed`].
    pub(crate) fn client(&self) -> (AgentClient<Channel>, usize) {
        let position = self.current.load(Ordering::Relaxed);
        let client = AgentClient::new(self.servers.channel(position, self.lane))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        (client, position)
    }

    /// The server behind that mark is of no use: the next one is asked, unless somebody has moved on already.
    pub(crate) fn failed(&self, position: usize) {
        let next = (position + 1) % self.servers.count();
        let moved =
            self.current.compare_exchange(position, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            tracing::debug!(from = position, to = next, "trying another server");
        }
    }

    /// One call with its deadline, tried on each server at most once.
    pub(crate) async fn call<M, R, F>(
        &self,
        message: &M,
        method: impl Fn(AgentClient<Channel>, Request<M>) -> F,
    ) -> Result<R, Status>
    where
        M: Clone,
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let mut last = Status::unavailable("no server was asked");
        for _ in 0..self.servers.count() {
            let (client, position) = self.client();
            let mut request = Request::new(message.clone());
            request.set_timeout(self.servers.rpc_timeout);
            let answer =
                tokio::time::timeout(self.servers.rpc_timeout, method(client, request)).await;
            match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))) {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) if is_about_server(&status) => {
                    self.failed(position);
                    last = status;
                }
                Err(status) => return Err(status),
            }
        }
        Err(last)
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
        Duration::from_millis(ms / 2 + self.seed % (ms / 2 + 1))
    }

    /// It worked.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_learned_ones_bounded() {
        let bad = Servers::new(&["nowhere".to_owned()], Duration::from_secs(1));
        assert_eq!(bad.err(), Some(SettingsError::Address("nowhere".to_owned())));
        let servers = Servers::new(&["127.0.0.1:1".to_owned()], Duration::from_secs(1))
            .expect("a valid address");
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
