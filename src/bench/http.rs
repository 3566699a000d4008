//! The least HTTP/1.1 client there can be: requests answered with a known length on a connection
//! that is kept. It takes part in the two cores that everything is measured on, so it does nothing
//! else.

use std::io;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Longest head of an answer, bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Longest body of an answer, bytes.
const BODY_BYTES_MAX: usize = 1 << 30;

/// One kept connection.
pub(super) struct Connection {
    stream: TcpStream,
    address: String,
    buffer: Vec<u8>,
    request: String,
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Connection {
    pub(super) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let address = address.to_owned();
        Ok(Self { stream, address, buffer: Vec::with_capacity(16 << 10), request: String::new() })
    }

    /// The status and body of an answer.
    pub(super) async fn get(&mut self, path: &str) -> io::Result<(u16, &[u8])> {
        self.ask("GET", path, "").await
    }

    async fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<(u16, &[u8])> {
        self.request.clear();
        for part in [method, " ", path, " HTTP/1.1\r\nhost: ", &self.address, "\r\n"] {
            self.request.push_str(part);
        }
        if !body.is_empty() {
            self.request.push_str("content-length: ");
            self.request.push_str(&body.len().to_string());
            self.request.push_str("\r\n");
        }
        self.request.push_str("\r\n");
        self.request.push_str(body);
        self.stream.write_all(self.request.as_bytes()).await?;
        self.buffer.clear();
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(invalid("the head of an answer is too long"));
            }
            self.read_more().await?;
        };
        let (status, length) = parse_head(&self.buffer[..head])?;
        while self.buffer.len() < head + length {
            self.read_more().await?;
        }
        Ok((status, &self.buffer[head..head + length]))
    }

    async fn read_more(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed"));
        }
        Ok(())
    }

    /// A JSON answer; any status but 200 is an error.
    pub(super) async fn get_json<T: DeserializeOwned>(&mut self, path: &str) -> io::Result<T> {
        self.json("GET", path, "").await
    }

    /// The JSON answer to a body of JSON.
    pub(super) async fn put_json<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &Value,
    ) -> io::Result<T> {
        self.json("PUT", path, &body.to_string()).await
    }

    /// DELETE that must be answered with 200.
    pub(super) async fn delete(&mut self, path: &str) -> io::Result<()> {
        let _: Value = self.json("DELETE", path, "").await?;
        Ok(())
    }

    async fn json<T: DeserializeOwned>(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<T> {
        let (status, body) = self.ask(method, path, body).await?;
        if status != 200 {
            let text = String::from_utf8_lossy(body);
            return Err(io::Error::other(format!("HTTP {status} from {path}: {text}")));
        }
        serde_json::from_slice(body).map_err(|error| invalid(format!("{path}: {error}")))
    }
}

fn parse_head(head: &[u8]) -> io::Result<(u16, usize)> {
    let head = std::str::from_utf8(head).map_err(|_| invalid("the head is not text"))?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok())
        .ok_or_else(|| invalid("the answer is not HTTP/1.1"))?;
    let length: usize = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| invalid("the answer has no content-length"))?;
    if length > BODY_BYTES_MAX {
        return Err(invalid(format!("the body is {length} bytes long")));
    }
    Ok((status, length))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::parse_head;

    #[test]
    fn heads_are_parsed_or_refused() {
        let head = |text: &str| parse_head(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(head("HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n").unwrap(), (404, 7));
        for bad in [
            "HTTP/2 200 OK\r\ncontent-length: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "",
        ] {
            assert!(head(bad).is_err(), "{bad}");
        }
    }
}
