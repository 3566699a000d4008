//! Bounds of the state machine: every list in a row and every table that grows by requests has one.

/// Versions of a job that are kept without being referenced (Nomad's `job_tracked_versions`).
pub const JOB_VERSIONS_MAX: usize = 6;
/// Instances of all groups of a job (Nomad's `job_max_count`).
pub const JOB_COUNT_MAX: u64 = 50_000;
/// Highest priority a job may ask for (Nomad's `job_max_priority`).
pub const JOB_PRIORITY_MAX: u16 = 100;
/// Encoded size of a job, bytes.
pub const JOB_BYTES_MAX: usize = 1 << 20;
/// Length of a job id, group or task name, bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Events kept for people on a node (Nomad's `MaxRetainedNodeEvents`).
pub const NODE_EVENTS_MAX: usize = 10;
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
/// Placements in one scheduling pass.
pub const PLAN_PLACEMENTS_MAX: usize = 5_000;
/// Digest marks that wait for a verdict.
pub const DIGEST_MARKS_MAX: usize = 16;
/// How long a node may take to become ready, log time ms.
pub const READY_MS_MAX: u64 = 10 * 60 * 1000;
/// How long a lost node is kept before it may be reaped, log time ms.
pub const LOST_GRACE_MS: u64 = 60 * 1000;
/// First cool-down of a flaky node, ms; doubled per strike.
pub const SUSPEND_MS: u64 = 15 * 60 * 1000;
/// Longest cool-down of a flaky node, ms.
pub const SUSPEND_MS_MAX: u64 = 4 * 60 * 60 * 1000;
/// One strike is forgiven in this time, ms.
pub const STRIKE_DECAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Share of the nodes that may be suspended automatically, percent; at least one node may always
/// be.
pub const SUSPENDED_PERCENT_MAX: u64 = 25;
/// Tombstones of reaped nodes are kept this long, log time ms.
pub const TOMBSTONE_MS: u64 = 24 * 60 * 60 * 1000;
