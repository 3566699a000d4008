//! The append workload: transactions of one to four steps on lists, as Elle knows them.
//!
//! Owns what is asked and what an answer means. The lists of a group are the meta values of ONE job, so that
//! a compare-and-set of the job is a transaction over all of them: read the job, run the steps on what was
//! read, and, if there was an append, register the result on condition that the job still has the version
//! that was read. A transaction without appends is one read. Transactions never span two groups. Every
//! appended value is unique in its list.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{KeyPool, Start, Workload, body};
use crate::{client::HttpClient, history::Function};
use chance::Dice;

/// Groups in use at the same time.
const GROUPS_AT_ONCE: u64 = 3;
/// Lists of one group.
const LISTS: u32 = 4;
/// Most steps of one transaction.
const STEPS_MAX: usize = 4;

/// One step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read this list.
    Read(u64),
    /// Append to this list this value.
    Append(u64, u64),
}

/// A transaction on the lists of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    group: u64,
    steps: Vec<Step>,
}

/// The workload's state.
pub(crate) struct Lists {
    generator: Mutex<Generator>,
}

struct Generator {
    random: Dice,
    groups: KeyPool,
    next_value: BTreeMap<u64, u64>,
}

impl Lists {
    /// Empty lists.
    pub(crate) fn new(random: Dice, ops_per_key: u64) -> Self {
        let groups = KeyPool::new(GROUPS_AT_ONCE, ops_per_key);
        Self { generator: Mutex::new(Generator { random, groups, next_value: BTreeMap::new() }) }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The lists of a group; groups have none in common.
fn lists_of(group: u64) -> Vec<u64> {
    (0..u64::from(LISTS)).map(|list| group * u64::from(LISTS) + list).collect()
}

impl Generator {
    fn next(&mut self) -> Transaction {
        let group = self.groups.take(&mut self.random);
        let count = 1 + self.random.index(STEPS_MAX);
        let steps = (0..count).map(|_| {
            let list = self.random.choose(&lists_of(group));
            if self.random.index(2) == 0 { Step::Read(list) } else { self.append(list) }
        });
        Transaction { group, steps: steps.collect() }
    }

    fn append(&mut self, list: u64) -> Step {
        let next = self.next_value.entry(list).or_insert(1);
        *next += 1;
        Step::Append(list, *next - 1)
    }

    fn renew(&mut self, transaction: &Transaction) -> Transaction {
        let steps = transaction.steps.iter().map(|step| match step {
            Step::Read(list) => Step::Read(*list),
            Step::Append(list, _) => self.append(*list),
        });
        Transaction { group: transaction.group, steps: steps.collect() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Job {
    meta: BTreeMap<String, String>,
    job_modify_index: u64,
}

/// The lists of a group and the version they had.
fn read_group(
    client: &HttpClient,
    group: u64,
) -> Result<(BTreeMap<u64, Vec<u64>>, u64), Completion> {
    let reply = client.get(&format!("/v1/job/l{group}"));
    if answer::is_not_found(&reply, "job not found") {
        return Ok((BTreeMap::new(), 0));
    }
    let (job, _) = answer::read::<Job>(&reply)?;
    let lists: Option<BTreeMap<u64, Vec<u64>>> = job
        .meta
        .iter()
        .map(|(name, text)| {
            let values = text.split(' ').map(|value| value.parse().ok());
            Some((name.strip_prefix('k')?.parse().ok()?, values.collect::<Option<_>>()?))
        })
        .collect();
    let lists = lists.ok_or_else(|| Completion::fail("unexpected answer: meta is not a list"))?;
    Ok((lists, job.job_modify_index))
}

fn write_group(
    client: &HttpClient,
    group: u64,
    lists: &BTreeMap<u64, Vec<u64>>,
    version: u64,
) -> Result<(), Completion> {
    let meta: BTreeMap<String, String> = lists
        .iter()
        .map(|(list, values)| {
            let values: Vec<String> = values.iter().map(u64::to_string).collect();
            (format!("k{list}"), values.join(" "))
        })
        .collect();
    let job = body::parameterized(&format!("l{group}"), &json!(meta));
    let reply = client.put("/v1/jobs", &body::registration(job, Some(version)));
    answer::written::<Value>(&reply).map(|_| ())
}

/// Runs the steps on these lists; the steps with their reads filled in.
fn run(steps: &[Step], lists: &mut BTreeMap<u64, Vec<u64>>) -> Value {
    let done = steps.iter().map(|step| match step {
        Step::Read(list) => json!(["r", list, lists.get(list)]),
        Step::Append(list, value) => {
            lists.entry(*list).or_default().push(*value);
            json!(["append", list, value])
        }
    });
    done.collect()
}

impl Workload for Lists {
    type Request = Transaction;

    fn next(&self) -> Transaction {
        self.with_generator(Generator::next)
    }

    fn start(&self, transaction: &Transaction) -> Start {
        let steps = transaction.steps.iter().map(|step| match step {
            Step::Read(list) => json!(["r", list, null]),
            Step::Append(list, value) => json!(["append", list, value]),
        });
        Start::new(Function::Txn, steps.collect())
    }

    fn perform(&self, client: &HttpClient, transaction: &Transaction) -> Completion {
        let attempt = || {
            let (mut lists, version) = read_group(client, transaction.group)?;
            let done = run(&transaction.steps, &mut lists);
            if transaction.steps.iter().any(|step| matches!(step, Step::Append(..))) {
                write_group(client, transaction.group, &lists, version)?;
            }
            Ok(Completion::ok().with_value(done))
        };
        attempt().unwrap_or_else(|completion| completion)
    }

    /// Appends once more to a list of every group, at any server, then reads all of its lists at each.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Transaction)> {
        self.with_generator(|generator| {
            let mut all = Vec::new();
            for group in generator.groups.used() {
                let lists = lists_of(group);
                let append = generator.append(lists[0]);
                all.push((None, Transaction { group, steps: vec![append] }));
                let read =
                    Transaction { group, steps: lists.into_iter().map(Step::Read).collect() };
                all.extend((0..servers).map(|server| (Some(server), read.clone())));
            }
            all
        })
    }

    fn renew(&self, transaction: &Transaction) -> Transaction {
        self.with_generator(|generator| generator.renew(transaction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_see_what_the_same_transaction_appended() {
        let mut lists = BTreeMap::from([(4, vec![1])]);
        let steps =
            [Step::Read(4), Step::Append(4, 2), Step::Read(4), Step::Read(5), Step::Append(5, 1)];
        let done = run(&steps, &mut lists);
        let expected = json!([
            ["r", 4, [1]],
            ["append", 4, 2],
            ["r", 4, [1, 2]],
            ["r", 5, null],
            ["append", 5, 1]
        ]);
        assert_eq!(done, expected);
        assert_eq!(lists, BTreeMap::from([(4, vec![1, 2]), (5, vec![1])]));
    }

    #[test]
    fn transactions_stay_in_their_group_and_never_append_a_value_twice() {
        let mut generator = Generator {
            random: Dice::numbered(1, 0),
            groups: KeyPool::new(GROUPS_AT_ONCE, 20),
            next_value: BTreeMap::new(),
        };
        let mut appended = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let transaction = generator.next();
            assert!((1..=STEPS_MAX).contains(&transaction.steps.len()));
            for step in [&transaction, &generator.renew(&transaction)].iter().flat_map(|t| &t.steps)
            {
                let (Step::Read(list) | Step::Append(list, _)) = step;
                assert!(lists_of(transaction.group).contains(list));
                if let Step::Append(list, value) = step {
                    assert!(appended.insert((*list, *value)));
                }
            }
        }
        assert!(generator.groups.used().end > GROUPS_AT_ONCE);
    }
}
