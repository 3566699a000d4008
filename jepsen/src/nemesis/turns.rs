//! Whose turn it is: how many classes of faults are at work at a time, and who goes first.
//!
//! With every class at once nobody leads, nobody runs, and most attempts find nothing to break. So a few at a time; and while a class has never
//! been installed in this run, those that have been wait for it; one that tried in vain (no leader to hand over from, nothing running to break)
//! tries again when nothing else is at work. After some turns in vain it has no such claims any more: nobody is kept out for ever by a class that cannot
//! be installed here. Of the classes that lose what a disk holds only one is at work at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fault::FaultClass;

/// Classes that are at work at a time.
const AT_WORK_MAX: usize = 3;
/// Turns in vain after which a class goes when it can, like those that have been installed.
const CLAIMED_TURNS_MAX: u32 = 6;

/// The turns of one run.
pub(crate) struct Turns {
    /// Who takes part.
    classes: BTreeSet<FaultClass>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    at_work: BTreeSet<FaultClass>,
    installed: BTreeSet<FaultClass>,
    /// Turns so far; they were in vain while the class was never installed.
    turns: BTreeMap<FaultClass, u32>,
}

impl Turns {
    /// Nobody has had a turn yet.
    pub(crate) fn new(classes: &[FaultClass]) -> Self {
        Self { classes: classes.iter().copied().collect(), state: Mutex::default() }
    }

    /// Begins a turn, if it is this class's.
    pub(super) fn begin(&self, class: FaultClass) -> bool {
        let mut state = self.state();
        if loses_disks(class) && state.at_work.iter().any(|other| loses_disks(*other)) {
            return false;
        }
        let turns = |class: &FaultClass| state.turns.get(class).copied().unwrap_or(0);
        let is_new = |class: &FaultClass| {
            !state.installed.contains(class) && turns(class) < CLAIMED_TURNS_MAX
        };
        let is_unlucky = |class: &FaultClass| is_new(class) && turns(class) > 0;
        if self.classes.iter().any(is_unlucky) {
            let goes = is_unlucky(&class) && state.at_work.is_empty();
            return goes && state.at_work.insert(class);
        }
        let others_wait =
            self.classes.iter().any(|other| is_new(other) && !state.at_work.contains(other));
        if state.at_work.len() >= AT_WORK_MAX || (others_wait && !is_new(&class)) {
            return false;
        }
        state.at_work.insert(class)
    }

    /// Ends a turn.
    pub(super) fn end(&self, class: FaultClass) {
        let mut state = self.state();
        state.at_work.remove(&class);
        *state.turns.entry(class).or_default() += 1;
    }

    /// A fault of this class took hold.
    pub(super) fn installed(&self, class: FaultClass) {
        self.state().installed.insert(class);
    }

    /// Whether a fault of every class took hold at least once.
    pub(crate) fn all_installed(&self) -> bool {
        let state = self.state();
        self.classes.iter().all(|class| state.installed.contains(class))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a server hit by this class may lose what it promised to keep: two such servers at a time are more than a majority of disks bears.
fn loses_disks(class: FaultClass) -> bool {
    matches!(class, FaultClass::Corrupt | FaultClass::Member | FaultClass::Rollback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultClass::{Corrupt, Delay, Kill, Loss, Member, Partition, Pause};

    #[test]
    fn one_disk_is_lost_at_a_time() {
        let turns = Turns::new(&[Corrupt, Member, Kill]);
        assert!(turns.begin(Member) && !turns.begin(Corrupt) && turns.begin(Kill));
        turns.installed(Member);
        turns.end(Member);
        assert!(turns.begin(Corrupt) && !turns.begin(Member));
    }

    #[test]
    fn few_are_at_work_at_a_time() {
        let turns = Turns::new(&[Kill, Pause, Partition, Delay]);
        assert!(turns.begin(Kill) && turns.begin(Pause) && turns.begin(Partition));
        assert!(!turns.begin(Delay));
        turns.installed(Pause);
        turns.end(Pause);
        assert!(turns.begin(Delay));
    }

    #[test]
    fn a_fault_that_tried_in_vain_gets_the_cluster_for_itself() {
        let turns = Turns::new(&[Kill, Pause]);
        assert!(turns.begin(Kill));
        assert!(turns.begin(Pause));
        turns.end(Pause);
        assert!(!turns.begin(Pause), "the other is still at work");
        turns.installed(Kill);
        turns.end(Kill);
        assert!(!turns.begin(Kill), "it waits for the unlucky one");
        assert!(turns.begin(Pause));
        turns.installed(Pause);
        assert!(turns.begin(Kill));
    }

    #[test]
    fn a_fault_that_cannot_be_installed_keeps_no_other_out_for_ever() {
        let turns = Turns::new(&[Kill, Pause]);
        for _ in 0..CLAIMED_TURNS_MAX {
            assert!(turns.begin(Pause));
            turns.end(Pause);
        }
        assert!(turns.begin(Kill));
        turns.installed(Kill);
        turns.end(Kill);
        assert!(turns.begin(Kill) && turns.begin(Pause));
        assert!(!turns.all_installed());
    }

    #[test]
    fn a_fault_that_was_never_installed_goes_first() {
        let turns = Turns::new(&[Kill, Pause, Loss]);
        for class in [Kill, Pause] {
            assert!(turns.begin(class));
            turns.installed(class);
            turns.end(class);
        }
        assert!(!turns.begin(Kill) && !turns.all_installed());
        assert!(turns.begin(Loss));
        // It is at work: the others need not wait for what it comes to.
        assert!(turns.begin(Kill));
        turns.installed(Loss);
        turns.end(Loss);
        assert!(turns.begin(Pause) && turns.all_installed());
    }
}
