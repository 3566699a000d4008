//! Who of the voters answers, and when a server that is silent counts as lost.

use std::{collections::BTreeSet, time::Duration};

use raft::ServerId;

/// How long a probe of a peer may take. Less than the interval between two: one is under way at a
/// time.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(700);
/// A peer that did not answer for this long is shown as lost: three probes in a row failed.
pub(crate) const PEER_LOST: Duration = Duration::from_millis(2_500);

/// Voters of the Raft configuration, and how many of them answer. While two configurations hold,
/// those of the one that can lose fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) voters: usize,
    pub(crate) alive: usize,
}

impl Census {
    pub(crate) fn of(
        configurations: &[BTreeSet<ServerId>],
        is_alive: impl Fn(&ServerId) -> bool,
    ) -> Self {
        let count = |voters: &BTreeSet<ServerId>| Self {
            voters: voters.len(),
            alive: voters.iter().filter(|id| is_alive(id)).count(),
        };
        configurations.iter().map(count).min_by_key(Self::margin).unwrap_or_default()
    }

    /// Voters whose answer is needed for anything.
    pub(crate) fn majority(self) -> usize {
        self.voters / 2 + 1
    }

    /// Voters that answer beyond a majority; less than 0 while there is none.
    fn margin(&self) -> i64 {
        i64::try_from(self.alive).unwrap_or(i64::MAX)
            - i64::try_from(self.majority()).unwrap_or(i64::MAX)
    }

    /// How many more voters may fail before there is no majority.
    pub(crate) fn may_fail(self) -> usize {
        self.alive.saturating_sub(self.majority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_that_can_lose_fewer_counts() {
        let census = |configurations: &[&[ServerId]], alive: &[ServerId]| {
            let configurations: Vec<BTreeSet<_>> =
                configurations.iter().map(|ids| ids.iter().copied().collect()).collect();
            let census = Census::of(&configurations, |id| alive.contains(id));
            (census.voters, census.alive, census.may_fail())
        };
        assert_eq!(census(&[&[1, 2, 3]], &[1, 2, 3]), (3, 3, 1));
        assert_eq!(census(&[&[1, 2, 3]], &[1, 2]), (3, 2, 0));
        assert_eq!(census(&[&[1, 2, 3]], &[1]), (3, 1, 0), "no majority");
        assert_eq!(census(&[&[1, 2, 3, 4]], &[1, 2, 3, 4]), (4, 4, 1));
        assert_eq!(census(&[&[1]], &[1]), (1, 1, 0));
        assert_eq!(census(&[&[1, 2, 3], &[1, 2, 4]], &[1, 2, 3]), (3, 2, 0));
        assert_eq!(census(&[], &[]), (0, 0, 0));
    }
}
