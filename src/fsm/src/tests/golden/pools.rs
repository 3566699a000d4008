//! Rows and commands of instance pools, pinned.

use std::{collections::BTreeMap, sync::Arc};

use super::Golden;
use crate::{
    command::Command,
    id::{AllocationId, EvaluationId, InstanceId, NodeId},
    pool::{
        Backoff, Behavior, BootFailure, CreateOutcome, DeclaredNode, DeleteInstancePool,
        DestroyOutcome, Instance, InstanceOutcome, InstancePool, InstanceState, InstanceType,
        Intent, LimitClass, LimitPool, LimitScope, NoteInstance, NoteProvider, NoteUnhelped,
        ObserveInstances, Pause, PauseInstancePool, PoolHistory, ProviderLimit, ProviderList,
        ProviderState, RequestInstances, SeenMachine, SetInstanceBehavior, ShutDownInstance,
        Shutdown, ShutdownCause, Unhelped, UpsertInstancePool,
    },
    testing::job_key,
};

const ID: InstanceId = InstanceId([21; 16]);

pub(super) fn kind() -> InstanceType {
    InstanceType {
        name: "small".into(),
        provider_type: "t1".into(),
        cpu: 1000,
        memory_mb: 512,
        disk_mb: 1024,
        max_allocations: 4,
        price_micro: 50_000,
        preemptible: true,
        quota_group: "vcpu".into(),
        image: "base".into(),
        node: DeclaredNode {
            datacenter: "dc1".into(),
            class: "large".into(),
            drivers: vec!["raw_exec".into()],
            attributes: BTreeMap::from([("kernel.name".into(), "linux".into())]),
            meta: BTreeMap::from([("rack".into(), "r1".into())]),
        },
    }
}

fn pool() -> InstancePool {
    InstancePool {
        name: "gpu".into(),
        provider: "local".into(),
        min: 1,
        max: 3,
        price_factor_milli: 1500,
        idle_timeout_ms: 60_000,
        boot_timeout_ms: 600_000,
        probe_timeout_ms: 300_000,
        max_concurrent_creates: 2,
        max_creates_per_hour: 30,
        max_price_micro: 31,
        protect_after: 10,
        backoff_reset_ms: 600_000,
        types: BTreeMap::from([("small".into(), Arc::new(kind()))]),
        groups: BTreeMap::from([("web".into(), Arc::new(super::capacity::group()))]),
        paused: Some(Pause { by: "alice".into(), reason: "repair".into(), at: 4 }),
        create_index: 5,
        modify_index: 6,
    }
}

fn instance() -> Instance {
    Instance {
        id: ID,
        token: [22; 16],
        pool: "gpu".into(),
        provider: "local".into(),
        kind: Arc::new(kind()),
        state: InstanceState::ShuttingDown,
        behavior: Behavior::Drain,
        behavior_by: "alice".into(),
        behavior_reason: "old".into(),
        drain_deadline_at: Some(15),
        wanted_by: Some(job_key("t")),
        member: Some(super::capacity::member()),
        provider_id: "i-1".into(),
        address: "127.0.0.1".into(),
        scope: "host".into(),
        node: Some(NodeId([1; 16])),
        requested_at: 1,
        made_at: 2,
        bound_at: 3,
        ready_at: 13,
        failed_at: 14,
        deadline_at: 4,
        seen_at: 5,
        missing: 6,
        last_busy_at: 7,
        last_allocation: Some(AllocationId([8; 16])),
        shutdown: Some(Shutdown {
            cause: ShutdownCause::Operator,
            reason: "old".into(),
            by: "alice".into(),
            at: 9,
            attempts: 10,
            last_error: "busy".into(),
        }),
        last_words: "boots".into(),
        create_index: 11,
        modify_index: 12,
    }
}

fn group() -> LimitScope {
    LimitScope::QuotaGroup { group: "vcpu".into(), preemptible: true }
}

/// One row of each table.
pub(super) fn pin(golden: &mut Golden) {
    golden.pin("instance-pool", &pool());
    golden.pin("instance", &instance());
    let limit = ProviderLimit {
        pool: "gpu".into(),
        scope: group(),
        class: LimitClass::Fatal,
        since: 1,
        until: 2,
        below: 3,
        level: 5,
        detail: "quota".into(),
        modify_index: 4,
    };
    golden.pin("provider-limit", &limit);
    golden.pin("provider-list", &ProviderList { provider: "local".into(), epoch: 1, at: 2 });
    let unhelped = Unhelped {
        job: job_key("t"),
        job_modify_index: 1,
        pool: "gpu".into(),
        pool_modify_index: 2,
        types: vec!["small".into()],
        at: 3,
        until: 4,
        level: 5,
    };
    golden.pin("unhelped", &unhelped);
    let backoff = Backoff {
        level: 3,
        until: 4,
        counted_at: 5,
        failures: 6,
        last: BootFailure::NotReady,
        detail: "exit 99".into(),
        scope: "z1".into(),
    };
    let history = PoolHistory {
        pool: "gpu".into(),
        asked: vec![(300_000, 7)],
        in_a_row: 8,
        last: Some(BootFailure::NotReady),
        proven_at: 9,
        protected_since: 10,
        types: BTreeMap::from([("small".into(), backoff)]),
        modify_index: 11,
    };
    golden.pin("pool-history", &history);
    let provider = ProviderState {
        provider: "local".into(),
        failing: "list".into(),
        since: 1,
        last_error: "fatal: token".into(),
        error_at: 2,
        creates: 3,
        destroys: 4,
        modify_index: 5,
    };
    golden.pin("provider-state", &provider);
}

/// In the order of the enum.
pub(super) fn commands() -> Vec<Command> {
    let evaluation_ids = vec![EvaluationId([2; 16])];
    let intent = Intent {
        id: ID,
        token: [22; 16],
        kind: "small".into(),
        wanted_by: Some(job_key("t")),
        group: Some("web".into()),
    };
    let seen = SeenMachine {
        id: ID,
        provider_id: "i-1".into(),
        address: "127.0.0.1".into(),
        pool: "gpu".into(),
        kind: "small".into(),
    };
    vec![
        Command::from(UpsertInstancePool { pool: pool().into(), enforce_index: Some(17) }),
        Command::from(DeleteInstancePool { name: "gpu".into() }),
        Command::from(PauseInstancePool {
            name: "gpu".into(),
            pause: true,
            by: "alice".into(),
            reason: "repair".into(),
        }),
        Command::from(RequestInstances {
            pool: "gpu".into(),
            pool_modify_index: 6,
            intents: vec![intent],
        }),
        Command::from(InstanceOutcome {
            id: ID,
            provider: "local".into(),
            pool: "gpu".into(),
            kind: "small".into(),
            outcome: CreateOutcome::Failed {
                class: LimitClass::Quota,
                scope: group(),
                for_ms: Some(18),
                detail: "quota".into(),
            },
        }),
        Command::from(ObserveInstances {
            provider: "local".into(),
            epoch: 19,
            scope: "host".into(),
            began_at: 20,
            grace_ms: 21,
            present: vec![seen],
            missing: vec![InstanceId([23; 16])],
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(SetInstanceBehavior {
            id: ID,
            behavior: Behavior::Hold,
            deadline_ms: Some(16),
            by: "alice".into(),
            reason: "look".into(),
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(ShutDownInstance {
            id: ID,
            cause: ShutdownCause::ProbeFailed,
            reason: "down".into(),
            by: "alice".into(),
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(DestroyOutcome {
            id: ID,
            provider_id: "i-1".into(),
            gone: false,
            error: "busy".into(),
            evaluation_ids,
        }),
        Command::from(NoteInstance { id: ID, address: "127.0.0.1".into(), words: "boots".into() }),
        Command::from(NoteUnhelped {
            job: job_key("t"),
            job_modify_index: 24,
            pool: "gpu".into(),
            pool_modify_index: 25,
            types: vec!["small".into()],
        }),
        Command::from(LimitPool {
            pool: "gpu".into(),
            class: LimitClass::Fatal,
            for_ms: 26,
            detail: "no provider".into(),
        }),
    ]
}

/// At the end of the enum.
pub(super) fn note_provider() -> Command {
    Command::from(NoteProvider {
        provider: "local".into(),
        failing: "list".into(),
        error: "fatal: token".into(),
        creates: 1,
        destroys: 2,
    })
}
