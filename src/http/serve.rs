//! Connections: accepts them within a bound, serves HTTP/1.1 on each, and ends them when the server stops or their client takes nothing any more.
//! Knows no endpoint.

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, Router};
use hyper::{Request, body::Incoming, server::conn::http1, service::Service as _};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
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
pub(crate) struct Remote(pub(crate) SocketAddr);

/// Serves `router` on `listener`, to `connections_max` connections at a time, until `shutdown` resolves; requests that wait for a change end at once then, others may finish.
///
/// Dropping the future closes every connection.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    shutdown: impl Future<Output = ()>,
) {
    let (closing, closing_receiver) = watch::channel(false);
    let router = router.layer(Extension(Closing(closing_receiver.clone())));
    let places = Arc::new(Semaphore::new(connections_max));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, remote) = match accepted {
            Ok((stream, address)) => {
                failing = false;
                (stream, Remote(address))
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "connections cannot be accepted at the moment");
                }
                failing = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
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
    drop(listener);
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

/// A client's socket. A write fails when the client takes nothing for too long: what waits for it takes memory.
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

    /// Without it the connection would copy every body, and a copy has no share of what bodies may take.
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
    use tokio::{io::AsyncReadExt, sync::oneshot, task::JoinHandle};

    use super::*;
    use crate::http::answer::AnswerBodies;

    async fn request(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("hello") {
            answer.push(char::from(stream.read_u8().await.unwrap()));
        }
        answer
    }

    /// A client that asks for an answer of this many bytes and reads nothing of it, and the end of its connection.
    async fn unread(
        bytes: usize,
        bodies: &AnswerBodies,
        patience: Duration,
    ) -> (TcpStream, JoinHandle<()>) {
        let bodies = bodies.clone();
        let answer = move || {
            let bodies = bodies.clone();
            async move { bodies.hold(vec![b'x'; bytes].into()) }
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
        let bodies = AnswerBodies::new(LARGE);
        let (client, server) = unread(LARGE, &bodies, WRITE_TIMEOUT).await;
        let another = || bodies.hold(vec![b'x'; 1 << 20].into());
        assert!(another().is_err(), "the first is not written yet");
        drop(client);
        timeout(DRAIN_TIMEOUT, server).await.unwrap().unwrap();
        assert!(another().is_ok());
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
        let bodies = AnswerBodies::new(LARGE);
        let (client, server) = unread(LARGE, &bodies, Duration::from_millis(50)).await;
        timeout(DRAIN_TIMEOUT, server).await.expect("it waits for the client").unwrap();
        assert!(bodies.hold(vec![b'x'; LARGE].into()).is_ok());
        drop(client);
    }

    #[tokio::test]
    async fn connections_over_the_limit_are_told_to_come_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Router::new().route("/", get(async || "hello"));
        let shutdown = async { stopped.await.unwrap_or_default() };
        let server = tokio::spawn(serve(listener, router, 1, shutdown));

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
