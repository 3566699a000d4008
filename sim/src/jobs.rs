//! The workload of jobs and allocations: one operator registers, scales, stops and purges services, stops allocations, drains nodes, and reads the
//! whole state, which is judged row by row each time.
//!
//! The operator is alone, so that what a job may be is known exactly: what was acknowledged last, or something begun whose outcome nobody knows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fsm::{
    AllocationId, Command, EvaluationId, JobKey, JobKind, JobSpec, NodeId, Rejection, Reply,
    RequestId, State,
    allocation::{Replacement, StopAllocation},
    job::{Constraint, DeregisterJob, EvaluateJob, RegisterJob, UpdateStrategy},
    node::{Drain, ReapNode, SetDrain, SetEligibility},
};

use crate::{
    agent::RACKS, client, coverage, invariants, services::CALLER, trace, verdict, world::World,
};
use chance::Dice;
use ground::rt::{self, Instant, watch};
use server::Core;
use wire::api::{Api, ApiError, ReadMode, Written};

/// Services that the operator plays with.
const SERVICES: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(5);
const META_KEY: &str = "operation";

/// What a job may be, seen from its only operator.
#[derive(Default, Debug)]
pub(crate) struct Known {
    /// Operations whose content the job may have; 0: it is not there.
    allowed: BTreeSet<u64>,
    /// Operations that nobody knows the outcome of: they may still take effect.
    unknown: BTreeSet<u64>,
}

impl Known {
    fn new() -> Self {
        Self { allowed: BTreeSet::from([0]), unknown: BTreeSet::new() }
    }

    /// An operation that puts `content` there (0 for a purge) took effect.
    fn acknowledged(&mut self, content: u64) {
        self.allowed = self.unknown.clone();
        self.allowed.insert(content);
    }

    /// Nobody knows whether it did, or will.
    fn unknown(&mut self, content: u64) {
        self.unknown.insert(content);
        self.allowed.insert(content);
    }

    /// The job was seen with this content.
    fn seen(&self, job: &str, content: u64) -> Result<(), String> {
        if self.allowed.contains(&content) {
            return Ok(());
        }
        Err(format!(
            "{job} is as operation {content} left it, which it cannot be: {:?}",
            self.allowed
        ))
    }
}

/// The operator.
pub(crate) struct Operator {
    world: World,
    dice: Dice,
    /// For what only some seeds do: no throw of these dice changes the others.
    more: Dice,
    /// Jobs ask for more than a count, and there are more of them.
    rich: bool,
    extras: [Arc<JobSpec>; 2],
    templates: [Arc<JobSpec>; 2],
    known: BTreeMap<usize, Known>,
    operations: u64,
    drained: BTreeSet<NodeId>,
    /// Nodes it ever took out of service: a request of unknown outcome may do so again after they were brought back.
    touched: BTreeSet<NodeId>,
}

/// What the operator asks of a service.
#[derive(Clone, Copy, Debug)]
struct Wish {
    count: u32,
    cpu_mhz: u64,
    with_ports: bool,
    distinct: bool,
    more: Option<More>,
}

/// What a rich job asks for besides.
#[derive(Clone, Copy, Debug)]
struct More {
    rack: Option<(&'static str, &'static str)>,
    datacenter: Option<&'static str>,
    memory_mb: u64,
    /// Another user is another task: the update replaces instances.
    user: &'static str,
    /// Instances updated at a time.
    parallel: Option<u32>,
    priority: u16,
    second: Option<Second>,
}

/// A second group, with a constraint of its own.
#[derive(Clone, Copy, Debug)]
struct Second {
    count: u32,
    rack: Option<&'static str>,
}

impl More {
    fn draw(dice: &mut Dice) -> Self {
        let operand = if dice.below(3) == 0 { "!=" } else { "=" };
        Self {
            rack: (dice.below(3) == 0).then(|| (operand, RACKS[dice.index(RACKS.len())])),
            datacenter: (dice.below(4) == 0).then(|| ["dc1", "dc2"][dice.index(2)]),
            memory_mb: [64, 64, 1_500][dice.index(3)],
            user: ["", "", "x"][dice.index(3)],
            parallel: (dice.below(2) == 0).then_some(1),
            priority: [50, 20, 80][dice.index(3)],
            second: (dice.below(3) == 0).then(|| Second {
                count: u32::try_from(dice.below(3)).expect("it is small"),
                rack: (dice.below(2) == 0).then(|| RACKS[dice.index(RACKS.len())]),
            }),
        }
    }

    fn put_in(self, spec: &mut JobSpec) {
        if let Some((operand, rack)) = self.rack {
            spec.constraints.push(rack_constraint(operand, rack));
        }
        if let Some(datacenter) = self.datacenter {
            spec.datacenters = vec![datacenter.into()];
        }
        spec.priority = self.priority;
        for group in &mut spec.groups {
            group.update = self.parallel.map(|max_parallel| UpdateStrategy {
                stagger_ms: 1_000,
                max_parallel,
                healthy_ms_min: 500,
                healthy_deadline_ms: 60_000,
                progress_deadline_ms: 120_000,
                health_check: fsm::job::HealthCheck::TaskStates,
                canaries: 0,
                auto_promote: false,
                auto_revert: false,
            });
            for task in &mut group.tasks {
                task.resources.memory_mb = self.memory_mb;
                task.user = self.user.into();
            }
        }
        if let Some(second) = self.second {
            let mut group = spec.groups[0].clone();
            group.name = "second".into();
            group.count = second.count;
            group.constraints.extend(second.rack.map(|rack| rack_constraint("=", rack)));
            spec.groups.push(group);
            coverage::hit("a job of two groups was asked for");
        }
    }
}

fn rack_constraint(operand: &str, rack: &str) -> Constraint {
    Constraint { left: "${meta.rack}".into(), operand: operand.into(), right: rack.into() }
}

fn key_of(service: usize) -> JobKey {
    JobKey { namespace: "default".into(), id: format!("service-{service}").into() }
}

fn template(more: &str, kill_after: &str) -> anyhow::Result<Arc<JobSpec>> {
    let spec = client::job(&format!(
        r#"job "service" {{
             group "work" {{
               {more}
               reschedule {{
                 delay = "5s"
                 delay_function = "constant"
                 unlimited = true
               }}
               task "task" {{
                 driver = "mock"
                 config {{
                   start_block_for = "40ms"
                   kill_after = "{kill_after}"
                 }}
               }}
             }}
           }}"#
    ))?;
    Ok(Arc::new(spec))
}

/// A job of another kind than the services.
fn extra(id: &str, kind: &str) -> anyhow::Result<JobSpec> {
    let config = match kind {
        "batch" => {
            r#"config {
                   run_for = "1500ms"
                   kill_after = "400ms"
                 }"#
        }
        _ => "",
    };
    client::job(&format!(
        r#"job "{id}" {{
             type = "{kind}"
             group "work" {{
               task "task" {{
                 driver = "mock"
                 {config}
                 resources {{
                   cpu = 150
                   memory = 64
                 }}
               }}
             }}
           }}"#
    ))
}

fn drain_command(node: NodeId, drain: Option<Drain>) -> Command {
    Command::from(SetDrain {
        node,
        mark_eligible: drain.is_none(),
        meta: std::collections::BTreeMap::new(),
        drain,
        evaluation_ids: (0..8).map(|_| EvaluationId(rt::random_id())).collect(),
    })
}

impl Operator {
    /// The operator of a run.
    pub(crate) fn new(world: World) -> anyhow::Result<Self> {
        let dice = Dice::named(world.swarm.seed, "operator");
        let ports = r#"network {
          port "a" { static = 8080 }
          port "b" {}
        }
        shutdown_delay = "1500ms""#;
        // What holds a port and ends slowly makes what comes after it wait.
        let templates = [template("", "200ms")?, template(ports, "2500ms")?];
        let known = (0..SERVICES).map(|service| (service, Known::new())).collect();
        let mut more = Dice::named(world.swarm.seed, "operator, more");
        let rich = more.below(2) == 0;
        let extras = [Arc::new(extra("nightly", "batch")?), Arc::new(extra("daemon", "system")?)];
        let (drained, touched) = (BTreeSet::new(), BTreeSet::new());
        let operations = 0;
        Ok(Self { world, dice, more, rich, extras, templates, known, operations, drained, touched })
    }

    /// Works until told to stop; then it is given back for the end.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Self {
        while !*stop.borrow() {
            self.step().await;
            let pause = Duration::from_millis(self.dice.between(20, 600));
            drop(rt::timeout(pause, rt::until_true(&mut stop)).await);
        }
        self
    }

    async fn step(&mut self) {
        if self.rich && self.more.below(6) == 0 {
            self.step_of_rich().await;
            return;
        }
        let service = self.dice.index(SERVICES);
        match self.dice.below(12) {
            0..=3 => {
                let wish = self.wish();
                self.register(service, wish).await;
            }
            4 => self.deregister(service, false).await,
            5 => self.deregister(service, true).await,
            6 => self.evaluate(&key_of(service)).await,
            7 => self.stop_one().await,
            8 => self.drain_or_not().await,
            _ => drop(self.look().await),
        }
    }

    fn wish(&mut self) -> Wish {
        Wish {
            count: u32::try_from(self.dice.below(6)).expect("it is small"),
            cpu_mhz: [200, 900, 2_500][self.dice.index(3)],
            with_ports: self.dice.below(3) == 0,
            distinct: self.dice.below(4) == 0,
            more: self.rich.then(|| More::draw(&mut self.more)),
        }
    }

    /// What only rich seeds do: a batch job and a system job come, change and go.
    async fn step_of_rich(&mut self) {
        let number = self.more.index(self.extras.len());
        let key = self.extras[number].key.clone();
        match self.more.below(9) {
            8 => self.purge_node().await,
            0..=3 => {
                let mut spec = (*self.extras[number]).clone();
                More::draw(&mut self.more).put_in(&mut spec);
                for group in &mut spec.groups {
                    group.update = None;
                    if spec.kind.is_per_node() {
                        group.count = group.count.min(1);
                    }
                }
                self.register_extra(spec).await;
            }
            4 => drop(self.end_extra(&key).await),
            _ => self.evaluate(&key).await,
        }
    }

    async fn register_extra(&mut self, spec: JobSpec) {
        let command =
            Command::from(RegisterJob::new(Arc::new(spec), EvaluationId(rt::random_id())));
        drop(self.ask("register a job of another kind", command).await);
    }

    async fn end_extra(&mut self, key: &JobKey) -> bool {
        let command = Command::from(DeregisterJob {
            job: key.clone(),
            purge: self.more.below(2) == 0,
            evaluation: EvaluationId(rt::random_id()),
            evaluation_priority: None,
            no_shutdown_delay: false,
        });
        matches!(self.ask("end a job of another kind", command).await, Some(Ok(_)))
    }

    fn server(&mut self) -> usize {
        self.dice.index(self.world.count())
    }

    async fn ask(&mut self, what: &str, command: Command) -> Option<Result<Written, ApiError>> {
        let server = self.server();
        let request = RequestId(rt::random_id());
        let limit = self.world.swarm.patience(request);
        let work = move |core: Arc<Core>| async move {
            core.write(&CALLER, command, Some(request), limit).await
        };
        let begin = Instant::now();
        let answer = self.world.inside(server, work).await;
        self.world.keeps_deadline(server, begin, limit, answer.is_some(), "an operation");
        match &answer {
            Some(Ok(written)) => {
                self.world.acknowledged(written.index);
                trace::event("op", format_args!("{what}: {} {:?}", written.index, written.reply));
            }
            Some(Err(error)) => trace::event("op", format_args!("{what}: {error}")),
            None => trace::event("op", format_args!("{what}: the server is gone")),
        }
        if let Some(Err(ApiError::Overloaded { .. })) = answer {
            coverage::hit("work was refused for overload");
        }
        answer
    }

    fn spec(&self, service: usize, wish: Wish, operation: u64) -> JobSpec {
        let mut spec = (*self.templates[usize::from(wish.with_ports)]).clone();
        spec.key = key_of(service);
        spec.name = Arc::clone(&spec.key.id);
        spec.meta.insert(META_KEY.into(), operation.to_string().into());
        for group in &mut spec.groups {
            group.count = wish.count;
            for task in &mut group.tasks {
                task.resources.cpu_mhz = wish.cpu_mhz;
            }
        }
        if let Some(more) = wish.more {
            more.put_in(&mut spec);
        }
        if wish.distinct {
            spec.constraints.push(Constraint {
                left: "".into(),
                operand: "distinct_hosts".into(),
                right: "true".into(),
            });
        }
        spec
    }

    async fn register(&mut self, service: usize, wish: Wish) -> bool {
        self.operations += 1;
        let operation = self.operations;
        let command = Command::from(RegisterJob::new(
            Arc::new(self.spec(service, wish, operation)),
            EvaluationId(rt::random_id()),
        ));
        let what = format!("{operation}: service-{service} as {wish:?}");
        let answer = self.ask(&what, command).await;
        self.judge(service, operation, answer)
    }

    async fn deregister(&mut self, service: usize, purge: bool) {
        self.operations += 1;
        let command = Command::from(DeregisterJob {
            job: key_of(service),
            purge,
            evaluation: EvaluationId(rt::random_id()),
            evaluation_priority: None,
            no_shutdown_delay: false,
        });
        let what = format!("stop service-{service}, purge {purge}");
        let answer = self.ask(&what, command).await;
        if purge {
            self.judge(service, 0, answer);
        }
    }

    /// True when it took effect for certain.
    fn judge(
        &mut self,
        service: usize,
        content: u64,
        answer: Option<Result<Written, ApiError>>,
    ) -> bool {
        let known = self.known.get_mut(&service).expect("all services are there from the start");
        match answer {
            Some(Ok(written)) => match written.reply {
                Reply::Job { .. } => {
                    known.acknowledged(content);
                    return true;
                }
                Reply::Rejected(Rejection::SessionExpired) => known.unknown(content),
                other @ (Reply::Done
                | Reply::Rejected(_)
                | Reply::Node { .. }
                | Reply::Evaluations(_)
                | Reply::Plans(_)
                | Reply::Deployment { .. }
                | Reply::Dispatched(_)
                | Reply::Collected(_)
                | Reply::Requirements(_)) => {
                    verdict::fail(format!("an operation on service-{service} got {other:?}"));
                }
            },
            Some(Err(error)) if client::is_certain(&error) && !self.world.may_repeat() => {}
            Some(Err(_)) | None => known.unknown(content),
        }
        false
    }

    async fn evaluate(&mut self, job: &JobKey) {
        let command = Command::from(EvaluateJob {
            job: job.clone(),
            force_reschedule: false,
            evaluation: EvaluationId(rt::random_id()),
        });
        drop(self.ask("evaluate", command).await);
    }

    /// Stops an allocation that lives, if one does.
    async fn stop_one(&mut self) {
        let Some(state) = self.world.newest() else { return };
        let live: Vec<AllocationId> =
            state.allocations().iter().filter(|row| row.is_live()).map(|row| row.id).collect();
        drop(state);
        if live.is_empty() {
            return;
        }
        let id = live[self.dice.index(live.len())];
        let command = Command::from(StopAllocation {
            id,
            replacement: Replacement::Always,
            no_shutdown_delay: false,
            evaluation: EvaluationId(rt::random_id()),
        });
        drop(self.ask("stop an allocation", command).await);
    }

    /// Forgets a node, whatever runs on it: its agent has to register again.
    async fn purge_node(&mut self) {
        let Some(node) = any_node(&self.world, &mut self.more) else { return };
        let evaluation_ids = (0..8).map(|_| EvaluationId(rt::random_id())).collect();
        let command =
            Command::from(ReapNode { node, incarnation: None, force: true, evaluation_ids });
        self.world.is_purged(node);
        if let Some(Ok(_)) = self.ask(&format!("purge {node}"), command).await {
            coverage::hit("a node was purged");
        }
    }

    /// Takes a node out of service, or brings one back.
    async fn drain_or_not(&mut self) {
        let Some(node) = any_node(&self.world, &mut self.dice) else { return };
        self.touched.insert(node);
        let eligible = !self.drained.insert(node);
        self.set_eligible(node, eligible).await;
    }

    async fn set_eligible(&mut self, node: NodeId, eligible: bool) -> bool {
        let command = Command::from(SetEligibility {
            node,
            eligible,
            by: "operator".into(),
            reason: "simulation".into(),
            evaluation_ids: (0..8).map(|_| EvaluationId(rt::random_id())).collect(),
        });
        let answer = self.ask(&format!("node {node} eligible {eligible}"), command).await;
        let done = matches!(answer, Some(Ok(_)));
        if done && eligible {
            self.drained.remove(&node);
        }
        done
    }

    /// Ends what keeps a node out of service.
    async fn bring_back(&mut self, node: NodeId) -> bool {
        if self.rich {
            let answer = self.ask(&format!("bring {node} back"), drain_command(node, None)).await;
            if !matches!(answer, Some(Ok(_))) {
                return false;
            }
        }
        // The end of a drain gives back what the drain took, not what the operator took.
        self.set_eligible(node, true).await
    }

    /// Reads everything, linearizably, and judges it.
    async fn look(&mut self) -> Option<Arc<State>> {
        let server = self.server();
        let work = |core: Arc<Core>| async move {
            core.read(&CALLER, ReadMode::Linearizable, 0, TIMEOUT).await
        };
        let snapshot = self.world.inside(server, work).await?.ok()?;
        trace::event("op", format_args!("looked at {} via s{server}", snapshot.state.index()));
        for broken in invariants::check_state(&snapshot.state) {
            verdict::fail(format!("{broken} (read through s{server})"));
        }
        for (service, known) in &self.known {
            let key = key_of(*service);
            let content = content_of(&snapshot.state, &key);
            verdict::note(known.seen(&key.id, content));
        }
        Some(snapshot.state)
    }

    /// After the faults: nodes back in service, and every service as small as it fits. False when that took too long.
    pub(crate) async fn settle(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        for node in self.touched.clone() {
            while !self.bring_back(node).await {
                if Instant::now() >= deadline {
                    verdict::fail(format!("no node could be changed {within:?} after the faults"));
                    return false;
                }
                rt::sleep(Duration::from_millis(200)).await;
            }
        }
        for key in self.extras.clone().map(|spec| spec.key.clone()) {
            while self.rich && !self.end_extra(&key).await {
                if Instant::now() >= deadline {
                    verdict::fail(format!("no job could be ended {within:?} after the faults"));
                    return false;
                }
                rt::sleep(Duration::from_millis(200)).await;
            }
        }
        for service in 0..SERVICES {
            let (with_ports, distinct, more) = (false, false, None);
            let wish = Wish { count: 2, cpu_mhz: 100, with_ports, distinct, more };
            while !self.register(service, wish).await {
                if Instant::now() >= deadline {
                    verdict::fail(format!(
                        "no job could be registered {within:?} after the faults"
                    ));
                    return false;
                }
                rt::sleep(Duration::from_millis(200)).await;
            }
        }
        true
    }

    /// The last look.
    pub(crate) async fn finish(&mut self) {
        for _ in 0..20 {
            if self.look().await.is_some() {
                return;
            }
            rt::sleep(Duration::from_millis(200)).await;
        }
        verdict::fail("no server let anyone read at the end".to_owned());
    }
}

/// A node that the servers know.
fn any_node(world: &World, dice: &mut Dice) -> Option<NodeId> {
    let nodes: Vec<NodeId> = world.newest()?.nodes().iter().map(|node| node.id).collect();
    (!nodes.is_empty()).then(|| nodes[dice.index(nodes.len())])
}

/// The operation that left the job as it is; 0: it is not there.
fn content_of(state: &State, key: &JobKey) -> u64 {
    let spec = state.jobs().get(key).and_then(|job| state.current_spec(job));
    spec.and_then(|spec| spec.meta.get(META_KEY)?.parse().ok()).unwrap_or(0)
}

/// How many instances of a service run.
pub(crate) fn running(state: &State, key: &JobKey) -> usize {
    let is_running =
        |row: &&Arc<fsm::Allocation>| row.is_live() && row.client == fsm::ClientStatus::Running;
    state.allocations_of_job(key).filter(is_running).count()
}

/// The services that do not run as they are wanted.
pub(crate) fn not_as_wanted(state: &State) -> Vec<String> {
    let services =
        state.jobs().iter().filter(|job| job.kind == JobKind::Service && !job.parameterized);
    services
        .filter(|job| !job.stop)
        .filter_map(|job| {
            let spec = state.current_spec(job)?;
            let wanted: u32 = spec.groups.iter().map(|group| group.count).sum();
            let runs = running(state, &job.key);
            (runs != wanted as usize)
                .then(|| format!("I39: {} instances of {} run, of {wanted}", runs, job.key.id))
        })
        .collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_what_was_acknowledged_last_or_what_nobody_knows_of() {
        let mut known = Known::new();
        known.seen("j", 0).unwrap();
        known.acknowledged(1);
        assert!(known.seen("j", 0).is_err());
        known.unknown(2);
        known.seen("j", 1).unwrap();
        known.seen("j", 2).unwrap();
        known.acknowledged(3);
        assert!(known.seen("j", 1).is_err(), "an acknowledged change is not undone");
        known.seen("j", 2).unwrap();
        known.seen("j", 3).unwrap();
    }
}
