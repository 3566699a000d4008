//! `quorate pool …`: pools of machines that come when jobs wait and go when they idle. Nomad's node
//! pools, which only divide nodes, are something else: an instance pool feeds the node pool of its
//! name.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};

use super::client::ClientError;
use super::context::{Context, Exit, Outcome, actor};
use super::output::{Style, pairs, table};
use super::view::{Fields, rows};

const APPLY_EXAMPLES: &str = "Examples:
  quorate pool apply gpu.hcl                   create the pool, or change it
  quorate pool apply -check-index 42 gpu.hcl   only if nobody changed it since index 42 (0: only if it is new)

A pool file:
  pool \"gpu\" {
    provider = \"local\"        # a provider that the servers are configured with
    max      = 3
    type \"small\" {
      cpu    = 1000           # MHz and MiB that tasks may use
      memory = 512
      price  = 0.05           # of an hour
      node {
        drivers = [\"raw_exec\"]
      }
    }
  }

Jobs use the machines with node_pool = \"gpu\".";

/// Pools of machines that come when jobs wait and go when they idle
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Create or change a pool as a file says
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// List pools
    #[command(after_help = "Example:\n  quorate pool list")]
    List(ListArgs),
    /// Show a pool: types, instances, and what it waits for
    #[command(after_help = "Examples:\n  quorate pool status gpu\n  quorate pool status -json gpu")]
    Status(StatusArgs),
    /// Delete a pool that has no instances
    #[command(
        after_help = "Example:\n  quorate pool delete gpu\n\nA pool with instances is first applied with min and max 0, and its instances are drained:\n  quorate instance drain ID"
    )]
    Delete(NameArgs),
    /// Let a pool neither grow nor shrink until `pool resume`
    #[command(
        after_help = "Example:\n  quorate pool pause -reason \"provider is being repaired\" gpu\n\nInstances that run go on, and jobs are placed on them."
    )]
    Pause(PauseArgs),
    /// Let a paused pool go on, and try at once what failed or was refused
    #[command(
        after_help = "Example:\n  quorate pool resume gpu\n\nA pool whose instances failed one after the other is protected: it makes one at a time, with\npauses. Once the cause is mended, this forgets the failures and the provider's refusals."
    )]
    Resume(ResumeArgs),
}

/// Flags of `pool apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The pool file, HCL or JSON; - reads standard input
    file: String,
    /// Apply only if the pool's modify index is N; 0: only if it does not exist
    #[arg(long, value_name = "N")]
    check_index: Option<u64>,
}

/// Flags of `pool list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    style: Style,
}

/// Flags of `pool status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The pool's name
    name: String,
    #[command(flatten)]
    style: Style,
}

/// Flags of `pool delete`.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The pool's name
    name: String,
}

/// Flags of `pool pause`.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Why, in a few words; everybody sees it
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The pool's name
    name: String,
}

/// Flags of `pool resume`.
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// Why, in a few words; everybody sees it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The pool's name
    name: String,
}

pub(crate) fn run(context: &Context, command: &PoolCommand) -> Outcome {
    match command {
        PoolCommand::Apply(arguments) => apply(context, arguments),
        PoolCommand::List(arguments) => list(context, arguments.style),
        PoolCommand::Status(arguments) => status(context, arguments),
        PoolCommand::Delete(arguments) => delete(context, &arguments.name),
        PoolCommand::Pause(arguments) => {
            set_pause(context, &arguments.name, "pause", &arguments.reason)?;
            let name = &arguments.name;
            context
                .line(format!("Pool \"{name}\" is paused, until: quorate pool resume {name}"))?;
            Ok(Exit::Success)
        }
        PoolCommand::Resume(arguments) => {
            let reason = arguments.reason.as_deref().unwrap_or("");
            set_pause(context, &arguments.name, "resume", reason)?;
            context.line(format!("Pool \"{}\" goes on", arguments.name))?;
            Ok(Exit::Success)
        }
    }
}

fn path_of(name: &str) -> String {
    format!("/v1/instance-pool/{}", encode(name))
}

/// The answer, or that there is no such pool.
fn or_missing(answer: Result<Value, ClientError>, name: &str) -> anyhow::Result<Value> {
    match answer {
        Err(error) if error.is_not_found() => {
            bail!("there is no instance pool \"{name}\"; list them with: quorate pool list")
        }
        other => Ok(other?),
    }
}

fn apply(context: &Context, arguments: &ApplyArgs) -> Outcome {
    let ApplyArgs { file, check_index } = arguments;
    let source = read(file)?;
    let shown = if file == "-" { "stdin" } else { file };
    let pool = jobspec::parse_pool(shown, &source)
        .map_err(|diagnostics| anyhow::anyhow!("the pool file cannot be used\n{diagnostics}"))?;
    let body = Value::Object(jobspec::instance_pool_json(&pool));
    let index = check_index.map(|index| index.to_string());
    let query: Vec<(&str, &str)> = index.iter().map(|index| ("cas", index.as_str())).collect();
    let name = &pool.name;
    match context.client.put(&path_of(name), &query, &body) {
        Err(ClientError::Status { status: 409, text, .. }) if check_index.is_some() => bail!(
            "pool \"{name}\" was not changed: {text}\n  Look at it and apply again: quorate pool status {name}"
        ),
        answer => drop(answer?),
    }
    context
        .line(format!("Pool \"{name}\" is applied; look at it with: quorate pool status {name}"))?;
    Ok(Exit::Success)
}

fn read(file: &str) -> anyhow::Result<String> {
    let bytes_max = u64::try_from(jobspec::SOURCE_BYTES_MAX).unwrap_or(u64::MAX);
    let reader: Box<dyn Read> = if file == "-" {
        Box::new(std::io::stdin())
    } else {
        let opened = std::fs::File::open(file);
        Box::new(opened.with_context(|| format!("cannot open the pool file {file}"))?)
    };
    let mut source = String::new();
    reader
        .take(bytes_max + 1)
        .read_to_string(&mut source)
        .with_context(|| format!("cannot read the pool file {file}"))?;
    Ok(source)
}

fn list(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/instance-pools", &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line("No instance pools; create one with: quorate pool apply FILE")?;
        return Ok(Exit::Success);
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|pool| {
            let types: Vec<String> =
                pool.items("Types").iter().map(|kind| kind.shown("Name")).collect();
            vec![
                pool.shown("Name"),
                pool.shown("Provider"),
                pool.shown("Min"),
                pool.shown("Max"),
                counts(pool),
                types.join(","),
                pool.present("Paused").is_some().to_string(),
            ]
        })
        .collect();
    let headers = ["Name", "Provider", "Min", "Max", "Instances", "Types", "Paused"];
    context.line(table(&headers, &lines))?;
    Ok(Exit::Success)
}

/// `3 running, 1 idle`; states without instances are left out.
fn counts(pool: &Value) -> String {
    let nothing = Value::Null;
    let counts = pool.get("Counts").unwrap_or(&nothing);
    let of = |word: &str| match counts.number(word) {
        0 => None,
        count => Some(format!("{count} {word}")),
    };
    let words = ["requested", "booting", "idle", "running", "shutdown"];
    let parts: Vec<String> = words.into_iter().filter_map(of).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn status(context: &Context, arguments: &StatusArgs) -> Outcome {
    let StatusArgs { name, style } = arguments;
    let pool = or_missing(context.client.get(&path_of(name), &[]), name)?;
    if style.json {
        context.output.json(&pool)?;
        return Ok(Exit::Success);
    }
    let instances = context.client.get("/v1/instances", &[("pool", name)])?;
    let mut sections = vec![
        overview(&pool),
        format!("Types\n{}", type_table(&pool)),
        format!("Unallocated capacity\n{}", capacity(&pool, rows(&instances))),
    ];
    let waits: Vec<&str> = pool.items("Waits").iter().filter_map(Value::as_str).collect();
    if !waits.is_empty() {
        sections.push(format!("Waits\n{}", waits.join("\n")));
    }
    sections.push(format!("Instances\n{}", instance_table(rows(&instances), *style)));
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

/// The pool of this name, if there is one.
pub(super) fn find(context: &Context, name: &str) -> anyhow::Result<Option<Value>> {
    match context.client.get(&path_of(name), &[]) {
        Ok(pool) => Ok(Some(pool)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Why a pool makes no instance, a line for each reason.
pub(super) fn why(pool: &Value) -> String {
    let waits: Vec<&str> = pool.items("Waits").iter().filter_map(Value::as_str).collect();
    if waits.is_empty() {
        let name = pool.text("Name");
        let has = counts(pool);
        return format!(
            "nothing stops pool \"{name}\" (instances: {has}); what a job waits for: quorate job status JOB"
        );
    }
    waits.join("\n")
}

fn overview(pool: &Value) -> String {
    let span = |name: &str| super::time::span(pool.number(name) / 1_000);
    let limit = |name: &str| match pool.shown(name).as_str() {
        "" | "0" | "0.0" => "no limit".to_owned(),
        most => format!("at most {most}"),
    };
    let creates = match pool.number("MaxConcurrentCreates") {
        0 => "no limit".to_owned(),
        count => count.to_string(),
    };
    pairs(&[
        ("Name", pool.shown("Name")),
        ("Provider", pool.shown("Provider")),
        ("Size", format!("{} to {}", pool.number("Min"), pool.number("Max"))),
        ("Instances", counts(pool)),
        ("Price Factor", pool.shown("PriceFactor")),
        ("Idle Timeout", span("IdleTimeoutMs")),
        ("Boot Timeout", span("BootTimeoutMs")),
        ("Probe Timeout", span("ProbeTimeoutMs")),
        ("Creates At A Time", creates),
        ("Creates Per Hour", limit("MaxCreatesPerHour")),
        ("Price Per Hour", limit("MaxPricePerHour")),
        ("Protected After", format!("{} failures", pool.number("ProtectAfter"))),
        ("Backoff Reset", span("BackoffResetMs")),
        ("Modify Index", pool.shown("ModifyIndex")),
    ])
}

fn type_table(pool: &Value) -> String {
    let lines: Vec<Vec<String>> = pool
        .items("Types")
        .iter()
        .map(|kind| {
            vec![
                kind.shown("Name"),
                kind.shown("ProviderType"),
                format!("{} MHz", kind.number("CPU")),
                format!("{} MiB", kind.number("MemoryMB")),
                format!("{} MiB", kind.number("DiskMB")),
                kind.shown("Price"),
                kind.flag("Preemptible").to_string(),
                kind.shown("QuotaGroup"),
            ]
        })
        .collect();
    let headers =
        ["Type", "Provider Type", "CPU", "Memory", "Disk", "Price/h", "Preemptible", "Quota Group"];
    table(&headers, &lines)
}

/// What instances offer that nothing runs on and that are given work, also those that are being
/// made.
fn capacity(pool: &Value, instances: &[Value]) -> String {
    let mut free: BTreeMap<&str, i64> = BTreeMap::new();
    for row in instances {
        let is_coming_or_idle = matches!(row.text("State"), "requested" | "booting" | "idle");
        if is_coming_or_idle && row.text("Behavior") == "run" {
            *free.entry(row.text("Type")).or_default() += 1;
        }
    }
    if free.is_empty() {
        return "none".to_owned();
    }
    let kinds = pool.items("Types");
    let lines: Vec<Vec<String>> = free
        .into_iter()
        .map(|(name, count)| {
            // A type that was taken out of the pool is not shown by it any more.
            let kind = kinds.iter().find(|kind| kind.text("Name") == name);
            let sum = |field: &str, unit: &str| {
                kind.map_or_else(String::new, |kind| {
                    format!("{} {unit}", kind.number(field).saturating_mul(count))
                })
            };
            vec![
                name.to_owned(),
                count.to_string(),
                sum("CPU", "MHz"),
                sum("MemoryMB", "MiB"),
                sum("DiskMB", "MiB"),
            ]
        })
        .collect();
    table(&["Type", "Instances", "CPU", "Memory", "Disk"], &lines)
}

fn delete(context: &Context, name: &str) -> Outcome {
    or_missing(context.client.delete(&path_of(name), &[]), name)?;
    context.line(format!("Pool \"{name}\" is deleted; the node pool of its name stays"))?;
    Ok(Exit::Success)
}

fn set_pause(context: &Context, name: &str, verb: &str, reason: &str) -> anyhow::Result<()> {
    let body = json!({ "Reason": reason, "Actor": actor() });
    or_missing(context.client.put(&format!("{}/{verb}", path_of(name)), &[], &body), name)?;
    Ok(())
}

/// Instances, each with the sentence about it.
pub(super) fn instance_table(instances: &[Value], style: Style) -> String {
    if instances.is_empty() {
        return "No instances".to_owned();
    }
    let lines: Vec<Vec<String>> = instances
        .iter()
        .map(|row| {
            vec![
                style.id(row.text("ID")),
                row.shown("Pool"),
                row.shown("Type"),
                row.shown("State"),
                row.shown("Behavior"),
                style.id(row.text("NodeID")),
                row.shown("Reason"),
            ]
        })
        .collect();
    table(&["ID", "Pool", "Type", "State", "Behavior", "Node ID", "What It Does"], &lines)
}
