//! Connections of servers and agents: accepts them up to a limit ([`Door`]), serves HTTP/1.1 on
//! each, and closes them when the process stops or the client stops reading. Knows no endpoint.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, Router, extract::FromRequestParts, http::request::Parts};
use ground::caller::{Caller, Way};
use hyper::{Request, body::Incoming, server::conn::http1, service::Service as _};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};

/// Connections served at a time; HTTP/1.1 has one request on each.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Connections beyond that are told to come back, this many at a time; the rest is closed.
const TURNED_AWAY_MAX: usize = 64;
/// How long a client may take to send a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take nothing of what is written to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests under way may take when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept (usually: out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TURN_AWAY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain; charset=utf-8\r\n\
retry-after: 1\r\ncontent-length: 41\r\nconnection: close\r\n\r\nconnection limit reached; retry after 1 s";

/// A listener with so many places for connections: a process that gives all its descriptors away
/// cannot write its log any more.
pub struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
    connections_max: usize,
    /// Whose connections, for the log.
    what: &'static str,
    is_failing: bool,
    was_full: bool,
}

/// A connection's place; it is free again with the drop.
pub struct Place(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Door {
    /// A listener for so many connections at a time.
    pub fn new(listener: TcpListener, connections_max: usize, what: &'static str) -> Self {
        let places = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        Self { listener, places, connections_max, what, is_failing: false, was_full: false }
    }

    /// The next connection; without a place if all are taken. May be dropped and called again.
    pub async fn next(&mut self) -> (TcpStream, SocketAddr, Option<Place>) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    self.is_failing = false;
                    let place = Arc::clone(&self.places).try_acquire_owned().ok().map(Place);
                    self.note_full(place.is_none());
                    return (stream, address, place);
                }
                Err(error) => {
                    if !self.is_failing {
                        let what = self.what;
                        tracing::warn!(%error, what, "connections cannot be accepted at the moment");
                    }
                    self.is_failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn note_full(&mut self, is_full: bool) {
        if is_full && !self.was_full {
            let Self { what, connections_max, .. } = *self;
            tracing::warn!(
                what,
                connections_max,
                "connections are refused: close some, or raise the limit of open files (ulimit -n)"
            );
        }
        self.was_full = is_full;
    }
}

/// Tells requests that the server stops.
#[derive(Clone)]
pub(crate) struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Resolves when the server stops.
    pub(crate) async fn closed(mut self) {
        // An error means that `serve` is gone, which is the same to a request.
        if self.0.wait_for(|closing| *closing).await.is_err() {
            tracing::trace!("the listener ended before its requests");
        }
    }
}

/// The address of a request's client.
#[derive(Clone, Copy)]
struct Remote(SocketAddr);

/// Who sent a request.
pub(crate) struct CalledBy(pub(crate) Caller);

impl<S: Sync> FromRequestParts<S> for CalledBy {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let remote = parts.extensions.get::<Remote>();
        Ok(Self(Caller::anonymous(Way::Http, remote.map(|remote| remote.0))))
    }
}

/// Serves `router` on the connections that a [`Door`] accepts, until `shutdown` resolves. Then
/// requests that wait for a change end at once, and others may finish.
///
/// Dropping the future closes every connection.
pub async fn serve(mut door: Door, router: Router, shutdown: impl Future<Output = ()>) {
    let (closing, closing_receiver) = watch::channel(false);
    let router = router.layer(Extension(Closing(closing_receiver.clone())));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, address, place) = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = door.next() => accepted,
        };
        if let Some(place) = place {
            let remote = Remote(address);
            let socket = Socket { stream, patience: WRITE_TIMEOUT, stalled: None };
            let closing = Closing(closing_receiver.clone());
            let connection = connection(socket, remote, router.clone(), closing);
            connections.spawn(async move {
                connection.await;
                drop(place);
            });
        } else if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
            connections.spawn(async move {
                turn_away(stream).await;
                drop(place);
            });
        }
    }
    drop(door);
    closing.send_replace(true);
    let drained =
        timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(open = connections.len(), "connections were cut off at shutdown");
    }
}

async fn connection(socket: Socket, remote: Remote, router: Router, closing: Closing) {
    if let Err(error) = socket.stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let router = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(remote);
        router.call(request)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(socket), service)
    );
    let result = tokio::select! {
        result = &mut connection => result,
        () = closing.closed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// A client's socket. A write fails when the client takes nothing for too long: what waits for it
/// takes memory.
struct Socket {
    stream: TcpStream,
    /// How long the client may take nothing.
    patience: Duration,
    /// Ends its time; only while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    fn within_patience(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within_patience(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.within_patience(context, written)
    }

    /// Without it the connection would copy every body, and a copy has no share of what bodies may
    /// take.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

async fn turn_away(mut stream: TcpStream) {
    let written = timeout(Duration::from_secs(1), stream.write_all(TURN_AWAY)).await;
    if !matches!(written, Ok(Ok(()))) {
        tracing::debug!("a client over the connection limit did not read its answer");
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use axum::routing::get;
    use bytes::Bytes;
    use tokio::{io::AsyncReadExt, sync::oneshot, task::JoinHandle};

    use super::*;

    /// Bytes of an answer, and a share of something that they hold.
    struct Held(Vec<u8>, #[expect(dead_code, reason = "held")] Arc<()>);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    async fn request(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("hello") {
            answer.push(char::from(stream.read_u8().await.unwrap()));
        }
        answer
    }

    /// A client that asks for an answer of this many bytes and reads nothing of it, and the end of
    /// its connection.
    async fn unread(
        bytes: usize,
        share: &Arc<()>,
        patience: Duration,
    ) -> (TcpStream, JoinHandle<()>) {
        let share = Arc::clone(share);
        let answer = move || {
            let held = Held(vec![b'x'; bytes], Arc::clone(&share));
            async move { Bytes::from_owner(held) }
        };
        let router = Router::new().route("/", get(answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        let remote = Remote(address);
        let socket = Socket { stream, patience, stalled: None };
        let server = tokio::spawn(async move {
            let (open, closing) = watch::channel(false);
            connection(socket, remote, router, Closing(closing)).await;
            drop(open);
        });
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        client.readable().await.unwrap();
        (client, server)
    }

    /// More than the buffers of two sockets take.
    const LARGE: usize = 64 << 20;

    #[tokio::test]
    async fn an_answer_counts_until_it_is_written_or_its_client_is_gone() {
        let share = Arc::new(());
        let (client, server) = unread(LARGE, &share, WRITE_TIMEOUT).await;
        // Its own, that of the route, and that of the answer.
        assert_eq!(Arc::strong_count(&share), 3, "it is not written yet");
        drop(client);
        timeout(DRAIN_TIMEOUT, server).await.unwrap().unwrap();
        assert_eq!(Arc::strong_count(&share), 1);
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
        let share = Arc::new(());
        let (client, server) = unread(LARGE, &share, Duration::from_millis(50)).await;
        timeout(DRAIN_TIMEOUT, server).await.expect("it waits for the client").unwrap();
        assert_eq!(Arc::strong_count(&share), 1);
        drop(client);
    }

    #[tokio::test]
    async fn connections_over_the_limit_are_told_to_come_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Router::new().route("/", get(async || "hello"));
        let shutdown = async { stopped.await.unwrap_or_default() };
        let server = tokio::spawn(serve(Door::new(listener, 1, "test"), router, shutdown));

        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(request(&mut first).await.starts_with("HTTP/1.1 200"));
        let mut second = TcpStream::connect(address).await.unwrap();
        let mut answer = String::new();
        second.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("retry-after: 1"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(answer.contains(&format!("content-length: {}\r\n", body.len())), "{answer}");

        // The first connection goes on, and ends with the server although the client keeps it open.
        assert!(request(&mut first).await.starts_with("HTTP/1.1 200"));
        stop.send(()).unwrap();
        timeout(DRAIN_TIMEOUT, server).await.unwrap().unwrap();
    }
}
