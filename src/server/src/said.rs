//! Lines of log about what people asked of the cluster: who, what, and the index of the entry. The
//! server that was asked writes them.
//!
//! Programs send the same commands, thousands in a second: beyond [`LINES_MAX`] a line is written
//! at debug, and one line says how many were.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fsm::{
    Command, Reply,
    command::{
        AllocationCommand, CapacityCommand, DeploymentCommand, EvaluationCommand, JobCommand,
        NodeCommand, PoolCommand, Senders, SettingsCommand, UpkeepCommand,
    },
};
use ground::{caller::Caller, rt::Instant};
use wire::api::{ApiError, Written};

/// Lines at info in each [`WINDOW`].
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// How many lines there were lately.
#[derive(Debug, Default)]
pub(super) struct Said {
    window: Mutex<Option<(Instant, u32)>>,
}

impl Said {
    /// Writes the line of a command that was carried out. What was refused is told to whoever
    /// asked.
    pub(super) fn command(
        &self,
        caller: &Caller,
        asked: Option<(&'static str, String)>,
        written: &Result<Written, ApiError>,
    ) {
        let done = written.as_ref().ok().filter(|one| !matches!(one.reply, Reply::Rejected(_)));
        let index = done.map(|written| written.index);
        let (Some((what, about)), Some(index)) = (asked, index) else {
            tracing::debug!(%caller, index, "a write");
            return;
        };
        let (is_shown, left_out) = self.count(Instant::now());
        if left_out > 0 {
            tracing::info!(
                commands = left_out,
                "lines of commands were left out: debug shows them"
            );
        }
        if is_shown {
            tracing::info!(%caller, about, index, "{what}");
        } else {
            tracing::debug!(%caller, about, index, "{what}");
        }
    }

    /// Whether there is room for one more line, and how many found none in the window before.
    fn count(&self, now: Instant) -> (bool, u32) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *window {
            Some((begun, count)) if now.duration_since(*begun) < WINDOW => {
                *count = count.saturating_add(1);
                (*count <= LINES_MAX, 0)
            }
            before => {
                let count = before.map_or(0, |(_, count)| count);
                *before = Some((now, 1));
                (true, count.saturating_sub(LINES_MAX))
            }
        }
    }
}

/// What a client's command does, and to what. None: it is one of programs, or of the cluster
/// itself.
#[expect(clippy::wildcard_enum_match_arm, reason = "a command without words has its name")]
pub(super) fn asked(command: &Command) -> Option<(&'static str, String)> {
    let (what, about): (_, &dyn std::fmt::Display) = match command {
        Command::Job(JobCommand::RegisterJob(one)) if one.reverts_to.is_some() => {
            ("job reverted", &one.spec.key)
        }
        Command::Job(JobCommand::RegisterJob(one)) => ("job registered", &one.spec.key),
        Command::Job(JobCommand::DeregisterJob(one)) if one.purge => ("job purged", &one.job),
        Command::Job(JobCommand::DeregisterJob(one)) => ("job stopped", &one.job),
        Command::Job(JobCommand::EvaluateJob(one)) => ("job evaluated", &one.job),
        Command::Job(JobCommand::MarkJobVersion(one)) => ("job version marked", &one.job),
        Command::Job(JobCommand::ScaleJob(one)) => ("job scaled", &one.job),
        Command::Job(JobCommand::DispatchJob(one)) => ("job dispatched", &one.parent),
        Command::Job(JobCommand::StopChildren(one)) => ("children of a job stopped", &one.parent),
        Command::Job(JobCommand::ForcePeriodic(one)) => ("periodic job forced", &one.job),
        Command::Node(NodeCommand::SuspendNode(one)) => ("node suspended", &one.node),
        Command::Node(NodeCommand::UnsuspendNode(one)) => ("suspension of a node ended", &one.node),
        Command::Node(NodeCommand::EndMassLoss(_)) => ("loss of many nodes confirmed", &""),
        Command::Node(NodeCommand::SetEligibility(one)) if one.eligible => {
            ("node made eligible", &one.node)
        }
        Command::Node(NodeCommand::SetEligibility(one)) => ("node made ineligible", &one.node),
        Command::Node(NodeCommand::SetDrain(one)) if one.drain.is_some() => {
            ("drain of a node begun", &one.node)
        }
        Command::Node(NodeCommand::SetDrain(one)) => ("drain of a node ended", &one.node),
        Command::Node(NodeCommand::ReapNode(one)) => ("node purged", &one.node),
        Command::Node(NodeCommand::EvaluateNode(one)) => ("jobs of a node evaluated", &one.node),
        Command::Allocation(AllocationCommand::StopAllocation(one)) => {
            ("allocation stopped", &one.id)
        }
        Command::Settings(SettingsCommand::SetSchedulerConfiguration(_)) => {
            ("scheduler configured", &"")
        }
        Command::Settings(SettingsCommand::UpsertNodePool(one)) => {
            ("node pool written", &one.pool.name)
        }
        Command::Settings(SettingsCommand::DeleteNodePool(one)) => ("node pool deleted", &one.name),
        Command::Settings(SettingsCommand::UpsertNamespace(one)) => {
            ("namespace written", &one.namespace.name)
        }
        Command::Settings(SettingsCommand::DeleteNamespace(one)) => {
            ("namespace deleted", &one.name)
        }
        Command::Upkeep(UpkeepCommand::CollectGarbage(_)) => ("garbage collected", &""),
        Command::Pool(PoolCommand::UpsertInstancePool(one)) => {
            ("instance pool written", &one.pool.name)
        }
        Command::Pool(PoolCommand::DeleteInstancePool(one)) => ("instance pool deleted", &one.name),
        Command::Pool(PoolCommand::PauseInstancePool(one)) if one.pause => {
            ("instance pool paused", &one.name)
        }
        Command::Pool(PoolCommand::PauseInstancePool(one)) => ("instance pool resumed", &one.name),
        Command::Pool(PoolCommand::SetInstanceBehavior(one)) => {
            ("behavior of an instance set", &one.id)
        }
        Command::Pool(PoolCommand::ShutDownInstance(one)) => ("instance shut down", &one.id),
        Command::Deployment(DeploymentCommand::PromoteDeployment(one)) => {
            ("deployment promoted", &one.id)
        }
        Command::Deployment(DeploymentCommand::FailDeployment(one)) => {
            ("deployment failed", &one.id)
        }
        Command::Deployment(DeploymentCommand::PauseDeployment(one)) if one.pause => {
            ("deployment paused", &one.id)
        }
        Command::Deployment(DeploymentCommand::PauseDeployment(one)) => {
            ("deployment resumed", &one.id)
        }
        Command::Evaluation(EvaluationCommand::DeleteEvaluations(_)) => {
            ("evaluations deleted", &"")
        }
        // Programs send these, all the time.
        Command::Deployment(DeploymentCommand::SetAllocationHealth(_))
        | Command::Capacity(CapacityCommand::SetRequirements(_)) => return None,
        _ if command.senders() == Senders::Clients => (command.name(), &""),
        _ => return None,
    };
    // A name is somebody else's text: it cannot end the line.
    Some((what, about.to_string().escape_debug().to_string()))
}

#[cfg(test)]
mod tests {
    use fsm::{
        JobKey, NodeId,
        job::DeregisterJob,
        node::{ReapNode, SetEligibility},
    };

    use super::*;
    use fsm::upkeep::Tick;

    #[test]
    fn a_line_says_what_was_asked_and_of_what() {
        let stop = |id: &str, purge| {
            let job = JobKey::new("default", id);
            let command = DeregisterJob {
                job,
                purge,
                evaluation: fsm::EvaluationId([1; 16]),
                evaluation_priority: None,
                no_shutdown_delay: false,
            };
            asked(&command.into())
        };
        assert_eq!(stop("web", false), Some(("job stopped", "default/web".to_owned())));
        assert_eq!(stop("web", true), Some(("job purged", "default/web".to_owned())));
        let forged = stop("web\nINFO job stopped", false);
        assert_eq!(forged, Some(("job stopped", "default/web\\nINFO job stopped".to_owned())));
        let node = NodeId([7; 16]);
        let reap = ReapNode { node, incarnation: None, force: false, evaluation_ids: Vec::new() };
        assert_eq!(asked(&reap.into()), Some(("node purged", node.to_string())));
        let eligible = SetEligibility {
            node,
            eligible: false,
            by: "".into(),
            reason: "".into(),
            evaluation_ids: Vec::new(),
        };
        assert_eq!(asked(&eligible.into()).map(|(what, _)| what), Some("node made ineligible"));
        assert_eq!(asked(&Command::from(Tick)), None);
    }

    #[test]
    fn a_flood_of_commands_has_a_bounded_number_of_lines() {
        let said = Said::default();
        let begun = Instant::now();
        let shown = (0..100).filter(|_| said.count(begun).0).count();
        assert_eq!(shown, 20);
        assert_eq!(said.count(begun + WINDOW), (true, 80));
        assert_eq!(said.count(begun + WINDOW), (true, 0));
    }
}
