//! The set workload: an element is a job with a unique name, a read is a list of all jobs with a prefix.
//!
//! Owns what is asked and what an answer means. Elements are never taken out, so a list has to show every
//! element that was acknowledged, or seen by anyone, before the list was asked for.

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;

use super::answer::{self, Completion};
use super::{KeyPool, ReadMode, Start, Workload, body};
use crate::{client::HttpClient, history::Function};
use chance::Dice;

/// Rows of a page, and pages of a list at most.
const PAGE_ROWS: usize = 7;
const PAGES_MAX: usize = 200;
/// Sets in use at the same time.
const KEYS_AT_ONCE: u64 = 3;

/// One request to one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// List its elements.
    Read,
    /// List them page by page, each page as it is when it is asked for.
    ReadPages {
        /// Backwards.
        reverse: bool,
        /// Jobs come and go meanwhile, one of them just before the page that it would have begun; with a number that no others have.
        passing: Option<u64>,
    },
    /// Put this element in.
    Add(u64),
}

/// The workload's state.
pub(crate) struct Sets {
    read_mode: ReadMode,
    generator: Mutex<Generator>,
}

struct Generator {
    random: Dice,
    keys: KeyPool,
    next_element: u64,
}

impl Sets {
    /// Empty sets.
    pub(crate) fn new(read_mode: ReadMode, random: Dice, ops_per_key: u64) -> Self {
        let keys = KeyPool::new(KEYS_AT_ONCE, ops_per_key);
        Self { read_mode, generator: Mutex::new(Generator { random, keys, next_element: 1 }) }
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

/// A job that only passes, as an element never does, is called so.
const PASSING: char = 'p';

/// Jobs beside the elements: as many as a page has rows and next to each other, so that one of them begins a page.
fn passing_jobs(key: u64, number: u64) -> Vec<String> {
    (0..PAGE_ROWS).map(|position| format!("s{key}-5{PASSING}{number}-{position}")).collect()
}

fn elements(key: u64, rows: &[Row]) -> Result<Vec<u64>, Completion> {
    let prefix = format!("s{key}-");
    let stays = |row: &&Row| !row.id.contains(PASSING);
    let elements = rows.iter().filter(stays).map(|row| row.id.strip_prefix(&prefix)?.parse().ok());
    let elements: Option<Vec<u64>> = elements.collect();
    elements.ok_or_else(|| Completion::fail("unexpected answer: a job of another name"))
}

fn read(client: &HttpClient, mode: ReadMode, key: u64) -> Result<Completion, Completion> {
    let reply = client.get(&mode.path(&format!("/v1/jobs?prefix=s{key}-")));
    let (rows, index) = answer::read::<Vec<Row>>(&reply)?;
    let elements = elements(key, &rows)?;
    Ok(Completion { version: Some(index), ..Completion::ok() }.with_value(json!([key, elements])))
}

/// Whether it was done does not matter: what passes is no element.
fn purge(client: &HttpClient, job: &str) {
    drop(client.delete(&format!("/v1/job/{job}?purge=true")));
}

/// What was there before the first page was asked for is on one of the pages, once.
fn read_pages(
    client: &HttpClient,
    mode: ReadMode,
    key: u64,
    (reverse, passing): (bool, &[String]),
) -> Result<Completion, Completion> {
    let path = format!("/v1/jobs?prefix=s{key}-&per_page={PAGE_ROWS}&reverse={reverse}");
    let path = mode.path(&path);
    let mut all = Vec::new();
    let mut token = String::new();
    for _ in 0..PAGES_MAX {
        let (reply, headers) = client.look(&format!("{path}&next_token={token}"), None);
        let (rows, _) = answer::read::<Vec<Row>>(&reply)?;
        all.extend(elements(key, &rows)?);
        match headers.next_token {
            Some(next) => {
                if let Some(job) = passing.iter().find(|job| next.ends_with(*job)) {
                    purge(client, job);
                }
                token = next;
            }
            None => return Ok(Completion::ok().with_value(json!([key, all]))),
        }
    }
    Err(Completion::fail("the pages do not end"))
}

impl Workload for Sets {
    type Request = (u64, Action);

    fn next(&self) -> Self::Request {
        self.with_generator(|generator| {
            let key = generator.keys.take(&mut generator.random);
            let action = match generator.random.index(8) {
                0..=2 => Action::Read,
                3 => {
                    let passes = generator.random.index(4) == 0;
                    let reverse = generator.random.index(2) == 0;
                    Action::ReadPages { reverse, passing: passes.then_some(generator.next_element) }
                }
                4.. => generator.add(),
            };
            (key, action)
        })
    }

    fn start(&self, (key, action): &Self::Request) -> Start {
        match action {
            Action::Read | Action::ReadPages { .. } => {
                Start::new(Function::Read, json!([key, null]))
            }
            Action::Add(element) => Start::new(Function::Add, json!([key, element])),
        }
    }

    fn perform(&self, client: &HttpClient, (key, action): &Self::Request) -> Completion {
        match action {
            Action::Read => {
                read(client, self.read_mode, *key).unwrap_or_else(|completion| completion)
            }
            Action::ReadPages { reverse, passing } => {
                let passing = passing.map(|number| passing_jobs(*key, number)).unwrap_or_default();
                for job in &passing {
                    let job = body::parameterized(job, &json!({}));
                    drop(client.put("/v1/jobs", &body::registration(job, None)));
                }
                let read = read_pages(client, self.read_mode, *key, (*reverse, &passing));
                for job in &passing {
                    purge(client, job);
                }
                read.unwrap_or_else(|completion| completion)
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
            Action::Read | Action::ReadPages { .. } => (*key, *action),
            Action::Add(_) => (*key, self.with_generator(Generator::add)),
        }
    }
}
