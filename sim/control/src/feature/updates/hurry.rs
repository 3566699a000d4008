//! Rolling updates in a hurry: in one of three seeds services have several instances and are updated one at a time, and while a step waits for its time
//! somebody has the job evaluated again and again.

use fsm::{
    Command, JobKind, JobSpec,
    job::{EvaluateJob, RegisterJob, UpdateStrategy},
};

use super::Updates;
use crate::{
    cluster::{agent::CRASHES, coverage::Event},
    people::World,
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x7570_6461_7465_6131;

/// The hurry of a seed.
#[derive(Clone)]
pub(super) struct Hurry {
    seed: u64,
    /// Percent of steps before which a service is updated or looked at.
    percent: u64,
    /// Dice of the step under way.
    dice: Dice,
}

impl Hurry {
    /// The hurry of a seed, if it has any.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        let percent = if dice.percent(67) { return None } else { dice.between(30, 100) };
        Some(Self { seed, percent, dice: Dice::numbered(seed ^ LABEL, u64::MAX - 1) })
    }

    /// A step begins.
    pub(super) fn begin(&mut self, step: u64) {
        self.dice = Dice::numbered(self.seed ^ LABEL, step);
    }

    /// Makes a service one that is updated step by step.
    pub(super) fn roll(&mut self, spec: &mut JobSpec) {
        if !ends(spec) {
            return;
        }
        for group in &mut spec.groups {
            group.count = group.count.max(3);
            group.network = None;
            group.update = Some(UpdateStrategy {
                stagger_ms: 1_000,
                max_parallel: 1,
                healthy_ms_min: 1_000,
                healthy_deadline_ms: 60_000,
                progress_deadline_ms: 120_000,
                health_check: fsm::job::HealthCheck::TaskStates,
                canaries: 0,
                auto_promote: false,
                auto_revert: false,
            });
            for task in &mut group.tasks {
                task.resources.cpu_mhz = 100;
                // Another user is another task.
                task.user = self.dice.pick(&["", "x", "y"]).unwrap_or("").into();
            }
        }
    }
}

impl Updates {
    /// Before a step: sometimes a service at rest gets another version, or a job whose next step of an update waits is evaluated, once or more. Never
    /// when somebody looks at the job anyway, now or soon: one evaluation more makes good what the one before did wrong.
    pub(super) fn hurry_updates(&mut self, world: &mut World) {
        let Some(Hurry { percent, mut dice, .. }) = self.hurry.clone() else { return };
        if !dice.percent(percent) {
            return;
        }
        let truth = world.cluster.log.truth();
        let services = truth.jobs().iter().filter(|job| job.kind == JobKind::Service && !job.stop);
        let keys: Vec<_> = services.map(|job| job.key.clone()).collect();
        let Some(key) = dice.pick(&keys) else { return };
        let open = truth.evaluations().iter().filter(|row| !row.status.is_terminal());
        let open: Vec<_> = open.filter(|row| row.job == key).collect();
        if world.people.see_to(&key) {
            return;
        }
        let rolls = truth.active_deployment(&key).is_some();
        match open.as_slice() {
            [] if !rolls => {
                let job = truth.jobs().get(&key);
                let spec = job.and_then(|job| truth.current_spec(job)).map(|spec| (**spec).clone());
                let Some(mut spec) = spec.filter(ends) else { return };
                self.roll(&mut spec);
                let (spec, evaluation) = (spec.into(), world.cluster.ids.evaluation());
                let (enforce_index, evaluation_priority) = (None, None);
                world.ask(Command::from(RegisterJob {
                    enforce_index,
                    evaluation_priority,
                    ..RegisterJob::new(spec, evaluation)
                }));
            }
            [] => {
                world.cluster.coverage.count(Event::UpdateHurried);
                for _ in 0..dice.between(1, 3) {
                    let evaluation = world.cluster.ids.evaluation();
                    world.ask(Command::from(EvaluateJob {
                        job: key.clone(),
                        force_reschedule: false,
                        evaluation,
                    }));
                }
            }
            [_, ..] => {}
        }
    }
}

/// Whether a rolling update of the job comes to its end: one of tasks that crash never does.
fn ends(spec: &JobSpec) -> bool {
    spec.kind == JobKind::Service && !spec.meta.contains_key(CRASHES)
}
