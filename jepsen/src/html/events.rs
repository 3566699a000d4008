//! What a history holds for drawing: operations with a start and an end, and bands of faults.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    fault::FaultClass,
    history::{Function, Kind, Op, Process},
};

/// Client processes from here on belong to the last phase.
const LAST_PHASE_PROCESS: u64 = 1_000_000_000;

/// One operation of a client.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    /// Row of the client thread; `None` for the last phase.
    pub(super) thread: Option<u64>,
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    /// `Invoke` if it has no end.
    pub(super) kind: Kind,
    /// What it was, for the tooltip.
    pub(super) text: String,
}

impl Operation {
    pub(super) fn latency_ms(&self) -> f64 {
        self.to_ms - self.from_ms
    }
}

/// One fault, from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Band {
    pub(super) class: FaultClass,
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    pub(super) text: String,
}

/// Everything that is drawn.
pub(super) struct Events {
    pub(super) operations: Vec<Operation>,
    pub(super) bands: Vec<Band>,
    pub(super) threads: u64,
    pub(super) end_ms: f64,
}

impl Events {
    pub(super) fn read(history: &[Op], threads: usize) -> Self {
        let threads = threads.max(1) as u64;
        let end_ms = history.last().map_or(1.0, |op| milliseconds(op.time)).max(1.0);
        let mut open: BTreeMap<Process, &Op> = BTreeMap::new();
        let mut operations = Vec::new();
        for op in history.iter().filter(|op| op.process != Process::Nemesis) {
            match op.kind {
                Kind::Invoke => {
                    open.insert(op.process, op);
                }
                Kind::Ok | Kind::Fail | Kind::Info => {
                    if let Some(start) = open.remove(&op.process) {
                        operations.push(operation(start, Some(op), threads, end_ms));
                    }
                }
            }
        }
        operations.extend(open.values().map(|start| operation(start, None, threads, end_ms)));
        operations.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
        Self { operations, bands: bands(history, end_ms), threads, end_ms }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.end_ms / 1_000.0
    }

    /// The classes that have a band, in order.
    pub(super) fn classes(&self) -> Vec<FaultClass> {
        let mut classes: Vec<FaultClass> = self.bands.iter().map(|band| band.class).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }
}

fn milliseconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64() * 1_000.0
}

fn operation(start: &Op, end: Option<&Op>, threads: u64, end_ms: f64) -> Operation {
    let thread = match start.process {
        Process::Client(number) if number < LAST_PHASE_PROCESS => Some(number % threads),
        Process::Client(_) | Process::Nemesis => None,
    };
    let last = end.unwrap_or(start);
    let from_ms = milliseconds(start.time);
    let mut text = format!("{} {}", start.f.keyword(), cut(&last.value.to_string()));
    if let Some(node) = &start.node {
        text.extend([" on ", node]);
    }
    if let Some(error) = &last.error {
        text.extend([": ", cut(error)]);
    }
    Operation {
        thread,
        from_ms,
        to_ms: end.map_or(end_ms, |end| milliseconds(end.time)),
        kind: last.kind,
        text,
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(120)]
}

/// A band goes from an installed or indeterminate fault to the next end of its class.
fn bands(history: &[Op], end_ms: f64) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    let mut open: BTreeMap<FaultClass, (f64, String)> = BTreeMap::new();
    for op in history {
        let Function::Fault(function) = op.f else { continue };
        let (class, begins) = FaultClass::of(function);
        let time = milliseconds(op.time);
        if begins {
            let outcome = op.value.get("outcome").and_then(Value::as_str);
            if matches!(outcome, Some("installed" | "indeterminate")) {
                let at = op.value.get("at").and_then(Value::as_u64).map_or(time, milliseconds);
                open.entry(class).or_insert((at, describe(class, &op.value)));
            }
        } else if let Some((from_ms, text)) = open.remove(&class) {
            bands.push(Band { class, from_ms, to_ms: time, text });
        }
    }
    for (class, (from_ms, text)) in open {
        bands.push(Band { class, from_ms, to_ms: end_ms, text });
    }
    bands
}

fn describe(class: FaultClass, value: &Value) -> String {
    let field = |name: &str| {
        let field = value.get(name)?;
        Some(field.as_str().map_or_else(|| field.to_string().replace('"', ""), str::to_owned))
    };
    let parts: Vec<String> =
        ["aim", "nodes", "how", "flows", "words", "milliseconds", "damage", "reason"]
            .into_iter()
            .filter_map(field)
            .collect();
    format!("{}: {}", class.name(), parts.join(", "))
}
