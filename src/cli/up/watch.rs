//! What the cluster looks like: asked in a thread of its own, so that a server that hangs never
//! delays a Ctrl-C.
//!
//! Owns one picture, replaced as a whole. Must never write to the cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::bail;
use shapes::AllocationStub;

use super::children::Children;
use super::layout::{Layout, Member, Role};
use crate::{
    cli::alloc::port_list,
    cli::client::{Client, ClientError, Target},
    cli::context::Context,
    cli::output::{short_id, table},
    cli::view::{Fields, rows, shape},
};

/// Allocations drawn; a block higher than the terminal cannot be drawn anew.
const ALLOCATIONS_SHOWN: usize = 10;

/// One look at the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Picture {
    /// Servers that answer at all.
    pub(super) answering: usize,
    /// The leading server's name.
    pub(super) leader: Option<String>,
    pub(super) ready_nodes: usize,
    /// Newest first, those that ended last.
    allocations: Vec<AllocationLine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllocationLine {
    id: String,
    name: String,
    node: String,
    status: String,
    address: String,
}

impl AllocationLine {
    fn new(row: &AllocationStub) -> Self {
        let shown = |(label, address): (String, String)| match label.as_str() {
            "http" => format!("http://{address}"),
            _ => format!("{label}={address}"),
        };
        let addresses: Vec<String> = port_list(row).into_iter().map(shown).collect();
        let status = match (row.desired_status.as_str(), row.client_status.as_str()) {
            ("stop" | "evict", status @ ("running" | "pending")) => format!("{status}, stopping"),
            (_, status) => status.to_owned(),
        };
        Self {
            id: short_id(&row.id),
            name: row.name.clone(),
            node: row.node_name.clone(),
            status,
            address: addresses.join(" "),
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "complete" | "failed" | "lost")
    }
}

impl Picture {
    /// The block that a terminal shows.
    pub(super) fn table(&self, layout: &Layout, children: &Children) -> Vec<String> {
        let members = layout.members().iter().map(|member| self.member_line(member, children));
        let members: Vec<Vec<String>> = members.collect();
        let mut text = table(&["Process", "State", "PID", "HTTP", "gRPC"], &members);
        text.push_str("\n\n");
        if self.allocations.is_empty() {
            text.push_str("Nothing runs yet; register a job with: quorate job run FILE");
        } else {
            let shown = self.allocations.iter().take(ALLOCATIONS_SHOWN);
            let lines: Vec<Vec<String>> = shown
                .map(|line| {
                    [&line.id, &line.name, &line.node, &line.status, &line.address]
                        .map(Clone::clone)
                        .to_vec()
                })
                .collect();
            text.push_str(&table(&["Allocation", "Name", "Node", "Status", "Address"], &lines));
        }
        let more = self.allocations.len().saturating_sub(ALLOCATIONS_SHOWN);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if more > 0 {
            lines.push(format!("… and {more} more"));
        }
        lines
    }

    fn member_line(&self, member: &Member, children: &Children) -> Vec<String> {
        let pid = children.pid(&member.name);
        let state = match (member.role, pid) {
            (_, None) => "dead",
            (Role::Server, Some(_)) if self.leader.as_ref() == Some(&member.name) => "leader",
            (Role::Server, Some(_)) => "running",
            (Role::Agent, Some(_)) if self.ready_nodes > 0 => "ready",
            (Role::Agent, Some(_)) => "starting",
        };
        let address = |wanted: &str| {
            let found = member.listens.iter().find(|(purpose, _)| *purpose == wanted);
            found.map_or_else(|| "-".to_owned(), |(_, address)| address.to_string())
        };
        let pid = pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        vec![member.name.clone(), state.to_owned(), pid, address("HTTP"), address("gRPC")]
    }

    /// Lines about what is different, for output that is not a terminal.
    pub(super) fn changes_since(&self, last: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.leader != last.leader && *last != Self::default() {
            lines.push(match &self.leader {
                Some(leader) => format!("Leader is {leader}"),
                None => "No leader".to_owned(),
            });
        }
        let known: BTreeMap<&str, &AllocationLine> =
            last.allocations.iter().map(|line| (line.id.as_str(), line)).collect();
        for line in &self.allocations {
            if known.get(line.id.as_str()).is_none_or(|was| was.status != line.status) {
                let AllocationLine { id, name, node, status, address } = line;
                let text = format!("Allocation {id} {name} on {node}: {status} {address}");
                lines.push(text.trim_end().to_owned());
            }
        }
        lines
    }
}

/// Looks at the cluster again and again.
pub(super) struct Watcher {
    /// What a context for one of the servers is made from.
    context: Context,
    /// Invariant: not empty.
    servers: Arc<Vec<(Member, Client)>>,
    latest: Arc<Mutex<Picture>>,
    stopping: Arc<AtomicBool>,
}

impl Watcher {
    pub(super) fn new(context: &Context, layout: &Layout) -> anyhow::Result<Self> {
        let servers =
            layout.members().iter().filter_map(|member| Some((member, member.http_url()?)));
        let servers = servers
            .map(|(member, url)| {
                let target = Target { address: url, ..Target::default() };
                Ok((member.clone(), Client::new(target)?))
            })
            .filter(|server| server.as_ref().is_ok_and(|(member, _)| member.role == Role::Server))
            .collect::<Result<Vec<(Member, Client)>, ClientError>>()?;
        if servers.len() < layout.server_count() {
            bail!("the servers' HTTP addresses must have ports of their own, not 0");
        }
        let servers = Arc::new(servers);
        let watcher = Self {
            context: context.clone(),
            servers: Arc::clone(&servers),
            latest: Arc::default(),
            stopping: Arc::default(),
        };
        let (latest, stopping) = (Arc::clone(&watcher.latest), Arc::clone(&watcher.stopping));
        let pause = context.poll_interval;
        thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let mut first = 0;
            while !stopping.load(Ordering::Relaxed) {
                let picture = look(&servers, &mut first);
                *latest.lock().expect("no thread panics while it looks") = picture;
                thread::sleep(pause);
            }
        })?;
        Ok(watcher)
    }

    /// The newest picture.
    pub(super) fn latest(&self) -> Picture {
        self.latest.lock().expect("no thread panics while it looks").clone()
    }

    /// The URL of the first server.
    pub(super) fn address(&self) -> &str {
        self.servers[0].1.address()
    }

    /// For asking the leader, or the first server while none is known.
    pub(super) fn leader_context(&self) -> Context {
        let leader = self.latest().leader;
        let found = self.servers.iter().find(|(member, _)| Some(&member.name) == leader.as_ref());
        let (_, client) = found.unwrap_or(&self.servers[0]);
        Context { client: client.clone(), ..self.context.clone() }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// Asks every server who leads, and the first that knows what runs. `first` remembers which server
/// answered last.
fn look(servers: &[(Member, Client)], first: &mut usize) -> Picture {
    let mut picture = Picture::default();
    for step in 0..servers.len() {
        let index = (*first + step) % servers.len();
        let (_, client) = &servers[index];
        match client.get("/v1/status/leader", &[]) {
            Ok(answer) => {
                picture.answering += 1;
                let address = answer.as_str().unwrap_or_default();
                if let (None, Some(leader)) = (&picture.leader, named(servers, address)) {
                    picture.leader = Some(leader);
                    *first = index;
                }
            }
            Err(ClientError::Status { .. }) => picture.answering += 1,
            Err(_) => {}
        }
    }
    if picture.leader.is_some() {
        let (_, client) = &servers[*first];
        // A failure here is shown as an empty table and asked again shortly.
        if let Ok(answer) = client.get("/v1/nodes", &[]) {
            picture.ready_nodes =
                rows(&answer).iter().filter(|node| node.text("Status") == "ready").count();
        }
        if let Ok(answer) =
            client.get("/v1/allocations", &[("namespace", "*"), ("resources", "true")])
            && let Ok(allocations) = shape(&answer)
        {
            picture.allocations = allocation_lines(allocations);
        }
    }
    picture
}

fn named(servers: &[(Member, Client)], advertised: &str) -> Option<String> {
    servers
        .iter()
        .find(|(member, _)| member.advertise.as_deref() == Some(advertised))
        .map(|(member, _)| member.name.clone())
}

fn allocation_lines(mut allocations: Vec<AllocationStub>) -> Vec<AllocationLine> {
    allocations.sort_by_key(|row| (std::cmp::Reverse(row.create_index), row.name.clone()));
    let mut lines: Vec<AllocationLine> = allocations.iter().map(AllocationLine::new).collect();
    lines.sort_by_key(AllocationLine::is_over);
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Picture, allocation_lines};

    #[test]
    fn only_changes_are_printed_and_ended_allocations_come_last() {
        let row = |id: &str, index: u32, status: &str| {
            let row = json!({"ID": id, "Name": format!("web.web[{index}]"), "NodeName": "agent-1",
                "CreateIndex": index, "DesiredStatus": "run", "ClientStatus": status,
                "AllocatedResources": {"Shared": {"Ports":
                    [{"Label": "http", "Value": 25000, "HostIP": "127.0.0.1"}]}}});
            serde_json::from_value(row).expect("it is read")
        };
        let picture = |statuses: [&str; 2]| Picture {
            leader: Some("server-1".to_owned()),
            allocations: allocation_lines(vec![
                row("aaaaaaaa-1", 1, statuses[0]),
                row("bbbbbbbb-1", 2, statuses[1]),
            ]),
            ..Picture::default()
        };
        let first = picture(["pending", "complete"]);
        assert_eq!(
            first.changes_since(&Picture::default()),
            [
                "Allocation aaaaaaaa web.web[1] on agent-1: pending http://127.0.0.1:25000",
                "Allocation bbbbbbbb web.web[2] on agent-1: complete http://127.0.0.1:25000"
            ]
        );
        let second = Picture { leader: None, ..picture(["running", "complete"]) };
        assert_eq!(
            second.changes_since(&first),
            [
                "No leader",
                "Allocation aaaaaaaa web.web[1] on agent-1: running http://127.0.0.1:25000"
            ]
        );
        assert!(second.changes_since(&second).is_empty());
    }
}
