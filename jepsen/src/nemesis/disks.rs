//! Faults of disks and clocks: full, slow, hanging, frozen, without power; and wall clocks that jump.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::json;

use super::{Aim, NAP, Outcome, Turn};
use crate::{
    client::{HttpClient, Reply},
    cluster::Effect,
};

/// How long a server may take to meet a fault of its disk.
const MET_TIMEOUT: Duration = Duration::from_secs(3);
/// Clocks jump by at most five minutes, as in Jepsen's `bump`.
const BUMP_MS_MAX: usize = 288_000;
const METRICS_TIMEOUT: Duration = Duration::from_millis(500);

/// What a server's disk is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFault {
    Full,
    Slow,
    Hang,
}

impl DiskFault {
    /// The first word of its line in the control file, and what the server notes when it met the fault.
    fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Slow => "slow",
            Self::Hang => "hang",
        }
    }
}

impl Turn<'_> {
    pub(super) fn strike_disk(&mut self, fault: DiskFault) -> Result<bool> {
        let aim = self.random.choose(&Aim::FEW);
        self.announce(aim.name());
        let leaders = self.leaders();
        let mut victims = aim.servers(self.servers(), &leaders, &mut self.random);
        let running = self.cluster().running_and(false);
        victims.retain(|server| running.contains(server));
        if victims.is_empty() {
            return Ok(self.conclude(Outcome::Skipped("nobody aimed at is running".to_owned())));
        }
        let words = match fault {
            DiskFault::Full | DiskFault::Hang => fault.word().to_owned(),
            DiskFault::Slow => format!("slow {}", self.random.choose(&[20, 100, 400])),
        };
        let at = self.now();
        for server in &victims {
            self.cluster().excuse(*server, self.class);
            self.say(*server, fault, Some(&words))?;
        }
        let met = self.await_disks(fault, &victims);
        let outcome = if met.is_empty() {
            Outcome::Indeterminate("no server met the fault in time".to_owned())
        } else {
            let mut details = self.details(aim.name(), &met, &leaders, at);
            details["words"] = words.into();
            Outcome::Installed(details)
        };
        Ok(self.conclude(outcome))
    }

    /// Adds or takes away this class's line in a server's control file; the file is replaced in one step.
    fn say(&self, server: usize, fault: DiskFault, words: Option<&str>) -> Result<()> {
        let cluster = self.cluster();
        let path = cluster.disk_faults(server);
        let own = fault.word();
        let old = fs::read_to_string(&path).unwrap_or_default();
        let mut lines: Vec<&str> = old.lines().filter(|line| !line.starts_with(own)).collect();
        lines.extend(words);
        // The note of an earlier fault would count as met.
        if words.is_some() && met_path(&path).exists() {
            fs::remove_file(met_path(&path)).context("cannot remove an old note")?;
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, lines.join("\n"))
            .and_then(|()| fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The servers that noted the fault, once all have or the time is up.
    fn await_disks(&self, fault: DiskFault, victims: &[usize]) -> Vec<usize> {
        let own = fault.word();
        let met = |server: &usize| {
            let path = met_path(&self.cluster().disk_faults(*server));
            fs::read_to_string(path).is_ok_and(|text| text == own)
        };
        let end = Instant::now() + MET_TIMEOUT;
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < victims.len() && Instant::now() < end && !(self.halt)() {
            seen.extend(victims.iter().filter(|server| met(server)).copied());
            std::thread::sleep(NAP / 5);
        }
        seen.into_iter().collect()
    }

    pub(super) fn relieve_disk(&mut self, fault: DiskFault) -> Result<()> {
        let mut nodes = Vec::new();
        for server in 0..self.servers() {
            let said = fs::read_to_string(self.cluster().disk_faults(server)).unwrap_or_default();
            if said.lines().any(|line| line.starts_with(fault.word())) {
                self.say(server, fault, None)?;
                nodes.push(server);
            }
            self.cluster().end_excuse(server, self.class);
        }
        let started = self.cluster().revive()?;
        self.relieved(json!({"nodes": self.names(&nodes), "started": self.names(&started)}));
        Ok(())
    }

    pub(super) fn strike_power(&mut self, aim: Aim) -> Result<bool> {
        self.announce(aim.name());
        let leaders = self.leaders();
        let victims = aim.servers(self.servers(), &leaders, &mut self.random);
        let at = self.now();
        let struck = self.cluster().power_off(&victims)?;
        let outcome = if struck.is_empty() {
            Outcome::Skipped("nobody aimed at is running".to_owned())
        } else {
            Outcome::Installed(self.details(aim.name(), &struck, &leaders, at))
        };
        Ok(self.conclude(outcome))
    }

    pub(super) fn relieve_power(&mut self) -> Result<()> {
        let mut nodes = Vec::new();
        for server in 0..self.servers() {
            if self.cluster().power_on(server)? == Effect::Done {
                nodes.push(server);
            }
        }
        self.relieved(json!({"nodes": self.names(&nodes)}));
        Ok(())
    }

    pub(super) fn strike_freeze(&mut self) -> Result<bool> {
        let aim = self.random.choose(&Aim::FEW);
        self.announce(aim.name());
        let leaders = self.leaders();
        let victims = aim.servers(self.servers(), &leaders, &mut self.random);
        let at = self.now();
        let mut done = Vec::new();
        for server in victims {
            let mut cluster = self.cluster();
            cluster.excuse(server, self.class);
            if cluster.freeze(server)? == Effect::Done {
                done.push(server);
            }
        }
        let outcome = if done.is_empty() {
            Outcome::Skipped("nobody aimed at is running".to_owned())
        } else {
            Outcome::Installed(self.details(aim.name(), &done, &leaders, at))
        };
        Ok(self.conclude(outcome))
    }

    pub(super) fn relieve_freeze(&mut self) -> Result<()> {
        let mut nodes = Vec::new();
        for server in 0..self.servers() {
            let mut cluster = self.cluster();
            if cluster.thaw(server)? == Effect::Done {
                nodes.push(server);
            }
            cluster.end_excuse(server, self.class);
        }
        let started = self.cluster().revive()?;
        self.relieved(json!({"nodes": self.names(&nodes), "started": self.names(&started)}));
        Ok(())
    }

    pub(super) fn strike_clock(&mut self) -> Result<bool> {
        let aim = self.random.choose(&Aim::AT_ONCE);
        self.announce(aim.name());
        let leaders = self.leaders();
        let victims = aim.servers(self.servers(), &leaders, &mut self.random);
        let mut jumps = serde_json::Map::new();
        for server in victims {
            // The least is what a time in whole seconds can show for sure.
            let least = 5_000;
            let size = least + self.random.index(BUMP_MS_MAX - least);
            let size = i64::try_from(size).unwrap_or(i64::MAX);
            let jump = if self.random.index(2) == 0 { size } else { -size };
            if self.jump(server, jump)? {
                jumps.insert(self.name(server).to_owned(), jump.into());
            }
        }
        let outcome = if jumps.is_empty() {
            Outcome::Indeterminate("no server's metrics carried the new time".to_owned())
        } else {
            Outcome::Installed(json!({"aim": aim.name(), "milliseconds": jumps}))
        };
        Ok(self.conclude(outcome))
    }

    /// Lets a clock jump; true if the server's own answers show it.
    fn jump(&self, server: usize, milliseconds: i64) -> Result<bool> {
        let path = self.cluster().clock_file(server);
        let sign = if milliseconds < 0 { '-' } else { '+' };
        let size = milliseconds.unsigned_abs();
        set_clock(path, &format!("{sign}{}.{:03}", size / 1_000, size % 1_000))?;
        let http = self.nemesis.endpoints[server].http;
        let end = Instant::now() + MET_TIMEOUT;
        while Instant::now() < end && !(self.halt)() {
            if let Some(skew) = skew_seconds(http)
                && (skew - milliseconds / 1_000).abs() <= 3
            {
                return Ok(true);
            }
            std::thread::sleep(NAP);
        }
        Ok(false)
    }

    pub(super) fn relieve_clock(&mut self) -> Result<()> {
        for server in 0..self.servers() {
            let path = self.cluster().clock_file(server);
            set_clock(path, "+0")?;
        }
        self.relieved(json!(null));
        Ok(())
    }
}

fn met_path(control: &std::path::Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".met");
    path.into()
}

fn set_clock(path: PathBuf, text: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)
        .and_then(|()| fs::rename(&fresh, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// How far a server's clock is ahead of ours, by the time in its metrics. (The date of an answer would not do: the HTTP library keeps
/// it until it is over, which after a jump back takes as long as the jump.)
fn skew_seconds(http: SocketAddr) -> Option<i64> {
    let client = HttpClient::new(http, METRICS_TIMEOUT);
    let Reply::Answer { status: 200, body, .. } = client.get("/v1/metrics") else { return None };
    let metrics: serde_json::Value = serde_json::from_str(&body).ok()?;
    // As Go prints a time: `2026-01-02 03:04:05 +0000 UTC`.
    let theirs = metrics["Timestamp"].as_str()?.strip_suffix(" +0000 UTC")?.replace(' ', "T") + "Z";
    let theirs = calendar::parse_rfc3339(&theirs)?;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(theirs - i64::try_from(ours).ok()?)
}
