//! Users: jobs come, change and go, nodes are drained and taken out of service. A command whose outcome is unknown is sent again under the same
//! request id.

use std::sync::Arc;

use fsm::{
    Command, EvaluationId, Index, Job, JobKey, JobKind, JobSpec, Reply, RequestId,
    allocation::Replacement,
    command::{JobCommand, SettingsCommand},
    gc::{CollectGarbage, Cutoffs},
    job::{
        Constraint, DelayFunction, DeregisterJob, EvaluateJob, Network, PortAsk, RegisterJob,
        ReschedulePolicy, ScaleJob, UpdateStrategy,
    },
    node::{Drain, EvaluateNode, ReapNode, SetDrain, SetEligibility},
    session::Request,
    settings::{SchedulerConfiguration, SetSchedulerConfiguration},
    testing,
};

use crate::{
    agent::OWNERS,
    coverage::Event,
    log::{Fate, Ticket},
    oracle::live_on,
    world::World,
};
use chance::Dice;

/// Operations whose outcome is not known.
const OPEN_MAX: usize = 3;

/// Jobs that only some seeds have.
const EXTRA_JOBS: [&str; 3] = ["once", "endless", "batch"];
/// A key of a batch job's meta: its tasks do not end by themselves.
pub(crate) const ENDLESS: &str = "endless";

/// A key of a job's meta: its tasks fail soon, each of them.
pub(crate) const CRASHES: &str = "crashes";

/// A command on its way.
pub(crate) struct Operation {
    request: Request,
    command: Command,
    ticket: Option<Ticket>,
}

impl Operation {
    /// It leads to an evaluation of this job.
    pub(crate) fn is_about(&self, key: &JobKey) -> bool {
        if let Command::Job(JobCommand::RegisterJob(RegisterJob { spec, .. })) = &self.command {
            return spec.key == *key;
        }
        let Command::Job(
            JobCommand::DeregisterJob(DeregisterJob { job, .. })
            | JobCommand::EvaluateJob(EvaluateJob { job, .. }),
        ) = &self.command
        else {
            return false;
        };
        job == key
    }
}

impl World {
    /// A user does something new, or looks after what is under way.
    pub(crate) fn use_it(&mut self, dice: &mut Dice) -> bool {
        if self.operations.len() >= OPEN_MAX || dice.percent(50) {
            return self.look_after(dice);
        }
        let command = self.draw_command(dice);
        self.ask(command);
        true
    }

    /// A user wants something.
    pub(crate) fn ask(&mut self, command: Command) {
        let payload_hash = testing::payload_hash(&command);
        let request = Request {
            id: RequestId(self.ids.next()),
            stamped_at: self.log.truth().at(),
            payload_hash,
        };
        self.operations.push(Operation { request, command, ticket: None });
    }

    /// Nobody asks again for these.
    pub(crate) fn forget_operations(&mut self, is_one: impl Fn(&Command) -> bool) {
        self.operations.retain(|one| !is_one(&one.command));
    }

    /// An operator drains the node that runs most, in one way or another.
    pub(crate) fn drain_a_busy_node(&mut self, dice: &mut Dice) {
        let truth = self.log.truth();
        let busy = self.agents.iter().map(|agent| agent.node);
        let busy = busy.max_by_key(|node| live_on(truth, *node).len());
        let Some(node) = busy else { return };
        let started_at = truth.at();
        // One without a deadline has to be forced: otherwise it may wait for ever.
        let force = dice.percent(30);
        let ends = !force || dice.percent(50);
        let deadline_at = ends.then(|| started_at + dice.between(10, 300) * 1_000);
        let drain = Drain {
            started_at,
            deadline_at,
            force,
            ignore_system: dice.percent(30),
            owner: "operator".into(),
            cancelable: false,
        };
        let evaluation_ids = self.evaluation_ids(4);
        self.ask(Command::from(SetDrain {
            node,
            drain: Some(drain),
            mark_eligible: false,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids,
        }));
    }

    /// Somebody has every job evaluated at once: all workers plan at the same time.
    pub(crate) fn evaluate_everything(&mut self) {
        let jobs: Vec<_> = self.log.truth().jobs().iter().map(|row| row.key.clone()).collect();
        for job in jobs {
            let evaluation = EvaluationId(self.ids.next());
            self.ask(Command::from(EvaluateJob { job, force_reschedule: false, evaluation }));
        }
    }

    /// An operator pauses the broker, or lets it go on. What was asked for before and is not in the log does not come after it.
    pub(crate) fn pause(&mut self, pause_eval_broker: bool) {
        self.forget_operations(|command| {
            matches!(command, Command::Settings(SettingsCommand::SetSchedulerConfiguration(_)))
        });
        let known = self.log.truth().scheduler_configuration().clone();
        let configuration = SchedulerConfiguration { pause_eval_broker, ..known };
        self.ask(Command::from(SetSchedulerConfiguration {
            configuration,
            keep_node_life: true,
            enforce_index: None,
        }));
    }

    /// Sends what was not sent, or whose outcome was lost; ends what was answered.
    pub(crate) fn look_after(&mut self, dice: &mut Dice) -> bool {
        if self.operations.is_empty() {
            return false;
        }
        let place = dice.index(self.operations.len());
        let operation = &self.operations[place];
        if let Some(ticket) = operation.ticket {
            match self.log.fate(ticket) {
                Fate::Open => return false,
                Fate::Committed(index) if !dice.percent(self.swarm.reply_loss) => {
                    let operation = self.operations.remove(place);
                    self.acknowledge(&operation, index);
                    return true;
                }
                Fate::Committed(_) | Fate::Lost => {}
            }
        }
        let (command, request) = (operation.command.clone(), operation.request);
        let ticket = self.propose_for_client(command, Some(request), dice);
        self.operations[place].ticket = ticket;
        ticket.is_some()
    }

    /// I18: what was acknowledged stays.
    fn acknowledge(&mut self, operation: &Operation, index: fsm::Index) {
        let applied = self.log.at(index);
        let gone = applied.and_then(|applied| {
            let Reply::Job { evaluation: Some(id), .. } = &applied.reply else { return None };
            (!applied.state.evaluations().contains(id)).then_some(*id)
        });
        // A retry may be answered after the collector came by.
        let first = applied.is_some_and(|applied| !applied.effects.is_empty());
        if let Some(id) = gone.filter(|_| first) {
            self.fail(format!("I18: evaluation {id} was acknowledged and is not there"));
        }
        let id = operation.request.id;
        self.trace(|| format!("request {id:?} was answered at {index}"));
    }

    fn draw_command(&mut self, dice: &mut Dice) -> Command {
        let evaluation = EvaluationId(self.ids.next());
        let name = format!("job{}", dice.index(self.swarm.jobs));
        let extra = self.swarm.extra_jobs && dice.percent(25);
        let name = if extra { dice.pick(&EXTRA_JOBS).unwrap_or("").to_owned() } else { name };
        let job = testing::job_key(&name);
        if self.swarm.bad_garbage && dice.percent(15) {
            return self.collect_everything();
        }
        let known = self.log.truth().jobs().get(&job).cloned();
        let choice = if known.is_none() { 0 } else { dice.below(20) };
        match choice {
            0..9 => {
                let again = known.as_ref().filter(|_| self.chance.percent(15));
                let was = again.and_then(|known| self.as_it_was(known));
                let spec = was.unwrap_or_else(|| self.draw_job(&name, dice));
                let enforce_index =
                    if dice.percent(15) { Some(draw_index(known.as_deref(), dice)) } else { None };
                let spec = Arc::new(spec);
                Command::from(RegisterJob { enforce_index, ..RegisterJob::new(spec, evaluation) })
            }
            9 | 10 => {
                let purge = self.swarm.operators && dice.percent(40);
                Command::from(DeregisterJob {
                    job,
                    purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                })
            }
            11 => {
                Command::from(EvaluateJob { job, force_reschedule: dice.percent(30), evaluation })
            }
            12 => Command::from(ScaleJob {
                job,
                group: fsm::testing::GROUP.into(),
                count: (!dice.percent(15)).then(|| u32::from(evaluation.0[1] % 6)),
                enforce_index: None,
                message: "drawn".into(),
                error: dice.percent(10),
                meta_json: "".into(),
                evaluation,
            }),
            13 | 14 => {
                let ids: Vec<_> =
                    self.log.truth().allocations_of_job(&job).map(|row| row.id).collect();
                match dice.pick(&ids) {
                    Some(id) => {
                        let all = [Replacement::ByKind, Replacement::Always, Replacement::Never];
                        let replacement = all[usize::from(evaluation.0[0]) % all.len()];
                        testing::stop_allocation(id, replacement, evaluation)
                    }
                    None => Command::from(EvaluateJob { job, force_reschedule: false, evaluation }),
                }
            }
            _ if self.swarm.operators => self.draw_operator(dice),
            _ => Command::from(EvaluateJob { job, force_reschedule: false, evaluation }),
        }
    }

    /// A job of that name: its kind is fixed, the rest is drawn.
    pub(crate) fn draw_job(&mut self, name: &str, dice: &mut Dice) -> JobSpec {
        let mut spec = draw_spec(name, dice);
        if self.swarm.rich_jobs {
            enrich(&mut spec, dice);
        }
        self.divide(&mut spec);
        self.rank(&mut spec);
        self.leave_a_key(&mut spec);
        self.roll(&mut spec);
        self.draw_rollout(&mut spec);
        for group in &mut spec.groups {
            let healthy_ms_min = self.chance.pick(&[1_000, 1_000, 10_000, 20_000]);
            group.migrate.healthy_ms_min = healthy_ms_min.unwrap_or(1_000);
        }
        spec
    }

    /// The same file once more, also when the job was stopped since.
    fn as_it_was(&mut self, job: &Job) -> Option<JobSpec> {
        let spec = (**self.log.truth().current_spec(job)?).clone();
        if job.stop {
            self.coverage.count(Event::StoppedJobAgain);
        }
        Some(spec)
    }

    /// Names all there is, with the usual cut-offs: what is in use or too young must stay.
    fn collect_everything(&self) -> Command {
        let truth = self.log.truth();
        let (at, gc) = (truth.at(), &self.swarm.gc);
        Command::from(CollectGarbage {
            cutoffs: Cutoffs {
                evaluations: at.saturating_sub(gc.evaluation_ms),
                batch_evaluations: at.saturating_sub(gc.batch_evaluation_ms),
                jobs: at.saturating_sub(gc.job_ms),
                deployments: at.saturating_sub(gc.deployment_ms),
                children_max: gc.children_max,
            },
            jobs: truth.jobs().iter().map(|row| row.key.clone()).collect(),
            allocations: truth.allocations().iter().map(|row| row.id).collect(),
            evaluations: truth.evaluations().iter().map(|row| row.id).collect(),
            deployments: truth.deployments().iter().map(|row| row.id).collect(),
            classes: truth.nodes().iter().map(|row| row.class).collect(),
        })
    }

    fn draw_operator(&mut self, dice: &mut Dice) -> Command {
        let node = self.agents[dice.index(self.agents.len())].node;
        let evaluation_ids = self.evaluation_ids(2);
        let started_at = self.log.truth().at();
        match dice.below(10) {
            0..3 => Command::from(SetEligibility {
                node,
                eligible: dice.percent(60),
                by: "operator".into(),
                reason: "".into(),
                evaluation_ids,
            }),
            3..6 => {
                let unit_ms = if self.swarm.rich_nodes { 4_000 } else { 1_000 };
                let deadline_at = Some(started_at + dice.between(1, 60) * unit_ms);
                let drain = Drain {
                    started_at,
                    deadline_at,
                    force: dice.percent(20),
                    ignore_system: dice.percent(30),
                    owner: "operator".into(),
                    cancelable: false,
                };
                Command::from(SetDrain {
                    node,
                    drain: Some(drain),
                    mark_eligible: false,
                    meta: std::collections::BTreeMap::new(),
                    evaluation_ids,
                })
            }
            6..8 => Command::from(SetDrain {
                node,
                drain: None,
                mark_eligible: true,
                meta: std::collections::BTreeMap::new(),
                evaluation_ids,
            }),
            8 => Command::from(EvaluateNode { node, evaluation_ids }),
            _ => Command::from(ReapNode {
                node,
                incarnation: None,
                force: dice.percent(30),
                evaluation_ids,
            }),
        }
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

/// An index that a user believes the job to be of: right, near, or made up.
fn draw_index(job: Option<&Job>, dice: &mut Dice) -> Index {
    let (of_spec, of_row) = job.map_or((0, 0), |job| (job.job_modify_index, job.modify_index));
    dice.pick(&[of_spec, of_spec, of_row, of_spec + 1, 0]).unwrap_or(0)
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
