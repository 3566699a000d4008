//! What runs on every node of a pool: system jobs take room, slots and ports of each machine before
//! anything else does.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    JobKey, JobKind, State, Text,
    job::TaskGroup,
    pool::{InstancePool, InstanceType},
    resources::Resources,
};
use scheduler::Declared;

use crate::demand::Need;

/// Room of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    pub resources: Resources,
    /// Allocations that it takes.
    pub slots: u32,
    /// Static ports that are taken.
    pub ports: BTreeSet<u16>,
}

/// What one group of a system job takes of each machine on which it may run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tenant {
    job: JobKey,
    resources: Resources,
    ports: BTreeSet<u16>,
}

/// What system jobs take of the machines of a pool, by type.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Overhead {
    tenants: BTreeMap<Text, Vec<Tenant>>,
}

impl Overhead {
    /// That of a pool. Cost: the system jobs, and for those of the pool its types.
    pub fn of(state: &State, pool: &InstancePool) -> Self {
        let mut overhead = Self::default();
        for key in state.per_node_jobs() {
            let Some(job) = state.jobs().get(key).filter(|job| !job.stop) else { continue };
            let Some(spec) = state.current_spec(job) else { continue };
            let is_of_pool = spec.node_pool == pool.name || &*spec.node_pool == "all";
            if spec.kind != JobKind::System || !is_of_pool {
                continue;
            }
            let mut declared = Declared::new(spec);
            for (number, group) in spec.groups.iter().enumerate() {
                for kind in pool.types.values() {
                    if declared.check(number, kind.description(&pool.name)).is_err() {
                        continue;
                    }
                    let tenant = Tenant {
                        job: key.clone(),
                        resources: Resources::of_group(group),
                        ports: static_ports(group),
                    };
                    overhead.tenants.entry(kind.name.clone()).or_default().push(tenant);
                }
            }
        }
        overhead
    }

    fn of_type(&self, kind: &Text) -> &[Tenant] {
        self.tenants.get(kind).map_or(&[], Vec::as_slice)
    }

    /// What a new machine of a type leaves to others.
    pub fn room(&self, kind: &InstanceType) -> Room {
        let slots = if kind.max_allocations == 0 { u32::MAX } else { kind.max_allocations };
        let mut room = Room { resources: kind.resources(), slots, ports: BTreeSet::new() };
        for tenant in self.of_type(&kind.name) {
            room.take(tenant);
        }
        room
    }

    /// Takes out of a machine's room what its system jobs will take and do not yet.
    pub fn take_absent(&self, kind: &Text, room: &mut Room, is_there: impl Fn(&JobKey) -> bool) {
        for tenant in self.of_type(kind).iter().filter(|tenant| !is_there(&tenant.job)) {
            room.take(tenant);
        }
    }

    /// The system job that has a port on each machine of a type.
    pub fn holder_of(&self, kind: &Text, port: u16) -> Option<&JobKey> {
        let mut tenants = self.of_type(kind).iter();
        Some(&tenants.find(|tenant| tenant.ports.contains(&port))?.job)
    }
}

impl Room {
    /// How many instances of a need fit into it.
    pub fn fitting(&self, need: &Need) -> u32 {
        if !need.ports.is_disjoint(&self.ports) {
            return 0;
        }
        let of = |room: u64, one: u64| room.checked_div(one).unwrap_or(u64::MAX);
        let Resources { cpu_mhz, memory_mb, disk_mb } = need.resources;
        let most = of(self.resources.cpu_mhz, cpu_mhz)
            .min(of(self.resources.memory_mb, memory_mb))
            .min(of(self.resources.disk_mb, disk_mb))
            .min(need.per_machine_max.into())
            .min(self.slots.into());
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Takes instances of a need, which fit, out of it.
    pub fn place(&mut self, need: &Need, count: u32) {
        let Resources { cpu_mhz, memory_mb, disk_mb } = need.resources;
        let times = |one: u64| one.saturating_mul(count.into());
        let taken = Resources {
            cpu_mhz: times(cpu_mhz),
            memory_mb: times(memory_mb),
            disk_mb: times(disk_mb),
        };
        self.resources = self.resources.minus(taken);
        self.slots -= count;
        self.ports.extend(need.ports.iter().copied());
    }

    fn take(&mut self, tenant: &Tenant) {
        self.resources = self.resources.minus(tenant.resources);
        self.slots = self.slots.saturating_sub(1);
        self.ports.extend(tenant.ports.iter().copied());
    }
}

/// The static ports that a group asks for.
pub fn static_ports(group: &TaskGroup) -> BTreeSet<u16> {
    let ports = group.network.iter().flat_map(|network| &network.ports);
    ports.map(|port| port.value).filter(|port| *port != 0).collect()
}
