//! Chance from a seed: the one random generator of the tree.
//!
//! It serves simulations, the fault injector, tests, and choices that must come out the same on
//! every server. The same seed gives the same numbers on every platform and in every release of
//! Rust. It must never be used for secrets or for ids that have to be unique.

use std::time::Duration;

/// What `SplitMix64` adds to its state at each step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that depends on all bits of `value`: the output of `SplitMix64` in that state (Steele,
/// Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The generator `SplitMix64`. Each part of a simulation throws dice of its own, so that one more
/// draw in one part changes nothing in the others.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The generator in this state.
    pub fn new(state: u64) -> Self {
        Self(state)
    }

    /// The dice of the part of a simulation that has this name.
    pub fn named(seed: u64, part: &str) -> Self {
        let mixed = part
            .bytes()
            .fold(seed, |sum, byte| sum.rotate_left(7).wrapping_mul(STEP) ^ u64::from(byte));
        Self(mixed)
    }

    /// The dice of the step or stream that has this number.
    pub fn numbered(seed: u64, number: u64) -> Self {
        let first = mix(seed.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(mix(first.wrapping_add(number.wrapping_mul(STEP))))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }

    /// A number below `bound`; 0 for 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits().checked_rem(bound).unwrap_or(0)
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// `true` on average once in `times` draws; always for 0 and 1.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// `true` this often per hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// `true` this often per million.
    pub fn chance_ppm(&mut self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }

    /// An index below `length`; 0 for 0.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a usize")
    }

    /// A copy of one of the items; `None` if there are none.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.index(items.len())).cloned()
    }

    /// A copy of one of the items. Panics if there are none.
    pub fn choose<T: Clone>(&mut self, items: &[T]) -> T {
        self.pick(items).expect("there is something to choose from")
    }

    /// Reorders the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// A duration from `from` to `to`, to the microsecond; `from` if `to` is shorter.
    pub fn duration(&mut self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_micros()).unwrap_or(u64::MAX);
        from + Duration::from_micros(self.below(span.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut dice = Dice::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| dice.bits()).collect();
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn parts_and_streams_differ_and_repeat() {
        let draw = |mut dice: Dice| (0..8).map(|_| dice.bits()).collect::<Vec<_>>();
        assert_eq!(draw(Dice::named(7, "net")), draw(Dice::named(7, "net")));
        assert_ne!(draw(Dice::named(7, "net")), draw(Dice::named(7, "nemesis")));
        assert_eq!(draw(Dice::numbered(7, 1)), draw(Dice::numbered(7, 1)));
        assert_ne!(draw(Dice::numbered(7, 1)), draw(Dice::numbered(7, 2)));
        assert_ne!(draw(Dice::numbered(7, 1)), draw(Dice::numbered(8, 1)));
    }

    /// The recorded regressions of the simulations mean something only while their seeds draw the
    /// same numbers.
    #[test]
    fn seeds_keep_their_meaning() {
        assert_eq!(Dice::named(7, "net").bits(), 8_937_263_940_738_985_183);
        assert_eq!(Dice::numbered(7, 3).bits(), 4_743_870_373_521_065_098);
    }

    #[test]
    fn draws_stay_in_bounds_and_reach_all_of_them() {
        let mut dice = Dice::numbered(1, 0);
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            seen[dice.index(5)] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert!((0..100).all(|_| (3..=5).contains(&dice.between(3, 5))));
        assert_eq!((dice.below(0), dice.pick::<u8>(&[])), (0, None));
        let (from, to) = (Duration::from_millis(5), Duration::from_millis(15));
        assert!((0..1_000).all(|_| (from..=to).contains(&dice.duration(from, to))));
        assert_eq!(dice.duration(to, from), to);
    }

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<usize> = (0..100).collect();
        Dice::numbered(1, 0).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
