//! Chance from a seed. Each part of a simulation throws dice of its own, so that one more message does not change which server crashes.

/// `SplitMix64`: small, and the same on every platform.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Dice of one part of the simulation.
    pub(crate) fn new(seed: u64, part: &str) -> Self {
        let mixed = part.bytes().fold(seed, |sum, byte| {
            sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(byte)
        });
        Self(mixed)
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        // Constants of SplitMix64 (Steele, Lea, Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True this often per million.
    pub(crate) fn chance_ppm(&mut self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }

    /// An index below `length`, which is not 0.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a usize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_differ_and_repeat() {
        let throw = |part| (0..4).map(|_| Dice::new(7, part).next()).collect::<Vec<_>>();
        assert_eq!(throw("net"), throw("net"));
        assert_ne!(throw("net"), throw("nemesis"));
        let mut dice = Dice::new(1, "x");
        assert!((0..100).all(|_| (3..=5).contains(&dice.between(3, 5))));
    }
}
