//! How a server reaches another: a method path and message bytes. gRPC in production; a simulated
//! network in `sim/`, which sees the same bytes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use fsm::GENERATION;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use ground::{
    plant::{Plant, is_planted},
    rt::Threads,
};
use prost::Message;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

use super::{
    generation::{self, Paced},
    method::Method,
    peer_line,
};

/// Largest message in either direction, bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Which connection a call travels on, so that a large transfer holds up nothing small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// Log replication.
    Append,
    /// Heartbeats, votes and probes.
    Heartbeat,
    /// Snapshots.
    Snapshot,
    /// Everything else between servers.
    Control,
    /// Agents in one process, so many of them that their endless streams have room in one
    /// connection.
    Agent(u32),
}

impl Lane {
    /// Whether the other end serves it on the threads of Raft, which no client's load delays.
    fn is_of_peers(self) -> bool {
        match self {
            Self::Append | Self::Heartbeat | Self::Snapshot => true,
            Self::Control | Self::Agent(_) => false,
        }
    }
}

/// A stream of replies.
pub type ReplyStream = BoxStream<'static, Result<Bytes, Status>>;

/// A way to reach servers by address.
pub trait Transport: Send + Sync + 'static {
    /// One request, one reply, within `timeout`.
    fn unary(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, Status>>;

    /// Pipelined requests with replies in order.
    fn stream(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        input: BoxStream<'static, Bytes>,
    ) -> BoxFuture<'static, Result<ReplyStream, Status>>;

    /// Lets go of the connections that it keeps to all others: they are not servers any more.
    fn keep_only(&self, _addresses: &[String]) {}
}

/// The deadline of a server with [`Plant::NoDeadline`].
const FOR_EVER: Duration = Duration::from_hours(24);

/// A typed call over any transport.
pub async fn call<Q: Message, P: Message + Default>(
    transport: &dyn Transport,
    to: &str,
    method: &Method<Q, P>,
    lane: Lane,
    request: &Q,
    timeout: Duration,
) -> Result<P, Status> {
    let path = method.path();
    let body = request.encode_to_vec().into();
    let timeout = if is_planted(Plant::NoDeadline) { FOR_EVER } else { timeout };
    let reply = transport.unary(to, path, lane, body, timeout).await?;
    P::decode(reply).map_err(|error| Status::internal(format!("reply of {path}: {error}")))
}

/// gRPC over TCP with one connection per peer and lane.
pub struct GrpcTransport {
    channels: Mutex<BTreeMap<(String, Lane), Channel>>,
    configure: fn(Endpoint) -> Endpoint,
    /// Addresses to dial instead of the advertised ones: proxies of a test harness.
    dial: BTreeMap<String, String>,
    /// Named on every call.
    generation: u16,
    refusals: Arc<Paced>,
    /// Where connections are kept: where this was made, whoever calls first.
    threads: Threads,
}

impl GrpcTransport {
    /// A server's transport to others, which dials `dial[address]` where given.
    pub fn between_servers(dial: BTreeMap<String, String>) -> Self {
        Self::new(between_servers, dial, GENERATION)
    }

    /// An agent's transport to servers, which may be far away.
    pub fn from_agents() -> Self {
        Self::new(from_agents, BTreeMap::new(), GENERATION)
    }

    fn new(
        configure: fn(Endpoint) -> Endpoint,
        dial: BTreeMap<String, String>,
        generation: u16,
    ) -> Self {
        Self {
            channels: Mutex::default(),
            configure,
            dial,
            generation,
            refusals: Arc::default(),
            threads: Threads::current(),
        }
    }

    fn client(&self, to: &str, lane: Lane) -> Result<Grpc<Channel>, Status> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match channels.get(&(to.to_owned(), lane)) {
            Some(channel) => channel.clone(),
            None => {
                let dialled = self.dial.get(to).map_or(to, String::as_str);
                let channel = self.connect_lazily(dialled, lane)?;
                channels.insert((to.to_owned(), lane), channel.clone());
                channel
            }
        };
        Ok(Grpc::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn connect_lazily(&self, address: &str, lane: Lane) -> Result<Channel, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Status::invalid_argument(format!("address {address}: {error}")))?;
        let endpoint = (self.configure)(endpoint.tcp_nodelay(true));
        Ok(self.threads.within(|| {
            if lane.is_of_peers() {
                endpoint.connect_with_connector_lazy(peer_line::Dial)
            } else {
                endpoint.connect_lazy()
            }
        }))
    }
}

impl GrpcTransport {
    /// Logs the refusal of a server of another generation: callers try again in silence.
    fn note_refusals(&self, to: &str) -> impl FnOnce(&Status) + Send + use<> {
        let (to, refusals) = (to.to_owned(), Arc::clone(&self.refusals));
        move |status| {
            if generation::is_refusal(status) && refusals.is_due() {
                tracing::error!(to, message = status.message(), "a server refused a call");
            }
        }
    }
}

fn between_servers(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(Duration::from_millis(500))
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
}

fn from_agents(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
}

async fn ready(client: &mut Grpc<Channel>) -> Result<(), Status> {
    client.ready().await.map_err(|error| {
        Status::new(Code::Unavailable, format!("no connection: {}", innermost(&error)))
    })
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

impl Transport for GrpcTransport {
    fn unary(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, Status>> {
        let client = self.client(to, lane);
        let (generation, note) = (self.generation, self.note_refusals(to));
        let call = async move {
            let mut client = client?;
            ready(&mut client).await?;
            let mut request = Request::new(body);
            request.set_timeout(timeout);
            generation::stamp(request.metadata_mut(), generation);
            let path = PathAndQuery::from_static(path);
            let reply = client.unary(request, path, BytesCodec).await.inspect_err(note)?;
            Ok(reply.into_inner())
        };
        async move {
            match tokio::time::timeout(timeout, call).await {
                Ok(result) => result,
                Err(_) => {
                    Err(Status::deadline_exceeded(format!("{path}: no reply in {timeout:?}")))
                }
            }
        }
        .boxed()
    }

    fn stream(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        input: BoxStream<'static, Bytes>,
    ) -> BoxFuture<'static, Result<ReplyStream, Status>> {
        let client = self.client(to, lane);
        let (generation, note) = (self.generation, self.note_refusals(to));
        async move {
            let mut client = client?;
            ready(&mut client).await?;
            let path = PathAndQuery::from_static(path);
            let mut request = Request::new(input);
            generation::stamp(request.metadata_mut(), generation);
            let replies = client.streaming(request, path, BytesCodec).await.inspect_err(note)?;
            Ok(replies.into_inner().boxed())
        }
        .boxed()
    }

    fn keep_only(&self, addresses: &[String]) {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|(address, _), _| addresses.contains(address));
    }
}

/// Messages as bytes that are encoded already.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        *self
    }
    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use proto::v1 as pb;
    use tonic::{
        service::{InterceptorLayer, Routes},
        transport::{Server, server::TcpIncoming},
    };

    use super::*;
    use crate::rpc::method;
    use ground::plant::must_catch;

    /// A half-open connection: the kernel takes it, and nobody ever reads.
    fn a_peer_that_never_answers_costs_the_deadline() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let transport = GrpcTransport::between_servers(BTreeMap::new());
        runtime.block_on(async {
            let request = pb::ReadIndexRequest::default();
            let method = &method::READ_INDEX;
            let timeout = Duration::from_millis(100);
            let call = call(&transport, &address, method, Lane::Control, &request, timeout);
            // Below the keep-alive, which ends the whole connection much later.
            let ended = tokio::time::timeout(Duration::from_secs(4), call).await;
            assert!(ended.expect("it ends by itself").is_err());
        });
    }

    #[tokio::test]
    async fn connections_to_servers_that_are_none_any_more_are_let_go() {
        let transport = GrpcTransport::from_agents();
        for (server, lane) in [("a:1", 0), ("a:1", 1), ("b:1", 0)] {
            transport.client(server, Lane::Agent(lane)).unwrap();
        }
        transport.keep_only(&["b:1".to_owned(), "c:1".to_owned()]);
        let kept: Vec<_> = transport.channels.lock().unwrap().keys().cloned().collect();
        assert_eq!(kept, [("b:1".to_owned(), Lane::Agent(0))]);
    }

    #[tokio::test]
    async fn a_caller_of_another_generation_is_refused_before_its_call_is_looked_at() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = Server::builder()
            .layer(InterceptorLayer::new(generation::Check::default()))
            .add_routes(Routes::default())
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(served);
        let path = "/quorate.v1.Raft/Vote";
        for (named, is_refused) in [(1, true), (GENERATION, false), (GENERATION + 1, true)] {
            let transport = GrpcTransport::new(between_servers, BTreeMap::new(), named);
            let timeout = Duration::from_secs(10);
            let reply = transport.unary(&address, path, Lane::Control, Bytes::new(), timeout);
            let status = reply.await.unwrap_err();
            assert_eq!(generation::is_refusal(&status), is_refused, "{status}");
            let input = futures_util::stream::empty().boxed();
            let stream = transport.stream(&address, path, Lane::Control, input).await;
            let status = stream.err().expect("no such service");
            assert_eq!(generation::is_refusal(&status), is_refused, "{status}");
            assert_eq!(transport.refusals.is_due(), !is_refused, "whether it was logged");
        }
    }

    #[test]
    fn every_call_has_a_deadline() {
        a_peer_that_never_answers_costs_the_deadline();
        must_catch(Plant::NoDeadline, a_peer_that_never_answers_costs_the_deadline);
    }
}
