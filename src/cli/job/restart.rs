//! `quorate job restart`: restarting or replacing the instances of a job, some at a time.
//!
//! Must never go on after an error that nobody has waved through.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, ValueEnum};
use http_api::percent::encode;
use serde_json::{Value, json};

use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::lines::Lines,
    cli::output::short_id,
    cli::view::{Fields, into_rows},
    cli::{resolve, time},
};

pub(super) const EXAMPLES: &str = "Examples:
  quorate job restart web                              one instance after the other
  quorate job restart -batch-size 20% -batch-wait 30s web
  quorate job restart -group api -task server web      one task of one group
  quorate job restart -reschedule -on-error fail web   replace the instances

Exit status: 0 all restarted, 1 error, or an instance could not be restarted.";

/// How long an instance may take to run again, or its successor to run.
const INSTANCE_WAIT_MAX: Duration = Duration::from_mins(10);

/// Instances of a batch whose restarts are waited for at a time, each by a thread for each task
/// that was named.
const ORDERS_MAX: usize = 32;

/// What happens when an instance could not be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// Ask whether to go on; without a terminal: stop
    Ask,
    /// Stop
    Fail,
}

/// Flags of `job restart`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct RestartArgs {
    /// The job's id
    job: String,
    /// Also tasks that have ended
    #[arg(long, conflicts_with_all = ["tasks", "reschedule"])]
    all_tasks: bool,
    /// Instances at a time, or a share of them such as 20%
    #[arg(long, value_name = "N", default_value = "1")]
    batch_size: String,
    /// Pause between batches, or ask
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    batch_wait: String,
    /// Only instances of this group; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// With -reschedule: stop without the shutdown delay
    #[arg(long, requires = "reschedule")]
    no_shutdown_delay: bool,
    /// What happens when an instance could not be restarted
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ask")]
    on_error: OnError,
    /// Replace the instances in the place of restarting their tasks
    #[arg(long, conflicts_with = "tasks")]
    reschedule: bool,
    /// Only this task; may be repeated
    #[arg(long = "task", value_name = "NAME")]
    tasks: Vec<String>,
    /// Ask nothing: also a prefix of the id is accepted, and errors do not stop the rest
    #[arg(long)]
    yes: bool,
    /// Show whole ids
    #[arg(long)]
    verbose: bool,
}

/// What comes between two batches.
#[derive(Debug, Clone, Copy)]
enum Wait {
    Ask,
    For(Duration),
}

pub(super) fn restart(context: &Context, arguments: &RestartArgs) -> Outcome {
    let wait = match arguments.batch_wait.as_str() {
        "ask" => Wait::Ask,
        text => Wait::For(time::parse_duration(text).map_err(anyhow::Error::msg)?),
    };
    let job = resolve::job(context, &arguments.job)?;
    if !job.exact && !arguments.yes {
        bail!(
            "\"{}\" is not the whole id of a job; the only job that starts with it is \"{}\": repeat the command with that id, or with -yes",
            arguments.job,
            job.id
        );
    }
    let restart = Restart {
        context,
        arguments,
        lines: Lines { context, silent: false },
        namespace: job.namespace.clone(),
    };
    let instances = restart.instances(&job.id)?;
    if instances.is_empty() {
        context.line(format!("No instance of job \"{}\" runs", job.id))?;
        return Ok(Exit::Success);
    }
    let size = batch_size(&arguments.batch_size, instances.len())?;
    restart.lines.heading(&format!(
        "Restarting {} allocations of job \"{}\", {size} at a time",
        instances.len(),
        job.id
    ))?;
    restart.run(&instances, size, wait)
}

/// Instances at a time, of so many.
fn batch_size(text: &str, of: usize) -> anyhow::Result<usize> {
    let refuse =
        || format!("-batch-size {text}: write a number from 1, or a share from 1% to 100%");
    let size = match text.strip_suffix('%') {
        Some(percent) => {
            let percent: usize = percent.parse().with_context(refuse)?;
            if !(1..=100).contains(&percent) {
                bail!("{}", refuse());
            }
            (of * percent).div_ceil(100)
        }
        None => text.parse().with_context(refuse)?,
    };
    if size == 0 {
        bail!("{}", refuse());
    }
    Ok(size)
}

struct Restart<'a> {
    context: &'a Context,
    arguments: &'a RestartArgs,
    lines: Lines<'a>,
    namespace: String,
}

impl Restart<'_> {
    fn id(&self, allocation: &str) -> String {
        if self.arguments.verbose { allocation.to_owned() } else { short_id(allocation) }
    }

    /// The running instances of the groups that were named, by name.
    fn instances(&self, job: &str) -> anyhow::Result<Vec<Value>> {
        let namespace = [("namespace", self.namespace.as_str())];
        let path = format!("/v1/job/{}", encode(job));
        if !self.arguments.groups.is_empty() {
            let spec = self.context.client.get(&path, &namespace)?;
            let groups = spec.items("TaskGroups").iter();
            let known: Vec<&str> = groups.map(|group| group.text("Name")).collect();
            let mut asked = self.arguments.groups.iter();
            if let Some(unknown) = asked.find(|group| !known.contains(&group.as_str())) {
                bail!(
                    "job \"{job}\" has no group \"{unknown}\"; its groups are: {}",
                    known.join(", ")
                );
            }
        }
        let all = self.context.client.get(&format!("{path}/allocations"), &namespace)?;
        let mut running = into_rows(all);
        running.retain(|one| {
            let groups = &self.arguments.groups;
            let is_asked = groups.is_empty() || groups.iter().any(|g| g == one.text("TaskGroup"));
            is_asked && one.text("ClientStatus") == "running" && one.text("DesiredStatus") == "run"
        });
        running.sort_by_key(|one| (one.text("TaskGroup").to_owned(), one.text("Name").to_owned()));
        Ok(running)
    }

    fn run(&self, instances: &[Value], size: usize, wait: Wait) -> Outcome {
        let mut done = 0;
        let mut failed = 0;
        let batches = instances.len().div_ceil(size);
        for (number, batch) in instances.chunks(size).enumerate() {
            if number > 0 && !self.goes_on(wait, number + 1, batches)? {
                self.lines.heading(&format!("Stopped: {done} allocations restarted"))?;
                return Ok(Exit::Failure);
            }
            let errors = self.batch(batch)?;
            done += batch.len() - errors;
            failed += errors;
            let is_last = number + 1 == batches;
            if errors > 0 && !is_last && !self.forgives()? {
                self.lines.heading(&format!(
                    "Stopped after an error: {done} allocations restarted, {failed} not"
                ))?;
                return Ok(Exit::Failure);
            }
        }
        let also = if failed > 0 { format!(", {failed} not") } else { String::new() };
        self.lines.heading(&format!("Finished: {done} allocations restarted{also}"))?;
        Ok(if failed == 0 { Exit::Success } else { Exit::Failure })
    }

    /// Restarts some at once, and waits for all of them; how many could not be restarted.
    fn batch(&self, batch: &[Value]) -> anyhow::Result<usize> {
        let mut errors = 0;
        let mut under_way = Vec::new();
        for instance in batch {
            match self.prepare(instance) {
                Ok(before) => under_way.push(before),
                Err(error) => errors += self.failed(instance, &error)?,
            }
        }
        if !self.arguments.reschedule {
            let asked = under_way.chunks(ORDERS_MAX).flat_map(|some| self.order(some));
            let asked: Vec<_> = asked.collect();
            let mut taken = Vec::new();
            for (instance, answer) in under_way.into_iter().zip(asked) {
                match answer {
                    Ok(()) => taken.push(instance),
                    Err(error) => errors += self.failed(&instance, &error)?,
                }
            }
            under_way = taken;
        }
        for instance in &under_way {
            match self.await_end(instance) {
                Ok(text) => self.lines.detail(&text)?,
                Err(error) => errors += self.failed(instance, &error)?,
            }
        }
        Ok(errors)
    }

    fn failed(&self, instance: &Value, error: &anyhow::Error) -> anyhow::Result<usize> {
        let id = self.id(instance.text("ID"));
        self.lines.detail(&format!("Allocation \"{id}\" was not restarted: {error:#}"))?;
        Ok(1)
    }

    /// An instance right before its restart, which is what its tasks are compared with. One that is
    /// replaced is told to stop.
    fn prepare(&self, instance: &Value) -> anyhow::Result<Value> {
        let id = instance.text("ID");
        let before = self.context.get_patiently(&format!("/v1/allocation/{id}"), &[])?;
        let (shown, name) = (self.id(id), instance.text("Name"));
        if self.arguments.reschedule {
            self.lines.detail(&format!("Replacing allocation \"{shown}\" ({name})"))?;
            let delay = if self.arguments.no_shutdown_delay { "true" } else { "false" };
            let query = [("reschedule", "true"), ("no_shutdown_delay", delay)];
            self.context.client.put(&format!("/v1/allocation/{id}/stop"), &query, &json!({}))?;
        } else {
            self.lines.detail(&format!("Restarting allocation \"{shown}\" ({name})"))?;
        }
        Ok(before)
    }

    /// Has the tasks of instances end, all at once, and waits until they have; what came of each.
    fn order(&self, instances: &[Value]) -> Vec<anyhow::Result<()>> {
        let tasks = self.arguments.tasks.iter().map(|task| json!({"TaskName": task}));
        let mut bodies: Vec<Value> = tasks.collect();
        if bodies.is_empty() {
            bodies.push(json!({"AllTasks": self.arguments.all_tasks}));
        }
        let client = &self.context.client;
        std::thread::scope(|scope| {
            let ask = |instance: &Value| {
                let path = format!("/v1/client/allocation/{}/restart", instance.text("ID"));
                let ask = |body| {
                    let path = path.clone();
                    scope.spawn(move || client.put_unhurried(&path, body).map(drop))
                };
                bodies.iter().map(ask).collect::<Vec<_>>()
            };
            let asked: Vec<_> = instances.iter().map(ask).collect();
            let answers = asked.into_iter().map(|of_tasks| {
                let answers = of_tasks.into_iter().map(|asked| match asked.join() {
                    Ok(answer) => answer.map_err(anyhow::Error::from),
                    Err(_) => Err(anyhow!("the request was not made")),
                });
                answers.collect::<anyhow::Result<Vec<()>>>().map(drop)
            });
            answers.collect()
        })
    }

    /// Waits until the instance runs again, or its successor does.
    fn await_end(&self, instance: &Value) -> anyhow::Result<String> {
        let mut left = INSTANCE_WAIT_MAX;
        loop {
            let path = format!("/v1/allocation/{}", instance.text("ID"));
            let row = self.context.get_patiently(&path, &[])?;
            let end = if self.arguments.reschedule {
                self.successor(&row)?
            } else {
                self.restarted(instance, &row)?
            };
            if let Some(text) = end {
                return Ok(text);
            }
            left = left.saturating_sub(self.context.poll_interval);
            if left.is_zero() {
                bail!("it does not run again after {}s", INSTANCE_WAIT_MAX.as_secs());
            }
            self.context.pause();
        }
    }

    fn successor(&self, row: &Value) -> anyhow::Result<Option<String>> {
        let next = row.text("NextAllocation");
        if next.is_empty() {
            return Ok(None);
        }
        let successor = self.context.get_patiently(&format!("/v1/allocation/{next}"), &[])?;
        let (shown, id) = (self.id(next), self.id(row.text("ID")));
        match successor.text("ClientStatus") {
            "running" | "complete" => {
                Ok(Some(format!("Allocation \"{id}\" was replaced by \"{shown}\"")))
            }
            status @ ("failed" | "lost") => {
                bail!("its successor \"{shown}\" is {status}")
            }
            _ => Ok(None),
        }
    }

    /// Each task that ran and was to restart has been started once more.
    fn restarted(&self, before: &Value, row: &Value) -> anyhow::Result<Option<String>> {
        if let status @ ("failed" | "lost" | "complete") = row.text("ClientStatus") {
            bail!("it is {status}");
        }
        let named = &self.arguments.tasks;
        let waits = before["TaskStates"].as_object().into_iter().flatten().any(|(name, was)| {
            let is_meant = named.is_empty() || named.contains(name);
            let ran = was.text("State") == "running";
            let is = &row["TaskStates"][name];
            let began = is.number("Restarts") > was.number("Restarts");
            is_meant && ran && !(began && is.text("State") != "pending")
        });
        Ok((!waits).then(|| format!("Allocation \"{}\" runs again", self.id(row.text("ID")))))
    }

    /// Whether the next batch is to begin.
    fn goes_on(&self, wait: Wait, next: usize, batches: usize) -> anyhow::Result<bool> {
        match wait {
            Wait::For(pause) => {
                if !pause.is_zero() {
                    let seconds = pause.as_secs_f32();
                    self.lines.detail(&format!("Waiting {seconds}s before the next batch"))?;
                }
                std::thread::sleep(pause);
                Ok(true)
            }
            Wait::Ask if self.arguments.yes => Ok(true),
            Wait::Ask => self.asks(&format!("Go on with batch {next} of {batches}? [y/N]")),
        }
    }

    fn forgives(&self) -> anyhow::Result<bool> {
        match self.arguments.on_error {
            OnError::Fail => Ok(false),
            OnError::Ask if self.arguments.yes => Ok(true),
            OnError::Ask => self.asks("Go on with the next batch? [y/N]"),
        }
    }

    /// Nobody who could answer says no.
    fn asks(&self, question: &str) -> anyhow::Result<bool> {
        self.context.line(question)?;
        let answer = (self.context.typed_line)().unwrap_or_default();
        Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::batch_size;

    #[test]
    fn a_batch_is_a_number_or_a_share_rounded_up() {
        for (text, of, size) in [("1", 9, 1), ("20%", 9, 2), ("1%", 9, 1), ("100%", 9, 9)] {
            assert_eq!(batch_size(text, of).unwrap(), size, "{text}");
        }
        for text in ["0", "0%", "101%", "x", "-1", ""] {
            assert!(batch_size(text, 9).is_err(), "{text}");
        }
    }
}
