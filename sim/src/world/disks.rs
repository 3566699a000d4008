//! The disks of a world: what is done to them, which of them may lose data (the fault atlas), and whether they hold what their servers said.
//!
//! Owns the faults of disks and the looks at copies of them. It must never let more than a minority lose data before those that lost it have caught up.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use fsm::Index;

use super::{Crash, Slot, State, World, address, name};
use crate::{
    autopsy,
    class::Class,
    coverage,
    invariants::{disk::rotten, history::check_durable},
    network::Promise,
    trace, verdict,
};
use chance::Dice;
use ground::{
    disk::{
        Disk,
        fault::{ErrorRates, FaultDisk},
    },
    rt,
};
use raft::storage::wal::Wal;

/// Of so many answers to an append one is looked for on the disk of whoever gave it.
const PROMISE_EVERY: u64 = 64;
/// What an entry takes in a log, at most, in batches of its own.
const ENTRY_BYTES: u64 = 2 << 10;
/// Segments that a log may have beyond what it must keep: begun anew at each start, and in the making.
const LOG_SEGMENTS_SPARE: u64 = 8;
/// Files in the directory of snapshots: one in use, one received, one in the making, one set aside.
const SNAPSHOTS_MAX: u64 = 4;
/// Between two looks at what a server would send, ms.
const SNAPSHOT_LOOK_MS: (u64, u64) = (100, 1_000);
/// How long one is waited for.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(1);
/// Between the looks at whether a wiped server has caught up.
const REJOIN_LOOK: Duration = Duration::from_millis(300);

impl World {
    /// Whether one more disk may lose what it holds.
    pub(crate) fn may_damage(&self, server: usize) -> bool {
        let state = self.lock();
        let others = state.slots.iter().enumerate();
        let lost = others.filter(|(at, slot)| *at != server && slot.incomplete).count();
        lost < (self.count() - 1) / 2
    }

    /// Takes a server's disk away: it comes back with an empty one, and a new number.
    pub(crate) fn wipe(&self, server: usize) {
        self.crash(server, Crash::Kill);
        trace::event(&name(server), format_args!("empty disk"));
        {
            let mut state = self.lock();
            let seed = state.dice.bits();
            let Slot { incarnation, still, .. } = state.slots[server];
            state.slots[server] = Slot { incarnation, still, incomplete: true, ..Slot::new(seed) };
        }
        let world = self.clone();
        rt::spawn_in(self.group_of_all, async move { world.watch_rejoin(server).await });
    }

    async fn watch_rejoin(self, server: usize) {
        loop {
            rt::sleep(REJOIN_LOOK).await;
            let Some(core) = self.core(server) else { continue };
            let Some(leader) = self.leader().and_then(|leader| self.core(leader)) else { continue };
            // While the change is half done the server that was wiped is needed too.
            let votes =
                leader.contact.settled_voters().is_some_and(|voters| voters.contains(&core.id));
            if votes && core.applied() >= leader.applied() {
                let mut state = self.lock();
                if state.slots[server].incomplete && !state.slots[server].damaged {
                    state.slots[server].incomplete = false;
                    coverage::hit("a wiped server joined under a new id");
                    trace::event(&name(server), format_args!("is whole again"));
                }
                return;
            }
        }
    }

    /// Flips bytes on the disk of a server that is down: a start has to find what was there before, or to refuse.
    pub(crate) fn rot(&self, server: usize, bytes: u64) {
        let open = || {
            let copy = self.lock().slots[server].disk.copy(0);
            autopsy::open(copy, self.log_options())
        };
        let before = open();
        self.flip(server, bytes);
        let Ok(Some(before)) = before else { return };
        match open() {
            Ok(Some(after)) => {
                let broken = rotten(&before, &after, self.lock().applied.known());
                if broken.is_empty() {
                    coverage::hit("a damaged disk opened as what it was");
                }
                for one in broken {
                    verdict::fail(format!("{one} (on the disk of {})", name(server)));
                }
            }
            Ok(None) => verdict::fail(format!(
                "I11: {} has no log after bytes of it were flipped",
                name(server)
            )),
            Err(_) => coverage::hit("a damaged disk was refused"),
        }
    }

    fn flip(&self, server: usize, bytes: u64) {
        let mut state = self.lock();
        let mut seeds = Dice::named(state.dice.bits(), "rot");
        let slot = &mut state.slots[server];
        let files: Vec<_> = slot.disk.files().into_iter().filter(|(_, size)| *size > 0).collect();
        if files.is_empty() || slot.live.is_some() {
            return;
        }
        (slot.damaged, slot.incomplete) = (true, true);
        for _ in 0..bytes {
            let (path, size) = &files[seeds.index(files.len())];
            let mut offset = seeds.index(*size);
            if self.swarm.has(Class::UsedRot)
                && let Ok(bytes) = slot.disk.read(path)
            {
                // Most of a log segment is zeros that were never written over.
                let used = bytes[offset..].iter().position(|byte| *byte != 0);
                offset += used.unwrap_or(0);
            }
            let mask = u8::try_from(seeds.between(1, 255)).expect("it is below 256");
            trace::event(
                &name(server),
                format_args!("rot {} at {offset} by {mask:02x}", path.display()),
            );
            slot.disk.corrupt(path, offset, mask);
        }
    }

    /// Whether something that was written to a server's log is not durable.
    pub(crate) fn has_unsynced_log(&self, server: usize) -> bool {
        let state = self.lock();
        let disk = &state.slots[server].disk;
        let in_log = |path: &PathBuf| path.starts_with("/data/log");
        disk.files().iter().any(|(path, _)| in_log(path) && disk.unsynced_writes(path) > 0)
    }

    /// Harms the disk of a server that runs, which may end itself over it. True when it runs.
    fn harm(&self, server: usize, what: fmt::Arguments<'_>, harm: impl FnOnce(&FaultDisk)) -> bool {
        let mut state = self.lock();
        let slot = &mut state.slots[server];
        if slot.live.is_some() {
            trace::event(&name(server), what);
            slot.excused = true;
            harm(&slot.disk);
        }
        slot.live.is_some()
    }

    /// Errors on a server's disk from now on.
    pub(crate) fn disk_errors(&self, server: usize, rates: ErrorRates) {
        self.harm(server, format_args!("{rates:?}"), |disk| disk.set_error_rates(rates));
    }

    /// The next sync fails.
    pub(crate) fn fail_sync(&self, server: usize, after: u64) {
        let what = format_args!("a sync fails after {after}");
        self.harm(server, what, |disk| disk.fail_sync_after(after));
    }

    /// Leaves so many bytes of a server's disk free, or as many as it wants.
    pub(crate) fn limit_disk(&self, server: usize, free: Option<u64>) {
        let mut state = self.lock();
        let slot = &mut state.slots[server];
        if free.is_some() && slot.live.is_none() {
            return;
        }
        trace::event(&name(server), format_args!("disk with {free:?} bytes free"));
        if free.is_some() {
            slot.excused = true;
            coverage::hit("a disk was full");
        }
        let capacity = free.map(|free| slot.disk.used_bytes() + free);
        slot.disk.set_capacity(capacity);
    }

    /// Looks at what each server would send, now and then while the faults last.
    pub(crate) async fn watch_snapshots(self) {
        let mut dice = Dice::named(self.swarm.seed, "looks at snapshots");
        while !self.is_calm() {
            rt::sleep(Duration::from_millis(dice.between(SNAPSHOT_LOOK_MS.0, SNAPSHOT_LOOK_MS.1)))
                .await;
            let server = dice.index(self.count());
            // One that stands still does not answer.
            drop(rt::timeout(SNAPSHOT_PATIENCE, self.note_snapshot(server)).await);
        }
    }

    /// What a server would send to one that lacks what is no longer in its log has to go as far as that.
    pub(crate) async fn note_snapshot(&self, server: usize) {
        let work = |core: Arc<server::Core>| async move {
            (core.log_first(), core.snapshot_index().await)
        };
        match self.inside(server, work).await {
            Some((first, Ok(index))) if index + 1 < first => verdict::fail(format!(
                "I6: s{server} would send a snapshot as of {index}, and its log begins at {first}"
            )),
            // Before, its disk may be what is wrong.
            Some((_, Err(error))) if self.is_calm() => {
                verdict::fail(format!("I6: s{server}: {error}"));
            }
            Some(_) | None => {}
        }
    }

    /// Makes a server's syncs slow, or as usual with 0.
    pub(crate) fn slow_disk(&self, server: usize, us_max: u64) {
        let Some(group) = self.group(server) else { return };
        trace::event(&name(server), format_args!("syncs take up to {us_max} us more"));
        rt::set_sync_slow(group, us_max);
    }

    /// Lets the next blocking work of a server wait for this long.
    pub(crate) fn delay_work(&self, server: usize, delay: Duration) {
        let Some(group) = self.group(server) else { return };
        trace::event(&name(server), format_args!("the next blocking work waits for {delay:?}"));
        rt::delay_next_work(group, delay);
    }

    /// What a server would come back with now is judged, unless its disk was damaged on purpose. `ran`: it was up.
    pub(crate) fn judge_disk(&self, server: usize, ran: bool) {
        let (copy, number, may_set_aside) = {
            let state = self.lock();
            let slot = &state.slots[server];
            let Some(number) = slot.number.filter(|_| !slot.damaged) else { return };
            (slot.disk.copy(0), number, slot.died_starting)
        };
        coverage::hit("a disk was opened and judged");
        let remains = match autopsy::open(copy, self.log_options()) {
            Ok(Some(mut remains)) => {
                remains.set_aside.retain(|name| !may_set_aside || name.ends_with(".damaged"));
                remains
            }
            Ok(None) => return,
            Err(why) => {
                verdict::fail(format!("I11: the disk of {} is whole, and {why}", name(server)));
                return;
            }
        };
        let broken = {
            let mut state = self.lock();
            let State { disks, applied, .. } = &mut *state;
            disks.found(number, &remains, applied.known(), ran)
        };
        for one in broken {
            verdict::fail(format!("{one} (on the disk of {})", name(server)));
        }
    }

    /// I53: what a server keeps is bounded: a log that is purged, a snapshot, an engine, and what is being made of each.
    pub(crate) fn check_size(&self, server: usize) -> Result<(), String> {
        let files = self.lock().slots[server].disk.files();
        let sum = |directory: &str| {
            let inside = files.iter().filter(|(path, _)| path.starts_with(directory));
            inside
                .fold((0_u64, 0_u64), |(count, bytes), (_, size)| (count + 1, bytes + *size as u64))
        };
        let (_, log_bytes) = sum("/data/log");
        let (snapshots, _) = sum("/data/snapshots");
        let swarm = &self.swarm;
        let kept = swarm.log_entries_kept().max(1) * 2 * ENTRY_BYTES;
        let log_bytes_max =
            2 * swarm.snapshot_log_bytes + kept + LOG_SEGMENTS_SPARE * swarm.segment_bytes * 4;
        check_size(server, (log_bytes, log_bytes_max), snapshots)
    }

    /// What a server says leaves it: its disk has to hold that already.
    pub(super) fn promised(&self, to: &str, promise: Promise) {
        let Some(server) = (0..self.count()).find(|server| address(*server) == to) else { return };
        let disk = {
            let mut state = self.lock();
            state.appends += u64::from(matches!(promise, Promise::Appended(_)));
            let skipped = matches!(promise, Promise::Appended(_))
                && !state.appends.is_multiple_of(PROMISE_EVERY);
            let slot = &state.slots[server];
            if skipped || slot.damaged || slot.live.is_none() {
                return;
            }
            slot.disk.durable_copy()
        };
        let held = match autopsy::promises(disk, self.log_options()) {
            Ok(found) => found,
            Err(why) => {
                let who = name(server);
                verdict::fail(format!("I11: a power cut now would leave {who} with this: {why}"));
                return;
            }
        };
        match promise {
            Promise::Voted(number, given) => {
                verdict::note(self.lock().disks.votes(number, given, held.vote));
            }
            Promise::Appended(index) if held.last < index => verdict::fail(format!(
                "I4: {} acknowledged entry {index} to its leader, and its disk ends at {}",
                name(server),
                held.last
            )),
            Promise::Appended(_) => {}
        }
    }

    /// From the `operations`-th change of its disk on nothing gets there any more, as if the machine had stopped there. True when it runs.
    pub(crate) fn stop_disk_after(&self, server: usize, operations: u64) -> bool {
        let what = format_args!("stops at disk operation {operations} from now");
        self.stop_disk(server, what, |disk| disk.stop_after(operations))
    }

    /// The same, counted from the first change of a name in this directory on.
    pub(crate) fn stop_disk_in(&self, server: usize, directory: &str, operations: u64) -> bool {
        let what = format_args!("stops at disk operation {operations} in {directory}");
        self.stop_disk(server, what, |disk| disk.stop_after_touching(directory, operations))
    }

    fn stop_disk(
        &self,
        server: usize,
        what: fmt::Arguments<'_>,
        stop: impl FnOnce(&FaultDisk),
    ) -> bool {
        let runs = self.harm(server, what, stop);
        self.lock().slots[server].halting = runs;
        runs
    }

    /// Whether the machine stopped in the middle of a change.
    pub(crate) fn is_disk_stopped(&self, server: usize) -> bool {
        self.lock().slots[server].disk.is_stopped()
    }

    /// I4: what the disks of the voters would come back with holds this index on a majority.
    pub(crate) fn check_durable(&self, index: Index) {
        let Some(leader) = self.leader().and_then(|leader| self.core(leader)) else { return };
        let voters = leader.contact.member_infos().iter().filter(|one| one.voter).count();
        let slots: Vec<FaultDisk> = {
            let state = self.lock();
            let whole = state.slots.iter().filter(|slot| !slot.incomplete && !slot.excused);
            whole.map(|slot| slot.disk.durable_copy()).collect()
        };
        // Disks in the atlas are not judged, and without them there may be no majority to find.
        if slots.len() < self.count() {
            return;
        }
        let ends: Vec<Index> = slots.into_iter().map(|disk| self.durable_end(disk)).collect();
        coverage::hit("an acknowledged index was found durable on a majority");
        verdict::note(check_durable(index, voters, &ends));
    }

    fn durable_end(&self, disk: FaultDisk) -> Index {
        let disk: Arc<dyn Disk> = Arc::new(disk);
        match Wal::open(disk, &PathBuf::from("/data/log"), self.log_options()) {
            Ok((log, _, _)) => log.last().map_or(0, |id| id.index),
            Err(_) => 0,
        }
    }
}

/// I53: whether a log and the number of snapshot files are within bounds.
fn check_size(server: usize, log: (u64, u64), snapshots: u64) -> Result<(), String> {
    let (bytes, bytes_max) = log;
    if bytes > bytes_max || snapshots > SNAPSHOTS_MAX {
        return Err(format!(
            "I53: s{server} keeps a log of {bytes} bytes, of {bytes_max} at most, and {snapshots} snapshots"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i53_a_log_that_is_never_purged_and_snapshots_that_pile_up_are_found() {
        assert!(check_size(0, (100, 100), 1).is_ok());
        assert!(check_size(0, (101, 100), 1).is_err());
        assert!(check_size(0, (100, 100), 9).is_err());
    }
}
