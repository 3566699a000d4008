//! Endpoints of Nomad that this server does not have. A list of things that cannot exist is empty
//! and never changes. Everything else is refused by name with 501, so that a client can tell "not
//! built" from a wrong path. Each endpoint is a row here until it is built.

use fsm::right::Right;
use serde_json::json;

use super::{
    answer::Answer,
    call::Call,
    error::Error,
    route::{Route, Subject, Takes, may},
};

/// Routes that are refused by name: their methods, and what they are about and need.
const REFUSED: &[(&[Takes], &str, Subject, Right)] = &[
    (&[Takes::Read], "/.well-known/jwks.json", Subject::Access, Right::Nothing),
    (&[Takes::Read], "/.well-known/openid-configuration", Subject::Access, Right::Nothing),
    (&[Takes::Write], "/v1/acl/auth-method", Subject::Access, Right::Management),
    (
        &[Takes::Read, Takes::Write, Takes::Delete],
        "/v1/acl/auth-method/{name}",
        Subject::Access,
        Right::Management,
    ),
    (&[Takes::Read], "/v1/acl/auth-methods", Subject::Access, Right::Nothing),
    (&[Takes::Write], "/v1/acl/binding-rule", Subject::Access, Right::Management),
    (
        &[Takes::Read, Takes::Write, Takes::Delete],
        "/v1/acl/binding-rule/{id}",
        Subject::Access,
        Right::Management,
    ),
    (&[Takes::Read], "/v1/acl/binding-rules", Subject::Access, Right::Management),
    (&[Takes::Write], "/v1/acl/bootstrap", Subject::Access, Right::Nothing),
    (
        &[Takes::Write],
        "/v1/acl/identity/client-introduction-token",
        Subject::Access,
        Right::NodeWrite,
    ),
    (&[Takes::Write], "/v1/acl/login", Subject::Access, Right::Nothing),
    (&[Takes::Write], "/v1/acl/oidc/auth-url", Subject::Access, Right::Nothing),
    (&[Takes::Write], "/v1/acl/oidc/complete-auth", Subject::Access, Right::Nothing),
    (&[Takes::Read], "/v1/acl/policies", Subject::Access, Right::AnyToken),
    (&[Takes::Read], "/v1/acl/policy/{name}", Subject::Access, Right::AnyToken),
    (&[Takes::Write, Takes::Delete], "/v1/acl/policy/{name}", Subject::Access, Right::Management),
    (&[Takes::Write], "/v1/acl/role", Subject::Access, Right::Management),
    (&[Takes::Read], "/v1/acl/role/name/{name}", Subject::Access, Right::AnyToken),
    (&[Takes::Read], "/v1/acl/role/{id}", Subject::Access, Right::AnyToken),
    (&[Takes::Write, Takes::Delete], "/v1/acl/role/{id}", Subject::Access, Right::Management),
    (&[Takes::Read], "/v1/acl/roles", Subject::Access, Right::AnyToken),
    (&[Takes::Write], "/v1/acl/token", Subject::Access, Right::Management),
    (&[Takes::Write], "/v1/acl/token/onetime", Subject::Access, Right::AnyToken),
    (&[Takes::Write], "/v1/acl/token/onetime/exchange", Subject::Access, Right::Nothing),
    (&[Takes::Read], "/v1/acl/token/{id}", Subject::Access, Right::AnyToken),
    (&[Takes::Write, Takes::Delete], "/v1/acl/token/{id}", Subject::Access, Right::Management),
    (&[Takes::Read], "/v1/acl/tokens", Subject::Access, Right::Management),
    (&[Takes::Read], "/v1/agent/host", Subject::Agent, Right::AgentRead),
    (
        &[Takes::Read, Takes::Write, Takes::Delete],
        "/v1/agent/keyring/{operation}",
        Subject::Agent,
        Right::AgentWrite,
    ),
    (&[Takes::Read], "/v1/agent/monitor", Subject::Agent, Right::AgentRead),
    (&[Takes::Read], "/v1/agent/monitor/export", Subject::Agent, Right::AgentRead),
    (&[Takes::Read], "/v1/agent/pprof/{*profile}", Subject::Agent, Right::AgentWrite),
    (&[Takes::Write], "/v1/agent/reload", Subject::Agent, Right::AgentWrite),
    (&[Takes::Write], "/v1/agent/servers", Subject::Agent, Right::AgentWrite),
    (&[Takes::Read], "/v1/client/allocations/prometheus-sd", Subject::Node, Right::NodeRead),
    (&[Takes::Read], "/v1/client/identity", Subject::Node, Right::NodeRead),
    (&[Takes::Write], "/v1/client/identity/renew", Subject::Node, Right::NodeWrite),
    (&[Takes::Read], "/v1/event/stream", Subject::Several, Right::Several),
    (&[Takes::Read], "/v1/job/{job}/services", Subject::Namespace, may!(ReadJob)),
    (&[Takes::Read], "/v1/job/{job}/actions", Subject::Namespace, may!(ReadJob)),
    (&[Takes::Read], "/v1/job/{job}/action", Subject::Namespace, may!(AllocExec)),
    (&[Takes::Read, Takes::Write], "/v1/jobs/statuses", Subject::Namespaces, may!(ReadJob)),
    (&[Takes::Read], "/v1/operator/autopilot/configuration", Subject::Cluster, Right::OperatorRead),
    (
        &[Takes::Write],
        "/v1/operator/autopilot/configuration",
        Subject::Cluster,
        Right::OperatorWrite,
    ),
    (&[Takes::Read], "/v1/operator/autopilot/health", Subject::Cluster, Right::OperatorRead),
    (&[Takes::Delete], "/v1/operator/keyring/key/{id}", Subject::Cluster, Right::KeyringDelete),
    (&[Takes::Read], "/v1/operator/keyring/keys", Subject::Cluster, Right::KeyringRead),
    (&[Takes::Write], "/v1/operator/keyring/rotate", Subject::Cluster, Right::KeyringRotate),
    (&[Takes::Read], "/v1/operator/snapshot", Subject::Cluster, Right::SnapshotSave),
    (&[Takes::Write], "/v1/operator/snapshot", Subject::Cluster, Right::Management),
    (&[Takes::Read], "/v1/operator/upgrade-check/{*check}", Subject::Cluster, Right::OperatorRead),
    (&[Takes::Read], "/v1/plugin/csi/{id}", Subject::Cluster, Right::PluginRead),
    (&[Takes::Read], "/v1/service/{name}", Subject::Namespaces, may!(ReadJob)),
    (
        &[Takes::Delete],
        "/v1/service/{name}/{id}",
        Subject::Namespace,
        may!(SubmitJob, DeleteServiceRegistration),
    ),
    (&[Takes::Read], "/v1/services", Subject::Namespaces, may!(ReadJob)),
    (&[Takes::Read], "/v1/var/{*path}", Subject::Variable, Right::VariableRead),
    (&[Takes::Write], "/v1/var/{*path}", Subject::Variable, Right::VariableWrite),
    (&[Takes::Delete], "/v1/var/{*path}", Subject::Variable, Right::VariableDestroy),
    (&[Takes::Read], "/v1/vars", Subject::Variable, Right::VariableList),
    (
        &[Takes::Read],
        "/v1/volume/csi/{id}",
        Subject::Namespace,
        may!(CsiReadVolume, CsiMountVolume, ReadJob),
    ),
    (
        &[Takes::Write, Takes::Delete],
        "/v1/volume/csi/{id}",
        Subject::Namespace,
        may!(CsiWriteVolume),
    ),
    (
        &[Takes::Read, Takes::Write],
        "/v1/volume/csi/{id}/{action}",
        Subject::Namespace,
        may!(CsiWriteVolume),
    ),
    (
        &[Takes::Delete],
        "/v1/volume/csi/{id}/{action}",
        Subject::Namespace,
        may!(CsiWriteVolume, CsiMountVolume),
    ),
    (&[Takes::Read], "/v1/volume/host/{id}", Subject::Namespace, may!(HostVolumeRead)),
    (
        &[Takes::Write],
        "/v1/volume/host/{id}",
        Subject::Namespace,
        may!(HostVolumeCreate, HostVolumeRegister),
    ),
    (&[Takes::Delete], "/v1/volume/host/{id}", Subject::Namespace, may!(HostVolumeDelete)),
    (
        &[Takes::Read, Takes::Write],
        "/v1/volume/host/{id}/{action}",
        Subject::Namespace,
        may!(HostVolumeCreate, HostVolumeRegister),
    ),
    (&[Takes::Delete], "/v1/volume/host/{id}/{action}", Subject::Namespace, may!(HostVolumeDelete)),
    (&[Takes::Delete], "/v1/volumes/claim/{id}", Subject::Namespace, may!(HostVolumeDelete)),
    (&[Takes::Read], "/v1/volumes/claims", Subject::Namespaces, may!(HostVolumeRead)),
    (
        &[Takes::Read],
        "/v1/volumes/external",
        Subject::Namespaces,
        may!(CsiListVolume, CsiReadVolume, CsiMountVolume, ListJobs),
    ),
    (
        &[Takes::Read],
        "/v1/volumes/snapshot",
        Subject::Namespaces,
        may!(CsiListVolume, CsiReadVolume, CsiMountVolume, ListJobs),
    ),
    (
        &[Takes::Write, Takes::Delete],
        "/v1/volumes/snapshot",
        Subject::Namespace,
        may!(CsiWriteVolume),
    ),
];

/// What only Nomad Enterprise has, refused in its words, which clients know.
const ENTERPRISE: &[(&[Takes], &str)] = &[
    (&[Takes::Read, Takes::Write], "/v1/operator/license"),
    (&[Takes::Read, Takes::Write], "/v1/operator/utilization"),
    (&[Takes::Write], "/v1/deployment/unblock/{id}"),
    (&[Takes::Write], "/v1/quota"),
    (&[Takes::Read], "/v1/quota-usages"),
    (&[Takes::Read, Takes::Write, Takes::Delete], "/v1/quota/{*rest}"),
    (&[Takes::Read], "/v1/quotas"),
    (&[Takes::Write], "/v1/recommendation"),
    (&[Takes::Read, Takes::Write, Takes::Delete], "/v1/recommendation/{*rest}"),
    (&[Takes::Read], "/v1/recommendations"),
    (&[Takes::Write], "/v1/recommendations/apply"),
    (&[Takes::Read], "/v1/sentinel/policies"),
    (&[Takes::Read, Takes::Write, Takes::Delete], "/v1/sentinel/policy/{*rest}"),
];

pub(super) fn routes() -> Vec<Route> {
    let volumes = may!(CsiListVolume, CsiReadVolume, CsiMountVolume, HostVolumeRead, ListJobs);
    let mut routes = vec![
        Route::read("/v1/allocation/{id}/checks", Subject::Allocation, may!(ReadJob), checks),
        // Things that cannot exist here.
        Route::read("/v1/volumes", Subject::Namespaces, volumes, empty),
        Route::read("/v1/plugins", Subject::Cluster, Right::PluginRead, empty),
    ];
    for (methods, path, subject, right) in REFUSED {
        routes.extend(methods.iter().map(|takes| Route::refused(*takes, path, *subject, *right)));
    }
    for (methods, path) in ENTERPRISE {
        routes.extend(methods.iter().map(|takes| Route::enterprise(*takes, path)));
    }
    routes
}

async fn empty(call: Call) -> Result<Answer, Error> {
    call.document(&[], |_| Ok(json!([]))).await
}

/// No checks of services are run.
async fn checks(call: Call) -> Result<Answer, Error> {
    call.document(&[], |_| Ok(json!({}))).await
}
