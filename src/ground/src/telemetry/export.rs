//! Sends spans to a collector, by OTLP over gRPC.
//!
//! Must never hold up the server: spans that the collector does not take in time are dropped and
//! counted, and the log says so once until it takes some again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proto::otlp::{
    AnyValue, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans,
    ScopeSpans, Span, any_value::Value, trace_service_client::TraceServiceClient,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::traces::Counts;
use crate::{
    address::Address,
    rt::{self, mpsc, watch},
};

/// Spans that wait for the collector.
pub(super) const SPANS_MAX: usize = 8_192;
/// Spans in one message.
const BATCH_MAX: usize = 512;
/// How long the first span of a message waits for others.
const GATHER: Duration = Duration::from_millis(200);
/// How long the collector may take for a message.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last messages may take when the server stops.
const LAST_MAX: Duration = Duration::from_secs(2);

/// Sends spans once it is started.
pub struct Exporter {
    spans: mpsc::Receiver<Span>,
    counts: Arc<Counts>,
    resource: Resource,
    collector: Address,
    is_failing: bool,
}

/// An exporter that runs.
pub struct Exporting {
    stop: watch::Sender<bool>,
    task: rt::JoinHandle<()>,
}

impl Exporting {
    /// Sends what is left, for a while, and ends.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        drop(rt::timeout(LAST_MAX, self.task).await);
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value }
}

impl Exporter {
    pub(super) fn new(
        spans: mpsc::Receiver<Span>,
        counts: Arc<Counts>,
        collector: Address,
        server: &str,
    ) -> Self {
        // Names of OpenTelemetry's semantic conventions.
        let attributes = vec![
            text("service.name", "quorate"),
            text("service.instance.id", server),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ];
        Self { spans, counts, resource: Resource { attributes }, collector, is_failing: false }
    }

    /// Sends spans from now on, in a task of its own.
    pub fn start(self) -> Exporting {
        let (stop, stopped) = watch::channel(false);
        Exporting { stop, task: rt::spawn(self.run(stopped)) }
    }

    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.collector));
        let endpoint = endpoint.expect("an address makes an URI").connect_timeout(TIMEOUT);
        let mut client = TraceServiceClient::new(endpoint.connect_lazy());
        loop {
            let mut batch = Vec::new();
            rt::select! {
                biased;
                _ = self.spans.recv_many(&mut batch, BATCH_MAX) => {}
                () = rt::until_true(&mut stopped) => return,
            }
            if batch.is_empty() {
                return;
            }
            self.gather(&mut batch, &mut stopped).await;
            self.send(&mut client, batch).await;
        }
    }

    /// Adds spans until the message is full, a while has passed, or the server stops.
    async fn gather(&mut self, batch: &mut Vec<Span>, stopped: &mut watch::Receiver<bool>) {
        let deadline = rt::Instant::now() + GATHER;
        while batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            rt::select! {
                biased;
                taken = self.spans.recv_many(batch, room) => if taken == 0 { return },
                () = rt::sleep_until(deadline) => return,
                () = rt::until_true(stopped) => return,
            }
        }
    }

    async fn send(&mut self, client: &mut TraceServiceClient<Channel>, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let scope = InstrumentationScope {
            name: "quorate".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(self.resource.clone());
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans { resource, scope_spans }],
        };
        let answer = match rt::timeout(TIMEOUT, client.export(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        };
        match answer {
            Ok(reply) => {
                let partial = reply.into_inner().partial_success.unwrap_or_default();
                let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0).min(count);
                self.counts.sent.fetch_add(count - rejected, Ordering::Relaxed);
                self.counts.dropped.fetch_add(rejected, Ordering::Relaxed);
                self.is_failing = false;
            }
            Err(status) => {
                self.counts.dropped.fetch_add(count, Ordering::Relaxed);
                if !self.is_failing {
                    let collector = &self.collector;
                    tracing::warn!(%collector, %status, "the collector takes no traces");
                }
                self.is_failing = true;
            }
        }
    }
}
