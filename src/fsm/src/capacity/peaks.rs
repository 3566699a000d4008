//! The largest value of a time that has just passed, kept in few numbers.

use serde::{Deserialize, Serialize};

use crate::{id::TimeMs, limits};

/// Past values that were larger than all later ones, and until when each held. Values that ended
/// within one of [`limits::PEAKS_MAX`] parts of the window are one, the largest for the longest
/// time, so that many small falls are few numbers, and each is at most a part of the window late.
///
/// Invariant: values fall and times rise from one to the next.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Peaks {
    held: Vec<(u64, TimeMs)>,
}

impl Peaks {
    /// Notes that `value` held until `at`. What is older than `window_ms` is dropped.
    pub(crate) fn note(&mut self, value: u64, at: TimeMs, window_ms: u64) {
        self.held.retain(|(_, until)| until.saturating_add(window_ms) > at);
        while self.held.last().is_some_and(|(last, _)| *last <= value) {
            self.held.pop();
        }
        if window_ms == 0 {
            return;
        }
        let part_ms = window_ms.div_euclid(limits::PEAKS_MAX).max(1);
        let part = |at: TimeMs| at.checked_div(part_ms);
        match self.held.last_mut() {
            Some((_, until)) if part(*until) == part(at) => *until = at,
            Some(_) | None => self.held.push((value, at)),
        }
    }

    /// The largest value of the last `window_ms` before `now`, the present one included.
    pub fn largest(&self, present: u64, now: TimeMs, window_ms: u64) -> u64 {
        self.within(now, window_ms).map(|(value, _)| value).fold(present, u64::max)
    }

    /// When [`Self::largest`] falls next if nothing else changes.
    pub fn falls_at(&self, present: u64, now: TimeMs, window_ms: u64) -> Option<TimeMs> {
        let first = self.within(now, window_ms).find(|(value, _)| *value > present)?;
        Some(first.1.saturating_add(window_ms))
    }

    fn within(&self, now: TimeMs, window_ms: u64) -> impl Iterator<Item = (u64, TimeMs)> {
        let is_in = move |until: TimeMs| until.saturating_add(window_ms) > now;
        self.held.iter().copied().filter(move |(_, until)| is_in(*until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest_of(history: &[(u64, u64)], present: u64, now: u64, window: u64) -> u64 {
        let mut most = present;
        for (value, until) in history {
            if until + window > now {
                most = most.max(*value);
            }
        }
        most
    }

    #[test]
    fn the_largest_is_that_of_the_whole_history() {
        let mut dice = chance::Dice::new(7);
        for _ in 0..200 {
            let window = 1 + dice.below(100);
            let (mut peaks, mut history, mut at) = (Peaks::default(), Vec::new(), 0);
            for _ in 0..15 {
                at += dice.below(9);
                let value = dice.below(20);
                peaks.note(value, at, window);
                history.push((value, at));
                let now = at + dice.below(120);
                let present = dice.below(20);
                let found = peaks.largest(present, now, window);
                let late = window / limits::PEAKS_MAX;
                let exact = largest_of(&history, present, now, window);
                let most = largest_of(&history, present, now, window + late);
                assert!((exact..=most).contains(&found), "{found}: {exact} to {most}");
                if let Some(falls) = peaks.falls_at(present, now, window) {
                    assert_eq!(peaks.largest(present, falls - 1, window), found);
                    assert!(peaks.largest(present, falls, window) < found);
                }
            }
        }
    }

    /// A slow fall in many steps: few numbers, and none holds much longer than the window.
    #[test]
    fn many_small_falls_are_few_numbers() {
        let mut peaks = Peaks::default();
        for step in 0..5_000 {
            peaks.note(10_000 - step, step, 160);
            assert!(peaks.held.len() <= 18, "{}", peaks.held.len());
            let largest = peaks.largest(0, step, 160);
            let window_ago = 10_000 - step.saturating_sub(160 + 10);
            assert!(largest <= window_ago, "{largest} at {step}");
        }
    }

    #[test]
    fn without_a_window_nothing_is_kept() {
        let mut peaks = Peaks::default();
        peaks.note(9, 1, 0);
        assert_eq!(peaks.largest(2, 1, 0), 2);
        assert_eq!(peaks, Peaks::default());
    }
}
