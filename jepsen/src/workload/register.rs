//! The register workload: a register is the meta value of a parameterized job.
//!
//! Owns what is asked (the generator), how it is asked (the HTTP calls) and what an answer means. The value is
//! `Meta.value`, the version is `JobModifyIndex`; parameterized jobs get no evaluation, so nothing else moves
//! them. Every written value is unique, so an unchanged spec is never registered and each value has one
//! version.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{KeyPool, Load, ReadMode, Start, Workload, body, etcd};
use crate::{
    client::{HttpClient, Reply},
    history::Function,
    system::System,
};
use chance::Dice;

/// Keys in use at the same time.
const KEYS_AT_ONCE: u64 = 5;

/// A register's content as someone saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// The value; `None` if the register does not exist.
    pub(crate) value: Option<u64>,
    /// The version; 0 if the register does not exist.
    pub(crate) version: u64,
}

/// One request to one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read it.
    Read,
    /// Set it, whatever it holds.
    Write(u64),
    /// Set it if it still has the version of this content.
    Cas(Content, u64),
}

/// The workload's state: what is asked next, and what was seen.
pub(crate) struct Registers {
    system: System,
    read_mode: ReadMode,
    generator: Mutex<Generator>,
}

impl Registers {
    /// Registers nobody has used.
    pub(crate) fn new(load: Load, random: Dice, ops_per_key: u64) -> Self {
        let generator = Mutex::new(Generator::new(random, ops_per_key));
        Self { system: load.system, read_mode: load.read_mode, generator }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Workload for Registers {
    type Request = (u64, Action);

    fn next(&self) -> Self::Request {
        self.with_generator(Generator::next)
    }

    fn start(&self, (key, action): &Self::Request) -> Start {
        match *action {
            Action::Read => Start::new(Function::Read, json!([key, null])),
            Action::Write(value) => Start::new(Function::Write, json!([key, value])),
            Action::Cas(old, new) => Start {
                expected: Some(old.version),
                ..Start::new(Function::Cas, json!([key, [old.value, new]]))
            },
        }
    }

    fn perform(&self, client: &HttpClient, (key, action): &Self::Request) -> Completion {
        let outcome = match self.system {
            System::Quorate => ask(client, self.read_mode, *key, *action),
            System::Etcd => etcd::perform(client, *key, *action),
        };
        match outcome {
            Ok(content) => {
                if content.value.is_some() {
                    self.with_generator(|generator| generator.learn(*key, content));
                }
                let completion = Completion { version: Some(content.version), ..Completion::ok() };
                match action {
                    Action::Read => completion.with_value(json!([key, content.value])),
                    Action::Write(_) | Action::Cas(..) => completion,
                }
            }
            Err(completion) => completion,
        }
    }

    /// Writes every key once, at any server, then reads it once from each.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Self::Request)> {
        self.with_generator(|generator| {
            let mut steps = Vec::new();
            for key in generator.keys.used() {
                steps.push((None, (key, generator.write())));
                steps.extend((0..servers).map(|server| (Some(server), (key, Action::Read))));
            }
            steps
        })
    }

    fn renew(&self, (key, action): &Self::Request) -> Self::Request {
        match action {
            Action::Read => (*key, Action::Read),
            Action::Write(_) | Action::Cas(..) => (*key, self.with_generator(Generator::write)),
        }
    }
}

fn ask(
    client: &HttpClient,
    read_mode: ReadMode,
    key: u64,
    action: Action,
) -> Result<Content, Completion> {
    match action {
        Action::Read => read(&client.get(&read_mode.path(&format!("/v1/job/r{key}")))),
        Action::Write(value) => {
            written(value, &client.put("/v1/jobs", &registration(key, value, None)))
        }
        Action::Cas(old, value) => {
            let body = registration(key, value, Some(old.version));
            written(value, &client.put("/v1/jobs", &body))
        }
    }
}

fn registration(key: u64, value: u64, enforce: Option<u64>) -> Value {
    let job = body::parameterized(&format!("r{key}"), &json!({"value": value.to_string()}));
    body::registration(job, enforce)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Job {
    meta: BTreeMap<String, String>,
    job_modify_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Registered {
    job_modify_index: u64,
}

fn read(reply: &Reply) -> Result<Content, Completion> {
    if answer::is_not_found(reply, "job not found") {
        return Ok(Content::default());
    }
    let (job, _) = answer::read::<Job>(reply)?;
    let value = job.meta.get("value").and_then(|value| value.parse().ok());
    let value = value
        .ok_or_else(|| Completion::fail("unexpected answer: the job has no numeric meta value"))?;
    Ok(Content { value: Some(value), version: job.job_modify_index })
}

fn written(value: u64, reply: &Reply) -> Result<Content, Completion> {
    let answer = answer::written::<Registered>(reply)?;
    Ok(Content { value: Some(value), version: answer.job_modify_index })
}

/// Chooses keys and requests: half reads, a quarter writes, a quarter compare-and-sets.
struct Generator {
    random: Dice,
    keys: KeyPool,
    next_value: u64,
    /// The newest content anyone saw of each key, for compare-and-sets.
    seen: BTreeMap<u64, Content>,
}

impl Generator {
    /// A generator that gives up a key after this many requests.
    fn new(random: Dice, ops_per_key: u64) -> Self {
        let keys = KeyPool::new(KEYS_AT_ONCE, ops_per_key);
        Self { random, keys, next_value: 1, seen: BTreeMap::new() }
    }

    /// The next key and request.
    fn next(&mut self) -> (u64, Action) {
        let key = self.keys.take(&mut self.random);
        let request = match self.random.index(4) {
            0 | 1 => Action::Read,
            2 => self.write(),
            _ => {
                // Now and then one that may only create: what exists must be left alone.
                let seen = self.seen.get(&key).copied();
                let old = seen.filter(|_| self.random.index(8) > 0).unwrap_or_default();
                Action::Cas(old, self.unique())
            }
        };
        (key, request)
    }

    /// A write of a new value.
    fn write(&mut self) -> Action {
        Action::Write(self.unique())
    }

    /// Notes what an answer showed.
    fn learn(&mut self, key: u64, content: Content) {
        let seen = self.seen.entry(key).or_default();
        if content.version > seen.version {
            *seen = content;
        }
    }

    fn unique(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_key_has_version_0() {
        let answer =
            |status, body: &str| Reply::Answer { status, index: None, body: body.to_owned() };
        let job = r#"{"ID":"r1","Meta":{"value":"17"},"JobModifyIndex":9,"Stop":false}"#;
        assert_eq!(read(&answer(200, job)), Ok(Content { value: Some(17), version: 9 }));
        assert_eq!(read(&answer(404, "job not found")), Ok(Content::default()));
        assert!(read(&answer(200, r#"{"Meta":{},"JobModifyIndex":9}"#)).is_err());
        let registered = r#"{"EvalID":"","JobModifyIndex":12,"Warnings":""}"#;
        let content = Content { value: Some(5), version: 12 };
        assert_eq!(written(5, &answer(200, registered)), Ok(content));
    }

    #[test]
    fn only_compare_and_set_enforces_an_index() {
        let body = registration(3, 8, None);
        assert_eq!(body["Job"]["ID"], "r3");
        assert_eq!(body["Job"]["Meta"]["value"], "8");
        assert!(body.get("EnforceIndex").is_none());
        let body = registration(3, 8, Some(0));
        assert_eq!((&body["EnforceIndex"], &body["JobModifyIndex"]), (&json!(true), &json!(0)));
    }

    #[test]
    fn values_are_unique_and_keys_are_given_up() {
        let mut generator = Generator::new(Dice::numbered(1, 0), 20);
        let mut values = Vec::new();
        let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..400 {
            let (key, request) = generator.next();
            *uses.entry(key).or_default() += 1;
            match request {
                Action::Read => {}
                Action::Write(value) | Action::Cas(_, value) => values.push(value),
            }
        }
        assert!((120..280).contains(&values.len()));
        let mut sorted = values.clone();
        sorted.dedup();
        assert_eq!(sorted, values);
        assert!(uses.values().all(|count| *count <= 20) && uses.len() >= 20, "{uses:?}");
        assert_eq!(generator.keys.used().end, uses.len() as u64);
    }

    #[test]
    fn compare_and_set_uses_the_newest_content_or_may_only_create() {
        let mut generator = Generator::new(Dice::numbered(1, 0), 1_000);
        let newest = Content { value: Some(2), version: 9 };
        for key in 0..5 {
            generator.learn(key, newest);
            generator.learn(key, Content { value: Some(1), version: 4 });
        }
        let bases = (0..400).filter_map(|_| match generator.next().1 {
            Action::Cas(old, _) => Some(old),
            Action::Read | Action::Write(_) => None,
        });
        let (newest, others): (Vec<_>, Vec<_>) = bases.partition(|old| *old == newest);
        assert!(others.iter().all(|old| *old == Content::default()));
        assert!((4..30).contains(&others.len()) && newest.len() > 50, "{}", others.len());
    }
}
