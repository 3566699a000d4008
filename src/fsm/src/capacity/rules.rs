//! Questions about capacity groups that transitions, the leader and readers ask alike.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    BusyRule, CapacityGroup, CapacitySource, CapacityTarget, GroupDimension, MemberDrain,
    Prediction,
};
use crate::{
    id::{Text, TimeMs},
    limits,
    node::{Liveness, Node},
    plant::{Plant, is_planted},
    pool::{Behavior, Instance, InstancePool, InstanceState, InstanceType, is_name},
    state::State,
};

impl CapacityGroup {
    /// Why a group cannot be like this, in the words of its file.
    pub(crate) fn check(&self, key: &Text) -> Result<(), String> {
        let name = &self.name;
        if name != key || !is_name(name) {
            return Err(format!(
                "capacity \"{name}\": its name must be 1 to 128 letters, digits, '-', '_' or '.'"
            ));
        }
        let wrong = |what: String| Err(format!("capacity \"{name}\": {what}"));
        let most = limits::CAPACITY_AMOUNT_MAX;
        if !(1..=most).contains(&self.unit) {
            return wrong(format!("unit must be from 1 to {most}"));
        }
        if self.dimension == GroupDimension::Instances && self.unit != 1 {
            return wrong("unit must be 1 where the dimension is instances".into());
        }
        if self.max > limits::INSTANCES_MAX {
            return wrong(format!("max is {}, at most {}", self.max, limits::INSTANCES_MAX));
        }
        if self.min > self.max {
            return wrong(format!("min ({}) is above max ({})", self.min, self.max));
        }
        if self.step == 0 {
            return wrong("step must be above 0".into());
        }
        if self.hard && self.busy == BusyRule::Deadline {
            return wrong("hard needs busy = \"allocations\"".into());
        }
        if self.member_port == 0 {
            return wrong("member_port must be from 1 to 65535".into());
        }
        let window = match self.predictor {
            Prediction::Identity => None,
            Prediction::Headroom { percent } => {
                let most = limits::HEADROOM_PERCENT_MAX;
                if percent > most {
                    return wrong(format!("headroom is {percent} percent, at most {most}"));
                }
                None
            }
            Prediction::Peak { window_ms } => Some(("window", window_ms, 1)),
        };
        let times = [
            ("step_interval", self.step_interval_ms, 1),
            ("drain", self.drain_ms, 0),
            ("cooldown_up", self.cooldown_up_ms, 0),
            ("cooldown_down", self.cooldown_down_ms, 0),
            ("requirement_ttl", self.requirement_ttl_ms, 1),
        ];
        for (what, ms, least) in times.into_iter().chain(window) {
            if !(least..=limits::CAPACITY_MS_MAX).contains(&ms) {
                return wrong(format!("{what} must be from {least} ms to a day"));
            }
        }
        Ok(())
    }

    /// The least that the group is to give.
    pub fn amount_min(&self) -> u64 {
        self.unit.saturating_mul(u64::from(self.min))
    }

    /// The most that the group is to give.
    pub fn amount_max(&self) -> u64 {
        self.unit.saturating_mul(u64::from(self.max))
    }

    /// The window in which the predictor looks for the largest sum; 0: it looks at no other time.
    pub fn sums_window_ms(&self) -> u64 {
        match self.predictor {
            Prediction::Peak { window_ms } => window_ms,
            Prediction::Identity | Prediction::Headroom { .. } => 0,
        }
    }

    /// What a machine of a type declares to give.
    pub fn declared(&self, kind: &InstanceType) -> u64 {
        match self.dimension {
            GroupDimension::MemoryMb => kind.memory_mb,
            GroupDimension::CpuMhz => kind.cpu,
            GroupDimension::Instances => 1,
        }
    }

    /// What a member that is on its way is expected to give: a unit, or what its type declares if
    /// that is more.
    pub fn expected(&self, kind: &InstanceType) -> u64 {
        self.declared(kind).max(self.unit)
    }

    /// What a member that is there gives.
    pub fn given(&self, node: &Node) -> u64 {
        let available = node.description.resources.available();
        match self.dimension {
            GroupDimension::MemoryMb => available.memory_mb,
            GroupDimension::CpuMhz => available.cpu_mhz,
            GroupDimension::Instances => 1,
        }
    }
}

/// How far a member is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemberPhase {
    /// Asked for, being made, or its agent is not ready yet.
    Coming,
    /// It serves.
    Active,
    /// Its node is not heard, or suspended: it gives nothing.
    Away,
    /// An operator holds or drains it, or took its node out of service: it gives nothing.
    Apart,
    /// Its group drained it.
    Draining,
    /// It is shut down.
    Ending,
}

impl MemberPhase {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Coming, Self::Active, Self::Away, Self::Apart, Self::Draining, Self::Ending];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coming => "coming",
            Self::Active => "active",
            Self::Away => "away",
            Self::Apart => "apart",
            Self::Draining => "draining",
            Self::Ending => "ending",
        }
    }

    /// It counts against the group's max and towards what is desired.
    pub const fn counts(self) -> bool {
        match self {
            Self::Coming | Self::Active => true,
            Self::Away | Self::Apart | Self::Draining | Self::Ending => false,
        }
    }
}

impl CapacitySource {
    /// A source that fell silent may begin anew in a lower epoch: it has lost what it counted by. A
    /// word of the epoch that expired is late, whenever it comes.
    pub fn may_begin_anew(&self, epoch: u64) -> bool {
        self.expired_at > 0 && epoch < self.epoch
    }
}

impl CapacityTarget {
    /// Members that count for the step that the group is in.
    pub fn asked_lately(&self, group: &CapacityGroup, now: TimeMs) -> u32 {
        let is_over = self.pace.last_at.saturating_add(group.step_interval_ms) <= now;
        if is_over { 0 } else { self.pace.asked }
    }

    /// The amount that the group is to give.
    pub fn desired(&self) -> u64 {
        self.decision.map_or(0, |decision| decision.desired)
    }
}

impl MemberDrain {
    /// Whether the member may go.
    pub fn is_over(&self, is_empty: bool, now: TimeMs) -> bool {
        let is_free = self.busy == BusyRule::Allocations && is_empty;
        is_free || now >= self.ends_at()
    }

    /// When the member goes at the latest.
    pub fn ends_at(&self) -> TimeMs {
        // What runs there is told to stop at the deadline, and needs time for it.
        let grace = if self.hard { limits::HARD_STOP_MS } else { 0 };
        self.deadline_at.saturating_add(grace)
    }
}

impl Instance {
    /// The drain of its group that it is in.
    pub fn member_drain(&self) -> Option<&MemberDrain> {
        self.member.as_ref()?.drain.as_ref()
    }

    /// The group that it was made for.
    pub fn group(&self) -> Option<&Text> {
        self.member.as_ref().map(|member| &member.group)
    }
}

impl Instance {
    /// Its place among the members of its group.
    pub fn place(&self) -> Option<u32> {
        self.member.as_ref()?.place
    }
}

impl State {
    /// A declared group and its pool.
    pub fn capacity_group(&self, name: &str) -> Option<(&Arc<InstancePool>, &Arc<CapacityGroup>)> {
        let pool = self.instance_pools.get(self.capacity_pools.get(name)?)?;
        Some((pool, pool.groups.get(name)?))
    }

    /// Instances of a group, by id; those that drain or end included.
    pub fn members_of<'a>(&'a self, group: &str) -> impl Iterator<Item = &'a Arc<Instance>> {
        let ids = self.members_by_group.get(group).into_iter().flatten();
        ids.filter_map(|id| self.instances.get(id))
    }

    /// Members that serve, by their places: what a reader of the group is given.
    pub fn active_members(&self, group: &str) -> Vec<Arc<Instance>> {
        let is_active = |row: &&Arc<Instance>| self.member_phase(row) == MemberPhase::Active;
        let mut rows: Vec<_> = self.members_of(group).filter(is_active).cloned().collect();
        rows.sort_by_key(|row| (row.place().unwrap_or(u32::MAX), row.id));
        rows
    }

    /// How long the word of a source holds that does not say: the shortest time of the groups that
    /// it names; of one that names none, as long as its last word.
    pub fn requirement_ttl(&self, source: &str, amounts: &BTreeMap<Text, u64>) -> u64 {
        let named = amounts.keys().filter_map(|name| self.capacity_group(name));
        let shortest = named.map(|(_, group)| group.requirement_ttl_ms).min();
        let last = || self.capacity_sources.get(&source.into()).map(|row| row.ttl_ms);
        shortest.or_else(last).unwrap_or(limits::REQUIREMENT_TTL_MS)
    }

    /// When the row of a group that nothing is left of may go; none: something is.
    pub fn forgettable_at(&self, name: &Text) -> Option<TimeMs> {
        let row = self.capacity_targets.get(name)?;
        let has_minimum = self.capacity_group(name).is_some_and(|(_, group)| group.min > 0);
        let decision = row.decision.as_ref();
        let last = row.changed_at.max(decision.map_or(0, |decision| decision.at));
        let is_empty = row.sources == 0
            && !has_minimum
            && decision.is_none_or(|decision| decision.desired == 0)
            && self.members_of(name).next().is_none();
        is_empty.then(|| last.saturating_add(limits::CAPACITY_KEPT_MS))
    }

    /// How far a member is.
    pub fn member_phase(&self, row: &Instance) -> MemberPhase {
        let is_bound = match row.state {
            InstanceState::ShuttingDown => return MemberPhase::Ending,
            InstanceState::Requested | InstanceState::Booting => false,
            InstanceState::Bound => true,
        };
        match row.behavior {
            Behavior::Hold | Behavior::Drain => return MemberPhase::Apart,
            Behavior::Run => {}
        }
        if row.member_drain().is_some() {
            return MemberPhase::Draining;
        }
        let node = row.node.and_then(|node| self.nodes.get(&node)).filter(|_| is_bound);
        node.map_or(MemberPhase::Coming, |node| self.phase_of_node(node))
    }

    fn phase_of_node(&self, node: &Node) -> MemberPhase {
        if node.eligibility.ineligible || node.drain.is_some() {
            return MemberPhase::Apart;
        }
        if node.suspension().is_some() {
            return MemberPhase::Away;
        }
        match node.liveness {
            Liveness::Ready => MemberPhase::Active,
            // A node that comes back is a member that has been there; it is waited for.
            Liveness::Initializing => MemberPhase::Coming,
            // What went silent together with many others is likely there still.
            Liveness::Down | Liveness::Disconnected => {
                let is_lost = self.mass_loss().is_some_and(|loss| loss.nodes.contains(&node.id));
                let still_counts = is_lost || is_planted(Plant::VanishedCounts);
                if still_counts { MemberPhase::Active } else { MemberPhase::Away }
            }
        }
    }

    /// What a member gives its group now, or will: nothing where it does not count.
    pub fn member_amount(&self, group: &CapacityGroup, row: &Instance) -> u64 {
        match self.member_phase(row) {
            MemberPhase::Active => {
                let node = row.node.and_then(|node| self.nodes.get(&node));
                node.map_or(0, |node| group.given(node))
            }
            MemberPhase::Coming => group.expected(&row.kind),
            MemberPhase::Away
            | MemberPhase::Apart
            | MemberPhase::Draining
            | MemberPhase::Ending => 0,
        }
    }
}
