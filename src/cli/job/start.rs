//! `quorate job start`: running a stopped job again.

use anyhow::{Context as _, bail};
use clap::Args;
use http_api::percent::encode;
use serde_json::json;

use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::Style,
    cli::view::Fields,
    cli::{monitor, resolve},
};

/// Flags of `job start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The job's id
    job: String,
    /// Do not follow the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Registers the newest version that is no stop as a new one, unless somebody changes the job
/// meanwhile.
pub(super) fn start(context: &Context, arguments: &StartArgs) -> Outcome {
    let found = resolve::job(context, &arguments.job)?;
    let namespace = [("namespace", found.namespace.as_str())];
    let path = format!("/v1/job/{}", encode(&found.id));
    let job = context.client.get(&path, &namespace)?;
    if !job.flag("Stop") {
        bail!("job \"{}\" is not stopped; its status is {}", found.id, job.text("Status"));
    }
    let answer = context.client.get(&format!("{path}/versions"), &namespace)?;
    let versions = answer.items("Versions").iter().filter(|version| !version.flag("Stop"));
    let newest = versions.max_by_key(|version| version.number("Version"));
    let newest = newest.map(|version| version.number("Version")).with_context(|| {
        format!("no version of job \"{}\" ran: register it with: quorate job run", found.id)
    })?;
    let request = json!({
        "JobID": found.id,
        "JobVersion": newest,
        "EnforcePriorVersion": job.number("Version"),
    });
    let answer = context.client.put(&format!("{path}/revert"), &namespace, &request)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    super::print_warnings(context, None, &answer)?;
    context.line(format!("Job \"{}\" started: version {newest} is run again", found.id))?;
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}
