//! Asks every member of the Raft configuration again and again whether it is there and what time it
//! has, counts the voters that answer, and on the leader warns of a configuration that survives
//! less than it seems to.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ground::{
    rt::{self, Instant, watch},
    server_name::ServerName,
};
use raft::{ServerId, WatchReceiver};

use crate::member::{census::PROBE_TIMEOUT, contact::Contact, identity::Cluster};

/// Between two probes of a peer.
const INTERVAL: Duration = Duration::from_millis(750);
/// A leader warns of what has been so for this long: servers are added one after the other, and
/// each takes a moment to answer.
const WARN_AFTER: Duration = Duration::from_secs(20);

/// Probes the peers until the server stops.
pub(crate) async fn run(
    contact: Arc<Contact>,
    cluster: Arc<Cluster>,
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
        let found = if contact.leads().is_some() {
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
    fn a_finding_that_lasts_is_warned_of_once() {
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
