//! Jobs that the clock starts, in one of four seeds: they come, change, are forced and go. From dice of its own: no throw in here moves one of the older
//! dice.
//!
//! I51, judged at each entry: a due time has at most one child, a due time that was dealt with never comes again, and all due times of a job up to the
//! last one were launched or are counted. At the quiet end: what is due is dealt with. The due times are computed from the lines of cron once more.

use std::{collections::BTreeSet, sync::Arc};

use cron::Schedule;
use fsm::{
    Command, EvaluationId, Job, JobKey, JobKind, JobSpec, JobStatus, Reply, State,
    command::JobCommand,
    job::{DeregisterJob, ForcePeriodic, LaunchPeriodic, Launches, Periodic, launch_id},
    testing,
};

use super::{Entry, Feature, Watch};
use crate::{
    cluster::{
        Cluster,
        coverage::{Coverage, Event},
        log::Applied,
    },
    people::{ShapeJobs, World},
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x636c_6f63_6b73_6131;
const JOBS: [&str; 2] = ["clock0", "clock1"];
const LINES: [&str; 4] = ["*/20 * * * * * *", "*/7 * * * * * *", "* * * * *", "30 */2 * * * * *"];
/// At the quiet end nothing older than this may be due.
const LATE_S_MAX: i64 = 30;
/// The time that is given to deal with what is due.
const SETTLE_MS: u64 = 40_000;
/// Due times of one entry that are counted once more.
const COUNTED_MAX: usize = 20_000;

/// Jobs that the clock starts.
pub(super) struct Clocks {
    seed: u64,
    /// Percent of steps before which somebody wants something of the jobs; none: the seed has none.
    changes: Option<u64>,
}

impl Clocks {
    /// The jobs of a seed.
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        Self { seed, changes: dice.percent(25).then(|| dice.between(1, 6)) }
    }
}

impl Feature for Clocks {
    /// Sometimes somebody changes, forces or stops a job.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let changes = self.changes?;
        let mut dice = Dice::numbered(self.seed ^ LABEL, u64::from(number));
        if !dice.percent(changes) {
            return None;
        }
        let name = dice.pick(&JOBS).unwrap_or(JOBS[0]);
        let job = testing::job_key(name);
        let evaluation = world.cluster.ids.evaluation();
        let is_there = world.cluster.log.truth().jobs().get(&job).is_some_and(|row| !row.stop);
        let command = match dice.below(10) {
            0 if is_there => {
                let purge = dice.percent(50);
                DeregisterJob {
                    job,
                    purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                }
                .into()
            }
            1 | 2 if is_there => {
                let due_s = known_s(&world.cluster, world.cluster.log.leader);
                ForcePeriodic { job, due_s, evaluation }.into()
            }
            3.. if is_there => return None,
            _ => {
                let edge = number as usize % world.cluster.servers.len();
                let now_s = known_s(&world.cluster, edge);
                register_clock(name, now_s, evaluation, &mut dice)
            }
        };
        world.ask(command);
        None
    }

    fn judge(&mut self, entry: &Entry<'_>, coverage: &mut Coverage, found: &mut Vec<String>) {
        judge(entry.before, entry.applied, found);
        note(entry.before, entry.applied, coverage);
    }

    fn settle_ms(&mut self, world: &mut World) -> Option<u64> {
        self.changes?;
        world.people.forget(is_of_a_clock);
        Some(SETTLE_MS)
    }

    /// Judges what was due, and stops the jobs, because the clock never rests.
    fn settled(&mut self, world: &mut World, in_time: bool) {
        if in_time {
            judge_due(&mut world.cluster);
        }
        for name in JOBS {
            let job = testing::job_key(name);
            let evaluation = world.cluster.ids.evaluation();
            let command = DeregisterJob {
                job,
                purge: false,
                evaluation,
                evaluation_priority: None,
                no_shutdown_delay: false,
            };
            world.ask(command.into());
        }
    }
}

/// What a server knows as log time, in Unix seconds.
fn known_s(cluster: &Cluster, server: usize) -> i64 {
    let at = cluster.times.monotonic_ms(server, cluster.clock_ms);
    let known = cluster.times.keeper(server).borrow_mut().now(at);
    let applied = cluster.log.state_at(cluster.servers[server].applied).at();
    (known.unwrap_or(0).max(applied) / 1000).cast_signed()
}

/// By a server that takes this for the time.
fn register_clock(name: &str, now_s: i64, evaluation: EvaluationId, dice: &mut Dice) -> Command {
    let block = Periodic {
        enabled: dice.percent(90),
        specs: vec![dice.pick(&LINES).unwrap_or(LINES[0]).into()],
        is_list: false,
        prohibit_overlap: dice.percent(50),
        time_zone: "UTC".into(),
    };
    let spec = JobSpec { periodic: Some(block), ..testing::job(name, JobKind::Batch, 1) };
    let mut command = testing::register(spec, evaluation);
    if let Command::Job(JobCommand::RegisterJob(command)) = &mut command {
        command.now_s = now_s;
    }
    command
}

/// What is due is dealt with.
fn judge_due(cluster: &mut Cluster) {
    let now_s = (cluster.times.time_ms(cluster.clock_ms) / 1000).cast_signed();
    let mut late = Vec::new();
    for row in cluster.log.truth().jobs().iter().filter(|row| !row.stop) {
        let Some((known, block)) = clock_of(cluster.log.truth(), row) else { continue };
        // Before its first launch nobody outside knows from when on the leader counts.
        let counts = block.enabled && known.last_due_s >= known.since_s;
        let due_s = schedule_of(block).next_after(known.last_due_s).unwrap_or(i64::MAX);
        if counts && due_s < now_s - LATE_S_MAX {
            late.push(format!("I51: {} was due at {due_s}, now is {now_s}", row.key));
        }
    }
    for one in late {
        cluster.fail(one);
    }
}

fn is_of_a_clock(command: &Command) -> bool {
    if let Command::Job(JobCommand::RegisterJob(command)) = command {
        return command.spec.periodic.is_some();
    }
    matches!(command, Command::Job(JobCommand::ForcePeriodic(_)))
}

fn clock_of<'s>(state: &'s State, row: &Job) -> Option<(Launches, &'s Periodic)> {
    Some((row.periodic?, state.current_spec(row)?.periodic.as_ref()?))
}

fn schedule_of(block: &Periodic) -> Schedule {
    Schedule::parse(&block.specs, &block.time_zone).expect("the lines are good ones")
}

/// Judges an entry by what it changed of jobs that the clock starts.
fn judge(before: &State, applied: &Applied, found: &mut Vec<String>) {
    let after = &applied.state;
    let Some(proposal) = &applied.entry.proposal else { return };
    let Command::Job(JobCommand::LaunchPeriodic(LaunchPeriodic { launches })) = &proposal.command
    else {
        return;
    };
    let keys: BTreeSet<&JobKey> = launches.iter().map(|launch| &launch.job).collect();
    for key in keys {
        let rows = (before.jobs().get(key), after.jobs().get(key));
        let (Some(old), Some(new)) = rows else { continue };
        if let Err(broken) = judge_job((before, old), (after, new)) {
            found.push(format!("I51: {key} {broken}"));
        }
    }
}

fn judge_job((before, old): (&State, &Job), (after, new): (&State, &Job)) -> Result<(), String> {
    let own = |row: &&Arc<Job>| row.key.parent_key().as_ref() == Some(&new.key);
    let children = after.jobs().iter().filter(own);
    let made: Vec<_> = children.filter(|row| !before.jobs().contains(&row.key)).collect();
    let (Some((was, block)), Some((is, _))) = (clock_of(before, old), clock_of(after, new)) else {
        return Err("is launched and has no clock".to_owned());
    };
    if is == was {
        return made.first().map_or(Ok(()), |row| Err(format!("{} is counted nowhere", row.key)));
    }
    if is.last_due_s <= was.last_due_s {
        return Err(format!("is launched twice: for {} after {}", is.last_due_s, was.last_due_s));
    }
    let child =
        JobKey { namespace: new.key.namespace.clone(), id: launch_id(&new.key.id, is.last_due_s) };
    if made.len() > 1 || made.first().is_some_and(|row| row.key != child) {
        return Err(format!("is launched twice: {} children of one due time", made.len()));
    }
    let overlapped = is.overlapped - was.overlapped;
    let had_one = before.jobs().contains(&child);
    if made.is_empty() && overlapped == 0 && !had_one {
        return Err(format!("has no child for {}", is.last_due_s));
    }
    let mut alive = before.jobs().iter().filter(own).filter(|row| row.status != JobStatus::Dead);
    let overlaps = block.prohibit_overlap && alive.next().is_some() && !had_one;
    if overlaps != (overlapped == 1) || (overlaps && !made.is_empty()) {
        return Err(format!("overlaps: {overlaps}, {} children are new", made.len()));
    }
    let schedule = schedule_of(block);
    if schedule.next_after(is.last_due_s - 1) != Some(is.last_due_s) {
        return Err(format!("is launched for {}, which is no due time", is.last_due_s));
    }
    // Before its first launch nobody outside knows from when on the leader counted.
    let last = before.jobs().get(&JobKey {
        namespace: new.key.namespace.clone(),
        id: launch_id(&new.key.id, was.last_due_s),
    });
    let is_counted = last.is_some_and(|last| last.create_index > old.job_modify_index);
    if was.last_due_s >= is.since_s && is_counted {
        let mut at = was.last_due_s;
        let all = std::iter::from_fn(|| {
            at = schedule.next_after(at)?;
            (at <= is.last_due_s).then_some(at)
        });
        let due = all.take(COUNTED_MAX).count() as u64;
        let dealt_with = is.missed - was.missed + 1;
        if due != dealt_with {
            return Err(format!("passed {due} due times, {dealt_with} were launched or counted"));
        }
    }
    Ok(())
}

/// What an entry shows of launches.
fn note(before: &State, applied: &Applied, coverage: &mut Coverage) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let taken = !matches!(applied.reply, Reply::Rejected(_));
    if matches!(proposal.command, Command::Job(JobCommand::ForcePeriodic(_))) && taken {
        coverage.count(Event::LaunchForced);
    }
    let Command::Job(JobCommand::LaunchPeriodic(LaunchPeriodic { launches })) = &proposal.command
    else {
        return;
    };
    if !taken {
        coverage.count(Event::LaunchRefused);
    }
    for launch in launches.iter().filter(|_| taken) {
        let known = |state: &State| state.jobs().get(&launch.job).and_then(|row| row.periodic);
        let (Some(was), Some(is)) = (known(before), known(&applied.state)) else { continue };
        coverage.count(Event::Launched);
        if is.missed > was.missed {
            coverage.count(Event::LaunchesMissed);
        }
        if is.overlapped > was.overlapped {
            coverage.count(Event::LaunchOverlapped);
        }
    }
}
