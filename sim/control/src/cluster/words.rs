//! Commands, plans and replies in few words, for the trace.

use fsm::{
    Command, Plan, Reply, State,
    allocation::{StopAllocation, UpdateAllocations},
    command::{
        AllocationCommand, EvaluationCommand, JobCommand, NodeCommand, PlanCommand, UpkeepCommand,
    },
    evaluation::UpdateEvaluations,
    gc::CollectGarbage,
    job::{DeregisterJob, EvaluateJob, MarkJobVersion, RegisterJob, ScaleJob},
    node::{
        AdvanceDrains, NodeLiveness, NodeReadiness, ReapNode, RegisterNode, SetDrain,
        SetEligibility,
    },
    plan::ApplyPlans,
};

/// First letters of an id.
fn short(id: impl std::fmt::Display) -> String {
    id.to_string().chars().take(8).collect()
}

/// Last letter of a node's id, which is its number: ids are names.
fn node(id: fsm::NodeId) -> String {
    id.0.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

fn job(RegisterJob { spec, evaluation, .. }: &RegisterJob) -> String {
    let groups: Vec<_> = spec
        .groups
        .iter()
        .map(|group| {
            let networks = group.network.iter();
            let ports = networks.flat_map(|one| &one.ports).map(|port| port.value);
            format!("{} x{} ports {:?}", group.name, group.count, ports.collect::<Vec<_>>())
        })
        .collect();
    format!(
        "RegisterJob {} {groups:?} priority {} {:?} all_at_once {} evaluation {}",
        spec.key.id,
        spec.priority,
        spec.datacenters,
        spec.all_at_once,
        short(evaluation)
    )
}

/// A command.
#[expect(clippy::too_many_lines, reason = "one arm for each command")]
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are short enough")]
pub(crate) fn of(command: &Command) -> String {
    match command {
        Command::Job(JobCommand::RegisterJob(command)) => job(command),
        Command::Job(JobCommand::DeregisterJob(DeregisterJob {
            job, purge, evaluation, ..
        })) => {
            format!("DeregisterJob {} purge {purge} evaluation {}", job.id, short(evaluation))
        }
        Command::Job(JobCommand::EvaluateJob(EvaluateJob {
            job,
            force_reschedule,
            evaluation,
        })) => {
            let by = if *force_reschedule { " forced" } else { "" };
            format!("EvaluateJob {}{by} evaluation {}", job.id, short(evaluation))
        }
        Command::Job(JobCommand::MarkJobVersion(MarkJobVersion { job, mark })) => {
            format!("MarkJobVersion {} {mark:?}", job.id)
        }
        Command::Job(JobCommand::ScaleJob(ScaleJob { job, group, count, evaluation, .. })) => {
            format!("ScaleJob {} {group} {count:?} evaluation {}", job.id, short(evaluation))
        }
        Command::Node(NodeCommand::RegisterNode(RegisterNode { node: id, identity, .. })) => {
            format!("RegisterNode {} identity {}", node(*id), identity[0])
        }
        Command::Node(NodeCommand::NodeReadiness(NodeReadiness {
            node: id,
            incarnation,
            readiness,
            sequence,
            ..
        })) => {
            let word = readiness.name();
            format!("NodeReadiness {} incarnation {incarnation} {word} {sequence}", node(*id))
        }
        Command::Node(NodeCommand::NodeLiveness(NodeLiveness { changes, .. })) => {
            let changes: Vec<_> = changes
                .iter()
                .map(|one| format!("{} {}", node(one.node), one.liveness.name()))
                .collect();
            format!("NodeLiveness {changes:?}")
        }
        Command::Node(NodeCommand::SetEligibility(SetEligibility {
            node: id, eligible, ..
        })) => {
            format!("SetEligibility {} {eligible}", node(*id))
        }
        Command::Node(NodeCommand::SetDrain(SetDrain { node: id, drain, .. })) => {
            let drain = drain.as_ref().map(|one| (one.deadline_at, one.force, one.ignore_system));
            format!("SetDrain {} {drain:?}", node(*id))
        }
        Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { migrate, complete, .. })) => {
            let migrate: Vec<_> = migrate.iter().map(short).collect();
            let complete: Vec<_> = complete.iter().map(|id| node(*id)).collect();
            format!("AdvanceDrains migrate {migrate:?} complete {complete:?}")
        }
        Command::Node(NodeCommand::ReapNode(ReapNode { node: id, force, .. })) => {
            format!("ReapNode {} {force}", node(*id))
        }
        Command::Allocation(AllocationCommand::UpdateAllocations(UpdateAllocations {
            reports,
        })) => {
            let reports: Vec<_> = reports
                .iter()
                .map(|report| {
                    let updates: Vec<_> = report
                        .updates
                        .iter()
                        .map(|one| {
                            let healthy = one.health.map(|(_, healthy)| healthy);
                            format!("{} {} {healthy:?}", short(one.id), one.status.name())
                        })
                        .collect();
                    format!("{} {updates:?}", node(report.node))
                })
                .collect();
            format!("UpdateAllocations {}", reports.join("; "))
        }
        Command::Allocation(AllocationCommand::StopAllocation(StopAllocation { id, .. })) => {
            format!("StopAllocation {}", short(id))
        }
        Command::Evaluation(EvaluationCommand::UpdateEvaluations(UpdateEvaluations {
            updates,
        })) => {
            let updates: Vec<_> = updates
                .iter()
                .map(|one| format!("{} {} {}", short(one.id), one.status.name(), one.description))
                .collect();
            format!("UpdateEvaluations {updates:?}")
        }
        Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) => {
            plans.iter().map(|one| plan(one)).collect::<Vec<_>>().join("; ")
        }
        Command::Upkeep(UpkeepCommand::CollectGarbage(CollectGarbage {
            jobs,
            allocations,
            evaluations,
            deployments,
            classes,
            ..
        })) => format!(
            "CollectGarbage {} jobs {} allocations {} evaluations {} deployments {} classes",
            jobs.len(),
            allocations.len(),
            evaluations.len(),
            deployments.len(),
            classes.len()
        ),
        _ => format!("{command:?}"),
    }
}

/// A plan.
pub(crate) fn plan(plan: &Plan) -> String {
    let stops: Vec<_> = plan.stops.iter().map(|one| short(one.id)).collect();
    let placements: Vec<_> = plan
        .placements
        .iter()
        .map(|one| {
            let canary = if one.canary { " canary" } else { "" };
            format!("{}[{}]{canary} on {}", short(one.id), one.name_index, node(one.node))
        })
        .collect();
    let outcome = plan.outcome.as_ref().map(|one| {
        let made: Vec<_> = one
            .evaluations
            .iter()
            .map(|row| {
                let wait = row.wait_until;
                format!(
                    "{} {} {} wait {wait}",
                    short(row.id),
                    row.status.name(),
                    row.trigger.name()
                )
            })
            .collect();
        format!("{} {:?} makes {made:?}", one.status.name(), one.description)
    });
    format!(
        "plan of {} for {} at {}: stops {stops:?} in place {} places {placements:?} outcome {outcome:?} deployment {:?}",
        short(plan.evaluation),
        plan.job.id,
        plan.snapshot_index,
        plan.in_place.len(),
        plan.deployment.as_ref().map(|new| &new.goals)
    )
}

/// A reply, and the open evaluations after it.
pub(crate) fn reply(reply: &Reply, state: &State) -> String {
    let open: Vec<_> = state
        .evaluations()
        .iter()
        .filter(|row| !row.status.is_terminal())
        .map(|row| {
            let trigger = row.trigger.name();
            format!("{} {} {} {trigger}", short(row.id), row.job.id, row.status.name())
        })
        .collect();
    let reply = match reply {
        Reply::Plans(verdicts) => {
            let verdicts: Vec<_> = verdicts
                .iter()
                .map(|one| format!("{:?} dropped {:?}", one.refused, one.dropped))
                .collect();
            format!("{verdicts:?}")
        }
        Reply::Rejected(rejection) => format!("rejected: {rejection}"),
        Reply::Dispatched(answers) => format!("{} dispatched", answers.len()),
        Reply::Collected(count) => format!("{count} collected"),
        Reply::Requirements(verdicts) => format!("{verdicts:?}"),
        Reply::Deployment { reverted_to, .. } => format!("reverted to {reverted_to:?}"),
        Reply::Done | Reply::Job { .. } | Reply::Node { .. } | Reply::Evaluations(_) => {
            String::new()
        }
    };
    format!("{reply} open {open:?}")
}
