//! Faults of processes: kill, pause, rolling restart, transfer of leadership.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::{Aim, NAP, Outcome, Schedule, Turn};
use crate::{
    client::{HttpClient, Reply},
    cluster::{Effect, STOP_TIMEOUT, leaders},
    fault::FaultClass,
};

/// How long a server may take to take part again before the next one of a rolling fault is hit.
const BACK_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a transfer may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

impl Turn<'_> {
    pub(super) fn strike_processes(&mut self, schedule: Schedule) -> Result<bool> {
        let aim = if self.class == FaultClass::Kill {
            self.random.choose(&Aim::WITH_ROLLING)
        } else {
            self.random.choose(&Aim::AT_ONCE)
        };
        self.announce(aim.name());
        let outcome = if aim == Aim::Rolling { self.roll(schedule)? } else { self.hit(aim)? };
        Ok(self.conclude(outcome))
    }

    pub(super) fn hit(&mut self, aim: Aim) -> Result<Outcome> {
        let leaders = self.leaders();
        let servers = aim.servers(self.servers(), &leaders, &mut self.random);
        if servers.is_empty() {
            return Ok(Outcome::Skipped("no leader is known".to_owned()));
        }
        let (mut done, mut unclear) = (Vec::new(), Vec::new());
        let mut cluster = self.cluster();
        let at = self.now();
        for server in servers {
            let effect = if self.class == FaultClass::Kill {
                cluster.kill(server)?
            } else {
                cluster.pause(server)?
            };
            match effect {
                Effect::Done => done.push(server),
                Effect::Nothing => {}
                Effect::Unclear(reason) => {
                    unclear.push(format!("{}: {reason}", self.name(server)));
                }
            }
        }
        Ok(if !unclear.is_empty() {
            Outcome::Indeterminate(unclear.join("; "))
        } else if done.is_empty() {
            Outcome::Skipped(format!("the {} servers aimed at are down or paused", aim.name()))
        } else {
            Outcome::Installed(self.details(aim.name(), &done, &leaders, at))
        })
    }

    /// One after the other is ended and started; the next only when the one before is back or does not come back soon.
    fn roll(&mut self, schedule: Schedule) -> Result<Outcome> {
        let order = Aim::Rolling.servers(self.servers(), &[], &mut self.random);
        let mut done = Vec::new();
        for server in order {
            if (self.halt)() {
                break;
            }
            let effect = if self.class == FaultClass::Restart {
                self.terminate(server, STOP_TIMEOUT)?
            } else {
                self.cluster().kill(server)?
            };
            match effect {
                Effect::Done => done.push(server),
                Effect::Nothing => continue,
                Effect::Unclear(reason) => {
                    return Ok(Outcome::Indeterminate(format!("{}: {reason}", self.name(server))));
                }
            }
            if self.class == FaultClass::Kill {
                self.wait(schedule.interval / 10);
            }
            if self.class == FaultClass::Restart {
                self.cluster().upgrade(server);
            }
            self.cluster().start(server)?;
            self.await_back(server);
        }
        Ok(if done.is_empty() {
            Outcome::Skipped("every server is down or paused".to_owned())
        } else {
            Outcome::Installed(json!({"aim": "rolling", "nodes": self.names(&done)}))
        })
    }

    /// Ends a server as a supervisor does: asks it to, and kills it if it is still there after this time. Other faults go on meanwhile: one whose disk hangs
    /// ends when that is over.
    pub(super) fn terminate(&self, server: usize, patience: Duration) -> Result<Effect> {
        let asked = self.cluster().ask_to_end(server)?;
        if asked != Effect::Done {
            return Ok(asked);
        }
        let end = Instant::now() + patience;
        while self.cluster().is_ending(server) {
            if Instant::now() >= end {
                let late = "it did not end in time after SIGTERM";
                return Ok(Effect::Unclear(match self.cluster().kill(server)? {
                    Effect::Done => format!("{late}, and was killed"),
                    Effect::Nothing => late.to_owned(),
                    Effect::Unclear(reason) => format!("{late}; killed: {reason}"),
                }));
            }
            std::thread::sleep(NAP);
        }
        let mut cluster = self.cluster();
        // Who starts what is down may have been quicker.
        let ended = cluster.was_ended(server) || cluster.running().contains(&server);
        Ok(if ended { Effect::Done } else { Effect::Unclear("it ended by itself".to_owned()) })
    }

    /// Waits until a server names a leader again.
    fn await_back(&self, server: usize) {
        let endpoint = &self.nemesis.endpoints[server];
        let client = HttpClient::new(endpoint.http, STATUS_TIMEOUT);
        let system = self.cluster().system();
        let end = Instant::now() + BACK_TIMEOUT;
        while Instant::now() < end
            && !(self.halt)()
            && system.leadership(endpoint, &client).is_none()
        {
            std::thread::sleep(NAP);
        }
    }

    pub(super) fn strike_restart(&mut self, schedule: Schedule) -> Result<bool> {
        self.announce("rolling");
        let outcome = self.roll(schedule)?;
        let took_hold = self.conclude(outcome);
        // What ended in another way than it should is down yet.
        for server in 0..self.servers() {
            self.cluster().start(server)?;
        }
        self.relieved(json!(null));
        Ok(took_hold)
    }

    pub(super) fn strike_transfer(&mut self) -> bool {
        self.announce("another server");
        let outcome = self.transfer();
        let took_hold = self.conclude(outcome);
        self.relieved(json!(null));
        took_hold
    }

    fn transfer(&mut self) -> Outcome {
        let system = self.cluster().system();
        let before = self.leaders();
        let [from] = before[..] else {
            return Outcome::Skipped("there is no single leader".to_owned());
        };
        let others: Vec<usize> = (0..self.servers()).filter(|server| *server != from).collect();
        let to = self.random.choose(&others);
        let Some(path) = system.transfer_path(&self.nemesis.endpoints[to]) else {
            return Outcome::Skipped("this system has no transfer by HTTP".to_owned());
        };
        let at = self.now();
        // Any server takes the request; the leader's neighbour is as good as the leader.
        let client = HttpClient::new(self.nemesis.endpoints[from].http, TRANSFER_TIMEOUT);
        let reply = client.put(&path, &json!({}));
        let Reply::Answer { status: 200, .. } = reply else {
            return Outcome::Skipped(format!("the transfer was refused: {reply:?}"));
        };
        let end = Instant::now() + TRANSFER_TIMEOUT;
        while Instant::now() < end {
            if leaders(system, self.nemesis.endpoints) == [to] {
                let mut details = self.details("another server", &[], &before, at);
                details["from"] = self.name(from).into();
                details["to"] = self.name(to).into();
                return Outcome::Installed(details);
            }
            std::thread::sleep(NAP);
        }
        Outcome::Indeterminate(format!("{} was not seen to lead", self.name(to)))
    }

    pub(super) fn relieve_processes(&mut self) -> Result<()> {
        let mut nodes = Vec::new();
        for server in 0..self.servers() {
            let mut cluster = self.cluster();
            let effect = if self.class == FaultClass::Kill {
                cluster.start(server)?
            } else {
                cluster.resume(server)?
            };
            if effect == Effect::Done {
                nodes.push(server);
            }
        }
        self.relieved(json!({"nodes": self.names(&nodes)}));
        Ok(())
    }
}
