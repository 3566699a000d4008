//! Nomad's endpoints that this server does not have: lists of things that cannot exist are empty (and never change, for who waits on
//! them), the rest is refused by name with 501, so that a client can tell "not built" from a wrong path.

use axum::{
    Router,
    http::Uri,
    routing::{any, get},
};
use serde_json::json;

use super::{Context, answer::Answer, call::Call, error::Error};

/// Lists of things that cannot exist here.
const EMPTY: [&str; 6] = [
    "/v1/deployments",
    "/v1/volumes",
    "/v1/plugins",
    "/v1/services",
    "/v1/scaling/policies",
    "/v1/vars",
];

/// Paths that are refused by name.
const REFUSED: [&str; 27] = [
    "/v1/acl/{*rest}",
    "/v1/agent/force-leave",
    "/v1/agent/host",
    "/v1/agent/join",
    "/v1/agent/keyring/{*rest}",
    "/v1/agent/monitor",
    "/v1/agent/pprof/{*rest}",
    "/v1/allocation/{id}/checks",
    "/v1/deployment/fail/{id}",
    "/v1/deployment/pause/{id}",
    "/v1/deployment/promote/{id}",
    "/v1/deployment/unblock/{id}",
    "/v1/deployment/allocation-health/{id}",
    "/v1/event/stream",
    "/v1/jobs/statuses",
    "/v1/operator/autopilot/configuration",
    "/v1/operator/autopilot/health",
    "/v1/operator/keyring/{*rest}",
    "/v1/operator/raft/peer",
    "/v1/operator/snapshot",
    "/v1/plugin/{*rest}",
    "/v1/scaling/policy/{id}",
    "/v1/service/{*rest}",
    "/v1/var/{*rest}",
    "/v1/volume/{*rest}",
    "/v1/volumes/{*rest}",
    "/.well-known/{*rest}",
];

/// What only Nomad Enterprise has, refused in its words, which clients know.
const ENTERPRISE: [&str; 9] = [
    "/v1/operator/license",
    "/v1/operator/upgrade-check/{*rest}",
    "/v1/operator/utilization",
    "/v1/quota-usages",
    "/v1/quota/{*rest}",
    "/v1/quotas",
    "/v1/recommendation/{*rest}",
    "/v1/recommendations",
    "/v1/sentinel/{*rest}",
];

pub(crate) fn routes() -> Router<Context> {
    let mut router = Router::new()
        .route("/v1/deployment/{id}", get(deployment))
        .route("/v1/deployment/allocations/{id}", get(deployment));
    for path in EMPTY {
        router = router.route(path, get(empty));
    }
    for path in REFUSED {
        router = router.route(path, any(refused));
    }
    for path in ENTERPRISE {
        router = router.route(path, any(enterprise));
    }
    router
}

async fn empty(call: Call) -> Result<Answer, Error> {
    call.document(&[], |_| Ok(json!([]))).await
}

async fn deployment() -> Error {
    Error::not_found("deployment")
}

async fn enterprise() -> Error {
    Error::enterprise_only()
}

async fn refused(uri: Uri) -> Error {
    Error::unsupported(uri.path())
}
