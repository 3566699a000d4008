//! The order in which nodes are tried: a Fisher–Yates shuffle. It is done only as far as the order
//! is read. The next placement resumes where the last one stopped.
//!
//! Workers with different evaluations get different orders, so their plans seldom collide. The same
//! evaluation on the same snapshot always gets the same order. Must never take randomness from
//! anything but the seed.

use chance::Dice;

/// A shuffled ring of positions `0..n`.
pub(crate) struct Ring {
    order: Vec<u32>,
    /// Invariant: `order[..shuffled]` is final.
    shuffled: usize,
    offset: usize,
    /// Every search begins with the first position again.
    is_fixed: bool,
    chance: Dice,
}

impl Ring {
    pub(crate) fn new(length: usize, seed: u64) -> Self {
        let length = u32::try_from(length).expect("fewer nodes than u32 holds");
        let order = (0..length).collect();
        Self { order, shuffled: 0, offset: 0, is_fixed: false, chance: Dice::new(seed) }
    }

    /// A ring with a given order. Every search begins with its first position.
    pub(crate) fn fixed(order: Vec<u32>) -> Self {
        let shuffled = order.len();
        Self { order, shuffled, offset: 0, is_fixed: true, chance: Dice::new(0) }
    }

    /// Begins the search for the node of one instance.
    pub(crate) fn begin(&mut self) {
        if self.is_fixed {
            self.offset = 0;
        }
    }

    /// The next position. After the last one the first follows again.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let length = self.order.len();
        if length == 0 {
            return None;
        }
        if self.offset == length {
            self.offset = 0;
        }
        if self.offset == self.shuffled {
            let left = (length - self.shuffled) as u64;
            let pick = self.shuffled + usize::try_from(below(&mut self.chance, left)).unwrap_or(0);
            self.order.swap(self.shuffled, pick);
            self.shuffled += 1;
        }
        let position = self.order[self.offset];
        self.offset += 1;
        Some(position as usize)
    }
}

/// A number below `bound`.
fn below(chance: &mut Dice, bound: u64) -> u64 {
    let product = u128::from(chance.bits()) * u128::from(bound);
    u64::try_from(product >> 64).expect("the high half of a product of two u64 is a u64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_visits_every_position_once_and_repeats_in_the_same_order() {
        let mut ring = Ring::new(100, 7);
        let first: Vec<_> = (0..100).filter_map(|_| ring.next()).collect();
        let second: Vec<_> = (0..100).filter_map(|_| ring.next()).collect();
        assert_eq!(first, second);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_ne!(first, sorted, "shuffled");
        let mut other = Ring::new(100, 8);
        let third: Vec<_> = (0..100).filter_map(|_| other.next()).collect();
        assert_ne!(first, third, "another seed, another order");
    }

    #[test]
    fn an_empty_ring_has_no_next() {
        assert_eq!(Ring::new(0, 1).next(), None);
    }
}
