//! Routes. A row for each method of each path says which handler answers it, what kind of object it
//! is about, and which right it needs. The router with its 405 and 501 answers, the tests and
//! `docs/api.md` are made from these rows. The rows are in the files of the nouns, next to their
//! handlers.
//!
//! A job id may contain slashes: `{job}` in a path matches one segment or more. `/v1/job/a/b/plan`
//! is the plan of `a/b`. A path whose end matches the words of no row is an id as a whole.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    handler::Handler,
    http::{Method, Uri},
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter, any, on},
};
use fsm::{JobKey, right::Right};
use futures_util::{FutureExt, future::BoxFuture};

use super::{
    Context,
    answer::Answer,
    call::{Call, segments},
    error::Error,
};

/// What paths about one job begin with.
const OF_JOB: &str = "/v1/job/{job}";

/// Methods of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Takes {
    Read,
    /// PUT and POST alike, as Nomad's write endpoints do.
    Write,
    Delete,
}

impl Takes {
    const fn filter(self) -> MethodFilter {
        match self {
            Self::Read => MethodFilter::GET,
            Self::Write => MethodFilter::PUT.or(MethodFilter::POST),
            Self::Delete => MethodFilter::DELETE,
        }
    }

    #[cfg(test)]
    pub(super) const fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["GET"],
            Self::Write => &["PUT", "POST"],
            Self::Delete => &["DELETE"],
        }
    }
}

/// What a request is about: that is where its right has to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// The namespace of the query, or of the job in the body.
    Namespace,
    /// One namespace or all, by the query: a list leaves out what the caller may not see.
    Namespaces,
    /// The namespace that the path names.
    NamedNamespace,
    /// The allocation in the path, in its own namespace.
    Allocation,
    /// The evaluation in the path, in its own namespace.
    Evaluation,
    /// The deployment in the path, in its own namespace.
    Deployment,
    /// The scaling policy in the path, in the namespace of its job.
    ScalingPolicy,
    /// The node that is named, or nodes.
    Node,
    /// The node pool that the path or the body names.
    NodePool,
    /// All node pools: a list leaves out what the caller may not see.
    NodePools,
    /// Machines, and what decides how many there are.
    Machines,
    /// The variable in the path, or those of a prefix.
    Variable,
    /// Nodes' and jobs' things of several kinds: each is left out unless the caller may see it.
    Several,
    /// The server that is asked, or the agent of a node.
    Agent,
    /// The cluster as a whole.
    Cluster,
    /// Tokens, policies, and how callers get them.
    Access,
}

impl Subject {
    /// What it is called in the docs.
    #[cfg(test)]
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Namespace => "the namespace",
            Self::Namespaces => "namespaces",
            Self::NamedNamespace => "a namespace itself",
            Self::Allocation => "an allocation",
            Self::Evaluation => "an evaluation",
            Self::Deployment => "a deployment",
            Self::ScalingPolicy => "a scaling policy",
            Self::Node => "nodes",
            Self::NodePool => "a node pool",
            Self::NodePools => "node pools",
            Self::Machines => "machines",
            Self::Variable => "variables",
            Self::Several => "several kinds",
            Self::Agent => "a server or an agent",
            Self::Cluster => "the cluster",
            Self::Access => "access",
        }
    }
}

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Is {
    /// There is a handler.
    Built,
    /// Refused with 501 by its name.
    Refused,
    /// Refused with 501 in the words of Nomad's open edition.
    Enterprise,
}

/// What answers a route.
trait RouteHandler: Fn(Call) -> BoxFuture<'static, Result<Answer, Error>> + Send + Sync {}

impl<H: Fn(Call) -> BoxFuture<'static, Result<Answer, Error>> + Send + Sync> RouteHandler for H {}

/// A row.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "tests and docs/api.md are made of it, and access control will be")
)]
pub(super) struct Route {
    pub(super) takes: Takes,
    pub(super) path: &'static str,
    pub(super) subject: Subject,
    /// What the caller needs. Nothing asks for it yet.
    pub(super) right: Right,
    pub(super) is: Is,
    handler: MethodRouter<Context>,
}

impl Route {
    fn row(
        takes: Takes,
        path: &'static str,
        (subject, right): (Subject, Right),
        handler: MethodRouter<Context>,
    ) -> Self {
        Self { takes, path, subject, right, is: Is::Built, handler }
    }

    /// By what handlers come to, and not by what they are: axum's part of a handler is compiled
    /// once, and not once for each of them.
    fn built(
        takes: Takes,
        path: &'static str,
        needs: (Subject, Right),
        handler: Arc<dyn RouteHandler>,
    ) -> Self {
        let answer = move |call: Call| handler(call);
        Self::row(takes, path, needs, on(takes.filter(), answer))
    }

    pub(super) fn read<F>(
        path: &'static str,
        subject: Subject,
        right: Right,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        Self::built(Takes::Read, path, (subject, right), erased(handler))
    }

    pub(super) fn write<F>(
        path: &'static str,
        subject: Subject,
        right: Right,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        Self::built(Takes::Write, path, (subject, right), erased(handler))
    }

    pub(super) fn delete<F>(
        path: &'static str,
        subject: Subject,
        right: Right,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        Self::built(Takes::Delete, path, (subject, right), erased(handler))
    }

    /// A route of Nomad that is not built.
    pub(super) fn refused(
        takes: Takes,
        path: &'static str,
        subject: Subject,
        right: Right,
    ) -> Self {
        let answer = on(takes.filter(), refused);
        Self { is: Is::Refused, ..Self::row(takes, path, (subject, right), answer) }
    }

    /// A route that only Nomad Enterprise has.
    pub(super) fn enterprise(takes: Takes, path: &'static str) -> Self {
        let needs = (Subject::Cluster, Right::Management);
        let answer = on(takes.filter(), enterprise);
        Self { is: Is::Enterprise, ..Self::row(takes, path, needs, answer) }
    }
}

fn erased<F>(handler: impl Fn(Call) -> F + Send + Sync + 'static) -> Arc<dyn RouteHandler>
where
    F: Future<Output = Result<Answer, Error>> + Send + 'static,
{
    Arc::new(move |call| handler(call).boxed())
}

async fn refused(uri: Uri) -> Error {
    Error::unsupported(uri.path())
}

async fn enterprise() -> Error {
    Error::enterprise_only()
}

async fn wrong_method(method: Method, uri: Uri) -> Error {
    Error::wrong_method(&method, uri.path())
}

async fn unknown_path(uri: Uri) -> Error {
    Error::not_found_path(uri.path())
}

/// The router of all rows.
pub(super) fn router(rows: Vec<Route>) -> Router<Context> {
    let mut router = Router::new();
    let mut of_jobs = JobRoutes::default();
    for route in rows {
        match route.path.strip_prefix(OF_JOB) {
            Some(rest) => of_jobs.add(rest, route.handler),
            None => router = router.route(route.path, route.handler),
        }
    }
    let of_jobs = Arc::new(of_jobs.with_wrong_methods());
    let answer = move |State(context): State<Context>, request: Request| {
        let of_jobs = Arc::clone(&of_jobs);
        async move { of_jobs.answer(request, context).await }
    };
    router
        .route("/v1/job/{*rest}", any(answer))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
}

/// What the path names, of a route about one job.
#[derive(Clone, Debug)]
pub(super) struct JobPath {
    pub(super) id: String,
    /// The name of a version in `versions/{tag}/tag`.
    pub(super) tag: String,
}

impl JobPath {
    pub(super) fn key(&self, call: &Call) -> Result<JobKey, Error> {
        Ok(JobKey::new(call.namespace()?, self.id.as_str()))
    }
}

/// The routes about one job, by the words that stand behind its id.
#[derive(Default)]
struct JobRoutes(BTreeMap<Vec<&'static str>, MethodRouter<Context>>);

impl JobRoutes {
    fn add(&mut self, rest: &'static str, handler: MethodRouter<Context>) {
        let words = rest.split('/').filter(|word| !word.is_empty()).collect();
        let known = self.0.remove(&words).unwrap_or_default();
        self.0.insert(words, known.merge(handler));
    }

    fn with_wrong_methods(self) -> Self {
        Self(self.0.into_iter().map(|(words, one)| (words, one.fallback(wrong_method))).collect())
    }

    /// The handlers for a path behind `/v1/job/`, and what it names: the most words that fit, with
    /// an id before them. None: the id is empty.
    fn find(&self, path: &[String]) -> Option<(&MethodRouter<Context>, JobPath)> {
        let fits = |words: &[&str]| {
            let of_id = path.len().saturating_sub(words.len());
            let mut pairs = words.iter().zip(path.get(of_id..).unwrap_or_default());
            of_id > 0 && pairs.all(|(word, found)| *word == "{tag}" || word == found)
        };
        let rows = self.0.iter().filter(|(words, _)| fits(words));
        let (words, handlers) = rows.max_by_key(|(words, _)| words.len())?;
        let (id, rest) = path.split_at_checked(path.len() - words.len())?;
        let tag = words.iter().zip(rest).find(|(word, _)| **word == "{tag}");
        let tag = tag.map_or_else(String::new, |(_, found)| found.clone());
        let named = JobPath { id: id.join("/"), tag };
        (!named.id.is_empty()).then_some((handlers, named))
    }

    async fn answer(&self, mut request: Request, context: Context) -> Response {
        let path = match segments(request.uri()) {
            Ok(path) => path,
            Err(error) => return error.into_response(),
        };
        let Some((handlers, named)) = self.find(path.get(1..).unwrap_or_default()) else {
            return Error::bad("missing job ID").into_response();
        };
        request.extensions_mut().insert(named);
        Handler::call(handlers.clone(), request, context).await
    }
}

/// Any of these capabilities.
macro_rules! may {
    ($($capability:ident),+) => {
        fsm::right::Right::Namespace(&[$(fsm::right::Capability::$capability),+])
    };
}
pub(super) use may;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_words_behind_an_id_are_the_route_and_the_rest_is_the_id() {
        let mut routes = JobRoutes::default();
        for rest in ["", "/plan", "/dispatch", "/dispatch/batch", "/versions/{tag}/tag"] {
            routes.add(rest, MethodRouter::new());
        }
        let find = |path: &str| {
            let path: Vec<_> = path.split('/').map(str::to_owned).collect();
            let (_, named) = routes.find(&path)?;
            Some((named.id, named.tag))
        };
        for (path, id, tag) in [
            ("a", "a", ""),
            ("plan", "plan", ""),
            ("a/plan", "a", ""),
            ("a/b/plan", "a/b", ""),
            ("plan/plan", "plan", ""),
            ("a/dispatch", "a", ""),
            ("a/dispatch/batch", "a", ""),
            ("a/batch", "a/batch", ""),
            ("dispatch/batch", "dispatch/batch", ""),
            ("a/versions/v1/tag", "a", "v1"),
            ("versions/v1/tag", "versions/v1/tag", ""),
            ("a//plan", "a/", ""),
        ] {
            assert_eq!(find(path), Some((id.to_owned(), tag.to_owned())), "{path}");
        }
        assert_eq!((find(""), find("/plan")), (None, None));
    }
}
