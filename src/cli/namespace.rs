//! `quorate namespace …`.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::context::{Context, Exit, Outcome};
use super::monitor;
use super::output::{Style, pairs, table};
use super::view::{Fields, rows};
use crate::percent::encode;

/// Namespaces of jobs
#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List namespaces
    List(ListArgs),
    /// Show one
    Status(NameArgs),
    /// Print one as the API has it
    Inspect(NameArgs),
    /// Make a namespace, or change it
    #[command(
        after_help = "Examples:\n  quorate namespace apply -description \"the web team\" web\n  quorate namespace apply -meta owner=ann web"
    )]
    Apply(ApplyArgs),
    /// Delete a namespace that has no jobs
    Delete(NameArgs),
}

/// Flags of `namespace list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    style: Style,
}

/// A namespace.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The namespace
    name: String,
    #[command(flatten)]
    style: Style,
}

/// Flags of `namespace apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The namespace
    name: String,
    /// What it is for; without: as it is
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Its metadata, which goes over all that it has; without: as it is
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
}

pub(crate) fn run(context: &Context, command: &NamespaceCommand) -> Outcome {
    match command {
        NamespaceCommand::List(arguments) => list(context, arguments.style),
        NamespaceCommand::Status(arguments) => show(context, arguments, arguments.style.json),
        NamespaceCommand::Inspect(arguments) => show(context, arguments, true),
        NamespaceCommand::Apply(arguments) => apply(context, arguments),
        NamespaceCommand::Delete(arguments) => {
            let name = &arguments.name;
            let answer = context.client.delete(&path(name), &[]);
            monitor::or_missing(answer, "namespace", name)?;
            context.line(format!("Namespace \"{name}\" is deleted"))?;
            Ok(Exit::Success)
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/namespace/{}", encode(name))
}

fn list(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/namespaces", &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let line = |row: &Value| vec![row.shown("Name"), row.shown("Description")];
    let lines: Vec<_> = rows(&answer).iter().map(line).collect();
    context.line(table(&["Name", "Description"], &lines))?;
    Ok(Exit::Success)
}

fn show(context: &Context, arguments: &NameArgs, as_json: bool) -> Outcome {
    let name = &arguments.name;
    let answer = context.client.get(&path(name), &[]);
    let namespace = monitor::or_missing(answer, "namespace", name)?;
    if as_json {
        context.output.json(&namespace)?;
        return Ok(Exit::Success);
    }
    let shown = [
        ("Name", namespace.shown("Name")),
        ("Description", namespace.shown("Description")),
        ("Meta", meta_line(&namespace)),
    ];
    context.line(pairs(&shown))?;
    Ok(Exit::Success)
}

/// The metadata of something in one line.
pub(super) fn meta_line(of: &Value) -> String {
    let meta = of.entries("Meta").into_iter();
    let meta: Vec<String> =
        meta.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    meta.join(",")
}

/// The metadata that flags give; nothing without any.
pub(super) fn meta_of(flags: &[String]) -> anyhow::Result<Option<Value>> {
    if flags.is_empty() {
        return Ok(None);
    }
    let mut meta = BTreeMap::new();
    for typed in flags {
        match typed.split_once('=') {
            Some((key, value)) => drop(meta.insert(key, value)),
            None => bail!("\"{typed}\" is no KEY=VALUE"),
        }
    }
    Ok(Some(json!(meta)))
}

/// What is to be, over what there is.
pub(super) fn merged(
    context: &Context,
    path: &str,
    (name, description, meta): (&str, Option<&String>, Option<Value>),
) -> anyhow::Result<Value> {
    let old = match context.client.get(path, &[]) {
        Err(error) if error.is_not_found() => Value::Null,
        other => other?,
    };
    let description = description.map_or_else(|| old.shown("Description"), Clone::clone);
    let meta = meta.or_else(|| old.get("Meta").cloned()).unwrap_or_else(|| json!({}));
    Ok(json!({ "Name": name, "Description": description, "Meta": meta }))
}

fn apply(context: &Context, arguments: &ApplyArgs) -> Outcome {
    let name = &arguments.name;
    let wanted = (name.as_str(), arguments.description.as_ref(), meta_of(&arguments.meta)?);
    let body = merged(context, &path(name), wanted)?;
    context.client.put("/v1/namespace", &[], &body)?;
    context.line(format!("Namespace \"{name}\" is applied"))?;
    Ok(Exit::Success)
}
