//! Faults from a seed: which, when, on whom and for how long. What a class means is here; which classes a seed has is in [`crate::swarm`].

use std::time::Duration;

use crate::{
    class::Class,
    coverage,
    network::CALM,
    partition::Shape,
    services::CALLER,
    swarm::Swarm,
    trace,
    world::{Crash, World},
};
use chance::Dice;
use ground::{
    disk::fault::ErrorRates,
    rt::{self, Instant},
};
use wire::api::Api;

/// How long a flapping link is up, or down.
const FLAP: Duration = Duration::from_millis(200);
/// A server that stays away so that it needs a snapshot.
const LONG_DOWN_MS: (u64, u64) = (6_000, 12_000);

/// Looks, a millisecond apart, for a write that is not durable.
const WRITE_LOOKS_MAX: u32 = 200;

/// How long it is down then.
const REWIPED_DOWN: Duration = Duration::from_millis(100);
/// How long after its start a server loses its disk again, ms: while it asks, learns, or just votes.
const REWIPE_MS: (u64, u64) = (20, 3_000);

/// What brings faults on the servers.
pub(crate) struct Nemesis {
    world: World,
    dice: Dice,
    dice_rewipe: Dice,
    /// Classes that are events.
    events: Vec<Class>,
}

/// Takes a server's disk once more, if it is up then and no other lacks its own.
async fn wipe_again(world: World, server: usize, after: Duration) {
    rt::sleep(after).await;
    if world.is_calm() || !world.is_up(server) || !world.may_damage(server) {
        return;
    }
    coverage::hit("a disk was lost again soon after");
    world.wipe(server);
    rt::sleep(REWIPED_DOWN).await;
    world.start(server);
}

impl Nemesis {
    /// The faults of this run.
    pub(crate) fn new(world: World) -> Self {
        let dice = Dice::named(world.swarm.seed, "nemesis");
        let classes = world.swarm.classes.iter().copied();
        let events = classes.filter(|class| class.is_of_nemesis());
        let dice_rewipe = Dice::named(world.swarm.seed, "rewipe");
        Self { events: events.collect(), world, dice, dice_rewipe }
    }

    fn swarm(&self) -> &Swarm {
        &self.world.swarm
    }

    /// Brings faults for as long as the plan says.
    pub(crate) async fn run(&mut self) {
        let begin = Instant::now();
        let duration = Duration::from_millis(self.swarm().safety_ms);
        let bad = self.swarm().bad_weather(CALM);
        while begin.elapsed() < duration {
            // Bad weather comes and goes.
            let weather = if self.dice.below(4) == 0 { CALM } else { bad };
            self.world.network.set_weather(weather);
            let gap = self.dice.between(100, self.swarm().fault_gap_ms_max);
            let left = duration.saturating_sub(begin.elapsed());
            rt::sleep(Duration::from_millis(gap).min(left)).await;
            if !self.events.is_empty() {
                let class = self.events[self.dice.index(self.events.len())];
                self.bring(class);
            }
        }
    }

    fn ms(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.dice.between(50, most.max(51)))
    }

    /// Any server, or the leader, half of the time each.
    fn target(&mut self) -> usize {
        let any = self.dice.index(self.world.count());
        let leader = self.world.leader();
        if self.dice.below(2) == 0 { leader.unwrap_or(any) } else { any }
    }

    fn bring(&mut self, class: Class) {
        trace::event("nemesis", format_args!("{}", class.name()));
        let server = self.target();
        match class {
            Class::Delay
            | Class::Spikes
            | Class::Loss
            | Class::Duplicates
            | Class::Late
            | Class::Agents
            | Class::Halt
            | Class::Restart
            | Class::Stranger
            | Class::StaleReads
            | Class::UsedRot
            | Class::Lag
            | Class::Settings
            | Class::Reconnect
            | Class::Rewipe
            | Class::Hurry
            | Class::Stall
            | Class::Watermark
            | Class::Spared
            | Class::Aimed
            | Class::Busy
            | Class::Machines
            | Class::Checks
            | Class::Failures
            | Class::Apart
            | Class::MassLoss => {}
            Class::Partition => self.partition(server),
            Class::OneWay => self.one_way(server),
            Class::Flapping => self.flap(server),
            Class::Kill => self.crash(server, Crash::Kill, self.swarm().down_ms_max),
            Class::Power if self.dice.below(2) == 0 => self.cut_power_in_a_write(server),
            Class::Power => self.crash(server, Crash::Power, self.swarm().down_ms_max),
            Class::LongCrash => self.long_crash(server),
            Class::CrashAll => self.crash_all(),
            Class::Pause => {
                let pause = self.ms(self.swarm().pause_ms_max);
                self.world.pause(server, pause);
            }
            Class::Clock => self.clock(server),
            Class::SlowDisk => {
                coverage::hit("a disk was slow");
                let slow = if self.dice.below(3) == 0 { 0 } else { self.swarm().slow_sync_us_max };
                self.world.slow_disk(server, slow);
            }
            Class::DiskFull => self.fill_disk(server),
            Class::DiskErrors => self.disk_errors(server),
            Class::BitRot => self.rot(server),
            Class::Wipe => self.wipe(server),
            Class::Transfer => self.transfer(server),
        }
    }

    fn crash(&mut self, server: usize, how: Crash, down_ms_max: u64) {
        if !self.world.crash(server, how) {
            return;
        }
        let down = self.ms(down_ms_max);
        self.start_later(server, down);
    }

    /// Writes take a few milliseconds until they are durable: a cut at any time would rarely find one.
    fn cut_power_in_a_write(&mut self, server: usize) {
        let down = self.ms(self.swarm().down_ms_max);
        let world = self.world.clone();
        rt::spawn(async move {
            for _ in 0..WRITE_LOOKS_MAX {
                if world.has_unsynced_log(server) {
                    break;
                }
                rt::sleep(Duration::from_millis(1)).await;
            }
            if !world.is_calm() && world.crash(server, Crash::Power) {
                rt::sleep(down).await;
                world.start(server);
            }
        });
    }

    fn start_later(&self, server: usize, down: Duration) {
        let world = self.world.clone();
        rt::spawn(async move {
            rt::sleep(down).await;
            world.start(server);
        });
    }

    /// Long enough for the others to purge what it lacks, if they write enough.
    fn long_crash(&mut self, server: usize) {
        let Some(core) = self.world.core(server) else { return };
        let applied = core.applied();
        drop(core);
        let how = if self.dice.below(2) == 0 { Crash::Kill } else { Crash::Power };
        self.world.crash(server, how);
        let down = Duration::from_millis(self.dice.between(LONG_DOWN_MS.0, LONG_DOWN_MS.1));
        let world = self.world.clone();
        rt::spawn(async move {
            rt::sleep(down).await;
            let leader = world.leader().and_then(|leader| world.core(leader));
            let first = leader.map_or(0, |core| core.log_first());
            if first > applied + 1 {
                coverage::hit("a restarted server needed a snapshot");
            }
            world.start(server);
        });
    }

    fn crash_all(&mut self) {
        let how = if self.dice.below(5) == 0 { Crash::Kill } else { Crash::Power };
        let together = (0..self.world.count()).all(|server| self.world.is_up(server));
        for server in 0..self.world.count() {
            self.crash(server, how, self.swarm().down_ms_max.min(2_000));
        }
        if together && how == Crash::Power {
            coverage::hit("all servers lost power at once");
        }
    }

    fn clock(&mut self, server: usize) {
        if self.swarm().has(Class::Apart) {
            self.world.jump_odd_clock();
            return;
        }
        let most = self.swarm().clock_ms_max;
        let signed = |value: u64, most: u64| {
            i64::try_from(value).unwrap_or(0) - i64::try_from(most).unwrap_or(0)
        };
        let offset = signed(self.dice.between(0, 2 * most), most);
        // Half as fast to twice as fast.
        let drift =
            if self.dice.below(2) == 0 { signed(self.dice.between(0, 1_500), 500) } else { 0 };
        coverage::hit(if drift == 0 { "a wall clock jumped" } else { "a wall clock drifted" });
        self.world.set_wall_clock(server, offset, drift);
    }

    fn fill_disk(&mut self, server: usize) {
        // On both sides of what servers want to have, or below it with room for what is under way.
        let least = if self.swarm().has(Class::Watermark) { 256 << 10 } else { 0 };
        let free = least + self.dice.between(0, 128 << 10);
        self.world.limit_disk(server, Some(free));
        let lasts = self.ms(self.swarm().cut_ms_max);
        let world = self.world.clone();
        rt::spawn(async move {
            rt::sleep(lasts).await;
            world.limit_disk(server, None);
        });
    }

    fn disk_errors(&mut self, server: usize) {
        let ppm = self.swarm().disk_error_ppm;
        match self.dice.below(4) {
            0 => {
                let after = self.dice.below(30);
                self.world.fail_sync(server, after);
            }
            1 => {
                let rates = ErrorRates { read_ppm: ppm, ..ErrorRates::default() };
                self.world.disk_errors(server, rates);
            }
            2 => {
                let rates = ErrorRates { write_ppm: ppm, ..ErrorRates::default() };
                self.world.disk_errors(server, rates);
            }
            _ => {
                let rates = ErrorRates { sync_ppm: ppm, ..ErrorRates::default() };
                self.world.disk_errors(server, rates);
            }
        }
    }

    fn rot(&mut self, server: usize) {
        if !self.world.may_damage(server) {
            return;
        }
        let how = if self.dice.below(2) == 0 { Crash::Kill } else { Crash::Power };
        if !self.world.crash(server, how) {
            return;
        }
        let bytes = self.dice.between(1, 4);
        self.world.rot(server, bytes);
        let down = self.ms(self.swarm().down_ms_max);
        self.start_later(server, down);
    }

    fn wipe(&mut self, server: usize) {
        if !self.world.may_damage(server) || !self.world.is_up(server) {
            return;
        }
        self.world.wipe(server);
        let down = self.ms(self.swarm().down_ms_max);
        self.start_later(server, down);
        if self.swarm().has(Class::Rewipe) {
            let up = self.dice_rewipe.between(REWIPE_MS.0, REWIPE_MS.1);
            rt::spawn(wipe_again(self.world.clone(), server, down + Duration::from_millis(up)));
        }
    }

    fn transfer(&mut self, server: usize) {
        let Some(core) = self.world.core(server) else { return };
        let ids: Vec<u64> = core.contact.member_infos().iter().map(|one| one.id).collect();
        if ids.is_empty() {
            return;
        }
        let to = ids[self.dice.index(ids.len())];
        let world = self.world.clone();
        rt::spawn(async move {
            let work = move |core: std::sync::Arc<server::Core>| async move {
                core.transfer_leadership(&CALLER, Some(to)).await
            };
            drop(world.inside(server, work).await);
        });
    }

    /// A partition of some shape.
    fn partition(&mut self, server: usize) {
        let shape = Shape::draw(&mut self.dice, self.world.count(), server);
        if self.cut(|from, to| shape.cuts(from, to)) {
            coverage::hit(shape.text());
        }
    }

    /// A server that hears nobody, or that nobody hears.
    fn one_way(&mut self, server: usize) {
        let is_deaf = self.dice.below(2) != 0;
        let cuts = if is_deaf {
            self.cut(move |from, to| to == server && from != server)
        } else {
            self.cut(move |from, to| from == server && to != server)
        };
        if cuts {
            coverage::hit("a link was cut in one direction");
        }
    }

    /// Cuts these links for a while; false when there are none, as with a single server.
    fn cut(&mut self, apart: impl Fn(usize, usize) -> bool) -> bool {
        let links = self.world.links(apart);
        let cuts = !links.is_empty();
        let lasts = self.ms(self.swarm().cut_ms_max);
        let network = self.world.network.clone();
        let cut = network.cut(links);
        rt::spawn(async move {
            rt::sleep(lasts).await;
            network.uncut(&cut);
        });
        cuts
    }

    /// The links of a server come and go.
    fn flap(&mut self, server: usize) {
        let links = self.world.links(|from, to| from == server || to == server);
        if !links.is_empty() {
            coverage::hit("a link flapped");
        }
        let rounds = self.dice.between(2, 10);
        let network = self.world.network.clone();
        rt::spawn(async move {
            for _ in 0..rounds {
                let cut = network.cut(links.clone());
                rt::sleep(FLAP).await;
                network.uncut(&cut);
                rt::sleep(FLAP).await;
            }
        });
    }
}
