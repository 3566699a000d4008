//! From history entries to operations with both their ends, whatever the workload.
//!
//! Owns what a start and its end have to do with each other: one operation per process at a time, the same
//! function at both ends, no end without a start. A history that breaks these rules was not written by a
//! client and is an error, never a verdict.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::history::{Kind, Op, Process};

/// One operation of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// Its start.
    pub(crate) start: &'a Op,
    /// Its end; `None` if the history ends first.
    pub(crate) end: Option<&'a Op>,
}

impl<'a> Pair<'a> {
    /// Its end, if it happened.
    pub(crate) fn answer(&self) -> Option<&'a Op> {
        self.end.filter(|end| end.kind == Kind::Ok)
    }

    /// It certainly did not happen.
    pub(crate) fn failed(&self) -> bool {
        self.end.is_some_and(|end| end.kind == Kind::Fail)
    }

    /// The entries of both ends.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Op> + use<'a> {
        [Some(self.start), self.end].into_iter().flatten().cloned()
    }
}

/// The operations of all clients, in order of their start.
pub(crate) fn pairs(history: &[Op]) -> Result<Vec<Pair<'_>>> {
    let mut open: BTreeMap<Process, usize> = BTreeMap::new();
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for op in history.iter().filter(|op| op.process != Process::Nemesis) {
        match op.kind {
            Kind::Invoke => {
                let previous = open.insert(op.process, pairs.len());
                ensure!(
                    previous.is_none(),
                    "entry {}: process {:?} starts a second operation before the first has ended",
                    op.index,
                    op.process
                );
                pairs.push(Pair { start: op, end: None });
            }
            Kind::Ok | Kind::Fail | Kind::Info => {
                let position = open.remove(&op.process).with_context(|| {
                    format!("entry {}: ends an operation that did not start", op.index)
                })?;
                let pair = &mut pairs[position];
                ensure!(
                    pair.start.f == op.f,
                    "entry {}: ends a {} that started as a {}",
                    op.index,
                    op.f.keyword(),
                    pair.start.f.keyword()
                );
                pair.end = Some(op);
            }
        }
    }
    Ok(pairs)
}

/// Both parts of an entry whose value is `[key value]`.
pub(crate) fn split(op: &Op) -> Result<(&Value, &Value)> {
    match op.value.as_array().map(Vec::as_slice) {
        Some([key, value]) => Ok((key, value)),
        Some(_) | None => anyhow::bail!("entry {}: the value is not [key value]", op.index),
    }
}

/// The same of our own workloads, whose keys are numbers.
pub(crate) fn key_and_value(op: &Op) -> Result<(u64, &Value)> {
    let (key, value) = split(op)?;
    let key =
        key.as_u64().with_context(|| format!("entry {}: the key is not a number", op.index))?;
    Ok((key, value))
}
