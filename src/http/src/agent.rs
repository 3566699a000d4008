//! `/v1/agent/…`: this server as its operators see it.

use axum::http::StatusCode;
use fsm::right::Right;
use ground::telemetry::{self, LevelError};
use serde_json::{Value, json};
use wire::api::ReadMode;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    route::{Route, Subject},
    view,
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/agent/self", Subject::Agent, Right::AgentRead, this),
        Route::read("/v1/agent/members", Subject::Agent, Right::NodeRead, members),
        Route::read("/v1/agent/servers", Subject::Agent, Right::AgentRead, servers),
        // Nomad asks for nothing here; a server that joins is a change of the agent.
        Route::write("/v1/agent/join", Subject::Agent, Right::AgentWrite, join),
        Route::write("/v1/agent/force-leave", Subject::Agent, Right::AgentWrite, force_leave),
        Route::read("/v1/agent/health", Subject::Agent, Right::Nothing, health),
        // Nomad lacks it: as its health.
        Route::read("/v1/agent/live", Subject::Agent, Right::Nothing, live),
        // Nomad lacks it: as its monitor, which has the same lines, and as its configuration.
        Route::read("/v1/agent/log-level", Subject::Agent, Right::AgentRead, log_level),
        Route::write("/v1/agent/log-level", Subject::Agent, Right::AgentWrite, set_log_level),
    ]
}

async fn this(call: Call) -> Result<Answer, Error> {
    let this = call.api.this_member();
    let answer = json!({
        "config": {
            "Region": call.options.region,
            "Datacenter": call.options.datacenter,
            "NodeName": this.name,
            "Version": { "Version": ground::version::QUORATE },
            "AdvertiseAddrs": { "HTTP": this.http_address, "RPC": this.rpc_address },
            "Server": { "Enabled": true },
            "Client": { "Enabled": false },
            "ACL": { "Enabled": false },
        },
        "member": view::member(&this, &call.options),
        "stats": call.api.stats(),
    });
    call.answer(&answer, None)
}

async fn members(call: Call) -> Result<Answer, Error> {
    let members: Vec<Value> =
        call.api.members().iter().map(|member| view::member(member, &call.options)).collect();
    let answer = json!({
        "ServerName": call.api.this_member().name,
        "ServerRegion": call.options.region,
        "ServerDC": call.options.datacenter,
        "LogTimeBehindMs": call.api.behind_ms(),
        "Members": members,
    });
    call.answer(&answer, None)
}

async fn servers(call: Call) -> Result<Answer, Error> {
    let addresses: Vec<_> =
        call.api.members().into_iter().map(|member| member.rpc_address).collect();
    call.answer(&json!(addresses), None)
}

/// Nobody is joined from here: a server joins by its own configuration, which says so when it
/// fails.
async fn join(call: Call) -> Result<Answer, Error> {
    if call.parameter("address").is_none_or(str::is_empty) {
        return Err(Error::bad("missing address to join"));
    }
    let why = "a server joins when it starts, by the addresses in its own configuration";
    call.answer(&json!({ "num_joined": 0, "error": why }), None)
}

/// A server that is no member has left, as in Nomad. A member is taken out by its id or address.
async fn force_leave(call: Call) -> Result<Answer, Error> {
    let named = call.parameter("node").unwrap_or("");
    if named.is_empty() {
        return Err(Error::bad("missing node to force leave"));
    }
    let is_it = |name: &str| {
        named == name
            || named
                .strip_prefix(name)
                .is_some_and(|rest| rest == format!(".{}", call.options.region))
    };
    if call.api.members().iter().any(|member| is_it(&member.name)) {
        return Err(Error::bad(format!(
            "{named} is a member: take it out by DELETE /v1/operator/raft/peer (quorate operator raft remove-peer)"
        )));
    }
    call.answer(&Value::Null, None)
}

/// The level of the log of the server that is asked.
async fn log_level(call: Call) -> Result<Answer, Error> {
    let level = telemetry::level().ok_or(LevelError::NotStarted)?;
    call.answer(&json!({ "Level": level.as_str() }), None)
}

async fn set_log_level(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    fields.known(&["Level"])?;
    let name = fields.text("Level")?.ok_or_else(|| Error::bad("Level is missing"))?;
    let level = telemetry::set_level(name)?.as_str();
    tracing::info!(caller = %call.caller, level, "the log level is set");
    call.answer(&json!({ "Level": level }), None)
}

/// That this process answers. It stays 200 while the cluster has no leader: a restart would not
/// help, and would hinder the election.
async fn live(call: Call) -> Result<Answer, Error> {
    call.answer(&json!({ "server": { "ok": true, "message": "ok" } }), None)
}

/// 500 with the same body when not healthy.
async fn health(call: Call) -> Result<Answer, Error> {
    let kind = call.parameter("type").unwrap_or("");
    if !matches!(kind, "" | "server" | "client") {
        return Err(Error::bad(format!("type must be server or client, not `{kind}`")));
    }
    if kind == "client" {
        let answer = json!({ "client": { "ok": false, "message": "client not enabled" } });
        return call.answer_with(StatusCode::INTERNAL_SERVER_ERROR, &answer, None);
    }
    let problem = match call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await
    {
        Ok(snapshot) if snapshot.known_leader => None,
        Ok(_) => Some("No cluster leader".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    let ok = problem.is_none();
    let message = problem.unwrap_or_else(|| "ok".to_owned());
    let status = if ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    call.answer_with(status, &json!({ "server": { "ok": ok, "message": message } }), None)
}
