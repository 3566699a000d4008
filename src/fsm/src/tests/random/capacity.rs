//! Random commands of capacity groups.

use std::{collections::BTreeMap, sync::Arc};

use super::Maker;
use crate::{
    capacity::{
        BusyRule, CapacityGroup, DecideCapacity, DecidedCapacity, ExpireRequirements, MoveMembers,
        Prediction, Requirements, SetRequirements,
    },
    command::Command,
    id::{InstanceId, Text},
    testing::capacity_group,
};

const UNIT: u64 = 4096;

impl Maker<'_> {
    fn group(&mut self) -> Text {
        self.dice.choose(&["web".into(), "web".into(), "api".into(), "batch".into()])
    }

    /// The groups of a pool.
    pub(super) fn groups(&mut self) -> BTreeMap<Text, Arc<CapacityGroup>> {
        let mut groups = BTreeMap::new();
        for name in ["web", "api"] {
            if self.dice.one_in(7) {
                continue;
            }
            let busy = self.dice.choose(&BusyRule::ALL);
            let predictor = self.dice.choose(&[
                Prediction::Identity,
                Prediction::Headroom { percent: 20 },
                Prediction::Peak { window_ms: 90_000 },
            ]);
            let group = CapacityGroup {
                min: u32::from(self.dice.one_in(6)),
                max: if self.dice.one_in(6) { 1 } else { 3 },
                step: if self.dice.one_in(4) { 1 } else { 20 },
                hard: busy == BusyRule::Allocations && self.dice.one_in(2),
                busy,
                predictor,
                ..capacity_group(name)
            };
            groups.insert(name.into(), Arc::new(group));
        }
        groups
    }

    /// The group that an intent of a pool names.
    pub(super) fn group_of(&mut self, pool: &str) -> Option<Text> {
        let declared = self.state.instance_pools.get(&pool.into());
        let names: Vec<Text> =
            declared.map(|pool| pool.groups.keys().cloned().collect()).unwrap_or_default();
        if self.dice.one_in(3) { None } else { self.dice.pick(&names) }
    }

    fn word(&mut self) -> Requirements {
        let source: Text = self.dice.choose(&["lb1".into(), "lb2".into(), "lb3".into()]);
        let known = self.state.capacity_sources.get(&source);
        let (epoch, seq) = known.map_or((1, 0), |row| (row.epoch, row.seq));
        let (epoch, seq) = match self.dice.below(9) {
            0 => (epoch.saturating_add(1), 1),
            1 => (epoch, seq.saturating_sub(self.dice.below(3))),
            2 => (epoch.saturating_sub(1), seq),
            _ => (epoch, seq.saturating_add(1)),
        };
        let count = self.dice.below(3);
        let amounts = (0..count).map(|_| {
            let most = if self.dice.one_in(40) { u64::MAX } else { 4 * UNIT };
            (self.group(), self.dice.below(most))
        });
        let amounts = amounts.collect();
        let ttl_ms = self.dice.one_in(4).then(|| self.dice.choose(&[0, 1_000, 700_000, u64::MAX]));
        Requirements { source, epoch, seq, ttl_ms, amounts }
    }

    fn decision(&mut self) -> DecidedCapacity {
        let group = self.group();
        let row = self.state.capacity_targets.get(&group).cloned();
        let required = row.as_ref().map_or(0, |row| row.required);
        let index = row.map_or(0, |row| row.requirements_index);
        let is_odd = self.dice.one_in(9);
        let requirements_index = if is_odd { index.saturating_sub(3) } else { index };
        let desired = if is_odd { self.dice.below(9 * UNIT) } else { required.min(3 * UNIT) };
        DecidedCapacity { group, desired, required, predicted: required, requirements_index }
    }

    /// What sources, and the leader about them, say.
    pub(super) fn capacity_command(&mut self) -> Command {
        match self.dice.below(10) {
            0..4 => {
                let count = if self.dice.one_in(3) { 3 } else { 1 };
                let words = (0..count).map(|_| self.word()).collect();
                Command::from(SetRequirements { words })
            }
            4 => Command::from(ExpireRequirements {
                sources: vec!["lb1".into(), "lb3".into(), "nobody".into()],
                groups: vec![self.group()],
            }),
            5..8 => {
                let decisions = (0..=self.dice.below(2)).map(|_| self.decision()).collect();
                Command::from(DecideCapacity { decisions })
            }
            _ => {
                let group = self.group();
                let row = self.state.capacity_targets.get(&group);
                let decision = row.and_then(|row| row.decision);
                let members: Vec<InstanceId> =
                    self.state.members_of(&group).map(|row| row.id).collect();
                let some = |dice: &mut chance::Dice| {
                    members.iter().filter(|_| dice.one_in(2)).copied().collect::<Vec<_>>()
                };
                let (drain, take_back) = (some(self.dice), some(self.dice));
                Command::from(MoveMembers {
                    group,
                    decision_index: decision.map_or(0, |decision| decision.index),
                    drain,
                    take_back,
                    evaluation_ids: self.evaluation_ids(),
                })
            }
        }
    }
}
