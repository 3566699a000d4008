//! Following an evaluation, then its allocations, line by line.
//!
//! ```text
//! evaluation pending ─► complete ─► allocations pending ─► running | complete ─► Placed
//!        │                 ├─ next evaluation: follow it        └─ failed | lost ─► AllocationFailed
//!        │                 └─ some not placed: NotPlaced, unless its deployment goes on
//!        ├─► canceled: follow the one that supersedes it, if there is one
//!        └─► failed | canceled: EvaluationFailed
//! one that is part of a deployment ─► the deployment: Placed | DeploymentFailed
//! ```
//! Must never write. Reads that fail for a while (a leader election) are waited out.

use std::collections::BTreeMap;
use std::time::Duration;

use http_api::percent::encode;
use serde_json::{Value, json};
use shapes::{AllocationStub, Deployment, Evaluation, TaskEvent};

use super::client::or_missing;
use super::context::{Context, Exit};
use super::lines::Lines;
use super::output::Style;
use super::view::{Fields, shape};
use super::{deployment, placement, time};

/// How long an evaluation that was just created may be unknown to the server that is asked.
const UNKNOWN_EVALUATION_MAX: Duration = Duration::from_secs(5);

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All allocations run or have completed.
    Placed,
    /// Some could not be placed, and no deployment tells how that ends; a blocked evaluation waits
    /// for capacity.
    NotPlaced,
    /// An allocation failed or was lost.
    AllocationFailed,
    /// The evaluation failed or was canceled.
    EvaluationFailed,
    /// The deployment of the job's version failed or was cancelled.
    DeploymentFailed,
}

impl Verdict {
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Placed => Exit::Success,
            Self::NotPlaced => Exit::NotPlaced,
            Self::AllocationFailed | Self::EvaluationFailed | Self::DeploymentFailed => {
                Exit::Failure
            }
        }
    }
}

/// What is reported at the end.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    pub(crate) evaluation: Evaluation,
    pub(crate) allocations: Vec<AllocationStub>,
    /// Null: the evaluation was part of none.
    pub(crate) deployment: Option<Deployment>,
}

impl Report {
    /// The report as JSON, for `-output=json`.
    pub(crate) fn json(&self) -> Value {
        json!({
            "Evaluation": self.evaluation,
            "Allocations": self.allocations,
            "Deployment": self.deployment,
        })
    }
}

/// Follows evaluations.
pub(crate) struct Monitor<'a> {
    context: &'a Context,
    style: Style,
    lines: Lines<'a>,
    evaluation_status: String,
    /// Index at which the evaluation was made: an allocation that is older was not made by it.
    evaluation_index: u64,
    deployment: String,
    /// Allocation → status printed last.
    allocations: BTreeMap<String, String>,
}

impl<'a> Monitor<'a> {
    pub(crate) fn new(context: &'a Context, style: Style, silent: bool) -> Self {
        Self {
            context,
            style,
            lines: Lines { context, silent },
            evaluation_status: String::new(),
            evaluation_index: 0,
            deployment: String::new(),
            allocations: BTreeMap::new(),
        }
    }

    /// Follows an evaluation and those that continue it, then the allocations they made.
    pub(crate) fn follow(&mut self, evaluation_id: &str) -> anyhow::Result<Report> {
        let mut id = evaluation_id.to_owned();
        loop {
            let evaluation = self.follow_evaluation(&id)?;
            let allocations = self.allocations_of(&id)?;
            let next = &evaluation.next_eval;
            if !next.is_empty() && evaluation.status == "failed" {
                self.lines.detail(&format!(
                    "Evaluation \"{}\" will be retried by \"{}\"",
                    self.style.id(&id),
                    self.style.id(next)
                ))?;
                id.clone_from(next);
                continue;
            }
            if is_canceled(&evaluation)
                && let Some(newer) = self.superseding(&evaluation)?
            {
                self.lines.detail(&format!(
                    "Evaluation \"{}\" was superseded by \"{}\"",
                    self.style.id(&id),
                    self.style.id(&newer)
                ))?;
                id = newer;
                continue;
            }
            let verdict = Verdict::Placed;
            let mut report = Report { verdict, evaluation, allocations, deployment: None };
            // That the deployment of a job ends with it was asked for.
            if report.evaluation.triggered_by == "job-deregister" {
                self.deployment.clear();
            }
            let goes_on = self.deployment_goes_on()?;
            self.judge(&id, &mut report, goes_on)?;
            self.follow_deployment(&mut report, goes_on)?;
            return Ok(report);
        }
    }

    /// Whether the evaluation is part of a deployment that goes on. One that is over when the
    /// evaluation is processed has its part in the verdict, but what the evaluation placed is no
    /// part of it.
    fn deployment_goes_on(&self) -> anyhow::Result<bool> {
        let id = &self.deployment;
        if id.is_empty() {
            return Ok(false);
        }
        let answer = self.context.get_patiently(&format!("/v1/deployment/{id}"), &[]);
        Ok(deployment::goes_on(&shape(&or_missing(answer, "deployment", id)?)?))
    }

    /// Follows the deployment, if there is one, to its end: what found no room at first may find it
    /// meanwhile, and a version that has failed has failed for everybody who runs it again.
    fn follow_deployment(&self, report: &mut Report, goes_on: bool) -> anyhow::Result<()> {
        if self.deployment.is_empty() || report.verdict == Verdict::EvaluationFailed {
            return Ok(());
        }
        let (id, silent) = (&self.deployment, self.lines.silent);
        let ended = deployment::follow(self.context, id, self.style, silent)?;
        let is_well = deployment::exit(&ended) == Exit::Success;
        report.deployment = Some(ended);
        if !is_well {
            report.verdict = Verdict::DeploymentFailed;
        } else if goes_on {
            report.verdict = Verdict::Placed;
        }
        Ok(())
    }

    /// The evaluation that looks at the job in the place of one that was canceled: the next that is
    /// neither canceled itself nor still to come.
    fn superseding(&self, canceled: &Evaluation) -> anyhow::Result<Option<String>> {
        let path = format!("/v1/job/{}/evaluations", encode(&canceled.job_id));
        let namespace = [("namespace", canceled.namespace.as_str())];
        let rows: Vec<Evaluation> = match self.context.get_patiently(&path, &namespace) {
            Ok(answer) => shape(&answer)?,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let index = canceled.create_index;
        let now = time::timestamp(self.context.now_nanoseconds());
        let next = rows
            .into_iter()
            .filter(|row| row.create_index > index && !is_canceled(row))
            .filter(|row| row.status != "blocked" && row.wait_until <= now)
            .min_by_key(|row| row.create_index);
        Ok(next.map(|row| row.id))
    }

    fn follow_evaluation(&mut self, id: &str) -> anyhow::Result<Evaluation> {
        self.evaluation_status.clear();
        self.lines.heading(&format!("Monitoring evaluation \"{}\"", self.style.id(id)))?;
        let mut unknown = Duration::ZERO;
        loop {
            match self.context.get_patiently(&format!("/v1/evaluation/{id}"), &[]) {
                Ok(answer) => {
                    let evaluation: Evaluation = shape(&answer)?;
                    self.print_evaluation(&evaluation)?;
                    if matches!(
                        evaluation.status.as_str(),
                        "complete" | "failed" | "canceled" | "cancelled" | "blocked"
                    ) {
                        return Ok(evaluation);
                    }
                }
                Err(error) if error.is_not_found() && unknown < UNKNOWN_EVALUATION_MAX => {
                    unknown += self.context.poll_interval;
                }
                Err(error) => return Err(error.into()),
            }
            self.allocations_of(id)?;
            self.context.pause();
        }
    }

    fn print_evaluation(&mut self, evaluation: &Evaluation) -> anyhow::Result<()> {
        if self.evaluation_status.is_empty() {
            let (job, node) = (&evaluation.job_id, &evaluation.node_id);
            match evaluation.triggered_by.as_str() {
                "node-update" | "node-drain" => {
                    self.lines.detail(&format!(
                        "Evaluation triggered by node \"{}\"",
                        self.style.id(node)
                    ))?;
                }
                "max-plan-attempts" | "failed-follow-up" => {
                    self.lines.detail(&format!(
                        "Evaluation triggered by earlier evaluation \"{}\"",
                        self.style.id(&evaluation.previous_eval)
                    ))?;
                }
                _ => self.lines.detail(&format!("Evaluation triggered by job \"{job}\""))?,
            }
        }
        self.evaluation_index = evaluation.create_index;
        let deployment = &evaluation.deployment_id;
        if !deployment.is_empty() && *deployment != self.deployment {
            self.deployment.clone_from(deployment);
            self.lines.detail(&format!(
                "Evaluation within deployment: \"{}\"",
                self.style.id(deployment)
            ))?;
        }
        let status = &evaluation.status;
        if !self.evaluation_status.is_empty() && *status != self.evaluation_status {
            let was = &self.evaluation_status;
            self.lines.detail(&format!("Evaluation status changed: \"{was}\" -> \"{status}\""))?;
        }
        self.evaluation_status.clone_from(status);
        Ok(())
    }

    /// Reads an evaluation's allocations and prints what changed.
    fn allocations_of(&mut self, id: &str) -> anyhow::Result<Vec<AllocationStub>> {
        let path = format!("/v1/evaluation/{id}/allocations");
        let allocations: Vec<_> = match self.context.get_patiently(&path, &[]) {
            Ok(answer) => shape(&answer)?,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        for allocation in &allocations {
            self.print_allocation(allocation)?;
        }
        Ok(allocations)
    }

    fn print_allocation(&mut self, allocation: &AllocationStub) -> anyhow::Result<()> {
        let AllocationStub { id, client_status: status, task_group: group, .. } = allocation;
        let shown = self.style.id(id);
        let node = match allocation.node_name.as_str() {
            "" => self.style.id(&allocation.node_id),
            name => name.to_owned(),
        };
        let line = match self.allocations.get(id) {
            Some(was) if was == status => return Ok(()),
            Some(was) => {
                format!(
                    "Allocation \"{shown}\" status changed: \"{was}\" -> \"{status}\"{}",
                    because(allocation)
                )
            }
            None if wanted(allocation) => {
                let older = allocation.create_index < self.evaluation_index;
                let what = if older { "modified" } else { "created" };
                format!("Allocation \"{shown}\" {what}: node \"{node}\", group \"{group}\"")
            }
            None => format!("Allocation \"{shown}\" stopped: node \"{node}\", group \"{group}\""),
        };
        self.allocations.insert(id.clone(), status.clone());
        self.lines.detail(&line)
    }

    fn judge(&mut self, id: &str, report: &mut Report, in_deployment: bool) -> anyhow::Result<()> {
        let evaluation = &report.evaluation;
        let status = evaluation.status.clone();
        let failures = placement::failures(evaluation.failed_tg_allocs.as_ref(), "    ");
        if status == "complete" && failures.is_empty() && !in_deployment {
            report.allocations = self.follow_allocations(id)?;
        }
        let failed = |allocation: &AllocationStub| {
            wanted(allocation) && matches!(allocation.client_status.as_str(), "failed" | "lost")
        };
        report.verdict = if matches!(status.as_str(), "failed" | "canceled" | "cancelled") {
            Verdict::EvaluationFailed
        } else if !failures.is_empty() || status == "blocked" {
            Verdict::NotPlaced
        } else if !in_deployment && report.allocations.iter().any(failed) {
            Verdict::AllocationFailed
        } else {
            Verdict::Placed
        };
        let description = match report.evaluation.status_description.as_str() {
            "" => String::new(),
            text => format!(": {text}"),
        };
        let finished = format!(
            "Evaluation \"{}\" finished with status \"{status}\"{description}",
            self.style.id(id)
        );
        if failures.is_empty() {
            return self.lines.heading(&finished);
        }
        self.lines.heading(&format!("{finished} but failed to place all allocations:"))?;
        for line in failures {
            self.plain(&line)?;
        }
        match report.evaluation.blocked_eval.as_str() {
            "" => Ok(()),
            blocked => self.plain(&format!(
                "    Evaluation \"{}\" waits for capacity to place the remainder",
                self.style.id(blocked)
            )),
        }
    }

    fn plain(&self, line: &str) -> anyhow::Result<()> {
        if self.lines.silent { Ok(()) } else { self.context.line(line) }
    }

    /// Until no wanted allocation is pending, or one has failed.
    fn follow_allocations(&mut self, id: &str) -> anyhow::Result<Vec<AllocationStub>> {
        loop {
            let allocations = self.allocations_of(id)?;
            let status_is = |allocation: &AllocationStub, statuses: &[&str]| {
                wanted(allocation) && statuses.contains(&allocation.client_status.as_str())
            };
            let pending = allocations.iter().any(|row| status_is(row, &["pending", ""]));
            let failed = allocations.iter().any(|row| status_is(row, &["failed", "lost"]));
            if failed || !pending {
                return Ok(allocations);
            }
            self.context.pause();
        }
    }
}

fn is_canceled(evaluation: &Evaluation) -> bool {
    matches!(evaluation.status.as_str(), "canceled" | "cancelled")
}

fn wanted(allocation: &AllocationStub) -> bool {
    allocation.desired_status == "run"
}

/// The last thing a failed allocation's tasks said.
fn because(allocation: &AllocationStub) -> String {
    if allocation.client_status != "failed" {
        return String::new();
    }
    let tasks = allocation.task_states.iter().flatten().filter(|(_, state)| state.failed);
    let mut last_events = tasks.filter_map(|(task, state)| Some((task, state.events.last()?)));
    if let Some((task, event)) = last_events.next() {
        return format!(" (task \"{task}\": {})", event_text(event));
    }
    match allocation.client_description.as_str() {
        "" => String::new(),
        description => format!(" ({description})"),
    }
}

/// What a task event says.
pub(crate) fn event_text(event: &TaskEvent) -> &str {
    let texts = [&event.display_message, &event.message, &event.kind];
    texts.into_iter().find(|text| !text.is_empty()).map_or("", String::as_str)
}

/// Follows the evaluation that a write created, unless there is none or `-detach` was given.
pub(crate) fn follow_write(
    context: &Context,
    answer: &Value,
    detach: bool,
    style: Style,
) -> anyhow::Result<Exit> {
    let evaluation = answer.text("EvalID");
    if evaluation.is_empty() {
        return Ok(Exit::Success);
    }
    if detach {
        context.line(format!("Evaluation ID: {evaluation}"))?;
        return Ok(Exit::Success);
    }
    Ok(Monitor::new(context, style, false).follow(evaluation)?.verdict.exit())
}
