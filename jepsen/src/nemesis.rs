//! The fault injector: breaks servers, disks, clocks and links by schedule, and heals everything at the end.
//!
//! Each class flips between calm and fault on its own thread and clock, so faults overlap, a few at a time. Every attempt is recorded
//! with what came of it: *installed*, *skipped* (nothing to do it to) or *indeterminate* (done, effect not
//! seen). It must never call a fault installed without evidence: a process must be seen gone or stopped,
//! a blocked link must have carried bytes before, a server must have met the fault of its disk.

mod corrupt;
mod disks;
mod links;
mod member;
mod processes;
mod rollback;
mod turns;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Endpoint, leaders},
    fault::{FaultClass, FaultFunction},
    history::{Function, Kind, Op, Process, Recorder},
};
use chance::Dice;
use disks::DiskFault;
use links::LinkFault;
pub(crate) use turns::Turns;

const NAP: Duration = Duration::from_millis(50);
/// The order in which faults are ended: what keeps servers from running goes first, what waits for the others last.
const HEALING: [FaultClass; 17] = [
    FaultClass::Partition,
    FaultClass::Delay,
    FaultClass::Loss,
    FaultClass::HalfOpen,
    FaultClass::DiskFull,
    FaultClass::SlowDisk,
    FaultClass::HangDisk,
    FaultClass::Freeze,
    FaultClass::Clock,
    FaultClass::Pause,
    FaultClass::Power,
    FaultClass::Kill,
    FaultClass::Restart,
    FaultClass::Transfer,
    FaultClass::Corrupt,
    FaultClass::Member,
    FaultClass::Rollback,
];

/// Which servers a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    One,
    Minority,
    Majority,
    Primaries,
    All,
    /// All, one after the other.
    Rolling,
}

impl Aim {
    const AT_ONCE: [Self; 5] =
        [Self::One, Self::Minority, Self::Majority, Self::Primaries, Self::All];
    const WITH_ROLLING: [Self; 6] =
        [Self::One, Self::Minority, Self::Majority, Self::Primaries, Self::All, Self::Rolling];
    const FEW: [Self; 3] = [Self::One, Self::Minority, Self::Primaries];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Minority => "minority",
            Self::Majority => "majority",
            Self::Primaries => "primaries",
            Self::All => "all",
            Self::Rolling => "rolling",
        }
    }

    /// The servers hit; for primaries none if no leader is known.
    fn servers(self, count: usize, leaders: &[usize], random: &mut Dice) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        random.shuffle(&mut order);
        let mut chosen = match self {
            Self::One => order[..1].to_vec(),
            Self::Minority => order[..(count - 1) / 2].to_vec(),
            Self::Majority => order[..=count / 2].to_vec(),
            Self::Primaries => leaders.to_vec(),
            Self::Rolling => return order,
            Self::All => order,
        };
        chosen.sort_unstable();
        chosen
    }
}

/// When faults come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Calm at the start.
    pub(crate) quiet: Duration,
    /// Mean time between two changes of one class; each is drawn within 50 % around it.
    pub(crate) interval: Duration,
}

impl Schedule {
    /// Five seconds of calm, or less in a short run.
    pub(crate) fn new(interval: Duration, time_limit: Duration) -> Self {
        Self { quiet: (time_limit / 6).min(Duration::from_secs(5)), interval }
    }

    /// The interval if none is asked for: ten seconds, or less in a short run.
    pub(crate) fn default_interval(time_limit: Duration) -> Duration {
        (time_limit / 6).clamp(Duration::from_secs(1), Duration::from_secs(10))
    }

    fn pause(&self, random: &mut Dice) -> Duration {
        random.duration(self.interval / 2, self.interval * 3 / 2)
    }
}

/// The fault injector of one run.
#[derive(Clone, Copy)]
pub(crate) struct Nemesis<'a> {
    cluster: &'a Mutex<Cluster>,
    endpoints: &'a [Endpoint],
    recorder: &'a Recorder,
    turns: &'a Turns,
    seed: u64,
}

/// What came of an attempt.
#[derive(Debug)]
enum Outcome {
    Installed(Value),
    Skipped(String),
    Indeterminate(String),
}

impl<'a> Nemesis<'a> {
    /// An injector that has done nothing yet.
    pub(crate) fn new(
        cluster: &'a Mutex<Cluster>,
        endpoints: &'a [Endpoint],
        recorder: &'a Recorder,
        turns: &'a Turns,
        seed: u64,
    ) -> Self {
        Self { cluster, endpoints, recorder, turns, seed }
    }

    /// Injects faults until `stop` is set; returns early if the harness itself fails.
    pub(crate) fn torment(
        &self,
        classes: &[FaultClass],
        schedule: Schedule,
        stop: &AtomicBool,
    ) -> Result<()> {
        // The first failure ends all classes, but not the clients.
        let failed = AtomicBool::new(false);
        thread::scope(|scope| {
            let (failed, nemesis) = (&failed, *self);
            let threads: Vec<_> = classes
                .iter()
                .map(|class| {
                    scope.spawn(move || {
                        let halt =
                            || stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
                        let outcome = nemesis.flip(*class, schedule, &halt);
                        if outcome.is_err() {
                            failed.store(true, Ordering::Relaxed);
                        }
                        outcome
                    })
                })
                .collect();
            let mut outcome = Ok(());
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|_| Err(anyhow!("a class panicked")));
                outcome = outcome.and(ended);
            }
            outcome
        })
    }

    /// One class: calm and fault by turns.
    fn flip(&self, class: FaultClass, schedule: Schedule, halt: &dyn Fn() -> bool) -> Result<()> {
        let mut turn = Turn::new(*self, class, halt);
        // The first fault comes soon after the calm, so that short runs see every class.
        let extra = turn.random.duration(Duration::ZERO, schedule.interval / 2);
        turn.wait(schedule.quiet + extra);
        while !halt() {
            if !self.turns.begin(class) {
                turn.wait(NAP);
                continue;
            }
            let took_hold = turn.strike(schedule)?;
            if took_hold {
                let pause = schedule.pause(&mut turn.random);
                turn.wait(pause);
                if halt() {
                    break;
                }
                turn.relieve()?;
            }
            self.turns.end(class);
            let pause = schedule.pause(&mut turn.random);
            // What was skipped is tried again soon.
            turn.wait(if took_hold { pause } else { pause / 4 });
        }
        Ok(())
    }

    /// Ends every fault of every class, whether or not this injector began it.
    pub(crate) fn heal_all(&self) -> Result<()> {
        for class in HEALING {
            Turn::new(*self, class, &|| false).relieve()?;
        }
        Ok(())
    }

    /// Strikes and relieves one class again and again, as often as asked; after each time `after` says whether to go on.
    pub(crate) fn cycles(
        &self,
        class: FaultClass,
        count: u64,
        pace: Duration,
        after: &dyn Fn(u64) -> Result<bool>,
    ) -> Result<()> {
        let mut turn = Turn::new(*self, class, &|| false);
        let mut attempts = 0;
        let mut done = 0;
        while done < count {
            turn.wait(pace);
            attempts += 1;
            ensure!(attempts <= 3 * count, "{} was skipped too often", class.name());
            let took_hold = if class == FaultClass::Power {
                turn.strike_power(Aim::All)?
            } else {
                turn.strike(Schedule { quiet: Duration::ZERO, interval: pace })?
            };
            turn.relieve()?;
            if took_hold {
                done += 1;
                if !after(done)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Kills one server for a while, so that the others have to show that they hold everything.
    pub(crate) fn rely_on_the_others(&self, round: u64, pace: Duration) -> Result<()> {
        let mut turn = Turn::new(*self, FaultClass::Kill, &|| false);
        turn.random = Dice::numbered(self.seed, 2_000 + round);
        turn.announce(Aim::One.name());
        let outcome = turn.hit(Aim::One)?;
        turn.conclude(outcome);
        turn.wait(pace);
        turn.relieve()
    }
}

/// One class at work: the injector with its own stream of chance.
struct Turn<'a> {
    nemesis: Nemesis<'a>,
    class: FaultClass,
    random: Dice,
    halt: &'a dyn Fn() -> bool,
    /// The id under which the server voted that this class took down last.
    old_id: Option<String>,
    /// The last server that went back came back beside a leader that lived on.
    spares_leader: bool,
}

impl<'a> Turn<'a> {
    fn new(nemesis: Nemesis<'a>, class: FaultClass, halt: &'a dyn Fn() -> bool) -> Self {
        let random = Dice::numbered(nemesis.seed, 1_000 + class as u64);
        Self { nemesis, class, random, halt, old_id: None, spares_leader: true }
    }

    /// Begins a fault; false if it was skipped.
    fn strike(&mut self, schedule: Schedule) -> Result<bool> {
        match self.class {
            FaultClass::Kill | FaultClass::Pause => self.strike_processes(schedule),
            FaultClass::Restart => self.strike_restart(schedule),
            FaultClass::Transfer => Ok(self.strike_transfer()),
            FaultClass::Partition => self.strike_partition(),
            FaultClass::Delay => Ok(self.strike_links(LinkFault::Slow)),
            FaultClass::Loss => Ok(self.strike_links(LinkFault::Lossy)),
            FaultClass::HalfOpen => Ok(self.strike_links(LinkFault::Silent)),
            FaultClass::DiskFull => self.strike_disk(DiskFault::Full),
            FaultClass::SlowDisk => self.strike_disk(DiskFault::Slow),
            FaultClass::HangDisk => self.strike_disk(DiskFault::Hang),
            FaultClass::Corrupt => self.strike_files(),
            FaultClass::Member => self.strike_member(),
            FaultClass::Rollback => self.strike_rollback(schedule),
            FaultClass::Power => {
                let aim = self.random.choose(&Aim::AT_ONCE);
                self.strike_power(aim)
            }
            FaultClass::Freeze => self.strike_freeze(),
            FaultClass::Clock => self.strike_clock(),
        }
    }

    /// Ends the faults of this class; what there was to end is in the history.
    fn relieve(&mut self) -> Result<()> {
        match self.class {
            FaultClass::Delay => self.relieve_links(LinkFault::Slow),
            FaultClass::Loss => self.relieve_links(LinkFault::Lossy),
            FaultClass::HalfOpen => self.relieve_links(LinkFault::Silent),
            FaultClass::Restart | FaultClass::Transfer => {}
            FaultClass::Kill | FaultClass::Pause => self.relieve_processes()?,
            FaultClass::Partition => self.relieve_partition()?,
            FaultClass::DiskFull => self.relieve_disk(DiskFault::Full)?,
            FaultClass::SlowDisk => self.relieve_disk(DiskFault::Slow)?,
            FaultClass::HangDisk => self.relieve_disk(DiskFault::Hang)?,
            FaultClass::Corrupt => self.relieve_files()?,
            FaultClass::Member => self.relieve_member()?,
            FaultClass::Rollback => self.relieve_rollback()?,
            FaultClass::Power => self.relieve_power()?,
            FaultClass::Freeze => self.relieve_freeze()?,
            FaultClass::Clock => self.relieve_clock()?,
        }
        Ok(())
    }

    /// Sleeps, but not beyond the end of the run.
    fn wait(&self, length: Duration) {
        let end = Instant::now() + length;
        while !(self.halt)() && Instant::now() < end {
            thread::sleep(NAP.min(end.saturating_duration_since(Instant::now())));
        }
    }

    fn servers(&self) -> usize {
        self.nemesis.endpoints.len()
    }

    fn name(&self, server: usize) -> &'a str {
        &self.nemesis.endpoints[server].name
    }

    fn names(&self, servers: &[usize]) -> Vec<&'a str> {
        servers.iter().map(|server| self.nemesis.endpoints[*server].name.as_str()).collect()
    }

    fn leaders(&self) -> Vec<usize> {
        let system = self.cluster().system();
        leaders(system, self.nemesis.endpoints)
    }

    /// The record of the beginning: what is going to be tried.
    fn announce(&self, what: &str) {
        self.record(self.class.begin(), json!(what));
    }

    /// The details of a fault that hits these servers, with what a measurement of the outage needs: when it took hold,
    /// who led, and who cannot serve.
    fn details(&self, aim: &str, victims: &[usize], leaders: &[usize], at: u64) -> Value {
        json!({
            "aim": aim,
            "nodes": self.names(victims),
            "leaders": self.names(leaders),
            "at": at,
        })
    }

    /// Records how the attempt ended; false if it was skipped.
    fn conclude(&self, outcome: Outcome) -> bool {
        let (value, took_hold) = match outcome {
            Outcome::Installed(mut details) => {
                details["outcome"] = "installed".into();
                self.nemesis.turns.installed(self.class);
                (details, true)
            }
            Outcome::Skipped(reason) => (json!({"outcome": "skipped", "reason": reason}), false),
            Outcome::Indeterminate(reason) => {
                (json!({"outcome": "indeterminate", "reason": reason}), true)
            }
        };
        self.record(self.class.begin(), value);
        took_hold
    }

    fn record(&self, function: FaultFunction, value: Value) {
        let op = Op::new(Process::Nemesis, Kind::Info, Function::Fault(function), value);
        self.nemesis.recorder.record(op);
    }

    /// The record of an end.
    fn relieved(&self, value: Value) {
        self.record(self.class.end(), value);
    }

    fn now(&self) -> u64 {
        self.nemesis.recorder.now()
    }

    fn cluster(&self) -> MutexGuard<'a, Cluster> {
        self.nemesis.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
