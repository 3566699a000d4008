//! Failures together: in one of three seeds the instances of a job fail within seconds of each other, as they do when what they all need is gone. While
//! their replacement waits for its time, somebody has the job evaluated again and again, or registers it with another delay: the evaluation that waits
//! may be superseded, and what it was to do has to be done all the same. From dice of its own: no throw in here moves one of the older dice.

use fsm::{
    Command, EvaluationStatus, JobKey, JobSpec, Trigger,
    job::{EvaluateJob, RegisterJob},
};

use super::{Feature, Watch};
use crate::{
    cluster::{agent::CRASHES, coverage::Event},
    people::{ShapeJobs, World},
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6661_696c_7572_6531;
/// All of them have failed within this time.
const TOGETHER_MS: u64 = 4_500;
/// Delays that a user tries out.
const DELAYS_MS: [u64; 3] = [5_000, 20_000, 40_000];
/// What is due within this time is about to be.
const SOON_MS: u64 = 2_500;

/// Failures of what belongs together.
pub(super) struct Failures {
    seed: u64,
    /// Percent of steps before which instances fail together, or somebody looks after those that did.
    percent: u64,
}

impl Failures {
    /// Those of a seed, if it has any.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        if dice.percent(67) {
            return None;
        }
        Some(Self { seed, percent: dice.between(20, 80) })
    }
}

impl Feature for Failures {
    /// Sometimes a job's instances fail, or a job of which some have failed is looked after.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let mut dice = Dice::numbered(self.seed ^ LABEL, u64::from(number));
        if !dice.percent(self.percent) {
            return None;
        }
        let (truth, now) = (world.cluster.log.truth(), world.cluster.leaders_now());
        let waits = truth.evaluations().iter().filter(|row| {
            row.status == EvaluationStatus::Pending && row.trigger == Trigger::RetryFailedAlloc
        });
        let awaiting: Vec<_> = waits.map(|row| (row.job.clone(), row.wait_until)).collect();
        match dice.pick(&awaiting) {
            Some((key, _)) if world.people.see_to(&key) => {}
            // Mostly at the last moment: whoever comes earlier is done before the time is up, and the later finds it begun.
            Some((_, at)) if !(now..now + SOON_MS).contains(&at) && dice.percent(80) => {}
            Some((key, _)) => look_after_failed(world, &key, &mut dice),
            None => fail_a_job(world, &mut dice),
        }
        None
    }
}

/// Instances of a job that tries again later fail one after the other.
fn fail_a_job(world: &mut World, dice: &mut Dice) {
    let truth = world.cluster.log.truth();
    let jobs = truth.jobs().iter().filter(|job| {
        let later = truth.current_spec(job).is_some_and(|spec| tries_again_later(spec));
        later && !job.stop
    });
    let keys: Vec<_> = jobs.map(|job| job.key.clone()).collect();
    let Some(key) = dice.pick(&keys) else { return };
    for agent in 0..world.cluster.agents.len() {
        world.cluster.fail_instances(agent, &key, TOGETHER_MS, dice);
    }
}

/// Somebody evaluates the job while its failed instances wait, or gives it another delay.
fn look_after_failed(world: &mut World, key: &JobKey, dice: &mut Dice) {
    world.cluster.coverage.count(Event::FailedLookedAfter);
    let truth = world.cluster.log.truth();
    let job = truth.jobs().get(key).filter(|job| !job.stop);
    let spec = job.and_then(|job| truth.current_spec(job)).map(|spec| (**spec).clone());
    if dice.percent(75)
        && let Some(mut spec) = spec
    {
        for policy in spec.groups.iter_mut().filter_map(|group| group.reschedule.as_mut()) {
            policy.delay_ms = dice.pick(&DELAYS_MS).unwrap_or(DELAYS_MS[0]);
        }
        let (spec, evaluation) = (spec.into(), world.cluster.ids.evaluation());
        let (enforce_index, evaluation_priority) = (None, None);
        world.ask(Command::from(RegisterJob {
            enforce_index,
            evaluation_priority,
            ..RegisterJob::new(spec, evaluation)
        }));
    }
    for _ in 0..dice.between(1, 3) {
        let evaluation = world.cluster.ids.evaluation();
        world.ask(Command::from(EvaluateJob {
            job: key.clone(),
            force_reschedule: false,
            evaluation,
        }));
    }
}

/// Instances that fail are replaced after a while, for as often as their job says.
fn tries_again_later(spec: &JobSpec) -> bool {
    let mut policies = spec.groups.iter().filter_map(|group| group.reschedule);
    !spec.meta.contains_key(CRASHES) && policies.any(|policy| policy.delay_ms > 0)
}
