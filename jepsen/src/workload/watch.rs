//! The watch workload: jobs change, and many observers follow them over blocking queries, lists and stale reads.
//!
//! Owns what is asked and what an answer means. Jobs come in groups of three, `w7-0` to `w7-2` or `w7x-0` to `w7x-2`; the keys of group G are 3G to 3G + 2. `write`, `stop` and
//! `purge` change one; `read` looks at one, at its versions, or at the list of its group; `watch` is the same with the index that was
//! seen and a time to wait. Each client thread has a watcher beside it, which stays with one server and follows one thing after
//! the other. The last phase begins with rounds: a burst of changes under the eyes of watchers on all servers, then silence, so that a
//! wake-up that was missed is not made good by the next one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{Clients, Drive, Identity, KeyPool, Start, Workload, body, nap};
use crate::client::{Contact, HttpClient, Reply};
use crate::history::{Function, Kind};
use crate::random::Random;

/// Groups in use at the same time.
const GROUPS_AT_ONCE: u64 = 3;
/// Jobs of a group.
const MEMBERS: u64 = 3;
/// Queries in a row about one thing.
const CHAIN: usize = 20;
/// A watcher's longest pause between two queries, so that it is sometimes behind.
const PAUSE_MAX: Duration = Duration::from_millis(60);
/// A watcher's pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);
/// How long a watcher of the main phase asks the server to wait.
const WAITS_MS: [u64; 3] = [200, 1_000, 2_000];
/// How long a watcher of a round asks the server to wait: much longer than [`crate::checker::watch::GRACE`].
const ROUND_WAIT_MS: u64 = 12_000;
/// What a client waits longer than the server was asked to and may take.
const PATIENCE_BEYOND_WAIT: Duration = Duration::from_secs(6);
/// Rounds of the last phase.
const ROUNDS: u64 = 12;
/// Changes in a round.
const BURST: u64 = 8;
/// Longest pause between two changes of a burst.
const BURST_PAUSE_MAX: Duration = Duration::from_millis(6);
/// What the rounds leave of the last phase's time.
const AFTER_ROUNDS: Duration = Duration::from_secs(30);
/// The first process of the watchers, of the rounds and of their writer; the clients' own numbers never come near.
const WATCHERS_PROCESS: u64 = 500_000_000;
const ROUNDS_PROCESS: u64 = 1_500_000_000;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// One job.
    Job,
    /// The versions of one job.
    Versions,
    /// The list of a group.
    List,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Versions => "versions",
            Self::List => "list",
        }
    }
}

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    of: Of,
    stale: bool,
    /// The index that must be exceeded; without one the answer comes at once.
    seen: Option<u64>,
    wait_ms: u64,
}

/// One request about one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Register it with this value.
    Write(u64),
    /// Deregister it.
    Stop,
    /// Deregister and forget it.
    Purge,
    /// Look at it.
    Look(Look),
}

/// The workload's state.
pub(crate) struct Watches {
    generator: Mutex<Generator>,
}

struct Generator {
    random: Random,
    groups: KeyPool,
    next_value: u64,
}

impl Watches {
    /// Jobs nobody has registered.
    pub(crate) fn new(random: Random, ops_per_key: u64) -> Self {
        let groups = KeyPool::new(GROUPS_AT_ONCE, ops_per_key);
        Self { generator: Mutex::new(Generator { random, groups, next_value: 1 }) }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn unique(&self) -> u64 {
        self.with_generator(Generator::unique)
    }
}

impl Generator {
    fn next(&mut self) -> (u64, Action) {
        let key = self.groups.take(&mut self.random) * MEMBERS + self.member();
        let action = match self.random.below(20) {
            0..=6 => Action::Write(self.unique()),
            7..=8 => Action::Stop,
            9 => Action::Purge,
            10.. => Action::Look(self.look()),
        };
        (key, action)
    }

    fn look(&mut self) -> Look {
        let of = self.random.choose(&[Of::Job, Of::Versions, Of::List]);
        Look { of, stale: self.random.below(3) == 0, seen: None, wait_ms: 0 }
    }

    /// Something to follow: a job or a group that is in use.
    fn follow(&mut self) -> (u64, Look) {
        let newest = self.groups.used().end;
        let group = newest - self.random.choose(&[1, 2, 3]);
        let wait_ms = self.random.choose(&WAITS_MS);
        (group * MEMBERS + self.member(), Look { wait_ms, ..self.look() })
    }

    fn member(&mut self) -> u64 {
        self.random.choose(&[0, 1, 2])
    }

    fn unique(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value - 1
    }
}

/// What the names of a group's jobs begin with. Groups come in pairs: a prefix cut short by one matches the other too.
fn prefix(group: u64) -> String {
    format!("w{}{}-", group / 2, if group.is_multiple_of(2) { "" } else { "x" })
}

fn name(key: u64) -> String {
    format!("{}{}", prefix(key / MEMBERS), key % MEMBERS)
}

fn key_of(id: &str) -> Option<u64> {
    let (group, member) = id.strip_prefix('w')?.split_once('-')?;
    let (pair, second) = group.strip_suffix('x').map_or((group, 0), |pair| (pair, 1));
    let (pair, member): (u64, u64) = (pair.parse().ok()?, member.parse().ok()?);
    Some((pair * 2 + second) * MEMBERS + member)
}

/// The keys that a look is about.
fn keys_of(key: u64, look: Look) -> Vec<u64> {
    match look.of {
        Of::Job | Of::Versions => vec![key],
        Of::List => {
            let first = key / MEMBERS * MEMBERS;
            (first..first + MEMBERS).collect()
        }
    }
}

fn path(key: u64, look: Look) -> String {
    let mut path = match look.of {
        Of::Job => format!("/v1/job/{}?", name(key)),
        Of::Versions => format!("/v1/job/{}/versions?", name(key)),
        Of::List => format!("/v1/jobs?prefix={}&meta=true", prefix(key / MEMBERS)),
    };
    if let Some(seen) = look.seen {
        write!(path, "&index={seen}&wait={}ms", look.wait_ms)
            .expect("writing to a string cannot fail");
    }
    if look.stale {
        path.push_str("&stale=true");
    }
    path.replace("?&", "?")
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    #[serde(rename = "ID")]
    id: String,
    meta: BTreeMap<String, String>,
    version: u64,
    stop: bool,
    create_index: u64,
    modify_index: u64,
    job_modify_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Versions {
    versions: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Changed {
    job_modify_index: u64,
}

/// A row as the checker reads it; a job of another name has no key.
fn shown(row: &Row) -> Result<Value, Completion> {
    let value: Option<u64> = row.meta.get("value").and_then(|value| value.parse().ok());
    let value =
        value.ok_or_else(|| Completion::fail("unexpected answer: no numeric meta value"))?;
    Ok(json!({
        "key": key_of(&row.id),
        "id": row.id,
        "value": value,
        "version": row.version,
        "stop": row.stop,
        "create": row.create_index,
        "modify": row.modify_index,
        "job_modify": row.job_modify_index,
    }))
}

fn rows(of: Of, reply: &Reply) -> Result<(Vec<Row>, u64), Completion> {
    if let Reply::Answer { index, .. } = reply
        && of != Of::List
        && (answer::is_not_found(reply, "job not found")
            || answer::is_not_found(reply, "job versions not found"))
    {
        return Ok((Vec::new(), index.unwrap_or(0)));
    }
    match of {
        Of::Job => answer::read::<Row>(reply).map(|(row, index)| (vec![row], index)),
        Of::Versions => {
            let (found, index) = answer::read::<Versions>(reply)?;
            Ok((found.versions.into_iter().take(1).collect(), index))
        }
        Of::List => answer::read::<Vec<Row>>(reply),
    }
}

fn look(client: &HttpClient, key: u64, look: Look) -> Result<Completion, Completion> {
    let wait = Duration::from_millis(look.wait_ms);
    let patience = look.seen.map(|_| wait + wait / 16 + PATIENCE_BEYOND_WAIT);
    let (reply, contact) = client.look(&path(key, look), patience);
    let (rows, index) = rows(look.of, &reply)?;
    let rows = rows.iter().map(shown).collect::<Result<Vec<Value>, Completion>>()?;
    let Contact { known_leader, last_contact_ms } = contact;
    let value = json!([key, {
        "of": look.of.name(),
        "keys": keys_of(key, look),
        "stale": look.stale,
        "rows": rows,
        "known_leader": known_leader,
        "last_contact_ms": last_contact_ms,
    }]);
    Ok(Completion { version: Some(index), ..Completion::ok() }.with_value(value))
}

fn changed(reply: &Reply) -> Result<Completion, Completion> {
    let changed = answer::written::<Changed>(reply)?;
    Ok(Completion { version: Some(changed.job_modify_index), ..Completion::ok() })
}

impl Workload for Watches {
    type Request = (u64, Action);

    fn next(&self) -> Self::Request {
        self.with_generator(Generator::next)
    }

    fn start(&self, (key, action): &Self::Request) -> Start {
        match action {
            Action::Write(value) => Start::new(Function::Write, json!([key, value])),
            Action::Stop => Start::new(Function::Stop, json!([key, null])),
            Action::Purge => Start::new(Function::Purge, json!([key, null])),
            Action::Look(look) => {
                let mut asked = json!({
                    "of": look.of.name(),
                    "keys": keys_of(*key, *look),
                    "stale": look.stale,
                });
                let f = if look.seen.is_some() { Function::Watch } else { Function::Read };
                if look.seen.is_some() {
                    asked["wait_ms"] = look.wait_ms.into();
                }
                Start { expected: look.seen, ..Start::new(f, json!([key, asked])) }
            }
        }
    }

    fn perform(&self, client: &HttpClient, (key, action): &Self::Request) -> Completion {
        let path = format!("/v1/job/{}", name(*key));
        let completion = match action {
            Action::Write(value) => {
                let job = body::parameterized(&name(*key), &json!({"value": value.to_string()}));
                changed(&client.put("/v1/jobs", &body::registration(job, None)))
            }
            Action::Stop => changed(&client.delete(&path)),
            Action::Purge => changed(&client.delete(&format!("{path}?purge=true"))),
            Action::Look(asked) => look(client, *key, *asked),
        };
        completion.unwrap_or_else(|completion| completion)
    }

    /// Changes one job of every group, at any server, then looks at all sides of the group at each server.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Self::Request)> {
        self.with_generator(|generator| {
            let mut steps = Vec::new();
            for group in generator.groups.used() {
                let key = group * MEMBERS + generator.member();
                steps.push((None, (key, Action::Write(generator.unique()))));
                for server in 0..servers {
                    for (of, stale) in [(Of::List, false), (Of::Job, false), (Of::Versions, true)] {
                        let look = Look { of, stale, seen: None, wait_ms: 0 };
                        steps.push((Some(server), (key, Action::Look(look))));
                    }
                }
            }
            steps
        })
    }

    fn renew(&self, (key, action): &Self::Request) -> Self::Request {
        match action {
            Action::Write(_) => (*key, Action::Write(self.unique())),
            Action::Stop | Action::Purge | Action::Look(_) => (*key, *action),
        }
    }
}

/// The clients, each with a watcher beside it.
pub(crate) struct Watchers<'a>(pub(crate) Clients<'a, Watches>);

impl Drive for Watchers<'_> {
    fn work(&self, number: usize, stop: &AtomicBool) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.follow(number, stop));
            self.0.work(number, stop);
        });
    }

    fn last_phase(&self, deadline: Instant) {
        let mut random = Random::stream(self.0.load.seed, 20_000);
        for round in 0..ROUNDS {
            if deadline.saturating_duration_since(Instant::now()) < AFTER_ROUNDS {
                break;
            }
            self.round(round, &mut random);
        }
        self.0.last_phase(deadline);
    }
}

impl Watchers<'_> {
    /// The watcher beside client thread `number`.
    fn follow(&self, number: usize, stop: &AtomicBool) {
        let mut random = Random::stream(self.0.load.seed, 10_000 + number as u64);
        let mut process = Identity::new(number, self.0.load.concurrency);
        process.number += WATCHERS_PROCESS;
        let node = number % self.0.targets.len();
        let connections = self.0.connections();
        while !stop.load(Ordering::Relaxed) {
            let (key, mut look) = self.0.workload.with_generator(Generator::follow);
            for _ in 0..CHAIN {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let request = (key, Action::Look(look));
                let end = self.0.perform(process.number, &connections, node, &request, false);
                if end.kind != Kind::Ok {
                    nap(FAILURE_PAUSE, stop);
                    break;
                }
                look.seen = end.version.filter(|index| *index > 0);
                nap(random.duration(Duration::ZERO, PAUSE_MAX), stop);
            }
        }
    }

    /// A burst of changes of one job under the eyes of two watchers on each server, then silence until all have seen the last one.
    fn round(&self, round: u64, random: &mut Random) {
        let Self(clients) = self;
        let newest = clients.workload.with_generator(|generator| generator.groups.used().end - 1);
        let key = newest * MEMBERS + round % MEMBERS;
        // The value to wait for; a write that fails is made again with another.
        let last = AtomicU64::new(clients.workload.unique());
        let over = AtomicBool::new(false);
        let servers = clients.targets.len();
        std::thread::scope(|scope| {
            let (last, over) = (&last, &over);
            for watcher in 0..servers * 2 {
                let process = ROUNDS_PROCESS + 1_000_000 * (round + 1) + watcher as u64;
                let of = if watcher < servers { Of::Job } else { Of::List };
                let stale = !(round + watcher as u64).is_multiple_of(3);
                let look = Look { of, stale, seen: None, wait_ms: ROUND_WAIT_MS };
                scope.spawn(move || {
                    self.witness(process, watcher % servers, (key, look), last, over);
                });
            }
            let first = ROUNDS_PROCESS + 1_000_000 * (round + 1) + 1_000;
            let mut process = Identity { number: first, step: 1 };
            let mut connections = clients.connections();
            for change in 0..=BURST {
                std::thread::sleep(random.duration(Duration::ZERO, BURST_PAUSE_MAX));
                let mut written = false;
                for attempt in 0..10 {
                    let is_last = change == BURST;
                    let value = match (is_last, attempt) {
                        (true, 0) => last.load(Ordering::Relaxed),
                        (_, _) => clients.workload.unique(),
                    };
                    if is_last {
                        last.store(value, Ordering::Relaxed);
                    }
                    let node = random.below(servers);
                    let request = (key, Action::Write(value));
                    let end = clients.perform(process.number, &connections, node, &request, true);
                    written = end.kind == Kind::Ok;
                    if written || !is_last {
                        break;
                    }
                    process.retire();
                    connections = clients.connections();
                    std::thread::sleep(super::LAST_PHASE_PAUSE);
                }
                if !written {
                    process.retire();
                    connections = clients.connections();
                }
                over.store(change == BURST && !written, Ordering::Relaxed);
            }
        });
    }

    /// Follows one thing until it shows the last value, or one query has waited for nothing.
    fn witness(
        &self,
        process: u64,
        node: usize,
        (key, mut look): (u64, Look),
        last: &AtomicU64,
        over: &AtomicBool,
    ) {
        let connections = self.0.connections();
        loop {
            let request = (key, Action::Look(look));
            let begin = Instant::now();
            let end = self.0.perform(process, &connections, node, &request, true);
            let last = last.load(Ordering::Relaxed);
            let rows = end.value.as_ref().and_then(|value| value[1]["rows"].as_array());
            let seen = rows.is_some_and(|rows| rows.iter().any(|row| row["value"] == last));
            let waited = begin.elapsed() >= Duration::from_millis(ROUND_WAIT_MS);
            if seen || waited || end.kind != Kind::Ok || over.load(Ordering::Relaxed) {
                return;
            }
            look.seen = end.version.filter(|index| *index > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_asks_for_what_it_says() {
        let look = Look { of: Of::List, stale: true, seen: Some(7), wait_ms: 200 };
        assert_eq!(path(4, look), "/v1/jobs?prefix=w0x-&meta=true&index=7&wait=200ms&stale=true");
        assert_eq!(keys_of(4, look), [3, 4, 5]);
        let look = Look { of: Of::Job, ..look };
        assert_eq!(path(4, look), "/v1/job/w0x-1?index=7&wait=200ms&stale=true");
        assert_eq!(keys_of(4, look), [4]);
        let look = Look { of: Of::Versions, stale: false, seen: None, wait_ms: 0 };
        assert_eq!(path(4, look), "/v1/job/w0x-1/versions?");
        assert!((0..40).all(|key| key_of(&name(key)) == Some(key)));
        assert_eq!(key_of("q1-1"), None);
    }

    #[test]
    fn what_is_not_there_has_no_rows_and_an_index() {
        let gone = Reply::Answer { status: 404, index: Some(9), body: "job not found".to_owned() };
        assert_eq!(rows(Of::Job, &gone).map(|(rows, index)| (rows.len(), index)), Ok((0, 9)));
        assert!(rows(Of::List, &gone).is_err());
    }

    #[test]
    fn a_watcher_follows_what_is_in_use() {
        let mut watches = Generator {
            random: Random::stream(1, 0),
            groups: KeyPool::new(GROUPS_AT_ONCE, 10),
            next_value: 1,
        };
        for _ in 0..200 {
            watches.next();
            let (key, _) = watches.follow();
            let used = watches.groups.used().end;
            assert!((used - GROUPS_AT_ONCE..used).contains(&(key / MEMBERS)));
        }
    }
}
