//! Counts a job's instances by the value of a node attribute, and scores nodes to spread them.
//!
//! Each value gets a number once per pass, and each candidate remembers the number of its value. So
//! scoring a node compares no texts.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{Node, Text, job::Spread};

use crate::place::{constraint::Target, rank::real};

const UNSEEN: u32 = u32::MAX;
const MISSING: u32 = u32::MAX - 1;

/// Stands for all values that no target of the spread names (Nomad's implicit target).
const OTHERS: &str = "*";

/// The number of instances for each value of `target`.
pub(crate) struct ValueCounts {
    target: Target,
    /// The values that are counted one by one; all others share the count of [`OTHERS`]. `None`:
    /// every value is counted by itself.
    listed: Option<BTreeSet<Text>>,
    numbers: BTreeMap<Text, u32>,
    counts: Vec<u32>,
    /// The number of each candidate's value, by position; or [`UNSEEN`], or [`MISSING`].
    of_candidate: Vec<u32>,
}

impl ValueCounts {
    pub(crate) fn new(target: Target, candidates: usize) -> Self {
        Self {
            target,
            listed: None,
            numbers: BTreeMap::new(),
            counts: Vec::new(),
            of_candidate: vec![UNSEEN; candidates],
        }
    }

    /// Counts the values that are not in `listed` together.
    fn listing(self, listed: BTreeSet<Text>) -> Self {
        Self { listed: Some(listed), ..self }
    }

    fn number(&mut self, node: &Node) -> Option<u32> {
        let value = self.target.read(node)?;
        let is_other = self.listed.as_ref().is_some_and(|listed| !listed.contains(&*value));
        let value = if is_other { OTHERS.into() } else { value };
        if let Some(number) = self.numbers.get(&*value) {
            return Some(*number);
        }
        let number = u32::try_from(self.counts.len()).expect("fewer values than u32 holds");
        let value: Text = (&*value).into();
        self.numbers.insert(value, number);
        self.counts.push(0);
        Some(number)
    }

    /// The number of a candidate's value. `None`: the node has no value.
    pub(crate) fn number_of(&mut self, position: usize, node: &Node) -> Option<usize> {
        if self.of_candidate[position] == UNSEEN {
            self.of_candidate[position] = self.number(node).unwrap_or(MISSING);
        }
        match self.of_candidate[position] {
            MISSING => None,
            number => Some(number as usize),
        }
    }

    /// The number of a node's value. The node need not be a candidate.
    pub(crate) fn number_on(&mut self, node: &Node) -> Option<usize> {
        self.number(node).map(|number| number as usize)
    }

    pub(crate) fn count(&self, number: usize) -> u32 {
        self.counts[number]
    }

    pub(crate) fn add(&mut self, node: &Node) {
        if let Some(number) = self.number(node) {
            self.counts[number as usize] += 1;
        }
    }

    pub(crate) fn remove(&mut self, node: &Node) {
        if let Some(number) = self.number(node) {
            let count = &mut self.counts[number as usize];
            assert!(*count > 0, "an instance on node {} ends and was not counted", node.id);
            *count -= 1;
        }
    }

    /// The lowest and highest count among values with at least one instance.
    fn extremes(&self) -> Option<(u32, u32)> {
        let used = || self.counts.iter().copied().filter(|count| *count > 0);
        Some((used().min()?, used().max()?))
    }
}

/// How many instances a spread wants for a value.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// Not looked up yet.
    Unseen,
    /// No target names the value, and the targets add up to 100 percent.
    None,
    Instances(f64),
}

/// One spread of a group.
pub(crate) struct SpreadCounts {
    pub(crate) values: ValueCounts,
    /// This spread's share of the weight of all spreads of the group.
    weight: f64,
    /// Wanted instances by value. Empty: the spread has no targets, so instances are spread evenly.
    wanted: BTreeMap<Text, f64>,
    /// Wanted instances of all values without a target together. `None`: the targets add up to 100
    /// percent.
    wanted_other: Option<f64>,
    /// By value number.
    wanted_of: Vec<Wanted>,
    /// Lowest and highest count, for a spread without targets. [`Self::refresh`] keeps it current.
    extremes: Option<(u32, u32)>,
}

impl SpreadCounts {
    pub(crate) fn new(spread: &Spread, weight_sum: u32, count: u32, candidates: usize) -> Self {
        let percent_sum: u32 = spread.targets.iter().map(|target| u32::from(target.percent)).sum();
        let wanted = |percent: u32| f64::from(percent) / 100.0 * f64::from(count);
        let values = ValueCounts::new(Target::parse(&spread.attribute), candidates);
        Self {
            values: if spread.targets.is_empty() {
                values
            } else {
                values.listing(spread.targets.iter().map(|target| target.value.clone()).collect())
            },
            weight: f64::from(spread.weight) / f64::from(weight_sum.max(1)),
            wanted: spread
                .targets
                .iter()
                .map(|target| (target.value.clone(), wanted(u32::from(target.percent))))
                .collect(),
            wanted_other: (percent_sum < 100).then(|| wanted(100 - percent_sum)),
            wanted_of: Vec::new(),
            extremes: None,
        }
    }

    /// Must be called after a change of counts and before scoring.
    pub(crate) fn refresh(&mut self) {
        if self.wanted.is_empty() {
            self.extremes = self.values.extremes();
        }
    }

    /// The score of a candidate, multiplied by the spread's weight.
    pub(crate) fn score(&mut self, position: usize, node: &Node) -> f64 {
        let Some(number) = self.values.number_of(position, node) else { return -self.weight };
        let count = self.values.count(number);
        if self.wanted.is_empty() {
            let boost = self.extremes.map_or(0.0, |(min, max)| even_boost(count, min, max));
            return boost * self.weight;
        }
        if self.wanted_of.len() <= number {
            self.wanted_of.resize(number + 1, Wanted::Unseen);
        }
        if matches!(self.wanted_of[number], Wanted::Unseen) {
            let named = self.values.target.read(node).and_then(|value| self.wanted.get(&*value));
            let wanted = named.copied().or(self.wanted_other);
            self.wanted_of[number] = wanted.map_or(Wanted::None, Wanted::Instances);
        }
        target_boost(self.wanted_of[number], count) * self.weight
    }
}

/// The score of a value that has `count` instances and should have `wanted`. If none is wanted
/// there, the score falls with each instance.
fn target_boost(wanted: Wanted, count: u32) -> f64 {
    let used = f64::from(count) + 1.0;
    match wanted {
        Wanted::None | Wanted::Unseen => -1.0,
        Wanted::Instances(wanted) if wanted > 0.0 => (wanted - used) / wanted,
        Wanted::Instances(_) => -used,
    }
}

/// The score of a value that has `count` instances, for a spread without targets. `min` and `max`
/// are the lowest and highest count of values in use.
fn even_boost(count: u32, min: u32, max: u32) -> f64 {
    let ratio = |high: u32, low: u32, by: u32| {
        (real(u64::from(high)) - real(u64::from(low))) / f64::from(by)
    };
    if count != min {
        return if min == 0 { -1.0 } else { ratio(min, count, min) };
    }
    if min == max {
        -1.0
    } else if min == 0 {
        1.0
    } else {
        ratio(max, min, min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::rank::millionths;

    /// F3: the table of the even spread; no case is infinite.
    #[test]
    fn even_boosts_follow_the_table() {
        for (count, min, max, boost) in [
            (0, 0, 0, -1_000_000),
            (1, 0, 1, -1_000_000),
            (0, 0, 4, 1_000_000),
            (2, 2, 2, -1_000_000),
            (2, 2, 3, 500_000),
            (3, 2, 3, -500_000),
            (0, 1, 1, 1_000_000),
        ] {
            assert_eq!(millionths(even_boost(count, min, max)), boost, "{count} {min} {max}");
        }
    }

    /// F3.
    #[test]
    fn target_boosts_fall_with_each_instance() {
        assert_eq!(millionths(target_boost(Wanted::Instances(5.0), 0)), 800_000);
        assert_eq!(millionths(target_boost(Wanted::Instances(5.0), 4)), 0);
        assert_eq!(millionths(target_boost(Wanted::Instances(5.0), 5)), -200_000);
        assert_eq!(millionths(target_boost(Wanted::Instances(0.0), 0)), -1_000_000);
        assert_eq!(millionths(target_boost(Wanted::Instances(0.0), 1)), -2_000_000);
        assert_eq!(millionths(target_boost(Wanted::None, 0)), -1_000_000);
    }
}
