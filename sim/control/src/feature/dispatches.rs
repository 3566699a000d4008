//! Dispatches: one of three seeds has a parameterized job, of which children are dispatched, some of them under a token that comes again with another
//! request, and stopped, while the bound on those that are alive changes. From dice of its own: no throw in here moves one of the older dice.
//!
//! Children that are over are asked for again as well: scaled, evaluated, started as a version of theirs, or an instance of them replaced.
//!
//! Judged from the rows alone, not from the derived index: a token makes one child, no entry starts a child, or brings one that is over to life,
//! beyond the bound, none starts before one that waits longer, and none waits although there is room.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Command, EvaluationId, Index, Job, JobKey, JobStatus, Reply, State, Text,
    allocation::Replacement,
    command::{DispatchAnswer, JobCommand},
    job::{
        DeregisterJob, DispatchJob, Dispatched, EvaluateJob, Parameterized, RegisterJob, ScaleJob,
        StopChildren,
    },
    limits::LET_IN_MAX,
    testing,
};

use super::{Entry, Feature, Watch};
use crate::{
    cluster::{
        Ids,
        coverage::{Coverage, Event},
        log::Applied,
    },
    people::{ShapeJobs, World},
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6469_7370_6174_6331;
/// Those with which children that are over are asked for again.
const AGAIN_LABEL: u64 = 0x6368_696c_6461_6731;
/// The job that is dispatched.
const PARENT: &str = "parent";
/// Dispatches that may come again.
const SENT_MAX: usize = 8;
/// Children beyond which no more are dispatched: the quiet at the end has to come to all of them.
const ALIVE_MAX: usize = 12;

/// Dispatches, and an account of them.
pub(super) struct Dispatches {
    /// None: the seed has no parameterized job.
    users: Option<Users>,
    account: Account,
}

/// Users who dispatch.
struct Users {
    seed: u64,
    /// Percent of steps before which one of them does something.
    percent: u64,
    /// Dispatches with tokens, the newest last.
    sent: Vec<Dispatched>,
    tokens: u64,
}

impl Dispatches {
    /// The dispatches of a seed.
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        let users = (!dice.percent(66)).then(|| Users {
            seed,
            percent: dice.between(3, 15),
            sent: Vec::new(),
            tokens: 0,
        });
        Self { users, account: Account::default() }
    }
}

impl Feature for Dispatches {
    /// Sometimes the parent comes, changes or goes, or children of it are dispatched or stopped.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let users = self.users.as_mut()?;
        let mut dice = Dice::numbered(users.seed ^ AGAIN_LABEL, u64::from(number));
        if dice.percent(users.percent)
            && let Some(command) = draw_again(world, &mut dice)
        {
            world.ask(command);
        }
        let mut dice = Dice::numbered(users.seed ^ LABEL, u64::from(number));
        if dice.percent(users.percent) {
            let command = users.draw_dispatch(world, shapers, &mut dice);
            world.ask(command);
        }
        None
    }

    fn judge(&mut self, entry: &Entry<'_>, coverage: &mut Coverage, found: &mut Vec<String>) {
        self.account.judge(entry.before, entry.applied, coverage, found);
    }
}

impl Users {
    fn draw_dispatch(
        &mut self,
        world: &mut World,
        shapers: &mut dyn ShapeJobs,
        dice: &mut Dice,
    ) -> Command {
        let parent = testing::job_key(PARENT);
        let evaluation = world.cluster.ids.evaluation();
        let known = world.cluster.log.truth().jobs().get(&parent).cloned();
        let rows = children_of(world.cluster.log.truth(), &parent);
        let alive = rows.clone().filter(|job| job.status != JobStatus::Dead).count();
        let children: Vec<JobKey> = rows.map(key_of).collect();
        let is_open = known.is_some_and(|job| !job.stop);
        let choice = match (is_open, alive >= ALIVE_MAX) {
            (false, _) => 0,
            (true, true) => dice.below(6),
            (true, false) => dice.below(16),
        };
        match choice {
            0 | 1 => register_parent(evaluation, world, shapers, dice),
            2 if dice.percent(30) => {
                let purge = dice.percent(50);
                Command::from(DeregisterJob {
                    job: parent,
                    purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                })
            }
            3 => {
                let children = children.into_iter().filter(|_| dice.percent(50)).collect();
                let (purge, evaluation_ids) = (dice.percent(50), world.cluster.ids.evaluations(2));
                StopChildren {
                    parent,
                    children,
                    purge,
                    evaluation_ids,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                }
                .into()
            }
            4 | 5 if !children.is_empty() => {
                let job = dice.pick(&children).unwrap_or(parent);
                let purge = dice.percent(50);
                Command::from(DeregisterJob {
                    job,
                    purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                })
            }
            choice => {
                let again = choice < 10;
                let count = dice.between(1, 3);
                let children = (0..count)
                    .map(|_| self.draw_child(again, &mut world.cluster.ids, dice))
                    .collect();
                DispatchJob { parent, children }.into()
            }
        }
    }

    /// A new dispatch, or one that was sent before, with the id and the evaluation that another server makes up for it.
    fn draw_child(&mut self, again: bool, ids: &mut Ids, dice: &mut Dice) -> Dispatched {
        let (id, evaluation) = (ids.next(), ids.evaluation());
        let number = u128::from_be_bytes(id);
        let id = Text::from(format!("{PARENT}/dispatch-1-{number:032x}"));
        if again && let Some(sent) = dice.pick(&self.sent) {
            return Dispatched { id, evaluation, ..sent };
        }
        self.tokens += 1;
        let token = if dice.percent(60) { format!("token-{}", self.tokens) } else { String::new() };
        let child = Dispatched {
            id,
            payload: vec![1, 2, 3],
            meta: BTreeMap::new(),
            priority: dice.pick(&[None, None, Some(20), Some(80)]).unwrap_or(None),
            token: token.into(),
            evaluation,
        };
        if !child.token.is_empty() {
            self.sent.push(child.clone());
            let surplus = self.sent.len().saturating_sub(SENT_MAX);
            self.sent.drain(..surplus);
        }
        child
    }
}

/// Asks for a child that is over.
fn draw_again(world: &mut World, dice: &mut Dice) -> Option<Command> {
    let parent = testing::job_key(PARENT);
    let truth = world.cluster.log.truth();
    let over = children_of(truth, &parent).filter(|job| job.status == JobStatus::Dead);
    let job = dice.pick(&over.map(key_of).collect::<Vec<_>>())?;
    let ids: Vec<_> = truth.allocations_of_job(&job).map(|row| row.id).collect();
    let evaluation = world.cluster.ids.evaluation();
    let instance = dice.pick(&ids);
    let create_index = truth.jobs().get(&job)?.create_index;
    let version = dice.pick(&truth.versions_of(&job, create_index));
    Some(match (dice.below(6), instance, version) {
        (0, Some(id), _) => testing::stop_allocation(id, Replacement::Always, evaluation),
        (1, Some(id), _) => testing::stop_allocation(id, Replacement::ByKind, evaluation),
        (2, ..) => Command::from(ScaleJob {
            job,
            group: testing::GROUP.into(),
            count: Some(u32::from(evaluation.0[1] % 4)),
            enforce_index: None,
            message: "drawn".into(),
            error: false,
            meta_json: "".into(),
            evaluation,
        }),
        (4 | 5, _, Some(kept)) => Command::from(RegisterJob {
            stop: kept.stop,
            reverts_to: Some(kept.version),
            ..RegisterJob::new(Arc::clone(&kept.spec), evaluation)
        }),
        _ => Command::from(EvaluateJob { job, force_reschedule: dice.percent(60), evaluation }),
    })
}

fn register_parent(
    evaluation: EvaluationId,
    world: &mut World,
    shapers: &mut dyn ShapeJobs,
    dice: &mut Dice,
) -> Command {
    let mut spec = world.draw_job("batch", shapers, dice);
    spec.key = testing::job_key(PARENT);
    let max_running = dice.pick(&[0, 1, 2, 2, 3]).unwrap_or(0);
    spec.parameterized =
        Some(Parameterized { payload: "optional".into(), max_running, ..Parameterized::default() });
    for group in &mut spec.groups {
        group.count = group.count.clamp(1, 2);
    }
    testing::register(spec, evaluation)
}

fn key_of(job: &Arc<Job>) -> JobKey {
    job.key.clone()
}

fn children_of<'a>(
    state: &'a State,
    parent: &'a JobKey,
) -> impl Iterator<Item = &'a Arc<Job>> + Clone {
    let rows: Vec<_> = state.jobs().iter().collect();
    rows.into_iter().filter(move |job| job.key.parent_key().as_ref() == Some(parent))
}

/// The place of a child in its queue, if it waits.
fn place(job: &Job) -> Option<(Index, u32)> {
    Some((job.create_index, job.waiting?.position))
}

/// Which child each token has made, by what was answered.
#[derive(Default)]
struct Account {
    tokens: BTreeMap<(JobKey, Text), (JobKey, Index)>,
}

impl Account {
    /// Judges one entry.
    fn judge(
        &mut self,
        before: &State,
        applied: &Applied,
        coverage: &mut Coverage,
        found: &mut Vec<String>,
    ) {
        let after = &applied.state;
        if let Some(proposal) = &applied.entry.proposal
            && let Command::Job(JobCommand::DispatchJob(command)) = &proposal.command
            && let Reply::Dispatched(answers) = &applied.reply
            // An answer from the session is that of the first time.
            && !proposal.request.is_some_and(|request| before.sessions().contains(&request.id))
        {
            self.answered(after, command, answers, coverage, found);
        }
        let parents: BTreeSet<JobKey> =
            after.jobs().iter().filter_map(|job| job.key.parent_key()).collect();
        for parent in parents {
            queue(before, after, &parent, coverage, found);
        }
    }

    /// A token makes one child, as long as that is kept.
    fn answered(
        &mut self,
        after: &State,
        command: &DispatchJob,
        answers: &[DispatchAnswer],
        coverage: &mut Coverage,
        found: &mut Vec<String>,
    ) {
        for (child, answer) in command.children.iter().zip(answers) {
            let DispatchAnswer::Child { name, create_index, found: is_found, .. } = answer else {
                continue;
            };
            if *is_found {
                coverage.count(Event::DispatchedAgain);
            }
            let id = format!("{}/{name}", command.parent.id);
            let key = JobKey { id: id.into(), ..command.parent.clone() };
            let is_there = |key: &JobKey, created: Index| {
                after.jobs().get(key).is_some_and(|job| job.create_index == created)
            };
            if !*is_found && !is_there(&key, *create_index) {
                found.push(format!("I51: {key} was dispatched and is not there"));
            }
            if child.token.is_empty() {
                continue;
            }
            let token = (command.parent.clone(), child.token.clone());
            if let Some((old, created)) = self.tokens.insert(token, (key.clone(), *create_index))
                && old != key
                && is_there(&old, created)
            {
                found.push(format!("I51: a dispatch took effect twice, as {old} and {key}"));
            }
        }
    }
}

/// What an entry did to the queue of a parent.
fn queue(
    before: &State,
    after: &State,
    parent: &JobKey,
    coverage: &mut Coverage,
    found: &mut Vec<String>,
) {
    let rows = children_of(after, parent);
    let was =
        |job: &Job| before.jobs().get(&job.key).filter(|old| old.create_index == job.create_index);
    let is_started = |job: &&Arc<Job>| {
        let is_new = was(job).is_none_or(|old| old.waiting.is_some());
        job.waiting.is_none() && !job.stop && is_new
    };
    let started: Vec<_> = rows.clone().filter(is_started).collect();
    let waiting = rows.clone().filter_map(|job| place(job)).min();
    let alive = rows.filter(|job| job.waiting.is_none() && job.status != JobStatus::Dead).count();
    let row = after.jobs().get(parent);
    let spec = row.and_then(|row| after.current_spec(row));
    let block = spec.and_then(|spec| spec.parameterized.as_ref());
    let max = block.map_or(0, |block| block.max_running as usize);
    let is_revived = |job: &&Arc<Job>| {
        let is_alive = job.status != JobStatus::Dead && !job.stop;
        is_alive && was(job).is_some_and(|old| old.status == JobStatus::Dead)
    };
    let revived = children_of(after, parent).any(|job| is_revived(&job));
    if revived {
        coverage.count(Event::ChildRevived);
    }
    if max > 0 && (revived || !started.is_empty()) && alive > max {
        found.push(format!("I51: {alive} children of {parent} are alive, at most {max} may be"));
    }
    if let Some(first) = waiting {
        coverage.count(Event::ChildWaited);
        if row.is_none() {
            found.push(format!("I51: children of {parent} wait, which is gone"));
        }
        for job in &started {
            // One that never waited came after all that do.
            let place = was(job).and_then(|old| place(old)).unwrap_or((job.create_index, u32::MAX));
            if place > first && (place.1 < u32::MAX || job.create_index > first.0) {
                found.push(format!("I51: {} starts before one that waits longer", job.key));
            }
        }
        let room = if max == 0 { LET_IN_MAX } else { max.min(LET_IN_MAX) };
        if alive < room {
            found.push(format!("I51: children of {parent} wait, and {alive} are alive"));
        }
    }
    if started.iter().any(|job| was(job).is_some()) {
        coverage.count(Event::ChildLetIn);
    }
}
