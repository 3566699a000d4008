//! Instance pools: rows, commands and transitions of machines that come and go by demand.

mod commands;
mod failures;
mod history;
mod provider;
mod row;
mod rules;
#[cfg(test)]
mod tests;
mod transitions;

pub use commands::*;
pub use history::{Backoff, BootFailure, PoolHistory};
pub use provider::{NoteProvider, ProviderState};
pub use row::*;
pub(crate) use rules::is_name;
pub use rules::stray_id;
pub use transitions::BY_POOL;
