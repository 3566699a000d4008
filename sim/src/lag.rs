//! Servers whose state falls behind their log, as when a machine is short of processor time: they hear, vote and answer, and apply nothing for a while.

use std::time::Duration;

use crate::{coverage, trace, world::World};
use chance::Dice;
use ground::rt::{self, Instant};

/// Longest pause between two of them, ms.
const GAP_MS_MAX: u64 = 2_500;
/// How long a server applies nothing, ms: a moment, or past the 5 s after which its workers give their leases back.
const HELD_MS: [(u64, u64); 2] = [(200, 5_000), (5_500, 9_000)];

/// Holds the application of entries back for as long as the plan says.
pub(crate) async fn run(world: World) {
    let mut dice = Dice::named(world.swarm.seed, "lag");
    let end = Instant::now() + Duration::from_millis(world.swarm.safety_ms);
    while Instant::now() < end && !world.is_calm() {
        rt::sleep(Duration::from_millis(dice.between(100, GAP_MS_MAX))).await;
        let server = dice.index(world.count());
        let (least, most) = HELD_MS[dice.index(HELD_MS.len())];
        let lasts = Duration::from_millis(dice.between(least, most));
        let Some(core) = world.core(server) else { continue };
        trace::event("lag", format_args!("s{server} applies nothing for {lasts:?}"));
        let (applied, released) = (core.applied(), core.leases_released_for_lag());
        core.hold_apply(true);
        drop(core);
        let release = Instant::now() + lasts;
        while Instant::now() < release && !world.is_calm() {
            rt::sleep(Duration::from_millis(50)).await;
        }
        // One that started meanwhile applies from its start on.
        let Some(core) = world.core(server) else { continue };
        if world.newest().is_some_and(|state| state.index() > applied) && core.applied() == applied
        {
            coverage::hit("a server's state stood still while others went on");
        }
        if core.leases_released_for_lag() > released {
            coverage::hit("a worker gave a lease back because its server lagged");
        }
        core.hold_apply(false);
    }
}
