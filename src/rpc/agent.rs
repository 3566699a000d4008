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
use prost::Message;
use proto::v1 as pb;
use tonic::{Code, Request, Response, Status};

use crate::{
    rt::mpsc,
    server::{
        Core,
        api::{Api, ApiError, ReadMode, Written},
        heartbeat_for_agent,
    },
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stream waits for the state that its node was shown elsewhere.
const CATCH_UP: Duration = Duration::from_secs(2);
/// Between two looks at whether this server is still in touch.
const TOUCH_CHECK: Duration = Duration::from_secs(1);
/// Batches that wait for a slow agent.
const BATCHES_MAX: usize = 4;
/// Allocations in one message.
const BATCH_MAX: usize = 500;
/// Size of the allocations in one message, bytes; a single one may exceed it. Agents take 64 MiB.
const BATCH_BYTES_MAX: usize = 4 << 20;
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

/// The index of a write that was not refused.
fn accepted(written: &Written) -> Result<Index, Status> {
    rejected(&written.reply).map_or(Ok(written.index), Err)
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
        let index = accepted(&written)?;
        let Reply::Node { incarnation, .. } = written.reply else {
            return Err(Status::internal("unexpected reply to a registration"));
        };
        // The heartbeat right after tells the exact figure, once the leader knows the node.
        let heartbeat_ttl_ms = self.0.settings.heartbeat.ttl_ms_min;
        Ok(Response::new(pb::RegisterReply {
            incarnation,
            heartbeat_ttl_ms,
            servers: self.servers(),
            index,
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
        Ok(Response::new(pb::ReadyReply { index: accepted(&written)? }))
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
            if let Err(status) = push_allocations(&core, node, &request, &sender).await {
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
        // The entry holds the reports of many nodes and is refused as a whole, if at all: each of them sends its own again.
        Ok(Response::new(pb::UpdateAllocationsReply { index: accepted(&written)? }))
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

/// What an agent was told of an allocation.
#[derive(Clone, Copy)]
struct Told {
    modify_index: Index,
    starts_allowed: bool,
}

impl Told {
    /// Whether `now` is no news. Nor is it that nothing may be started any more: what was started goes on.
    fn covers(self, now: Self) -> bool {
        self.modify_index == now.modify_index && (self.starts_allowed || !now.starts_allowed)
    }
}

/// Pushes the whole set once, then what changes, until the agent goes away or is another incarnation, or until this server has lost touch with the
/// others: the agent would wait here for what it can only hear elsewhere.
async fn push_allocations(
    core: &Core,
    node: NodeId,
    request: &pb::StreamAllocationsRequest,
    sender: &mpsc::Sender<Result<pb::AllocationBatch, Status>>,
) -> Result<(), Status> {
    let mut stop = core.stopping();
    let out_of_touch = || Status::unavailable("this server has lost touch with the others");
    if !core.is_in_touch() {
        return Err(out_of_touch());
    }
    if !core.cell.wait_for(request.index_min, CATCH_UP).await {
        return Err(Status::unavailable("this server is behind what the node was shown"));
    }
    let mut sent = BTreeMap::new();
    let mut complete = true;
    let watch = core.cell.watch_node(node);
    loop {
        let changed = watch.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        let state = state_that_knows(core, node, request.incarnation).await?;
        let row = state.nodes.get(&node).ok_or_else(|| Status::not_found("node not found"))?;
        for batch in batches(&state, row, &mut sent, &mut complete) {
            if sender.send(Ok(batch)).await.is_err() {
                return Ok(());
            }
        }
        drop(state);
        loop {
            crate::rt::select! {
                biased;
                () = crate::rt::until_true(&mut stop) => return Err(Status::unavailable("the server is stopping")),
                () = sender.closed() => return Ok(()),
                () = &mut changed => break,
                () = crate::rt::sleep(TOUCH_CHECK) => if !core.is_in_touch() {
                    return Err(out_of_touch());
                },
            }
        }
    }
}

fn batches(
    state: &State,
    node: &fsm::Node,
    sent: &mut BTreeMap<AllocationId, Told>,
    complete: &mut bool,
) -> Vec<pb::AllocationBatch> {
    let starts_allowed = may_start(node);
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
        let told = Told { modify_index: row.server_modify_index, starts_allowed };
        if sent.get(&row.id).is_some_and(|before| before.covers(told)) {
            continue;
        }
        let Some(spec) = state.allocation_spec(row) else { continue };
        sent.insert(row.id, told);
        news.push(allocation(row, spec, node));
    }
    // Ends before starts: what waits for another's end has to know that it ends.
    news.sort_by_key(|one| one.run);
    // An allocation that ended is not removed: the agent keeps its logs until it collects them itself. One that is gone from the state is.
    let gone: Vec<AllocationId> =
        sent.keys().filter(|id| !state.allocations.contains(id)).copied().collect();
    for id in &gone {
        sent.remove(id);
    }
    sent.retain(|id, _| present.contains(id));
    let complete = std::mem::take(complete);
    if !complete && news.is_empty() && gone.is_empty() {
        return Vec::new();
    }
    split(pb::AllocationBatch {
        index: state.head.index,
        complete,
        removed: gone.iter().map(|id| id.0.to_vec().into()).collect(),
        present: news.iter().filter(|_| complete).map(|one| one.id.clone()).collect(),
        allocations: news,
    })
}

/// The same in messages of a bounded size. What is gone is said by the first, so that nothing starts beside what it takes the place of.
fn split(mut whole: pb::AllocationBatch) -> Vec<pb::AllocationBatch> {
    let index = whole.index;
    let allocations = std::mem::take(&mut whole.allocations);
    let (mut batch, mut bytes) = (whole, 0);
    let mut batches = Vec::new();
    for one in allocations {
        let more = one.encoded_len();
        let is_full = batch.allocations.len() >= BATCH_MAX || bytes + more > BATCH_BYTES_MAX;
        if is_full && !batch.allocations.is_empty() {
            let next = pb::AllocationBatch { index, ..pb::AllocationBatch::default() };
            batches.push(std::mem::replace(&mut batch, next));
            bytes = 0;
        }
        bytes += more;
        batch.allocations.push(one);
    }
    batches.push(batch);
    batches
}

/// A node that is down is about to lose what it has: it starts nothing until the servers have heard from it.
fn may_start(node: &fsm::Node) -> bool {
    node.liveness != Liveness::Down
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
                meta: strings(&[&task.meta]),
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
        task_starts_allowed: may_start(node),
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        JobKind,
        testing::{self, Driver},
    };

    use super::*;

    /// What the stream of a node sends.
    fn messages(
        driver: &Driver,
        sent: &mut BTreeMap<AllocationId, Told>,
        complete: &mut bool,
    ) -> Vec<pb::AllocationBatch> {
        batches(&driver.state, driver.node_row("n1"), sent, complete)
    }

    /// What it says of the node's allocations: whether each is to run.
    fn news(
        driver: &Driver,
        sent: &mut BTreeMap<AllocationId, Told>,
        complete: &mut bool,
    ) -> Vec<(bool, String)> {
        let all = messages(driver, sent, complete).into_iter().flat_map(|batch| batch.allocations);
        all.map(|one| (one.run, one.client_status)).collect()
    }

    fn lengths(batches: &[pb::AllocationBatch]) -> Vec<usize> {
        batches.iter().map(|batch| batch.allocations.len()).collect()
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

    #[test]
    fn what_was_held_back_while_the_node_was_down_is_sent_again_when_it_may_start() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 1));
        driver.place("web", 0, node);
        driver.liveness("n1", Liveness::Down);
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        let mut starts = |driver: &Driver| -> Vec<bool> {
            let batches = messages(driver, &mut sent, &mut complete);
            let all = batches.iter().flat_map(|batch| &batch.allocations);
            all.map(|one| one.task_starts_allowed).collect()
        };
        let nothing = Vec::<bool>::new();
        assert_eq!(starts(&driver), [false]);
        assert_eq!(starts(&driver), nothing);
        driver.liveness("n1", Liveness::Initializing);
        assert_eq!(starts(&driver), [true]);
        driver.liveness("n1", Liveness::Down);
        assert_eq!(starts(&driver), nothing, "what was started goes on");
        driver.liveness("n1", Liveness::Initializing);
        assert_eq!(starts(&driver), nothing);
    }

    #[test]
    fn a_large_set_takes_several_messages_of_which_the_first_names_all_of_it() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut large = testing::job("web", JobKind::Service, 8);
        large.meta.insert("large".into(), "x".repeat(700_000).into());
        driver.register_job(large);
        let ids: BTreeSet<_> = (0..8).map(|number| driver.place("web", number, node)).collect();
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        let batches = messages(&driver, &mut sent, &mut complete);
        assert_eq!(lengths(&batches), [5, 3]);
        let [first, second] = batches.as_slice() else { unreachable!("two lengths") };
        assert!(first.complete && !second.complete);
        assert_eq!(first.index, second.index);
        let named: BTreeSet<_> =
            first.present.iter().filter_map(|id| AllocationId::from_slice(id)).collect();
        assert_eq!(named, ids);
        assert_eq!(second.present.len(), 0);
        let said = batches.iter().flat_map(|batch| &batch.allocations);
        let said: BTreeSet<_> = said.filter_map(|one| AllocationId::from_slice(&one.id)).collect();
        assert_eq!(said, ids);
        assert_eq!(messages(&driver, &mut sent, &mut complete), []);
    }

    #[test]
    fn a_message_is_bounded_by_bytes_and_by_count_and_holds_at_least_one() {
        let sized = |bytes: usize| pb::Allocation { name: "x".repeat(bytes), ..Default::default() };
        let split_up = |allocations: Vec<pb::Allocation>| {
            let removed = vec![vec![1; 16].into()];
            let whole =
                pb::AllocationBatch { index: 7, allocations, removed, ..Default::default() };
            let batches = split(whole);
            assert!(batches.iter().all(|batch| batch.index == 7 && !batch.complete));
            let removed: Vec<_> = batches.iter().map(|batch| batch.removed.len()).collect();
            assert_eq!(
                (removed[0], removed.iter().sum::<usize>()),
                (1, 1),
                "said once, at the beginning"
            );
            lengths(&batches)
        };
        assert_eq!(split_up(Vec::new()), [0]);
        assert_eq!(split_up(vec![sized(1); BATCH_MAX + 1]), [BATCH_MAX, 1]);
        assert_eq!(split_up(vec![sized(1_500_000); 5]), [2, 2, 1]);
        let too_large = sized(BATCH_BYTES_MAX + 1);
        assert_eq!(split_up(vec![sized(1), too_large, sized(1), sized(1)]), [1, 1, 2]);
    }

    #[test]
    fn what_ends_is_said_before_what_starts() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 2));
        // Its id, by which rows are ordered, is lower than that of the one it comes after.
        let placement = driver.placement(testing::GROUP, 1, node);
        let (starts, ends) = (placement.id, driver.run("web", 0, node));
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        assert_eq!(news(&driver, &mut sent, &mut complete).len(), 1);
        let evaluation = driver.evaluate_job("web");
        driver.commit_plan(driver.plan(evaluation).with(placement).stopping(ends, None));
        let batches = messages(&driver, &mut sent, &mut complete);
        let said = batches.iter().flat_map(|batch| &batch.allocations);
        let said: Vec<_> = said.map(|one| (AllocationId::from_slice(&one.id), one.run)).collect();
        assert_eq!(said, [(Some(ends), false), (Some(starts), true)]);
    }

    #[test]
    fn meta_of_job_and_group_is_sent_once_and_not_with_every_task() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut spec = testing::job("web", JobKind::Service, 1);
        let pair = |(key, value): (&str, &str)| (Text::from(key), Text::from(value));
        spec.meta = [("a", "job"), ("b", "job"), ("c", "job")].map(pair).into();
        spec.groups[0].meta = [("b", "group"), ("c", "group")].map(pair).into();
        spec.groups[0].tasks[0].meta.insert("c".into(), "task".into());
        driver.register_job(spec);
        driver.place("web", 0, node);
        let batches = messages(&driver, &mut BTreeMap::new(), &mut true);
        let one = &batches[0].allocations[0];
        let sorted = |meta: &std::collections::HashMap<String, String>| -> Vec<String> {
            let all: BTreeMap<_, _> = meta.iter().collect();
            all.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
        };
        assert_eq!(sorted(&one.meta), ["a=job", "b=group", "c=group"]);
        assert_eq!(sorted(&one.tasks[0].meta), ["c=task"]);
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
