//! The classes of faults, by name. What a class does is in the file that implements it; the classes
//! of a run are in its plan ([`crate::swarm`]).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A class of faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// All servers crash at once.
    CrashAll,
    /// Servers that stand still.
    Pause,
    /// Wall clocks that jump and drift.
    Clock,
    /// The clock of one server is wrong by hours, and all others are right; at the end it is quiet for minutes, with elections in between.
    Apart,
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
    /// No fault: a client that sends stale reads to any server.
    StaleReads,
    /// No fault: bytes that rot are taken from the used part of a file.
    UsedRot,
    /// Servers that apply nothing for a while.
    Lag,
    /// No fault: clients change and read the settings.
    Settings,
    /// Agents that move their stream of allocations to another server and stay registered.
    Reconnect,
    /// Disks that are lost again while their server joins.
    Rewipe,
    /// No fault: clients with short deadlines.
    Hurry,
    /// Agents that stand still while their stream stays open.
    Stall,
    /// No fault: disks count as full well before writes fail.
    Watermark,
    /// No fault: servers whose disks failed or were full keep them when the faults are over.
    Spared,
    /// Faults that wait for a certain moment, during the others and after them.
    Aimed,
    /// No fault: threads for blocking work are busy, so that some of it runs late.
    Busy,
    /// No fault: some agents are the project's own, on machines that can boot.
    Machines,
    /// Agents whose readiness checks fail for a while.
    Checks,
    /// Nodes that fail at what they run, by their own fault.
    Failures,
    /// Several agents are cut off from all servers at once, during the other faults and after them.
    MassLoss,
}

impl Class {
    /// All of them. A new one goes where it belongs: the order decides nothing.
    pub(crate) const ALL: [Self; 41] = [
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
        Self::Apart,
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
        Self::Checks,
        Self::Failures,
        Self::MassLoss,
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
            Self::Apart => "apart",
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
            Self::Checks => "checks",
            Self::Failures => "failures",
            Self::MassLoss => "mass-loss",
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
                    | Self::Checks
                    | Self::Failures
                    | Self::MassLoss
                    | Self::Apart
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_are_refused() {
        for class in Class::ALL {
            assert_eq!(class.name().parse::<Class>().unwrap(), class);
            assert_eq!(serde_json::to_value(class).unwrap(), class.name());
        }
        assert!("fire".parse::<Class>().unwrap_err().contains("one-way"));
    }
}
