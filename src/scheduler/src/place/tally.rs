//! The statistics of one choice of a node: how many nodes were refused and why, the best node, and
//! the scores that are stored for users.

use std::collections::BTreeMap;

use fsm::{
    Metrics, Node, Text, evaluation::NodeScore, limits::NODE_SCORES_MAX, resources::Dimension,
};

use crate::place::{
    candidates::Candidates,
    rank::{Score, millionths},
};

/// The metrics reason for nodes that are no candidates because their machine reports a shortage.
const SHORT: &str = "machine is short of resources (see node status)";

/// The counts of one choice.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) evaluated: u32,
    filtered: u32,
    exhausted: u32,
    class_filtered: BTreeMap<Text, u32>,
    constraint_filtered: BTreeMap<Text, u32>,
    class_exhausted: BTreeMap<Text, u32>,
    dimension_exhausted: BTreeMap<&'static str, u32>,
}

impl Tally {
    pub(crate) fn filter(&mut self, node: &Node, reason: Text) {
        self.filtered += 1;
        if !node.description.class.is_empty() {
            *self.class_filtered.entry(node.description.class.clone()).or_default() += 1;
        }
        *self.constraint_filtered.entry(reason).or_default() += 1;
    }

    pub(crate) fn exhaust(&mut self, node: &Node, dimension: Dimension) {
        self.exhausted += 1;
        if !node.description.class.is_empty() {
            *self.class_exhausted.entry(node.description.class.clone()).or_default() += 1;
        }
        *self.dimension_exhausted.entry(dimension.name()).or_default() += 1;
    }

    /// The metrics to store, with the scores of the nodes in `kept`.
    pub(crate) fn metrics(&self, candidates: &Candidates<'_>, kept: &[Scored]) -> Metrics {
        let mut constraint_filtered = self.constraint_filtered.clone();
        if candidates.nodes_short > 0 {
            constraint_filtered.insert(SHORT.into(), candidates.nodes_short);
        }
        Metrics {
            nodes_evaluated: self.evaluated + candidates.nodes_short,
            nodes_filtered: self.filtered + candidates.nodes_short,
            nodes_in_pool: candidates.nodes_in_pool,
            nodes_available: candidates.nodes_available.clone(),
            nodes_exhausted: self.exhausted,
            class_filtered: self.class_filtered.clone(),
            constraint_filtered,
            class_exhausted: self.class_exhausted.clone(),
            dimension_exhausted: self
                .dimension_exhausted
                .iter()
                .map(|(name, count)| ((*name).into(), *count))
                .collect(),
            scores: kept
                .iter()
                .map(|scored| NodeScore {
                    node: candidates.node(scored.position).id,
                    parts: scored
                        .score
                        .parts()
                        .map(|(name, value)| (name.into(), millionths(value)))
                        .collect(),
                    total: millionths(scored.total),
                })
                .collect(),
            coalesced_failures: 0,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Scored {
    pub(crate) position: usize,
    pub(crate) score: Score,
    pub(crate) total: f64,
}

/// The scored nodes of one choice.
pub(crate) struct Field {
    pub(crate) best: Option<Scored>,
    /// The best [`NODE_SCORES_MAX`] nodes, best first, to store for users.
    pub(crate) kept: Vec<Scored>,
    pub(crate) keeps: bool,
}

impl Field {
    pub(crate) fn offer(&mut self, scored: Scored) {
        if self.best.is_none_or(|best| scored.total > best.total) {
            self.best = Some(scored);
        }
        if self.keeps {
            let at = self.kept.partition_point(|kept| kept.total >= scored.total);
            if at < NODE_SCORES_MAX {
                self.kept.insert(at, scored);
                self.kept.truncate(NODE_SCORES_MAX);
            }
        }
    }
}
