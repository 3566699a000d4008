//! `quorate server` (starts one) and `quorate server members`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::context::{Context, Exit, Outcome};
use super::output::{Style, table};
use super::process;
use super::time;
use super::view::Fields;
use crate::{
    config::{Flag, Sources},
    reload::ServerReload,
};

/// How far clocks may be apart without a word, ms.
const OFF_MS_MAX: i64 = 1_000;

pub(crate) const EXAMPLES: &str = "Examples:
  quorate server --config cluster-configs/three/server-1.toml
  quorate server --config server.toml --name server-2 --data-dir /var/lib/quorate
  quorate server members

Every key of the file can also be set by a variable: QUORATE__RAFT__PRESET=lan sets raft.preset.
Order: file, then variables, then flags; the last one wins.";

/// Flags of `server`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServerCommand>,
    #[command(flatten)]
    start: StartArgs,
}

/// What can be asked about servers.
#[derive(Debug, Subcommand)]
pub(crate) enum ServerCommand {
    /// List the servers of the cluster
    #[command(after_help = "Examples:\n  quorate server members\n  quorate server members -json")]
    Members(MembersArgs),
}

/// Flags of `server members`.
#[derive(Debug, Args)]
pub(crate) struct MembersArgs {
    /// All tags of each
    #[arg(long)]
    detailed: bool,
    #[command(flatten)]
    style: Style,
}

#[derive(Debug, Args)]
struct StartArgs {
    /// TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of this server
    #[arg(long)]
    name: Option<String>,
    /// Datacenter of this server
    #[arg(long)]
    datacenter: Option<String>,
    /// Folder of this server's state
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Where the HTTP API listens
    #[arg(long, value_name = "IP:PORT")]
    http: Option<String>,
    /// Where gRPC listens
    #[arg(long, value_name = "IP:PORT")]
    rpc: Option<String>,
    /// gRPC address that others dial
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Advertised addresses of all servers that form the cluster, separated by commas
    #[arg(long, value_name = "ADDRESSES")]
    bootstrap_expect: Option<String>,
    /// Addresses of a running cluster to join, separated by commas
    #[arg(long, value_name = "ADDRESSES")]
    join: Option<String>,
    /// Timings of consensus: default, lan, wan, test
    #[arg(long, value_name = "PRESET")]
    raft_preset: Option<String>,
    /// error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// human, json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// Starts a server and returns when it has stopped.
///
/// `region` is the global flag: here it is the region that the server is in.
pub(crate) fn start(arguments: ServerArgs, region: Option<String>) -> Outcome {
    let start = arguments.start;
    let flags = [
        Flag::given("--name", "name", start.name),
        Flag::given("--region", "region", region),
        Flag::given("--datacenter", "datacenter", start.datacenter),
        Flag::given("--data-dir", "data_dir", start.data_dir),
        Flag::given("--http", "http.address", start.http),
        Flag::given("--rpc", "rpc.address", start.rpc),
        Flag::given("--advertise", "rpc.advertise", start.advertise),
        Flag::given("--bootstrap-expect", "cluster.bootstrap_expect", start.bootstrap_expect),
        Flag::given("--join", "cluster.join", start.join),
        Flag::given("--raft-preset", "raft.preset", start.raft_preset),
        Flag::given("--log-level", "log_level", start.log_level),
        Flag::given("--log-format", "log_format", start.log_format),
    ];
    let sources = Sources::from_process(start.config, flags.into_iter().flatten().collect());
    process::server(&ServerReload::load(sources)?)?;
    Ok(Exit::Success)
}

pub(crate) fn run(context: &Context, command: &ServerCommand) -> Outcome {
    match command {
        ServerCommand::Members(arguments) => members(context, arguments),
    }
}

fn members(context: &Context, arguments: &MembersArgs) -> Outcome {
    let answer = context.client.get("/v1/agent/members", &[])?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if arguments.detailed {
        let lines: Vec<Vec<String>> = answer.items("Members").iter().map(detail).collect();
        context.line(table(&["Name", "Address", "Port", "Tags"], &lines))?;
        return Ok(Exit::Success);
    }
    // Without a leader the list of members is still of use.
    let (leader, trouble) = match context.client.get("/v1/status/leader", &[]) {
        Ok(answer) => (answer.as_str().unwrap_or_default().to_owned(), None),
        Err(error) => (String::new(), Some(error)),
    };
    let lines: Vec<Vec<String>> =
        answer.items("Members").iter().map(|member| line(member, &leader)).collect();
    context.line(table(
        &[
            "Name",
            "Address",
            "Port",
            "Status",
            "Leader",
            "Raft Version",
            "Build",
            "Datacenter",
            "Region",
        ],
        &lines,
    ))?;
    let mut notes = warnings(answer.items("Members"));
    notes.extend(times(&answer));
    for note in notes {
        context.output.advice(format!("\n{note}"));
    }
    if let Some(error) = trouble {
        context.output.advice(format!("\nThe leader is not known: {error}"));
    } else if leader.is_empty() {
        context.output.advice("\nThe cluster has no leader now");
    }
    Ok(Exit::Success)
}

/// What makes a cluster survive less than it seems to.
fn warnings(members: &[Value]) -> Vec<String> {
    let tag =
        |member: &Value, name| member.get("Tags").is_some_and(|tags| tags.text(name) == "true");
    let voters: Vec<&Value> = members.iter().filter(|member| tag(member, "voter")).collect();
    let mut warnings = Vec::new();
    if !voters.is_empty() && voters.len().is_multiple_of(2) {
        let (count, fewer) = (voters.len(), voters.len() - 1);
        warnings.push(format!(
            "Warning: {count} servers survive no more failures than {fewer}: add one, or remove one"
        ));
    }
    let builds: BTreeSet<&str> = members
        .iter()
        .filter_map(|member| member.get("Tags"))
        .map(|tags| tags.text("build"))
        .filter(|build| !build.is_empty())
        .collect();
    if builds.len() > 1 {
        let builds: Vec<&str> = builds.into_iter().collect();
        warnings.push(format!(
            "Warning: the servers run different builds: {}. They work together only within one generation (quorate version)",
            builds.join(", ")
        ));
    }
    for never in voters.iter().filter(|member| !tag(member, "heard")) {
        warnings.push(format!(
            "Warning: {} at {}:{} has not been heard since the asked server started: start it, or remove it (quorate operator raft remove-peer)",
            never.shown("Name"), never.shown("Addr"), never.shown("Port")
        ));
    }
    warnings
}

/// What an operator should know of the clocks: those that are wrong, and log time while it is.
fn times(answer: &Value) -> Vec<String> {
    let off = |ms: i64| {
        let word = if ms > 0 { "ahead of" } else { "behind" };
        (ms.abs() > OFF_MS_MAX).then(|| (time::span(ms.abs() / 1000), word))
    };
    let of_member = |member: &Value| {
        let (span, word) = off(member.get("Tags")?.text("clock_ahead_ms").parse().ok()?)?;
        let name = member.text("Name");
        Some(format!("The clock of {name} is {span} {word} the others': set it right"))
    };
    let mut lines: Vec<String> = answer.items("Members").iter().filter_map(of_member).collect();
    let behind_ms = answer.get("LogTimeBehindMs").and_then(Value::as_i64);
    if let Some((span, word)) = behind_ms.and_then(|ms| off(-ms)) {
        lines.push(format!(
            "Log time is {span} {word} the clocks of the servers: so far off are deadlines and times shown, until it has caught up"
        ));
    }
    lines
}

fn detail(member: &Value) -> Vec<String> {
    let tags: Vec<String> = member
        .entries("Tags")
        .into_iter()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    vec![member.shown("Name"), member.shown("Addr"), member.shown("Port"), tags.join(",")]
}

fn line(member: &Value, leader: &str) -> Vec<String> {
    let nothing = Value::Null;
    let tags = member.get("Tags").unwrap_or(&nothing);
    let port = match tags.text("port") {
        "" => member.shown("Port"),
        port => port.to_owned(),
    };
    let address = format!("{}:{port}", member.text("Addr"));
    vec![
        member.shown("Name"),
        member.shown("Addr"),
        port,
        member.shown("Status"),
        (!leader.is_empty() && address == leader).to_string(),
        tags.shown("raft_vsn"),
        tags.shown("build"),
        tags.shown("dc"),
        tags.shown("region"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_clocks_and_a_lag_are_told_and_small_ones_are_not() {
        let member =
            |name: &str, ms: &str| json!({ "Name": name, "Tags": { "clock_ahead_ms": ms } });
        let unknown = json!({ "Name": "d", "Tags": {} });
        let members = [member("a", "3600000"), member("b", "-61000"), member("c", "900"), unknown];
        let lines = times(&json!({ "Members": members, "LogTimeBehindMs": 90_000 }));
        assert_eq!(lines[0], "The clock of a is 1h ahead of the others': set it right");
        assert_eq!(lines[1], "The clock of b is 1m1s behind the others': set it right");
        assert!(lines[2].starts_with("Log time is 1m30s behind the clocks of the servers: "));
        assert_eq!(lines.len(), 3);
        for right in [json!(0), json!(-1_000), Value::Null] {
            assert!(times(&json!({ "Members": [], "LogTimeBehindMs": right })).is_empty());
        }
    }
}
