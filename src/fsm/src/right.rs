//! What somebody needs to be allowed: a right for each command and each route. Nothing asks for
//! rights yet.

use std::fmt;

/// Makes [`Capability`] with Nomad's names.
macro_rules! capabilities {
    ($($name:ident $text:literal,)*) => {
        /// What is done in a namespace.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Capability {
            $($name,)*
        }

        impl Capability {
            /// Nomad's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}
capabilities! {
    SubmitJob "submit-job",
    RegisterJob "register-job",
    DeregisterJob "deregister-job",
    PurgeJob "purge-job",
    EvaluateJob "evaluate-job",
    RevertJob "revert-job",
    StableJob "stable-job",
    TagJobVersion "tag-job-version",
    DispatchJob "dispatch-job",
    ForcePeriodicJob "force-periodic-job",
    ScaleJob "scale-job",
    AllocLifecycle "alloc-lifecycle",
    PromoteDeployment "promote-deployment",
    FailDeployment "fail-deployment",
    PauseDeployment "pause-deployment",
    SetAllocHealth "set-alloc-health",
    AllocExec "alloc-exec",
    CsiListVolume "csi-list-volume",
    CsiMountVolume "csi-mount-volume",
    CsiReadVolume "csi-read-volume",
    CsiWriteVolume "csi-write-volume",
    DeleteServiceRegistration "delete-service-registration",
    GcAllocation "gc-allocation",
    HostVolumeCreate "host-volume-create",
    HostVolumeDelete "host-volume-delete",
    HostVolumeRead "host-volume-read",
    HostVolumeRegister "host-volume-register",
    ListJobs "list-jobs",
    ListScalingPolicies "list-scaling-policies",
    ParseJob "parse-job",
    PauseAllocation "pause-allocation",
    PlanJob "plan-job",
    ReadFs "read-fs",
    ReadJob "read-job",
    ReadJobScaling "read-job-scaling",
    ReadLogs "read-logs",
    ReadScalingPolicy "read-scaling-policy",
}

/// What a caller needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// Nothing that a person or a program may have: servers and agents do it among themselves.
    Internal,
    /// Anybody may.
    Nothing,
    /// A token that is known; what the caller may not see is left out.
    AnyToken,
    /// Any of these in the namespace that it is about.
    Namespace(&'static [Capability]),
    /// Any capability in the namespace that it is about.
    AnyInNamespace,
    /// What each kind of thing needs that is found.
    Several,
    /// `node:read`.
    NodeRead,
    /// `node:write`.
    NodeWrite,
    /// `read` on the node pool.
    NodePoolRead,
    /// `write` on the node pool.
    NodePoolWrite,
    /// `delete` on the node pool.
    NodePoolDelete,
    /// `agent:read`.
    AgentRead,
    /// `agent:write`.
    AgentWrite,
    /// `operator:read`.
    OperatorRead,
    /// `operator:write`.
    OperatorWrite,
    /// `snapshot-save`, or `operator:write`.
    SnapshotSave,
    /// `keyring-read`.
    KeyringRead,
    /// `keyring-rotate`.
    KeyringRotate,
    /// `keyring-delete`.
    KeyringDelete,
    /// `plugin:read`.
    PluginRead,
    /// `list` on the path.
    VariableList,
    /// `read` on the path.
    VariableRead,
    /// `write` on the path.
    VariableWrite,
    /// `destroy` on the path.
    VariableDestroy,
    /// A management token.
    Management,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Internal => "agents only",
            Self::Nothing => "nothing",
            Self::AnyToken => "any token",
            Self::Namespace(any) => {
                for (number, capability) in any.iter().enumerate() {
                    let between = if number == 0 { "" } else { " or " };
                    write!(f, "{between}{}", capability.name())?;
                }
                return Ok(());
            }
            Self::AnyInNamespace => "any capability in the namespace",
            Self::Several => "by kind",
            Self::NodeRead => "node:read",
            Self::NodeWrite => "node:write",
            Self::NodePoolRead => "read on the pool",
            Self::NodePoolWrite => "write on the pool",
            Self::NodePoolDelete => "delete on the pool",
            Self::AgentRead => "agent:read",
            Self::AgentWrite => "agent:write",
            Self::OperatorRead => "operator:read",
            Self::OperatorWrite => "operator:write",
            Self::SnapshotSave => "snapshot-save or operator:write",
            Self::KeyringRead => "keyring-read",
            Self::KeyringRotate => "keyring-rotate",
            Self::KeyringDelete => "keyring-delete",
            Self::PluginRead => "plugin:read",
            Self::VariableList => "list on the path",
            Self::VariableRead => "read on the path",
            Self::VariableWrite => "write on the path",
            Self::VariableDestroy => "destroy on the path",
            Self::Management => "management token",
        })
    }
}
