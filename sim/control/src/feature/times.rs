//! The time that servers tell each other: before each step, and in each undisturbed round ([`crate::cluster::times`]).

use super::{Feature, Watch};
use crate::people::{ShapeJobs, World};

/// Servers tell each other what time it is.
pub(super) struct Times;

impl Feature for Times {
    fn before_step(
        &mut self,
        _number: u32,
        world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        world.cluster.tell_time();
        None
    }
}
