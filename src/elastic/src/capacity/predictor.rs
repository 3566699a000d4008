//! Predictors: what the sum of a group's requirements says about what will be needed.

use fsm::{CapacityGroup, CapacityTarget, capacity::Prediction};

/// Turns the sum of a group's requirements into the amount that is wanted. A group chooses one in
/// its declaration. It may look at what the state keeps of the past, and at nothing else: the next
/// leader must come to the same.
pub trait Predictor {
    /// The amount that is wanted at log time `now`.
    fn amount(&self, now: u64, target: &CapacityTarget) -> u64;

    /// When the amount changes next although the sum does not.
    fn changes_at(&self, now: u64, target: &CapacityTarget) -> Option<u64>;
}

/// The sum.
struct Identity;

impl Predictor for Identity {
    fn amount(&self, _now: u64, target: &CapacityTarget) -> u64 {
        target.required
    }

    fn changes_at(&self, _now: u64, _target: &CapacityTarget) -> Option<u64> {
        None
    }
}

/// The sum and a share of it, rounded up.
struct Headroom {
    percent: u32,
}

impl Predictor for Headroom {
    fn amount(&self, _now: u64, target: &CapacityTarget) -> u64 {
        let sum = u128::from(target.required);
        let more = (sum * u128::from(self.percent)).div_ceil(100);
        u64::try_from(sum + more).unwrap_or(u64::MAX)
    }

    fn changes_at(&self, _now: u64, _target: &CapacityTarget) -> Option<u64> {
        None
    }
}

/// The largest sum of a time that has just passed.
struct Peak {
    window_ms: u64,
}

impl Predictor for Peak {
    fn amount(&self, now: u64, target: &CapacityTarget) -> u64 {
        target.sums.largest(target.required, now, self.window_ms)
    }

    fn changes_at(&self, now: u64, target: &CapacityTarget) -> Option<u64> {
        target.sums.falls_at(target.required, now, self.window_ms)
    }
}

/// The predictor of a group.
pub fn of(group: &CapacityGroup) -> Box<dyn Predictor> {
    match group.predictor {
        Prediction::Identity => Box::new(Identity),
        Prediction::Headroom { percent } => Box::new(Headroom { percent }),
        Prediction::Peak { window_ms } => Box::new(Peak { window_ms }),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use fsm::testing::{Driver, START_MS, capacity_group};

    use super::*;
    use crate::capacity::wanted;

    /// Two sums, 30,000 for 10 s and 5,000 after it; what a group wants at a time after the start.
    fn wants(predictor: Prediction, second: u64) -> (u64, u64) {
        let mut driver = Driver::default();
        let group = CapacityGroup { predictor, ..capacity_group("web") };
        driver.instance_pool("gpu", |pool| {
            pool.groups.insert("web".into(), group.clone().into());
        });
        driver.require("lb1", 1, &[("web", 30_000)]);
        driver.at_seconds(10);
        driver.require("lb1", 2, &[("web", 5_001)]);
        let target = driver.state.capacity_targets().get(&"web".into()).unwrap();
        wanted(START_MS + second * 1_000, &group, Some(target))
    }

    #[test]
    fn the_sum_a_share_more_or_the_largest_of_a_window() {
        assert_eq!(wants(Prediction::Identity, 10), (5_001, 5_001));
        assert_eq!(wants(Prediction::Headroom { percent: 20 }, 10), (6_002, 6_002), "rounded up");
        assert_eq!(wants(Prediction::Headroom { percent: 0 }, 10).0, 5_001);
        let peak = Prediction::Peak { window_ms: 20_000 };
        assert_eq!(wants(peak, 29), (30_000, 12_288), "at most three units of 4,096");
        assert_eq!(wants(peak, 30), (5_001, 5_001));
    }

    #[test]
    fn the_end_of_a_peak_is_known_before_it_comes() {
        let mut driver = Driver::default();
        let predictor = Prediction::Peak { window_ms: 20_000 };
        let group = CapacityGroup { predictor, ..capacity_group("web") };
        driver.instance_pool("gpu", |pool| {
            pool.groups.insert("web".into(), group.clone().into());
        });
        driver.require("lb1", 1, &[("web", 9_000)]);
        driver.at_seconds(10);
        driver.require("lb1", 2, &[("web", 5_000)]);
        let target = driver.state.capacity_targets().get(&"web".into()).unwrap();
        let falls = of(&group).changes_at(driver.now, target);
        assert_eq!(falls, Some(START_MS + 30_000));
    }
}
