//! What an applied entry means for the leader's services and for watchers. Effects only accelerate:
//! whatever a service must do follows from [`crate::State`] alone, so a lost effect costs time,
//! never correctness.

use crate::{
    id::{ClassId, DeploymentId, EvaluationId, InstanceId, JobKey, NodeId, Text},
    node::NodeChange,
};

/// Something that changed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// An evaluation was created or changed; its row says how.
    Evaluation(EvaluationId),
    /// A node has more room than before, or is newly schedulable.
    Capacity { class: ClassId, node: NodeId },
    /// A node row changed or went.
    Node(NodeId),
    /// Something happened to a node that people want to read of. The text has the details.
    NodeChange { node: NodeId, change: NodeChange, detail: Text },
    /// A mass loss began, grew or ended; its row says how.
    MassLoss,
    /// Allocations of a node changed.
    NodeAllocations(NodeId),
    /// A node reported of allocations that go on, and nothing changed of what its agent is told.
    NodeReport(NodeId),
    /// A deployment is new, changed or went.
    Deployment(DeploymentId),
    /// A job row changed or went.
    Job(JobKey),
    /// The scheduler configuration changed.
    SchedulerConfiguration,
    /// An instance row is new, changed or went.
    Instance(InstanceId),
    /// An instance pool, or a limit in it, changed or went.
    InstancePool(Text),
    /// What a capacity group wants, or who asks it for how much, changed.
    CapacityGroup(Text),
    /// A source of requirements spoke, or its row went.
    CapacitySource(Text),
    /// A source of requirements fell silent.
    CapacityExpired { source: Text, ttl_ms: u64 },
    /// A digest mark was set or got its verdict.
    DigestMark,
}
