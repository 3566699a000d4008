//! The agent's HTTP service: logs and files of its allocations, signals and restarts of their
//! tasks, statistics, and the other requests of Nomad's clients, which it passes on to a server. It
//! reads nothing outside an allocation's directory and never shows secrets. It trusts every caller,
//! as it trusts the servers that pass requests on.

mod describe;
mod files;
mod forward;
mod logs;
mod metrics;
mod orders;
mod own;
mod query;
mod statistics;
mod work;

use std::sync::{Arc, atomic::AtomicUsize};

use agent::{
    Face, Own, Shown,
    allocation::state::AllocationDirectory,
    node::{LocalNode, shell::Shared},
};
use axum::{
    Json, Router,
    extract::DefaultBodyLimit,
    http::{Method, StatusCode, Uri},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use fsm::AllocationId;
use futures_util::{FutureExt, future::BoxFuture};
use ground::{caller::Caller, open_files};
use serde_json::{Value, json};

use query::Parameters;
use work::{FileWork, Readers};

use crate::{
    body::WrongBody,
    serve::CalledBy,
    serve::{self, Door},
};

/// Connections served at a time, at most a quarter of the open files: tasks need the rest.
const CONNECTIONS_MAX: u64 = 1_024;
/// Size of a request's body, bytes: a signal's or a restart's.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How many connections an agent serves that may have so many files open.
fn connections_max(open_files_max: u64) -> usize {
    usize::try_from((open_files_max / 4).clamp(4, CONNECTIONS_MAX)).unwrap_or(usize::MAX)
}

/// What files are served from; a simulation has none.
#[derive(Clone)]
struct Files {
    pub(crate) node: Arc<LocalNode>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) own: Arc<Own>,
    /// The server that forwarded requests go to, until it cannot be reached.
    pub(crate) server: Arc<AtomicUsize>,
    pub(crate) work: FileWork,
    pub(crate) readers: Readers,
}

/// Why a request is refused, with the status that says so.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("the agent's threads for files are all busy: try again later")]
    Busy,
    #[error("too many requests read files of this agent: try again later")]
    Crowded,
    #[error("the file system takes too long")]
    Slow,
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
}

impl From<WrongBody> for HttpError {
    fn from(error: WrongBody) -> Self {
        Self::BadRequest(error.to_string())
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Busy | Self::Crowded => StatusCode::SERVICE_UNAVAILABLE,
            Self::Slow => StatusCode::GATEWAY_TIMEOUT,
            Self::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                StatusCode::NOT_FOUND
            }
            Self::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.to_string()).into_response()
    }
}

impl Files {
    fn of(shown: Shown) -> Self {
        Self {
            node: shown.node,
            shared: shown.shared,
            own: Arc::new(shown.own),
            server: Arc::default(),
            work: FileWork::default(),
            readers: Readers::default(),
        }
    }

    /// The directory of an allocation of this node: the one door to its files.
    fn directory(&self, caller: &Caller, id: &str) -> Result<AllocationDirectory, HttpError> {
        tracing::trace!(%caller, id, "asked about an allocation");
        let id: AllocationId = id
            .parse()
            .map_err(|error: fsm::id::ParseIdError| HttpError::BadRequest(error.to_string()))?;
        let directory = self.shared.state.allocation(id);
        if self.node.view(id).is_none() || !directory.root().is_dir() {
            return Err(HttpError::NotFound(format!("Unknown allocation \"{id}\"")));
        }
        Ok(directory)
    }
}

/// Whether another agent tries to register as this node. Each start of an agent has a random id. A
/// server that gets such a registration asks the address that it knows which start lives there. It
/// passes on the newcomer's address (`rival`) and the start that it knows (`meant`). If that is
/// this agent's `start`, the newcomer is another agent. If not, this agent itself is the newcomer:
/// it was started again at its old address.
fn has_rival(start: Option<[u8; 16]>, rival: &str, meant: &str) -> bool {
    let meant = meant.parse::<fsm::NodeId>().ok().map(|id| id.0);
    !rival.is_empty() && meant.is_some() && meant == start
}

/// Says that the agent lives, and by its start which one it is.
fn health(caller: &Caller, start: Option<[u8; 16]>, rival: &str, meant: &str) -> Value {
    if has_rival(start, rival, meant) {
        tracing::warn!(
            %caller,
            rival,
            "another agent wants to register as this node: its folder is a copy of this agent's. It is refused while this agent runs"
        );
    }
    let start = start.map(|id| fsm::NodeId(id).to_string());
    json!({"client": {"ok": true, "message": "ok"}, "start": start})
}

/// Serves for ever.
pub fn serve(face: Face) -> BoxFuture<'static, ()> {
    let connections_max = connections_max(open_files::max());
    answer(Door::new(face.listener, connections_max, "agent's HTTP"), face.node).boxed()
}

async fn answer(door: Door, shown: Option<Shown>) {
    let start = shown.as_ref().map(|shown| shown.start);
    let health = get(move |CalledBy(caller): CalledBy, query: Parameters| async move {
        Json(health(&caller, start, query.text("rival"), query.text("start")))
    });
    let live = get(async || Json(json!({ "client": { "ok": true, "message": "ok" } })));
    let router = Router::new().route("/v1/agent/health", health).route("/v1/agent/live", live);
    let router = match shown {
        Some(shown) => router.merge(routes(Files::of(shown))),
        None => router.fallback(unsupported),
    };
    let router = router.method_not_allowed_fallback(wrong_method);
    serve::serve(door, router, std::future::pending()).await;
}

fn routes(files: Files) -> Router {
    let of_files = Router::new()
        .route("/v1/client/fs/logs/{allocation}", get(logs::logs))
        .route("/v1/client/fs/ls/{allocation}", get(files::list))
        .route("/v1/client/fs/stat/{allocation}", get(files::stat))
        .route("/v1/client/fs/cat/{allocation}", get(files::cat))
        .route("/v1/client/fs/readat/{allocation}", get(files::read_at))
        .route("/v1/client/fs/stream/{allocation}", get(logs::stream))
        .route("/v1/client/allocation/{allocation}/stats", get(statistics::of_allocation))
        .layer(from_fn_with_state(files.readers.clone(), work::take_place));
    let of_allocations = Router::new()
        .route(
            "/v1/client/allocation/{allocation}/signal",
            put(orders::signal).post(orders::signal),
        )
        .route(
            "/v1/client/allocation/{allocation}/restart",
            put(orders::restart).post(orders::restart),
        )
        .route("/v1/client/allocation/{allocation}/gc", get(orders::collect))
        .route("/v1/client/allocation/{allocation}/checks", get(checks))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .merge(of_files)
        .layer(from_fn_with_state(files.clone(), forward::if_elsewhere));
    let of_node = Router::new()
        .route("/v1/client/stats", get(statistics::of_machine))
        .route("/v1/client/gc", get(orders::collect_all).put(orders::collect_all))
        .layer(from_fn_with_state(files.clone(), forward::if_other_node));
    Router::new()
        .route("/v1/agent/self", get(own::this))
        .route("/v1/metrics", get(metrics::metrics))
        .route(
            "/v1/client/metadata",
            get(own::metadata).put(own::set_metadata).post(own::set_metadata),
        )
        .merge(of_allocations)
        .merge(of_node)
        .fallback(forward::everything_else)
        .with_state(files)
}

/// The results of an allocation's checks: no checks are run.
async fn checks(CalledBy(caller): CalledBy, uri: Uri) -> Json<Value> {
    tracing::trace!(%caller, path = uri.path(), "asked for the checks of an allocation");
    Json(json!({}))
}

async fn unsupported(uri: Uri) -> Response {
    let text = format!("{} is not supported by this agent", uri.path());
    (StatusCode::NOT_IMPLEMENTED, text).into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let text = format!("method {method} is not allowed on \"{}\"", uri.path());
    (StatusCode::METHOD_NOT_ALLOWED, text).into_response()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn tasks_get_most_of_the_open_files() {
        assert_eq!(connections_max(1_024), 256);
        assert_eq!(connections_max(u64::MAX), 1_024);
        assert_eq!(connections_max(0), 4);
    }

    #[test]
    fn only_the_start_that_is_meant_has_a_rival() {
        let (own, before) = ([1; 16], [2; 16]);
        let meant = |start: [u8; 16]| fsm::NodeId(start).to_string();
        assert!(has_rival(Some(own), "10.0.0.1:1", &meant(own)));
        assert!(!has_rival(Some(own), "10.0.0.1:1", &meant(before)), "a restart");
        assert!(!has_rival(Some(own), "", &meant(own)), "somebody looks at its health");
        assert!(!has_rival(Some(own), "10.0.0.1:1", ""));
        assert!(!has_rival(None, "10.0.0.1:1", ""), "an agent without a start");
    }

    #[tokio::test]
    async fn a_connection_over_the_bound_is_told_to_come_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(answer(Door::new(listener, 1, "test"), None));
        let mut first = TcpStream::connect(address).await.unwrap();
        let request = b"GET /v1/agent/health HTTP/1.1\r\nhost: x\r\n\r\n";
        first.write_all(request).await.unwrap();
        let mut head = [0; 12];
        first.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        let mut second = TcpStream::connect(address).await.unwrap();
        let mut answer = String::new();
        second.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        served.abort();
    }
}
