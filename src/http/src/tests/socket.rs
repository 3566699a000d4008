//! A server on port 0 and a client that sees every byte.

use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use super::cluster::TestCluster;
use crate::{
    HttpOptions, router,
    serve::{CONNECTIONS_MAX, Door, serve},
};

/// No test waits longer than this for an answer.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    pub(super) cluster: Arc<TestCluster>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
pub(super) struct TestResponse {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) text: String,
}

impl TestResponse {
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(super) fn index(&self) -> u64 {
        self.headers["x-nomad-index"].parse().unwrap()
    }

    /// The JSON of an answer that must be 200.
    #[track_caller]
    pub(super) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
}

impl TestServer {
    pub(super) async fn start(cluster: Arc<TestCluster>) -> Self {
        Self::start_with(cluster, HttpOptions::default()).await
    }

    pub(super) async fn start_with(cluster: Arc<TestCluster>, options: HttpOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = router(cluster.clone(), options);
        let door = Door::new(listener, CONNECTIONS_MAX, "HTTP");
        let task = tokio::spawn(serve(door, router, async {
            stopped.await.unwrap_or_default();
        }));
        Self { address, cluster, stop: Some(stop), task }
    }

    /// Stops the server and waits for its end.
    pub(super) async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, &[], b"").await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.send("PUT", path, &[], body.to_string().as_bytes()).await
    }

    pub(super) async fn delete(&self, path: &str) -> TestResponse {
        self.send("DELETE", path, &[], b"").await
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        timeout(PATIENCE, send(self.address, method, path, headers, body)).await.unwrap()
    }
}

/// One request on a connection of its own.
pub(super) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TestResponse {
    rest(ask(address, method, path, headers, body).await, Vec::new()).await
}

/// An answer of which the first bytes are received: the rest, within the patience of tests.
pub(super) async fn rest(mut stream: TcpStream, mut received: Vec<u8>) -> TestResponse {
    timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    parse(&received)
}

/// Sends a request on a connection of its own, from which the answer is to be read.
pub(super) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    write!(head, "content-length: {}\r\n\r\n", body.len()).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

fn parse(received: &[u8]) -> TestResponse {
    let received = String::from_utf8(received.to_vec()).unwrap();
    let (head, body) = received.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked");
    let text = if chunked { unchunk(body) } else { body.to_owned() };
    TestResponse { status, headers, text }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return out;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
}
