//! Capacity groups and what is required of them.

use super::driver::Driver;
use crate::{
    capacity::{
        BusyRule, CapacityGroup, DecideCapacity, DecidedCapacity, GroupDimension, Prediction,
        Requirements, SetRequirements,
    },
    command::Command,
};

impl Driver {
    /// A source says what it needs, in epoch 1.
    pub fn require(&mut self, source: &str, seq: u64, amounts: &[(&str, u64)]) {
        let words = vec![requirements(source, seq, amounts)];
        self.accept(Command::from(SetRequirements { words }));
    }

    /// Decides how much a group is to give, from what is required of it now.
    pub fn decide(&mut self, group: &str, desired: u64) {
        let row = self.state.capacity_targets().get(&group.into());
        let (required, requirements_index) =
            row.map_or((0, 0), |row| (row.required, row.requirements_index));
        let decision = DecidedCapacity {
            group: group.into(),
            desired,
            required,
            predicted: required,
            requirements_index,
        };
        self.accept(Command::from(DecideCapacity { decisions: vec![decision] }));
    }
}

/// A capacity group of up to three members of 4,096 MB.
pub fn capacity_group(name: &str) -> CapacityGroup {
    CapacityGroup {
        name: name.into(),
        dimension: GroupDimension::MemoryMb,
        unit: 4096,
        min: 0,
        max: 3,
        predictor: Prediction::Identity,
        step: 20,
        step_interval_ms: 1_000,
        drain_ms: 50_000,
        busy: BusyRule::Deadline,
        hard: false,
        cooldown_up_ms: 0,
        cooldown_down_ms: 60_000,
        requirement_ttl_ms: 10_000,
        member_port: 8080,
    }
}

/// What a source says, in epoch 1.
pub fn requirements(source: &str, seq: u64, amounts: &[(&str, u64)]) -> Requirements {
    let amounts = amounts.iter().map(|(group, amount)| ((*group).into(), *amount)).collect();
    Requirements { source: source.into(), epoch: 1, seq, ttl_ms: None, amounts }
}
