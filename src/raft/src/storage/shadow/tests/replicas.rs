//! Three replicas of a scheduler's life (the logs of package `control`): one in memory, one that
//! lives in sled, one that lives in sled's twin on a disk that loses power. Stopped at any point,
//! loaded, and brought up to date from the log, each is the same state, byte for byte.

use fsm::{Proposal, invariant, testing::rows};

use super::*;
use crate::storage::snapshot_file::SnapshotDirectory;

/// Logs that are lived through.
const SEEDS: u64 = 8;

type Log = Vec<(u64, Option<Proposal>)>;

/// Where a replica keeps its state.
trait Home {
    fn open(&self) -> (StateDirectory, Option<Loaded>);
    /// Loses what was not durable, as far as this home can.
    fn stop(&self, _seed: u64) {}
}

struct Twin(FaultDisk);

impl Home for Twin {
    fn open(&self) -> (StateDirectory, Option<Loaded>) {
        open(&self.0).unwrap()
    }

    fn stop(&self, seed: u64) {
        self.0.power_cut(seed);
    }
}

struct Sled(tempfile::TempDir);

impl Home for Sled {
    fn open(&self) -> (StateDirectory, Option<Loaded>) {
        StateDirectory::open(Arc::new(RealDisk), self.0.path(), Arc::new(open_sled)).unwrap()
    }
}

/// The states that the log goes through, from the one before its first entry.
fn states_of(log: &Log) -> Vec<State> {
    let mut life = Life::new();
    let mut states = vec![life.state.clone()];
    for (term, proposal) in log {
        life.enter(*term, proposal.as_ref());
        states.push(life.state.clone());
    }
    states
}

fn same(found: &State, wanted: &State) {
    assert_eq!(found.head(), wanted.head());
    assert_eq!(found.digest(), wanted.digest());
    assert_eq!(rows(found), rows(wanted), "at {}", wanted.index());
}

/// Lives through a log, with stops on the way; answers how often it was stopped.
fn live_through(home: &dyn Home, log: &Log, states: &[State], seed: u64) -> u32 {
    let mut life = Life::new();
    let (mut directory, nothing) = home.open();
    assert!(nothing.is_none());
    let (mut stops, mut chance) = (0, seed);
    loop {
        let at = usize::try_from(life.index()).unwrap();
        let Some((term, proposal)) = log.get(at) else { break };
        life.enter(*term, proposal.as_ref());
        // An additive generator is enough to spread groups, barriers and stops over the log.
        chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let throw = chance >> 40;
        if throw.is_multiple_of(3) {
            write(&mut directory, life.take()).unwrap();
        }
        if throw.is_multiple_of(7) {
            directory.barrier().unwrap();
        }
        if throw.is_multiple_of(23) {
            drop(directory);
            home.stop(chance);
            let (opened, loaded) = home.open();
            directory = opened;
            let loaded = loaded.map_or_else(Life::new, |loaded| Life::from(loaded.state));
            let wanted = &states[usize::try_from(loaded.index()).unwrap()];
            if loaded.index() > 0 {
                same(&loaded.state, wanted);
                assert_eq!(invariant::check(&loaded.state), []);
            }
            life = loaded;
            stops += 1;
        }
    }
    write(&mut directory, life.take()).unwrap();
    directory.barrier().unwrap();
    drop(directory);
    home.stop(seed);
    let loaded = home.open().1.unwrap();
    same(&loaded.state, &states[log.len()]);
    stops
}

#[test]
fn sled_its_twin_and_memory_agree_on_random_logs() {
    let mut stops = [0, 0];
    for seed in 0..SEEDS {
        let log = control::log_of(seed);
        let states = states_of(&log);
        let sled = Sled(tempfile::tempdir().unwrap());
        let twin = Twin(FaultDisk::new(seed));
        stops[0] += live_through(&sled, &log, &states, seed);
        stops[1] += live_through(&twin, &log, &states, seed + 1);

        // And the file that is sent to a follower.
        let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new(seed));
        let files = SnapshotDirectory::open(disk, Path::new("/snapshots")).unwrap();
        let last = Life::from(states[log.len()].clone());
        files.write(&last.state, &last.meta()).unwrap();
        same(&files.newest().unwrap().unwrap().1.state, &last.state);
    }
    assert!(stops.iter().all(|stops| *stops > 2), "stopped {stops:?} times only");
}
