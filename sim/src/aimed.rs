//! Faults that wait for their moment: at any other time they would find little. Some come among the others, some when those are over and everything
//! that is left undone shows.

use std::{sync::Arc, time::Duration};

use fsm::Index;

use crate::{
    class::Class,
    coverage, streams, trace, verdict,
    world::{Crash, World},
};
use chance::Dice;
use ground::rt::{self, Instant};
use server::Core;
use wire::api::MemberInfo;

/// Pause between two of them, ms.
const GAP_MS: (u64, u64) = (200, 3_000);
/// How long a server is left behind, ms: short enough that agents keep their streams from it.
const BEHIND_MS: (u64, u64) = (400, 1_200);
/// How long the others may take then to cut what it lacks off their logs, which they do not while they try to send it.
const PURGED: Duration = Duration::from_millis(1_200);
/// Between the looks at whether the moment has come.
const LOOK: Duration = Duration::from_millis(2);
/// Between two snapshots after which the log may be cut.
const PURGE_LOOK: Duration = Duration::from_millis(100);
/// How long a moment is waited for.
const MOMENT: Duration = Duration::from_secs(8);
/// How long the build of a snapshot waits for a thread, ms: longer than it takes to be left behind and to be sent a newer one.
const SLOW_BUILD_MS: (u64, u64) = (15_000, 20_000);
/// From its turn until a snapshot is built.
const BUILT: Duration = Duration::from_millis(300);
/// A server that hears nobody for this long, or for four election timeouts, is out of touch (`server/members.rs`).
const SILENCE_MIN: Duration = Duration::from_secs(3);
/// Until it has told its agents: it looks each second.
const TOLD: Duration = Duration::from_secs(2);
/// How long a leader is cut off with a server that joins, ms.
const CUT_OFF_MS: (u64, u64) = (1_500, 5_000);
/// An attempt to forward a write ends after 3 s. Replies are lost for longer, and nobody has room before the next attempt.
const REPLIES_LOST: Duration = Duration::from_millis(3_200);
/// When nobody has room any more: early enough that everyone knows by then.
const FILLED_AFTER: Duration = Duration::from_millis(1_900);
/// Until there is room again.
const FULL: Duration = Duration::from_millis(1_500);
/// Leaders that are killed, until a server without room leads.
const ELECTIONS_MAX: u32 = 4;
/// Until a cluster of which one server is full is led by another, and serves.
const LED_WITH_ROOM: Duration = Duration::from_secs(15);
const DOWN: Duration = Duration::from_millis(100);
/// Where snapshots lie.
const SNAPSHOTS: &str = "/data/snapshots";
/// Changes of the disk after which the machine stops, at most, counted from the first piece of a snapshot on.
const INSTALL_OPERATIONS_MAX: u64 = 24;

/// Brings them for as long as the other faults last.
pub(crate) async fn run(world: World) {
    let mut dice = Dice::named(world.swarm.seed, "aimed");
    let end = Instant::now() + Duration::from_millis(world.swarm.safety_ms);
    while Instant::now() < end {
        rt::sleep(Duration::from_millis(dice.between(GAP_MS.0, GAP_MS.1))).await;
        if world.is_calm() {
            return;
        }
        let server = dice.index(world.count());
        match dice.below(3) {
            0 => {
                let behind = Duration::from_millis(dice.between(BEHIND_MS.0, BEHIND_MS.1));
                let was_left = leave_behind(&world, server, rt::sleep(behind)).await;
                if was_left && dice.below(2) == 0 {
                    stop_in_install(&world, server, &mut dice).await;
                }
            }
            1 => {
                let lasts = Duration::from_millis(dice.between(CUT_OFF_MS.0, CUT_OFF_MS.1));
                cut_off_with_newcomer(&world, server, lasts).await;
            }
            _ => lose_replies_into_fullness(&world, server).await,
        }
    }
}

/// A server hears and tells the others nothing while this happens and until they have cut it off their logs, so that it has to be sent a snapshot. False
/// if that took too long.
async fn leave_behind(world: &World, server: usize, meanwhile: impl Future<Output = ()>) -> bool {
    let leader = world.leader().filter(|leader| *leader != server);
    let (Some(_), Some(left)) = (leader, world.core(server)) else {
        meanwhile.await;
        return false;
    };
    let applied = left.applied();
    drop(left);
    trace::event("aimed", format_args!("s{server} is left behind"));
    let cut = world.network.cut_off(world.links(|from, to| (from == server) != (to == server)));
    meanwhile.await;
    let was_left = match world.leader().filter(|leader| *leader != server) {
        Some(leader) => cut_log(world, leader, applied).await,
        None => false,
    };
    if was_left {
        coverage::hit("a server was left behind for a moment");
    }
    world.network.uncut(&cut);
    was_left
}

/// The machine of a server that is to be sent a snapshot stops at some change of its disk between the first piece and the end of the install.
async fn stop_in_install(world: &World, server: usize, dice: &mut Dice) {
    if !world.stop_disk_in(server, SNAPSHOTS, dice.below(INSTALL_OPERATIONS_MAX)) {
        return;
    }
    if moment(world, MOMENT, |world| world.is_disk_stopped(server)).await {
        coverage::hit("a machine stopped while it was sent a snapshot or installed it");
    }
    if world.crash(server, Crash::Power) {
        rt::sleep(DOWN).await;
        world.start(server);
    }
}

/// Has a leader cut its log beyond an index; false if that takes too long.
async fn cut_log(world: &World, leader: usize, index: Index) -> bool {
    let deadline = Instant::now() + PURGED;
    while Instant::now() < deadline {
        // By itself it would write one only after a while. It keeps few entries beyond (`Swarm::log_entries_kept`).
        let snapshot = |core: Arc<Core>| async move { core.take_snapshot().await };
        drop(world.inside(leader, snapshot).await);
        rt::sleep(PURGE_LOOK).await;
        if world.core(leader).is_some_and(|core| core.log_first() > index + 1) {
            return true;
        }
    }
    false
}

/// A leader that takes a newcomer in is cut off with it once all know of the newcomer and before it votes: that it is to vote is decided without the
/// others, who may elect a leader that never hears of it.
async fn cut_off_with_newcomer(world: &World, server: usize, lasts: Duration) {
    let may = world.count() >= 3 && world.is_up(server) && world.may_damage(server);
    if !may || world.leader() == Some(server) {
        return;
    }
    world.wipe(server);
    rt::sleep(DOWN).await;
    world.start(server);
    let joins = |world: &World| {
        let (Some(newcomer), Some(leader)) = (world.core(server), world.leader()) else {
            return false;
        };
        let Some(core) = world.core(leader).filter(|_| leader != server) else { return false };
        let learns = |member: &MemberInfo| member.id == newcomer.id && !member.voter;
        // Before that the leader would wait for the others.
        let is_known = core.applied() >= core.contact.membership_index();
        is_known && core.contact.member_infos().iter().any(learns)
    };
    if !moment(world, MOMENT, joins).await || world.is_calm() {
        return;
    }
    let Some(leader) = world.leader() else { return };
    coverage::hit("a leader was cut off with a server that was joining");
    trace::event("aimed", format_args!("s{leader} is cut off with s{server}"));
    let inside = move |one: usize| one == leader || one == server;
    let cut = world.network.cut(world.links(|from, to| inside(from) != inside(to)));
    rt::sleep(lasts).await;
    world.network.uncut(&cut);
}

/// Replies of the leader to one server are lost until nobody has room: what was asked before may have been done, whatever is refused then.
async fn lose_replies_into_fullness(world: &World, server: usize) {
    let Some(leader) = world.leader().filter(|leader| *leader != server) else { return };
    if !world.swarm.has(Class::Watermark) {
        // There would be no room for what is under way.
        return;
    }
    trace::event("aimed", format_args!("s{leader} is not heard by s{server}"));
    let cut = world.network.cut(world.links(|from, to| (from, to) == (leader, server)));
    rt::sleep(FILLED_AFTER).await;
    let free = world.swarm.free_bytes_min() - 1;
    if !world.is_calm() {
        (0..world.count()).for_each(|one| world.limit_disk(one, Some(free)));
    }
    rt::sleep(REPLIES_LOST.saturating_sub(FILLED_AFTER)).await;
    world.network.uncut(&cut);
    rt::sleep(FULL).await;
    (0..world.count()).for_each(|one| world.limit_disk(one, None));
}

/// After the other faults: one server is full and leaders die until it leads. The cluster must soon be led by another, which has room.
pub(crate) async fn elect_a_full_server(world: &World, dice: &mut Dice) {
    let server = dice.index(world.count());
    if world.count() < 3 || !world.swarm.has(Class::Watermark) {
        return;
    }
    world.limit_disk(server, Some(world.swarm.free_bytes_min() - 1));
    let is_full = |world: &World| world.core(server).is_some_and(|core| core.has_full_disk());
    // What it removes meanwhile may leave it enough.
    if moment(world, MOMENT, is_full).await {
        kill_until_it_leads(world, server, dice).await;
        let with_room = |world: &World| {
            let leader = world.leader().and_then(|leader| world.core(leader));
            leader.is_some_and(|core| !core.has_full_disk())
        };
        let what = "I55: a leader with room, while one server is full";
        world.wait(what, LED_WITH_ROOM, with_room).await;
    }
    world.limit_disk(server, None);
}

/// Kills one leader after the other, for some time, until this server is elected.
async fn kill_until_it_leads(world: &World, server: usize, dice: &mut Dice) {
    for _ in 0..ELECTIONS_MAX {
        let other = |world: &World| world.leader().filter(|leader| *leader != server);
        if !moment(world, MOMENT, |world| other(world).is_some()).await {
            return;
        }
        let Some(leader) = other(world) else { return };
        world.crash(leader, Crash::Kill);
        rt::sleep(Duration::from_millis(dice.between(50, 1_500))).await;
        world.start(leader);
        moment(world, MOMENT, |world| world.leader().is_some()).await;
        if world.leader() == Some(server) {
            coverage::hit("a full server was elected");
            return;
        }
    }
}

/// After the other faults: a server is left behind for a moment, or while it builds a snapshot of its own.
pub(crate) async fn leave_behind_at_last(
    world: &World,
    dice: &mut Dice,
    meanwhile: impl Future<Output = ()>,
) {
    let server = dice.index(world.count());
    if dice.below(2) == 0 {
        let was_left = leave_behind(world, server, meanwhile).await;
        if was_left && dice.below(2) == 0 {
            stop_in_install(world, server, dice).await;
        }
    } else {
        overtake_build(world, server, dice, meanwhile).await;
    }
}

/// A server builds a snapshot so slowly that it is left behind meanwhile and sent a newer one. That is the one it has afterwards.
async fn overtake_build(
    world: &World,
    server: usize,
    dice: &mut Dice,
    meanwhile: impl Future<Output = ()>,
) {
    let slow = Duration::from_millis(dice.between(SLOW_BUILD_MS.0, SLOW_BUILD_MS.1));
    let built_at = Instant::now() + slow;
    let applied = world.core(server).map_or(Index::MAX, |core| core.applied());
    world.delay_work(server, slow);
    let build = |core: Arc<Core>| async move { core.take_snapshot().await };
    drop(world.inside(server, build).await);
    leave_behind(world, server, meanwhile).await;
    let is_overtaken = |world: &World| {
        // Its own snapshot would not let it cut its log there.
        world.core(server).is_some_and(|core| core.log_first() > applied.saturating_add(1))
    };
    let left = built_at.saturating_duration_since(Instant::now());
    if moment(world, left, is_overtaken).await {
        coverage::hit("a snapshot was overtaken by a newer one while it was built");
    }
    rt::sleep_until(built_at + BUILT).await;
    world.note_snapshot(server).await;
}

/// After the other faults: a server hears no other one and is heard by none, but by agents. Soon it must not keep them waiting for what it cannot know.
pub(crate) async fn silence(world: &World, server: usize) {
    let Some(id) = world.core(server).map(|core| core.id).filter(|_| world.count() >= 3) else {
        return;
    };
    let (begin, incarnation) = (Instant::now(), world.incarnation(server));
    let listened = streams::open_since(id, begin);
    trace::event("aimed", format_args!("s{server} is alone, {listened} agents listen to it"));
    let apart = |from: usize, to: usize| (from == server) != (to == server);
    let cut = world.network.cut_off(world.links(apart));
    let silence_max = Duration::from_millis(4 * world.swarm.timing.election_ms_max);
    rt::sleep(silence_max.max(SILENCE_MIN) + TOLD).await;
    if world.is_up(server) && world.incarnation(server) == incarnation {
        match streams::open_since(id, begin) {
            0 if listened > 0 => {
                coverage::hit("a server that was out of touch let go of its agents");
            }
            0 => {}
            kept => verdict::fail(format!(
                "I39: s{server} keeps {kept} agents although it has heard no server for {:?}",
                begin.elapsed()
            )),
        }
    }
    world.network.uncut(&cut);
}

/// Waits for a moment that need not come.
pub(crate) async fn moment(
    world: &World,
    within: Duration,
    has_come: impl Fn(&World) -> bool,
) -> bool {
    let deadline = Instant::now() + within;
    while !has_come(world) {
        if Instant::now() >= deadline {
            return false;
        }
        rt::sleep(LOOK).await;
    }
    true
}
