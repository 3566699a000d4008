//! Deliberate bugs, to prove that the fault tests see them.
//!
//! With the feature `plant`, `QUORATE_PLANT` names one bug of the list in `docs/testing.md` (M1 …).
//! Without the feature [`planted`] is the constant `false`; a release never carries the feature.

/// A bug this log can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// M1: appended entries are acknowledged without a sync.
    SkipLogSync,
    /// M2: a vote is acknowledged without a sync.
    SkipVoteSync,
    /// M19: checksums are not looked at.
    SkipChecksums,
    /// M20: a torn last batch is treated as damage.
    TornTailIsFatal,
    /// M24: a failed sync counts as done.
    SwallowSyncError,
}

#[cfg(feature = "plant")]
impl Plant {
    fn name(self) -> &'static str {
        match self {
            Self::SkipLogSync => "M1",
            Self::SkipVoteSync => "M2",
            Self::SkipChecksums => "M19",
            Self::TornTailIsFatal => "M20",
            Self::SwallowSyncError => "M24",
        }
    }
}

/// Whether this process runs with that bug.
#[cfg(feature = "plant")]
pub(super) fn planted(plant: Plant) -> bool {
    static NAME: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("QUORATE_PLANT").ok());
    NAME.as_deref() == Some(plant.name())
}

/// Whether this process runs with that bug: never.
#[cfg(not(feature = "plant"))]
pub(super) const fn planted(_plant: Plant) -> bool {
    false
}
