//! `quorate node pool …`: names for sets of nodes. (Pools of machines that come and go are `quorate
//! pool`.)

use clap::Subcommand;
use jobspec::Named;

use crate::{
    cli::context::{Context, Outcome},
    cli::named::{ApplyArgs, Kind, ListArgs, MembersArgs, NameArgs, print_rows},
};

const NODE_POOL: Kind = Kind {
    noun: "node pool",
    title: "Node pool",
    list: "/v1/node/pools",
    item: "/v1/node/pool",
    file: Named::NodePool,
};

/// Names for sets of nodes, which jobs ask for
#[derive(Debug, Subcommand)]
pub(crate) enum NodePoolCommand {
    /// List node pools
    List(ListArgs),
    /// Show one
    Info(NameArgs),
    /// List the nodes of a pool
    Nodes(MembersArgs),
    /// List the jobs that ask for a pool
    Jobs(MembersArgs),
    /// Make a node pool, or change it
    #[command(
        after_help = "Examples:\n  quorate node pool apply -description \"machines with GPUs\" gpu\n  quorate node pool apply gpu.hcl"
    )]
    Apply(ApplyArgs),
    /// Delete a node pool that has no nodes and no jobs
    Delete(NameArgs),
}

pub(super) fn run(context: &Context, command: &NodePoolCommand) -> Outcome {
    match command {
        NodePoolCommand::List(arguments) => NODE_POOL.list(context, arguments),
        NodePoolCommand::Info(arguments) => {
            NODE_POOL.show(context, &arguments.name, arguments.style.json)
        }
        NodePoolCommand::Nodes(arguments) => {
            let columns =
                [("ID", "ID"), ("Name", "Name"), ("DC", "Datacenter"), ("Status", "Status")];
            let path = format!("{}/nodes", NODE_POOL.path(&arguments.name));
            let answer = arguments.page.read(context, &path, &[])?;
            print_rows(context, &answer, &columns, arguments.style)
        }
        NodePoolCommand::Jobs(arguments) => {
            let columns = [("ID", "ID"), ("Type", "Type"), ("Status", "Status")];
            let path = format!("{}/jobs", NODE_POOL.path(&arguments.name));
            let answer = arguments.page.read(context, &path, &[])?;
            print_rows(context, &answer, &context.with_namespace(&columns), arguments.style)
        }
        NodePoolCommand::Apply(arguments) => NODE_POOL.apply(context, arguments),
        NodePoolCommand::Delete(arguments) => NODE_POOL.delete(context, &arguments.name),
    }
}
