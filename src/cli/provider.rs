//! `quorate provider …`: the report of [`crate::provider::check`], and how providers do.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};

use super::context::{Context, Exit, Outcome};
use super::output::table;
use super::view::{Fields, rows};
use crate::provider::check::{self, Check, Findings, Plan, Verdict};

/// Programs that make machines for instance pools
#[derive(Debug, Subcommand)]
pub(crate) enum ProviderCommand {
    /// Test whether a program keeps to the protocol of providers
    #[command(long_about = ABOUT, after_help = EXAMPLES)]
    Check(CheckArgs),
    /// Show whether providers answer, and what they said last
    #[command(
        after_help = "Examples:\n  quorate provider status\n  quorate provider status -json cloud"
    )]
    Status(StatusArgs),
}

/// Flags of `provider status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Only the provider of this name
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const ABOUT: &str = "Test whether a program keeps to the protocol of providers (docs/providers.md).

The program is started as a server would start it, and one machine is made, listed, described, tagged and destroyed. With a program for a cloud \
this is a real machine, which costs money and needs a type that exists there (-type). Its agent gets an address where no server answers, unless \
-server names one: the machine then registers as an instance that the cluster does not know, and is refused.

What the program writes to its standard error is shown. The exit code is 1 if a check failed, and the table says why. The machine is destroyed \
at the end; if that fails too, its key is printed.";

const EXAMPLES: &str = "Examples:
  quorate provider check -- python3 examples/providers/local.py -directory /tmp/machines
  quorate provider check -type m5.large -timeout 300 -- ./my-provider -region eu-1
  quorate provider check -json -- ./my-provider";

/// Flags of `provider check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The type of the machine, as the provider calls it
    #[arg(long = "type", value_name = "TYPE", default_value = "check")]
    provider_type: String,
    /// gRPC address of a server in the configuration of the machine's agent
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:1")]
    server: Vec<String>,
    /// How long a reply, a change of the list and the end of the machine may each take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments, behind --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) fn run(context: &Context, command: ProviderCommand) -> Outcome {
    let arguments = match command {
        ProviderCommand::Check(arguments) => arguments,
        ProviderCommand::Status(arguments) => return status(context, &arguments),
    };
    let program = arguments.command.first().cloned().unwrap_or_default();
    let plan = Plan {
        command: arguments.command,
        provider_type: arguments.provider_type,
        servers: arguments.server,
        patience: Duration::from_secs(arguments.timeout),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let report = runtime.block_on(check::run(&plan));
    let report = report.map_err(|error| anyhow::anyhow!("{program}: {error}"))?;
    if arguments.json {
        context.output.json(&as_json(&report))?;
    } else {
        context.line(as_table(&report))?;
    }
    if !arguments.json {
        for warning in &report.warnings {
            context.output.advice(format!("Warning: {warning}"));
        }
    }
    if let Some(key) = report.left_behind {
        context.output.advice(format!("The machine with key {key} may still be there"));
    }
    Ok(if report.has_passed() { Exit::Success } else { Exit::Failure })
}

fn status(context: &Context, arguments: &StatusArgs) -> Outcome {
    let answer = match &arguments.name {
        Some(name) => match context.client.get(&format!("/v1/provider/{}", encode(name)), &[]) {
            Err(error) if error.is_not_found() => {
                bail!(
                    "no pool names a provider \"{name}\"; list them with: quorate provider status"
                )
            }
            answer => json!([answer?]),
        },
        None => context.client.get("/v1/providers", &[])?,
    };
    if arguments.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line("No provider is used; a pool names one: quorate pool apply FILE")?;
        return Ok(Exit::Success);
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|row| {
            let pools: Vec<&str> = row.items("Pools").iter().filter_map(Value::as_str).collect();
            let since = Some(row.text("Since")).filter(|since| !since.starts_with("0001-"));
            vec![
                row.shown("Name"),
                row.shown("Status"),
                since.unwrap_or_default().to_owned(),
                row.shown("Creates"),
                row.shown("Destroys"),
                pools.join(","),
                row.shown("LastError"),
            ]
        })
        .collect();
    let headers = ["Name", "Status", "Since", "Creates", "Destroys", "Pools", "Last Error"];
    context.line(table(&headers, &lines))?;
    Ok(Exit::Success)
}

fn words(check: &Check) -> (&'static str, &str) {
    match &check.verdict {
        Verdict::Passed => ("pass", ""),
        Verdict::Failed { why } => ("FAIL", why),
        Verdict::Skipped => ("skip", "an earlier check failed"),
    }
}

fn as_json(report: &Findings) -> Value {
    let checks = report.checks.iter().map(|check| {
        let (result, why) = words(check);
        json!({ "Name": check.name, "Rule": check.rule, "Result": result.to_lowercase(), "Why": why })
    });
    let left_behind = report.left_behind.map(|key| key.to_string());
    json!({
        "Passed": report.has_passed(),
        "Checks": checks.collect::<Vec<_>>(),
        "Warnings": report.warnings,
        "LeftBehind": left_behind,
    })
}

fn as_table(report: &Findings) -> String {
    let rows: Vec<Vec<String>> = report
        .checks
        .iter()
        .map(|check| {
            let (result, why) = words(check);
            let why = if why.is_empty() { "-" } else { why };
            [result, check.name, check.rule, why].map(str::to_owned).to_vec()
        })
        .collect();
    let passed = report.checks.iter().filter(|check| check.verdict == Verdict::Passed).count();
    let end = format!("{passed} of {} checks passed", report.checks.len());
    format!("{}\n\n{end}", table(&["Result", "Check", "Rule", "Why"], &rows))
}
