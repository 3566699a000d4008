//! One clock that is wrong by hours and jumps, where all others are right (class `apart`), and quiet times at the end with elections in between. From
//! dice of its own.
//!
//! I58: log time is within [`OFF_MS_MAX`] of time, whoever leads, but after a leader that could ask no majority of the clocks, which a line tells; at the end
//! every server knows it to a second.

use std::time::Duration;

use fsm::TimeMs;

use crate::{
    class::Class,
    coverage,
    invariants::Broken,
    services::CALLER,
    swarm::Swarm,
    trace, verdict,
    world::{Crash, World},
};
use chance::Dice;
use ground::rt::{self, Instant, WallClock};
use server::Core;
use wire::api::Api;

const HOUR_MS: u64 = 3_600_000;
/// How far log time may be off during the faults: each server that restarts hears it from another, as late as the network lets it.
const OFF_MS_MAX: u64 = 3_000;
/// The same when it is quiet.
const OFF_QUIET_MS_MAX: u64 = 1_000;
/// Until each server knows what time it is.
const TOLD: Duration = Duration::from_secs(5);
/// Until somebody leads.
const ELECTED: Duration = Duration::from_secs(30);
const QUIET_MS: (u64, u64) = (5_000, 75_000);
const QUIET_TIMES: usize = 2;

/// The clock that is wrong.
#[derive(Debug)]
pub(crate) struct Clocks {
    dice: Dice,
    /// Its server; none: no clock is, or all may be.
    odd: Option<usize>,
    wall: WallClock,
    /// Some leader could ask no majority of the clocks.
    is_doubtful: bool,
    /// When a leader last went by the clocks, as far as was seen.
    seen: Option<Instant>,
}

impl Clocks {
    pub(crate) fn draw(swarm: &Swarm) -> Self {
        let mut dice = Dice::named(swarm.seed, "apart");
        let is_on = swarm.has(Class::Apart) && swarm.servers > 2;
        let odd = is_on.then(|| dice.index(swarm.servers));
        let wall = WallClock { offset_ms: hours(&mut dice), ..WallClock::default() };
        Self { dice, odd, wall, is_doubtful: false, seen: None }
    }

    /// The clock of a server, if it is wrong.
    pub(crate) fn of(&self, server: usize) -> Option<WallClock> {
        (self.odd == Some(server)).then_some(self.wall)
    }

    /// Whether log time is to be right.
    fn is_judged(&self) -> bool {
        self.odd.is_some() && !self.is_doubtful
    }

    /// A state of this log time was shown.
    pub(crate) fn shows(&self, at: TimeMs) -> Option<Broken> {
        let time = time_ms();
        let is_ahead = self.is_judged() && at > time + OFF_MS_MAX;
        is_ahead.then(|| Broken("I58", format!("log time {at} was shown at {time}")))
    }
}

fn hours(dice: &mut Dice) -> i64 {
    let ms = dice.between(2_000, 4 * HOUR_MS).cast_signed();
    if dice.below(2) == 0 { ms } else { -ms }
}

/// Time, Unix ms: what right clocks show. No server asks here.
fn time_ms() -> u64 {
    ground::clock::SIMULATED_EPOCH_MS
        + u64::try_from(rt::simulated_elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn off_ms(core: &Core) -> u64 {
    core.now_ms().abs_diff(time_ms())
}

impl World {
    /// Whether this server's clock is wrong for good.
    pub(crate) fn is_odd(&self, server: usize) -> bool {
        self.lock().clocks.odd == Some(server)
    }

    /// The wrong clock jumps, or drifts from now on.
    pub(crate) fn jump_odd_clock(&self) {
        let (odd, wall) = {
            let clocks = &mut self.lock().clocks;
            let Some(odd) = clocks.odd else { return };
            let drift = if clocks.dice.below(2) == 0 { 0 } else { clocks.dice.below(1_500) };
            let drift_per_mille = drift.cast_signed() - 500 * i64::from(drift > 0);
            let offset_ms = hours(&mut clocks.dice);
            clocks.wall = WallClock { offset_ms, drift_per_mille, since: rt::simulated_elapsed() };
            (odd, clocks.wall)
        };
        coverage::hit("a wall clock jumped");
        self.set_wall_clock(odd, wall.offset_ms, wall.drift_per_mille);
    }

    /// Looks whether a server went by the clocks when it became leader.
    pub(crate) fn note_clocks(&self, server: usize) {
        let Some(found) = self.core(server).and_then(|core| core.log_time_of_clocks()) else {
            return;
        };
        let state = &mut *self.lock();
        if state.clocks.seen.is_some_and(|seen| seen >= found.began) {
            return;
        }
        state.clocks.seen = Some(found.began);
        state.clocks.is_doubtful |= found.is_doubtful;
        let age = found.began.elapsed();
        state.log_time.goes_by_clocks(found.at, rt::simulated_elapsed().saturating_sub(age));
        coverage::hit("log time went on from the clocks");
        trace::event("run", format_args!("log time goes on from the clocks: {}", found.at));
    }

    /// A leader begins.
    pub(crate) fn judge_leaders_time(&self, server: usize, core: &Core) {
        let is_judged = self.lock().clocks.is_judged();
        if self.is_odd(server) {
            coverage::hit("a server with a wrong clock led");
        }
        if is_judged && off_ms(core) > OFF_MS_MAX {
            let off_ms = off_ms(core);
            verdict::fail(format!("I58: s{server} begins to lead {off_ms} ms off time"));
        }
    }
}

/// Nothing happens but for ticks; then the leader is lost, or hands over, or all servers are lost.
pub(crate) async fn quiet_time(world: &World) -> bool {
    let mut dice = Dice::named(world.swarm.seed, "quiet time");
    for _ in 0..QUIET_TIMES {
        world.jump_odd_clock();
        rt::sleep(Duration::from_millis(dice.between(QUIET_MS.0, QUIET_MS.1))).await;
        coverage::hit("a leader was lost in a quiet time");
        let server = dice.index(world.count());
        match (dice.below(3), world.leader()) {
            (0, Some(leader)) => {
                let to = world.core(server).map(|core| core.id);
                let work = move |core: std::sync::Arc<Core>| async move {
                    core.transfer_leadership(&CALLER, to).await
                };
                drop(world.inside(leader, work).await);
            }
            (1, Some(leader)) => {
                world.crash(leader, Crash::Kill);
                if world.count() > 1 {
                    let led = |world: &World| world.leader().is_some();
                    if !world.wait("somebody else leads", ELECTED, led).await {
                        return false;
                    }
                }
                world.start(leader);
            }
            _ => {
                for server in 0..world.count() {
                    world.crash(server, Crash::Kill);
                }
                (0..world.count()).for_each(|server| world.start(server));
            }
        }
        let is_there = |world: &World| {
            let is_up = |server| world.core(server).is_some_and(|core| core.has_recovered());
            world.leader().is_some() && (0..world.count()).all(is_up)
        };
        if !world.wait("every server recovered", ELECTED, is_there).await {
            return false;
        }
        // A lag of seconds would take a minute to catch up.
        let is_right = |world: &World| {
            let is_judged = world.lock().clocks.is_judged();
            let is_off =
                |server| world.core(server).is_none_or(|core| off_ms(&core) > OFF_QUIET_MS_MAX);
            !is_judged || !(0..world.count()).any(is_off)
        };
        if !world.wait("I58: every server knows what time it is", TOLD, is_right).await {
            return false;
        }
    }
    true
}
