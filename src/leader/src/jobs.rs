//! Machines that look at jobs and what they leave behind.

pub(crate) mod deployments;
pub mod gc;
pub(crate) mod periodic;
pub(crate) mod run_time;
