//! Commands about instance pools and instances.

use serde::{Deserialize, Serialize};

use super::{Behavior, InstancePool, LimitClass, LimitScope, NoteProvider, ShutdownCause};
use crate::{
    command::commands,
    id::{EvaluationId, Index, InstanceId, JobKey, Text, TimeMs},
};

commands! {
    /// What changes instance pools, their instances, and what is known of providers.
    PoolCommand in Pool:
    // command           applied by               sent by  needs          makes  fresh
    // Nomad lacks instance pools: they are settings of the cluster, and cost money.
    UpsertInstancePool   upsert_instance_pool     Clients  OperatorWrite  -      [];
    DeleteInstancePool   delete_instance_pool     Clients  OperatorWrite  -      [];
    PauseInstancePool    pause_instance_pool      Clients  OperatorWrite  -      [];
    RequestInstances     request_instances        Leader   Internal       -      [];
    // What came of a call of an earlier leadership goes to the next leader.
    InstanceOutcome      instance_outcome         Servers  Internal       -      [];
    ObserveInstances     observe_instances        Leader   Internal       -      [evaluation_ids];
    // An instance is what a node runs on: to drain or end it is to drain or purge the node.
    SetInstanceBehavior  set_instance_behavior    Clients  NodeWrite      -      [evaluation_ids];
    ShutDownInstance     shut_down_instance       Clients  NodeWrite      -      [evaluation_ids];
    DestroyOutcome       destroy_outcome          Servers  Internal       -      [evaluation_ids];
    NoteInstance         note_instance            Leader   Internal       -      [];
    NoteUnhelped         note_unhelped            Leader   Internal       -      [];
    LimitPool            limit_pool               Leader   Internal       -      [];
    NoteProvider         note_provider            Leader   Internal       -      [];
}

/// Creates or changes an instance pool, and the node pool of its name if there is none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpsertInstancePool {
    /// The pool; its indexes and its pause are set when it is stored.
    pub pool: Box<InstancePool>,
    /// Compare-and-set on its modify index; 0: it must not exist.
    pub enforce_index: Option<Index>,
}

/// Deletes an instance pool that has no instances.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeleteInstancePool {
    pub name: Text,
}

/// Stops a pool from growing and shrinking by machine, or lets it go on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PauseInstancePool {
    pub name: Text,
    pub pause: bool,
    /// As the client gave it.
    pub by: Text,
    pub reason: Text,
}

/// An intent: an instance that is to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Intent {
    pub id: InstanceId,
    /// A secret that only its agent will know.
    pub token: [u8; 16],
    /// Name of the type in the pool.
    pub kind: Text,
    pub wanted_by: Option<JobKey>,
    /// The capacity group that it will be a member of.
    pub group: Option<Text>,
}

/// Commits intents. The provider is called only after this is applied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestInstances {
    pub pool: Text,
    /// Modify index of the pool that the decision is about.
    pub pool_modify_index: Index,
    pub intents: Vec<Intent>,
}

/// What a create came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CreateOutcome {
    Made {
        provider_id: Text,
        address: Text,
        scope: Text,
    },
    /// No machine was made.
    Failed {
        class: LimitClass,
        scope: LimitScope,
        /// No creates of the scope for so long, ms; none: the provider does not say.
        for_ms: Option<u64>,
        detail: Text,
    },
}

/// The outcome of a create, also one that an older leader began.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InstanceOutcome {
    pub id: InstanceId,
    /// What was asked for: a machine that has no row any more gets one by it, and is destroyed.
    pub provider: Text,
    pub pool: Text,
    pub kind: Text,
    pub outcome: CreateOutcome,
}

/// A machine that a list has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SeenMachine {
    /// From its tag.
    pub id: InstanceId,
    pub provider_id: Text,
    pub address: Text,
    /// Names of pool and type from its tags; empty: it has none.
    pub pool: Text,
    pub kind: Text,
}

/// A pool cannot grow for a while, for a reason that is no answer to a create.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LimitPool {
    pub pool: Text,
    pub class: LimitClass,
    pub for_ms: u64,
    pub detail: Text,
}

/// How a list differs from the state. A list says nothing of other scopes than its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObserveInstances {
    pub provider: Text,
    /// Rises with each list; an older one is refused.
    pub epoch: u64,
    pub scope: Text,
    /// When the list was asked for: what changed since is not judged by it.
    pub began_at: TimeMs,
    /// An instance that was seen, or given up on, within this time before `began_at` is not gone,
    /// ms.
    pub grace_ms: u64,
    /// Machines that are new, or not as their rows say.
    pub present: Vec<SeenMachine>,
    /// Instances of the scope that the list does not have.
    pub missing: Vec<InstanceId>,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// What operators want of an instance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetInstanceBehavior {
    pub id: InstanceId,
    pub behavior: Behavior,
    /// What still runs on it after so long is stopped, ms; of a drain. None: it may run to its end.
    pub deadline_ms: Option<u64>,
    /// As the client gave it.
    pub by: Text,
    pub reason: Text,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Begins the end of an instance. One by machine is refused when the instance is held.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShutDownInstance {
    pub id: InstanceId,
    pub cause: ShutdownCause,
    pub reason: Text,
    /// The operator; empty: the servers.
    pub by: Text,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// What a destroy came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DestroyOutcome {
    pub id: InstanceId,
    /// The machine that was to go. A late create may have made another one for the instance since.
    pub provider_id: Text,
    /// The provider says that there is no such machine any more.
    pub gone: bool,
    /// Empty: it was accepted.
    pub error: Text,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// What a provider said of an instance that boots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoteInstance {
    pub id: InstanceId,
    pub address: Text,
    pub words: Text,
}

/// A job is not helped by types of its pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoteUnhelped {
    pub job: JobKey,
    pub job_modify_index: Index,
    pub pool: Text,
    pub pool_modify_index: Index,
    pub types: Vec<Text>,
}
