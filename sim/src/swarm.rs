//! What one seed is about: which classes of faults are on, how bad each is, and how the servers are configured.
//!
//! Every value is drawn whether or not its class is on, in a fixed order, so that switching a class off (as the shrinker does) changes nothing else.

use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

use fsm::RequestId;
use quorate::server::RaftTiming;

use crate::network::Weather;
use chance::Dice;

/// How long a client waits for the answer to a write.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where clients have little time, at the least.
const PATIENCE_LEAST: Duration = Duration::from_millis(300);

/// A class of faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    /// Latencies far above the usual.
    Delay,
    /// Single messages that take seconds.
    Spikes,
    /// Lost messages and replies.
    Loss,
    /// Requests delivered twice.
    Duplicates,
    /// Requests delivered again seconds later, also to a restarted server.
    Late,
    /// Partitions of every shape.
    Partition,
    /// Links cut in one direction.
    OneWay,
    /// Links that come and go.
    Flapping,
    /// `kill -9`.
    Kill,
    /// Power cuts.
    Power,
    /// A server that stays away until the others have purged what it lacks.
    LongCrash,
    /// Everybody at once.
    CrashAll,
    /// Servers that stand still.
    Pause,
    /// Wall clocks that jump and drift.
    Clock,
    /// Syncs that take long.
    SlowDisk,
    /// Disks without space.
    DiskFull,
    /// Errors of reads, writes and syncs.
    DiskErrors,
    /// Flipped bytes at rest, on a minority.
    BitRot,
    /// Lost disks, on a minority.
    Wipe,
    /// Planned hand-overs of leadership.
    Transfer,
    /// Agents that crash, forget and are cut off.
    Agents,
    /// Machines that stop in the middle of a change of their disk.
    Halt,
    /// Servers that are told to stop, and started again.
    Restart,
    /// Messages of a server of another cluster, or for another server.
    Stranger,
    /// No fault: a reader that asks any server for what it has.
    StaleReads,
    /// No fault: flipped bytes are such as are used.
    UsedRot,
    /// Servers that apply nothing for a while.
    Lag,
    /// No fault: settings are changed and looked at.
    Settings,
    /// Agents that move their stream of allocations to another server and stay registered.
    Reconnect,
    /// Disks that are lost again while their server joins.
    Rewipe,
    /// No fault: clients that have little time.
    Hurry,
    /// Agents that stand still while their stream stays open.
    Stall,
    /// No fault: disks are full well before nothing can be written any more.
    Watermark,
    /// No fault: servers whose disks failed or were full are not begun anew when the faults are over.
    Spared,
    /// Faults that wait for their moment, during the others and after them.
    Aimed,
    /// No fault: threads for blocking work are busy, so that some of it comes late.
    Busy,
    /// No fault: some agents are the project's own, on machines that can boot.
    Machines,
}

impl Class {
    /// So many are drawn first; those that came later have dice of their own, so that a seed keeps its meaning.
    const FIRST: usize = 21;
    /// So many have been drawn when those come that came later still.
    const SECOND: usize = 26;
    /// All of them, in the order in which they are drawn.
    pub(crate) const ALL: [Self; 37] = [
        Self::Delay,
        Self::Spikes,
        Self::Loss,
        Self::Duplicates,
        Self::Late,
        Self::Partition,
        Self::OneWay,
        Self::Flapping,
        Self::Kill,
        Self::Power,
        Self::LongCrash,
        Self::CrashAll,
        Self::Pause,
        Self::Clock,
        Self::SlowDisk,
        Self::DiskFull,
        Self::DiskErrors,
        Self::BitRot,
        Self::Wipe,
        Self::Transfer,
        Self::Agents,
        Self::Halt,
        Self::Restart,
        Self::Stranger,
        Self::StaleReads,
        Self::UsedRot,
        Self::Lag,
        Self::Settings,
        Self::Reconnect,
        Self::Rewipe,
        Self::Hurry,
        Self::Stall,
        Self::Watermark,
        Self::Spared,
        Self::Aimed,
        Self::Busy,
        Self::Machines,
    ];

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Spikes => "spikes",
            Self::Loss => "loss",
            Self::Duplicates => "duplicates",
            Self::Late => "late",
            Self::Partition => "partition",
            Self::OneWay => "one-way",
            Self::Flapping => "flapping",
            Self::Kill => "kill",
            Self::Power => "power",
            Self::LongCrash => "long-crash",
            Self::CrashAll => "crash-all",
            Self::Pause => "pause",
            Self::Clock => "clock",
            Self::SlowDisk => "slow-disk",
            Self::DiskFull => "disk-full",
            Self::DiskErrors => "disk-errors",
            Self::BitRot => "bit-rot",
            Self::Wipe => "wipe",
            Self::Transfer => "transfer",
            Self::Agents => "agents",
            Self::Halt => "halt",
            Self::Restart => "restart",
            Self::Stranger => "stranger",
            Self::StaleReads => "stale-reads",
            Self::UsedRot => "used-rot",
            Self::Lag => "lag",
            Self::Settings => "settings",
            Self::Reconnect => "reconnect",
            Self::Rewipe => "rewipe",
            Self::Hurry => "hurry",
            Self::Stall => "stall",
            Self::Watermark => "watermark",
            Self::Spared => "spared",
            Self::Aimed => "aimed",
            Self::Busy => "busy",
            Self::Machines => "machines",
        }
    }

    /// Whether it is one of the events that the nemesis chooses from.
    pub(crate) const fn is_of_nemesis(self) -> bool {
        !self.is_weather()
            && !matches!(
                self,
                Self::Agents
                    | Self::Halt
                    | Self::Restart
                    | Self::Stranger
                    | Self::StaleReads
                    | Self::UsedRot
                    | Self::Lag
                    | Self::Settings
                    | Self::Reconnect
                    | Self::Rewipe
                    | Self::Hurry
                    | Self::Stall
                    | Self::Watermark
                    | Self::Spared
                    | Self::Aimed
                    | Self::Busy
                    | Self::Machines
            )
    }

    /// Whether it is a state of the network instead of an event.
    pub(crate) const fn is_weather(self) -> bool {
        matches!(self, Self::Delay | Self::Spikes | Self::Loss | Self::Duplicates | Self::Late)
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|class| class.name()).collect();
            format!("no class of faults is called {name:?}: there are {}", names.join(", "))
        })
    }
}

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
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
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
    pub(crate) weather: Weather,
    pub(crate) timing: RaftTiming,
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
}

fn pick<T: Copy>(dice: &mut Dice, choices: &[T]) -> T {
    choices[dice.index(choices.len())]
}

fn size(dice: &mut Dice, low: u64, high: u64) -> usize {
    usize::try_from(dice.between(low, high)).expect("the bounds are small")
}

impl Swarm {
    /// How long whoever makes this request waits for the answer.
    pub(crate) fn patience(&self, request: RequestId) -> Duration {
        if !self.has(Class::Hurry) {
            return PATIENCE;
        }
        let [low, high, ..] = request.0;
        PATIENCE_LEAST + Duration::from_millis(u64::from(u16::from_le_bytes([low, high])) / 14)
    }

    /// The plan of a seed.
    pub(crate) fn draw(seed: u64, change: &Override) -> Self {
        let mut dice = Dice::named(seed, "swarm");
        let drawn = pick(&mut dice, &[1, 3, 3, 3, 3, 3, 3, 5, 5, 3]);
        let servers = change.servers.map_or(drawn, usize::from);
        let (first, later) = Class::ALL.split_at(Class::FIRST);
        let (later, latest) = later.split_at(Class::SECOND - Class::FIRST);
        let mut classes: BTreeSet<Class> =
            first.iter().copied().filter(|_| dice.below(2) == 0).collect();
        let mut dice_later = Dice::named(seed, "later classes");
        classes.extend(later.iter().filter(|_| dice_later.below(2) == 0));
        let mut dice_latest = Dice::named(seed, "latest classes");
        classes.extend(latest.iter().filter(|_| dice_latest.below(2) == 0));
        let classes = classes.into_iter().filter(|class| !change.without.contains(class)).collect();
        let safety_ms = dice.between(4_000, 14_000);
        let timing = pick(&mut dice, &[(50, 150, 300), (100, 400, 600), (100, 500, 1_000)]);
        let (heartbeat_ms, election_ms_min, election_ms_max) = timing;
        Self {
            seed,
            servers,
            agents: size(&mut dice, 2, 4),
            clients: size(&mut dice, 1, 4),
            classes,
            safety_ms: change.safety_ms.unwrap_or(safety_ms),
            fault_gap_ms_max: dice.between(300, 2_500),
            think_ms_max: dice.between(20, 300),
            down_ms_max: dice.between(200, 8_000),
            cut_ms_max: dice.between(300, 8_000),
            pause_ms_max: dice.between(200, 10_000),
            clock_ms_max: dice.between(1_000, 300_000),
            slow_sync_us_max: dice.between(10_000, 1_000_000),
            disk_error_ppm: pick(&mut dice, &[100, 1_000, 10_000]),
            weather: Weather {
                latency_us_min: dice.between(0, 2_000),
                latency_us_max: dice.between(5_000, 50_000),
                spike_ppm: dice.between(500, 10_000),
                spike_us_max: dice.between(1_000_000, 5_000_000),
                loss_ppm: dice.between(1_000, 300_000),
                duplicate_ppm: dice.between(1_000, 500_000),
                late_ppm: dice.between(1_000, 20_000),
            },
            timing: RaftTiming { heartbeat_ms, election_ms_min, election_ms_max },
            workers: size(&mut dice, 1, 2),
            snapshot_log_bytes: pick(&mut dice, &[6 << 10, 16 << 10, 48 << 10, 160 << 10]),
            log_entries_kept: dice.between(0, 60),
            segment_bytes: pick(&mut dice, &[8 << 10, 16 << 10, 64 << 10]),
            batch_entries_max: pick(&mut dice, &[1, 2, 16, 4_096]),
            cache_bytes_max: pick(&mut dice, &[0, 4 << 10, 64 << 10]),
            pending_evaluations_max: pick(&mut dice, &[2, 8, 1_000, 100_000]),
            nack_ms: dice.between(1_500, 8_000),
            heartbeat_ttl_ms: dice.between(1_000, 3_000),
            heartbeat_grace_ms: dice.between(1_000, 3_000),
            snapshot_piece_bytes: pick(&mut dice_later, &[1 << 20, 512, 3_000, 16 << 10]),
            busy_us_max: dice_latest.between(100_000, 3_000_000),
        }
    }

    /// Whether a class is on.
    pub(crate) fn has(&self, class: Class) -> bool {
        self.classes.contains(&class)
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
        )
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn about_half_of_the_classes_are_on_and_every_class_is_on_somewhere() {
        let drawn: Vec<_> = (0..200).map(|seed| Swarm::draw(seed, &Override::default())).collect();
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

    #[test]
    fn a_class_that_is_switched_off_changes_nothing_else() {
        let seed =
            (0..1_000).find(|seed| Swarm::draw(*seed, &Override::default()).has(Class::Power));
        let seed = seed.unwrap();
        let whole = Swarm::draw(seed, &Override::default());
        let change = Override { without: vec![Class::Power], ..Override::default() };
        let mut less = Swarm::draw(seed, &change);
        assert!(!less.has(Class::Power));
        less.classes.insert(Class::Power);
        assert_eq!(less.to_string(), whole.to_string());
    }

    #[test]
    fn names_are_read_back_and_unknown_ones_are_refused() {
        for class in Class::ALL {
            assert_eq!(class.name().parse::<Class>().unwrap(), class);
        }
        assert!("fire".parse::<Class>().unwrap_err().contains("one-way"));
    }
}
