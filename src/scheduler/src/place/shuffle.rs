//! The order in which nodes are looked at: a Fisher–Yates shuffle done only as far as it is read,
//! resuming where the last placement stopped.
//!
//! Workers on the same snapshot with different evaluations see different orders, so their plans
//! seldom collide; the same evaluation on the same snapshot always sees the same order. Must never
//! take chance from anywhere but its seed.

use chance::Dice;

/// A shuffled ring of positions `0..n`.
pub(crate) struct Ring {
    order: Vec<u32>,
    /// Invariant: `order[..shuffled]` is final.
    shuffled: usize,
    offset: usize,
    /// Each look begins with the first.
    is_fixed: bool,
    chance: Dice,
}

impl Ring {
    pub(crate) fn new(length: usize, seed: u64) -> Self {
        let length = u32::try_from(length).expect("fewer nodes than u32 holds");
        let order = (0..length).collect();
        Self { order, shuffled: 0, offset: 0, is_fixed: false, chance: Dice::new(seed) }
    }

    /// A ring in this order, which begins anew with each look.
    pub(crate) fn fixed(order: Vec<u32>) -> Self {
        let shuffled = order.len();
        Self { order, shuffled, offset: 0, is_fixed: true, chance: Dice::new(0) }
    }

    /// A look at the nodes begins.
    pub(crate) fn begin(&mut self) {
        if self.is_fixed {
            self.offset = 0;
        }
    }

    /// The next position; after the last one comes the first again.
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
