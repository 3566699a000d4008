//! Faults of a kind that came later than [`crate::nemesis`], from dice of their own, so that what earlier seeds mean stays as it was: machines that stop
//! in the middle of a change of their disk, planned restarts, and messages of a server that is none of the cluster.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use proto::v1 as pb;

use crate::{
    class::Class,
    coverage,
    services::CALLER,
    trace, verdict,
    world::{self, Crash, World},
};
use chance::Dice;
use ground::rt::{self, Instant};
use server::Core;
use wire::{
    api::Api,
    rpc::transport::{Lane, Transport as _},
};

/// Directories of which one change is interrupted, so that what is rare (a snapshot, an install, a new segment) is met as often as an append.
const DIRECTORIES: [&str; 4] = ["/data/snapshots", "/data/state", "/data/log", "/data"];
/// Changes of the disk after which a machine stops, at most.
const OPERATIONS_MAX: u64 = 24;
/// The same, counted from the first change of a name in a directory.
const OPERATIONS_TOUCHED_MAX: u64 = 12;
/// How long a machine that is to stop is waited for.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// A server that is told to stop ends within this time.
const STOP_GENTLY: Duration = Duration::from_secs(20);
/// Longest pause between two of them, ms.
const GAP_MS_MAX: u64 = 1_500;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Halt,
    Restart,
    Stranger,
}

/// Brings them.
pub(crate) struct Nuisance {
    world: World,
    dice: Dice,
    kinds: Vec<Kind>,
}

impl Nuisance {
    /// Those of this run.
    pub(crate) fn new(world: World) -> Self {
        let dice = Dice::named(world.swarm.seed, "nuisance");
        let all = [
            (Class::Halt, Kind::Halt),
            (Class::Halt, Kind::Halt),
            (Class::Restart, Kind::Restart),
            (Class::Stranger, Kind::Stranger),
        ];
        let on = all.into_iter().filter(|(class, _)| world.swarm.has(*class));
        let kinds = on.map(|(_, kind)| kind).collect();
        Self { world, dice, kinds }
    }

    /// Brings them for as long as the plan says.
    pub(crate) async fn run(mut self) {
        let end = Instant::now() + Duration::from_millis(self.world.swarm.safety_ms);
        while !self.kinds.is_empty() && Instant::now() < end {
            rt::sleep(Duration::from_millis(self.dice.between(100, GAP_MS_MAX))).await;
            if self.world.is_calm() {
                return;
            }
            let server = self.dice.index(self.world.count());
            let kind = self.kinds[self.dice.index(self.kinds.len())];
            trace::event("nuisance", format_args!("{kind:?} s{server}"));
            match kind {
                Kind::Halt => self.halt(server).await,
                Kind::Restart => self.restart(server).await,
                Kind::Stranger => self.stranger(server).await,
            }
        }
    }

    /// The machine stops at some change of its disk, and perhaps once more while the server starts again.
    async fn halt(&mut self, server: usize) {
        for again in [true, false] {
            let touched = self.dice.below(3) > 0;
            let directory = DIRECTORIES[self.dice.index(DIRECTORIES.len())];
            let operations = self.dice.below(OPERATIONS_MAX);
            let how = if self.dice.below(4) == 0 { Crash::Kill } else { Crash::Power };
            let down = Duration::from_millis(self.dice.between(50, self.world.swarm.down_ms_max));
            let once_more = self.dice.below(2) == 0;
            let armed = if touched {
                let operations = operations % OPERATIONS_TOUCHED_MAX;
                self.world.stop_disk_in(server, directory, operations)
            } else {
                self.world.stop_disk_after(server, operations)
            };
            if !armed {
                return;
            }
            let deadline = Instant::now() + STOP_WAIT;
            while Instant::now() < deadline && !self.world.is_disk_stopped(server) {
                rt::sleep(Duration::from_millis(1)).await;
            }
            if self.world.is_calm() {
                return;
            }
            if self.world.is_disk_stopped(server) {
                coverage::hit("a machine stopped in the middle of a change of its disk");
            }
            if self.world.crash(server, how) {
                rt::sleep(down).await;
            }
            if self.world.is_calm() {
                return;
            }
            self.world.start(server);
            if !(again && once_more) {
                return;
            }
        }
    }

    /// As an operator does: leadership goes to another server, and the machine off. Nothing may be lost.
    async fn restart(&mut self, server: usize) {
        let down = Duration::from_millis(self.dice.between(50, 1_000));
        let begin = Instant::now();
        let work =
            |core: Arc<Core>| async move { drop(core.transfer_leadership(&CALLER, None).await) };
        let stopped = rt::timeout(STOP_GENTLY, self.world.inside(server, work)).await;
        match stopped {
            Ok(Some(())) => coverage::hit("a server was restarted as planned"),
            // It died over it, and somebody else starts it.
            Ok(None) => return,
            Err(_) if self.world.stood_still(server, begin) => {}
            Err(_) => verdict::fail(format!("s{server} did not stop within {STOP_GENTLY:?}")),
        }
        if self.world.crash(server, Crash::Power) {
            rt::sleep(down).await;
            self.world.start(server);
        }
    }

    /// A server of another cluster, or one that takes this one for another: nobody may listen to it, however high its term.
    async fn stranger(&mut self, server: usize) {
        let Some(core) = self.world.core(server) else { return };
        let Some(own) = core.cluster_id().and_then(|id| id.parse::<fsm::NodeId>().ok()) else {
            return;
        };
        let is_foreign = self.dice.below(2) == 0;
        let id = core.id;
        drop(core);
        let cluster =
            if is_foreign { [self.dice.bits().to_le_bytes(); 2].concat() } else { own.0.to_vec() };
        let header = pb::PeerHeader {
            cluster_id: cluster.into(),
            from: self.dice.bits() >> 11,
            to: if is_foreign { id } else { id ^ 1 },
        };
        let vote = pb::Vote { term: 1 << 40, voted_for: Some(header.from), committed: true };
        let last_log_id = Some(pb::LogId { term: 1 << 40, index: 1 << 40 });
        let (path, body) = if self.dice.below(2) == 0 {
            let request = pb::VoteRequest {
                header: Some(header),
                vote: Some(pb::Vote { committed: false, ..vote }),
                last_log_id,
                ..pb::VoteRequest::default()
            };
            ("/quorate.v1.Raft/Vote", request.encode_to_vec())
        } else {
            let request = pb::AppendEntriesRequest {
                header: Some(header),
                vote: Some(vote),
                prev_log_id: last_log_id,
                ..pb::AppendEntriesRequest::default()
            };
            ("/quorate.v1.Raft/AppendEntries", request.encode_to_vec())
        };
        let transport = self.world.network.transport("stranger");
        let within = Duration::from_secs(3);
        let to = world::address(server);
        let reply = transport.unary(&to, path, Lane::Control, Bytes::from(body), within).await;
        coverage::hit("a stranger spoke to a server");
        if reply.is_ok() {
            let whom =
                if is_foreign { "another cluster" } else { "somebody who means another server" };
            verdict::fail(format!("s{server} answered {whom} at {path}"));
        }
    }
}
