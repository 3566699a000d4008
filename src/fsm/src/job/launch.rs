//! Launches: starts children of periodic jobs, each for a due time (ADR 0020).
//!
//! Invariant: the last due time of a job never goes back, so that none is dealt with twice; and
//! each one that is dealt with has a child, or is counted in [`super::Launches`], never both.

use super::{ForcePeriodic, Job, Launch, LaunchPeriodic, Launches, NewChild};
use crate::{
    apply::{Outcome, Turn, not_found},
    bounds::refused,
    command::{Rejection, Reply},
    evaluation::Trigger,
    id::{EvaluationId, JobKey, Text},
    limits,
    plant::{Plant, is_planted},
};

/// The id of the child of a periodic job for a due time, in Unix seconds.
pub fn launch_id(parent: &str, due_s: i64) -> Text {
    format!("{parent}/periodic-{due_s}").into()
}

impl Turn<'_> {
    /// Each launch is judged alone. The command is refused when all of it is.
    pub(crate) fn launch_periodic(&mut self, command: &LaunchPeriodic) -> Outcome {
        let (asked, max) = (command.launches.len(), limits::LAUNCHES_MAX);
        if asked > max {
            return Err(refused(format!("{asked} launches in one entry, at most {max} may be")));
        }
        let outcomes: Vec<_> =
            command.launches.iter().zip(0..).map(|(one, place)| self.launch(one, place)).collect();
        match outcomes.into_iter().reduce(Result::or) {
            Some(Err(why)) => Err(why),
            Some(Ok(())) | None => Ok(Reply::Done),
        }
    }

    fn launch(&mut self, launch: &Launch, position: u32) -> Result<(), Rejection> {
        let Launch { ref job, job_modify_index, due_s, missed, evaluation, .. } = *launch;
        let (job, known) = self.enabled(job)?;
        if job.job_modify_index != job_modify_index {
            let text = format!("job \"{}\" has changed since it was due", job.key.id);
            return Err(refused(text));
        }
        if !is_planted(Plant::LaunchTwice) {
            check_due(launch, known.last_due_s)?;
        }
        self.check_evaluation_id(evaluation)?;
        let mut id = launch_id(&job.key.id, due_s);
        if is_planted(Plant::LaunchTwice) && self.has_job(&job.key, &id) {
            id = format!("{id}-again").into();
        }
        // One that was forced in the same second is that of the due time as well.
        let is_there = self.has_job(&job.key, &id);
        let overlaps = !is_there && self.prohibits_overlap(&job) && self.has_child_alive(&job.key);
        let known = Launches {
            // Whoever set it had a clock that was ahead.
            since_s: known.since_s.min(due_s),
            last_due_s: due_s,
            missed: known.missed.saturating_add(missed),
            overlapped: known.overlapped.saturating_add(u64::from(overlaps)),
        };
        if !overlaps && !is_there {
            self.start_launch(&job, id, position, evaluation)?;
        }
        self.put_job(Job { periodic: Some(known), modify_index: self.index, ..job });
        Ok(())
    }

    pub(crate) fn force_periodic(&mut self, command: &ForcePeriodic) -> Outcome {
        let ForcePeriodic { ref job, due_s, evaluation } = *command;
        let (job, _) = self.enabled(job)?;
        self.check_evaluation_id(evaluation)?;
        let id = launch_id(&job.key.id, due_s);
        if self.has_job(&job.key, &id) {
            let text = format!(
                "job \"{}\" was started in this second already, as \"{id}\": force it again in the next",
                job.key.id
            );
            return Err(refused(text));
        }
        let child = self.start_launch(&job, id, 0, evaluation)?;
        let job_modify_index = child.job_modify_index;
        Ok(Reply::Job { evaluation: Some(evaluation), job_modify_index, found: true })
    }

    fn start_launch(
        &mut self,
        job: &Job,
        id: Text,
        position: u32,
        evaluation: EvaluationId,
    ) -> Result<Job, Rejection> {
        let new = NewChild {
            id,
            meta: std::collections::BTreeMap::new(),
            priority: None,
            dispatch: None,
            trigger: Trigger::PeriodicJob,
            position,
            evaluation,
        };
        self.register_child(job, new)
    }

    /// A periodic job that the clock may start.
    fn enabled(&self, key: &JobKey) -> Result<(Job, Launches), Rejection> {
        let job = self.state.jobs.get(key).ok_or_else(|| not_found("job"))?;
        let id = &key.id;
        let Some(known) = job.periodic else {
            return Err(refused(format!("job \"{id}\" is not periodic: add a periodic block")));
        };
        if job.stop {
            return Err(refused(format!("job \"{id}\" is stopped: start it first")));
        }
        let spec = self.state.current_spec(job);
        if !spec.and_then(|spec| spec.periodic.as_ref()).is_some_and(|block| block.enabled) {
            let text = format!("job \"{id}\" is not started by the clock: set enabled = true");
            return Err(refused(text));
        }
        Ok(((**job).clone(), known))
    }

    fn prohibits_overlap(&self, job: &Job) -> bool {
        let spec = self.state.current_spec(job);
        let block = spec.and_then(|spec| spec.periodic.as_ref());
        block.is_some_and(|block| block.prohibit_overlap)
    }

    fn has_child_alive(&self, parent: &JobKey) -> bool {
        self.state.children(parent).is_some_and(|children| children.alive() > 0)
    }

    fn has_job(&self, parent: &JobKey, id: &Text) -> bool {
        let key = JobKey { namespace: parent.namespace.clone(), id: id.clone() };
        self.state.jobs.contains(&key)
    }
}

/// A launch is that of a due time which comes after all that were dealt with, and its count of
/// those that were missed begins at the last of these.
fn check_due(launch: &Launch, last_due_s: i64) -> Result<(), Rejection> {
    let Launch { ref job, last_due_s: known_s, due_s, .. } = *launch;
    if due_s <= last_due_s {
        let text =
            format!("job \"{}\" was due at {due_s}, its last due time is {last_due_s}", job.id);
        return Err(refused(text));
    }
    if known_s != last_due_s {
        let text = format!(
            "job \"{}\" was launched for {last_due_s} meanwhile: what was missed before {due_s} is counted from {known_s}",
            job.id
        );
        return Err(refused(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
