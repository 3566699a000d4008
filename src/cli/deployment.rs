//! `quorate deployment …`, `job deployments` and `job promote`, and following a deployment until it
//! ends.
//!
//! A deployment that failed and went back to an older version is followed by that of the version it
//! went back to.

use anyhow::bail;
use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};
use shapes::{Deployment, DeploymentGroup, DeploymentWritten};

use super::client;
use super::context::{Context, Exit, Outcome};
use super::lines::Lines;
use super::output::{Cell, Style, listed, pairs, table};
use super::view::{Fields, newest_first, rows, shape};
use super::{resolve, time};

/// Inspect and steer how versions of jobs are rolled out
#[derive(Debug, Subcommand)]
pub(crate) enum DeploymentCommand {
    /// List deployments
    #[command(after_help = "Examples:\n  quorate deployment list\n  quorate deployment list -json")]
    List(ListArgs),
    /// Show a deployment and its allocations
    #[command(
        after_help = "Examples:\n  quorate deployment status 8f9c5b52\n  quorate deployment status -monitor 8f9c5b52\n\nExit status with -monitor: 0 successful, 1 failed or cancelled."
    )]
    Status(StatusArgs),
    /// Promote the canaries of a deployment, of all groups or of some
    #[command(
        after_help = "Examples:\n  quorate deployment promote 8f9c5b52\n  quorate deployment promote -group web -group api 8f9c5b52"
    )]
    Promote(PromoteArgs),
    /// Mark a deployment as failed
    #[command(after_help = "Examples:\n  quorate deployment fail 8f9c5b52")]
    Fail(ChangeArgs),
    /// Replace nothing more until the deployment is resumed
    #[command(after_help = "Examples:\n  quorate deployment pause 8f9c5b52")]
    Pause(PauseArgs),
    /// Let a paused deployment go on
    #[command(after_help = "Examples:\n  quorate deployment resume 8f9c5b52")]
    Resume(ChangeArgs),
    /// Nomad Enterprise's; refused
    #[command(hide = true)]
    Unblock(ChangeArgs),
}

/// Flags of `deployment list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Expression that deployments must match
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `deployment status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The deployment's id or the beginning of it; without: list all
    deployment: Option<String>,
    /// Follow it until it ends
    #[arg(long)]
    monitor: bool,
    #[command(flatten)]
    style: Style,
}

impl StatusArgs {
    /// The status of one deployment.
    pub(crate) fn of(id: String, style: Style) -> Self {
        Self { deployment: Some(id), monitor: false, style }
    }
}

/// Flags of `deployment promote`.
#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    /// The deployment's id or the beginning of it
    deployment: String,
    /// Only the canaries of this group; may be repeated
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Do not follow the deployment
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `deployment fail`, `resume` and `unblock`.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// The deployment's id or the beginning of it
    deployment: String,
    /// Do not follow the deployment
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `deployment pause`.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The deployment's id or the beginning of it
    deployment: String,
    #[command(flatten)]
    style: Style,
}

/// Flags of `job promote`.
#[derive(Debug, Args)]
pub(crate) struct PromoteJobArgs {
    /// The job's id
    job: String,
    /// Only the canaries of this group; may be repeated
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Do not follow the deployment
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `job deployments`.
#[derive(Debug, Args)]
pub(crate) struct OfJobArgs {
    /// The job's id
    job: String,
    /// Only the newest
    #[arg(long)]
    latest: bool,
    /// Also those of jobs that had this id before
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    style: Style,
}

pub(crate) fn run(context: &Context, command: &DeploymentCommand) -> Outcome {
    match command {
        DeploymentCommand::List(ListArgs { filter, style }) => {
            list(context, filter.as_deref(), *style)
        }
        DeploymentCommand::Status(arguments) => match &arguments.deployment {
            None => list(context, None, arguments.style),
            Some(typed) => status(context, arguments, typed),
        },
        DeploymentCommand::Promote(arguments) => {
            let id = resolve::id(context, resolve::DEPLOYMENT, &arguments.deployment)?;
            promote(context, &id, &arguments.group, arguments.detach, arguments.style)
        }
        DeploymentCommand::Fail(arguments) => change(context, arguments, "fail", json!({})),
        DeploymentCommand::Pause(PauseArgs { deployment, style }) => {
            let arguments =
                ChangeArgs { deployment: deployment.clone(), detach: true, style: *style };
            change(context, &arguments, "pause", json!({ "Pause": true }))
        }
        DeploymentCommand::Resume(arguments) => {
            change(context, arguments, "pause", json!({ "Pause": false }))
        }
        DeploymentCommand::Unblock(arguments) => change(context, arguments, "unblock", json!({})),
    }
}

fn list(context: &Context, filter: Option<&str>, style: Style) -> Outcome {
    let query: Vec<(&str, &str)> = filter.map(|filter| ("filter", filter)).into_iter().collect();
    let answer = newest_first(context.client.get("/v1/deployments", &query)?);
    show_list(context, &answer, style)
}

fn show_list(context: &Context, answer: &Value, style: Style) -> Outcome {
    if style.json {
        context.output.json(answer)?;
        return Ok(Exit::Success);
    }
    let deployments: Vec<Deployment> = shape(answer)?;
    if deployments.is_empty() {
        context.line("No deployments")?;
        return Ok(Exit::Success);
    }
    let columns: [(&str, Cell<'_, Deployment>); 5] = [
        ("ID", &|row| style.id(&row.id)),
        ("Job ID", &|row| row.job_id.clone()),
        ("Job Version", &|row| row.job_version.to_string()),
        ("Status", &|row| row.status.clone()),
        ("Description", &|row| row.status_description.clone()),
    ];
    let columns = context.with_namespaces(&columns, &|row| row.namespace.clone());
    context.line(listed(&deployments, &columns))?;
    Ok(Exit::Success)
}

/// `job deployments`.
pub(super) fn of_job(context: &Context, arguments: &OfJobArgs) -> Outcome {
    let job = resolve::job(context, &arguments.job)?;
    let namespace = ("namespace", job.namespace.as_str());
    let path = format!("/v1/job/{}", encode(&job.id));
    if arguments.latest {
        let answer = context.client.get(&format!("{path}/deployment"), &[namespace])?;
        if arguments.style.json {
            context.output.json(&answer)?;
            return Ok(Exit::Success);
        }
        match shape::<Option<Deployment>>(&answer)? {
            None => context.line("No deployment")?,
            Some(deployment) => context.line(summary(&deployment, arguments.style))?,
        }
        return Ok(Exit::Success);
    }
    let all = if arguments.all { "true" } else { "false" };
    let answer = context.client.get(&format!("{path}/deployments"), &[namespace, ("all", all)])?;
    show_list(context, &answer, arguments.style)
}

fn status(context: &Context, arguments: &StatusArgs, typed: &str) -> Outcome {
    let style = arguments.style;
    let id = resolve::id(context, resolve::DEPLOYMENT, typed)?;
    if arguments.monitor {
        return Ok(exit(&follow(context, &id, style, false)?));
    }
    let path = format!("/v1/deployment/{id}");
    let answer = client::or_missing(context.client.get(&path, &[]), "deployment", &id)?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let mut sections = vec![summary(&shape(&answer)?, style)];
    let allocations = context.client.get(&format!("/v1/deployment/allocations/{id}"), &[])?;
    if style.verbose && !rows(&allocations).is_empty() {
        let now = context.now_nanoseconds();
        let lines: Vec<Vec<String>> = rows(&allocations)
            .iter()
            .map(|one| {
                let healthy = one.get("DeploymentStatus").and_then(|own| own.get("Healthy"));
                let healthy = healthy.and_then(Value::as_bool);
                vec![
                    style.id(one.text("ID")),
                    style.id(one.text("NodeID")),
                    one.shown("TaskGroup"),
                    one.shown("JobVersion"),
                    one.shown("DesiredStatus"),
                    one.shown("ClientStatus"),
                    healthy.map_or_else(|| "unset".to_owned(), |healthy| healthy.to_string()),
                    time::ago(now, one.number("CreateTime")),
                ]
            })
            .collect();
        let headers =
            ["ID", "Node ID", "Task Group", "Version", "Desired", "Status", "Healthy", "Created"];
        sections.push(format!("Allocations\n{}", table(&headers, &lines)));
    }
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

/// What a deployment is, and how its groups stand.
pub(super) fn summary(row: &Deployment, style: Style) -> String {
    let head = pairs(&[
        ("ID", style.id(&row.id)),
        ("Job ID", row.job_id.clone()),
        ("Job Version", row.job_version.to_string()),
        ("Status", row.status.clone()),
        ("Description", row.status_description.clone()),
    ]);
    format!("{head}\n\nDeployed\n{}", groups(row))
}

/// How the groups of a deployment stand. Columns that no group uses are left out.
pub(super) fn groups(row: &Deployment) -> String {
    let any = |test: &dyn Fn(&DeploymentGroup) -> bool| row.task_groups.values().any(test);
    let reverts = any(&|group| group.auto_revert);
    let canaries = any(&|group| group.desired_canaries > 0);
    let deadlines = any(&|group| group.progress_deadline > 0);
    let mut headers = vec!["Task Group"];
    headers.extend(reverts.then_some("Auto Revert"));
    headers.extend(canaries.then_some("Promoted"));
    headers.push("Desired");
    headers.extend(canaries.then_some("Canaries"));
    headers.extend(["Placed", "Healthy", "Unhealthy"]);
    headers.extend(deadlines.then_some("Progress Deadline"));
    let line = |(name, group): (&String, &DeploymentGroup)| {
        let mut line = vec![name.clone()];
        line.extend(reverts.then(|| group.auto_revert.to_string()));
        line.extend(canaries.then(|| match group.desired_canaries {
            0 => "N/A".to_owned(),
            _ => group.promoted.to_string(),
        }));
        line.push(group.desired_total.to_string());
        line.extend(canaries.then(|| group.desired_canaries.to_string()));
        let counts = [group.placed_allocs, group.healthy_allocs, group.unhealthy_allocs];
        line.extend(counts.map(|count| count.to_string()));
        line.extend(deadlines.then(|| deadline(group)));
        line
    };
    let lines: Vec<Vec<String>> = row.task_groups.iter().map(line).collect();
    table(&headers, &lines)
}

fn deadline(group: &DeploymentGroup) -> String {
    // Nothing was placed yet, or nothing is waited for.
    group.require_progress_by.clone().unwrap_or_else(|| "N/A".to_owned())
}

/// Promotes the newest deployment of a job.
pub(super) fn promote_job(context: &Context, arguments: &PromoteJobArgs) -> Outcome {
    let job = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/deployment", encode(&job.id));
    let answer = context.client.get(&path, &[("namespace", job.namespace.as_str())])?;
    let Some(row) = shape::<Option<Deployment>>(&answer)? else {
        bail!("job \"{}\" has no deployment to promote", job.id);
    };
    promote(context, &row.id, &arguments.group, arguments.detach, arguments.style)
}

fn promote(context: &Context, id: &str, groups: &[String], detach: bool, style: Style) -> Outcome {
    let body = if groups.is_empty() { json!({ "All": true }) } else { json!({ "Groups": groups }) };
    write(context, ("promote", id), body, detach, style)
}

fn change(context: &Context, arguments: &ChangeArgs, verb: &str, body: Value) -> Outcome {
    let id = resolve::id(context, resolve::DEPLOYMENT, &arguments.deployment)?;
    write(context, (verb, &id), body, arguments.detach, arguments.style)
}

fn write(
    context: &Context,
    (verb, id): (&str, &str),
    mut body: Value,
    detach: bool,
    style: Style,
) -> Outcome {
    body["DeploymentID"] = id.into();
    let answer = context.client.put(&format!("/v1/deployment/{verb}/{id}"), &[], &body)?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let written: DeploymentWritten = shape(&answer)?;
    if let Some(version) = written.reverted_job_version {
        context.line(format!("The job goes back to version {version}"))?;
    }
    if detach {
        match written.eval_id.as_str() {
            "" => context.line(format!("Deployment \"{}\" paused", style.id(id)))?,
            evaluation => context.line(format!("Evaluation ID: {evaluation}"))?,
        }
        return Ok(Exit::Success);
    }
    Ok(exit(&follow(context, id, style, false)?))
}

/// Whether a deployment is not over.
pub(super) fn goes_on(row: &Deployment) -> bool {
    matches!(row.status.as_str(), "running" | "paused")
}

/// Exit status of a deployment that was followed to its end.
pub(super) fn exit(row: &Deployment) -> Exit {
    if row.status == "successful" { Exit::Success } else { Exit::Failure }
}

/// Follows a deployment until it ends, and after a failure the one of the version that the job goes
/// back to. Answers with the first as it ended.
pub(super) fn follow(
    context: &Context,
    id: &str,
    style: Style,
    silent: bool,
) -> anyhow::Result<Deployment> {
    let ended = Follower { context, style, lines: Lines { context, silent }, shown: String::new() }
        .follow(id)?;
    if ended.status_description.contains("- rolling back to job version") {
        await_rollback(context, &ended, style, silent)?;
    }
    Ok(ended)
}

/// Follows the deployment of the version that a job goes back to, unless the job is changed once
/// more or stopped first.
fn await_rollback(
    context: &Context,
    ended: &Deployment,
    style: Style,
    silent: bool,
) -> anyhow::Result<()> {
    let job_path = format!("/v1/job/{}", encode(&ended.job_id));
    let namespace = [("namespace", ended.namespace.as_str())];
    loop {
        let latest = context.get_patiently(&format!("{job_path}/deployment"), &namespace)?;
        let latest = shape::<Option<Deployment>>(&latest)?.unwrap_or_default();
        if latest.create_index > ended.create_index {
            let mut back =
                Follower { context, style, lines: Lines { context, silent }, shown: String::new() };
            back.follow(&latest.id)?;
            return Ok(());
        }
        let job = context.get_patiently(&job_path, &namespace)?;
        let last = i64::try_from(ended.job_version).unwrap_or(i64::MAX);
        if job.number("Version") > last.saturating_add(1) || job.flag("Stop") {
            return Ok(());
        }
        context.pause();
    }
}

struct Follower<'a> {
    context: &'a Context,
    style: Style,
    lines: Lines<'a>,
    /// What was printed last.
    shown: String,
}

impl Follower<'_> {
    fn follow(&mut self, id: &str) -> anyhow::Result<Deployment> {
        self.lines.heading(&format!("Monitoring deployment \"{}\"", self.style.id(id)))?;
        loop {
            let answer = self.context.get_patiently(&format!("/v1/deployment/{id}"), &[]);
            let row: Deployment = shape(&client::or_missing(answer, "deployment", id)?)?;
            let over = !goes_on(&row);
            self.show(&row, over)?;
            if over {
                let shown = self.style.id(id);
                let (status, why) = (&row.status, &row.status_description);
                self.lines.heading(&format!("Deployment \"{shown}\" {status}: {why}"))?;
                return Ok(row);
            }
            self.context.pause();
        }
    }

    /// A table that changes in place on a terminal, lines for what has changed elsewhere.
    fn show(&mut self, row: &Deployment, is_last: bool) -> anyhow::Result<()> {
        let text = summary(row, self.style);
        if self.lines.silent || text == self.shown {
            return Ok(());
        }
        let output = &self.context.output;
        if output.is_terminal() {
            let lines: Vec<String> = text.lines().map(|line| format!("    {line}")).collect();
            if is_last {
                output.clear_block()?;
                self.context.line(lines.join("\n"))?;
            } else {
                output.block(&lines)?;
            }
        } else {
            if self.shown.is_empty() || !self.shown.contains(&row.status_description) {
                self.lines.detail(&row.status_description)?;
            }
            for (name, group) in &row.task_groups {
                let DeploymentGroup {
                    desired_total: desired,
                    placed_allocs: placed,
                    healthy_allocs: healthy,
                    unhealthy_allocs: unhealthy,
                    ..
                } = group;
                self.lines.detail(&format!(
                    "Task group \"{name}\": desired {desired}, placed {placed}, healthy {healthy}, unhealthy {unhealthy}"
                ))?;
            }
        }
        self.shown = text;
        Ok(())
    }
}
