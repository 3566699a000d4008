//! The fault injector: breaks servers and links by schedule, and heals everything at the end.
//!
//! Each class flips between calm and fault on its own clock, so faults overlap. Every attempt is recorded
//! with what came of it: *installed*, *skipped* (nothing to do it to) or *indeterminate* (done, effect not
//! seen). It must never call a fault installed without evidence: a process must be seen gone or stopped, and
//! a blocked link must have carried bytes before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Effect, Endpoint, leaders};
use crate::history::{Function, Kind, Op, Process, Recorder};
use crate::partition::Shape;
use crate::proxy::Flow;
use crate::random::Random;

const NAP: Duration = Duration::from_millis(50);

/// A class of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FaultClass {
    /// SIGKILL, later a start.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// Links between servers are blocked, later healed.
    Partition,
}

impl FaultClass {
    /// The name on the command line and in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Partition => "partition",
        }
    }

    /// The function that begins a fault of this class.
    pub(crate) fn begin(self) -> Function {
        match self {
            Self::Kill => Function::Kill,
            Self::Pause => Function::Pause,
            Self::Partition => Function::StartPartition,
        }
    }

    /// The function that ends it.
    fn end(self) -> Function {
        match self {
            Self::Kill => Function::Start,
            Self::Pause => Function::Resume,
            Self::Partition => Function::StopPartition,
        }
    }
}

/// Which servers a kill or pause hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    One,
    Minority,
    Majority,
    Primaries,
    All,
}

impl Aim {
    const ALL: [Self; 5] = [Self::One, Self::Minority, Self::Majority, Self::Primaries, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Minority => "minority",
            Self::Majority => "majority",
            Self::Primaries => "primaries",
            Self::All => "all",
        }
    }

    /// The servers hit; for primaries none if no leader is known.
    fn servers(self, count: usize, leaders: &[usize], random: &mut Random) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        random.shuffle(&mut order);
        let mut chosen = match self {
            Self::One => order[..1].to_vec(),
            Self::Minority => order[..(count - 1) / 2].to_vec(),
            Self::Majority => order[..=count / 2].to_vec(),
            Self::Primaries => leaders.to_vec(),
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

    fn pause(&self, random: &mut Random) -> Duration {
        random.duration(self.interval / 2, self.interval * 3 / 2)
    }
}

/// The fault injector of one run.
pub(crate) struct Nemesis<'a> {
    cluster: &'a Mutex<Cluster>,
    endpoints: &'a [Endpoint],
    recorder: &'a Recorder,
    random: Random,
}

/// What came of an attempt.
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
        random: Random,
    ) -> Self {
        Self { cluster, endpoints, recorder, random }
    }

    /// Injects faults until `stop` is set; returns early if the harness itself fails.
    pub(crate) fn torment(
        &mut self,
        classes: &[FaultClass],
        schedule: Schedule,
        stop: &AtomicBool,
    ) -> Result<()> {
        let start = Instant::now() + schedule.quiet;
        // The first faults come soon after the calm, so that short runs see every class.
        let mut clocks: Vec<(Instant, FaultClass, bool)> = classes
            .iter()
            .map(|class| {
                let delay = self.random.duration(Duration::ZERO, schedule.interval / 2);
                (start + delay, *class, false)
            })
            .collect();
        while let Some(next) = clocks.iter_mut().min_by_key(|clock| clock.0) {
            while Instant::now() < next.0 {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(NAP.min(next.0.saturating_duration_since(Instant::now())));
            }
            let (_, class, active) = *next;
            let pause = schedule.pause(&mut self.random);
            if active {
                self.relieve(class)?;
                *next = (Instant::now() + pause, class, false);
            } else {
                let took_hold = self.strike(class)?;
                // What was skipped is tried again soon.
                let wait = if took_hold { pause } else { pause / 4 };
                *next = (Instant::now() + wait, class, took_hold);
            }
        }
        Ok(())
    }

    /// Ends every fault of every class, whether or not this injector began it.
    pub(crate) fn heal_all(&mut self) -> Result<()> {
        for class in [FaultClass::Partition, FaultClass::Pause, FaultClass::Kill] {
            self.relieve(class)?;
        }
        Ok(())
    }

    /// Begins a fault; false if it was skipped.
    fn strike(&mut self, class: FaultClass) -> Result<bool> {
        match class {
            FaultClass::Kill | FaultClass::Pause => {
                let aim = self.random.choose(&Aim::ALL);
                self.record(class.begin(), json!(aim.name()));
                let outcome = self.strike_processes(class, aim)?;
                Ok(self.conclude(class, outcome))
            }
            FaultClass::Partition => {
                let shape = self.random.choose(&Shape::ALL);
                let cuts = !shape.one_way() && self.random.below(2) == 0;
                let how = if cuts { Flow::Cut } else { Flow::Held };
                self.record(class.begin(), json!(shape.name()));
                let outcome = self.strike_links(shape, how);
                Ok(self.conclude(class, outcome))
            }
        }
    }

    fn strike_processes(&mut self, class: FaultClass, aim: Aim) -> Result<Outcome> {
        let leaders = if aim == Aim::Primaries { leaders(self.endpoints) } else { Vec::new() };
        let servers = aim.servers(self.endpoints.len(), &leaders, &mut self.random);
        if servers.is_empty() {
            return Ok(Outcome::Skipped("no leader is known".to_owned()));
        }
        let (mut done, mut unclear) = (Vec::new(), Vec::new());
        let mut cluster = self.cluster();
        for server in servers {
            let effect = match class {
                FaultClass::Kill => cluster.kill(server)?,
                FaultClass::Pause => cluster.pause(server)?,
                FaultClass::Partition => unreachable!("partitions hit links, not processes"),
            };
            let name = &self.endpoints[server].name;
            match effect {
                Effect::Done => done.push(name),
                Effect::Nothing => {}
                Effect::Unclear(reason) => unclear.push(format!("{name}: {reason}")),
            }
        }
        Ok(if !unclear.is_empty() {
            Outcome::Indeterminate(unclear.join("; "))
        } else if done.is_empty() {
            Outcome::Skipped(format!("the {} servers aimed at are down or paused", aim.name()))
        } else {
            Outcome::Installed(json!({"aim": aim.name(), "nodes": done}))
        })
    }

    fn strike_links(&mut self, shape: Shape, how: Flow) -> Outcome {
        let leaders = leaders(self.endpoints);
        let blocked = shape.blocked(self.endpoints.len(), &leaders, &mut self.random);
        if blocked.is_empty() {
            return Outcome::Skipped("no leader is known".to_owned());
        }
        let cluster = self.cluster();
        let board = cluster.switchboard();
        // A server that does not go through its proxies cannot be cut off; that must not look like a fault.
        let used = blocked.iter().any(|(from, to)| board.bytes(*from, *to) > 0);
        board.block(&blocked, how);
        let name = |server: usize| self.endpoints[server].name.as_str();
        let flows: Vec<String> =
            blocked.iter().map(|(from, to)| format!("{}->{}", name(*from), name(*to))).collect();
        if !used {
            return Outcome::Indeterminate(format!(
                "the links {} have never carried a byte",
                flows.join(", ")
            ));
        }
        let how = match how {
            Flow::Cut => "cut",
            Flow::Held => "held",
            Flow::Open => unreachable!("a partition blocks"),
        };
        Outcome::Installed(json!({"shape": shape.name(), "how": how, "flows": flows}))
    }

    /// Ends the faults of a class; what there was to end is in the history.
    fn relieve(&mut self, class: FaultClass) -> Result<()> {
        self.record(class.end(), Value::Null);
        let mut cluster = self.cluster();
        let mut nodes = Vec::new();
        match class {
            FaultClass::Partition => cluster.switchboard().heal(),
            FaultClass::Kill | FaultClass::Pause => {
                for server in 0..cluster.len() {
                    let effect = if class == FaultClass::Kill {
                        cluster.start(server)?
                    } else {
                        cluster.resume(server)?
                    };
                    if effect == Effect::Done {
                        nodes.push(self.endpoints[server].name.clone());
                    }
                }
            }
        }
        drop(cluster);
        self.record(class.end(), json!({"nodes": nodes}));
        Ok(())
    }

    fn conclude(&self, class: FaultClass, outcome: Outcome) -> bool {
        let (value, took_hold) = match outcome {
            Outcome::Installed(mut details) => {
                details["outcome"] = "installed".into();
                (details, true)
            }
            Outcome::Skipped(reason) => (json!({"outcome": "skipped", "reason": reason}), false),
            Outcome::Indeterminate(reason) => {
                (json!({"outcome": "indeterminate", "reason": reason}), true)
            }
        };
        self.record(class.begin(), value);
        took_hold
    }

    fn record(&self, function: Function, value: Value) {
        self.recorder.record(Op::new(Process::Nemesis, Kind::Info, function, value));
    }

    fn cluster(&self) -> MutexGuard<'a, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "nemesis_tests.rs"]
mod tests;
