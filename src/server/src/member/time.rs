//! The time of the cluster on this server (ADR 0022): [`leader::Timekeeper`] with this server's
//! clocks, and the calls by which servers tell each other what it knows.
//!
//! Every second each server probes each other one (`peers.rs`), and compares the clocks. Two
//! moments do not wait for that: a server that becomes leader asks the others beside its barrier
//! ([`ask`]), and one that learns of a leader asks that one ([`follow`]).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::TimeMs;
use futures_util::{StreamExt, stream::FuturesUnordered};
use ground::{
    clock::Clock,
    rt::{self, Instant, watch},
};
use leader::{Asked, Basis, Moment, Said, TimeNote, Timekeeper};
use proto::v1 as pb;
use raft::{ServerId, WatchReceiver};
use wire::published::StateCell;

use crate::member::{census::PROBE_TIMEOUT, contact::Contact};

/// How long a new leader asks at most. It leads then also when too few have answered.
const ASK_MAX: Duration = Duration::from_secs(1);
/// One attempt to ask one server.
const ASK_TIMEOUT: Duration = Duration::from_millis(400);
/// Pause before a server that did not answer is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// What this server knows of time.
pub(crate) struct ServerTime {
    clock: Clock,
    cell: Arc<StateCell>,
    keeper: Mutex<Timekeeper>,
    of_clocks: Mutex<Option<OfClocks>>,
}

/// Log time that went on from wall clocks.
#[derive(Clone, Copy, Debug)]
pub struct OfClocks {
    pub at: TimeMs,
    pub began: Instant,
    /// No majority of the clocks agreed.
    pub is_doubtful: bool,
}

impl ServerTime {
    pub(crate) fn new(id: ServerId, clock: Clock, cell: Arc<StateCell>) -> Self {
        let keeper = Mutex::new(Timekeeper::new(id));
        Self { clock, cell, keeper, of_clocks: Mutex::default() }
    }

    fn keeper(&self) -> MutexGuard<'_, Timekeeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        let (monotonic_ms, wall_ms) = (self.clock.monotonic_ms(), self.clock.wall_ms());
        Moment { monotonic_ms, wall_ms }
    }

    /// Log time now, as this server knows it. On the leader it is log time.
    pub(crate) fn now(&self) -> TimeMs {
        let (leads, known) = {
            let mut keeper = self.keeper();
            (keeper.leads(), keeper.now(self.clock.monotonic_ms()))
        };
        match (known, self.cell.load().at()) {
            (Some(now), _) if leads => now,
            // The state may be ahead of what was heard by a moment.
            (Some(now), at) => now.max(at),
            // The log is empty. Nothing is stamped with this.
            (None, 0) => self.clock.wall_ms(),
            (None, at) => at,
        }
    }

    /// Whether [`Self::now`] is more than this server's own clock: it heard log time, or has
    /// entries.
    pub(crate) fn is_known(&self) -> bool {
        self.keeper().now(self.clock.monotonic_ms()).is_some() || self.cell.load().at() > 0
    }

    /// What to tell a peer.
    pub(crate) fn say(&self) -> pb::ServerTime {
        let Said { log_time, term, leads, wall_ms } = self.keeper().say(self.moment());
        pb::ServerTime { log_time_ms: log_time, term, leads, wall_ms }
    }

    /// Takes in what a peer answered to a call that was begun then.
    pub(crate) fn hear(&self, from: ServerId, begun: Instant, said: &pb::ServerTime) {
        let pb::ServerTime { log_time_ms: log_time, term, leads, wall_ms } = *said;
        let round_trip_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let said = Said { log_time, term, leads, wall_ms };
        self.keeper().hear(self.clock.monotonic_ms(), round_trip_ms, from, said);
    }

    /// This server leads from now on, over a state of this log time.
    pub(crate) fn lead(&self, term: u64, state_at: TimeMs, since_ms: u64, voters: &[ServerId]) {
        let asked = Asked { since_ms, voters };
        let basis = self.keeper().lead(self.moment(), term, state_at, asked);
        let Basis::Clocks { clocks, voters, apart_ms } = basis else { return };
        let (at, began, is_doubtful) = (self.now(), Instant::now(), basis.is_doubtful());
        *self.of_clocks.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(OfClocks { at, began, is_doubtful });
        if is_doubtful {
            tracing::warn!(
                clocks,
                voters,
                apart_ms,
                "no server has run through, and the clocks of the servers disagree: log time goes \
                 on from the smaller one; set the clocks right"
            );
        } else {
            tracing::info!(clocks, voters, "log time goes on from the clocks of the servers");
        }
    }

    /// When log time last went on from wall clocks on this server, since its start.
    pub(crate) fn of_clocks(&self) -> Option<OfClocks> {
        *self.of_clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This server leads no more in this term.
    pub(crate) fn resign(&self, term: u64) {
        self.keeper().resign(self.clock.monotonic_ms(), term);
    }

    /// Compares the clocks of the voters, and logs what an operator should know.
    pub(crate) fn look(&self, voters: &[ServerId]) {
        let notes = self.keeper().look(self.moment(), voters);
        notes.into_iter().for_each(log);
    }

    /// How far log time is behind the majority's clock; below 0: ahead of it.
    pub(crate) fn behind_ms(&self) -> Option<i64> {
        self.keeper().behind_ms(self.clock.monotonic_ms())
    }

    /// How far a server's clock is ahead of the majority's; below 0: behind it.
    pub(crate) fn clock_ahead_ms(&self, server: ServerId) -> Option<i64> {
        self.keeper().clock_ahead_ms(server)
    }
}

fn log(note: TimeNote) {
    match note {
        TimeNote::Lags { behind_ms } => tracing::warn!(
            behind_ms,
            "log time lags behind the clocks of the servers, or is ahead of them: deadlines and \
             times shown are off by that until it has caught up, by 5 % of the time that passes"
        ),
        TimeNote::LagIsOver => tracing::info!("log time is with the clocks of the servers again"),
        TimeNote::ClocksApart => tracing::warn!(
            "the clocks of the servers disagree, and no majority of them agrees: log time goes by \
             none of them; set the clocks right"
        ),
        TimeNote::ClocksAgree => {
            tracing::info!("the clocks of a majority of the servers agree again");
        }
        TimeNote::OwnClockIsOff { ahead_ms } => tracing::warn!(
            ahead_ms,
            "the clock of this server is ahead of the others', or behind: set it right"
        ),
        TimeNote::OwnClockIsRight => tracing::info!("the clock of this server is right again"),
    }
}

/// Asks the voters what time it is, until enough have answered or time is up. Returns since when
/// answers count.
pub(crate) async fn ask(contact: &Contact) -> u64 {
    let time = &contact.time;
    let since_ms = time.clock.monotonic_ms();
    // One after the other: a second borrow beside the first waits for a writer that waits for the
    // first.
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let voters = contact.voters();
    let asked = Asked { since_ms, voters: &voters };
    let members = metrics.membership_config.nodes();
    let is_asked = |id: &ServerId| voters.contains(id) && time.keeper().lacks(asked, *id);
    let asking = members.filter(|(id, _)| is_asked(id)).map(|(id, member)| async move {
        while time.keeper().lacks(asked, *id) {
            // An answer of another server at the address is none.
            contact.hear(*id, &member.rpc_address, ASK_TIMEOUT).await;
            if time.keeper().lacks(asked, *id) {
                rt::sleep(ASK_PAUSE).await;
            }
        }
    });
    let mut asking: FuturesUnordered<_> = asking.collect();
    let enough =
        async { while !time.keeper().has_enough(asked) && asking.next().await.is_some() {} };
    if rt::timeout(ASK_MAX, enough).await.is_err() {
        tracing::warn!("too few servers answered what time it is: log time goes on without them");
    }
    since_ms
}

/// Asks each leader that this server learns of what time it is, until it knows.
pub(crate) async fn follow(contact: Arc<Contact>, mut stop: watch::Receiver<bool>) {
    // All metrics change with every entry; these, with the term, who leads, and the members.
    let mut changes = contact.raft.server_metrics();
    loop {
        let now = changes.borrow_watched().clone();
        let is_to_ask = now.current_leader.is_some_and(|leader| leader != contact.id)
            && !contact.time.keeper().knows(now.vote.leader_id.term);
        let leader = contact.leader().filter(|(id, _)| is_to_ask && *id != contact.id);
        if let Some((id, member)) = leader {
            contact.hear(id, &member.rpc_address, PROBE_TIMEOUT).await;
        }
        // That a leader was heard, who is asked only then, changes none of these: so look again
        // soon.
        let soon = if is_to_ask { ASK_PAUSE } else { Duration::MAX };
        rt::select! {
            biased;
            () = rt::until_true(&mut stop) => return,
            next = rt::timeout(soon, changes.changed()) => if matches!(next, Ok(Err(_))) {
                return;
            }
        }
    }
}
