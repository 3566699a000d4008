//! `quorate alloc restart` and `quorate alloc signal`: orders to the tasks of an allocation.

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::view::Fields,
};

pub(super) const EXAMPLES: &str = "Examples:
  quorate alloc restart 5b98a6ea            all tasks that run
  quorate alloc restart 5b98a6ea web        one of them
  quorate alloc restart -all-tasks 5b98a6ea those that have ended too";

/// Flags of `alloc restart`.
#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// The allocation's id or the beginning of it
    allocation: String,
    /// The task, if not given by -task
    #[arg(conflicts_with = "task")]
    task_name: Option<String>,
    /// Only this task
    #[arg(long, value_name = "NAME", conflicts_with = "all_tasks")]
    task: Option<String>,
    /// Also tasks that have ended
    #[arg(long, conflicts_with = "task_name")]
    all_tasks: bool,
    /// Accepted as in Nomad: no ids are shown
    #[arg(long, hide = true)]
    verbose: bool,
}

/// Flags of `alloc signal`.
#[derive(Debug, Args)]
pub(crate) struct SignalArgs {
    /// The allocation's id or the beginning of it
    allocation: String,
    /// The task, if not given by -task; all tasks without
    #[arg(conflicts_with = "task")]
    task_name: Option<String>,
    /// Only this task
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// The signal
    #[arg(short = 's', value_name = "SIGNAL", default_value = "SIGKILL")]
    signal: String,
    /// Accepted as in Nomad: no ids are shown
    #[arg(long, hide = true)]
    verbose: bool,
}

pub(super) fn restart(context: &Context, arguments: &RestartArgs) -> Outcome {
    let named = arguments.task.as_ref().or(arguments.task_name.as_ref());
    let body = json!({ "TaskName": named, "AllTasks": arguments.all_tasks });
    order(context, &arguments.allocation, (named, "restart", &body))
}

pub(super) fn signal(context: &Context, arguments: &SignalArgs) -> Outcome {
    let named = arguments.task.as_ref().or(arguments.task_name.as_ref());
    let body = json!({ "Task": named, "Signal": arguments.signal });
    order(context, &arguments.allocation, (named, "signal", &body))
}

fn order(
    context: &Context,
    typed: &str,
    (task, verb, body): (Option<&String>, &str, &Value),
) -> Outcome {
    let allocation = super::read(context, typed)?;
    let tasks = allocation.entries("TaskStates");
    if let Some(task) = task
        && !tasks.is_empty()
        && !tasks.iter().any(|(name, _)| name == task)
    {
        let all: Vec<&str> = tasks.iter().map(|(name, _)| *name).collect();
        bail!("the allocation has no task \"{task}\"; its tasks are: {}", all.join(", "));
    }
    let path = format!("/v1/client/allocation/{}/{verb}", allocation.text("ID"));
    // A restart is answered when the tasks have ended.
    context.client.put_unhurried(&path, body)?;
    Ok(Exit::Success)
}
