//! What a row of the state takes of a server's memory: a thousand of each, with all indexes, as
//! they come out of the log, divided by a thousand.

use std::sync::Arc;

use fsm::{
    Command, EvaluationId, JobKind, NodeId, Plan, Proposal, Reply,
    allocation::{NodeReport, UpdateAllocations},
    codec,
    job::{EvaluateJob, RegisterJob},
    node::{NodeReadiness, Readiness, RegisterNode},
    plan::ApplyPlans,
    table::ChangeSet,
    testing::{self, Driver},
};
use scheduler::{Memory, Pass};

use crate::{allocations::live_bytes, operations};

const MANY: u32 = 1_000;
/// Nodes for the others.
const NODES: u32 = 40;
/// Plans in an entry.
const PLANS: usize = 100;

/// Each kind of row with its bytes.
pub(crate) fn measure() -> Vec<(&'static str, u64)> {
    let node = Growing::default().bytes_of(|state| (0..MANY).for_each(|number| state.node(number)));
    let mut state = Growing::default();
    (0..NODES).for_each(|number| state.node(number));
    let names: Vec<String> = (0..MANY).map(|number| format!("job-{number}")).collect();
    let mut first = Vec::with_capacity(names.len());
    let job = state.bytes_of(|state| {
        first.extend(names.iter().map(|name| state.register(name, 1)));
    });
    let deployment = state.bytes_of(|state| {
        state.plan(&first, |plan| Plan { placements: Vec::new(), outcome: None, ..plan });
    });
    let many = [state.register("many", MANY)];
    let allocation = state.bytes_of(|state| {
        state.plan(&many, |plan| Plan { deployment: None, outcome: None, ..plan });
    });
    assert_eq!(state.driver.state.allocations().len(), MANY as usize);
    assert_eq!(state.driver.state.deployments().len(), MANY as usize);
    let evaluation = state.bytes_of(|state| {
        let made: Vec<EvaluationId> = names.iter().map(|name| state.evaluate(name)).collect();
        state.plan(&made, |plan| Plan { placements: Vec::new(), deployment: None, ..plan });
    });
    vec![
        ("job, with a version and a pending evaluation", job),
        ("allocation, placed", allocation),
        ("node, ready", node),
        ("evaluation, complete", evaluation),
        ("deployment, begun", deployment),
    ]
}

/// A state and what makes rows in it.
struct Growing {
    driver: Driver,
}

impl Default for Growing {
    fn default() -> Self {
        Self { driver: Driver { checked: false, ..Driver::default() } }
    }
}

impl Growing {
    /// Bytes for each of the many rows that something makes.
    fn bytes_of(&mut self, make: impl FnOnce(&mut Self)) -> u64 {
        let before = live_bytes();
        make(self);
        u64::try_from((live_bytes() - before) / i64::from(MANY)).expect("rows take memory")
    }

    /// Applies a command as it comes out of the log: nothing of it is shared with anybody. What is
    /// to go to disk is forgotten.
    fn accept(&mut self, command: impl Into<Command>) {
        let command = command.into();
        let proposal = Proposal { at: self.driver.now, epoch: None, request: None, command };
        let frame = codec::encode(&proposal);
        drop(proposal);
        let proposal: Proposal = codec::decode(&frame).expect("it was just encoded");
        let reply = self.driver.commit_proposal(&proposal).reply;
        assert!(!matches!(reply, Reply::Rejected(_)), "a command was refused: {reply:?}");
        if let Reply::Plans(verdicts) = reply {
            for verdict in verdicts {
                let is_whole = verdict.refused.is_none() && verdict.dropped.is_empty();
                assert!(
                    is_whole,
                    "not taken: {:?}, {:?}",
                    verdict.refused,
                    verdict.dropped.first()
                );
            }
        }
        self.driver.changes = ChangeSet::default();
    }

    fn node(&mut self, number: u32) {
        let node = NodeId(u128::from(number).to_be_bytes());
        let evaluation_ids = vec![self.driver.evaluation_id()];
        let description = Arc::new(operations::description(&format!("node-{number}"), "dc1"));
        let (secret, identity, instance) = ([7; 16], [1; 16], None);
        self.accept(RegisterNode { node, secret, identity, description, instance, evaluation_ids });
        let incarnation = self.driver.state.nodes().get(&node).expect("it is there").incarnation;
        let (updates, evaluation_ids) = (Vec::new(), Vec::new());
        let report = NodeReport { node, incarnation, updates, evaluation_ids };
        self.accept(UpdateAllocations { reports: vec![report] });
        let (readiness, reason, evaluation_ids) = (Readiness::Ok, "".into(), Vec::new());
        let sequence = 1;
        self.accept(NodeReadiness {
            node,
            incarnation,
            readiness,
            reason,
            sequence,
            evaluation_ids,
        });
    }

    fn register(&mut self, name: &str, count: u32) -> EvaluationId {
        let evaluation = self.driver.evaluation_id();
        let spec = operations::spec(name, JobKind::Service, count);
        self.accept(RegisterJob::new(Arc::new(spec), evaluation));
        evaluation
    }

    fn evaluate(&mut self, name: &str) -> EvaluationId {
        let evaluation = self.driver.evaluation_id();
        let job = testing::job_key(name);
        self.accept(EvaluateJob { job, force_reschedule: false, evaluation });
        evaluation
    }

    /// Plans for evaluations. What `left` leaves of a plan gets its ports, and is applied.
    fn plan(&mut self, evaluations: &[EvaluationId], left: impl Fn(Plan) -> Plan) {
        let mut memory = Memory::default();
        for batch in evaluations.chunks(PLANS) {
            let state = self.driver.state.clone();
            let mut overlay = state.clone();
            let plans = batch.iter().map(|id| {
                let evaluation = state.evaluations().get(id).expect("it was made");
                let now = state.at().max(evaluation.wait_until);
                let pass = Pass { state: &state, evaluation, now, attempt: 0 };
                let plan = scheduler::schedule_with(&pass, &mut memory);
                let plan = left(plan.expect("the snapshot is whole"));
                let tried = overlay.try_plan(&plan, &leader::ports::pick);
                Arc::new(tried.expect("the evaluation is open").plan)
            });
            let plans = plans.collect();
            self.accept(ApplyPlans { plans });
        }
    }
}
