//! What servers know of time (ADR 0022): the real [`leader::Timekeeper`] of each, over clocks that are apart. The wall clocks of a minority are wrong by
//! up to hours and jump; now and then a server that does not lead restarts and knows nothing any more. From dice of its own.
//!
//! I58, judged whenever servers have told each other: who knows log time is within [`OFF_MS_MAX`] of time, and a leader's log time runs at 0.5 to 1.05.

use std::{cell::RefCell, rc::Rc};

use leader::{Asked, Basis, Moment, Timekeeper};

use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x7469_6d65_7361_7031;
const HOUR_MS: i64 = 3_600_000;
/// How far right clocks are from time, ms.
const RIGHT_MS: i64 = 200;
/// How far from time a server's log time may be, ms: each of several servers that restart one after the other hears it from the one before, late
/// by a way. Without a leader up to fourteen do so here within four seconds, of ways that are half as long in the mean.
const OFF_MS_MAX: i64 = RIGHT_MS + 8 * ROUND_TRIP_MS_MAX.cast_signed();
/// What a round trip takes at most, ms.
const ROUND_TRIP_MS_MAX: u64 = 300;

/// A server's keeper, which its leadership asks too.
pub(crate) type Keeper = Rc<RefCell<Timekeeper>>;

struct Clocks {
    keeper: Keeper,
    /// Where its monotonic clock stands when the run begins: later at each restart.
    monotonic_ms: i64,
    /// How far its wall clock is ahead of time.
    ahead_ms: i64,
}

/// What happened to the clocks of a server.
pub(super) enum Mishap {
    /// Its wall clock jumped by so much, ms.
    Jumped(i64),
    /// It restarted, and knows no time.
    Restarted,
}

/// The clocks of all servers.
pub(crate) struct Times {
    /// Time when the run begins, Unix ms.
    start_at: u64,
    dice: Dice,
    clocks: Vec<Clocks>,
    /// The server whose clock is wrong.
    odd: Option<usize>,
    /// Percent of rounds before which that clock jumps.
    jumps: u64,
    /// Percent of rounds in which a server restarts.
    restarts: u64,
    /// When a leader's log time was looked at last: its term, and both.
    looked: Option<(u64, u64, u64)>,
}

fn jump(dice: &mut Dice) -> i64 {
    if dice.percent(50) { HOUR_MS } else { -HOUR_MS }
}

impl Times {
    /// The clocks of a seed.
    pub(super) fn draw(seed: u64, servers: usize, start_at: u64) -> Self {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        let odd = (servers > 2 && dice.percent(75)).then(|| dice.index(servers));
        let clocks = (0..servers).map(|server| Clocks {
            keeper: Rc::new(RefCell::new(Timekeeper::new(server as u64))),
            monotonic_ms: dice.between(0, 5_000_000).cast_signed(),
            ahead_ms: if odd == Some(server) {
                jump(&mut dice)
            } else {
                dice.below(2 * RIGHT_MS.cast_unsigned()).cast_signed() - RIGHT_MS
            },
        });
        let clocks = clocks.collect();
        let jumps = if dice.percent(50) { dice.between(1, 3) } else { 0 };
        let restarts = if dice.percent(50) { dice.between(1, 10) } else { 0 };
        Self { start_at, dice, clocks, odd, jumps, restarts, looked: None }
    }

    /// Time, Unix ms.
    pub(crate) fn time_ms(&self, clock_ms: u64) -> u64 {
        self.start_at.saturating_add(clock_ms)
    }

    /// What a server's clocks show.
    fn moment(&self, server: usize, clock_ms: u64) -> Moment {
        let ahead_ms = self.clocks[server].ahead_ms;
        let wall_ms = self.time_ms(clock_ms).saturating_add_signed(ahead_ms);
        Moment { monotonic_ms: self.monotonic_ms(server, clock_ms), wall_ms }
    }

    pub(crate) fn keeper(&self, server: usize) -> Keeper {
        Rc::clone(&self.clocks[server].keeper)
    }

    /// Where a server's monotonic clock stood when the run began.
    pub(crate) fn begun_ms(&self, server: usize) -> i64 {
        self.clocks[server].monotonic_ms
    }

    /// What a server's monotonic clock shows.
    pub(crate) fn monotonic_ms(&self, server: usize, clock_ms: u64) -> u64 {
        clock_ms.saturating_add_signed(self.clocks[server].monotonic_ms)
    }

    fn voters(&self) -> Vec<u64> {
        (0..self.clocks.len() as u64).collect()
    }

    /// One server asks another. The answer is as old as a part of the round trip, which is over now.
    fn ask(&mut self, from: usize, to: usize, clock_ms: u64) {
        let round_trip_ms = self.dice.below(ROUND_TRIP_MS_MAX).min(clock_ms);
        let back_ms = self.dice.below(round_trip_ms + 1);
        let mut said = self.keeper(to).borrow_mut().say(self.moment(to, clock_ms));
        said.wall_ms = said.wall_ms.saturating_sub(back_ms);
        said.log_time = said.log_time.saturating_sub(back_ms);
        let at = self.monotonic_ms(from, clock_ms);
        self.keeper(from).borrow_mut().hear(at, round_trip_ms, to as u64, said);
    }

    /// Servers tell each other what time it is; not all answers arrive.
    pub(super) fn tell(&mut self, clock_ms: u64) {
        let (servers, voters) = (self.clocks.len(), self.voters());
        for server in 0..servers {
            for other in (0..servers).filter(|other| *other != server) {
                if self.dice.percent(70) {
                    self.ask(server, other, clock_ms);
                }
            }
            let moment = self.moment(server, clock_ms);
            self.keeper(server).borrow_mut().look(moment, &voters);
        }
    }

    /// Sometimes the wrong clock jumps, or a server restarts that does not lead.
    pub(super) fn go_wrong(
        &mut self,
        clock_ms: u64,
        leads: impl Fn(usize) -> bool,
    ) -> Option<(usize, Mishap)> {
        let Self { dice, clocks, odd, jumps, restarts, .. } = self;
        if let Some(server) = *odd
            && dice.percent(*jumps)
        {
            let by = jump(dice);
            clocks[server].ahead_ms += by;
            return Some((server, Mishap::Jumped(by)));
        }
        if !dice.percent(*restarts) {
            return None;
        }
        let server = dice.index(clocks.len());
        if leads(server) {
            return None;
        }
        let clocks = &mut clocks[server];
        clocks.keeper = Rc::new(RefCell::new(Timekeeper::new(server as u64)));
        clocks.monotonic_ms = -clock_ms.cast_signed();
        Some((server, Mishap::Restarted))
    }

    /// A server is to lead in a term: it asks until enough have answered.
    pub(super) fn lead(&mut self, server: usize, term: u64, state_at: u64, clock_ms: u64) -> Basis {
        let voters = self.voters();
        let since_ms = self.monotonic_ms(server, clock_ms);
        let asked = Asked { since_ms, voters: &voters };
        let first = self.dice.index(voters.len());
        for number in 0..voters.len() {
            let other = (first + number) % voters.len();
            if self.keeper(server).borrow().has_enough(asked) {
                break;
            }
            if other != server {
                self.ask(server, other, clock_ms);
            }
        }
        let moment = self.moment(server, clock_ms);
        self.keeper(server).borrow_mut().lead(moment, term, state_at, asked)
    }

    /// I58, given the term of the leader and its log time.
    pub(super) fn judge(&mut self, clock_ms: u64, leader: Option<(u64, u64)>) -> Vec<String> {
        let mut found = Vec::new();
        let time_ms = self.time_ms(clock_ms);
        for server in 0..self.clocks.len() {
            let at = self.monotonic_ms(server, clock_ms);
            let known = self.keeper(server).borrow_mut().now(at);
            let Some(known) = known else { continue };
            let off_ms = known.cast_signed() - time_ms.cast_signed();
            if off_ms.abs() > OFF_MS_MAX {
                found.push(format!("I58: server {server} is {off_ms} ms ahead of time"));
            }
        }
        let Some((term, now)) = leader else { return found };
        if let Some((of, before_ms, before)) = self.looked
            && of == term
        {
            let passed = clock_ms - before_ms;
            let ran = now.saturating_sub(before);
            // In whole milliseconds.
            if now < before || ran + 20 < passed / 2 || ran > passed + passed / 20 + 20 {
                found.push(format!("I58: log time ran {ran} ms in {passed} ms of term {term}"));
            }
        }
        self.looked = Some((term, clock_ms, now));
        found
    }
}
