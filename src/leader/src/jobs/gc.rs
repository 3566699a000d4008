//! The garbage collector: walks the state a slice at a time and names what may be forgotten.
//!
//! It owns a timer and a place in the walk, nothing else. The rules are [`fsm::State`]'s, which
//! judges each row again when the command is applied; a command that was lost is found again by the
//! next walk. Order: jobs first, because what a job leaves behind is free once it is gone, then
//! evaluations with their allocations, then allocations whose evaluation was deleted, then
//! deployments. A walk with all cut-offs at the present
//! ([`GarbageCollector::forced`]) needs no leader: anyone may propose it.

use fsm::{
    AllocationId, Command, DeploymentId, Effect, EvaluationId, Index, JobKey, State,
    gc::{CollectGarbage, Cutoffs},
    id::ClassId,
};

use crate::{
    limits,
    machine::{Ids, Machine, Stepped},
};

/// How long things are kept after their end, and the pause between two walks; milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcConfig {
    pub interval_ms: u64,
    /// Evaluations and allocations of service and system jobs.
    pub evaluation_ms: u64,
    /// Evaluations and allocations of batch and sysbatch jobs that are alive.
    pub batch_evaluation_ms: u64,
    /// Dead jobs, after their submission.
    pub job_ms: u64,
    pub deployment_ms: u64,
    /// Dead children that a job keeps, however young the others are.
    pub children_max: u64,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            interval_ms: limits::GC_INTERVAL_MS,
            evaluation_ms: limits::GC_EVALUATION_MS,
            batch_evaluation_ms: limits::GC_BATCH_EVALUATION_MS,
            job_ms: limits::GC_JOB_MS,
            deployment_ms: limits::GC_DEPLOYMENT_MS,
            children_max: limits::GC_CHILDREN_MAX,
        }
    }
}

impl GcConfig {
    fn cutoffs(self, now: u64) -> Cutoffs {
        Cutoffs {
            evaluations: now.saturating_sub(self.evaluation_ms),
            batch_evaluations: now.saturating_sub(self.batch_evaluation_ms),
            jobs: now.saturating_sub(self.job_ms),
            deployments: now.saturating_sub(self.deployment_ms),
            children_max: self.children_max,
        }
    }
}

/// Where a walk is.
#[derive(Clone, Debug)]
enum Place {
    Jobs(JobKey),
    /// Children of this job, from one of them on.
    Children(JobKey, (Index, JobKey)),
    Evaluations(EvaluationId),
    /// Allocations whose evaluation was deleted by an operator.
    Orphans(AllocationId),
    Deployments(DeploymentId),
    End,
}

/// One walk through a state.
#[derive(Clone, Debug)]
struct Walk {
    cutoffs: Cutoffs,
    place: Place,
}

impl Walk {
    fn new(cutoffs: Cutoffs) -> Self {
        Self { cutoffs, place: Place::Jobs(JobKey::new("", "")) }
    }
}

/// What one step of a walk found.
#[derive(Default)]
struct Batch {
    jobs: Vec<JobKey>,
    allocations: Vec<AllocationId>,
    evaluations: Vec<EvaluationId>,
    deployments: Vec<DeploymentId>,
    classes: Vec<ClassId>,
}

impl Batch {
    fn len(&self) -> usize {
        self.jobs.len()
            + self.allocations.len()
            + self.evaluations.len()
            + self.deployments.len()
            + self.classes.len()
    }

    fn command(self, cutoffs: Cutoffs) -> Option<Command> {
        let found = self.len() > 0;
        let Self { jobs, allocations, evaluations, deployments, classes } = self;
        found.then_some(Command::from(CollectGarbage {
            cutoffs,
            jobs,
            allocations,
            evaluations,
            deployments,
            classes,
        }))
    }
}

/// The garbage collector.
#[derive(Debug)]
pub struct GarbageCollector {
    config: GcConfig,
    walk: Option<Walk>,
    /// None before the leadership begins.
    due_at: Option<u64>,
}

impl GarbageCollector {
    /// A collector that has not begun.
    pub fn new(config: GcConfig) -> Self {
        Self { config, walk: None, due_at: None }
    }

    /// Takes the next slice of the walk, or begins one when it is time. None: nothing was found in
    /// this slice.
    fn poll(&mut self, now: u64, state: &State) -> Option<Command> {
        if self.due_at.is_none_or(|at| at > now) {
            return None;
        }
        let begin = || Walk::new(self.config.cutoffs(now));
        let mut walk = self.walk.take().unwrap_or_else(begin);
        let batch = step(&mut walk, state);
        let cutoffs = walk.cutoffs;
        let done = batch.is_none();
        self.walk = (!done).then_some(walk);
        let pause_ms = if done { self.config.interval_ms } else { limits::GC_SLICE_PAUSE_MS };
        self.due_at = Some(now.saturating_add(pause_ms.max(1)));
        batch?.command(cutoffs)
    }

    /// All that has ended up to `now`, whenever that was, as commands to be applied in this order.
    /// What the jobs among them leave behind is found by another call, on the state after that.
    pub fn forced(now: u64, state: &State) -> Vec<Command> {
        let before = now.saturating_add(1);
        let cutoffs = Cutoffs {
            evaluations: before,
            batch_evaluations: before,
            jobs: before,
            deployments: before,
            children_max: u64::MAX,
        };
        let mut walk = Walk::new(cutoffs);
        let mut commands = Vec::new();
        while let Some(batch) = step(&mut walk, state) {
            commands.extend(batch.command(cutoffs));
        }
        commands
    }
}

impl Machine for GarbageCollector {
    /// The first walk begins one interval after the leadership. A walk that is under way goes on.
    fn restore(&mut self, now: u64, _state: &State) {
        self.due_at.get_or_insert(now.saturating_add(self.config.interval_ms));
    }

    fn take(&mut self, _now: u64, _state: &State, _index: Index, _effect: &Effect) {}

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        stepped.commands.extend(self.poll(now, state));
    }

    fn next_deadline(&self) -> Option<u64> {
        self.due_at
    }
}

/// Looks at the next slice. None: the walk is over.
fn step(walk: &mut Walk, state: &State) -> Option<Batch> {
    let mut batch = Batch::default();
    walk.place = match &walk.place {
        Place::Jobs(from) => match jobs(from, &walk.cutoffs, state, &mut batch) {
            Some(next) => Place::Jobs(next),
            None => {
                batch.classes = state.classes_without_nodes();
                batch.classes.truncate(limits::GC_BATCH_MAX);
                first_child(JobKey::new("", ""))
            }
        },
        Place::Children(parent, from) => children((parent, from), &walk.cutoffs, state, &mut batch)
            .unwrap_or(Place::Evaluations(EvaluationId::default())),
        Place::Evaluations(from) => evaluations(*from, &walk.cutoffs, state, &mut batch)
            .map_or(Place::Orphans(AllocationId::default()), Place::Evaluations),
        Place::Orphans(from) => orphans(*from, &walk.cutoffs, state, &mut batch)
            .map_or(Place::Deployments(DeploymentId::default()), Place::Orphans),
        Place::Deployments(from) => deployments(*from, &walk.cutoffs, state, &mut batch)
            .map_or(Place::End, Place::Deployments),
        Place::End => return None,
    };
    Some(batch)
}

/// Answers with the job to go on with.
fn jobs(from: &JobKey, cutoffs: &Cutoffs, state: &State, batch: &mut Batch) -> Option<JobKey> {
    for (seen, job) in state.jobs().iter_from(from).enumerate() {
        if seen >= limits::GC_SLICE_MAX || batch.len() >= limits::GC_BATCH_MAX {
            return Some(job.key.clone());
        }
        if job.key.parent().is_none() && state.is_job_collectable(job, cutoffs.jobs) {
            batch.jobs.push(job.key.clone());
        }
    }
    None
}

fn first_child(parent: JobKey) -> Place {
    Place::Children(parent, (0, JobKey::new("", "")))
}

/// Dead children, the oldest first: those beyond the number that is kept, and those that are old
/// enough. None that is too young is looked at. Answers with where to go on.
fn children(
    (parent, from): (&JobKey, &(Index, JobKey)),
    cutoffs: &Cutoffs,
    state: &State,
    batch: &mut Batch,
) -> Option<Place> {
    let mut seen = 0usize;
    for (key, children) in state.parents_from(parent) {
        if seen >= limits::GC_SLICE_MAX {
            return Some(first_child(key.clone()));
        }
        let surplus = children.surplus(cutoffs.children_max).last();
        let from = if key == parent { from.clone() } else { (0, JobKey::new("", "")) };
        for child in children.dead.range(from..) {
            let Some(job) = state.jobs().get(&child.1) else { continue };
            let is_surplus = surplus.is_some_and(|last| child <= last);
            if !is_surplus && job.submitted_at >= cutoffs.jobs {
                break;
            }
            if seen >= limits::GC_SLICE_MAX || batch.len() >= limits::GC_BATCH_MAX {
                return Some(Place::Children(key.clone(), child.clone()));
            }
            seen = seen.saturating_add(1);
            let before = if is_surplus { u64::MAX } else { cutoffs.jobs };
            if state.is_job_collectable(job, before) {
                batch.jobs.push(child.1.clone());
            }
        }
        seen = seen.saturating_add(1);
    }
    None
}

/// Answers with the evaluation to go on with. The allocations of one evaluation always go together.
fn evaluations(
    from: EvaluationId,
    cutoffs: &Cutoffs,
    state: &State,
    batch: &mut Batch,
) -> Option<EvaluationId> {
    for (seen, row) in state.evaluations().iter_from(&from).enumerate() {
        if seen >= limits::GC_SLICE_MAX || batch.len() >= limits::GC_BATCH_MAX {
            return Some(row.id);
        }
        let mut kept = false;
        for allocation in state.allocations_of_evaluation(row.id) {
            if state.is_allocation_collectable(allocation, cutoffs) {
                batch.allocations.push(allocation.id);
            } else {
                kept = true;
            }
        }
        if !kept && state.is_evaluation_old(row, cutoffs) {
            batch.evaluations.push(row.id);
        }
    }
    None
}

/// Answers with the allocation to go on with. No evaluation leads to these.
fn orphans(
    from: AllocationId,
    cutoffs: &Cutoffs,
    state: &State,
    batch: &mut Batch,
) -> Option<AllocationId> {
    for (seen, row) in state.allocations().iter_from(&from).enumerate() {
        if seen >= limits::GC_SLICE_MAX || batch.len() >= limits::GC_BATCH_MAX {
            return Some(row.id);
        }
        let is_orphan = !state.evaluations().contains(&row.evaluation);
        if is_orphan && state.is_allocation_collectable(row, cutoffs) {
            batch.allocations.push(row.id);
        }
    }
    None
}

/// Answers with the deployment to go on with.
fn deployments(
    from: DeploymentId,
    cutoffs: &Cutoffs,
    state: &State,
    batch: &mut Batch,
) -> Option<DeploymentId> {
    for (seen, row) in state.deployments().iter_from(&from).enumerate() {
        if seen >= limits::GC_SLICE_MAX || batch.len() >= limits::GC_BATCH_MAX {
            return Some(row.id);
        }
        if state.is_deployment_collectable(row, cutoffs.deployments) {
            batch.deployments.push(row.id);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use fsm::{
        Allocation, ClientStatus, EvaluationStatus, JobKind, JobStatus,
        evaluation::DeleteEvaluations,
        settings::{SchedulerConfiguration, SetSchedulerConfiguration},
        testing::Driver,
    };

    use super::*;
    use fsm::command::UpkeepCommand;

    const HOUR_MS: u64 = 60 * 60_000;

    fn begun_at(now: u64) -> GarbageCollector {
        let mut collector = GarbageCollector::new(GcConfig::default());
        collector.restore(now, &State::default());
        collector
    }

    /// A service with one stopped instance and its evaluations, everything final.
    fn ended(driver: &mut Driver, name: &str) -> AllocationId {
        let node = driver.node("a");
        driver.register_job(fsm::testing::job(name, JobKind::Service, 1));
        let id = driver.run(name, 0, node);
        let stopping = driver.deregister_job(name, false).expect("an evaluation");
        let plan = driver.plan(stopping).stopping(id, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        driver.report(id, ClientStatus::Complete);
        for id in driver.open_evaluations(name) {
            let plan = driver.plan(id);
            assert!(driver.commit_plan(plan).outcome_taken);
        }
        id
    }

    /// Polls at every deadline up to `until` and applies what comes; answers with the number of
    /// commands.
    fn run(collector: &mut GarbageCollector, driver: &mut Driver, until: u64) -> usize {
        let mut commands = 0;
        while let Some(at) = collector.next_deadline().filter(|at| *at <= until) {
            driver.now = driver.now.max(at);
            if let Some(command) = collector.poll(at, &driver.state) {
                driver.accept(command);
                commands += 1;
            }
        }
        commands
    }

    /// Evaluations and allocations go after their threshold, the job after its own, and
    /// nothing before.
    #[test]
    fn things_go_after_their_thresholds() {
        let mut driver = Driver::default();
        let id = ended(&mut driver, "t");
        let start = driver.now;
        let mut collector = begun_at(start);
        assert_eq!(run(&mut collector, &mut driver, start + HOUR_MS), 0);
        assert!(driver.state.allocations().contains(&id));
        assert!(run(&mut collector, &mut driver, start + HOUR_MS + limits::GC_INTERVAL_MS) > 0);
        assert!(driver.state.allocations().is_empty() && driver.state.evaluations().is_empty());
        assert_eq!(driver.state.jobs().len(), 1);
        assert_eq!(run(&mut collector, &mut driver, start + 4 * HOUR_MS), 0);
        assert_eq!(run(&mut collector, &mut driver, start + 5 * HOUR_MS), 1);
        assert!(driver.state.jobs().is_empty() && driver.state.job_versions().is_empty());
        assert_eq!(run(&mut collector, &mut driver, start + 48 * HOUR_MS), 0);
    }

    /// A forced collection ignores the thresholds; two rounds leave nothing of a dead job.
    #[test]
    fn a_forced_collection_ignores_thresholds() {
        let mut driver = Driver::default();
        ended(&mut driver, "t");
        for _ in 0..2 {
            for command in GarbageCollector::forced(driver.now, &driver.state) {
                driver.accept(command);
            }
        }
        assert!(driver.state.jobs().is_empty() && driver.state.job_versions().is_empty());
        assert!(driver.state.allocations().is_empty() && driver.state.evaluations().is_empty());
        assert_eq!(GarbageCollector::forced(driver.now, &driver.state), []);
    }

    fn pausing_broker(pause_eval_broker: bool) -> Command {
        let configuration = SchedulerConfiguration { pause_eval_broker, ..Default::default() };
        let keep_node_life = false;
        let change =
            SetSchedulerConfiguration { configuration, keep_node_life, enforce_index: None };
        Command::from(change)
    }

    /// An allocation is collected also when an operator has deleted its evaluation.
    #[test]
    fn allocations_without_an_evaluation_are_collected() {
        let mut driver = Driver::default();
        let id = ended(&mut driver, "t");
        driver.accept(pausing_broker(true));
        let ids = driver.state.evaluations().iter().map(|row| row.id).collect();
        driver.accept(Command::from(DeleteEvaluations { ids }));
        driver.accept(pausing_broker(false));
        assert!(driver.state.evaluations().is_empty() && driver.state.allocations().contains(&id));
        let start = driver.now;
        let mut collector = begun_at(start);
        run(&mut collector, &mut driver, start + HOUR_MS);
        assert!(driver.state.allocations().contains(&id), "not before its threshold");
        run(&mut collector, &mut driver, start + 2 * HOUR_MS);
        assert!(driver.state.allocations().is_empty());
    }

    /// A large collection comes in batches below the maximum, and none is forgotten, also when
    /// a command is lost on the way.
    #[test]
    fn large_collections_come_in_batches() {
        let mut state = State::default();
        let count = 3 * limits::GC_SLICE_MAX + 17;
        for number in 0..count {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(number as u64).to_be_bytes());
            let mut row = crate::testing::evaluation("x", "gone", 1);
            row.id = EvaluationId(id);
            row.status = EvaluationStatus::Complete;
            fsm::testing::put(&mut state, &row);
        }
        let now = 2 * HOUR_MS;
        let mut collector = begun_at(0);
        let mut named = std::collections::BTreeSet::new();
        let mut at = now;
        for _ in 0..=count / limits::GC_BATCH_MAX + 2 {
            if let Some(Command::Upkeep(UpkeepCommand::CollectGarbage(CollectGarbage {
                evaluations,
                ..
            }))) = collector.poll(at, &state)
            {
                assert!(evaluations.len() <= limits::GC_BATCH_MAX, "{}", evaluations.len());
                named.extend(evaluations);
            }
            at = collector.next_deadline().expect("always");
        }
        assert_eq!(named.len(), count);
    }

    /// A parent and so many children that have ended.
    fn family(driver: &mut Driver, count: u32) {
        let block = fsm::job::Parameterized::default();
        let spec = fsm::testing::job("p", JobKind::Batch, 1);
        let spec = fsm::JobSpec { parameterized: Some(block), ..spec };
        let evaluation = driver.evaluation_id();
        driver.accept(fsm::testing::register(spec, evaluation));
        for number in 0..count {
            let child = fsm::job::Dispatched {
                id: format!("p/dispatch-1-{number:08}").into(),
                payload: Vec::new(),
                meta: std::collections::BTreeMap::new(),
                priority: None,
                token: "".into(),
                evaluation: driver.evaluation_id(),
            };
            let evaluation = child.evaluation;
            let parent = fsm::testing::job_key("p");
            driver.accept(fsm::job::DispatchJob { parent, children: vec![child] }.into());
            let plan = driver.plan(evaluation);
            assert!(driver.commit_plan(plan).outcome_taken);
        }
    }

    fn children_left(driver: &Driver) -> Vec<String> {
        let rows = driver.state.jobs().iter().filter(|job| job.key.parent().is_some());
        rows.map(|job| job.key.id.to_string()).collect()
    }

    /// The oldest children beyond the number that is kept go however young they are, the others by
    /// their age; the parent stays, and one with a tag.
    #[test]
    fn children_go_by_number_and_by_age() {
        let mut driver = Driver::default();
        family(&mut driver, 7);
        let tagged = "p/dispatch-1-00000000";
        let (name, description) = ("release".into(), "".into());
        let mark = fsm::job::VersionMark::Tag { version: None, name, description };
        let job = fsm::testing::job_key(tagged);
        driver.accept(Command::from(fsm::job::MarkJobVersion { job, mark }));
        let start = driver.now;
        let config = GcConfig { children_max: 3, ..GcConfig::default() };
        let mut collector = GarbageCollector::new(config);
        collector.restore(start, &driver.state);
        run(&mut collector, &mut driver, start + 2 * limits::GC_INTERVAL_MS);
        let kept =
            [tagged, "p/dispatch-1-00000004", "p/dispatch-1-00000005", "p/dispatch-1-00000006"];
        assert_eq!(children_left(&driver), kept);
        run(&mut collector, &mut driver, start + 3 * HOUR_MS);
        assert_eq!(children_left(&driver), kept);
        run(&mut collector, &mut driver, start + 5 * HOUR_MS);
        assert_eq!(children_left(&driver), [tagged]);
        assert_eq!(driver.state.jobs().len(), 2);
    }

    /// One that may not go yet keeps none of the others.
    #[test]
    fn a_large_family_is_collected_in_batches() {
        let mut driver = Driver { checked: false, ..Driver::default() };
        let count = 2 * u32::try_from(limits::GC_BATCH_MAX).expect("small") + 5;
        family(&mut driver, count);
        let commands = GarbageCollector::forced(driver.now, &driver.state);
        let named = |command: &Command| {
            if let Command::Upkeep(UpkeepCommand::CollectGarbage(command)) = command {
                command.jobs.len()
            } else {
                0
            }
        };
        let named: Vec<usize> = commands.iter().map(named).collect();
        assert_eq!(named.iter().sum::<usize>(), count as usize);
        assert!(named.iter().all(|one| *one <= limits::GC_BATCH_MAX), "{named:?}");
    }

    /// A deployment goes an hour after its end, or with the version that it is of.
    #[test]
    fn deployments_go_after_their_threshold() {
        let mut driver = Driver::default();
        let begin = |driver: &mut Driver, number: u8| {
            let spec = fsm::testing::rolling_job("t", u32::from(number), |_| {});
            let evaluation = driver.register_job(spec);
            let goal = fsm::deployment::DeploymentGoal { canaries: 0, total: 1 };
            let goals = [(fsm::testing::GROUP.into(), goal)].into();
            let id = DeploymentId([number; 16]);
            let mut plan = driver.plan(evaluation);
            plan.deployment = Some(fsm::deployment::NewDeployment { id, goals });
            driver.commit_plan(plan);
        };
        begin(&mut driver, 1);
        begin(&mut driver, 2);
        let start = driver.now;
        let mut collector = begun_at(start);
        run(&mut collector, &mut driver, start + HOUR_MS);
        assert_eq!(driver.state.deployments().len(), 2);
        run(&mut collector, &mut driver, start + 2 * HOUR_MS);
        assert_eq!(driver.state.deployments().len(), 1, "the cancelled one");
        driver.deregister_job("t", false);
        run(&mut collector, &mut driver, start + 4 * HOUR_MS);
        assert!(driver.state.deployments().is_empty());
    }

    /// A living batch job keeps what it finished, however old.
    #[test]
    fn a_living_batch_job_keeps_what_it_finished() {
        let mut driver = Driver::default();
        let node = driver.node("a");
        driver.register_job(fsm::testing::job("t", JobKind::Batch, 2));
        let done = driver.run("t", 0, node);
        driver.run("t", 1, node);
        driver.report(done, ClientStatus::Complete);
        let start = driver.now;
        let mut collector = begun_at(start);
        run(&mut collector, &mut driver, start + 100 * HOUR_MS);
        assert_eq!(
            driver.state.jobs().iter().next().map(|job| job.status),
            Some(JobStatus::Running)
        );
        let kept: Vec<&Allocation> = driver.state.allocations().iter().map(|row| &**row).collect();
        assert_eq!(kept.len(), 2);
    }
}
