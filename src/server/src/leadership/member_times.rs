//! How long it takes from a requirement until a member serves for it, on the leader.
//!
//! A member that is on its way counts from the last change of what its group is asked for, as that
//! was when the leader first saw the member's row. Kept in memory: a new leader counts the members
//! that are on their way by then from the time at which they were asked for.

use std::{collections::BTreeMap, time::Duration};

use fsm::{Effect, InstanceId, State, TimeMs, capacity::MemberPhase, pool::Instance};
use ground::histogram::Histogram;
use wire::api::Sample;

/// Members on their way, and how long those took that came.
#[derive(Debug, Default)]
pub(crate) struct MemberTimes {
    /// The time of the requirement that each was asked for.
    coming: BTreeMap<InstanceId, TimeMs>,
    took: Histogram,
}

impl MemberTimes {
    /// Begins with the members that are on their way.
    pub(crate) fn restore(&mut self, state: &State) {
        self.coming.clear();
        for row in state.instances().iter().filter(|row| is_coming(state, row)) {
            self.coming.insert(row.id, row.requested_at);
        }
    }

    /// Takes in an effect of an entry that was applied at `now`.
    pub(crate) fn take(&mut self, now: TimeMs, state: &State, effect: &Effect) {
        let id = match effect {
            Effect::Instance(id) => Some(*id),
            Effect::Node(node) => {
                state.nodes().get(node).and_then(|node| Some(node.instance.as_ref()?.id))
            }
            Effect::Evaluation(_)
            | Effect::Capacity { .. }
            | Effect::NodeChange { .. }
            | Effect::MassLoss
            | Effect::Deployment(_)
            | Effect::NodeAllocations(_)
            | Effect::NodeReport(_)
            | Effect::Job(_)
            | Effect::SchedulerConfiguration
            | Effect::InstancePool(_)
            | Effect::CapacityGroup(_)
            | Effect::CapacitySource(_)
            | Effect::CapacityExpired { .. }
            | Effect::DigestMark => None,
        };
        if let Some(id) = id {
            self.look_at(now, state, id);
        }
    }

    fn look_at(&mut self, now: TimeMs, state: &State, id: InstanceId) {
        let Some(row) = state.instances().get(&id).filter(|row| row.group().is_some()) else {
            self.coming.remove(&id);
            return;
        };
        match state.member_phase(row) {
            MemberPhase::Coming => {
                let target = row.group().and_then(|group| state.capacity_targets().get(group));
                let asked_at = target.map_or(row.requested_at, |target| target.changed_at);
                // One that served before is not on its way for a requirement.
                if row.bound_at == 0 {
                    self.coming.entry(id).or_insert(asked_at.min(row.requested_at));
                }
            }
            MemberPhase::Active => {
                if let Some(asked_at) = self.coming.remove(&id) {
                    self.took.record(Duration::from_millis(now.saturating_sub(asked_at)));
                }
            }
            MemberPhase::Away
            | MemberPhase::Apart
            | MemberPhase::Draining
            | MemberPhase::Ending => drop(self.coming.remove(&id)),
        }
    }

    /// What was counted so far.
    pub(crate) fn sample(&self) -> Sample {
        self.took.sample()
    }
}

fn is_coming(state: &State, row: &Instance) -> bool {
    row.group().is_some() && row.bound_at == 0 && state.member_phase(row) == MemberPhase::Coming
}

#[cfg(test)]
mod tests {
    use fsm::{
        node::Readiness,
        testing::{Driver, capacity_group, node_id, proof},
    };

    use super::*;

    fn taken(times: &mut MemberTimes, driver: &Driver, effect: Effect) -> (u64, u64) {
        times.take(driver.now, &driver.state, &effect);
        let sample = times.sample();
        (sample.count(), sample.max_us)
    }

    #[test]
    fn a_member_is_counted_once_from_the_requirement_to_its_service() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            drop(pool.groups.insert("web".into(), capacity_group("web").into()));
        });
        driver.require("lb", 1, &[("web", 9_000)]);
        driver.at_seconds(1);
        driver.decide("web", 9_000);
        let mut intent = driver.intent("gpu", "small");
        intent.group = Some("web".into());
        let id = intent.id;
        let command = driver.request("gpu", vec![intent]);
        driver.accept(command);
        let mut times = MemberTimes::default();
        assert_eq!(taken(&mut times, &driver, Effect::Instance(id)), (0, 0));
        driver.at_seconds(2);
        driver.require("lb", 2, &[("web", 9_500)]);
        driver.made(id);
        let command = driver.register_as("a", proof(id));
        driver.accept(command);
        driver.sync("a");
        assert_eq!(taken(&mut times, &driver, Effect::Instance(id)), (0, 0), "it is not ready");
        driver.at_seconds(5);
        driver.readiness("a", Readiness::Ok);
        assert_eq!(taken(&mut times, &driver, Effect::Node(node_id("a"))), (1, 5_000_000));
        driver.at_seconds(9);
        assert_eq!(taken(&mut times, &driver, Effect::Instance(id)), (1, 5_000_000), "once");
        times.restore(&driver.state);
        assert_eq!(taken(&mut times, &driver, Effect::Instance(id)), (1, 5_000_000));
    }
}
