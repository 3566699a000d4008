//! Effects of applied entries, led to the machines that want them.

use fsm::{Effect, Index, State};

use crate::{Dispatch, NodeWatch};

/// Takes one effect of the entry at `index` in. `state` is the newest state, at `index` or later.
pub fn take(
    now: u64,
    state: &State,
    index: Index,
    effect: &Effect,
    dispatch: &mut Dispatch,
    watch: &mut NodeWatch,
) {
    match effect {
        Effect::Evaluation(id) => dispatch.evaluation_changed(now, state, *id),
        Effect::Capacity { class, node } => dispatch.capacity_gained(now, *class, *node, index),
        Effect::Node(id) => {
            watch.node_changed(now, state, *id);
            if !state.nodes.contains(id) {
                dispatch.node_gone(*id, index);
            }
        }
        Effect::Job(key) => {
            dispatch.job_changed(state, key, index);
            watch.work_changed(now);
        }
        Effect::SchedulerConfiguration => dispatch.configuration_changed(state),
        Effect::NodeAllocations(_) => watch.work_changed(now),
        Effect::DigestMark => {}
    }
}
