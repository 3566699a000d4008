//! Faults from a seed. Each seed draws which classes of faults it has and how bad they are; a crash of the leader is always among them.

use std::time::Duration;

use quorate::rt::{self, Instant};

use crate::{
    dice::Dice,
    network::{CALM, Weather},
    trace, world,
    world::World,
};

/// Longest time a server stays down.
const DOWN_MS_MAX: u64 = 8_000;
/// Longest time a cut lasts.
const CUT_MS_MAX: u64 = 6_000;
/// Largest jump of a wall clock.
const CLOCK_MS_MAX: u64 = 300_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill,
    PowerCut,
    LeaderPowerCut,
    PowerCutAll,
    Isolate,
    IsolateLeader,
    OneWay,
    Halves,
    WallClock,
    Weather,
}

const FAULTS: [Fault; 10] = [
    Fault::Kill,
    Fault::PowerCut,
    Fault::LeaderPowerCut,
    Fault::PowerCutAll,
    Fault::Isolate,
    Fault::IsolateLeader,
    Fault::OneWay,
    Fault::Halves,
    Fault::WallClock,
    Fault::Weather,
];

/// What brings faults on the servers.
pub(crate) struct Nemesis {
    world: World,
    dice: Dice,
    faults: Vec<Fault>,
    weather: Weather,
}

impl Nemesis {
    /// The faults of this seed.
    pub(crate) fn new(seed: u64, world: World) -> Self {
        let mut dice = Dice::new(seed, "nemesis");
        let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|_| dice.below(2) == 0).collect();
        if faults.is_empty() {
            faults.push(Fault::LeaderPowerCut);
        }
        let weather = Weather {
            latency_us_min: dice.between(100, 2_000),
            latency_us_max: dice.between(3_000, 50_000),
            loss_ppm: dice.between(0, 100_000),
            duplicate_ppm: dice.between(0, 100_000),
        };
        trace::event("nemesis", format_args!("{faults:?} {weather:?}"));
        Self { world, dice, faults, weather }
    }

    /// Brings faults for so long, the crash of a leader among them.
    pub(crate) async fn run(&mut self, duration: Duration) {
        let begin = Instant::now();
        let mut leader_crashed = false;
        while begin.elapsed() < duration {
            rt::sleep(Duration::from_millis(self.dice.between(300, 3_000))).await;
            let half_over = begin.elapsed() > duration / 2;
            if half_over && !leader_crashed && self.world.leader().is_some() {
                leader_crashed = true;
                self.bring(Fault::LeaderPowerCut);
                continue;
            }
            let fault = self.faults[self.dice.index(self.faults.len())];
            self.bring(fault);
        }
        if !leader_crashed {
            // Nobody led when it was time: bring back what there is, so that somebody does.
            self.heal();
            if self
                .world
                .wait("a leader to crash", Duration::from_secs(30), |world| {
                    world.leader().is_some()
                })
                .await
            {
                self.bring(Fault::LeaderPowerCut);
                rt::sleep(Duration::from_secs(2)).await;
            }
        }
    }

    /// Takes all faults away.
    pub(crate) fn heal(&self) {
        trace::event("nemesis", format_args!("heal"));
        self.world.network.set_weather(CALM);
        self.world.network.mend();
        for server in 0..self.world.count() {
            self.world.jump_wall_clock(server, 0);
            self.world.start(server);
        }
    }

    fn bring(&mut self, fault: Fault) {
        trace::event("nemesis", format_args!("{fault:?}"));
        let count = self.world.count();
        let one = self.dice.index(count);
        match fault {
            Fault::Kill => self.crash(one, false),
            Fault::PowerCut => self.crash(one, true),
            Fault::LeaderPowerCut => {
                if let Some(leader) = self.world.leader() {
                    self.crash(leader, true);
                }
            }
            Fault::PowerCutAll => (0..count).for_each(|server| self.crash(server, true)),
            Fault::Isolate => self.cut(|server| server == one, true),
            Fault::IsolateLeader => {
                if let Some(leader) = self.world.leader() {
                    let both = self.dice.below(3) > 0;
                    self.cut(|server| server == leader, both);
                }
            }
            Fault::OneWay => self.cut(|server| server == one, false),
            Fault::Halves => {
                let mask = self.dice.next();
                self.cut(|server| mask >> server & 1 == 1, true);
            }
            Fault::WallClock => {
                let offset = i64::try_from(self.dice.between(0, 2 * CLOCK_MS_MAX)).unwrap_or(0);
                let most = i64::try_from(CLOCK_MS_MAX).unwrap_or(0);
                self.world.jump_wall_clock(one, offset - most);
            }
            Fault::Weather => {
                let bad = self.dice.below(2) == 0;
                self.world.network.set_weather(if bad { self.weather } else { CALM });
            }
        }
    }

    fn crash(&mut self, server: usize, power: bool) {
        self.world.crash(server, power);
        let down = Duration::from_millis(self.dice.between(50, DOWN_MS_MAX));
        let world = self.world.clone();
        rt::spawn(async move {
            rt::sleep(down).await;
            world.start(server);
        });
    }

    /// Cuts the links from these servers to the others, and back when `both`; all cuts are mended together after a while.
    fn cut(&mut self, inside: impl Fn(usize) -> bool, both: bool) {
        let network = &self.world.network;
        for from in (0..self.world.count()).filter(|server| inside(*server)) {
            for to in (0..self.world.count()).filter(|server| !inside(*server)) {
                network.cut(&world::address(from), &world::address(to));
                if both {
                    network.cut(&world::address(to), &world::address(from));
                }
            }
        }
        let lasts = Duration::from_millis(self.dice.between(200, CUT_MS_MAX));
        let network = network.clone();
        rt::spawn(async move {
            rt::sleep(lasts).await;
            network.mend();
        });
    }
}
