//! Connections as gRPC takes them: no more than a [`Door`] has places, and told apart by what they
//! are for. A connection over a bound is closed at once, and whoever made it tries again.
//!
//! ```text
//!  Door ─► first byte ─┬─► for Raft: moved to the core's threads
//!                      └─► everybody else: stays on the edge's
//! ```

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use http_api::serve::{Door, Place};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};
use wire::rpc::peer_line::is_for_raft;

/// How long a connection may take for its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// Connections for Raft at a time: three of each other server, and those that they have just left.
const RAFT_CONNECTIONS_MAX: usize = 256;
/// Connections that wait for their server to take them.
const QUEUE: usize = 16;

/// A connection that has one of the places.
pub(super) struct Counted {
    stream: TcpStream,
    /// Given back with the connection.
    _places: Places,
}

type Places = (Place, Option<OwnedSemaphorePermit>);
/// A connection on its way to the runtime that serves it.
type Moving = (std::net::TcpStream, Places);

/// Connections of one purpose, to be polled on the threads that serve them.
pub(super) type Sorted = Pin<Box<dyn Stream<Item = io::Result<Counted>> + Send>>;

/// Tells the connections of a door apart: those for Raft, and all others. The future does it, until
/// nobody takes any more.
pub(super) fn sort(door: Door) -> (Sorted, Sorted, impl Future<Output = ()>) {
    let (raft, for_raft) = mpsc::channel(QUEUE);
    let (edge, for_edge) = mpsc::channel(QUEUE);
    (connections(for_raft), connections(for_edge), sort_all(door, raft, edge))
}

fn connections(moving: mpsc::Receiver<Moving>) -> Sorted {
    let arrive = |(stream, places)| {
        // Registered with the runtime that polls this.
        TcpStream::from_std(stream).map(|stream| Counted { stream, _places: places })
    };
    ReceiverStream::new(moving).map(arrive).boxed()
}

async fn sort_all(mut door: Door, raft: mpsc::Sender<Moving>, edge: mpsc::Sender<Moving>) {
    let raft_places = Arc::new(Semaphore::new(RAFT_CONNECTIONS_MAX));
    let mut arriving = JoinSet::new();
    loop {
        let (stream, _, place) = tokio::select! {
            () = edge.closed() => return,
            Some(_) = arriving.join_next() => continue,
            next = door.next() => next,
        };
        let Some(place) = place else { continue };
        let (raft, edge, raft_places) = (raft.clone(), edge.clone(), Arc::clone(&raft_places));
        arriving.spawn(async move {
            if let Err(error) = arrive(stream, place, &raft_places, raft, edge).await {
                tracing::debug!(%error, "a connection did not begin");
            }
        });
    }
}

async fn arrive(
    mut stream: TcpStream,
    place: Place,
    raft_places: &Arc<Semaphore>,
    raft: mpsc::Sender<Moving>,
    edge: mpsc::Sender<Moving>,
) -> io::Result<()> {
    let is_for_raft = timeout(FIRST_BYTE, is_for_raft(&mut stream)).await??;
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let (to, place_of_raft) = if is_for_raft {
        let place = Arc::clone(raft_places).try_acquire_owned();
        (raft, Some(place.map_err(|_| io::Error::other("too many connections for Raft"))?))
    } else {
        (edge, None)
    };
    // It fails when the server stops.
    to.send((stream, (place, place_of_raft))).await.map_err(io::Error::other)
}

impl Connected for Counted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
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
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn a_connection_over_the_bound_is_closed_and_its_place_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_raft, mut accepted, sorting) = sort(Door::new(listener, 2, "test"));
        tokio::spawn(sorting);
        let connect = async || {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"P").await.unwrap();
            client
        };
        let mut clients = Vec::new();
        let mut taken = Vec::new();
        for _ in 0..2 {
            clients.push(connect().await);
            taken.push(accepted.next().await.unwrap().unwrap());
        }
        let mut third = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        assert!(matches!(third.read(&mut byte).await, Ok(0) | Err(_)), "closed");
        taken.pop();
        let _fourth = connect().await;
        assert!(accepted.next().await.unwrap().is_ok(), "it goes on when a place is free");
    }

    #[tokio::test]
    async fn connections_are_told_apart_by_their_first_byte_and_silence_holds_up_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mut raft, mut edge, sorting) = sort(Door::new(listener, 9, "test"));
        let sorting = tokio::spawn(sorting);
        let _silent = TcpStream::connect(address).await.unwrap();
        for (sent, connections, read) in
            [(b"\x02PRI", &mut raft, &b"PRI"[..]), (b"PRI*", &mut edge, b"PRI*")]
        {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(sent).await.unwrap();
            let mut served = connections.next().await.unwrap().unwrap();
            let mut seen = vec![0; read.len()];
            served.read_exact(&mut seen).await.unwrap();
            assert_eq!(seen, read, "the byte of Raft is taken off, and nothing else");
        }
        drop((raft, edge));
        sorting.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "the door is closed");
    }
}
