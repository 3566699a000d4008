//! What holds for the whole cluster: node pools, namespaces, and the scheduler configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Index, Text},
    job::JobKind,
    limits,
    table::Row,
};

/// A node pool. `all` (every node) and `default` always exist.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodePool {
    pub name: Text,
    pub description: Text,
    /// How long identities of its nodes are to hold; nodes have none yet, so that it is only kept.
    /// 0: the default of Nomad.
    pub identity_ttl_ms: u64,
    pub meta: BTreeMap<Text, Text>,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for NodePool {
    type Key = Text;

    fn key(&self) -> Text {
        self.name.clone()
    }
}

/// A namespace. `default` always exists.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Namespace {
    pub name: Text,
    pub description: Text,
    pub meta: BTreeMap<Text, Text>,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for Namespace {
    type Key = Text;

    fn key(&self) -> Text {
        self.name.clone()
    }
}

/// How nodes are ranked by fullness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Algorithm {
    /// Prefer full nodes (bin packing).
    #[default]
    Binpack,
    /// Prefer empty nodes.
    Spread,
}

/// Kinds of jobs that may evict allocations of lower priority where they find no room (Nomad's
/// `PreemptionConfig`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "one flag per kind of job, as in Nomad's API")]
pub struct Preemption {
    pub system: bool,
    pub sysbatch: bool,
    pub batch: bool,
    pub service: bool,
}

impl Default for Preemption {
    fn default() -> Self {
        Self { system: true, sysbatch: false, batch: false, service: false }
    }
}

impl Preemption {
    /// Whether jobs of this kind may preempt.
    pub const fn allows(self, kind: JobKind) -> bool {
        match kind {
            JobKind::System => self.system,
            JobKind::Sysbatch => self.sysbatch,
            JobKind::Batch => self.batch,
            JobKind::Service => self.service,
        }
    }
}

/// Cluster-wide settings of the schedulers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SchedulerConfiguration {
    pub algorithm: Algorithm,
    pub preemption: Preemption,
    /// Let tasks use more memory than reserved.
    pub memory_oversubscription: bool,
    /// Refuse job registrations.
    pub reject_job_registration: bool,
    /// Hand out no evaluations.
    pub pause_eval_broker: bool,
    /// Nodes looked at for a group with affinities or spreads (Nomad's
    /// `NodeLimitForFeasibilityChecks`).
    pub node_limit: u32,
    pub node_life: NodeLife,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for SchedulerConfiguration {
    type Key = ();

    fn key(&self) {}
}

impl Default for SchedulerConfiguration {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Binpack,
            preemption: Preemption::default(),
            memory_oversubscription: false,
            reject_job_registration: false,
            pause_eval_broker: false,
            node_limit: 100,
            node_life: NodeLife::default(),
            create_index: 0,
            modify_index: 0,
        }
    }
}

/// How nodes become ready, are suspended, and are forgotten. Times are log time, ms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLife {
    /// How long a node may take to become ready before it is suspended.
    pub ready_deadline_ms: u64,
    /// How long a node stays known after it went down.
    pub lost_grace_ms: u64,
    /// How long incarnation, strikes and suspension of a reaped node are kept.
    pub tombstone_ms: u64,
    /// Suspension for the first strike; each further strike doubles it.
    pub suspend_ms: u64,
    pub suspend_ms_max: u64,
    /// One strike is forgiven in this time.
    pub strike_forgive_ms: u64,
    /// Failures of a node make a strike when [`Self::strike_failures`] of them lie within this
    /// time. No second strike follows within it.
    pub strike_window_ms: u64,
    /// At most [`limits::NODE_FAILURES_MAX`].
    pub strike_failures: u32,
    /// Share of the nodes that may be suspended for strikes at a time; one node always may.
    pub suspended_percent_max: u32,
    /// More than this share of the ready nodes, silent at the same time, is a mass loss.
    pub mass_loss_percent: u32,
    /// Fewer nodes than this are no mass loss.
    pub mass_loss_nodes_min: u32,
    /// Meta key of a group or job whose value an allocation leaves on its node; empty: none.
    pub affinity_meta_key: Text,
}

impl Default for NodeLife {
    fn default() -> Self {
        const MINUTE_MS: u64 = 60 * 1000;
        const HOUR_MS: u64 = 60 * MINUTE_MS;
        Self {
            ready_deadline_ms: 10 * MINUTE_MS,
            lost_grace_ms: MINUTE_MS,
            tombstone_ms: 24 * HOUR_MS,
            suspend_ms: 15 * MINUTE_MS,
            suspend_ms_max: 4 * HOUR_MS,
            strike_forgive_ms: 24 * HOUR_MS,
            strike_window_ms: 5 * MINUTE_MS,
            strike_failures: 3,
            suspended_percent_max: 25,
            mass_loss_percent: 34,
            mass_loss_nodes_min: 3,
            affinity_meta_key: "".into(),
        }
    }
}

impl NodeLife {
    /// Why these settings cannot be used, in the words of the API.
    pub fn check(&self) -> Result<(), String> {
        let times = [
            ("ReadyDeadlineMs", self.ready_deadline_ms),
            ("LostGraceMs", self.lost_grace_ms),
            ("TombstoneMs", self.tombstone_ms),
            ("SuspendMs", self.suspend_ms),
            ("SuspendMaxMs", self.suspend_ms_max),
            ("StrikeForgiveMs", self.strike_forgive_ms),
            ("StrikeWindowMs", self.strike_window_ms),
        ];
        for (name, ms) in times {
            if !(1..=limits::NODE_LIFE_MS_MAX).contains(&ms) {
                let max = limits::NODE_LIFE_MS_MAX;
                return Err(format!("NodeLife.{name} must be from 1 to {max}, not {ms}"));
            }
        }
        if self.suspend_ms > self.suspend_ms_max {
            let (first, longest) = (self.suspend_ms, self.suspend_ms_max);
            return Err(format!(
                "NodeLife.SuspendMs ({first}) must not be above SuspendMaxMs ({longest})"
            ));
        }
        let failures_max = u32::try_from(limits::NODE_FAILURES_MAX).unwrap_or(u32::MAX);
        let numbers = [
            ("StrikeFailures", self.strike_failures, 1, failures_max),
            ("SuspendedPercentMax", self.suspended_percent_max, 0, 100),
            ("MassLossPercent", self.mass_loss_percent, 0, 100),
            ("MassLossNodesMin", self.mass_loss_nodes_min, 1, u32::MAX),
        ];
        for (name, value, min, max) in numbers {
            if !(min..=max).contains(&value) {
                return Err(format!("NodeLife.{name} must be from {min} to {max}, not {value}"));
            }
        }
        let bytes = self.affinity_meta_key.len();
        if bytes > limits::NAME_BYTES_MAX {
            let max = limits::NAME_BYTES_MAX;
            return Err(format!(
                "NodeLife.AffinityMetaKey has {bytes} bytes, at most {max} may be"
            ));
        }
        Ok(())
    }
}
