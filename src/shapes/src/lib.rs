//! The JSON objects of the HTTP API, as types: servers fill them, and the command line, benchmarks
//! and tests read them. A field that is renamed here breaks the build of both.
//!
//! - Names are Nomad's. Fields stand in the order of their names, because that is their order in
//!   an answer.
//! - What Nomad shows as null is an `Option`, also where it shows an empty list or map as null.
//!   What it leaves out is an `Option` that is skipped if it is `None`.
//! - Reading is lenient: an absent or unknown field is no error, so that a client understands
//!   servers of other versions.
//! - Times are RFC 3339 texts, or nanoseconds since the Unix epoch where Nomad has numbers.

#![forbid(unsafe_code)]

mod allocation;
mod deployment;
mod evaluation;
mod node;
mod placement;
mod resources;
mod task;
#[cfg(test)]
mod tests;
mod written;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};

pub use allocation::{
    Allocation, AllocationStub, DeploymentStatus, DesiredTransition, KnownAllocation,
    NetworkStatus, RescheduleEvent, RescheduleTracker,
};
pub use deployment::{Deployment, DeploymentGroup, DeploymentWritten};
pub use evaluation::{Count, DesiredUpdates, Evaluation, EvaluationStub, JobPlan, PlanAnnotations};
pub use node::{
    Core, DrainStrategy, DriverInfo, LastDrain, MassLoss, Node, NodeAddress, NodeCpu, NodeDisk,
    NodeEligibility, NodeEvent, NodeFailure, NodeHealth, NodeHealthStub, NodeInstance, NodeMemory,
    NodeNetwork, NodeNetworkOld, NodeReadiness, NodeResources, NodeShortage, NodeStub, OfflineNode,
    Processors, ReservedCpu, ReservedPorts, ReservedResources, Topology,
};
pub use placement::{NodeScore, PlacementMetrics, TaskAsk};
pub use resources::{
    AllocatedCpu, AllocatedMemory, AllocatedNetwork, AllocatedPort, AllocatedResources,
    AllocatedTask, FlatResources, NetworkPort, SharedResources, TaskLifecycle,
};
pub use task::{TaskEvent, TaskState};
pub use written::Written;

/// A field that is always null here, because there is nothing of its kind. Whatever another server
/// has there is passed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nothing;

impl Serialize for Nothing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}
