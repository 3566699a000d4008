//! Servers as members of the cluster and of the Raft configuration.

use ground::server_name::ServerName;
use serde_json::{Value, json};
use wire::api::{MemberInfo, Presence};

use crate::HttpOptions;

/// A server in `agent/members`.
pub(crate) fn member(member: &MemberInfo, options: &HttpOptions) -> Value {
    let (host, port) = host_and_port(&member.rpc_address);
    let mut shown = json!({
        "Name": member.name,
        "Addr": host,
        "Port": port,
        "Status": if member.presence == Presence::Alive { "alive" } else { "failed" },
        "Tags": {
            "role": "nomad",
            "region": options.region,
            "dc": options.datacenter,
            "id": ServerName(member.id).to_string(),
            "voter": member.voter.to_string(),
            "heard": (member.presence != Presence::NeverHeard).to_string(),
            "build": member.version,
            "port": port.to_string(),
            "rpc_addr": host,
            "http_addr": member.http_address,
            "raft_vsn": "3",
        },
        "ProtocolMin": 1,
        "ProtocolMax": 5,
        "ProtocolCur": 2,
        "DelegateMin": 2,
        "DelegateMax": 5,
        "DelegateCur": 4,
    });
    if let Some(ms) = member.clock_ahead_ms {
        shown["Tags"]["clock_ahead_ms"] = ms.to_string().into();
    }
    shown
}

/// A server in the Raft configuration.
pub(crate) fn raft_server(member: &MemberInfo) -> Value {
    json!({
        "ID": ServerName(member.id).to_string(),
        "Node": member.name,
        "Address": member.rpc_address,
        "Leader": member.leader,
        "Voter": member.voter,
        "RaftProtocol": "3",
    })
}

fn host_and_port(address: &str) -> (&str, u16) {
    address
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse().ok()?)))
        .unwrap_or((address, 0))
}
