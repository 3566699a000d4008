//! Rolling updates in a hurry: in one of three seeds services have several instances and are updated one at a time, and while a step waits for its time
//! somebody has the job evaluated again and again. From dice of its own: no throw in here moves one of the older dice.

use fsm::{
    Command, EvaluationId, EvaluationStatus, JobKind, JobSpec, Trigger, job::UpdateStrategy,
};

use crate::{client::CRASHES, coverage::Event, dice::Dice, world::World};

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x7570_6461_7465_6131;
/// A step that waits no longer than this is about to be due, ms.
const DUE_MS: u64 = 300;

/// Percent of a seed's steps before which a job that is updated is evaluated.
pub(crate) fn draw(seed: u64) -> u64 {
    let mut dice = Dice::new(seed ^ LABEL, u64::MAX);
    if dice.percent(67) { 0 } else { dice.between(10, 90) }
}

impl World {
    /// Before a step: sometimes a job whose next step of an update waits is evaluated, once or twice.
    pub(crate) fn hurry_updates(&mut self, seed: u64, number: u32) {
        let mut dice = Dice::new(seed ^ LABEL, u64::from(number));
        if !dice.percent(self.updates) {
            return;
        }
        // Mostly about when the step is due: whoever looks at the job then meets it.
        let due_at =
            self.log.truth().head.at + if dice.percent(80) { DUE_MS } else { u64::MAX / 2 };
        let steps = self.log.truth().evaluations.iter().filter(|row| {
            row.status == EvaluationStatus::Pending
                && row.trigger == Trigger::RollingUpdate
                && row.wait_until <= due_at
        });
        let jobs: Vec<_> = steps.map(|row| row.job.clone()).collect();
        let Some(job) = dice.pick(&jobs) else { return };
        self.coverage.count(Event::UpdateHurried);
        for _ in 0..dice.between(1, 3) {
            let evaluation = EvaluationId(self.ids.next());
            self.ask(Command::EvaluateJob { job: job.clone(), evaluation });
        }
    }

    /// Makes a service one that is updated step by step.
    pub(crate) fn roll(&mut self, spec: &mut JobSpec) {
        // Of tasks that crash an update never ends.
        let is_sound = spec.kind == JobKind::Service && !spec.meta.contains_key(CRASHES);
        if self.updates == 0 || !is_sound {
            return;
        }
        for group in &mut spec.groups {
            group.count = group.count.max(2) + 1;
            group.network = None;
            group.update = Some(UpdateStrategy {
                stagger_ms: 1_000,
                max_parallel: 1,
                healthy_ms_min: 1_000,
                healthy_deadline_ms: 60_000,
                progress_deadline_ms: 120_000,
            });
            for task in &mut group.tasks {
                task.resources.cpu_mhz = 100;
                // Another user is another task.
                task.user = self.chance.pick(&["", "x", "y"]).unwrap_or("").into();
            }
        }
    }
}
