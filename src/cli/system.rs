//! `quorate system …`: chores of the whole cluster.

use clap::{Args, Subcommand};
use serde_json::json;

use super::context::{Context, Exit, Outcome};

/// Chores of the whole cluster
#[derive(Debug, Subcommand)]
pub(crate) enum SystemCommand {
    /// Forget ended evaluations and allocations and dead jobs now, without waiting for their thresholds
    #[command(after_help = "Examples:\n  quorate system gc")]
    Gc(GcArgs),
}

/// Flags of `system gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {}

pub(crate) fn run(context: &Context, command: &SystemCommand) -> Outcome {
    let SystemCommand::Gc(GcArgs {}) = command;
    context.client.put("/v1/system/gc", &[], &json!({}))?;
    Ok(Exit::Success)
}
