//! From what a person types to an id: whole ids, prefixes of at least two hex digits, names.
//!
//! Must never choose between several matches: an ambiguous prefix is an error that lists them.

use std::collections::BTreeSet;

use anyhow::bail;
use serde_json::Value;

use super::context::Context;
use super::output::table;
use super::view::{Fields, into_rows};

const UUID_BYTES: usize = 36;
/// The beginning of an id that is this long is not looked for among the names: nothing shows fewer
/// digits of an id.
const ID_DIGITS_SHOWN: usize = 8;
/// Matches listed in the error about an ambiguous prefix.
const MATCHES_SHOWN: usize = 20;

/// A kind of thing that has a UUID.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noun {
    /// As in messages: `node`.
    pub(crate) name: &'static str,
    /// The list endpoints; what one holds is in no other.
    pub(crate) list_paths: &'static [&'static str],
    /// Fields that tell matches apart.
    pub(crate) columns: &'static [(&'static str, &'static str)],
    /// Whether the field `Name` may be typed instead of an id.
    pub(crate) by_name: bool,
    /// The command that lists them all.
    pub(crate) list_command: &'static str,
}

/// Nodes.
pub(crate) const NODE: Noun = Noun {
    name: "node",
    list_paths: &["/v1/nodes"],
    columns: &[("ID", "ID"), ("Name", "Name"), ("DC", "Datacenter"), ("Status", "Status")],
    by_name: true,
    list_command: "node status",
};
/// Nodes, also those that are offline and not registered.
pub(crate) const NODE_OR_OFFLINE: Noun =
    Noun { list_paths: &["/v1/nodes", "/v1/nodes/offline"], ..NODE };
/// Instances of pools.
pub(crate) const INSTANCE: Noun = Noun {
    name: "instance",
    list_paths: &["/v1/instances"],
    columns: &[("ID", "ID"), ("Pool", "Pool"), ("Type", "Type"), ("State", "State")],
    by_name: false,
    list_command: "instance list",
};
/// Allocations.
pub(crate) const ALLOCATION: Noun = Noun {
    name: "allocation",
    list_paths: &["/v1/allocations"],
    columns: &[("ID", "ID"), ("Name", "Name"), ("Status", "ClientStatus")],
    by_name: false,
    list_command: "alloc status",
};
/// Deployments.
pub(crate) const DEPLOYMENT: Noun = Noun {
    name: "deployment",
    list_paths: &["/v1/deployments"],
    columns: &[("ID", "ID"), ("Job", "JobID"), ("Version", "JobVersion"), ("Status", "Status")],
    by_name: false,
    list_command: "deployment list",
};
/// Scaling policies.
pub(crate) const SCALING_POLICY: Noun = Noun {
    name: "scaling policy",
    list_paths: &["/v1/scaling/policies"],
    columns: &[("ID", "ID"), ("Type", "Type"), ("Target", "Target")],
    by_name: false,
    list_command: "scaling policy list",
};
/// Evaluations.
pub(crate) const EVALUATION: Noun = Noun {
    name: "evaluation",
    list_paths: &["/v1/evaluations"],
    columns: &[("ID", "ID"), ("Job", "JobID"), ("Status", "Status")],
    by_name: false,
    list_command: "eval list",
};

/// The id that `typed` names.
pub(crate) fn id(context: &Context, noun: Noun, typed: &str) -> anyhow::Result<String> {
    let typed_lower = typed.to_ascii_lowercase();
    let looks_like_id = typed_lower.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if looks_like_id && typed.len() == UUID_BYTES {
        return Ok(typed_lower);
    }
    let mut matches = Vec::new();
    if looks_like_id && typed.len() >= 2 {
        let even =
            typed_lower.len() - typed_lower.bytes().filter(u8::is_ascii_hexdigit).count() % 2;
        let sent = typed_lower.get(..even).unwrap_or(&typed_lower);
        matches = list(context, noun, &[("prefix", sent)])?;
        matches.retain(|row| {
            without_dashes(row.text("ID")).starts_with(&without_dashes(&typed_lower))
        });
    }
    // `db` and `12` may be names, and the beginning of the id of something else.
    if noun.by_name && (matches.is_empty() || typed.len() < ID_DIGITS_SHOWN) {
        let mut named = list(context, noun, &[])?;
        let is_known = |id: &str| matches.iter().any(|row| row.text("ID") == id);
        named.retain(|row| row.text("Name") == typed && !is_known(row.text("ID")));
        matches.append(&mut named);
    }
    match matches.as_slice() {
        [one] => Ok(one.text("ID").to_owned()),
        [] if looks_like_id && typed.len() < 2 => {
            bail!(
                "\"{typed}\" is too short for the id of {} {}: type at least two characters",
                if noun.name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" },
                noun.name
            )
        }
        [] => {
            let or_name = if noun.by_name { ", or that name" } else { "" };
            bail!(
                "no {} has an id that starts with \"{typed}\"{or_name}; list them with: quorate {}",
                noun.name,
                noun.list_command
            )
        }
        several => bail!("{}", ambiguous(noun, typed, several)),
    }
}

fn list(context: &Context, noun: Noun, query: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for path in noun.list_paths {
        found.append(&mut into_rows(context.client.get(path, query)?));
    }
    Ok(found)
}

fn without_dashes(id: &str) -> String {
    id.chars().filter(|c| *c != '-').collect()
}

fn ambiguous(noun: Noun, typed: &str, matches: &[Value]) -> String {
    let headers: Vec<&str> = noun.columns.iter().map(|(header, _)| *header).collect();
    let rows: Vec<Vec<String>> = matches
        .iter()
        .take(MATCHES_SHOWN)
        .map(|row| noun.columns.iter().map(|(_, field)| row.shown(field)).collect())
        .collect();
    let more = matches.len().saturating_sub(MATCHES_SHOWN);
    let rest = if more > 0 { format!("\n… and {more} more") } else { String::new() };
    format!(
        "\"{typed}\" matches {} {}s; type more of the id:\n{}{rest}",
        matches.len(),
        noun.name,
        table(&headers, &rows)
    )
}

/// A job found by what a person typed.
#[derive(Debug)]
pub(crate) struct FoundJob {
    pub(crate) id: String,
    /// The namespace it is in, for the requests that follow.
    pub(crate) namespace: String,
    /// The whole id was typed, not a prefix.
    pub(crate) exact: bool,
}

/// The job whose id is `typed`, or the only one that starts with it.
pub(crate) fn job(context: &Context, typed: &str) -> anyhow::Result<FoundJob> {
    choose(typed, &jobs(context, typed)?)
}

/// As [`job`], where the job may be gone and have left children behind: the id of those is taken
/// before one that only starts with it.
pub(crate) fn job_or_parent(context: &Context, typed: &str) -> anyhow::Result<FoundJob> {
    let rows = jobs(context, typed)?;
    if rows.iter().any(|row| row.text("ID") == typed) {
        return choose(typed, &rows);
    }
    let mut namespaces = BTreeSet::new();
    for kind in ["dispatch", "periodic"] {
        let children = jobs(context, &format!("{typed}/{kind}-"))?;
        let children = children.iter().filter(|row| row.text("ParentID") == typed);
        namespaces.extend(children.map(|row| row.text("Namespace").to_owned()));
    }
    if namespaces.len() > 1 {
        let all: Vec<String> = namespaces.into_iter().collect();
        bail!(
            "\"{typed}\" has left children in several namespaces ({}): choose one with -namespace",
            all.join(", ")
        );
    }
    match namespaces.pop_first() {
        Some(namespace) => Ok(FoundJob { id: typed.to_owned(), namespace, exact: true }),
        None => choose(typed, &rows),
    }
}

/// The first jobs whose id starts with `prefix`. One that has it as its whole id comes first in its
/// namespace, but not among all of them.
fn jobs(context: &Context, prefix: &str) -> anyhow::Result<Vec<Value>> {
    let all = context.client.namespace() == Some("*");
    let per_page = if all { "0" } else { "20" };
    let answer = context.client.get("/v1/jobs", &[("prefix", prefix), ("per_page", per_page)])?;
    Ok(into_rows(answer))
}

fn choose(typed: &str, rows: &[Value]) -> anyhow::Result<FoundJob> {
    let found = |row: &Value, exact| FoundJob {
        id: row.text("ID").to_owned(),
        namespace: row.text("Namespace").to_owned(),
        exact,
    };
    // In all namespaces there may be several of one id.
    let exact: Vec<&Value> = rows.iter().filter(|row| row.text("ID") == typed).collect();
    if let [row] = exact.as_slice() {
        return Ok(found(row, true));
    }
    match rows {
        [] => bail!(
            "no job has an id that starts with \"{typed}\"; list them with: quorate job status"
        ),
        [one] => Ok(found(one, false)),
        several => {
            let lines: Vec<Vec<String>> = several
                .iter()
                .take(MATCHES_SHOWN)
                .map(|row| ["ID", "Namespace", "Type", "Status"].map(|f| row.shown(f)).to_vec())
                .collect();
            let shown = table(&["ID", "Namespace", "Type", "Status"], &lines);
            let more =
                if exact.is_empty() { "type more of the id" } else { "choose one with -namespace" };
            bail!("\"{typed}\" matches several jobs; {more}:\n{shown}")
        }
    }
}
