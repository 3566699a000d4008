//! A task of an allocation as a pure state machine: its runs, its restarts, and its longest run.

pub(crate) mod action;
pub(crate) mod restart;
pub(crate) mod retry;
pub(crate) mod run;
pub(crate) mod run_limit;
pub(crate) mod runner;
