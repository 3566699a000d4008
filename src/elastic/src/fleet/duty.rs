//! What one instance asks for by itself, whatever waits: its deadlines and the end of what drains.

use fsm::{
    Instance, InstancePool, InstanceState, Liveness, Node, State,
    node::SuspendReason,
    plant::{Plant, is_planted},
    pool::{Behavior, ShutdownCause},
};

use super::{Fleet, Look, shut_down};

impl Fleet {
    /// Ends an instance whose time is over, or makes the call that is due for it.
    pub(super) fn duty(
        &mut self,
        look: &mut Look<'_>,
        pool: Option<&InstancePool>,
        row: &Instance,
    ) {
        let is_warm = self.is_warm(look.now);
        if !is_warm {
            look.due(self.warm_at.unwrap_or(look.now));
        }
        let is_held = row.behavior == Behavior::Hold && !is_planted(Plant::HeldShutDown);
        let may_end =
            !is_held && !is_in_mass_loss(look.state, row) && !look.state.is_set_aside(row);
        if let Some(end) = end(look, pool, row).filter(|_| may_end) {
            if end.at > look.now {
                look.due(end.at);
            } else if is_warm || end.cause == ShutdownCause::Drained {
                return self.ask(look, row.id, shut_down(row.id, end.cause, &end.why));
            }
        }
        self.call_for(look, row);
    }
}

/// When an instance is to be shut down, and why.
struct End {
    at: u64,
    cause: ShutdownCause,
    why: String,
}

/// The end that waits for an instance: that of its member's drain or another one, whichever comes
/// first.
fn end(look: &Look<'_>, pool: Option<&InstancePool>, row: &Instance) -> Option<End> {
    let released = released(look, pool, row);
    let other = other_end(look, pool, row);
    [released, other].into_iter().flatten().min_by_key(|end| end.at)
}

/// The end of a member that its capacity group drained.
fn released(look: &Look<'_>, pool: Option<&InstancePool>, row: &Instance) -> Option<End> {
    let drain = row.member_drain().filter(|_| row.state != InstanceState::ShuttingDown)?;
    if pool.is_some_and(|pool| pool.paused.is_some()) {
        return None;
    }
    let is_over = drain.is_over(look.state.is_empty_instance(row), look.now);
    let at = if is_over { look.now } else { drain.ends_at() };
    let why = "its capacity group drained it, and the drain is over".to_owned();
    Some(End { at, cause: ShutdownCause::Released, why })
}

/// The end that waits for an instance as it is now, be it a member or not.
fn other_end(look: &Look<'_>, pool: Option<&InstancePool>, row: &Instance) -> Option<End> {
    let is_drained = row.behavior == Behavior::Drain
        && look.state.is_empty_instance(row)
        && row.member.is_none();
    let (at, cause, why) = match row.state {
        InstanceState::ShuttingDown => return None,
        _ if is_drained => (look.now, ShutdownCause::Drained, "it drains and is empty".to_owned()),
        InstanceState::Requested if is_planted(Plant::NoIntentDeadline) => return None,
        InstanceState::Requested => {
            let why = format!("the provider did not make it in time{}", words(row));
            (row.deadline_at, ShutdownCause::Expired, why)
        }
        InstanceState::Booting => {
            let why = format!("its agent did not register in time{}", words(row));
            (row.deadline_at, ShutdownCause::BootFailed, why)
        }
        InstanceState::Bound => {
            let timeout = pool.map_or(0, |pool| pool.probe_timeout_ms);
            let node = row.node.and_then(|node| look.state.nodes().get(&node));
            let (since, what) = failing_since(row, node.map(|node| &**node))?;
            let why = format!("its node was {what} for too long");
            (since.saturating_add(timeout), ShutdownCause::ProbeFailed, why)
        }
    };
    Some(End { at, cause, why })
}

fn words(row: &Instance) -> String {
    if row.last_words.is_empty() { String::new() } else { format!(": {}", row.last_words) }
}

/// The node of an instance is not heard from, and not because many are not.
pub(super) fn is_silent(state: &State, row: &Instance) -> bool {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    let is_down = node.is_some_and(|node| match node.liveness {
        Liveness::Down | Liveness::Disconnected => true,
        Liveness::Initializing | Liveness::Ready => false,
    });
    is_down && !is_in_mass_loss(state, row)
}

/// Its node went silent with others, and that lasts: nothing ends it by machine.
pub(super) fn is_in_mass_loss(state: &State, row: &Instance) -> bool {
    let loss = state.mass_loss();
    row.node.is_some_and(|node| loss.is_some_and(|loss| loss.nodes.contains(&node)))
}

/// Since when a bound instance's node is of no use, and how. What an operator suspended is looked
/// at by a person.
fn failing_since(row: &Instance, node: Option<&Node>) -> Option<(u64, &'static str)> {
    let Some(node) = node else { return Some((row.bound_at, "unknown")) };
    match node.liveness {
        Liveness::Down | Liveness::Disconnected => return Some((node.missed_at, "down")),
        Liveness::Initializing | Liveness::Ready => {}
    }
    let suspension = node.suspension().filter(|one| one.reason != SuspendReason::Operator)?;
    Some((suspension.since, "suspended"))
}
