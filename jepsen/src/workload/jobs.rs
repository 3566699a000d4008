//! The jobs workload: the life of a job as a sequence of versions.
//!
//! Owns what is asked and what an answer means. `write` registers a spec (meta value V), `cas` does so on
//! condition of the job's index, `stop` and `purge` deregister, `read` shows the job and `versions` its
//! history. Every written value is unique but for the tenth part of writes, which repeat the newest value
//! seen: an unchanged spec is no new version.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{KeyPool, Start, Workload, body};
use crate::{
    client::{HttpClient, Reply},
    history::{Function, Kind},
};
use chance::Dice;

/// Jobs in use at the same time.
const KEYS_AT_ONCE: u64 = 5;

/// One request to one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Register this value.
    Write(u64),
    /// Register this value if the job has this index (0 = does not exist).
    Cas(u64, u64),
    /// Deregister it.
    Stop,
    /// Deregister and forget it.
    Purge,
    /// Show it.
    Read,
    /// Show its versions.
    Versions,
}

/// The workload's state.
pub(crate) struct Jobs {
    generator: Mutex<Generator>,
}

struct Generator {
    random: Dice,
    keys: KeyPool,
    next_value: u64,
    /// Newest index and value seen of each key.
    seen: BTreeMap<u64, (u64, u64)>,
}

impl Jobs {
    /// Jobs nobody has registered.
    pub(crate) fn new(random: Dice, ops_per_key: u64) -> Self {
        let keys = KeyPool::new(KEYS_AT_ONCE, ops_per_key);
        Self {
            generator: Mutex::new(Generator { random, keys, next_value: 1, seen: BTreeMap::new() }),
        }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, key: u64, index: u64, value: u64) {
        self.with_generator(|generator| {
            let seen = generator.seen.entry(key).or_default();
            *seen = (*seen).max((index, value));
        });
    }
}

impl Generator {
    fn next(&mut self) -> (u64, Action) {
        let key = self.keys.take(&mut self.random);
        let seen = self.seen.get(&key).copied();
        let action = match (self.random.index(20), seen) {
            (0..=4, _) => self.write(),
            (5, Some((_, value))) => Action::Write(value),
            (5..=8, _) => {
                let index = seen.map_or(0, |(index, _)| index);
                Action::Cas(index, self.unique())
            }
            (9..=10, _) => Action::Stop,
            (11, _) => Action::Purge,
            (12..=13, _) => Action::Versions,
            (14.., _) => Action::Read,
        };
        (key, action)
    }

    fn write(&mut self) -> Action {
        Action::Write(self.unique())
    }

    fn unique(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value - 1
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
struct Job {
    meta: BTreeMap<String, String>,
    version: u64,
    stop: bool,
    create_index: u64,
    job_modify_index: u64,
}

impl Job {
    fn value(&self) -> Result<u64, Completion> {
        let value = self.meta.get("value").and_then(|value| value.parse().ok());
        value.ok_or_else(|| Completion::fail("unexpected answer: no numeric meta value"))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Versions {
    versions: Vec<Job>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Changed {
    job_modify_index: u64,
}

fn changed(reply: &Reply) -> Result<Completion, Completion> {
    let changed = answer::written::<Changed>(reply)?;
    Ok(Completion { version: Some(changed.job_modify_index), ..Completion::ok() })
}

impl Jobs {
    fn read(&self, client: &HttpClient, key: u64) -> Result<Completion, Completion> {
        let reply = client.get(&format!("/v1/job/j{key}"));
        if answer::is_not_found(&reply, "job not found") {
            return Ok(Completion::ok().with_value(json!([key, null])));
        }
        let (job, _) = answer::read::<Job>(&reply)?;
        let value = job.value()?;
        self.learn(key, job.job_modify_index, value);
        let shown = json!({
            "value": value,
            "version": job.version,
            "stop": job.stop,
            "create": job.create_index,
            "modify": job.job_modify_index,
        });
        Ok(Completion::ok().with_value(json!([key, shown])))
    }

    fn write(
        &self,
        client: &HttpClient,
        (key, value): (u64, u64),
        enforce: Option<u64>,
    ) -> Result<Completion, Completion> {
        let job = body::parameterized(&format!("j{key}"), &json!({"value": value.to_string()}));
        let done = changed(&client.put("/v1/jobs", &body::registration(job, enforce)))?;
        self.learn(key, done.version.unwrap_or(0), value);
        Ok(done)
    }
}

fn versions(client: &HttpClient, key: u64) -> Result<Completion, Completion> {
    let reply = client.get(&format!("/v1/job/j{key}/versions"));
    if answer::is_not_found(&reply, "job versions not found") {
        return Ok(Completion::ok().with_value(json!([key, null])));
    }
    let (found, _) = answer::read::<Versions>(&reply)?;
    let mut shown: Vec<Value> = Vec::new();
    for version in &found.versions {
        shown.push(json!([version.version, version.value()?]));
    }
    Ok(Completion::ok().with_value(json!([key, shown])))
}

impl Workload for Jobs {
    type Request = (u64, Action);

    fn next(&self) -> Self::Request {
        self.with_generator(Generator::next)
    }

    fn start(&self, (key, action): &Self::Request) -> Start {
        match action {
            Action::Write(value) => Start::new(Function::Write, json!([key, value])),
            Action::Cas(index, value) => {
                Start { expected: Some(*index), ..Start::new(Function::Cas, json!([key, value])) }
            }
            Action::Stop => Start::new(Function::Stop, json!([key, null])),
            Action::Purge => Start::new(Function::Purge, json!([key, null])),
            Action::Read => Start::new(Function::Read, json!([key, null])),
            Action::Versions => Start::new(Function::Versions, json!([key, null])),
        }
    }

    fn perform(&self, client: &HttpClient, (key, action): &Self::Request) -> Completion {
        let completion = match action {
            Action::Write(value) => self.write(client, (*key, *value), None),
            Action::Cas(index, value) => self.write(client, (*key, *value), Some(*index)),
            Action::Stop => changed(&client.delete(&format!("/v1/job/j{key}"))),
            Action::Purge => changed(&client.delete(&format!("/v1/job/j{key}?purge=true"))),
            Action::Read => self.read(client, *key),
            Action::Versions => versions(client, *key),
        };
        let completion = completion.unwrap_or_else(|completion| completion);
        if completion.kind == Kind::Info {
            self.with_generator(|generator| generator.keys.doubt(*key));
        }
        completion
    }

    /// Registers every job once more, at any server, then shows it and its versions at each.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Self::Request)> {
        self.with_generator(|generator| {
            let mut steps = Vec::new();
            for key in generator.keys.used() {
                steps.push((None, (key, generator.write())));
                for server in 0..servers {
                    steps.push((Some(server), (key, Action::Read)));
                    steps.push((Some(server), (key, Action::Versions)));
                }
            }
            steps
        })
    }

    fn renew(&self, (key, action): &Self::Request) -> Self::Request {
        match action {
            Action::Write(_) => (*key, self.with_generator(Generator::write)),
            Action::Cas(..) | Action::Stop | Action::Purge | Action::Read | Action::Versions => {
                (*key, *action)
            }
        }
    }
}
