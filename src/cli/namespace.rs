//! `quorate namespace …`.

use clap::Subcommand;
use jobspec::Named;

use super::context::{Context, Outcome};
use super::named::{ApplyArgs, Kind, ListArgs, NameArgs};

const NAMESPACE: Kind = Kind {
    noun: "namespace",
    title: "Namespace",
    list: "/v1/namespaces",
    item: "/v1/namespace",
    file: Named::Namespace,
};

/// Namespaces of jobs
#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List namespaces
    List(ListArgs),
    /// Show one
    Status(NameArgs),
    /// Print one as the API has it
    Inspect(NameArgs),
    /// Make a namespace, or change it
    #[command(
        after_help = "Examples:\n  quorate namespace apply -description \"the web team\" web\n  quorate namespace apply -meta owner=ann web\n  quorate namespace apply web.hcl"
    )]
    Apply(ApplyArgs),
    /// Delete a namespace that has no jobs
    Delete(NameArgs),
}

pub(crate) fn run(context: &Context, command: &NamespaceCommand) -> Outcome {
    match command {
        NamespaceCommand::List(arguments) => NAMESPACE.list(context, arguments),
        NamespaceCommand::Status(arguments) => {
            NAMESPACE.show(context, &arguments.name, arguments.style.json)
        }
        NamespaceCommand::Inspect(arguments) => NAMESPACE.show(context, &arguments.name, true),
        NamespaceCommand::Apply(arguments) => NAMESPACE.apply(context, arguments),
        NamespaceCommand::Delete(arguments) => NAMESPACE.delete(context, &arguments.name),
    }
}
