//! Model agents over the simulated network: they register, beat, take allocations from a stream, run them for a moment and report. Some crash, forget
//! what they ran, are cut off, stand still, or go on with the stream of another server: what servers have to bear of whatever agents there are. The
//! project's own agent runs in `machine.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use bytes::Bytes;
use fsm::{AllocationId, ClientStatus};
use futures_util::StreamExt;
use prost::Message;
use proto::v1 as pb;
use tonic::{Code, Status};

use crate::{
    class::Class,
    coverage,
    network::SimTransport,
    running::{self, Name},
    streams, trace, verdict,
    world::{self, World},
};
use chance::Dice;
use ground::rt::{self, Instant, watch};
use wire::rpc::{
    method::{self, Method},
    transport::{Lane, Transport, call},
    words,
};

const RPC_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(300);
/// How long a task of a batch job runs.
const RUN: Duration = Duration::from_millis(700);
/// How long a stream of allocations stays at one server where agents move theirs, ms.
const STREAM_MS: (u64, u64) = (300, 4_000);
/// Streams in a row that said nothing new, before the agent registers again.
const VAIN_STREAMS_MAX: u32 = 5;

/// One of so many looks breaks the node.
const BREAKS_EVERY: u64 = 6;
/// It fails at what it is given for so long then, ms.
const BROKEN_MS: (u64, u64) = (0, 5_000);
const NODE_FAILURE: &str = "the driver does not answer";

/// Racks that nodes are in.
pub(crate) const RACKS: [&str; 2] = ["r1", "r2"];

/// What runs, or ran, here.
struct Running {
    name: Name,
    sequence: u64,
    status: ClientStatus,
    reported: bool,
    /// When it completes by itself.
    ends_at: Option<Instant>,
    /// The deployment that it is healthy in as soon as it runs; empty: none.
    deployment: Bytes,
}

/// One agent.
pub(crate) struct Agent {
    number: usize,
    name: String,
    world: World,
    transport: SimTransport,
    servers: usize,
    /// The server it talks to now.
    server: usize,
    id: Bytes,
    /// State directory and boot: another one is another incarnation.
    identity: Bytes,
    incarnation: u64,
    running: BTreeMap<Bytes, Running>,
    /// The newest index that a stream of this incarnation has shown.
    seen: u64,
    dice: Dice,
    dice_streams: Dice,
    dice_stalls: Dice,
    dice_checks: Dice,
    dice_failures: Dice,
    /// What it is given until then fails.
    broken_until: Instant,
    /// Sequence of the last readiness report.
    checks: u64,
}

impl Agent {
    /// An agent of that number.
    pub(crate) fn new(number: usize, world: &World, mut dice: Dice) -> Self {
        let name = format!("a{number}");
        let id = [dice.bits().to_le_bytes(), dice.bits().to_le_bytes()].concat();
        let id = Bytes::from(id);
        Self {
            transport: world.network.transport(&name),
            number,
            name,
            world: world.clone(),
            servers: world.count(),
            server: number % world.count(),
            identity: id.clone(),
            id,
            incarnation: 0,
            running: BTreeMap::new(),
            seen: 0,
            dice,
            dice_streams: Dice::named(world.swarm.seed, &format!("streams of a{number}")),
            dice_stalls: Dice::named(world.swarm.seed, &format!("stalls of a{number}")),
            dice_checks: Dice::named(world.swarm.seed, &format!("checks of a{number}")),
            dice_failures: Dice::named(world.swarm.seed, &format!("failures of a{number}")),
            broken_until: Instant::now(),
            checks: 0,
        }
    }

    /// Runs until told to stop: one session after the other.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let lasts = self.trouble_after();
            let status = rt::select! {
                biased;
                () = rt::until_true(&mut stop) => return,
                Err(status) = self.session() => Some(status),
                () = rt::sleep(lasts) => None,
            };
            match status {
                Some(status) => {
                    trace::event(&self.name, format_args!("session over: {}", status.message()));
                }
                None => self.trouble().await,
            }
            self.server = (self.server + 1) % self.servers;
            drop(rt::timeout(RETRY, rt::until_true(&mut stop)).await);
        }
    }

    /// How long a session lasts at most.
    fn trouble_after(&mut self) -> Duration {
        let usual = self.dice.between(1_000, 10_000);
        let trouble = self.world.swarm.has(Class::Agents) && !self.world.is_calm();
        if trouble { Duration::from_millis(usual) } else { Duration::from_hours(1) }
    }

    /// The agent is away for a while: cut off with its tasks, or crashed without a memory of them.
    async fn trouble(&mut self) {
        if self.world.is_calm() {
            return;
        }
        let forgets = self.dice.below(2) == 0;
        let away = Duration::from_millis(self.dice.between(100, 8_000));
        trace::event(&self.name, format_args!("away for {away:?}, forgets: {forgets}"));
        if forgets {
            self.running.clear();
            running::ends_all(self.number);
            let identity = [self.dice.bits().to_le_bytes(), self.dice.bits().to_le_bytes()];
            self.identity = identity.concat().into();
        }
        rt::sleep(away).await;
    }

    async fn ask<Q: Message, P: Message + Default>(
        &self,
        method: &Method<Q, P>,
        request: &Q,
    ) -> Result<P, Status> {
        let to = world::address(self.server);
        call(&self.transport, &to, method, Lane::Control, request, RPC_TIMEOUT).await
    }

    /// Register, all statuses, ready; then streams until something else fails.
    async fn session(&mut self) -> Result<Infallible, Status> {
        let known = self.world.newest_index();
        let reply: pb::RegisterReply = self.ask(&method::REGISTER, &self.registration()).await?;
        streams::registered(&self.name, known, reply.index);
        self.incarnation = reply.incarnation;
        self.seen = reply.index;
        self.make_ready().await?;
        let mut beat_at = Instant::now();
        let mut vain = 0;
        loop {
            let before = self.seen;
            let ended = self.follow(&mut beat_at).await;
            vain = if self.seen > before { 0 } else { vain + 1 };
            let stays = self.world.swarm.has(Class::Reconnect) && vain < VAIN_STREAMS_MAX;
            match ended {
                Err(status) if !stays || status.code() == Code::NotFound => return Err(status),
                Err(status) => {
                    trace::event(&self.name, format_args!("stream over: {}", status.message()));
                }
                Ok(()) => {}
            }
            self.server = self.dice_streams.index(self.servers);
            rt::sleep(RETRY).await;
        }
    }

    /// One stream: beats, allocations and reports until something fails or it moves on.
    async fn follow(&mut self, beat_at: &mut Instant) -> Result<(), Status> {
        if self.world.core(self.server).is_some_and(|core| core.applied() < self.seen) {
            coverage::hit("an agent met a server behind what it had been shown");
        }
        let mut batches = self.allocations().await?;
        let moves = self.world.swarm.has(Class::Reconnect) && !self.world.is_calm();
        let lasts = if moves {
            Duration::from_millis(self.dice_streams.between(STREAM_MS.0, STREAM_MS.1))
        } else {
            Duration::from_hours(1)
        };
        let moves_at = Instant::now() + lasts;
        while Instant::now() < moves_at {
            let next_end = self.running.values().filter_map(|one| one.ends_at).min();
            let wake_at = next_end.map_or(*beat_at, |end| end.min(*beat_at)).min(moves_at);
            rt::select! {
                biased;
                batch = batches.next() => match batch {
                    Some(batch) => self.take(batch?)?,
                    None => return Err(Status::unavailable("the stream of allocations ended")),
                },
                () = rt::sleep_until(wake_at) => {}
            }
            self.stand_still().await;
            self.end_tasks();
            self.break_down();
            self.report(false).await?;
            if Instant::now() >= *beat_at {
                let ttl_ms = self.beat().await?;
                let wait = ttl_ms / 4 + self.dice.below(ttl_ms / 4 + 1);
                *beat_at = Instant::now() + Duration::from_millis(wait);
            }
        }
        Ok(())
    }

    /// Like a process that was stopped: its node is given up, perhaps, and its stream is as it was.
    async fn stand_still(&mut self) {
        let may = self.world.swarm.has(Class::Stall) && !self.world.is_calm();
        if may && self.dice_stalls.below(16) == 0 {
            let lasts = Duration::from_millis(self.dice_stalls.between(1_000, 9_000));
            coverage::hit("an agent stood still with its stream open");
            trace::event(&self.name, format_args!("stands still for {lasts:?}"));
            rt::sleep(lasts).await;
        }
    }

    /// Sometimes the node breaks for a while: half of what runs there fails, and all that it is given.
    fn break_down(&mut self) {
        let may = self.world.swarm.has(Class::Failures) && !self.world.is_calm();
        if !may || self.dice_failures.below(BREAKS_EVERY) > 0 {
            return;
        }
        let lasts = Duration::from_millis(self.dice_failures.between(BROKEN_MS.0, BROKEN_MS.1));
        trace::event(&self.name, format_args!("breaks for {lasts:?}"));
        self.broken_until = Instant::now() + lasts;
        for (id, one) in &mut self.running {
            if one.status == ClientStatus::Running && self.dice_failures.below(2) == 0 {
                one.fails(self.number, id);
            }
        }
    }

    fn registration(&self) -> pb::RegisterRequest {
        let mock = pb::Driver { detected: true, healthy: true, ..pb::Driver::default() };
        pb::RegisterRequest {
            node_id: self.id.clone(),
            secret: vec![7; 16].into(),
            identity: self.identity.clone(),
            name: self.name.clone(),
            datacenter: if self.number % 3 == 2 { "dc2" } else { "dc1" }.to_owned(),
            meta: [("rack".to_owned(), RACKS[self.number % 2].to_owned())].into(),
            reserved: Some(pb::NodeReserved {
                cpu_mhz: 400,
                memory_mb: 300,
                disk_mb: 2_000,
                ports: vec![22],
            }),
            resources: Some(pb::NodeResources {
                cpu_mhz: 4_000,
                memory_mb: 4_000,
                disk_mb: 40_000,
                cores: 4,
                dynamic_port_min: 20_000,
                dynamic_port_max: 32_000,
                address: "10.0.1.1".to_owned(),
            }),
            // One entry: a hash map of several would make the message's bytes differ between processes.
            drivers: [("mock".to_owned(), mock)].into(),
            version: "sim".to_owned(),
            ..pb::RegisterRequest::default()
        }
    }

    async fn make_ready(&mut self) -> Result<(), Status> {
        self.report(true).await?;
        while self.check_fails() {
            coverage::hit("an agent's check failed");
            self.say(pb::Readiness::NotYet).await?;
            rt::sleep(RETRY).await;
        }
        self.say(pb::Readiness::Ready).await
    }

    fn check_fails(&mut self) -> bool {
        let may = self.world.swarm.has(Class::Checks) && !self.world.is_calm();
        may && self.dice_checks.below(3) == 0
    }

    /// Reports what the readiness check says.
    async fn say(&mut self, readiness: pb::Readiness) -> Result<(), Status> {
        self.checks += 1;
        let request = pb::ReadyRequest {
            node_id: self.id.clone(),
            incarnation: self.incarnation,
            readiness: readiness.into(),
            reason: String::new(),
            sequence: self.checks,
        };
        self.ask(&method::READY, &request).await?;
        Ok(())
    }

    async fn allocations(&self) -> Result<crate::services::Messages, Status> {
        let request = pb::StreamAllocationsRequest {
            node_id: self.id.clone(),
            incarnation: self.incarnation,
            index_min: self.seen,
        };
        let body = Bytes::from(request.encode_to_vec());
        let once = futures_util::stream::once(std::future::ready(body));
        let input = once.chain(futures_util::stream::pending()).boxed();
        let path = method::STREAM_ALLOCATIONS.path();
        self.transport.stream(&world::address(self.server), path, Lane::Control, input).await
    }

    /// Beats, through another server when one does not answer; answers with the time to live.
    async fn beat(&mut self) -> Result<u64, Status> {
        let request = pb::HeartbeatRequest {
            node_id: self.id.clone(),
            incarnation: self.incarnation,
            shortage: String::new(),
        };
        let mut failures = 0;
        let reply: pb::HeartbeatReply = loop {
            match self.ask(&method::HEARTBEAT, &request).await {
                Ok(reply) => break reply,
                Err(status) if status.code() == Code::NotFound || failures >= self.servers => {
                    return Err(status);
                }
                Err(_) => failures += 1,
            }
            self.server = (self.server + 1) % self.servers;
            rt::sleep(RETRY).await;
        };
        if reply.liveness() == pb::Liveness::Initializing {
            self.make_ready().await?;
        }
        Ok(reply.heartbeat_ttl_ms.max(100))
    }

    fn take(&mut self, batch: Bytes) -> Result<(), Status> {
        let batch = pb::AllocationBatch::decode(batch)
            .map_err(|error| Status::internal(error.to_string()))?;
        if batch.index < self.seen {
            let (index, seen) = (batch.index, self.seen);
            verdict::fail(format!("I13: {} is shown {index} and had been shown {seen}", self.name));
        }
        self.seen = batch.index;
        let mut removed = batch.removed;
        if batch.complete {
            // The whole set, or its first part: what is neither in it nor named by it is gone.
            let said = batch.allocations.iter().map(|one| &one.id);
            let present: BTreeSet<&Bytes> = said.chain(&batch.present).collect();
            let live = self.running.iter().filter(|(_, one)| !one.status.is_terminal());
            removed.extend(live.map(|(id, _)| id).filter(|id| !present.contains(id)).cloned());
        }
        for id in &removed {
            self.running.remove(id);
            running::ends(self.number, id_of(id));
        }
        let is_broken = Instant::now() < self.broken_until && !self.world.is_calm();
        for allocation in batch.allocations {
            let id = allocation.id.clone();
            let names = (&*allocation.job_id, &*allocation.name);
            let known = self.running.entry(id.clone()).or_insert(Running {
                name: running::name_of(self.number, allocation.job_kind(), names),
                sequence: allocation.client_sequence,
                status: ClientStatus::Pending,
                reported: true,
                ends_at: None,
                deployment: Bytes::new(),
            });
            if known.deployment != allocation.deployment_id {
                known.deployment = allocation.deployment_id.clone();
                if known.status == ClientStatus::Running {
                    known.becomes(ClientStatus::Running);
                }
            }
            match known.status {
                ClientStatus::Pending
                    if is_broken && allocation.run && allocation.task_starts_allowed =>
                {
                    known.fails(self.number, &id);
                }
                // One that may not start yet is sent again when it may.
                ClientStatus::Pending if allocation.run && allocation.task_starts_allowed => {
                    let ends_at =
                        (allocation.job_kind() == pb::JobKind::Batch).then(|| Instant::now() + RUN);
                    known.ends_at = ends_at;
                    known.becomes(ClientStatus::Running);
                    let run = (known.name.clone(), None);
                    running::begins(&self.world, self.number, id_of(&id), run);
                }
                ClientStatus::Pending | ClientStatus::Running if !allocation.run => {
                    known.becomes(ClientStatus::Complete);
                    running::ends(self.number, id_of(&id));
                }
                ClientStatus::Pending
                | ClientStatus::Running
                | ClientStatus::Complete
                | ClientStatus::Failed
                | ClientStatus::Lost
                | ClientStatus::Unknown => {}
            }
            let status = known.status.name();
            trace::event(&self.name, format_args!("{} {status}", allocation.name));
        }
        Ok(())
    }

    fn end_tasks(&mut self) {
        let now = Instant::now();
        for (id, one) in &mut self.running {
            if one.ends_at.is_some_and(|end| end <= now) {
                one.becomes(ClientStatus::Complete);
                running::ends(self.number, id_of(id));
            }
        }
    }

    /// Reports what was not reported, or everything.
    async fn report(&mut self, all: bool) -> Result<(), Status> {
        let statuses: Vec<pb::AllocationStatus> = self
            .running
            .iter()
            .filter(|(_, one)| all || !one.reported)
            .map(|(id, one)| pb::AllocationStatus {
                id: id.clone(),
                sequence: one.sequence,
                client_status: words::client_status_to_pb(one.status).into(),
                node_failure: match one.status {
                    ClientStatus::Failed => NODE_FAILURE.to_owned(),
                    ClientStatus::Pending
                    | ClientStatus::Running
                    | ClientStatus::Complete
                    | ClientStatus::Lost
                    | ClientStatus::Unknown => String::new(),
                },
                deployment_id: one.deployment.clone(),
                healthy: one.is_healthy(),
                ..pb::AllocationStatus::default()
            })
            .collect();
        if statuses.is_empty() && !all {
            return Ok(());
        }
        let request = pb::UpdateAllocationsRequest {
            node_id: self.id.clone(),
            incarnation: self.incarnation,
            statuses,
        };
        self.ask(&method::UPDATE_ALLOCATIONS, &request).await?;
        for one in self.running.values_mut() {
            one.reported = true;
        }
        Ok(())
    }
}

fn id_of(id: &[u8]) -> AllocationId {
    AllocationId::from_slice(id).unwrap_or_default()
}

impl Running {
    /// What it says of its health in its deployment.
    fn is_healthy(&self) -> Option<bool> {
        if self.deployment.is_empty() {
            return None;
        }
        match self.status {
            ClientStatus::Running => Some(true),
            ClientStatus::Failed => Some(false),
            ClientStatus::Pending
            | ClientStatus::Complete
            | ClientStatus::Lost
            | ClientStatus::Unknown => None,
        }
    }

    fn becomes(&mut self, status: ClientStatus) {
        self.status = status;
        self.sequence += 1;
        self.reported = false;
        if status.is_terminal() {
            self.ends_at = None;
        }
    }

    /// By the fault of the node.
    fn fails(&mut self, agent: usize, id: &[u8]) {
        coverage::hit("a node failed at what it ran or was given");
        running::fails(agent, id_of(id));
        self.becomes(ClientStatus::Failed);
    }
}
