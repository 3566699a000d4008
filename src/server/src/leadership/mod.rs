//! What a server does while it leads: the machines, the plan applier, words of sources of capacity,
//! and the calls of workers.

pub(crate) mod applier;
pub(crate) mod leading;
mod member_times;
pub(crate) mod requirements;
pub(crate) mod services;
pub(crate) mod worker_calls;
