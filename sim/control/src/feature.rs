//! Features: what users, operators, nodes and the world around the cluster do beside the plain steps of a schedule. Each is a struct with settings and
//! dice of its own, drawn from the seed under a label of its own: no throw of one moves those of another. What a feature does before a step, and what
//! must hold because of it, stand in one file.
//!
//! A feature never sees another: what two of them share is in the cluster, or they are one. What it needs of the rest of the schedule it says by what
//! it returns ([`Watch`]), and jobs that it draws are changed by the others through [`ShapeJobs`].

mod clocks;
mod dispatches;
mod evictions;
mod failures;
mod groups;
mod lives;
mod pools;
mod tenants;
mod times;
mod updates;

use chance::Dice;
use fsm::{JobSpec, State};
use leader::ServicesConfig;

use crate::{
    cluster::{Cluster, coverage::Coverage, log::Applied, swarm::Swarm},
    people::{ShapeJobs, World},
};

/// The cluster runs on for a while, as these dice say.
pub(crate) struct Watch(pub(crate) Dice);

/// When a feature changes a job that was drawn: what comes later sees what came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its groups.
    Groups,
    /// Its priority, and how much it asks for.
    Demand,
    /// How it is updated, and what it leaves behind.
    Updates,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Groups, Self::Demand, Self::Updates];
}

/// An entry that was committed.
struct Entry<'a> {
    before: &'a State,
    applied: &'a Applied,
    /// The driver's clock.
    clock_ms: u64,
}

/// One feature.
trait Feature {
    /// Before the first step: settings of the services of a server.
    fn configure(&self, _server: usize, _services: &mut ServicesConfig) {}

    /// Before the cluster forms.
    fn prepare(&mut self, _world: &mut World, _shapers: &mut dyn ShapeJobs) {}

    /// Before a step.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch>;

    /// Changes a job that was drawn.
    fn shape(&mut self, _stage: Stage, _spec: &mut JobSpec, _coverage: &mut Coverage) {}

    /// Judges an entry, and counts what it did.
    fn judge(&mut self, _entry: &Entry<'_>, _coverage: &mut Coverage, _found: &mut Vec<String>) {}

    /// After a step, and in each undisturbed round: what is due outside of the cluster happens. Whether anything of it matters.
    fn serve(&mut self, _cluster: &mut Cluster) -> bool {
        false
    }

    /// In each undisturbed round, after that: who speaks to the cluster says again what holds. Whether anybody did.
    fn speak(&mut self, _cluster: &mut Cluster) -> bool {
        false
    }

    /// When something happens outside of the cluster by itself.
    fn next_look_ms(&self) -> Option<u64> {
        None
    }

    /// The end: nothing goes wrong any more.
    fn end_trouble(&mut self, _world: &mut World, _dice: &mut Dice) {}

    /// The end: for so long it needs the undisturbed cluster before it is done.
    fn settle_ms(&mut self, _world: &mut World) -> Option<u64> {
        None
    }

    /// That time is over, or something broke before.
    fn settled(&mut self, _world: &mut World, _in_time: bool) {}

    /// Something that has begun outside of the cluster goes on by itself.
    fn is_under_way(&self, _cluster: &Cluster) -> bool {
        false
    }

    /// What is not as it has to be in the end; while there is anything, the quiet goes on.
    fn unsettled(&self, _cluster: &Cluster) -> Vec<String> {
        Vec::new()
    }
}

/// A feature that a seed may have.
fn of(feature: Option<impl Feature + 'static>) -> Option<Box<dyn Feature>> {
    feature.map(|feature| Box::new(feature) as Box<dyn Feature>)
}

/// The features of a seed, in the order in which they act.
pub(crate) struct Features {
    /// The one that acts is not in its place.
    list: Vec<Option<Box<dyn Feature>>>,
}

impl Features {
    /// The features of a seed, which make their own of its cluster's settings.
    pub(crate) fn draw(seed: u64, swarm: &mut Swarm) -> Self {
        let list = [
            of(groups::Groups::draw(seed)),
            of(tenants::Tenants::draw(seed)),
            of(Some(dispatches::Dispatches::draw(seed))),
            of(Some(updates::Updates::draw(seed))),
            of(failures::Failures::draw(seed)),
            of(lives::Lives::draw(seed, swarm)),
            of(pools::Pools::draw(seed, swarm.servers)),
            of(Some(times::Times)),
            of(Some(clocks::Clocks::draw(seed))),
            of(Some(evictions::Evictions::draw(seed, swarm))),
        ];
        Self { list: list.into_iter().flatten().map(Some).collect() }
    }

    /// Settings of the services of all servers.
    pub(crate) fn configure(&self, cluster: &mut Cluster) {
        for feature in self.all() {
            for (number, server) in cluster.servers.iter_mut().enumerate() {
                feature.configure(number, &mut server.services);
            }
        }
    }

    /// How many there are: their places are from 0 up to this.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Before the cluster forms.
    pub(crate) fn prepare(&mut self, world: &mut World) {
        for place in 0..self.count() {
            self.with(place, |feature, others| feature.prepare(world, others));
        }
    }

    /// Before a step: what the feature in this place does.
    pub(crate) fn before_step(
        &mut self,
        place: usize,
        number: u32,
        world: &mut World,
    ) -> Option<Watch> {
        self.with(place, |feature, others| feature.before_step(number, world, others)).flatten()
    }

    /// Judges an entry that was committed.
    pub(crate) fn judge(
        &mut self,
        (before, applied): (&State, &Applied),
        clock_ms: u64,
        coverage: &mut Coverage,
        found: &mut Vec<String>,
    ) {
        let entry = Entry { before, applied, clock_ms };
        for feature in self.all_mut() {
            feature.judge(&entry, coverage, found);
        }
    }

    /// What is due outside of the cluster happens; whether anything of it matters.
    pub(crate) fn serve(&mut self, cluster: &mut Cluster) -> bool {
        self.all_mut().fold(false, |acted, feature| feature.serve(cluster) | acted)
    }

    /// Who speaks to the cluster says again what holds; whether anybody did.
    pub(crate) fn speak(&mut self, cluster: &mut Cluster) -> bool {
        self.all_mut().fold(false, |acted, feature| feature.speak(cluster) | acted)
    }

    /// When something happens outside of the cluster by itself.
    pub(crate) fn next_look_ms(&self) -> Option<u64> {
        self.all().filter_map(Feature::next_look_ms).min()
    }

    /// Nothing goes wrong any more.
    pub(crate) fn end_trouble(&mut self, world: &mut World, dice: &mut Dice) {
        for feature in self.all_mut() {
            feature.end_trouble(world, dice);
        }
    }

    /// For so long the feature in this place needs the undisturbed cluster.
    pub(crate) fn settle_ms(&mut self, place: usize, world: &mut World) -> Option<u64> {
        self.with(place, |feature, _| feature.settle_ms(world)).flatten()
    }

    /// That time is over, or something broke before.
    pub(crate) fn settled(&mut self, place: usize, world: &mut World, in_time: bool) {
        self.with(place, |feature, _| feature.settled(world, in_time));
    }

    /// Something that has begun outside of the cluster goes on by itself.
    pub(crate) fn are_under_way(&self, cluster: &Cluster) -> bool {
        self.all().any(|feature| feature.is_under_way(cluster))
    }

    /// What is not as it has to be in the end.
    pub(crate) fn unsettled(&self, cluster: &Cluster) -> Vec<String> {
        self.all().flat_map(|feature| feature.unsettled(cluster)).collect()
    }

    fn all(&self) -> impl Iterator<Item = &dyn Feature> {
        self.list.iter().flatten().map(Box::as_ref)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Feature>> {
        self.list.iter_mut().flatten()
    }

    /// Lets one feature act, with the others at hand.
    fn with<T>(
        &mut self,
        place: usize,
        act: impl FnOnce(&mut dyn Feature, &mut Self) -> T,
    ) -> Option<T> {
        let mut feature = self.list.get_mut(place)?.take()?;
        let done = act(feature.as_mut(), self);
        self.list[place] = Some(feature);
        Some(done)
    }
}

impl ShapeJobs for Features {
    fn shape(&mut self, spec: &mut JobSpec, coverage: &mut Coverage) {
        for stage in Stage::ALL {
            for feature in self.all_mut() {
                feature.shape(stage, spec, coverage);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use fsm::{JobKind, testing};

    use super::*;

    type Said = Rc<RefCell<Vec<&'static str>>>;

    /// Draws a job before each step, and says when it changes one.
    struct Probe {
        name: &'static str,
        stage: Stage,
        said: Said,
    }

    fn draw(shapers: &mut dyn ShapeJobs) {
        let mut spec = testing::job("web", JobKind::Service, 1);
        shapers.shape(&mut spec, &mut Coverage::default());
    }

    impl Feature for Probe {
        fn before_step(
            &mut self,
            _number: u32,
            _world: &mut World,
            shapers: &mut dyn ShapeJobs,
        ) -> Option<Watch> {
            draw(shapers);
            None
        }

        fn shape(&mut self, stage: Stage, _spec: &mut JobSpec, _coverage: &mut Coverage) {
            if stage == self.stage {
                self.said.borrow_mut().push(self.name);
            }
        }
    }

    #[test]
    fn a_job_is_shaped_in_stages_by_all_but_the_feature_that_draws_it() {
        let said = Said::default();
        let stages =
            [("last", Stage::Updates), ("first", Stage::Groups), ("second", Stage::Demand)];
        let probe = |(name, stage)| of(Some(Probe { name, stage, said: Rc::clone(&said) }));
        let mut features = Features { list: stages.map(probe).into() };
        let mut world = World::new(Cluster::new(0, Swarm::draw(0), false));
        for (place, others) in [["first", "second"], ["second", "last"]].iter().enumerate() {
            assert!(features.before_step(place, 0, &mut world).is_none());
            assert_eq!(said.take(), others);
        }
        draw(&mut features);
        assert_eq!(said.take(), ["first", "second", "last"], "each is in its place again");
    }
}
