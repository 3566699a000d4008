//! Tests of the whole state machine: golden frames, loading, random commands. The scenarios of a
//! noun are beside it.
//!
//! They own no behaviour and must never reach into derived indexes to arrange something: everything
//! goes through commands.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod damage;
mod golden;
mod load;
mod random;

use crate::testing::{Driver, Interruption, rows};

/// SC-24: runs a script, then again with a tick, a reload or another leader before each of its
/// commands, one at a time and all together. The script's own checks hold in every run, and the end
/// state is the same.
pub(crate) fn with_leader_changes(script: impl Fn(&mut Driver)) {
    let run = |single: Option<(usize, Interruption)>, everywhere: Interruption| {
        let mut driver = Driver { interruptions: Some((everywhere, single)), ..Driver::default() };
        script(&mut driver);
        driver
    };
    let plain = run(None, Interruption::Blank);
    for kind in [Interruption::Tick, Interruption::Reload, Interruption::NewLeader] {
        let everywhere = std::iter::once((None, kind));
        let single = (0..plain.steps).map(|step| (Some((step, kind)), Interruption::Blank));
        for (single, everywhere) in everywhere.chain(single) {
            let other = run(single, everywhere);
            assert_eq!(rows(&other.state), rows(&plain.state), "{kind:?} at {single:?}");
            let mut head = other.state.head();
            head.term = plain.state.term;
            assert_eq!(head, plain.state.head(), "{kind:?} at {single:?}");
        }
    }
}
