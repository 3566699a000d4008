//! Job files → the job as Nomad's API JSON.
//!
//! Reads JSON files: the job itself or `{"Job": {…}}`. Must never guess: a file in a format that it does not read is an error.

use std::fmt;

use serde_json::Value;

/// Why a job file is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    message: String,
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostics {}

/// Parses the text of a job file; `path` chooses the format by its ending and is named in messages.
pub fn parse(path: &str, source: &str) -> Result<Value, Diagnostics> {
    let fail = |message: String| Diagnostics { message: format!("{path}: {message}") };
    let has_json_ending = std::path::Path::new(path)
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    if !has_json_ending {
        return Err(fail("this binary reads job files in JSON only (ending .json)".to_owned()));
    }
    let mut value: Value =
        serde_json::from_str(source).map_err(|error| fail(format!("not valid JSON: {error}")))?;
    let job = match value.get_mut("Job") {
        Some(job) => job.take(),
        None => value,
    };
    if job.get("ID").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(fail("the job has no \"ID\"".to_owned()));
    }
    Ok(job)
}
