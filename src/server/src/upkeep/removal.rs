//! Members that are taken out: by the leader, on the word of an operator, and what the one that was
//! taken out makes of it.
//!
//! ```text
//!  the members that others have applied, newer than mine, lack me
//!    another server has my address  ──► it took my place while I was away: I join again
//!    none has it                    ──► an operator took me out: marker REMOVED, end, never again
//!                                       from this directory
//! ```
//! Newer means a higher index in the log: a server that lags and does not know this one yet proves
//! nothing. Invariant: a server ends itself only on members that were committed after it was one.
//! A server that votes in an entry that is not committed yet was one: only a committed learner is
//! made a voter. Its removal may have come in the same batch as everything before it, so that the
//! entry that takes it out is all that it ever sees.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use fsm::Index;
use ground::{disk::Disk, rt, server_name::ServerName};
use openraft::ChangeMembers;
use raft::{Membership, ServerId, StoredMembership, WatchReceiver, storage::shadow::write_file};
use wire::api::ApiError;

use crate::{
    member::{census::Census, contact::Contact, identity::Cluster, lifecycle::Lifecycle},
    upkeep::bootstrap::{
        PEER_CHECK, PROBE_TIMEOUT, ask_to_join, is_membership_joint, settled_members,
    },
};

/// How long a removal may take: two entries on a majority.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);
const MARKER: &str = "REMOVED";

/// Takes a member out; on the leader. Answers when the new members are committed.
pub(crate) async fn take_out(contact: &Contact, id: ServerId, force: bool) -> Result<(), ApiError> {
    if is_membership_joint(contact) {
        let what = "another change of the members is under way: try again";
        return Err(ApiError::NotReady(what.to_owned()));
    }
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let membership = metrics.membership_config.membership();
    let Some(member) = membership.get_node(&id).cloned() else {
        return Err(ApiError::Invalid(format!("no server has the id {}", ServerName(id))));
    };
    let voters: BTreeSet<ServerId> = membership.voter_ids().collect();
    let is_alive = |one: &ServerId| *one == contact.id || contact.last_heard(*one).is_some();
    // A leader that has just started has not heard everybody yet.
    let unheard = membership.nodes().filter(|(one, _)| !is_alive(one));
    let asked = unheard.map(|(one, member)| {
        contact.hear(*one, &member.rpc_address, crate::member::census::PROBE_TIMEOUT)
    });
    futures_util::future::join_all(asked).await;
    check(&voters, id, force, is_alive)
        .map_err(|why| ApiError::Invalid(format!("{} stays: {why}", member.name)))?;
    let change = if voters.contains(&id) {
        ChangeMembers::RemoveVoters(BTreeSet::from([id]))
    } else {
        ChangeMembers::RemoveNodes(BTreeSet::from([id]))
    };
    match rt::timeout(TIMEOUT, contact.raft.change_membership(change, false)).await {
        Ok(Ok(_)) => {
            tracing::info!(
                server = %ServerName(id),
                name = member.name,
                address = member.rpc_address,
                "a server was taken out"
            );
            Ok(())
        }
        Ok(Err(error)) => Err(ApiError::NotReady(error.to_string())),
        Err(_) => Err(ApiError::Timeout { proposed: true }),
    }
}

/// Whether the voters that answer are a majority of those that would be left.
fn check(
    voters: &BTreeSet<ServerId>,
    id: ServerId,
    force: bool,
    is_alive: impl Fn(&ServerId) -> bool,
) -> Result<(), String> {
    if !voters.contains(&id) {
        return Ok(());
    }
    let rest: BTreeSet<ServerId> = voters.iter().copied().filter(|one| *one != id).collect();
    if rest.is_empty() {
        return Err("it is the only server that votes".to_owned());
    }
    let census = Census::of(&[rest], is_alive);
    let (alive, left, needed) = (census.alive, census.voters, census.majority());
    if alive < needed && !force {
        return Err(format!(
            "of the {left} that would be left {alive} answer, and {needed} are needed for anything: start the others first, or force it (-force)"
        ));
    }
    Ok(())
}

/// What a server knows of another that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Index of the members that it has applied; 0: none yet.
    pub(crate) membership_index: Index,
    /// The asking server is one of them.
    pub(crate) is_listed: bool,
    /// Another of them has its address.
    pub(crate) replaced_by: Option<ServerId>,
}

/// The standing of the server `id` at `address` with this one.
pub(crate) fn standing(contact: &Contact, id: ServerId, address: &str) -> Standing {
    settled_members(contact)
        .map(|(index, membership)| standing_among(&membership, index, id, address))
        .unwrap_or_default()
}

fn standing_among(membership: &Membership, index: Index, id: ServerId, address: &str) -> Standing {
    let mut others = membership.nodes().filter(|(other, _)| **other != id);
    Standing {
        membership_index: index,
        is_listed: membership.get_node(&id).is_some(),
        replaced_by: others.find(|(_, member)| member.rpc_address == address).map(|(id, _)| *id),
    }
}

/// Index of the members that are newest in the log, committed or not, if this server votes by them.
fn voted_at(in_log: &StoredMembership, id: ServerId) -> Option<Index> {
    let votes = in_log.membership().voter_ids().any(|voter| voter == id);
    in_log.log_id().as_ref().filter(|_| votes).map(|id| id.index)
}

/// What a server has to do about its standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stay,
    JoinAgain,
    End,
}

/// What a standing means for a server that is one of the members at the index `known`.
fn judge(known: Index, standing: Standing) -> Verdict {
    if standing.is_listed || standing.membership_index <= known {
        return Verdict::Stay;
    }
    match standing.replaced_by {
        Some(_) => Verdict::JoinAgain,
        None => Verdict::End,
    }
}

/// Refuses to start from the data directory of a server that was taken out.
pub(crate) fn refuse_removed(disk: &dyn Disk, directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(MARKER);
    anyhow::ensure!(
        !disk.exists(&path)?,
        "this server was taken out of its cluster ({} exists). To bring it back as a new member move {} away and start with cluster.join",
        path.display(),
        directory.display()
    );
    Ok(())
}

/// What a server needs to notice that it was taken out.
pub(crate) struct Leaver {
    pub(crate) contact: Arc<Contact>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) disk: Arc<dyn Disk>,
}

/// Ends a server that was taken out, and has one that was replaced join again. The others send
/// nothing to either, so it would believe for ever that it votes.
pub(crate) async fn watch(leaver: Leaver) {
    let Leaver { contact, cluster, lifecycle, disk } = leaver;
    let mut stop = lifecycle.stopping();
    // Changes with the members and with who leads, so that none of them is missed.
    let mut server_metrics = contact.raft.server_metrics();
    loop {
        let own = standing(&contact, contact.id, &contact.settings.rpc_address);
        let in_log = contact.raft.metrics().borrow_watched().membership_config.clone();
        let voted_at = voted_at(&in_log, contact.id);
        if let Some(index) = own.is_listed.then_some(own.membership_index).max(voted_at) {
            contact.was_listed(index);
        }
        // What it has applied itself may tell nothing: the entry that takes it out may be in its
        // log alone, for ever.
        let verdict = match contact.listed_at().map(|known| (known, judge(known, own))) {
            Some((known, Verdict::Stay)) if !contact.is_in_touch() => {
                ask_others(&contact, &cluster, known).await
            }
            Some((_, verdict)) => verdict,
            None => Verdict::Stay,
        };
        // A leader that was taken out answers its caller and hands over first; openraft sees to
        // that.
        if verdict == Verdict::End && contact.leads().is_none() {
            let directory = &contact.settings.data_directory;
            if let Err(error) = write_file(&*disk, directory, MARKER, b"taken out by an operator\n")
            {
                tracing::error!(%error, "the marker {MARKER} could not be written");
            }
            let directory = directory.display();
            lifecycle.fail(format!(
                "this server was taken out of its cluster: it ends, and does not start again from {directory}. To bring it back as a new member move that folder away and start with cluster.join"
            ));
            return;
        }
        let pause = rt::timeout(PEER_CHECK, server_metrics.changed());
        rt::select! {
            biased;
            () = rt::until_true(&mut stop) => return,
            changed = pause => if matches!(changed, Ok(Err(_))) {
                return;
            }
        }
    }
}

/// Asks the others for this server's standing; joins again where it was replaced.
async fn ask_others(contact: &Contact, own: &Cluster, known: Index) -> Verdict {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let members = metrics.membership_config.membership().nodes();
    let others = members.filter(|(id, _)| **id != contact.id);
    for address in others.map(|(_, member)| &member.rpc_address) {
        let Ok(reply) = contact.probe(address, 0, PROBE_TIMEOUT).await else { continue };
        if own.get().is_none_or(|own| *own != *reply.cluster_id) {
            continue;
        }
        let standing = Standing {
            membership_index: reply.membership_index,
            is_listed: reply.listed,
            replaced_by: (reply.replaced_by != 0).then_some(reply.replaced_by),
        };
        match judge(known, standing) {
            Verdict::Stay => {}
            Verdict::End => return Verdict::End,
            Verdict::JoinAgain => {
                tracing::warn!("another server took the place of this one: it joins again");
                match ask_to_join(contact, address).await {
                    Ok(()) => return Verdict::JoinAgain,
                    Err(status) => tracing::debug!(message = status.message(), "cannot join yet"),
                }
            }
        }
    }
    Verdict::Stay
}

#[cfg(test)]
mod tests {
    use openraft::{impls::leader_id_std::LeaderId, vote::RaftLeaderId};

    use super::*;
    use raft::{LogId, Member};

    #[test]
    fn a_removal_keeps_a_majority_of_those_that_answer() {
        let check = |voters: &[u64], id, force, alive: &[u64]| {
            let voters = voters.iter().copied().collect();
            check(&voters, id, force, |one| alive.contains(one)).is_ok()
        };
        assert!(check(&[1, 2, 3], 3, false, &[1, 2]), "a dead server lowers what may fail");
        assert!(check(&[1, 2, 3], 3, false, &[1, 2, 3]));
        assert!(!check(&[1, 2, 3], 2, false, &[1, 2]), "1 of 2 would be left");
        assert!(check(&[1, 2, 3], 2, true, &[1, 2]));
        assert!(check(&[1, 2, 3, 4, 5], 5, false, &[1, 2, 3]), "3 of 4");
        assert!(!check(&[1, 2, 3, 4, 5], 3, false, &[1, 2, 3]), "2 of 4");
        assert!(check(&[1, 2], 2, false, &[1, 2]));
        assert!(!check(&[1], 1, true, &[1]), "nobody would be left");
        assert!(check(&[1], 7, false, &[1]), "a learner counts in no majority");
    }

    /// The entry that takes it out, before it is committed, is all that a server may see of its
    /// members.
    #[test]
    fn a_server_that_votes_in_its_newest_entry_was_one_of_the_members() {
        let leader = LeaderId::<u64, u64>::new(2, 1).to_committed();
        let at = |index, voters: Vec<BTreeSet<u64>>, learner: u64| {
            let membership = Membership::new_with_defaults(voters, [learner]);
            StoredMembership::new(Some(LogId::new(leader, index)), membership)
        };
        let (three, two) = (BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 3]));
        let joint = at(7, vec![three, two.clone()], 4);
        assert_eq!(voted_at(&joint, 2), Some(7), "it is being taken out");
        assert_eq!(judge(7, Standing { membership_index: 8, ..Standing::default() }), Verdict::End);
        assert_eq!(voted_at(&joint, 4), None, "a learner may be lost with its entry");
        assert_eq!(voted_at(&at(8, vec![two], 4), 2), None, "it is out");
        assert_eq!(voted_at(&StoredMembership::default(), 2), None);
    }

    #[test]
    fn only_newer_members_tell_that_a_server_was_taken_out() {
        let member =
            |address: &str| Member { rpc_address: address.to_owned(), ..Member::default() };
        let nodes: std::collections::BTreeMap<u64, Member> =
            [(1, member("a:1")), (2, member("b:1"))].into();
        let voters = vec![BTreeSet::from([1, 2])];
        let membership = Membership::new(voters, nodes).expect("every voter has an address");
        let judged =
            |known, id, address| judge(known, standing_among(&membership, 10, id, address));
        assert_eq!(judged(5, 2, "b:1"), Verdict::Stay, "it is listed");
        assert_eq!(judged(9, 3, "c:1"), Verdict::End);
        assert_eq!(judged(9, 3, "b:1"), Verdict::JoinAgain, "2 has its address");
        assert_eq!(judged(10, 3, "c:1"), Verdict::Stay, "it knows as much");
        assert_eq!(judged(11, 3, "c:1"), Verdict::Stay, "the asked server lags");
        assert_eq!(judge(5, Standing::default()), Verdict::Stay, "the asked server knows nothing");
    }
}
