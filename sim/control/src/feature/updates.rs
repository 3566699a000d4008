//! Updates of services: in a hurry ([`hurry`]), and with canaries, deadlines and people who steer them ([`steering`]). Both change the jobs that are
//! drawn, and a service that is updated in a hurry is updated as its steering says.

mod hurry;
mod steering;

use fsm::JobSpec;

use self::{hurry::Hurry, steering::Steering};
use super::{Feature, Stage, Watch};
use crate::{
    cluster::coverage::Coverage,
    people::{ShapeJobs, World},
};

/// What a seed's services go through when they are updated.
pub(super) struct Updates {
    /// None: updates are not hurried.
    hurry: Option<Hurry>,
    /// None: nobody does anything with deployments.
    steering: Option<Steering>,
}

impl Updates {
    /// The updates of a seed.
    pub(super) fn draw(seed: u64) -> Self {
        Self { hurry: Hurry::draw(seed), steering: Steering::draw(seed) }
    }

    /// Makes a service one that is updated step by step, if the seed has those, and gives it canaries.
    fn roll(&mut self, spec: &mut JobSpec) {
        if let Some(hurry) = &mut self.hurry {
            hurry.roll(spec);
        }
        if let Some(steering) = &mut self.steering {
            steering.steer(spec);
        }
    }
}

impl Feature for Updates {
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let step = u64::from(number);
        if let Some(hurry) = &mut self.hurry {
            hurry.begin(step);
            self.hurry_updates(world);
        }
        if let Some(steering) = &mut self.steering {
            steering.begin(step);
            steering.steer_deployments(world);
        }
        None
    }

    fn shape(&mut self, stage: Stage, spec: &mut JobSpec, _coverage: &mut Coverage) {
        if stage == Stage::Updates {
            self.roll(spec);
        }
    }
}
