//! Passes one HTTP request on to another process and streams the answer back. Knows no endpoint.
//!
//! Bodies are never held in memory: client and agent have different speeds, and logs may be
//! followed for hours.

use std::{io, time::Duration};

use axum::{body::Body, response::Response};
use hyper::{
    HeaderMap, Request,
    client::conn::http1,
    header::{self, HeaderName},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use crate::serve::Closing;

/// How long the other process may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Headers that are about one connection, and not about the request or answer.
const OF_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// Nothing was sent.
    #[error("connecting took too long")]
    Slow,
    /// Nothing was sent.
    #[error("{0}")]
    Connect(#[from] io::Error),
    /// It may have been received.
    #[error("{0}")]
    Broken(#[from] hyper::Error),
    /// It may have been received.
    #[error("no answer in time")]
    NoAnswer,
}

/// A connection that one request can be sent on.
pub(crate) struct Link(http1::SendRequest<Body>);

/// Connects to `host:port`. The connection ends with the answer's body, or when this process stops.
pub(crate) async fn connect(address: &str, closing: Option<Closing>) -> Result<Link, ForwardError> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| ForwardError::Slow)??;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        let result = match closing {
            Some(closing) => tokio::select! {
                result = connection => result,
                () = closing.closed() => Ok(()),
            },
            None => connection.await,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection for a forwarded request broke off");
        }
    });
    Ok(Link(sender))
}

impl Link {
    /// Sends the request, and gives the answer with all its headers. Without `patience` its head is
    /// waited for as long as the client waits.
    pub(crate) async fn send(
        mut self,
        mut request: Request<Body>,
        patience: Option<Duration>,
    ) -> Result<Response, ForwardError> {
        drop_connection_headers(request.headers_mut());
        let answer = self.0.send_request(request);
        let answer = match patience {
            Some(patience) => {
                timeout(patience, answer).await.map_err(|_| ForwardError::NoAnswer)?
            }
            None => answer.await,
        };
        let (mut head, body) = answer?.into_parts();
        drop_connection_headers(&mut head.headers);
        Ok(Response::from_parts(head, Body::new(body)))
    }
}

fn drop_connection_headers(headers: &mut HeaderMap) {
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}
