//! Nomad's HTTP API over [`wire::api::Api`]: the only place that knows its paths, headers and JSON
//! shapes.
//!
//! ```text
//!  socket ─► serve ─► router ─► Call (query, body, bounds) ─► noun file ─► Api::read / Api::write
//!                                                              │                │
//!                                    view (JSON shapes) ◄──────┘   blocking ◄───┘ (index and wait)
//!                                       └─► Answer (headers)        error (the one map to status codes)
//! ```
//!
//! Must never: keep state of its own (`job_bodies.rs` keeps bodies with the rows they are made of),
//! change state by anything but a `Command`, or answer from a snapshot older than one the client
//! has seen. Reads are linearizable on every server unless `stale` is given.

mod admission;
mod agent;
mod agent_schedulers;
pub mod agents;
mod allocation;
mod answer;
mod blocking;
pub mod body;
mod call;
mod capacity;
mod client;
mod costs;
mod deployment;
mod dispatch;
mod error;
mod evaluation;
mod filter;
mod forward;
mod instance;
mod instance_pool;
mod job;
mod job_bodies;
mod job_plan;
mod job_versions;
mod job_warnings;
mod jobs_bridge;
mod json_cost;
mod list;
mod mass_loss;
mod metrics;
mod namespace;
mod node;
mod node_life;
mod node_pool;
mod operator;
pub mod percent;
mod provider;
mod request_body;
mod requests;
pub mod rival;
mod route;
mod scaling;
mod search;
pub mod serve;
mod status;
mod system;
#[cfg(test)]
mod tests;
mod time;
mod unsupported;
mod view;

use std::{sync::Arc, time::Duration};

use axum::{Router, middleware::from_fn_with_state};
use ground::rt::Threads;
use tokio::sync::Semaphore;
use tracing::Instrument;
use wire::api::Api;

use answer::AnswerBodies;

/// Bounds and names of the HTTP edge.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Size of a request body, bytes; a larger one is answered with 413. A batch of dispatches may
    /// have six times as much.
    pub request_bytes_max: usize,
    /// Bodies of all requests under way, bytes; beyond that requests are answered with 429.
    pub request_bodies_bytes_max: usize,
    /// Large lists that are built at a time; others wait for their turn, for `timeout` at most.
    pub large_lists_max: usize,
    /// Size of an answer's body, bytes; a larger list has to be paged.
    pub response_bytes_max: usize,
    /// Bodies of all answers that are not written yet, bytes; beyond that reads are answered
    /// with 429. Short bodies do not count.
    pub response_bodies_bytes_max: usize,
    /// Where requests that cost much are answered, and large lists are built.
    pub heavy: Threads,
    /// How long a request that does not wait for a change may take.
    pub timeout: Duration,
    /// Name of the only region.
    pub region: String,
    /// Datacenter of this server, shown in `agent/self` and `agent/members`.
    pub datacenter: String,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            request_bytes_max: 4 << 20,
            request_bodies_bytes_max: 256 << 20,
            large_lists_max: 4,
            response_bytes_max: 256 << 20,
            response_bodies_bytes_max: 1 << 30,
            heavy: Threads::HERE,
            timeout: Duration::from_secs(10),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
        }
    }
}

/// What every handler gets.
#[derive(Clone)]
pub(crate) struct Context {
    api: Arc<dyn Api>,
    options: Arc<HttpOptions>,
    budget: Budget,
    job_bodies: Arc<job_bodies::JobBodies>,
    requests: Arc<requests::Requests>,
}

/// What all requests together may hold at a time.
#[derive(Clone)]
pub(crate) struct Budget {
    /// KiB of request bodies.
    bodies: Arc<Semaphore>,
    /// Large lists under construction.
    lists: Arc<Semaphore>,
    /// Bodies of answers.
    answers: AnswerBodies,
    /// Requests that cost much and are under way.
    costly: Arc<Semaphore>,
    /// What reads cost lately.
    reads: Arc<costs::Costs>,
}

/// The rows of all nouns.
fn routes() -> Vec<route::Route> {
    let nouns = [
        job::routes(),
        job_versions::routes(),
        dispatch::routes(),
        allocation::routes(),
        evaluation::routes(),
        deployment::routes(),
        node::routes(),
        scaling::routes(),
        search::routes(),
        node_pool::routes(),
        instance_pool::routes(),
        instance::routes(),
        provider::routes(),
        capacity::routes(),
        namespace::routes(),
        status::routes(),
        agent::routes(),
        agent_schedulers::routes(),
        operator::routes(),
        mass_loss::routes(),
        metrics::routes(),
        system::routes(),
        client::routes(),
        unsupported::routes(),
    ];
    nouns.into_iter().flatten().collect()
}

/// All routes of the API.
pub fn router(api: Arc<dyn Api>, options: HttpOptions) -> Router {
    let budget = Budget {
        bodies: Arc::new(Semaphore::new(options.request_bodies_bytes_max.div_ceil(1_024))),
        lists: Arc::new(Semaphore::new(options.large_lists_max)),
        answers: AnswerBodies::new(options.response_bodies_bytes_max),
        costly: admission::costly(),
        reads: Arc::default(),
    };
    let requests: Arc<requests::Requests> = Arc::default();
    let context = Context {
        api,
        options: Arc::new(options),
        budget,
        job_bodies: Arc::default(),
        requests: Arc::clone(&requests),
    };
    route::router(routes())
        .layer(from_fn_with_state(context.clone(), admission::admit))
        .layer(from_fn_with_state(requests, log))
        .with_state(context)
}

async fn log(
    axum::extract::State(requests): axum::extract::State<Arc<requests::Requests>>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::debug_span!("request", %method, path, evaluation = tracing::field::Empty);
    let counted = requests::Counted::of(&request);
    let answered = async {
        let started = tokio::time::Instant::now();
        let response = next.run(request).await;
        let (took, status) = (started.elapsed(), response.status().as_u16());
        requests.record(counted, status, took);
        tracing::debug!(status, took_ms = took.as_millis(), "request answered");
        response
    };
    answered.instrument(span).await
}
