//! Nomad's endpoints that this server does not have: lists of things that cannot exist are empty (and never change, for who waits on
//! them), the rest is refused by name with 501, so that a client can tell "not built" from a wrong path. Each has a row here, and one
//! in `tests/routes.rs`: what is built loses its row.

use axum::{
    Router,
    http::Uri,
    routing::{MethodFilter, MethodRouter, get, on},
};
use serde_json::json;

use super::{Context, answer::Answer, call::Call, error::Error};

/// Lists of things that cannot exist here.
const EMPTY: [&str; 2] = ["/v1/volumes", "/v1/plugins"];

const READ: MethodFilter = MethodFilter::GET;
/// Nomad takes both for a write.
const WRITE: MethodFilter = MethodFilter::PUT.or(MethodFilter::POST);
const DELETE: MethodFilter = MethodFilter::DELETE;
const READ_WRITE: MethodFilter = READ.or(WRITE);
const ALL: MethodFilter = READ_WRITE.or(DELETE);

/// Paths that are refused by name, with the methods that Nomad takes there.
const REFUSED: [(&str, MethodFilter); 57] = [
    ("/.well-known/jwks.json", READ),
    ("/.well-known/openid-configuration", READ),
    ("/v1/acl/auth-method", WRITE),
    ("/v1/acl/auth-method/{name}", ALL),
    ("/v1/acl/auth-methods", READ),
    ("/v1/acl/binding-rule", WRITE),
    ("/v1/acl/binding-rule/{id}", ALL),
    ("/v1/acl/binding-rules", READ),
    ("/v1/acl/bootstrap", WRITE),
    ("/v1/acl/identity/client-introduction-token", WRITE),
    ("/v1/acl/login", WRITE),
    ("/v1/acl/oidc/auth-url", WRITE),
    ("/v1/acl/oidc/complete-auth", WRITE),
    ("/v1/acl/policies", READ),
    ("/v1/acl/policy/{name}", ALL),
    ("/v1/acl/role", WRITE),
    ("/v1/acl/role/name/{name}", READ),
    ("/v1/acl/role/{id}", ALL),
    ("/v1/acl/roles", READ),
    ("/v1/acl/token", WRITE),
    ("/v1/acl/token/onetime", WRITE),
    ("/v1/acl/token/onetime/exchange", WRITE),
    ("/v1/acl/token/{id}", ALL),
    ("/v1/acl/tokens", READ),
    ("/v1/agent/host", READ),
    ("/v1/agent/keyring/{operation}", ALL),
    ("/v1/agent/monitor", READ),
    ("/v1/agent/monitor/export", READ),
    ("/v1/agent/pprof/{*profile}", READ),
    ("/v1/agent/reload", WRITE),
    ("/v1/agent/servers", WRITE),
    ("/v1/client/allocations/prometheus-sd", READ),
    ("/v1/client/identity", READ),
    ("/v1/client/identity/renew", WRITE),
    ("/v1/event/stream", READ),
    ("/v1/jobs/statuses", READ_WRITE),
    ("/v1/operator/autopilot/configuration", READ_WRITE),
    ("/v1/operator/autopilot/health", READ),
    ("/v1/operator/keyring/key/{id}", DELETE),
    ("/v1/operator/keyring/keys", READ),
    ("/v1/operator/keyring/rotate", WRITE),
    ("/v1/operator/snapshot", READ_WRITE),
    ("/v1/operator/upgrade-check/{*check}", READ),
    ("/v1/plugin/csi/{id}", READ),
    ("/v1/service/{name}", READ),
    ("/v1/service/{name}/{id}", DELETE),
    ("/v1/services", READ),
    ("/v1/var/{*path}", ALL),
    ("/v1/vars", READ),
    ("/v1/volume/csi/{id}", ALL),
    ("/v1/volume/csi/{id}/{action}", ALL),
    ("/v1/volume/host/{id}", ALL),
    ("/v1/volume/host/{id}/{action}", ALL),
    ("/v1/volumes/claim/{id}", DELETE),
    ("/v1/volumes/claims", READ),
    ("/v1/volumes/external", READ),
    ("/v1/volumes/snapshot", ALL),
];

/// What only Nomad Enterprise has, refused in its words, which clients know.
const ENTERPRISE: [(&str, MethodFilter); 12] = [
    ("/v1/operator/license", READ_WRITE),
    ("/v1/operator/utilization", READ_WRITE),
    ("/v1/quota", WRITE),
    ("/v1/quota-usages", READ),
    ("/v1/quota/{*rest}", ALL),
    ("/v1/quotas", READ),
    ("/v1/recommendation", WRITE),
    ("/v1/recommendation/{*rest}", ALL),
    ("/v1/recommendations", READ),
    ("/v1/recommendations/apply", WRITE),
    ("/v1/sentinel/policies", READ),
    ("/v1/sentinel/policy/{*rest}", ALL),
];

pub(crate) fn routes() -> Router<Context> {
    let mut router = Router::new().route("/v1/allocation/{id}/checks", get(checks));
    for path in EMPTY {
        router = router.route(path, get(empty));
    }
    for (path, methods) in REFUSED {
        let refuse: MethodRouter<Context> = on(methods, refused);
        router = router.route(path, refuse);
    }
    for (path, methods) in ENTERPRISE {
        router = router.route(path, on(methods, enterprise));
    }
    router
}

async fn empty(call: Call) -> Result<Answer, Error> {
    call.document(&[], |_| Ok(json!([]))).await
}

/// No checks of services are run.
async fn checks(call: Call) -> Result<Answer, Error> {
    call.document(&[], |_| Ok(json!({}))).await
}

async fn enterprise() -> Error {
    Error::enterprise_only()
}

async fn refused(uri: Uri) -> Error {
    Error::unsupported(uri.path())
}
