//! What only a leader does, as machines without I/O: [`Services`] composes them, the server and
//! both simulations drive it.
//!
//! Pure: no async, no clock, no randomness, ordered iteration. `now` is an argument (log time,
//! milliseconds). Nothing here is the truth: the next leader builds every machine again from
//! [`fsm::State`], so losing one costs time and never an evaluation.
//!
//! ```text
//!  fsm::Effect ──► [`dispatch`]: [`broker`], [`blocked`], [`reap`] ──lease──► worker ([`turn`])
//!       │               │                                                       │ plan
//!       ├──► [`nodes`]: [`heartbeat`], [`node_deadlines`], [`drain`]              ▼
//!       └──► [`gc`], [`log_time`], … ──► Command            Command ◄── [`applier`] ◄── [`plan_queue`]
//! ```

pub mod applier;
pub mod blocked;
pub mod broker;
pub mod dispatch;
pub mod drain;
pub mod gc;
pub mod heartbeat;
mod jitter;
pub mod limits;
pub mod log_time;
pub mod machine;
pub mod node_deadlines;
pub mod node_watch;
pub mod plan_queue;
pub mod ports;
pub mod reap;
pub mod services;
pub mod turn;

mod commands;
#[cfg(test)]
mod convergence;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod testing;

pub use applier::{PlanAnswer, PlanApplier};
pub use blocked::{BlockedEvals, Wake};
pub use broker::{BrokerError, Delivery, EvalBroker, NackReason, Token};
pub use dispatch::{Dispatch, Lease};
pub use drain::Drainer;
pub use gc::{GarbageCollector, GcConfig};
pub use heartbeat::Heartbeats;
pub use log_time::LogTime;
pub use machine::{Machine, Report, Stepped};
pub use node_deadlines::NodeDeadlines;
pub use node_watch::NodeWatch;
pub use plan_queue::{PlanQueue, PlanQueueError, Refused};
pub use services::{Services, ServicesConfig};
