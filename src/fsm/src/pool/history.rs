//! What a pool has asked for, and what came of it: the memory that bounds money and failure.
//!
//! ```text
//!  intent ────────────► `asked` (an hour of them, in parts): max_creates_per_hour
//!  refused ───────────► taken out of `asked` again: nothing was made
//!  boot failed ───────► backoff of its type, one level up; one more in a row ──► protected
//!  first ready ───────► backoff one level down; none in a row, not protected
//!  ran for the reset ─► no backoff
//!  `pool resume` ─────► no backoff, not protected
//! ```
//! Replicated, because a leader's memory of it would be lost and the next one would ask for
//! everything again. One row for each pool, with an entry for each type that fails; it changes with
//! an intent and with the end of a boot, never by time alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Instance, InstancePool};
use crate::{
    id::{Index, Text, TimeMs},
    limits,
    state::State,
    table::Row,
};

/// Length of a part of the hour in which creates are counted, ms.
const PART_MS: u64 = 5 * 60 * 1000;
const HOUR_MS: u64 = 60 * 60 * 1000;

/// How a machine that was asked for failed to serve.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum BootFailure {
    /// Its create had no outcome in time.
    NotMade,
    /// Its agent did not register in time, or its provider says that it is broken.
    NotBooted,
    /// Its node was not ready: its readiness check failed, or it went down before.
    NotReady,
    /// It was there and is gone.
    Vanished,
}

impl BootFailure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NotMade, Self::NotBooted, Self::NotReady, Self::Vanished];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotMade => "not made in time",
            Self::NotBooted => "did not boot",
            Self::NotReady => "not ready",
            Self::Vanished => "vanished",
        }
    }
}

/// What is remembered of the failures of one type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Backoff {
    /// How often the pause was doubled, and one; never 0.
    pub level: u32,
    /// No create of the type before this.
    pub until: TimeMs,
    /// When a failure last raised the level: those of machines that were asked for before are of
    /// the same burst.
    pub counted_at: TimeMs,
    /// Failures since the type last had none to remember.
    pub failures: u32,
    pub last: BootFailure,
    /// What was said of the last one.
    pub detail: Text,
    /// Where its machine was: a host, a zone; empty: not known.
    pub scope: Text,
}

/// What a pool has asked for and what came of it. It is there from the first intent on, and goes
/// with the pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolHistory {
    pub pool: Text,
    /// Creates by the part of time that they were asked for in, oldest first; those of the last
    /// hour and of one part.
    pub asked: Vec<(TimeMs, u32)>,
    /// Machines that failed in a row, for the same reason and with none between that served.
    pub in_a_row: u32,
    /// How the last of them failed; none: none did.
    pub last: Option<BootFailure>,
    /// The newest intent of which a machine came to serve: a failure of an older one is of a burst
    /// that was not all bad.
    pub proven_at: TimeMs,
    /// Since when the pool makes one machine at a time; 0: it does not.
    pub protected_since: TimeMs,
    /// By the type's name in the pool.
    pub types: BTreeMap<Text, Backoff>,
    pub modify_index: Index,
}

impl Row for PoolHistory {
    type Key = Text;

    fn key(&self) -> Text {
        self.pool.clone()
    }
}

/// A pause that is doubled with each level, ms.
pub(super) fn pause_ms(level: u32, most: u64) -> u64 {
    let doubled = level.saturating_sub(1).min(limits::BACKOFF_LEVEL_MAX);
    limits::BACKOFF_MS.checked_shl(doubled).unwrap_or(most).min(most)
}

impl Backoff {
    pub(super) fn pause_ms(&self) -> u64 {
        pause_ms(self.level, limits::BOOT_BACKOFF_MS_MAX)
    }
}

impl PoolHistory {
    /// Counts a create; what is older than an hour is dropped.
    pub(super) fn count(&mut self, at: TimeMs) {
        self.asked.retain(|(part, _)| is_of_hour(*part, at));
        let this = part_of(at);
        match self.asked.last_mut() {
            Some((part, count)) if *part == this => *count = count.saturating_add(1),
            Some(_) | None => self.asked.push((this, 1)),
        }
    }

    /// A create that was counted made nothing.
    pub(super) fn take_out(&mut self, asked_at: TimeMs) {
        let this = part_of(asked_at);
        if let Some((_, count)) = self.asked.iter_mut().find(|(part, _)| *part == this) {
            *count = count.saturating_sub(1);
        }
    }

    /// Creates of the last hour, up to a part of it more.
    pub fn asked_lately(&self, at: TimeMs) -> u32 {
        let lately = self.asked.iter().filter(|(part, _)| is_of_hour(*part, at));
        lately.map(|(_, count)| *count).fold(0, u32::saturating_add)
    }

    /// When [`Self::asked_lately`] falls next.
    pub fn falls_at(&self, at: TimeMs) -> Option<TimeMs> {
        let lately = self.asked.iter().filter(|(part, count)| is_of_hour(*part, at) && *count > 0);
        lately.map(|(part, _)| ends_at(*part)).next()
    }
}

fn part_of(at: TimeMs) -> TimeMs {
    at.saturating_sub(at.checked_rem(PART_MS).unwrap_or(0))
}

/// When the last create of a part is an hour old.
fn ends_at(part: TimeMs) -> TimeMs {
    part.saturating_add(PART_MS).saturating_add(HOUR_MS)
}

fn is_of_hour(part: TimeMs, at: TimeMs) -> bool {
    at < ends_at(part)
}

impl Instance {
    /// It was asked for and may come to serve, and did neither that nor fail yet.
    pub fn is_unproven(&self) -> bool {
        self.ready_at == 0 && self.failed_at == 0 && self.shutdown.is_none()
    }
}

impl State {
    /// The backoff in force at log time `at` for a type of a pool. Cost: the pool's instances while
    /// there is one.
    pub fn backoff_on(&self, pool: &InstancePool, kind: &Text, at: TimeMs) -> Option<&Backoff> {
        let backoff = self.pool_histories.get(&pool.name)?.types.get(kind)?;
        (at < backoff.until && !self.has_run(pool, kind, backoff.counted_at, at)).then_some(backoff)
    }

    /// Whether a machine of the type that was asked for after `since` has served for so long that
    /// earlier failures count no more.
    pub(super) fn has_run(
        &self,
        pool: &InstancePool,
        kind: &Text,
        since: TimeMs,
        at: TimeMs,
    ) -> bool {
        let mut rows = self.instances_of(&pool.name).filter(|row| row.kind.name == *kind);
        rows.any(|row| row.requested_at > since && row.has_served_for(pool.backoff_reset_ms, at))
    }

    /// Machines of a pool of which it is not known yet whether they come to serve.
    pub fn unproven_of(&self, pool: &str) -> usize {
        self.instances_of(pool).filter(|row| row.is_unproven()).count()
    }

    /// What the machines of a pool cost in an hour, those included that are on their way or going.
    pub fn price_of_pool(&self, pool: &str) -> u64 {
        self.instances_of(pool).map(|row| row.kind.price_micro).fold(0, u64::saturating_add)
    }
}

impl Instance {
    pub(super) fn has_served_for(&self, ms: u64, at: TimeMs) -> bool {
        self.ready_at > 0 && self.failed_at == 0 && self.ready_at.saturating_add(ms) <= at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_its_most() {
        let pauses = [1, 2, 3, 10, 11, 90].map(|level| pause_ms(level, 600_000));
        assert_eq!(pauses, [1_000, 2_000, 4_000, 512_000, 600_000, 600_000]);
    }

    /// No hour has more creates than are counted, wherever it begins.
    #[test]
    fn creates_of_an_hour_are_never_forgotten_within_it() {
        let mut dice = chance::Dice::new(3);
        let mut history = PoolHistory::default();
        let (mut at, mut all) = (1_000_000, Vec::new());
        for _ in 0..500 {
            at += dice.below(20 * 60_000);
            history.count(at);
            all.push(at);
            let exact = all.iter().filter(|one| **one + HOUR_MS > at).count();
            let late = all.iter().filter(|one| **one + HOUR_MS + PART_MS > at).count();
            let counted = usize::try_from(history.asked_lately(at)).unwrap_or(usize::MAX);
            assert!((exact..=late).contains(&counted), "{counted}: {exact} to {late}");
            assert!(history.asked.len() <= 14, "{}", history.asked.len());
            let falls = history.falls_at(at);
            let after = falls.map(|at| history.asked_lately(at));
            assert!(after.is_some_and(|after| after < history.asked_lately(at)));
        }
    }

    #[test]
    fn a_create_that_made_nothing_is_not_counted() {
        let mut history = PoolHistory::default();
        history.count(7);
        history.count(8);
        history.take_out(7);
        assert_eq!((history.asked_lately(9), history.falls_at(9)), (1, Some(PART_MS + HOUR_MS)));
        history.take_out(8);
        assert_eq!((history.asked_lately(9), history.falls_at(9)), (0, None));
    }
}
