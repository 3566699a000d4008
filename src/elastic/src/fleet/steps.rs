//! Steps of instances, for the log.

use fsm::{Instance, InstanceId, InstanceState, Text};

use super::Home;

/// A step of an instance on its way, or a word of an operator about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstanceStep {
    pub instance: InstanceId,
    pub pool: Text,
    /// `requested`, `made`, `bound`, `shut down`, `gone`, or what is wanted of it: `run`, `hold`,
    /// `drain`.
    pub step: &'static str,
    /// For people; empty: nothing to say.
    pub detail: Text,
}

/// What happened to an instance between what was known of it and its row; none: no step.
pub(super) fn between(
    instance: InstanceId,
    known: Option<&Home>,
    row: Option<&Instance>,
) -> Option<InstanceStep> {
    let Some(row) = row else {
        let pool = known?.pool.clone();
        return Some(InstanceStep { instance, pool, step: "gone", detail: Text::default() });
    };
    let pool = row.pool.clone();
    if known.is_none_or(|known| known.state != row.state) {
        let (step, detail) = reached(row);
        return Some(InstanceStep { instance, pool, step, detail });
    }
    if known.is_some_and(|known| known.behavior == row.behavior) {
        return None;
    }
    let by = if row.behavior_by.is_empty() { "somebody" } else { &row.behavior_by };
    let detail = match &*row.behavior_reason {
        "" => format!("by {by}"),
        reason => format!("by {by}: {reason}"),
    };
    Some(InstanceStep { instance, pool, step: row.behavior.name(), detail: detail.into() })
}

/// The step that leads to an instance's state, and what there is to say of it.
fn reached(row: &Instance) -> (&'static str, Text) {
    match row.state {
        InstanceState::Requested => {
            let why = match &row.wanted_by {
                Some(job) => format!("type {} for job {}", row.kind.name, job.id),
                None => format!("type {} for the pool's minimum", row.kind.name),
            };
            ("requested", why.into())
        }
        InstanceState::Booting => ("made", row.provider_id.clone()),
        InstanceState::Bound => {
            ("bound", row.node.map(|node| format!("node {node}")).unwrap_or_default().into())
        }
        InstanceState::ShuttingDown => {
            let shutdown = row.shutdown.as_ref();
            let why = shutdown.map(|one| format!("{}: {}", one.cause.name(), one.reason));
            ("shut down", why.unwrap_or_default().into())
        }
    }
}
