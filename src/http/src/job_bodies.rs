//! JSON bodies of jobs that are requested again and again. Making the JSON of a job costs more than
//! the rest of the read.
//!
//! This is a cache, not state. An entry holds the rows that its body was made from, and serves a
//! snapshot only if the snapshot has the same rows at the same memory address. Such an address
//! cannot be reused while the entry holds the rows. Equal rows at another address do not count.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use fsm::{Job, JobKey, JobVersion};

/// Bodies kept.
const BODIES_MAX: usize = 4_096;
/// Longest body that is kept, bytes: with [`BODIES_MAX`] the bound of all.
const BODY_BYTES_MAX: usize = 16 << 10;

struct Made {
    job: Arc<Job>,
    version: Arc<JobVersion>,
    body: Bytes,
}

/// A body for each of the jobs asked for last; two jobs that share a place take turns.
pub(crate) struct JobBodies {
    places: Box<[Mutex<Option<Made>>]>,
    hasher: RandomState,
}

impl Default for JobBodies {
    fn default() -> Self {
        let places = (0..BODIES_MAX).map(|_| Mutex::default()).collect();
        Self { places, hasher: RandomState::new() }
    }
}

impl JobBodies {
    fn place(&self, key: &JobKey) -> &Mutex<Option<Made>> {
        let hash = self.hasher.hash_one((&*key.namespace, &*key.id));
        let number = usize::try_from(hash % BODIES_MAX as u64).unwrap_or(0);
        &self.places[number]
    }

    /// The body of these rows, made by `render` when there is none.
    pub(crate) fn body<E>(
        &self,
        job: &Arc<Job>,
        version: &Arc<JobVersion>,
        render: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let place = self.place(&job.key);
        {
            let made = place.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(made) = &*made
                && Arc::ptr_eq(&made.job, job)
                && Arc::ptr_eq(&made.version, version)
            {
                return Ok(made.body.clone());
            }
        }
        let body = render()?;
        if body.len() <= BODY_BYTES_MAX {
            let (job, version) = (Arc::clone(job), Arc::clone(version));
            let made = Made { job, version, body: body.clone() };
            let old = place.lock().unwrap_or_else(PoisonError::into_inner).replace(made);
            drop(old);
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::convert::Infallible;

    use fsm::{Command, EvaluationId, Proposal, State, job::RegisterJob, table::ChangeSet};
    use serde_json::json;

    use super::*;

    fn a_job(name: &str) -> (Arc<Job>, Arc<JobVersion>) {
        let job = json!({
            "ID": name, "Type": "batch",
            "TaskGroups": [{ "Name": "g", "Tasks": [{ "Name": "t", "Driver": "mock", "Config": {} }] }],
        });
        let spec = Arc::new(jobspec::to_spec(&job).unwrap().spec);
        let mut changes = ChangeSet::default();
        let mut state = State::genesis(&mut changes);
        let evaluation = EvaluationId([1; 16]);
        let command = Command::from(RegisterJob::new(spec, evaluation));
        let proposal = Proposal { at: 1, epoch: None, request: None, command };
        state.apply(1, 1, &proposal, &mut changes);
        let job = Arc::clone(state.jobs().get(&JobKey::new("default", name)).unwrap());
        let version = Arc::clone(state.job_versions().iter().next().unwrap());
        (job, version)
    }

    #[test]
    fn a_body_serves_the_rows_it_was_made_from_and_no_others() {
        let bodies = JobBodies::default();
        let (job, version) = a_job("web");
        let ask = |job: &Arc<Job>, version: &Arc<JobVersion>, body: &'static str| {
            let made = bodies.body(job, version, || Ok::<_, Infallible>(Bytes::from(body)));
            String::from_utf8(made.unwrap().to_vec()).unwrap()
        };
        assert_eq!(ask(&job, &version, "first"), "first");
        assert_eq!(ask(&job, &version, "second"), "first", "made once");
        let same = Arc::new((*job).clone());
        assert_eq!(ask(&same, &version, "third"), "third", "equal rows are other rows");
        let newer = Arc::new((*version).clone());
        assert_eq!(ask(&same, &newer, "fourth"), "fourth");
        assert_eq!(ask(&job, &version, "fifth"), "fifth", "replaced, and the old one is not kept");
        let long: &'static str = "x".repeat(BODY_BYTES_MAX + 1).leak();
        assert_eq!(ask(&same, &version, long).len(), long.len());
        assert_eq!(ask(&same, &version, "short"), "short", "a long body is not kept");
    }
}
