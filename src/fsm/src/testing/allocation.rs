//! Allocations, and what their nodes report.

use std::{collections::BTreeMap, sync::Arc};

use super::driver::{Driver, evaluations};
use crate::{
    allocation::{
        Allocation, ClientStatus, ClientUpdate, DesiredStatus, DesiredTransition, NodeReport,
        Replacement, StopAllocation, UpdateAllocations,
    },
    command::Command,
    id::{AllocationId, EvaluationId, Index, NodeId},
    job::{Job, TaskGroup},
    resources::Resources,
};

impl Driver {
    /// An allocation's row.
    pub fn allocation(&self, id: AllocationId) -> &Allocation {
        self.state.allocations.get(&id).expect("the allocation exists")
    }

    /// The next report of an allocation by its node's present incarnation.
    pub fn update(&self, id: AllocationId, status: ClientStatus) -> ClientUpdate {
        ClientUpdate {
            id,
            sequence: self.allocation(id).client_sequence.saturating_add(1),
            status,
            description: "".into(),
            tasks: Some(BTreeMap::new()),
            node_failure: None,
            health: None,
        }
    }

    /// Reports a status as the allocation's node would; answers with the evaluations made.
    pub fn report(&mut self, id: AllocationId, status: ClientStatus) -> Vec<EvaluationId> {
        let update = self.update(id, status);
        self.report_update(update)
    }

    /// Reports that an allocation runs, or has failed, and whether it is healthy in its deployment;
    /// answers with the evaluations made.
    pub fn report_health(
        &mut self,
        id: AllocationId,
        status: ClientStatus,
        healthy: bool,
    ) -> Vec<EvaluationId> {
        let mut update = self.update(id, status);
        let own = self.allocation(id).deployment.expect("it belongs to a deployment");
        update.health = Some((own.id, healthy));
        self.report_update(update)
    }

    /// Reports that an allocation failed by the node's fault.
    pub fn report_node_failure(&mut self, id: AllocationId) -> Vec<EvaluationId> {
        let mut update = self.update(id, ClientStatus::Failed);
        update.node_failure = Some("cannot start the executor".into());
        self.report_update(update)
    }

    /// Reports an update as the allocation's node would.
    pub fn report_update(&mut self, update: ClientUpdate) -> Vec<EvaluationId> {
        let node = self.allocation(update.id).node;
        let incarnation = self.state.nodes.get(&node).map_or(0, |node| node.incarnation);
        let evaluation_ids = self.evaluation_ids();
        let report = NodeReport { node, incarnation, updates: vec![update], evaluation_ids };
        evaluations(self.accept(Command::from(UpdateAllocations { reports: vec![report] })))
    }
}

/// The command that stops an allocation.
pub fn stop_allocation(
    id: AllocationId,
    replacement: Replacement,
    evaluation: EvaluationId,
) -> Command {
    let no_shutdown_delay = false;
    Command::from(StopAllocation { id, replacement, no_shutdown_delay, evaluation })
}

/// The row of a running allocation of the current version of a job, placed at an index.
pub fn allocation_at(
    id: AllocationId,
    job: &Job,
    group: &TaskGroup,
    node: NodeId,
    index: Index,
) -> Allocation {
    Allocation {
        id,
        job: job.key.clone(),
        job_create_index: job.create_index,
        job_version: job.version,
        group: group.name.clone(),
        name_index: 0,
        per_node: job.kind.is_per_node(),
        node,
        evaluation: EvaluationId::default(),
        resources: Resources::of_group(group),
        ports: Vec::new(),
        desired: DesiredStatus::Run,
        desired_description: "".into(),
        transition: DesiredTransition::default(),
        client: ClientStatus::Running,
        client_description: "".into(),
        client_at: 0,
        client_sequence: 0,
        tasks: Arc::default(),
        previous: None,
        next: None,
        preempted: Vec::new(),
        preempted_by: None,
        follow_up: None,
        reschedules: Vec::new(),
        deployment: None,
        canary_of: None,
        metrics: None,
        create_index: index,
        modify_index: index,
        server_modify_index: index,
        created_at: 0,
        modified_at: 0,
    }
}
