//! One request: its path, query, body and identity, each within its bound. Every handler gets a
//! [`Call`] and nothing else.

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

/// Length of an `Idempotency-Key`, bytes.
const KEY_BYTES_MAX: usize = 256;
/// Evaluation ids in a command under an idempotency key, fixed so that a retry is the same command.
const KEYED_IDS: usize = 16;

/// Header that marks a request as passed on by a server to an agent.
pub(crate) const PROXIED_HEADER: &str = "x-quorate-proxied";

/// Namespaces a list is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Namespaces {
    /// `*`.
    All,
    /// One.
    One(Text),
}

impl Namespaces {
    /// Whether a namespace is among them.
    pub(crate) fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => &**one == namespace,
        }
    }
}

/// A request.
pub(crate) struct Call {
    /// The server.
    pub(crate) api: Arc<dyn Api>,
    /// Who asks.
    pub(crate) caller: Caller,
    /// Bounds and names.
    pub(crate) options: Arc<HttpOptions>,
    /// Method.
    pub(crate) method: Method,
    /// Path and query as received.
    pub(crate) uri: Uri,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// Body.
    pub(crate) body: Bytes,
    /// Told when the server stops.
    pub(crate) closing: Option<Closing>,
    /// Decoded path after `/v1/`, cut at the slashes of the path as received.
    segments: Vec<String>,
    job: Option<JobPath>,
    query: Vec<(String, String)>,
    request_id: Option<RequestId>,
    ids_made: AtomicU64,
    /// What requests took.
    pub(crate) requests: Arc<Requests>,
    /// Turns of large lists.
    pub(crate) lists: Arc<Semaphore>,
    /// What the bodies of answers may take.
    pub(crate) answers: AnswerBodies,
    /// Bodies of jobs.
    pub(crate) job_bodies: Arc<JobBodies>,
    /// The body's shares of what all bodies may take.
    _body_shares: Arc<Shares>,
    abandoned: Abandoned,
}

/// Set when the request's handler has ended, with an answer or without.
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

    /// The time of the cluster now, Unix seconds.
    pub(crate) fn now_s(&self) -> i64 {
        i64::try_from(self.api.now_ms() / 1000).unwrap_or(i64::MAX)
    }

    /// The time of the cluster whenever it is asked, Unix ms: a blocking query shows its answer
    /// later.
    pub(crate) fn clock(&self) -> impl Fn() -> TimeMs + Send + Sync + 'static + use<> {
        let api = Arc::clone(&self.api);
        move || api.now_ms()
    }

    /// The id of a request with an `Idempotency-Key`: scoped by namespace and token.
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

    /// Segment of the path after `/v1/`; empty when there is none.
    pub(crate) fn segment(&self, position: usize) -> &str {
        self.segments.get(position).map_or("", String::as_str)
    }

    /// What the path of a route about one job names.
    pub(super) fn job_path(&self) -> Result<&JobPath, Error> {
        self.job.as_ref().ok_or_else(|| Error::internal("the route is about no job"))
    }

    /// A parsed id in the path.
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

    /// A truth value in the query; present without a value is true.
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

    /// The expression that rows of a list have to satisfy.
    pub(crate) async fn filter(&self) -> Result<Option<Filter>, Error> {
        match self.parameter("filter").filter(|text| !text.is_empty()) {
            Some(text) => self.filter_of(text).await.map(Some),
            None => Ok(None),
        }
    }

    /// The filter of an expression. Patterns take their time to compile, and nothing else does.
    pub(crate) async fn filter_of(&self, text: &str) -> Result<Filter, Error> {
        let budget = Budget::until(Budget::OF_REQUEST, Arc::clone(&self.abandoned.0));
        if !text.contains("matches") {
            return Filter::parse(text, budget);
        }
        let text = text.to_owned();
        self.in_turn(usize::MAX, move || Filter::parse(&text, budget)).await
    }

    /// Namespaces that a list is asked for.
    pub(crate) fn namespaces(&self) -> Namespaces {
        match self.parameter("namespace") {
            None | Some("") => Namespaces::One("default".into()),
            Some("*") => Namespaces::All,
            Some(one) => Namespaces::One(one.into()),
        }
    }

    /// The one namespace of a request about one thing.
    pub(crate) fn namespace(&self) -> Result<Text, Error> {
        match self.namespaces() {
            Namespaces::One(one) => Ok(one),
            Namespaces::All => Err(Error::bad("namespace * is only allowed on lists")),
        }
    }

    /// The body as JSON; an empty one is null.
    pub(crate) fn json(&self) -> Result<Value, Error> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::bad(format!("the request body is not valid JSON: {error}")))
    }

    /// The body as JSON, which must be there.
    pub(crate) fn json_required(&self) -> Result<Value, Error> {
        let value = self.json()?;
        if value.is_null() {
            return Err(Error::bad("a JSON request body is required"));
        }
        Ok(value)
    }

    /// How fresh a read has to be.
    pub(crate) fn read_mode(&self) -> Result<ReadMode, Error> {
        Ok(if self.flag("stale")? { ReadMode::Stale } else { ReadMode::Linearizable })
    }

    /// A snapshot for a request that does not wait.
    pub(crate) async fn read(&self) -> Result<Snapshot, Error> {
        let mode = self.read_mode()?;
        Ok(self.api.read(&self.caller, mode, 0, self.options.timeout).await?)
    }

    /// Proposes a command; a rejection is an error.
    pub(crate) async fn write(&self, command: Command) -> Result<Written, Error> {
        self.write_as(command, self.request_id).await
    }

    /// As [`Self::write`], of one of several commands of a request that is cut alike at each retry:
    /// the first has the request's key, and each other one of its own.
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

    /// As [`Self::write`], of one of several commands of a request: its key stands for none of
    /// them.
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

    /// The id of a request with an `Idempotency-Key`.
    pub(crate) fn request_id(&self) -> Option<RequestId> {
        self.request_id
    }

    /// An id for the evaluation that this request makes, which the request's span names from now
    /// on.
    pub(crate) fn evaluation_id(&self) -> EvaluationId {
        let id = self.new_evaluation();
        tracing::Span::current().record("evaluation", tracing::field::display(id));
        id
    }

    /// An id for an evaluation: random, or under an idempotency key the same at each retry.
    fn new_evaluation(&self) -> EvaluationId {
        let Some(RequestId(request)) = self.request_id else {
            return EvaluationId(self.api.new_id());
        };
        let number = self.ids_made.fetch_add(1, Ordering::Relaxed);
        EvaluationId(digest_16(&[b"evaluation", &request, &number.to_le_bytes()]))
    }

    /// Ids for the evaluations of `count` jobs; under an idempotency key their number does not
    /// depend on the state.
    pub(crate) fn evaluation_ids(&self, count: usize) -> Vec<EvaluationId> {
        let count = if self.request_id.is_some() { KEYED_IDS } else { count };
        (0..count).map(|_| self.new_evaluation()).collect()
    }

    /// An answer with a JSON body.
    pub(crate) fn answer(&self, value: &Value, meta: Option<Meta>) -> Result<Answer, Error> {
        self.answer_body(self.body_of(value)?, meta)
    }

    /// An answer with a JSON body that is made already.
    pub(crate) fn answer_body(&self, body: Bytes, meta: Option<Meta>) -> Result<Answer, Error> {
        let body = self.answers.hold(body)?;
        Ok(Answer::json(StatusCode::OK, body, meta))
    }

    /// An answer with a status and a JSON body, which is not counted.
    pub(crate) fn answer_with(
        &self,
        status: StatusCode,
        value: &Value,
        meta: Option<Meta>,
    ) -> Result<Answer, Error> {
        Ok(Answer::json(status, self.body_of(value)?, meta))
    }

    /// A JSON body as it was asked for.
    pub(crate) fn body_of(&self, value: &Value) -> Result<Bytes, Error> {
        let pretty = self.flag("pretty")?;
        let body =
            if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
        Ok(body.map_err(|error| Error::internal(error.to_string()))?.into())
    }

    /// An answer of a write: the index is that of its entry. It is not counted, as nobody may be
    /// turned away after what was written.
    pub(crate) fn answer_write(
        &self,
        written: &Written,
        mut value: Value,
    ) -> Result<Answer, Error> {
        if let Value::Object(object) = &mut value {
            object.insert("Index".to_owned(), written.index.into());
            object.insert("LastContact".to_owned(), 0.into());
            object.insert("KnownLeader".to_owned(), true.into());
        }
        let meta = Meta {
            index: written.index,
            last_contact: Duration::ZERO,
            known_leader: true,
            next_token: None,
        };
        self.answer_with(StatusCode::OK, &value, Some(meta))
    }
}

/// First 16 bytes of BLAKE3 over the parts, each with its length before it.
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
