//! The classes of faults: their names, the functions they have in a history, and what each needs of the machine.
//!
//! Pure: it injects nothing. [`crate::nemesis`] injects, [`crate::probe`] says what the machine can do.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A class of faults.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultClass {
    /// SIGKILL, later a start.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// SIGTERM and a start, one server after the other.
    Restart,
    /// Leadership is handed to another server.
    Transfer,
    /// Links between servers are blocked, later healed.
    Partition,
    /// Links between servers are slow.
    Delay,
    /// Connections between servers stall and are reset.
    Loss,
    /// Connections stay open and carry nothing, for ever.
    HalfOpen,
    /// The disk takes no more bytes.
    DiskFull,
    /// Every sync takes longer.
    SlowDisk,
    /// Writes and syncs do not return.
    HangDisk,
    /// A minority's log or snapshot is damaged while the server is down.
    Corrupt,
    /// A server's disk is replaced by an empty one: it joins anew, under another id.
    Member,
    /// An older copy of a server's data directory is put back.
    Rollback,
    /// The power goes: the process and everything not synced are gone.
    Power,
    /// The file system is frozen.
    Freeze,
    /// The wall clock jumps.
    Clock,
}

/// What the fault injector does, in a history.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultFunction {
    /// SIGKILL servers.
    Kill,
    /// Start killed servers again.
    Start,
    /// SIGSTOP servers.
    Pause,
    /// SIGCONT servers.
    Resume,
    /// SIGTERM servers one by one and start them again.
    Restart,
    /// The end of a rolling restart.
    StopRestart,
    /// Hand leadership to another server.
    Transfer,
    /// The end of a transfer.
    StopTransfer,
    /// Cut links between servers.
    StartPartition,
    /// Restore all links.
    StopPartition,
    /// Slow links down.
    StartDelay,
    /// Links are fast again.
    StopDelay,
    /// Let connections stall and break.
    StartLoss,
    /// Connections are good again.
    StopLoss,
    /// Let connections stay open and carry nothing.
    StartHalfOpen,
    /// New connections carry bytes again.
    StopHalfOpen,
    /// Let disks be full.
    FillDisk,
    /// Disks have room again.
    FreeDisk,
    /// Let syncs take longer.
    StartSlowDisk,
    /// Syncs are fast again.
    StopSlowDisk,
    /// Let writes hang.
    StartHangDisk,
    /// Writes go on.
    StopHangDisk,
    /// Damage files of stopped servers.
    Corrupt,
    /// Follow the repair that the servers print.
    Repair,
    /// Take a server down and its disk away.
    Wipe,
    /// Start it with an empty disk.
    Join,
    /// Put an older copy of a server's data directory back.
    RollBack,
    /// Start it with that.
    Return,
    /// Cut the power.
    PowerOff,
    /// Start what lost its power.
    PowerOn,
    /// Freeze file systems.
    Freeze,
    /// Thaw them.
    Thaw,
    /// Let wall clocks jump.
    BumpClock,
    /// Wall clocks are right again.
    ResetClock,
}

impl FaultFunction {
    /// The name used in files and reports.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Restart => "restart",
            Self::StopRestart => "stop-restart",
            Self::Transfer => "transfer",
            Self::StopTransfer => "stop-transfer",
            Self::StartPartition => "start-partition",
            Self::StopPartition => "stop-partition",
            Self::StartDelay => "start-delay",
            Self::StopDelay => "stop-delay",
            Self::StartLoss => "start-loss",
            Self::StopLoss => "stop-loss",
            Self::StartHalfOpen => "start-half-open",
            Self::StopHalfOpen => "stop-half-open",
            Self::FillDisk => "fill-disk",
            Self::FreeDisk => "free-disk",
            Self::StartSlowDisk => "start-slow-disk",
            Self::StopSlowDisk => "stop-slow-disk",
            Self::StartHangDisk => "start-hang-disk",
            Self::StopHangDisk => "stop-hang-disk",
            Self::Corrupt => "corrupt",
            Self::Repair => "repair",
            Self::Wipe => "wipe",
            Self::Join => "join",
            Self::RollBack => "roll-back",
            Self::Return => "return",
            Self::PowerOff => "power-off",
            Self::PowerOn => "power-on",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
            Self::BumpClock => "bump-clock",
            Self::ResetClock => "reset-clock",
        }
    }
}

/// Something a class needs that not every machine, user or server binary has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Hash)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Means {
    /// A server built with the feature `faults`.
    DiskFaults,
    /// Every server's data on an own ext4 file system in a loop device.
    LoopDisks,
    /// `fsfreeze`.
    Fsfreeze,
    /// libfaketime.
    Faketime,
    /// Network namespaces and a packet filter.
    Namespaces,
    /// Links that go through the proxies of the harness.
    Proxies,
}

impl Means {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::DiskFaults,
        Self::LoopDisks,
        Self::Fsfreeze,
        Self::Faketime,
        Self::Namespaces,
        Self::Proxies,
    ];

    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DiskFaults => "disk-faults",
            Self::LoopDisks => "loop-disks",
            Self::Fsfreeze => "fsfreeze",
            Self::Faketime => "faketime",
            Self::Namespaces => "namespaces",
            Self::Proxies => "proxies",
        }
    }
}

impl fmt::Display for Means {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FaultClass {
    /// The name on the command line and in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Restart => "restart",
            Self::Transfer => "transfer",
            Self::Partition => "partition",
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::HalfOpen => "half-open",
            Self::DiskFull => "disk-full",
            Self::SlowDisk => "slow-disk",
            Self::HangDisk => "hang-disk",
            Self::Corrupt => "corrupt",
            Self::Member => "member",
            Self::Rollback => "rollback",
            Self::Power => "power",
            Self::Freeze => "freeze",
            Self::Clock => "clock",
        }
    }

    /// The function that begins a fault of this class.
    pub(crate) fn begin(self) -> FaultFunction {
        match self {
            Self::Kill => FaultFunction::Kill,
            Self::Pause => FaultFunction::Pause,
            Self::Restart => FaultFunction::Restart,
            Self::Transfer => FaultFunction::Transfer,
            Self::Partition => FaultFunction::StartPartition,
            Self::Delay => FaultFunction::StartDelay,
            Self::Loss => FaultFunction::StartLoss,
            Self::HalfOpen => FaultFunction::StartHalfOpen,
            Self::DiskFull => FaultFunction::FillDisk,
            Self::SlowDisk => FaultFunction::StartSlowDisk,
            Self::HangDisk => FaultFunction::StartHangDisk,
            Self::Corrupt => FaultFunction::Corrupt,
            Self::Member => FaultFunction::Wipe,
            Self::Rollback => FaultFunction::RollBack,
            Self::Power => FaultFunction::PowerOff,
            Self::Freeze => FaultFunction::Freeze,
            Self::Clock => FaultFunction::BumpClock,
        }
    }

    /// The function that ends it.
    pub(crate) fn end(self) -> FaultFunction {
        match self {
            Self::Kill => FaultFunction::Start,
            Self::Pause => FaultFunction::Resume,
            Self::Restart => FaultFunction::StopRestart,
            Self::Transfer => FaultFunction::StopTransfer,
            Self::Partition => FaultFunction::StopPartition,
            Self::Delay => FaultFunction::StopDelay,
            Self::Loss => FaultFunction::StopLoss,
            Self::HalfOpen => FaultFunction::StopHalfOpen,
            Self::DiskFull => FaultFunction::FreeDisk,
            Self::SlowDisk => FaultFunction::StopSlowDisk,
            Self::HangDisk => FaultFunction::StopHangDisk,
            Self::Corrupt => FaultFunction::Repair,
            Self::Member => FaultFunction::Join,
            Self::Rollback => FaultFunction::Return,
            Self::Power => FaultFunction::PowerOn,
            Self::Freeze => FaultFunction::Thaw,
            Self::Clock => FaultFunction::ResetClock,
        }
    }

    /// What the class needs beyond processes and files of its own.
    pub(crate) fn means(self) -> &'static [Means] {
        match self {
            Self::Kill
            | Self::Pause
            | Self::Restart
            | Self::Transfer
            | Self::Partition
            | Self::Corrupt
            | Self::Member
            | Self::Rollback => &[],
            Self::Delay | Self::Loss | Self::HalfOpen => &[Means::Proxies],
            Self::DiskFull | Self::SlowDisk | Self::HangDisk => &[Means::DiskFaults],
            Self::Power => &[Means::LoopDisks],
            Self::Freeze => &[Means::LoopDisks, Means::Fsfreeze],
            Self::Clock => &[Means::Faketime],
        }
    }

    /// The class that a history entry belongs to, and whether the entry begins a fault.
    pub(crate) fn of(function: FaultFunction) -> (Self, bool) {
        let found = Self::value_variants().iter().find_map(|class| {
            if class.begin() == function {
                Some((*class, true))
            } else if class.end() == function {
                Some((*class, false))
            } else {
                None
            }
        });
        found.expect("every function begins or ends a class")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_class_has_its_own_name_and_functions() {
        let classes = FaultClass::value_variants();
        let names: BTreeSet<_> = classes.iter().map(|class| class.name()).collect();
        assert_eq!(names.len(), classes.len());
        for class in classes {
            assert_eq!(FaultClass::of(class.begin()), (*class, true));
            assert_eq!(FaultClass::of(class.end()), (*class, false));
            let on_the_command_line =
                class.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(on_the_command_line.as_deref(), Some(class.name()));
            assert_eq!(serde_json::to_value(class).ok(), Some(class.name().into()));
        }
        let functions = FaultFunction::value_variants();
        assert_eq!(functions.len(), 2 * classes.len());
        for function in functions {
            assert_eq!(serde_json::to_value(function).ok(), Some(function.keyword().into()));
        }
    }
}
