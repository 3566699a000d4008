//! The report of a run as one page that needs nothing else: verdicts, faults, rate, latency, and every operation in time.
//!
//! Pure but for writing the file: it shows what the history and the results say and judges nothing. At most
//! [`chart::OPERATIONS_MAX`] operations are drawn; how many were left out is written on the page.

mod chart;
mod events;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    checker::{Results, Verdict},
    history::Op,
    store::TestRecord,
    system::System,
};
use events::Events;

/// The file's name in a run's directory.
pub(crate) const FILE: &str = "timeline.html";

const STYLE: &str = "
:root { color-scheme: light; --ink: #1c2430; --soft: #5b6675; --line: #dfe3e8; }
* { box-sizing: border-box; }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: #fff; margin: 0 auto; max-width: 1240px; padding: 20px; }
h1 { font-size: 20px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 26px 0 8px; }
p { margin: 4px 0; color: var(--soft); } code { font-size: 13px; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: 2px 10px; border-radius: 12px; font-weight: 600; color: #fff; vertical-align: 2px; margin-right: 8px; font-size: 13px; }
.good { background: #1d8348; } .unknown { background: #9a6700; } .bad { background: #b3261e; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; } td.text { overflow-wrap: anywhere; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
svg { display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg text.name { fill: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 4px 0 8px; color: var(--soft); font-size: 13px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 5px; vertical-align: -1px; }
";

/// Writes the page of a judged run.
pub(crate) fn write(
    directory: &Path,
    record: &TestRecord,
    history: &[Op],
    results: &Results,
) -> Result<()> {
    let path = directory.join(FILE);
    let page = render(record, history, &serde_json::to_value(results)?, results.valid);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// The page. Results come as JSON, so that a checker of any workload is shown.
fn render(record: &TestRecord, history: &[Op], results: &Value, valid: Verdict) -> String {
    let events = Events::read(history, record.concurrency);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style>\
         </head><body>\n<h1>{badge}{title}</h1>\n",
        title = escape(&title(record)),
        badge = badge(&verdict_value(valid)),
    );
    push(&mut page, &facts(record, &events));
    push(&mut page, &checkers(results));
    push(&mut page, &outages(&results["outages"]));
    push(&mut page, &skipped(record));
    push(&mut page, &chart::legend(&events));
    push(&mut page, "<h2>Operations per second</h2>\n");
    push(&mut page, &chart::rate(&events));
    push(&mut page, "<h2>Latency of each operation</h2>\n");
    push(&mut page, &chart::latency_points(&events));
    push(&mut page, "<h2>Latency quantiles of operations that succeeded</h2>\n");
    push(&mut page, &chart::latency_quantiles(&events));
    push(&mut page, "<h2>Operations by client</h2>\n");
    push(&mut page, &chart::timeline(&events));
    page.push_str("</body></html>\n");
    page
}

fn push(page: &mut String, part: &str) {
    page.push_str(part);
}

fn title(record: &TestRecord) -> String {
    let faults: Vec<&str> = record.nemesis.iter().map(|class| class.name()).collect();
    let faults = if faults.is_empty() { "no faults".to_owned() } else { faults.join(", ") };
    format!("{} on {} servers under {faults}", record.workload, record.nodes.len())
}

fn facts(record: &TestRecord, events: &Events) -> String {
    let commit =
        record.git_commit.as_deref().map_or("no commit", |commit| &commit[..commit.len().min(12)]);
    format!(
        "<p>{} operations in {:.0} s, {} clients, {} Hz asked for, {} reads, seed {}, commit {}{}</p>\n\
         <p>{}</p>\n<p><code>{}</code></p>\n",
        events.operations.len(),
        events.seconds(),
        record.concurrency,
        record.rate,
        record.read_mode.name(),
        record.seed,
        escape(commit),
        record
            .plant
            .as_ref()
            .map_or_else(String::new, |plant| format!(", planted bug {}", escape(plant))),
        escape(&machine(record)),
        escape(&record.argv.join(" ")),
    )
}

/// What was run on what; older runs say less.
fn machine(record: &TestRecord) -> String {
    let mut parts = record.machine.describe();
    parts.extend(record.faketime.as_ref().map(|path| format!("faketime {}", path.display())));
    if record.system == System::Quorate {
        parts.push(format!("a snapshot per {} bytes of log", record.snapshot_log_bytes));
    }
    parts.join(", ")
}

fn verdict_value(valid: Verdict) -> Value {
    match valid {
        Verdict::True => true.into(),
        Verdict::Unknown => "unknown".into(),
        Verdict::False => false.into(),
    }
}

fn badge(valid: &Value) -> String {
    let (class, word) = match valid.as_bool() {
        Some(true) => ("good", "ok"),
        Some(false) => ("bad", "FAILED"),
        None => ("unknown", "unknown"),
    };
    format!("<span class=\"badge {class}\">{word}</span>")
}

/// One row per part of the results that has a verdict, with its other fields in short.
fn checkers(results: &Value) -> String {
    let mut rows = String::new();
    for (name, part) in results.as_object().into_iter().flatten() {
        let Some(valid) = part.get("valid") else { continue };
        let details: Vec<String> = part
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(field, value)| *field != "valid" && !is_empty(value))
            .map(|(field, value)| format!("{field}: {}", short(value)))
            .collect();
        writeln!(
            rows,
            "<tr><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            escape(&name.replace('_', " ")),
            badge(valid),
            escape(&details.join("; "))
        )
        .expect("writing to a string cannot fail");
    }
    for failure in results["harness_failures"].as_array().into_iter().flatten() {
        writeln!(
            rows,
            "<tr><td>harness</td><td>{}</td><td class=\"text\">{}</td></tr>",
            badge(&Value::Null),
            escape(failure.as_str().unwrap_or_default())
        )
        .expect("writing to a string cannot fail");
    }
    format!(
        "<h2>Checkers</h2>\n<table><tr><th>checker</th><th>verdict</th><th>details</th></tr>\n{rows}</table>\n"
    )
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// A value in at most a line.
fn short(value: &Value) -> String {
    let text = if let Some(text) = value.as_str() {
        text.to_owned()
    } else if let Some(number) = value.as_f64().filter(|_| value.is_f64()) {
        format!("{number:.1}")
    } else {
        value.to_string().replace(['"', '{', '}'], "").replace(',', ", ").replace(':', " ")
    };
    let cut = text.floor_char_boundary(600);
    if cut < text.len() { format!("{} …", &text[..cut]) } else { text }
}

fn outages(outages: &Value) -> String {
    let Some(classes) = outages.as_object().filter(|classes| !classes.is_empty()) else {
        return String::new();
    };
    let mut rows = String::new();
    for (class, figures) in classes {
        write!(rows, "<tr><td>{}</td>", escape(class)).expect("writing to a string cannot fail");
        for field in ["count", "p50_ms", "p99_ms", "max_ms", "without_end"] {
            write!(rows, "<td class=\"number\">{}</td>", escape(&figures[field].to_string()))
                .expect("writing to a string cannot fail");
        }
        rows.push_str("</tr>\n");
    }
    format!(
        "<h2>Outage after the loss of a leader</h2>\n<p>From the fault to the first acknowledged write that was sent \
         afterwards to another server.</p>\n<table><tr><th>fault</th><th class=\"number\">times</th><th \
         class=\"number\">p50 ms</th><th class=\"number\">p99 ms</th><th class=\"number\">max ms</th><th \
         class=\"number\">no write until the end</th></tr>\n{rows}</table>\n"
    )
}

fn skipped(record: &TestRecord) -> String {
    let mut rows = String::new();
    for (class, why) in &record.unavailable {
        writeln!(rows, "<tr><td>{}</td><td class=\"text\">{}</td></tr>", class.name(), escape(why))
            .expect("writing to a string cannot fail");
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("<h2>Faults this machine cannot do</h2>\n<table>{rows}</table>\n")
}

/// Text that is safe in an element and in an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            plain => safe.push(plain),
        }
    }
    safe
}

#[cfg(test)]
#[path = "html/tests.rs"]
mod tests;
