//! Bounds and timers of the leader services. Times are milliseconds.

/// A lease not acknowledged in this time is taken back (Nomad's `EvalNackTimeout`).
pub const NACK_MS: u64 = 60_000;
/// Deliveries of an evaluation before it counts as failed (Nomad's `EvalDeliveryLimit`).
pub const DELIVERIES_MAX: u32 = 3;
/// Pause before the second delivery (Nomad's `EvalNackInitialReenqueueDelay`).
pub const NACK_DELAY_FIRST_MS: u64 = 1_000;
/// Pause before later deliveries, times the deliveries so far less one (Nomad's
/// `EvalNackSubsequentReenqueueDelay`).
pub const NACK_DELAY_STEP_MS: u64 = 20_000;
/// Evaluations in the broker beyond which the admission check refuses new work.
pub const EVALUATIONS_MAX: usize = 250_000;
/// Leases in one dequeue.
pub const LEASES_MAX: usize = 64;
/// Evaluations changed by one entry (Nomad's bound on identifiers per Raft message).
pub const REAP_BATCH_MAX: usize = 728;
/// What was offered to be canceled is offered again after this time if it is still there.
pub const CANCEL_RETRY_MS: u64 = 1_000;
/// Plans waiting for the applier.
pub const PLANS_MAX: usize = 4_096;
/// Bytes of plans waiting for the applier.
pub const PLAN_BYTES_MAX: usize = 256 << 20;
/// Blocked evaluations looked at, or woken, in one poll.
pub const BLOCKED_SLICE_MAX: usize = 512;
/// A blocked evaluation whose plans were rejected too often is tried again after this time (Nomad's
/// `failedEvalUnblockInterval`).
pub const UNBLOCK_FAILED_MS: u64 = 60_000;
/// Shortest time to live of a heartbeat (Nomad's `MinHeartbeatTTL`).
pub const HEARTBEAT_TTL_MS_MIN: u64 = 10_000;
/// Heartbeats per second that the leader is willing to take; more nodes beat less often.
pub const HEARTBEATS_PER_SECOND_MAX: u64 = 500;
/// Patience after a heartbeat was due (Nomad's `HeartbeatGrace`).
pub const HEARTBEAT_GRACE_MS: u64 = 10_000;
/// Nodes found dead, or with something due, in one poll.
pub const NODES_BATCH_MAX: usize = 256;
/// Nodes offered for reaping per second of log time.
pub const REAPS_PER_SECOND_MAX: u32 = 200;
/// Lines in the log about changes of nodes, per second of log time.
pub const NODE_LINES_MAX: u32 = 20;
/// Pause between two looks at the nodes of a mass loss.
pub const MASS_LOSS_LOOK_MS: u64 = 1_000;
/// A command that is due is offered again after this time if the state still asks for it.
pub const DUE_RETRY_MS: u64 = 30_000;
/// Allocations that run too long, in one command.
pub const RUNS_BATCH_MAX: usize = 256;
/// Deployments whose deadline is over, in one command.
pub const DEPLOYMENTS_BATCH_MAX: usize = 256;
/// Largest correction of log time towards the clocks, percent of the time that passed.
pub const SLEW_PERCENT_MAX: u64 = 5;
/// How long a leader's log time runs on from one anchor at least.
pub const ANCHOR_MS: u64 = 200;
/// How far two clocks that agree are apart at most, and log time from the clocks before it is said.
pub const CLOCKS_APART_MS: u64 = 1_000;
/// A lag that was said is over when it is no longer than this.
pub const LAG_OVER_MS: u64 = 500;
/// How long the clock of a server counts that has not answered since.
pub const CLOCK_KEPT_MS: u64 = 3_600_000;
/// A launch of a periodic job is asked for again after this time if its row does not have it.
pub const LAUNCH_RETRY_MS: u64 = 2_000;
/// Rows of periodic jobs, and due times of them, looked at in one step.
pub const PERIODIC_SLICE_MAX: usize = 1_000;
/// Allocations marked for migration in one poll.
pub const MIGRATIONS_BATCH_MAX: usize = 1_024;
/// Changes that may concern drains are looked at together when they come within this time (Nomad
/// batches its updates for 1 s).
pub const DRAIN_COALESCE_MS: u64 = 250;
/// Shortest wait of the follow-up of a failed evaluation (Nomad: 1 minute).
pub const FOLLOW_UP_MS_MIN: u64 = 60_000;
/// Spread of that wait (Nomad: 5 minutes).
pub const FOLLOW_UP_SPREAD_MS: u64 = 300_000;
/// Pause between two walks of the garbage collector (Nomad's `EvalGCInterval` and its like).
pub const GC_INTERVAL_MS: u64 = 5 * 60_000;
/// Final evaluations and ended allocations are kept this long (Nomad's `EvalGCThreshold`).
pub const GC_EVALUATION_MS: u64 = 60 * 60_000;
/// The same of batch jobs that are alive (Nomad's `BatchEvalGCThreshold`).
pub const GC_BATCH_EVALUATION_MS: u64 = 24 * 60 * 60_000;
/// Deployments that are over are kept this long (Nomad's `DeploymentGCThreshold`).
pub const GC_DEPLOYMENT_MS: u64 = 60 * 60_000;
/// Dead jobs are kept this long after their submission (Nomad's `JobGCThreshold`).
pub const GC_JOB_MS: u64 = 4 * 60 * 60_000;
/// Dead children of one job that are kept.
pub const GC_CHILDREN_MAX: u64 = 100_000;
/// Rows looked at in one slice of a walk.
pub const GC_SLICE_MAX: usize = 8_192;
/// Ids in one entry of garbage collection, but the allocations of one evaluation stay together.
pub const GC_BATCH_MAX: usize = 2_048;
/// Pause between two slices of a walk, so that a large collection does not crowd out other writes.
pub const GC_SLICE_PAUSE_MS: u64 = 100;
/// Encoded size of an entry with plans (`entry_bytes_max`).
pub const PLAN_ENTRY_BYTES_MAX: usize = 1 << 20;
/// Entries with plans that are proposed and not yet applied.
pub const PLAN_ENTRIES_MAX: usize = 2;
/// Passes of one lease over its evaluation, progress or not.
pub const PASSES_MAX: u32 = 10_000;
/// Commands of machines that wait to be proposed.
pub const SERVICE_COMMANDS_MAX: usize = 1_024;
/// Longest pause between two steps of the machines: a server that falls silent announces itself by
/// nothing.
pub const LOOK_MS_MAX: u64 = 2_000;
/// An idle cluster's log time is moved on when it is this old.
pub const TICK_AFTER_MS: u64 = 60_000;
