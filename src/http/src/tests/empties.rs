//! What each answer has where there is nothing: null, an empty list, map or text, or 0, as Nomad
//! has it. Clients of typed languages tell them apart.

use fsm::{EvaluationId, JobKey, NodeId};
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);

/// What stands where nothing is.
#[derive(Clone, Copy)]
enum Nothing {
    Null,
    List,
    Map,
    Text,
    Zero,
}

impl Nothing {
    fn value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::List => json!([]),
            Self::Map => json!({}),
            Self::Text => json!(""),
            Self::Zero => json!(0),
        }
    }
}

use Nothing::{List, Map, Null, Text, Zero};

/// Places in an answer, by what stands there.
type Places = &'static [(Nothing, &'static [&'static str])];

const JOB: Places = &[
    (
        Null,
        &[
            "Affinities",
            "Constraints",
            "Meta",
            "Migrate",
            "Multiregion",
            "ParameterizedJob",
            "Payload",
            "Periodic",
            "Reschedule",
            "Spreads",
            "UI",
            "VersionTag",
            "TaskGroups/0/Affinities",
            "TaskGroups/0/Constraints",
            "TaskGroups/0/Consul",
            "TaskGroups/0/Disconnect",
            "TaskGroups/0/MaxClientDisconnect",
            "TaskGroups/0/Meta",
            "TaskGroups/0/Networks",
            "TaskGroups/0/Scaling",
            "TaskGroups/0/Services",
            "TaskGroups/0/ShutdownDelay",
            "TaskGroups/0/Spreads",
            "TaskGroups/0/StopAfterClientDisconnect",
            "TaskGroups/0/Volumes",
            "TaskGroups/0/Tasks/0/Actions",
            "TaskGroups/0/Tasks/0/Affinities",
            "TaskGroups/0/Tasks/0/Artifacts",
            "TaskGroups/0/Tasks/0/CSIPluginConfig",
            "TaskGroups/0/Tasks/0/Constraints",
            "TaskGroups/0/Tasks/0/Consul",
            "TaskGroups/0/Tasks/0/DispatchPayload",
            "TaskGroups/0/Tasks/0/Env",
            "TaskGroups/0/Tasks/0/Identities",
            "TaskGroups/0/Tasks/0/Lifecycle",
            "TaskGroups/0/Tasks/0/Meta",
            "TaskGroups/0/Tasks/0/Resources/Devices",
            "TaskGroups/0/Tasks/0/Resources/NUMA",
            "TaskGroups/0/Tasks/0/Resources/Networks",
            "TaskGroups/0/Tasks/0/ScalingPolicies",
            "TaskGroups/0/Tasks/0/Schedule",
            "TaskGroups/0/Tasks/0/Services",
            "TaskGroups/0/Tasks/0/Templates",
            "TaskGroups/0/Tasks/0/Vault",
            "TaskGroups/0/Tasks/0/VolumeMounts",
        ],
    ),
    (
        Text,
        &[
            "ConsulNamespace",
            "ConsulToken",
            "DispatchIdempotencyToken",
            "NomadTokenID",
            "ParentID",
            "StatusDescription",
            "VaultNamespace",
            "VaultToken",
            "TaskGroups/0/Tasks/0/KillSignal",
            "TaskGroups/0/Tasks/0/Kind",
            "TaskGroups/0/Tasks/0/User",
            "TaskGroups/0/Tasks/0/Identity/ChangeMode",
            "TaskGroups/0/Tasks/0/Identity/Filepath",
        ],
    ),
    (
        Zero,
        &[
            "Update/HealthyDeadline",
            "Update/ProgressDeadline",
            "TaskGroups/0/Tasks/0/Identity/TTL",
            "TaskGroups/0/Tasks/0/Resources/IOPS",
            "TaskGroups/0/Tasks/0/ShutdownDelay",
        ],
    ),
];

const EVALUATION: Places = &[
    (Null, &["ClassEligibility", "RelatedEvals"]),
    (
        Text,
        &[
            "BlockedEval",
            "DeploymentID",
            "NextEval",
            "NodeID",
            "PreviousEval",
            "QuotaLimitReached",
            "StatusDescription",
        ],
    ),
    (Zero, &["Wait"]),
];

const STUB_OF_ALLOCATION: Places = &[
    (
        Null,
        &[
            "AllocatedResources",
            "DeploymentStatus",
            "DesiredTransition/ForceReschedule",
            "DesiredTransition/Migrate",
            "DesiredTransition/NoShutdownDelay",
            "DesiredTransition/Reschedule",
            "PreemptedAllocations",
            "RescheduleTracker",
        ],
    ),
    (Text, &["DesiredDescription", "FollowupEvalID", "NextAllocation", "PreemptedByAllocation"]),
];

const ALLOCATION: Places = &[
    (
        Null,
        &[
            "AllocStates",
            "AllocatedResources/Shared/Networks",
            "AllocatedResources/Shared/Ports",
            "AllocatedResources/TaskLifecycles/server",
            "AllocatedResources/Tasks/server/Cpu/ReservedCores",
            "AllocatedResources/Tasks/server/Devices",
            "AllocatedResources/Tasks/server/Networks",
            "DesiredTransition/Migrate",
            "Metrics/ClassExhausted",
            "Metrics/ClassFiltered",
            "Metrics/ConstraintFiltered",
            "Metrics/DimensionExhausted",
            "Metrics/QuotaExhausted",
            "Metrics/ResourcesExhausted",
            "Metrics/Scores",
            "PreemptedAllocations",
            "RescheduleTracker",
            "Resources/Devices",
            "Resources/Networks",
            "TaskResources/server/Networks",
            "TaskStates/server/FinishedAt",
            "TaskStates/server/LastRestart",
            "TaskStates/server/TaskHandle",
        ],
    ),
    (Map, &["TaskStates/server/Events/0/Details"]),
    (Text, &["DeploymentID", "PreviousAllocation", "TaskStates/server/Paused"]),
];

const NODE_IN_FULL: Places = &[
    (
        Null,
        &[
            "DrainStrategy",
            "Events/0/Details",
            "HostNetworks",
            "HostVolumes",
            "LastDrain",
            "NodeResources/Cpu/ReservableCpuCores",
            "NodeResources/Devices",
            "NodeResources/Networks/0/DynamicPorts",
            "NodeResources/Networks/0/ReservedPorts",
            "ReservedResources/Cpu/ReservedCpuCores",
            "Reserved/Networks",
            "Resources/Devices",
        ],
    ),
    (Map, &["CSIControllerPlugins", "CSINodePlugins", "Links"]),
    (Text, &["CgroupParent", "SecretID", "StatusDescription"]),
];

/// Each answer with the places in it.
fn answers(evaluation: EvaluationId, allocation: &str) -> Vec<(String, &'static str, Places)> {
    let plain = |path: &str| path.to_owned();
    vec![
        (plain("/v1/job/web"), "", JOB),
        (plain("/v1/job/web/versions"), "/Versions/0", JOB),
        (plain("/v1/job/web/versions"), "", &[(Null, &["Diffs"]), (Text, &["NextToken"])]),
        (plain("/v1/jobs?meta=true"), "/0", &[(Null, &["Meta", "Multiregion"])]),
        (plain("/v1/job/web/deployments"), "", &[(List, &[""])]),
        (plain("/v1/job/web/deployment"), "", &[(Null, &[""])]),
        (plain("/v1/deployments"), "", &[(List, &[""])]),
        (format!("/v1/evaluation/{evaluation}"), "", EVALUATION),
        (format!("/v1/evaluation/{evaluation}?related=true"), "", &[(List, &["RelatedEvals"])]),
        (plain("/v1/evaluations"), "/0", EVALUATION),
        (plain("/v1/job/web/allocations"), "/0", STUB_OF_ALLOCATION),
        (plain("/v1/allocations"), "/0", STUB_OF_ALLOCATION),
        (plain("/v1/allocations?task_states=false"), "/0", &[(Null, &["TaskStates"])]),
        (format!("/v1/allocation/{allocation}"), "", ALLOCATION),
        (format!("/v1/node/{NODE}"), "", NODE_IN_FULL),
        (
            plain("/v1/nodes"),
            "/0",
            &[(
                Null,
                &["Attributes", "HostVolumes", "LastDrain", "NodeResources", "ReservedResources"],
            )],
        ),
        (
            plain("/v1/namespace/default"),
            "",
            &[
                (
                    Null,
                    &[
                        "Capabilities",
                        "ConsulConfiguration",
                        "Meta",
                        "NodePoolConfiguration",
                        "VaultConfiguration",
                    ],
                ),
                (Text, &["Quota"]),
            ],
        ),
        (plain("/v1/node/pool/default"), "", &[(Null, &["Meta", "SchedulerConfiguration"])]),
        (plain("/v1/node/pool/default/jobs"), "/0", &[(Null, &["Multiregion"])]),
    ]
}

#[tokio::test]
async fn nothing_looks_as_in_nomad() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&JobKey::new("default", "web"), evaluation, NODE).to_string();
    let mut wrong = Vec::new();
    for (path, within, places) in answers(evaluation, &allocation) {
        let answer = server.get(&path).await.ok();
        for (nothing, names) in places {
            for name in *names {
                let slash = if name.is_empty() { "" } else { "/" };
                let found = answer.pointer(&format!("{within}{slash}{name}"));
                if found != Some(&nothing.value()) {
                    wrong.push(format!("{path} {within}/{name}: {found:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.stop().await;
}

/// Small values that clients compare.
#[tokio::test]
async fn defaults_look_as_in_nomad() {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let mut web = web_job("web");
    web["TaskGroups"][0]["Networks"] = json!([{ "DynamicPorts": [{ "Label": "http" }] }]);
    server.put("/v1/jobs", &json!({ "Job": web })).await.ok();
    let mut batch = web_job("batch");
    batch["Type"] = "batch".into();
    server.put("/v1/jobs", &json!({ "Job": batch })).await.ok();
    let mut slow = web_job("slow");
    slow["Update"] = json!({ "MaxParallel": 3, "Stagger": 5_000_000_000_u64 });
    server.put("/v1/jobs", &json!({ "Job": slow })).await.ok();
    for (path, place, expected) in [
        ("/v1/job/web", "/Update/MaxParallel", json!(1)),
        ("/v1/job/web", "/Update/Stagger", json!(30_000_000_000_u64)),
        ("/v1/job/batch", "/Update/MaxParallel", json!(0)),
        ("/v1/job/batch", "/Update/Stagger", json!(0)),
        ("/v1/job/slow", "/Update/MaxParallel", json!(3)),
        ("/v1/job/slow", "/Update/Stagger", json!(5_000_000_000_u64)),
        ("/v1/job/web", "/TaskGroups/0/Networks/0/MBits", Value::Null),
        ("/v1/job/web", "/TaskGroups/0/Tasks/0/Identity/Name", json!("default")),
        ("/v1/job/web", "/TaskGroups/0/Tasks/0/Identity/Audience", json!(["nomadproject.io"])),
        ("/v1/job/web/versions", "/KnownLeader", json!(true)),
        ("/v1/node/pool/default", "/NodeIdentityTTL", json!(86_400_000_000_000_u64)),
    ] {
        let answer = server.get(path).await.ok();
        assert_eq!(answer.pointer(place), Some(&expected), "{path} {place}");
    }
    let versions = server.get("/v1/job/web/versions").await;
    assert_eq!(versions.ok()["Index"], versions.index());
    let node = server.get(&format!("/v1/node/{NODE}")).await.ok();
    let network = &node["NodeResources"]["NodeNetworks"][0];
    assert_eq!(network["Addresses"][0]["Address"], "10.0.0.7");
    let cores = node["NodeResources"]["Processors"]["Topology"]["Cores"].as_array().unwrap();
    assert_eq!((cores.len(), &cores[0]["BaseSpeed"]), (4, &json!(1000)));
    server.stop().await;
}

/// Its digest changes with what a user says of a namespace or pool, and with nothing else.
#[tokio::test]
async fn a_namespace_and_a_pool_have_a_digest() {
    let server = TestServer::start(TestCluster::new()).await;
    for (list, one) in
        [("/v1/namespaces", "/v1/namespace/x"), ("/v1/node/pools", "/v1/node/pool/x")]
    {
        let mut seen = Vec::new();
        for body in [
            json!({ "Name": "x" }),
            json!({ "Name": "x" }),
            json!({ "Name": "x", "Description": "a" }),
            json!({ "Name": "x", "Description": "a", "Meta": { "b": "c" } }),
        ] {
            server.put(list, &body).await.ok();
            seen.push(server.get(one).await.ok()["Hash"].as_str().unwrap().to_owned());
        }
        assert_eq!(seen[0], seen[1]);
        assert!(seen[1] != seen[2] && seen[2] != seen[3], "{seen:?}");
        assert_eq!(seen[0].len(), 44, "32 bytes in base64");
    }
    server.stop().await;
}
