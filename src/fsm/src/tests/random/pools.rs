//! Random commands of instance pools.

use std::{collections::BTreeMap, sync::Arc};

use super::Maker;
use crate::{
    command::Command,
    id::{InstanceId, Text},
    node::{InstanceProof, RegisterNode},
    pool::{
        Behavior, CreateOutcome, DeclaredNode, DeleteInstancePool, DestroyOutcome, InstanceOutcome,
        InstancePool, InstanceType, Intent, LimitClass, LimitPool, LimitScope, NoteInstance,
        NoteUnhelped, ObserveInstances, PauseInstancePool, RequestInstances, SeenMachine,
        SetInstanceBehavior, ShutDownInstance, ShutdownCause, UpsertInstancePool,
    },
};

impl Maker<'_> {
    fn instance(&mut self) -> InstanceId {
        let all: Vec<_> = self.state.instances.iter().map(|row| row.id).collect();
        let unknown = InstanceId(self.id(9));
        if self.dice.one_in(8) { unknown } else { self.dice.pick(&all).unwrap_or(unknown) }
    }

    fn pool_name(&mut self) -> Text {
        self.dice.choose(&["default".into(), "default".into(), "gpu".into()])
    }

    fn type_name(&mut self) -> Text {
        self.dice.choose(&["small".into(), "large".into(), "small".into(), "none".into()])
    }

    fn pool_modify_index(&mut self, name: &str) -> u64 {
        let found = self.state.instance_pools.get(&name.into()).map_or(0, |row| row.modify_index);
        if self.dice.one_in(12) { self.dice.below(9) } else { found }
    }

    /// Registers a node as the instance that it says it is.
    pub(super) fn register_instance(&mut self) -> Command {
        let id = self.instance();
        let row = self.state.instances.get(&id).cloned();
        let bound = row.as_ref().and_then(|row| row.node).filter(|_| !self.dice.one_in(6));
        let node = bound.unwrap_or_else(|| self.node());
        let known = self.state.nodes.get(&node).cloned();
        let mut description = crate::testing::description("node");
        if let Some(row) = row.as_ref().filter(|_| !self.dice.one_in(9)) {
            description.pool = row.pool.clone();
        }
        let mut token = row.map_or([0; 16], |row| row.token);
        if self.dice.one_in(9) {
            token = [0; 16];
        }
        Command::from(RegisterNode {
            instance: Some(InstanceProof { id, token }),
            node,
            secret: known.as_ref().map_or([7; 16], |node| node.secret),
            identity: known.as_ref().map_or([1; 16], |node| node.identity),
            description: Arc::new(description),
            evaluation_ids: self.evaluation_ids(),
        })
    }

    fn pool_row(&mut self) -> InstancePool {
        let mut types = BTreeMap::new();
        for name in ["small", "large"] {
            if self.dice.one_in(5) {
                continue;
            }
            let kind = InstanceType {
                name: name.into(),
                provider_type: name.into(),
                cpu: 1000,
                memory_mb: 512,
                price_micro: self.dice.below(9),
                preemptible: self.dice.one_in(2),
                quota_group: self.dice.choose(&["".into(), "vcpu".into()]),
                node: DeclaredNode { datacenter: "dc1".into(), ..DeclaredNode::default() },
                ..InstanceType::default()
            };
            types.insert(name.into(), Arc::new(kind));
        }
        InstancePool {
            name: self.pool_name(),
            provider: if self.dice.one_in(9) { "other".into() } else { "local".into() },
            min: 0,
            max: u32::try_from(1 + self.dice.below(6)).unwrap(),
            price_factor_milli: 1500,
            idle_timeout_ms: 60_000,
            boot_timeout_ms: 600_000,
            probe_timeout_ms: if self.dice.one_in(12) { 0 } else { 600_000 },
            max_concurrent_creates: 0,
            max_creates_per_hour: self.dice.choose(&[0, 3, 1_000]),
            max_price_micro: self.dice.choose(&[0, 3_000]),
            protect_after: self.dice.choose(&[0, 1, 10]),
            backoff_reset_ms: self.dice.choose(&[1, 600_000]),
            types,
            groups: self.groups(),
            paused: None,
            create_index: 0,
            modify_index: 0,
        }
    }

    fn limit_scope(&mut self) -> LimitScope {
        let group = LimitScope::QuotaGroup { group: "vcpu".into(), preemptible: true };
        let all = [LimitScope::All, group, LimitScope::Type("small".into())];
        self.dice.choose(&all)
    }

    fn observation(&mut self, provider: Text) -> Command {
        let present = (0..self.dice.below(3)).map(|_| self.seen()).collect();
        let missing = (0..self.dice.below(4)).map(|_| self.instance()).collect();
        let last = self.state.provider_lists.get(&provider).map_or(0, |list| list.epoch);
        Command::from(ObserveInstances {
            provider,
            epoch: last + self.dice.below(4),
            scope: self.dice.choose(&["host".into(), "host".into(), "other".into()]),
            began_at: self.state.at.saturating_sub(self.dice.below(3) * 1000),
            grace_ms: self.dice.choose(&[0, 1000, 120_000]),
            present,
            missing,
            evaluation_ids: self.evaluation_ids(),
        })
    }

    fn seen(&mut self) -> SeenMachine {
        let id = self.instance();
        let known = self.state.instances.get(&id).map(|row| row.provider_id.clone());
        let known = known.filter(|known| !known.is_empty() && !self.dice.one_in(5));
        let other = format!("i-{}", self.dice.below(20)).into();
        SeenMachine {
            id,
            provider_id: known.unwrap_or(other),
            address: self.dice.choose(&["".into(), "127.0.0.1".into()]),
            pool: self.dice.choose(&["default".into(), "".into(), "gpu".into()]),
            kind: self.type_name(),
        }
    }

    fn created(&mut self) -> Command {
        let SeenMachine { id, provider_id, address, pool, kind } = self.seen();
        let outcome = if self.dice.one_in(4) {
            CreateOutcome::Failed {
                class: self.dice.choose(&LimitClass::ALL),
                scope: self.limit_scope(),
                for_ms: self.dice.choose(&[None, Some(1000), Some(60_000), Some(u64::MAX)]),
                detail: "no".into(),
            }
        } else {
            CreateOutcome::Made { provider_id, address, scope: "host".into() }
        };
        Command::from(InstanceOutcome { id, provider: "local".into(), pool, kind, outcome })
    }

    /// What the leader and the providers say.
    pub(super) fn instance_command(&mut self) -> Command {
        if self.state.instance_pools.is_empty() {
            return self.pool_command();
        }
        match self.dice.below(15) {
            0..3 => {
                let pool = self.pool_name();
                let intents = (0..=self.dice.below(3))
                    .map(|_| {
                        let few = if self.dice.one_in(20) { 9 } else { u64::MAX };
                        let kind = self.type_name();
                        Intent {
                            id: InstanceId(self.id(few)),
                            token: [9; 16],
                            kind,
                            wanted_by: None,
                            group: self.group_of(&pool),
                        }
                    })
                    .collect();
                let pool_modify_index = self.pool_modify_index(&pool);
                Command::from(RequestInstances { pool, pool_modify_index, intents })
            }
            3..5 => self.created(),
            5..8 => self.register_instance(),
            8 => {
                let provider = self.dice.choose(&["local".into(), "local".into(), "other".into()]);
                self.observation(provider)
            }
            9 => {
                let cause = self.dice.choose(&ShutdownCause::ALL);
                let is_operator = cause == ShutdownCause::Operator;
                Command::from(ShutDownInstance {
                    id: self.instance(),
                    cause,
                    reason: "over".into(),
                    by: if is_operator { "alice".into() } else { "".into() },
                    evaluation_ids: self.evaluation_ids(),
                })
            }
            10 => {
                let id = self.instance();
                let row = self.state.instances.get(&id);
                let provider_id = row.map_or_else(Text::default, |row| row.provider_id.clone());
                Command::from(DestroyOutcome {
                    id,
                    provider_id,
                    gone: !self.dice.one_in(3),
                    error: "busy".into(),
                    evaluation_ids: self.evaluation_ids(),
                })
            }
            11 => {
                let address = self.dice.choose(&["".into(), "127.0.0.2".into()]);
                let words = "boots".into();
                Command::from(NoteInstance { id: self.instance(), address, words })
            }
            12 => {
                let pool = self.pool_name();
                let job = crate::testing::job_key(self.job_name());
                let found = self.state.jobs.get(&job).map_or(0, |row| row.job_modify_index);
                let pool_modify_index = self.pool_modify_index(&pool);
                let types = vec!["small".into()];
                Command::from(NoteUnhelped {
                    job,
                    job_modify_index: found,
                    pool,
                    pool_modify_index,
                    types,
                })
            }
            14 => Command::from(LimitPool {
                pool: self.pool_name(),
                class: LimitClass::RateLimited,
                for_ms: 5,
                detail: "".into(),
            }),
            _ => self.pool_command(),
        }
    }

    /// What operators say.
    fn pool_command(&mut self) -> Command {
        let by: Text = "alice".into();
        match self.dice.below(7) {
            0..3 => {
                let enforce_index = self.dice.one_in(6).then(|| self.dice.below(9));
                Command::from(UpsertInstancePool { pool: self.pool_row().into(), enforce_index })
            }
            3 => Command::from(DeleteInstancePool { name: self.pool_name() }),
            4 => Command::from(PauseInstancePool {
                name: self.pool_name(),
                pause: self.dice.one_in(3),
                by,
                reason: "look".into(),
            }),
            _ => Command::from(SetInstanceBehavior {
                id: self.instance(),
                behavior: self.dice.choose(&Behavior::ALL),
                deadline_ms: None,
                by,
                reason: "look".into(),
                evaluation_ids: self.evaluation_ids(),
            }),
        }
    }
}
