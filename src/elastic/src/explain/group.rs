//! What a capacity group does and why, as sentences for people.

use std::cmp::Reverse;

use fsm::{
    CapacityGroup, CapacitySource, CapacityTarget, Instance, State,
    capacity::{Asked, GroupDimension, MemberPhase, Prediction},
    pool::InstancePool,
};

use super::{clock, pool, span};
use crate::{
    capacity::{
        Plan, Stay,
        plan::{kind_for, plan},
        wanted,
    },
    requirements::is_unheard,
};

/// Sources and members that have a sentence of their own.
const NAMED_MAX: usize = 5;

/// What a capacity group does and why; none: there is no such group.
pub fn group(state: &State, now: u64, name: &str) -> Option<Vec<String>> {
    let target = state.capacity_targets().get(&name.into()).map(|row| &**row);
    let Some((pool, group)) = state.capacity_group(name) else {
        let members: Vec<_> = state.members_of(name).collect();
        target?;
        let mut sentences = vec![format!(
            "the group is declared no more: what is left drains and goes ({})",
            counted(members.len(), "member")
        )];
        draining(state, now, name, &mut sentences);
        return Some(sentences);
    };
    let mut sentences = Vec::new();
    asking(state, now, group, &mut sentences);
    if let Some(target) = target {
        silence(now, group, target, &mut sentences);
    }
    aim(now, group, target, &mut sentences);
    members(state, now, group, &mut sentences);
    draining(state, now, name, &mut sentences);
    next(state, now, pool, group, &mut sentences);
    Some(sentences)
}

/// Who asks for how much since when: the largest amounts first.
fn asking(state: &State, now: u64, group: &CapacityGroup, sentences: &mut Vec<String>) {
    let asked = |row: &CapacitySource| row.amounts.get(&group.name).copied();
    let mut all: Vec<(&CapacitySource, Asked)> =
        state.capacity_sources().iter().filter_map(|row| Some((&**row, asked(row)?))).collect();
    all.sort_by_key(|(row, asked)| (Reverse(asked.amount), row.name.clone()));
    for (row, asked) in all.iter().take(NAMED_MAX) {
        sentences.push(format!(
            "{} asks for {} since {}, last heard at {}",
            row.name,
            amount(group, asked.amount),
            clock(now, asked.since),
            clock(now, row.heard_at)
        ));
    }
    let others = all.get(NAMED_MAX..).unwrap_or_default();
    if !others.is_empty() {
        let sum = others.iter().map(|(_, asked)| asked.amount).sum();
        let sources = counted(others.len(), "other source");
        sentences.push(format!("{sources} together: {}", amount(group, sum)));
    }
    if all.is_empty() {
        sentences.push("no source asks for anything".to_owned());
    }
}

fn silence(now: u64, group: &CapacityGroup, target: &CapacityTarget, sentences: &mut Vec<String>) {
    let Some(last) = &target.last_expiry else { return };
    sentences.push(format!(
        "{} fell silent at {}: {} of it do not count any more",
        last.source,
        clock(now, last.at),
        amount(group, last.amount)
    ));
}

/// What the predictor made of the sum, what is clamped, and what was decided.
fn aim(
    now: u64,
    group: &CapacityGroup,
    target: Option<&CapacityTarget>,
    sentences: &mut Vec<String>,
) {
    let (predicted, desired) = wanted(now, group, target);
    let sum = amount(group, target.map_or(0, |row| row.required));
    let made = amount(group, predicted);
    sentences.push(match group.predictor {
        Prediction::Identity => {
            format!("the sum is {sum}, the predictor identity takes it as it is")
        }
        Prediction::Headroom { percent } => {
            format!("the sum is {sum}, with {percent} percent of headroom {made}")
        }
        Prediction::Peak { window_ms } => {
            let window = span(window_ms);
            format!("the sum is {sum}, the largest of the last {window} is {made}")
        }
    });
    if desired < predicted {
        let (most, unit) = (counted_number(group.max, "member"), amount(group, group.unit));
        let desired = amount(group, desired);
        sentences.push(format!("clamped to {desired}: at most {most} of {unit} (max)"));
    } else if desired > predicted {
        let (least, unit) = (counted_number(group.min, "member"), amount(group, group.unit));
        let desired = amount(group, desired);
        sentences.push(format!("raised to {desired}: at least {least} of {unit} (min)"));
    }
    match target.and_then(|row| row.decision) {
        Some(decision) => sentences.push(format!(
            "desired: {}, decided at {}",
            amount(group, decision.desired),
            clock(now, decision.at)
        )),
        None if desired > 0 => sentences.push("desired: not decided yet".to_owned()),
        None => {}
    }
}

fn members(state: &State, now: u64, group: &CapacityGroup, sentences: &mut Vec<String>) {
    let of = |phase| {
        let is_of = move |row: &&std::sync::Arc<Instance>| state.member_phase(row) == phase;
        state.members_of(&group.name).filter(is_of).collect::<Vec<_>>()
    };
    let active = of(MemberPhase::Active);
    let given: u64 = active.iter().map(|row| state.member_amount(group, row)).sum();
    let serve = if active.len() == 1 { "serves and gives" } else { "serve and give" };
    let count = counted(active.len(), "member");
    sentences.push(format!("{count} {serve} {}", amount(group, given)));
    let coming = of(MemberPhase::Coming);
    if let Some(first) = coming.iter().map(|row| row.requested_at).min() {
        let expected: u64 = coming.iter().map(|row| state.member_amount(group, row)).sum();
        sentences.push(format!(
            "on the way: {}, expected to give {}, the first asked for {} ago",
            counted(coming.len(), "member"),
            amount(group, expected),
            span(now.saturating_sub(first))
        ));
    }
    let apart = of(MemberPhase::Apart).len();
    if apart > 0 {
        let members = counted(apart, "member");
        sentences.push(format!("{members} out of service by an operator, not counted"));
    }
    let away = of(MemberPhase::Away).len();
    if away > 0 {
        sentences.push(format!(
            "{} away (its node is not heard, or suspended), not counted",
            counted(away, "member")
        ));
    }
    let ending = of(MemberPhase::Ending).len();
    if ending > 0 {
        sentences.push(format!("{} shut down, not yet gone", counted(ending, "member")));
    }
}

fn draining(state: &State, now: u64, name: &str, sentences: &mut Vec<String>) {
    let mut rows: Vec<_> = state
        .members_of(name)
        .filter(|row| state.member_phase(row) == MemberPhase::Draining)
        .filter_map(|row| Some((row.member_drain()?, row)))
        .collect();
    rows.sort_by_key(|(drain, row)| (Reverse(drain.order), row.id));
    for (drain, row) in rows.iter().take(NAMED_MAX) {
        let id = row.id.to_string();
        let short = id.get(..8).unwrap_or(&id);
        let until = clock(now, drain.ends_at());
        let earlier = match drain.busy {
            fsm::capacity::BusyRule::Deadline => "",
            fsm::capacity::BusyRule::Allocations => ", or until nothing runs on it",
        };
        let since = clock(now, drain.since);
        sentences.push(format!("member {short} drains since {since} until {until}{earlier}"));
    }
    let others = rows.len().saturating_sub(NAMED_MAX);
    if others > 0 {
        sentences.push(format!("{} more drain", counted(others, "member")));
    }
}

/// What happens next, or why nothing does.
fn next(
    state: &State,
    now: u64,
    of: &InstancePool,
    group: &CapacityGroup,
    sentences: &mut Vec<String>,
) {
    let is_limited = |kind: &fsm::pool::InstanceType| state.limit_on(&of.name, kind, now).is_some();
    let may_make = |name: &fsm::Text| of.types.get(name).is_some_and(|kind| !is_limited(kind));
    let kind = kind_for(of, group, may_make);
    let each = kind.map_or(group.unit, |kind| group.expected(kind));
    let unheard = unheard(state, group);
    let plan = plan(state, now, group, each, unheard.is_none());
    if plan.create > 0 || of.paused.is_some() {
        sentences.extend(pool(state, now, of));
    }
    sentences.extend(moves(&plan));
    sentences.extend(plan.stay.map(|stay| stays(now, group, &plan, stay, unheard)));
}

/// The source of a group that the leader waits for longest, of those that it has not heard.
fn unheard<'a>(state: &'a State, group: &CapacityGroup) -> Option<&'a CapacitySource> {
    let rows = state.capacity_sources().iter().map(|row| &**row);
    let unheard =
        rows.filter(|row| row.amounts.contains_key(&group.name) && is_unheard(state, row));
    unheard.max_by_key(|row| (row.ttl_ms, Reverse(&row.name)))
}

fn moves(plan: &Plan) -> Vec<String> {
    let count = |number: usize| counted(number, "member");
    let mut sentences = Vec::new();
    if !plan.take_back.is_empty() {
        sentences.push(format!("next: {} taken back", count(plan.take_back.len())));
    }
    if plan.create > 0 {
        sentences.push(format!("next: {} to be made", counted_number(plan.create, "member")));
    }
    if !plan.drain.is_empty() {
        sentences.push(format!("next: {} to drain", count(plan.drain.len())));
    }
    sentences
}

fn stays(
    now: u64,
    group: &CapacityGroup,
    plan: &Plan,
    stay: Stay,
    unheard: Option<&CapacitySource>,
) -> String {
    match stay {
        Stay::Hysteresis => format!(
            "nothing drains: less than a unit of {} is too much (hysteresis)",
            amount(group, group.unit)
        ),
        Stay::CoolDown { until, amount: held } => format!(
            "nothing drains before {}: {} were wanted less than {} ago (cool-down)",
            clock(now, until),
            amount(group, held),
            span(group.cooldown_down_ms)
        ),
        Stay::WarmUp => {
            let of = unheard.map_or(String::new(), |row| {
                format!(": {} has not, and has {} for it", row.name, span(row.ttl_ms))
            });
            format!("nothing drains until every source has spoken to the new leader (warm-up){of}")
        }
        Stay::Least => format!(
            "nothing drains: without another member less than what is desired, or fewer than {} \
             would be left (least)",
            counted_number(group.min, "member")
        ),
        Stay::CoolDownUp { until } => format!(
            "nothing grows before {}: the group grew less than {} ago (cool-down)",
            clock(now, until),
            span(group.cooldown_up_ms)
        ),
        Stay::Step { until } => format!(
            "the rest is asked for at {}: at most {} in {} (step)",
            clock(now, until),
            counted_number(group.step, "member"),
            span(group.step_interval_ms)
        ),
        Stay::Most => format!(
            "nothing more is asked for: the group may have {} and has {} (max)",
            counted_number(group.max, "member"),
            plan.count
        ),
    }
}

fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn counted_number(number: u32, noun: &str) -> String {
    counted(usize::try_from(number).unwrap_or(usize::MAX), noun)
}

fn amount(group: &CapacityGroup, amount: u64) -> String {
    match group.dimension {
        GroupDimension::MemoryMb | GroupDimension::CpuMhz => {
            format!("{amount}{}", group.dimension.suffix())
        }
        GroupDimension::Instances => {
            counted(usize::try_from(amount).unwrap_or(usize::MAX), "machine")
        }
    }
}

#[cfg(test)]
mod tests;
