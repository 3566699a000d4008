//! Which calls of a register can matter to whether an order explains every answer.
//!
//! A call without an answer that writes what no answer shows and no call that matters demands can be left out: whoever demands a value finds
//! the same last writer of it without that call, so an order that contains it stays legal. Pure; knows nothing of how calls or values look.

use std::collections::BTreeSet;

/// The calls without those that cannot matter. `written` is the value that a call leaves, `demanded` the one that it must find.
pub(crate) fn without_invisible<C: Copy, V: Ord>(
    calls: &[C],
    is_answered: impl Fn(&C) -> bool,
    written: impl Fn(&C) -> Option<V>,
    demanded: impl Fn(&C) -> Option<V>,
) -> Vec<C> {
    let mut visible: BTreeSet<V> = BTreeSet::new();
    let keeps = |visible: &BTreeSet<V>, call: &C| {
        is_answered(call) || written(call).is_some_and(|value| visible.contains(&value))
    };
    loop {
        let before = visible.len();
        let seen: Vec<V> =
            calls.iter().filter(|call| keeps(&visible, call)).filter_map(&demanded).collect();
        visible.extend(seen);
        if visible.len() == before {
            break;
        }
    }
    calls.iter().filter(|call| keeps(&visible, call)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it has an answer, what it demands, what it writes.
    type Call = (bool, Option<u64>, Option<u64>);

    #[test]
    fn a_call_that_nobody_demands_is_left_out_with_those_it_demands() {
        let check = |calls: &[Call], expected: &[usize]| {
            let kept = without_invisible(calls, |call| call.0, |call| call.2, |call| call.1);
            let expected: Vec<Call> = expected.iter().map(|call| calls[*call]).collect();
            assert_eq!(kept, expected, "{calls:?}");
        };
        let (write, read) = (|value| (false, None, Some(value)), |value| (true, Some(value), None));
        let cas = |old, new| (false, Some(old), Some(new));
        check(&[write(1), (true, None, Some(2)), read(2)], &[1, 2]);
        check(&[write(1), write(1), write(2), read(1)], &[0, 1, 3]);
        // A chain whose end is read, and one whose end is not.
        check(&[write(1), cas(1, 2), read(2)], &[0, 1, 2]);
        check(&[write(1), cas(1, 2), (true, None, Some(3))], &[2]);
    }
}
