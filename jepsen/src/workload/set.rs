//! The set workload: an element is a job with a unique name, a read is a list of all jobs with a prefix.
//!
//! Owns what is asked and what an answer means. Elements are never taken out, so a list has to show every
//! element that was acknowledged, or seen by anyone, before the list was asked for.

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;

use super::answer::{self, Completion};
use super::{KeyPool, Start, Workload, body};
use crate::client::HttpClient;
use crate::history::Function;
use crate::random::Random;

/// Sets in use at the same time.
const KEYS_AT_ONCE: u64 = 3;

/// One request to one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// List its elements.
    Read,
    /// Put this element in.
    Add(u64),
}

/// The workload's state.
pub(crate) struct Sets {
    generator: Mutex<Generator>,
}

struct Generator {
    random: Random,
    keys: KeyPool,
    next_element: u64,
}

impl Sets {
    /// Empty sets.
    pub(crate) fn new(random: Random, ops_per_key: u64) -> Self {
        let keys = KeyPool::new(KEYS_AT_ONCE, ops_per_key);
        Self { generator: Mutex::new(Generator { random, keys, next_element: 1 }) }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Generator {
    fn add(&mut self) -> Action {
        self.next_element += 1;
        Action::Add(self.next_element - 1)
    }
}

#[derive(Deserialize)]
struct Row {
    #[serde(rename = "ID")]
    id: String,
}

impl Workload for Sets {
    type Request = (u64, Action);

    fn next(&self) -> Self::Request {
        self.with_generator(|generator| {
            let key = generator.keys.take(&mut generator.random);
            (key, if generator.random.below(2) == 0 { Action::Read } else { generator.add() })
        })
    }

    fn start(&self, (key, action): &Self::Request) -> Start {
        match action {
            Action::Read => Start::new(Function::Read, json!([key, null])),
            Action::Add(element) => Start::new(Function::Add, json!([key, element])),
        }
    }

    fn perform(&self, client: &HttpClient, (key, action): &Self::Request) -> Completion {
        match action {
            Action::Read => {
                let prefix = format!("s{key}-");
                let reply = client.get(&format!("/v1/jobs?prefix={prefix}"));
                let (rows, index) = match answer::read::<Vec<Row>>(&reply) {
                    Ok(answer) => answer,
                    Err(completion) => return completion,
                };
                let elements: Option<Vec<u64>> =
                    rows.iter().map(|row| row.id.strip_prefix(&prefix)?.parse().ok()).collect();
                match elements {
                    Some(elements) => Completion { version: Some(index), ..Completion::ok() }
                        .with_value(json!([key, elements])),
                    None => Completion::fail("unexpected answer: a job of another name"),
                }
            }
            Action::Add(element) => {
                let job = body::parameterized(&format!("s{key}-{element}"), &json!({}));
                let reply = client.put("/v1/jobs", &body::registration(job, None));
                match answer::written::<serde_json::Value>(&reply) {
                    Ok(_) => Completion::ok(),
                    Err(completion) => completion,
                }
            }
        }
    }

    /// Puts one more element into every set, at any server, then lists it at each.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Self::Request)> {
        self.with_generator(|generator| {
            let mut steps = Vec::new();
            for key in generator.keys.used() {
                steps.push((None, (key, generator.add())));
                steps.extend((0..servers).map(|server| (Some(server), (key, Action::Read))));
            }
            steps
        })
    }

    fn renew(&self, (key, action): &Self::Request) -> Self::Request {
        match action {
            Action::Read => (*key, Action::Read),
            Action::Add(_) => (*key, self.with_generator(Generator::add)),
        }
    }
}
