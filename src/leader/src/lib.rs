//! What only a leader does, as machines without I/O. [`Services`] composes them; the server and
//! both simulations drive it.
//!
//! Pure: no async, no clock, no randomness, ordered iteration. `now` is an argument (log time,
//! milliseconds). Nothing here is the truth: the next leader builds every machine again from
//! [`fsm::State`], so losing one costs time and never an evaluation.
//!
//! ```text
//!  fsm::Effect ─► [`dispatch`]: [`broker`], [`blocked`], [`reap`] ──lease──► worker ([`turn`])
//!       │             │                                                 │ plan
//!       │             └──► Command        Command ◄── [`applier`] ◄── [`queue`]
//!       ├─► [`watch`]: [`heartbeat`], [`deadlines`], [`drain`] ──► Command
//!       └─► [`gc`], [`log_time`], … ──► Command
//! ```

mod commands;
mod evaluations;
mod jitter;
mod jobs;
pub mod limits;
pub mod log_time;
pub mod machine;
mod nodes;
mod plans;
mod pools;
pub mod services;
pub mod timekeeper;

#[cfg(test)]
mod convergence;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod testing;

// One path for each: outside, the folder that a file is in does not matter.
pub use evaluations::{
    blocked::{self, BlockedEvals, Wake},
    broker::{self, BrokerError, Delivery, EvalBroker, NackReason, Token},
    dispatch::{self, Dispatch, Lease},
    index_wait::{self, IndexWait, Looked},
    reap, turn,
};
pub use jobs::gc::{self, GarbageCollector, GcConfig};
pub use log_time::LogTime;
pub use machine::{LogLine, Machine, Report, Stepped};
pub use nodes::{
    deadlines::{self, NodeDeadlines},
    drain::{self, Drainer},
    heartbeat::{self, Heartbeats},
    watch::{self, NodeWatch},
};
pub use plans::{
    applier::{self, PlanAnswer, PlanApplier},
    ports,
    queue::{self, PlanQueue, PlanQueueError, PlanQueueLimits, Refused},
};
pub use services::{Services, ServicesConfig};
pub use timekeeper::{Asked, Basis, Moment, Said, TimeNote, Timekeeper};
