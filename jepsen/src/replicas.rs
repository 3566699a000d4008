//! What every server says of its own state at the end: its digest, and the invariants that it breaks.
//!
//! Owns the questions. Servers are asked until all have told their digest of one index, which takes a moment after the last change; whether they agree is for
//! [`crate::checker::replicas`], which reads what was written down here.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    client::{HttpClient, Reply},
    cluster::Endpoint,
};

/// How long servers may take to be at one index.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// Patience with one answer: the invariants are checked row by row.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// What a run noted of its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replicas {
    /// Digests, as they were told.
    pub(crate) digests: Vec<Told>,
    /// Invariants that a server's state breaks, in its words.
    pub(crate) broken: Vec<String>,
    /// Answers that did not come.
    pub(crate) silent: Vec<String>,
}

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The server.
    pub(crate) node: String,
    /// The index of its state.
    pub(crate) index: u64,
    /// The digest.
    pub(crate) digest: String,
}

impl Replicas {
    /// The last index of which all these servers have told their digest.
    pub(crate) fn common_index(&self, nodes: usize) -> Option<u64> {
        let at = |index: u64| self.digests.iter().filter(|told| told.index == index).count();
        let common = self.digests.iter().map(|told| told.index).filter(|index| at(*index) == nodes);
        common.max()
    }

    fn note(&mut self, told: Told) {
        // The same again is no news; another digest of the same index is.
        if !self.digests.contains(&told) {
            self.digests.push(told);
        }
    }
}

/// Asks every server.
pub(crate) fn look(endpoints: &[Endpoint]) -> Replicas {
    let clients: Vec<_> = endpoints
        .iter()
        .map(|endpoint| (&endpoint.name, HttpClient::new(endpoint.http, ANSWER_TIMEOUT)))
        .collect();
    let mut replicas = Replicas::default();
    let end = Instant::now() + LOOK_TIMEOUT;
    loop {
        replicas.silent.clear();
        for (node, client) in &clients {
            match ask(client, "/v1/operator/state-digest").and_then(|body| told(node, &body)) {
                Ok(told) => replicas.note(told),
                Err(error) => replicas.silent.push(format!("{node}: {error}")),
            }
        }
        if replicas.common_index(endpoints.len()).is_some() || Instant::now() >= end {
            break;
        }
        thread::sleep(POLL);
    }
    for (node, client) in &clients {
        match ask(client, "/v1/operator/invariants") {
            Ok(body) => replicas.broken.extend(broken(node, &body)),
            Err(error) => replicas.silent.push(format!("{node}: {error}")),
        }
    }
    replicas
}

fn ask(client: &HttpClient, path: &str) -> Result<Value, String> {
    match client.get(path) {
        Reply::Answer { status: 200, body, .. } => {
            serde_json::from_str(&body).map_err(|error| format!("{path}: {error}"))
        }
        Reply::Answer { status, body, .. } => Err(format!("{path}: {status} {body}")),
        Reply::NotSent(error) | Reply::Lost(error) => Err(format!("{path}: {error}")),
    }
}

fn told(node: &str, body: &Value) -> Result<Told, String> {
    let (index, digest) = (body["Index"].as_u64(), body["Digest"].as_str());
    let (Some(index), Some(digest)) = (index, digest) else {
        return Err(format!("no digest: {body}"));
    };
    Ok(Told { node: node.to_owned(), index, digest: digest.to_owned() })
}

fn broken(node: &str, body: &Value) -> Vec<String> {
    match body["Violations"].as_array() {
        Some(all) => all.iter().map(|one| format!("{node}: {one}")).collect(),
        None => vec![format!("{node}: no list of invariants: {body}")],
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that is at the next index with each digest it tells, up to `last`.
    fn server(name: &str, mut index: u64, last: u64, broken: &'static str) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                let body = if line.contains("state-digest") {
                    index = (index + 1).min(last);
                    format!("{{\"Index\":{index},\"Digest\":\"d{index}\"}}")
                } else {
                    format!("{{\"Index\":{index},\"Violations\":[{broken}]}}")
                };
                let head = format!("content-length: {}\r\nconnection: close", body.len());
                write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").unwrap();
            }
        });
        Endpoint { name: name.to_owned(), http, rpc: http }
    }

    #[test]
    fn servers_are_asked_until_they_are_at_one_index() {
        let broken = "{\"Name\":\"usage\",\"Detail\":\"n1 has too much\"}";
        let servers = [server("n1", 4, 9, ""), server("n2", 7, 9, broken)];
        let found = look(&servers);
        // The first is one behind when the second is there.
        assert_eq!(found.common_index(2), Some(8));
        assert_eq!(found.broken.len(), 1);
        assert!(found.broken[0].starts_with("n2: ") && found.broken[0].contains("n1 has too much"));
        assert_eq!(found.silent, Vec::<String>::new());
    }
}
