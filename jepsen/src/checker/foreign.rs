//! Judging histories that another program wrote, against a model named by the caller.
//!
//! Owns the reading of Knossos' and Porcupine's corpora. Registers go to [`super::register`], the other models to the checkers that the own
//! workloads use. Values may be `[key value]` in all of them but list-append, whose steps name their list;
//! keys may be anything. nil is the value of a register that was never written, also when a read shows it
//! (as in Porcupine; Knossos lets such a read match every value).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::judgement::Judgement;
use super::pairs::{pairs, split};
use super::register::{CONFIGURATIONS_MAX, Register};
use super::shares::judge_each;
use super::wgl::{Budget, Outcome};
use super::{list_append, set_full, total_queue};
use crate::history::{Function, Kind, Op, Process};

/// What a history is judged against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// Reads and writes; linearizable.
    Register,
    /// Reads, writes and compare-and-sets `[old new]`; linearizable.
    CasRegister,
    /// Transactions of `[:append k v]` and `[:r k vs]`; strictly serializable.
    ListAppend,
    /// Adds and reads of the whole set; linearizable.
    Set,
    /// Enqueues, dequeues and drains; at least once.
    Queue,
}

/// Judges a history.
pub(crate) fn judge(history: &[Op], model: Model, time_max: Duration) -> Result<Judgement> {
    let set = |keyed| set_full::Options { keyed, paged: false };
    match model {
        Model::Register | Model::CasRegister => {
            registers(history, model == Model::CasRegister, time_max)
        }
        Model::ListAppend => list_append::check(history),
        Model::Set if is_keyed(history) => set_full::check(&number_keys(history)?, set(true)),
        Model::Set => set_full::check(history, set(false)),
        Model::Queue if is_keyed(history) => total_queue::check(&as_one_queue(history)?, true),
        Model::Queue => total_queue::check(history, true),
    }
}

fn clients(history: &[Op]) -> impl Iterator<Item = &Op> {
    history.iter().filter(|op| op.process != Process::Nemesis)
}

/// Whether every operation starts with `[key value]`. A bare read starts with nil, and the values of a bare cas are no list.
fn is_keyed(history: &[Op]) -> bool {
    let mut starts = clients(history).filter(|op| op.kind == Kind::Invoke).peekable();
    let is_pair = |op: &Op| match op.value.as_array().map(Vec::as_slice) {
        Some([_, value]) => op.f != Function::Cas || value.is_array(),
        Some(_) | None => false,
    };
    starts.peek().is_some() && starts.all(is_pair)
}

/// The history with numbers for keys.
fn number_keys(history: &[Op]) -> Result<Vec<Op>> {
    let mut numbers = BTreeMap::new();
    let number = |op: &Op| {
        let (key, value) = split(op)?;
        let next = numbers.len();
        let key = *numbers.entry(key.to_string()).or_insert(next);
        Ok(Op { value: json!([key, value]), ..op.clone() })
    };
    clients(history).map(number).collect()
}

/// A history of queues as one of a single queue, whose elements are `[key value]`.
fn as_one_queue(history: &[Op]) -> Result<Vec<Op>> {
    let whole = |op: &Op| {
        let (key, value) = split(op)?;
        let value = match (op.f, value) {
            (_, Value::Null) => Value::Null,
            (Function::Drain, Value::Array(shown)) => {
                shown.iter().map(|one| json!([key, one])).collect()
            }
            (_, _) => op.value.clone(),
        };
        Ok(Op { value, ..op.clone() })
    };
    clients(history).map(whole).collect()
}

fn registers(history: &[Op], cas: bool, time_max: Duration) -> Result<Judgement> {
    let started = Instant::now();
    let budget = Budget { deadline: started + time_max, configurations_max: CONFIGURATIONS_MAX };
    let register = Register { start: &Value::Null, cas };
    let keyed = is_keyed(history);
    let mut judgement = Judgement::new("linearizable", pairs(history)?.len());
    let mut keys: BTreeMap<String, Vec<Op>> = BTreeMap::new();
    for op in clients(history) {
        let mut op = op.clone();
        let mut key = String::new();
        if keyed {
            let (found, value) = split(&op)?;
            (key, op.value) = (found.to_string(), value.clone());
        }
        keys.entry(key).or_default().push(op);
    }
    let mut failed = Vec::new();
    let judge =
        |(_, entries): &(&String, &Vec<Op>), budget: &Budget| register.judge(entries, budget);
    for ((key, entries), outcome) in judge_each(&keys, &budget, judge)? {
        let name = if keyed { format!("key {key}: ") } else { String::new() };
        match outcome {
            Outcome::Yes => {}
            Outcome::Unknown(reason) => judgement.lacks(&format!("{name}{reason}")),
            Outcome::No => {
                failed.push(key);
                let small = register.reduce(entries);
                let last = small.last().map_or(0, |op| op.index);
                let title = format!("{name}no order of the operations explains entry {last}");
                judgement.violated(title, small);
            }
        }
    }
    let text = format!("{} keys, {} violated", keys.len(), failed.len());
    judgement.summary =
        if judgement.summary.is_empty() { text } else { format!("{text}; {}", judgement.summary) };
    judgement.details = json!({"keys": keys.len(), "failed": failed});
    if keys.is_empty() {
        judgement.lacks("there were no operations");
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}
