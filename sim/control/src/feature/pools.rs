//! Instance pools: in a part of the seeds a fake cloud makes the machines of a pool, jobs wait for
//! them, and operators do with pool and instances what operators do. The cloud hangs, forgets and
//! lies as [`Trouble`] says; what became of its calls when their leader is gone is played in
//! [`cloud`]. From dice of its own: no throw in here moves one of the older dice, and the other
//! seeds have none of it.
//!
//! In half of those seeds the pool has capacity groups and sources that say what they need of them ([`balancers`]).
//!
//! What is owed is judged where it can be seen: rows by [`crate::invariants`], each entry by
//! [`oracle`] and [`capacity`], a leader's looks by [`crate::promises::pools`], what is sent to the cloud in [`cloud`], and
//! the end in [`ending`].

mod balancers;
mod capacity;
mod cloud;
mod ending;
mod oracle;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use elastic::{FleetConfig, fake::FakeCloud};
use fsm::{
    Command, InstanceId, JobKind, State, Text,
    command::PoolCommand,
    job::{DeregisterJob, EvaluateJob, RegisterJob},
    node::NodeDescription,
    pool::{
        Behavior, CreateOutcome, DeleteInstancePool, InstancePool, InstanceState, InstanceType,
        PauseInstancePool, SetInstanceBehavior, ShutDownInstance, ShutdownCause,
        UpsertInstancePool,
    },
    testing,
};
use leader::ServicesConfig;

use self::{balancers::Balancers, cloud::Flight};
use super::{Entry, Feature, Watch};
use crate::{
    cluster::{
        Cluster,
        coverage::{Coverage, Event},
        log::Applied,
    },
    people::{ShapeJobs, World},
    promises::pools::WARM_UP_MS,
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x696e_7374_616e_6365;
/// Makes the dice of leaders that go others than those of the same step.
const COUPS: u64 = 1 << 40;
/// The pool, and the node pool that it feeds.
pub(crate) const POOL: &str = "gpu";
/// The provider, as the servers' files name it.
pub(crate) const PROVIDER: &str = "fake";
/// What its lists speak for.
const SCOPE: &str = "zone";
/// Jobs of the pool, and the jobs that they are drawn as; the last one runs on each of its nodes.
const JOBS: [(&str, &str); 4] =
    [("render", "job3"), ("train", "job1"), ("serve", "job3"), ("agents", "job2")];
/// Operations under way above which nobody asks for more.
const OPERATIONS_MAX: usize = 8;
/// Between two lists, ms.
const LIST_MS: u64 = 10_000;
/// Between two descriptions, or destroys, of a machine, ms.
const AGAIN_MS: u64 = 3_000;
const HOUR_MS: u64 = 3_600_000;
/// The cloud makes nothing, or destroys nothing, for so long, ms.
const OUTAGE_MS: (u64, u64) = (5_000, 120_000);

/// How often a call goes wrong in each way, in percent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble {
    /// Creates, lists, destroys and descriptions that are refused.
    refuses: u64,
    /// Calls that are answered late, or carried out after their caller has given up.
    hangs: u64,
    /// Calls that are carried out and answered with an error.
    loses_answers: u64,
    ignores_keys: u64,
    reuses_ids: u64,
    loses_tags: u64,
    /// Lists that lack a machine, or all.
    hides: u64,
    invents: u64,
    says_later: u64,
    /// Machines whose agent never registers.
    never_boots: u64,
    /// Machines that are not as their type declares.
    differs: u64,
    /// Calls of a leadership that is over of which nothing is ever heard.
    crashes: u64,
    /// The provider takes a machine back.
    preempts: u64,
    /// Machines whose readiness check says no: mostly for good.
    unready: u64,
    /// Creates whose machine gets its tags one after the other.
    tags_late: u64,
    /// Steps at which a leader goes while a type pauses for its failed boots.
    coups: u64,
}

/// The pools of a seed.
pub(super) struct Pools {
    seed: u64,
    /// Percent of steps before which somebody wants something of the pool.
    percent: u64,
    trouble: Trouble,
    /// The server whose file lacks the provider.
    without: Option<usize>,
    pub(crate) cloud: FakeCloud,
    flights: Vec<Flight>,
    /// Agents of machines that boot, by when they start.
    boots: Vec<(u64, Boot)>,
    /// Machines that a list has hidden: no list hides one again, since two absences are enough.
    hidden: BTreeSet<Text>,
    /// Ids of machines that are gone, and since when.
    freed: Vec<(Text, u64)>,
    /// Ids of machines that had a row at some time.
    known: BTreeSet<Text>,
    /// When each create was asked for that was not refused; log time.
    asked: BTreeMap<InstanceId, u64>,
    /// Intents whose machine gets its tags late.
    late: BTreeSet<InstanceId>,
    /// Tags that come late, by when.
    tagging: Vec<(u64, LateTag)>,
    /// Some of its jobs run on each of its nodes.
    has_system_jobs: bool,
    /// When each machine was made, by its number; the driver's clock.
    made_at: BTreeMap<u64, u64>,
    /// Creates and destroys fail until then.
    outage_until: u64,
    /// Instances whose intent is in the log.
    intents: BTreeSet<InstanceId>,
    /// Sources of requirements for groups of the pool; none: it has no groups.
    balancers: Option<Balancers>,
    account: capacity::Account,
    /// Dice of the step under way.
    dice: Dice,
}

/// A machine's agent, before it starts.
struct Boot {
    provider_id: Text,
    number: u64,
    description: NodeDescription,
}

/// A tag that a machine is still to get.
struct LateTag {
    provider_id: Text,
    number: u64,
    name: Text,
    value: Text,
}

fn dice(seed: u64, step: u64) -> Dice {
    Dice::numbered(seed ^ LABEL, step)
}

impl Pools {
    /// The pools of a seed; none: it has no instance pool.
    pub(super) fn draw(seed: u64, servers: usize) -> Option<Self> {
        let mut dice = self::dice(seed, u64::MAX);
        if dice.percent(50) {
            return None;
        }
        let mut sometimes = |low, high| if dice.percent(50) { dice.between(low, high) } else { 0 };
        let trouble = Trouble {
            refuses: sometimes(2, 30),
            hangs: sometimes(2, 30),
            loses_answers: sometimes(2, 25),
            ignores_keys: sometimes(10, 60),
            reuses_ids: sometimes(20, 80),
            loses_tags: sometimes(5, 30),
            hides: sometimes(10, 50),
            invents: sometimes(2, 15),
            says_later: sometimes(10, 50),
            never_boots: sometimes(5, 30),
            differs: sometimes(5, 20),
            crashes: sometimes(20, 80),
            preempts: sometimes(1, 4),
            ..Trouble::default()
        };
        let lacks = servers > 1 && dice.percent(15);
        let percent = dice.between(3, 15);
        let without = lacks.then(|| dice.index(servers));
        let mut later = self::dice(seed, u64::MAX - 2);
        let mut sometimes =
            |low, high| if later.percent(50) { later.between(low, high) } else { 0 };
        let (unready, tags_late, coups) = (sometimes(20, 100), sometimes(10, 60), sometimes(5, 30));
        let has_system_jobs = later.percent(40);
        let trouble = Trouble { unready, tags_late, coups, ..trouble };
        let balancers = Balancers::draw(seed);
        let pools = Self { seed, balancers, ..Self::new(trouble, dice) };
        Some(Self { percent, without, has_system_jobs, ..pools })
    }

    /// A cloud without machines, of which nobody wants anything.
    fn new(trouble: Trouble, dice: Dice) -> Self {
        Self {
            seed: 0,
            percent: 0,
            trouble,
            without: None,
            cloud: FakeCloud::new(SCOPE),
            flights: Vec::new(),
            boots: Vec::new(),
            hidden: BTreeSet::new(),
            freed: Vec::new(),
            known: BTreeSet::new(),
            asked: BTreeMap::new(),
            late: BTreeSet::new(),
            tagging: Vec::new(),
            has_system_jobs: false,
            made_at: BTreeMap::new(),
            outage_until: 0,
            intents: BTreeSet::new(),
            balancers: None,
            account: capacity::Account::default(),
            dice,
        }
    }

    /// One that keeps its word, for tests.
    #[cfg(test)]
    pub(crate) fn calm_one() -> Self {
        Self::new(Trouble::default(), dice(0, 0))
    }

    /// Intents and machines of which an entry tells.
    pub(crate) fn note_rows(&mut self, before: &State, applied: &Applied) {
        let after = &applied.state;
        let new = after.instances().iter().filter(|row| !before.instances().contains(&row.id));
        for row in new {
            self.intents.insert(row.id);
            if row.state == InstanceState::Requested {
                self.asked.insert(row.id, after.at());
            }
        }
        self.known.extend(after.instances().iter().map(|row| row.provider_id.clone()));
        let command = applied.entry.proposal.as_ref().map(|proposal| &proposal.command);
        if let Some(Command::Pool(PoolCommand::InstanceOutcome(outcome))) = command
            && matches!(outcome.outcome, CreateOutcome::Failed { .. })
            && !after.instances().contains(&outcome.id)
        {
            self.asked.remove(&outcome.id);
        }
        if !after.instance_pools().contains(&POOL.into()) {
            self.asked.clear();
        }
    }

    #[cfg(test)]
    pub(crate) fn note_asked(&mut self, id: InstanceId, at: u64) {
        self.asked.insert(id, at);
    }

    #[cfg(test)]
    pub(crate) fn note_made(&mut self, number: u64, clock_ms: u64) {
        self.made_at.insert(number, clock_ms);
    }

    /// Creates of the hour before log time `at` that made a machine, or may have.
    pub(crate) fn asked_lately(&self, at: u64) -> usize {
        self.asked.values().filter(|asked_at| **asked_at + HOUR_MS > at).count()
    }

    /// How long ago a machine was made, ms; 0: it was made later.
    pub(crate) fn age_ms(&self, number: u64, clock_ms: u64) -> u64 {
        clock_ms.saturating_sub(self.made_at.get(&number).copied().unwrap_or(clock_ms))
    }
}

impl Feature for Pools {
    fn configure(&self, server: usize, services: &mut ServicesConfig) {
        let is_there = self.without != Some(server);
        services.fleet = FleetConfig {
            list_interval_ms: LIST_MS,
            probe_interval_ms: AGAIN_MS,
            destroy_retry_ms: AGAIN_MS,
            warm_up_ms: WARM_UP_MS,
        };
        services.providers = is_there
            .then(|| (PROVIDER.into(), fsm::limits::PROVIDER_CREATES))
            .into_iter()
            .collect();
    }

    /// The pool, and a job of it.
    fn prepare(&mut self, world: &mut World, shapers: &mut dyn ShapeJobs) {
        let mut dice = dice(self.seed, u64::MAX - 1);
        self.apply_pool(world, &mut dice);
        self.want_machines(world, shapers, &mut dice);
    }

    /// Sometimes a balancer speaks, somebody wants something of the pool, or the cloud does something
    /// by itself.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let step = u64::from(number);
        if let Some(balancers) = &mut self.balancers {
            balancers.before_step(step, &mut world.cluster);
        }
        let mut dice = dice(self.seed, step);
        self.dice = dice.clone();
        if is_any_type_pausing(&world.cluster)
            && self::dice(self.seed, step | COUPS).percent(self.trouble.coups)
        {
            world.cluster.coverage.count(Event::LeftWithFailures);
            world.cluster.elect(&mut dice.clone());
        }
        if dice.percent(self.trouble.preempts) {
            self.take_back_a_machine(&mut world.cluster, &mut dice);
        }
        if !dice.percent(self.percent) || world.people.open() > OPERATIONS_MAX {
            return None;
        }
        match dice.below(20) {
            0..7 => self.want_machines(world, shapers, &mut dice),
            7..9 => self.apply_pool(world, &mut dice),
            9 => {
                let (name, by, reason) = (POOL.into(), "ann@desk".into(), "".into());
                let is_paused = |pool: &Arc<InstancePool>| pool.paused.is_some();
                let paused = world.cluster.log.truth().instance_pools().iter().any(is_paused);
                let pause = !paused;
                world.ask(Command::from(PauseInstancePool { name, pause, by, reason }));
            }
            10 => world.ask(Command::from(DeleteInstancePool { name: POOL.into() })),
            11..16 => treat_an_instance(world, &mut dice),
            16 => return Some(Watch(dice)),
            17 => {
                world.cluster.elect(&mut dice);
            }
            _ => self.begin_an_outage(&mut world.cluster, &mut dice),
        }
        None
    }

    fn judge(&mut self, entry: &Entry<'_>, coverage: &mut Coverage, found: &mut Vec<String>) {
        let Entry { before, applied, clock_ms } = *entry;
        let list = oracle::list_of(applied);
        oracle::judge(before, &applied.state, list, self, clock_ms, found);
        self.note_rows(before, applied);
        oracle::note(before, applied, coverage);
        self.account.judge(before, applied, coverage, found);
    }

    fn serve(&mut self, cluster: &mut Cluster) -> bool {
        self.serve_calls(cluster)
    }

    fn speak(&mut self, cluster: &mut Cluster) -> bool {
        self.balancers.as_mut().is_some_and(|balancers| balancers.repeat(cluster))
    }

    fn next_look_ms(&self) -> Option<u64> {
        self.next_cloud_ms()
    }

    /// The cloud keeps its word from now on; what it began to hang on goes on. The pool is there, and a server leads that can make its machines.
    fn end_trouble(&mut self, world: &mut World, dice: &mut Dice) {
        self.leave_with_failures(&mut world.cluster, dice);
        self.trouble = Trouble::default();
        self.lead_with_a_provider(&mut world.cluster, dice);
        if let Some(balancers) = &mut self.balancers {
            let mut dice = balancers.declare_for_good();
            // What was asked before comes no more.
            world.people.forget(|command| {
                matches!(command, Command::Pool(PoolCommand::DeleteInstancePool(_)))
            });
            self.apply_pool(world, &mut dice);
        }
    }

    fn is_under_way(&self, cluster: &Cluster) -> bool {
        !ending::unsettled(self, cluster).is_empty()
    }

    fn unsettled(&self, cluster: &Cluster) -> Vec<String> {
        let mut found = ending::unsettled(self, cluster);
        if let Some(balancers) = &self.balancers {
            found.extend(balancers.unsettled(cluster));
        }
        found
    }
}

impl Pools {
    /// The leader goes once more while a type pauses: the next one is to know of it.
    fn leave_with_failures(&self, cluster: &mut Cluster, dice: &mut Dice) {
        if self.trouble.coups > 0 && is_any_type_pausing(cluster) {
            cluster.coverage.count(Event::LeftWithFailures);
            cluster.elect(dice);
        }
    }

    /// The servers whose file has the provider may lead from now on.
    fn lead_with_a_provider(&self, cluster: &mut Cluster, dice: &mut Dice) {
        let Some(without) = self.without else { return };
        while cluster.log.leader == without {
            cluster.elect(dice);
        }
    }

    fn begin_an_outage(&mut self, cluster: &mut Cluster, dice: &mut Dice) {
        let until = cluster.clock_ms + dice.between(OUTAGE_MS.0, OUTAGE_MS.1);
        if self.trouble.refuses > 0 {
            self.outage_until = until;
            cluster.trace(|| format!("the cloud is out of order until {until}"));
        }
    }

    /// The pool as an operator's file has it.
    fn apply_pool(&mut self, world: &mut World, dice: &mut Dice) {
        let mut pool = draw_pool(dice);
        if let Some(balancers) = &mut self.balancers {
            balancers.declare(&mut pool);
        }
        world.ask(Command::from(UpsertInstancePool { pool: pool.into(), enforce_index: None }));
    }

    /// A job of the pool comes, changes or goes.
    fn want_machines(&self, world: &mut World, shapers: &mut dyn ShapeJobs, dice: &mut Dice) {
        let jobs = if self.has_system_jobs { &JOBS[..] } else { &JOBS[..JOBS.len() - 1] };
        let (name, drawn_as) = dice.pick(jobs).unwrap_or(JOBS[0]);
        let evaluation = world.cluster.ids.evaluation();
        let job = testing::job_key(name);
        let is_known = world.cluster.log.truth().jobs().contains(&job);
        let choice = if is_known { dice.below(10) } else { 0 };
        let evaluation_priority = None;
        let command = match choice {
            0..6 => {
                let mut spec = world.draw_job(drawn_as, shapers, dice);
                (spec.key, spec.node_pool) = (job, POOL.into());
                if spec.kind == JobKind::System {
                    world.cluster.coverage.count(Event::SystemJobOfPool);
                }
                let (spec, enforce_index) = (spec.into(), None);
                Command::from(RegisterJob {
                    enforce_index,
                    evaluation_priority,
                    ..RegisterJob::new(spec, evaluation)
                })
            }
            6..9 => {
                let purge = dice.percent(40);
                Command::from(DeregisterJob {
                    job,
                    purge,
                    evaluation,
                    evaluation_priority,
                    no_shutdown_delay: false,
                })
            }
            _ => Command::from(EvaluateJob { job, force_reschedule: false, evaluation }),
        };
        world.ask(command);
    }
}

/// A type of the pool is not made for a while, since its boots failed.
fn is_any_type_pausing(cluster: &Cluster) -> bool {
    let truth = cluster.log.truth();
    let now = cluster.leaders_now();
    let mut pools = truth.instance_pools().iter();
    pools.any(|pool| pool.types.keys().any(|kind| truth.backoff_on(pool, kind, now).is_some()))
}

/// An operator holds, drains or ends an instance, or lets it go on.
fn treat_an_instance(world: &mut World, dice: &mut Dice) {
    let rows = world.cluster.log.truth().instances().iter();
    let ids: Vec<_> = rows.map(|row| (row.id, row.behavior)).collect();
    let Some((id, was)) = dice.pick(&ids) else { return };
    let (by, reason) = (Text::from("ann@desk"), Text::default());
    let evaluation_ids = world.cluster.ids.evaluations(2);
    if dice.percent(15) {
        let cause = ShutdownCause::Operator;
        return world.ask(Command::from(ShutDownInstance {
            id,
            cause,
            reason,
            by,
            evaluation_ids,
        }));
    }
    let behavior = match dice.below(10) {
        _ if was == Behavior::Hold && dice.percent(50) => Behavior::Run,
        0..6 => Behavior::Hold,
        6..8 => Behavior::Drain,
        _ => Behavior::Run,
    };
    if behavior == Behavior::Hold {
        world.cluster.coverage.count(Event::InstanceHeld);
    }
    world.ask(Command::from(SetInstanceBehavior {
        id,
        behavior,
        deadline_ms: dice.percent(30).then_some(5_000).filter(|_| behavior == Behavior::Drain),
        by,
        reason,
        evaluation_ids,
    }));
}

/// A pool with times that come within a schedule.
fn draw_pool(dice: &mut Dice) -> InstancePool {
    let mut pool = testing::instance_pool(POOL);
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    pool.provider = PROVIDER.into();
    pool.max = small(dice.between(0, 5));
    pool.min = small(dice.pick(&[0, 0, 0, 1]).unwrap_or(0)).min(pool.max);
    pool.idle_timeout_ms = dice.pick(&[5_000, 20_000, 60_000]).unwrap_or(5_000);
    pool.boot_timeout_ms = dice.pick(&[15_000, 40_000, 120_000]).unwrap_or(15_000);
    pool.probe_timeout_ms = dice.pick(&[10_000, 60_000]).unwrap_or(10_000);
    pool.max_concurrent_creates = small(dice.pick(&[0, 0, 1]).unwrap_or(0));
    pool.max_creates_per_hour = small(dice.pick(&[0, 0, 10, 40]).unwrap_or(0));
    pool.protect_after = small(dice.pick(&[10, 3, 0]).unwrap_or(10));
    pool.backoff_reset_ms = dice.pick(&[600_000, 30_000]).unwrap_or(600_000);
    let kinds = pool.types.values().map(|kind| {
        let mut kind = InstanceType::clone(kind);
        let (cpu, memory_mb) = if &*kind.name == "small" { (1_000, 4_000) } else { (2_500, 9_000) };
        (kind.cpu, kind.memory_mb) = (cpu, memory_mb);
        kind.node.meta.insert("rack".into(), "r1".into());
        kind.node.attributes.insert("kind".into(), "big".into());
        kind
    });
    let mut kinds: Vec<_> = kinds.collect();
    if dice.percent(30) {
        kinds.remove(dice.index(kinds.len()));
    }
    pool.types = kinds.into_iter().map(|kind| (kind.name.clone(), Arc::new(kind))).collect();
    pool
}
