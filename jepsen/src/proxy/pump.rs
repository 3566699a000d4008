//! One direction of one connection: reads pieces, has each judged, and hands it over when it is due.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::{CHUNK_BYTES, Fate, Life, Shared};
use chance::Dice;

/// Bytes on their way in one direction of one slow connection.
const QUEUED_BYTES_MAX: usize = 4 << 20;

/// One direction of one connection.
pub(super) struct Pump<'a> {
    shared: &'a Shared,
    id: u64,
    source: &'a TcpStream,
    sink: &'a TcpStream,
    flow: (usize, usize),
    random: Dice,
    /// Pieces on their way, with the time at which each arrives. Invariant: the times never fall.
    queue: VecDeque<(Instant, Vec<u8>)>,
    queued_bytes: usize,
    source_ended: bool,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        id: u64,
        source: &'a TcpStream,
        sink: &'a TcpStream,
        flow: (usize, usize),
    ) -> Self {
        Self {
            shared,
            id,
            source,
            sink,
            flow,
            random: Dice::numbered(id, (flow.0 * 100 + flow.1) as u64),
            queue: VecDeque::new(),
            queued_bytes: 0,
            source_ended: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut chunk = vec![0; CHUNK_BYTES];
        let alive = loop {
            if let Some(end) = self.deliver() {
                break end;
            }
            if let Some(end) = self.take(&mut chunk) {
                break end;
            }
        };
        if !alive {
            for socket in [self.source, self.sink] {
                // Fails only on a socket that is closed already.
                socket.shutdown(Shutdown::Both).ok();
            }
        }
    }

    /// Hands over what is due. `Some` ends the pump: true if the other direction may go on.
    fn deliver(&mut self) -> Option<bool> {
        let mut sink = self.sink;
        while let Some((due, bytes)) = self.queue.front()
            && *due <= Instant::now()
        {
            match self.shared.pass(self.id, self.flow, bytes.len()) {
                Fate::Deliver { .. } if sink.write_all(bytes).is_err() => return Some(false),
                Fate::Deliver { .. } | Fate::Swallow => {}
                Fate::Stop => return Some(self.is_reset()),
            }
            self.queued_bytes -= bytes.len();
            self.queue.pop_front();
        }
        if !self.source_ended || !self.queue.is_empty() {
            return None;
        }
        match self.shared.pass(self.id, self.flow, 0) {
            // The other direction may still have bytes to carry.
            Fate::Deliver { .. } => Some(self.sink.shutdown(Shutdown::Write).is_ok()),
            Fate::Swallow => Some(true),
            Fate::Stop => Some(self.is_reset()),
        }
    }

    /// Reads one piece, or waits until the next one is due.
    fn take(&mut self, chunk: &mut [u8]) -> Option<bool> {
        let next = self.queue.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let patience = next.map(|wait| wait.max(Duration::from_millis(1)));
        if self.source_ended || self.queued_bytes >= QUEUED_BYTES_MAX {
            std::thread::sleep(patience.unwrap_or_default());
            return None;
        }
        if self.source.set_read_timeout(patience).is_err() {
            return Some(false);
        }
        let mut source = self.source;
        match source.read(chunk) {
            Ok(0) => self.source_ended = true,
            Ok(count) => match self.shared.judge(self.id, self.flow, count, &mut self.random) {
                Fate::Swallow => {}
                Fate::Stop => return Some(self.is_reset()),
                Fate::Deliver { after } => {
                    let due = Instant::now() + after;
                    let last = self.queue.back().map_or(due, |(last, _)| *last);
                    self.queue.push_back((due.max(last), chunk[..count].to_vec()));
                    self.queued_bytes += count;
                }
            },
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
                ) => {}
            Err(_) => return Some(self.is_reset()),
        }
        None
    }

    /// A connection that is reset must not be shut down in an orderly way.
    fn is_reset(&self) -> bool {
        let state = self.shared.lock();
        state.connections.get(&self.id).is_some_and(|connection| connection.life == Life::Reset)
    }
}
