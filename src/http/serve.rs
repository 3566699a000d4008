//! Connections: accepts them within a bound, serves HTTP/1.1 on each, and ends them when the server stops. Knows no endpoint.

use std::{pin::pin, sync::Arc, time::Duration};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};

/// Connections served at a time; HTTP/1.1 has one request on each.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Connections beyond that are told to come back, this many at a time; the rest is closed.
const TURNED_AWAY_MAX: usize = 64;
/// How long a client may take to send a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
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
        let stream = match accepted {
            Ok((stream, _)) => {
                failing = false;
                stream
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
            let connection = connection(stream, router.clone(), Closing(closing_receiver.clone()));
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

async fn connection(stream: TcpStream, router: Router, closing: Closing) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
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
    use tokio::{io::AsyncReadExt, sync::oneshot};

    use super::*;

    async fn request(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("hello") {
            answer.push(char::from(stream.read_u8().await.unwrap()));
        }
        answer
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
