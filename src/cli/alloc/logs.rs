//! `quorate alloc logs`: bytes of a task's standard output or error, from any server.
//!
//! Must never change the bytes: what the task wrote is printed as it is.

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use super::tail::{EndFlags, RemoteText};
use crate::{
    cli::context::{Context, Outcome},
    cli::view::Fields,
};

pub(super) const EXAMPLES: &str = "Examples:
  quorate alloc logs 5b98a6ea                  all of the only task's standard output
  quorate alloc logs -stderr -task web 5b98    standard error of one task
  quorate alloc logs -f 5b98a6ea               and what is still to come, until Ctrl-C
  quorate alloc logs -tail -n 20 5b98a6ea      the last 20 lines
  quorate alloc logs -job web                  of an allocation of a job";

/// Flags of `alloc logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The allocation's id or the beginning of it
    allocation: String,
    #[command(flatten)]
    by_job: super::ByJob,
    /// The task, if not given by -task
    #[arg(conflicts_with = "task")]
    task_name: Option<String>,
    /// The task; needed if the allocation has several
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Standard output (the default)
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    #[command(flatten)]
    end: EndFlags,
}

pub(super) fn run(context: &Context, arguments: &LogsArgs) -> Outcome {
    let allocation = arguments.by_job.read(context, &arguments.allocation)?;
    let named = arguments.task.as_deref().or(arguments.task_name.as_deref());
    let kind = if arguments.stderr { "stderr" } else { "stdout" };
    let logs = RemoteText {
        context,
        path: format!("/v1/client/fs/logs/{}", allocation.text("ID")),
        query: vec![("task", task(&allocation, named)?), ("type", kind.to_owned())],
    };
    logs.print(arguments.end)
}

fn task(allocation: &Value, named: Option<&str>) -> anyhow::Result<String> {
    let mut tasks: Vec<&str> =
        allocation.entries("TaskStates").into_iter().map(|(task, _)| task).collect();
    if tasks.is_empty() {
        let group = allocation.text("TaskGroup");
        let groups = allocation.get("Job").map(|job| job.items("TaskGroups")).unwrap_or_default();
        let members = groups.iter().filter(|candidate| candidate.text("Name") == group);
        tasks =
            members.flat_map(|group| group.items("Tasks")).map(|task| task.text("Name")).collect();
    }
    let all = tasks.join(", ");
    match (named, tasks.as_slice()) {
        (Some(name), known) if known.contains(&name) || known.is_empty() => Ok(name.to_owned()),
        (Some(name), _) => bail!("the allocation has no task \"{name}\"; its tasks are: {all}"),
        (None, [only]) => Ok((*only).to_owned()),
        (None, []) => bail!("the allocation has not started any task yet"),
        (None, _) => bail!("the allocation has several tasks; choose one with -task: {all}"),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::task;

    #[test]
    fn the_only_task_needs_no_name() {
        let one = json!({"TaskStates": {"web": {}}});
        let two = json!({"TaskStates": null, "TaskGroup": "g", "Job": {"TaskGroups": [
            {"Name": "g", "Tasks": [{"Name": "web"}, {"Name": "side"}]}]}});
        assert_eq!(task(&one, None).unwrap(), "web");
        assert_eq!(task(&two, Some("side")).unwrap(), "side");
        let error = task(&two, None).unwrap_err().to_string();
        assert!(error.ends_with("choose one with -task: web, side"), "{error}");
        assert!(task(&one, Some("x")).is_err());
    }
}
