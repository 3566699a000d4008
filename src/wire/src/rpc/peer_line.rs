//! The first byte of a connection to a server says what it is for, as the first byte does on the
//! RPC port of Nomad and Consul.
//!
//! ```text
//!  'P' (of HTTP/2's "PRI * HTTP/2.0")   clients, agents, workers: served on the edge's threads
//!  0x02, then HTTP/2                    Raft between servers: served on the core's threads
//! ```
//! HTTP/2 names its service only after its own frames were read, and whoever reads those spends
//! processor time. So what Raft needs is told apart before.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::codegen::{Service, http::Uri};

/// First byte of a connection for Raft.
const RAFT: u8 = 0x02;

/// Dials a server and says that the connection is for Raft.
#[derive(Clone, Copy, Debug)]
pub struct Dial;

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(async move {
            let address = to.authority().map_or("", |authority| authority.as_str());
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            stream.write_all(&[RAFT]).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Whether a connection is for Raft, by its first byte, which is taken off then. Waits for the
/// byte.
pub async fn is_for_raft(stream: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first == [RAFT] {
        stream.read_exact(&mut first).await?;
    }
    Ok(first == [RAFT])
}
