//! The plan of one run: which classes of faults are on, how bad each is, and how the servers are
//! configured. Drawn from a seed, or read from a file ([`Swarm::load`]).
//!
//! A class is switched on by dice of its own, and so is each value drawn, from the seed and its name:
//! a new class or value changes nothing else of what a seed means, nor does switching a class off. Even
//! so a seed is worth only what is drawn from it, so a plan that is kept says all of that. What is
//! decided while a run goes on comes from dice that each part of the simulation has for itself; a part
//! throws them only for the classes that are on, and a class that is not in a plan is not.

use std::{collections::BTreeSet, fmt, fs, path::Path, time::Duration};

use anyhow::Context;
use fsm::{RequestId, settings::NodeLife};
use serde::{Deserialize, Serialize};

use crate::{class::Class, network::Weather};
use chance::Dice;
use server::RaftTiming;

/// How long a client waits for the answer to a write.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where clients have little time, at the least.
const PATIENCE_LEAST: Duration = Duration::from_millis(300);

/// More than this share of the ready nodes, and at least so many, are a mass loss where there are some.
pub(crate) const LOSS_PERCENT: u32 = 34;
pub(crate) const LOSS_NODES_MIN: u32 = 2;

/// What the command line changes of a seed's plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override {
    /// Number of servers.
    pub(crate) servers: Option<u8>,
    /// Classes that are off whatever the seed says.
    pub(crate) without: Vec<Class>,
    /// Length of the time with faults, ms.
    pub(crate) safety_ms: Option<u64>,
}

impl Override {
    /// The arguments that say the same.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(servers) = self.servers {
            out.extend(["--servers".to_owned(), servers.to_string()]);
        }
        if !self.without.is_empty() {
            let names: Vec<_> = self.without.iter().map(|class| class.name()).collect();
            out.extend(["--without".to_owned(), names.join(",")]);
        }
        if let Some(ms) = self.safety_ms {
            out.extend(["--safety-ms".to_owned(), ms.to_string()]);
        }
        out
    }
}

/// The plan of one run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Swarm {
    /// What the dice of all parts are made of.
    pub(crate) seed: u64,
    pub(crate) servers: usize,
    pub(crate) agents: usize,
    pub(crate) clients: usize,
    pub(crate) classes: BTreeSet<Class>,
    /// Length of the time with faults, ms.
    pub(crate) safety_ms: u64,
    /// Longest pause between two faults, ms.
    pub(crate) fault_gap_ms_max: u64,
    /// Longest pause of a client between two operations, ms.
    pub(crate) think_ms_max: u64,
    pub(crate) down_ms_max: u64,
    pub(crate) cut_ms_max: u64,
    pub(crate) pause_ms_max: u64,
    pub(crate) clock_ms_max: u64,
    pub(crate) slow_sync_us_max: u64,
    pub(crate) disk_error_ppm: u32,
    pub(crate) workers: usize,
    pub(crate) snapshot_log_bytes: u64,
    log_entries_kept: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) batch_entries_max: usize,
    pub(crate) cache_bytes_max: usize,
    pub(crate) pending_evaluations_max: usize,
    pub(crate) nack_ms: u64,
    pub(crate) heartbeat_ttl_ms: u64,
    pub(crate) heartbeat_grace_ms: u64,
    pub(crate) snapshot_piece_bytes: u64,
    pub(crate) busy_us_max: u64,
    #[serde(with = "Timing")]
    pub(crate) timing: RaftTiming,
    pub(crate) weather: Weather,
    #[serde(default)]
    pub(crate) life: Life,
}

/// How nodes live where they fail or are lost: so that it comes within a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Life {
    pub(crate) lost_grace_ms: u64,
    suspend_ms: u64,
    strike_window_ms: u64,
    strike_failures: u32,
    suspended_percent_max: u32,
}

/// Of plans that are older than these settings.
impl Default for Life {
    fn default() -> Self {
        Self {
            lost_grace_ms: 2_000,
            suspend_ms: 1_000,
            strike_window_ms: 5_000,
            strike_failures: 2,
            suspended_percent_max: 25,
        }
    }
}

/// [`RaftTiming`] as a plan's file has it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "RaftTiming", deny_unknown_fields)]
struct Timing {
    heartbeat_ms: u64,
    election_ms_min: u64,
    election_ms_max: u64,
}

/// Draws the values of one seed, each by its name.
struct Draw(u64);

impl Draw {
    fn dice(&self, name: &str) -> Dice {
        Dice::named(self.0, &format!("swarm: {name}"))
    }

    fn is_on(&self, class: Class) -> bool {
        self.dice(class.name()).below(2) == 0
    }

    fn pick<T: Copy>(&self, name: &str, choices: &[T]) -> T {
        choices[self.dice(name).index(choices.len())]
    }

    fn between(&self, name: &str, low: u64, high: u64) -> u64 {
        self.dice(name).between(low, high)
    }

    fn size(&self, name: &str, low: u64, high: u64) -> usize {
        usize::try_from(self.between(name, low, high)).expect("the bounds are small")
    }
}

impl Swarm {
    /// The plan of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        Self::draw_of(seed, &Class::ALL)
    }

    fn draw_of(seed: u64, classes: &[Class]) -> Self {
        let draw = Draw(seed);
        let timings = [(50, 150, 300), (100, 400, 600), (100, 500, 1_000)];
        let (heartbeat_ms, election_ms_min, election_ms_max) = draw.pick("timing", &timings);
        Self {
            seed,
            servers: draw.pick("servers", &[1, 3, 3, 3, 3, 3, 3, 5, 5, 3]),
            agents: draw.size("agents", 2, 4),
            clients: draw.size("clients", 1, 4),
            classes: classes.iter().copied().filter(|class| draw.is_on(*class)).collect(),
            safety_ms: draw.between("safety", 4_000, 14_000),
            fault_gap_ms_max: draw.between("fault gap", 300, 2_500),
            think_ms_max: draw.between("think", 20, 300),
            down_ms_max: draw.between("down", 200, 8_000),
            cut_ms_max: draw.between("cut", 300, 8_000),
            pause_ms_max: draw.between("pauses", 200, 10_000),
            clock_ms_max: draw.between("clocks", 1_000, 300_000),
            slow_sync_us_max: draw.between("slow sync", 10_000, 1_000_000),
            disk_error_ppm: draw.pick("disk error rate", &[100, 1_000, 10_000]),
            workers: draw.size("workers", 1, 2),
            snapshot_log_bytes: draw
                .pick("snapshot log", &[6 << 10, 16 << 10, 48 << 10, 160 << 10]),
            log_entries_kept: draw.between("log entries kept", 0, 60),
            segment_bytes: draw.pick("segment", &[8 << 10, 16 << 10, 64 << 10]),
            batch_entries_max: draw.pick("batch", &[1, 2, 16, 4_096]),
            cache_bytes_max: draw.pick("cache", &[0, 4 << 10, 64 << 10]),
            pending_evaluations_max: draw.pick("pending evaluations", &[2, 8, 1_000, 100_000]),
            nack_ms: draw.between("nack", 1_500, 8_000),
            heartbeat_ttl_ms: draw.between("heartbeat ttl", 1_000, 3_000),
            heartbeat_grace_ms: draw.between("heartbeat grace", 1_000, 3_000),
            snapshot_piece_bytes: draw.pick("snapshot piece", &[1 << 20, 512, 3_000, 16 << 10]),
            busy_us_max: draw.between("busy work", 100_000, 3_000_000),
            timing: RaftTiming { heartbeat_ms, election_ms_min, election_ms_max },
            weather: Weather {
                latency_us_min: draw.between("least latency", 0, 2_000),
                latency_us_max: draw.between("most latency", 5_000, 50_000),
                spike_ppm: draw.between("spike rate", 500, 10_000),
                spike_us_max: draw.between("spike", 1_000_000, 5_000_000),
                loss_ppm: draw.between("loss rate", 1_000, 300_000),
                duplicate_ppm: draw.between("duplicate rate", 1_000, 500_000),
                late_ppm: draw.between("late rate", 1_000, 20_000),
            },
            life: Life {
                lost_grace_ms: draw.pick("lost grace", &[500, 2_000, 4_000]),
                suspend_ms: draw.pick("suspend", &[1_000, 3_000]),
                strike_window_ms: draw.pick("strike window", &[2_000, 5_000, 20_000]),
                strike_failures: draw.pick("strike failures", &[1, 2, 2, 3]),
                suspended_percent_max: draw.pick("suspended percent", &[0, 25, 50]),
            },
        }
    }

    /// The plan that a file holds.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("plan {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("plan {}", path.display()))
    }

    /// Writes the whole plan to a file, from which it can be run when seeds mean something else.
    pub(crate) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let text = toml::to_string(self)?;
        fs::write(path, text).with_context(|| format!("plan {}", path.display()))
    }

    /// The plan with these changes.
    pub(crate) fn changed(mut self, change: &Override) -> Self {
        self.servers = change.servers.map_or(self.servers, usize::from);
        self.classes.retain(|class| !change.without.contains(class));
        self.safety_ms = change.safety_ms.unwrap_or(self.safety_ms);
        self
    }

    /// How long whoever makes this request waits for the answer.
    pub(crate) fn patience(&self, request: RequestId) -> Duration {
        if !self.has(Class::Hurry) {
            return PATIENCE;
        }
        let [low, high, ..] = request.0;
        PATIENCE_LEAST + Duration::from_millis(u64::from(u16::from_le_bytes([low, high])) / 14)
    }

    /// Whether a class is on.
    pub(crate) fn has(&self, class: Class) -> bool {
        self.classes.contains(&class)
    }

    /// The settings of node life; none: those that a cluster begins with.
    pub(crate) fn node_life(&self) -> Option<NodeLife> {
        if !self.has(Class::Failures) && !self.has(Class::MassLoss) {
            return None;
        }
        let life = self.life;
        Some(NodeLife {
            lost_grace_ms: life.lost_grace_ms,
            suspend_ms: life.suspend_ms,
            suspend_ms_max: 2 * life.suspend_ms,
            strike_window_ms: life.strike_window_ms,
            strike_failures: life.strike_failures,
            suspended_percent_max: life.suspended_percent_max,
            mass_loss_percent: LOSS_PERCENT,
            mass_loss_nodes_min: LOSS_NODES_MIN,
            ..NodeLife::default()
        })
    }

    /// What a server wants to have free on its disk, bytes.
    pub(crate) fn free_bytes_min(&self) -> u64 {
        if self.has(Class::Watermark) { 512 << 10 } else { 64 << 10 }
    }

    /// Entries that a server keeps beyond its snapshot.
    pub(crate) fn log_entries_kept(&self) -> u64 {
        // Aimed faults have servers left behind soon.
        if self.has(Class::Aimed) { self.log_entries_kept / 16 } else { self.log_entries_kept }
    }

    /// The bad weather of this seed.
    pub(crate) fn bad_weather(&self, calm: Weather) -> Weather {
        let bad = self.weather;
        let mut weather = calm;
        if self.has(Class::Delay) {
            weather.latency_us_min = bad.latency_us_min;
            weather.latency_us_max = bad.latency_us_max;
        }
        if self.has(Class::Spikes) {
            weather.spike_ppm = bad.spike_ppm;
            weather.spike_us_max = bad.spike_us_max;
        }
        if self.has(Class::Loss) {
            weather.loss_ppm = bad.loss_ppm;
        }
        if self.has(Class::Duplicates) {
            weather.duplicate_ppm = bad.duplicate_ppm;
        }
        if self.has(Class::Late) {
            weather.late_ppm = bad.late_ppm;
        }
        weather
    }
}

/// One line that says everything.
impl fmt::Display for Swarm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes: Vec<_> = self.classes.iter().map(|class| class.name()).collect();
        let timing = self.timing;
        write!(
            out,
            "seed={} servers={} agents={} clients={} faults={} safety_ms={} gap_ms={} think_ms={} down_ms={} cut_ms={} pause_ms={} clock_ms={} \
             slow_sync_us={} disk_error_ppm={} weather={:?} raft={}/{}-{} workers={} snapshot_bytes={} kept={} segment={} batch={} cache={} \
             pending={} nack_ms={} ttl_ms={}+{} piece={} busy_us={}",
            self.seed,
            self.servers,
            self.agents,
            self.clients,
            if classes.is_empty() { "none".to_owned() } else { classes.join(",") },
            self.safety_ms,
            self.fault_gap_ms_max,
            self.think_ms_max,
            self.down_ms_max,
            self.cut_ms_max,
            self.pause_ms_max,
            self.clock_ms_max,
            self.slow_sync_us_max,
            self.disk_error_ppm,
            self.weather,
            timing.heartbeat_ms,
            timing.election_ms_min,
            timing.election_ms_max,
            self.workers,
            self.snapshot_log_bytes,
            self.log_entries_kept(),
            self.segment_bytes,
            self.batch_entries_max,
            self.cache_bytes_max,
            self.pending_evaluations_max,
            self.nack_ms,
            self.heartbeat_ttl_ms,
            self.heartbeat_grace_ms,
            self.snapshot_piece_bytes,
            self.busy_us_max,
        )?;
        // The traces of older plans begin as they did.
        if self.node_life().is_some() { write!(out, " life={:?}", self.life) } else { Ok(()) }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn about_half_of_the_classes_are_on_and_every_class_is_on_somewhere() {
        let drawn: Vec<_> = (0..200).map(Swarm::draw).collect();
        let on: usize = drawn.iter().map(|swarm| swarm.classes.len()).sum();
        let share = on * 100 / (drawn.len() * Class::ALL.len());
        assert!((45..=55).contains(&share), "{share} %");
        for class in Class::ALL {
            assert!(drawn.iter().any(|swarm| swarm.has(class)), "{class:?}");
        }
        for servers in [1, 3, 5] {
            assert!(drawn.iter().any(|swarm| swarm.servers == servers));
        }
    }

    /// Whichever class is the newest one, what was drawn before it came is drawn with it.
    #[test]
    fn a_new_class_changes_nothing_else_of_a_seed() {
        for (seed, new) in (0..).zip(Class::ALL) {
            let others: Vec<_> = Class::ALL.into_iter().filter(|class| *class != new).collect();
            let before = Swarm::draw_of(seed, &others);
            let mut after = Swarm::draw(seed);
            after.classes.remove(&new);
            assert_eq!(after, before, "{new:?}");
        }
    }

    #[test]
    fn a_class_that_is_switched_off_changes_nothing_else() {
        let whole = (0..1_000).map(Swarm::draw).find(|swarm| swarm.has(Class::Power)).unwrap();
        let change = Override { without: vec![Class::Power], ..Override::default() };
        let mut less = whole.clone().changed(&change);
        assert!(!less.has(Class::Power));
        less.classes.insert(Class::Power);
        assert_eq!(less, whole);
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.toml");
        for seed in 0..20 {
            let plan = Swarm::draw(seed);
            plan.save(&path).unwrap();
            assert_eq!(Swarm::load(&path).unwrap(), plan);
        }
        fs::write(&path, "seed = 1\nfire = true\n").unwrap();
        assert!(format!("{:#}", Swarm::load(&path).unwrap_err()).contains("kept.toml"));
    }
}
