//! Asks every member of the Raft configuration again and again whether it is there and what time it
//! has, counts the voters that answer, and on the leader warns of a configuration that survives
//! less than it seems to.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ground::{
    rt::{self, Instant, watch},
    server_name::ServerName,
};
use raft::{ServerId, WatchReceiver};

use super::{identity::Cluster, leading::Leading, members::Contact};

/// Between two probes of a peer.
const INTERVAL: Duration = Duration::from_millis(750);
/// Less than the interval: one probe of a peer is under way at a time.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(700);
/// A peer that did not answer for this long is shown as lost: three probes in a row failed.
pub(super) const PEER_LOST: Duration = Duration::from_millis(2_500);
/// A leader warns of what has been so for this long: servers are added one after the other, and
/// each takes a moment to answer.
const WARN_AFTER: Duration = Duration::from_secs(20);

/// Probes the peers until the server stops.
pub(super) async fn run(
    contact: Arc<Contact>,
    cluster: Arc<Cluster>,
    leading: Arc<Leading>,
    mut stop: watch::Receiver<bool>,
) {
    let mut warnings = Warnings::default();
    while rt::timeout(INTERVAL, rt::until_true(&mut stop)).await.is_err() {
        if cluster.get().is_none() {
            continue;
        }
        let metrics = contact.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        for (id, member) in membership.nodes().filter(|(id, _)| **id != contact.id) {
            let (contact, id, address) = (Arc::clone(&contact), *id, member.rpc_address.clone());
            rt::spawn(async move { contact.hear(id, &address, PROBE_TIMEOUT).await });
        }
        contact.time.look(&contact.voters());
        contact.forget_all_but(&membership.nodes().map(|(id, _)| *id).collect());
        let unheard = |id: &ServerId| *id != contact.id && !contact.was_heard(*id);
        let found = if leading.services().is_some() {
            Found {
                voters: membership.voter_ids().count(),
                never_heard: membership.voter_ids().filter(unheard).collect(),
            }
        } else {
            Found::default()
        };
        for line in warnings.of(found, Instant::now()) {
            match line {
                Warning::EvenVoters(voters) => tracing::warn!(
                    voters,
                    "an even number of voters survives no more failures than one voter less: add a server, or remove one"
                ),
                Warning::NeverHeard(id) => {
                    let member = membership.get_node(&id);
                    tracing::warn!(
                        server = %ServerName(id),
                        name = member.map(|one| &*one.name),
                        address = member.map(|one| &*one.rpc_address),
                        "a voter has never been heard by this leader: start it, or remove it (quorate operator raft remove-peer)"
                    );
                }
            }
        }
    }
}

/// Voters of the Raft configuration, and how many of them answer. While two configurations hold,
/// those of the one that can lose fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    pub(super) voters: usize,
    pub(super) alive: usize,
}

impl Census {
    pub(super) fn of(
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
    pub(super) fn majority(self) -> usize {
        self.voters / 2 + 1
    }

    /// Voters that answer beyond a majority; less than 0 while there is none.
    fn margin(&self) -> i64 {
        i64::try_from(self.alive).unwrap_or(i64::MAX)
            - i64::try_from(self.majority()).unwrap_or(i64::MAX)
    }

    /// How many more voters may fail before there is no majority.
    pub(super) fn may_fail(self) -> usize {
        self.alive.saturating_sub(self.majority())
    }
}

/// What a leader finds wrong with its voters; nothing on other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    voters: usize,
    never_heard: BTreeSet<ServerId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warning {
    EvenVoters(usize),
    NeverHeard(ServerId),
}

/// Says each finding once, when it has lasted.
#[derive(Debug, Default)]
struct Warnings {
    found: Found,
    /// When that was found.
    since: Option<Instant>,
    said: bool,
}

impl Warnings {
    fn of(&mut self, found: Found, now: Instant) -> Vec<Warning> {
        if self.since.is_none() || self.found != found {
            (self.found, self.since, self.said) = (found, Some(now), false);
        }
        let lasted =
            self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if self.said || lasted < WARN_AFTER {
            return Vec::new();
        }
        self.said = true;
        let Found { voters, never_heard } = &self.found;
        let is_even = *voters > 0 && voters.is_multiple_of(2);
        let even = is_even.then_some(Warning::EvenVoters(*voters));
        even.into_iter().chain(never_heard.iter().map(|id| Warning::NeverHeard(*id))).collect()
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

    #[test]
    fn what_lasts_is_warned_of_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let found = |voters, never: &[ServerId]| Found {
            voters,
            never_heard: never.iter().copied().collect(),
        };
        let mut warnings = Warnings::default();
        assert!(warnings.of(found(4, &[7]), at(0)).is_empty());
        assert!(warnings.of(found(4, &[7]), at(19)).is_empty(), "it may be on its way");
        let both = [Warning::EvenVoters(4), Warning::NeverHeard(7)];
        assert_eq!(warnings.of(found(4, &[7]), at(20)), both);
        assert!(warnings.of(found(4, &[7]), at(90)).is_empty(), "it was said");
        assert!(warnings.of(found(4, &[]), at(91)).is_empty());
        assert_eq!(warnings.of(found(4, &[]), at(111)), [Warning::EvenVoters(4)]);
        assert!(warnings.of(found(3, &[]), at(112)).is_empty());
        assert!(warnings.of(found(3, &[]), at(200)).is_empty(), "an odd number is right");
        // Another server leads, then this one again.
        assert!(warnings.of(Found::default(), at(201)).is_empty());
        assert!(warnings.of(found(4, &[]), at(300)).is_empty());
        assert_eq!(warnings.of(found(4, &[]), at(320)), [Warning::EvenVoters(4)]);
    }
}
