//! `quorate job dispatch`: start a parameterized job and follow what it starts.
//!
//! Sends a dispatch once: a retry by hand needs `-idempotency-token`.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::io::Read;

use anyhow::{Context as _, bail};
use clap::Args;
use http_api::percent::encode;
use serde_json::{Map, Value, json};

use crate::{
    cli::client::ClientError,
    cli::context::{Context, Exit, Outcome},
    cli::output::Style,
    cli::resolve,
    cli::view::{Fields, into_rows},
    cli::{lines::Lines, monitor::Monitor},
};

/// More is refused by the servers: no more is read.
const PAYLOAD_BYTES_READ_MAX: u64 = 1 << 20;

pub(super) const EXAMPLES: &str = "Examples:
  quorate job dispatch -meta user=eve render input.json
  cat input.json | quorate job dispatch -detach render -
  quorate job dispatch -idempotency-token order-17 render   again with the same token: the same job

At max_running the started job waits for its turn, and so does the command, unless -detach or -json is given: -json prints the
answer alone, with a StatusDescription that says why the job waits.

Exit status: 0 all runs or has completed, 1 error or a failed allocation, 2 some could not be placed.";

/// Flags of `job dispatch`.
#[derive(Debug, Args)]
pub(crate) struct DispatchArgs {
    /// The parameterized job's id
    job: String,
    /// The file with the payload; - reads standard input
    input: Option<String>,
    /// Meta of the dispatch; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
    /// Start only, do not follow, nor wait for its turn
    #[arg(long)]
    detach: bool,
    /// Dispatches with the same token are one
    #[arg(long, value_name = "TOKEN")]
    idempotency_token: Option<String>,
    /// Beginning of the started job's own part of its id
    #[arg(long, value_name = "TEXT")]
    id_prefix_template: Option<String>,
    /// Priority of the started job, 1 to 100; the parameterized job's unless given
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    #[command(flatten)]
    style: Style,
}

pub(super) fn run(context: &Context, arguments: &DispatchArgs) -> Outcome {
    let job = resolve::job(context, &arguments.job)?;
    let body = body(arguments)?;
    let mut query = vec![("namespace", job.namespace.as_str())];
    query.extend(arguments.idempotency_token.as_deref().map(|token| ("idempotency_token", token)));
    let path = format!("/v1/job/{}/dispatch", encode(&job.id));
    let answer = context.client.put(&path, &query, &body)?;
    let child = Child {
        context,
        path: format!("/v1/job/{}", encode(answer.text("DispatchedJobID"))),
        namespace: &job.namespace,
    };
    if arguments.style.json {
        return child.print(answer);
    }
    context.line(format!("Dispatched Job ID = {}", answer.text("DispatchedJobID")))?;
    let mut evaluation = answer.text("EvalID").to_owned();
    if evaluation.is_empty() {
        let row = child.read()?;
        context.line(match row.text("StatusDescription") {
            "" => "It was dispatched before, with the same token".to_owned(),
            why => format!("It {why}"),
        })?;
        if arguments.detach {
            return Ok(Exit::Success);
        }
        if child.wait(row)?.flag("Stop") {
            context.line("It was stopped")?;
            return Ok(Exit::Failure);
        }
        let Some(first) = child.first_evaluation()? else {
            context.line("It is over, and its evaluations are not kept any more")?;
            return Ok(Exit::Success);
        };
        evaluation = first;
    }
    context.line(format!("Evaluation ID     = {evaluation}"))?;
    if arguments.detach {
        return Ok(Exit::Success);
    }
    context.line("")?;
    Ok(Monitor::new(context, arguments.style, false).follow(&evaluation)?.verdict.exit())
}

/// The job that a dispatch made or found.
struct Child<'a> {
    context: &'a Context,
    path: String,
    namespace: &'a str,
}

impl Child<'_> {
    fn read(&self) -> Result<Value, ClientError> {
        self.context.get_patiently(&self.path, &[("namespace", self.namespace)])
    }

    /// Prints the answer to the dispatch, and of a child without an evaluation why it waits.
    fn print(&self, mut answer: Value) -> Outcome {
        if answer.text("EvalID").is_empty() {
            answer["StatusDescription"] = self.read()?.text("StatusDescription").into();
        }
        self.context.output.json(&answer)?;
        Ok(Exit::Success)
    }

    /// Until the child, of which this is the last that is known, does not wait any more; says each
    /// new place among those that do.
    fn wait(&self, mut row: Value) -> anyhow::Result<Value> {
        let lines = Lines { context: self.context, silent: false };
        let mut said = row.text("StatusDescription").to_owned();
        while !row.text("StatusDescription").is_empty() {
            self.context.pause();
            row = self.read()?;
            let now = row.text("StatusDescription");
            if !now.is_empty() && now != said {
                lines.detail(&format!("It {now}"))?;
                now.clone_into(&mut said);
            }
        }
        Ok(row)
    }

    /// The evaluation with which the child began, if it did and that is still kept.
    fn first_evaluation(&self) -> anyhow::Result<Option<String>> {
        let path = format!("{}/evaluations", self.path);
        let rows = into_rows(self.context.get_patiently(&path, &[("namespace", self.namespace)])?);
        let first = rows.iter().min_by_key(|row| row.number("CreateIndex"));
        Ok(first.map(|row| row.text("ID").to_owned()))
    }
}

fn body(arguments: &DispatchArgs) -> anyhow::Result<Value> {
    let mut meta = Map::new();
    for pair in &arguments.meta {
        let Some((key, value)) = pair.split_once('=') else {
            bail!("-meta {pair}: write it as KEY=VALUE");
        };
        meta.insert(key.to_owned(), value.into());
    }
    let payload = arguments.input.as_deref().map(read).transpose()?.unwrap_or_default();
    Ok(json!({
        "Payload": if payload.is_empty() { Value::Null } else { BASE64_STANDARD.encode(&payload).into() },
        "Meta": meta,
        "IdPrefixTemplate": arguments.id_prefix_template.as_deref().unwrap_or(""),
        "Priority": arguments.priority.unwrap_or(0),
    }))
}

fn read(input: &str) -> anyhow::Result<Vec<u8>> {
    let reader: Box<dyn Read> = if input == "-" {
        Box::new(std::io::stdin())
    } else {
        let file = std::fs::File::open(input);
        Box::new(file.with_context(|| format!("cannot open the payload file {input}"))?)
    };
    let mut payload = Vec::new();
    reader
        .take(PAYLOAD_BYTES_READ_MAX)
        .read_to_end(&mut payload)
        .with_context(|| format!("cannot read the payload {input}"))?;
    if payload.len() as u64 == PAYLOAD_BYTES_READ_MAX {
        bail!(
            "the payload {input} has {PAYLOAD_BYTES_READ_MAX} bytes or more: hand over where the data is"
        );
    }
    Ok(payload)
}
