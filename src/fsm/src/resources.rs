//! Amounts of cpu, memory and disk, and what is used of them on a node. Integers only; subtraction
//! never goes below zero.

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::{
    id::{AllocationId, Text},
    job::TaskGroup,
};

/// Cpu in MHz, memory and disk in MiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_mhz: u64,
    /// MiB.
    pub memory_mb: u64,
    /// MiB.
    pub disk_mb: u64,
}

/// A resource of which a node has too little.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Dimension {
    Cpu,
    Memory,
    Disk,
    /// A static port is taken or no dynamic port is left.
    Ports,
    /// The node's limit on the number of allocations.
    Allocations,
}

impl Dimension {
    /// The name used in placement metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Ports => "network: port collision",
            Self::Allocations => "max allocations",
        }
    }
}

impl Resources {
    /// What one instance of a group asks for.
    pub fn of_group(group: &TaskGroup) -> Self {
        let mut sum = Self { cpu_mhz: 0, memory_mb: 0, disk_mb: group.disk_mb };
        for task in &group.tasks {
            sum.cpu_mhz = sum.cpu_mhz.saturating_add(task.resources.cpu_mhz);
            sum.memory_mb = sum.memory_mb.saturating_add(task.resources.memory_mb);
        }
        sum
    }

    /// Sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_mhz: self.cpu_mhz.saturating_add(other.cpu_mhz),
            memory_mb: self.memory_mb.saturating_add(other.memory_mb),
            disk_mb: self.disk_mb.saturating_add(other.disk_mb),
        }
    }

    /// Sum, or the first dimension in which it overflows: a saturated sum could not be taken apart
    /// again.
    pub fn checked_plus(self, other: Self) -> Result<Self, Dimension> {
        let add = |left: u64, right: u64, dimension| left.checked_add(right).ok_or(dimension);
        Ok(Self {
            cpu_mhz: add(self.cpu_mhz, other.cpu_mhz, Dimension::Cpu)?,
            memory_mb: add(self.memory_mb, other.memory_mb, Dimension::Memory)?,
            disk_mb: add(self.disk_mb, other.disk_mb, Dimension::Disk)?,
        })
    }

    /// Difference, or the first dimension in which it is below zero.
    pub fn checked_minus(self, other: Self) -> Result<Self, Dimension> {
        let take = |left: u64, right: u64, dimension| left.checked_sub(right).ok_or(dimension);
        Ok(Self {
            cpu_mhz: take(self.cpu_mhz, other.cpu_mhz, Dimension::Cpu)?,
            memory_mb: take(self.memory_mb, other.memory_mb, Dimension::Memory)?,
            disk_mb: take(self.disk_mb, other.disk_mb, Dimension::Disk)?,
        })
    }

    /// Difference, not below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpu_mhz: self.cpu_mhz.saturating_sub(other.cpu_mhz),
            memory_mb: self.memory_mb.saturating_sub(other.memory_mb),
            disk_mb: self.disk_mb.saturating_sub(other.disk_mb),
        }
    }

    /// The first dimension in which `self` exceeds `limit`.
    pub const fn exceeds(self, limit: Self) -> Option<Dimension> {
        if self.cpu_mhz > limit.cpu_mhz {
            Some(Dimension::Cpu)
        } else if self.memory_mb > limit.memory_mb {
            Some(Dimension::Memory)
        } else if self.disk_mb > limit.disk_mb {
            Some(Dimension::Disk)
        } else {
            None
        }
    }
}

/// A port given to an allocation on its node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Port {
    /// Label of the ask.
    pub label: Text,
    /// Port on the node.
    pub value: u16,
    /// Port inside the task's network; 0: the same.
    pub to: u16,
}

/// What allocations use of a node; a derived index, so that a fit check does not sum over
/// allocations.
///
/// Invariant: equals the sum over the node's allocations that are desired `run` and not terminal on
/// the client, and `ports` holds every port of an allocation that is not terminal on the client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeUsage {
    /// Sum of resources.
    pub resources: Resources,
    /// Number of allocations counted.
    pub allocations: u32,
    /// Ports by the allocations that hold them; two holders only while the older is being stopped.
    pub ports: OrdMap<(u16, AllocationId), PortHolder>,
}

/// Whether a port's holder is to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortHolder {
    /// Desired `run`.
    Live,
    /// Being stopped; a static port may be asked for by its successor, which starts after it has
    /// ended.
    Stopping,
}

impl NodeUsage {
    /// Whether `port` is held, and how.
    pub fn port(&self, port: u16) -> Option<PortHolder> {
        let first = (port, AllocationId([0; 16]));
        let last = (port, AllocationId([0xff; 16]));
        let mut found = None;
        for (_, holder) in self.ports.range(first..=last) {
            match holder {
                PortHolder::Live => return Some(PortHolder::Live),
                PortHolder::Stopping => found = Some(PortHolder::Stopping),
            }
        }
        found
    }
}
