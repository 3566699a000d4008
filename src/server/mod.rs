//! The server: Raft, state machine, workers and leader services wired together ([`Core`]), and the process around it ([`run`]).

pub mod access;
pub mod applier;
pub mod bootstrap;
#[cfg(test)]
mod cluster_tests;
pub mod core;
mod digests;
#[cfg(test)]
mod disk_tests;
mod gauges;
mod housekeeping;
mod identity;
pub mod leadership;
mod members;
pub mod read_rounds;
pub mod reports;
mod run;
pub(crate) mod services;
#[cfg(test)]
mod testing;
mod watchdog;
pub mod worker;

use std::time::Duration;

use fsm::{NodeId, Proposal};
use proto::v1 as pb;
use tonic::Status;

pub use self::{
    core::{Core, Parts, RaftTiming, Settings},
    leadership::LeaderServices,
    run::{RunningServer, run},
};
use crate::api::{Api, ApiError, Written};
use crate::rpc::transport::{Lane, call};

/// Time a call to the leader on behalf of an agent may take.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);

impl Core {
    /// Where agents' reports are gathered.
    pub fn reports(&self) -> &reports::Reports {
        &self.reports
    }

    /// Pauses or resumes this server's workers.
    pub fn pause_workers(&self, paused: bool) {
        self.worker_stats.pause(paused);
    }

    /// Leases that this server released because its state lagged.
    pub fn leases_released_for_lag(&self) -> u64 {
        self.worker_stats.released_for_lag()
    }

    /// Leases that workers of this server hold now.
    pub fn leases_held(&self) -> u64 {
        self.worker_stats.held()
    }

    /// Whether this server takes no writes of clients because its disk is nearly full.
    pub fn has_full_disk(&self) -> bool {
        self.disk_full.borrow().is_some()
    }

    /// Scheduling passes on this server.
    pub fn scheduler_invocations(&self) -> u64 {
        self.worker_stats.invoked()
    }
}

/// A write that another server forwarded.
pub(crate) async fn write_for_peer(
    core: &Core,
    proposal: Proposal,
    hops: u32,
    timeout: Duration,
) -> Result<Written, Status> {
    let result = if hops == 0 {
        // A client's own write over gRPC: any server finds the leader, and stamps time and hash itself.
        core.write(proposal.command, proposal.request.map(|request| request.id), timeout).await
    } else if core.leading().is_some() {
        core.write_as_leader(proposal.command, proposal.request, timeout).await
    } else {
        Err(ApiError::NoLeader)
    };
    result.map_err(|error| access::status_of(&error))
}

pub(crate) async fn read_index_for_peer(core: &Core) -> Result<(u64, u64), Status> {
    if members::leads(core).is_none() {
        return Err(Status::failed_precondition("this server does not lead"));
    }
    core.read_index().await.map_err(|error| access::status_of(&error))
}

pub(crate) async fn probe_for_peer(
    core: &Core,
    request: &pb::ProbeRequest,
) -> Result<pb::ProbeReply, Status> {
    let initialised = core.raft.is_initialized().await.unwrap_or(false);
    let leader = core.leader();
    Ok(pb::ProbeReply {
        initialised: initialised && core.cluster.get().is_some(),
        cluster_id: core.cluster.get().map(|id| id.to_vec()).unwrap_or_default().into(),
        node_id: core.id,
        name: core.settings.name.clone(),
        expect: core.settings.bootstrap_expect.clone(),
        leader: leader.as_ref().map_or(0, |(id, _)| *id),
        leader_rpc_address: leader.map(|(_, member)| member.rpc_address).unwrap_or_default(),
        rpc_address: core.settings.rpc_address.clone(),
        http_address: core.settings.http_address.clone(),
        // One that only learns has to ask to join again: the leader that admitted it may be gone.
        member: bootstrap::votes(core, request.from),
        digest: digests::digest_at(core, request.digest_mark),
        disk_full: core.has_full_disk(),
    })
}

pub(crate) async fn admit_peer(
    core: &Core,
    request: pb::JoinRequest,
) -> Result<pb::JoinReply, Status> {
    if core.leading().is_none() {
        return Err(Status::failed_precondition("this server does not lead"));
    }
    bootstrap::admit(core, request).await?;
    let cluster_id = core.cluster.get().map(|id| id.to_vec()).unwrap_or_default().into();
    Ok(pb::JoinReply { cluster_id })
}

pub(crate) async fn transfer_for_peer(core: &Core, to: Option<u64>) -> Result<u64, Status> {
    if core.leading().is_none() {
        return Err(Status::failed_precondition("this server does not lead"));
    }
    core.transfer(to).await.map_err(|error| access::status_of(&error))
}

/// A node's heartbeat: taken here when this server leads, passed on otherwise.
pub(crate) async fn heartbeat_for_agent(
    core: &Core,
    request: &pb::HeartbeatRequest,
) -> Result<pb::HeartbeatReply, Status> {
    let Some(services) = core.leading() else {
        let address =
            core.leader_address().map_err(|error| Status::unavailable(error.to_string()))?;
        if address == core.settings.rpc_address {
            return Err(Status::unavailable("leadership is being taken over"));
        }
        let path = "/quorate.v1.Agent/Heartbeat";
        let transport = &*core.transport;
        return call(transport, &address, path, Lane::Control, request, FORWARD_TIMEOUT).await;
    };
    // A leader that is cut off from the others would keep its nodes here while the next one gives them up.
    if !core.is_in_touch() {
        return Err(Status::unavailable("no majority of the servers answers this leader"));
    }
    let node = NodeId::from_slice(&request.node_id)
        .ok_or_else(|| Status::invalid_argument("node id must be 16 bytes"))?;
    let heard = services
        .heard(node, request.incarnation)
        .map_err(|error| Status::not_found(error.to_string()))?;
    let state = core.cell.load();
    let liveness = match state.nodes.get(&node).map(|row| row.liveness) {
        Some(fsm::Liveness::Ready) => pb::Liveness::Ready,
        Some(fsm::Liveness::Disconnected) => pb::Liveness::Disconnected,
        Some(fsm::Liveness::Down) => pb::Liveness::Down,
        Some(fsm::Liveness::Initializing) => pb::Liveness::Initializing,
        None => return Err(Status::not_found("node not found")),
    };
    Ok(pb::HeartbeatReply {
        heartbeat_ttl_ms: heard.ttl_ms,
        servers: core.member_infos().into_iter().map(|member| member.rpc_address).collect(),
        liveness: liveness.into(),
        epoch: services.epoch,
    })
}
