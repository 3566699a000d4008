//! `quorate alloc fs`: the folders of an allocation, and its files as they are.

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use super::tail::{EndFlags, RemoteText};
use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::{readable_bytes, table},
    cli::view::{Fields, rows},
};

pub(super) const EXAMPLES: &str = "Examples:
  quorate alloc fs 5b98a6ea                              the folders of an allocation
  quorate alloc fs 5b98a6ea web/local                    of a task
  quorate alloc fs 5b98a6ea alloc/logs/web.stdout.0      a file
  quorate alloc fs -tail -n 20 5b98a6ea web/local/trace  its last 20 lines
  quorate alloc fs -stat 5b98a6ea web/local/trace        its size, time and content type";

/// Flags of `alloc fs`.
#[derive(Debug, Args)]
pub(crate) struct FsArgs {
    /// The allocation's id or the beginning of it
    allocation: String,
    #[command(flatten)]
    by_job: super::ByJob,
    /// A path in the allocation's folder
    #[arg(default_value = "/")]
    path: String,
    /// Describe the file or folder itself
    #[arg(long)]
    stat: bool,
    /// Sizes in bytes
    #[arg(short = 'H')]
    machine: bool,
    #[command(flatten)]
    end: EndFlags,
}

pub(super) fn run(context: &Context, arguments: &FsArgs) -> Outcome {
    let allocation = arguments.by_job.read(context, &arguments.allocation)?;
    let id = allocation.text("ID");
    let path = arguments.path.as_str();
    let ask = |verb: &str| {
        let answer = context.client.get(&format!("/v1/client/fs/{verb}/{id}"), &[("path", path)]);
        answer.with_context(|| format!("cannot read {path} of allocation {id}"))
    };
    let found = ask("stat")?;
    if arguments.stat {
        let row = [describe(&found, arguments.machine), vec![found.shown("ContentType")]].concat();
        let heads = ["Mode", "Size", "Modified Time", "Name", "Content Type"];
        context.line(table(&heads, &[row]))?;
        return Ok(Exit::Success);
    }
    if found.flag("IsDir") {
        let listed = ask("ls")?;
        let lines: Vec<_> =
            rows(&listed).iter().map(|entry| describe(entry, arguments.machine)).collect();
        context.line(table(&["Mode", "Size", "Modified Time", "Name"], &lines))?;
        return Ok(Exit::Success);
    }
    let path = path.to_owned();
    let text = RemoteText {
        context,
        path: format!("/v1/client/fs/stream/{id}"),
        query: vec![("path", path)],
    };
    text.print(arguments.end)
}

fn describe(file: &Value, machine: bool) -> Vec<String> {
    let size = file.number("Size");
    let slash = if file.flag("IsDir") { "/" } else { "" };
    vec![
        file.shown("FileMode"),
        if machine { size.to_string() } else { readable_bytes(size) },
        // Without the fraction of a second.
        file.text("ModTime").split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned()
            + "Z",
        format!("{}{slash}", file.text("Name")),
    ]
}
