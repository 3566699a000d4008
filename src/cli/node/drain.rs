//! `quorate node drain`: start, stop, and follow the draining of a node.
//!
//! Must never drain without one of `-enable`, `-disable`, `-monitor`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::service;
use crate::{
    cli::context::{Context, Exit, Outcome, actor},
    cli::named::meta_of,
    cli::view::{Fields, into_rows},
    cli::{client, output, resolve, time},
};

/// Deadline without flags, as in Nomad.
const DEADLINE_DEFAULT: Duration = Duration::from_hours(1);

pub(super) const EXAMPLES: &str = "Examples:
  quorate node drain -enable agent-1                   move everything away within an hour, follow it
  quorate node drain -enable -deadline 10m agent-1     what has not moved after ten minutes is stopped
  quorate node drain -enable -force agent-1            stop everything now
  quorate node drain -disable agent-1                  stop draining, place on it again
  quorate node drain -monitor agent-1                  follow a drain that goes on
  quorate node drain -enable -self                     the node of the agent that is asked";

/// Flags of `node drain`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct DrainArgs {
    /// Drain the node
    #[arg(long, conflicts_with_all = ["disable"])]
    enable: bool,
    /// Stop draining the node
    #[arg(long)]
    disable: bool,
    /// After this time what is left is stopped (default 1h)
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration, requires = "enable", conflicts_with_all = ["force", "no_deadline"])]
    deadline: Option<Duration>,
    /// Stop everything now
    #[arg(long, requires = "enable", conflicts_with = "no_deadline")]
    force: bool,
    /// Wait for as long as it takes
    #[arg(long, requires = "enable")]
    no_deadline: bool,
    /// Leave allocations of system jobs alone
    #[arg(long, requires = "enable")]
    ignore_system: bool,
    /// With -disable: place nothing on the node either
    #[arg(long, requires = "disable")]
    keep_ineligible: bool,
    /// Why, kept with the node as the message of its last drain
    #[arg(short = 'm', value_name = "TEXT", conflicts_with = "monitor")]
    message: Option<String>,
    /// What else to keep with the node's last drain
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "monitor")]
    meta: Vec<String>,
    /// Follow the drain, do not change it
    #[arg(long, conflicts_with_all = ["enable", "disable", "detach"])]
    monitor: bool,
    /// Do not follow
    #[arg(long)]
    detach: bool,
    /// Accepted as in Nomad; nothing is asked
    #[arg(long, hide = true)]
    yes: bool,
    #[command(flatten)]
    node: service::NodeOrSelf,
}

pub(super) fn run(context: &Context, arguments: &DrainArgs) -> Outcome {
    if !(arguments.enable || arguments.disable || arguments.monitor) {
        bail!("say what to do: -enable, -disable or -monitor");
    }
    // The API's zero waits for ever, which is the opposite of what no time at all says.
    if arguments.deadline == Some(Duration::ZERO) {
        bail!(
            "a deadline must be longer than 0s: use -force to stop everything now, or -no-deadline to wait for as long as it takes"
        );
    }
    let id = resolve::id(context, resolve::NODE, &arguments.node.typed(context)?)?;
    if !arguments.monitor {
        let path = format!("/v1/node/{id}/drain");
        let mut request = request(arguments);
        let mut meta = meta_of(&arguments.meta)?.unwrap_or_else(|| json!({}));
        if let Some(message) = &arguments.message {
            meta["message"] = message.as_str().into();
        }
        if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
            request["Meta"] = meta;
        }
        client::or_missing(context.client.put(&path, &[], &request), "node", &id)?;
    }
    if arguments.disable {
        context.line(format!("Node \"{id}\" is no longer draining"))?;
        return Ok(Exit::Success);
    }
    if arguments.enable {
        context.line(format!("Node \"{id}\" is draining"))?;
    }
    if arguments.detach {
        return Ok(Exit::Success);
    }
    follow(context, &id)
}

fn request(arguments: &DrainArgs) -> Value {
    if arguments.disable {
        let mark = !arguments.keep_ineligible;
        return json!({"DrainSpec": null, "MarkEligible": mark, "Actor": actor()});
    }
    let deadline = arguments.deadline.unwrap_or(DEADLINE_DEFAULT);
    // Nomad's encoding: negative stops everything at once, zero waits without limit.
    let deadline: i64 = if arguments.force {
        -1
    } else if arguments.no_deadline {
        0
    } else {
        i64::try_from(deadline.as_nanos()).unwrap_or(i64::MAX)
    };
    json!({
        "DrainSpec": {"Deadline": deadline, "IgnoreSystemJobs": arguments.ignore_system},
        "MarkEligible": false,
        "Actor": actor(),
    })
}

fn follow(context: &Context, id: &str) -> Outcome {
    let path = format!("/v1/node/{id}");
    let mut seen: BTreeMap<String, (String, String)> = BTreeMap::new();
    loop {
        let node = client::or_missing(context.get_patiently(&path, &[]), "node", id)?;
        let answer = context.get_patiently(&format!("{path}/allocations"), &[])?;
        for allocation in into_rows(answer) {
            let now = (allocation.shown("DesiredStatus"), allocation.shown("ClientStatus"));
            let shown = output::short_id(allocation.text("ID"));
            match seen.insert(allocation.shown("ID"), now.clone()) {
                Some(was) if was != now && was.0 != now.0 => {
                    context.line(format!("Allocation \"{shown}\" is to {}", now.0))?;
                }
                Some(was) if was != now => {
                    context.line(format!("Allocation \"{shown}\" is {}", now.1))?;
                }
                Some(_) | None => {}
            }
        }
        if !node.flag("Drain") && node.present("DrainStrategy").is_none() {
            context.line(format!("Draining of node \"{id}\" is complete"))?;
            return Ok(Exit::Success);
        }
        context.pause();
    }
}
