//! Allocations: placed instances of task groups, and what the agents report of them.

mod commands;
mod row;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{
    commands::{
        AllocationCommand, ClientUpdate, ExpireRuns, NodeReport, Replacement, StopAllocation,
        UpdateAllocations,
    },
    row::{
        Allocation, ClientStatus, DesiredStatus, DesiredTransition, ENDED_BY_REQUEST, LiveName,
        NameScope, RUN_TIME_OVER, RescheduleEvent, TaskEvent, TaskState,
    },
};
