//! Counts requests: by the noun of their route and the code of their answer, and how long the
//! answers took to begin. Routes are those of the router, so that no request makes another row.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{extract::MatchedPath, extract::Request, http::Method};
use ground::{
    histogram::Histogram,
    metrics::{Sample, number},
};

/// The route of what no route takes.
const UNKNOWN: &str = "unknown";

/// How a request asks; what waits for a change takes as long as nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Wait,
    Write,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Read, Self::Wait, Self::Write];

    fn of(request: &Request) -> Self {
        let waits =
            |query: &str| query.split('&').any(|one| one.starts_with("index=") && one != "index=0");
        match *request.method() {
            Method::GET if request.uri().query().is_some_and(waits) => Self::Wait,
            Method::GET | Method::HEAD | Method::OPTIONS => Self::Read,
            _ => Self::Write,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Wait => "wait",
            Self::Write => "write",
        }
    }
}

/// What is counted of one request, taken before it is answered.
pub(super) struct Counted {
    /// The noun behind `/v1/` of the route that takes it.
    route: String,
    kind: Kind,
}

impl Counted {
    pub(super) fn of(request: &Request) -> Self {
        let path = request.extensions().get::<MatchedPath>();
        let noun = path.and_then(|path| path.as_str().strip_prefix("/v1/")?.split('/').next());
        Self { route: noun.unwrap_or(UNKNOWN).to_owned(), kind: Kind::of(request) }
    }
}

/// The requests of one route.
#[derive(Debug, Default)]
struct Route {
    codes: BTreeMap<u16, u64>,
    /// In the order of [`Kind::ALL`].
    times: [Histogram; 3],
}

/// The requests of this server since its start.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<BTreeMap<String, Route>>);

impl Requests {
    fn routes(&self) -> MutexGuard<'_, BTreeMap<String, Route>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, request: Counted, code: u16, took: Duration) {
        let mut routes = self.routes();
        let route = routes.entry(request.route).or_default();
        *route.codes.entry(code).or_default() += 1;
        route.times[request.kind as usize].record(took);
    }

    /// Counts by name and labels.
    pub(super) fn counts(&self) -> BTreeMap<String, f64> {
        let routes = self.routes();
        let counts = routes.iter().flat_map(|(name, route)| {
            route.codes.iter().map(move |(code, count)| {
                (format!("nomad.http.requests{{code={code},route={name}}}"), number(*count))
            })
        });
        counts.collect()
    }

    /// Times by name and labels.
    pub(super) fn times(&self) -> BTreeMap<String, Sample> {
        let routes = self.routes();
        let times = routes.iter().flat_map(|(name, route)| {
            let of_kinds = Kind::ALL.into_iter().zip(&route.times);
            of_kinds.map(move |(kind, times)| {
                let labels = format!("{{kind={},route={name}}}", kind.name());
                (format!("nomad.http.request{labels}"), times.sample())
            })
        });
        times.filter(|(_, sample)| sample.count() > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_route_code_and_kind() {
        let requests = Requests::default();
        let record = |route: &str, kind, code, ms| {
            let counted = Counted { route: route.to_owned(), kind };
            requests.record(counted, code, Duration::from_millis(ms));
        };
        record("jobs", Kind::Read, 200, 1);
        record("jobs", Kind::Read, 200, 3);
        record("jobs", Kind::Wait, 200, 60_000);
        record("jobs", Kind::Write, 500, 2);
        let counts = requests.counts();
        assert_eq!(counts.len(), 2);
        assert!((counts["nomad.http.requests{code=200,route=jobs}"] - 3.0).abs() < 0.1);
        let times = requests.times();
        assert_eq!(times["nomad.http.request{kind=read,route=jobs}"].count(), 2);
        assert_eq!(times["nomad.http.request{kind=wait,route=jobs}"].count(), 1);
        assert_eq!(times.len(), 3);
    }

    #[test]
    fn a_query_that_waits_for_a_change_is_counted_apart() {
        let kind = |method: Method, uri: &str| {
            let request =
                Request::builder().method(method).uri(uri).body(axum::body::Body::empty());
            Kind::of(&request.expect("a request"))
        };
        assert_eq!(kind(Method::GET, "/v1/jobs"), Kind::Read);
        assert_eq!(kind(Method::GET, "/v1/jobs?stale&index=0"), Kind::Read);
        assert_eq!(kind(Method::GET, "/v1/jobs?stale&index=7"), Kind::Wait);
        assert_eq!(kind(Method::DELETE, "/v1/job/a?index=7"), Kind::Write);
    }
}
