//! gRPC for node agents. Any server answers; registrations, reports and heartbeats go on to the
//! leader, allocations come from the local state.

mod stream;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fsm::{
    AllocationId, Command, DeploymentId, Index, InstanceId, NodeId, Reply, State, TaskEvent,
    TaskState, Text,
    allocation::{ClientUpdate, NodeReport},
    limits,
    node::{
        AgentStart, Driver, InstanceProof, NodeDescription, NodeReadiness, NodeResources,
        NodeShortage, RegisterNode,
    },
    resources::Resources,
};
use futures_util::{StreamExt, future::BoxFuture, stream::BoxStream};
use ground::{
    caller::{Caller, Way},
    rt::mpsc,
};
use proto::v1 as pb;
use tonic::{Request, Response, Status};
use wire::{
    api::{AgentApi, Answer, ReadMode, Rivalry, Written},
    rpc::words,
};

use super::caller_of;

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a heartbeat's answer waits for the entry of what it says: less than an agent waits for
/// the answer.
const SHORTAGE_TIMEOUT: Duration = Duration::from_secs(3);
/// Batches that wait for a slow agent.
const BATCHES_MAX: usize = 4;
/// Longest text an agent may send in a field, bytes.
const TEXT_BYTES_MAX: usize = 4_096;
/// Attributes or meta entries of a node.
const MAP_MAX: usize = 1_000;

/// Asks the agent at an address for its start.
pub type AskStart = Arc<dyn Fn(Rivalry) -> BoxFuture<'static, Option<[u8; 16]>> + Send + Sync>;

/// The gRPC service for node agents.
#[derive(Clone)]
pub struct AgentService {
    api: Arc<dyn AgentApi>,
    /// A simulated network has no agents to ask.
    ask_start: Option<AskStart>,
}

fn node_id(bytes: &[u8]) -> Result<NodeId, Status> {
    NodeId::from_slice(bytes).ok_or_else(|| Status::invalid_argument("node id must be 16 bytes"))
}

fn sixteen(bytes: &[u8], what: &str) -> Result<[u8; 16], Status> {
    bytes.try_into().map_err(|_| Status::invalid_argument(format!("{what} must be 16 bytes")))
}

fn text(value: &str, what: &str) -> Result<Text, Status> {
    if value.len() > TEXT_BYTES_MAX {
        let message = format!("{what} is longer than {TEXT_BYTES_MAX} bytes");
        return Err(Status::invalid_argument(message));
    }
    Ok(value.into())
}

fn map<'a>(
    entries: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
    what: &str,
) -> Result<BTreeMap<Text, Text>, Status> {
    if entries.len() > MAP_MAX {
        return Err(Status::invalid_argument(format!("{what} has more than {MAP_MAX} entries")));
    }
    entries.map(|(key, value)| Ok((text(key, what)?, text(value, what)?))).collect()
}

fn port(value: u32, what: &str) -> Result<u16, Status> {
    u16::try_from(value)
        .map_err(|_| Status::invalid_argument(format!("{what}: {value} is no port")))
}

fn description(request: &pb::RegisterRequest) -> Result<NodeDescription, Status> {
    let resources = request.resources.clone().unwrap_or_default();
    let reserved = request.reserved.clone().unwrap_or_default();
    let mut reserved_ports = Vec::new();
    for value in reserved.ports {
        reserved_ports.push(port(value, "reserved port")?);
    }
    reserved_ports.sort_unstable();
    if request.name.is_empty() || request.datacenter.is_empty() {
        return Err(Status::invalid_argument("a node needs a name and a datacenter"));
    }
    let mut drivers = BTreeMap::new();
    let sorted: BTreeMap<_, _> = request.drivers.iter().collect();
    for (name, driver) in sorted {
        let driver = Driver {
            detected: driver.detected,
            healthy: driver.healthy,
            description: text(&driver.description, "driver")?,
            attributes: map(driver.attributes.iter(), "driver attributes")?,
        };
        drivers.insert(text(name, "driver")?, driver);
    }
    let pool = if request.node_pool.is_empty() { "default" } else { &request.node_pool };
    Ok(NodeDescription {
        name: text(&request.name, "name")?,
        datacenter: text(&request.datacenter, "datacenter")?,
        class: text(&request.node_class, "node class")?,
        pool: text(pool, "node pool")?,
        attributes: map(request.attributes.iter(), "attributes")?,
        meta: map(request.meta.iter(), "meta")?,
        resources: NodeResources {
            total: Resources {
                cpu_mhz: resources.cpu_mhz,
                memory_mb: resources.memory_mb,
                disk_mb: resources.disk_mb,
            },
            reserved: Resources {
                cpu_mhz: reserved.cpu_mhz,
                memory_mb: reserved.memory_mb,
                disk_mb: reserved.disk_mb,
            },
            reserved_ports,
            dynamic_port_min: port(resources.dynamic_port_min, "dynamic port")?,
            dynamic_port_max: port(resources.dynamic_port_max, "dynamic port")?,
            cores: resources.cores,
            address: text(&resources.address, "address")?,
            allocations_max: request.allocations_max,
        },
        drivers,
        http_address: text(&request.http_address, "http address")?,
        version: text(&request.version, "version")?,
        start: AgentStart { nonce: start(&request.start)?, rival: Text::default() },
    })
}

fn start(bytes: &[u8]) -> Result<[u8; 16], Status> {
    if bytes.is_empty() { Ok([0; 16]) } else { sixteen(bytes, "start") }
}

/// The instance that the agent says it is; a machine of no pool says nothing.
fn instance_proof(request: &pb::RegisterRequest) -> Result<Option<InstanceProof>, Status> {
    if request.instance_id.is_empty() && request.instance_token.is_empty() {
        return Ok(None);
    }
    let id = sixteen(&request.instance_id, "instance id")?;
    let token = sixteen(&request.instance_token, "instance token")?;
    Ok(Some(InstanceProof { id: InstanceId(id), token }))
}

/// The index of a write; an error if it was rejected.
fn accepted(written: &Written) -> Result<Index, Status> {
    let Reply::Rejected(rejection) = &written.reply else { return Ok(written.index) };
    Err(Status::new(Answer::from(rejection).grpc, rejection.to_string()))
}

impl AgentService {
    /// The service over a server.
    pub fn new(api: Arc<dyn AgentApi>, ask_start: Option<AskStart>) -> Self {
        Self { api, ask_start }
    }

    /// The address of the agent that is this node and lives, when it is another start than the one
    /// that registers. An agent that was started again finds its own predecessor gone.
    async fn rival(&self, node: NodeId, description: &NodeDescription) -> Option<Text> {
        let ask = self.ask_start.as_ref()?;
        let known = self.api.published().load().nodes().get(&node)?.description.clone();
        let (old, new) = (known.start.nonce, description.start.nonce);
        if old == new || old == [0; 16] || known.http_address.is_empty() {
            return None;
        }
        let rivalry = Rivalry {
            address: known.http_address.to_string(),
            start: old,
            newcomer: description.http_address.to_string(),
        };
        (ask(rivalry).await == Some(old)).then(|| known.http_address.clone())
    }

    /// Proposes what a heartbeat says of the machine, if that is new here. What does not become an
    /// entry comes again with the next heartbeat.
    async fn note_shortage(&self, caller: &Caller, request: &pb::HeartbeatRequest) {
        let Some(node) = NodeId::from_slice(&request.node_id) else { return };
        let said = &request.shortage;
        let said = &said[..said.floor_char_boundary(limits::NODE_REASON_BYTES_MAX)];
        let state = self.api.published().load();
        let Some(row) = state.nodes().get(&node) else { return };
        let known = row.shortage.as_ref().map_or("", |shortage| &*shortage.reason);
        if row.incarnation != request.incarnation || known == said {
            return;
        }
        let command = Command::from(NodeShortage {
            node,
            incarnation: request.incarnation,
            reason: said.into(),
            evaluation_ids: Vec::new(),
        });
        match self.api.write(caller, command, None, SHORTAGE_TIMEOUT).await.map(|done| done.reply) {
            Ok(Reply::Rejected(why)) => tracing::debug!(%node, %why, "a shortage is not noted"),
            Ok(_) => {}
            Err(error) => tracing::debug!(%node, %error, "a shortage is not noted yet"),
        }
    }
}

#[tonic::async_trait]
impl pb::agent_server::Agent for AgentService {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Result<Response<pb::RegisterReply>, Status> {
        let caller = caller_of(Way::Agent, &request);
        let request = request.into_inner();
        let node = node_id(&request.node_id)?;
        let mut described = description(&request)?;
        if let Some(rival) = self.rival(node, &described).await {
            let newcomer = &*described.http_address;
            tracing::warn!(%node, newcomer, rival = &*rival,
                "two agents have one folder: the one that registers is refused");
            described.start.rival = rival;
        }
        let command = Command::from(RegisterNode {
            instance: instance_proof(&request)?,
            node,
            secret: sixteen(&request.secret, "secret")?,
            identity: sixteen(&request.identity, "identity")?,
            description: Arc::new(described),
            evaluation_ids: Vec::new(),
        });
        let written = self.api.write(&caller, command, None, TIMEOUT).await?;
        let index = accepted(&written)?;
        let Reply::Node { incarnation, .. } = written.reply else {
            return Err(Status::internal("unexpected reply to a registration"));
        };
        // The exact TTL comes with the heartbeat that follows, once the leader knows the node.
        let heartbeat_ttl_ms = self.api.heartbeat_ttl_ms_min();
        let members = self.api.members();
        Ok(Response::new(pb::RegisterReply {
            incarnation,
            heartbeat_ttl_ms,
            servers: members.iter().map(|member| member.rpc_address.clone()).collect(),
            http_servers: members.into_iter().map(|member| member.http_address).collect(),
            index,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<pb::HeartbeatRequest>,
    ) -> Result<Response<pb::HeartbeatReply>, Status> {
        let caller = caller_of(Way::Agent, &request);
        let request = request.into_inner();
        let reply = self.api.heartbeat(&caller, request.clone()).await?;
        self.note_shortage(&caller, &request).await;
        Ok(Response::new(reply))
    }

    async fn ready(
        &self,
        request: Request<pb::ReadyRequest>,
    ) -> Result<Response<pb::ReadyReply>, Status> {
        let caller = caller_of(Way::Agent, &request);
        let request = request.into_inner();
        let command = Command::from(NodeReadiness {
            node: node_id(&request.node_id)?,
            incarnation: request.incarnation,
            readiness: words::readiness(request.readiness)?,
            reason: text(&request.reason, "reason")?,
            sequence: request.sequence,
            evaluation_ids: Vec::new(),
        });
        let written = self.api.write(&caller, command, None, TIMEOUT).await?;
        Ok(Response::new(pb::ReadyReply { index: accepted(&written)? }))
    }

    type StreamAllocationsStream = BoxStream<'static, Result<pb::AllocationBatch, Status>>;

    async fn stream_allocations(
        &self,
        request: Request<pb::StreamAllocationsRequest>,
    ) -> Result<Response<Self::StreamAllocationsStream>, Status> {
        let caller = caller_of(Way::Agent, &request);
        let request = request.into_inner();
        let node = node_id(&request.node_id)?;
        let (sender, receiver) = mpsc::channel(BATCHES_MAX);
        let api = Arc::clone(&self.api);
        ground::rt::spawn(async move {
            let pushed = stream::push_allocations(&*api, &caller, node, &request, &sender);
            if let Err(status) = pushed.await {
                drop(sender.send(Err(status)).await);
            }
        });
        Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(receiver).boxed()))
    }

    async fn update_allocations(
        &self,
        request: Request<pb::UpdateAllocationsRequest>,
    ) -> Result<Response<pb::UpdateAllocationsReply>, Status> {
        let caller = caller_of(Way::Agent, &request);
        let request = request.into_inner();
        let node = node_id(&request.node_id)?;
        drop(state_that_knows(&*self.api, &caller, node, request.incarnation).await?);
        let updates =
            request.statuses.into_iter().map(client_update).collect::<Result<Vec<_>, _>>()?;
        let report = NodeReport {
            node,
            incarnation: request.incarnation,
            updates,
            evaluation_ids: Vec::new(),
        };
        let written = self.api.report(&caller, report).await?;
        // The entry holds the reports of many nodes and is rejected only as a whole: each agent
        // then sends its report again.
        Ok(Response::new(pb::UpdateAllocationsReply { index: accepted(&written)? }))
    }
}

fn client_update(status: pb::AllocationStatus) -> Result<ClientUpdate, Status> {
    let id = AllocationId::from_slice(&status.id);
    let id = id.ok_or_else(|| Status::invalid_argument("allocation id must be 16 bytes"))?;
    let client = words::client_status(status.client_status)?;
    let node_failure = text(&status.node_failure, "node failure")?;
    let node_failure = Some(node_failure).filter(|why| !why.is_empty());
    if status.same_tasks && !status.tasks.is_empty() {
        return Err(Status::invalid_argument("tasks that are the same as before are left out"));
    }
    let mut tasks = BTreeMap::new();
    for (name, task) in status.tasks.into_iter().collect::<BTreeMap<_, _>>() {
        let excess = task.events.len().saturating_sub(fsm::limits::TASK_EVENTS_MAX);
        let events: Vec<TaskEvent> = task
            .events
            .into_iter()
            .skip(excess)
            .map(|event| {
                Ok(TaskEvent {
                    kind: text(&event.kind, "event")?,
                    at_ms: event.at_ms,
                    message: text(&event.message, "event")?,
                    exit_code: event.exit_code,
                    signal: event.signal,
                })
            })
            .collect::<Result<_, Status>>()?;
        let state = TaskState {
            state: words::task_phase(task.phase)?.into(),
            failed: task.failed,
            restarts: task.restarts,
            started_at_ms: task.started_at_ms,
            finished_at_ms: task.finished_at_ms,
            last_restart_ms: task.last_restart_ms,
            events,
        };
        tasks.insert(text(&name, "task")?, state);
    }
    let deployment = DeploymentId::from_slice(&status.deployment_id);
    Ok(ClientUpdate {
        health: deployment.zip(status.healthy),
        id,
        sequence: status.sequence,
        status: client,
        description: text(&status.description, "description")?,
        tasks: (!status.same_tasks).then_some(tasks),
        node_failure,
    })
}

/// A state in which the node has this incarnation. A server that lags does a linearizable read
/// before it denies that the node is registered: otherwise the agent would register again for
/// nothing as long as the server lags.
async fn state_that_knows(
    api: &dyn AgentApi,
    caller: &Caller,
    node: NodeId,
    incarnation: u64,
) -> Result<Arc<State>, Status> {
    let known = |state: &State| state.nodes().get(&node).map(|row| row.incarnation);
    let mut state = api.published().load();
    if known(&state).is_none_or(|found| found < incarnation) {
        state = api.read(caller, ReadMode::Linearizable, 0, TIMEOUT).await?.state;
    }
    match known(&state) {
        Some(found) if found == incarnation => Ok(state),
        Some(_) => Err(Status::not_found("another incarnation of the node is registered")),
        None => Err(Status::not_found("node not found")),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn an_instance_is_proved_by_both_fields_or_not_at_all() {
        let proof = |id: usize, token: usize| {
            let request = pb::RegisterRequest {
                instance_id: vec![1; id].into(),
                instance_token: vec![2; token].into(),
                ..Default::default()
            };
            instance_proof(&request)
        };
        assert!(matches!(proof(0, 0), Ok(None)));
        let shown = InstanceProof { id: InstanceId([1; 16]), token: [2; 16] };
        assert!(matches!(proof(16, 16), Ok(Some(found)) if found == shown));
        for (id, token, message) in [
            (16, 0, "instance token must be 16 bytes"),
            (0, 16, "instance id must be 16 bytes"),
            (15, 16, "instance id must be 16 bytes"),
            (16, 17, "instance token must be 16 bytes"),
        ] {
            let refused = proof(id, token).expect_err("malformed");
            assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, message));
        }
    }

    #[test]
    fn a_write_that_was_refused_is_not_acknowledged() {
        let written = |reply| Written { index: 7, reply };
        let taken = accepted(&written(Reply::Evaluations(Vec::new())));
        assert_eq!(taken.map_err(|status| status.code()), Ok(7));
        let refused = Reply::Rejected(fsm::Rejection::SessionExpired);
        let refused = accepted(&written(refused)).map_err(|status| status.code());
        assert_eq!(refused, Err(Code::FailedPrecondition), "the agent sends it again");
    }
}
