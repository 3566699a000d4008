//! What servers have told an agent, read along on its way to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use fsm::AllocationId;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use ground::rt::Instant;
use prost::Message;
use proto::v1 as pb;
use tonic::Status;
use wire::rpc::transport::{Lane, ReplyStream, Transport};

use super::lock;
use crate::{
    network::SimTransport,
    running::{self, Name},
    streams, verdict,
    world::World,
};

/// How long an agent may go on with what it had begun to do when it is told otherwise.
pub(super) const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// What servers have told an agent since it started.
#[derive(Default)]
pub(super) struct Told {
    /// The newest index that it was shown since it registered.
    shown: u64,
    /// What was to run.
    to_run: BTreeMap<AllocationId, Name>,
    /// What was not to run, or was gone, and since when that is known.
    pub(super) to_end: BTreeMap<AllocationId, Instant>,
}

impl Told {
    /// A message that the agent has taken from a stream.
    pub(super) fn says(&mut self, number: usize, batch: &pb::AllocationBatch) {
        self.shown = self.shown.max(batch.index);
        for one in &batch.allocations {
            let id = AllocationId::from_slice(&one.id).unwrap_or_default();
            if one.run && one.task_starts_allowed {
                let name = running::name_of(number, one.job_kind(), (&one.job_id, &one.name));
                self.to_run.insert(id, name);
            } else if !one.run {
                self.to_end.entry(id).or_insert_with(Instant::now);
            }
        }
        for id in batch.removed.iter().filter_map(|id| AllocationId::from_slice(id)) {
            self.to_end.entry(id).or_insert_with(Instant::now);
        }
    }

    /// I49: what begins was asked for, and was not to end well before.
    pub(super) fn may_begin(&self, id: AllocationId) -> Result<&Name, &'static str> {
        let name =
            self.to_run.get(&id).ok_or("no server has asked for it since its agent started")?;
        match self.to_end.get(&id) {
            Some(since) if since.elapsed() > STOPS_WITHIN => Err("it was to end long ago"),
            _ => Ok(name),
        }
    }

    /// I13: whoever was shown an index asks for nothing older, or what is new would be taken for gone.
    pub(super) fn asks(&self, number: usize, request: &pb::StreamAllocationsRequest) {
        let (shown, asked) = (self.shown, request.index_min);
        if asked < shown {
            verdict::fail(format!(
                "I13: a{number} was shown {shown} and asks for {asked} and more"
            ));
        }
    }
}

/// The way to the servers, with a look at what is said on it.
pub(super) struct Watched {
    pub(super) number: usize,
    pub(super) world: World,
    pub(super) inner: SimTransport,
    pub(super) told: Arc<Mutex<Told>>,
}

impl Transport for Watched {
    fn unary(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, Status>> {
        let (call, told) = (self.inner.unary(to, path, lane, body, timeout), self.told.clone());
        let (number, known) = (self.number, self.world.newest_index());
        async move {
            let reply = call.await?;
            if path.ends_with("/Register")
                && let Ok(registered) = pb::RegisterReply::decode(reply.clone())
            {
                streams::registered(&format!("a{number}"), known, registered.index);
                // Whoever registers anew begins anew: nobody may have any more what was shown before.
                lock(&told).shown = registered.index;
            }
            Ok(reply)
        }
        .boxed()
    }

    fn stream(
        &self,
        to: &str,
        path: &'static str,
        lane: Lane,
        input: BoxStream<'static, Bytes>,
    ) -> BoxFuture<'static, Result<ReplyStream, Status>> {
        let (number, asked, heard) = (self.number, self.told.clone(), self.told.clone());
        let input = input.inspect(move |body| {
            if let Ok(request) = pb::StreamAllocationsRequest::decode(body.clone()) {
                lock(&asked).asks(number, &request);
            }
        });
        let opened = self.inner.stream(to, path, lane, input.boxed());
        async move {
            let batches = opened.await?.inspect(move |body| {
                if let Ok(body) = body
                    && let Ok(batch) = pb::AllocationBatch::decode(body.clone())
                {
                    lock(&heard).says(number, &batch);
                }
            });
            Ok(batches.boxed())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::processes::tests::batch, *};

    #[test]
    fn i13_what_was_shown_is_asked_for() {
        let mut told = Told::default();
        let ask = |told: &Told, index_min| {
            told.asks(3, &pb::StreamAllocationsRequest { index_min, ..Default::default() });
            verdict::failures().len()
        };
        told.says(3, &batch(7, AllocationId([1; 16]), true));
        told.says(3, &batch(6, AllocationId([1; 16]), true));
        assert_eq!(ask(&told, 7), 0);
        assert_eq!(ask(&told, 6), 1);
    }
}
