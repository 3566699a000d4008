//! What a group's members are to do next: grow by what is lacking, shrink by what is too much.
//!
//! Up: drained members are taken back first, the last drained first; then machines are made, at
//! most a step in a step interval. Down: the newest first, when a unit is too much and has been for
//! the cool-down. Nothing moves while a cool-down, the pace or the hysteresis says so, and [`Stay`]
//! says which.

use std::{cmp::Reverse, sync::Arc};

use fsm::{
    CapacityGroup, Instance, InstanceId, Liveness, State, Text,
    capacity::MemberPhase,
    pool::{InstancePool, InstanceType},
};

use crate::{capacity::followed, sizes};

/// Why a group does not move, although it gives another amount than is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stay {
    /// It gives more, and less than a unit is too much.
    Hysteresis,
    /// It gives more, and that was wanted until lately.
    CoolDown { until: u64, amount: u64 },
    /// It gives more, and a source has not spoken since the leader began.
    WarmUp,
    /// It gives more, and the next member that could go is larger than what is too much, or the
    /// least that is kept.
    Least,
    /// It lacks something, and has grown a moment ago.
    CoolDownUp { until: u64 },
    /// It lacks something, and has made its step.
    Step { until: u64 },
    /// It lacks something, and has the most members that it may have.
    Most,
}

impl Stay {
    /// The reason's name in numbers for dashboards.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hysteresis => "hysteresis",
            Self::CoolDown { .. } => "cool_down",
            Self::WarmUp => "warm_up",
            Self::Least => "least",
            Self::CoolDownUp { .. } => "cool_down_up",
            Self::Step { .. } => "step",
            Self::Most => "most",
        }
    }
}

/// What is to be done in a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// What its members give, those that are on their way included.
    pub amount: u64,
    /// How many they are.
    pub count: u32,
    /// In order.
    pub drain: Vec<InstanceId>,
    /// In order.
    pub take_back: Vec<InstanceId>,
    /// Machines to make.
    pub create: u32,
    /// Why there is nothing to do, or not all of it now.
    pub stay: Option<Stay>,
    /// When to look again.
    pub due_at: Option<u64>,
}

impl Plan {
    /// Names of all that [`Self::reasons`] may have.
    pub const REASONS: [&'static str; 10] = [
        "drain",
        "take_back",
        "create",
        "hysteresis",
        "cool_down",
        "warm_up",
        "least",
        "cool_down_up",
        "step",
        "most",
    ];

    /// What it does, and why it does no more, by name.
    pub fn reasons(&self) -> impl Iterator<Item = &'static str> {
        let moves = [
            (!self.drain.is_empty(), "drain"),
            (!self.take_back.is_empty(), "take_back"),
            (self.create > 0, "create"),
        ];
        let moves = moves.into_iter().filter_map(|(is_done, name)| is_done.then_some(name));
        moves.chain(self.stay.map(Stay::name))
    }
}

/// The type of machine that is made for a group: the first choice of those that give a unit, of all
/// if none does; and only one that `may_make` takes.
pub fn kind_for<'a>(
    pool: &'a InstancePool,
    group: &CapacityGroup,
    may_make: impl Fn(&Text) -> bool,
) -> Option<&'a Arc<InstanceType>> {
    let mut kinds = sizes::candidates(pool, |kind| group.declared(kind) >= group.unit);
    if kinds.is_empty() {
        kinds = sizes::candidates(pool, |_| true);
    }
    kinds.into_iter().find(|kind| may_make(&kind.name))
}

/// What is to be done in a group, when a new member is expected to give `each`. `may_shrink` is
/// false while a new leader waits for a source.
pub fn plan(state: &State, now: u64, group: &CapacityGroup, each: u64, may_shrink: bool) -> Plan {
    let name = &group.name;
    let desired = followed(state.capacity_targets().get(name).map(|row| &**row));
    let mut plan = Plan::default();
    for row in state.members_of(name) {
        if state.member_phase(row).counts() {
            plan.count = plan.count.saturating_add(1);
            plan.amount = plan.amount.saturating_add(state.member_amount(group, row));
        }
    }
    if plan.amount < desired || plan.count < group.min {
        grow(state, now, group, (desired, each), &mut plan);
    } else if plan.amount > desired {
        shrink(state, now, group, (desired, may_shrink), &mut plan);
    }
    plan
}

fn grow(
    state: &State,
    now: u64,
    group: &CapacityGroup,
    (desired, each): (u64, u64),
    plan: &mut Plan,
) {
    let target = state.capacity_targets().get(&group.name);
    let grown_at = target.map_or(0, |row| row.grown_at);
    let until = grown_at.saturating_add(group.cooldown_up_ms);
    if grown_at > 0 && until > now {
        plan.stay = Some(Stay::CoolDownUp { until });
        plan.due_at = Some(until);
        return;
    }
    let (mut amount, mut count) = (plan.amount, plan.count);
    let lacks = |amount: u64, count: u32| amount < desired || count < group.min;
    let mut drained: Vec<_> =
        state.members_of(&group.name).filter(|row| can_return(state, row)).collect();
    drained.sort_by_key(|row| Reverse(row.member_drain().map(|drain| drain.order)));
    for row in drained {
        if !lacks(amount, count) || count >= group.max {
            break;
        }
        plan.take_back.push(row.id);
        amount = amount.saturating_add(returned(state, group, row));
        count += 1;
    }
    let asked = target.map_or(0, |row| row.asked_lately(group, now));
    let step = group.step.saturating_sub(asked);
    while lacks(amount, count) {
        if count >= group.max {
            plan.stay = Some(Stay::Most);
            break;
        }
        if plan.create >= step {
            let asked_at = target.map_or(now, |row| row.pace.last_at);
            let last_at = if plan.create > 0 { now } else { asked_at };
            let until = last_at.saturating_add(group.step_interval_ms);
            plan.stay = Some(Stay::Step { until });
            plan.due_at = Some(until);
            break;
        }
        plan.create += 1;
        amount = amount.saturating_add(each.max(1));
        count += 1;
    }
}

/// Whether a drained member would serve again at once, or come.
fn can_return(state: &State, row: &Instance) -> bool {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    state.member_phase(row) == MemberPhase::Draining
        && node.is_none_or(|node| {
            node.suspension().is_none()
                && !node.eligibility.ineligible
                && matches!(node.liveness, Liveness::Ready | Liveness::Initializing)
        })
}

fn returned(state: &State, group: &CapacityGroup, row: &Instance) -> u64 {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    let node = node.filter(|node| node.liveness == Liveness::Ready);
    node.map_or_else(|| group.expected(&row.kind), |node| group.given(node))
}

fn shrink(
    state: &State,
    now: u64,
    group: &CapacityGroup,
    (desired, may_shrink): (u64, bool),
    plan: &mut Plan,
) {
    let target = state.capacity_targets().get(&group.name);
    let window_ms = group.cooldown_down_ms;
    let held = target.map_or(0, |row| row.wants.largest(desired, now, window_ms)).max(desired);
    let falls_at = target.and_then(|row| row.wants.falls_at(desired, now, window_ms));
    let mut members: Vec<_> =
        state.members_of(&group.name).filter(|row| state.member_phase(row).counts()).collect();
    // Who is not bound yet goes first, then the end of the list that readers have of members: a
    // jump hash over what is left moves nothing else.
    // Those without a place are not there yet.
    let place = |row: &Instance| row.place().unwrap_or(u32::MAX);
    members.sort_by_key(|row| Reverse((place(row), row.bound_at, row.create_index, row.id)));
    let too_many = |floor: u64| {
        let (mut amount, mut count) = (plan.amount, plan.count);
        let mut ids = Vec::new();
        for row in &members {
            let is_much = amount.saturating_sub(floor) >= group.unit || floor == 0;
            let left = amount.saturating_sub(state.member_amount(group, row));
            if is_much && left >= floor && count > group.min {
                (amount, count) = (left, count - 1);
                ids.push(row.id);
            }
        }
        ids
    };
    let drain = too_many(held);
    if drain.is_empty() {
        let is_later = held > desired && !too_many(desired).is_empty();
        plan.stay = Some(match falls_at.filter(|_| is_later) {
            Some(until) => Stay::CoolDown { until, amount: held },
            None if plan.amount.saturating_sub(desired) < group.unit => Stay::Hysteresis,
            None => Stay::Least,
        });
        plan.due_at = falls_at;
    } else if may_shrink {
        plan.drain = drain;
        plan.due_at = falls_at;
    } else {
        plan.stay = Some(Stay::WarmUp);
    }
}
