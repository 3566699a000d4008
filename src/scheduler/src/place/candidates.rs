//! The nodes that may get new work in this pass, and what this pass has already given to and taken
//! from them.
//!
//! Usage comes from the state's per-node sums, loaded when a node is first looked at: a pass that
//! places one instance on a large cluster touches a handful of nodes. Must never sum over
//! allocations.

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

/// Pools and sets of datacenters remembered at a time.
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

/// What is used of a node, this pass included.
struct Seat {
    available: Resources,
    used: Resources,
    allocations: u32,
    usage: Arc<NodeUsage>,
    /// Allocations of the state that this pass stops.
    released: Vec<AllocationId>,
    /// Static ports given by this pass.
    static_ports: Vec<u16>,
    /// Dynamic ports promised by this pass.
    dynamic_ports: u32,
}

/// Schedulable nodes of a pool and datacenters.
struct Found {
    /// By id.
    nodes: Vec<Arc<Node>>,
    /// Nodes of the pool, schedulable or not.
    in_pool: u32,
    /// Nodes of the pool and the datacenters whose machine is short of something.
    short: u32,
    /// `nodes` by datacenter.
    available: BTreeMap<Text, u32>,
}

/// What a pass may take over from the one before: the nodes that suit a pool and datacenters, as
/// long as no node changes.
///
/// A memo, not state: with or without it a pass gives the same plan. A worker keeps one; looking
/// through all nodes is most of the cost of a pass that places one instance on a large cluster. The
/// nodes table is recognised by its digest.
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

/// The order of an instance pool's nodes: those that run more first, then those that were busy
/// last, then the cheaper ones, then by id. Of nodes that score alike the first gets the work, so
/// that the others idle and go.
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

/// The nodes that may get new work in a pass, by id, and what the pass has done to them.
pub(crate) struct Candidates<'a> {
    state: &'a State,
    nodes: &'a [Arc<Node>],
    /// By position: 0 for a node that was not looked at, else one more than its seat's number.
    seat_of: Vec<u32>,
    seats: Vec<Seat>,
    /// By position: how often this pass has changed what is used there.
    changes: Vec<u32>,
    ring: Ring,
    /// Nodes of the pool, schedulable or not.
    pub(crate) nodes_in_pool: u32,
    /// Nodes that would be looked at if their machine were not short of something.
    pub(crate) nodes_short: u32,
    /// Candidates by datacenter.
    pub(crate) nodes_available: &'a BTreeMap<Text, u32>,
}

/// What the order of the nodes comes from. Evaluations differ in it, so that workers seldom plan
/// for the same nodes at once. That of a registration comes from the job's version alone: `job
/// plan`, whose evaluation nobody will run, sees the order that `job run` then sees.
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

    /// Changes whenever the answer of [`Self::fit`] may change.
    pub(crate) fn changes(&self, position: usize) -> u32 {
        self.changes[position]
    }

    /// A look for a node begins.
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

    /// What is used there, and of how much.
    pub(crate) fn load(&mut self, position: usize) -> (Resources, Resources) {
        let seat = self.seat(position);
        (seat.used, seat.available)
    }

    /// Whether the pass has stopped this allocation of the node.
    pub(crate) fn is_released(&self, position: usize, id: AllocationId) -> bool {
        let number = self.seat_of[position] as usize;
        number > 0 && self.seats[number - 1].released.contains(&id)
    }

    /// What would be used, and of how much, with one more instance; or what there is too little of.
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

    /// Gives the node one more instance, which [`Self::fit`] allowed.
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

    /// Ports of stopped allocations are not counted as free: dynamic ones are given again only
    /// after their holder has ended.
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
        // Close to the limit each port counts once: a static one may be both asked for and still
        // held by what it replaces.
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

/// Whether what runs on the node still fits, so that an instance may go on there under a new
/// version of its job.
pub(crate) fn holds_what_it_runs(state: &State, node: &Node) -> bool {
    let usage = state.usage(node.id);
    let resources = &node.description.resources;
    let max = resources.allocations_max;
    usage.resources.exceeds(resources.available()).is_none()
        && (max == 0 || usage.allocations <= max)
}
