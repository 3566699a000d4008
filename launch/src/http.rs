//! Questions to a server over HTTP.

use std::{io, net::SocketAddr, time::Duration};

/// A client that sends each request once, to the server that it is for: it follows no redirect,
/// ignores the proxy of the environment, and returns every status as an answer.
pub fn client(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .build();
    ureq::Agent::new_with_config(config)
}

/// What a server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub status: u16,
    /// The whole body; the server must send text.
    pub body: String,
}

/// Sends requests to one server.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
}

impl Client {
    /// A client of the server at this address, whose requests take at most `timeout`.
    pub fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self { agent: client(timeout), base: format!("http://{address}") }
    }

    /// GET of a path.
    pub fn get(&self, path: &str) -> io::Result<Answer> {
        let result = self.agent.get(format!("{}{path}", self.base)).call();
        let mut response = result.map_err(ureq::Error::into_io)?;
        let status = response.status().as_u16();
        let body = response.body_mut().read_to_string().map_err(ureq::Error::into_io)?;
        Ok(Answer { status, body })
    }

    /// Whether the server answers a linearizable read.
    pub fn is_ready(&self) -> bool {
        self.get("/v1/jobs").is_ok_and(|answer| answer.status == 200)
    }

    /// The gRPC address of the leader, if the server answers and knows one.
    pub fn leader(&self) -> Option<String> {
        let answer = self.get("/v1/status/leader").ok().filter(|answer| answer.status == 200)?;
        // The answer is a JSON string, and an address has nothing in it to be escaped.
        let leader = answer.body.trim().strip_prefix('"')?.strip_suffix('"')?;
        (!leader.is_empty()).then(|| leader.to_owned())
    }
}
