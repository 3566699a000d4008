//! `quorate status ID`: whatever has that id, as its own command shows it.

use serde_json::{Value, json};

use super::alloc::{self, AllocCommand};
use super::context::{Context, Outcome};
use super::deployment::{self, DeploymentCommand};
use super::eval::{self, EvalCommand};
use super::job::{self, JobCommand};
use super::named::NameArgs;
use super::namespace::{self, NamespaceCommand};
use super::node::{self, NodeCommand, NodePoolCommand};
use super::output::table;
use super::view::{Fields, texts};

/// Contexts of a search whose things have a status, and what one is called.
const CONTEXTS: [(&str, &str); 7] = [
    ("jobs", "job"),
    ("allocs", "allocation"),
    ("nodes", "node"),
    ("evals", "evaluation"),
    ("deployment", "deployment"),
    ("namespaces", "namespace"),
    ("node_pools", "node pool"),
];

/// Finds what the id names and shows it; without an id the jobs are listed.
pub(crate) fn run(context: &Context, arguments: job::StatusArgs) -> Outcome {
    let Some(typed) = &arguments.job else {
        return job::run(context, &JobCommand::Status(arguments));
    };
    let style = arguments.style;
    let found =
        context.client.put("/v1/search", &[], &json!({ "Prefix": typed, "Context": "all" }))?;
    let id = typed.clone();
    match noun(&found, typed)? {
        "allocation" => {
            alloc::run(context, &AllocCommand::Status(alloc::StatusArgs::of(id, style)))
        }
        "node" => node::run(context, &NodeCommand::Status(node::StatusArgs::of(id, style))),
        "evaluation" => eval::run(context, &EvalCommand::Status(eval::StatusArgs::of(id, style))),
        "deployment" => {
            let status = deployment::StatusArgs::of(id, style);
            deployment::run(context, &DeploymentCommand::Status(status))
        }
        "namespace" => {
            let status = NamespaceCommand::Status(NameArgs { name: id, style });
            namespace::run(context, &status)
        }
        "node pool" => {
            let info = NodePoolCommand::Info(NameArgs { name: id, style });
            node::run(context, &NodeCommand::Pool(info))
        }
        _ => job::run(context, &JobCommand::Status(arguments)),
    }
}

/// What the text names: a job of exactly this id comes first, as in Nomad; else it must be one kind
/// of thing.
fn noun(found: &Value, typed: &str) -> anyhow::Result<&'static str> {
    let matches: Vec<(&str, Vec<&str>)> = CONTEXTS
        .into_iter()
        .map(|(context, noun)| (noun, texts(found["Matches"].items(context))))
        .filter(|(_, ids)| !ids.is_empty())
        .collect();
    let is_exact = |(_, ids): &&(&'static str, Vec<&str>)| ids.contains(&typed);
    if let Some((noun, _)) = matches.iter().find(is_exact) {
        return Ok(*noun);
    }
    match matches.as_slice() {
        [] => anyhow::bail!(
            "no job, allocation, node, evaluation, deployment, namespace or node pool has an id that starts with \"{typed}\""
        ),
        [(noun, _)] => Ok(*noun),
        several => {
            let lines: Vec<Vec<String>> = several
                .iter()
                .flat_map(|(noun, ids)| {
                    ids.iter().map(|id| vec![(*noun).to_owned(), (*id).to_owned()])
                })
                .collect();
            let shown = table(&["Kind", "ID"], &lines);
            anyhow::bail!("\"{typed}\" matches several things; type more of the id:\n{shown}")
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_one_thing_that_matches_is_shown_and_a_job_of_that_id_first() {
        let of = |typed: &str, matches: Value| {
            noun(&json!({ "Matches": matches }), typed).map_err(|error| error.to_string())
        };
        assert_eq!(of("ab12", json!({ "allocs": ["ab12f"], "jobs": [] })), Ok("allocation"));
        assert_eq!(of("ab", json!({ "nodes": ["ab12f", "ab3"] })), Ok("node"));
        assert_eq!(of("ab", json!({ "jobs": ["ab", "abc"], "evals": ["ab12f"] })), Ok("job"));
        assert_eq!(
            of("default", json!({ "namespaces": ["default"], "node_pools": ["default"] })),
            Ok("namespace")
        );
        assert_eq!(of("gp", json!({ "node_pools": ["gpu"] })), Ok("node pool"));
        let nothing = of("web", json!({})).unwrap_err();
        assert!(nothing.starts_with("no job, allocation, node,"), "{nothing}");
        let several = of("ab", json!({ "jobs": ["abc"], "evals": ["ab12f"] }));
        let text = several.unwrap_err();
        assert!(text.contains("job         abc\nevaluation  ab12f"), "{text}");
    }
}
