//! The scores of a feasible node, each roughly in [-1, 1], and their mean. The formulas are
//! Nomad's.

use fsm::{Node, job::Affinity, resources::Resources, settings::Algorithm};

use crate::place::{constraint::Condition, pattern::Budget};

/// Highest raw value of the fitness formulas below (Nomad's `binPackingMaxFitScore`).
const FITNESS_MAX: f64 = 18.0;

/// The components of a score, in the order in which they are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Component {
    Fitness,
    AntiAffinity,
    ReschedulePenalty,
    Affinity,
    Spread,
    Preemption,
}

impl Component {
    const ALL: [Self; 6] = [
        Self::Fitness,
        Self::AntiAffinity,
        Self::ReschedulePenalty,
        Self::Affinity,
        Self::Spread,
        Self::Preemption,
    ];

    /// Nomad's name of the component, as its API shows it.
    const fn name(self) -> &'static str {
        match self {
            Self::Fitness => "binpack",
            Self::AntiAffinity => "job-anti-affinity",
            Self::ReschedulePenalty => "node-reschedule-penalty",
            Self::Affinity => "node-affinity",
            Self::Spread => "allocation-spread",
            Self::Preemption => "preemption",
        }
    }
}

/// The score of one node. A component that does not apply to the node is absent.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(crate) struct Score {
    parts: [Option<f64>; Component::ALL.len()],
}

impl Score {
    pub(crate) fn set(&mut self, component: Component, value: f64) {
        self.parts[component as usize] = Some(value);
    }

    /// The mean of the components that apply; 0 if there are none.
    pub(crate) fn mean(&self) -> f64 {
        let (sum, count) = self
            .parts
            .iter()
            .flatten()
            .fold((0.0, 0.0), |(sum, count), part| (sum + part, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let parts = Component::ALL.into_iter().zip(self.parts);
        parts.filter_map(|(component, part)| Some((component.name(), part?)))
    }
}

/// How well a node with `used` of `available` resources suits the algorithm, from 0 to 1 (best).
pub(crate) fn fitness(algorithm: Algorithm, used: Resources, available: Resources) -> f64 {
    let free = |used: u64, total: u64| {
        if total == 0 { 0.0 } else { 1.0 - real(used) / real(total) }
    };
    let cpu = free(used.cpu_mhz, available.cpu_mhz);
    let memory = free(used.memory_mb, available.memory_mb);
    let sum = 10f64.powf(cpu) + 10f64.powf(memory);
    let raw = match algorithm {
        Algorithm::Binpack => 20.0 - sum,
        Algorithm::Spread => sum - 2.0,
    };
    raw.clamp(0.0, FITNESS_MAX) / FITNESS_MAX
}

/// The penalty if `collisions` instances of the same group are on the node already. `count` is the
/// group's count.
pub(crate) fn anti_affinity(collisions: u32, count: u32) -> f64 {
    -(f64::from(collisions) + 1.0) / f64::from(count.max(1))
}

/// The compiled affinities of a group.
pub(crate) struct Affinities {
    conditions: Vec<(Condition, f64)>,
    weight_sum: f64,
    /// Shared by all patterns of the group's affinities.
    budget: Budget,
}

impl Affinities {
    pub(crate) fn new<'a>(affinities: impl Iterator<Item = &'a Affinity>) -> Self {
        let conditions: Vec<_> = affinities
            .map(|affinity| (Condition::compile(&affinity.constraint), f64::from(affinity.weight)))
            .collect();
        let weight_sum = conditions.iter().map(|(_, weight)| weight.abs()).sum();
        Self { conditions, weight_sum, budget: Budget::new(Budget::OF_PASS) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// The weight of the matching affinities divided by the weight of all. A score of 0 counts in
    /// the mean as well. If it were left out, a node without a match could have a higher mean than
    /// a node with a weak match.
    pub(crate) fn score(&self, node: &Node) -> f64 {
        if self.weight_sum <= 0.0 {
            return 0.0;
        }
        let matching: f64 = self
            .conditions
            .iter()
            .filter(|(condition, _)| condition.met_by(node, &self.budget))
            .map(|(_, weight)| weight)
            .sum();
        matching / self.weight_sum
    }
}

/// Converts to a float for scoring.
#[expect(clippy::cast_precision_loss, reason = "scores do not need 64 bits of a node's memory")]
pub(crate) fn real(value: u64) -> f64 {
    value as f64
}

/// A score in millionths, as it is stored.
#[expect(clippy::cast_possible_truncation, reason = "clamped to the range of i32")]
pub(crate) fn millionths(score: f64) -> i32 {
    (score * 1e6).round().clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cpu_mhz: u64, memory_mb: u64) -> Resources {
        Resources { cpu_mhz, memory_mb, disk_mb: 0 }
    }

    /// F2: a full node scores 1 for bin-packing and 0 for spreading; an empty one the reverse.
    #[test]
    fn fitness_is_one_at_the_end_that_the_algorithm_likes() {
        let all = of(4000, 8192);
        let close = |left: f64, right: f64| (left - right).abs() < 1e-9;
        assert!(close(fitness(Algorithm::Binpack, all, all), 1.0));
        assert!(close(fitness(Algorithm::Binpack, of(0, 0), all), 0.0));
        assert!(close(fitness(Algorithm::Spread, all, all), 0.0));
        assert!(close(fitness(Algorithm::Spread, of(0, 0), all), 1.0));
        let half = fitness(Algorithm::Binpack, of(2000, 4096), all);
        assert!(close(half, (20.0 - 2.0 * 10f64.sqrt()) / 18.0), "{half}");
    }

    /// F3.
    #[test]
    fn the_mean_is_over_the_components_that_apply() {
        let mut score = Score::default();
        assert_eq!(millionths(score.mean()), 0);
        score.set(Component::Fitness, 0.5);
        assert_eq!(millionths(score.mean()), 500_000);
        score.set(Component::ReschedulePenalty, -1.0);
        assert_eq!(millionths(score.mean()), -250_000);
        assert_eq!(millionths(anti_affinity(1, 10)), -200_000);
    }
}
