//! Namespaces, node pools and the scheduler configuration.

use fsm::settings::{Algorithm, Namespace, NodePool, SchedulerConfiguration};
use serde_json::{Value, json};

use super::{text, text_map};
use crate::http::node_life;

/// Nomad's.
const IDENTITY_TTL_MS_DEFAULT: u64 = 86_400_000;

/// A namespace.
pub(crate) fn namespace(namespace: &Namespace) -> Value {
    json!({
        "Name": text(&namespace.name),
        "Description": text(&namespace.description),
        "Quota": "",
        "Capabilities": Value::Null,
        "NodePoolConfiguration": Value::Null,
        "Meta": text_map(&namespace.meta),
        "CreateIndex": namespace.create_index,
        "ModifyIndex": namespace.modify_index,
    })
}

/// A node pool.
pub(crate) fn node_pool(pool: &NodePool) -> Value {
    json!({
        "Name": text(&pool.name),
        "Description": text(&pool.description),
        "Meta": text_map(&pool.meta),
        "NodeIdentityTTL": calendar::go_duration(match pool.identity_ttl_ms {
            0 => IDENTITY_TTL_MS_DEFAULT,
            ttl => ttl,
        }),
        "SchedulerConfiguration": Value::Null,
        "CreateIndex": pool.create_index,
        "ModifyIndex": pool.modify_index,
    })
}

/// The scheduler configuration.
pub(crate) fn scheduler_configuration(configuration: &SchedulerConfiguration) -> Value {
    let algorithm = match configuration.algorithm {
        Algorithm::Binpack => "binpack",
        Algorithm::Spread => "spread",
    };
    json!({
        "SchedulerAlgorithm": algorithm,
        "PreemptionConfig": {
            "SystemSchedulerEnabled": configuration.preemption.system,
            "SysBatchSchedulerEnabled": configuration.preemption.sysbatch,
            "BatchSchedulerEnabled": configuration.preemption.batch,
            "ServiceSchedulerEnabled": configuration.preemption.service,
        },
        "MemoryOversubscriptionEnabled": configuration.memory_oversubscription,
        "RejectJobRegistration": configuration.reject_job_registration,
        "PauseEvalBroker": configuration.pause_eval_broker,
        "NodeLimitForFeasibilityChecks": configuration.node_limit,
        "NodeLife": node_life::shown(&configuration.node_life),
        "CreateIndex": configuration.create_index,
        "ModifyIndex": configuration.modify_index,
    })
}
