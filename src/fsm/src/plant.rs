//! Deliberate bugs of the pure packages, for testing the tests: `leader`, `scheduler` and this package ask [`is_planted`] where a mechanism can
//! be switched off. A build without the feature `plant` contains none: every question is answered with no at compile time.
//!
//! One bug per process, chosen by [`select`] before anything else runs: a pure package reads no environment.

/// A mechanism that can be switched off. The numbers are those of `docs/testing.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// A retried request takes effect again.
    NoDedupe,
    /// `apply` goes through a map in an order of its own on each replica.
    UnorderedApply,
    /// `apply` asks a clock.
    ClockInApply,
    /// A leader that is deposed keeps its queued plans to itself.
    QueueNotFlushed,
    /// A new leader does not take the pending evaluations over.
    BrokerNotRestored,
    /// Several evaluations of a job are handed out at a time.
    JobsNotSerialised,
    /// `apply` takes a plan's placements without judging them again.
    NoRecheck,
    /// Ports kept from tasks are given to them.
    ReservedPortsForgotten,
    /// A lease runs out although its plan is queued.
    NackTimerNotPaused,
    /// A new leader counts silence from before it led.
    HeartbeatsNotReset,
    /// Any token ends a lease.
    AnyTokenAcknowledges,
    /// A plan older than the job's last one is taken.
    StalePlansTaken,
    /// An entry of another leadership is taken.
    AnyEpochTaken,
    /// A capacity gain wakes nothing.
    NothingWakes,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 14] = [
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
    ];

    /// The name it is asked for by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoDedupe => "M6",
            Self::UnorderedApply => "M7",
            Self::ClockInApply => "M8",
            Self::QueueNotFlushed => "M12",
            Self::BrokerNotRestored => "M13",
            Self::JobsNotSerialised => "M14",
            Self::NoRecheck => "M15",
            Self::ReservedPortsForgotten => "M16",
            Self::NackTimerNotPaused => "M17",
            Self::HeartbeatsNotReset => "M22",
            Self::AnyTokenAcknowledges => "any-token-acknowledges",
            Self::StalePlansTaken => "stale-plans-taken",
            Self::AnyEpochTaken => "any-epoch-taken",
            Self::NothingWakes => "nothing-wakes",
        }
    }
}

#[cfg(feature = "plant")]
mod chosen {
    use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

    use super::Plant;

    static CHOSEN: AtomicU8 = AtomicU8::new(0);
    static ASKED: AtomicU64 = AtomicU64::new(0);

    /// Chooses the bug of that name for this process; none for any other name. True: there is such a bug.
    pub fn select(name: &str) -> bool {
        let place = Plant::ALL.iter().position(|plant| plant.name() == name);
        let number = place.and_then(|place| u8::try_from(place.saturating_add(1)).ok());
        CHOSEN.store(number.unwrap_or(0), Ordering::Relaxed);
        number.is_some()
    }

    /// Whether this process runs with that bug.
    pub fn is_planted(plant: Plant) -> bool {
        let number = CHOSEN.load(Ordering::Relaxed);
        let place = usize::from(number).checked_sub(1);
        place.and_then(|place| Plant::ALL.get(place)) == Some(&plant)
    }

    /// Something that differs at each call, as a clock or the order of a hash table does.
    pub fn whim() -> u64 {
        ASKED.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(feature = "plant")]
pub use chosen::{is_planted, select, whim};

/// Chooses a bug for this process: there is none in this build.
#[cfg(not(feature = "plant"))]
pub const fn select(_name: &str) -> bool {
    false
}

/// Whether this process runs with that bug: never, in this build.
#[cfg(not(feature = "plant"))]
pub const fn is_planted(_plant: Plant) -> bool {
    false
}

/// Nothing differs in this build.
#[cfg(not(feature = "plant"))]
pub const fn whim() -> u64 {
    0
}
