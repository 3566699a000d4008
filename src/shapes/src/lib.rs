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

mod deployment;
mod placement;
#[cfg(test)]
mod tests;
mod written;

pub use deployment::{Deployment, DeploymentGroup, DeploymentWritten};
pub use placement::{NodeScore, PlacementMetrics, TaskAsk};
pub use written::Written;
