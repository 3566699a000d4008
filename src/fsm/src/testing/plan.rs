//! Evaluations, plans and placements.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{GROUP, driver::Driver, job::job_key};
use crate::{
    allocation::ClientStatus,
    command::{Command, Reply},
    evaluation::{Evaluation, EvaluationStatus},
    id::{AllocationId, EvaluationId, NodeId},
    plan::{ApplyPlans, InPlace, Outcome, Placement, Plan, PlanVerdict, Stop},
};

impl Driver {
    /// An evaluation's row.
    pub fn evaluation(&self, id: EvaluationId) -> &Evaluation {
        self.state.evaluations.get(&id).expect("the evaluation exists")
    }

    /// Ids of a job's pending and blocked evaluations.
    pub fn open_evaluations(&self, name: &str) -> Vec<EvaluationId> {
        let index = self.state.job_index(&job_key(name));
        index.map_or_else(Vec::new, |index| index.open_evaluations.iter().copied().collect())
    }

    /// An empty plan of an evaluation on the state as it is; it completes the evaluation when all
    /// of it is taken.
    pub fn plan(&self, evaluation: EvaluationId) -> Plan {
        let row = self.evaluation(evaluation);
        let job = self.state.jobs.get(&row.job);
        Plan {
            evaluation,
            job: row.job.clone(),
            job_create_index: job.map_or(0, |job| job.create_index),
            job_version: job.map_or(0, |job| job.version),
            snapshot_index: self.state.index,
            priority: row.priority,
            all_at_once: false,
            stops: Vec::new(),
            in_place: Vec::new(),
            follow_ups: Vec::new(),
            placements: Vec::new(),
            deployment: None,
            outcome: Some(outcome(EvaluationStatus::Complete)),
        }
    }

    /// A placement with a new id and no ports.
    pub fn placement(&mut self, group: &str, name_index: u32, node: NodeId) -> Placement {
        Placement {
            id: AllocationId(self.id()),
            group: group.into(),
            name_index,
            canary: false,
            version: None,
            node,
            ports: Vec::new(),
            previous: None,
            preempts: Vec::new(),
            reschedules: Vec::new(),
            metrics: None,
        }
    }

    /// Applies a plan; answers with the verdict.
    pub fn commit_plan(&mut self, plan: Plan) -> PlanVerdict {
        let verdicts = self.commit_plans(vec![plan]);
        verdicts.into_iter().next().expect("one verdict per plan")
    }

    /// Applies plans in one entry.
    pub fn commit_plans(&mut self, plans: Vec<Plan>) -> Vec<PlanVerdict> {
        let plans = plans.into_iter().map(Arc::new).collect();
        let reply = self.accept(Command::from(ApplyPlans { plans }));
        let Reply::Plans(verdicts) = reply else { panic!("unexpected reply {reply:?}") };
        verdicts
    }

    /// Evaluates a job and places one instance of [`GROUP`] on a node.
    pub fn place(&mut self, job: &str, name_index: u32, node: NodeId) -> AllocationId {
        let evaluation = self.evaluate_job(job);
        let placement = self.placement(GROUP, name_index, node);
        let id = placement.id;
        let plan = self.plan(evaluation).with(placement);
        let verdict = self.commit_plan(plan);
        assert!(verdict.outcome_taken, "not placed: {verdict:?}");
        id
    }

    /// As [`Self::place`], and the agent reports that it runs.
    pub fn run(&mut self, job: &str, name_index: u32, node: NodeId) -> AllocationId {
        let id = self.place(job, name_index, node);
        self.report(id, ClientStatus::Running);
        id
    }
}

impl Plan {
    /// With one more placement.
    #[must_use]
    pub fn with(mut self, placement: Placement) -> Self {
        self.placements.push(placement);
        self
    }

    /// With one more allocation to end.
    #[must_use]
    pub fn stopping(mut self, id: AllocationId, client: Option<ClientStatus>) -> Self {
        let description = "not wanted any more".into();
        self.stops.push(Stop { id, description, client });
        self
    }

    /// With one more allocation that moves to the plan's version.
    #[must_use]
    pub fn updating(mut self, id: AllocationId) -> Self {
        self.in_place.push(InPlace { id });
        self
    }
}

/// An outcome with a status and nothing else.
pub fn outcome(status: EvaluationStatus) -> Outcome {
    Outcome {
        status,
        description: "".into(),
        queued: BTreeMap::new(),
        waiting: BTreeSet::new(),
        failed_groups: BTreeMap::new(),
        annotations: BTreeMap::new(),
        class_eligibility: BTreeMap::new(),
        escaped: false,
        evaluations: Vec::new(),
    }
}
