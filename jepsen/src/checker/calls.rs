//! From history entries to calls on registers, one list per key.
//!
//! Owns the meaning of the register workload's entries: which of them constrain a register, and how. A
//! failed operation and an unanswered read constrain nothing; an unanswered write may take effect at any
//! time after its start, or never. Nothing here searches or judges.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::pairs::{Pair, key_and_value, pairs};
use crate::history::{Function, Op};

/// What a call did to its register. `None` as a value means that the register does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Saw this value.
    Read {
        /// The value seen.
        value: Option<u64>,
        /// The version seen with it, where the history has versions.
        version: Option<u64>,
    },
    /// Set this value.
    Write {
        /// The value set; unique in the history.
        value: u64,
        /// The version the answer gave; unknown without an answer.
        version: Option<u64>,
    },
    /// Set this value, provided the register held the expected one.
    Cas {
        /// The value it must have held.
        expected: Option<u64>,
        /// The version it must have had, where the history has versions.
        expected_version: Option<u64>,
        /// The value set; unique in the history.
        value: u64,
        /// The version the answer gave; unknown without an answer.
        version: Option<u64>,
    },
}

impl Action {
    /// The value this call sets.
    pub(crate) fn written(&self) -> Option<u64> {
        match *self {
            Self::Read { .. } => None,
            Self::Write { value, .. } | Self::Cas { value, .. } => Some(value),
        }
    }

    /// The value this call proves the register held, together with its version.
    pub(crate) fn observed(&self) -> Option<(Option<u64>, Option<u64>)> {
        match *self {
            Self::Read { value, version } => Some((value, version)),
            Self::Write { .. } => None,
            Self::Cas { expected, expected_version, .. } => Some((expected, expected_version)),
        }
    }
}

/// A call with its place in real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// What it did.
    pub(crate) action: Action,
    /// Index of the history entry that starts it.
    pub(crate) invoked: u64,
    /// Index of the entry that ends it; `None` if nobody knows whether it took effect.
    pub(crate) returned: Option<u64>,
}

/// The calls of each key, in order of their start.
pub(crate) fn by_key(history: &[Op]) -> Result<BTreeMap<u64, Vec<Call>>> {
    let mut calls: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
    for pair in pairs(history)? {
        push(&mut calls, &pair)?;
    }
    Ok(calls)
}

/// The key an entry of a client is about.
pub(crate) fn key_of(op: &Op) -> Result<u64> {
    Ok(key_and_value(op)?.0)
}

fn push(calls: &mut BTreeMap<u64, Vec<Call>>, pair: &Pair<'_>) -> Result<()> {
    let start = pair.start;
    let (key, _) = key_and_value(start)?;
    let calls = calls.entry(key).or_default();
    let answer = pair.answer();
    if pair.failed() {
        return Ok(());
    }
    let version = answer.and_then(|answer| answer.version);
    let action = if start.f == Function::Read {
        let Some(answer) = answer else { return Ok(()) };
        let (_, value) = key_and_value(answer)?;
        Action::Read { value: register_value(answer, value)?, version }
    } else if start.f == Function::Write {
        let (_, value) = key_and_value(start)?;
        Action::Write { value: written_value(start, value)?, version }
    } else if start.f == Function::Cas {
        let (_, pair) = key_and_value(start)?;
        let Some([old, new]) = pair.as_array().map(Vec::as_slice) else {
            bail!("entry {}: a cas has [key [old new]]", start.index)
        };
        Action::Cas {
            expected: register_value(start, old)?,
            expected_version: start.expected,
            value: written_value(start, new)?,
            version,
        }
    } else {
        bail!("entry {}: a client of registers cannot {}", start.index, start.f.keyword())
    };
    let returned = answer.map(|answer| answer.index);
    calls.push(Call { action, invoked: start.index, returned });
    Ok(())
}

fn register_value(op: &Op, value: &Value) -> Result<Option<u64>> {
    if value.is_null() {
        return Ok(None);
    }
    written_value(op, value).map(Some)
}

fn written_value(op: &Op, value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("entry {}: {value} is not a register value", op.index))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use crate::history::{Kind, Process};

    fn entry(index: u64, process: u64, kind: Kind, f: Function, value: Value) -> Op {
        Op { index, ..Op::new(Process::Client(process), kind, f, value) }
    }

    #[test]
    fn failures_and_unanswered_reads_constrain_nothing() {
        use Function::{Cas, Read, Write};
        let history = [
            entry(0, 0, Kind::Invoke, Write, json!([1, 10])),
            entry(1, 1, Kind::Invoke, Read, json!([1, null])),
            entry(2, 2, Kind::Invoke, Cas, json!([1, [10, 11]])),
            entry(3, 0, Kind::Info, Write, json!([1, 10])),
            entry(4, 1, Kind::Fail, Read, json!([1, null])),
            entry(5, 2, Kind::Fail, Cas, json!([1, [10, 11]])),
            entry(6, 3, Kind::Invoke, Read, json!([2, null])),
            entry(7, 4, Kind::Invoke, Cas, json!([2, [null, 5]])),
            entry(8, 3, Kind::Ok, Read, json!([2, null])),
        ];
        let calls = by_key(&history).unwrap();
        assert_eq!(
            calls[&1],
            [Call {
                action: Action::Write { value: 10, version: None },
                invoked: 0,
                returned: None
            }]
        );
        let read = Action::Read { value: None, version: None };
        let cas = Action::Cas { expected: None, expected_version: None, value: 5, version: None };
        assert_eq!(
            calls[&2],
            [
                Call { action: read, invoked: 6, returned: Some(8) },
                Call { action: cas, invoked: 7, returned: None },
            ]
        );
    }

    #[test]
    fn malformed_histories_are_errors() {
        let check = |history: &[Op], text: &str| {
            let error = by_key(history).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let read = |index, kind| entry(index, 0, kind, Function::Read, json!([1, null]));
        check(&[read(0, Kind::Invoke), read(1, Kind::Invoke)], "starts a second operation");
        check(&[read(0, Kind::Ok)], "did not start");
        check(&[entry(0, 0, Kind::Invoke, Function::Write, json!(3))], "not [key value]");
        check(&[entry(0, 0, Kind::Invoke, Function::Cas, json!([1, 2]))], "[key [old new]]");
        check(
            &[entry(
                0,
                0,
                Kind::Invoke,
                Function::Fault(crate::fault::FaultFunction::Kill),
                json!([1, 2]),
            )],
            "a client of registers cannot kill",
        );
    }
}
