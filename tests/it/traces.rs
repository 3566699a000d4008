//! Traces of real servers, taken by a small collector of OTLP.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use proto::otlp::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, Span, SpanKind,
    any_value::Value,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::{
    Request, Response, Status, async_trait,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    harness::{Cluster, Options, PATIENCE, service_job, wait_for, wait_until},
    recompute::text,
};

/// A span with the server that it is from.
#[derive(Clone, Debug)]
struct Taken {
    server: String,
    span: Span,
}

/// A collector that keeps what it is sent.
struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Vec<Taken>>>,
    _runtime: Runtime,
}

struct Service(Arc<Mutex<Vec<Taken>>>);

#[async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_server in request.into_inner().resource_spans {
            let attributes = of_server.resource.unwrap_or_default().attributes;
            let named = |key: &str| {
                let found = attributes.iter().find(|attribute| attribute.key == key);
                match found.and_then(|attribute| attribute.value.clone()?.value) {
                    Some(Value::StringValue(text)) => text,
                    other => panic!("{key} is {other:?}"),
                }
            };
            assert_eq!(named("service.name"), "quorate");
            let server = named("service.instance.id");
            let spans = of_server.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let spans = spans.map(|span| Taken { server: server.clone(), span });
            self.0.lock().unwrap().extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let taken = Arc::default();
        let service = TraceServiceServer::new(Service(Arc::clone(&taken)));
        let served = Server::builder().add_service(service);
        runtime.spawn(served.serve_with_incoming(TcpIncoming::from(listener)));
        Self { address, taken, _runtime: runtime }
    }

    /// The spans of an evaluation's trace.
    fn trace(&self, evaluation: &str) -> Vec<Taken> {
        let id = u128::from_str_radix(&evaluation.replace('-', ""), 16).unwrap();
        let taken = self.taken.lock().unwrap();
        taken.iter().filter(|one| one.span.trace_id == id.to_be_bytes()[..]).cloned().collect()
    }
}

fn named<'a>(trace: &'a [Taken], name: &str) -> &'a Taken {
    trace.iter().find(|one| one.span.name == name).unwrap_or_else(|| panic!("{name}: {trace:?}"))
}

/// One trace of a registration at a follower has the request, its log entry, a lease, a pass, a plan and the acknowledgement, from all servers that
/// had a part in it.
#[test]
fn a_registration_is_one_trace() {
    let collector = Collector::start();
    let endpoint = format!("\"http://{}\"", collector.address);
    let mut cluster = Cluster::start(Options::new(3).with("telemetry.otlp_endpoint", endpoint));
    let leader = cluster.leader();
    let [follower, idle] = cluster.others(&[leader])[..] else { panic!("three servers") };
    // The worker is the leader's or that of the server that took the request.
    let config = "/v1/agent/schedulers/config";
    cluster.client(idle).put(config, &serde_json::json!({ "num_schedulers": 0 })).ok();
    let answer = cluster.client(follower).put("/v1/jobs", &service_job("web", 1)).ok();
    let evaluation = text(&answer, "EvalID").to_owned();
    let wanted = ["request", "log entry", "lease", "pass", "plan", "acknowledge"];
    let trace = wait_for("each step has its span", PATIENCE, || {
        let trace = collector.trace(&evaluation);
        let names: BTreeSet<&str> = trace.iter().map(|one| &*one.span.name).collect();
        wanted.iter().all(|name| names.contains(name)).then_some(trace)
    });
    let ids: BTreeSet<_> = trace.iter().map(|one| one.span.span_id.clone()).collect();
    assert_eq!(ids.len(), trace.len(), "each span has its own id");
    let request = named(&trace, "request");
    assert!(request.span.parent_span_id.is_empty());
    assert_eq!(request.span.kind(), SpanKind::Server);
    for one in trace.iter().filter(|one| one.span.name != "request") {
        assert!(ids.contains(&one.span.parent_span_id), "{one:?}");
        assert!(one.span.start_time_unix_nano <= one.span.end_time_unix_nano);
    }
    let lease = named(&trace, "lease");
    assert_eq!(named(&trace, "pass").span.parent_span_id, lease.span.span_id);
    assert_eq!(named(&trace, "acknowledge").span.parent_span_id, lease.span.span_id);
    let name = |server: usize| format!("server-{}", server + 1);
    assert_eq!(request.server, name(follower));
    assert_eq!(named(&trace, "log entry").server, name(leader));
    assert_eq!(named(&trace, "plan").server, name(leader));
    // They are made at the level `info`, at which the log has none of their lines; it can be changed all the same.
    assert!(!cluster.log(leader).contains("a plan is queued"));
    let level = serde_json::json!({ "Level": "debug" });
    cluster.client(leader).put("/v1/agent/log-level", &level).ok();
    cluster.client(follower).put("/v1/jobs", &service_job("more", 1)).ok();
    wait_until("the log has lines of debug", PATIENCE, || {
        cluster.log(leader).contains("a plan is queued")
    });
    let metrics = cluster.client(leader).get("/v1/metrics?format=prometheus").text;
    assert!(metrics.contains("nomad_traces_sent_total "), "{metrics}");

    // A request that is answered just before the end is sent still.
    let answer = cluster.client(follower).put("/v1/jobs", &service_job("last", 1)).ok();
    let last = text(&answer, "EvalID").to_owned();
    assert!(cluster.terminate(follower).success());
    assert!(collector.trace(&last).iter().any(|one| one.span.name == "request"));
}

/// A collector that is away costs spans, which are counted, and nothing else.
#[test]
fn a_collector_that_is_away_holds_nothing_up() {
    let nobody = launch::Port::reserve().unwrap();
    let endpoint = format!("\"http://{}\"", nobody.address());
    let cluster = Cluster::start(Options::new(1).with("telemetry.otlp_endpoint", endpoint));
    cluster.client(0).put("/v1/jobs", &service_job("web", 1)).ok();
    wait_until("spans are dropped", PATIENCE, || {
        let metrics = cluster.client(0).get("/v1/metrics?format=prometheus").text;
        let dropped =
            metrics.lines().find_map(|line| line.strip_prefix("nomad_traces_dropped_total "));
        dropped.is_some_and(|count| count != "0")
    });
    assert_eq!(cluster.log(0).matches("the collector takes no traces").count(), 1);
}
