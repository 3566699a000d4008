//! gRPC for node agents. Any server answers; registrations, reports and heartbeats go on to the leader, allocations come from the local state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fsm::{
    Allocation, AllocationId, ClientStatus, Command, Index, JobSpec, Liveness, NodeId, Reply,
    State, TaskEvent, TaskState, Text,
    command::{ClientUpdate, NodeReport, Readiness},
    job::RestartPolicy,
    node::{Driver, NodeDescription, NodeResources},
    resources::Resources,
};
use futures_util::{StreamExt, stream::BoxStream};
use proto::v1 as pb;
use tonic::{Code, Request, Response, Status};

use crate::{
    rt::mpsc,
    server::{
        Core,
        api::{Api, ApiError, ReadMode},
        heartbeat_for_agent,
    },
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Batches that wait for a slow agent.
const BATCHES_MAX: usize = 4;
/// Allocations in one message.
const BATCH_MAX: usize = 500;
/// Longest text an agent may send in a field, bytes.
const TEXT_BYTES_MAX: usize = 4_096;
/// Attributes or meta entries of a node.
const MAP_MAX: usize = 1_000;

/// The service.
#[derive(Clone)]
pub struct AgentService(pub Arc<Core>);

fn node_id(bytes: &[u8]) -> Result<NodeId, Status> {
    NodeId::from_slice(bytes).ok_or_else(|| Status::invalid_argument("node id must be 16 bytes"))
}

fn sixteen(bytes: &[u8], what: &str) -> Result<[u8; 16], Status> {
    bytes.try_into().map_err(|_| Status::invalid_argument(format!("{what} must be 16 bytes")))
}

fn status_of(error: ApiError) -> Status {
    let code = match &error {
        ApiError::Overloaded { .. } => Code::ResourceExhausted,
        ApiError::Invalid(_) => Code::InvalidArgument,
        ApiError::NoLeader
        | ApiError::Timeout { .. }
        | ApiError::Unknown
        | ApiError::NotReady(_)
        | ApiError::DiskFull(_) => Code::Unavailable,
    };
    Status::new(code, error.to_string())
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
    })
}

fn rejected(reply: &Reply) -> Option<Status> {
    let Reply::Rejected(rejection) = reply else { return None };
    let code = match rejection {
        fsm::Rejection::NotFound { .. } | fsm::Rejection::StaleIncarnation => Code::NotFound,
        fsm::Rejection::SecretMismatch => Code::PermissionDenied,
        fsm::Rejection::StaleEpoch { .. }
        | fsm::Rejection::SessionExpired
        | fsm::Rejection::RequestIdReused
        | fsm::Rejection::JobIndexConflict { .. }
        | fsm::Rejection::Invalid(_)
        | fsm::Rejection::InUse(_)
        | fsm::Rejection::RegistrationDisabled
        | fsm::Rejection::IndexConflict { .. } => Code::FailedPrecondition,
    };
    Some(Status::new(code, rejection.to_string()))
}

impl AgentService {
    fn servers(&self) -> Vec<String> {
        self.0.member_infos().into_iter().map(|member| member.rpc_address).collect()
    }
}

#[tonic::async_trait]
impl pb::agent_server::Agent for AgentService {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Result<Response<pb::RegisterReply>, Status> {
        let request = request.into_inner();
        let node = node_id(&request.node_id)?;
        let command = Command::RegisterNode {
            node,
            secret: sixteen(&request.secret, "secret")?,
            identity: sixteen(&request.identity, "identity")?,
            description: Arc::new(description(&request)?),
            evaluation_ids: Vec::new(),
        };
        let written = self.0.write(command, None, TIMEOUT).await.map_err(status_of)?;
        if let Some(status) = rejected(&written.reply) {
            return Err(status);
        }
        let Reply::Node { incarnation, .. } = written.reply else {
            return Err(Status::internal("unexpected reply to a registration"));
        };
        // The heartbeat right after tells the exact figure, once the leader knows the node.
        let heartbeat_ttl_ms = self.0.settings.heartbeat.ttl_ms_min;
        Ok(Response::new(pb::RegisterReply {
            incarnation,
            heartbeat_ttl_ms,
            servers: self.servers(),
            index: written.index,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<pb::HeartbeatRequest>,
    ) -> Result<Response<pb::HeartbeatReply>, Status> {
        heartbeat_for_agent(&self.0, request.get_ref()).await.map(Response::new)
    }

    async fn ready(
        &self,
        request: Request<pb::ReadyRequest>,
    ) -> Result<Response<pb::ReadyReply>, Status> {
        let request = request.into_inner();
        let command = Command::NodeReadiness {
            node: node_id(&request.node_id)?,
            incarnation: request.incarnation,
            readiness: Readiness::Ok,
            evaluation_ids: Vec::new(),
        };
        let written = self.0.write(command, None, TIMEOUT).await.map_err(status_of)?;
        match rejected(&written.reply) {
            Some(status) => Err(status),
            None => Ok(Response::new(pb::ReadyReply { index: written.index })),
        }
    }

    type StreamAllocationsStream = BoxStream<'static, Result<pb::AllocationBatch, Status>>;

    async fn stream_allocations(
        &self,
        request: Request<pb::StreamAllocationsRequest>,
    ) -> Result<Response<Self::StreamAllocationsStream>, Status> {
        let request = request.into_inner();
        let node = node_id(&request.node_id)?;
        let (sender, receiver) = mpsc::channel(BATCHES_MAX);
        let core = Arc::clone(&self.0);
        crate::rt::spawn(async move {
            if let Err(status) = push_allocations(&core, node, request.incarnation, &sender).await {
                drop(sender.send(Err(status)).await);
            }
        });
        Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(receiver).boxed()))
    }

    async fn update_allocations(
        &self,
        request: Request<pb::UpdateAllocationsRequest>,
    ) -> Result<Response<pb::UpdateAllocationsReply>, Status> {
        let request = request.into_inner();
        let node = node_id(&request.node_id)?;
        drop(state_that_knows(&self.0, node, request.incarnation).await?);
        let updates =
            request.statuses.into_iter().map(client_update).collect::<Result<Vec<_>, _>>()?;
        let report = NodeReport {
            node,
            incarnation: request.incarnation,
            updates,
            evaluation_ids: Vec::new(),
        };
        let written = self.0.reports().submit(report).await.map_err(status_of)?;
        Ok(Response::new(pb::UpdateAllocationsReply { index: written.index }))
    }
}

fn client_update(status: pb::AllocationStatus) -> Result<ClientUpdate, Status> {
    let id = AllocationId::from_slice(&status.id);
    let id = id.ok_or_else(|| Status::invalid_argument("allocation id must be 16 bytes"))?;
    let client = ClientStatus::parse(&status.client_status).ok_or_else(|| {
        Status::invalid_argument(format!("unknown client status {:?}", status.client_status))
    })?;
    let mut tasks = BTreeMap::new();
    let mut infrastructure_failure = false;
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
        infrastructure_failure |= client == ClientStatus::Failed
            && events.last().is_some_and(|event| &*event.kind == "Node Failure");
        let state = TaskState {
            state: text(&task.state, "task state")?,
            failed: task.failed,
            restarts: task.restarts,
            started_at_ms: task.started_at_ms,
            finished_at_ms: task.finished_at_ms,
            last_restart_ms: task.last_restart_ms,
            events,
        };
        tasks.insert(text(&name, "task")?, state);
    }
    Ok(ClientUpdate {
        id,
        sequence: status.sequence,
        status: client,
        description: text(&status.description, "description")?,
        tasks,
        infrastructure_failure,
    })
}

/// A state in which the node has this incarnation. A server behind the others looks at the present before it denies that: an agent that is denied
/// registers again, and would do so for nothing as long as the server lags.
async fn state_that_knows(
    core: &Core,
    node: NodeId,
    incarnation: u64,
) -> Result<Arc<State>, Status> {
    let known = |state: &State| state.nodes.get(&node).map(|row| row.incarnation);
    let mut state = core.cell.load();
    if known(&state).is_none_or(|found| found < incarnation) {
        let read = core.read(ReadMode::Linearizable, 0, TIMEOUT).await;
        state = read.map_err(status_of)?.state;
    }
    match known(&state) {
        Some(found) if found == incarnation => Ok(state),
        Some(_) => Err(Status::not_found("another incarnation of the node is registered")),
        None => Err(Status::not_found("node not found")),
    }
}

/// Pushes the whole set once, then what changes, until the agent goes away or is another incarnation.
async fn push_allocations(
    core: &Core,
    node: NodeId,
    incarnation: u64,
    sender: &mpsc::Sender<Result<pb::AllocationBatch, Status>>,
) -> Result<(), Status> {
    let mut stop = core.stopping();
    let mut sent: BTreeMap<AllocationId, Index> = BTreeMap::new();
    let mut complete = true;
    let watch = core.cell.watch_node(node);
    loop {
        let changed = watch.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        let state = state_that_knows(core, node, incarnation).await?;
        let row = state.nodes.get(&node).ok_or_else(|| Status::not_found("node not found"))?;
        for batch in batches(&state, row, &mut sent, &mut complete) {
            if sender.send(Ok(batch)).await.is_err() {
                return Ok(());
            }
        }
        drop(state);
        crate::rt::select! {
            biased;
            () = crate::rt::until_true(&mut stop) => return Err(Status::unavailable("the server is stopping")),
            () = sender.closed() => return Ok(()),
            () = changed => {}
        }
    }
}

fn batches(
    state: &State,
    node: &fsm::Node,
    sent: &mut BTreeMap<AllocationId, Index>,
    complete: &mut bool,
) -> Vec<pb::AllocationBatch> {
    let mut news = Vec::new();
    let mut present = BTreeSet::new();
    for row in state.allocations_of_node(node.id) {
        if row.client.is_terminal() {
            // The servers gave it up while the node was silent, and it may run: its agent hears it once. What else has ended the agent has told.
            let given_up = row.client == ClientStatus::Lost && sent.contains_key(&row.id);
            if let (true, Some(spec)) = (given_up, state.allocation_spec(row)) {
                news.push(allocation(row, spec, node));
            }
            continue;
        }
        present.insert(row.id);
        if sent.get(&row.id) == Some(&row.server_modify_index) {
            continue;
        }
        let Some(spec) = state.allocation_spec(row) else { continue };
        sent.insert(row.id, row.server_modify_index);
        news.push(allocation(row, spec, node));
    }
    // An allocation that ended is not removed: the agent keeps its logs until it collects them itself. One that is gone from the state is.
    let gone: Vec<AllocationId> =
        sent.keys().filter(|id| !state.allocations.contains(id)).copied().collect();
    for id in &gone {
        sent.remove(id);
    }
    sent.retain(|id, _| present.contains(id));
    let index = state.head.index;
    let removed: Vec<_> = gone.iter().map(|id| id.0.to_vec().into()).collect();
    if *complete {
        *complete = false;
        return vec![pb::AllocationBatch { index, complete: true, allocations: news, removed }];
    }
    if news.is_empty() && removed.is_empty() {
        return Vec::new();
    }
    let mut batches: Vec<pb::AllocationBatch> = Vec::new();
    let mut removed = Some(removed);
    while !news.is_empty() || removed.is_some() {
        let rest = news.split_off(news.len().min(BATCH_MAX));
        let allocations = std::mem::replace(&mut news, rest);
        let removed = removed.take().unwrap_or_default();
        batches.push(pb::AllocationBatch { index, complete: false, allocations, removed });
    }
    batches
}

fn restart(policy: RestartPolicy) -> pb::RestartPolicy {
    pb::RestartPolicy {
        attempts: policy.attempts,
        interval_ms: policy.interval_ms,
        delay_ms: policy.delay_ms,
        fail: policy.fail,
    }
}

fn strings(maps: &[&BTreeMap<Text, Text>]) -> std::collections::HashMap<String, String> {
    let pairs = maps.iter().flat_map(|map| map.iter());
    pairs.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn allocation(row: &Allocation, spec: &JobSpec, node: &fsm::Node) -> pb::Allocation {
    let group = spec.group(&row.group);
    let tasks = group.map(|group| group.tasks.as_slice()).unwrap_or_default();
    pb::Allocation {
        id: row.id.0.to_vec().into(),
        namespace: row.job.namespace.to_string(),
        job_id: row.job.id.to_string(),
        job_name: spec.name.to_string(),
        job_type: spec.kind.name().to_owned(),
        job_version: row.job_version,
        group: row.group.to_string(),
        name: row.name(),
        name_index: row.name_index,
        run: row.is_live(),
        modify_index: row.server_modify_index,
        tasks: tasks
            .iter()
            .map(|task| pb::Task {
                name: task.name.to_string(),
                driver: task.driver.to_string(),
                user: task.user.to_string(),
                config_json: task.config_json.to_string(),
                env: strings(&[&task.env]),
                meta: strings(&[
                    &spec.meta,
                    group.map_or(&spec.meta, |group| &group.meta),
                    &task.meta,
                ]),
                cpu_mhz: task.resources.cpu_mhz,
                memory_mb: task.resources.memory_mb,
                memory_max_mb: task.resources.memory_mb_max,
                cores: 0,
                kill_timeout_ms: task.kill_timeout_ms,
                kill_signal: task.kill_signal.to_string(),
                leader: task.leader,
                shutdown_delay_ms: task.shutdown_delay_ms,
                restart: Some(restart(task.restart)),
                log_files_max: task.logs.files_max,
                log_file_mb_max: task.logs.file_mb_max,
            })
            .collect(),
        ports: row
            .ports
            .iter()
            .map(|port| pb::Port {
                label: port.label.to_string(),
                value: u32::from(port.value),
                to: u32::from(port.to),
            })
            .collect(),
        address: node.description.resources.address.to_string(),
        restart: group.map(|group| restart(group.restart)),
        disk_mb: group.map_or(0, |group| group.disk_mb),
        shutdown_delay_ms: group.map_or(0, |group| group.shutdown_delay_ms),
        region: spec.region.to_string(),
        datacenter: node.description.datacenter.to_string(),
        job_parent_id: String::new(),
        previous_id: row.previous.map(|id| id.0.to_vec()).unwrap_or_default().into(),
        eval_id: row.evaluation.0.to_vec().into(),
        meta: strings(&[&spec.meta, group.map_or(&spec.meta, |group| &group.meta)]),
        client_status: row.client.name().to_owned(),
        client_sequence: row.client_sequence,
        task_starts_allowed: node.liveness != Liveness::Down,
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        JobKind,
        testing::{self, Driver},
    };

    use super::*;

    /// What the stream of a node says of its allocations: whether each is to run.
    fn news(
        driver: &Driver,
        sent: &mut BTreeMap<AllocationId, Index>,
        complete: &mut bool,
    ) -> Vec<(bool, String)> {
        let node = driver.node_row("n1");
        let batches = batches(&driver.state, node, sent, complete);
        let all = batches.into_iter().flat_map(|batch| batch.allocations);
        all.map(|one| (one.run, one.client_status)).collect()
    }

    #[test]
    fn an_agent_that_was_silent_hears_once_what_was_given_up_meanwhile() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 2));
        let [first, second] = [0, 1].map(|number| driver.run("web", number, node));
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        let running = (true, "running".to_owned());
        assert_eq!(news(&driver, &mut sent, &mut complete), [running.clone(), running]);

        driver.liveness("n1", Liveness::Down);
        let evaluation = driver.evaluate_job("web");
        let lost = Some(ClientStatus::Lost);
        driver.commit_plan(driver.plan(evaluation).stopping(first, lost).stopping(second, lost));
        driver.liveness("n1", Liveness::Initializing);
        let given_up = (false, "lost".to_owned());
        assert_eq!(news(&driver, &mut sent, &mut complete), [given_up.clone(), given_up]);
        assert_eq!(news(&driver, &mut sent, &mut complete), []);
        // Whoever opens a stream now was never told of it and gets the whole set without it.
        assert_eq!(news(&driver, &mut BTreeMap::new(), &mut true), []);
    }

    #[test]
    fn what_an_agent_reported_as_ended_is_not_sent_back() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("work", JobKind::Batch, 1));
        let id = driver.run("work", 0, node);
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        assert_eq!(news(&driver, &mut sent, &mut complete).len(), 1);
        driver.report(id, ClientStatus::Complete);
        assert_eq!(news(&driver, &mut sent, &mut complete), []);
        assert_eq!(sent.len(), 0);
    }
}
