//! One request: its path, query, body and caller, each within its bound. A handler gets a [`Call`]
//! and nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::{HeaderMap, Method, StatusCode, Uri, header},
};
use bytes::Bytes;
use fsm::{Command, EvaluationId, Reply, RequestId, Text, TimeMs};
use ground::caller::Caller;
use scheduler::Budget;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use wire::api::{Api, ReadMode, Snapshot, Written};

use super::{
    Context, HttpOptions,
    admission::{Admitted, Shares},
    answer::{Answer, AnswerBodies, Meta},
    error::Error,
    filter::Filter,
    job_bodies::JobBodies,
    requests::Requests,
    route::JobPath,
};
use crate::{
    percent,
    serve::{CalledBy, Closing},
};

/// Longest `Idempotency-Key`, bytes.
const KEY_BYTES_MAX: usize = 256;
/// Number of evaluation ids in a command with an idempotency key. It is fixed, so that a retry
/// makes the same command.
const KEYED_IDS: usize = 16;

/// Header of a request that a server forwards to an agent.
pub(crate) const PROXIED_HEADER: &str = "x-quorate-proxied";

/// The namespaces that a list covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Namespaces {
    /// `*`.
    All,
    /// This one.
    One(Text),
}

impl Namespaces {
    /// Whether the list covers the namespace.
    pub(crate) fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => &**one == namespace,
        }
    }
}

/// A request.
pub(crate) struct Call {
    /// The server that answers.
    pub(crate) api: Arc<dyn Api>,
    /// The client's identity.
    pub(crate) caller: Caller,
    /// The server's HTTP options.
    pub(crate) options: Arc<HttpOptions>,
    /// Method.
    pub(crate) method: Method,
    /// Path and query as received.
    pub(crate) uri: Uri,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// Body.
    pub(crate) body: Bytes,
    /// Notified when the server stops.
    pub(crate) closing: Option<Closing>,
    /// Path after `/v1/`, cut at its slashes and then percent-decoded.
    segments: Vec<String>,
    job: Option<JobPath>,
    query: Vec<(String, String)>,
    request_id: Option<RequestId>,
    ids_made: AtomicU64,
    /// Statistics of requests.
    pub(crate) requests: Arc<Requests>,
    /// Permits to build large lists.
    pub(crate) lists: Arc<Semaphore>,
    /// The memory budget of answers' bodies.
    pub(crate) answers: AnswerBodies,
    /// Cache of encoded jobs.
    pub(crate) job_bodies: Arc<JobBodies>,
    /// The request body's shares of the memory budget of all request bodies.
    _body_shares: Arc<Shares>,
    abandoned: Abandoned,
}

/// Set when the request's handler has ended, with or without an answer.
#[derive(Default)]
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl FromRequest<Context> for Call {
    type Rejection = Error;

    async fn from_request(request: Request, context: &Context) -> Result<Self, Error> {
        let (mut parts, _) = request.into_parts();
        let options = Arc::clone(&context.options);
        let Some(Admitted { body, shares }) = parts.extensions.remove() else {
            return Err(Error::internal("a request came past its admission"));
        };
        let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|error| Error::bad(format!("the query string does not parse: {error}")))?;
        let Ok(CalledBy(caller)) = CalledBy::from_request_parts(&mut parts, context).await;
        let mut call = Self {
            api: Arc::clone(&context.api),
            caller,
            options,
            method: parts.method,
            segments: segments(&parts.uri)?,
            job: parts.extensions.remove(),
            uri: parts.uri,
            headers: parts.headers,
            body,
            closing: parts.extensions.get::<Closing>().cloned(),
            query,
            request_id: None,
            ids_made: AtomicU64::new(0),
            requests: Arc::clone(&context.requests),
            lists: Arc::clone(&context.budget.lists),
            answers: context.budget.answers.clone(),
            job_bodies: Arc::clone(&context.job_bodies),
            _body_shares: shares,
            abandoned: Abandoned::default(),
        };
        call.check_common()?;
        call.request_id = call.keyed_request_id()?;
        Ok(call)
    }
}

impl Call {
    fn check_common(&self) -> Result<(), Error> {
        if self.parameter("region").is_some_and(|r| !r.is_empty() && r != self.options.region) {
            return Err(Error::no_region());
        }
        Ok(())
    }

    /// The cluster's time now, Unix seconds.
    pub(crate) fn now_s(&self) -> i64 {
        i64::try_from(self.api.now_ms() / 1000).unwrap_or(i64::MAX)
    }

    /// A function that returns the cluster's time, Unix ms. A blocking query needs the time when it
    /// answers, not when it began.
    pub(crate) fn clock(&self) -> impl Fn() -> TimeMs + Send + Sync + 'static + use<> {
        let api = Arc::clone(&self.api);
        move || api.now_ms()
    }

    /// The request id that an `Idempotency-Key` stands for. It also depends on the namespace and
    /// the token, so that clients do not share keys.
    fn keyed_request_id(&self) -> Result<Option<RequestId>, Error> {
        let Some(key) = self.headers.get("idempotency-key") else { return Ok(None) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let text = format!("Idempotency-Key must have 1 to {KEY_BYTES_MAX} bytes");
            return Err(Error::bad(text));
        }
        let token = self
            .headers
            .get("x-nomad-token")
            .or_else(|| self.headers.get(header::AUTHORIZATION))
            .map_or(&[][..], |token| token.as_bytes());
        let namespace = self.parameter("namespace").unwrap_or("default");
        Ok(Some(RequestId(digest_16(&[namespace.as_bytes(), token, key.as_bytes()]))))
    }

    /// A segment of the path after `/v1/`; empty if there is none.
    pub(crate) fn segment(&self, position: usize) -> &str {
        self.segments.get(position).map_or("", String::as_str)
    }

    /// The job that the path names, for a route about one job.
    pub(super) fn job_path(&self) -> Result<&JobPath, Error> {
        self.job.as_ref().ok_or_else(|| Error::internal("the route is about no job"))
    }

    /// The id in a segment of the path.
    pub(crate) fn id<T: std::str::FromStr<Err = fsm::id::ParseIdError>>(
        &self,
        position: usize,
    ) -> Result<T, Error> {
        self.segment(position).parse().map_err(|error| Error::bad(format!("invalid id: {error}")))
    }

    /// A parameter of the query.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A truth value in the query, `false` if absent. A parameter without a value is true.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Error> {
        self.flag_or(name, false)
    }

    /// A truth value in the query with a default.
    pub(crate) fn flag_or(&self, name: &str, default: bool) -> Result<bool, Error> {
        match self.parameter(name) {
            None => Ok(default),
            Some("" | "1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some(other) => {
                Err(Error::bad(format!("{name}: expected true or false, not `{other}`")))
            }
        }
    }

    /// A number in the query.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        match self.parameter(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Error::bad(format!(
                    "{name}: expected a whole number that is not negative, not `{text}`"
                ))
            }),
        }
    }

    /// The `filter` expression that rows of a list must satisfy.
    pub(crate) async fn filter(&self) -> Result<Option<Filter>, Error> {
        match self.parameter("filter").filter(|text| !text.is_empty()) {
            Some(text) => self.filter_of(text).await.map(Some),
            None => Ok(None),
        }
    }

    /// Parses a filter expression. One with regular expressions is compiled on a heavy thread,
    /// because that may take long.
    pub(crate) async fn filter_of(&self, text: &str) -> Result<Filter, Error> {
        let budget = Budget::until(Budget::OF_REQUEST, Arc::clone(&self.abandoned.0));
        if !text.contains("matches") {
            return Filter::parse(text, budget);
        }
        let text = text.to_owned();
        self.in_turn(usize::MAX, move || Filter::parse(&text, budget)).await
    }

    /// The namespaces that a list is asked for.
    pub(crate) fn namespaces(&self) -> Namespaces {
        match self.parameter("namespace") {
            None | Some("") => Namespaces::One("default".into()),
            Some("*") => Namespaces::All,
            Some(one) => Namespaces::One(one.into()),
        }
    }

    /// The namespace of a request about one object.
    pub(crate) fn namespace(&self) -> Result<Text, Error> {
        match self.namespaces() {
            Namespaces::One(one) => Ok(one),
            Namespaces::All => Err(Error::bad("namespace * is only allowed on lists")),
        }
    }

    /// The body as JSON; null if it is empty.
    pub(crate) fn json(&self) -> Result<Value, Error> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::bad(format!("the request body is not valid JSON: {error}")))
    }

    /// The body as JSON. An error if it is empty.
    pub(crate) fn json_required(&self) -> Result<Value, Error> {
        let value = self.json()?;
        if value.is_null() {
            return Err(Error::bad("a JSON request body is required"));
        }
        Ok(value)
    }

    /// Whether the read may be stale.
    pub(crate) fn read_mode(&self) -> Result<ReadMode, Error> {
        Ok(if self.flag("stale")? { ReadMode::Stale } else { ReadMode::Linearizable })
    }

    /// A snapshot for a request that does not block.
    pub(crate) async fn read(&self) -> Result<Snapshot, Error> {
        let mode = self.read_mode()?;
        Ok(self.api.read(&self.caller, mode, 0, self.options.timeout).await?)
    }

    /// Proposes a command to the cluster. A rejection is returned as an error.
    pub(crate) async fn write(&self, command: Command) -> Result<Written, Error> {
        self.write_as(command, self.request_id).await
    }

    /// Like [`Self::write`], for a request that makes several commands, and splits them the same
    /// way at each retry. The first command uses the request's id; each other one uses an id
    /// derived from it.
    pub(crate) async fn write_part(
        &self,
        command: Command,
        number: usize,
    ) -> Result<Written, Error> {
        let of_part = |RequestId(request): RequestId| match number {
            0 => RequestId(request),
            _ => RequestId(digest_16(&[b"part", &request, &(number as u64).to_le_bytes()])),
        };
        self.write_as(command, self.request_id.map(of_part)).await
    }

    /// Like [`Self::write`], without a request id. For a request whose commands may differ at a
    /// retry, so that its key can identify none of them.
    pub(crate) async fn write_unkeyed(&self, command: Command) -> Result<Written, Error> {
        self.write_as(command, None).await
    }

    async fn write_as(
        &self,
        command: Command,
        request: Option<RequestId>,
    ) -> Result<Written, Error> {
        let written = self.api.write(&self.caller, command, request, self.options.timeout).await?;
        if let Reply::Rejected(rejection) = written.reply {
            return Err(rejection.into());
        }
        Ok(written)
    }

    /// The request id, if the request has an `Idempotency-Key`.
    pub(crate) fn request_id(&self) -> Option<RequestId> {
        self.request_id
    }

    /// An id for the evaluation that this request makes. It is also recorded in the request's
    /// tracing span.
    pub(crate) fn evaluation_id(&self) -> EvaluationId {
        let id = self.new_evaluation();
        tracing::Span::current().record("evaluation", tracing::field::display(id));
        id
    }

    /// A new evaluation id: random, or, with an idempotency key, the same at each retry.
    fn new_evaluation(&self) -> EvaluationId {
        let Some(RequestId(request)) = self.request_id else {
            return EvaluationId(self.api.new_id());
        };
        let number = self.ids_made.fetch_add(1, Ordering::Relaxed);
        EvaluationId(digest_16(&[b"evaluation", &request, &number.to_le_bytes()]))
    }

    /// Ids for the evaluations of `count` jobs. With an idempotency key there are always
    /// [`KEYED_IDS`] of them, because `count` may depend on the state and differ at a retry.
    pub(crate) fn evaluation_ids(&self, count: usize) -> Vec<EvaluationId> {
        let count = if self.request_id.is_some() { KEYED_IDS } else { count };
        (0..count).map(|_| self.new_evaluation()).collect()
    }

    /// An answer with a JSON body.
    pub(crate) fn answer(
        &self,
        value: &impl Serialize,
        meta: Option<Meta>,
    ) -> Result<Answer, Error> {
        self.answer_body(self.body_of(value)?, meta)
    }

    /// An answer with an encoded JSON body.
    pub(crate) fn answer_body(&self, body: Bytes, meta: Option<Meta>) -> Result<Answer, Error> {
        let body = self.answers.hold(body)?;
        Ok(Answer::json(StatusCode::OK, body, meta))
    }

    /// An answer with a status and a JSON body. It takes no share of the memory budget of answers.
    pub(crate) fn answer_with(
        &self,
        status: StatusCode,
        value: &impl Serialize,
        meta: Option<Meta>,
    ) -> Result<Answer, Error> {
        Ok(Answer::json(status, self.body_of(value)?, meta))
    }

    /// Encodes JSON, indented if the request has `pretty`.
    pub(crate) fn body_of(&self, value: &impl Serialize) -> Result<Bytes, Error> {
        let pretty = self.flag("pretty")?;
        let body =
            if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
        Ok(body.map_err(|error| Error::internal(error.to_string()))?.into())
    }

    /// The answer to a write; its index is that of the log entry. It takes no share of the memory
    /// budget, because the client must not get an overload error after the write has happened.
    pub(crate) fn answer_write(
        &self,
        written: &Written,
        of: impl Serialize,
    ) -> Result<Answer, Error> {
        let value =
            shapes::Written { of, index: written.index, known_leader: true, last_contact: 0 };
        let meta = Meta {
            index: written.index,
            last_contact: Duration::ZERO,
            known_leader: true,
            next_token: None,
        };
        self.answer_with(StatusCode::OK, &value, Some(meta))
    }
}

/// The first 16 bytes of BLAKE3 over the parts, each preceded by its length.
fn digest_16(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut out = [0; 16];
    hasher.finalize_xof().fill(&mut out);
    out
}

pub(super) fn segments(uri: &Uri) -> Result<Vec<String>, Error> {
    let path = uri.path().strip_prefix("/v1/").unwrap_or("");
    let decoded = |segment: &str| {
        let bad = || format!("\"{segment}\" in the path is not valid percent-encoding");
        percent::decode(segment).ok_or_else(|| Error::bad(bad()))
    };
    path.split('/').map(decoded).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn path_segments_are_decoded_after_they_are_cut() {
        let uri: Uri = "/v1/job/a%2Fb%20c/summary?x=1".parse().unwrap();
        assert_eq!(segments(&uri).unwrap(), ["job", "a/b c", "summary"]);
        let bad: Uri = "/v1/job/%zz".parse().unwrap();
        assert!(segments(&bad).is_err());
    }

    #[test]
    fn a_digest_tells_its_parts_apart() {
        assert_ne!(digest_16(&[b"a", b"bc"]), digest_16(&[b"ab", b"c"]));
    }
}
