//! The list of tables: all that a table is made from but its row.

/// Calls a macro with all tables. A line makes the table's [`TableId`](crate::table::TableId), the
/// field of [`State`](crate::State) and the function that reads it, its part of the digest, its
/// rows on disk and their frames, its number of rows and the index of its last change.
///
/// A line has the number of the table, which is the first byte of its keys on disk and the kind of
/// its frames (see `codec` for the other kinds), its id, its field, and its row, which says by
/// [`Row`](crate::table::Row) what its key is. The numbers 13 and from 32 on are those of frames
/// that are no rows. A number is never used for another table of the same generation of bytes.
macro_rules! tables {
    ($then:ident) => {
        $then! {
            /// Jobs.
            1 Jobs jobs crate::job::Job,
            /// Versions of jobs.
            2 JobVersions job_versions crate::job::JobVersion,
            /// Nodes.
            3 Nodes nodes crate::node::Node,
            /// Evaluations.
            4 Evaluations evaluations crate::evaluation::Evaluation,
            /// Allocations.
            5 Allocations allocations crate::allocation::Allocation,
            /// Node pools.
            6 NodePools node_pools crate::settings::NodePool,
            /// Namespaces.
            7 Namespaces namespaces crate::settings::Namespace,
            /// The scheduler configuration, once one was set.
            8 SchedulerConfiguration configurations crate::settings::SchedulerConfiguration,
            /// What is left of reaped nodes.
            9 Tombstones tombstones crate::node::Tombstone,
            /// Ineligible nodes that are not registered.
            10 OfflineNodes offline_nodes crate::node::OfflineNode,
            /// The last capacity gain of each class and node.
            11 CapacityGains capacity_gains crate::node::CapacityGain,
            /// Replies kept for retries.
            12 Sessions sessions crate::session::Session,
            /// Digest marks.
            14 DigestMarks digest_marks crate::digest::DigestMark,
            /// The last mass loss.
            15 MassLosses mass_losses crate::node::MassLoss,
            /// Instance pools.
            16 InstancePools instance_pools crate::pool::InstancePool,
            /// Instances of pools.
            17 Instances instances crate::pool::Instance,
            /// Limits that providers named.
            18 ProviderLimits provider_limits crate::pool::ProviderLimit,
            /// The last list of each provider.
            19 ProviderLists provider_lists crate::pool::ProviderList,
            /// Jobs that types of their pool do not help.
            20 Unhelped unhelped crate::pool::Unhelped,
            /// Sources of requirements.
            21 CapacitySources capacity_sources crate::capacity::CapacitySource,
            /// What is wanted of capacity groups.
            22 CapacityTargets capacity_targets crate::capacity::CapacityTarget,
            /// Deployments.
            23 Deployments deployments crate::deployment::Deployment,
            /// Scaling policies and events of groups.
            24 GroupScalings group_scalings crate::job::GroupScaling,
            /// What pools have asked for, and what came of it.
            25 PoolHistories pool_histories crate::pool::PoolHistory,
            /// How providers do, as leaders found it.
            26 ProviderStates provider_states crate::pool::ProviderState,
        }
    };
}

pub(crate) use tables;
