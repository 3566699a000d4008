//! The replicated state machine of Quorate: tables, commands and the one function that changes
//! them, [`State::apply`].
//!
//! Pure: no I/O, no clock, no randomness, no floats. Time is `at` in the command, ids come in the
//! command, iteration is ordered. Same log, same state, byte for byte, on every replica; [`digest`]
//! is how replicas find out when that fails.
//!
//! ```text
//!  Proposal { at, epoch, request, command } ──► State::apply ──► Applied { reply, effects }
//!                                                          └──► ChangeSet (rows for the disk)
//! ```

#![cfg_attr(
    not(test),
    warn(clippy::float_arithmetic, clippy::arithmetic_side_effects, clippy::indexing_slicing)
)]

pub mod allocation;
pub mod apply;
pub mod bounds;
pub mod capacity;
pub mod codec;
pub mod command;
pub mod deployment;
pub mod digest;
pub mod effect;
pub mod evaluation;
pub mod extent;
pub mod gc;
pub mod generation;
pub mod id;
pub mod indexes;
pub mod invariant;
pub mod job;
pub mod limits;
pub mod node;
pub mod plan;
pub mod plant;
pub mod pool;
pub mod resources;
pub mod right;
pub mod session;
pub mod settings;
pub mod state;
pub mod table;
mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod upkeep;

#[cfg(test)]
mod tests;

pub use allocation::{Allocation, ClientStatus, DesiredStatus, TaskEvent, TaskState};
pub use apply::Applied;
pub use capacity::{CapacityGroup, CapacitySource, CapacityTarget};
pub use command::{Command, Proposal, Rejection, Reply};
pub use deployment::{Deployment, DeploymentStatus};
pub use effect::Effect;
pub use evaluation::{Evaluation, EvaluationStatus, GroupAnnotation, Metrics, Trigger};
pub use extent::Extent;
pub use generation::GENERATION;
pub use id::{
    AllocationId, ClassId, DeploymentId, EvaluationId, Index, InstanceId, JobKey, NodeId,
    RequestId, ScalingPolicyId, Text, TimeMs,
};
pub use job::{Job, JobKind, JobSpec, JobStatus, JobVersion, TaskGroup};
pub use node::{Liveness, Node};
pub use plan::{Placement, Plan, PlanVerdict, Stop};
pub use pool::{Instance, InstancePool, InstanceState};
pub use state::State;
