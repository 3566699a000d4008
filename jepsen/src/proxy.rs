//! The network between the servers: one TCP proxy per directed pair, so that links can be cut without root.
//!
//! Server i reaches server j only through the listener of the pair (i, j). Bytes from a to b are the *flow*
//! (a, b); a connection of the pair (i, j) carries flow (i, j) upstream and flow (j, i) downstream, so one
//! direction can be blocked alone.
//! ```text
//!  server i ──► listener (i,j) ──► [flow (i,j)?] ──► rpc port of j
//!           ◄────────────────── [flow (j,i)?] ◄──
//! ```
//! A held flow keeps its bytes and hands them over when it opens again, as TCP does after packet loss; a cut
//! flow closes the connections of both pairs it is part of and refuses new ones. The proxy must never
//! alter, drop from the middle, or reorder bytes of a connection that lives.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const CHUNK_BYTES: usize = 64 * 1024;
const STACK_BYTES: usize = 256 * 1024;
/// Connections through all pairs at once; more are refused.
const CONNECTIONS_MAX: usize = 1_000;

/// What happens to bytes from one server to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// They pass.
    Open,
    /// They wait until the flow opens or the connection ends.
    Held,
    /// There are no connections.
    Cut,
}

/// All proxies of a cluster.
pub(crate) struct Switchboard {
    shared: Arc<Shared>,
    /// Listener addresses by (from, to).
    addresses: BTreeMap<(usize, usize), SocketAddr>,
    acceptors: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Invariant: holds every ordered pair of different servers.
    flows: BTreeMap<(usize, usize), Link>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    stopping: bool,
}

struct Link {
    flow: Flow,
    bytes: u64,
}

struct Connection {
    pair: (usize, usize),
    /// Clones of the sockets, to close them from outside.
    sockets: Vec<TcpStream>,
}

impl Switchboard {
    /// Starts a proxy for every ordered pair of servers, all flows open.
    pub(crate) fn start(servers: &[SocketAddr]) -> Result<Self> {
        let pairs = (0..servers.len())
            .flat_map(|from| (0..servers.len()).map(move |to| (from, to)))
            .filter(|(from, to)| from != to);
        let flows = pairs.clone().map(|pair| (pair, Link { flow: Flow::Open, bytes: 0 })).collect();
        let state =
            State { flows, connections: BTreeMap::new(), next_connection: 0, stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut board = Self { shared, addresses: BTreeMap::new(), acceptors: Vec::new() };
        for pair in pairs {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .context("cannot open a proxy listener")?;
            board.addresses.insert(pair, listener.local_addr()?);
            let (shared, target) = (Arc::clone(&board.shared), servers[pair.1]);
            let acceptor = std::thread::Builder::new()
                .name(format!("proxy-{}-{}", pair.0, pair.1))
                .stack_size(STACK_BYTES)
                .spawn(move || accept(&shared, &listener, pair, target))
                .context("cannot start a proxy thread")?;
            board.acceptors.push(acceptor);
        }
        Ok(board)
    }

    /// Where server `from` finds server `to`.
    pub(crate) fn address(&self, from: usize, to: usize) -> SocketAddr {
        self.addresses[&(from, to)]
    }

    /// Blocks exactly these flows in this way and opens all others.
    pub(crate) fn block(&self, blocked: &[(usize, usize)], how: Flow) {
        let mut state = self.shared.lock();
        for (pair, link) in &mut state.flows {
            link.flow = if blocked.contains(pair) { how } else { Flow::Open };
        }
        let State { flows, connections, .. } = &mut *state;
        for connection in connections.values() {
            if is_cut(flows, connection.pair) {
                connection.close();
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Opens all flows.
    pub(crate) fn heal(&self) {
        self.block(&[], Flow::Open);
    }

    /// Bytes carried so far from one server to another.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> u64 {
        self.shared.lock().flows[&(from, to)].bytes
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        state.connections.values().for_each(Connection::close);
        drop(state);
        self.shared.changed.notify_all();
        for address in self.addresses.values() {
            // Wakes the acceptor; when this fails the listener is gone and so is the acceptor.
            TcpStream::connect_timeout(address, DIAL_TIMEOUT).ok();
        }
        for acceptor in self.acceptors.drain(..) {
            // A panic of an acceptor was already reported on stderr by the panic hook.
            acceptor.join().ok();
        }
    }
}

impl Connection {
    fn close(&self) {
        for socket in &self.sockets {
            // Fails only on a socket that is closed already.
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a connection, unless its pair is cut.
    fn register(&self, pair: (usize, usize), socket: &TcpStream) -> Option<u64> {
        let mut state = self.lock();
        let full = state.connections.len() >= CONNECTIONS_MAX;
        if state.stopping || full || is_cut(&state.flows, pair) {
            return None;
        }
        let sockets = vec![socket.try_clone().ok()?];
        let id = state.next_connection;
        state.next_connection += 1;
        state.connections.insert(id, Connection { pair, sockets });
        Some(id)
    }

    /// Adds the second socket of a connection; false if it was cut meanwhile.
    fn attach(&self, id: u64, socket: &TcpStream) -> bool {
        let mut state = self.lock();
        let State { flows, connections, stopping, .. } = &mut *state;
        let Some(connection) = connections.get_mut(&id) else { return false };
        let Ok(clone) = socket.try_clone() else { return false };
        connection.sockets.push(clone);
        !*stopping && !is_cut(flows, connection.pair)
    }

    fn remove(&self, id: u64) {
        if let Some(connection) = self.lock().connections.remove(&id) {
            connection.close();
        }
    }

    /// Waits while the flow is held, then counts the bytes; false if they must not pass any more.
    fn pass(&self, flow: (usize, usize), bytes: usize) -> bool {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return false;
            }
            let link = state.flows.get_mut(&flow).expect("every pair has a link");
            match link.flow {
                Flow::Open => {
                    link.bytes += bytes as u64;
                    return true;
                }
                Flow::Cut => return false,
                Flow::Held => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn is_cut(flows: &BTreeMap<(usize, usize), Link>, (from, to): (usize, usize)) -> bool {
    flows[&(from, to)].flow == Flow::Cut || flows[&(to, from)].flow == Flow::Cut
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, pair: (usize, usize), target: SocketAddr) {
    for socket in listener.incoming() {
        if shared.lock().stopping {
            return;
        }
        // A failed accept (the peer is gone again) concerns that peer alone.
        let Ok(socket) = socket else { continue };
        let Some(id) = shared.register(pair, &socket) else { continue };
        let worker = Arc::clone(shared);
        let spawned = std::thread::Builder::new()
            .name(format!("pump-{}-{}", pair.0, pair.1))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                connect(&worker, id, pair, &socket, target);
                worker.remove(id);
            });
        if spawned.is_err() {
            shared.remove(id);
        }
    }
}

/// Dials the server behind the proxy and carries bytes both ways until both directions have ended.
fn connect(
    shared: &Arc<Shared>,
    id: u64,
    (from, to): (usize, usize),
    near: &TcpStream,
    target: SocketAddr,
) {
    if !shared.pass((from, to), 0) {
        return;
    }
    let Ok(far) = TcpStream::connect_timeout(&target, DIAL_TIMEOUT) else { return };
    let tuned = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    if tuned.is_err() || !shared.attach(id, &far) {
        return;
    }
    let (Ok(mut near_reader), Ok(mut far_reader)) = (near.try_clone(), far.try_clone()) else {
        return;
    };
    std::thread::scope(|scope| {
        let down = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || {
            pump(shared, &mut far_reader, near, (to, from));
        });
        if down.is_ok() {
            pump(shared, &mut near_reader, &far, (from, to));
        }
    });
}

fn pump(shared: &Shared, source: &mut TcpStream, sink: &TcpStream, flow: (usize, usize)) {
    let mut writer = sink;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match source.read(&mut chunk) {
            Ok(0) => {
                // The other direction may still have bytes to carry.
                if shared.pass(flow, 0) && sink.shutdown(Shutdown::Write).is_ok() {
                    return;
                }
                break;
            }
            Ok(count) => {
                if !shared.pass(flow, count) || writer.write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    for socket in [source, sink] {
        // Fails only on a socket that is closed already.
        socket.shutdown(Shutdown::Both).ok();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A server that answers each byte with the byte plus one.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while socket.read_exact(&mut byte).is_ok() {
                        if socket.write_all(&[byte[0] + 1]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn dial(address: SocketAddr) -> TcpStream {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    }

    fn exchange(socket: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        socket.write_all(&[byte])?;
        let mut answer = [0];
        socket.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn cut_links_close_and_refuse_and_others_go_on() {
        let board = Switchboard::start(&[echo(), echo(), echo()]).unwrap();
        let mut cut = dial(board.address(0, 1));
        let mut reverse = dial(board.address(1, 0));
        let mut other = dial(board.address(0, 2));
        for socket in [&mut cut, &mut reverse, &mut other] {
            assert_eq!(exchange(socket, 1).unwrap(), 2);
        }
        assert_eq!((board.bytes(0, 1), board.bytes(0, 2), board.bytes(2, 1)), (2, 1, 0));

        board.block(&[(0, 1)], Flow::Cut);
        assert!(exchange(&mut cut, 1).is_err());
        assert!(exchange(&mut reverse, 1).is_err(), "a connection needs both directions");
        assert!(exchange(&mut dial(board.address(0, 1)), 1).is_err());
        assert_eq!(exchange(&mut other, 5).unwrap(), 6);

        board.heal();
        assert_eq!(exchange(&mut dial(board.address(0, 1)), 3).unwrap(), 4);
    }

    #[test]
    fn held_flows_deliver_late_and_only_that_direction_waits() {
        let board = Switchboard::start(&[echo(), echo()]).unwrap();
        let mut socket = dial(board.address(0, 1));
        assert_eq!(exchange(&mut socket, 1).unwrap(), 2);
        // Answers of server 1 wait; what server 0 sends still arrives there.
        board.block(&[(1, 0)], Flow::Held);
        socket.write_all(&[7]).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut answer = [0];
        assert!(socket.read_exact(&mut answer).is_err());
        assert_eq!(board.bytes(0, 1), 2);
        assert_eq!(board.bytes(1, 0), 1);
        board.heal();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [8]);
    }

    #[test]
    fn a_connection_opened_while_held_is_served_after_the_heal() {
        let board = Switchboard::start(&[echo(), echo()]).unwrap();
        board.block(&[(0, 1), (1, 0)], Flow::Held);
        let mut socket = dial(board.address(0, 1));
        socket.write_all(&[1]).unwrap();
        board.heal();
        let mut answer = [0];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [2]);
    }

    #[test]
    fn dropping_ends_every_thread_even_when_flows_are_held() {
        let board = Switchboard::start(&[echo(), echo()]).unwrap();
        let mut socket = dial(board.address(0, 1));
        assert_eq!(exchange(&mut socket, 1).unwrap(), 2);
        board.block(&[(0, 1), (1, 0)], Flow::Held);
        socket.write_all(&[1]).unwrap();
        drop(board);
        let mut rest = Vec::new();
        // Either end of file or a reset, but not a timeout.
        let ended = socket.read_to_end(&mut rest);
        assert!(
            ended.as_ref().map_or_else(
                |error| error.kind() == std::io::ErrorKind::ConnectionReset,
                |count| *count == 0
            ),
            "{ended:?}"
        );
    }
}
