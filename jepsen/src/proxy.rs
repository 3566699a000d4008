//! The network between the servers: one TCP proxy per directed pair, so that links can be broken without root.
//!
//! Server i reaches server j only through the listener of the pair (i, j). Bytes from a to b are the *flow*
//! (a, b); a connection of the pair (i, j) carries flow (i, j) upstream and flow (j, i) downstream, so one
//! direction can be broken alone.
//! ```text
//!  server i ──► listener (i,j) ──► [flow (i,j)?] ──► rpc port of j
//!           ◄────────────────── [flow (j,i)?] ◄──
//! ```
//! A flow can be broken in several ways at once. *Blocked*: held bytes are handed over when it opens again, as TCP does
//! after packet loss; a cut one has no connections. *Slow*: bytes arrive later. *Lossy*: a TCP proxy cannot lose a packet, but
//! it can show what loss does to connections: stalls and resets. *A black hole*: connections stay open and carry nothing, for
//! ever, also after the heal; only new ones work. The proxy must never alter, drop from the middle, or reorder bytes of a
//! connection that still delivers.

mod pump;

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::sockopt::set_socket_linger;

use chance::Dice;
use pump::Pump;

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const CHUNK_BYTES: usize = 64 * 1024;
const STACK_BYTES: usize = 256 * 1024;
/// Connections through all pairs at once; more are refused.
const CONNECTIONS_MAX: usize = 1_000;

/// Whether bytes pass from one server to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// They pass.
    Open,
    /// They wait until the flow opens or the connection ends.
    Held,
    /// Held and open by turns of this length.
    Flapping(Duration),
    /// There are no connections.
    Cut,
}

/// How late bytes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delay {
    /// The least.
    pub(crate) from: Duration,
    /// The most.
    pub(crate) to: Duration,
}

/// What loss of packets does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// How many pieces of a hundred stall.
    pub(crate) stall_percent: usize,
    /// For how long, as retransmission takes.
    pub(crate) stall: Delay,
    /// How many pieces of a hundred break their connection.
    pub(crate) reset_percent: usize,
}

/// What broken links did to bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Met {
    /// Pieces that arrived late.
    pub(crate) delayed: u64,
    /// Pieces that stalled or broke their connection.
    pub(crate) lost: u64,
    /// Bytes that a black hole took.
    pub(crate) swallowed: u64,
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
    met: Met,
    /// When flapping flows began.
    since: Instant,
    stopping: bool,
}

struct Link {
    flow: Flow,
    delay: Option<Delay>,
    loss: Option<Loss>,
    black_hole: bool,
    bytes: u64,
}

struct Connection {
    pair: (usize, usize),
    life: Life,
    /// Clones of the sockets, to close them from outside.
    sockets: Vec<TcpStream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Delivers,
    /// Carries nothing any more, and neither end is told.
    Silent,
    /// Ends with a reset.
    Reset,
}

/// What is to become of a piece that was read.
enum Fate {
    Deliver { after: Duration },
    Swallow,
    Stop,
}

impl Switchboard {
    /// Starts a proxy for every ordered pair of servers, all flows open.
    pub(crate) fn start(servers: &[SocketAddr]) -> Result<Self> {
        let pairs = (0..servers.len())
            .flat_map(|from| (0..servers.len()).map(move |to| (from, to)))
            .filter(|(from, to)| from != to);
        let link =
            || Link { flow: Flow::Open, delay: None, loss: None, black_hole: false, bytes: 0 };
        let state = State {
            flows: pairs.clone().map(|pair| (pair, link())).collect(),
            connections: BTreeMap::new(),
            next_connection: 0,
            met: Met::default(),
            since: Instant::now(),
            stopping: false,
        };
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
        self.change(|state| {
            state.since = Instant::now();
            for (pair, link) in &mut state.flows {
                link.flow = if blocked.contains(pair) { how } else { Flow::Open };
            }
            let State { flows, connections, .. } = state;
            for connection in connections.values() {
                if is_cut(flows, connection.pair) {
                    connection.close();
                }
            }
        });
    }

    /// Slows exactly these flows.
    pub(crate) fn delay(&self, slow: &[(usize, usize)], how: Delay) {
        self.change(|state| {
            for (pair, link) in &mut state.flows {
                link.delay = slow.contains(pair).then_some(how);
            }
        });
    }

    /// Makes exactly these flows lossy.
    pub(crate) fn lose(&self, lossy: &[(usize, usize)], how: Loss) {
        self.change(|state| {
            for (pair, link) in &mut state.flows {
                link.loss = lossy.contains(pair).then_some(how);
            }
        });
    }

    /// Silences every connection that any of these flows is part of, and those that are opened meanwhile.
    pub(crate) fn swallow(&self, holes: &[(usize, usize)]) {
        self.change(|state| {
            for (pair, link) in &mut state.flows {
                link.black_hole = holes.contains(pair);
            }
            let State { flows, connections, .. } = state;
            for connection in connections.values_mut() {
                if is_black_hole(flows, connection.pair) && connection.life == Life::Delivers {
                    connection.life = Life::Silent;
                }
            }
        });
    }

    /// Bytes carried so far from one server to another.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> u64 {
        self.shared.lock().flows[&(from, to)].bytes
    }

    /// What broken links did so far.
    pub(crate) fn met(&self) -> Met {
        self.shared.lock().met
    }

    fn change(&self, act: impl FnOnce(&mut State)) {
        act(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        self.change(|state| {
            state.stopping = true;
            state.connections.values().for_each(Connection::close);
        });
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

    /// Wakes both directions; closing a socket that lingers for no time sends a reset.
    fn reset(&mut self) {
        self.life = Life::Reset;
        for socket in &self.sockets {
            // Both fail only on a socket that is closed already.
            set_socket_linger(socket, Some(Duration::ZERO)).ok();
            socket.shutdown(Shutdown::Read).ok();
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
        let life = if is_black_hole(&state.flows, pair) { Life::Silent } else { Life::Delivers };
        let id = state.next_connection;
        state.next_connection += 1;
        state.connections.insert(id, Connection { pair, life, sockets });
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
        if let Some(connection) = self.lock().connections.remove(&id)
            && connection.life != Life::Reset
        {
            connection.close();
        }
    }

    /// Decides what becomes of `bytes` that were read from a connection.
    fn judge(&self, id: u64, flow: (usize, usize), bytes: usize, random: &mut Dice) -> Fate {
        let mut state = self.lock();
        let State { flows, connections, met, .. } = &mut *state;
        let Some(connection) = connections.get_mut(&id) else { return Fate::Stop };
        match connection.life {
            Life::Reset => return Fate::Stop,
            Life::Silent => {
                met.swallowed += bytes as u64;
                return Fate::Swallow;
            }
            Life::Delivers => {}
        }
        let link = flows.get(&flow).expect("every pair has a link");
        let mut after = Duration::ZERO;
        if let Some(delay) = link.delay {
            met.delayed += 1;
            after += random.duration(delay.from, delay.to);
        }
        if let Some(loss) = link.loss {
            let draw = random.index(100);
            if draw < loss.reset_percent {
                met.lost += 1;
                connection.reset();
                return Fate::Stop;
            }
            if draw < loss.reset_percent + loss.stall_percent {
                met.lost += 1;
                after += random.duration(loss.stall.from, loss.stall.to);
            }
        }
        Fate::Deliver { after }
    }

    /// Waits while the flow is held, then counts the bytes.
    fn pass(&self, id: u64, flow: (usize, usize), bytes: usize) -> Fate {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return Fate::Stop;
            }
            let life = state.connections.get(&id).map(|connection| connection.life);
            match life {
                None | Some(Life::Reset) => return Fate::Stop,
                Some(Life::Silent) => {
                    state.met.swallowed += bytes as u64;
                    return Fate::Swallow;
                }
                Some(Life::Delivers) => {}
            }
            let since = state.since;
            let link = state.flows.get_mut(&flow).expect("every pair has a link");
            let mut wait = None;
            match link.flow {
                Flow::Cut => return Fate::Stop,
                Flow::Open => {}
                Flow::Held => wait = Some(Duration::MAX),
                Flow::Flapping(turn) => wait = until_open(since.elapsed(), turn),
            }
            let Some(wait) = wait else {
                link.bytes += bytes as u64;
                return Fate::Deliver { after: Duration::ZERO };
            };
            let waited = self.changed.wait_timeout(state, wait.min(Duration::from_hours(1)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How long a flapping flow stays held from now on; it begins held.
fn until_open(elapsed: Duration, turn: Duration) -> Option<Duration> {
    let turn = turn.as_nanos().max(1);
    let left = turn - elapsed.as_nanos() % turn;
    let held = (elapsed.as_nanos() / turn).is_multiple_of(2);
    held.then(|| Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX)))
}

fn is_cut(flows: &BTreeMap<(usize, usize), Link>, (from, to): (usize, usize)) -> bool {
    flows[&(from, to)].flow == Flow::Cut || flows[&(to, from)].flow == Flow::Cut
}

fn is_black_hole(flows: &BTreeMap<(usize, usize), Link>, (from, to): (usize, usize)) -> bool {
    flows[&(from, to)].black_hole || flows[&(to, from)].black_hole
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
    match shared.pass(id, (from, to), 0) {
        Fate::Deliver { .. } => {}
        // Nobody answers, but nobody says so either.
        Fate::Swallow => return drain(near),
        Fate::Stop => return,
    }
    let Ok(far) = TcpStream::connect_timeout(&target, DIAL_TIMEOUT) else { return };
    let tuned = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    if tuned.is_err() || !shared.attach(id, &far) {
        return;
    }
    std::thread::scope(|scope| {
        let down = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || Pump::new(shared, id, &far, near, (to, from)).run());
        if down.is_ok() {
            Pump::new(shared, id, near, &far, (from, to)).run();
        }
    });
}

fn drain(mut source: &TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while matches!(source.read(&mut chunk), Ok(1..)) {}
}

#[cfg(test)]
mod tests;
