//! The schedulers for each kind of job, and the plan that they write.

pub(crate) mod draft;
pub(crate) mod evaluate;
pub(crate) mod service;
pub(crate) mod system;
