//! The largest value of a time that has just passed, kept in few numbers.

use serde::{Deserialize, Serialize};

use crate::{id::TimeMs, limits};

/// Past values that were larger than all later ones, and until when each held.
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
        if window_ms > 0 {
            self.held.push((value, at));
        }
        while self.held.len() > limits::PEAKS_MAX {
            // The oldest two become one: the larger value for the longer time.
            let (first, _) = self.held.remove(0);
            if let Some(second) = self.held.first_mut() {
                second.0 = first;
            }
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
            let window = 1 + dice.below(50);
            let (mut peaks, mut history, mut at) = (Peaks::default(), Vec::new(), 0);
            for _ in 0..15 {
                at += dice.below(9);
                let value = dice.below(20);
                peaks.note(value, at, window);
                history.push((value, at));
                let now = at + dice.below(60);
                let present = dice.below(20);
                let expected = largest_of(&history, present, now, window);
                assert_eq!(peaks.largest(present, now, window), expected);
                if let Some(falls) = peaks.falls_at(present, now, window) {
                    assert_eq!(peaks.largest(present, falls - 1, window), expected);
                    assert!(peaks.largest(present, falls, window) < expected);
                }
            }
        }
    }

    #[test]
    fn many_peaks_are_kept_as_few_that_are_no_smaller() {
        let mut peaks = Peaks::default();
        for step in 0..100 {
            peaks.note(1_000 - step, step, 1_000_000);
        }
        assert_eq!(peaks.held.len(), limits::PEAKS_MAX);
        assert_eq!(peaks.largest(0, 100, 1_000_000), 1_000);
        peaks.note(5, 2_000_000, 1_000_000);
        assert_eq!(peaks.largest(0, 2_000_000, 1_000_000), 5);
    }

    #[test]
    fn without_a_window_nothing_is_kept() {
        let mut peaks = Peaks::default();
        peaks.note(9, 1, 0);
        assert_eq!(peaks.largest(2, 1, 0), 2);
        assert_eq!(peaks, Peaks::default());
    }
}
