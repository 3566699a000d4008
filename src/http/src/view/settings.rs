//! Namespaces, node pools and the scheduler configuration.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::collections::BTreeMap;

use fsm::{
    Text,
    settings::{Algorithm, Namespace, NodePool, SchedulerConfiguration},
};
use serde_json::{Value, json};

use super::{map_or_null, text, text_map};
use crate::{node_life, time};

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
        "VaultConfiguration": Value::Null,
        "ConsulConfiguration": Value::Null,
        "Meta": map_or_null(text_map(&namespace.meta)),
        "Hash": hash(&[&namespace.name, &namespace.description], &namespace.meta),
        "CreateIndex": namespace.create_index,
        "ModifyIndex": namespace.modify_index,
    })
}

/// A node pool.
pub(crate) fn node_pool(pool: &NodePool) -> Value {
    json!({
        "Name": text(&pool.name),
        "Description": text(&pool.description),
        "Meta": map_or_null(text_map(&pool.meta)),
        "NodeIdentityTTL": time::nanoseconds(match pool.identity_ttl_ms {
            0 => IDENTITY_TTL_MS_DEFAULT,
            ttl => ttl,
        }),
        "Hash": hash(&[&pool.name, &pool.description], &pool.meta),
        "SchedulerConfiguration": Value::Null,
        "CreateIndex": pool.create_index,
        "ModifyIndex": pool.modify_index,
    })
}

/// A digest of what a user said of it, by which clients tell that it changed.
fn hash(texts: &[&Text], meta: &BTreeMap<Text, Text>) -> String {
    let mut hasher = blake3::Hasher::new();
    let pairs = meta.iter().flat_map(|(key, value)| [key, value]);
    for text in texts.iter().copied().chain(pairs) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    BASE64_STANDARD.encode(hasher.finalize().as_bytes())
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
