//! `/v1/operator/…`: Raft configuration, leadership, the scheduler configuration, and what a
//! replica holds.

use fsm::{
    Command, Index, Rejection, Reply,
    right::Right,
    settings::{Algorithm, Preemption, SchedulerConfiguration, SetSchedulerConfiguration},
    table::TableId,
};
use ground::server_name::ServerName;
use serde_json::{Value, json};
use wire::api::{MemberInfo, ReadMode, Written};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    node_life,
    route::{Route, Subject},
    view,
};

/// Attempts at a change of node life that others change at the same time.
const ATTEMPTS_MAX: usize = 4;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read(
            "/v1/operator/raft/configuration",
            Subject::Cluster,
            Right::Management,
            raft_configuration,
        ),
        Route::delete("/v1/operator/raft/peer", Subject::Cluster, Right::Management, remove_peer),
        Route::write(
            "/v1/operator/raft/transfer-leadership",
            Subject::Cluster,
            Right::Management,
            transfer_leadership,
        ),
        Route::read(
            "/v1/operator/scheduler/configuration",
            Subject::Cluster,
            Right::OperatorRead,
            scheduler_configuration,
        ),
        Route::write(
            "/v1/operator/scheduler/configuration",
            Subject::Cluster,
            Right::OperatorWrite,
            set_scheduler_configuration,
        ),
        // Nomad lacks these: how the replicas stand.
        Route::read(
            "/v1/operator/state-digest",
            Subject::Cluster,
            Right::OperatorRead,
            state_digest,
        ),
        Route::read("/v1/operator/invariants", Subject::Cluster, Right::OperatorRead, invariants),
    ]
}

async fn raft_configuration(call: Call) -> Result<Answer, Error> {
    let servers: Vec<Value> = call.api.members().iter().map(view::raft_server).collect();
    let answer = json!({ "Index": call.api.membership_index(), "Servers": servers });
    call.answer(&answer, None)
}

/// Takes a server out of the cluster.
async fn remove_peer(call: Call) -> Result<Answer, Error> {
    let members = call.api.members();
    let member = named(&call, &members)?
        .ok_or_else(|| Error::bad("name the server: id or address is missing"))?;
    let force = call.flag("force")?;
    call.api.remove_member(&call.caller, member.id, force).await?;
    call.answer(&Value::Null, None)
}

async fn transfer_leadership(call: Call) -> Result<Answer, Error> {
    let members = call.api.members();
    let to = match named(&call, &members)? {
        Some(member) if !member.voter => {
            let name = &member.name;
            return Err(Error::bad(format!("{name} at {} does not vote", member.rpc_address)));
        }
        named => named.map(|member| member.id),
    };
    let from = members.iter().find(|member| member.leader);
    let now = call.api.transfer_leadership(&call.caller, to).await?;
    let new = members.iter().find(|member| member.id == now);
    let answer = json!({
        "From": from.map(id_and_address),
        "To": new.map(id_and_address),
        "Noop": from.is_some_and(|from| from.id == now),
        "Err": Value::Null,
    });
    call.answer(&answer, None)
}

/// The member that a request names by id or address; none: it names none.
fn named<'a>(call: &Call, members: &'a [MemberInfo]) -> Result<Option<&'a MemberInfo>, Error> {
    let (asked, found) = match (call.parameter("id"), call.parameter("address")) {
        (Some(_), Some(_)) => return Err(Error::bad("give either id or address, not both")),
        (None, None) => return Ok(None),
        (Some(id), None) => {
            let is_it = |member: &&MemberInfo| ServerName::parse(id) == Some(ServerName(member.id));
            (format!("id {id}"), members.iter().find(is_it))
        }
        (None, Some(address)) => (
            format!("address {address}"),
            members.iter().find(|member| member.rpc_address == address),
        ),
    };
    found.map(Some).ok_or_else(|| Error::bad(format!("no server has {asked}")))
}

fn id_and_address(member: &MemberInfo) -> Value {
    json!({ "ID": ServerName(member.id).to_string(), "Address": member.rpc_address })
}

async fn scheduler_configuration(call: Call) -> Result<Answer, Error> {
    call.document(&[TableId::SchedulerConfiguration], |state| {
        let configuration = state.scheduler_configuration();
        Ok(json!({
            "SchedulerConfig": view::scheduler_configuration(&configuration),
            "CreateIndex": configuration.create_index,
            "ModifyIndex": configuration.modify_index,
            "Index": state.table_index(TableId::SchedulerConfiguration),
            "LastContact": 0,
            "KnownLeader": true,
            "NextToken": "",
        }))
    })
    .await
}

async fn set_scheduler_configuration(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let configuration = configuration_of(&fields)?;
    let cas = call.number("cas")?;
    let Some(life) = fields.object("NodeLife")? else {
        return set(&call, configuration, true, cas).await.and_then(|set| set.answer(&call));
    };
    // The keys that the request leaves out keep their value, also if somebody else changes it now.
    // Under an idempotency key there is one attempt: another one would be another request.
    let is_repeatable = cas.is_none() && call.request_id().is_none();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let read =
            call.api.read(&call.caller, ReadMode::Linearizable, 0, call.options.timeout).await?;
        let present = read.state.scheduler_configuration();
        let node_life = node_life::changed(present.node_life, &life)?;
        let configuration = SchedulerConfiguration { node_life, ..configuration.clone() };
        let enforce_index = if is_repeatable { Some(present.modify_index) } else { cas };
        let set = set(&call, configuration, false, enforce_index).await?;
        if set.updated || !is_repeatable || attempts == ATTEMPTS_MAX {
            return set.answer(&call);
        }
    }
}

/// What became of a change of the scheduler configuration.
struct Set {
    written: Written,
    /// False: its index is not the one that was asked for.
    updated: bool,
}

impl Set {
    fn answer(&self, call: &Call) -> Result<Answer, Error> {
        call.answer_write(&self.written, json!({ "Updated": self.updated }))
    }
}

/// Proposes it; with `keep_node_life` whatever node life it has is not looked at.
async fn set(
    call: &Call,
    configuration: SchedulerConfiguration,
    keep_node_life: bool,
    enforce_index: Option<Index>,
) -> Result<Set, Error> {
    let command =
        Command::from(SetSchedulerConfiguration { configuration, keep_node_life, enforce_index });
    let written =
        call.api.write(&call.caller, command, call.request_id(), call.options.timeout).await?;
    let mut updated = true;
    if let Reply::Rejected(rejection) = &written.reply {
        let Rejection::IndexConflict { .. } = rejection else {
            return Err(rejection.clone().into());
        };
        updated = false;
    }
    Ok(Set { written, updated })
}

fn configuration_of(fields: &Fields<'_>) -> Result<SchedulerConfiguration, Error> {
    let default = SchedulerConfiguration::default();
    let algorithm = match fields.text("SchedulerAlgorithm")?.unwrap_or("") {
        "" | "binpack" => Algorithm::Binpack,
        "spread" => Algorithm::Spread,
        other => {
            let text = format!("SchedulerAlgorithm must be binpack or spread, not \"{other}\"");
            return Err(Error::bad(text));
        }
    };
    let preemption = match fields.object("PreemptionConfig")? {
        None => default.preemption,
        Some(flags) => Preemption {
            system: flags.flag("SystemSchedulerEnabled")?,
            sysbatch: flags.flag("SysBatchSchedulerEnabled")?,
            batch: flags.flag("BatchSchedulerEnabled")?,
            service: flags.flag("ServiceSchedulerEnabled")?,
        },
    };
    let node_limit = match fields.number("NodeLimitForFeasibilityChecks")? {
        None | Some(0) => default.node_limit,
        Some(limit) => u32::try_from(limit)
            .map_err(|_| Error::bad("NodeLimitForFeasibilityChecks is too large"))?,
    };
    Ok(SchedulerConfiguration {
        algorithm,
        preemption,
        memory_oversubscription: fields.flag("MemoryOversubscriptionEnabled")?,
        reject_job_registration: fields.flag("RejectJobRegistration")?,
        pause_eval_broker: fields.flag("PauseEvalBroker")?,
        node_limit,
        node_life: default.node_life,
        create_index: 0,
        modify_index: 0,
    })
}

/// The digest of this server's own state, for comparing replicas at the same index.
async fn state_digest(call: Call) -> Result<Answer, Error> {
    let snapshot = call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await?;
    let index: Index = snapshot.state.index();
    let answer = json!({ "Index": index, "Digest": snapshot.state.digest().to_string() });
    call.answer(&answer, None)
}

/// Checks every invariant on this server's own state.
async fn invariants(call: Call) -> Result<Answer, Error> {
    let snapshot = call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await?;
    let state = snapshot.state;
    let index: Index = state.index();
    let violations = call.in_turn(usize::MAX, move || Ok(fsm::invariant::check(&state))).await?;
    let violations: Vec<Value> = violations
        .into_iter()
        .map(|violation| json!({ "Name": violation.name, "Detail": violation.detail }))
        .collect();
    call.answer(&json!({ "Index": index, "Violations": violations }), None)
}
