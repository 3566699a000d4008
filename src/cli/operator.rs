//! `quorate operator …`: the cluster itself.

use std::io::Read;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::Client;
use super::context::{Context, Exit, Outcome};
use super::output::{Style, pairs, table};
use super::time;
use super::view::Fields;

/// Look after the cluster
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    /// Consensus: who takes part, who leads
    #[command(subcommand)]
    Raft(RaftCommand),
    /// Scheduling: settings of the whole cluster and of nodes' life, workers of a server
    #[command(subcommand)]
    Scheduler(SchedulerCommand),
    /// Print the numbers of the server that is asked
    #[command(
        after_help = "Examples:\n  quorate operator metrics -pretty\n  quorate operator metrics -format prometheus"
    )]
    Metrics(MetricsArgs),
}

/// Flags of `operator metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// json or prometheus
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: String,
    /// Indent JSON
    #[arg(long)]
    pretty: bool,
    /// Accepted as in Nomad: JSON is the default
    #[arg(long, hide = true, conflicts_with = "format")]
    json: bool,
}

fn metrics(context: &Context, arguments: &MetricsArgs) -> Outcome {
    let mut query = Vec::new();
    if arguments.format != "json" {
        query.push(("format", arguments.format.as_str()));
    }
    if arguments.pretty {
        query.push(("pretty", "true"));
    }
    let mut bytes = Vec::new();
    context.client.stream("/v1/metrics", &query)?.read_to_end(&mut bytes)?;
    if !bytes.ends_with(b"\n") {
        bytes.push(b'\n');
    }
    context.output.document(&bytes)?;
    Ok(Exit::Success)
}

/// Settings of the whole cluster, and the workers of one server.
#[derive(Debug, Subcommand)]
pub(crate) enum SchedulerCommand {
    /// Show the settings
    GetConfig {
        /// Accepted for scripts: the output is JSON in any case
        #[arg(long, hide = true)]
        json: bool,
    },
    /// Change settings; those that are not named stay
    #[command(
        after_help = "Examples:\n  quorate operator scheduler set-config -scheduler-algorithm spread -preempt-service-scheduler=true\n  quorate operator scheduler set-config -node-life LostGraceMs=5m\n  quorate operator scheduler set-config -node-life StrikeFailures=5 -node-life AffinityMetaKey=snapshot\n\nThe names are those of: quorate operator scheduler get-config"
    )]
    SetConfig(SetConfigArgs),
    /// Show or set the scheduling workers of one server, until it restarts
    #[command(
        after_help = "Examples:\n  quorate operator scheduler workers\n  quorate operator scheduler workers -num 0 -server server-2\n  quorate operator scheduler workers -num 4 -kinds batch,sysbatch\n\nThe number 0 pauses: what the workers have is finished, and nothing new is taken. A server starts\nwith scheduler.workers and scheduler.enabled of its file"
    )]
    Workers(WorkersArgs),
}

/// Flags of `workers`.
#[derive(Debug, Args)]
pub(crate) struct WorkersArgs {
    /// How many workers there are to be, 0 to 256
    #[arg(long, value_name = "N")]
    num: Option<u64>,
    /// What they schedule: service, batch, system, sysbatch
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<String>,
    /// The server by its name; default: the one that is asked
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `set-config`.
#[derive(Debug, Args)]
pub(crate) struct SetConfigArgs {
    /// binpack (prefer full nodes) or spread (prefer empty ones)
    #[arg(long, value_name = "NAME")]
    scheduler_algorithm: Option<String>,
    /// Let tasks use more memory than they reserve
    #[arg(long, value_name = "true|false")]
    memory_oversubscription: Option<bool>,
    /// Refuse new jobs and changes of jobs
    #[arg(long, value_name = "true|false")]
    reject_job_registration: Option<bool>,
    /// Hand out no evaluations: nothing is scheduled
    #[arg(long, value_name = "true|false")]
    pause_eval_broker: Option<bool>,
    /// Let system jobs evict allocations whose priority is lower by ten or more
    #[arg(long, value_name = "true|false")]
    preempt_system_scheduler: Option<bool>,
    /// The same for sysbatch jobs
    #[arg(long, value_name = "true|false")]
    preempt_sysbatch_scheduler: Option<bool>,
    /// The same for batch jobs
    #[arg(long, value_name = "true|false")]
    preempt_batch_scheduler: Option<bool>,
    /// The same for service jobs
    #[arg(long, value_name = "true|false")]
    preempt_service_scheduler: Option<bool>,
    /// A setting of node life; a time may be written as 15m
    #[arg(long, value_name = "KEY=VALUE")]
    node_life: Vec<String>,
    /// Change nothing if the settings were changed since this index
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
}

/// Consensus.
#[derive(Debug, Subcommand)]
pub(crate) enum RaftCommand {
    /// List the servers that take part
    #[command(
        after_help = "Examples:\n  quorate operator raft list-peers\n  quorate operator raft list-peers -stale"
    )]
    ListPeers(ListPeersArgs),
    /// Take a server out of the cluster, for good
    #[command(
        after_help = "A server that is taken out ends itself, and does not start again from its folder. It is refused\nwhere the servers that answer would be no majority of the rest.\n\nExamples:\n  quorate operator raft remove-peer -peer-address 127.0.0.1:4657\n  quorate operator raft remove-peer -peer-id ID"
    )]
    RemovePeer(RemoveArgs),
    /// Make another server the leader
    #[command(
        after_help = "Examples:\n  quorate operator raft transfer-leadership -peer-address 127.0.0.1:4657\n  quorate operator raft transfer-leadership -peer-id ID"
    )]
    TransferLeadership(TransferArgs),
}

/// Flags of `list-peers`.
#[derive(Debug, Args)]
pub(crate) struct ListPeersArgs {
    /// Ask any server, also without a leader
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `transfer-leadership`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct TransferArgs {
    /// Advertised gRPC address of the server that is to lead
    #[arg(
        long,
        value_name = "HOST:PORT",
        required_unless_present = "peer_id",
        conflicts_with = "peer_id"
    )]
    peer_address: Option<String>,
    /// Raft id of the server that is to lead
    #[arg(long, value_name = "ID")]
    peer_id: Option<String>,
}

/// Flags of `remove-peer`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct RemoveArgs {
    /// Advertised gRPC address of the server
    #[arg(
        long,
        value_name = "HOST:PORT",
        required_unless_present = "peer_id",
        conflicts_with = "peer_id"
    )]
    peer_address: Option<String>,
    /// Raft id of the server
    #[arg(long, value_name = "ID")]
    peer_id: Option<String>,
    /// Also where the servers that answer would be no majority of the rest: nothing can be written
    /// then
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(context: &Context, command: &OperatorCommand) -> Outcome {
    match command {
        OperatorCommand::Raft(RaftCommand::RemovePeer(arguments)) => remove(context, arguments),
        OperatorCommand::Raft(RaftCommand::ListPeers(arguments)) => list_peers(context, arguments),
        OperatorCommand::Raft(RaftCommand::TransferLeadership(arguments)) => {
            transfer(context, arguments)
        }
        OperatorCommand::Metrics(arguments) => metrics(context, arguments),
        OperatorCommand::Scheduler(SchedulerCommand::GetConfig { .. }) => get_config(context),
        OperatorCommand::Scheduler(SchedulerCommand::SetConfig(arguments)) => {
            set_config(context, arguments)
        }
        OperatorCommand::Scheduler(SchedulerCommand::Workers(arguments)) => {
            workers(context, arguments)
        }
    }
}

/// Workers are those of a server, so that its own address is asked.
fn workers(context: &Context, arguments: &WorkersArgs) -> Outcome {
    const CONFIG: &str = "/v1/agent/schedulers/config";
    let client = match &arguments.server {
        Some(name) => client_of(context, name)?,
        None => context.client.clone(),
    };
    let mut change = json!({});
    if let Some(number) = arguments.num {
        change["num_schedulers"] = number.into();
    }
    if !arguments.kinds.is_empty() {
        change["enabled_schedulers"] = arguments.kinds.clone().into();
    }
    let settings = if change == json!({}) {
        client.get(CONFIG, &[])?
    } else {
        client.put(CONFIG, &[], &change)?
    };
    let answer = client.get("/v1/agent/schedulers", &[])?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let kinds = settings.items("enabled_schedulers").iter().filter_map(Value::as_str);
    let head = [
        ("Server", client.address().to_owned()),
        ("Workers", settings.shown("num_schedulers")),
        ("Kinds", kinds.collect::<Vec<_>>().join(", ")),
    ];
    context.line(pairs(&head))?;
    let line = |worker: &Value| {
        ["id", "status", "workload_status", "started"].map(|key| worker.shown(key)).to_vec()
    };
    let lines: Vec<Vec<String>> = answer.items("schedulers").iter().map(line).collect();
    context.line("")?;
    context.line(table(&["ID", "Status", "Workload", "Since"], &lines))?;
    Ok(Exit::Success)
}

/// A client of the server with that name, at the address that the others know.
fn client_of(context: &Context, name: &str) -> anyhow::Result<Client> {
    let answer = context.client.get("/v1/agent/members", &[])?;
    let members = answer.items("Members");
    let Some(member) = members.iter().find(|member| member.shown("Name") == name) else {
        let names: Vec<String> = members.iter().map(|member| member.shown("Name")).collect();
        bail!("no server is called \"{name}\"; there are: {}", names.join(", "));
    };
    Ok(context.client.at(member["Tags"].text("http_addr"))?)
}

const CONFIGURATION_PATH: &str = "/v1/operator/scheduler/configuration";

fn get_config(context: &Context) -> Outcome {
    let answer = context.client.get(CONFIGURATION_PATH, &[])?;
    context.output.json(answer.get("SchedulerConfig").unwrap_or(&answer))?;
    Ok(Exit::Success)
}

impl SetConfigArgs {
    /// Puts what was asked for into the settings as they were read; answers whether it was
    /// anything.
    fn change(&self, body: &mut Value) -> bool {
        let flags = [
            ("MemoryOversubscriptionEnabled", self.memory_oversubscription),
            ("RejectJobRegistration", self.reject_job_registration),
            ("PauseEvalBroker", self.pause_eval_broker),
        ];
        let preemption = [
            ("SystemSchedulerEnabled", self.preempt_system_scheduler),
            ("SysBatchSchedulerEnabled", self.preempt_sysbatch_scheduler),
            ("BatchSchedulerEnabled", self.preempt_batch_scheduler),
            ("ServiceSchedulerEnabled", self.preempt_service_scheduler),
        ];
        let mut changes = false;
        let mut set = |place: &mut Value, value: Value| {
            *place = value;
            changes = true;
        };
        if let Some(algorithm) = &self.scheduler_algorithm {
            set(&mut body["SchedulerAlgorithm"], algorithm.as_str().into());
        }
        for (name, flag) in flags {
            if let Some(flag) = flag {
                set(&mut body[name], flag.into());
            }
        }
        for (name, flag) in preemption {
            if let Some(flag) = flag {
                set(&mut body["PreemptionConfig"][name], flag.into());
            }
        }
        changes
    }
}

fn set_config(context: &Context, arguments: &SetConfigArgs) -> Outcome {
    let present = context.client.get(CONFIGURATION_PATH, &[])?;
    let mut body = present.get("SchedulerConfig").cloned().unwrap_or_else(|| json!({}));
    if !arguments.change(&mut body) && arguments.node_life.is_empty() {
        bail!(
            "name a setting to change, for example -preempt-service-scheduler=true; all flags: \
             quorate operator scheduler set-config -help"
        );
    }
    let mut life = json!({});
    for setting in &arguments.node_life {
        let Some((key, value)) = setting.split_once('=') else {
            bail!("\"{setting}\" is not KEY=VALUE; for example: -node-life LostGraceMs=5m");
        };
        life[key] = match (value.parse::<u64>(), time::parse_duration(value)) {
            // The only setting that is a text; a meta key may look like a number.
            (Ok(_) | Err(_), _) if key == "AffinityMetaKey" => value.into(),
            (Ok(number), _) => number.into(),
            (Err(_), Ok(length)) if key.ends_with("Ms") => {
                u64::try_from(length.as_millis()).unwrap_or(u64::MAX).into()
            }
            (Err(_), Ok(_) | Err(_)) => value.into(),
        };
    }
    body["NodeLife"] = life;
    // The other settings are sent as they were read: a change of theirs must not be undone.
    let index =
        arguments.check_index.map_or_else(|| present.shown("ModifyIndex"), |i| i.to_string());
    let answer = context.client.put(CONFIGURATION_PATH, &[("cas", index.as_str())], &body)?;
    if !answer.flag("Updated") {
        bail!(
            "nothing was changed: the settings do not have index {index} any more; look at them \
             (quorate operator scheduler get-config) and repeat the command"
        );
    }
    context.line("The settings are changed")?;
    Ok(Exit::Success)
}

fn list_peers(context: &Context, arguments: &ListPeersArgs) -> Outcome {
    let query: &[(&str, &str)] = if arguments.stale { &[("stale", "true")] } else { &[] };
    let answer = context.client.get("/v1/operator/raft/configuration", query)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let line = |server: &Value| {
        let state = if server.flag("Leader") { "leader" } else { "follower" };
        vec![
            server.shown("Node"),
            server.shown("ID"),
            server.shown("Address"),
            state.to_owned(),
            server.flag("Voter").to_string(),
            server.shown("RaftProtocol"),
        ]
    };
    let lines: Vec<Vec<String>> = answer.items("Servers").iter().map(line).collect();
    context.line(table(&["Node", "ID", "Address", "State", "Voter", "RaftProtocol"], &lines))?;
    Ok(Exit::Success)
}

/// The parameter that names a server.
fn peer<'a>(
    id: Option<&'a String>,
    address: Option<&'a String>,
) -> anyhow::Result<(&'static str, &'a str)> {
    match (id, address) {
        (Some(id), _) => Ok(("id", id)),
        (None, Some(address)) => Ok(("address", address)),
        (None, None) => bail!("name the server: -peer-address or -peer-id"),
    }
}

fn remove(context: &Context, arguments: &RemoveArgs) -> Outcome {
    let (name, value) = peer(arguments.peer_id.as_ref(), arguments.peer_address.as_ref())?;
    let force = arguments.force.to_string();
    context.client.delete("/v1/operator/raft/peer", &[(name, value), ("force", &force)])?;
    context.line(format!("{value} was taken out of the cluster"))?;
    Ok(Exit::Success)
}

fn transfer(context: &Context, arguments: &TransferArgs) -> Outcome {
    let (name, value) = peer(arguments.peer_id.as_ref(), arguments.peer_address.as_ref())?;
    let path = "/v1/operator/raft/transfer-leadership";
    context.client.put(path, &[(name, value)], &json!({}))?;
    context.line(format!("Leadership was transferred to {value}"))?;
    Ok(Exit::Success)
}
