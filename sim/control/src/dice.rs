//! Chance from a seed. Each step throws dice of its own, so that a step keeps its meaning when others are cut out.

/// `SplitMix64` (Steele, Lea, Flood, 2014): small, and the same on every platform.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Dice of one step of a seed.
    pub(crate) fn new(seed: u64, step: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0xd1b5_4a32_d192_ed03));
        dice.0 = dice.next().wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        dice.0 = dice.next();
        dice
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 for 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True this often per hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// An index below `length`; 0 for 0.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a usize")
    }

    /// One of them, if there is one.
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.index(from.len())).cloned()
    }
}
