//! Job files and the JSON form of jobs; pool files are in `pool.rs`. This module owns three
//! translations and the messages for what does not translate:
//!
//! ```text
//!  job file (HCL or JSON) ── parse ──► API JSON ── to_spec ──► fsm::JobSpec (validated, defaults filled in)
//!                                         ▲                        │
//!                                         └───────── job_json ─────┘
//! ```
//!
//! It never reads files, never talks to a server, and never panics on input: whatever comes in, the
//! answer is a job or messages that say what to change. Nothing a user wrote is dropped in silence:
//! what is not built yet is refused by its name.

mod canonical;
mod coerce;
mod convert;
mod diagnostic;
mod diff;
mod expression;
mod hcl;
mod json_places;
mod keys;
mod named;
mod places;
mod pool;
mod quotes;
mod schema;
pub mod suggest;
mod view;

#[cfg(test)]
mod judged;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use canonical::canonicalize;
pub use convert::{Conversion, FieldError, check_to_come, to_spec};
pub use convert::{driver_is_checked, is_printable, say_missing_driver};
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use diff::job_diff;
pub use keys::name_all;
pub use named::{Named, parse_named};
pub use places::placed;
pub use pool::{capacity_group_json, instance_pool_json, instance_pool_of, parse_pool, price_json};
pub use view::memory_max;
pub use view::{JobFields, job_json, scaling_policy};

use diagnostic::Sink;

/// Longest job file that is read, bytes (Nomad's `job_max_source_size`).
pub const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Messages that are kept for one file or job; the rest are counted.
pub const MESSAGES_MAX: usize = 100;

/// Translates a job file into the API's JSON of the job (`{"ID": …, "TaskGroups": […]}`), checking
/// names and types against the language but not yet whether the job makes sense: [`to_spec`] does
/// that.
///
/// A file is JSON when `path` ends in `.json` or its first character is `{`, HCL otherwise. `path`
/// is only shown in messages.
pub fn parse(path: &str, source: &str) -> Result<Value, Diagnostics> {
    parse_with_warnings(path, source).map(|(job, _)| job)
}

/// As [`parse`], and with what is worth telling about a file that does parse.
pub fn parse_with_warnings(path: &str, source: &str) -> Result<(Value, Diagnostics), Diagnostics> {
    let mut sink = Sink::new(path, source);
    let job = if source.len() > SOURCE_BYTES_MAX {
        sink.error(
            0..0,
            format!(
                "the file is {} bytes long, at most {SOURCE_BYTES_MAX} are read: split the job or move large texts out of it",
                source.len()
            ),
        );
        None
    } else if is_json(path, source) {
        parse_json(source, &mut sink)
    } else {
        hcl::parse(source, &mut sink)
    };
    let diagnostics = sink.finish();
    match job {
        Some(job) if !diagnostics.has_errors() => Ok((job, diagnostics)),
        _ => Err(diagnostics),
    }
}

fn is_json(path: &str, source: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    extension.eq_ignore_ascii_case("json") || source.trim_start().starts_with('{')
}

/// The JSON of a file, or `None` after a message.
fn json_value(source: &str, sink: &mut Sink<'_>) -> Option<Value> {
    match serde_json::from_str(source) {
        Ok(value) => Some(value),
        Err(error) => {
            let at = sink.offset(error.line(), error.column());
            let text = error.to_string();
            let cause = text.split(" at line ").next().unwrap_or(&text);
            let message = if cause.contains("recursion limit") {
                "values are nested more than 127 deep: a job needs far less".to_owned()
            } else {
                format!("not valid JSON: {cause}")
            };
            sink.error(at..at + 1, message);
            None
        }
    }
}

fn parse_json(source: &str, sink: &mut Sink<'_>) -> Option<Value> {
    let value = json_value(source, sink)?;
    let Value::Object(mut fields) = value else {
        sink.error(0..1, "expected a JSON object: `{\"Job\": {…}}` or the job itself");
        return None;
    };
    if fields.contains_key("Job") {
        let job = fields.remove("Job");
        if let Some(job @ Value::Object(_)) = job {
            return Some(job);
        }
        sink.error(0..1, "`Job` must be an object: `{\"Job\": {\"ID\": …}}`");
        return None;
    }
    if fields.contains_key("job") {
        sink.error(
            0..1,
            "this is HCL in JSON syntax, which is not supported: write HCL, or the API's JSON with a `Job` object",
        );
        return None;
    }
    Some(Value::Object(fields))
}
