//! A proxy in front of a server's HTTP port that loses replies: a request goes through, and some connections are cut before their reply.
//!
//! Which ones follows from a seed and from the order of the connections. Each carries one request, so that a cut concerns no other.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use chance::Dice;

/// No test sends a longer head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// When a connection is cut.
#[derive(Clone, Copy)]
enum Cut {
    /// As soon as the server has the request: it sees the client go while it works.
    AtOnce,
    /// When the server has answered: what was asked for is done.
    Answered,
}

/// A running proxy; it ends when it is dropped.
pub(crate) struct ReplyCutter {
    address: SocketAddr,
    cuts: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl ReplyCutter {
    /// Loses the replies of so many of a hundred requests to `server`.
    pub(crate) fn start(server: SocketAddr, seed: u64, percent: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (cuts, stopped) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (Arc::clone(&cuts), Arc::clone(&stopped));
        let mut dice = Dice::named(seed, "cut replies");
        thread::spawn(move || {
            for client in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    break;
                }
                let when = if dice.one_in(2) { Cut::AtOnce } else { Cut::Answered };
                let cut = dice.percent(percent).then_some(when);
                counted.fetch_add(usize::from(cut.is_some()), Ordering::SeqCst);
                // A broken connection is what the client's retry is for.
                thread::spawn(move || client.and_then(|client| pass(client, server, cut)).ok());
            }
        });
        Self { address, cuts, stopped }
    }

    /// Where clients connect in place of the server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many replies were lost.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for ReplyCutter {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

/// Passes one request on, and its reply back unless it is cut.
fn pass(mut client: TcpStream, server: SocketAddr, cut: Option<Cut>) -> io::Result<()> {
    let request = read_request(&mut client)?;
    let mut server = TcpStream::connect(server)?;
    server.write_all(&request)?;
    match cut {
        None => io::copy(&mut server, &mut client).map(drop),
        Some(Cut::AtOnce) => Ok(()),
        Some(Cut::Answered) => io::copy(&mut server, &mut io::sink()).map(drop),
    }
}

/// A whole request, which asks the server to close the connection behind its reply.
fn read_request(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    let mut part = [0; 4096];
    loop {
        let end = received.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if received.len() >= end + 4 + length {
                received.splice(end..end, b"\r\nConnection: close".iter().copied());
                return Ok(received);
            }
        }
        let read = client.read(&mut part)?;
        if read == 0 || (end.is_none() && received.len() > HEAD_BYTES_MAX) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&part[..read]);
    }
}
