//! Nomad's whole list of routes, row by row: what is answered, what is empty, what is refused by name, and what only Nomad Enterprise
//! has. A path that is not in Nomad, and a method that Nomad does not take, are told apart from all of these.

use super::{
    cluster::TestCluster,
    socket::{TestResponse, TestServer},
};

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    /// There is a handler: it may still refuse this request.
    Built,
    /// Refused with 501 by its name.
    Refused,
    /// Refused with 501 in the words of Nomad's open edition.
    Enterprise,
}
use Is::{Built, Enterprise, Refused};

const ID: &str = "00000000-0000-0000-0000-000000000001";

/// Method, path (`ID` is an id), and what it does.
const ROUTES: &str = "
GET /jobs Built
PUT /jobs Built
POST /jobs Built
PUT /jobs/parse Built
GET /jobs/statuses Refused
POST /jobs/statuses Refused
GET /job/j Built
PUT /job/j Built
DELETE /job/j Built
PUT /job/j/evaluate Built
GET /job/j/allocations Built
GET /job/j/evaluations Built
PUT /job/j/periodic/force Built
PUT /job/j/plan Built
GET /job/j/summary Built
PUT /job/j/dispatch Built
POST /job/j/dispatch/payload Built
GET /job/j/versions Built
PUT /job/j/revert Built
PUT /job/j/stable Built
GET /job/j/scale Built
PUT /job/j/scale Built
GET /job/j/deployments Built
GET /job/j/deployment Built
GET /job/j/services Refused
GET /job/j/submission Built
GET /job/j/actions Refused
GET /job/j/action Refused
PUT /job/j/versions/v/tag Built
DELETE /job/j/versions/v/tag Built
PUT /validate/job Built
GET /allocations Built
GET /allocation/ID Built
PUT /allocation/ID/stop Built
GET /allocation/ID/checks Built
GET /allocation/ID/services Built
GET /evaluations Built
DELETE /evaluations Built
GET /evaluations/count Built
GET /evaluation/ID Built
GET /evaluation/ID/allocations Built
GET /deployments Built
GET /deployment/ID Built
GET /deployment/allocations/ID Built
PUT /deployment/fail/ID Built
PUT /deployment/pause/ID Built
PUT /deployment/promote/ID Built
PUT /deployment/allocation-health/ID Built
PUT /deployment/unblock/ID Enterprise
GET /nodes Built
GET /node/ID Built
PUT /node/ID/evaluate Built
GET /node/ID/allocations Built
PUT /node/ID/drain Built
PUT /node/ID/eligibility Built
PUT /node/ID/purge Built
GET /node/pools Built
PUT /node/pools Built
GET /node/pool/p Built
PUT /node/pool/p Built
DELETE /node/pool/p Built
GET /node/pool/p/nodes Built
GET /node/pool/p/jobs Built
GET /status/leader Built
GET /status/peers Built
GET /regions Built
GET /operator/raft/configuration Built
DELETE /operator/raft/peer Built
PUT /operator/raft/transfer-leadership Built
GET /operator/autopilot/configuration Refused
PUT /operator/autopilot/configuration Refused
GET /operator/autopilot/health Refused
GET /operator/scheduler/configuration Built
PUT /operator/scheduler/configuration Built
GET /operator/snapshot Refused
PUT /operator/snapshot Refused
GET /operator/keyring/keys Refused
DELETE /operator/keyring/key/ID Refused
PUT /operator/keyring/rotate Refused
GET /operator/license Enterprise
PUT /operator/license Enterprise
GET /operator/utilization Enterprise
GET /operator/upgrade-check/vault-workload-identity Refused
GET /agent/self Built
GET /agent/members Built
GET /agent/servers Built
PUT /agent/servers Refused
PUT /agent/join Built
PUT /agent/force-leave Built
GET /agent/health Built
GET /agent/schedulers Built
GET /agent/schedulers/config Built
PUT /agent/schedulers/config Built
GET /agent/monitor Refused
GET /agent/monitor/export Refused
GET /agent/host Refused
GET /agent/pprof/profile Refused
GET /agent/keyring/list Refused
PUT /agent/keyring/install Refused
PUT /agent/reload Refused
PUT /system/gc Built
PUT /system/reconcile/summaries Built
GET /metrics Built
GET /event/stream Refused
POST /search Built
PUT /search/fuzzy Built
GET /namespaces Built
PUT /namespace Built
GET /namespace/n Built
PUT /namespace/n Built
DELETE /namespace/n Built
GET /acl/policies Refused
GET /acl/policy/p Refused
PUT /acl/policy/p Refused
DELETE /acl/policy/p Refused
GET /acl/tokens Refused
PUT /acl/token Refused
GET /acl/token/self Refused
GET /acl/token/ID Refused
PUT /acl/token/ID Refused
DELETE /acl/token/ID Refused
POST /acl/token/onetime Refused
POST /acl/token/onetime/exchange Refused
POST /acl/bootstrap Refused
GET /acl/roles Refused
PUT /acl/role Refused
GET /acl/role/ID Refused
GET /acl/role/name/r Refused
DELETE /acl/role/ID Refused
GET /acl/auth-methods Refused
PUT /acl/auth-method Refused
GET /acl/auth-method/m Refused
GET /acl/binding-rules Refused
PUT /acl/binding-rule Refused
GET /acl/binding-rule/ID Refused
POST /acl/oidc/auth-url Refused
POST /acl/oidc/complete-auth Refused
POST /acl/login Refused
POST /acl/identity/client-introduction-token Refused
GET /vars Refused
GET /var/a/b Refused
PUT /var/a/b Refused
DELETE /var/a/b Refused
GET /scaling/policies Built
GET /scaling/policy/ID Built
GET /services Refused
GET /service/s Refused
DELETE /service/s/ID Refused
GET /volumes Built
GET /volumes/external Refused
GET /volumes/snapshot Refused
GET /volumes/claims Refused
DELETE /volumes/claim/ID Refused
GET /volume/csi/v Refused
PUT /volume/csi/v Refused
DELETE /volume/csi/v/detach Refused
GET /volume/host/v Refused
PUT /volume/host/create Refused
GET /plugins Built
GET /plugin/csi/p Refused
GET /client/stats Built
GET /client/gc Built
GET /client/metadata Built
GET /client/identity Refused
POST /client/identity/renew Refused
GET /client/allocations/prometheus-sd Refused
GET /client/allocation/ID/stats Built
PUT /client/allocation/ID/restart Built
PUT /client/allocation/ID/signal Built
GET /client/allocation/ID/checks Built
GET /client/fs/ls/ID Built
GET /client/fs/logs/ID Built
GET /quotas Enterprise
GET /quota-usages Enterprise
PUT /quota Enterprise
GET /quota/q Enterprise
GET /quota/usage/q Enterprise
DELETE /quota/q Enterprise
GET /recommendations Enterprise
PUT /recommendation Enterprise
GET /recommendation/ID Enterprise
PUT /recommendations/apply Enterprise
GET /sentinel/policies Enterprise
PUT /sentinel/policy/p Enterprise
";

fn rows() -> impl Iterator<Item = (&'static str, String, Is)> {
    ROUTES.lines().filter(|line| !line.is_empty()).map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let is = [Built, Refused, Enterprise];
        let is = is.into_iter().find(|is| format!("{is:?}") == words[2]).unwrap();
        (words[0], format!("/v1{}", words[1].replace("ID", ID)), is)
    })
}

fn what_it_is(method: &str, path: &str, answer: &TestResponse) -> Result<Is, String> {
    let text = &answer.text;
    match answer.status {
        501 if text == "Nomad Enterprise only endpoint" => Ok(Enterprise),
        501 if text.ends_with("is not supported by this server") => Ok(Refused),
        405 => Err(format!("{method} {path} is a wrong method")),
        404 if text.starts_with("unknown path") => Err(format!("{method} {path} is unknown")),
        _ => Ok(Built),
    }
}

#[tokio::test]
async fn every_route_of_nomad_is_built_or_refused_by_name() {
    let server = TestServer::start(TestCluster::new()).await;
    let mut wrong = Vec::new();
    for (method, path, expected) in rows() {
        let body: &[u8] = if method == "GET" { b"" } else { b"{}" };
        let answer = server.send(method, &path, &[], body).await;
        match what_it_is(method, &path, &answer) {
            Ok(found) if found == expected => {}
            Ok(found) => wrong.push(format!("{method} {path}: {found:?}, {answer:?}")),
            Err(text) => wrong.push(text),
        }
        // The path is in the text: a client that sees only that knows what is missing.
        let verb = path.rsplit('/').next().unwrap();
        if expected == Refused && !path.starts_with("/v1/job/") {
            assert!(answer.text.starts_with(&path) && answer.text.contains(verb), "{answer:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for well_known in ["/.well-known/jwks.json", "/.well-known/openid-configuration"] {
        assert_eq!(server.get(well_known).await.status, 501, "{well_known}");
    }
    server.stop().await;
}

#[tokio::test]
async fn methods_and_paths_that_nomad_does_not_have_are_no_missing_features() {
    let server = TestServer::start(TestCluster::new()).await;
    for (method, path, status) in [
        ("DELETE", "/v1/agent/join", 405),
        ("GET", "/v1/search", 405),
        ("PUT", "/v1/event/stream", 405),
        ("GET", "/v1/operator/raft/peer", 405),
        ("DELETE", "/v1/quotas", 405),
        ("PUT", "/v1/vars", 405),
        ("GET", "/v1/acl/nothing", 404),
        ("GET", "/v1/agent/nothing", 404),
        ("GET", "/v1/operator/keyring", 404),
    ] {
        let answer = server.send(method, path, &[], b"").await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
    server.stop().await;
}
