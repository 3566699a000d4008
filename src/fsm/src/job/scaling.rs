//! Scaling: the bounds within which the count of a group may be moved, the command that moves it,
//! and the events of which people and autoscalers read.
//!
//! Each group with a policy or with events has one row. The policy is kept there beside the spec so
//! that listing the policies of all jobs reads no job, and so that its index rises only when the
//! policy itself changes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Job, JobSpec, TaskGroup, transitions::Stored};
use crate::{
    apply::{Outcome, Turn, not_found},
    bounds::{check_scaling_event, refused},
    command::{IndexConflict, Rejection, Reply},
    digest::joined_hash,
    effect::Effect,
    evaluation::Trigger,
    id::{EvaluationId, Index, JobKey, ScalingPolicyId, Text, TimeMs},
    limits,
    state::State,
    table::Row,
};

/// Within which bounds the count of a group may be moved, and what an autoscaler is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Scaling {
    /// Whether an autoscaler is to act.
    pub enabled: bool,
    pub min: u32,
    pub max: u32,
    /// What the autoscaler reads, a JSON object kept as it is; empty: none.
    pub policy_json: Text,
    /// `horizontal`: the count of the group.
    pub kind: Text,
}

impl Scaling {
    /// Why the count cannot be this, in Nomad's words.
    pub fn refuses(&self, count: u32) -> Option<String> {
        if count > self.max {
            let max = self.max;
            return Some(format!(
                "group count was greater than scaling policy maximum: {count} > {max}"
            ));
        }
        (count < self.min).then(|| {
            format!("group count was less than scaling policy minimum: {count} < {}", self.min)
        })
    }
}

/// The policy of a group in the job's current version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScalingPolicy {
    pub id: ScalingPolicyId,
    pub scaling: Scaling,
    /// Index of the registration that brought it.
    pub create_index: Index,
    /// Index of the registration that changed it last.
    pub modify_index: Index,
}

/// Something that was done to the count of a group, or said about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScalingEvent {
    /// Log time.
    pub at: TimeMs,
    /// The count that was asked for; none: something was only said.
    pub count: Option<u32>,
    pub count_before: u32,
    pub message: Text,
    /// The autoscaler failed.
    pub error: bool,
    /// What else was said, a JSON object; empty: nothing.
    pub meta_json: Text,
    /// The evaluation that was made.
    pub evaluation: Option<EvaluationId>,
    pub create_index: Index,
}

/// Policy and events of one group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupScaling {
    pub job: JobKey,
    pub group: Text,
    /// None: the group has none, or the job is stopped.
    pub policy: Option<ScalingPolicy>,
    /// Newest first, at most `limits::SCALING_EVENTS_MAX`.
    pub events: Vec<ScalingEvent>,
}

impl Row for GroupScaling {
    type Key = (JobKey, Text);

    fn key(&self) -> (JobKey, Text) {
        (self.job.clone(), self.group.clone())
    }
}

/// Moves the count of a group, or records what was said about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScaleJob {
    pub job: JobKey,
    pub group: Text,
    /// None: only the event is recorded.
    pub count: Option<u32>,
    /// Compare-and-set: the job's modify index must be this.
    pub enforce_index: Option<Index>,
    pub message: Text,
    pub error: bool,
    /// A JSON object; empty: none.
    pub meta_json: Text,
    pub evaluation: EvaluationId,
}

/// The id of a group's policy: the same whenever the group has one. It has the form of a UUID of
/// version 8, which is made by a rule of one's own.
pub fn scaling_policy_id(job: &JobKey, group: &str) -> ScalingPolicyId {
    let mut bytes = b"scaling-policy".to_vec();
    for part in [&*job.namespace, &*job.id, group] {
        bytes.push(0);
        bytes.extend_from_slice(part.as_bytes());
    }
    let mut id = joined_hash(&bytes).to_be_bytes();
    let [_, _, _, _, _, _, version, _, variant, ..] = &mut id;
    *version = (*version & 0x0f) | 0x80;
    *variant = (*variant & 0x3f) | 0x80;
    ScalingPolicyId(id)
}

impl State {
    /// Policy and events of the groups of a job, by group.
    pub fn scalings_of(&self, job: &JobKey) -> Vec<Arc<GroupScaling>> {
        let first = (job.clone(), Text::from(""));
        let rows = self.group_scalings.iter_from(&first);
        rows.take_while(|row| row.job == *job).cloned().collect()
    }
}

impl Turn<'_> {
    /// Keeps the policies in step with the version that a job is at from now on: a job that is
    /// stopped has none, a group that is gone has no row.
    pub(crate) fn keep_scalings(&mut self, job: &Job, spec: &JobSpec) {
        let rows = self.state.scalings_of(&job.key);
        for row in rows.iter().filter(|row| spec.group(&row.group).is_none()) {
            self.state.group_scalings.remove(&row.key(), self.changes);
        }
        for group in &spec.groups {
            let scaling = group.scaling.as_ref().filter(|_| !job.stop);
            let old = rows.iter().find(|row| row.group == group.name);
            if scaling.is_some() || old.is_some() {
                self.keep_scaling(&job.key, group, scaling, old.map(|row| &**row));
            }
        }
    }

    fn keep_scaling(
        &mut self,
        job: &JobKey,
        group: &TaskGroup,
        scaling: Option<&Scaling>,
        old: Option<&GroupScaling>,
    ) {
        let before = old.and_then(|row| row.policy.as_ref());
        if before.map(|policy| &policy.scaling) == scaling {
            return;
        }
        let policy = scaling.map(|scaling| ScalingPolicy {
            id: scaling_policy_id(job, &group.name),
            scaling: scaling.clone(),
            create_index: before.map_or(self.index, |policy| policy.create_index),
            modify_index: self.index,
        });
        let events = old.map_or_else(Vec::new, |row| row.events.clone());
        let row = GroupScaling { job: job.clone(), group: group.name.clone(), policy, events };
        if row.policy.is_none() && row.events.is_empty() {
            self.state.group_scalings.remove(&row.key(), self.changes);
        } else {
            self.state.group_scalings.put(row, self.changes);
        }
    }

    /// Forgets policies and events of a job.
    pub(crate) fn drop_scalings(&mut self, job: &JobKey) {
        for row in self.state.scalings_of(job) {
            self.state.group_scalings.remove(&row.key(), self.changes);
        }
    }

    pub(crate) fn scale_job(&mut self, command: &ScaleJob) -> Outcome {
        if self.state.scheduler_configuration().reject_job_registration {
            return Err(Rejection::RegistrationDisabled);
        }
        check_scaling_event(&command.message, &command.meta_json).map_err(refused)?;
        let job = self.state.jobs.get(&command.job).cloned().ok_or_else(|| not_found("job"))?;
        if let Some(asked) = command.enforce_index.filter(|asked| *asked != job.job_modify_index) {
            let found = IndexConflict::Other(job.job_modify_index);
            return Err(Rejection::JobIndexConflict { asked, found });
        }
        let spec = self.state.current_spec(&job).cloned().ok_or_else(|| not_found("job"))?;
        let Some(group) = spec.group(&command.group) else {
            let name = &command.group;
            return Err(refused(format!(
                "task group \"{name}\" specified for scaling does not exist in job"
            )));
        };
        let mut event = ScalingEvent {
            at: self.at,
            count: command.count,
            count_before: group.count,
            message: command.message.clone(),
            error: command.error,
            meta_json: command.meta_json.clone(),
            evaluation: None,
            create_index: self.index,
        };
        let mut job_modify_index = job.job_modify_index;
        if let Some(count) = command.count {
            self.check_scale(command, &job, group, count)?;
            let scaled = with_count(&spec, &command.group, count);
            scaled.check().map_err(refused)?;
            let key = (job.key.clone(), job.create_index, job.version);
            let submission =
                self.state.job_versions.get(&key).and_then(|version| version.submission.clone());
            let job = self.store_job(
                &Arc::new(scaled),
                submission.as_ref(),
                Some(&*job),
                Stored::default(),
            );
            event.evaluation =
                self.first_evaluation(&job, command.evaluation, None, Trigger::JobScaling);
            job_modify_index = job.job_modify_index;
            self.jobs.insert(job.key.clone());
        }
        let evaluation = event.evaluation;
        self.note_scaling(&command.job, &command.group, event);
        Ok(Reply::Job { evaluation, job_modify_index, found: true })
    }

    /// Why the count of a group cannot be moved now.
    fn check_scale(
        &self,
        command: &ScaleJob,
        job: &Job,
        group: &TaskGroup,
        count: u32,
    ) -> Result<(), Rejection> {
        if command.error {
            let text = "scaling action should not contain count if error is true";
            return Err(Rejection::Invalid(text.into()));
        }
        if job.kind.is_per_node() {
            let kind = job.kind.name();
            return Err(refused(format!(
                "cannot scale jobs of type {kind}: they run once per node"
            )));
        }
        if job.stop {
            return Err(Rejection::Invalid("cannot scale a stopped job: start it first".into()));
        }
        self.state.check_room_for(job)?;
        if let Some(why) = group.scaling.as_ref().and_then(|scaling| scaling.refuses(count)) {
            return Err(refused(why));
        }
        if self.state.active_deployment(&job.key).is_some() {
            let text = "job scaling blocked due to active deployment";
            return Err(Rejection::Invalid(text.into()));
        }
        self.check_evaluation_id(command.evaluation)
    }

    fn note_scaling(&mut self, job: &JobKey, group: &Text, event: ScalingEvent) {
        let key = (job.clone(), group.clone());
        let mut row = self.state.group_scalings.get(&key).map_or_else(
            || GroupScaling {
                job: job.clone(),
                group: group.clone(),
                policy: None,
                events: Vec::new(),
            },
            |row| (**row).clone(),
        );
        row.events.truncate(limits::SCALING_EVENTS_MAX.saturating_sub(1));
        row.events.insert(0, event);
        self.state.group_scalings.put(row, self.changes);
        self.effects.insert(Effect::Job(job.clone()));
    }
}

fn with_count(spec: &JobSpec, group: &str, count: u32) -> JobSpec {
    let mut spec = spec.clone();
    for one in spec.groups.iter_mut().filter(|one| &*one.name == group) {
        one.count = count;
    }
    spec
}

#[cfg(test)]
mod tests;
