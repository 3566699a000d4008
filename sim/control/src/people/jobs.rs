//! Jobs as users write them: what is drawn of each, and what a seed's features make of it.

use chance::Dice;
use fsm::{
    Job, JobKind, JobSpec,
    job::{Constraint, DelayFunction, Network, PortAsk, ReschedulePolicy, UpdateStrategy},
    testing,
};

use super::World;
use crate::cluster::{
    agent::{CRASHES, ENDLESS, OWNERS},
    coverage::{Coverage, Event},
};

/// What changes each job that is drawn.
pub(crate) trait ShapeJobs {
    /// Changes a job that was drawn.
    fn shape(&mut self, spec: &mut JobSpec, coverage: &mut Coverage);
}

impl World {
    /// A job of that name: its kind is fixed, the rest is drawn.
    pub(crate) fn draw_job(
        &mut self,
        name: &str,
        shapers: &mut dyn ShapeJobs,
        dice: &mut Dice,
    ) -> JobSpec {
        let mut spec = draw_spec(name, dice);
        if self.cluster.swarm.rich_jobs {
            enrich(&mut spec, dice);
        }
        shapers.shape(&mut spec, &mut self.cluster.coverage);
        for group in &mut spec.groups {
            let healthy_ms_min = self.cluster.chance.pick(&[1_000, 1_000, 10_000, 20_000]);
            group.migrate.healthy_ms_min = healthy_ms_min.unwrap_or(1_000);
        }
        spec
    }

    /// The same file once more, also when the job was stopped since.
    pub(super) fn as_it_was(&mut self, job: &Job) -> Option<JobSpec> {
        let spec = (**self.cluster.log.truth().current_spec(job)?).clone();
        if job.stop {
            self.cluster.coverage.count(Event::StoppedJobAgain);
        }
        Some(spec)
    }
}

/// What each job has.
fn draw_spec(name: &str, dice: &mut Dice) -> JobSpec {
    let kind = match name {
        "job0" | "job3" => JobKind::Service,
        "job1" | "batch" | "endless" => JobKind::Batch,
        "once" => JobKind::Sysbatch,
        _ => JobKind::System,
    };
    let count = u32::try_from(dice.between(0, 4)).expect("small");
    let mut spec = testing::job(name, kind, if kind.is_per_node() { 1 } else { count });
    spec.priority = dice.pick(&[50, 50, 20, 80]).unwrap_or(50);
    spec.all_at_once = dice.percent(25);
    if dice.percent(20) {
        spec.datacenters = vec!["dc1".into()];
    }
    let group = &mut spec.groups[0];
    let policy = ReschedulePolicy {
        attempts: 0,
        interval_ms: 0,
        delay_ms: dice.pick(&[0, 5_000, 30_000]).unwrap_or(0),
        delay_function: DelayFunction::Constant,
        delay_ms_max: 60_000,
        unlimited: true,
    };
    group.reschedule = (!kind.is_per_node()).then_some(policy);
    if kind == JobKind::Service && dice.percent(50) {
        group.update = Some(UpdateStrategy {
            stagger_ms: 5_000,
            max_parallel: u32::try_from(dice.between(1, 2)).expect("small"),
            healthy_ms_min: 1_000,
            healthy_deadline_ms: 60_000,
            progress_deadline_ms: 120_000,
            health_check: fsm::job::HealthCheck::TaskStates,
            canaries: 0,
            auto_promote: false,
            auto_revert: false,
        });
    }
    group.migrate.max_parallel = 1;
    if dice.percent(40) {
        group.network = Some(draw_network(dice));
    }
    if name == "endless" {
        spec.meta.insert(ENDLESS.into(), "".into());
    }
    let group = &mut spec.groups[0];
    if kind == JobKind::Service {
        // Another user is another task: the update is destructive; another timeout is not.
        group.tasks[0].user = dice.pick(&["", "", "", "x"]).unwrap_or("").into();
        group.tasks[0].kill_timeout_ms = dice.pick(&[5_000, 5_000, 6_000]).unwrap_or(5_000);
    }
    spec
}

fn draw_network(dice: &mut Dice) -> Network {
    let ask = |label: &str, value| PortAsk { label: label.into(), value, to: 0 };
    let mut ports = vec![ask("dynamic", 0)];
    if dice.percent(40) {
        ports.push(ask("static", 8_080));
    }
    if dice.percent(30) {
        ports.push(ask("more", 0));
    }
    Network { ports, names_mode: false }
}

/// What makes nodes differ for a job, and what differs between versions: constraints, hosts of their own, pools, datacenters, sizes, policies.
fn enrich(spec: &mut JobSpec, dice: &mut Dice) {
    let constraint = |left: &str, operand: &str, right: &str| Constraint {
        left: left.into(),
        operand: operand.into(),
        right: right.into(),
    };
    let rack = dice.pick(&["r1", "r2"]).unwrap_or("r1");
    match dice.below(10) {
        0 => spec.constraints.push(constraint("${meta.rack}", "=", rack)),
        1 => spec.groups[0].constraints.push(constraint("${meta.rack}", "!=", rack)),
        2 => spec.groups[0].tasks[0].constraints.push(constraint("${attr.kind}", "=", "big")),
        3 => spec.constraints.push(constraint("${attr.unique.name}", "!=", "agent1")),
        4 => {
            let owner = dice.pick(&OWNERS).unwrap_or(OWNERS[1]);
            spec.constraints.push(constraint("${meta.unique.owner}", "=", owner));
        }
        _ => {}
    }
    match dice.below(8) {
        0 => spec.constraints.push(constraint("", "distinct_hosts", "true")),
        1 => spec.groups[0].constraints.push(constraint("", "distinct_hosts", "true")),
        2 if !spec.kind.is_per_node() => {
            let most = dice.pick(&["1", "2"]).unwrap_or("1");
            let of = "${node.datacenter}";
            spec.constraints.push(constraint(of, "distinct_property", most));
        }
        _ => {}
    }
    match dice.below(8) {
        0 => spec.datacenters = vec!["dc2".into()],
        1 => spec.datacenters = vec!["dc1".into(), "dc2".into()],
        _ => {}
    }
    if dice.percent(20) {
        spec.node_pool = "all".into();
    }
    let group = &mut spec.groups[0];
    group.disk_mb = dice.pick(&[100, 100, 40_000]).unwrap_or(100);
    group.migrate.max_parallel = dice.pick(&[1, 1, 2]).unwrap_or(1);
    let task = &mut group.tasks[0];
    task.resources.cpu_mhz = dice.pick(&[500, 500, 200, 900]).unwrap_or(500);
    task.resources.memory_mb = dice.pick(&[256, 256, 3_000]).unwrap_or(256);
    let shade = dice.pick(&["", "", "blue"]).unwrap_or("");
    task.env.insert("SHADE".into(), shade.into());
    if let Some(policy) = &mut group.reschedule
        && dice.percent(30)
    {
        policy.unlimited = false;
        policy.attempts = u32::try_from(dice.between(1, 2)).expect("small");
        policy.interval_ms = 4 * 60 * 60_000;
        if dice.percent(40) {
            policy.delay_ms = 0;
            spec.meta.insert(CRASHES.into(), "".into());
        }
    }
}
