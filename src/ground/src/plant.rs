//! Deliberate bugs in this package, and the choice of one for the whole process by `QUORATE_PLANT`.
//! The list is [`Plant`]; a build without the feature `plant` contains none. Tests of this package
//! can plant one for their own thread ([`planting`]), to prove that they would see it.

pub use fsm::plant::Plant;

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static PLANTED_HERE: std::cell::Cell<Option<Plant>> = const { std::cell::Cell::new(None) };
}

/// Plants what `QUORATE_PLANT` names, by number or word. A name that nobody knows is an error: a
/// misspelt bug would never be caught.
#[cfg(feature = "plant")]
pub fn select() -> anyhow::Result<()> {
    let Ok(name) = std::env::var("QUORATE_PLANT") else { return Ok(()) };
    let known: Vec<&str> = fsm::plant::TABLE.iter().map(|(_, number, _)| *number).collect();
    let known = known.join(", ");
    anyhow::ensure!(fsm::plant::select(&name), "QUORATE_PLANT={name:?}: use one of {known}");
    tracing::warn!(plant = name, "this server has a deliberate bug");
    Ok(())
}

/// Whether this bug is planted.
#[cfg(any(test, feature = "plant", feature = "testing"))]
pub fn is_planted(plant: Plant) -> bool {
    #[cfg(any(test, feature = "testing"))]
    if PLANTED_HERE.get() == Some(plant) {
        return true;
    }
    fsm::plant::is_planted(plant)
}

/// Whether this bug is planted: never, in this build.
#[cfg(not(any(test, feature = "plant", feature = "testing")))]
pub const fn is_planted(_plant: Plant) -> bool {
    false
}

/// Runs a test with a bug, on this thread; afterwards, also after a panic, it is gone.
#[cfg(any(test, feature = "testing"))]
pub fn planting<T>(plant: Plant, test: impl FnOnce() -> T) -> T {
    struct Gone;
    impl Drop for Gone {
        fn drop(&mut self) {
            PLANTED_HERE.set(None);
        }
    }
    PLANTED_HERE.set(Some(plant));
    let _gone = Gone;
    test()
}

/// The bug that is planted on this thread, to hand it on to another one.
#[cfg(any(test, feature = "testing"))]
pub fn planted_here() -> Option<Plant> {
    PLANTED_HERE.get()
}

/// Runs a test that must fail with a bug, on this thread.
///
/// # Panics
/// When the test passes all the same.
#[cfg(any(test, feature = "testing"))]
#[track_caller]
pub fn must_catch(plant: Plant, test: impl FnOnce() + std::panic::UnwindSafe) {
    let caught = std::panic::catch_unwind(|| planting(plant, test));
    let number = plant as u8 + 1;
    assert!(caught.is_err(), "M{number} was not caught: the test is blind to it");
}
