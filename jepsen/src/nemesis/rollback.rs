//! A machine goes back to a snapshot: an older copy of one server's data directory is put back.
//!
//! The copy is taken while the server is down; it then votes and acknowledges more, is killed, and starts with the copy. Every other time the
//! leader is killed within two seconds of that start: nobody may then be elected by the vote of a server that has forgotten what it
//! acknowledged. What counts is what the server does: it heals by itself, or it ends and says what to do, which is then followed to the letter.
//! Silence ends the run red. Only one server at a time loses what it promised ([`super::Turns`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::corrupt::Answer;
use super::member::{Down, STATUS_TIMEOUT, VOTE_TIMEOUT, move_away};
use super::{Aim, NAP, Outcome, Schedule, Turn};
use crate::{client::HttpClient, cluster::Effect};

/// A leader that is killed dies within this time of the start of the server that went back.
const LEADER_DIES_WITHIN: Duration = Duration::from_secs(2);
/// How a server says that it joins anew by itself.
const JOINS_ANEW: &str = "joins anew under another id";

impl Turn<'_> {
    pub(super) fn strike_rollback(&mut self, schedule: Schedule) -> Result<bool> {
        self.announce(Aim::One.name());
        let outcome = self.go_back(schedule)?;
        Ok(self.conclude(outcome))
    }

    fn go_back(&mut self, schedule: Schedule) -> Result<Outcome> {
        let Down { victim, .. } = match self.take_down()? {
            Ok(down) => down,
            Err(outcome) => return Ok(outcome),
        };
        let data = self.cluster().data(victim);
        let copy = older(&data);
        copy_tree(&data, &copy)?;
        {
            let mut cluster = self.cluster();
            cluster.hold(victim, None);
            cluster.start(victim)?;
        }
        self.await_vote(victim, None)?;
        // It acknowledges what clients write meanwhile.
        let longer = self.random.duration(schedule.interval / 4, schedule.interval);
        self.wait(longer);
        {
            let mut cluster = self.cluster();
            if cluster.is_frozen(victim) || cluster.held(victim).is_some() {
                let reason = format!("another fault holds {}", self.name(victim));
                return Ok(Outcome::Skipped(reason));
            }
            match cluster.kill(victim)? {
                Effect::Done => {}
                Effect::Nothing => {
                    return Ok(Outcome::Skipped(format!("{} is down", self.name(victim))));
                }
                Effect::Unclear(reason) => return Ok(Outcome::Indeterminate(reason)),
            }
            cluster.hold(victim, Some(self.class));
        }
        move_away(&data)?;
        copy_tree(&copy, &data)?;
        // Without a time: it was down once before, so that the fault counts from when it was asked for.
        Ok(Outcome::Installed(json!({"aim": Aim::One.name(), "nodes": self.names(&[victim])})))
    }

    /// Starts what went back, and waits until it votes; notes how it came to that.
    pub(super) fn relieve_rollback(&mut self) -> Result<()> {
        let mut returned = Vec::new();
        for server in 0..self.servers() {
            if self.cluster().held(server) == Some(self.class) {
                returned.push(self.come_back(server)?);
            }
        }
        self.relieved(json!({"returned": returned}));
        Ok(())
    }

    fn come_back(&mut self, server: usize) -> Result<Value> {
        let logged = {
            let mut cluster = self.cluster();
            cluster.hold(server, None);
            cluster.excuse(server, self.class);
            let logged = cluster.log_bytes(server);
            cluster.start(server)?;
            logged
        };
        let began = Instant::now();
        let leader = self.kill_the_leader_beside(server)?;
        let leader_died_ms = u64::try_from(began.elapsed().as_millis())?;
        if let Some(leader) = leader {
            self.wait(LEADER_DIES_WITHIN);
            self.cluster().start(leader)?;
        }
        let old_id = self.old_id.take();
        let how = match self.await_answer(server, logged)? {
            Answer::Refused(said) => {
                self.hold_down(server)?;
                self.cluster().end_excuse(server, self.class);
                let data = self.cluster().data(server);
                move_away(&data)?;
                let mut cluster = self.cluster();
                cluster.hold(server, None);
                cluster.start(server)?;
                drop(cluster);
                self.await_vote(server, old_id.as_deref())?;
                json!({"how": "said what to do", "said": said})
            }
            Answer::Runs => {
                self.cluster().end_excuse(server, self.class);
                let how = self.await_healed(server, logged, old_id.as_deref())?;
                json!({"how": how})
            }
        };
        let mut back = how;
        back["node"] = self.name(server).into();
        back["voting_after_ms"] = u64::try_from(began.elapsed().as_millis())?.into();
        if let Some(leader) = leader {
            back["leader"] = self.name(leader).into();
            back["leader_died_ms"] = leader_died_ms.into();
        }
        Ok(back)
    }

    /// Every other time: kills who leads, soon after the start of this server.
    fn kill_the_leader_beside(&mut self, server: usize) -> Result<Option<usize>> {
        self.spares_leader = !self.spares_leader;
        if self.spares_leader {
            return Ok(None);
        }
        let end = Instant::now() + LEADER_DIES_WITHIN;
        let soon = self.random.duration(Duration::ZERO, LEADER_DIES_WITHIN / 2);
        self.wait(soon);
        let leader = loop {
            let leads = self.leaders().into_iter().find(|leader| *leader != server);
            match leads {
                Some(leader) => break leader,
                None if Instant::now() >= end || (self.halt)() => return Ok(None),
                None => self.wait(NAP),
            }
        };
        let mut cluster = self.cluster();
        if cluster.is_frozen(leader) {
            return Ok(None);
        }
        Ok((cluster.kill(leader)? == Effect::Done).then_some(leader))
    }

    /// Waits until a server votes again and knows a leader: under another id if it says that it joins anew. Says which.
    fn await_healed(
        &self,
        server: usize,
        logged: u64,
        old_id: Option<&str>,
    ) -> Result<&'static str> {
        let endpoint = &self.nemesis.endpoints[server];
        let client = HttpClient::new(endpoint.http, STATUS_TIMEOUT);
        let end = Instant::now() + VOTE_TIMEOUT;
        while Instant::now() < end && !(self.halt)() {
            self.cluster().start(server)?;
            // In this order: who hears a leader has said before whether it joins anew.
            if client.leader().is_some() {
                let joins_anew = self.cluster().log_since(server, logged).contains(JOINS_ANEW);
                let id = self.voting_id(server);
                if id.is_some_and(|id| !joins_anew || Some(&*id) != old_id) {
                    return Ok(if joins_anew { "joined anew" } else { "caught up" });
                }
            }
            thread::sleep(NAP);
        }
        if !(self.halt)() {
            let what = format!("did not vote within {VOTE_TIMEOUT:?} of its return, in silence");
            self.cluster().accuse(server, &what);
        }
        Ok("did not heal")
    }
}

/// Where the older copy of a data directory lies.
fn older(data: &Path) -> PathBuf {
    data.with_file_name("data.older")
}

/// Copies a folder with everything in it, in place of what was there.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    if to.ends_with("data.older") && to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &to)?;
        } else {
            fs::copy(&path, &to).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_copy_holds_what_the_folder_held_and_nothing_older() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        fs::create_dir_all(data.join("log")).unwrap();
        fs::write(data.join("log/1.wal"), "entries").unwrap();
        copy_tree(&data, &older(&data)).unwrap();
        fs::rename(data.join("log/1.wal"), data.join("log/2.wal")).unwrap();
        copy_tree(&data, &older(&data)).unwrap();
        let copied = older(&data).join("log");
        assert_eq!(fs::read_to_string(copied.join("2.wal")).unwrap(), "entries");
        assert!(!copied.join("1.wal").exists());
    }
}
