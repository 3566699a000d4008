//! The HTTP client of the command line: one blocking request at a time to one address.
//!
//! Must never retry: a write that got no answer has an unknown outcome, which only the user can
//! resolve.

use std::io::{self, Read};
use std::time::Duration;

use http_api::percent::encode;
use serde_json::Value;

/// The address used when none is given.
pub(crate) const ADDRESS_DEFAULT: &str = "http://127.0.0.1:4646";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the five seconds a server holds a request while there is no leader, and than any
/// forwarded write.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
/// Largest answer read into memory.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Where a page of a list says which one follows.
const NEXT_TOKEN_HEADER: &str = "x-nomad-nexttoken";
/// Largest error text read.
const ERROR_BYTES_MAX: u64 = 64 << 10;

/// Why a request got no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The address is not one that this client can use.
    #[error("the address {address} cannot be used: {reason}")]
    Address { address: String, reason: &'static str },
    /// Nothing was sent: no connection.
    #[error(
        "cannot reach a server at {address}: {source}\n  Is a server running there? A local cluster starts with: quorate up\n  For another address set QUORATE_ADDR (or NOMAD_ADDR), or give -address=http://HOST:PORT"
    )]
    Connection { address: String, source: io::Error },
    /// The request may have been received, the answer was lost.
    #[error(
        "the answer of {address} to {method} {path} was lost: {source}{}",
        if *method == "GET" { "" } else { "\n  The change may or may not have happened: look at the state before repeating it" }
    )]
    Interrupted { address: String, method: &'static str, path: String, source: io::Error },
    /// The server refused.
    #[error("{} (HTTP {status} from {method} {path})", if text.is_empty() { "the server gave no reason" } else { text.as_str() })]
    Status { status: u16, text: String, method: &'static str, path: String },
    /// The answer is not what this API answers.
    #[error(
        "the answer of {address} to {path} is not JSON: {source}\n  Is that the HTTP address of a Quorate server?"
    )]
    Decode { address: String, path: String, source: serde_json::Error },
}

impl ClientError {
    /// The server said that the thing does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: 404, .. })
    }

    /// The same read may succeed a little later: servers restart, leaders change, overload passes.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Interrupted { .. } => true,
            Self::Status { status, .. } => matches!(status, 429 | 500 | 502 | 503 | 504),
            Self::Address { .. } | Self::Decode { .. } => false,
        }
    }
}

/// What a request is addressed to and who asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    /// `http://host:port`; a missing scheme is added.
    pub(crate) address: String,
    pub(crate) token: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) region: Option<String>,
}

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    streaming: ureq::Agent,
    /// For answers that come when tasks have ended.
    unhurried: ureq::Agent,
    target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Put,
    Delete,
}

impl Method {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

impl Client {
    /// A client; no connection is made yet.
    pub(crate) fn new(mut target: Target) -> Result<Self, ClientError> {
        let refuse =
            |address: &str, reason| ClientError::Address { address: address.to_owned(), reason };
        if target.address.starts_with("https://") {
            return Err(refuse(&target.address, "this client speaks http:// only"));
        }
        if !target.address.contains("://") {
            target.address.insert_str(0, "http://");
        }
        target.address.truncate(target.address.trim_end_matches('/').len());
        let host = target.address.strip_prefix("http://");
        if host.is_none_or(|host| host.is_empty() || host.contains(['/', ' '])) {
            return Err(refuse(&target.address, "it must look like http://127.0.0.1:4646"));
        }
        let config = || {
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_idle_connections(0)
                .proxy(None)
                .timeout_connect(Some(CONNECT_TIMEOUT))
        };
        let agent = config().timeout_global(Some(REQUEST_TIMEOUT)).build().new_agent();
        let streaming = config().timeout_recv_response(Some(REQUEST_TIMEOUT)).build().new_agent();
        let unhurried = config().build().new_agent();
        Ok(Self { agent, streaming, unhurried, target })
    }

    /// A client of another server for the same user.
    pub(crate) fn at(&self, address: &str) -> Result<Self, ClientError> {
        Self::new(Target { address: address.to_owned(), ..self.target.clone() })
    }

    /// The namespace of requests that name none themselves.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.target.namespace.as_deref()
    }

    /// The address with its scheme.
    pub(crate) fn address(&self) -> &str {
        &self.target.address
    }

    /// Reads JSON.
    pub(crate) fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, ClientError> {
        self.request(Method::Get, path, query, None)
    }

    /// Reads a page of a list, and the token of the page that follows it.
    pub(crate) fn get_page(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<(Value, Option<String>), ClientError> {
        let response = self.send(&self.agent, Method::Get, path, query, None)?;
        let next = response.headers().get(NEXT_TOKEN_HEADER);
        let next = next.and_then(|token| token.to_str().ok()).map(str::to_owned);
        Ok((self.decode(Method::Get, path, response)?, next))
    }

    /// Writes JSON.
    pub(crate) fn put(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, ClientError> {
        self.request(Method::Put, path, query, Some(body))
    }

    /// Changes something, however long that takes.
    pub(crate) fn put_unhurried(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let response = self.send(&self.unhurried, Method::Put, path, &[], Some(body))?;
        self.decode(Method::Put, path, response)
    }

    /// Deletes.
    pub(crate) fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, ClientError> {
        self.request(Method::Delete, path, query, None)
    }

    /// Deletes what a body names.
    pub(crate) fn delete_these(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.request(Method::Delete, path, &[], Some(body))
    }

    /// Reads bytes as they come, without a limit of time once the answer has begun.
    pub(crate) fn stream(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<impl Read + use<>, ClientError> {
        let response = self.send(&self.streaming, Method::Get, path, query, None)?;
        Ok(response.into_body().into_reader())
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let response = self.send(&self.agent, method, path, query, body)?;
        self.decode(method, path, response)
    }

    fn decode(
        &self,
        method: Method,
        path: &str,
        response: ureq::http::Response<ureq::Body>,
    ) -> Result<Value, ClientError> {
        let bytes = response
            .into_body()
            .into_with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.failure(method, path, error))?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|source| ClientError::Decode {
            address: self.target.address.clone(),
            path: path.to_owned(),
            source,
        })
    }

    fn send(
        &self,
        agent: &ureq::Agent,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<ureq::http::Response<ureq::Body>, ClientError> {
        let url = self.url(path, query);
        let mut request = ureq::http::Request::builder().method(method.as_str()).uri(&url);
        if let Some(token) = &self.target.token {
            request = request.header("X-Nomad-Token", token);
        }
        let refuse = |_| ClientError::Address {
            address: self.target.address.clone(),
            reason: "address or token hold characters that cannot be sent",
        };
        let result = match body {
            Some(body) => {
                let bytes = serde_json::to_vec(body).expect("a JSON value always has a text form");
                let request = request.header("Content-Type", "application/json").body(bytes);
                agent.run(request.map_err(refuse)?)
            }
            None => agent.run(request.body(()).map_err(refuse)?),
        };
        let response = result.map_err(|error| self.failure(method, path, error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let mut reader = response.into_body().into_reader().take(ERROR_BYTES_MAX);
        if reader.read_to_end(&mut bytes).is_err() {
            bytes.extend_from_slice(b" (the rest of the text was lost)");
        }
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        Err(ClientError::Status { status, text, method: method.as_str(), path: path.to_owned() })
    }

    fn url(&self, path: &str, query: &[(&str, &str)]) -> String {
        let target = &self.target;
        let namespace = target.namespace.as_deref().map(|value| ("namespace", value));
        let region = target.region.as_deref().map(|value| ("region", value));
        let given = |name: &str| query.iter().any(|(known, _)| *known == name);
        let defaults = namespace.into_iter().chain(region).filter(|(name, _)| !given(name));
        let pairs: Vec<String> = query
            .iter()
            .copied()
            .chain(defaults)
            .map(|(name, value)| format!("{name}={}", encode(value)))
            .collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        format!("{}{path}{mark}{}", target.address, pairs.join("&"))
    }

    fn failure(&self, method: Method, path: &str, error: ureq::Error) -> ClientError {
        let address = self.target.address.clone();
        let unconnected = was_never_connected(&error);
        let source = if let ureq::Error::Io(source) = error {
            source
        } else {
            io::Error::other(error.to_string())
        };
        if unconnected {
            ClientError::Connection { address, source }
        } else {
            let path = path.to_owned();
            ClientError::Interrupted { address, method: method.as_str(), path, source }
        }
    }
}

/// Nothing of the request can have reached a server.
fn was_never_connected(error: &ureq::Error) -> bool {
    if let ureq::Error::Io(source) = error {
        return matches!(
            source.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::AddrNotAvailable
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
        );
    }
    matches!(
        error,
        ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::BadUri(_)
            | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect)
    )
}

/// An error that says no such thing exists.
pub(crate) fn or_missing(
    answer: Result<Value, ClientError>,
    what: &str,
    id: &str,
) -> anyhow::Result<Value> {
    answer.map_err(|error| {
        if error.is_not_found() {
            anyhow::anyhow!("no {what} has the id \"{id}\"")
        } else {
            error.into()
        }
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::{Client, Target};

    #[test]
    fn addresses_are_completed_or_refused() {
        let address = |text: &str| {
            Client::new(Target { address: text.to_owned(), ..Target::default() })
                .map(|client| client.address().to_owned())
                .map_err(|error| error.to_string())
        };
        assert_eq!(address("127.0.0.1:1").unwrap(), "http://127.0.0.1:1");
        assert_eq!(address("http://a:1/").unwrap(), "http://a:1");
        for bad in ["https://a:1", "ftp://a", "http://", "http://a/v1", "http://a b"] {
            assert!(address(bad).unwrap_err().contains("cannot be used"), "{bad}");
        }
    }

    #[test]
    fn urls_carry_namespace_and_region_unless_given() {
        let client = Client::new(Target {
            address: "http://a:1".to_owned(),
            namespace: Some("team a".to_owned()),
            region: Some("global".to_owned()),
            token: None,
        })
        .unwrap();
        assert_eq!(
            client.url("/v1/jobs", &[("prefix", "x")]),
            "http://a:1/v1/jobs?prefix=x&namespace=team%20a&region=global"
        );
        assert_eq!(
            client.url("/v1/jobs", &[("namespace", "*")]),
            "http://a:1/v1/jobs?namespace=%2A&region=global"
        );
    }
}
