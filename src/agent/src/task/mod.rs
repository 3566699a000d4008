//! A task of an allocation as a pure machine: its runs, its restarts, and the time it may take.

pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod run_limit;
pub(crate) mod runner;
