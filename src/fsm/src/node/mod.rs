//! Nodes: machines with an agent.

mod commands;
mod occupancy;
mod row;
mod rules;
mod service;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{
    commands::{
        AdvanceDrains, EvaluateNode, LivenessChange, NodeLiveness, NodeReadiness, Readiness,
        ReapNode, RegisterNode, SetDrain, SetEligibility, SuspendNode, UnsuspendNodes,
    },
    occupancy::Occupancy,
    row::{
        CapacityGain, Drain, Driver, EarlyEligibility, Eligibility, GainKey, Health, Liveness,
        Node, NodeDescription, NodeEvent, NodeResources, SuspendReason, Tombstone, TombstoneRow,
        glob,
    },
    rules::computed_class,
};
