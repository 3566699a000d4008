//! Cycles in a graph of transactions, and what kind of anomaly each is.
//!
//! Owns the graph, its strongly connected components (Tarjan) and the naming of cycles after Adya: only
//! write-write edges = G0; write-read edges too = G1c; exactly one anti-dependency = G-single; more = G2. A
//! cycle that needs the order within a process, or real time, gets the suffix `-process` or `-realtime`. Knows
//! nothing about what the transactions do.

use std::collections::{BTreeMap, VecDeque};

/// Transactions visited in search of the cycles of one class; beyond it a cycle gets a milder name.
const VISITS_MAX: usize = 5_000_000;

/// Why one transaction is before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// It wrote the version that the other one replaced.
    WriteWrite,
    /// It wrote the version that the other one read.
    WriteRead,
    /// It read the version that the other one replaced.
    ReadWrite,
    /// The same process ran it before.
    Process,
    /// It had ended before the other one started.
    Realtime,
}

impl Reason {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WriteWrite => "ww",
            Self::WriteRead => "wr",
            Self::ReadWrite => "rw",
            Self::Process => "process",
            Self::Realtime => "realtime",
        }
    }
}

/// An edge of the graph; the label is for whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The later transaction.
    pub(crate) to: usize,
    /// Why it is later.
    pub(crate) reason: Reason,
    /// What about, by the maker's numbering.
    pub(crate) label: usize,
}

/// Transactions by number and what is known of their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    /// By transaction.
    outs: Vec<Vec<Out>>,
    shared: Vec<Vec<Edge>>,
}

/// What leads out of a transaction.
#[derive(Clone, Copy, Debug)]
enum Out {
    One(Edge),
    Many(Shared),
}

/// Edges that lead out of several transactions and are kept once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared(usize);

/// A cycle: each step's transaction and the edge to the next one; the last edge leads to the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    /// `G0`, `G1c-realtime`, …
    pub(crate) name: String,
    /// Transactions and the edges out of them.
    pub(crate) steps: Vec<(usize, Edge)>,
}

/// A class of cycles: its name, the reasons allowed, and the one that must begin the cycle.
type Class = (&'static str, &'static [Reason], Reason);

/// From most to least severe.
const CLASSES: [Class; 4] = [
    ("G0", &[Reason::WriteWrite], Reason::WriteWrite),
    ("G1c", &[Reason::WriteWrite, Reason::WriteRead], Reason::WriteRead),
    ("G-single", &[Reason::WriteWrite, Reason::WriteRead], Reason::ReadWrite),
    ("G2", &[Reason::WriteWrite, Reason::WriteRead, Reason::ReadWrite], Reason::ReadWrite),
];

/// Orders that are taken into account besides the dependencies, weakest assumption first.
const ORDERS: [&[Reason]; 3] = [&[], &[Reason::Process], &[Reason::Process, Reason::Realtime]];

impl Graph {
    /// A graph of so many transactions without edges.
    pub(crate) fn new(transactions: usize) -> Self {
        Self { outs: vec![Vec::new(); transactions], shared: Vec::new() }
    }

    /// Adds an edge; one that leads back to where it starts counts for nothing.
    pub(crate) fn add(&mut self, from: usize, to: usize, reason: Reason, label: usize) {
        self.outs[from].push(Out::One(Edge { to, reason, label }));
    }

    /// Edges to all of these, for [`Self::add_shared`].
    pub(crate) fn share(&mut self, to: &[usize], reason: Reason, label: usize) -> Shared {
        self.shared.push(to.iter().map(|to| Edge { to: *to, reason, label }).collect());
        Shared(self.shared.len() - 1)
    }

    /// Adds edges, as so many calls of [`Self::add`] would.
    pub(crate) fn add_shared(&mut self, from: usize, shared: Shared) {
        self.outs[from].push(Out::Many(shared));
    }

    /// The edges out of a transaction, in the order in which they were added.
    fn edges(&self, from: usize) -> impl Iterator<Item = &Edge> {
        let edges = self.outs[from].iter().flat_map(move |out| match out {
            Out::One(edge) => std::slice::from_ref(edge),
            Out::Many(shared) => self.shared[shared.0].as_slice(),
        });
        edges.filter(move |edge| edge.to != from)
    }

    /// One cycle of each strongly connected component, named after the worst that was found in it.
    pub(crate) fn cycles(&self) -> Vec<Cycle> {
        let mut found = Vec::new();
        // Whoever is in a cycle under weaker assumptions is done with.
        let mut done = vec![false; self.outs.len()];
        for order in ORDERS {
            let whole = self.components(|reason| is_dependency(reason) || order.contains(&reason));
            let mut over = vec![false; self.outs.len()];
            for (node, component) in whole.iter().enumerate() {
                over[*component] |= done[node];
            }
            for class in CLASSES {
                self.cycles_of(class, order, &whole, &mut over, &mut found);
            }
            for (node, component) in whole.iter().enumerate() {
                done[node] |= over[*component];
            }
        }
        found
    }

    /// One cycle of this class in each component that is not over.
    fn cycles_of(
        &self,
        (name, reasons, first): Class,
        order: &[Reason],
        whole: &[usize],
        over: &mut [bool],
        found: &mut Vec<Cycle>,
    ) {
        let allowed = |reason| reasons.contains(&reason) || order.contains(&reason);
        // Both ends of an edge of a cycle are in one component of the reasons the cycle may have.
        let inside = self.components(|reason| allowed(reason) || reason == first);
        let mut visits_left = VISITS_MAX;
        for (from, component) in whole.iter().enumerate() {
            for edge in self.edges(from).filter(|edge| edge.reason == first) {
                if inside[from] != inside[edge.to] || over[*component] || visits_left == 0 {
                    continue;
                }
                let ends = (edge.to, from);
                if let Some(back) = self.path(ends, &inside, allowed, &mut visits_left) {
                    let mut steps = vec![(from, *edge)];
                    steps.extend(back);
                    over[*component] = true;
                    found.push(Cycle { name: full_name(name, &steps), steps });
                }
            }
        }
    }

    /// A shortest path over these reasons within a component.
    fn path(
        &self,
        (from, to): (usize, usize),
        inside: &[usize],
        allowed: impl Fn(Reason) -> bool,
        visits_left: &mut usize,
    ) -> Option<Vec<(usize, Edge)>> {
        let mut came: BTreeMap<usize, (usize, Edge)> = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            if node == to {
                let mut path = Vec::new();
                let mut at = to;
                while at != from {
                    let (before, edge) = came[&at];
                    path.push((before, edge));
                    at = before;
                }
                path.reverse();
                return Some(path);
            }
            *visits_left = visits_left.checked_sub(1)?;
            for edge in self.edges(node).filter(|edge| allowed(edge.reason)) {
                let fresh = edge.to != from && !came.contains_key(&edge.to);
                if fresh && inside[edge.to] == inside[from] {
                    came.insert(edge.to, (node, *edge));
                    queue.push_back(edge.to);
                }
            }
        }
        None
    }

    /// Tarjan's strongly connected components over these reasons, without recursion: the number of each
    /// transaction's component.
    fn components(&self, allowed: impl Fn(Reason) -> bool) -> Vec<usize> {
        let mut search = Tarjan {
            order: vec![usize::MAX; self.outs.len()],
            low: vec![0; self.outs.len()],
            on_stack: vec![false; self.outs.len()],
            stack: Vec::new(),
            next: 0,
        };
        let mut components = vec![0; self.outs.len()];
        let mut count = 0;
        for root in 0..self.outs.len() {
            if search.order[root] != usize::MAX {
                continue;
            }
            // A transaction and those of its edges that are still to follow.
            let mut walk = vec![(search.enter(root), self.edges(root))];
            while let Some((node, edges)) = walk.last_mut() {
                let node = *node;
                if let Some(edge) = edges.next() {
                    if !allowed(edge.reason) {
                        continue;
                    }
                    if search.order[edge.to] == usize::MAX {
                        walk.push((search.enter(edge.to), self.edges(edge.to)));
                    } else if search.on_stack[edge.to] {
                        search.low[node] = search.low[node].min(search.order[edge.to]);
                    }
                    continue;
                }
                walk.pop();
                if let Some((parent, _)) = walk.last() {
                    search.low[*parent] = search.low[*parent].min(search.low[node]);
                }
                if let Some(members) = search.leave(node) {
                    for member in members {
                        components[member] = count;
                    }
                    count += 1;
                }
            }
        }
        components
    }
}

struct Tarjan {
    order: Vec<usize>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: usize,
}

impl Tarjan {
    fn enter(&mut self, node: usize) -> usize {
        self.order[node] = self.next;
        self.low[node] = self.next;
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
        node
    }

    /// The component that ends with this node, if one does.
    fn leave(&mut self, node: usize) -> Option<Vec<usize>> {
        if self.low[node] != self.order[node] {
            return None;
        }
        let start = self.stack.iter().rposition(|other| *other == node)?;
        let component = self.stack.split_off(start);
        for member in &component {
            self.on_stack[*member] = false;
        }
        Some(component)
    }
}

fn is_dependency(reason: Reason) -> bool {
    match reason {
        Reason::WriteWrite | Reason::WriteRead | Reason::ReadWrite => true,
        Reason::Process | Reason::Realtime => false,
    }
}

fn full_name(class: &str, steps: &[(usize, Edge)]) -> String {
    let has = |reason| steps.iter().any(|(_, edge)| edge.reason == reason);
    let anti = steps.iter().filter(|(_, edge)| edge.reason == Reason::ReadWrite).count();
    let class = if class == "G2" && anti == 1 { "G-single" } else { class };
    let suffix = if has(Reason::Realtime) {
        "-realtime"
    } else if has(Reason::Process) {
        "-process"
    } else {
        ""
    };
    format!("{class}{suffix}")
}

#[cfg(test)]
impl Graph {
    /// How much is kept.
    pub(crate) fn kept(&self) -> usize {
        self.outs.iter().map(Vec::len).chain(self.shared.iter().map(Vec::len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reason::{Process, ReadWrite, Realtime, WriteRead, WriteWrite};

    fn names(transactions: usize, edges: &[(usize, usize, Reason)]) -> Vec<String> {
        let mut graph = Graph::new(transactions);
        for (from, to, reason) in edges {
            graph.add(*from, *to, *reason, 0);
        }
        let cycles = graph.cycles();
        for cycle in &cycles {
            for (step, (from, edge)) in cycle.steps.iter().enumerate() {
                assert!(graph.edges(*from).any(|other| other == edge));
                assert_eq!(edge.to, cycle.steps[(step + 1) % cycle.steps.len()].0);
            }
        }
        cycles.into_iter().map(|cycle| cycle.name).collect()
    }

    #[test]
    fn cycles_are_named_after_their_edges() {
        let check = |edges: &[(usize, usize, Reason)], expected: &[&str]| {
            assert_eq!(names(6, edges), expected, "{edges:?}");
        };
        check(&[(0, 1, WriteWrite), (1, 2, WriteRead), (0, 2, Realtime)], &[]);
        check(&[(0, 1, WriteWrite), (1, 0, WriteWrite)], &["G0"]);
        check(&[(0, 1, WriteWrite), (1, 0, WriteRead)], &["G1c"]);
        check(&[(0, 1, WriteRead), (1, 2, ReadWrite), (2, 0, WriteWrite)], &["G-single"]);
        check(&[(0, 1, ReadWrite), (1, 0, ReadWrite)], &["G2"]);
        check(&[(0, 1, WriteWrite), (1, 0, Process)], &["G0-process"]);
        check(&[(0, 1, WriteRead), (1, 0, Realtime)], &["G1c-realtime"]);
        check(&[(0, 1, ReadWrite), (1, 0, Realtime)], &["G-single-realtime"]);
        check(
            &[(0, 1, ReadWrite), (1, 2, Process), (2, 3, ReadWrite), (3, 0, Realtime)],
            &["G2-realtime"],
        );
    }

    #[test]
    fn the_worst_of_a_component_is_told_and_each_component_once() {
        let edges = [
            (0, 1, ReadWrite),
            (1, 0, ReadWrite),
            (1, 2, WriteRead),
            (2, 1, WriteWrite),
            (4, 5, WriteWrite),
            (5, 4, Realtime),
        ];
        assert_eq!(names(6, &edges), ["G1c", "G0-realtime"]);
    }

    #[test]
    fn shared_edges_count_as_single_ones() {
        let mut single = Graph::new(5);
        let mut shared = Graph::new(5);
        let all = shared.share(&[1, 2, 4], ReadWrite, 7);
        for from in 0..3 {
            shared.add_shared(from, all);
            for to in [1, 2, 4] {
                single.add(from, to, ReadWrite, 7);
            }
        }
        for graph in [&mut single, &mut shared] {
            graph.add(4, 3, WriteWrite, 7);
            graph.add(3, 1, Realtime, 0);
        }
        assert_eq!(shared.cycles(), single.cycles());
        assert_eq!(shared.cycles()[0].name, "G2");
        assert_eq!((shared.kept(), single.kept()), (3 + 3 + 2, 9 + 2));
    }

    #[test]
    fn long_chains_need_no_stack() {
        let count = 100_000;
        let mut graph = Graph::new(count);
        for node in 1..count {
            graph.add(node - 1, node, WriteWrite, 0);
        }
        assert_eq!(graph.cycles(), []);
        graph.add(count - 1, 0, ReadWrite, 0);
        assert_eq!(graph.cycles()[0].name, "G-single");
    }
}
