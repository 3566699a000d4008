//! Who is a member: a server is taken down while all vote, and votes again later; and the class of faults that replaces its disk by an empty one.
//!
//! A server without a disk has lost what it promised, votes included. So it joins under another id, and its old one is taken out of the
//! configuration: a change of the members, under load, beside whatever else goes wrong. Only one server at a time loses its disk or part of
//! it, whichever class did it ([`super::Turns`]), and the next one only after a majority shows a configuration in which this one votes: more is
//! beyond what a majority of disks promises.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Aim, NAP, Outcome, Turn};
use crate::{
    client::{HttpClient, Reply},
    cluster::Effect,
};

/// How long a server that was taken down may take to vote again.
pub(super) const VOTE_TIMEOUT: Duration = Duration::from_mins(2);
pub(super) const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// A server that was killed and stays down until its class lets go of it.
pub(super) struct Down {
    pub(super) victim: usize,
    pub(super) leaders: Vec<usize>,
    /// When it was killed, in nanoseconds of the history.
    pub(super) at: u64,
}

impl Turn<'_> {
    /// Kills one server and holds it down for this class, if a majority says that every server votes and nothing else keeps it down.
    pub(super) fn take_down(&mut self) -> Result<Result<Down, Outcome>> {
        let all = self.voters().filter(|voters| voters.len() == self.servers());
        let Some(mut voters) = all else {
            return Ok(Err(Outcome::Skipped("not every server votes at the moment".to_owned())));
        };
        let leaders = self.leaders();
        let victim = self.random.index(self.servers());
        let at = self.now();
        let mut cluster = self.cluster();
        // We would wait for the thaw, which waits for us.
        if cluster.is_frozen(victim) {
            let reason = format!("the disk of {} is frozen", self.name(victim));
            return Ok(Err(Outcome::Skipped(reason)));
        }
        match cluster.kill(victim)? {
            Effect::Done => {}
            Effect::Nothing => {
                return Ok(Err(Outcome::Skipped(format!("{} is down", self.name(victim)))));
            }
            Effect::Unclear(reason) => return Ok(Err(Outcome::Indeterminate(reason))),
        }
        if let Some(other) = cluster.held(victim) {
            let reason = format!("{} is down for {}", self.name(victim), other.name());
            return Ok(Err(Outcome::Skipped(reason)));
        }
        cluster.hold(victim, Some(self.class));
        drop(cluster);
        // Later nobody may be there to tell.
        self.old_id = voters.remove(&self.nemesis.endpoints[victim].rpc.to_string());
        Ok(Ok(Down { victim, leaders, at }))
    }

    pub(super) fn strike_member(&mut self) -> Result<bool> {
        self.announce(Aim::One.name());
        let outcome = match self.take_down()? {
            Err(outcome) => outcome,
            Ok(Down { victim, leaders, at }) => {
                let data = self.cluster().data(victim);
                move_away(&data)?;
                Outcome::Installed(self.details(Aim::One.name(), &[victim], &leaders, at))
            }
        };
        Ok(self.conclude(outcome))
    }

    /// Starts what lost its disk, and waits until it votes under another id.
    pub(super) fn relieve_member(&mut self) -> Result<()> {
        let mut joined = Vec::new();
        for server in 0..self.servers() {
            if self.cluster().held(server) != Some(self.class) {
                continue;
            }
            let old_id = self.old_id.take();
            {
                let mut cluster = self.cluster();
                cluster.hold(server, None);
                cluster.start(server)?;
            }
            let began = Instant::now();
            self.await_vote(server, old_id.as_deref())?;
            let waited_ms = u64::try_from(began.elapsed().as_millis())?;
            joined.push(json!({"node": self.name(server), "voting_after_ms": waited_ms}));
        }
        self.relieved(json!({"joined": joined}));
        Ok(())
    }

    /// The id under which a server votes.
    pub(super) fn voting_id(&self, server: usize) -> Option<String> {
        self.voters()?.remove(&self.nemesis.endpoints[server].rpc.to_string())
    }

    /// Waits until the server is a voter of its cluster, under another id than `old_id`, and answers; ends early with the run, the heal waits again.
    pub(super) fn await_vote(&self, server: usize, old_id: Option<&str>) -> Result<()> {
        let endpoint = &self.nemesis.endpoints[server];
        let client = HttpClient::new(endpoint.http, STATUS_TIMEOUT);
        let end = Instant::now() + VOTE_TIMEOUT;
        while Instant::now() < end {
            let votes = self.voting_id(server).is_some_and(|id| Some(id.as_str()) != old_id);
            if votes && client.leader().is_some() {
                return Ok(());
            }
            if (self.halt)() {
                // Other faults may keep it out or keep it from answering, and last until the heal, which waits for us; after it the run waits until
                // every server is ready.
                return Ok(());
            }
            self.cluster().start(server)?;
            thread::sleep(NAP);
        }
        self.cluster()
            .accuse(server, &format!("did not vote within {VOTE_TIMEOUT:?} of its start"));
        Ok(())
    }

    /// The voters as more than half of the servers show them. One server alone may show a change that comes to nothing.
    fn voters(&self) -> Option<Voters> {
        let shown = self.nemesis.endpoints.iter().filter_map(|endpoint| {
            let client = HttpClient::new(endpoint.http, STATUS_TIMEOUT);
            let Reply::Answer { status: 200, body, .. } =
                client.get("/v1/operator/raft/configuration")
            else {
                return None;
            };
            voters_in(&serde_json::from_str(&body).ok()?)
        });
        majority(&shown.collect::<Vec<_>>(), self.servers())
    }
}

/// Ids of voters by address.
type Voters = BTreeMap<String, String>;

/// The voters in an answer; none while one configuration follows another, when an address may vote under its old id and its new one.
fn voters_in(answer: &Value) -> Option<Voters> {
    let mut voters = Voters::new();
    for server in answer["Servers"].as_array()?.iter().filter(|server| server["Voter"] == true) {
        let text = |field: &str| server[field].as_str().map(str::to_owned);
        if voters.insert(text("Address")?, text("ID")?).is_some() {
            return None;
        }
    }
    Some(voters)
}

/// What more than half of so many servers show.
fn majority(shown: &[Voters], servers: usize) -> Option<Voters> {
    let supporters = |one: &Voters| shown.iter().filter(|other| *other == one).count();
    shown.iter().find(|one| supporters(one) > servers / 2).cloned()
}

/// Moves everything in the data directory beside it; the directory itself may be a mount and stays.
pub(super) fn move_away(data: &Path) -> Result<()> {
    let place = (1..1_000_000)
        .map(|number| data.with_file_name(format!("data.damaged-{number}")))
        .find(|place| !place.exists())
        .context("there are not that many")?;
    let same_file_system = fs::create_dir(&place).and_then(|()| {
        for entry in fs::read_dir(data)? {
            let path = entry?.path();
            fs::rename(&path, place.join(path.file_name().unwrap_or_default()))?;
        }
        Ok(())
    });
    if same_file_system.is_ok() {
        return Ok(());
    }
    // A mount of its own: what is in it cannot be moved out of it by renaming, and the log tells what was found.
    for entry in fs::read_dir(data).with_context(|| format!("cannot list {}", data.display()))? {
        let path = entry?.path();
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn answer(servers: &[(&str, &str, bool)]) -> Value {
        let servers: Vec<_> = servers
            .iter()
            .map(|(address, id, voter)| json!({"Address": address, "ID": id, "Voter": voter}))
            .collect();
        json!({"Servers": servers})
    }

    #[test]
    fn a_configuration_counts_when_a_majority_shows_it() {
        let old = voters_in(&answer(&[("a", "1", true), ("b", "2", true), ("c", "3", true)]));
        let old = old.unwrap();
        let learns = [("a", "1", true), ("b", "2", true), ("c", "4", false)];
        let new = voters_in(&answer(&learns)).unwrap();
        assert_eq!((old.len(), new.len()), (3, 2), "who only learns does not vote");
        assert_eq!(majority(&[old.clone(), new.clone(), old.clone()], 3), Some(old.clone()));
        assert_eq!(majority(&[old.clone(), new], 3), None);
        assert_eq!(majority(std::slice::from_ref(&old), 3), None, "one of three is no majority");
        let both = [("a", "1", true), ("b", "2", true), ("c", "3", true), ("c", "4", true)];
        assert_eq!(voters_in(&answer(&both)), None, "one configuration follows another");
        assert_eq!(voters_in(&json!({"Servers": [{"Voter": true}]})), None);
    }

    #[test]
    fn data_is_moved_away_and_its_folder_stays() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        for number in 1..=2 {
            fs::create_dir_all(data.join("log")).unwrap();
            fs::write(data.join("server.json"), "{}").unwrap();
            move_away(&data).unwrap();
            assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
            let moved = directory.path().join(format!("data.damaged-{number}"));
            assert!(moved.join("log").is_dir() && moved.join("server.json").is_file());
        }
    }
}
