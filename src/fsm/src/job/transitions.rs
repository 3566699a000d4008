//! Jobs: register, deregister, evaluate.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    DeregisterJob, EvaluateJob, Job, JobSpec, JobStatus, JobVersion, Launches, MarkJobVersion,
    RegisterJob, Submission, VersionMark, VersionTag,
};
use crate::{
    allocation::{Allocation, ClientStatus},
    apply::{Outcome, Turn, not_found},
    bounds::{check_room, check_tag, refused},
    command::{IndexConflict, Rejection, Reply},
    deployment::text,
    effect::Effect,
    evaluation::{Evaluation, Trigger},
    id::{EvaluationId, Index, JobKey, Text, TimeMs},
    limits,
};

/// How a version is stored.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stored {
    /// It is a stop.
    pub(crate) stop: bool,
    /// What the server that took the registration of a periodic job knows as log time: its due
    /// times do not count from before. 0: none.
    pub(crate) now_s: i64,
}

impl Turn<'_> {
    pub(crate) fn put_job(&mut self, job: Job) {
        self.effects.insert(Effect::Job(job.key.clone()));
        let old = self.state.jobs.get(&job.key).cloned();
        self.state.index_job(old.as_deref(), &job);
        self.note_parent(&job);
        self.state.jobs.put(job, self.changes);
    }

    /// Nomad's derivation (facts of the state store). A system job or one that has children runs
    /// until it is stopped. Any other job is running while an allocation is live, pending while an
    /// evaluation is open or nothing was created for it yet, and dead otherwise. Nothing comes of a
    /// stopped job: no evaluation makes it pending.
    pub(crate) fn derive_job_status(&mut self, key: &JobKey) {
        let Some(job) = self.state.jobs.get(key).cloned() else { return };
        let index = self.state.job_index(key).cloned();
        let has_live = index.as_ref().is_some_and(|index| !index.live_names.is_empty())
            || self.state.active_deployment(key).is_some();
        let has_open = index.as_ref().is_some_and(|index| !index.open_evaluations.is_empty());
        let is_new = index.as_ref().is_none_or(|index| index.is_empty());
        let status = if job.is_lasting() {
            job.lasting_status()
        } else if has_live {
            JobStatus::Running
        } else if !job.stop && (has_open || is_new) {
            JobStatus::Pending
        } else {
            JobStatus::Dead
        };
        if status != job.status {
            let mut job = (*job).clone();
            job.status = status;
            job.modify_index = self.index;
            self.put_job(job);
        }
    }

    pub(crate) fn register_job(&mut self, command: &RegisterJob) -> Outcome {
        let RegisterJob {
            ref spec,
            enforce_index,
            evaluation,
            evaluation_priority,
            now_s,
            ref submission,
            preserve_counts,
            preserve_resources,
            stop,
            reverts_to,
        } = *command;
        if self.state.scheduler_configuration().reject_job_registration {
            return Err(Rejection::RegistrationDisabled);
        }
        let old = self.state.jobs.get(&spec.key).cloned();
        let spec = &match &old {
            Some(old) => self.preserving(spec, old, preserve_counts, preserve_resources),
            None => Arc::clone(spec),
        };
        spec.check().map_err(refused)?;
        submission.as_deref().map_or(Ok(()), Submission::check).map_err(refused)?;
        check_priority(evaluation_priority)?;
        self.check_is_own(spec, old.as_deref(), reverts_to)?;
        check_enforced(enforce_index, old.as_deref())?;
        if !self.state.namespaces.contains(&spec.key.namespace) {
            let message = format!("namespace \"{}\" does not exist", spec.key.namespace);
            return Err(Rejection::Invalid(message.into()));
        }
        if !self.state.node_pools.contains(&spec.node_pool) {
            let message = format!("node pool \"{}\" does not exist", spec.node_pool);
            return Err(Rejection::Invalid(message.into()));
        }
        if let Some(old) = &old
            && old.kind != spec.kind
        {
            let message = format!(
                "cannot change the type of job \"{}\" from {} to {}: stop and purge it first",
                spec.key.id,
                old.kind.name(),
                spec.kind.name()
            );
            return Err(Rejection::Invalid(message.into()));
        }
        // A parent is never evaluated, so allocations that the job already has would run for ever.
        if let Some(old) = &old {
            let from = nature(old.parameterized, old.periodic.is_some());
            let to = nature(spec.is_dispatchable(), spec.periodic.is_some());
            if from != to {
                let message = format!(
                    "cannot change job \"{}\" from {from} to {to}: stop and purge it first",
                    spec.key.id
                );
                return Err(Rejection::Invalid(message.into()));
            }
        }
        if let Some(old) = old.as_deref().filter(|_| !stop) {
            self.state.check_room_for(old)?;
        }
        self.check_evaluation_id(evaluation)?;
        if stop {
            self.cancel_waiting(&spec.key);
        }
        let job = self.store_job(spec, submission.as_ref(), old.as_deref(), Stored { stop, now_s });
        let made =
            self.first_evaluation(&job, evaluation, evaluation_priority, Trigger::JobRegister);
        self.jobs.insert(job.key.clone());
        Ok(Reply::Job {
            evaluation: made,
            job_modify_index: job.job_modify_index,
            found: old.is_some(),
        })
    }

    /// Refuses to register a child, unless a version of it that is kept is run again.
    fn check_is_own(
        &self,
        spec: &Arc<JobSpec>,
        old: Option<&Job>,
        reverts_to: Option<u64>,
    ) -> Result<(), Rejection> {
        let Some(parent) = spec.key.parent() else { return Ok(()) };
        let kept = old.zip(reverts_to).and_then(|(old, version)| {
            self.state.job_versions.get(&(old.key.clone(), old.create_index, version))
        });
        if kept.is_some_and(|kept| kept.spec == *spec) {
            return Ok(());
        }
        let text = format!(
            "job \"{}\" has the id of a child of \"{parent}\": children are made by their parent, \
             and one that is there goes back to versions of its own only",
            spec.key.id
        );
        Err(refused(text))
    }

    /// The spec with what a registration keeps of the version that the job is at.
    fn preserving(
        &self,
        spec: &Arc<JobSpec>,
        job: &Job,
        counts: bool,
        resources: bool,
    ) -> Arc<JobSpec> {
        let Some(current) = self.state.current_spec(job).filter(|_| counts || resources) else {
            return Arc::clone(spec);
        };
        let mut kept = (**spec).clone();
        for group in &mut kept.groups {
            let Some(known) = current.group(&group.name) else { continue };
            if counts {
                group.count = known.count;
            }
            for task in group.tasks.iter_mut().filter(|_| resources) {
                let same = known.tasks.iter().find(|known| known.name == task.name);
                task.resources = same.map_or(task.resources, |known| known.resources);
            }
        }
        Arc::new(kept)
    }

    /// Makes the version of a job that a spec is.
    pub(crate) fn store_job(
        &mut self,
        spec: &Arc<JobSpec>,
        submission: Option<&Arc<Submission>>,
        old: Option<&Job>,
        Stored { stop, now_s }: Stored,
    ) -> Job {
        let unchanged = old.is_some_and(|old| {
            old.stop == stop && self.state.current_spec(old).is_some_and(|current| current == spec)
        });
        let mut job = match old {
            Some(old) => {
                let version = if unchanged { old.version } else { old.version.saturating_add(1) };
                Job { version, modify_index: self.index, ..old.clone() }
            }
            None => Job {
                key: spec.key.clone(),
                kind: spec.kind,
                priority: spec.priority,
                version: 0,
                stop: false,
                status: JobStatus::Pending,
                parameterized: false,
                periodic: None,
                token: Text::default(),
                waiting: None,
                create_index: self.index,
                modify_index: self.index,
                job_modify_index: self.index,
                last_plan_index: 0,
                submitted_at: self.at,
                queued: BTreeMap::new(),
            },
        };
        if !unchanged {
            job.stop = stop;
            job.priority = spec.priority;
            job.parameterized = spec.is_dispatchable();
            job.periodic = spec.periodic.as_ref().map(|block| {
                let known = job.periodic.unwrap_or_default();
                let keeps = old.is_some_and(|old| {
                    let current = self.state.current_spec(old);
                    !old.stop
                        && current.is_some_and(|current| current.periodic.as_ref() == Some(block))
                });
                let since_s = if keeps { known.since_s } else { seconds(self.at).max(now_s) };
                Launches { since_s, ..known }
            });
            job.submitted_at = self.at;
            if stop {
                job.queued.clear();
                job.waiting = None;
            }
            let submission = submission.cloned();
            self.store_version(&mut job, spec, submission);
            self.cancel_deployments(&job.key, text::NEWER_JOB);
        } else if let Some(submission) = submission {
            self.replace_submission(&job, submission);
        }
        self.put_job(job.clone());
        job
    }

    /// Stores the version that a job is at from now on.
    fn store_version(
        &mut self,
        job: &mut Job,
        spec: &Arc<JobSpec>,
        submission: Option<Arc<Submission>>,
    ) {
        job.job_modify_index = self.index;
        let status = if job.is_lasting() { job.lasting_status() } else { job.status };
        let version = JobVersion {
            spec: Arc::clone(spec),
            version: job.version,
            stop: job.stop,
            stable: false,
            status,
            tag: None,
            create_index: job.create_index,
            job_modify_index: self.index,
            modify_index: self.index,
            submitted_at: self.at,
            submission,
        };
        self.state.job_versions.put(version, self.changes);
        self.keep_scalings(job, spec);
        self.drop_old_versions(job);
    }

    pub(crate) fn mark_job_version(&mut self, command: &MarkJobVersion) -> Outcome {
        let MarkJobVersion { job: ref key, ref mark } = *command;
        let job = self.state.jobs.get(key).cloned().ok_or_else(|| not_found("job"))?;
        let versions = self.state.versions_of(key, job.create_index);
        let find = |wanted: u64| {
            let found = versions.iter().find(|version| version.version == wanted);
            found.ok_or_else(|| {
                let text = format!("job \"{}\" has no version {wanted}", key.id);
                Rejection::Invalid(text.into())
            })
        };
        let tagged = |name: &str| {
            versions
                .iter()
                .find(|version| version.tag.as_ref().is_some_and(|tag| &*tag.name == name))
        };
        match mark {
            VersionMark::Stable { version, stable } => {
                let is_new = find(*version)?.stable != *stable;
                self.set_version_stable(key, job.create_index, *version, *stable);
                if is_new {
                    self.evaluate_held(&job);
                }
            }
            VersionMark::Tag { version, name, description } => {
                let version = find(version.unwrap_or(job.version))?;
                check_tag(name, description)?;
                if let Some(other) = tagged(name).filter(|other| other.version != version.version) {
                    let text = format!(
                        "tag \"{name}\" already exists on version {} of job \"{}\"",
                        other.version, key.id
                    );
                    return Err(Rejection::Invalid(text.into()));
                }
                if version.tag.is_none() {
                    let tags = versions.iter().filter(|version| version.tag.is_some()).count();
                    check_room("tagged versions of the job", tags, limits::JOB_TAGS_MAX)?;
                }
                let tag = VersionTag {
                    name: name.clone(),
                    description: description.clone(),
                    tagged_at: self.at,
                };
                self.put_tag(&job, version, Some(tag));
            }
            VersionMark::Untag { name } => {
                let Some(version) = tagged(name) else {
                    let text = format!("tag \"{name}\" not found on job \"{}\"", key.id);
                    return Err(Rejection::Invalid(text.into()));
                };
                self.put_tag(&job, version, None);
                self.drop_old_versions(&job);
            }
        }
        let mut job = (*job).clone();
        job.modify_index = self.index;
        self.put_job(job);
        Ok(Reply::Done)
    }

    fn put_tag(&mut self, job: &Job, version: &JobVersion, tag: Option<VersionTag>) {
        self.state.job_versions.put(JobVersion { tag, ..version.clone() }, self.changes);
        self.effects.insert(Effect::Job(job.key.clone()));
    }

    /// Marks a stored version as stable, or takes the mark back. Returns whether the version
    /// exists. The one that was kept for being the newest stable one may leave the history.
    pub(crate) fn set_version_stable(
        &mut self,
        job: &JobKey,
        create_index: Index,
        version: u64,
        stable: bool,
    ) -> bool {
        let key = (job.clone(), create_index, version);
        let Some(row) = self.state.job_versions.get(&key).cloned() else { return false };
        if row.stable != stable {
            let job_row = self.state.jobs.get(job).cloned();
            let job_row = job_row.filter(|row| row.create_index == create_index);
            let status = job_row.as_ref().map_or(row.status, |job| job.status);
            let modify_index = self.index;
            let marked = JobVersion { stable, status, modify_index, ..(*row).clone() };
            self.state.job_versions.put(marked, self.changes);
            self.effects.insert(Effect::Job(job.clone()));
            if let Some(row) = job_row {
                self.drop_old_versions(&row);
            }
        }
        true
    }

    /// Another text of the same job.
    fn replace_submission(&mut self, job: &Job, submission: &Arc<Submission>) {
        let key = (job.key.clone(), job.create_index, job.version);
        let Some(version) = self.state.job_versions.get(&key) else { return };
        if version.submission.as_ref() != Some(submission) {
            let mut version = (**version).clone();
            version.submission = Some(Arc::clone(submission));
            self.state.job_versions.put(version, self.changes);
        }
    }

    /// Drops the versions that are no part of the job's history. Of one that allocations ran which
    /// have ended, the spec stays until they are collected, and nothing that would bring it back.
    pub(crate) fn drop_old_versions(&mut self, job: &Job) {
        let history = self.state.versions_of(&job.key, job.create_index);
        let history: BTreeSet<u64> = history.iter().map(|version| version.version).collect();
        let stored = self.state.stored_versions(&job.key, job.create_index);
        let old = stored.filter(|version| !history.contains(&version.version));
        let old: Vec<_> = old.cloned().collect();
        let index = self.state.job_index(&job.key).cloned();
        for version in old {
            let id = (job.create_index, version.version);
            if index.as_ref().is_none_or(|index| !index.versions.contains_key(&id)) {
                let key = (job.key.clone(), job.create_index, version.version);
                self.state.job_versions.remove(&key, self.changes);
            } else if version.submission.is_some() || version.stable {
                let bare = JobVersion { submission: None, stable: false, ..(*version).clone() };
                self.state.job_versions.put(bare, self.changes);
            }
        }
    }

    /// An allocation has left its place in this version: an older one that nothing holds any more
    /// may leave the history.
    pub(crate) fn version_left(&mut self, old: &Allocation) {
        let id = (old.job_create_index, old.job_version);
        if self.state.job_index(&old.job).is_some_and(|index| index.holds_place(id)) {
            return;
        }
        let job = self.state.jobs.get(&old.job).cloned();
        if let Some(job) = job.filter(|job| job.create_index == id.0 && job.version != id.1) {
            self.drop_old_versions(&job);
        }
    }

    /// Makes an evaluation of a job, but of a parent.
    pub(super) fn first_evaluation(
        &mut self,
        job: &Job,
        id: EvaluationId,
        priority: Option<u16>,
        trigger: Trigger,
    ) -> Option<EvaluationId> {
        if job.is_parent() {
            return None;
        }
        let priority = priority.unwrap_or(job.priority);
        let mut evaluation = Evaluation::new(id, job.key.clone(), job.kind, priority, trigger);
        evaluation.job_modify_index = job.job_modify_index;
        self.put_evaluation(evaluation);
        Some(id)
    }

    pub(crate) fn deregister_job(&mut self, command: &DeregisterJob) -> Outcome {
        let DeregisterJob {
            job: ref key,
            purge,
            evaluation,
            evaluation_priority,
            no_shutdown_delay,
        } = *command;
        check_priority(evaluation_priority)?;
        let Some(old) = self.state.jobs.get(key).cloned() else {
            return Ok(Reply::Job { evaluation: None, job_modify_index: 0, found: false });
        };
        self.check_evaluation_id(evaluation)?;
        if purge {
            self.check_none_waits(key)?;
        }
        let made = if old.is_scheduled() {
            let priority = evaluation_priority.unwrap_or(old.priority);
            let mut row = Evaluation::new(
                evaluation,
                key.clone(),
                old.kind,
                priority,
                Trigger::JobDeregister,
            );
            row.job_modify_index = self.index;
            self.cancel_waiting(key);
            self.put_evaluation(row);
            Some(evaluation)
        } else {
            None
        };
        self.cancel_deployments(key, text::JOB_STOPPED);
        if no_shutdown_delay {
            self.drop_shutdown_delays(key);
        }
        if purge {
            self.purge_job(&old);
        } else {
            let mut job = (*old).clone();
            job.modify_index = self.index;
            job.job_modify_index = self.index;
            job.queued.clear();
            job.waiting = None;
            // Nothing else says when a parent was stopped: it makes no evaluation.
            if job.is_parent() {
                job.submitted_at = self.at;
            }
            // A stop is a version of its own, so that the history says when the job did not run.
            let key = (key.clone(), old.create_index, old.version);
            if let (false, Some(ran)) = (old.stop, self.state.job_versions.get(&key).cloned()) {
                job.stop = true;
                job.version = job.version.saturating_add(1);
                self.store_version(&mut job, &ran.spec, ran.submission.clone());
            }
            self.put_job(job);
        }
        self.jobs.insert(key.clone());
        Ok(Reply::Job { evaluation: made, job_modify_index: self.index, found: true })
    }

    pub(crate) fn purge_job(&mut self, job: &Job) {
        // What runs of an earlier incarnation is stopped by an evaluation, which may wait.
        if self.state.job_index(&job.key).is_none_or(|index| index.live_names.is_empty()) {
            self.cancel_waiting(&job.key);
        }
        self.state.jobs.remove(&job.key, self.changes);
        self.state.unindex_job(job);
        self.note_parent(job);
        self.forget_unhelped(&job.key);
        self.drop_scalings(&job.key);
        self.effects.insert(Effect::Job(job.key.clone()));
        let index = self.state.job_index(&job.key).cloned();
        let stored = self.state.stored_versions(&job.key, job.create_index);
        for version in stored.cloned().collect::<Vec<_>>() {
            let id = (job.create_index, version.version);
            if index.as_ref().is_none_or(|index| !index.versions.contains_key(&id)) {
                let key = (job.key.clone(), job.create_index, version.version);
                self.state.job_versions.remove(&key, self.changes);
            }
        }
    }

    pub(crate) fn evaluate_job(&mut self, command: &EvaluateJob) -> Outcome {
        let EvaluateJob { job: ref key, force_reschedule, evaluation } = *command;
        let job = self.state.jobs.get(key).cloned().ok_or_else(|| not_found("job"))?;
        if job.parameterized {
            return Err(Rejection::Invalid("can't evaluate parameterized job".into()));
        }
        if job.periodic.is_some() {
            return Err(Rejection::Invalid("can't evaluate periodic job".into()));
        }
        self.state.check_room_for(&job)?;
        self.check_evaluation_id(evaluation)?;
        if force_reschedule {
            self.force_reschedules(&job);
        }
        let made = self.first_evaluation(&job, evaluation, None, Trigger::JobRegister);
        Ok(Reply::Job { evaluation: made, job_modify_index: job.job_modify_index, found: true })
    }

    /// Marks the failed allocations of a job that have no successor.
    fn force_reschedules(&mut self, job: &Job) {
        let rows = self.state.allocations_of_job(&job.key);
        let rows = rows.filter(|row| self.is_to_replace(job, row));
        let rows: Vec<_> = rows.cloned().collect();
        for row in rows {
            let mut row = (*row).clone();
            row.transition.reschedule = true;
            self.put_allocation(row);
        }
    }

    /// Whether an allocation of a job has failed and has no successor.
    pub(crate) fn is_to_replace(&self, job: &Job, row: &Allocation) -> bool {
        row.job_create_index == job.create_index
            && row.client == ClientStatus::Failed
            && !row.is_server_terminal()
            && !row.is_ended_by_request()
            && row.next.is_none_or(|next| !self.state.allocations.contains(&next))
    }

    /// Marks the allocations of a job that would end with a delay, or wait for it already.
    fn drop_shutdown_delays(&mut self, key: &JobKey) {
        let has_delay = |row: &Allocation| {
            let spec = self.state.allocation_spec(row);
            spec.and_then(|spec| spec.group(&row.group)).is_some_and(|group| {
                let mut tasks = group.tasks.iter();
                group.shutdown_delay_ms > 0 || tasks.any(|task| task.shutdown_delay_ms > 0)
            })
        };
        let rows = self.state.allocations_of_job(key);
        let rows: Vec<_> =
            rows.filter(|row| !row.client.is_terminal() && has_delay(row)).cloned().collect();
        for row in rows {
            let mut row = (*row).clone();
            row.transition.no_shutdown_delay = true;
            self.put_allocation(row);
        }
    }

    pub(crate) fn check_evaluation_id(&self, id: EvaluationId) -> Result<(), Rejection> {
        if self.state.evaluations.contains(&id) {
            return Err(Rejection::Invalid("evaluation id exists already".into()));
        }
        Ok(())
    }
}

/// What a job is, as refusals say it.
const fn nature(parameterized: bool, periodic: bool) -> &'static str {
    match (parameterized, periodic) {
        (true, _) => "a parameterized job",
        (false, true) => "a periodic job",
        (false, false) => "one that runs",
    }
}

fn seconds(at: TimeMs) -> i64 {
    i64::try_from(at / 1000).unwrap_or(i64::MAX)
}

/// The priority that a client asks for in an evaluation.
fn check_priority(priority: Option<u16>) -> Result<(), Rejection> {
    match priority {
        Some(asked) if asked > limits::JOB_PRIORITY_MAX => {
            let max = limits::JOB_PRIORITY_MAX;
            Err(refused(format!("evaluation priority is {asked}, at most {max} may be")))
        }
        Some(_) | None => Ok(()),
    }
}

fn check_enforced(enforce_index: Option<Index>, old: Option<&Job>) -> Result<(), Rejection> {
    let Some(asked) = enforce_index else { return Ok(()) };
    let found = match (asked, old) {
        (0, None) => return Ok(()),
        (0, Some(_)) => IndexConflict::Exists,
        (_, None) => IndexConflict::Missing,
        (asked, Some(old)) if old.job_modify_index == asked => return Ok(()),
        (_, Some(old)) => IndexConflict::Other(old.job_modify_index),
    };
    Err(Rejection::JobIndexConflict { asked, found })
}
