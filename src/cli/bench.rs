//! How the report of `quorate bench …` is printed; the measuring is done in [`crate::bench`].

use super::context::{Context, Exit, Outcome};
use super::output::pairs;
use super::process;
use crate::bench::BenchCommand;

/// Measures and prints; fails when a check of the results does.
pub(crate) fn run(context: &Context, command: &BenchCommand) -> Outcome {
    let output = &context.output;
    let report = process::bench(command, &|line: &str| output.advice(line))?;
    if command.prints_json() {
        output.json(&serde_json::Value::Object(report.json.clone()))?;
    } else {
        let lines: Vec<(&str, String)> =
            report.lines.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        context.line(pairs(&lines))?;
    }
    for problem in &report.problems {
        output.advice(format!("VIOLATION: {problem}"));
    }
    Ok(if report.problems.is_empty() { Exit::Success } else { Exit::Failure })
}
