//! One HTTP connection to one server, without any retry.
//!
//! Owns the difference between "certainly not sent" and "nobody knows": a checker can be no better than
//! this answer. It must never send a request twice, follow a redirect, or go through a proxy of the
//! environment. ureq 3 has no automatic retry; `launch::client` switches redirects and proxies off.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use ureq::{Agent, Error};

/// Largest answer that is read; lists of everything are large.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The server answered.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The index of the state it was read from, in reads.
        index: Option<u64>,
        /// The body.
        body: String,
    },
    /// The request never left: the connection was refused.
    NotSent(String),
    /// The request may have been received; no answer came.
    Lost(String),
}

/// What the headers of an answer say, but for the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// `X-Nomad-KnownLeader`, if it is there and makes sense.
    pub(crate) known_leader: Option<bool>,
    /// `X-Nomad-LastContact`, if it is there and makes sense.
    pub(crate) last_contact_ms: Option<u64>,
    /// `X-Nomad-NextToken`: there are more pages.
    pub(crate) next_token: Option<String>,
}

/// A client of one server; keeps its connection alive between requests.
pub(crate) struct HttpClient {
    agent: Agent,
    base: String,
}

impl HttpClient {
    /// A client that waits at most `timeout` for each answer.
    pub(crate) fn new(server: SocketAddr, timeout: Duration) -> Self {
        Self { agent: launch::client(timeout), base: format!("http://{server}") }
    }

    /// Sends one GET.
    pub(crate) fn get(&self, path: &str) -> Reply {
        reply(self.agent.get(format!("{}{path}", self.base)).call())
    }

    /// Sends one GET, with more patience than usual, and tells the headers too.
    pub(crate) fn look(&self, path: &str, patience: Option<Duration>) -> (Reply, Headers) {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if patience.is_some() {
            request = request.config().timeout_global(patience).build();
        }
        let result = request.call();
        let headers = result.as_ref().map_or_else(|_| Headers::default(), headers);
        (reply(result), headers)
    }

    /// Sends one PUT with a JSON body.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Reply {
        let request = self.agent.put(format!("{}{path}", self.base));
        reply(request.content_type("application/json").send(body.to_string()))
    }

    /// Sends one PUT with a JSON body that takes effect once, however often it is sent under this key.
    pub(crate) fn put_keyed(&self, path: &str, body: &Value, key: &str) -> Reply {
        let request = self.agent.put(format!("{}{path}", self.base));
        let request = request.header("Idempotency-Key", key);
        reply(request.content_type("application/json").send(body.to_string()))
    }

    /// Sends one POST with a JSON body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        let request = self.agent.post(format!("{}{path}", self.base));
        reply(request.content_type("application/json").send(body.to_string()))
    }

    /// Sends one DELETE.
    pub(crate) fn delete(&self, path: &str) -> Reply {
        reply(self.agent.delete(format!("{}{path}", self.base)).call())
    }

    /// The RPC address of the leader this server knows, if it answers and knows one.
    pub(crate) fn leader(&self) -> Option<String> {
        let Reply::Answer { status: 200, body, .. } = self.get("/v1/status/leader") else {
            return None;
        };
        serde_json::from_str::<String>(&body).ok().filter(|leader| !leader.is_empty())
    }
}

fn headers(response: &ureq::http::Response<ureq::Body>) -> Headers {
    let header = |name: &str| response.headers().get(name)?.to_str().ok();
    Headers {
        known_leader: header("x-nomad-knownleader").and_then(|text| text.parse().ok()),
        last_contact_ms: header("x-nomad-lastcontact").and_then(|text| text.parse().ok()),
        next_token: header("x-nomad-nexttoken").map(str::to_owned),
    }
}

fn reply(result: Result<ureq::http::Response<ureq::Body>, Error>) -> Reply {
    match result {
        Ok(mut response) => {
            match response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string() {
                Ok(body) => {
                    let index = response.headers().get("x-nomad-index");
                    let index = index.and_then(|index| index.to_str().ok()?.parse().ok());
                    Reply::Answer { status: response.status().as_u16(), index, body }
                }
                Err(error) => Reply::Lost(format!("the answer broke off: {error}")),
            }
        }
        // Only dialling can be refused: an open connection ends with a reset or an end of file.
        Err(Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            Reply::NotSent(error.to_string())
        }
        Err(error) => Reply::Lost(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers the n-th connection's first request with the n-th text (empty = hang up), then hangs up.
    fn scripted(answers: &'static [&'static str]) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        std::thread::spawn(move || {
            for (socket, answer) in listener.incoming().zip(answers) {
                let mut socket = socket.unwrap();
                let mut bytes = [0; 4096];
                assert!(socket.read(&mut bytes).unwrap() > 0);
                counter.fetch_add(1, Ordering::SeqCst);
                socket.write_all(answer.as_bytes()).unwrap();
            }
        });
        (address, requests)
    }

    #[test]
    fn refused_is_not_sent() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = HttpClient::new(address, Duration::from_mins(1));
        assert!(matches!(client.get("/"), Reply::NotSent(_)));
        assert!(matches!(client.put("/", &Value::Null), Reply::NotSent(_)));
    }

    #[test]
    fn silence_and_hang_ups_are_lost_and_never_retried() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = HttpClient::new(listener.local_addr().unwrap(), Duration::from_millis(100));
        assert!(matches!(client.get("/"), Reply::Lost(_)));

        let (address, requests) = scripted(&["", "HTTP/1.1 200 OK\r\n", ""]);
        let client = HttpClient::new(address, Duration::from_mins(1));
        for sent in 1..=3 {
            assert!(matches!(client.get("/"), Reply::Lost(_)));
            assert_eq!(requests.load(Ordering::SeqCst), sent);
        }
    }

    #[test]
    fn errors_and_redirects_are_answers() {
        let (address, requests) = scripted(&[
            "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\nx-nomad-index: 7\r\nconnection: close\r\n\r\nnope",
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: /x\r\ncontent-length: 0\r\nconnection: \
             close\r\n\r\n",
        ]);
        let client = HttpClient::new(address, Duration::from_mins(1));
        let nope = Reply::Answer { status: 500, index: Some(7), body: "nope".to_owned() };
        assert_eq!(client.put("/", &Value::Null), nope);
        assert!(matches!(client.get("/"), Reply::Answer { status: 307, .. }));
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }
}
