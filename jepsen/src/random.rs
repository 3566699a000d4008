//! Seeded randomness: xoshiro256** filled by splitmix64.
//!
//! Owns the one source of chance of a run, so that the printed seed fixes which faults, targets and
//! operations are drawn (not how the servers interleave). It must never be used for secrets.

use std::time::Duration;

/// A small, fast, seeded generator; one per thread, each from [`Random::stream`].
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator of stream number `stream` of a seed; streams are independent of each other.
    pub(crate) fn stream(seed: u64, stream: u64) -> Self {
        let mut mixer = seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        Self { state: std::array::from_fn(|_| split_mix(&mut mixer)) }
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `bound`, which must not be 0. The bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "no number is below 0");
        let product = u128::from(self.bits()) * bound as u128;
        usize::try_from(product >> 64).expect("the quotient is below a usize")
    }

    /// One of the items, which must not be empty.
    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Reorders the items.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// A duration between the two, to the microsecond.
    pub(crate) fn duration(&mut self, from: Duration, to: Duration) -> Duration {
        let span = usize::try_from(to.saturating_sub(from).as_micros()).unwrap_or(usize::MAX);
        let extra = self.below(span.saturating_add(1));
        from + Duration::from_micros(extra as u64)
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_stream_and_streams_differ() {
        let draw = |seed, stream| {
            let mut random = Random::stream(seed, stream);
            (0..8).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }

    #[test]
    fn draws_stay_in_bounds_and_reach_all_of_them() {
        let mut random = Random::stream(1, 0);
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            seen[random.below(5)] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        let (from, to) = (Duration::from_millis(5), Duration::from_millis(15));
        assert!((0..1_000).all(|_| (from..=to).contains(&random.duration(from, to))));
        assert_eq!(random.duration(to, from), to);
        let mut items: Vec<usize> = (0..100).collect();
        random.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
