//! `quorate job periodic force`, and when a periodic job starts next.

use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};

use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::Style,
    cli::view::Fields,
    cli::{monitor, resolve, time},
};

const NANOSECONDS: i64 = 1_000_000_000;

/// Start periodic jobs
#[derive(Debug, Subcommand)]
pub(crate) enum PeriodicCommand {
    /// Start a periodic job now, beside its due times
    #[command(
        after_help = "Examples:\n  quorate job periodic force nightly\n  quorate job periodic force -detach nightly"
    )]
    Force(ForceArgs),
}

/// Flags of `job periodic force`.
#[derive(Debug, Args)]
pub(crate) struct ForceArgs {
    /// The periodic job's id
    job: String,
    /// Start only, do not follow
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

pub(super) fn run(context: &Context, command: &PeriodicCommand) -> Outcome {
    let PeriodicCommand::Force(arguments) = command;
    let job = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/periodic/force", encode(&job.id));
    let query = [("namespace", job.namespace.as_str())];
    let answer = context.client.put(&path, &query, &json!({}))?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if arguments.detach {
        context.line("Force periodic successful")?;
    }
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}

/// The next due time of a job's `Periodic` block after `now`, both in Unix seconds; none: it is
/// turned off, or over.
fn next_launch(block: &Value, now_s: i64) -> Option<i64> {
    if block.get("Enabled") == Some(&Value::Bool(false)) {
        return None;
    }
    let one = block.get("Spec").and_then(Value::as_str).filter(|line| !line.is_empty());
    let lines: Vec<&str> = match one {
        Some(line) => vec![line],
        None => block.items("Specs").iter().filter_map(Value::as_str).collect(),
    };
    cron::Schedule::parse(&lines, block.text("TimeZone")).ok()?.next_after(now_s)
}

/// When a job with this block starts next, for people.
pub(super) fn next_launch_text(block: &Value, now_nanoseconds: i64) -> Option<String> {
    let now_s = now_nanoseconds.div_euclid(NANOSECONDS);
    let next_s = next_launch(block, now_s)?;
    let at = time::timestamp(next_s.saturating_mul(NANOSECONDS));
    Some(format!("{at} ({} from now)", time::span(next_s - now_s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_launch_is_that_of_the_block() {
        let now = 1_767_225_600 * NANOSECONDS;
        let check = |block: Value, text: Option<&str>| {
            assert_eq!(next_launch_text(&block, now).as_deref(), text, "{block}");
        };
        let berlin = "Europe/Berlin";
        check(
            json!({"Enabled": true, "Spec": "0 3 * * *", "Specs": null, "TimeZone": berlin}),
            Some("2026-01-01T02:00:00Z (2h from now)"),
        );
        check(
            json!({"Spec": "", "Specs": ["@daily", "30 0 * * *"]}),
            Some("2026-01-01T00:30:00Z (30m from now)"),
        );
        check(json!({"Enabled": false, "Spec": "@daily"}), None);
        check(json!({"Spec": "0 0 1 1 * 2020"}), None);
    }
}
