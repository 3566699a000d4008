//! Machines that look at jobs and what they leave behind.

pub mod gc;
