//! Fixtures for the tests of this package.

use fsm::{
    Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, JobKind, Trigger, id::ClassId,
};

use crate::golden::Arguments;

/// An id that shows a short name: its bytes, padded with zeros.
pub(crate) fn named(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    id
}

/// The short name of an id made by [`named`].
pub(crate) fn name_of(id: [u8; 16]) -> String {
    id.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

/// A pending evaluation of job `default/<job>`, created and changed at `index`.
pub(crate) fn evaluation(id: &str, job: &str, index: Index) -> Evaluation {
    let key = job.split_once('/').unwrap_or(("default", job));
    let key = JobKey::new(key.0, key.1);
    let id = EvaluationId(named(id));
    let mut evaluation = Evaluation::new(id, key, JobKind::Service, 50, Trigger::JobRegister);
    evaluation.create_index = index;
    evaluation.modify_index = index;
    evaluation
}

/// The evaluation that a line of a golden script describes.
pub(crate) fn parse_evaluation(line: &Arguments<'_>) -> Evaluation {
    let id = line.text("id");
    let mut evaluation =
        evaluation(id, line.find("job").unwrap_or(id), line.number("index").max(1));
    if let Some(kind) = line.find("kind") {
        evaluation.kind = JobKind::parse(kind).expect("a scheduler kind");
    }
    if line.find("priority").is_some() {
        evaluation.priority = u16::try_from(line.number("priority")).expect("a priority");
    }
    if line.find("modify").is_some() {
        evaluation.modify_index = line.number("modify");
    }
    evaluation.snapshot_index = line.number("snapshot");
    evaluation.wait_until = line.number("wait_until");
    evaluation.status = match line.find("status").unwrap_or("pending") {
        "pending" => EvaluationStatus::Pending,
        "blocked" => EvaluationStatus::Blocked,
        "complete" => EvaluationStatus::Complete,
        other => panic!("unknown status `{other}`"),
    };
    if let Some(node) = line.find("node") {
        evaluation.node = Some(fsm::NodeId(named(node)));
    }
    if line.find("trigger") == Some("max-plans") {
        evaluation.trigger = Trigger::MaxPlans;
    }
    evaluation.escaped = line.find("escaped").is_some();
    for (key, eligible) in [("yes", true), ("no", false)] {
        for class in line.find(key).into_iter().flat_map(|list| list.split(',')) {
            evaluation.class_eligibility.insert(ClassId(named(class)), eligible);
        }
    }
    evaluation
}
