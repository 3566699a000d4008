//! The system under test: how its servers are started and asked who leads.
//!
//! Besides Quorate there is etcd, a foreign system on which the harness is tried: what it says about a system that others trust
//! shows whether it can be believed about ours.

use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    client::{HttpClient, Reply},
    cluster::Endpoint,
    fault::FaultClass,
};

/// What is tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum System {
    /// Our own servers.
    #[default]
    Quorate,
    /// etcd 3.4 or later, by its JSON gateway.
    Etcd,
}

/// What a server says about leadership; both sides are in the system's own terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// Who it is itself.
    pub(crate) own: String,
    /// Who leads.
    pub(crate) leader: String,
}

impl System {
    /// The name of its server binary.
    pub(crate) fn binary(self) -> &'static str {
        match self {
            Self::Quorate => "quorate",
            Self::Etcd => "etcd",
        }
    }

    /// The arguments of server number `server`.
    pub(crate) fn arguments(
        self,
        directory: &Path,
        endpoints: &[Endpoint],
        server: usize,
    ) -> Vec<String> {
        let endpoint = &endpoints[server];
        match self {
            Self::Quorate => {
                let config = directory.join("server.toml");
                vec!["server".to_owned(), "--config".to_owned(), config.display().to_string()]
            }
            Self::Etcd => {
                let url = |address: SocketAddr| format!("http://{address}");
                let peers: Vec<String> = endpoints
                    .iter()
                    .map(|endpoint| format!("{}={}", endpoint.name, url(endpoint.rpc)))
                    .collect();
                let data = directory.join("data").join("etcd").display().to_string();
                [
                    ("--name", endpoint.name.clone()),
                    ("--data-dir", data),
                    ("--listen-client-urls", url(endpoint.http)),
                    ("--advertise-client-urls", url(endpoint.http)),
                    ("--listen-peer-urls", url(endpoint.rpc)),
                    ("--initial-advertise-peer-urls", url(endpoint.rpc)),
                    ("--initial-cluster", peers.join(",")),
                    ("--initial-cluster-state", "new".to_owned()),
                    ("--heartbeat-interval", "100".to_owned()),
                    ("--election-timeout", "500".to_owned()),
                    ("--snapshot-count", "1000".to_owned()),
                ]
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value])
                .collect()
            }
        }
    }

    /// What a server says about leadership, if it answers and knows a leader.
    pub(crate) fn leadership(self, endpoint: &Endpoint, client: &HttpClient) -> Option<Leadership> {
        match self {
            Self::Quorate => {
                let leader = client.leader()?;
                Some(Leadership { own: endpoint.rpc.to_string(), leader })
            }
            Self::Etcd => {
                let Reply::Answer { status: 200, body, .. } =
                    client.post("/v3/maintenance/status", &json!({}))
                else {
                    return None;
                };
                let status: Value = serde_json::from_str(&body).ok()?;
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let leader = text(&status["leader"]).filter(|leader| leader != "0")?;
                Some(Leadership { own: text(&status["header"]["member_id"])?, leader })
            }
        }
    }

    /// Why a fault cannot be done to this system, if so.
    pub(crate) fn bars(self, class: FaultClass, namespaces: bool) -> Option<String> {
        use FaultClass::{Delay, HalfOpen, Loss, Partition};
        let of_links = matches!(class, Partition | Delay | Loss | HalfOpen);
        (self == Self::Etcd && of_links && !namespaces).then(|| {
            "etcd's members reach each other by the addresses that they advertise, past the proxies: use --net namespaces".to_owned()
        })
    }

    /// How a server is asked to hand leadership to another; the path and whether it is a PUT.
    pub(crate) fn transfer_path(self, to: &Endpoint) -> Option<String> {
        match self {
            Self::Quorate => {
                Some(format!("/v1/operator/raft/transfer-leadership?address={}", to.rpc))
            }
            Self::Etcd => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_etcd_member_is_told_the_same_cluster() {
        let endpoint = |number: u16| Endpoint {
            name: format!("n{number}"),
            http: SocketAddr::from(([127, 0, 0, 1], 1000 + number)),
            rpc: SocketAddr::from(([127, 0, 0, 1], 2000 + number)),
        };
        let endpoints = [endpoint(1), endpoint(2), endpoint(3)];
        let told = |server| {
            let arguments = System::Etcd.arguments(Path::new("/x"), &endpoints, server);
            let place = arguments.iter().position(|flag| flag == "--initial-cluster");
            place.map(|place| arguments[place + 1].clone())
        };
        assert_eq!(
            told(0).as_deref(),
            Some("n1=http://127.0.0.1:2001,n2=http://127.0.0.1:2002,n3=http://127.0.0.1:2003")
        );
        assert_eq!(told(0), told(2));
    }
}
