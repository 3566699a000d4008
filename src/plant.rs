//! Deliberate bugs for testing the test harness. A build without the feature `plant` contains none: every question is answered with no at
//! compile time.

/// Whether this bug was asked for by `QUORATE_PLANT`.
#[cfg(feature = "plant")]
pub fn is_planted(name: &str) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<String> = OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("QUORATE_PLANT").unwrap_or_default()) == name
}

/// Plants the bug that `QUORATE_PLANT` names, if it is one of the pure packages'.
#[cfg(feature = "plant")]
pub fn install() {
    fsm::plant::select(&std::env::var("QUORATE_PLANT").unwrap_or_default());
}

/// Plants nothing, in this build.
#[cfg(not(feature = "plant"))]
pub const fn install() {}

/// Whether this bug was asked for: never, in this build.
#[cfg(not(feature = "plant"))]
pub const fn is_planted(_name: &str) -> bool {
    false
}
