//! Fake node agents over the simulated network: they register, beat, take allocations from a stream, run them for a moment and report. Some crash,
//! forget what they ran, are cut off, stand still, or go on with the stream of another server. What runs where is known to all of them, so that a name that runs twice is seen (I49).

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use bytes::Bytes;
use fsm::State;
use futures_util::StreamExt;
use prost::Message;
use proto::v1 as pb;
use quorate::{
    rpc::transport::{Lane, Transport, call},
    rt::{self, Instant, watch},
};
use tonic::{Code, Status};

use crate::{
    coverage,
    dice::Dice,
    network::SimTransport,
    swarm::Class,
    trace, verdict,
    world::{self, World},
};

const RPC_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(300);
/// How long a task of a batch job runs.
const RUN: Duration = Duration::from_millis(700);
/// How long a stream of allocations stays at one server where agents move theirs, ms.
const STREAM_MS: (u64, u64) = (300, 4_000);
/// Streams in a row that said nothing new, before the agent registers again.
const VAIN_STREAMS_MAX: u32 = 5;

/// Racks that nodes are in.
pub(crate) const RACKS: [&str; 2] = ["r1", "r2"];

/// By job and name: agent and allocation.
type RunningByName = BTreeMap<(String, String), BTreeSet<(usize, Bytes)>>;

thread_local! {
    /// What runs.
    static RUNNING: RefCell<RunningByName> = const { RefCell::new(BTreeMap::new()) };
}

/// I49: when all is quiet, what runs is what the servers want to run, and all of it. One line for each difference.
pub(crate) fn strays(state: &State) -> Vec<String> {
    let running: BTreeSet<Bytes> = RUNNING
        .with_borrow(|running| running.values().flatten().map(|(_, id)| id.clone()).collect());
    let wanted = |id: &Bytes| {
        let row = fsm::AllocationId::from_slice(id).and_then(|id| state.allocations.get(&id));
        row.is_some_and(|row| row.is_live())
    };
    let stray = running.iter().filter(|id| !wanted(id)).map(|id| {
        let row = fsm::AllocationId::from_slice(id).and_then(|id| state.allocations.get(&id));
        let what = row.map_or_else(
            || "something forgotten".to_owned(),
            |row| format!("{} ({:?}, {:?})", row.name(), row.desired, row.client),
        );
        format!("I49: {what} runs, and nobody wants it")
    });
    let missing = state.allocations.iter().filter(|row| {
        row.is_live()
            && row.client == fsm::ClientStatus::Running
            && !running.contains(&row.id.0[..])
    });
    let missing = missing.map(|row| format!("I49: {} runs nowhere, and is said to", row.name()));
    stray.chain(missing).collect()
}

/// What runs, or ran, here.
struct Running {
    name: (String, String),
    sequence: u64,
    status: &'static str,
    reported: bool,
    /// When it completes by itself.
    ends_at: Option<Instant>,
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
}

impl Agent {
    /// An agent of that number.
    pub(crate) fn new(number: usize, world: &World, mut dice: Dice) -> Self {
        let name = format!("a{number}");
        let id = [dice.next().to_le_bytes(), dice.next().to_le_bytes()].concat();
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
            dice_streams: Dice::new(world.swarm.seed, &format!("streams of a{number}")),
            dice_stalls: Dice::new(world.swarm.seed, &format!("stalls of a{number}")),
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
            for (id, one) in std::mem::take(&mut self.running) {
                one.leaves(self.number, &id);
            }
            let identity = [self.dice.next().to_le_bytes(), self.dice.next().to_le_bytes()];
            self.identity = identity.concat().into();
        }
        rt::sleep(away).await;
    }

    async fn ask<Q: Message, P: Message + Default>(
        &self,
        path: &'static str,
        request: &Q,
    ) -> Result<P, Status> {
        let to = world::address(self.server);
        call(&self.transport, &to, path, Lane::Control, request, RPC_TIMEOUT).await
    }

    /// Register, all statuses, ready; then streams until something else fails.
    async fn session(&mut self) -> Result<Infallible, Status> {
        let reply: pb::RegisterReply =
            self.ask("/quorate.v1.Agent/Register", &self.registration()).await?;
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
        let request = pb::ReadyRequest { node_id: self.id.clone(), incarnation: self.incarnation };
        self.ask::<_, pb::ReadyReply>("/quorate.v1.Agent/Ready", &request).await?;
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
        let path = "/quorate.v1.Agent/StreamAllocations";
        self.transport.stream(&world::address(self.server), path, Lane::Control, input).await
    }

    /// Beats, through another server when one does not answer; answers with the time to live.
    async fn beat(&mut self) -> Result<u64, Status> {
        let request =
            pb::HeartbeatRequest { node_id: self.id.clone(), incarnation: self.incarnation };
        let mut failures = 0;
        let reply: pb::HeartbeatReply = loop {
            match self.ask("/quorate.v1.Agent/Heartbeat", &request).await {
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
            let live = self.running.iter().filter(|(_, one)| one.status != "complete");
            removed.extend(live.map(|(id, _)| id).filter(|id| !present.contains(id)).cloned());
        }
        for id in &removed {
            if let Some(one) = self.running.remove(id) {
                one.leaves(self.number, id);
            }
        }
        for allocation in batch.allocations {
            let id = allocation.id.clone();
            // A name is one of its node's where a job runs once per node.
            let name = match allocation.job_type.as_str() {
                "system" | "sysbatch" => format!("{} of a{}", allocation.name, self.number),
                _ => allocation.name.clone(),
            };
            let known = self.running.entry(id.clone()).or_insert(Running {
                name: (allocation.job_id.clone(), name),
                sequence: allocation.client_sequence,
                status: "pending",
                reported: true,
                ends_at: None,
            });
            match known.status {
                // One that may not start yet is sent again when it may.
                "pending" if allocation.run && allocation.task_starts_allowed => {
                    let ends_at = (allocation.job_type == "batch").then(|| Instant::now() + RUN);
                    known.ends_at = ends_at;
                    known.becomes("running");
                    known.enters(&self.world, self.number, &id);
                }
                "pending" | "running" if !allocation.run => {
                    known.becomes("complete");
                    known.leaves(self.number, &id);
                }
                _ => {}
            }
            let status = known.status;
            trace::event(&self.name, format_args!("{} {status}", allocation.name));
        }
        Ok(())
    }

    fn end_tasks(&mut self) {
        let now = Instant::now();
        for (id, one) in &mut self.running {
            if one.ends_at.is_some_and(|end| end <= now) {
                one.becomes("complete");
                one.leaves(self.number, id);
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
                client_status: one.status.to_owned(),
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
        let path = "/quorate.v1.Agent/UpdateAllocations";
        self.ask::<_, pb::UpdateAllocationsReply>(path, &request).await?;
        for one in self.running.values_mut() {
            one.reported = true;
        }
        Ok(())
    }
}

impl Running {
    /// I49: it begins to run, and no other allocation of that name that the servers still want does.
    fn enters(&self, world: &World, agent: usize, id: &Bytes) {
        let others: Vec<(usize, Bytes)> = RUNNING.with_borrow_mut(|running| {
            let of_name = running.entry(self.name.clone()).or_default();
            let others = of_name.iter().filter(|(_, other)| other != id).cloned().collect();
            of_name.insert((agent, id.clone()));
            others
        });
        let Some(state) = world.newest() else { return };
        let is_live = |id: &Bytes| {
            let row = fsm::AllocationId::from_slice(id).and_then(|id| state.allocations.get(&id));
            row.filter(|row| row.is_live()).cloned()
        };
        // What begins late, when the servers have given it up already, may meet what has replaced it.
        if is_live(id).is_none() {
            return;
        }
        for (other, other_id) in others {
            if let Some(row) = is_live(&other_id) {
                verdict::fail(format!(
                    "I49: {} starts on a{agent} while {} of that name runs on a{other}",
                    row.name(),
                    row.id
                ));
            }
        }
    }

    fn leaves(&self, agent: usize, id: &Bytes) {
        RUNNING.with_borrow_mut(|running| {
            if let Some(of_name) = running.get_mut(&self.name) {
                of_name.remove(&(agent, id.clone()));
            }
        });
    }

    fn becomes(&mut self, status: &'static str) {
        self.status = status;
        self.sequence += 1;
        self.reported = false;
        if status == "complete" {
            self.ends_at = None;
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use fsm::{
        JobKind,
        command::Readiness,
        testing::{self, Driver},
    };

    use super::*;

    #[test]
    fn i49_what_runs_unwanted_and_what_is_said_to_run_and_does_not_is_found() {
        let mut driver = Driver::default();
        driver.register_node("n1");
        driver.readiness("n1", Readiness::Ok);
        driver.sync("n1");
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let node = driver.node("n1");
        let id = driver.run("web", 0, node);
        let missing = strays(&driver.state);
        assert!(missing.len() == 1 && missing[0].contains("runs nowhere"), "{missing:?}");
        let name = ("web".to_owned(), "web".to_owned());
        let held = Bytes::copy_from_slice(&id.0);
        RUNNING.with_borrow_mut(|all| all.entry(name.clone()).or_default().insert((0, held)));
        assert_eq!(strays(&driver.state), Vec::<String>::new());
        let stray = Bytes::from_static(&[9; 16]);
        RUNNING.with_borrow_mut(|all| all.get_mut(&name).unwrap().insert((0, stray)));
        let found = strays(&driver.state);
        assert!(found.len() == 1 && found[0].contains("nobody wants it"), "{found:?}");
    }
}
