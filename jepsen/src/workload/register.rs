//! The register workload: a register is the meta value of a parameterized job.
//!
//! Owns what is asked (the generator), how it is asked (the HTTP calls) and what an answer means. The value is
//! `Meta.value`, the version is `JobModifyIndex`; parameterized jobs get no evaluation, so nothing else moves
//! them. Every written value is unique, so an unchanged spec is never registered and each value has one
//! version. An answer counts as `fail` only if it says that nothing was done.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{HttpClient, Reply};
use crate::history::{Function, Kind};
use crate::random::Random;

/// Keys in use at the same time.
const KEYS_AT_ONCE: usize = 5;
/// What a server says when a compare-and-set found another version.
const CONFLICT: &str = "Enforcing job modify index";
/// What a server says when it turned a write away before it went into the log.
const NOT_PROPOSED: &str = "not proposed";
/// Longest part of an error body that goes into the history.
const ERROR_BYTES_MAX: usize = 300;

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
pub(crate) enum Request {
    /// Read it.
    Read,
    /// Set it, whatever it holds.
    Write(u64),
    /// Set it if it still has the version of this content.
    Cas(Content, u64),
}

impl Request {
    /// The function in the history.
    pub(crate) fn function(&self) -> Function {
        match self {
            Self::Read => Function::Read,
            Self::Write(_) => Function::Write,
            Self::Cas(..) => Function::Cas,
        }
    }

    /// The value in the history.
    pub(crate) fn value(&self, key: u64) -> Value {
        match self {
            Self::Read => json!([key, null]),
            Self::Write(value) => json!([key, value]),
            Self::Cas(old, new) => json!([key, [old.value, new]]),
        }
    }

    /// The version the request demands.
    pub(crate) fn expected(&self) -> Option<u64> {
        match self {
            Self::Read | Self::Write(_) => None,
            Self::Cas(old, _) => Some(old.version),
        }
    }
}

/// How one request ended, in the terms of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// `Ok`, `Fail` or `Info`.
    pub(crate) kind: Kind,
    /// What the register holds, if the answer tells.
    pub(crate) content: Option<Content>,
    /// Why not `Ok`.
    pub(crate) error: Option<String>,
}

impl Completion {
    fn ok(content: Content) -> Self {
        Self { kind: Kind::Ok, content: Some(content), error: None }
    }

    fn not_ok(kind: Kind, error: &str) -> Self {
        let cut = error.floor_char_boundary(ERROR_BYTES_MAX);
        Self { kind, content: None, error: Some(error[..cut].trim().to_owned()) }
    }
}

/// Performs one request.
pub(crate) fn perform(client: &HttpClient, key: u64, request: &Request) -> Completion {
    match *request {
        Request::Read => read(&client.get(&format!("/v1/job/r{key}"))),
        Request::Write(value) => {
            written(value, &client.put("/v1/jobs", &registration(key, value, None)))
        }
        Request::Cas(old, value) => {
            let body = registration(key, value, Some(old.version));
            written(value, &client.put("/v1/jobs", &body))
        }
    }
}

fn registration(key: u64, value: u64, enforce: Option<u64>) -> Value {
    let mut body = json!({"Job": {
        "ID": format!("r{key}"),
        "Name": format!("r{key}"),
        "Type": "batch",
        "Datacenters": ["dc1"],
        "ParameterizedJob": {},
        "Meta": {"value": value.to_string()},
        "TaskGroups": [{
            "Name": "group",
            "Count": 1,
            "Tasks": [{
                "Name": "task",
                "Driver": "raw_exec",
                "Config": {"command": "/bin/true"},
                "Resources": {"CPU": 10, "MemoryMB": 10}
            }]
        }]
    }});
    if let Some(version) = enforce {
        body["EnforceIndex"] = true.into();
        body["JobModifyIndex"] = version.into();
    }
    body
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

/// A read changes nothing, so whatever is not an answer is `fail`.
fn read(reply: &Reply) -> Completion {
    let fail = |error: &str| Completion::not_ok(Kind::Fail, error);
    match reply {
        Reply::Answer { status: 200, body } => match serde_json::from_str::<Job>(body) {
            Ok(job) => match job.meta.get("value").and_then(|value| value.parse().ok()) {
                Some(value) => {
                    Completion::ok(Content { value: Some(value), version: job.job_modify_index })
                }
                None => fail("unexpected answer: the job has no numeric meta value"),
            },
            Err(error) => fail(&format!("unexpected answer: {error}")),
        },
        Reply::Answer { status: 404, body } if body.contains("job not found") => {
            Completion::ok(Content::default())
        }
        Reply::Answer { status, body } => fail(&format!("{status}: {body}")),
        Reply::NotSent(error) | Reply::Lost(error) => fail(error),
    }
}

fn written(value: u64, reply: &Reply) -> Completion {
    let info = |error: &str| Completion::not_ok(Kind::Info, error);
    match reply {
        Reply::Answer { status: 200, body } => match serde_json::from_str::<Registered>(body) {
            Ok(answer) => {
                Completion::ok(Content { value: Some(value), version: answer.job_modify_index })
            }
            Err(error) => info(&format!("unexpected answer: {error}")),
        },
        Reply::Answer { status, body } => {
            let error = format!("{status}: {body}");
            let nothing_done = (400..500).contains(status)
                || body.contains(CONFLICT)
                || body.contains(NOT_PROPOSED);
            if nothing_done { Completion::not_ok(Kind::Fail, &error) } else { info(&error) }
        }
        Reply::NotSent(error) => Completion::not_ok(Kind::Fail, error),
        Reply::Lost(error) => info(error),
    }
}

/// Chooses keys and requests: half reads, a quarter writes, a quarter compare-and-sets.
pub(crate) struct Generator {
    random: Random,
    slots: Vec<Slot>,
    ops_per_key: u64,
    next_key: u64,
    next_value: u64,
    /// The newest content anyone saw of each key, for compare-and-sets.
    seen: BTreeMap<u64, Content>,
}

struct Slot {
    key: u64,
    left: u64,
}

impl Generator {
    /// A generator that gives up a key after this many requests.
    pub(crate) fn new(random: Random, ops_per_key: u64) -> Self {
        let slots = (0..KEYS_AT_ONCE as u64).map(|key| Slot { key, left: ops_per_key }).collect();
        Self {
            random,
            slots,
            ops_per_key,
            next_key: KEYS_AT_ONCE as u64,
            next_value: 1,
            seen: BTreeMap::new(),
        }
    }

    /// The next key and request.
    pub(crate) fn next(&mut self) -> (u64, Request) {
        let slot = self.random.below(self.slots.len());
        let slot = &mut self.slots[slot];
        if slot.left == 0 {
            *slot = Slot { key: self.next_key, left: self.ops_per_key };
            self.next_key += 1;
        }
        slot.left -= 1;
        let key = slot.key;
        let request = match self.random.below(4) {
            0 | 1 => Request::Read,
            2 => self.write(),
            _ => {
                let old = self.seen.get(&key).copied().unwrap_or_default();
                Request::Cas(old, self.unique())
            }
        };
        (key, request)
    }

    /// A write of a new value.
    pub(crate) fn write(&mut self) -> Request {
        Request::Write(self.unique())
    }

    /// Notes what an answer showed.
    pub(crate) fn learn(&mut self, key: u64, content: Content) {
        let seen = self.seen.entry(key).or_default();
        if content.version > seen.version {
            *seen = content;
        }
    }

    /// Every key used so far.
    pub(crate) fn keys(&self) -> std::ops::Range<u64> {
        0..self.next_key
    }

    fn unique(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Reply {
        Reply::Answer { status, body: body.to_owned() }
    }

    #[test]
    fn reads_are_understood_or_fail() {
        let job = r#"{"ID":"r1","Meta":{"value":"17"},"JobModifyIndex":9,"Stop":false}"#;
        let content = Content { value: Some(17), version: 9 };
        assert_eq!(read(&answer(200, job)), Completion::ok(content));
        assert_eq!(read(&answer(404, "job not found")), Completion::ok(Content::default()));
        for reply in [
            answer(404, "404 page not found"),
            answer(500, "No cluster leader"),
            answer(200, "{}"),
            answer(200, r#"{"Meta":{},"JobModifyIndex":9}"#),
            Reply::Lost("timeout".to_owned()),
            Reply::NotSent("refused".to_owned()),
        ] {
            let completion = read(&reply);
            assert_eq!(completion.kind, Kind::Fail, "{reply:?}");
            assert!(completion.error.is_some());
        }
    }

    #[test]
    fn writes_fail_only_if_nothing_was_done() {
        let check = |reply: Reply, kind| assert_eq!(written(5, &reply).kind, kind, "{reply:?}");
        let content = Content { value: Some(5), version: 12 };
        let registered = r#"{"EvalID":"","JobModifyIndex":12,"Warnings":""}"#;
        assert_eq!(written(5, &answer(200, registered)), Completion::ok(content));
        let conflict =
            "Enforcing job modify index 3: job exists with conflicting job modify index: 4";
        check(answer(500, conflict), Kind::Fail);
        check(answer(400, "bad job"), Kind::Fail);
        check(answer(429, "too many"), Kind::Fail);
        check(answer(500, "No cluster leader: the write was not proposed"), Kind::Fail);
        check(answer(500, "No cluster leader"), Kind::Info);
        check(answer(503, "starting"), Kind::Info);
        check(answer(307, ""), Kind::Info);
        check(answer(200, "{}"), Kind::Info);
        check(Reply::NotSent("refused".to_owned()), Kind::Fail);
        check(Reply::Lost("timeout".to_owned()), Kind::Info);
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
        let mut generator = Generator::new(Random::stream(1, 0), 20);
        let mut values = Vec::new();
        let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..400 {
            let (key, request) = generator.next();
            *uses.entry(key).or_default() += 1;
            match request {
                Request::Read => {}
                Request::Write(value) | Request::Cas(_, value) => values.push(value),
            }
        }
        assert!((120..280).contains(&values.len()));
        let mut sorted = values.clone();
        sorted.dedup();
        assert_eq!(sorted, values);
        assert!(uses.values().all(|count| *count <= 20) && uses.len() >= 20, "{uses:?}");
        assert_eq!(generator.keys().end, uses.len() as u64);
    }

    #[test]
    fn compare_and_set_uses_the_newest_content() {
        let mut generator = Generator::new(Random::stream(1, 0), 1_000);
        let newest = Content { value: Some(2), version: 9 };
        for key in 0..5 {
            generator.learn(key, newest);
            generator.learn(key, Content { value: Some(1), version: 4 });
        }
        let bases = (0..100).filter_map(|_| match generator.next().1 {
            Request::Cas(old, _) => Some(old),
            Request::Read | Request::Write(_) => None,
        });
        assert!(bases.into_iter().all(|old| old == newest));
    }
}
