//! The watch workload: jobs change, and many observers follow them over blocking queries, lists and stale reads.
//!
//! Owns what is asked and what an answer means. Jobs come in groups: `w7-0` to `w7-2` or `w7x-0` to `w7x-2`, and a twin of the first of them in
//! another namespace; the keys of group G are 4G to 4G + 3. `write`, `stop` and
//! `purge` change one; `read` looks at one, at its versions, or at the list of its group; `watch` is the same with the index that was
//! seen and a time to wait. Each client thread has a watcher beside it, which stays with one server and follows one thing after
//! the other. The last phase begins with rounds: a burst of changes under the eyes of watchers on all servers, then silence, so that a
//! wake-up that was missed is not made good by the next one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{Clients, Drive, Identity, KeyPool, Start, Workload, body, nap};
use crate::{
    client::{Headers, HttpClient, Reply},
    history::{Function, Kind},
};
use chance::Dice;

/// Groups in use at the same time.
const GROUPS_AT_ONCE: u64 = 3;
/// Jobs of a group: three in the default namespace, and the twin of the first in [`NAMESPACE`].
const MEMBERS: u64 = 4;
const TWIN: u64 = 3;
const NAMESPACE: &str = "watch";
/// Changes in a row that a watcher makes and looks at elsewhere.
const CHASES: usize = 4;
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
const PATIENCE_BEYOND_WAIT: Duration = Duration::from_secs(10);
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
    /// The list of a group in all namespaces.
    Everywhere,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Versions => "versions",
            Self::List | Self::Everywhere => "list",
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
    /// The same, and the same request again under the same idempotency key.
    WriteTwice(u64),
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
    /// The namespace of the twins was made.
    has_namespace: AtomicBool,
}

struct Generator {
    random: Dice,
    groups: KeyPool,
    next_value: u64,
}

impl Watches {
    /// Jobs nobody has registered.
    pub(crate) fn new(random: Dice, ops_per_key: u64) -> Self {
        let groups = KeyPool::new(GROUPS_AT_ONCE, ops_per_key);
        let generator = Mutex::new(Generator { random, groups, next_value: 1 });
        Self { generator, has_namespace: AtomicBool::new(false) }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn unique(&self) -> u64 {
        self.with_generator(Generator::unique)
    }

    /// Registers a job; twice under one idempotency key, which must be as good as once.
    fn write(
        &self,
        client: &HttpClient,
        key: u64,
        value: u64,
        twice: bool,
    ) -> Result<Completion, Completion> {
        if namespace(key) == NAMESPACE && !self.has_namespace.load(Ordering::Relaxed) {
            let made = client.put("/v1/namespace", &json!({"Name": NAMESPACE}));
            if let Err(end) = answer::written::<Value>(&made) {
                return Err(Completion::fail(end.error.as_deref().unwrap_or("no namespace")));
            }
            self.has_namespace.store(true, Ordering::Relaxed);
        }
        let mut job = body::parameterized(&name(key), &json!({"value": value.to_string()}));
        job["Namespace"] = namespace(key).into();
        let body = body::registration(job, None);
        if !twice {
            return changed(&client.put("/v1/jobs", &body));
        }
        let idempotency_key = format!("watch-{value}");
        let send = || changed(&client.put_keyed("/v1/jobs", &body, &idempotency_key));
        match (send(), send()) {
            (Ok(one), Ok(two)) => {
                Ok(Completion { detail: Some(json!({"again": two.version})), ..one })
            }
            (Ok(done), Err(_)) | (Err(_), Ok(done)) => Ok(done),
            (Err(one), Err(two)) => Err(if one.kind == Kind::Info { one } else { two }),
        }
    }
}

impl Generator {
    fn next(&mut self) -> (u64, Action) {
        let key = self.groups.take(&mut self.random) * MEMBERS + self.member();
        let action = match self.random.index(20) {
            0..=4 => Action::Write(self.unique()),
            5..=6 => Action::WriteTwice(self.unique()),
            7..=8 => Action::Stop,
            9 => Action::Purge,
            10.. => Action::Look(self.look()),
        };
        (key, action)
    }

    fn look(&mut self) -> Look {
        let of = self.random.choose(&[Of::Job, Of::Versions, Of::List, Of::Everywhere]);
        Look { of, stale: self.random.index(3) == 0, seen: None, wait_ms: 0 }
    }

    /// Something to follow: a job or a group that is in use.
    fn follow(&mut self) -> (u64, Look) {
        let newest = self.groups.used().end;
        let group = newest - self.random.choose(&[1, 2, 3]);
        let wait_ms = self.random.choose(&WAITS_MS);
        (group * MEMBERS + self.member(), Look { wait_ms, ..self.look() })
    }

    /// Half the time, an index that everything has passed.
    fn long_ago(&mut self) -> Option<u64> {
        self.random.choose(&[None, Some(1)])
    }

    fn member(&mut self) -> u64 {
        self.random.choose(&[0, 1, 2, TWIN])
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
    format!("{}{}", prefix(key / MEMBERS), key % MEMBERS % TWIN)
}

fn namespace(key: u64) -> &'static str {
    if key % MEMBERS == TWIN { NAMESPACE } else { "default" }
}

fn key_of(namespace: &str, id: &str) -> Option<u64> {
    let (group, member) = id.strip_prefix('w')?.split_once('-')?;
    let (pair, second) = group.strip_suffix('x').map_or((group, 0), |pair| (pair, 1));
    let (pair, member): (u64, u64) = (pair.parse().ok()?, member.parse().ok()?);
    let member = match (namespace, member) {
        ("default", 0..TWIN) => member,
        (NAMESPACE, 0) => TWIN,
        (_, _) => return None,
    };
    Some((pair * 2 + second) * MEMBERS + member)
}

/// The keys that a look is about.
fn keys_of(key: u64, look: Look) -> Vec<u64> {
    match look.of {
        Of::Job | Of::Versions => vec![key],
        Of::List => {
            let first = key / MEMBERS * MEMBERS;
            (first..first + TWIN).collect()
        }
        Of::Everywhere => {
            let first = key / MEMBERS * MEMBERS;
            (first..first + MEMBERS).collect()
        }
    }
}

fn path(key: u64, look: Look) -> String {
    let mut path = match look.of {
        Of::Job => format!("/v1/job/{}?namespace={}", name(key), namespace(key)),
        Of::Versions => format!("/v1/job/{}/versions?namespace={}", name(key), namespace(key)),
        Of::Everywhere => {
            format!("/v1/jobs?namespace=*&prefix={}&meta=true", prefix(key / MEMBERS))
        }
        Of::List => format!("/v1/jobs?prefix={}&meta=true", prefix(key / MEMBERS)),
    };
    if let Some(seen) = look.seen {
        write!(path, "&index={seen}&wait={}ms", look.wait_ms)
            .expect("writing to a string cannot fail");
    }
    if look.stale {
        path.push_str("&stale=true");
    }
    path
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    #[serde(rename = "ID")]
    id: String,
    namespace: String,
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
        "key": key_of(&row.namespace, &row.id),
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
        && matches!(of, Of::Job | Of::Versions)
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
        Of::List | Of::Everywhere => answer::read::<Vec<Row>>(reply),
    }
}

fn look(client: &HttpClient, key: u64, look: Look) -> Result<Completion, Completion> {
    let wait = Duration::from_millis(look.wait_ms);
    let patience = look.seen.map(|_| wait + wait / 16 + PATIENCE_BEYOND_WAIT);
    let (reply, headers) = client.look(&path(key, look), patience);
    let (rows, index) = rows(look.of, &reply)?;
    let rows = rows.iter().map(shown).collect::<Result<Vec<Value>, Completion>>()?;
    let Headers { known_leader, last_contact_ms, next_token: _ } = headers;
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
            Action::Write(value) | Action::WriteTwice(value) => {
                Start::new(Function::Write, json!([key, value]))
            }
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
        let path = format!("/v1/job/{}?namespace={}", name(*key), namespace(*key));
        let completion = match action {
            Action::Write(value) => self.write(client, *key, *value, false),
            Action::WriteTwice(value) => self.write(client, *key, *value, true),
            Action::Stop => changed(&client.delete(&path)),
            Action::Purge => changed(&client.delete(&format!("{path}&purge=true"))),
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
                    for (of, stale) in [(Of::List, false), (Of::Everywhere, true), (Of::Job, false)]
                    {
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
            Action::Write(_) | Action::WriteTwice(_) => (*key, Action::Write(self.unique())),
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
        let mut random = Dice::numbered(self.0.load.seed, 20_000);
        let mut process = Identity { number: ROUNDS_PROCESS, step: 1 };
        let mut connections = self.0.connections();
        for round in 0..ROUNDS {
            if deadline.saturating_duration_since(Instant::now()) < AFTER_ROUNDS {
                break;
            }
            self.round(round, &mut random);
            for node in 0..self.0.targets.len() {
                let followed = self.0.workload.with_generator(Generator::follow);
                self.chase(&mut process, &mut connections, node, followed, true);
            }
        }
        self.0.last_phase(deadline);
    }
}

impl Watchers<'_> {
    /// The watcher beside client thread `number`.
    fn follow(&self, number: usize, stop: &AtomicBool) {
        let mut random = Dice::numbered(self.0.load.seed, 10_000 + number as u64);
        let mut process = Identity::new(number, self.0.load.concurrency);
        process.number += WATCHERS_PROCESS;
        let node = number % self.0.targets.len();
        let mut connections = self.0.connections();
        while !stop.load(Ordering::Relaxed) {
            let (key, mut look) = self.0.workload.with_generator(Generator::follow);
            for _ in 0..CHASES {
                self.chase(&mut process, &mut connections, node, (key, look), false);
            }
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

    /// Changes a job at one server, and at once looks at it at the next: what is acknowledged is there, also where it was not written.
    fn chase(
        &self,
        process: &mut Identity,
        connections: &mut Vec<HttpClient>,
        node: usize,
        (key, look): (u64, Look),
        last_phase: bool,
    ) {
        let request = (key, Action::Write(self.0.workload.unique()));
        match self.0.perform(process.number, connections, node, &request, last_phase).kind {
            Kind::Ok => {
                // A blocking query that is behind is answered at once too, and no less freshly.
                let seen = self.0.workload.with_generator(Generator::long_ago);
                let wait_ms = seen.map_or(0, |_| WAITS_MS[0]);
                let look = Look { stale: false, seen, wait_ms, ..look };
                let elsewhere = (node + 1) % self.0.targets.len();
                let request = (key, Action::Look(look));
                self.0.perform(process.number, connections, elsewhere, &request, last_phase);
            }
            Kind::Info => {
                process.retire();
                *connections = self.0.connections();
            }
            Kind::Fail | Kind::Invoke => {}
        }
    }

    /// A burst of changes of one job under the eyes of two watchers on each server, then silence until all have seen the last one.
    fn round(&self, round: u64, random: &mut Dice) {
        let Self(clients) = self;
        let newest = clients.workload.with_generator(|generator| generator.groups.used().end - 1);
        let key = newest * MEMBERS + round % MEMBERS;
        // The value to wait for; a write that fails is made again with another.
        let last = AtomicU64::new(clients.workload.unique());
        let over = AtomicBool::new(false);
        let waiting = AtomicUsize::new(clients.targets.len() * 2);
        let servers = clients.targets.len();
        std::thread::scope(|scope| {
            let (last, over, waiting) = (&last, &over, &waiting);
            for watcher in 0..servers * 2 {
                let process = ROUNDS_PROCESS + 1_000_000 * (round + 1) + watcher as u64;
                let of = if watcher < servers { Of::Job } else { Of::List };
                let stale = !(round + watcher as u64).is_multiple_of(3);
                let look = Look { of, stale, seen: None, wait_ms: ROUND_WAIT_MS };
                scope.spawn(move || {
                    self.witness(process, watcher % servers, (key, look), last, over);
                    waiting.fetch_sub(1, Ordering::Relaxed);
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
                    let node = random.index(servers);
                    let request = (key, Action::Write(value));
                    let end = clients.perform(process.number, &connections, node, &request, true);
                    written = end.kind == Kind::Ok;
                    if written || !is_last {
                        break;
                    }
                    process.retire();
                    connections = clients.connections();
                    std::thread::sleep(clients.load.last_phase.pause);
                }
                if !written {
                    process.retire();
                    connections = clients.connections();
                }
                over.store(change == BURST && !written, Ordering::Relaxed);
            }
            // Shows that the servers are alive while someone waits.
            let look = Look { of: Of::Job, stale: false, seen: None, wait_ms: 0 };
            while waiting.load(Ordering::Relaxed) > 0 {
                for node in 0..servers {
                    let request = (key, Action::Look(look));
                    clients.perform(process.number, &connections, node, &request, true);
                }
                std::thread::sleep(clients.load.last_phase.pause);
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
        assert_eq!(keys_of(4, look), [4, 5, 6]);
        assert_eq!(keys_of(4, Look { of: Of::Everywhere, ..look }), [4, 5, 6, 7]);
        let look = Look { of: Of::Job, ..look };
        assert_eq!(path(4, look), "/v1/job/w0x-0?namespace=default&index=7&wait=200ms&stale=true");
        assert_eq!(keys_of(4, look), [4]);
        let look = Look { of: Of::Versions, stale: false, seen: None, wait_ms: 0 };
        assert_eq!(path(7, look), "/v1/job/w0x-0/versions?namespace=watch");
        assert!((0..40).all(|key| key_of(namespace(key), &name(key)) == Some(key)));
        assert_eq!(key_of("default", "q1-1"), None);
        assert_eq!(key_of("watch", "w1-1"), None);
    }

    #[test]
    fn an_absent_object_has_no_rows_and_an_index() {
        let gone = Reply::Answer { status: 404, index: Some(9), body: "job not found".to_owned() };
        assert_eq!(rows(Of::Job, &gone).map(|(rows, index)| (rows.len(), index)), Ok((0, 9)));
        assert!(rows(Of::List, &gone).is_err());
    }

    #[test]
    fn a_watcher_follows_what_is_in_use() {
        let mut watches = Generator {
            random: Dice::numbered(1, 0),
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
