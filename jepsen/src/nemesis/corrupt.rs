//! Damage at rest: bits flipped and ends cut off in the log and the snapshots of a minority, while the server is down.
//!
//! What counts is what the server does when it is started: go on without harm, or refuse, say why and how to repair it. The
//! repair that it prints is then followed to the letter: its data directory is moved away and it joins anew. A server that
//! refuses without a repair ends the run red. Only one server is damaged at a time, and the next one only after this one
//! votes again ([`super::member`]).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::member::{Down, STATUS_TIMEOUT, move_away};
use super::{NAP, Outcome, Turn};
use crate::{client::HttpClient, fault::FaultClass};
use chance::Dice;

/// How long a damaged server may take to start or to refuse.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Everything after the last byte that is not zero counts as empty, but for so many bytes.
const TAIL_BYTES: u64 = 512;

/// A way to damage a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    FlipLog,
    FlipSnapshot,
    TruncateLog,
    TruncateSnapshot,
}

impl Damage {
    const ALL: [Self; 4] =
        [Self::FlipLog, Self::FlipSnapshot, Self::TruncateLog, Self::TruncateSnapshot];

    fn name(self) -> &'static str {
        match self {
            Self::FlipLog => "bitflip-wal",
            Self::FlipSnapshot => "bitflip-snap",
            Self::TruncateLog => "truncate-wal",
            Self::TruncateSnapshot => "truncate-snap",
        }
    }

    /// Where its files are, below the data directory, and how they end.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            Self::FlipLog | Self::TruncateLog => ("log", ".wal"),
            Self::FlipSnapshot | Self::TruncateSnapshot => ("snapshots", ".snapshot"),
        }
    }

    /// Damages one file below `data`; says what it did, or nothing if there is no such file.
    fn inflict(self, data: &Path, random: &mut Dice) -> Result<Option<String>> {
        let (folder, ending) = self.files();
        let files = files(&data.join(folder), ending)?;
        let Some(newest) = files.last() else { return Ok(None) };
        let done = match self {
            Self::FlipLog | Self::FlipSnapshot => {
                let file = &files[random.index(files.len())];
                let (offset, bit) = flip(file, random)?;
                format!("bit {bit} of byte {offset} of {}", short(file))
            }
            Self::TruncateLog | Self::TruncateSnapshot => {
                let size = truncate(newest, random)?;
                format!("{} cut to {size} bytes", short(newest))
            }
        };
        Ok(Some(done))
    }
}

/// What became of a damaged server.
pub(super) enum Answer {
    /// It runs.
    Runs,
    /// It ended; with the last it said, or the repair if there was one.
    Refused(String),
}

impl Turn<'_> {
    pub(super) fn strike_files(&mut self) -> Result<bool> {
        // The first of a random order for which there is a file: the first snapshot comes some seconds after the start.
        let mut order = Damage::ALL;
        self.random.shuffle(&mut order);
        self.announce(order[0].name());
        let outcome = self.damage(&order)?;
        Ok(self.conclude(outcome))
    }

    fn damage(&mut self, order: &[Damage]) -> Result<Outcome> {
        let Down { victim, leaders, at } = match self.take_down()? {
            Ok(down) => down,
            Err(outcome) => return Ok(outcome),
        };
        let mut cluster = self.cluster();
        let data = cluster.data(victim);
        let mut done = None;
        for damage in order {
            if let Some(what) = damage.inflict(&data, &mut self.random)? {
                done = Some((*damage, what));
                break;
            }
        }
        if done.is_none() {
            cluster.hold(victim, None);
        }
        drop(cluster);
        Ok(match done {
            Some((damage, what)) => {
                let mut details = self.details(damage.name(), &[victim], &leaders, at);
                details["damage"] = what.into();
                Outcome::Installed(details)
            }
            None => {
                self.cluster().start(victim)?;
                Outcome::Skipped(format!("{} has no such file yet", self.name(victim)))
            }
        })
    }

    /// Starts what was damaged and follows the repair it prints.
    pub(super) fn relieve_files(&mut self) -> Result<()> {
        let mut repairs = Vec::new();
        for server in 0..self.servers() {
            if self.cluster().held(server) == Some(FaultClass::Corrupt) {
                repairs.push(self.repair(server)?);
            }
        }
        self.relieved(json!({"repairs": repairs}));
        Ok(())
    }

    fn repair(&mut self, server: usize) -> Result<Value> {
        let name = self.name(server);
        let logged = {
            let mut cluster = self.cluster();
            cluster.hold(server, None);
            cluster.excuse(server, FaultClass::Corrupt);
            let logged = cluster.log_bytes(server);
            cluster.start(server)?;
            logged
        };
        let old_id = self.old_id.take();
        let answer = self.await_answer(server, logged)?;
        if matches!(answer, Answer::Refused(_)) {
            self.hold_down(server)?;
        }
        self.cluster().end_excuse(server, FaultClass::Corrupt);
        let repair = match answer {
            Answer::Runs => (None, json!({"node": name, "how": "started"})),
            Answer::Refused(said) => {
                let data = self.cluster().data(server);
                move_away(&data)?;
                let mut cluster = self.cluster();
                cluster.hold(server, None);
                cluster.start(server)?;
                (old_id, json!({"node": name, "how": "joined anew", "said": said}))
            }
        };
        let (old_id, mut repair) = repair;
        let waited = Instant::now();
        self.await_vote(server, old_id.as_deref())?;
        repair["voting_after_ms"] = u64::try_from(waited.elapsed().as_millis())?.into();
        Ok(repair)
    }

    /// Nobody starts a server that refused before its data is away. If its power was cut meanwhile, that ends first: until then its disk takes nothing.
    pub(super) fn hold_down(&self, server: usize) -> Result<()> {
        let end = Instant::now() + START_TIMEOUT;
        loop {
            let mut cluster = self.cluster();
            if cluster.held(server).is_none() && !cluster.running().contains(&server) {
                cluster.hold(server, Some(self.class));
                return Ok(());
            }
            drop(cluster);
            anyhow::ensure!(Instant::now() < end, "{} is not left alone", self.name(server));
            thread::sleep(NAP);
        }
    }

    /// Waits until a started server answers or ends.
    pub(super) fn await_answer(&self, server: usize, logged: u64) -> Result<Answer> {
        let endpoint = &self.nemesis.endpoints[server];
        let client = HttpClient::new(endpoint.http, STATUS_TIMEOUT);
        let end = Instant::now() + START_TIMEOUT;
        loop {
            let is_down = !self.cluster().running().contains(&server);
            if is_down && self.cluster().held(server).is_some() {
                // Its power is cut: it is started when that is over.
            } else if is_down && self.cluster().was_ended(server) {
                // By another fault, before it could answer: that is no refusal.
                self.cluster().start(server)?;
            } else if is_down {
                let said = self.cluster().log_since(server, logged);
                let line = said.lines().find(|line| tells_repair(line));
                let last = said.lines().last().unwrap_or("it said nothing").trim();
                if line.is_none() {
                    let text = format!("refused to start without saying how to repair it: {last}");
                    self.cluster().accuse(server, &text);
                }
                return Ok(Answer::Refused(line.map_or(last, str::trim).to_owned()));
            }
            // It is up when it takes part: it may also refuse after it has opened its port.
            let system = self.cluster().system();
            if system.leadership(endpoint, &client).is_some() {
                return Ok(Answer::Runs);
            }
            if Instant::now() >= end {
                // Others may be down, so that nobody leads: it runs, which is all that is asked.
                return Ok(Answer::Runs);
            }
            thread::sleep(NAP);
        }
    }
}

/// Whether a line of a log says what to do: its data is to be moved away, and it is to join again.
fn tells_repair(line: &str) -> bool {
    line.contains("away") && (line.contains("anew") || line.contains("rejoin"))
}

/// The files of a folder with this ending, by name; none if there is no folder.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ending) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// How much of a file is in use: up to its last byte that is not zero.
fn used_bytes(path: &Path) -> Result<u64> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Ok((used as u64 + TAIL_BYTES).min(bytes.len() as u64))
}

/// Flips one bit in the used part.
fn flip(path: &Path, random: &mut Dice) -> Result<(u64, u32)> {
    let used = used_bytes(path)?;
    let offset = random.index(usize::try_from(used.max(1))?) as u64;
    let bit = u32::try_from(random.index(8))?;
    let file = OpenOptions::new().read(true).write(true).open(path);
    let flipped = file.and_then(|file| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        byte[0] ^= 1 << bit;
        file.write_all_at(&byte, offset)?;
        file.sync_all()
    });
    flipped.with_context(|| format!("cannot flip a bit of {}", path.display()))?;
    Ok((offset, bit))
}

/// Cuts off an end of the used part.
fn truncate(path: &Path, random: &mut Dice) -> Result<u64> {
    let used = used_bytes(path)?;
    let size = random.index(usize::try_from(used.max(1))?) as u64;
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(size).and_then(|()| file.sync_all()))
        .with_context(|| format!("cannot cut {}", path.display()))?;
    Ok(size)
}

fn short(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::Mutex;

    use super::super::{Nemesis, Turns};
    use super::*;
    use crate::{
        cluster::{Cluster, Setup, test_setup},
        history::Recorder,
    };

    #[test]
    fn damage_changes_one_bit_or_the_end_of_what_is_used() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("log")).unwrap();
        let segment = data.path().join("log/1.wal");
        let mut content = vec![7; 4_000];
        content.resize(1 << 20, 0);
        fs::write(&segment, &content).unwrap();
        let mut random = Dice::numbered(1, 0);
        for _ in 0..50 {
            Damage::FlipLog.inflict(data.path(), &mut random).unwrap().unwrap();
            let flipped = fs::read(&segment).unwrap();
            let changed: Vec<usize> =
                (0..content.len()).filter(|place| flipped[*place] != content[*place]).collect();
            assert_eq!(changed.len(), 1);
            assert!(changed[0] < 4_512, "{changed:?}");
            assert_eq!((flipped[changed[0]] ^ content[changed[0]]).count_ones(), 1);
            fs::write(&segment, &content).unwrap();
        }
        Damage::TruncateLog.inflict(data.path(), &mut random).unwrap().unwrap();
        assert!(fs::metadata(&segment).unwrap().len() < 4_512);
        assert_eq!(Damage::FlipSnapshot.inflict(data.path(), &mut random).unwrap(), None);
    }

    #[test]
    fn a_server_whose_power_is_cut_is_left_to_that() {
        let directory = tempfile::tempdir().unwrap();
        let setup = Setup { directory: directory.path().to_owned(), ..test_setup() };
        let cluster = Mutex::new(Cluster::create(setup).unwrap());
        let endpoints = cluster.lock().unwrap().endpoints().to_vec();
        let (recorder, turns) = (Recorder::in_memory(), Turns::new(&[]));
        cluster.lock().unwrap().hold(1, Some(FaultClass::Power));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                let mut cluster = cluster.lock().unwrap();
                assert_eq!(cluster.held(1), Some(FaultClass::Power));
                cluster.hold(1, None);
            });
            let nemesis = Nemesis::new(&cluster, &endpoints, &recorder, &turns, 1);
            Turn::new(nemesis, FaultClass::Corrupt, &|| false).hold_down(1).unwrap();
        });
        assert_eq!(cluster.lock().unwrap().held(1), Some(FaultClass::Corrupt));
    }

    #[test]
    fn a_refusal_needs_a_repair() {
        let check = |script: &str, ended_by_us: bool, accused: usize| {
            let directory = tempfile::tempdir().unwrap();
            let setup = Setup { directory: directory.path().to_owned(), ..test_setup() };
            let mut cluster = Cluster::create(setup).unwrap();
            let endpoints = cluster.endpoints().to_vec();
            fs::write(directory.path().join("n2/server"), script).unwrap();
            cluster.excuse(1, FaultClass::Corrupt);
            cluster.start(1).unwrap();
            if ended_by_us {
                let deadline = Instant::now() + Duration::from_mins(1);
                while !directory.path().join("n2/once").exists() {
                    assert!(Instant::now() < deadline, "the first start does not come to it");
                    std::thread::sleep(Duration::from_millis(5));
                }
                cluster.kill(1).unwrap();
            }
            let (cluster, recorder) = (Mutex::new(cluster), Recorder::in_memory());
            let turns = Turns::new(&[]);
            let nemesis = Nemesis::new(&cluster, &endpoints, &recorder, &turns, 1);
            let turn = Turn::new(nemesis, FaultClass::Corrupt, &|| false);
            let Answer::Refused(said) = turn.await_answer(1, 0).unwrap() else {
                panic!("it has ended")
            };
            assert_eq!(cluster.lock().unwrap().exits().len(), accused, "{said}");
            said
        };
        let repair = "echo 'the log is damaged: move its data directory away and let it rejoin'";
        let said = check(&format!("echo started; {repair}; echo bye; exit 1"), false, 0);
        assert!(said.starts_with("the log is damaged"), "{said}");
        assert_eq!(check("echo started; echo it is broken; exit 1", false, 1), "it is broken");
        // The end that another fault made is no answer; the next start's is.
        let twice = format!("mkdir $(dirname $0)/once && exec sleep 60; {repair}; exit 1");
        assert!(check(&twice, true, 0).starts_with("the log is damaged"));
    }
}
