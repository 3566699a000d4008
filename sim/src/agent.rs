//! Fake node agents over the simulated network: they register, beat, take allocations from a stream, run them for a moment and report.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use prost::Message;
use proto::v1 as pb;
use quorate::{
    rpc::transport::{Lane, Transport, call},
    rt::{self, Instant, watch},
};
use tonic::{Code, Status};

use crate::{
    dice::Dice,
    network::{Network, SimTransport},
    trace, world,
};

const RPC_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(300);
/// How long a task of a batch job runs.
const RUN: Duration = Duration::from_millis(700);

/// What runs, or ran, here.
struct Running {
    sequence: u64,
    status: &'static str,
    reported: bool,
    /// When it completes by itself.
    ends_at: Option<Instant>,
}

/// One agent.
pub(crate) struct Agent {
    name: String,
    transport: SimTransport,
    servers: usize,
    /// The server it talks to now.
    server: usize,
    id: Bytes,
    incarnation: u64,
    running: BTreeMap<Bytes, Running>,
    dice: Dice,
}

impl Agent {
    /// An agent of that number.
    pub(crate) fn new(number: usize, network: &Network, servers: usize, mut dice: Dice) -> Self {
        let name = format!("a{number}");
        let id = [dice.next().to_le_bytes(), dice.next().to_le_bytes()].concat();
        Self {
            transport: network.transport(&name),
            name,
            servers,
            server: number % servers,
            id: id.into(),
            incarnation: 0,
            running: BTreeMap::new(),
            dice,
        }
    }

    /// Runs until told to stop: one session after the other.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let status = rt::select! {
                biased;
                () = rt::until_true(&mut stop) => return,
                Err(status) = self.session() => status,
            };
            trace::event(&self.name, format_args!("session over: {}", status.message()));
            self.server = (self.server + 1) % self.servers;
            drop(rt::timeout(RETRY, rt::until_true(&mut stop)).await);
        }
    }

    async fn ask<Q: Message, P: Message + Default>(
        &self,
        path: &'static str,
        request: &Q,
    ) -> Result<P, Status> {
        let to = world::address(self.server);
        call(&self.transport, &to, path, Lane::Control, request, RPC_TIMEOUT).await
    }

    /// Register, all statuses, ready; then beats, allocations and reports until something fails.
    async fn session(&mut self) -> Result<Infallible, Status> {
        let reply: pb::RegisterReply =
            self.ask("/quorate.v1.Agent/Register", &self.registration()).await?;
        self.incarnation = reply.incarnation;
        self.make_ready().await?;
        let mut batches = self.allocations().await?;
        let mut beat_at = Instant::now();
        loop {
            let next_end = self.running.values().filter_map(|one| one.ends_at).min();
            let wake_at = next_end.map_or(beat_at, |end| end.min(beat_at));
            rt::select! {
                biased;
                batch = batches.next() => match batch {
                    Some(batch) => self.take(batch?)?,
                    None => return Err(Status::unavailable("the stream of allocations ended")),
                },
                () = rt::sleep_until(wake_at) => {}
            }
            self.end_tasks();
            self.report(false).await?;
            if Instant::now() >= beat_at {
                let ttl_ms = self.beat().await?;
                let wait = ttl_ms / 4 + self.dice.below(ttl_ms / 4 + 1);
                beat_at = Instant::now() + Duration::from_millis(wait);
            }
        }
    }

    fn registration(&self) -> pb::RegisterRequest {
        let mock = pb::Driver { detected: true, healthy: true, ..pb::Driver::default() };
        pb::RegisterRequest {
            node_id: self.id.clone(),
            secret: vec![7; 16].into(),
            identity: self.id.clone(),
            name: self.name.clone(),
            datacenter: "dc1".to_owned(),
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
        for id in &batch.removed {
            self.running.remove(id);
        }
        for allocation in batch.allocations {
            if allocation.run && !allocation.task_starts_allowed {
                return Err(Status::unavailable("not allowed to start tasks yet"));
            }
            let known = self.running.entry(allocation.id).or_insert(Running {
                sequence: allocation.client_sequence,
                status: "pending",
                reported: true,
                ends_at: None,
            });
            match known.status {
                "pending" if allocation.run => {
                    let ends_at = (allocation.job_type == "batch").then(|| Instant::now() + RUN);
                    known.ends_at = ends_at;
                    known.becomes("running");
                }
                "pending" | "running" if !allocation.run => known.becomes("complete"),
                _ => {}
            }
            let status = known.status;
            trace::event(&self.name, format_args!("{} {status}", allocation.name));
        }
        Ok(())
    }

    fn end_tasks(&mut self) {
        let now = Instant::now();
        for one in self.running.values_mut() {
            if one.ends_at.is_some_and(|end| end <= now) {
                one.becomes("complete");
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
    fn becomes(&mut self, status: &'static str) {
        self.status = status;
        self.sequence += 1;
        self.reported = false;
        if status == "complete" {
            self.ends_at = None;
        }
    }
}
