//! How a server becomes part of a cluster: the first start of all of them together, or an empty
//! server joining a running one.
//!
//! ```text
//!  every server asks every address of bootstrap_expect who it is
//!    somebody is initialised, and I vote        ──► take its cluster id, wait for the log
//!    somebody is initialised, and I do not      ──► join with my new id: learner, then voter in
//!                                                    place of an old entry with my address
//!    all answer "empty" with the same list      ──► the lowest address initialises; the others
//!                                                    ask again
//!    an answer is missing                       ──► wait, and say for whom
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fsm::Index;
use ground::{
    disk::Disk,
    rt::{self, watch},
    server_name::ServerName,
};
use proto::v1 as pb;
use raft::{Member, Membership, Metrics, ServerId, StoredMembership, WatchReceiver};
use tonic::Status;
use wire::rpc::method;

use crate::{
    member::{contact::Contact, identity::Cluster, lifecycle::Lifecycle},
    upkeep::rollback::{self, Verdict},
};

const RETRY: Duration = Duration::from_millis(200);
/// Time between two checks of whether the configured peers are of this cluster.
pub(crate) const PEER_CHECK: Duration = Duration::from_secs(1);
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// A join replicates the whole log or a snapshot first.
const JOIN_TIMEOUT: Duration = Duration::from_mins(10);

enum Found {
    Member([u8; 16]),
    Stranger { cluster: [u8; 16], address: String },
    AllEmpty(BTreeMap<u64, Member>),
    Waiting(String),
}

/// A server on its way into a cluster.
pub(crate) struct Newcomer {
    pub(crate) contact: Arc<Contact>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) disk: Arc<dyn Disk>,
}

/// Returns when this server is part of a cluster, or fails when it must not be.
pub(crate) async fn join_cluster(newcomer: Newcomer) -> anyhow::Result<()> {
    let Newcomer { contact, cluster: own, lifecycle, .. } = &newcomer;
    let mut stop = lifecycle.stopping();
    let mut said = String::new();
    loop {
        if contact.raft.is_initialized().await.unwrap_or(false) {
            anyhow::ensure!(
                own.get().is_some(),
                "the log has entries but server.json names no cluster: restore server.json"
            );
            if let Some(why) = belongs_elsewhere(contact) {
                anyhow::bail!(why);
            }
            if votes(contact, contact.id) {
                let foreign = refuse_foreign_peers(contact, own, stop);
                return futures_util::try_join!(foreign, take_part(&newcomer)).map(drop);
            }
            if ask_for_promises(&newcomer, &mut said).await? == Asked::Retired {
                return Ok(());
            }
        }
        let found = look_around(contact, own).await?;
        match found {
            // Nobody has a log: nobody has promised anything.
            Found::AllEmpty(_) => contact.promises.take_part(&contact.raft),
            Found::Member(_) | Found::Stranger { .. } => {
                match ask_for_promises(&newcomer, &mut said).await? {
                    Asked::TakesPart => {}
                    Asked::Waits => {
                        if rt::timeout(RETRY, rt::until_true(&mut stop)).await.is_ok() {
                            return Ok(());
                        }
                        continue;
                    }
                    Asked::Retired => return Ok(()),
                }
            }
            Found::Waiting(_) => {}
        }
        match found {
            Found::Member(cluster) => {
                own.adopt(cluster)?;
                tracing::info!(cluster = own.name(), "found my cluster");
                return Ok(());
            }
            Found::Stranger { cluster, address } => {
                own.adopt(cluster)?;
                match ask_to_join(contact, &address).await {
                    Ok(()) => {
                        tracing::info!(cluster = own.name(), "joined the cluster");
                        return Ok(());
                    }
                    Err(status) => say(&mut said, format!("cannot join yet: {}", status.message())),
                }
            }
            Found::AllEmpty(members) => initialise(contact, own, members).await?,
            Found::Waiting(why) => say(&mut said, why),
        }
        if rt::timeout(RETRY, rt::until_true(&mut stop)).await.is_ok() {
            return Ok(());
        }
    }
}

/// What became of asking the others what this server promised.
#[derive(PartialEq, Eq)]
enum Asked {
    TakesPart,
    Waits,
    /// This server ends, and starts anew.
    Retired,
}

/// Asks the others once what this server promised, unless it takes part already. Fails when it must
/// not go on.
async fn ask_for_promises(newcomer: &Newcomer, said: &mut String) -> anyhow::Result<Asked> {
    let Newcomer { contact, cluster, lifecycle, disk } = newcomer;
    if contact.promises.may_take_part() {
        return Ok(Asked::TakesPart);
    }
    match rollback::ask(contact, cluster).await {
        Verdict::CaughtUp => {
            contact.promises.take_part(&contact.raft);
            Ok(Asked::TakesPart)
        }
        Verdict::Waiting(missing) => {
            let missing = missing.join(", ");
            say(
                said,
                format!(
                    "asking what this server has acknowledged; without a majority it takes no part: waiting for {missing}"
                ),
            );
            Ok(Asked::Waits)
        }
        Verdict::Behind { witness, promised } => {
            let why = rollback::retire(contact, &**disk, &witness, promised)?;
            if !contact.settings.rejoin_after_rollback {
                anyhow::bail!("{why}. {}", rollback::advice(&contact.settings.data_directory));
            }
            lifecycle.start_anew(why);
            Ok(Asked::Retired)
        }
    }
}

/// Returns when this server takes part in Raft, or is not to.
async fn take_part(newcomer: &Newcomer) -> anyhow::Result<()> {
    let mut stop = newcomer.lifecycle.stopping();
    let mut said = String::new();
    while ask_for_promises(newcomer, &mut said).await? == Asked::Waits {
        if rt::timeout(RETRY, rt::until_true(&mut stop)).await.is_ok() {
            break;
        }
    }
    Ok(())
}

/// Why the data directory is not for this server: the configuration in it has its number at another
/// address, and another server at this one. Peers would refuse each other's requests for ever.
fn belongs_elsewhere(contact: &Contact) -> Option<String> {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let members = metrics.membership_config.membership();
    let settings = &contact.settings;
    let own = members.nodes().find(|(id, _)| **id == contact.id)?.1;
    let at = |member: &Member| format!("server {} at {}", member.name, member.rpc_address);
    let here = members
        .nodes()
        .find(|(id, member)| **id != contact.id && member.rpc_address == settings.rpc_address)?;
    (own.rpc_address != settings.rpc_address).then(|| {
        format!(
            "the data directory {} belongs to {}, and this is {} at {}: move it there, and bring back the directory of {}",
            settings.data_directory.display(),
            at(own),
            settings.name,
            settings.rpc_address,
            at(here.1),
        )
    })
}

/// Fails if every other configured server is a member of another cluster: then the data directory
/// or the addresses are wrong. While some do not answer, nothing is decided.
async fn refuse_foreign_peers(
    contact: &Contact,
    own: &Cluster,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let settings = &contact.settings;
    let configured = settings.bootstrap_expect.iter().chain(&settings.join);
    let others: Vec<&String> =
        configured.filter(|address| **address != settings.rpc_address).collect();
    let mut said = String::new();
    while !others.is_empty() {
        let mut foreign = Vec::new();
        for address in &others {
            match contact.probe(address, 0, PROBE_TIMEOUT).await {
                Ok(reply) if !reply.initialised => {}
                Ok(reply) if own.get().is_some_and(|own| *own == *reply.cluster_id) => {
                    return Ok(());
                }
                Ok(_) => foreign.push(address.as_str()),
                Err(_) => {}
            }
        }
        if !foreign.is_empty() {
            let message = format!(
                "{} belongs to another cluster than the data directory {}: \
                 check the addresses under [cluster] and data_dir",
                foreign.join(", "),
                settings.data_directory.display()
            );
            anyhow::ensure!(foreign.len() < others.len(), "{message}");
            say(&mut said, message);
        }
        if rt::timeout(PEER_CHECK, rt::until_true(&mut stop)).await.is_ok() {
            break;
        }
    }
    Ok(())
}

fn say(said: &mut String, message: String) {
    if *said != message {
        tracing::info!("{message}");
        *said = message;
    }
}

async fn look_around(contact: &Contact, own_cluster: &Cluster) -> anyhow::Result<Found> {
    let settings = &contact.settings;
    let addresses: Vec<&String> = if settings.join.is_empty() {
        settings.bootstrap_expect.iter().collect()
    } else {
        settings.join.iter().collect()
    };
    let own = Member {
        name: settings.name.clone(),
        rpc_address: settings.rpc_address.clone(),
        http_address: settings.http_address.clone(),
    };
    let mut members = BTreeMap::from([(contact.id, own)]);
    let mut missing = Vec::new();
    for address in addresses.into_iter().filter(|address| **address != settings.rpc_address) {
        let reply = match contact.probe(address, 0, PROBE_TIMEOUT).await {
            Ok(reply) => reply,
            Err(status) => {
                missing.push(format!("{address} ({})", status.message()));
                continue;
            }
        };
        if reply.initialised {
            let cluster: [u8; 16] = reply.cluster_id.as_ref().try_into()?;
            anyhow::ensure!(
                own_cluster.get().is_none_or(|known| *known == cluster),
                "{address} belongs to another cluster than this data directory"
            );
            let address = address.clone();
            return Ok(if reply.member {
                Found::Member(cluster)
            } else {
                Found::Stranger { cluster, address }
            });
        }
        let (mut theirs, mut ours) = (reply.expect.clone(), settings.bootstrap_expect.clone());
        theirs.sort();
        ours.sort();
        if theirs != ours && settings.join.is_empty() {
            missing.push(format!("{address} (it expects {theirs:?}, this server {ours:?})"));
            continue;
        }
        let member = Member {
            name: reply.name,
            rpc_address: reply.rpc_address,
            http_address: reply.http_address,
        };
        members.insert(reply.node_id, member);
    }
    if !settings.join.is_empty() {
        return Ok(Found::Waiting(format!("no running server to join: {}", missing.join(", "))));
    }
    if missing.is_empty() && members.len() == settings.bootstrap_expect.len() {
        return Ok(Found::AllEmpty(members));
    }
    Ok(Found::Waiting(format!("waiting for all servers to start: {}", missing.join(", "))))
}

async fn initialise(
    contact: &Contact,
    own: &Cluster,
    members: BTreeMap<u64, Member>,
) -> anyhow::Result<()> {
    let lowest = contact.settings.bootstrap_expect.iter().min();
    if lowest != Some(&contact.settings.rpc_address) {
        return Ok(());
    }
    if own.get().is_none() {
        own.adopt(rt::random_id())?;
    }
    tracing::info!(servers = members.len(), cluster = own.name(), "initialising the cluster");
    if let Err(error) = contact.raft.initialize(members).await {
        tracing::warn!(%error, "the cluster was not initialised");
    }
    Ok(())
}

pub(crate) async fn ask_to_join(contact: &Contact, address: &str) -> Result<(), Status> {
    let reply = contact.probe(address, 0, PROBE_TIMEOUT).await?;
    let leader = if reply.leader_rpc_address.is_empty() {
        return Err(Status::unavailable("the cluster has no leader"));
    } else {
        reply.leader_rpc_address
    };
    tracing::info!(leader, "asking to join");
    let request = pb::JoinRequest {
        node_id: contact.id,
        name: contact.settings.name.clone(),
        rpc_address: contact.settings.rpc_address.clone(),
        http_address: contact.settings.http_address.clone(),
    };
    contact.call(&leader, &method::JOIN, &request, JOIN_TIMEOUT).await?;
    Ok(())
}

/// The configuration, if it is settled: applied here, or the first of all, which cannot be undone.
/// A configuration that is only in the log may be lost with the leader that wrote it.
fn settled(membership: &StoredMembership, applied: Index) -> Option<&Membership> {
    let index = membership.log_id().as_ref()?.index;
    (index <= applied).then(|| membership.membership())
}

/// The settled configuration of this server with its index; none: it has none yet.
pub(crate) fn settled_members(contact: &Contact) -> Option<(Index, Membership)> {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let applied = metrics.last_applied.map_or(0, |applied| applied.index);
    let membership = settled(&metrics.membership_config, applied)?.clone();
    Some((metrics.membership_config.log_id().as_ref().map_or(0, |id| id.index), membership))
}

/// Whether a server is a voter in a settled configuration. Until it is, it asks to join again,
/// however far an earlier attempt came.
pub(crate) fn votes(contact: &Contact, id: ServerId) -> bool {
    settled_members(contact)
        .is_some_and(|(_, membership)| membership.voter_ids().any(|voter| voter == id))
}

/// Whether the configuration is joint. Until it is left, a majority of the old voters is needed as
/// well, and one of them may be gone.
pub(crate) fn is_membership_joint(contact: &Contact) -> bool {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    metrics.membership_config.membership().get_joint_config().len() > 1
}

/// Finishes a membership change that a leader began and left half done.
pub(crate) async fn finish_membership(contact: &Contact) {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let membership = metrics.membership_config.membership();
    let Some(voters) = membership.get_joint_config().last().cloned() else { return };
    let names = ServerName::list(voters.iter().copied());
    tracing::warn!(voters = names, "a change of the members was left half done: it is finished");
    if let Err(error) = contact.raft.change_membership(voters, false).await {
        tracing::debug!(%error, "the members could not be changed yet");
    }
}

/// Removes learners at whose addresses other members answered (`elsewhere`: the member asked, the
/// member that answered). They were replaced before they voted, and the leader that would have
/// removed them is gone.
pub(crate) async fn remove_replaced(contact: &Contact, elsewhere: &[(ServerId, ServerId)]) {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let replaced = replaced_learners(metrics.membership_config.membership(), elsewhere);
    if replaced.is_empty() {
        return;
    }
    let names = ServerName::list(replaced.iter().copied());
    tracing::warn!(servers = names, "servers that were replaced before they voted are taken out");
    let change = openraft::ChangeMembers::RemoveNodes(replaced);
    if let Err(error) = contact.raft.change_membership(change, false).await {
        tracing::debug!(%error, "the members could not be changed yet");
    }
}

/// The learners to remove: a voter answers at their address. A newcomer that has yet to become a
/// voter answers for itself, and stays.
fn replaced_learners(
    membership: &Membership,
    elsewhere: &[(ServerId, ServerId)],
) -> BTreeSet<ServerId> {
    let voters: BTreeSet<ServerId> = membership.voter_ids().collect();
    let replaced = elsewhere
        .iter()
        .filter(|(asked, answered)| !voters.contains(asked) && voters.contains(answered));
    replaced.map(|(asked, _)| *asked).collect()
}

/// The leader's side of a join: the newcomer becomes a learner, then a voter. A voter with the same
/// address has lost its disk and is removed in the same change. A learner with the same address is
/// removed later, see [`remove_replaced`].
pub(crate) async fn admit(contact: &Contact, request: pb::JoinRequest) -> Result<(), Status> {
    if votes(contact, request.node_id) {
        return Ok(());
    }
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let membership = metrics.membership_config.membership().clone();
    if membership.voter_ids().any(|id| id == request.node_id) {
        return Err(Status::unavailable("this server is becoming a voter: ask again"));
    }
    can_be_reached(contact, &request).await?;
    let namesake = |(id, member): (&ServerId, &Member)| {
        let is_other = *id != request.node_id && member.rpc_address != request.rpc_address;
        (is_other && member.name == request.name).then(|| member.rpc_address.clone())
    };
    if let Some(address) = membership.nodes().find_map(namesake) {
        let message = format!("a server named {} exists at {address}", request.name);
        return Err(Status::already_exists(message));
    }
    let id = request.node_id;
    let member = Member {
        name: request.name.clone(),
        rpc_address: request.rpc_address.clone(),
        http_address: request.http_address.clone(),
    };
    let failed = |error: String| Status::unavailable(error);
    let added = contact.raft.add_learner(id, member, false).await;
    let added = added.map_err(|error| failed(error.to_string()))?;
    has_learned(contact, id, added.log_id.index()).await?;
    // Learning takes time: meanwhile the disk may have been lost again, and another server may have
    // joined at the same address.
    can_be_reached(contact, &request).await?;
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let nodes = metrics.membership_config.membership().nodes();
    let replaced: BTreeSet<ServerId> = nodes
        .filter(|(other, member)| **other != id && member.rpc_address == request.rpc_address)
        .map(|(other, _)| *other)
        .collect();
    if !replaced.is_empty() {
        let old = ServerName::list(replaced.iter().copied());
        tracing::warn!(old, new = %ServerName(id), address = request.rpc_address,
            "a server with an empty disk takes the place of an old one");
    }
    let change = openraft::ChangeMembers::Batch(vec![
        openraft::ChangeMembers::RemoveVoters(replaced),
        openraft::ChangeMembers::AddVoterIds(BTreeSet::from([id])),
    ]);
    contact
        .raft
        .change_membership(change, false)
        .await
        .map_err(|error| failed(error.to_string()))?;
    tracing::info!(server = %ServerName(id), "a server joined as a voter");
    Ok(())
}

/// Checks that the others can reach a newcomer: a voter that they cannot reach would count in every
/// majority and answer in none.
async fn can_be_reached(contact: &Contact, request: &pb::JoinRequest) -> Result<(), Status> {
    let address = &request.rpc_address;
    let hint =
        "the others must reach it there: check its rpc.advertise and what filters the network";
    match contact.probe(address, 0, PROBE_TIMEOUT).await {
        Ok(reply) if reply.node_id == request.node_id => Ok(()),
        Ok(_) => {
            let message = format!("another server answers at {address}: {hint}");
            Err(Status::failed_precondition(message))
        }
        Err(status) => {
            let message = format!("no answer at {address} ({}): {hint}", status.message());
            Err(Status::failed_precondition(message))
        }
    }
}

/// Waits until a learner has the log up to this index. Openraft's own wait takes a learner that
/// never answered for one that is up to date.
async fn has_learned(contact: &Contact, id: ServerId, index: u64) -> Result<(), Status> {
    let has = |metrics: &Metrics| {
        let matched = metrics.replication.as_ref()?.get(&id)?.as_ref()?;
        (matched.index() >= index).then_some(())
    };
    let deadline = rt::Instant::now() + JOIN_TIMEOUT;
    let mut metrics = contact.raft.metrics();
    loop {
        if has(&metrics.borrow_watched()).is_some() {
            return Ok(());
        }
        if contact.leads().is_none() {
            return Err(Status::failed_precondition("this server does not lead any more"));
        }
        let left = deadline.saturating_duration_since(rt::Instant::now());
        if !matches!(rt::timeout(left, metrics.changed()).await, Ok(Ok(()))) {
            return Err(Status::unavailable("it has not learned the log in time"));
        }
    }
}

#[cfg(test)]
mod tests {
    use openraft::{impls::leader_id_std::LeaderId, vote::RaftLeaderId};

    use super::*;

    #[test]
    fn a_configuration_that_is_only_in_the_log_makes_no_voter() {
        let leader = LeaderId::<u64, u64>::new(2, 1).to_committed();
        let voters = BTreeSet::from([1, 2]);
        let membership = Membership::new_with_defaults(vec![voters], [3]);
        let at = |index| {
            StoredMembership::new(Some(raft::LogId::new(leader, index)), membership.clone())
        };
        assert!(settled(&at(58), 57).is_none(), "its leader may end before anybody else has it");
        assert!(settled(&at(58), 58).is_some());
        assert!(settled(&at(0), 0).is_some(), "the first one: nobody applied anything yet");
        assert!(settled(&StoredMembership::default(), 9).is_none());
    }

    #[test]
    fn a_learner_is_replaced_when_a_voter_answers_in_its_place() {
        let voters = BTreeSet::from([1, 2]);
        let membership = Membership::new_with_defaults(vec![voters], [3, 4]);
        let replaced = |elsewhere: &[_]| replaced_learners(&membership, elsewhere);
        assert_eq!(replaced(&[(3, 2), (4, 4)]), BTreeSet::from([3]));
        assert_eq!(replaced(&[(1, 4)]), BTreeSet::new(), "a newcomer in the place of a voter");
        assert_eq!(replaced(&[(3, 4)]), BTreeSet::new(), "neither votes yet");
    }
}
