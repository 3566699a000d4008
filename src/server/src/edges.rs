//! What a server answers to its edges: clients, peers, workers and agents ask the same core.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fsm::{
    Command, Index, NodeId, Plan, Proposal, RequestId, TimeMs, allocation::NodeReport,
    table::TableId,
};
use futures_util::{FutureExt, future::BoxFuture};
use ground::{
    caller::Caller,
    rt::{self, watch},
    server_name::ServerName,
    version::Build,
};
use leader::{PlanAnswer, broker::NackReason};
use proto::v1 as pb;
use raft::{ServerState, WatchReceiver, promises::Promise};
use tonic::Status;
use wire::{
    api::{
        AgentApi, Api, ApiError, Dequeue, Lease, LeaseKey, MemberInfo, PeerApi, Presence, ReadMode,
        Sample, Snapshot, WorkerApi, WorkerChange, WorkerInfo, WorkerSettings, Written, failure,
        senders,
    },
    published::StateCell,
    rpc::{method, words},
};

use crate::{
    access::read_rounds::read_index,
    core::Core,
    gauges::gauges,
    leadership::{services::LeaderServices, worker_calls},
    said,
    upkeep::{bootstrap, digests, removal},
};

/// Time a call to the leader on behalf of an agent may take.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a leadership transfer by another server may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);

impl Api for Core {
    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Snapshot, ApiError>> {
        tracing::trace!(%caller, ?mode, index_min, "a read");
        self.reads.read(mode, index_min, timeout).boxed()
    }

    fn write<'a>(
        &'a self,
        caller: &'a Caller,
        command: Command,
        request: Option<RequestId>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        async move {
            senders::check_caller(caller, &command).inspect_err(|error| {
                tracing::warn!(%caller, %error, "refused a command");
            })?;
            let asked = said::asked(&command);
            let written = self.writes.write(command, request, timeout).await;
            self.said.command(caller, asked, &written);
            written
        }
        .boxed()
    }

    fn changed<'a>(
        &'a self,
        caller: &'a Caller,
        tables: &'static [TableId],
        after: Index,
        timeout: Duration,
    ) -> BoxFuture<'a, ()> {
        tracing::trace!(%caller, ?tables, after, "a wait for a change");
        self.cell.changed(tables, after, timeout).boxed()
    }

    fn now_ms(&self) -> TimeMs {
        self.contact.time.now()
    }

    fn behind_ms(&self) -> Option<i64> {
        self.contact.time.behind_ms()
    }

    fn new_id(&self) -> [u8; 16] {
        rt::random_id()
    }

    fn members(&self) -> Vec<MemberInfo> {
        self.contact.member_infos()
    }

    fn this_member(&self) -> MemberInfo {
        let known = self.contact.member_infos().into_iter().find(|member| member.id == self.id);
        known.unwrap_or_else(|| MemberInfo {
            id: self.id,
            name: self.settings.name.clone(),
            rpc_address: self.settings.rpc_address.clone(),
            http_address: self.settings.http_address.clone(),
            presence: Presence::Alive,
            version: Build::own().shown(),
            ..MemberInfo::default()
        })
    }

    fn transfer_leadership<'a>(
        &'a self,
        caller: &'a Caller,
        to: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, ApiError>> {
        async move {
            if self.contact.leads().is_some() {
                tracing::info!(%caller, "asked to hand leadership over");
                return self.contact.transfer(to).await;
            }
            let address = self.contact.leader_address()?;
            let request = pb::TransferLeadershipRequest { to };
            let timeout = TRANSFER_TIMEOUT;
            let reply: Result<pb::TransferLeadershipReply, Status> =
                self.contact.call(&address, &method::TRANSFER_LEADERSHIP, &request, timeout).await;
            reply.map(|reply| reply.to).map_err(|status| of_leader(&status))
        }
        .boxed()
    }

    fn remove_member<'a>(
        &'a self,
        caller: &'a Caller,
        id: u64,
        force: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if self.contact.leads().is_some() {
                return self.take_out(caller, id, force).await;
            }
            let address = self.contact.leader_address()?;
            let request = pb::RemovePeerRequest { id, force };
            let timeout = removal::TIMEOUT;
            let reply: Result<pb::RemovePeerReply, Status> =
                self.contact.call(&address, &method::REMOVE_PEER, &request, timeout).await;
            reply.map(|_| ()).map_err(|status| of_leader(&status))
        }
        .boxed()
    }

    fn gauges(&self) -> BTreeMap<String, f64> {
        gauges(self)
    }

    fn workers(&self) -> Vec<WorkerInfo> {
        self.workers.workers()
    }

    fn worker_settings(&self) -> WorkerSettings {
        self.workers.settings()
    }

    fn set_workers<'a>(
        &'a self,
        caller: &'a Caller,
        change: WorkerChange,
    ) -> BoxFuture<'a, WorkerSettings> {
        async move {
            let settings = self.workers.set(change).await;
            let kinds: Vec<_> = settings.kinds.iter().map(|kind| kind.name()).collect();
            let kinds = kinds.join(", ");
            tracing::info!(%caller, workers = settings.number, kinds, "workers are set");
            settings
        }
        .boxed()
    }

    fn samples(&self) -> BTreeMap<String, Sample> {
        let mut samples = self.worker_stats.samples();
        samples.extend(self.leading().into_iter().flat_map(|services| services.samples()));
        samples
    }

    fn stats(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let leader = self.contact.member_infos().into_iter().find(|member| member.leader);
        let leads = self.contact.leads_majority();
        let voters = self.contact.census().voters;
        // A leader without a majority leads nobody: Nomad's leaders step down by themselves.
        let lost = metrics.state == ServerState::Leader && !leads;
        let state = if lost { ServerState::Follower } else { metrics.state };
        let raft = [
            ("state", format!("{state:?}")),
            ("term", metrics.current_term.to_string()),
            ("applied_index", self.applied().to_string()),
            ("last_log_index", metrics.last_log_index.unwrap_or(0).to_string()),
            ("commit_index", metrics.local_committed.map_or(0, |id| id.index).to_string()),
            ("leader", leader.map(|leader| leader.rpc_address).unwrap_or_default()),
            ("last_contact_ms", self.contact.last_contact().as_millis().to_string()),
            ("num_peers", voters.saturating_sub(1).to_string()),
        ];
        let quorate = [
            ("server", if leads { "leader" } else { "follower" }.to_owned()),
            ("cluster_id", self.cluster_id().unwrap_or_default()),
            ("server_id", ServerName(self.id).to_string()),
        ];
        let group = |list: &[(&str, String)]| -> BTreeMap<_, _> {
            list.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        };
        let mut quorate = group(&quorate);
        quorate.extend(group(&Build::own().facts()));
        BTreeMap::from([("raft".to_owned(), group(&raft)), ("quorate".to_owned(), quorate)])
    }

    fn membership_index(&self) -> Index {
        self.contact.membership_index()
    }
}

impl PeerApi for Core {
    fn write_forwarded<'a>(
        &'a self,
        caller: &'a Caller,
        proposal: Proposal,
        times_forwarded: u32,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        async move {
            let Proposal { command, request, .. } = proposal;
            if times_forwarded == 0 {
                // A client's own write over gRPC: any server finds the leader, and stamps time and
                // hash itself.
                self.write(caller, command, request.map(|request| request.id), timeout).await
            } else if self.leading().is_some() {
                senders::check_forwarded(&command).inspect_err(|error| {
                    tracing::warn!(%caller, %error, "refused a command");
                })?;
                self.writes.write_as_leader(command, request, timeout).await
            } else {
                Err(ApiError::NoLeader)
            }
        }
        .boxed()
    }

    fn read_index<'a>(
        &'a self,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(Index, u64), ApiError>> {
        tracing::trace!(%caller, "a read index");
        async move {
            if self.contact.leads().is_none() {
                return Err(ApiError::NoLeader);
            }
            read_index(&self.contact, &self.cell).await
        }
        .boxed()
    }

    fn probe<'a>(
        &'a self,
        caller: &'a Caller,
        request: pb::ProbeRequest,
    ) -> BoxFuture<'a, Result<pb::ProbeReply, Status>> {
        tracing::trace!(%caller, from = request.from, "a probe");
        async move {
            let initialised = self.raft.is_initialized().await.unwrap_or(false);
            let leader = self.contact.leader();
            let cluster = self.cluster.get();
            let standing = removal::standing(&self.contact, request.from, &request.rpc_address);
            Ok(pb::ProbeReply {
                initialised: initialised && cluster.is_some(),
                cluster_id: cluster.map(|id| id.to_vec()).unwrap_or_default().into(),
                node_id: self.id,
                name: self.settings.name.clone(),
                expect: self.settings.bootstrap_expect.clone(),
                leader: leader.as_ref().map_or(0, |(id, _)| *id),
                leader_rpc_address: leader.map(|(_, one)| one.rpc_address).unwrap_or_default(),
                rpc_address: self.settings.rpc_address.clone(),
                http_address: self.settings.http_address.clone(),
                // A learner has to ask to join again: the leader that admitted it may be gone.
                member: bootstrap::votes(&self.contact, request.from),
                digest: digests::digest_at(&self.cell, request.digest_mark),
                disk_full: self.has_full_disk(),
                boot_id: self.settings.boot.map(|id| id.to_vec()).unwrap_or_default().into(),
                time: Some(self.contact.time.say()),
                membership_index: standing.membership_index,
                listed: standing.is_listed,
                replaced_by: standing.replaced_by.unwrap_or(0),
                version: Build::own().shown(),
                promised: self.contact.promises.of(request.from).map(Promise::to_pb),
                kept: Some(Promise::kept(&self.raft).to_pb()),
            })
        }
        .boxed()
    }

    fn admit<'a>(
        &'a self,
        caller: &'a Caller,
        request: pb::JoinRequest,
    ) -> BoxFuture<'a, Result<pb::JoinReply, Status>> {
        async move {
            if self.leading().is_none() {
                return Err(ApiError::NoLeader.into());
            }
            tracing::debug!(%caller, name = request.name, "a server asks to join");
            bootstrap::admit(&self.contact, request).await?;
            let cluster_id = self.cluster.get().map(|id| id.to_vec()).unwrap_or_default().into();
            Ok(pb::JoinReply { cluster_id })
        }
        .boxed()
    }

    fn hand_over<'a>(
        &'a self,
        caller: &'a Caller,
        to: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, ApiError>> {
        async move {
            if self.leading().is_none() {
                return Err(ApiError::NoLeader);
            }
            tracing::info!(%caller, "asked to hand leadership over");
            self.contact.transfer(to).await
        }
        .boxed()
    }

    fn take_out<'a>(
        &'a self,
        caller: &'a Caller,
        id: u64,
        force: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if self.leading().is_none() {
                return Err(ApiError::NoLeader);
            }
            tracing::info!(%caller, server = %ServerName(id), force, "asked to take a server out");
            removal::take_out(&self.contact, id, force).await
        }
        .boxed()
    }
}

/// The error in the leader's answer to a call of this server.
fn of_leader(status: &Status) -> ApiError {
    failure::error_in(status).unwrap_or_else(|| ApiError::NotReady(status.message().to_owned()))
}

impl Core {
    fn services_for_workers(&self) -> Result<Arc<LeaderServices>, Status> {
        let none = || Status::unavailable("No cluster leader: this server does not lead");
        self.leading().ok_or_else(none)
    }
}

impl WorkerApi for Core {
    fn dequeue<'a>(
        &'a self,
        caller: &'a Caller,
        request: Dequeue,
    ) -> BoxFuture<'a, Result<Vec<Lease>, Status>> {
        tracing::trace!(%caller, server = request.server, "a worker asks for leases");
        async move { worker_calls::dequeue(&*self.services_for_workers()?, &request).await }.boxed()
    }

    fn ack(&self, caller: &Caller, lease: LeaseKey) -> Result<(), Status> {
        tracing::trace!(%caller, evaluation = %lease.evaluation, "a worker ends a lease");
        worker_calls::ack(&*self.services_for_workers()?, lease)
    }

    fn nack(&self, caller: &Caller, lease: LeaseKey, why: NackReason) -> Result<(), Status> {
        tracing::trace!(%caller, evaluation = %lease.evaluation, ?why, "a worker gives a lease back");
        worker_calls::nack(&*self.services_for_workers()?, lease, why)
    }

    fn submit_plan<'a>(
        &'a self,
        caller: &'a Caller,
        lease: LeaseKey,
        plan: Plan,
        bytes: usize,
    ) -> BoxFuture<'a, Result<PlanAnswer, Status>> {
        tracing::trace!(%caller, evaluation = %lease.evaluation, "a worker submits a plan");
        async move {
            let services = self.services_for_workers()?;
            worker_calls::submit_plan(&services, lease, plan, bytes).await
        }
        .boxed()
    }
}

impl AgentApi for Core {
    fn heartbeat<'a>(
        &'a self,
        caller: &'a Caller,
        request: pb::HeartbeatRequest,
    ) -> BoxFuture<'a, Result<pb::HeartbeatReply, Status>> {
        tracing::trace!(%caller, incarnation = request.incarnation, "a heartbeat");
        async move {
            match self.leading() {
                Some(services) => self.take_heartbeat(&services, &request),
                None => self.forward_heartbeat(&request).await,
            }
        }
        .boxed()
    }

    fn heartbeat_ttl_ms_min(&self) -> u64 {
        self.settings.services.heartbeat.ttl_ms_min
    }

    fn report<'a>(
        &'a self,
        caller: &'a Caller,
        report: NodeReport,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        tracing::trace!(%caller, node = %report.node, "a report");
        self.reports.submit(report).boxed()
    }

    fn published(&self) -> &Arc<StateCell> {
        &self.cell
    }

    fn is_in_touch(&self) -> bool {
        self.contact.is_in_touch()
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.lifecycle.stopping()
    }
}

impl Core {
    async fn forward_heartbeat(
        &self,
        request: &pb::HeartbeatRequest,
    ) -> Result<pb::HeartbeatReply, Status> {
        let address = self.contact.leader_address()?;
        if address == self.settings.rpc_address {
            return Err(Status::unavailable("leadership is being taken over"));
        }
        self.contact.call(&address, &method::HEARTBEAT, request, FORWARD_TIMEOUT).await
    }

    fn take_heartbeat(
        &self,
        services: &LeaderServices,
        request: &pb::HeartbeatRequest,
    ) -> Result<pb::HeartbeatReply, Status> {
        // A leader that is cut off from the others would keep its nodes while the next leader marks
        // them down.
        if !self.contact.is_in_touch() {
            return Err(Status::unavailable("no majority of the servers answers this leader"));
        }
        let node = NodeId::from_slice(&request.node_id)
            .ok_or_else(|| Status::invalid_argument("node id must be 16 bytes"))?;
        let heard = services
            .heard(node, request.incarnation)
            .map_err(|error| Status::not_found(error.to_string()))?;
        let state = self.cell.load();
        let row = state.nodes().get(&node).ok_or_else(|| Status::not_found("node not found"))?;
        let liveness = words::liveness_to_pb(row.liveness);
        let members = self.contact.member_infos();
        Ok(pb::HeartbeatReply {
            heartbeat_ttl_ms: heard.ttl_ms,
            http_servers: members.iter().map(|member| member.http_address.clone()).collect(),
            servers: members.into_iter().map(|member| member.rpc_address).collect(),
            liveness: liveness.into(),
            epoch: services.epoch,
            check_readiness: row.wants_check(),
        })
    }
}
