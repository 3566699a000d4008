//! Nodes: machines with an agent.

mod census;
mod change;
mod commands;
mod health;
mod mass_loss;
mod occupancy;
mod row;
mod rules;
mod service;
mod shortage;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{
    census::Census,
    change::NodeChange,
    commands::{
        AdvanceDrains, EndMassLoss, EndSuspensions, EvaluateNode, InstanceProof, LivenessChange,
        NodeCommand, NodeLiveness, NodeReadiness, NodeShortage, ReapNode, RegisterNode, SetDrain,
        SetEligibility, SuspendLateNodes, SuspendNode, UnsuspendNode,
    },
    occupancy::Occupancy,
    row::{
        AgentStart, CapacityGain, CheckResult, Drain, DrainStatus, Driver, Eligibility, GainKey,
        Health, LastDrain, Liveness, MassLoss, MassLossEnd, Node, NodeDescription, NodeEvent,
        NodeFailure, NodeInstance, NodeResources, OfflineNode, Readiness, SetAside, Shortage,
        SuspendReason, Suspension, Tombstone, glob,
    },
    rules::computed_class,
};
pub(crate) use health::clip;
