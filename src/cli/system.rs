//! `quorate system …`: chores of the whole cluster.

use clap::{Args, Subcommand};
use serde_json::json;

use super::context::{Context, Exit, Outcome};

/// Chores of the whole cluster
#[derive(Debug, Subcommand)]
pub(crate) enum SystemCommand {
    /// Forget ended evaluations and allocations and dead jobs now, without waiting for their
    /// thresholds
    #[command(after_help = "Examples:\n  quorate system gc")]
    Gc(GcArgs),
    /// Count anew what is derived from other things
    #[command(subcommand)]
    Reconcile(ReconcileCommand),
}

/// What is counted anew.
#[derive(Debug, Subcommand)]
pub(crate) enum ReconcileCommand {
    /// The summaries of jobs; they are always right here, so that nothing changes
    Summaries,
}

/// Flags of `system gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {}

pub(crate) fn run(context: &Context, command: &SystemCommand) -> Outcome {
    let path = match command {
        SystemCommand::Gc(GcArgs {}) => "/v1/system/gc",
        SystemCommand::Reconcile(ReconcileCommand::Summaries) => "/v1/system/reconcile/summaries",
    };
    context.client.put(path, &[], &json!({}))?;
    Ok(Exit::Success)
}
