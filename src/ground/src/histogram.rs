//! A histogram of durations with fixed buckets: powers of two of a microsecond. Written without a
//! lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::metrics::Sample;

/// Buckets: up to 1 µs, 2 µs, 4 µs … The last one takes what is longer than 2³⁰ µs, about 18 min:
/// machines may take minutes to come.
const BUCKETS: usize = 32;

/// Durations, counted.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - us.saturating_sub(1).leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn sample(&self) -> Sample {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        Sample {
            buckets: (0..).map(|power| 1 << power).zip(counts).collect(),
            sum_us: self.sum_us.load(Ordering::Relaxed),
            max_us: self.max_us.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_bucket_that_just_holds_it() {
        let histogram = Histogram::default();
        for us in [0, 1, 2, 3, 4, 5, 5_000_000_000] {
            histogram.record(Duration::from_micros(us));
        }
        let sample = histogram.sample();
        assert_eq!(sample.buckets[..4], [(1, 2), (2, 1), (4, 2), (8, 1)]);
        assert_eq!(sample.buckets.last(), Some(&(1 << 31, 1)));
        assert_eq!(
            (sample.count(), sample.sum_us, sample.max_us),
            (7, 5_000_000_015, 5_000_000_000)
        );
        assert_eq!(sample.quantile_us(50), 4);
        assert_eq!(sample.quantile_us(100), 5_000_000_000);
        assert_eq!(Histogram::default().sample().quantile_us(99), 0);
    }
}
