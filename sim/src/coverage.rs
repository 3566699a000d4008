//! What a run has met: counters of things that must happen *sometimes*. A simulation that never loses a leader while a plan is in flight proves nothing
//! about it, so `sim many` adds the counters of all seeds up and fails when one of [`REQUIRED`] is zero.

use std::{cell::RefCell, collections::BTreeMap};

/// What many seeds together must have met, each at least once.
pub(crate) const REQUIRED: [&str; 78] = [
    "a leader was deposed",
    "a leader crashed",
    "a leader was lost while evaluations were leased",
    "a server restarted with a log",
    "a server knew at its start what was committed",
    "a torn write was cut from a log",
    "a snapshot was sent to a follower",
    "a restarted server needed a snapshot",
    "all servers lost power at once",
    "a machine stopped while it was sent a snapshot or installed it",
    "a failed disk ended a server",
    "a disk was full",
    "a damaged server refused to start",
    "a server with a damaged disk started and was right",
    "a wiped server joined under a new id",
    "a paused server went on",
    "a paused leader was deposed",
    "a wall clock jumped",
    "a wall clock drifted",
    "log time went on from the clocks",
    "a server with a wrong clock led",
    "a leader was lost in a quiet time",
    "a disk was slow",
    "a link was cut in one direction",
    "a link flapped",
    "a message was lost",
    "a message was delivered twice",
    "a message was delivered late",
    "a message of an old incarnation reached a restarted server",
    "a message was overtaken",
    "a stream broke",
    "a write of unknown outcome was there later",
    "a request was sent again under its id",
    "work was refused for overload",
    "a job of two groups was asked for",
    "a node went down",
    "an evaluation was blocked",
    "an allocation was replaced",
    "an acknowledged index was found durable on a majority",
    "a disk was opened and judged",
    "a damaged disk opened as what it was",
    "a damaged disk was refused",
    "a machine stopped in the middle of a change of its disk",
    "a server was restarted as planned",
    "a stranger spoke to a server",
    "a server was read without the leader",
    "a server's state stood still while others went on",
    "a worker gave a lease back because its server lagged",
    "a setting was changed",
    "an agent met a server behind what it had been shown",
    "a disk was lost again soon after",
    "an agent stood still with its stream open",
    "an agent's check failed",
    "a node failed at what it ran or was given",
    "a strike suspended a node",
    "a strike suspended no node, for as many were as may be",
    "several agents were out of reach at once",
    "a mass loss began",
    "the servers ended a mass loss",
    "a node that was due to be reaped came back from a mass loss",
    "an agent was killed while its tasks went on",
    "an agent found again what the last one had begun",
    "a machine booted",
    "an agent was told to stop",
    "tasks were restarted by order",
    "a node was purged",
    "a write was turned away for want of room",
    "a server was left behind for a moment",
    "a leader was cut off with a server that was joining",
    "a full server was elected",
    "a snapshot was overtaken by a newer one while it was built",
    "a server that was out of touch let go of its agents",
    "a server was cut off from all others",
    "the servers fell into two sides",
    "two sides saw each other through one server only",
    "each server saw its neighbours in a ring only",
    "two of three servers did not see each other",
    "one of three servers did not hear another",
];

thread_local! {
    static COUNTS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// It happened.
pub(crate) fn hit(what: &'static str) {
    debug_assert!(REQUIRED.contains(&what), "{what:?} is not in the list of what must happen");
    COUNTS.with_borrow_mut(|counts| *counts.entry(what).or_default() += 1);
}

/// How often what happened in this run.
pub(crate) fn counts() -> BTreeMap<&'static str, u64> {
    COUNTS.with_borrow(BTreeMap::clone)
}

/// What none of the runs met.
pub(crate) fn missing(total: &BTreeMap<String, u64>) -> Vec<&'static str> {
    REQUIRED.into_iter().filter(|what| total.get(*what).copied().unwrap_or(0) == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_never_happened_are_named() {
        hit("a link flapped");
        hit("a link flapped");
        let total = counts().into_iter().map(|(what, times)| (what.to_owned(), times)).collect();
        let missing = missing(&total);
        assert_eq!(total["a link flapped"], 2);
        assert_eq!(missing.len(), REQUIRED.len() - 1);
        assert!(!missing.contains(&"a link flapped"));
    }
}
