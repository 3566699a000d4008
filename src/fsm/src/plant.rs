//! Deliberate bugs, to prove that the tests see them: which there are, and whether one is planted
//! in this process.
//!
//! Owns the one list of all packages' plants. A build without the feature `plant` contains none:
//! [`is_planted`] is the constant `false` and the table of names does not exist. What each plant
//! breaks and who caught it is in jepsen/PLANTED.md. It must never be asked for anything but to do
//! the wrong thing: code that behaves differently for a reason has a setting.

/// A bug that can be planted. The M-numbers are those of the fault-testing plan.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "plant"), derive(Debug))]
#[repr(u8)]
pub enum Plant {
    /// M1: appended entries are acknowledged without a sync.
    SkipLogSync,
    /// M2: a vote is acknowledged without a sync.
    SkipVoteSync,
    /// M3: a write is answered before it is committed.
    AcknowledgeBeforeCommit,
    /// M4: a linearizable read is answered from the local state.
    StaleRead,
    /// M5: a leader answers reads on a lease that outlives its followers' patience.
    LeaseWithoutMargin,
    /// M6: a request that comes twice takes effect twice.
    NoDedupe,
    /// M7: a change depends on an order that differs between replicas.
    UnorderedApply,
    /// M8: a change depends on the replica's own clock.
    ClockInApply,
    /// M9: the applied index is written to disk before its rows.
    IndexBeforeRows,
    /// M10: the log is purged although neither the engine nor the snapshot file is durable.
    PurgeBeforeSync,
    /// M11: a snapshot is installed over the state in use.
    InstallInPlace,
    /// M12: plans of an earlier leadership stay in the queue.
    QueueNotFlushed,
    /// M13: a new leader does not find the pending evaluations.
    BrokerNotRestored,
    /// M14: two evaluations of one job are worked on at a time.
    JobsNotSerialised,
    /// M15: plans are applied without another look at the nodes.
    NoRecheck,
    /// M16: reserved ports are given away.
    ReservedPortsForgotten,
    /// M17: a lease runs out while its plan is queued.
    NackTimerNotPaused,
    /// M18: a request to a peer waits for ever.
    NoDeadline,
    /// M19: checksums are not looked at.
    SkipChecksums,
    /// M20: a torn last batch is treated as damage.
    TornTailIsFatal,
    /// M21: a blocking query looks first and registers afterwards.
    LateRegistration,
    /// M22: nodes' heartbeats are not given new time at a failover.
    HeartbeatsNotReset,
    /// M23: a server with an empty disk takes its old number.
    ReusedServerId,
    /// M24: a failed sync counts as done.
    SwallowSyncError,
    /// M25: a write of unknown outcome is sent again as a new request.
    HiddenRetry,
    /// One server changes one row differently from the others.
    Diverge,
    /// Any token ends a lease.
    AnyTokenAcknowledges,
    /// A plan older than the job's last one is taken.
    StalePlansTaken,
    /// An entry of another leadership is taken.
    AnyEpochTaken,
    /// A capacity gain wakes nothing.
    NothingWakes,
    /// Room that a woken evaluation does not use is offered to nobody else.
    RoomNotPassedOn,
    /// Each failure of a node is a strike.
    StrikePerFailure,
    /// An offline node that is reaped comes back online.
    OfflineExpires,
    /// Nodes are reaped during a mass loss.
    ReapInMassLoss,
    /// A node keeps its affinity key after a cool-down.
    AffinityKept,
    /// A provider is asked for a machine before its intent is in the log.
    CallBeforeCommit,
    /// An instance that one list lacks is gone.
    OneAbsence,
    /// A held instance is shut down.
    HeldShutDown,
    /// A new leader shuts instances down before it is warm.
    NoWarmUp,
    /// An intent has no deadline.
    NoIntentDeadline,
    /// An older word of a source of requirements is taken.
    OlderSequence,
    /// A capacity group follows the sum of its requirements in place of what is desired.
    WantedForDesired,
    /// The deadline of a member's drain is set again with each message.
    DrainAnew,
    /// A member that vanished still counts.
    VanishedCounts,
    /// The leases of a batch run out while their worker is at the first.
    BatchClocksTogether,
    /// An allocation is evicted for a job of the same priority.
    EqualPriority,
    /// The job of an evicted allocation is not evaluated.
    VictimWithoutEvaluation,
    /// A wait for an index ends by its wake-up alone.
    NoSecondLook,
    /// An allocation counts as healthy again with each of its changes.
    HealthCountedTwice,
    /// Canaries that are promoted by themselves are not followed by an evaluation.
    PromotionForgotten,
    /// Canaries are promoted that are not healthy.
    UnhealthyPromoted,
    /// A failed version is reverted to a version that does the same.
    RevertLoop,
    /// A progress deadline is counted anew by each leader.
    DeadlineAnew,
    /// A due time of a periodic job that was dealt with is launched again.
    LaunchTwice,
    /// A new leader begins with the due times that are still to come.
    MissedNeverMadeUp,
    /// A dispatch that comes again under its token makes another child.
    DispatchTwice,
    /// Of the children that wait the youngest starts first.
    QueueOrderLost,
    /// A new leader knows nothing of boots that failed before it.
    BackoffForgotten,
    /// An instance whose node a person has set aside is shut down like another.
    SetAsideShutDown,
    /// A member takes a place that another one has.
    PlaceTwice,
}

/// Every plant by its names: the number, and a word.
#[cfg(feature = "plant")]
pub const TABLE: [(Plant, &str, &str); 60] = [
    (Plant::SkipLogSync, "M1", "skip-log-sync"),
    (Plant::SkipVoteSync, "M2", "skip-vote-sync"),
    (Plant::AcknowledgeBeforeCommit, "M3", "ack-before-commit"),
    (Plant::StaleRead, "M4", "stale-read"),
    (Plant::LeaseWithoutMargin, "M5", "lease-without-margin"),
    (Plant::NoDedupe, "M6", "no-deduplication"),
    (Plant::UnorderedApply, "M7", "unordered-apply"),
    (Plant::ClockInApply, "M8", "clock-in-apply"),
    (Plant::IndexBeforeRows, "M9", "index-before-rows"),
    (Plant::PurgeBeforeSync, "M10", "purge-before-sync"),
    (Plant::InstallInPlace, "M11", "install-in-place"),
    (Plant::QueueNotFlushed, "M12", "keep-old-plans"),
    (Plant::BrokerNotRestored, "M13", "broker-not-restored"),
    (Plant::JobsNotSerialised, "M14", "no-job-serialisation"),
    (Plant::NoRecheck, "M15", "plan-not-checked"),
    (Plant::ReservedPortsForgotten, "M16", "forget-reserved-ports"),
    (Plant::NackTimerNotPaused, "M17", "nack-while-queued"),
    (Plant::NoDeadline, "M18", "no-deadline"),
    (Plant::SkipChecksums, "M19", "skip-checksums"),
    (Plant::TornTailIsFatal, "M20", "torn-tail-is-fatal"),
    (Plant::LateRegistration, "M21", "late-registration"),
    (Plant::HeartbeatsNotReset, "M22", "keep-ttl"),
    (Plant::ReusedServerId, "M23", "reused-server-id"),
    (Plant::SwallowSyncError, "M24", "swallow-sync-error"),
    (Plant::HiddenRetry, "M25", "hidden-retry"),
    (Plant::Diverge, "diverge", "one-row-differs"),
    (Plant::AnyTokenAcknowledges, "any-token", "any-token-acknowledges"),
    (Plant::StalePlansTaken, "stale-plans", "stale-plans-taken"),
    (Plant::AnyEpochTaken, "any-epoch", "any-epoch-taken"),
    (Plant::NothingWakes, "nothing-wakes", "no-capacity-gain"),
    (Plant::RoomNotPassedOn, "room-not-passed-on", "unused-room-is-not-offered-again"),
    (Plant::StrikePerFailure, "strike-per-failure", "no-strike-window"),
    (Plant::OfflineExpires, "offline-expires", "reaping-forgets-offline"),
    (Plant::ReapInMassLoss, "reap-in-mass-loss", "no-mass-loss-guard"),
    (Plant::AffinityKept, "affinity-kept", "keep-affinity-after-cool-down"),
    (Plant::CallBeforeCommit, "call-before-commit", "create-before-intent"),
    (Plant::OneAbsence, "one-absence", "missing-once-is-gone"),
    (Plant::HeldShutDown, "held-shut-down", "hold-is-forgotten"),
    (Plant::NoWarmUp, "no-warm-up", "shrink-before-warm-up"),
    (Plant::NoIntentDeadline, "no-intent-deadline", "intent-without-deadline"),
    (Plant::OlderSequence, "older-sequence", "older-requirements-taken"),
    (Plant::WantedForDesired, "wanted-for-desired", "no-predictor"),
    (Plant::DrainAnew, "drain-anew", "drain-deadline-moves"),
    (Plant::VanishedCounts, "vanished-counts", "vanished-member-counts"),
    (Plant::BatchClocksTogether, "batch-clocks", "clock-behind-a-long-first"),
    (Plant::EqualPriority, "equal-priority", "preempt-an-equal"),
    (Plant::VictimWithoutEvaluation, "victim-without-evaluation", "victims-forgotten"),
    (Plant::NoSecondLook, "no-second-look", "wake-up-alone"),
    (Plant::HealthCountedTwice, "health-counted-twice", "healthy-with-each-change"),
    (Plant::PromotionForgotten, "promotion-forgotten", "promotion-without-evaluation"),
    (Plant::UnhealthyPromoted, "unhealthy-promoted", "any-canary-is-healthy"),
    (Plant::RevertLoop, "revert-loop", "revert-to-the-same"),
    (Plant::DeadlineAnew, "deadline-anew", "progress-deadline-moves"),
    (Plant::LaunchTwice, "launch-twice", "due-time-taken-again"),
    (Plant::MissedNeverMadeUp, "missed-never-made-up", "no-launch-after-an-outage"),
    (Plant::DispatchTwice, "dispatch-twice", "tokens-forgotten"),
    (Plant::QueueOrderLost, "queue-order-lost", "youngest-child-first"),
    (Plant::BackoffForgotten, "backoff-forgotten", "failures-die-with-the-leader"),
    (Plant::SetAsideShutDown, "set-aside-shut-down", "suspended-machine-idles-out"),
    (Plant::PlaceTwice, "place-twice", "two-members-of-one-place"),
];

#[cfg(feature = "plant")]
impl Plant {
    /// Those of the pure packages: `fsm`, `leader`, `elastic` and `scheduler`.
    pub const PURE: [Self; 44] = [
        Self::NoDedupe,
        Self::UnorderedApply,
        Self::ClockInApply,
        Self::QueueNotFlushed,
        Self::BrokerNotRestored,
        Self::JobsNotSerialised,
        Self::NoRecheck,
        Self::ReservedPortsForgotten,
        Self::NackTimerNotPaused,
        Self::HeartbeatsNotReset,
        Self::AnyTokenAcknowledges,
        Self::StalePlansTaken,
        Self::AnyEpochTaken,
        Self::NothingWakes,
        Self::RoomNotPassedOn,
        Self::StrikePerFailure,
        Self::OfflineExpires,
        Self::ReapInMassLoss,
        Self::AffinityKept,
        Self::CallBeforeCommit,
        Self::OneAbsence,
        Self::HeldShutDown,
        Self::NoWarmUp,
        Self::NoIntentDeadline,
        Self::OlderSequence,
        Self::WantedForDesired,
        Self::DrainAnew,
        Self::VanishedCounts,
        Self::BatchClocksTogether,
        Self::EqualPriority,
        Self::VictimWithoutEvaluation,
        Self::NoSecondLook,
        Self::HealthCountedTwice,
        Self::PromotionForgotten,
        Self::UnhealthyPromoted,
        Self::RevertLoop,
        Self::DeadlineAnew,
        Self::LaunchTwice,
        Self::MissedNeverMadeUp,
        Self::DispatchTwice,
        Self::QueueOrderLost,
        Self::BackoffForgotten,
        Self::SetAsideShutDown,
        Self::PlaceTwice,
    ];

    /// The name it is asked for by.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|(plant, ..)| *plant == self).map_or("", |(_, name, _)| name)
    }
}

#[cfg(feature = "plant")]
mod selected {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// The planted one's number plus one; 0: none.
    static SELECTED: AtomicU8 = AtomicU8::new(0);
    static ASKED: AtomicU64 = AtomicU64::new(0);

    fn number(plant: super::Plant) -> u8 {
        (plant as u8).saturating_add(1)
    }

    /// Plants the bug of this name in this process; none, and `false`, when nobody knows the name.
    pub fn select(name: &str) -> bool {
        let found = super::TABLE.iter().find(|(_, number, word)| [*number, *word].contains(&name));
        SELECTED.store(found.map_or(0, |(plant, ..)| number(*plant)), Ordering::Relaxed);
        found.is_some()
    }

    /// Whether this bug is planted in this process.
    pub fn is_planted(plant: super::Plant) -> bool {
        SELECTED.load(Ordering::Relaxed) == number(plant)
    }

    /// Something that differs at each call, as a clock or the order of a hash table does.
    pub fn whim() -> u64 {
        ASKED.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(feature = "plant")]
pub use selected::{is_planted, select, whim};

/// Whether this bug is planted in this process: never, in this build.
#[cfg(not(feature = "plant"))]
pub const fn is_planted(_plant: Plant) -> bool {
    false
}

/// Nothing differs in this build.
#[cfg(not(feature = "plant"))]
pub const fn whim() -> u64 {
    0
}
