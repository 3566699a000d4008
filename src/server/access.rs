//! Reads and writes on any server: linearizable by default, forwarded to the leader where needed, within a deadline.
//!
//! A write gets a request id from the first server that sees it and keeps it over every retry, so that an entry whose reply was lost takes
//! effect once; that is what makes retrying after a lost leader safe.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fsm::{Command, Index, Proposal, Reply, RequestId, codec, session::Request, table::TableId};
use futures_util::{FutureExt, future::BoxFuture};
use openraft::ReadPolicy;
use proto::v1 as pb;
use tonic::Code;

use super::{core::Core, gauges::gauges, members::leads};
use crate::{
    api::{Api, ApiError, MemberInfo, ReadMode, Snapshot, Written},
    plant::{Plant, is_planted},
    raft::WatchReceiver,
    rpc::transport::{Lane, call},
    rt::{self, Instant},
};

/// Pause before a leader is looked for again.
const LEADER_RETRY: Duration = Duration::from_millis(25);
/// One attempt at the leader, so that a hung one does not eat the whole deadline.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

fn hash64(bytes: &[u8]) -> u64 {
    let hash = fsm::digest::row_hash(b"request", bytes).to_le_bytes();
    u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

impl Core {
    fn left(deadline: Instant) -> Duration {
        deadline.saturating_duration_since(Instant::now())
    }

    /// A client's id with what tells its request from another under the same id; an id made up here stands for this request alone.
    fn stamp(&self, id: Option<RequestId>, command: &Command) -> Request {
        let payload_hash = id.map_or(0, |_| {
            let command = without_fresh_ids(command.clone());
            hash64(&codec::encode(&Proposal { at: 0, epoch: None, request: None, command }))
        });
        let id = id.unwrap_or_else(|| self.fresh_request());
        Request { id, stamped_at: self.log_time(), payload_hash }
    }

    /// Log time as this server knows it: behind the leader's by [`leader::limits::TICK_AFTER_MS`] and some at most.
    pub(super) fn log_time(&self) -> fsm::TimeMs {
        match self.cell.load().head.at {
            // A cluster without history: its first entry brings wall time, beside which 0 would be long expired.
            0 => self.clock.wall_ms(),
            at => at,
        }
    }

    /// The index a linearizable read has to wait for, from the leader.
    pub(super) async fn read_index(&self) -> Result<(Index, u64), ApiError> {
        if is_planted(Plant::LeaseWithoutMargin)
            && self.last_contact() < Duration::from_millis(3 * self.settings.timing.election_ms_max)
        {
            return Ok((self.applied(), self.raft.metrics().borrow_watched().current_term));
        }
        let (read, _) =
            self.raft.get_read_log_id(ReadPolicy::ReadIndex).await.map_err(|error| {
                tracing::debug!(%error, "no read index");
                ApiError::NoLeader
            })?;
        Ok((read.index(), self.raft.metrics().borrow_watched().current_term))
    }

    async fn read_index_anywhere(&self, deadline: Instant) -> Result<Index, ApiError> {
        loop {
            let left = Self::left(deadline);
            if let Ok(Ok(index)) = rt::timeout(left, self.read_rounds.read_index()).await {
                return Ok(index);
            }
            if Self::left(deadline) <= LEADER_RETRY {
                return Err(ApiError::NoLeader);
            }
            rt::sleep(LEADER_RETRY).await;
        }
    }

    /// Time since this server last heard a leader, or a majority answered it as the leader; since its start when neither happened. From one look to
    /// the next it grows by the time between them at most.
    pub fn last_contact(&self) -> Duration {
        // Who has led for a moment only, or no longer leads, goes by what it heard before.
        let age = self.contact.age();
        self.majority_age().map_or(age, |majority| majority.min(age))
    }

    /// On a leader: the time since a majority answered it in its term.
    pub(super) fn majority_age(&self) -> Option<Duration> {
        leads(self)?;
        if self.is_sole_voter() {
            // Raft does not ask itself.
            return Some(Duration::ZERO);
        }
        let acknowledged = self.raft.metrics().borrow_watched().last_quorum_acked;
        acknowledged.map(|at| openraft::Instant::elapsed(&*at))
    }

    fn is_sole_voter(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let configurations = metrics.membership_config.membership().get_joint_config();
        matches!(configurations.as_slice(), [voters] if voters.len() == 1 && voters.contains(&self.id))
    }

    /// Keeps what majorities answered this server while it led, for the time when it leads no more.
    pub(super) async fn keep_contact(self: Arc<Self>) {
        let mut metrics = self.raft.metrics();
        loop {
            if let Some(age) = self.majority_age() {
                self.contact.was_in_touch(age);
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    async fn read_state(
        &self,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> Result<Snapshot, ApiError> {
        if !self.has_recovered() && mode == ReadMode::Stale {
            let what = "it has not heard a leader since its start";
            return Err(ApiError::NotReady(what.to_owned()));
        }
        let deadline = Instant::now() + timeout;
        let mut index = index_min;
        if mode == ReadMode::Linearizable && !is_planted(Plant::StaleRead) {
            index = index.max(self.read_index_anywhere(deadline).await?);
        }
        if !self.cell.wait_for(index, Self::left(deadline)).await {
            return Err(ApiError::Timeout { proposed: false });
        }
        let fresh = Duration::from_millis(self.settings.timing.election_ms_max);
        let last_contact =
            if mode == ReadMode::Linearizable { Duration::ZERO } else { self.last_contact() };
        let known_leader = self.leader().is_some() && last_contact <= fresh;
        Ok(Snapshot { state: self.cell.load(), last_contact, known_leader })
    }

    /// Proposes here if this server leads; used for forwarded writes too.
    pub(super) async fn write_as_leader(
        &self,
        command: Command,
        request: Option<Request>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let services = self.leading().ok_or(ApiError::NoLeader)?;
        if let Some(why) = self.cluster_is_full() {
            return Err(ApiError::DiskFull(why));
        }
        if self.has_full_disk() {
            // A server with room takes over at once; until then a write is as without a leader.
            return Err(ApiError::NoLeader);
        }
        let makes_work =
            matches!(command, Command::RegisterJob { .. } | Command::EvaluateJob { .. });
        if makes_work && services.is_overloaded() {
            return Err(ApiError::Overloaded {
                what: "pending evaluations",
                limit: self.settings.services.broker.evaluations_max as u64,
                retry_after_ms: 1_000,
            });
        }
        if is_planted(Plant::AcknowledgeBeforeCommit) {
            return Ok(self.acknowledge_before_commit(services, command, request));
        }
        self.propose(&services, command, request, timeout).await
    }

    /// A deliberate bug for the test harness, compiled in by the feature `plant` only: the answer that would come, before it is committed.
    fn acknowledge_before_commit(
        &self,
        services: Arc<super::leadership::LeaderServices>,
        command: Command,
        request: Option<Request>,
    ) -> Written {
        let mut guess = (*self.cell.load()).clone();
        let proposal =
            Proposal { at: services.now(), epoch: None, request, command: command.clone() };
        let index = guess.head.index.saturating_add(1);
        let mut changes = fsm::table::ChangeSet::trial();
        let applied = guess.apply(index, guess.head.term, &proposal, &mut changes);
        rt::spawn(async move { drop(services.propose(command, request, ATTEMPT_TIMEOUT).await) });
        Written { index, reply: applied.reply }
    }

    async fn write_anywhere(
        &self,
        command: Command,
        request: Option<RequestId>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let deadline = Instant::now() + timeout;
        if let Some(why) = self.disk_full.borrow().clone() {
            return Err(ApiError::DiskFull(why));
        }
        let mut request = self.stamp(request, &command);
        let mut last = ApiError::NoLeader;
        let mut proposed = false;
        loop {
            let left = Self::left(deadline);
            if left <= LEADER_RETRY {
                return Err(if proposed { ApiError::Timeout { proposed } } else { last });
            }
            let attempt = left.min(ATTEMPT_TIMEOUT);
            let result = if self.leading().is_some() {
                self.write_as_leader(command.clone(), Some(request), attempt).await
            } else {
                self.forward(command.clone(), request, attempt).await
            };
            match result {
                Ok(Written { reply: Reply::Rejected(fsm::Rejection::SessionExpired), .. })
                    if proposed =>
                {
                    // What became of the attempt before nobody remembers.
                    return Err(ApiError::Unknown);
                }
                Ok(Written { index, reply: Reply::Rejected(fsm::Rejection::SessionExpired) }) => {
                    // The stamp is this server's log time, which was that old: nothing came of it. It is stamped anew once this server knows better.
                    last = ApiError::NotReady("it is far behind the others".to_owned());
                    self.cell.wait_for(index, Self::left(deadline)).await;
                    request.stamped_at = self.log_time();
                }
                Ok(written) => return Ok(written),
                Err(error @ ApiError::NoLeader) => last = error,
                Err(error @ (ApiError::Unknown | ApiError::Timeout { .. })) => {
                    proposed |= !matches!(error, ApiError::Timeout { proposed: false });
                    last = error;
                    if is_planted(Plant::HiddenRetry) {
                        request = self.stamp(None, &command);
                    }
                }
                Err(
                    error @ (ApiError::Overloaded { .. }
                    | ApiError::NotReady(_)
                    | ApiError::DiskFull(_)
                    | ApiError::Invalid(_)),
                ) if !proposed => return Err(error),
                Err(
                    ApiError::Overloaded { .. }
                    | ApiError::NotReady(_)
                    | ApiError::DiskFull(_)
                    | ApiError::Invalid(_),
                ) => {}
            }
            rt::sleep(LEADER_RETRY.min(Self::left(deadline))).await;
        }
    }

    async fn forward(
        &self,
        command: Command,
        request: Request,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let address = self.leader_address()?;
        let proposal = Proposal { at: 0, epoch: None, request: Some(request), command };
        let message = pb::WriteRequest {
            command: codec::encode(&proposal),
            request_id: request.id.0.to_vec().into(),
            hops: 1,
            tag: 0,
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        };
        let path = "/quorate.v1.Cluster/Write";
        let reply: Result<pb::WriteReply, _> =
            call(&*self.transport, &address, path, Lane::Control, &message, timeout).await;
        match reply {
            Ok(reply) => {
                let decoded: Reply = codec::decode(&reply.reply).map_err(|error| {
                    tracing::warn!(%error, "the leader's reply to a write cannot be read");
                    ApiError::Unknown
                })?;
                Ok(Written { index: reply.index, reply: decoded })
            }
            Err(status) => Err(forwarded_error(&status)),
        }
    }
}

/// Ids that a server makes up are no part of what a client asked for: a retry of the same request carries others.
fn without_fresh_ids(mut command: Command) -> Command {
    match &mut command {
        Command::RegisterJob { evaluation, .. }
        | Command::DeregisterJob { evaluation, .. }
        | Command::EvaluateJob { evaluation, .. }
        | Command::StopAllocation { evaluation, .. } => *evaluation = fsm::EvaluationId::default(),
        Command::RegisterNode { evaluation_ids, .. }
        | Command::NodeReadiness { evaluation_ids, .. }
        | Command::NodeLiveness { evaluation_ids, .. }
        | Command::SetEligibility { evaluation_ids, .. }
        | Command::AdvanceDrains { evaluation_ids, .. }
        | Command::ReapNode { evaluation_ids, .. }
        | Command::EvaluateNode { evaluation_ids, .. } => evaluation_ids.clear(),
        Command::SetDrain { drain, evaluation_ids, .. } => {
            evaluation_ids.clear();
            if let Some(drain) = drain {
                drain.deadline_at =
                    drain.deadline_at.map(|until| until.saturating_sub(drain.started_at));
                drain.started_at = 0;
            }
        }
        Command::SuspendNode { .. }
        | Command::UnsuspendNodes { .. }
        | Command::UpdateAllocations { .. }
        | Command::UpdateEvaluations { .. }
        | Command::ApplyPlans { .. }
        | Command::SetSchedulerConfiguration { .. }
        | Command::UpsertNodePool(_)
        | Command::DeleteNodePool(_)
        | Command::UpsertNamespace(_)
        | Command::DeleteNamespace(_)
        | Command::Tick
        | Command::MarkDigest
        | Command::DigestVerdict { .. }
        | Command::CollectGarbage { .. } => {}
    }
    command
}

/// The status of a refused or failed write, for a server that forwarded it.
pub(super) fn status_of(error: &ApiError) -> tonic::Status {
    let code = match error {
        ApiError::NoLeader => Code::FailedPrecondition,
        ApiError::Timeout { .. } | ApiError::Unknown => Code::DeadlineExceeded,
        ApiError::Overloaded { .. } => Code::ResourceExhausted,
        ApiError::NotReady(_) => Code::Unavailable,
        ApiError::DiskFull(_) => Code::OutOfRange,
        ApiError::Invalid(_) => Code::InvalidArgument,
    };
    // The other end makes an error of the same kind, which says the rest again.
    let text = if let ApiError::DiskFull(why) = error { why.clone() } else { error.to_string() };
    tonic::Status::new(code, text)
}

fn forwarded_error(status: &tonic::Status) -> ApiError {
    let message = || status.message().to_owned();
    let known = [
        (Code::FailedPrecondition, ApiError::NoLeader),
        (
            Code::ResourceExhausted,
            ApiError::Overloaded { what: "proposals of the leader", limit: 0, retry_after_ms: 500 },
        ),
        (Code::OutOfRange, ApiError::DiskFull(message())),
        (Code::InvalidArgument, ApiError::Invalid(message())),
    ];
    let found = known.into_iter().find(|(code, _)| *code == status.code());
    // Everything else may have happened after the request was sent.
    found.map_or(ApiError::Unknown, |(_, error)| error)
}

impl Api for Core {
    fn read(
        &self,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Snapshot, ApiError>> {
        self.read_state(mode, index_min, timeout).boxed()
    }

    fn write(
        &self,
        command: Command,
        request: Option<RequestId>,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Written, ApiError>> {
        self.write_anywhere(command, request, timeout).boxed()
    }

    fn changed(
        &self,
        tables: &'static [TableId],
        after: Index,
        timeout: Duration,
    ) -> BoxFuture<'_, ()> {
        self.cell.changed(tables, after, timeout).boxed()
    }

    fn new_id(&self) -> [u8; 16] {
        rt::random_id()
    }

    fn members(&self) -> Vec<MemberInfo> {
        self.member_infos()
    }

    fn this_member(&self) -> MemberInfo {
        let known = self.member_infos().into_iter().find(|member| member.id == self.id);
        known.unwrap_or_else(|| MemberInfo {
            id: self.id,
            name: self.settings.name.clone(),
            rpc_address: self.settings.rpc_address.clone(),
            http_address: self.settings.http_address.clone(),
            alive: true,
            ..MemberInfo::default()
        })
    }

    fn transfer_leadership(&self, to: Option<u64>) -> BoxFuture<'_, Result<u64, ApiError>> {
        async move {
            if leads(self).is_some() {
                return self.transfer(to).await;
            }
            let address = self.leader_address()?;
            let request = pb::TransferLeadershipRequest { to };
            let path = "/quorate.v1.Cluster/TransferLeadership";
            let timeout = Duration::from_secs(10);
            call::<_, pb::TransferLeadershipReply>(
                &*self.transport,
                &address,
                path,
                Lane::Control,
                &request,
                timeout,
            )
            .await
            .map(|reply| reply.to)
            .map_err(|status| {
                let message = status.message().to_owned();
                let is_invalid = status.code() == Code::InvalidArgument;
                if is_invalid { ApiError::Invalid(message) } else { ApiError::NotReady(message) }
            })
        }
        .boxed()
    }

    fn gauges(&self) -> BTreeMap<String, f64> {
        gauges(self)
    }

    fn stats(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let raft = [
            ("state", format!("{:?}", metrics.state)),
            ("term", metrics.current_term.to_string()),
            ("applied_index", self.applied().to_string()),
            ("last_log_index", metrics.last_log_index.unwrap_or(0).to_string()),
            ("commit_index", metrics.local_committed.map_or(0, |id| id.index).to_string()),
            ("leader", self.leader().map(|(_, member)| member.rpc_address).unwrap_or_default()),
        ];
        let quorate = [
            ("server", leads(self).map_or("follower", |_| "leader").to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("cluster_id", self.cluster_id().unwrap_or_default()),
            ("server_id", format!("{:x}", self.id)),
        ];
        let group = |list: &[(&str, String)]| {
            list.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        };
        BTreeMap::from([("raft".to_owned(), group(&raft)), ("quorate".to_owned(), group(&quorate))])
    }

    fn membership_index(&self) -> Index {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.log_id().map_or(0, |id| id.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_the_same_at_the_server_that_forwarded_the_write() {
        for error in [
            ApiError::NoLeader,
            ApiError::DiskFull("/data has 0 MiB free".to_owned()),
            ApiError::Invalid("no such job".to_owned()),
            ApiError::Unknown,
        ] {
            // Twice: a forwarded write may be forwarded again.
            let once = forwarded_error(&status_of(&error));
            let twice = forwarded_error(&status_of(&once));
            assert_eq!(
                (once.to_string(), twice.to_string()),
                (error.to_string(), error.to_string())
            );
        }
    }
}
