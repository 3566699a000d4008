//! Capacity groups as a source of demand: decides what they are to give, moves their members, and
//! wants machines for what is lacking.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    CapacityGroup, Command, Index, InstanceId, InstancePool, State, Text,
    capacity::{CapacityDecision, DecideCapacity, ExpireRequirements, MemberPhase, MoveMembers},
};

use super::{
    ASK_AGAIN_MS, Fleet, Look,
    balance::{NewMachine, Room, Wanted},
};
use crate::capacity::{
    Plan, decision,
    plan::{kind_for, plan},
    predictor,
};

/// What was proposed for a group lately, and what it came to.
#[derive(Default, Debug)]
pub(super) struct GroupWatch {
    /// The amount and the index of the requirements that it was made from.
    decided: Option<(u64, Index)>,
    decided_until: u64,
    /// To drain and to take back.
    moved: (Vec<InstanceId>, Vec<InstanceId>),
    moved_until: u64,
    numbers: Numbers,
    /// Reasons of the last plan.
    reasons: BTreeSet<&'static str>,
    /// How often each came up since the leadership began.
    came_up: BTreeMap<&'static str, u64>,
}

impl GroupWatch {
    /// Counts a plan's reasons that the one before did not have: how often a group is looked at
    /// tells nothing.
    fn count(&mut self, plan: &Plan) {
        let reasons: BTreeSet<_> = plan.reasons().collect();
        for reason in reasons.difference(&self.reasons) {
            *self.came_up.entry(reason).or_insert(0) += 1;
        }
        self.reasons = reasons;
    }
}

/// A group in numbers, as it was looked at last.
#[derive(Default, Debug)]
struct Numbers {
    required: u64,
    desired: u64,
    current: u64,
    on_the_way: u64,
    draining: u64,
    expired: u64,
    /// Since the leadership began: machines asked for, members taken back, members drained.
    asked_for: u64,
    taken_back: u64,
    drained: u64,
}

impl Numbers {
    fn look(&mut self, state: &State, group: &CapacityGroup) {
        let target = state.capacity_targets().get(&group.name);
        self.required = target.map_or(0, |row| row.required);
        self.desired = target.map_or(0, |row| row.desired());
        self.expired = target.map_or(0, |row| row.expired);
        (self.current, self.on_the_way, self.draining) = (0, 0, 0);
        for row in state.members_of(&group.name) {
            match state.member_phase(row) {
                MemberPhase::Active => self.current += state.member_amount(group, row),
                MemberPhase::Coming => self.on_the_way += 1,
                MemberPhase::Draining => self.draining += 1,
                MemberPhase::Away | MemberPhase::Apart | MemberPhase::Ending => {}
            }
        }
    }
}

impl Fleet {
    /// What the pool's capacity groups want: what is decided for them, less what their members
    /// give.
    pub(super) fn want_for_groups(
        &mut self,
        look: &mut Look<'_>,
        pool: &InstancePool,
        room: &Room,
        wanted: &mut Wanted,
    ) {
        let mut decisions = Vec::new();
        let mut forgotten = Vec::new();
        for group in pool.groups.values() {
            let name = &group.name;
            let decision = self.decide(look, group);
            let is_decided = decision.is_none();
            decisions.extend(decision);
            if let Some(at) = look.state.forgettable_at(name) {
                if at <= look.now {
                    forgotten.push(name.clone());
                }
                look.due(at.max(look.now.saturating_add(ASK_AGAIN_MS)));
            }
            let kind = kind_for(pool, group, |kind| room.may_make(kind));
            let each = kind.map_or(group.unit, |kind| group.expected(kind));
            let unheard = self.sources.unheard_until(look.now, look.state, name);
            if let Some(until) = unheard {
                look.due(until);
            }
            let plan = plan(look.state, look.now, group, each, unheard.is_none());
            if let Some(at) = plan.due_at {
                look.due(at);
            }
            // A move that meets a new decision is refused.
            if is_decided {
                self.groups.entry(name.clone()).or_default().count(&plan);
            }
            self.move_members(look, group, &plan);
            let lacking = usize::try_from(plan.create).unwrap_or(usize::MAX);
            if lacking == 0 {
                continue;
            }
            let most = kind.map_or(0, |kind| room.beside(pool, kind, &wanted.new));
            wanted.is_stuck |= kind.is_none() || (lacking > most && room.is_at_max);
            let Some(kind) = kind else { continue };
            let new = (0..lacking.min(most)).map(|_| NewMachine {
                kind: kind.name.clone(),
                wanted_by: None,
                group: Some(name.clone()),
            });
            wanted.new.extend(new);
        }
        if !decisions.is_empty() {
            look.commands.push(Command::from(DecideCapacity { decisions }));
        }
        if !forgotten.is_empty() {
            let (sources, groups) = (Vec::new(), forgotten);
            look.commands.push(Command::from(ExpireRequirements { sources, groups }));
        }
    }

    fn decide(
        &mut self,
        look: &mut Look<'_>,
        group: &CapacityGroup,
    ) -> Option<fsm::capacity::DecidedCapacity> {
        let target = look.state.capacity_targets().get(&group.name);
        let watch = self.groups.entry(group.name.clone()).or_default();
        watch.numbers.look(look.state, group);
        if let Some(at) = target.and_then(|row| predictor::of(group).changes_at(look.now, row)) {
            look.due(at);
        }
        let due = decision(look.now, look.state, &group.name, group)?;
        let this = Some((due.desired, due.requirements_index));
        if watch.decided == this && watch.decided_until > look.now {
            look.due(watch.decided_until);
            return None;
        }
        (watch.decided, watch.decided_until) = (this, look.now.saturating_add(ASK_AGAIN_MS));
        look.due(watch.decided_until);
        Some(due)
    }

    fn move_members(&mut self, look: &mut Look<'_>, group: &CapacityGroup, plan: &Plan) {
        let target = look.state.capacity_targets().get(&group.name);
        let last: Option<CapacityDecision> = target.and_then(|row| row.decision);
        let Some(last) = last.filter(|_| !plan.drain.is_empty() || !plan.take_back.is_empty())
        else {
            return;
        };
        let watch = self.groups.entry(group.name.clone()).or_default();
        let moves = (plan.drain.clone(), plan.take_back.clone());
        if watch.moved == moves && watch.moved_until > look.now {
            return look.due(watch.moved_until);
        }
        watch.numbers.drained += moves.0.len() as u64;
        watch.numbers.taken_back += moves.1.len() as u64;
        watch.moved = moves.clone();
        watch.moved_until = look.now.saturating_add(ASK_AGAIN_MS);
        look.due(watch.moved_until);
        let (drain, take_back) = moves;
        look.commands.push(Command::from(MoveMembers {
            group: group.name.clone(),
            decision_index: last.index,
            drain,
            take_back,
            evaluation_ids: Vec::new(),
        }));
    }

    /// A machine is asked for, for a group.
    pub(super) fn count_asked(&mut self, group: &Text) {
        self.groups.entry(group.clone()).or_default().numbers.asked_for += 1;
    }

    /// A group's row or declaration changed or went.
    pub(super) fn group_changed(&mut self, state: &State, name: &Text) {
        let declared = state.capacity_group(name).map(|(pool, _)| pool.name.clone());
        if declared.is_none() {
            self.groups.remove(name);
        }
        let pool = declared.or_else(|| Some(state.capacity_targets().get(name)?.pool.clone()));
        if let Some(pool) = pool {
            self.touch(&pool);
        }
    }

    pub(super) fn group_gauges(&self, put: &mut dyn FnMut(&str, u64)) {
        for (name, watch) in &self.groups {
            let numbers = &watch.numbers;
            for (what, number) in [
                ("required", numbers.required),
                ("desired", numbers.desired),
                ("current", numbers.current),
                ("on_the_way", numbers.on_the_way),
                ("draining", numbers.draining),
                ("expired_sources", numbers.expired),
                ("members_asked_for", numbers.asked_for),
                ("members_taken_back", numbers.taken_back),
                ("members_drained", numbers.drained),
            ] {
                put(&format!("capacity.{what}{{group={name}}}"), number);
            }
            for reason in Plan::REASONS {
                let count = watch.came_up.get(reason).copied().unwrap_or(0);
                put(&format!("capacity.decisions{{group={name},reason={reason}}}"), count);
            }
        }
    }
}
