//! Failures together: in one of three seeds the instances of a job fail within seconds of each other, as they do when what they all need is gone. While
//! their replacement waits for its time, somebody has the job evaluated again and again, or registers it with another delay: the evaluation that waits
//! may be superseded, and what it was to do has to be done all the same. From dice of its own: no throw in here moves one of the older dice.

use fsm::{
    Command, EvaluationId, EvaluationStatus, JobKey, JobSpec, Trigger,
    job::{EvaluateJob, RegisterJob},
};

use crate::{client::CRASHES, coverage::Event, world::World};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6661_696c_7572_6531;
/// All of them have failed within this time.
const TOGETHER_MS: u64 = 4_500;
/// Delays that a user tries out.
const DELAYS_MS: [u64; 3] = [5_000, 20_000, 40_000];
/// What is due within this time is about to be.
const SOON_MS: u64 = 2_500;

/// Percent of a seed's steps before which instances fail together, or somebody looks after those that did.
pub(crate) fn draw(seed: u64) -> u64 {
    let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
    if dice.percent(67) { 0 } else { dice.between(20, 80) }
}

impl World {
    /// Before a step: sometimes a job's instances fail, or a job of which some have failed is looked after.
    pub(crate) fn fail_together(&mut self, seed: u64, number: u32) {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::from(number));
        if !dice.percent(self.failures_together) {
            return;
        }
        let leader = self.servers[self.log.leader].leadership.as_ref();
        let truth = self.log.truth();
        let now = leader.map_or(truth.at(), |leadership| leadership.now(self.clock_ms));
        let waits = truth.evaluations().iter().filter(|row| {
            row.status == EvaluationStatus::Pending && row.trigger == Trigger::RetryFailedAlloc
        });
        let awaiting: Vec<_> = waits.map(|row| (row.job.clone(), row.wait_until)).collect();
        match dice.pick(&awaiting) {
            Some((key, _)) if self.operations.iter().any(|one| one.is_about(&key)) => {}
            // Mostly at the last moment: whoever comes earlier is done before the time is up, and the later finds it begun.
            Some((_, at)) if !(now..now + SOON_MS).contains(&at) && dice.percent(80) => {}
            Some((key, _)) => self.look_after_failed(&key, &mut dice),
            None => self.fail_a_job(&mut dice),
        }
    }

    /// Instances of a job that tries again later fail one after the other.
    fn fail_a_job(&mut self, dice: &mut Dice) {
        let truth = self.log.truth();
        let jobs = truth.jobs().iter().filter(|job| {
            let later = truth.current_spec(job).is_some_and(|spec| tries_again_later(spec));
            later && !job.stop
        });
        let keys: Vec<_> = jobs.map(|job| job.key.clone()).collect();
        let Some(key) = dice.pick(&keys) else { return };
        for agent in 0..self.agents.len() {
            self.fail_instances(agent, &key, TOGETHER_MS, dice);
        }
    }

    /// Somebody evaluates the job while its failed instances wait, or gives it another delay.
    fn look_after_failed(&mut self, key: &JobKey, dice: &mut Dice) {
        self.coverage.count(Event::FailedLookedAfter);
        let truth = self.log.truth();
        let job = truth.jobs().get(key).filter(|job| !job.stop);
        let spec = job.and_then(|job| truth.current_spec(job)).map(|spec| (**spec).clone());
        if dice.percent(75)
            && let Some(mut spec) = spec
        {
            for policy in spec.groups.iter_mut().filter_map(|group| group.reschedule.as_mut()) {
                policy.delay_ms = dice.pick(&DELAYS_MS).unwrap_or(DELAYS_MS[0]);
            }
            let (spec, evaluation) = (spec.into(), EvaluationId(self.ids.next()));
            let (enforce_index, evaluation_priority) = (None, None);
            self.ask(Command::from(RegisterJob {
                enforce_index,
                evaluation_priority,
                ..RegisterJob::new(spec, evaluation)
            }));
        }
        for _ in 0..dice.between(1, 3) {
            let evaluation = EvaluationId(self.ids.next());
            self.ask(Command::from(EvaluateJob {
                job: key.clone(),
                force_reschedule: false,
                evaluation,
            }));
        }
    }
}

/// Instances that fail are replaced after a while, for as often as their job says.
fn tries_again_later(spec: &JobSpec) -> bool {
    let mut policies = spec.groups.iter().filter_map(|group| group.reschedule);
    !spec.meta.contains_key(CRASHES) && policies.any(|policy| policy.delay_ms > 0)
}
