//! A small driver for tests, of this package and of others: builds jobs, nodes and plans, and
//! applies commands at given log times.
//!
//! It goes through [`State::apply`] alone, as production does, and checks every invariant after
//! each entry. It must never be used outside tests: it panics on anything unexpected.
//!
//! ```text
//!  let mut driver = Driver::default();
//!  let node = driver.node("a");                             registered and ready
//!  let evaluation = driver.register_job(job("web", JobKind::Service, 1));
//!  let plan = driver.plan(evaluation).with(driver.placement("web", 0, node));
//!  let verdict = driver.commit_plan(plan);
//! ```

mod allocation;
mod capacity;
mod driver;
mod job;
mod node;
mod plan;
mod pool;
mod rows;

pub use allocation::{allocation_at, stop_allocation};
pub use capacity::{capacity_group, requirements};
pub use driver::{Driver, Interruption, payload_hash};
pub use job::{
    group, job, job_at, job_key, job_with_key, job_with_ports, port, register, rolling_job,
    version_of,
};
pub use node::{description, node_id, ready_node};
pub use plan::outcome;
pub use pool::{instance_pool, proof};
pub use rows::{describe_namespace, put, reload, rows, without};

use crate::{id::TimeMs, resources::Resources};

/// Log time at which a [`Driver`] starts.
pub const START_MS: TimeMs = 1_000_000_000_000;
/// Group of the jobs made by [`job`].
pub const GROUP: &str = "web";
/// Meta key of a job that a [`Driver`]'s cluster is configured to take for its affinity.
pub const AFFINITY: &str = "snapshot";
/// What one instance of a [`job`] asks for. A node made by [`description`] has room for eight.
pub const ASK: Resources = Resources { cpu_mhz: 500, memory_mb: 256, disk_mb: 100 };
