//! Transitions of members: asked for, drained, taken back.
//!
//! What a leader proposes late or twice is judged here once more: no intent above the step, the
//! group's max or what is desired, and no drain of what is needed.

use std::{collections::BTreeSet, sync::Arc};

use super::{CapacityGroup, MemberDrain, MemberPhase, MoveMembers, Pace};
use crate::{
    apply::{Outcome, Turn, not_found},
    command::{Rejection, Reply},
    id::{EvaluationId, InstanceId, Text},
    limits,
    plant::{Plant, is_planted},
    pool::{Behavior, Instance, InstancePool},
};

fn invalid<T>(why: impl Into<Text>) -> Result<T, Rejection> {
    Err(Rejection::Invalid(why.into()))
}

/// What a group's members give, those that are on their way included.
#[derive(Clone, Copy, Default)]
pub(crate) struct Strength {
    pub(crate) amount: u64,
    pub(crate) count: u32,
}

impl Turn<'_> {
    pub(crate) fn move_members(&mut self, command: &MoveMembers) -> Outcome {
        let MoveMembers { group: name, decision_index, drain, take_back, evaluation_ids } = command;
        if drain.len().saturating_add(take_back.len()) > limits::CAPACITY_MOVES_MAX {
            let most = limits::CAPACITY_MOVES_MAX;
            return invalid(format!("an entry moves at most {most} members"));
        }
        let declared = self.state.capacity_group(name).map(|(_, group)| Arc::clone(group));
        let Some(group) = declared else {
            return Err(not_found(&format!("capacity group \"{name}\"")));
        };
        let mut row = self.target(name);
        let Some(decision) = row.decision.filter(|decision| decision.index == *decision_index)
        else {
            return invalid("another decision has been taken since");
        };
        let mut made = Vec::new();
        let mut refused = None;
        let mut moved = 0_u32;
        let mut count = self.strength(&group).count;
        for id in take_back {
            match self.take_back(&group, *id, &mut count, evaluation_ids) {
                Ok(ids) => {
                    made.extend(ids);
                    moved = moved.saturating_add(1);
                }
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        if moved > 0 {
            row.grown_at = self.at;
            self.put_target(row);
        }
        let mut left = self.strength(&group);
        for id in drain {
            match self.release(&group, *id, decision.desired, &mut left, moved, evaluation_ids) {
                Ok(ids) => {
                    made.extend(ids);
                    moved = moved.saturating_add(1);
                }
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        match refused {
            Some(why) if moved == 0 => Err(why),
            _ => Ok(Reply::Evaluations(made)),
        }
    }

    /// What the members of a group give, those that are on their way included.
    pub(crate) fn strength(&self, group: &CapacityGroup) -> Strength {
        let mut strength = Strength::default();
        for row in self.state.members_of(&group.name) {
            if self.state.member_phase(row).counts() {
                strength.count = strength.count.saturating_add(1);
                let amount = self.state.member_amount(group, row);
                strength.amount = strength.amount.saturating_add(amount);
            }
        }
        strength
    }

    fn member_of(&self, group: &Text, id: InstanceId) -> Result<Instance, Rejection> {
        let row = self.instance(id)?;
        if row.group() == Some(group) {
            return Ok(row);
        }
        invalid(format!("the instance is no member of capacity group \"{group}\""))
    }

    fn take_back(
        &mut self,
        group: &CapacityGroup,
        id: InstanceId,
        count: &mut u32,
        ids: &[EvaluationId],
    ) -> Result<Vec<EvaluationId>, Rejection> {
        let mut row = self.member_of(&group.name, id)?;
        if self.state.member_phase(&row) != MemberPhase::Draining {
            return invalid("the member does not drain");
        }
        if *count >= group.max {
            return invalid(format!("the group may have {} members", group.max));
        }
        *count = count.saturating_add(1);
        if let Some(member) = &mut row.member {
            member.drain = None;
        }
        Ok(self.put_service(row, "Taken back by its capacity group", ids))
    }

    /// Begins the drain of a member that the group can do without.
    fn release(
        &mut self,
        group: &CapacityGroup,
        id: InstanceId,
        desired: u64,
        left: &mut Strength,
        place: u32,
        ids: &[EvaluationId],
    ) -> Result<Vec<EvaluationId>, Rejection> {
        let row = self.member_of(&group.name, id)?;
        if !self.state.member_phase(&row).counts() {
            return invalid("the member neither serves nor is on its way");
        }
        let amount = left.amount.saturating_sub(self.state.member_amount(group, &row));
        let count = left.count.saturating_sub(1);
        if amount < desired || count < group.min {
            return invalid("the group needs the member");
        }
        *left = Strength { amount, count };
        Ok(self.drain_member(row, group, place, ids))
    }

    /// Begins the drain of a member. Its deadline is never moved afterwards.
    pub(crate) fn drain_member(
        &mut self,
        mut row: Instance,
        group: &CapacityGroup,
        place: u32,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        let Some(member) = &mut row.member else { return Vec::new() };
        member.drain = Some(MemberDrain {
            since: self.at,
            order: (self.index, place),
            deadline_at: self.at.saturating_add(group.drain_ms),
            busy: group.busy,
            hard: group.hard,
        });
        self.put_service(row, "Drained by its capacity group", ids)
    }

    /// Whether an intent may be for a group, and what its member will give.
    pub(crate) fn check_intent(
        &self,
        pool: &InstancePool,
        name: &Text,
        asked: Strength,
    ) -> Result<Arc<CapacityGroup>, Rejection> {
        let Some(group) = pool.groups.get(name) else {
            return invalid(format!("pool \"{}\" has no capacity group \"{name}\"", pool.name));
        };
        let target = self.state.capacity_targets.get(name);
        let Some((target, decision)) = target.and_then(|row| Some((row, row.decision?))) else {
            return invalid(format!("nothing is decided for capacity group \"{name}\""));
        };
        if asked.count >= group.max {
            return invalid(format!("capacity group \"{name}\" may have {} members", group.max));
        }
        if asked.amount >= decision.desired && asked.count >= group.min {
            return invalid(format!("capacity group \"{name}\" has what it wants"));
        }
        if target.asked_lately(group, self.at) >= group.step {
            return invalid(format!("capacity group \"{name}\" has made its step"));
        }
        Ok(Arc::clone(group))
    }

    /// A member that begins to serve has a place from then on: the lowest that nobody has who
    /// serves or may come to it again. That of one that is away or ends is filled before a new one
    /// is opened.
    pub(crate) fn take_place(&mut self, id: InstanceId) {
        let Ok(mut row) = self.instance(id) else { return };
        let Some(member) = row.member.as_mut().filter(|member| member.place.is_none()) else {
            return;
        };
        let is_kept = |other: &Arc<Instance>| match self.state.member_phase(other) {
            MemberPhase::Away | MemberPhase::Ending => false,
            MemberPhase::Coming
            | MemberPhase::Active
            | MemberPhase::Apart
            | MemberPhase::Draining => true,
        };
        let others = self.state.members_of(&member.group).filter(|other| other.id != id);
        let (kept, left): (Vec<_>, Vec<_>) = others.cloned().partition(is_kept);
        let taken: BTreeSet<u32> = kept.iter().filter_map(|other| other.place()).collect();
        let free =
            (0..u32::MAX).find(|place| !taken.contains(place) || is_planted(Plant::PlaceTwice));
        member.place = free;
        for other in left.into_iter().filter(|other| other.place() == free) {
            let mut other = (*other).clone();
            if let Some(member) = &mut other.member {
                member.place = None;
            }
            self.put_instance(other);
        }
        self.put_instance(row);
    }

    /// Notes that a member was asked for.
    pub(crate) fn note_step(&mut self, group: &CapacityGroup) {
        let mut row = self.target(&group.name);
        let asked = row.asked_lately(group, self.at).saturating_add(1);
        row.pace = Pace { last_at: self.at, asked };
        row.grown_at = self.at;
        self.put_target(row);
    }

    /// An operator drains or takes back an instance: a member's drain begins and ends with it, so
    /// that work of others has its time to go.
    pub(crate) fn member_behaves(&self, row: &mut Instance) {
        let Some(member) = &mut row.member else { return };
        let group = self.state.capacity_group(&member.group).map(|(_, group)| group);
        match (row.behavior, group) {
            (Behavior::Drain, Some(group)) if member.drain.is_none() => {
                member.drain = Some(MemberDrain {
                    since: self.at,
                    order: (self.index, 0),
                    deadline_at: self.at.saturating_add(group.drain_ms),
                    busy: group.busy,
                    hard: group.hard,
                });
            }
            (Behavior::Run, Some(_)) => member.drain = None,
            (Behavior::Run | Behavior::Hold | Behavior::Drain, _) => {}
        }
    }
}
