//! `quorate alloc …`: status and stop; logs are in `logs.rs`, files in `fs.rs`, restarts and
//! signals in `orders.rs`.

mod fs;
mod logs;
mod orders;
mod tail;

use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};
use shapes::{Allocation, AllocationStub, PlacementMetrics, TaskState};

use super::context::{Context, Exit, Outcome};
use super::monitor::{self, event_text};
use super::output::{Cell, Style, listed, pairs, table};
use super::view::{Fields, rows, shape};
use super::{client, placement, resolve, stats, time};

pub(crate) use fs::FsArgs;
pub(crate) use logs::LogsArgs;

/// Events of a task shown without `-verbose`.
const EVENTS_SHOWN: usize = 10;

/// Inspect and stop allocations, read their logs
#[derive(Debug, Subcommand)]
pub(crate) enum AllocCommand {
    /// List allocations, or show one
    #[command(
        after_help = "Examples:\n  quorate alloc status\n  quorate alloc status 5b98a6ea\n  quorate alloc status -json 5b98a6ea"
    )]
    Status(StatusArgs),
    /// Print what a task wrote
    #[command(after_help = logs::EXAMPLES)]
    Logs(LogsArgs),
    /// Run tasks anew, on the same node
    #[command(after_help = orders::EXAMPLES)]
    Restart(orders::RestartArgs),
    /// Send a signal to tasks
    #[command(
        after_help = "Examples:\n  quorate alloc signal -s SIGHUP 5b98a6ea\n  quorate alloc signal -s SIGUSR1 5b98a6ea web"
    )]
    Signal(orders::SignalArgs),
    /// List the folders of an allocation, print its files
    #[command(after_help = fs::EXAMPLES)]
    Fs(FsArgs),
    /// Stop an allocation; the scheduler replaces it if the job still wants it. One of a batch or
    /// sysbatch job is replaced with -reschedule only
    #[command(
        after_help = "Examples:\n  quorate alloc stop 5b98a6ea\n  quorate alloc stop -detach 5b98a6ea\n  quorate alloc stop -reschedule 5b98a6ea\n  quorate alloc stop -no-reschedule 5b98a6ea     leave its place empty until the job changes"
    )]
    Stop(StopArgs),
}

/// Flags of `alloc status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The allocation's id or the beginning of it; without: list all
    allocation: Option<String>,
    /// Only the summary, no events
    #[arg(long)]
    short: bool,
    /// What the tasks use just now
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    style: Style,
}

impl StatusArgs {
    /// The status of one allocation.
    pub(crate) fn of(id: String, style: Style) -> Self {
        Self { allocation: Some(id), short: false, stats: false, style }
    }
}

/// Flags of `alloc stop`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct StopArgs {
    /// The allocation's id or the beginning of it
    allocation: String,
    /// Do not follow the evaluation
    #[arg(long)]
    detach: bool,
    /// Run an instance of a batch or sysbatch job again, also when it has been stopped already
    #[arg(long)]
    reschedule: bool,
    /// Leave its place empty until the job changes
    #[arg(long, conflicts_with = "reschedule")]
    no_reschedule: bool,
    /// Stop it without the shutdown delays of its group and tasks
    #[arg(long)]
    no_shutdown_delay: bool,
    #[command(flatten)]
    style: Style,
}

pub(crate) fn run(context: &Context, command: &AllocCommand) -> Outcome {
    match command {
        AllocCommand::Status(arguments) => match &arguments.allocation {
            None => list(context, arguments.style),
            Some(typed) => one(context, arguments, typed),
        },
        AllocCommand::Logs(arguments) => logs::run(context, arguments),
        AllocCommand::Restart(arguments) => orders::restart(context, arguments),
        AllocCommand::Signal(arguments) => orders::signal(context, arguments),
        AllocCommand::Fs(arguments) => fs::run(context, arguments),
        AllocCommand::Stop(arguments) => stop(context, arguments),
    }
}

/// How `alloc logs` and `alloc fs` name an allocation.
#[derive(Debug, Args)]
struct ByJob {
    /// The id is that of a job: take its newest allocation that runs, else its newest one
    #[arg(long)]
    job: bool,
    /// With -job: one of this group
    #[arg(long, value_name = "NAME", requires = "job")]
    group: Option<String>,
}

impl ByJob {
    /// The allocation that is meant.
    fn read(&self, context: &Context, typed: &str) -> anyhow::Result<Value> {
        if !self.job {
            return read(context, typed);
        }
        let job = resolve::job(context, typed)?;
        let path = format!("/v1/job/{}/allocations", encode(&job.id));
        let answer = context.client.get(&path, &[("namespace", job.namespace.as_str())])?;
        let is_in =
            |row: &&Value| self.group.as_deref().is_none_or(|group| row.text("TaskGroup") == group);
        let newest = rows(&answer)
            .iter()
            .filter(is_in)
            .max_by_key(|row| (row.text("ClientStatus") == "running", row.number("CreateIndex")));
        match newest {
            Some(row) => read(context, row.text("ID")),
            None => anyhow::bail!("job \"{}\" has no such allocation", job.id),
        }
    }
}

fn read(context: &Context, typed: &str) -> anyhow::Result<Value> {
    let id = resolve::id(context, resolve::ALLOCATION, typed)?;
    let answer = context.client.get(&format!("/v1/allocation/{id}"), &[]);
    client::or_missing(answer, "allocation", &id)
}

fn list(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/allocations", &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let allocations: Vec<AllocationStub> = shape(&answer)?;
    if allocations.is_empty() {
        context.line("No allocations")?;
        return Ok(Exit::Success);
    }
    let columns: [(&str, Cell<'_, AllocationStub>); 6] = [
        ("ID", &|row| style.id(&row.id)),
        ("Name", &|row| row.name.clone()),
        ("Node ID", &|row| style.id(&row.node_id)),
        ("Version", &|row| row.job_version.to_string()),
        ("Desired", &|row| row.desired_status.clone()),
        ("Status", &|row| row.client_status.clone()),
    ];
    let columns = context.with_namespaces(&columns, &|row| row.namespace.clone());
    context.line(listed(&allocations, &columns))?;
    Ok(Exit::Success)
}

fn one(context: &Context, arguments: &StatusArgs, typed: &str) -> Outcome {
    let style = arguments.style;
    let answer = read(context, typed)?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let allocation: Allocation = shape(&answer)?;
    let now = context.now_nanoseconds();
    let mut sections = vec![overview(&allocation, now, style)];
    sections.extend(ports(&allocation.stub));
    for (task, state) in allocation.stub.task_states.iter().flatten() {
        let resources = task_resources(&allocation.stub, task);
        sections.push(task_section(task, state, resources, arguments));
    }
    if arguments.stats {
        sections.push(stats::of_allocation(context, &allocation.stub.id));
    }
    sections.extend(allocation.metrics.as_ref().filter(|_| style.verbose).map(scores));
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

/// Go's zero time is no time.
fn moment(text: Option<&str>) -> String {
    match text {
        None | Some("" | "0001-01-01T00:00:00Z") => "N/A".to_owned(),
        Some(other) => other.to_owned(),
    }
}

fn overview(allocation: &Allocation, now: i64, style: Style) -> String {
    let Allocation { stub, deployment_id, previous_allocation, .. } = allocation;
    let mut lines = vec![
        ("ID", stub.id.clone()),
        ("Eval ID", style.id(&stub.eval_id)),
        ("Name", stub.name.clone()),
        ("Node ID", style.id(&stub.node_id)),
        ("Node Name", stub.node_name.clone()),
        ("Job ID", stub.job_id.clone()),
        ("Job Version", stub.job_version.to_string()),
        ("Client Status", stub.client_status.clone()),
        ("Client Description", stub.client_description.clone()),
        ("Desired Status", stub.desired_status.clone()),
        ("Desired Description", stub.desired_description.clone()),
        ("Created", time::ago(now, time::signed(stub.create_time))),
        ("Modified", time::ago(now, time::signed(stub.modify_time))),
    ];
    for (title, id) in [
        ("Deployment ID", deployment_id),
        ("Previous Alloc", previous_allocation),
        ("Replacement Alloc", &stub.next_allocation),
        ("Follow Up Eval", &stub.followup_eval_id),
        ("Preempted By", &stub.preempted_by_allocation),
    ] {
        if !id.is_empty() {
            lines.push((title, style.id(id)));
        }
    }
    let preempted = stub.preempted_allocations.iter().flatten();
    let preempted: Vec<String> = preempted.map(|id| style.id(id)).collect();
    if !preempted.is_empty() {
        lines.push(("Preempted Allocs", preempted.join(", ")));
    }
    pairs(&lines)
}

/// Label and address of every port of an allocation.
pub(crate) fn port_list(allocation: &AllocationStub) -> Vec<(String, String)> {
    let shared = allocation.allocated_resources.as_ref().map(|all| &all.shared);
    let ports = shared.and_then(|shared| shared.ports.as_ref()).into_iter().flatten();
    ports.map(|port| (port.label.clone(), format!("{}:{}", port.host_ip, port.value))).collect()
}

fn ports(allocation: &AllocationStub) -> Option<String> {
    let found = port_list(allocation);
    if found.is_empty() {
        return None;
    }
    let lines: Vec<Vec<String>> =
        found.into_iter().map(|(label, address)| vec![label, address]).collect();
    Some(format!("Allocation Addresses\n{}", table(&["Label", "Address"], &lines)))
}

/// What a task asks for; nothing if the server does not say.
fn task_resources(allocation: &AllocationStub, task: &str) -> Option<String> {
    let all = allocation.allocated_resources.as_ref()?;
    let own = all.tasks.get(task)?;
    let line = vec![
        format!("{} MHz", own.cpu.cpu_shares),
        format!("{} MiB", own.memory.memory_mb),
        format!("{} MiB", all.shared.disk_mb),
    ];
    let most = match own.memory.memory_max_mb {
        0 => None,
        -1 => Some("Max: unlimited".to_owned()),
        mb => Some(format!("Max: {mb} MiB")),
    };
    // A blank is shown as it is.
    let most = most.map(|most| vec![" ".to_owned(), most, " ".to_owned()]);
    let lines: Vec<_> = std::iter::once(line).chain(most).collect();
    Some(format!("Task Resources:\n{}", table(&["CPU", "Memory", "Disk"], &lines)))
}

fn task_section(
    task: &str,
    state: &TaskState,
    resources: Option<String>,
    arguments: &StatusArgs,
) -> String {
    let failed = if state.failed { " (failed)" } else { "" };
    let mut text = format!(
        "Task \"{task}\" is \"{}\"{failed}\n{}",
        state.state,
        pairs(&[
            ("Started At", moment(state.started_at.as_deref())),
            ("Finished At", moment(state.finished_at.as_deref())),
            ("Total Restarts", state.restarts.to_string()),
            ("Last Restart", moment(state.last_restart.as_deref())),
        ])
    );
    if let Some(resources) = resources.filter(|_| !arguments.short) {
        text = format!("{text}\n\n{resources}");
    }
    let events = &state.events;
    if !arguments.short && !events.is_empty() {
        let shown = if arguments.style.verbose { events.len() } else { EVENTS_SHOWN };
        let lines: Vec<Vec<String>> = events
            .iter()
            .rev()
            .take(shown)
            .map(|event| {
                vec![
                    time::timestamp(time::signed(event.time)),
                    event.kind.clone(),
                    event_text(event).to_owned(),
                ]
            })
            .collect();
        text.push_str("\n\nRecent Events:\n");
        text.push_str(&table(&["Time", "Type", "Description"], &lines));
    }
    text
}

fn scores(found: &PlacementMetrics) -> String {
    let scored = found.score_meta_data.iter().flatten();
    let lines: Vec<Vec<String>> = scored
        .map(|score| {
            let parts = score.scores.iter().map(|(name, value)| format!("{name}={value:?}"));
            let parts: Vec<String> = parts.collect();
            vec![score.node_id.clone(), format!("{:?}", score.norm_score), parts.join(" ")]
        })
        .collect();
    let mut text = format!(
        "Placement Metrics\n{}",
        pairs(&[
            ("Nodes Evaluated", found.nodes_evaluated.to_string()),
            ("Nodes Filtered", found.nodes_filtered.to_string()),
            ("Nodes Exhausted", found.nodes_exhausted.to_string()),
            ("Allocation Time", format!("{} ns", found.allocation_time)),
        ])
    );
    for reason in placement::reasons(found) {
        text.push_str("\n  * ");
        text.push_str(&reason);
    }
    if !lines.is_empty() {
        text.push_str("\n\n");
        text.push_str(&table(&["Node", "Score", "Parts"], &lines));
    }
    text
}

fn stop(context: &Context, arguments: &StopArgs) -> Outcome {
    let id = resolve::id(context, resolve::ALLOCATION, &arguments.allocation)?;
    let flags = [
        ("reschedule", arguments.reschedule),
        ("no_reschedule", arguments.no_reschedule),
        ("no_shutdown_delay", arguments.no_shutdown_delay),
    ];
    let given = flags.into_iter().filter(|(_, is_given)| *is_given);
    let query: Vec<_> = given.map(|(name, _)| (name, "true")).collect();
    let answer = context.client.put(&format!("/v1/allocation/{id}/stop"), &query, &json!({}));
    let answer = client::or_missing(answer, "allocation", &id)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}
