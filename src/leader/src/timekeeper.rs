//! What time it is in the cluster, as one server knows it (ADR 0022).
//!
//! Log time runs with the monotonic clocks of servers that run. Servers tell each other what they
//! know of it and what their wall clocks say. `monotonic_ms` is an argument, of the server's own
//! clock, whose zero means nothing to others.
//!
//! ```text
//!  the leader's answers ─► known: log time, and when it was heard ─────────────────► now
//!  answers of a majority ─► lead: the newest log time that one of them knows ─┐       ▲
//!                           (none has run through: the median of wall clocks) ├► Anchor
//!  wall clocks of voters ─► look: the median, towards which log time slews ───┘
//! ```
//!
//! Invariants: a leader's log time is never behind the state it took over, never goes back, and
//! runs at a rate of 0.95 to 1.05. One server's wall clock moves it only where that server is the
//! only voter, or where no server ran through and no majority of the clocks agrees; the second is
//! said.

use std::collections::BTreeMap;

use fsm::TimeMs;

use crate::limits::{ANCHOR_MS, CLOCK_KEPT_MS, CLOCKS_APART_MS, LAG_OVER_MS, SLEW_PERCENT_MAX};

/// What the two clocks of a server show at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Since its start, or any other moment of its own.
    pub monotonic_ms: u64,
    /// Since the Unix epoch, as its machine believes.
    pub wall_ms: u64,
}

impl Moment {
    fn offset(self) -> Offset {
        offset(self.wall_ms, self.monotonic_ms)
    }
}

/// Whom a server asks what time it is before it leads.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What they said before, by this server's monotonic clock, does not count.
    pub since_ms: u64,
    /// This server may be among them.
    pub voters: &'a [u64],
}

/// What a server answers to a peer about time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Said {
    /// Log time as it has run on since the server heard it; 0: it has heard none since its start.
    pub log_time: TimeMs,
    /// Term of the leader whose log time it is.
    pub term: u64,
    /// That leader is the server itself.
    pub leads: bool,
    /// Its wall clock, Unix ms.
    pub wall_ms: u64,
}

/// What a new leader's log time goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Log time as a server knew it that ran through.
    RanThrough,
    /// No server that answered ran through: the median of the wall clocks of so many of the voters.
    /// The middle ones are this far apart.
    Clocks { clocks: usize, voters: usize, apart_ms: u64 },
}

impl Basis {
    /// Whether no majority of the clocks tells what time it is: of two the smaller counts then.
    pub fn is_doubtful(self) -> bool {
        match self {
            Self::RanThrough => false,
            Self::Clocks { clocks, voters, apart_ms } => {
                apart_ms > CLOCKS_APART_MS || clocks * 2 <= voters
            }
        }
    }
}

/// What an operator should know. Each is said once, and once when it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeNote {
    /// Log time is behind the clocks of a majority by so much; below 0: ahead of them.
    Lags {
        behind_ms: i64,
    },
    LagIsOver,
    /// No majority of the clocks agrees: log time goes by none.
    ClocksApart,
    ClocksAgree,
    /// The clock of this server is ahead of the majority's by so much; below 0: behind it.
    OwnClockIsOff {
        ahead_ms: i64,
    },
    OwnClockIsRight,
}

/// A wall clock: how far it is ahead of this server's monotonic clock, ms.
type Offset = i64;

#[derive(Clone, Copy, Debug)]
struct Known {
    term: u64,
    log_time: TimeMs,
    /// Monotonic time at which it was heard.
    heard_ms: u64,
}

impl Known {
    fn at(&self, monotonic_ms: u64) -> TimeMs {
        self.log_time.saturating_add(monotonic_ms.saturating_sub(self.heard_ms))
    }
}

/// The last answer of a peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    heard_ms: u64,
    clock: Offset,
    /// Log time that it knew.
    log_time: Option<TimeMs>,
}

/// What has been said and is not over.
#[derive(Clone, Copy, Default, Debug)]
struct Noted {
    lag: bool,
    apart: bool,
    own_clock: bool,
}

/// What one server knows of time.
#[derive(Debug)]
pub struct Timekeeper {
    own: u64,
    own_clock: Option<Offset>,
    known: Option<Known>,
    peers: BTreeMap<u64, Peer>,
    /// The majority's clock, if there is one.
    majority: Option<Offset>,
    leading: Option<Anchor>,
    noted: Noted,
}

impl Timekeeper {
    /// Of a server that has just started.
    pub fn new(own: u64) -> Self {
        Self {
            own,
            own_clock: None,
            known: None,
            peers: BTreeMap::new(),
            majority: None,
            leading: None,
            noted: Noted::default(),
        }
    }

    /// Log time now; none: this server has heard none since its start.
    pub fn now(&mut self, monotonic_ms: u64) -> Option<TimeMs> {
        match &mut self.leading {
            Some(anchor) => Some(anchor.now(monotonic_ms, self.majority)),
            None => self.known.map(|known| known.at(monotonic_ms)),
        }
    }

    /// Whether [`Self::now`] is this server's own as the leader.
    pub fn leads(&self) -> bool {
        self.leading.is_some()
    }

    /// The answer to a peer.
    pub fn say(&mut self, moment: Moment) -> Said {
        let log_time = self.now(moment.monotonic_ms).unwrap_or(0);
        let leads = self.leading.as_ref().map(|anchor| anchor.term);
        let term = leads.or(self.known.map(|known| known.term)).unwrap_or(0);
        Said { log_time, term, leads: leads.is_some(), wall_ms: moment.wall_ms }
    }

    /// Takes in what a peer said. Its answer is as old as the way back, of which nothing is known
    /// but that it is shorter than the round trip. What was known before and may be right stays: so
    /// a slow answer says little, and the fastest tells most. Of what is new log time is taken as
    /// said, which is not ahead of what it was, and a clock in the middle of what it may be.
    pub fn hear(&mut self, monotonic_ms: u64, round_trip_ms: u64, from: u64, said: Said) {
        let least = offset(said.wall_ms, monotonic_ms);
        let most = least.saturating_add_unsigned(round_trip_ms);
        let middle = least.saturating_add_unsigned(round_trip_ms / 2);
        let before = self.peers.get(&from).map_or(middle, |peer| peer.clock);
        let clock = before.clamp(least, most);
        let log_time = (said.log_time > 0).then_some(said.log_time);
        self.peers.insert(from, Peer { heard_ms: monotonic_ms, clock, log_time });
        let Some(least) = log_time else { return };
        // Only the leader itself sets back what is known: from others it would come in a circle.
        let is_newer = self
            .known
            .is_none_or(|known| said.term > known.term || (said.leads && said.term == known.term));
        if is_newer {
            let before = self.known.map_or(least, |known| known.at(monotonic_ms));
            let log_time = before.clamp(least, least.saturating_add(round_trip_ms));
            self.known = Some(Known { term: said.term, log_time, heard_ms: monotonic_ms });
        }
    }

    /// Whether this server knows the log time of the leader of this term.
    pub fn knows(&self, term: u64) -> bool {
        self.known.is_some_and(|known| known.term >= term)
    }

    /// Whether enough voters have answered to tell what time it is: a majority, of which somebody
    /// knows log time, or all.
    pub fn has_enough(&self, asked: Asked<'_>) -> bool {
        let Asked { voters, .. } = asked;
        let answered = self.answers(asked).count() + usize::from(voters.contains(&self.own));
        let is_known =
            self.known.is_some() || self.answers(asked).any(|peer| peer.log_time.is_some());
        (is_known && answered * 2 > voters.len()) || answered >= voters.len()
    }

    /// Whether this voter has to be asked, or asked again.
    pub fn lacks(&self, asked: Asked<'_>, voter: u64) -> bool {
        let answer = self.peers.get(&voter);
        voter != self.own && answer.is_none_or(|peer| peer.heard_ms < asked.since_ms)
    }

    fn answers<'a>(&'a self, asked: Asked<'a>) -> impl Iterator<Item = &'a Peer> {
        let peers = self.peers.iter().filter(move |(id, _)| asked.voters.contains(id));
        peers.map(|(_, peer)| peer).filter(move |peer| peer.heard_ms >= asked.since_ms)
    }

    /// This server leads from now on, over a state of this log time.
    pub fn lead(&mut self, moment: Moment, term: u64, state_at: TimeMs, asked: Asked<'_>) -> Basis {
        let Moment { monotonic_ms, .. } = moment;
        let of_peers = self.answers(asked).filter_map(|peer| {
            let elapsed_ms = monotonic_ms.saturating_sub(peer.heard_ms);
            Some(peer.log_time?.saturating_add(elapsed_ms))
        });
        let of_own = self.known.map(|known| known.at(monotonic_ms));
        let (at, basis) = match of_peers.chain(of_own).max() {
            Some(newest) => (newest, Basis::RanThrough),
            None => {
                let others = self.answers(asked).map(|peer| peer.clock);
                let clocks: Vec<Offset> = others.chain([moment.offset()]).collect();
                let (number, voters) = (clocks.len(), asked.voters.len());
                let Median { clock, apart_ms } = median(clocks, moment.offset());
                (wall(clock, monotonic_ms), Basis::Clocks { clocks: number, voters, apart_ms })
            }
        };
        let at = at.max(state_at);
        self.leading = Some(Anchor { term, at, since_ms: monotonic_ms, last: at });
        basis
    }

    /// This server leads no more in this term, and knows what log time was.
    pub fn resign(&mut self, monotonic_ms: u64, term: u64) {
        let majority = self.majority;
        let Some(mut anchor) = self.leading.take_if(|anchor| anchor.term == term) else { return };
        self.noted.lag = false;
        self.noted.apart = false;
        if self.known.is_none_or(|known| known.term <= term) {
            let log_time = anchor.now(monotonic_ms, majority);
            self.known = Some(Known { term, log_time, heard_ms: monotonic_ms });
        }
    }

    /// Compares the clocks, which is to be done every second or so.
    pub fn look(&mut self, moment: Moment, voters: &[u64]) -> Vec<TimeNote> {
        let Moment { monotonic_ms, .. } = moment;
        let own_clock = moment.offset();
        self.own_clock = Some(own_clock);
        // A server that is down has a clock that goes on: it counts for as long as a quartz keeps
        // the second.
        self.peers.retain(|_, peer| monotonic_ms.saturating_sub(peer.heard_ms) <= CLOCK_KEPT_MS);
        let peers = self.peers.iter().map(|(id, peer)| (*id, peer.clock));
        let clocks = peers.chain([(self.own, own_clock)]);
        let clocks: Vec<Offset> =
            clocks.filter(|(id, _)| voters.contains(id)).map(|(_, clock)| clock).collect();
        let is_majority = clocks.len() * 2 > voters.len();
        let found = median(clocks, own_clock);
        let agree = found.apart_ms <= CLOCKS_APART_MS;
        self.majority = (is_majority && agree).then_some(found.clock);
        self.note(monotonic_ms, (is_majority && self.leading.is_some()).then_some(agree))
    }

    fn note(&mut self, monotonic_ms: u64, clocks_agree: Option<bool>) -> Vec<TimeNote> {
        let mut notes = Vec::new();
        if let Some(agree) = clocks_agree
            && self.noted.apart == agree
        {
            self.noted.apart = !agree;
            notes.push(if agree { TimeNote::ClocksAgree } else { TimeNote::ClocksApart });
        }
        if self.leading.is_some()
            && let Some(behind_ms) = self.behind_ms(monotonic_ms)
            && changes(&mut self.noted.lag, behind_ms)
        {
            let lags = TimeNote::Lags { behind_ms };
            notes.push(if self.noted.lag { lags } else { TimeNote::LagIsOver });
        }
        if let Some(ahead_ms) = self.clock_ahead_ms(self.own)
            && changes(&mut self.noted.own_clock, ahead_ms)
        {
            let is_off = TimeNote::OwnClockIsOff { ahead_ms };
            notes.push(if self.noted.own_clock { is_off } else { TimeNote::OwnClockIsRight });
        }
        notes
    }

    /// How far log time is behind the majority's clock; below 0: ahead of it.
    pub fn behind_ms(&mut self, monotonic_ms: u64) -> Option<i64> {
        let now = self.now(monotonic_ms)?;
        Some(wall(self.majority?, monotonic_ms).cast_signed().saturating_sub(now.cast_signed()))
    }

    /// How far a server's clock is ahead of the majority's; below 0: behind it.
    pub fn clock_ahead_ms(&self, server: u64) -> Option<i64> {
        let clock =
            if server == self.own { self.own_clock? } else { self.peers.get(&server)?.clock };
        Some(clock.saturating_sub(self.majority?))
    }
}

/// Whether it is to be said that something is off by so much, or no more.
fn changes(noted: &mut bool, off_ms: i64) -> bool {
    let most_ms = if *noted { LAG_OVER_MS } else { CLOCKS_APART_MS };
    let is_off = off_ms.unsigned_abs() > most_ms;
    std::mem::replace(noted, is_off) != is_off
}

fn offset(wall_ms: u64, monotonic_ms: u64) -> Offset {
    wall_ms.cast_signed().saturating_sub(monotonic_ms.cast_signed())
}

fn wall(clock: Offset, monotonic_ms: u64) -> u64 {
    monotonic_ms.saturating_add_signed(clock)
}

struct Median {
    /// Of two in the middle the smaller.
    clock: Offset,
    /// How far these two are apart.
    apart_ms: u64,
}

fn median(mut clocks: Vec<Offset>, otherwise: Offset) -> Median {
    clocks.sort_unstable();
    let upper = clocks.get(clocks.len() / 2).copied().unwrap_or(otherwise);
    let lower = clocks.get(clocks.len().saturating_sub(1) / 2).copied().unwrap_or(otherwise);
    Median { clock: lower, apart_ms: upper.abs_diff(lower) }
}

/// A leader's log time: where it runs on from.
#[derive(Debug)]
struct Anchor {
    term: u64,
    at: TimeMs,
    /// Monotonic time of it.
    since_ms: u64,
    /// The newest answer.
    last: TimeMs,
}

impl Anchor {
    fn now(&mut self, monotonic_ms: u64, majority: Option<Offset>) -> TimeMs {
        let elapsed_ms = monotonic_ms.saturating_sub(self.since_ms);
        let straight = self.at.saturating_add(elapsed_ms);
        let aim = majority.map_or(straight, |clock| wall(clock, monotonic_ms));
        self.last = self.last.max(slewed(straight, elapsed_ms, aim));
        // A clock that jumps moves log time by 5 % of this, not of all the time it has led.
        if elapsed_ms >= ANCHOR_MS {
            (self.at, self.since_ms) = (self.last, monotonic_ms);
        }
        self.last
    }
}

fn slewed(straight: TimeMs, elapsed_ms: u64, aim: u64) -> TimeMs {
    let most = elapsed_ms.saturating_mul(SLEW_PERCENT_MAX) / 100;
    if aim >= straight {
        straight.saturating_add((aim - straight).min(most))
    } else {
        straight.saturating_sub((straight - aim).min(most))
    }
}

#[cfg(test)]
mod tests;
