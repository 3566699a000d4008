//! Golden values of scaling: a group's row, and the command.

use crate::{
    command::Command,
    id::EvaluationId,
    job::{GroupScaling, ScaleJob, Scaling, ScalingEvent, ScalingPolicy, scaling_policy_id},
    testing::job_key,
};

pub(super) fn scaling() -> Scaling {
    Scaling {
        enabled: true,
        min: 1,
        max: 20,
        policy_json: "{\"cooldown\":\"1m\"}".into(),
        kind: "horizontal".into(),
    }
}

pub(super) fn row() -> GroupScaling {
    let job = job_key("t");
    let policy = ScalingPolicy {
        id: scaling_policy_id(&job, "web"),
        scaling: scaling(),
        create_index: 2,
        modify_index: 3,
    };
    let event = ScalingEvent {
        at: 1_000_000_000_000,
        count: Some(4),
        count_before: 3,
        message: "busy".into(),
        error: true,
        meta_json: "{\"a\":1}".into(),
        evaluation: Some(EvaluationId([2; 16])),
        create_index: 5,
    };
    GroupScaling { job, group: "web".into(), policy: Some(policy), events: vec![event] }
}

pub(super) fn command() -> Command {
    Command::from(ScaleJob {
        job: job_key("t"),
        group: "web".into(),
        count: Some(4),
        enforce_index: Some(6),
        message: "busy".into(),
        error: true,
        meta_json: "{\"a\":1}".into(),
        evaluation: EvaluationId([2; 16]),
    })
}
