//! Writes on any server: proposed here or forwarded to the leader, within a deadline.
//!
//! A write gets a request id from the first server that sees it and keeps it over every retry, so
//! that an entry whose reply was lost takes effect once; that is what makes retrying after a lost
//! leader safe.

use std::{sync::Arc, time::Duration};

use fsm::{
    Command, Proposal, Reply, RequestId, codec,
    command::{CapacityCommand, PoolCommand},
    session::Request,
};
use ground::{
    plant::{Plant, is_planted},
    rt::{self, Instant},
};
use proto::v1 as pb;
use wire::{
    api::{ApiError, Limit, Written, failure, payload},
    published::StateCell,
    rpc::{generation, method},
};

use crate::provider::Provider as _;
use crate::{
    access::{LEADER_RETRY, until},
    leadership::{
        leading::Leading,
        services::{LeaderServices, check_entry},
    },
    member::{contact::Contact, hosts},
    provider::Providers,
};

/// One attempt at the leader, so that a hung one does not eat the whole deadline.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Writes from any server: proposed here or forwarded to the leader.
#[derive(Clone)]
pub struct Writes {
    pub(crate) cell: Arc<StateCell>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) leading: Arc<Leading>,
    /// Where machines of pools come from: some providers do not suit every cluster.
    pub(crate) providers: Arc<Providers>,
}

impl Writes {
    /// Proposes a command on the leader, from any server. A retry under the same id takes effect
    /// once.
    pub(crate) async fn write(
        &self,
        command: Command,
        request: Option<RequestId>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let deadline = Instant::now() + timeout;
        if let Some(why) = self.contact.disk_full.borrow().clone() {
            return Err(ApiError::DiskFull(why));
        }
        // A server whose log is empty, and that has heard no log time, has only its own clock,
        // which may be wrong by hours: no stamp.
        while !self.contact.time.is_known() {
            if until(deadline) <= LEADER_RETRY {
                return Err(ApiError::NoLeader);
            }
            rt::sleep(LEADER_RETRY).await;
        }
        let mut request = self.stamp(request, &command);
        let mut last = ApiError::NoLeader;
        let mut proposed = false;
        loop {
            let left = until(deadline);
            if left <= LEADER_RETRY {
                return Err(if proposed { ApiError::Timeout { proposed } } else { last });
            }
            let attempt = left.min(ATTEMPT_TIMEOUT);
            let is_forwarded = self.leading.services().is_none();
            let result = if is_forwarded {
                self.forward(command.clone(), request, attempt).await
            } else {
                self.write_as_leader(command.clone(), Some(request), attempt).await
            };
            match result {
                Ok(Written { reply: Reply::Rejected(fsm::Rejection::SessionExpired), .. })
                    if proposed =>
                {
                    // The session has expired: the outcome of the earlier attempt is unknown.
                    return Err(ApiError::Unknown);
                }
                Ok(Written { index, reply: Reply::Rejected(fsm::Rejection::SessionExpired) }) => {
                    // The stamp is log time as this server knows it, which lags: nothing was
                    // changed. Stamp the request again once this server has caught up.
                    last = ApiError::NotReady("it is far behind the others".to_owned());
                    self.cell.wait_for(index, until(deadline)).await;
                    request.stamped_at = self.log_time();
                }
                Ok(written) => return Ok(written),
                Err(error) => match next(&error, is_forwarded) {
                    Next::GiveUp if !proposed => return Err(error),
                    Next::GiveUp => {}
                    Next::Retry => last = error,
                    Next::FindOut => {
                        proposed = true;
                        last = error;
                        if is_planted(Plant::HiddenRetry) {
                            request = self.stamp(None, &command);
                        }
                    }
                },
            }
            rt::sleep(LEADER_RETRY.min(until(deadline))).await;
        }
    }

    /// Proposes here if this server leads; used for forwarded writes too.
    pub(crate) async fn write_as_leader(
        &self,
        command: Command,
        request: Option<Request>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let services = self.leading.services().ok_or(ApiError::NoLeader)?;
        if let Some(why) = self.contact.cluster_is_full() {
            return Err(ApiError::DiskFull(why));
        }
        if self.contact.has_full_disk() {
            // A server with room takes over at once; until then the cluster counts as without a
            // leader.
            return Err(ApiError::NoLeader);
        }
        if command.makes_work() && services.is_overloaded() {
            return Err(ApiError::Overloaded {
                what: Limit::PendingEvaluations,
                limit: self.contact.settings.services.broker.evaluations_max as u64,
                retry_after_ms: 1_000,
            });
        }
        if let Command::Pool(PoolCommand::UpsertInstancePool(upsert)) = &command
            && self.providers.get(&upsert.pool.provider).is_some_and(|one| one.needs_one_host())
        {
            let provider = &upsert.pool.provider;
            let refused =
                |why: String| ApiError::Invalid(format!("provider \"{provider}\": {why}"));
            hosts::require_one(&self.contact).await.map_err(refused)?;
        }
        if let Command::Capacity(CapacityCommand::SetRequirements(command)) = command {
            // Another leader may have heard more than this one, which does not know of it.
            if !self.contact.is_in_touch() {
                return Err(ApiError::NoLeader);
            }
            return services.requirements().take(&services, command, timeout).await;
        }
        if is_planted(Plant::AcknowledgeBeforeCommit) {
            return Ok(self.acknowledge_before_commit(services, command, request));
        }
        services.propose(command, request, timeout).await
    }

    /// A deliberate bug for the test harness, compiled in by the feature `plant` only: returns the
    /// expected answer before the entry is committed.
    fn acknowledge_before_commit(
        &self,
        services: Arc<LeaderServices>,
        command: Command,
        request: Option<Request>,
    ) -> Written {
        let mut guess = (*self.cell.load()).clone();
        let proposal =
            Proposal { at: services.now(), epoch: None, request, command: command.clone() };
        let index = guess.index().saturating_add(1);
        let mut changes = fsm::table::ChangeSet::trial();
        let applied = guess.apply(index, guess.term(), &proposal, &mut changes);
        rt::spawn(async move { drop(services.propose(command, request, ATTEMPT_TIMEOUT).await) });
        Written { index, reply: applied.reply }
    }

    async fn forward(
        &self,
        command: Command,
        request: Request,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let address = self.contact.leader_address()?;
        let proposal = Proposal { at: 0, epoch: None, request: Some(request), command };
        let command = codec::encode(&proposal);
        check_entry(command.len())?;
        let message = pb::WriteRequest {
            command,
            request_id: request.id.0.to_vec().into(),
            times_forwarded: 1,
            tag: 0,
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        };
        let reply: Result<pb::WriteReply, _> =
            self.contact.call(&address, &method::WRITE, &message, timeout).await;
        match reply {
            Ok(reply) => {
                let decoded: Reply = codec::decode(&reply.reply).map_err(|error| {
                    tracing::warn!(%error, "the leader's reply to a write cannot be read");
                    ApiError::Unknown
                })?;
                Ok(Written { index: reply.index, reply: decoded })
            }
            Err(status) => Err(forwarded(&status)),
        }
    }

    /// The request for this command. With a client's id it has a hash of the command, which tells
    /// it from another request under the same id; an id made here stands for this request alone.
    fn stamp(&self, id: Option<RequestId>, command: &Command) -> Request {
        let payload_hash = id.map_or(0, |_| payload::hash(command));
        let id = id.unwrap_or_else(|| self.fresh_request());
        Request { id, stamped_at: self.log_time(), payload_hash }
    }

    /// Log time as this server knows it.
    pub fn log_time(&self) -> fsm::TimeMs {
        self.contact.time.now()
    }

    /// A fresh request id: log time and random bits (a version 7 UUID, RFC 9562). Sessions end in
    /// the order of time, so with such ids they lie in that order in memory and on disk.
    pub fn fresh_request(&self) -> RequestId {
        let mut id = rt::random_id();
        let [_, _, at @ ..] = self.log_time().to_be_bytes();
        id[..at.len()].copy_from_slice(&at);
        id[6] = (id[6] & 0x0f) | 0x70;
        RequestId(id)
    }
}

/// The error in the leader's answer to a forwarded write. A status without an error in it comes
/// from the connection, so the write may have happened.
fn forwarded(status: &tonic::Status) -> ApiError {
    if generation::is_refusal(status) {
        return ApiError::NotReady(status.message().to_owned());
    }
    failure::error_in(status).unwrap_or(ApiError::Unknown)
}

/// What a failed attempt means for the write.
enum Next {
    /// Nothing was changed. The client gets this error, unless an earlier attempt may have been
    /// proposed.
    GiveUp,
    /// Nothing was changed, and another attempt may go better.
    Retry,
    /// The write may have been proposed: the same request is tried again until its outcome is
    /// known.
    FindOut,
}

/// | error | from this server | from the leader |
/// |---|---|---|
/// | `NoLeader` | retry | retry |
/// | `NotReady` | give up: it is stopping | retry: it is stopping, another one takes over |
/// | `Timeout`, not proposed | retry | retry |
/// | `Timeout`, proposed; `Unknown` | find out | find out |
/// | `Overloaded`, `DiskFull`, `Invalid` | give up | give up |
fn next(error: &ApiError, is_forwarded: bool) -> Next {
    match error {
        ApiError::NoLeader | ApiError::Timeout { proposed: false } => Next::Retry,
        ApiError::NotReady(_) if is_forwarded => Next::Retry,
        ApiError::Timeout { proposed: true } | ApiError::Unknown => Next::FindOut,
        ApiError::NotReady(_)
        | ApiError::Overloaded { .. }
        | ApiError::DiskFull(_)
        | ApiError::Forbidden(_)
        | ApiError::Invalid(_) => Next::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_the_leader_says_that_nothing_was_changed() {
        let stopping = ApiError::NotReady("the server is stopping".to_owned());
        assert_eq!(forwarded(&(&stopping).into()), stopping);
        let lost = tonic::Status::unavailable("connection lost");
        assert_eq!(forwarded(&lost), ApiError::Unknown, "it may have arrived");
    }

    #[test]
    fn a_write_is_tried_again_unless_this_server_or_the_leader_refuses_it() {
        let find_out = [ApiError::Unknown, ApiError::Timeout { proposed: true }];
        for error in failure::testing::every_error() {
            let is_uncertain = find_out.contains(&error);
            for is_forwarded in [false, true] {
                let is_found_out = matches!(next(&error, is_forwarded), Next::FindOut);
                assert_eq!(is_found_out, is_uncertain, "{error:?}");
            }
        }
        let stopping = ApiError::NotReady("it is stopping".to_owned());
        assert!(matches!(next(&stopping, false), Next::GiveUp));
        assert!(matches!(next(&stopping, true), Next::Retry), "another leader takes over");
    }
}
