//! Jobs: what users ask for, and its status.

mod children;
mod commands;
mod dispatch;
mod launch;
mod row;
mod scaling;
pub(crate) mod transitions;

#[cfg(test)]
mod tests;

pub(crate) use self::children::NewChild;
pub use self::{
    children::Children,
    commands::*,
    launch::launch_id,
    row::*,
    scaling::{GroupScaling, ScaleJob, Scaling, ScalingEvent, ScalingPolicy, scaling_policy_id},
};
pub use crate::bounds::check_payload_file;
