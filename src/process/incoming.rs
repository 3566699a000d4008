//! Connections of servers, agents and workers, as gRPC takes them: no more than a [`Door`] has places. A
//! connection over the bound is closed at once, and whoever made it tries again.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::serve::{Door, Place};

/// A connection that has one of the places.
pub(super) struct Counted {
    stream: TcpStream,
    /// Given back with the connection.
    _place: Place,
}

/// The connections that get a place.
pub(super) fn counted(door: Door) -> impl Stream<Item = io::Result<Counted>> {
    stream::unfold(door, async |mut door| {
        loop {
            let (stream, _, place) = door.next().await;
            let Some(place) = place else { continue };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY could not be set");
            }
            return Some((Ok(Counted { stream, _place: place }), door));
        }
    })
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

    use futures_util::StreamExt;
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn a_connection_over_the_bound_is_closed_and_its_place_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepted = Box::pin(counted(Door::new(listener, 2, "test")));
        let mut clients = Vec::new();
        let mut taken = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.unwrap());
            taken.push(accepted.next().await.unwrap().unwrap());
        }
        let mut third = TcpStream::connect(address).await.unwrap();
        // The stream gives out nothing for it, and goes on when a place is free.
        let mut next = Box::pin(accepted.next());
        let mut byte = [0];
        let read = tokio::select! {
            read = third.read(&mut byte) => read,
            _ = &mut next => panic!("over the bound"),
        };
        assert!(matches!(read, Ok(0) | Err(_)), "closed");
        taken.pop();
        let _fourth = TcpStream::connect(address).await.unwrap();
        assert!(next.await.unwrap().is_ok());
    }
}
