//! gRPC for load balancers: how much capacity they need. The same as `PUT
//! /v1/capacity/requirements`, as a stream.
//!
//! Clients are generated from `quorate/capacity/v1/capacity.proto`, which has a version of its own,
//! so this is the one service that does not ask callers for their generation. Must never trust them
//! more than HTTP's clients: streams, bytes of a message and words under way are bounded.

use std::{sync::Arc, time::Duration};

use fsm::{
    Command, Rejection, Reply, Text,
    capacity::{Requirements, SetRequirements},
};
use futures_util::{StreamExt, stream::BoxStream};
use ground::{
    caller::{Caller, Way},
    rt::{self, Semaphore},
};
use proto::capacity::v1 as pb;
use tonic::{Request, Response, Status, Streaming};
use wire::api::{AgentApi, Answer, ApiError, Limit, Written};

use super::caller_of;

/// Streams of one server at a time.
pub const STREAMS_MAX: usize = 4_096;
/// Longest message, bytes: as many groups as a source may name, with long names.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// How long a word may take until it is applied.
const WORD_TIMEOUT: Duration = Duration::from_secs(10);

/// The gRPC service for load balancers.
#[derive(Clone)]
pub struct CapacityService {
    api: Arc<dyn AgentApi>,
    streams: Arc<Semaphore>,
    streams_max: usize,
}

impl CapacityService {
    /// The service of a server, with so many streams at a time.
    pub fn new(api: Arc<dyn AgentApi>, streams_max: usize) -> Self {
        Self { api, streams: Arc::new(Semaphore::new(streams_max)), streams_max }
    }

    /// The answer to one word.
    async fn hear(&self, caller: &Caller, said: pb::Requirement) -> pb::Heard {
        let (epoch, seq) = (said.epoch, said.seq);
        let heard = |outcome: pb::Outcome| pb::Heard {
            epoch,
            seq,
            outcome: outcome.into(),
            ..pb::Heard::default()
        };
        let word = match word_of(said) {
            Ok(word) => word,
            Err(message) => return pb::Heard { message, ..heard(pb::Outcome::Invalid) },
        };
        let command = Command::from(SetRequirements { words: vec![word] });
        match self.api.write(caller, command, None, WORD_TIMEOUT).await {
            Ok(Written { reply: Reply::Rejected(rejection), .. }) => refused(&rejection, heard),
            Ok(_) => heard(pb::Outcome::Taken),
            Err(error) => failed(&error, heard),
        }
    }
}

/// What a message says.
fn word_of(said: pb::Requirement) -> Result<Requirements, String> {
    let mut amounts = std::collections::BTreeMap::<Text, u64>::new();
    for need in said.groups {
        if amounts.insert(need.group.as_str().into(), need.amount).is_some() {
            return Err(format!("group \"{}\" is there twice", need.group));
        }
    }
    let ttl_ms = (said.ttl_ms > 0).then_some(said.ttl_ms);
    let (epoch, seq) = (said.epoch, said.seq);
    Ok(Requirements { source: said.source.into(), epoch, seq, ttl_ms, amounts })
}

fn refused(rejection: &Rejection, heard: impl Fn(pb::Outcome) -> pb::Heard) -> pb::Heard {
    let message = rejection.to_string();
    if let Rejection::StaleRequirements { epoch, seq, .. } = rejection {
        let (newest_epoch, newest_seq) = (*epoch, *seq);
        return pb::Heard { message, newest_epoch, newest_seq, ..heard(pb::Outcome::Older) };
    }
    let is_unknown = matches!(rejection, Rejection::NotFound { .. });
    let outcome = if is_unknown { pb::Outcome::UnknownGroup } else { pb::Outcome::Invalid };
    pb::Heard { message, ..heard(outcome) }
}

fn failed(error: &ApiError, heard: impl Fn(pb::Outcome) -> pb::Heard) -> pb::Heard {
    let outcome = match error {
        ApiError::Invalid(_) | ApiError::Forbidden(_) => pb::Outcome::Invalid,
        ApiError::NoLeader
        | ApiError::Timeout { .. }
        | ApiError::Unknown
        | ApiError::Overloaded { .. }
        | ApiError::NotReady(_)
        | ApiError::DiskFull(_) => pb::Outcome::Unavailable,
    };
    let retry_after_ms = Answer::from(error).retry_after_ms.unwrap_or(0);
    pb::Heard { message: error.to_string(), retry_after_ms, ..heard(outcome) }
}

#[tonic::async_trait]
impl pb::capacity_server::Capacity for CapacityService {
    type AdvertiseStream = BoxStream<'static, Result<pb::Heard, Status>>;

    async fn advertise(
        &self,
        request: Request<Streaming<pb::Requirement>>,
    ) -> Result<Response<Self::AdvertiseStream>, Status> {
        let Ok(turn) = Arc::clone(&self.streams).try_acquire_owned() else {
            let (what, limit) = (Limit::RequirementStreams, self.streams_max as u64);
            return Err(ApiError::Overloaded { what, limit, retry_after_ms: 1_000 }.into());
        };
        let (service, caller) = (self.clone(), caller_of(Way::Grpc, &request));
        let mut stop = self.api.stopping();
        // One after the other: a source's next word waits for the answer to the last.
        let answers = request
            .into_inner()
            .take_until(async move { rt::until_true(&mut stop).await })
            .then(move |said| {
                let (service, caller, _held) = (service.clone(), caller.clone(), &turn);
                async move { Ok(service.hear(&caller, said?).await) }
            });
        Ok(Response::new(answers.boxed()))
    }
}
