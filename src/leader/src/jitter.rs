//! Numbers that look random and follow from an id, the same on every leader: for spreading what
//! would otherwise happen at once.

use chance::mix;

/// A number below `range` that follows from `id`; 0 for an empty range.
pub(crate) fn below(id: [u8; 16], range: u64) -> u64 {
    let wide = u128::from_le_bytes(id);
    let low = u64::try_from(wide & u128::from(u64::MAX)).expect("masked to 64 bits");
    let high = u64::try_from(wide >> 64).expect("shifted to 64 bits");
    mix(low ^ mix(high)).checked_rem(range).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn numbers_are_spread_and_repeatable() {
        let mut buckets = [0u32; 10];
        for n in 0..1000u16 {
            let mut id = [0u8; 16];
            id[..2].copy_from_slice(&n.to_be_bytes());
            assert_eq!(below(id, 10), below(id, 10));
            buckets[usize::try_from(below(id, 10)).expect("below 10")] += 1;
        }
        assert!(buckets.iter().all(|count| (60..=140).contains(count)), "{buckets:?}");
        assert_eq!(below([7; 16], 0), 0);
    }
}
