//! Children: jobs that a parameterized job makes for each dispatch, and a periodic one for each due
//! time. A child is an ordinary job whose id says who made it ([`JobKey::parent`]).
//!
//! What is asked of a parent's children without looking at their rows is in a derived index,
//! [`Children`], so that nothing here costs more with more children: their number by status, who
//! waits, and which tokens were taken.
//!
//! `max_running` of the parent bounds how many children are alive. A child beyond it is a row
//! without evaluation. There is no machine that lets it in: the entry in which a child ends, or the
//! bound is raised, makes the evaluation of the one that waits longest. So the order is in the
//! rows, and neither a retry nor another leader can change it.

use std::{collections::BTreeMap, sync::Arc};

use imbl::{OrdMap, OrdSet};

use super::{
    DeregisterJob, Dispatch, Job, JobSpec, JobStatus, StopChildren, Waiting, transitions::Stored,
};
use crate::{
    apply::{Outcome, Turn},
    bounds::{few, refused},
    command::{Rejection, Reply},
    evaluation::{Evaluation, Trigger},
    id::{EvaluationId, Index, JobKey, Text},
    indexes::broken,
    limits,
    plant::{Plant, is_planted},
    state::State,
};

/// What is known of the children of a job without a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Children {
    /// Nothing of them runs yet; those that wait are among them.
    pub pending: u64,
    pub running: u64,
    /// Those that are over, in the order in which they were made.
    pub dead: OrdSet<(Index, JobKey)>,
    /// Those that wait, in the order in which they start.
    pub waiting: OrdMap<(Index, u32), JobKey>,
    /// Those that were dispatched with a token.
    pub tokens: OrdMap<Text, JobKey>,
}

impl Children {
    /// Those that count against `max_running`.
    pub fn alive(&self) -> u64 {
        let (all, waiting) = (self.pending.saturating_add(self.running), self.waiting.len() as u64);
        let alive = all.checked_sub(waiting);
        alive.unwrap_or_else(|| panic!("{waiting} children wait and {all} are there"))
    }

    /// None of them runs or will.
    pub(crate) fn are_over(&self) -> bool {
        self.pending == 0 && self.running == 0
    }

    /// The dead that are more than so many, the oldest first.
    pub fn surplus(&self, max: u64) -> impl Iterator<Item = &(Index, JobKey)> {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        self.dead.iter().take(self.dead.len().saturating_sub(max))
    }

    fn is_empty(&self) -> bool {
        self.are_over() && self.dead.is_empty()
    }

    fn add(&mut self, job: &Job) {
        match job.status {
            JobStatus::Pending => add_one(&mut self.pending),
            JobStatus::Running => add_one(&mut self.running),
            JobStatus::Dead => {
                let known = self.dead.insert((job.create_index, job.key.clone()));
                check(known.is_none(), job, "is among the dead already");
            }
        }
        if let Some(waiting) = job.waiting {
            let order = (job.create_index, waiting.position);
            let known = self.waiting.insert(order, job.key.clone());
            check(known.is_none(), job, "waits in the place of another");
        }
        if !job.token.is_empty() {
            let known = self.tokens.insert(job.token.clone(), job.key.clone());
            check(known.is_none(), job, "has the token of another");
        }
    }

    fn take(&mut self, job: &Job) {
        match job.status {
            JobStatus::Pending => take_one(&mut self.pending, job),
            JobStatus::Running => take_one(&mut self.running, job),
            JobStatus::Dead => {
                let known = self.dead.remove(&(job.create_index, job.key.clone()));
                check(known.is_some(), job, "is not among the dead");
            }
        }
        if let Some(waiting) = job.waiting {
            let known = self.waiting.remove(&(job.create_index, waiting.position));
            check(known.as_ref() == Some(&job.key), job, "does not wait");
        }
        if !job.token.is_empty() {
            let known = self.tokens.remove(&job.token);
            check(known.as_ref() == Some(&job.key), job, "has no token");
        }
    }
}

fn check(holds: bool, job: &Job, what: &str) {
    if !holds {
        broken("children", format_args!("{} {what}", job.key));
    }
}

/// A count of rows in memory does not overflow.
fn add_one(count: &mut u64) {
    *count = count.saturating_add(1);
}

fn take_one(count: &mut u64, job: &Job) {
    let less = count.checked_sub(1);
    *count = less.unwrap_or_else(|| broken("children", format_args!("{} is not counted", job.key)));
}

/// A child as its parent is asked to make it.
pub(crate) struct NewChild {
    /// Made by the proposer; has the form of a child of this parent.
    pub(crate) id: Text,
    /// Beside the parent's, and before it.
    pub(crate) meta: BTreeMap<Text, Text>,
    /// The parent's unless given.
    pub(crate) priority: Option<u16>,
    /// Set when it is dispatched.
    pub(crate) dispatch: Option<Dispatch>,
    pub(crate) trigger: Trigger,
    /// Place among the children that this entry makes.
    pub(crate) position: u32,
    pub(crate) evaluation: EvaluationId,
}

impl State {
    /// Jobs with children, from this one on, with what is known of those.
    pub fn parents_from(&self, first: &JobKey) -> impl Iterator<Item = (&JobKey, &Arc<Children>)> {
        self.children.range(first.clone()..)
    }

    /// The rows of a job's children, by id.
    pub fn children_rows<'a>(&'a self, parent: &'a JobKey) -> impl Iterator<Item = &'a Arc<Job>> {
        let first = JobKey { id: format!("{}/", parent.id).into(), ..parent.clone() };
        let start = first.id.clone();
        self.jobs
            .range(first..)
            .take_while(move |job| {
                job.key.namespace == parent.namespace && job.key.id.starts_with(&*start)
            })
            .filter(|job| job.key.parent() == Some(&parent.id))
    }

    /// Indexes a job row that is new, replaces `old`, or is deleted, among its parent's children.
    pub(crate) fn index_child(&mut self, old: Option<&Job>, new: Option<&Job>) {
        let Some(parent) = new.or(old).and_then(|job| job.key.parent_key()) else { return };
        let children = Arc::make_mut(self.children.entry(parent.clone()).or_default());
        if let Some(old) = old {
            children.take(old);
        }
        if let Some(new) = new {
            children.add(new);
        }
        if children.is_empty() {
            self.children.remove(&parent);
        }
    }

    /// How many children of a job may be alive; 0: no bound, or no such job.
    pub fn running_max(&self, parent: &JobKey) -> u32 {
        let spec = self.jobs.get(parent).and_then(|job| self.current_spec(job));
        let block = spec.and_then(|spec| spec.parameterized.as_ref());
        block.map_or(0, |block| block.max_running)
    }

    /// How many children may start now; none: as many as there are.
    fn room_for_children(&self, parent: &JobKey) -> Option<u64> {
        let max = self.running_max(parent);
        let alive = self.children(parent).map_or(0, |children| children.alive());
        (max > 0).then(|| u64::from(max).saturating_sub(alive))
    }

    /// Whether a child may be worked on at somebody's request. One that waits for its siblings, or
    /// that is over while as many of them are alive as may be, would be one too many.
    pub(crate) fn check_room_for(&self, job: &Job) -> Result<(), Rejection> {
        if job.waiting.is_some() {
            let text = "the job waits until fewer of its parent's are alive: max_running";
            return Err(refused(text.to_owned()));
        }
        let Some(parent) = job.key.parent_key() else { return Ok(()) };
        if job.status == JobStatus::Dead && self.room_for_children(&parent) == Some(0) {
            let alive = self.children(&parent).map_or(0, |children| children.alive());
            let text = format!(
                "the job is over, and {alive} children of \"{}\" are alive, as many as its max_running \
                 allows: wait for one to end, or raise it",
                parent.id
            );
            return Err(refused(text));
        }
        Ok(())
    }

    /// The place of a child among those of its parent that wait, from 1; none: it does not wait.
    /// Cost: one step for each before it.
    pub fn waiting_position(&self, child: &Job) -> Option<usize> {
        let waiting = child.waiting?;
        let children = self.children(&child.key.parent_key()?)?;
        Some(children.waiting.range(..=(child.create_index, waiting.position)).count())
    }
}

impl Turn<'_> {
    /// Makes a child of the current version of a job, with its first evaluation unless it has to
    /// wait. The only way in which children are made.
    pub(crate) fn register_child(
        &mut self,
        parent: &Job,
        child: NewChild,
    ) -> Result<Job, Rejection> {
        let key = JobKey { namespace: parent.key.namespace.clone(), id: child.id.clone() };
        if key.parent() != Some(&*parent.key.id) {
            let text = format!("\"{}\" is not the id of a child of {}", child.id, parent.key.id);
            return Err(refused(text));
        }
        if self.state.jobs.contains(&key) {
            return Err(refused(format!("job \"{}\" exists already", child.id)));
        }
        if parent.stop {
            let text = format!("job \"{}\" is stopped: start it first", parent.key.id);
            return Err(refused(text));
        }
        let Some(spec) = self.state.current_spec(parent) else {
            return Err(refused(format!("job \"{}\" has no spec", parent.key.id)));
        };
        let mut meta = spec.meta.clone();
        meta.extend(child.meta);
        let spec = JobSpec {
            key: key.clone(),
            name: child.id,
            priority: child.priority.unwrap_or(spec.priority),
            meta,
            periodic: None,
            dispatch: child.dispatch,
            ..(**spec).clone()
        };
        spec.check().map_err(refused)?;
        self.check_evaluation_id(child.evaluation)?;
        let waits = self.state.room_for_children(&parent.key) == Some(0)
            || self.state.children(&parent.key).is_some_and(|row| !row.waiting.is_empty());
        let token = spec.dispatch.as_ref().map_or_else(Text::default, |row| row.token.clone());
        let mut job = self.store_job(&Arc::new(spec), None, None, Stored::default());
        let waiting = Waiting { position: child.position, evaluation: child.evaluation };
        job.token = token;
        job.waiting = waits.then_some(waiting);
        self.put_job(job.clone());
        if !waits {
            self.start_child(&job, child.evaluation, child.trigger);
        }
        self.jobs.insert(key);
        Ok(job)
    }

    fn start_child(&mut self, job: &Job, id: EvaluationId, trigger: Trigger) {
        let mut row = Evaluation::new(id, job.key.clone(), job.kind, job.priority, trigger);
        row.job_modify_index = job.job_modify_index;
        self.put_evaluation(row);
    }

    /// Stops or deletes children. One that is over makes no evaluation: nothing of it runs.
    pub(crate) fn stop_children(&mut self, command: &StopChildren) -> Outcome {
        let StopChildren { parent, children, purge, evaluation_ids, .. } = command;
        few("children to stop", children.len(), limits::CHILDREN_STOPPED_MAX).map_err(refused)?;
        let mut ids = evaluation_ids.iter();
        let mut made = Vec::new();
        for key in children.iter().filter(|key| key.parent_key().as_ref() == Some(parent)) {
            let Some(job) = self.state.jobs.get(key).cloned() else { continue };
            let is_over = job.status == JobStatus::Dead;
            match (is_over, *purge) {
                (true, true) => self.purge_job(&job),
                (true, false) => {}
                (false, purge) => {
                    let evaluation = self.evaluation_id(&mut ids);
                    let stop = DeregisterJob {
                        job: key.clone(),
                        purge,
                        evaluation,
                        evaluation_priority: command.evaluation_priority,
                        no_shutdown_delay: command.no_shutdown_delay,
                    };
                    if let Reply::Job { evaluation, .. } = self.deregister_job(&stop)? {
                        made.extend(evaluation);
                    }
                }
            }
        }
        Ok(Reply::Evaluations(made))
    }

    /// Remembers a row of whose siblings, or children, some may be able to start now.
    pub(crate) fn note_parent(&mut self, job: &Job) {
        if job.is_parent() {
            self.parents.insert(job.key.clone());
        }
        self.parents.extend(job.key.parent_key());
    }

    /// Starts children that wait, as many as their parents have room for.
    pub(crate) fn let_children_in(&mut self) {
        for parent in std::mem::take(&mut self.parents) {
            let Some(children) = self.state.children(&parent) else { continue };
            // More than the entry starts follow when something becomes of these.
            let room = self.state.room_for_children(&parent);
            let room = room.map_or(limits::LET_IN_MAX, |room| {
                usize::try_from(room).map_or(limits::LET_IN_MAX, |n| n.min(limits::LET_IN_MAX))
            });
            let waiting = children.waiting.values();
            let first: Vec<_> = if is_planted(Plant::QueueOrderLost) {
                waiting.rev().take(room).cloned().collect()
            } else {
                waiting.take(room).cloned().collect()
            };
            for key in first {
                self.let_in(&key);
            }
        }
        self.derive_job_statuses();
    }

    fn let_in(&mut self, key: &JobKey) {
        let Some(job) = self.state.jobs.get(key).cloned() else { return };
        let Some(waiting) = job.waiting else { return };
        let job = Job { waiting: None, modify_index: self.index, ..(*job).clone() };
        self.put_job(job.clone());
        let id = self.evaluation_id(&mut [waiting.evaluation].iter());
        self.start_child(&job, id, Trigger::JobRegister);
    }

    /// Refuses to delete a job whose children wait: nothing would say how many may start.
    pub(crate) fn check_none_waits(&self, parent: &JobKey) -> Result<(), Rejection> {
        let waiting = self.state.children(parent).map_or(0, |children| children.waiting.len());
        if waiting == 0 {
            return Ok(());
        }
        let text = format!(
            "{waiting} children of job \"{}\" wait to start: stop them as well, or wait",
            parent.id
        );
        Err(Rejection::InUse(text.into()))
    }
}

#[cfg(test)]
mod tests;
