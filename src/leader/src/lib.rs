//! Leader services as sans-io machines: broker, blocked evaluations, plan queue, heartbeats, drainer.
//!
//! Pure: no async, no clock, no randomness, ordered iteration. Each machine takes its inputs as methods with `now` as an argument (log time,
//! milliseconds), gives its outputs from `poll(now)` and says with `next_deadline()` when to poll next. `next_deadline() == Some(t)` with `t` in the
//! past means: poll at once. Nothing here is the truth: every machine is rebuilt from [`fsm::State`] by the next leader, so that losing one costs
//! time and never an evaluation.
//!
//! ```text
//!  fsm::Effect ──► [`broker`] ──lease──► worker ──plan──► [`plan_queue`] ──► applier
//!       │             ▲    └─failed, superseded─► [`reap`] ──► Command
//!       ├──► [`blocked`]─┘ woken                    ▲
//!       │             └────── duplicates ───────────┘
//!       └──► [`heartbeat`], [`node_deadlines`], [`drain`] ──► Command
//! ```

pub mod blocked;
pub mod broker;
pub mod drain;
pub mod heartbeat;
pub mod limits;
pub mod node_deadlines;
pub mod plan_queue;
pub mod reap;

mod chance;
#[cfg(test)]
mod convergence;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod testing;

pub use blocked::{BlockedEvals, Wake};
pub use broker::{BrokerError, Delivery, EvalBroker, NackReason, Token};
pub use drain::Drainer;
pub use heartbeat::Heartbeats;
pub use node_deadlines::NodeDeadlines;
pub use plan_queue::{PlanQueue, PlanQueueError, Refused};
