//! Latencies in buckets of 3 % width, so that a run of any length takes the same memory, and a span
//! of time that is measured.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Buckets per doubling: 2^5, a width of 1/32.
const FINE_BITS: u32 = 5;
const FINE: u64 = 1 << FINE_BITS;

/// The span that is measured; what begins before it is warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) begin: Instant,
    pub(super) end: Instant,
}

impl Window {
    pub(super) fn after(warm_up_s: u64, seconds: u64) -> Self {
        let begin = Instant::now() + Duration::from_secs(warm_up_s);
        Self { begin, end: begin + Duration::from_secs(seconds) }
    }

    /// From now on, for as long as it takes.
    pub(super) fn open() -> Self {
        let begin = Instant::now();
        Self { begin, end: begin + Duration::from_hours(365 * 24) }
    }

    pub(super) fn contains(&self, at: Instant) -> bool {
        self.begin <= at && at < self.end
    }

    pub(super) fn seconds(&self) -> f64 {
        (self.end - self.begin).as_secs_f64()
    }
}

/// Counts of latencies.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

fn bucket(nanoseconds: u64) -> usize {
    let exponent = nanoseconds.max(1).ilog2();
    let number = if exponent < FINE_BITS {
        nanoseconds
    } else {
        let shift = exponent - FINE_BITS;
        u64::from(shift + 1) * FINE + ((nanoseconds >> shift) - FINE)
    };
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The middle of a bucket.
fn middle(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    if bucket < FINE {
        return Duration::from_nanos(bucket);
    }
    let shift = bucket / FINE - 1;
    let low = (FINE + bucket % FINE) << shift;
    Duration::from_nanos(low + (1 << shift) / 2)
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        let number = bucket(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        if self.buckets.len() <= number {
            self.buckets.resize(number + 1, 0);
        }
        self.buckets[number] += 1;
        self.count += 1;
        self.max = self.max.max(latency);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The latency that `per_mille` of 1,000 are not above.
    pub(super) fn quantile(&self, per_mille: u64) -> Duration {
        let rank = (self.count * per_mille).div_ceil(1_000).max(1);
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(number).min(self.max);
            }
        }
        self.max
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        format!(
            "p50 {}, p99 {}, p99.9 {}, max {}",
            milliseconds(self.quantile(500)),
            milliseconds(self.quantile(990)),
            milliseconds(self.quantile(999)),
            milliseconds(self.max)
        )
    }

    /// Microseconds.
    pub(super) fn json(&self) -> Value {
        let microseconds = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(0);
        json!({
            "count": self.count,
            "p50_us": microseconds(self.quantile(500)),
            "p90_us": microseconds(self.quantile(900)),
            "p99_us": microseconds(self.quantile(990)),
            "p999_us": microseconds(self.quantile(999)),
            "max_us": microseconds(self.max),
        })
    }
}

/// A duration in milliseconds, with as many digits as are worth reading.
pub(super) fn milliseconds(duration: Duration) -> String {
    let value = duration.as_secs_f64() * 1e3;
    if value < 10.0 { format!("{value:.2} ms") } else { format!("{value:.0} ms") }
}

/// A count per second.
pub(super) fn rate(count: u64, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let count = count as f64;
    if seconds > 0.0 { (count / seconds * 10.0).round() / 10.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth() {
        let mut latencies = Latencies::default();
        for microseconds in 1..=10_000 {
            latencies.add(Duration::from_micros(microseconds));
        }
        for (per_mille, expected_us) in [(500, 5_000.0), (990, 9_900.0), (999, 9_990.0)] {
            let found = latencies.quantile(per_mille).as_secs_f64() * 1e6;
            assert!((found / expected_us - 1.0).abs() < 0.032, "{per_mille}: {found}");
        }
        assert_eq!(latencies.count(), 10_000);
        assert_eq!(latencies.quantile(1_000), Duration::from_millis(10));
        let mut other = Latencies::default();
        other.add(Duration::from_secs(1));
        latencies.merge(&other);
        assert_eq!((latencies.count(), latencies.max), (10_001, Duration::from_secs(1)));
        assert_eq!(Latencies::default().quantile(500), Duration::ZERO);
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        let mut last = 0;
        for nanoseconds in 1..200_000 {
            let number = bucket(nanoseconds);
            assert!(number == last || number == last + 1, "{nanoseconds}: {last} to {number}");
            last = number;
        }
        let huge = u64::MAX;
        assert!(bucket(huge) < 64 * 32);
    }
}
