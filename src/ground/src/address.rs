//! Addresses of other processes, as people write them.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// `host:port` of another process; the host may be a name.
///
/// Invariant: the host is not empty, the port is not 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    text: String,
    /// Invariant: the port written in `text`.
    port: u16,
}

impl Address {
    /// The text `host:port`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host; an IPv6 address keeps its brackets.
    pub fn host(&self) -> &str {
        self.text.rsplit_once(':').map_or(self.text.as_str(), |(host, _)| host)
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "an address is host:port, for example 127.0.0.1:4647";
        let (host, port) = text.rsplit_once(':').ok_or(ALLOWED)?;
        let port: u16 = port.parse().map_err(|_| ALLOWED)?;
        if port == 0 {
            return Err("the port must be between 1 and 65535".to_owned());
        }
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if bracketed {
            text.parse::<SocketAddr>().map_err(|_| ALLOWED)?;
        } else if host.is_empty()
            || !host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
        {
            return Err(ALLOWED.to_owned());
        }
        if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
            || text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified())
        {
            return Err("other machines cannot reach 0.0.0.0; name a real address".to_owned());
        }
        Ok(Self { text: text.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}
