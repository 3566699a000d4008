//! Leader services as sans-io machines: broker, blocked evaluations, plan queue, heartbeats, drainer, garbage collector.
//!
//! Pure: no async, no clock, no randomness, ordered iteration. Each machine takes its inputs as methods with `now` as an argument (log time,
//! milliseconds), gives its outputs from `poll(now)` and says with `next_deadline()` when to poll next. `next_deadline() == Some(t)` with `t` in the
//! past means: poll at once. Nothing here is the truth: every machine is rebuilt from [`fsm::State`] by the next leader, so that losing one costs
//! time and never an evaluation.
//!
//! ```text
//!  fsm::Effect ──► [`broker`] ──lease──► worker ──plan──► [`plan_queue`] ──► [`applier`] ──► Command
//!       │             ▲    └─failed, superseded─► [`reap`] ──► Command
//!       ├──► [`blocked`]─┘ woken                    ▲
//!       │             └────── duplicates ───────────┘
//!       └──► [`heartbeat`], [`node_deadlines`], [`drain`], [`gc`] ──► Command
//! ```
//!
//! [`dispatch`] holds broker and blocked evaluations together, [`node_watch`] the machines that look at nodes; [`feed`] leads effects to both.
//! [`turn`] is the worker's side of a lease.

pub mod applier;
pub mod blocked;
pub mod broker;
pub mod dispatch;
pub mod drain;
pub mod feed;
pub mod gc;
pub mod heartbeat;
mod jitter;
pub mod limits;
pub mod node_deadlines;
pub mod node_watch;
pub mod plan_queue;
pub mod ports;
pub mod reap;
pub mod turn;

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
pub use node_deadlines::NodeDeadlines;
pub use node_watch::NodeWatch;
pub use plan_queue::{PlanQueue, PlanQueueError, Refused};
