//! Instance pools and instances.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    driver::Driver,
    node::{description, node_id},
};
use crate::{
    command::{Command, Reply},
    id::InstanceId,
    node::{InstanceProof, NodeDescription, Readiness, RegisterNode},
    pool::{
        Behavior, CreateOutcome, DeclaredNode, DestroyOutcome, Instance, InstanceOutcome,
        InstancePool, InstanceType, Intent, RequestInstances, SetInstanceBehavior,
        ShutDownInstance, ShutdownCause, UpsertInstancePool,
    },
};

impl Driver {
    /// Creates or changes an instance pool of up to three instances, of the types `small` and
    /// `large`.
    pub fn instance_pool(&mut self, name: &str, change: impl FnOnce(&mut InstancePool)) {
        let mut pool = instance_pool(name);
        change(&mut pool);
        self.accept(UpsertInstancePool { pool: pool.into(), enforce_index: None }.into());
    }

    /// The command that asks for one instance, with a new id and the token of [`proof`].
    pub fn intent(&mut self, pool: &str, kind: &str) -> Intent {
        let id = InstanceId(self.id());
        assert!(self.state.instance_pools.contains(&pool.into()), "there is no pool {pool}");
        Intent { id, token: proof(id).token, kind: kind.into(), wanted_by: None, group: None }
    }

    /// The command that asks for instances of a pool as it is.
    pub fn request(&self, pool: &str, intents: Vec<Intent>) -> Command {
        let row = self.state.instance_pools.get(&pool.into()).expect("the pool exists");
        let (pool, pool_modify_index) = (pool.into(), row.modify_index);
        Command::from(RequestInstances { pool, pool_modify_index, intents })
    }

    /// Asks for an instance; answers with its id.
    pub fn request_instance(&mut self, pool: &str, kind: &str) -> InstanceId {
        let intent = self.intent(pool, kind);
        let id = intent.id;
        let command = self.request(pool, vec![intent]);
        self.accept(command);
        id
    }

    /// The provider answers that it has made an instance.
    pub fn made(&mut self, id: InstanceId) {
        let row = self.instance_row(id);
        let (provider, pool, kind) =
            (row.provider.clone(), row.pool.clone(), row.kind.name.clone());
        let outcome = CreateOutcome::Made {
            provider_id: format!("i-{id}").into(),
            address: "127.0.0.1".into(),
            scope: "host".into(),
        };
        self.accept(InstanceOutcome { id, provider, pool, kind, outcome }.into());
    }

    /// The command by which a node registers as an instance.
    pub fn register_as(&mut self, name: &str, proof: InstanceProof) -> Command {
        let pool = self.state.instances.get(&proof.id).map_or("gpu".into(), |row| row.pool.clone());
        let evaluation_ids = self.evaluation_ids();
        Command::from(RegisterNode {
            instance: Some(proof),
            node: node_id(name),
            secret: [7; 16],
            identity: [1; 16],
            description: Arc::new(NodeDescription { pool, ..description(name) }),
            evaluation_ids,
        })
    }

    /// An instance that is made, and whose node of the name is ready.
    pub fn instance(&mut self, pool: &str, kind: &str, name: &str) -> InstanceId {
        let id = self.request_instance(pool, kind);
        self.made(id);
        let command = self.register_as(name, proof(id));
        self.accept(command);
        self.sync(name);
        self.readiness(name, Readiness::Ok);
        id
    }

    /// An operator says what is wanted of an instance.
    pub fn behave(&mut self, id: InstanceId, behavior: Behavior) {
        let evaluation_ids = self.evaluation_ids();
        let (by, reason) = ("alice@web1".into(), "disk is looked at".into());
        self.accept(
            SetInstanceBehavior { id, behavior, deadline_ms: None, by, reason, evaluation_ids }
                .into(),
        );
    }

    /// Begins the end of an instance.
    pub fn shut_down(&mut self, id: InstanceId, cause: ShutdownCause) -> Reply {
        let command = self.shut_down_command(id, cause);
        self.commit(command).reply
    }

    /// The command that begins the end of an instance.
    pub fn shut_down_command(&mut self, id: InstanceId, cause: ShutdownCause) -> Command {
        let by = if cause == ShutdownCause::Operator { "alice@web1" } else { "" }.into();
        let evaluation_ids = self.evaluation_ids();
        ShutDownInstance { id, cause, reason: cause.name().into(), by, evaluation_ids }.into()
    }

    /// The provider says that an instance's machine is gone.
    pub fn destroyed(&mut self, id: InstanceId) -> Reply {
        let row = self.state.instances.get(&id);
        let provider_id = row.map_or_else(|| "".into(), |row| row.provider_id.clone());
        let (gone, error, evaluation_ids) = (true, "".into(), self.evaluation_ids());
        let outcome = DestroyOutcome { id, provider_id, gone, error, evaluation_ids };
        self.commit(outcome.into()).reply
    }

    /// An instance's row.
    pub fn instance_row(&self, id: InstanceId) -> &Instance {
        self.state.instances.get(&id).expect("the instance exists")
    }
}

/// An instance pool of up to three instances, of the types `small` and `large`.
pub fn instance_pool(name: &str) -> InstancePool {
    let kind = |name: &str, price_micro| {
        let kind = InstanceType {
            name: name.into(),
            provider_type: format!("t-{name}").into(),
            cpu: 4000,
            memory_mb: 8192,
            disk_mb: 100_000,
            price_micro,
            quota_group: "vcpu".into(),
            node: DeclaredNode {
                datacenter: "dc1".into(),
                drivers: vec!["mock".into()],
                ..DeclaredNode::default()
            },
            ..InstanceType::default()
        };
        (name.into(), Arc::new(kind))
    };
    InstancePool {
        name: name.into(),
        provider: "local".into(),
        min: 0,
        max: 3,
        price_factor_milli: 1500,
        idle_timeout_ms: 60_000,
        boot_timeout_ms: 600_000,
        probe_timeout_ms: 600_000,
        max_concurrent_creates: 0,
        max_creates_per_hour: 0,
        max_price_micro: 0,
        protect_after: 10,
        backoff_reset_ms: 600_000,
        types: BTreeMap::from([kind("small", 50_000), kind("large", 100_000)]),
        groups: BTreeMap::new(),
        paused: None,
        create_index: 0,
        modify_index: 0,
    }
}

/// What the agent of an instance shows that a [`Driver`] asked for.
pub fn proof(id: InstanceId) -> InstanceProof {
    let mut token = [0x5a; 16];
    for (slot, byte) in token.iter_mut().zip(id.0.iter().take(8)) {
        *slot = *byte | 1;
    }
    InstanceProof { id, token }
}
