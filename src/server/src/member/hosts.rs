//! Whether all servers run on one host. A provider of kind `process` needs that: its machines are
//! on the host of the server that makes them, and the next leader has to find them there.
//!
//! A server says in its answers to probes which boot of its host it runs in.

use std::collections::BTreeMap;

use fsm::NodeId;

use crate::member::{census::PROBE_TIMEOUT, contact::Contact, settings::BootId};

const REMEDY: &str = "run all servers on one host, or use a provider of kind exec";
/// Characters of a boot id that are shown.
const SHOWN: usize = 8;

/// Why machines must not be processes of the servers' host: the servers are known to run on several
/// hosts. A server that has not said where it runs is no reason.
pub(crate) fn several(contact: &Contact) -> Option<String> {
    let mut servers = contact.member_infos();
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    let mut names: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for server in servers {
        if let Some(boot) = contact.boot_of(server.id) {
            names.entry(boot).or_default().push(server.name);
        }
    }
    if names.len() < 2 {
        return None;
    }
    let host = |(boot, names): (&BootId, &Vec<String>)| {
        let boot = NodeId(*boot).to_string();
        format!("{} in boot {}", names.join(", "), boot.get(..SHOWN).unwrap_or(&boot))
    };
    let hosts: Vec<String> = names.iter().map(host).collect();
    let found = hosts.join("; ");
    Some(format!("its machines need one host, and the servers have several: {REMEDY} ({found})"))
}

/// Fails unless every server has said where it runs, and all say the same. A server that has not
/// said is asked.
pub(crate) async fn require_one(contact: &Contact) -> Result<(), String> {
    let unknown = || {
        let servers = contact.member_infos().into_iter();
        servers.filter(|server| contact.boot_of(server.id).is_none())
    };
    let asked = unknown().filter(|server| server.id != contact.id).map(|server| async move {
        contact.hear(server.id, &server.rpc_address, PROBE_TIMEOUT).await;
    });
    futures_util::future::join_all(asked).await;
    if let Some(why) = several(contact) {
        return Err(why);
    }
    let names: Vec<String> = unknown().map(|server| server.name).collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    Err(format!(
        "its machines need one host, and {names} did not say where it runs: start it and try again, or use a provider of kind exec"
    ))
}
