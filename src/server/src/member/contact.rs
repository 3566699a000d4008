//! What a server knows of the others: which of them leads, answers and has room. It also hands
//! leadership to one of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fsm::Index;
use ground::{
    rt::{self, watch},
    server_name::ServerName,
    version::Build,
};
use proto::v1 as pb;
use raft::{
    Member, Metrics, Raft, ServerId, ServerState, WatchReceiver,
    contact::LeaderContact,
    promises::{Promise, Promises},
};
use tonic::Status;
use wire::{
    api::{ApiError, MemberInfo, Presence},
    rpc::{
        method::{self, Method},
        transport::{Lane, Transport, call},
    },
};

use crate::member::{
    census::{Census, PEER_LOST},
    settings::{BootId, Settings},
    time::ServerTime,
};

/// Agents stay with a server that was out of touch for less than this: their streams outlive an
/// election.
const AGENTS_STAY_MIN: Duration = Duration::from_secs(3);
/// A server that did not answer its leader for this long counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What was answered to a probe at a peer's address.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) at: rt::Instant,
    /// The server that answered: another one if the peer was replaced.
    by: ServerId,
    pub(crate) disk_full: bool,
    /// Version and commit of its program.
    version: String,
    /// The boot of its host; none: it cannot read that.
    pub(crate) boot: Option<BootId>,
}

/// A server's contact with the others, itself included.
pub struct Contact {
    pub(crate) settings: Arc<Settings>,
    pub(crate) id: ServerId,
    pub(crate) raft: Raft,
    transport: Arc<dyn Transport>,
    leader: Arc<LeaderContact>,
    pub(crate) time: Arc<ServerTime>,
    /// What the others have promised, and whether this server takes part.
    pub(crate) promises: Arc<Promises>,
    /// Index of the newest members known of which this server is one.
    listed_at: Mutex<Option<Index>>,
    /// What each peer last answered to a probe.
    heard: Mutex<BTreeMap<ServerId, Heard>>,
    /// Bytes that are free on the disk of the data directory, as looked at last; 0: not yet.
    free_bytes: AtomicU64,
    /// Why this server takes no writes: its disk is nearly full.
    pub(crate) disk_full: watch::Sender<Option<String>>,
}

impl Contact {
    pub(crate) fn new(
        settings: Arc<Settings>,
        id: ServerId,
        raft: Raft,
        transport: Arc<dyn Transport>,
        (leader, time, promises): (Arc<LeaderContact>, Arc<ServerTime>, Arc<Promises>),
    ) -> Self {
        let (heard, listed_at) = (Mutex::default(), Mutex::default());
        let disk_full = watch::channel(None).0;
        Self {
            settings,
            id,
            raft,
            transport,
            leader,
            time,
            promises,
            listed_at,
            heard,
            free_bytes: AtomicU64::new(0),
            disk_full,
        }
    }

    /// A call to the server at an address.
    pub(crate) async fn call<Q: prost::Message, P: prost::Message + Default>(
        &self,
        address: &str,
        method: &Method<Q, P>,
        request: &Q,
        timeout: Duration,
    ) -> Result<P, Status> {
        call(&*self.transport, address, method, Lane::Control, request, timeout).await
    }

    /// The term in which this server leads, according to Raft; `None` if it does not lead.
    pub(crate) fn leads(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (metrics.state == ServerState::Leader && metrics.current_leader == Some(self.id))
            .then_some(metrics.current_term)
    }

    /// The leader's number and member entry, as far as this server knows.
    pub fn leader(&self) -> Option<(ServerId, Member)> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let leader = self.leader_heard(&metrics)?;
        let member = metrics.membership_config.membership().get_node(&leader)?.clone();
        Some((leader, member))
    }

    /// The leader according to Raft, once it was heard since the start. The vote on disk names a
    /// leader too, which may be long gone, and may even be this server.
    pub(crate) fn leader_heard(&self, metrics: &Metrics) -> Option<ServerId> {
        let leader = metrics.current_leader?;
        let heard = if leader == self.id {
            metrics.state == ServerState::Leader
        } else {
            self.leader.has_heard(metrics.current_term)
        };
        heard.then_some(leader)
    }

    /// The leader as shown to operators and clients: none while the majority is lost.
    fn leader_shown(&self, metrics: &Metrics) -> Option<ServerId> {
        self.leader_heard(metrics).filter(|_| !self.is_majority_lost())
    }

    /// Whether there is a leader to show.
    pub(crate) fn knows_leader(&self) -> bool {
        // Cloned: what is borrowed is locked, and a second borrow beside it would wait for a writer
        // that waits for the first.
        let metrics = self.raft.metrics().borrow_watched().clone();
        self.leader_shown(&metrics).is_some()
    }

    /// Whether this server leads, and a majority answers it.
    pub(crate) fn leads_majority(&self) -> bool {
        self.leads().is_some() && !self.is_majority_lost()
    }

    /// Whether no majority has answered for twice the longest election timeout: neither this server
    /// as the leader, nor the leader that it hears. A server that cannot tell says that it is lost.
    pub(crate) fn is_majority_lost(&self) -> bool {
        self.last_contact() > self.majority_silence_max()
    }

    /// After this time without an answer a majority counts as lost.
    pub(crate) fn majority_silence_max(&self) -> Duration {
        Duration::from_millis(2 * self.settings.timing.election_ms_max)
    }

    /// Whether this server was in touch with a majority lately enough to serve agents. A server
    /// that is out of touch cannot tell that its data is stale. It holds on for longer than
    /// [`Self::is_majority_lost`]: agents that move away at each election would all move at once.
    pub(crate) fn is_in_touch(&self) -> bool {
        self.last_contact() <= (2 * self.majority_silence_max()).max(AGENTS_STAY_MIN)
    }

    /// Members of the Raft configuration.
    pub fn member_infos(&self) -> Vec<MemberInfo> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership().clone();
        let voters: Vec<ServerId> = membership.voter_ids().collect();
        let leader = self.leader_shown(&metrics);
        membership
            .nodes()
            .map(|(id, member)| MemberInfo {
                id: *id,
                name: member.name.clone(),
                rpc_address: member.rpc_address.clone(),
                http_address: member.http_address.clone(),
                leader: leader == Some(*id),
                voter: voters.contains(id),
                presence: self.presence(*id),
                version: self.version_of(*id),
                clock_ahead_ms: self.time.clock_ahead_ms(*id),
            })
            .collect()
    }

    /// Whether the cluster has more than one voter.
    pub(crate) fn has_others(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().voter_ids().nth(1).is_some()
    }

    /// Index of the entry with the current members, which need not be committed yet; 0 if there is
    /// none.
    pub fn membership_index(&self) -> Index {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.log_id().as_ref().map_or(0, |id| id.index)
    }

    fn presence(&self, id: ServerId) -> Presence {
        if id == self.id || self.heard_lately(id) {
            Presence::Alive
        } else if self.was_heard(id) {
            Presence::Lost
        } else {
            Presence::NeverHeard
        }
    }

    /// Whether a peer answered a probe lately.
    fn heard_lately(&self, id: ServerId) -> bool {
        self.last_heard(id).is_some()
    }

    /// What a peer answered to a probe lately.
    pub(crate) fn last_heard(&self, id: ServerId) -> Option<Heard> {
        let heard = self.answers();
        heard.get(&id).cloned().filter(|one| one.by == id && one.at.elapsed() < PEER_LOST)
    }

    fn version_of(&self, id: ServerId) -> String {
        if id == self.id {
            return Build::own().shown();
        }
        let heard = self.answers();
        heard.get(&id).filter(|one| one.by == id).map(|one| one.version.clone()).unwrap_or_default()
    }

    /// Whether a peer has answered a probe since this server started.
    pub(crate) fn was_heard(&self, id: ServerId) -> bool {
        self.answers().get(&id).is_some_and(|one| one.by == id)
    }

    /// Members at whose address another server answered lately, each with that server.
    pub(crate) fn elsewhere(&self) -> Vec<(ServerId, ServerId)> {
        let heard = self.answers();
        let elsewhere =
            heard.iter().filter(|(id, one)| one.by != **id && one.at.elapsed() < PEER_LOST);
        elsewhere.map(|(id, one)| (*id, one.by)).collect()
    }

    fn answers(&self) -> MutexGuard<'_, BTreeMap<ServerId, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who votes, and who of them answers.
    pub(crate) fn census(&self) -> Census {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let is_alive = |id: &ServerId| *id == self.id || self.heard_lately(*id);
        Census::of(metrics.membership_config.membership().get_joint_config(), is_alive)
    }

    /// Whether this server or a peer is known to have no room on its disk.
    pub(crate) fn is_full(&self, id: ServerId) -> bool {
        if id == self.id {
            return self.has_full_disk();
        }
        self.last_heard(id).is_some_and(|heard| heard.disk_full)
    }

    /// The leader's address, for calls to it.
    pub(crate) fn leader_address(&self) -> Result<String, ApiError> {
        self.leader().map(|(_, member)| member.rpc_address).ok_or(ApiError::NoLeader)
    }

    pub(crate) async fn transfer(&self, to: Option<ServerId>) -> Result<ServerId, ApiError> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let Some(replication) = metrics.replication else { return Err(ApiError::NoLeader) };
        let voters: Vec<ServerId> = metrics.membership_config.voter_ids().collect();
        let target = match to {
            Some(to) if voters.contains(&to) => Some(to),
            Some(to) => {
                return Err(ApiError::Invalid(format!(
                    "{} is not a voter of this cluster",
                    ServerName(to)
                )));
            }
            None => replication
                .iter()
                .filter(|(id, _)| **id != self.id && voters.contains(id))
                .max_by_key(|(id, matched)| {
                    let index = matched.as_ref().map(|one| one.index);
                    (self.heard_lately(**id), !self.is_full(**id), index, **id)
                })
                .map(|(id, _)| *id),
        };
        let target = target.ok_or(ApiError::Invalid("there is no other voter".to_owned()))?;
        if target == self.id {
            return Ok(target);
        }
        self.raft
            .trigger()
            .transfer_leader(target)
            .await
            .map_err(|error| ApiError::NotReady(error.to_string()))?;
        let mut metrics = self.raft.metrics();
        let deadline = rt::Instant::now() + Duration::from_secs(5);
        loop {
            let leader = metrics.borrow_watched().current_leader;
            if leader.is_some_and(|leader| leader != self.id) {
                return Ok(target);
            }
            let left = deadline.saturating_duration_since(rt::Instant::now());
            let what = match rt::timeout(left, metrics.changed()).await {
                Ok(Ok(())) => continue,
                Ok(Err(_)) => "this server stopped while leadership moved",
                Err(_) => "leadership did not move within 5 s",
            };
            return Err(ApiError::NotReady(what.to_owned()));
        }
    }

    /// Time since this server last heard a leader or, as the leader, a majority; since its start if
    /// neither happened. Between two calls it grows by at most the time between them.
    pub fn last_contact(&self) -> Duration {
        // A server that led for a moment only, or no longer leads, goes by what it heard before.
        let age = self.leader.age();
        self.majority_age().map_or(age, |majority| majority.min(age))
    }

    /// On a leader: the time since a majority answered it in its term.
    pub fn majority_age(&self) -> Option<Duration> {
        self.leads()?;
        if self.is_sole_voter() {
            // A sole voter sends no requests, so Raft records no answers.
            return Some(Duration::ZERO);
        }
        let acknowledged = self.raft.metrics().borrow_watched().last_quorum_acked;
        acknowledged.map(|at| openraft::Instant::elapsed(&*at))
    }

    fn is_sole_voter(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let configurations = metrics.membership_config.membership().get_joint_config();
        matches!(configurations.as_slice(), [voters] if voters.len() == 1 && voters.contains(&self.id))
    }

    /// Records the answers of majorities while this server leads, for the time when it no longer
    /// leads.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut metrics = self.raft.metrics();
        loop {
            if let Some(age) = self.majority_age() {
                self.leader.was_in_touch(age);
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether a server answered lately and has room on its disk.
    pub(crate) fn has_room(&self, id: ServerId) -> bool {
        (id == self.id || self.last_heard(id).is_some()) && !self.is_full(id)
    }

    /// Why the leader takes no writes: so many voters have no room that an entry might find no
    /// majority, or fill the last free space.
    pub(crate) fn cluster_is_full(&self) -> Option<String> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let voters: Vec<ServerId> = membership.voter_ids().collect();
        let full: Vec<&str> = membership
            .nodes()
            .filter(|(id, _)| voters.contains(id) && self.is_full(**id))
            .map(|(_, member)| member.name.as_str())
            .collect();
        (full.len() * 2 >= voters.len() && !full.is_empty()).then(|| {
            let (names, all) = (full.join(", "), voters.len());
            format!(
                "{names}: the disks of {} of {all} servers are nearly full: free some space",
                full.len()
            )
        })
    }

    /// Asks a peer for its identity, and for its digest at a mark.
    pub(crate) async fn probe(
        &self,
        address: &str,
        digest_mark: u64,
        timeout: Duration,
    ) -> Result<pb::ProbeReply, Status> {
        let expect = self.settings.bootstrap_expect.clone();
        let rpc_address = self.settings.rpc_address.clone();
        let request = pb::ProbeRequest { expect, from: self.id, digest_mark, rpc_address };
        // Beside the heartbeats: whether a server lives is not to be asked behind clients' calls.
        let lane = Lane::Heartbeat;
        let reply: pb::ProbeReply =
            call(&*self.transport, address, &method::PROBE, lane, &request, timeout).await?;
        if reply.listed {
            self.was_listed(reply.membership_index);
        }
        Ok(reply)
    }

    /// This server is one of the members that were applied at this index, here or on a peer.
    pub(crate) fn was_listed(&self, index: Index) {
        let mut listed_at = self.listed_at.lock().unwrap_or_else(PoisonError::into_inner);
        *listed_at = (*listed_at).max(Some(index));
    }

    /// The newest members known of which this server is one; none: it was never one since its
    /// start.
    pub(crate) fn listed_at(&self) -> Option<Index> {
        *self.listed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes a member and keeps the answer.
    pub(crate) async fn hear(&self, id: ServerId, address: &str, timeout: Duration) {
        let begun = rt::Instant::now();
        let Ok(reply) = self.probe(address, 0, timeout).await else { return };
        if let Some(time) = reply.time.filter(|_| reply.node_id == id) {
            self.time.hear(id, begun, &time);
        }
        let kept = reply.kept.filter(|_| reply.node_id == id).and_then(Promise::from_pb);
        if let Some(kept) = kept {
            self.promises.heard(id, kept);
        }
        let boot = BootId::try_from(&*reply.boot_id).ok();
        let (at, by) = (rt::Instant::now(), reply.node_id);
        let heard = Heard { at, by, disk_full: reply.disk_full, version: reply.version, boot };
        self.answers().insert(id, heard);
    }

    /// Forgets what was heard of servers, and answered at their addresses, that are no members any
    /// more.
    pub(crate) fn forget_all_but(&self, members: &BTreeSet<ServerId>) {
        self.answers().retain(|id, _| members.contains(id));
        self.promises.forget_all_but(|id| members.contains(id));
    }

    /// The boot of a server's host, which a peer that is silent now may have said before.
    pub(crate) fn boot_of(&self, id: ServerId) -> Option<BootId> {
        if id == self.id {
            return self.settings.boot;
        }
        self.answers().get(&id).filter(|one| one.by == id)?.boot
    }

    /// Notes how much is free on the disk of the data directory.
    pub(crate) fn set_free_bytes(&self, free: u64) {
        self.free_bytes.store(free.max(1), Ordering::Relaxed);
    }

    /// Bytes that are free there, as looked at in the last seconds.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        Some(self.free_bytes.load(Ordering::Relaxed)).filter(|free| *free > 0)
    }

    /// Whether this server takes no writes of clients because its disk is nearly full.
    pub(crate) fn has_full_disk(&self) -> bool {
        self.disk_full.borrow().is_some()
    }

    pub(crate) fn voters(&self) -> Vec<ServerId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.voter_ids().collect()
    }

    /// The voters, when the configuration is not a joint one.
    pub fn settled_voters(&self) -> Option<Vec<ServerId>> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        (membership.get_joint_config().len() == 1).then(|| membership.voter_ids().collect())
    }
}

/// Servers that this leader once heard and does not hear any more.
pub(crate) fn silent_servers(raft: &Raft) -> Vec<ServerId> {
    let metrics = raft.metrics().borrow_watched().clone();
    let silent = metrics.heartbeat.iter().flatten().filter(|(id, at)| {
        let silence = at.as_ref().map(|at| openraft::Instant::elapsed(&**at));
        **id != metrics.id && silence.is_some_and(|silence| silence >= SILENCE_MAX)
    });
    silent.map(|(id, _)| *id).collect()
}
