//! Bounds of the state machine: every list in a row and every table that grows by requests has one.

/// Versions of a job that are kept without being referenced (Nomad's `job_tracked_versions`),
/// beside the newest stable one.
pub const JOB_VERSIONS_MAX: usize = 6;
/// Tagged versions of a job, which are kept beyond [`JOB_VERSIONS_MAX`].
pub const JOB_TAGS_MAX: usize = 64;
/// Dispatches of one entry, and of one request.
pub const DISPATCHES_MAX: usize = 1_000;
/// Payload of a dispatch, bytes (Nomad's `DispatchPayloadSizeLimit`).
pub const PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// Name of the file that gets the payload of a dispatch, bytes.
pub const PAYLOAD_FILE_BYTES_MAX: usize = 240;
/// What a child's id has after its parent's, bytes.
pub const CHILD_NAME_BYTES_MAX: usize = 160;
/// Idempotency token of a dispatch, bytes.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Children that one entry stops.
pub const CHILDREN_STOPPED_MAX: usize = 1_000;
/// What the id of a child that the clock starts has after its parent's, bytes: `/periodic-` and
/// Unix seconds.
pub const LAUNCH_NAME_BYTES_MAX: usize = 32;
/// Id of a periodic or parameterized job, bytes: its children's ids begin with it.
pub const PARENT_ID_BYTES_MAX: usize = NAME_BYTES_MAX - LAUNCH_NAME_BYTES_MAX;
/// Launches of periodic jobs in one entry.
pub const LAUNCHES_MAX: usize = 256;
/// Lines of cron of a job.
pub const CRONS_MAX: usize = 64;
/// One line of cron, or the name of its time zone, bytes.
pub const CRON_BYTES_MAX: usize = 1_024;
/// Children that one entry starts of those that wait.
pub const LET_IN_MAX: usize = 1_000;
/// Deployments of a job that are kept (an older one that is over goes first).
pub const DEPLOYMENTS_PER_JOB_MAX: usize = 32;
/// Scaling events that are kept of a group (Nomad's `JobTrackedScalingEvents`).
pub const SCALING_EVENTS_MAX: usize = 20;
/// Message, and meta, of a scaling event, bytes.
pub const SCALING_TEXT_BYTES_MAX: usize = 4_096;
/// Allocations whose health one command may say.
pub const HEALTH_WORDS_MAX: usize = 1_000;
/// Instances of all groups of a job (Nomad's `job_max_count`).
pub const JOB_COUNT_MAX: u64 = 50_000;
/// Highest priority a job may ask for (Nomad's `job_max_priority`).
pub const JOB_PRIORITY_MAX: u16 = 100;
/// Encoded size of a job, bytes.
pub const JOB_BYTES_MAX: usize = 1 << 20;
/// Source and variables of a job that are kept with a version, bytes (Nomad's
/// `job_max_source_size`).
pub const SUBMISSION_BYTES_MAX: usize = 1_000_000;
/// Groups of a job, tasks and ports of a group, entries of a map of a node, namespace or pool.
pub const LIST_MAX: usize = 1_000;
/// Largest amount of cpu, memory or disk of a task, a group or a node: sums do not overflow.
pub const SIZE_MAX: u64 = 1 << 40;
/// Longest time in a job, ms: Nomad counts nanoseconds in 63 bits.
pub const JOB_TIME_MS_MAX: u64 = 9_223_372_036_854;
/// Log files of a task.
pub const LOG_FILES_MAX: u64 = 1_000;
/// Size of one log file, MiB.
pub const LOG_FILE_MB_MAX: u64 = 1 << 20;
/// One of the texts in which a node names itself, bytes.
pub const NODE_TEXT_BYTES_MAX: usize = 4_096;
/// Drivers of a node.
pub const NODE_DRIVERS_MAX: usize = 64;
/// Attributes, meta and drivers of a node, bytes.
pub const NODE_BYTES_MAX: usize = 256 << 10;
/// Namespaces, and node pools.
pub const NAMESPACES_MAX: usize = 10_000;
/// Instance pools.
pub const INSTANCE_POOLS_MAX: usize = 1_000;
/// Description of a namespace or node pool, bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4_096;
/// Meta of a namespace or node pool, bytes.
pub const META_BYTES_MAX: usize = 64 << 10;
/// Attributes, and meta, of an instance type, bytes.
pub const TYPE_BYTES_MAX: usize = 16 << 10;
/// A text that an agent reports of an allocation, bytes; longer ones are cut.
pub const REPORT_TEXT_BYTES_MAX: usize = 4_096;
/// Length of a job id, group or task name, bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Events kept for people on a node (Nomad's `MaxRetainedNodeEvents`).
pub const NODE_EVENTS_MAX: usize = 10;
/// Canaries that a deployment remembers for each of its groups: its row is written whenever one of
/// its allocations changes.
pub const PLACED_CANARIES_KEPT_MAX: usize = 1000;
/// Events kept on a task state (Nomad keeps 10 per task).
pub const TASK_EVENTS_MAX: usize = 10;
/// Nodes whose scores are kept with a placement (Nomad's `MaxRetainedNodeScores`).
pub const NODE_SCORES_MAX: usize = 5;
/// Past reschedules kept on an allocation whose policy does not count them (Nomad's
/// `maxPastRescheduleEvents`).
pub const RESCHEDULE_EVENTS_MAX: usize = 5;
/// Past reschedules kept on an allocation whose policy allows so many in an interval; more attempts
/// than this cannot be counted.
pub const RESCHEDULE_EVENTS_COUNTED_MAX: usize = 100;
/// Replies kept for client retries.
pub const SESSIONS_MAX: usize = 100_000;
/// How long a reply is kept for client retries, log time ms.
pub const SESSION_MS_MAX: u64 = 10 * 60 * 1000;
/// Encoded size of a kept reply, bytes; the next two follow from it.
pub const SESSION_REPLY_BYTES_MAX: usize = 256;
/// Evaluation ids in a kept reply.
pub const SESSION_REPLY_IDS_MAX: usize = 12;
/// Text of a rejection in a kept reply, bytes.
pub const SESSION_REPLY_TEXT_BYTES_MAX: usize = 200;
/// From the time at which an agent has ended an allocation that runs too long until the servers do
/// it, log time ms.
pub const RUN_GRACE_MS: u64 = 30_000;
/// Placements in one scheduling pass.
pub const PLAN_PLACEMENTS_MAX: usize = 5_000;
/// Digest marks that wait for a verdict.
pub const DIGEST_MARKS_MAX: usize = 16;
/// Failures of its own that a node row keeps.
pub const NODE_FAILURES_MAX: usize = 8;
/// Text of a failure, a readiness check or an operator's reason, bytes.
pub const NODE_REASON_BYTES_MAX: usize = 256;
/// Longest time that a setting of node life may have, ms: a year.
pub const NODE_LIFE_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1000;
/// A mass loss ends by itself after this time, log time ms.
pub const MASS_LOSS_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Instances of one pool.
pub const INSTANCES_MAX: u32 = 10_000;
/// How long a machine whose node was just bound is still waited for, until work is placed there,
/// log time ms.
pub const FIRST_WORK_MS: u64 = 30_000;
/// Types of one pool.
pub const INSTANCE_TYPES_MAX: usize = 64;
/// Largest amount or price of an instance type: sums over a pool do not overflow.
pub const INSTANCE_SIZE_MAX: u64 = 1 << 40;
/// Lists in a row that an instance must be missing from before it is gone.
pub const LISTS_MISSING_MIN: u32 = 2;
/// Longest time that a provider's refusal may hold, log time ms.
pub const PROVIDER_LIMIT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Pause of a type after its first failed boot, and of a scope after the first lack of capacity;
/// doubled with each, log time ms.
pub const BACKOFF_MS: u64 = 1_000;
/// Longest pause of a type whose boots fail, log time ms.
pub const BOOT_BACKOFF_MS_MAX: u64 = 10 * 60 * 1000;
/// Longest pause after a lack of capacity of which the provider does not say how long it lasts, log
/// time ms.
pub const NO_CAPACITY_MS_MAX: u64 = 2 * 60 * 1000;
/// How long a job that a machine did not help is no demand for its type; doubled each time, log
/// time ms.
pub const UNHELPED_MS: u64 = 15 * 60 * 1000;
/// The longest such time, log time ms.
pub const UNHELPED_MS_MAX: u64 = 4 * 60 * 60 * 1000;
/// How often a pause is doubled at most.
pub const BACKOFF_LEVEL_MAX: u32 = 16;
/// How long a refusal holds of which neither provider nor leader says how long, log time ms.
pub const REFUSAL_MS: u64 = 60 * 1000;
/// Creates of one provider under way, unless its configuration says otherwise.
pub const PROVIDER_CREATES: usize = 32;
/// Most creates of one provider under way.
pub const PROVIDER_CREATES_MAX: usize = 1_000;
/// Creates of a pool in an hour.
pub const CREATES_PER_HOUR_MAX: u32 = 1_000_000;
/// Capacity groups of all pools.
pub const CAPACITY_GROUPS_MAX: usize = 1_000;
/// Sources of requirements.
pub const CAPACITY_SOURCES_MAX: usize = 10_000;
/// Length of the name of a source, bytes.
pub const SOURCE_NAME_BYTES_MAX: usize = 128;
/// Sources of one capacity group.
pub const CAPACITY_GROUP_SOURCES_MAX: u32 = 5_000;
/// Capacity groups that one source may name.
pub const CAPACITY_SOURCE_GROUPS_MAX: usize = 100;
/// Words of sources in one entry.
pub const CAPACITY_WORDS_MAX: usize = 1_000;
/// Most that a source may need of a group: sums over all sources do not overflow.
pub const CAPACITY_AMOUNT_MAX: u64 = 1 << 40;
/// Longest time that a setting of a capacity group may have, ms: a day.
pub const CAPACITY_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// How long a requirement holds that names no time and no group, ms.
pub const REQUIREMENT_TTL_MS: u64 = 10_000;
/// How long an expired source, or a capacity group that nothing is left of, is remembered, log time
/// ms.
pub const CAPACITY_KEPT_MS: u64 = 60 * 60 * 1000;
/// Most that a predictor may add to a sum, percent of it.
pub const HEADROOM_PERCENT_MAX: u32 = 1_000;
/// Parts of a window of which a capacity group keeps one past value each.
pub const PEAKS_MAX: u64 = 16;
/// From the deadline of a hard drain until the machine goes although something runs, ms.
pub const HARD_STOP_MS: u64 = 30_000;
/// Members that one entry drains or takes back.
pub const CAPACITY_MOVES_MAX: usize = 1_000;
/// Nodes that are offline and not registered. When so many are, an ineligible node is not reaped.
pub const OFFLINE_NODES_MAX: usize = 10_000;
/// Scheduling workers of one server.
pub const WORKERS_MAX: usize = 256;
/// Evaluations that one request deletes (Nomad's `MaxUUIDsPerWriteRequest`).
pub const EVALUATIONS_DELETED_MAX: usize = 7_281;
/// Allocations that one placement may evict.
pub const PREEMPTED_MAX: usize = 64;
/// By how much the priority of a job must be above that of one whose allocations it evicts
/// (Nomad's rule).
pub const PREEMPTION_PRIORITY_DISTANCE: u16 = 10;
