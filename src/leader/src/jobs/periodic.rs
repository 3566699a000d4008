//! Launches periodic jobs when they are due (ADR 0020).
//!
//! Due times go by log time, which the clocks of a majority keep right (ADR 0022). Of the due times
//! of a job that have passed, the last is launched, and those before it are counted as missed: so
//! at most one is made up after an outage. Whether a launch is right is judged again in `apply`: it
//! names the spec and the last due time that it follows from, and is refused when its job has
//! others by then. That is a change of the row, so the job is looked at again.
//!
//! ```text
//!  rows that changed ─► look ─► due ─► asked ─► LaunchPeriodic
//!                        ▲               │ again, until the row has the due time
//!                        └───────────────┘
//! ```
//!
//! Invariant: a job that the clock may start is in `jobs`, and in `due` or `asked` but not in both;
//! a job with no due time any more is in neither. Between due times a step costs the same with any
//! number of jobs.

use std::collections::{BTreeMap, BTreeSet};

use cron::Schedule;
use fsm::{
    Command, Effect, Index, JobKey, State, Text,
    job::{Job, Launch, LaunchPeriodic, Launches, Periodic},
    plant::{Plant, is_planted},
};

use crate::{
    limits,
    machine::{Ids, Machine, Report, Stepped},
};

/// What is known of a job that the clock may start.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Watched {
    create_index: Index,
    job_modify_index: Index,
    /// As the row had them.
    known: Launches,
    /// Due times after this one count, Unix seconds.
    since_s: i64,
    /// The next due time that was not looked at; none: there is none.
    next_s: Option<i64>,
    /// Due times before it that passed, and are not in the row.
    missed: u64,
    /// What was asked for, and when to ask again, log time.
    asked: Option<(u64, Launch)>,
}

/// Counts since this leadership began.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    dealt_with: u64,
    missed: u64,
    overlapped: u64,
    /// Launches that were asked for, and are refused because their job changed or was launched
    /// first.
    overtaken: u64,
}

/// The watch over periodic jobs.
#[derive(Default, Debug)]
pub(crate) struct PeriodicWatch {
    jobs: BTreeMap<JobKey, Watched>,
    due: BTreeSet<(i64, JobKey)>,
    asked: BTreeSet<(u64, JobKey)>,
    /// Rows to look at.
    changed: BTreeSet<JobKey>,
    next_at: Option<u64>,
    counts: Counts,
}

impl PeriodicWatch {
    fn remove(&mut self, key: &JobKey) -> Option<Watched> {
        let old = self.jobs.remove(key)?;
        match (&old.asked, old.next_s) {
            (Some((again_at, _)), _) => self.asked.remove(&(*again_at, key.clone())),
            (None, Some(next_s)) => self.due.remove(&(next_s, key.clone())),
            (None, None) => false,
        };
        Some(old)
    }

    fn put(&mut self, key: JobKey, watched: Watched) {
        match (&watched.asked, watched.next_s) {
            (Some((again_at, _)), _) => self.asked.insert((*again_at, key.clone())),
            (None, Some(next_s)) => self.due.insert((next_s, key.clone())),
            (None, None) => false,
        };
        self.jobs.insert(key, watched);
    }

    /// Takes in a row that is new, has changed, or went.
    fn look(&mut self, now: u64, state: &State, key: JobKey, reports: &mut Vec<Report>) {
        let old = self.remove(&key);
        let Some((row, known, block)) = started_by_the_clock(state, &key) else { return };
        let old = old.filter(|old| old.create_index == row.create_index);
        if let Some(old) = &old {
            self.report(&key, old.known, known, reports);
        }
        let same_clock = old.as_ref().filter(|old| old.known.since_s == known.since_s);
        let since_s = match same_clock {
            Some(old) => old.since_s,
            None => since(now, known.since_s, old.is_some()),
        };
        if let Some(old) = same_clock
            && old.job_modify_index == row.job_modify_index
            && old.known.last_due_s == known.last_due_s
        {
            self.put(key, Watched { known, ..old.clone() });
            return;
        }
        let asked = old.as_ref().and_then(|old| old.asked.as_ref());
        self.counts.overtaken +=
            u64::from(asked.is_some_and(|(_, launch)| launch.due_s != known.last_due_s));
        let schedule = match Schedule::parse(&block.specs, &block.time_zone) {
            Ok(schedule) => schedule,
            Err(error) => {
                let detail = error.to_string().into();
                reports.push(Report::CronUnreadable { job: name_of(&key), detail });
                return;
            }
        };
        let watched = Watched {
            create_index: row.create_index,
            job_modify_index: row.job_modify_index,
            known,
            since_s,
            next_s: schedule.next_after(since_s.max(known.last_due_s)),
            missed: 0,
            asked: None,
        };
        self.put(key, watched);
    }

    fn report(&mut self, key: &JobKey, old: Launches, new: Launches, reports: &mut Vec<Report>) {
        let missed = new.missed.saturating_sub(old.missed);
        let overlapped = new.overlapped.saturating_sub(old.overlapped);
        let counts = &mut self.counts;
        counts.dealt_with += u64::from(new.last_due_s != old.last_due_s);
        counts.missed += missed;
        counts.overlapped += overlapped;
        let job = || name_of(key);
        if missed > 0 {
            reports.push(Report::LaunchesMissed { job: job(), count: missed });
        }
        if overlapped > 0 {
            reports.push(Report::LaunchOverlapped { job: job(), count: overlapped });
        }
    }

    /// Moves a job that is due on to the last due time that has passed, in so many looks at most,
    /// and asks for its launch when it is there.
    fn advance(
        &mut self,
        now: u64,
        state: &State,
        key: &JobKey,
        looks: &mut usize,
        ids: &mut Ids<'_>,
    ) -> Option<Launch> {
        let mut watched = self.remove(key)?;
        let (_, _, block) = started_by_the_clock(state, key)?;
        let schedule = Schedule::parse(&block.specs, &block.time_zone).ok()?;
        let mut due_s = watched.next_s?;
        let launch = loop {
            *looks = looks.saturating_sub(1);
            match schedule.next_after(due_s).filter(|next_s| *next_s <= seconds(now)) {
                Some(next_s) => {
                    due_s = next_s;
                    watched.missed += 1;
                }
                None => {
                    let missed = watched.missed;
                    break Some(Launch {
                        job: key.clone(),
                        job_modify_index: watched.job_modify_index,
                        last_due_s: watched.known.last_due_s,
                        due_s,
                        missed,
                        evaluation: fsm::EvaluationId(ids()),
                    });
                }
            }
            if *looks == 0 {
                break None;
            }
        };
        watched.next_s = Some(due_s);
        let again_at = now.saturating_add(limits::LAUNCH_RETRY_MS);
        watched.asked = launch.clone().map(|launch| (again_at, launch));
        self.put(key.clone(), watched);
        launch
    }

    /// What was asked for too long ago.
    fn ask_again(&mut self, now: u64) -> Option<Launch> {
        let (_, key) = self.asked.first().filter(|(again_at, _)| *again_at <= now).cloned()?;
        let mut watched = self.remove(&key)?;
        let (again_at, launch) = watched.asked.as_mut()?;
        *again_at = now.saturating_add(limits::LAUNCH_RETRY_MS);
        let launch = launch.clone();
        self.put(key, watched);
        Some(launch)
    }

    fn deadline(&self, now: u64) -> Option<u64> {
        if !self.changed.is_empty() {
            return Some(now);
        }
        let due_at = self
            .due
            .first()
            .map(|(due_s, _)| u64::try_from(*due_s).unwrap_or(0).saturating_mul(1000).max(now));
        let again_at = self.asked.first().map(|(again_at, _)| *again_at);
        due_at.into_iter().chain(again_at).min()
    }
}

fn seconds(now: u64) -> i64 {
    i64::try_from(now / 1000).unwrap_or(i64::MAX)
}

/// From when on due times count, of a cron that was set then. Should the server that took it have
/// taken another time for now, they count from now.
fn since(now: u64, set_s: i64, is_known: bool) -> i64 {
    let now_s = seconds(now);
    if !is_known && is_planted(Plant::MissedNeverMadeUp) {
        return now_s;
    }
    set_s.min(now_s)
}

/// A job that the clock may start now, with what is known of that.
fn started_by_the_clock<'s>(
    state: &'s State,
    key: &JobKey,
) -> Option<(&'s Job, Launches, &'s Periodic)> {
    let row = state.jobs().get(key).filter(|row| !row.stop)?;
    let block = state.current_spec(row)?.periodic.as_ref().filter(|block| block.enabled)?;
    Some((row, row.periodic?, block))
}

fn name_of(key: &JobKey) -> Text {
    key.to_string().into()
}

impl Machine for PeriodicWatch {
    fn restore(&mut self, _now: u64, state: &State) {
        self.jobs.clear();
        self.due.clear();
        self.asked.clear();
        let rows = state.jobs().iter().filter(|row| row.periodic.is_some());
        self.changed = rows.map(|row| row.key.clone()).collect();
    }

    fn take(&mut self, _now: u64, state: &State, _index: Index, effect: &Effect) {
        let Effect::Job(key) = effect else { return };
        let is_periodic = state.jobs().get(key).is_some_and(|row| row.periodic.is_some());
        if is_periodic || self.jobs.contains_key(key) {
            self.changed.insert(key.clone());
        }
    }

    fn step(&mut self, now: u64, state: &State, ids: &mut Ids<'_>, stepped: &mut Stepped) {
        for _ in 0..limits::PERIODIC_SLICE_MAX {
            let Some(key) = self.changed.pop_first() else { break };
            self.look(now, state, key, &mut stepped.reports);
        }
        let mut launches = Vec::new();
        while let Some(launch) = self.ask_again(now) {
            launches.push(launch);
        }
        let mut looks = limits::PERIODIC_SLICE_MAX;
        while looks > 0
            && let Some((_, key)) = self.due.first().filter(|(at, _)| *at <= seconds(now)).cloned()
        {
            launches.extend(self.advance(now, state, &key, &mut looks, ids));
        }
        for launches in launches.chunks(fsm::limits::LAUNCHES_MAX) {
            let launches = launches.to_vec();
            stepped.commands.push(Command::from(LaunchPeriodic { launches }));
        }
        self.next_at = self.deadline(now);
    }

    fn next_deadline(&self) -> Option<u64> {
        // A row that came since the last step is looked at once.
        if self.changed.is_empty() { self.next_at } else { Some(0) }
    }

    fn gauges(&self, _now: u64, put: &mut dyn FnMut(&str, u64)) {
        put("periodic.jobs", self.jobs.len() as u64);
        put("periodic.dealt_with", self.counts.dealt_with);
        put("periodic.missed", self.counts.missed);
        put("periodic.overlapped", self.counts.overlapped);
        put("periodic.overtaken", self.counts.overtaken);
    }
}

#[cfg(test)]
mod tests;
