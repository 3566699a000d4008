//! Spans of evaluations as traces: one trace for each evaluation, from all servers.
//!
//! The trace's id *is* the evaluation's id, so that nothing has to travel with it through the log
//! or with a lease. The first span is the HTTP request that made the evaluation; its id follows
//! from the trace's. A span on another server has no enclosing span, and is a child of it.
//!
//! ```text
//! request ─┬─ log entry        on the leader
//!          ├─ lease ─┬─ pass   on the worker's server
//!          │         └─ acknowledge
//!          └─ plan             on the leader, inside the lease if the worker is there too
//! ```
//! Must never wait or grow without bound: a span for which the queue has no room is dropped and
//! counted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use proto::otlp::{AnyValue, KeyValue, Span, SpanKind, any_value::Value};
use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    filter::FilterFn,
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use crate::rt::{self, Instant, mpsc};

/// The spans of a trace, by name.
const NAMES: [&str; 6] = ["request", "log entry", "lease", "pass", "plan", "acknowledge"];
/// The span that is the first of its trace.
const FIRST: &str = "request";
/// The field that names the trace.
const EVALUATION: &str = "evaluation";

/// What became of spans since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: AtomicU64,
    /// The queue was full, or the collector did not take them.
    pub(super) dropped: AtomicU64,
}

/// Packages whose spans are told: others may have spans of these names.
const OWN: [&str; 7] = ["quorate", "raft", "server", "agent", "http_api", "wire", "ground"];

/// Lets the spans of traces through, whatever the level of the log is.
pub(super) fn filter() -> FilterFn {
    FilterFn::new(is_of_a_trace as fn(&Metadata<'_>) -> bool)
        .with_max_level_hint(LevelFilter::DEBUG)
}

fn is_of_a_trace(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && metadata.target().split("::").next().is_some_and(|package| OWN.contains(&package))
        && NAMES.contains(&metadata.name())
}

/// Gives each span that has ended and belongs to an evaluation to the exporter.
pub(super) struct Traces {
    spans: mpsc::Sender<Span>,
    counts: Arc<Counts>,
}

impl Traces {
    pub(super) fn new(spans: mpsc::Sender<Span>, counts: Arc<Counts>) -> Self {
        Self { spans, counts }
    }
}

/// A span that has not ended.
struct Open {
    /// None: it belongs to no evaluation so far.
    trace: Option<u128>,
    id: u64,
    /// None: it is the first.
    parent: Option<u64>,
    began: Instant,
    began_at: SystemTime,
    attributes: Vec<KeyValue>,
}

impl Open {
    /// The span belongs to this trace from now on. The first evaluation that it names counts.
    fn join(&mut self, name: &str, trace: u128, enclosing: Option<u64>) {
        if self.trace.is_some() {
            return;
        }
        self.trace = Some(trace);
        if name == FIRST {
            self.id = first_id(trace);
        } else {
            self.parent = Some(enclosing.unwrap_or_else(|| first_id(trace)));
        }
    }

    fn end(self, name: &str) -> Option<Span> {
        let nanos = |at: SystemTime| {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        };
        let kind = if name == FIRST { SpanKind::Server } else { SpanKind::Internal };
        Some(Span {
            trace_id: self.trace?.to_be_bytes().to_vec().into(),
            span_id: self.id.to_be_bytes().to_vec().into(),
            parent_span_id: self
                .parent
                .map(|id| id.to_be_bytes().to_vec().into())
                .unwrap_or_default(),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: nanos(self.began_at),
            // The wall clock may be set meanwhile.
            end_time_unix_nano: nanos(self.began_at + self.began.elapsed()),
            attributes: self.attributes,
        })
    }
}

/// The id of the first span of a trace. Never 0, which would be no id: an evaluation's id is a
/// UUID, whose variant is in these bits.
fn first_id(trace: u128) -> u64 {
    let low = trace & u128::from(u64::MAX);
    u64::try_from(low).expect("64 bits are left").max(1)
}

/// The trace of an evaluation, from its id as it is shown.
fn trace_of(evaluation: &str) -> Option<u128> {
    let digits: String = evaluation.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).ok().filter(|trace| *trace != 0)
}

/// The fields of a span.
#[derive(Default)]
struct Fields {
    evaluation: Option<u128>,
    attributes: Vec<KeyValue>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.attributes.push(KeyValue { key: field.name().to_owned(), value });
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == EVALUATION {
            self.evaluation = trace_of(&text);
        }
        self.put(field, Value::StringValue(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::StringValue(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::IntValue(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::BoolValue(value));
    }
}

/// The trace of the span around this one, and that span's id.
fn enclosing<S>(span: &SpanRef<'_, S>) -> Option<(u128, u64)>
where
    S: for<'a> LookupSpan<'a>,
{
    span.scope().skip(1).find_map(|outer| {
        let extensions = outer.extensions();
        let open = extensions.get::<Open>()?;
        Some((open.trace?, open.id))
    })
}

impl<S> Layer<S> for Traces
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut open = Open {
            trace: None,
            id: rt::random_u64().max(1),
            parent: None,
            began: Instant::now(),
            began_at: SystemTime::now(),
            attributes: fields.attributes,
        };
        let outer = enclosing(&span);
        if let Some(trace) = fields.evaluation.or(outer.map(|(trace, _)| trace)) {
            let around = outer.filter(|(of, _)| *of == trace).map(|(_, id)| id);
            open.join(span.name(), trace, around);
        }
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<Open>() else { return };
        open.attributes.append(&mut fields.attributes);
        if let Some(trace) = fields.evaluation {
            open.join(span.name(), trace, None);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else { return };
        let Some(ended) = open.end(span.name()) else { return };
        if self.spans.try_send(ended).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug_span, field::display};
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;

    const EVALUATION_ID: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";

    /// Makes spans, and returns those that were exported and how many were dropped.
    fn traced(room: usize, make: impl FnOnce()) -> (Vec<Span>, u64) {
        let (spans, mut ended) = mpsc::channel(room);
        let counts = Arc::new(Counts::default());
        let traces = Traces::new(spans, Arc::clone(&counts)).with_filter(filter());
        tracing::subscriber::with_default(Registry::default().with(traces), make);
        let ended = std::iter::from_fn(|| ended.try_recv().ok()).collect();
        (ended, counts.dropped.load(Ordering::Relaxed))
    }

    #[test]
    fn spans_of_an_evaluation_are_one_trace() {
        let (spans, dropped) = traced(9, || {
            let request =
                debug_span!("request", method = "PUT", evaluation = tracing::field::Empty);
            request.in_scope(|| {
                request.record("evaluation", display(EVALUATION_ID));
                request.record("evaluation", display("ff020304-0506-4708-890a-0b0c0d0e0f10"));
                debug_span!("log entry", evaluation = %EVALUATION_ID).in_scope(|| ());
            });
            // On another server: nothing is around it.
            drop(request);
            debug_span!("lease", evaluation = %EVALUATION_ID, index = 7_u64)
                .in_scope(|| debug_span!("pass", attempt = 1_u64).in_scope(|| ()));
        });
        assert_eq!(dropped, 0);
        let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["log entry", "request", "pass", "lease"]);
        let trace: Vec<u8> = vec![1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16];
        assert!(spans.iter().all(|span| span.trace_id == trace));
        let [entry, request, pass, lease] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(request.span_id, trace[8..]);
        assert!(request.parent_span_id.is_empty());
        assert_eq!((request.kind(), lease.kind()), (SpanKind::Server, SpanKind::Internal));
        assert_eq!(entry.parent_span_id, request.span_id);
        assert_eq!(lease.parent_span_id, request.span_id);
        assert_eq!(pass.parent_span_id, lease.span_id);
        assert!(spans.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
        let of_lease: Vec<_> = lease.attributes.iter().map(|one| &*one.key).collect();
        assert_eq!(of_lease, ["evaluation", "index"]);
    }

    #[test]
    fn a_span_of_no_evaluation_is_not_exported() {
        let (spans, dropped) = traced(9, || {
            debug_span!("request", path = "/v1/jobs", evaluation = tracing::field::Empty)
                .in_scope(|| tracing::debug!("an event"));
            debug_span!("something else", evaluation = %EVALUATION_ID).in_scope(|| ());
            debug_span!("lease", evaluation = %"no id").in_scope(|| ());
        });
        assert_eq!((spans, dropped), (Vec::new(), 0));
    }

    #[test]
    fn spans_without_room_are_dropped_and_counted() {
        let (spans, dropped) = traced(1, || {
            for _ in 0..3 {
                debug_span!("lease", evaluation = %EVALUATION_ID).in_scope(|| ());
            }
        });
        assert_eq!((spans.len(), dropped), (1, 2));
    }
}
