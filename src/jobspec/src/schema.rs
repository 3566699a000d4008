//! The language of job files as tables: which blocks and attributes may stand where, under which
//! name the API knows them, and which ones exist in Nomad but not here yet. Owns no logic; `hcl.rs`
//! reads the tables.

/// What an attribute holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Text; numbers and booleans are turned into text, as HCL does.
    Text,
    /// A whole number, also as text.
    Integer,
    /// `true` or `false`, also as text.
    Boolean,
    /// `"30s"`, or nanoseconds.
    Duration,
    /// `"30s"`, in whole milliseconds.
    Milliseconds,
    /// A number with a fraction, also as text.
    Decimal,
    /// A list of texts.
    TextList,
}

/// One attribute of a block.
#[derive(Clone, Copy)]
pub(super) struct Attribute {
    pub(super) name: &'static str,
    /// Name in the API; one that starts with `~` is for `Finish` to turn into something else.
    pub(super) field: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
}

/// What becomes of a nested block.
pub(super) enum Shape {
    /// At most one; an object.
    One(&'static Block),
    /// Any number; a list of objects.
    Many(&'static Block),
    /// At most one, with free names; values are text. May also be written as an attribute.
    TextMap,
    /// At most one, with free names, values and nested blocks. May also be written as an attribute.
    Free,
}

/// One block that may stand in a block.
pub(super) struct Child {
    pub(super) name: &'static str,
    pub(super) field: &'static str,
    pub(super) shape: Shape,
}

/// What a block's label is.
pub(super) enum Label {
    /// It has none.
    None,
    /// It has exactly one, kept under this field.
    Field(&'static str),
}

/// The step after a block's table was applied.
#[derive(Clone, Copy)]
pub(super) enum Finish {
    /// Nothing.
    None,
    /// Short forms such as `regexp = "…"` become operand and target.
    Condition,
    /// Ports are sorted into reserved and dynamic ones.
    Network,
    /// The identity without a name is the task's own.
    Task,
    /// Tasks outside a group get a group each, the label is the id and the default name.
    Job,
}

/// A block.
pub(super) struct Block {
    pub(super) label: Label,
    pub(super) attributes: &'static [Attribute],
    pub(super) blocks: &'static [Child],
    /// Names of Nomad's that are not supported here.
    pub(super) unsupported: &'static [&'static str],
    pub(super) finish: Finish,
}

impl Block {
    /// All names that are allowed in this block.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let attributes = self.attributes.iter().map(|attribute| attribute.name);
        attributes.chain(self.blocks.iter().map(|child| child.name))
    }
}

const fn plain(attributes: &'static [Attribute]) -> Block {
    Block { label: Label::None, attributes, blocks: &[], unsupported: &[], finish: Finish::None }
}

const fn attribute(name: &'static str, field: &'static str, kind: Kind) -> Attribute {
    Attribute { name, field, kind, required: false }
}
const fn text(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::Text)
}
const fn integer(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::Integer)
}
const fn boolean(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::Boolean)
}
const fn duration(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::Duration)
}
const fn milliseconds(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::Milliseconds)
}
const fn decimal(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::Decimal)
}
const fn texts(name: &'static str, field: &'static str) -> Attribute {
    attribute(name, field, Kind::TextList)
}
const fn required(attribute: Attribute) -> Attribute {
    Attribute { required: true, ..attribute }
}
const fn one(name: &'static str, field: &'static str, block: &'static Block) -> Child {
    Child { name, field, shape: Shape::One(block) }
}
const fn many(name: &'static str, field: &'static str, block: &'static Block) -> Child {
    Child { name, field, shape: Shape::Many(block) }
}
const fn text_map(name: &'static str, field: &'static str) -> Child {
    Child { name, field, shape: Shape::TextMap }
}
const fn free(name: &'static str, field: &'static str) -> Child {
    Child { name, field, shape: Shape::Free }
}

/// The job block, root of all others.
pub(super) static JOB: Block = Block {
    label: Label::Field("ID"),
    attributes: &[
        text("id", "ID"),
        text("name", "Name"),
        text("type", "Type"),
        text("region", "Region"),
        text("namespace", "Namespace"),
        text("node_pool", "NodePool"),
        texts("datacenters", "Datacenters"),
        integer("priority", "Priority"),
        boolean("all_at_once", "AllAtOnce"),
    ],
    blocks: &[
        many("group", "TaskGroups", &GROUP),
        many("task", "~Tasks", &TASK),
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
        many("spread", "Spreads", &SPREAD),
        one("update", "Update", &UPDATE),
        one("migrate", "Migrate", &MIGRATE),
        one("reschedule", "Reschedule", &RESCHEDULE),
        one("parameterized", "ParameterizedJob", &PARAMETERIZED),
        one("periodic", "Periodic", &PERIODIC),
        text_map("meta", "Meta"),
    ],
    unsupported: &["multiregion", "vault", "consul", "ui", "consul_token", "vault_token"],
    finish: Finish::Job,
};

static GROUP: Block = Block {
    label: Label::Field("Name"),
    attributes: &[
        integer("count", "Count"),
        duration("shutdown_delay", "ShutdownDelay"),
        duration("max_run_duration", "MaxRunDuration"),
    ],
    blocks: &[
        many("task", "Tasks", &TASK),
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
        many("spread", "Spreads", &SPREAD),
        many("network", "Networks", &NETWORK),
        many("service", "Services", &SERVICE),
        one("restart", "RestartPolicy", &RESTART),
        one("reschedule", "ReschedulePolicy", &RESCHEDULE),
        one("update", "Update", &UPDATE),
        one("migrate", "Migrate", &MIGRATE),
        one("ephemeral_disk", "EphemeralDisk", &EPHEMERAL_DISK),
        one("scaling", "Scaling", &SCALING),
        text_map("meta", "Meta"),
    ],
    unsupported: &[
        "volume",
        "vault",
        "consul",
        "disconnect",
        "max_client_disconnect",
        "stop_after_client_disconnect",
        "prevent_reschedule_on_lost",
    ],
    finish: Finish::None,
};

static TASK: Block = Block {
    label: Label::Field("Name"),
    attributes: &[
        required(text("driver", "Driver")),
        text("user", "User"),
        text("kill_signal", "KillSignal"),
        duration("kill_timeout", "KillTimeout"),
        duration("shutdown_delay", "ShutdownDelay"),
        boolean("leader", "Leader"),
    ],
    blocks: &[
        free("config", "Config"),
        text_map("env", "Env"),
        text_map("meta", "Meta"),
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
        many("service", "Services", &SERVICE),
        one("resources", "Resources", &RESOURCES),
        one("restart", "RestartPolicy", &RESTART),
        one("logs", "LogConfig", &LOGS),
        many("identity", "~Identities", &IDENTITY),
        one("dispatch_payload", "DispatchPayload", &DISPATCH_PAYLOAD),
    ],
    unsupported: &[
        "template",
        "artifact",
        "vault",
        "consul",
        "volume_mount",
        "csi_plugin",
        "lifecycle",
        "scaling",
        "action",
        "secret",
        "schedule",
        "kind",
    ],
    finish: Finish::Task,
};

/// Why a task has no scaling block: policies of the types `vertical_cpu` and `vertical_mem` exist
/// in Nomad Enterprise alone.
pub(super) const TASK_SCALING: &str = "scaling blocks of tasks (Dynamic Application Sizing) exist in Nomad Enterprise alone: write cpu and memory into the resources block, or put the scaling block into the group, where it scales the count";

static IDENTITY: Block = plain(&[
    text("name", "Name"),
    texts("aud", "Audience"),
    boolean("env", "Env"),
    boolean("file", "File"),
    text("filepath", "Filepath"),
    text("change_mode", "ChangeMode"),
    text("change_signal", "ChangeSignal"),
    text("service_name", "ServiceName"),
    duration("ttl", "TTL"),
]);

/// Short forms of a condition: `regexp = "…"` is `operator = "regexp"`, `value = "…"`.
pub(super) const CONDITION_SHORT_FORMS: [&str; 5] =
    ["version", "semver", "regexp", "set_contains", "set_contains_any"];

static CONSTRAINT: Block = Block {
    label: Label::None,
    attributes: &[
        text("attribute", "LTarget"),
        text("operator", "Operand"),
        text("value", "RTarget"),
        text("version", "~version"),
        text("semver", "~semver"),
        text("regexp", "~regexp"),
        text("set_contains", "~set_contains"),
        text("set_contains_any", "~set_contains_any"),
        boolean("distinct_hosts", "~distinct_hosts"),
        text("distinct_property", "~distinct_property"),
    ],
    blocks: &[],
    unsupported: &[],
    finish: Finish::Condition,
};

static AFFINITY: Block = Block {
    label: Label::None,
    attributes: &[
        text("attribute", "LTarget"),
        text("operator", "Operand"),
        text("value", "RTarget"),
        integer("weight", "Weight"),
        text("version", "~version"),
        text("semver", "~semver"),
        text("regexp", "~regexp"),
        text("set_contains", "~set_contains"),
        text("set_contains_any", "~set_contains_any"),
    ],
    blocks: &[],
    unsupported: &[],
    finish: Finish::Condition,
};

static SPREAD: Block = Block {
    label: Label::None,
    attributes: &[required(text("attribute", "Attribute")), integer("weight", "Weight")],
    blocks: &[many("target", "SpreadTarget", &SPREAD_TARGET)],
    unsupported: &[],
    finish: Finish::None,
};

static SPREAD_TARGET: Block = Block {
    label: Label::Field("Value"),
    attributes: &[required(integer("percent", "Percent"))],
    blocks: &[],
    unsupported: &[],
    finish: Finish::None,
};

static UPDATE: Block = plain(&[
    duration("stagger", "Stagger"),
    integer("max_parallel", "MaxParallel"),
    text("health_check", "HealthCheck"),
    duration("min_healthy_time", "MinHealthyTime"),
    duration("healthy_deadline", "HealthyDeadline"),
    duration("progress_deadline", "ProgressDeadline"),
    boolean("auto_revert", "AutoRevert"),
    boolean("auto_promote", "AutoPromote"),
    integer("canary", "Canary"),
]);

static MIGRATE: Block = plain(&[
    integer("max_parallel", "MaxParallel"),
    text("health_check", "HealthCheck"),
    duration("min_healthy_time", "MinHealthyTime"),
    duration("healthy_deadline", "HealthyDeadline"),
]);

static RESCHEDULE: Block = plain(&[
    integer("attempts", "Attempts"),
    duration("interval", "Interval"),
    duration("delay", "Delay"),
    text("delay_function", "DelayFunction"),
    duration("max_delay", "MaxDelay"),
    boolean("unlimited", "Unlimited"),
]);

static RESTART: Block = plain(&[
    integer("attempts", "Attempts"),
    duration("interval", "Interval"),
    duration("delay", "Delay"),
    text("mode", "Mode"),
    boolean("render_templates", "RenderTemplates"),
]);

static PARAMETERIZED: Block = plain(&[
    text("payload", "Payload"),
    texts("meta_required", "MetaRequired"),
    texts("meta_optional", "MetaOptional"),
    integer("max_running", "MaxRunning"),
]);

static DISPATCH_PAYLOAD: Block = plain(&[text("file", "File")]);

static PERIODIC: Block = plain(&[
    text("cron", "Spec"),
    texts("crons", "Specs"),
    text("time_zone", "TimeZone"),
    boolean("prohibit_overlap", "ProhibitOverlap"),
    boolean("enabled", "Enabled"),
]);

static EPHEMERAL_DISK: Block =
    plain(&[integer("size", "SizeMB"), boolean("sticky", "Sticky"), boolean("migrate", "Migrate")]);

static SCALING: Block = Block {
    blocks: &[free("policy", "Policy")],
    ..plain(&[
        boolean("enabled", "Enabled"),
        integer("min", "Min"),
        integer("max", "Max"),
        text("type", "Type"),
    ])
};

static NETWORK: Block = Block {
    label: Label::None,
    attributes: &[text("mode", "Mode"), text("hostname", "Hostname"), integer("mbits", "MBits")],
    blocks: &[many("port", "~Ports", &PORT)],
    unsupported: &["dns", "cni"],
    finish: Finish::Network,
};

static PORT: Block = Block {
    label: Label::Field("Label"),
    attributes: &[
        integer("static", "Value"),
        integer("to", "To"),
        text("host_network", "HostNetwork"),
        boolean("ignore_collision", "IgnoreCollision"),
    ],
    blocks: &[],
    unsupported: &[],
    finish: Finish::None,
};

static RESOURCES: Block = Block {
    label: Label::None,
    attributes: &[
        integer("cpu", "CPU"),
        integer("memory", "MemoryMB"),
        integer("memory_max", "MemoryMaxMB"),
    ],
    blocks: &[],
    unsupported: &["cores", "disk", "network", "device", "numa", "secrets"],
    finish: Finish::None,
};

static LOGS: Block = plain(&[
    integer("max_files", "MaxFiles"),
    integer("max_file_size", "MaxFileSizeMB"),
    boolean("disabled", "Disabled"),
]);

static SERVICE: Block = Block {
    label: Label::None,
    attributes: &[
        text("name", "Name"),
        text("port", "PortLabel"),
        text("provider", "Provider"),
        text("address", "Address"),
        text("address_mode", "AddressMode"),
        text("task", "TaskName"),
        text("on_update", "OnUpdate"),
        text("cluster", "Cluster"),
        text("kind", "Kind"),
        texts("tags", "Tags"),
        texts("canary_tags", "CanaryTags"),
        boolean("enable_tag_override", "EnableTagOverride"),
    ],
    blocks: &[
        many("check", "Checks", &CHECK),
        one("check_restart", "CheckRestart", &CHECK_RESTART),
        one("weights", "Weights", &WEIGHTS),
        text_map("meta", "Meta"),
        text_map("canary_meta", "CanaryMeta"),
        text_map("tagged_addresses", "TaggedAddresses"),
    ],
    unsupported: &["connect", "identity"],
    finish: Finish::None,
};

static WEIGHTS: Block = plain(&[integer("passing", "Passing"), integer("warning", "Warning")]);

static CHECK: Block = Block {
    label: Label::None,
    attributes: &[
        text("name", "Name"),
        required(text("type", "Type")),
        text("command", "Command"),
        texts("args", "Args"),
        text("path", "Path"),
        text("protocol", "Protocol"),
        text("port", "PortLabel"),
        text("address_mode", "AddressMode"),
        text("method", "Method"),
        text("body", "Body"),
        text("notes", "Notes"),
        text("task", "TaskName"),
        text("initial_status", "InitialStatus"),
        text("on_update", "OnUpdate"),
        text("grpc_service", "GRPCService"),
        boolean("grpc_use_tls", "GRPCUseTLS"),
        boolean("tls_skip_verify", "TLSSkipVerify"),
        text("tls_server_name", "TLSServerName"),
        boolean("expose", "Expose"),
        duration("interval", "Interval"),
        duration("timeout", "Timeout"),
        integer("success_before_passing", "SuccessBeforePassing"),
        integer("failures_before_critical", "FailuresBeforeCritical"),
        integer("failures_before_warning", "FailuresBeforeWarning"),
    ],
    blocks: &[one("check_restart", "CheckRestart", &CHECK_RESTART), free("header", "Header")],
    unsupported: &[],
    finish: Finish::None,
};

static CHECK_RESTART: Block = plain(&[
    integer("limit", "Limit"),
    duration("grace", "Grace"),
    boolean("ignore_warnings", "IgnoreWarnings"),
]);

/// A namespace, the whole of its file.
pub(super) static NAMESPACE: Block = Block {
    label: Label::None,
    attributes: &[required(text("name", "Name")), text("description", "Description")],
    blocks: &[text_map("meta", "Meta")],
    unsupported: &["quota", "capabilities", "node_pool_config", "vault", "consul"],
    finish: Finish::None,
};

/// A node pool, root of its file.
pub(super) static NODE_POOL: Block = Block {
    label: Label::Field("Name"),
    attributes: &[
        text("description", "Description"),
        duration("node_identity_ttl", "NodeIdentityTTL"),
    ],
    blocks: &[text_map("meta", "Meta")],
    unsupported: &["scheduler_config"],
    finish: Finish::None,
};

/// An instance pool, root of a pool file.
pub(super) static POOL: Block = Block {
    label: Label::Field("Name"),
    attributes: &[
        required(text("provider", "Provider")),
        integer("min", "Min"),
        required(integer("max", "Max")),
        decimal("price_factor", "PriceFactor"),
        milliseconds("idle_timeout", "IdleTimeoutMs"),
        milliseconds("boot_timeout", "BootTimeoutMs"),
        milliseconds("probe_timeout", "ProbeTimeoutMs"),
        integer("max_concurrent_creates", "MaxConcurrentCreates"),
        integer("max_creates_per_hour", "MaxCreatesPerHour"),
        decimal("max_price_per_hour", "MaxPricePerHour"),
        integer("protect_after", "ProtectAfter"),
        milliseconds("backoff_reset", "BackoffResetMs"),
    ],
    blocks: &[many("type", "Types", &POOL_TYPE), many("capacity", "Capacity", &POOL_CAPACITY)],
    unsupported: &[],
    finish: Finish::None,
};

static POOL_TYPE: Block = Block {
    label: Label::Field("Name"),
    attributes: &[
        text("provider_type", "ProviderType"),
        required(integer("cpu", "CPU")),
        required(integer("memory", "MemoryMB")),
        integer("disk", "DiskMB"),
        integer("max_allocations", "MaxAllocations"),
        decimal("price", "Price"),
        boolean("preemptible", "Preemptible"),
        text("quota_group", "QuotaGroup"),
        text("image", "Image"),
    ],
    blocks: &[one("node", "Node", &POOL_NODE)],
    unsupported: &[],
    finish: Finish::None,
};

static POOL_NODE: Block = Block {
    blocks: &[text_map("attributes", "Attributes"), text_map("meta", "Meta")],
    ..plain(&[
        text("datacenter", "Datacenter"),
        text("class", "Class"),
        texts("drivers", "Drivers"),
    ])
};

static POOL_CAPACITY: Block = Block {
    label: Label::Field("Name"),
    attributes: &[
        text("dimension", "Dimension"),
        required(integer("unit", "Unit")),
        integer("min", "Min"),
        required(integer("max", "Max")),
        text("predictor", "Predictor"),
        integer("step", "Step"),
        milliseconds("step_interval", "StepIntervalMs"),
        milliseconds("drain", "DrainMs"),
        text("busy", "Busy"),
        boolean("hard", "Hard"),
        milliseconds("cooldown_up", "CooldownUpMs"),
        milliseconds("cooldown_down", "CooldownDownMs"),
        milliseconds("requirement_ttl", "RequirementTTLms"),
        required(integer("member_port", "MemberPort")),
    ],
    blocks: &[one("headroom", "Headroom", &HEADROOM), one("peak", "Peak", &PEAK)],
    unsupported: &[],
    finish: Finish::None,
};

static HEADROOM: Block = plain(&[required(integer("percent", "Percent"))]);

static PEAK: Block = plain(&[required(milliseconds("window", "WindowMs"))]);

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever tries this program finds there what a file may not say yet.
    #[test]
    fn the_readme_names_all_that_is_refused() {
        let readme = include_str!("../../../README.md");
        let (_, behind) = readme.split_once("| works | not yet |").unwrap_or_default();
        let (table, _) = behind.split_once("\n\n").unwrap_or_default();
        for block in [&JOB, &GROUP, &TASK, &NETWORK, &RESOURCES, &SERVICE] {
            for name in block.unsupported {
                assert!(table.contains(&format!("`{name}`")), "{name}");
            }
        }
    }
}
