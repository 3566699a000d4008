//! Rows and commands of capacity groups, pinned.

use std::collections::BTreeMap;

use super::Golden;
use crate::{
    capacity::{
        Asked, BusyRule, CapacityDecision, CapacityGroup, CapacitySource, CapacityTarget,
        DecideCapacity, DecidedCapacity, ExpireRequirements, Expiry, GroupDimension, Member,
        MemberDrain, MoveMembers, Pace, Peaks, Prediction, Requirements, SetRequirements,
    },
    command::Command,
    id::{EvaluationId, InstanceId},
};

pub(super) fn group() -> CapacityGroup {
    CapacityGroup {
        name: "web".into(),
        dimension: GroupDimension::CpuMhz,
        unit: 4096,
        min: 1,
        max: 10,
        predictor: Prediction::Peak { window_ms: 7 },
        step: 20,
        step_interval_ms: 1_000,
        drain_ms: 50_000,
        busy: BusyRule::Allocations,
        hard: true,
        cooldown_up_ms: 3,
        cooldown_down_ms: 60_000,
        requirement_ttl_ms: 10_000,
        member_port: 8080,
    }
}

pub(super) fn member() -> Member {
    let drain = MemberDrain {
        since: 1,
        order: (2, 3),
        deadline_at: 4,
        busy: BusyRule::Allocations,
        hard: true,
    };
    Member { group: "web".into(), drain: Some(drain), place: Some(2) }
}

/// One row of each table.
pub(super) fn pin(golden: &mut Golden) {
    let source = CapacitySource {
        name: "lb1".into(),
        epoch: 1,
        seq: 2,
        ttl_ms: 3,
        heard_at: 4,
        heard_term: 5,
        expires_at: 6,
        expired_at: 7,
        amounts: BTreeMap::from([("web".into(), Asked { amount: 8, since: 9 })]),
        modify_index: 10,
    };
    golden.pin("capacity-source", &source);
    let mut sums = Peaks::default();
    sums.note(9, 8, 7);
    let decision = CapacityDecision {
        desired: 1,
        predicted: 2,
        required: 3,
        requirements_index: 4,
        at: 5,
        index: 6,
    };
    let target = CapacityTarget {
        name: "web".into(),
        pool: "gpu".into(),
        deleted: true,
        required: 1,
        sources: 2,
        requirements_index: 3,
        changed_at: 4,
        decision: Some(decision),
        sums,
        wants: Peaks::default(),
        pace: Pace { last_at: 5, asked: 6 },
        grown_at: 7,
        expired: 8,
        last_expiry: Some(Expiry { source: "lb1".into(), at: 9, amount: 10 }),
        create_index: 11,
        modify_index: 12,
    };
    golden.pin("capacity-target", &target);
}

/// In the order of the enum.
pub(super) fn commands() -> Vec<Command> {
    vec![
        Command::from(SetRequirements {
            words: vec![Requirements {
                source: "lb1".into(),
                epoch: 1,
                seq: 2,
                ttl_ms: Some(3),
                amounts: BTreeMap::from([("web".into(), 4)]),
            }],
        }),
        Command::from(ExpireRequirements {
            sources: vec!["lb1".into()],
            groups: vec!["web".into()],
        }),
        Command::from(DecideCapacity {
            decisions: vec![DecidedCapacity {
                group: "web".into(),
                desired: 1,
                required: 2,
                predicted: 3,
                requirements_index: 4,
            }],
        }),
        Command::from(MoveMembers {
            group: "web".into(),
            decision_index: 1,
            drain: vec![InstanceId([21; 16])],
            take_back: vec![InstanceId([22; 16])],
            evaluation_ids: vec![EvaluationId([2; 16])],
        }),
    ]
}
