//! The nodes that may get new work in this pass, and what this pass has placed on them and stopped
//! there.
//!
//! Usage comes from the state's sums by node. They are loaded when a node is first looked at,
//! because a pass that places one instance on a large cluster looks at a few nodes only. Must never
//! sum over allocations.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Allocation, AllocationId, JobSpec, Node, NodeId, State, TaskGroup, Text, Trigger,
    digest::Digest,
    node::glob,
    resources::{Dimension, NodeUsage, PortHolder, Resources},
};

use crate::{pass::Pass, place::shuffle::Ring};

/// How many pairs of a pool and a set of datacenters are remembered.
const MEMORY_MAX: usize = 32;

/// What one instance of a group asks of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) resources: Resources,
    static_ports: Vec<u16>,
    dynamic_ports: u32,
}

impl Ask {
    pub(crate) fn of(group: &TaskGroup) -> Self {
        let ports = group.network.as_ref().map_or(&[][..], |network| &network.ports);
        let static_ports: Vec<u16> =
            ports.iter().map(|port| port.value).filter(|value| *value != 0).collect();
        let dynamic_ports = u32::try_from(ports.len() - static_ports.len()).unwrap_or(u32::MAX);
        Self { resources: Resources::of_group(group), static_ports, dynamic_ports }
    }

    /// Whether it asks for this port by number.
    pub(crate) fn wants_port(&self, port: u16) -> bool {
        self.static_ports.contains(&port)
    }
}

/// What is used of a node, with the changes of this pass.
struct Seat {
    available: Resources,
    used: Resources,
    allocations: u32,
    usage: Arc<NodeUsage>,
    /// Allocations in the snapshot that this pass stops.
    released: Vec<AllocationId>,
    /// Static ports of this pass's placements.
    static_ports: Vec<u16>,
    /// How many dynamic ports this pass's placements need. The leader's plan applier picks the
    /// numbers.
    dynamic_ports: u32,
}

/// The schedulable nodes in a pool and a set of datacenters.
struct Found {
    /// Sorted by id.
    nodes: Vec<Arc<Node>>,
    /// Nodes of the pool, schedulable or not.
    in_pool: u32,
    /// Nodes of the pool and the datacenters that get no work because their machine reports a
    /// shortage, for example of disk.
    short: u32,
    /// How many of `nodes` each datacenter has.
    available: BTreeMap<Text, u32>,
}

/// A cache of node lists that passes share: the schedulable nodes of a pool and a set of
/// datacenters. It is valid while no node changes, which the digest of the nodes table tells.
///
/// A cache, not state: a pass gives the same plan with and without it. Each worker keeps one,
/// because filtering all nodes is most of the cost of a pass that places one instance on a large
/// cluster.
#[derive(Default)]
pub struct Memory {
    nodes: Option<(Digest, usize)>,
    found: Vec<(Text, Vec<Text>, Found)>,
}

impl Memory {
    fn find(&mut self, state: &State, spec: &JobSpec) -> &Found {
        let nodes = (state.nodes().digest(), state.nodes().len());
        if self.nodes != Some(nodes) {
            self.nodes = Some(nodes);
            self.found.clear();
        }
        let known = self.found.iter().position(|(pool, datacenters, _)| {
            *pool == spec.node_pool && *datacenters == spec.datacenters
        });
        let number = known.unwrap_or_else(|| {
            if self.found.len() == MEMORY_MAX {
                self.found.clear();
            }
            let found = Found::new(state, spec);
            self.found.push((spec.node_pool.clone(), spec.datacenters.clone(), found));
            self.found.len() - 1
        });
        &self.found[number].2
    }
}

impl Found {
    fn new(state: &State, spec: &JobSpec) -> Self {
        let mut datacenters: BTreeMap<&Text, (bool, u32)> = BTreeMap::new();
        let mut nodes = Vec::with_capacity(state.nodes().len());
        let (mut in_pool, mut short) = (0, 0);
        for node in state.nodes().iter() {
            if !self::in_pool(node, spec) {
                continue;
            }
            in_pool += 1;
            let datacenter = &node.description.datacenter;
            if !node.is_schedulable() {
                if node.shortage.is_some() && matches_datacenter(spec, datacenter) {
                    short += 1;
                }
                continue;
            }
            let (wanted, count) = datacenters
                .entry(datacenter)
                .or_insert_with(|| (matches_datacenter(spec, datacenter), 0));
            if *wanted {
                *count += 1;
                nodes.push(Arc::clone(node));
            }
        }
        let available = datacenters
            .into_iter()
            .filter(|(_, (wanted, _))| *wanted)
            .map(|(name, (_, count))| (name.clone(), count))
            .collect();
        Self { nodes, in_pool, short, available }
    }
}

/// The order in which the nodes of an instance pool are tried: first those with more allocations,
/// then those that were busy more recently, then the cheaper ones, then by id. Of nodes with equal
/// scores the first gets the work. So the others become idle and can be removed.
fn fullest_first(state: &State, nodes: &[Arc<Node>]) -> Vec<u32> {
    let rank = |position: &u32| {
        let node = &nodes[*position as usize];
        let row = node.instance.and_then(|own| state.instances().get(&own.id));
        let (last_busy, price) = row.map_or((0, 0), |row| (row.last_busy_at, row.kind.price_micro));
        (Reverse(state.usage(node.id).allocations), Reverse(last_busy), price, node.id)
    };
    let mut order: Vec<u32> = (0..).take(nodes.len()).collect();
    order.sort_by_cached_key(rank);
    order
}

/// The nodes that may get new work in a pass, sorted by id, and what the pass has changed on them.
/// A position is an index into them.
pub(crate) struct Candidates<'a> {
    state: &'a State,
    nodes: &'a [Arc<Node>],
    /// By position: 0 for a node that was not looked at yet, otherwise 1 + its index in `seats`.
    seat_of: Vec<u32>,
    seats: Vec<Seat>,
    /// By position: how often this pass has changed the usage.
    changes: Vec<u32>,
    ring: Ring,
    /// Nodes of the pool, schedulable or not.
    pub(crate) nodes_in_pool: u32,
    /// Nodes that are no candidates only because their machine reports a shortage.
    pub(crate) nodes_short: u32,
    /// How many candidates each datacenter has.
    pub(crate) nodes_available: &'a BTreeMap<Text, u32>,
}

/// The seed of the order in which nodes are tried.
///
/// It differs between evaluations, so that workers seldom plan for the same nodes at once. The seed
/// of a registration depends only on the job, its version and the attempt. So `job plan`, whose
/// evaluation is never run, predicts with the order that `job run` then has.
fn order_seed(pass: &Pass<'_>) -> u64 {
    let evaluation = pass.evaluation;
    let mut seed = [0; 8];
    if evaluation.trigger != Trigger::JobRegister {
        seed.copy_from_slice(&evaluation.id.0[8..]);
        return u64::from_be_bytes(seed) ^ pass.state.index();
    }
    let version = pass.state.jobs().get(&evaluation.job).map_or(0, |job| job.version);
    let mut hasher = blake3::Hasher::new();
    hasher.update(evaluation.job.namespace.as_bytes());
    hasher.update(&[0]);
    hasher.update(evaluation.job.id.as_bytes());
    hasher.update(&version.to_be_bytes());
    hasher.update(&pass.attempt.to_be_bytes());
    seed.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_be_bytes(seed)
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(pass: &Pass<'a>, spec: &JobSpec, memory: &'a mut Memory) -> Self {
        let found = memory.find(pass.state, spec);
        let length = found.nodes.len();
        let ring = if pass.state.instance_pools().contains(&spec.node_pool) {
            Ring::fixed(fullest_first(pass.state, &found.nodes))
        } else {
            Ring::new(length, order_seed(pass))
        };
        Self {
            state: pass.state,
            nodes: &found.nodes,
            seat_of: vec![0; length],
            seats: Vec::new(),
            changes: vec![0; length],
            ring,
            nodes_in_pool: found.in_pool,
            nodes_short: found.short,
            nodes_available: &found.available,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn node(&self, position: usize) -> &'a Node {
        &self.nodes[position]
    }

    /// A counter that changes whenever the answer of [`Self::fit`] may change.
    pub(crate) fn changes(&self, position: usize) -> u32 {
        self.changes[position]
    }

    /// Begins the search for the node of one instance.
    pub(crate) fn begin(&mut self) {
        self.ring.begin();
    }

    /// The next position in this pass's order.
    pub(crate) fn next(&mut self) -> Option<usize> {
        self.ring.next()
    }

    /// The position of a node, if it is a candidate.
    pub(crate) fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |node| node.id).ok()
    }

    fn seat(&mut self, position: usize) -> &mut Seat {
        if self.seat_of[position] == 0 {
            let node = &*self.nodes[position];
            let usage = self.state.usage(node.id);
            self.seats.push(Seat {
                available: node.description.resources.available(),
                used: usage.resources,
                allocations: usage.allocations,
                usage,
                released: Vec::new(),
                static_ports: Vec::new(),
                dynamic_ports: 0,
            });
            self.seat_of[position] =
                u32::try_from(self.seats.len()).expect("fewer nodes than u32 holds");
        }
        let number = self.seat_of[position] - 1;
        &mut self.seats[number as usize]
    }

    /// The resources used on the node, and those it has.
    pub(crate) fn load(&mut self, position: usize) -> (Resources, Resources) {
        let seat = self.seat(position);
        (seat.used, seat.available)
    }

    /// Whether the pass has stopped this allocation of the node.
    pub(crate) fn is_released(&self, position: usize, id: AllocationId) -> bool {
        let number = self.seat_of[position] as usize;
        number > 0 && self.seats[number - 1].released.contains(&id)
    }

    /// The resources used with one more instance, and those the node has. The error is the
    /// dimension that is too small.
    pub(crate) fn fit(
        &mut self,
        position: usize,
        ask: &Ask,
    ) -> Result<(Resources, Resources), Dimension> {
        let node = &*self.nodes[position];
        let seat = self.seat(position);
        let max = node.description.resources.allocations_max;
        if max > 0 && seat.allocations >= max {
            return Err(Dimension::Allocations);
        }
        let used = seat.used.plus(ask.resources);
        if let Some(dimension) = used.exceeds(seat.available) {
            return Err(dimension);
        }
        if !ask.static_ports.iter().all(|port| seat.is_free(node, *port)) {
            return Err(Dimension::Ports);
        }
        if ask.dynamic_ports > 0 && !seat.has_dynamic_ports(node, ask) {
            return Err(Dimension::Ports);
        }
        Ok((used, seat.available))
    }

    /// Records one more instance on the node. [`Self::fit`] has allowed it.
    pub(crate) fn take(&mut self, position: usize, ask: &Ask) {
        self.changes[position] += 1;
        let seat = self.seat(position);
        seat.used = seat.used.plus(ask.resources);
        seat.allocations += 1;
        seat.static_ports.extend_from_slice(&ask.static_ports);
        seat.dynamic_ports += ask.dynamic_ports;
    }

    /// Counts a live allocation as stopped.
    pub(crate) fn release(&mut self, allocation: &Allocation) {
        if let Some(position) = self.position(allocation.node) {
            self.changes[position] += 1;
            let seat = self.seat(position);
            seat.used = seat.used.minus(allocation.resources);
            assert!(seat.allocations > 0, "allocation {} is on no node", allocation.id);
            seat.allocations -= 1;
            seat.released.push(allocation.id);
        }
    }

    /// Takes [`Self::release`] back.
    pub(crate) fn restore(&mut self, allocation: &Allocation) {
        if let Some(position) = self.position(allocation.node) {
            self.changes[position] += 1;
            let seat = self.seat(position);
            seat.used = seat.used.plus(allocation.resources);
            seat.allocations += 1;
            seat.released.retain(|id| *id != allocation.id);
        }
    }
}

impl Seat {
    fn is_free(&self, node: &Node, port: u16) -> bool {
        if node.description.resources.reserved_ports.binary_search(&port).is_ok()
            || self.static_ports.contains(&port)
        {
            return false;
        }
        let first = (port, AllocationId([0; 16]));
        let last = (port, AllocationId([0xff; 16]));
        self.usage.ports.range(first..=last).all(|((_, holder), how)| match how {
            PortHolder::Stopping => true,
            PortHolder::Live => self.released.contains(holder),
        })
    }

    /// Whether enough dynamic ports are free. A port of a stopping allocation is not free: it is
    /// given again only after the allocation has ended.
    fn has_dynamic_ports(&self, node: &Node, ask: &Ask) -> bool {
        let resources = &node.description.resources;
        let (low, high) = (resources.dynamic_port_min, resources.dynamic_port_max);
        if high < low || low == 0 {
            return false;
        }
        let range = u64::from(high) - u64::from(low) + 1;
        let reserved = resources.reserved_ports.len() as u64;
        let given = u64::from(self.dynamic_ports)
            + (self.static_ports.len() + ask.static_ports.len()) as u64
            + u64::from(ask.dynamic_ports);
        if reserved + given + self.usage.ports.len() as u64 <= range {
            return true;
        }
        // The sum above may count a port twice: a static port may be asked for and still be held by
        // the predecessor. Close to the limit each port is counted exactly once.
        let held = self
            .usage
            .ports
            .range((low, AllocationId([0; 16]))..=(high, AllocationId([0xff; 16])))
            .map(|((port, _), _)| *port);
        let named = resources.reserved_ports.iter().chain(&self.static_ports);
        let taken: BTreeSet<u16> = named
            .chain(&ask.static_ports)
            .copied()
            .filter(|port| (low..=high).contains(port))
            .chain(held)
            .collect();
        taken.len() as u64 + u64::from(self.dynamic_ports) + u64::from(ask.dynamic_ports) <= range
    }
}

/// Whether the node is in the job's pool.
pub(crate) fn in_pool(node: &Node, spec: &JobSpec) -> bool {
    &*spec.node_pool == "all" || node.description.pool == spec.node_pool
}

/// Whether the job runs in that datacenter.
pub(crate) fn matches_datacenter(spec: &JobSpec, datacenter: &str) -> bool {
    spec.datacenters.iter().any(|pattern| glob(pattern.as_bytes(), datacenter.as_bytes()))
}

/// Whether the node still has room for what runs on it. Only then may an instance there be updated
/// in place.
pub(crate) fn holds_what_it_runs(state: &State, node: &Node) -> bool {
    let usage = state.usage(node.id);
    let resources = &node.description.resources;
    let max = resources.allocations_max;
    usage.resources.exceeds(resources.available()).is_none()
        && (max == 0 || usage.allocations <= max)
}
