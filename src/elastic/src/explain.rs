//! What instances and pools do and why, as sentences for people. Every edge shows these words.
//!
//! Pure: `now` is log time, ms. A sentence decides nothing; what it announces (an end, a limit) is
//! read from the rows that the deciding machines read as well.

mod group;

use calendar::DateTime;
use std::sync::Arc;

use fsm::{
    Allocation, Liveness, Node, State, Text,
    node::SetAside,
    pool::{
        Behavior, BootFailure, Instance, InstancePool, InstanceState, InstanceType, LimitScope,
        Shutdown,
    },
};

pub use group::group;

/// The state of an instance in a word: `requested`, `booting`, `idle`, `running` or `shutdown`.
pub fn state_word(state: &State, row: &Instance) -> &'static str {
    match row.state {
        InstanceState::Requested => "requested",
        InstanceState::Booting => "booting",
        InstanceState::Bound if state.is_empty_instance(row) => "idle",
        InstanceState::Bound => "running",
        InstanceState::ShuttingDown => "shutdown",
    }
}

/// What an instance waits for, or why it stays or goes.
pub fn instance(state: &State, now: u64, row: &Instance) -> String {
    if let Some(shutdown) = &row.shutdown {
        return match provider(state, now, &row.provider) {
            Some(trouble) => format!("{}; {trouble}", ending(shutdown)),
            None => ending(shutdown),
        };
    }
    let mut sentence = match row.state {
        InstanceState::Requested => {
            let provider = &row.provider;
            format!("asked of provider {provider} for {}", boot_time(now, row))
        }
        InstanceState::Booting => format!("booting for {}", boot_time(now, row)),
        InstanceState::Bound => bound(state, now, row),
        InstanceState::ShuttingDown => "shut down".to_owned(),
    };
    if row.state == InstanceState::Requested
        && let Some(trouble) = provider(state, now, &row.provider)
    {
        sentence = format!("{sentence}; {trouble}");
    }
    let is_coming = matches!(row.state, InstanceState::Requested | InstanceState::Booting);
    if is_coming && !row.last_words.is_empty() {
        sentence = format!("{sentence}: {}", row.last_words);
    }
    sentence.insert_str(0, probe(state, row));
    if let Some(member) = &row.member
        && let Some(drain) = &member.drain
    {
        let until = clock(now, drain.ends_at());
        sentence = format!("drained by capacity group {} until {until}; {sentence}", member.group);
    }
    match row.behavior {
        Behavior::Hold => format!("{}; {sentence}", told("held", row)),
        Behavior::Drain => {
            let deadline = row.drain_deadline_at.map_or_else(String::new, |at| {
                format!(", what runs at {} is stopped", clock(now, at))
            });
            format!("{}{deadline}; {sentence}", told("drained", row))
        }
        Behavior::Run => sentence,
    }
}

/// What is wrong with a provider, if its calls are not answered as they should be.
pub fn provider(state: &State, now: u64, name: &Text) -> Option<String> {
    let row = state.provider_states().get(name).filter(|row| !row.is_answering())?;
    Some(format!(
        "provider {name} has not answered as it should since {} ({}){}",
        clock(now, row.since),
        row.failing,
        because(&row.last_error)
    ))
}

/// What stops a pool from growing or shrinking now, a sentence each.
pub fn pool(state: &State, now: u64, pool: &InstancePool) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some(pause) = &pool.paused {
        let by = if pause.by.is_empty() { "somebody" } else { &pause.by };
        let why = because(&pause.reason);
        sentences.push(format!("paused by {by} since {}{why}", clock(now, pause.at)));
    }
    sentences.extend(provider(state, now, &pool.provider));
    let count = state.instance_count(&pool.name);
    if count >= usize::try_from(pool.max).unwrap_or(usize::MAX) {
        sentences.push(format!("at max: {count} of {} instances", pool.max));
    }
    let coming = state
        .instances_of(&pool.name)
        .filter(|row| matches!(row.state, InstanceState::Requested | InstanceState::Booting));
    let coming = coming.count();
    let at_a_time = pool.max_concurrent_creates;
    if at_a_time > 0 && coming >= usize::try_from(at_a_time).unwrap_or(usize::MAX) {
        sentences.push(format!("{coming} instances are being made, at most {at_a_time} at a time"));
    }
    sentences.extend(kept_by_people(state, now, pool));
    sentences.extend(past(state, now, pool));
    for limit in state.provider_limits().iter().filter(|limit| limit.pool == pool.name) {
        if !state.is_in_force(limit, now) {
            continue;
        }
        let what = match &limit.scope {
            LimitScope::All => "any instance".to_owned(),
            scope @ (LimitScope::QuotaGroup { .. } | LimitScope::Type(_)) => {
                let of_scope = |kind: &&InstanceType| kind.limit_scopes().any(|own| own == *scope);
                let kinds = pool.types.values().map(AsRef::as_ref).filter(of_scope);
                let names: Vec<&str> = kinds.map(|kind| &*kind.name).collect();
                match names.as_slice() {
                    // The types that it is about are not in the pool any more.
                    [] => continue,
                    [one] => format!("type {one}"),
                    several => format!("types {}", several.join(", ")),
                }
            }
        };
        let group = match &limit.scope {
            LimitScope::QuotaGroup { group, .. } => format!(" {group}"),
            LimitScope::All | LimitScope::Type(_) => String::new(),
        };
        let below = match limit.below {
            0 => String::new(),
            below => format!(" or fewer than {below} instances"),
        };
        sentences.push(format!(
            "not creating {what}: {}{group} until {}{below}{}",
            limit.class.name(),
            clock(now, limit.until),
            because(&limit.detail)
        ));
    }
    sentences
}

/// Instances that no machine shuts down because a person has set their nodes aside.
fn kept_by_people(state: &State, now: u64, pool: &InstancePool) -> Vec<String> {
    const NAMED_MAX: usize = 3;
    let kept: Vec<_> =
        state.instances_of(&pool.name).filter(|row| state.is_set_aside(row)).collect();
    let named = kept.iter().take(NAMED_MAX).map(|row| {
        let id: String = row.id.to_string().chars().take(8).collect();
        format!("instance {id}: {}", instance(state, now, row))
    });
    let mut sentences: Vec<String> = named.collect();
    if kept.len() > NAMED_MAX {
        let more = kept.len() - NAMED_MAX;
        sentences.push(format!("and {more} more instances that people have set aside"));
    }
    sentences
}

/// What the past of a pool stops, a sentence each, with what ends it.
fn past(state: &State, now: u64, pool: &InstancePool) -> Vec<String> {
    let mut sentences = Vec::new();
    let most = pool.max_price_micro;
    let cheapest = pool.types.values().map(|kind| kind.price_micro).min().unwrap_or(0);
    let price = state.price_of_pool(&pool.name);
    if most > 0 && price.saturating_add(cheapest) > most {
        let (is, most) = (price_words(price), price_words(most));
        sentences.push(format!("at max_price_per_hour: {is} of {most}, until an instance goes"));
    }
    let Some(history) = state.pool_histories().get(&pool.name) else { return sentences };
    let (asked, most) = (history.asked_lately(now), pool.max_creates_per_hour);
    if most > 0
        && asked >= most
        && let Some(at) = history.falls_at(now)
    {
        let until = clock(now, at);
        sentences.push(format!("at max_creates_per_hour: {asked} of {most}, until {until}"));
    }
    if history.protected_since > 0 {
        let how = history.last.map_or("", BootFailure::name);
        let (since, name) = (clock(now, history.protected_since), &pool.name);
        sentences.push(format!(
            "protected since {since}: {} instances in a row failed ({how}), so one is made at a \
             time until one serves; try at once: quorate pool resume {name}",
            history.in_a_row
        ));
    }
    for (kind, backoff) in &history.types {
        if state.backoff_on(pool, kind, now).is_none() {
            continue;
        }
        let failures = match backoff.failures {
            1 => "an instance".to_owned(),
            several => format!("{several} instances"),
        };
        let place = match &*backoff.scope {
            "" => String::new(),
            scope => format!(", the last in {scope}"),
        };
        sentences.push(format!(
            "not creating type {kind}: {failures} failed ({}{place}) until {}{}",
            backoff.last.name(),
            clock(now, backoff.until),
            because(&backoff.detail)
        ));
    }
    sentences
}

/// `1.5`: millionths as a number.
fn price_words(micro: u64) -> String {
    let text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An instance that has not served yet tells what hangs on it.
fn probe(state: &State, row: &Instance) -> &'static str {
    let history = state.pool_histories().get(&row.pool);
    let is_protected = history.is_some_and(|history| history.protected_since > 0);
    if is_protected && row.is_unproven() { "the one that its protected pool tries; " } else { "" }
}

/// `12 s of 10 min`.
fn boot_time(now: u64, row: &Instance) -> String {
    let allowed = row.deadline_at.saturating_sub(row.requested_at);
    format!("{} of {}", span(now.saturating_sub(row.requested_at)), span(allowed))
}

fn told(word: &str, row: &Instance) -> String {
    let by = match &*row.behavior_by {
        "" => String::new(),
        by => format!(" by {by}"),
    };
    format!("{word}{by}{}", because(&row.behavior_reason))
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

fn ending(shutdown: &Shutdown) -> String {
    let by = match &*shutdown.by {
        "" => format!("as {}", shutdown.cause.name()),
        by => format!("by {by}"),
    };
    let destroy = match shutdown.attempts {
        0 => "destroy was not asked yet".to_owned(),
        1 => "destroy was asked once".to_owned(),
        several => format!("destroy was asked {several} times"),
    };
    // The cause says it already, or an operator gave words of their own.
    let is_known = shutdown.by.is_empty() || shutdown.reason.is_empty();
    let reason = if is_known { String::new() } else { format!(" ({})", shutdown.reason) };
    format!("shut down {by}{reason}, {destroy}{}", because(&shutdown.last_error))
}

fn bound(state: &State, now: u64, row: &Instance) -> String {
    let pool = state.instance_pools().get(&row.pool);
    let node = row.node.and_then(|node| state.nodes().get(&node));
    let trouble = node.and_then(|node| trouble(state, now, row, pool.map(AsRef::as_ref), node));
    let is_work = |one: &&Arc<Allocation>| !state.is_of_system_job(one);
    let running =
        row.node.map_or(0, |node| state.open_allocations_of_node(node).filter(is_work).count());
    let work = match running {
        0 if node.is_some_and(|node| node.set_aside().is_some()) => String::new(),
        0 => idle(state, now, row, pool.map(AsRef::as_ref)),
        1 => "runs 1 allocation".to_owned(),
        several => format!("runs {several} allocations"),
    };
    let work = match node.and_then(|node| other_limit(row, node)) {
        Some(limit) => format!("{work}; {limit}"),
        None => work,
    };
    let aside = node.and_then(|node| node.set_aside()).map(|aside| set_aside(now, &aside));
    if let Some(aside) = aside {
        return if work.is_empty() { aside } else { format!("{aside}; {work}") };
    }
    match trouble {
        Some(trouble) if running > 0 => format!("{trouble}, {work}"),
        Some(trouble) => trouble,
        None => work,
    }
}

/// Its agent takes another number of allocations than its type declares.
fn other_limit(row: &Instance, node: &Node) -> Option<String> {
    let (declared, found) = (row.kind.max_allocations, node.description.resources.allocations_max);
    let most = |limit: u32| if limit == 0 { "any number of".to_owned() } else { limit.to_string() };
    (declared != found).then(|| {
        format!(
            "its agent takes {} allocations at a time, its type declares {}",
            most(found),
            most(declared)
        )
    })
}

/// `stays: its node was suspended by ann until 12:00:00: disk is looked at`.
fn set_aside(now: u64, aside: &SetAside<'_>) -> String {
    let by = if aside.by.is_empty() { "somebody" } else { aside.by };
    let until = match aside.until {
        Some(until) => format!(" until {}", clock(now, until)),
        None => String::new(),
    };
    format!("stays: its node was {} by {by}{until}{}", aside.word, because(aside.reason))
}

/// What is wrong with the node of an instance, and what comes of it.
fn trouble(
    state: &State,
    now: u64,
    row: &Instance,
    pool: Option<&InstancePool>,
    node: &Node,
) -> Option<String> {
    let (word, since) = match (node.liveness, node.suspension()) {
        (Liveness::Down, _) => ("down", node.missed_at),
        (Liveness::Disconnected, _) => ("disconnected", node.missed_at),
        (Liveness::Initializing, _) => {
            let waits = span(now.saturating_sub(node.liveness_at));
            return Some(format!("its node has not been ready for {waits}"));
        }
        (Liveness::Ready, Some(suspension)) => ("suspended", suspension.since),
        (Liveness::Ready, None) => return None,
    };
    let waits = span(now.saturating_sub(since));
    let is_lost = state.mass_loss().is_some_and(|loss| loss.nodes.contains(&node.id));
    let end = match pool {
        _ if row.behavior == Behavior::Hold => String::new(),
        _ if is_lost => ", not shut down while the mass loss lasts".to_owned(),
        Some(pool) => format!(", shut down after {}", span(pool.probe_timeout_ms)),
        None => String::new(),
    };
    Some(format!("its node is {word} for {waits}{end}"))
}

fn idle(state: &State, now: u64, row: &Instance, pool: Option<&InstancePool>) -> String {
    let waits = format!("idle for {}", span(now.saturating_sub(row.last_busy_at)));
    let Some(pool) = pool else { return waits };
    let open = state.instances_of(&row.pool).filter(|row| row.shutdown.is_none()).count();
    match row.behavior {
        Behavior::Hold => waits,
        Behavior::Drain => format!("{waits}, goes when nothing runs on it"),
        Behavior::Run if row.member_drain().is_some() => waits,
        Behavior::Run if row.member.is_some() => {
            let group = row.group().cloned().unwrap_or_default();
            format!("{waits}, stays: a member of capacity group {group}")
        }
        Behavior::Run if pool.paused.is_some() => {
            format!("{waits}, stays while the pool is paused")
        }
        Behavior::Run if open <= usize::try_from(pool.min).unwrap_or(usize::MAX) => {
            format!("{waits}, stays: the pool keeps {}", pool.min)
        }
        Behavior::Run => format!("{waits}, goes after {}", span(pool.idle_timeout_ms)),
    }
}

/// A time in its largest unit of which there are at least two: `500 ms`, `90 s`, `10 min`, `3 h`,
/// `2 d`.
fn span(ms: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min")];
    for (length, unit) in UNITS {
        if ms >= length.saturating_mul(2) {
            return format!("{} {unit}", ms / length);
        }
    }
    if ms > 0 && ms < 1_000 { format!("{ms} ms") } else { format!("{} s", ms / 1_000) }
}

/// A time of day in UTC, with its date when that is another day than `now`.
pub(crate) fn clock(now: u64, at: u64) -> String {
    let moment = |ms: u64| DateTime::from_unix(i64::try_from(ms / 1_000).unwrap_or(i64::MAX));
    let (now, at) = (moment(now), moment(at));
    if (now.year, now.month, now.day) == (at.year, at.month, at.day) {
        format!("{:02}:{:02}:{:02}", at.hour, at.minute, at.second)
    } else {
        at.rfc3339()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use fsm::{
        InstanceId,
        allocation::ClientStatus,
        job::JobKind,
        node::Liveness,
        pool::{
            CreateOutcome, DestroyOutcome, InstanceOutcome, LimitClass, NoteInstance,
            PauseInstancePool, SetInstanceBehavior, ShutdownCause,
        },
        testing::{Driver, START_MS, job, node_id},
    };

    use super::*;

    /// The word and the sentence about an instance, so many seconds after the start.
    fn said(driver: &Driver, id: InstanceId, second: u64) -> String {
        let row = driver.instance_row(id);
        let sentence = instance(&driver.state, START_MS + second * 1_000, row);
        format!("{}: {sentence}", state_word(&driver.state, row))
    }

    fn waits(driver: &Driver, second: u64) -> Vec<String> {
        let row = driver.state.instance_pools().get(&"gpu".into()).unwrap();
        pool(&driver.state, START_MS + second * 1_000, row)
    }

    #[test]
    fn an_instance_is_told_from_its_intent_to_its_end() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let id = driver.request_instance("gpu", "small");
        assert_eq!(said(&driver, id, 12), "requested: asked of provider local for 12 s of 10 min");
        driver.made(id);
        let note = NoteInstance { id, address: "".into(), words: "unpacking".into() };
        driver.accept(note.into());
        assert_eq!(said(&driver, id, 130), "booting: booting for 2 min of 10 min: unpacking");
        let command = driver.register_as("a", fsm::testing::proof(id));
        driver.accept(command);
        assert_eq!(said(&driver, id, 3), "idle: its node has not been ready for 3 s");
        driver.sync("a");
        driver.readiness("a", fsm::node::Readiness::Ok);
        assert_eq!(said(&driver, id, 40), "idle: idle for 40 s, goes after 60 s");
        let mut spec = job("t", JobKind::Batch, 1);
        spec.node_pool = "gpu".into();
        driver.register_job(spec);
        let allocation = driver.run("t", 0, node_id("a"));
        assert_eq!(said(&driver, id, 41), "running: runs 1 allocation");
        driver.report(allocation, ClientStatus::Complete);
        driver.shut_down(id, ShutdownCause::Idle);
        assert_eq!(said(&driver, id, 99), "shutdown: shut down as idle, destroy was not asked yet");
        for _ in 0..3 {
            driver.accept(
                DestroyOutcome {
                    id,
                    provider_id: format!("i-{id}").into(),
                    gone: false,
                    error: "busy".into(),
                    evaluation_ids: Vec::new(),
                }
                .into(),
            );
        }
        assert_eq!(
            said(&driver, id, 99),
            "shutdown: shut down as idle, destroy was asked 3 times: busy"
        );
    }

    #[test]
    fn words_of_operators_come_first() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let id = driver.instance("gpu", "small", "a");
        driver.behave(id, Behavior::Hold);
        let held = "idle: held by alice@web1: disk is looked at; idle for 7 s";
        assert_eq!(said(&driver, id, 7), held);
        driver.behave(id, Behavior::Drain);
        let drained = "idle: drained by alice@web1: disk is looked at; idle for 7 s, goes when \
                       nothing runs on it";
        assert_eq!(said(&driver, id, 7), drained);
        driver.accept(
            SetInstanceBehavior {
                id,
                behavior: Behavior::Run,
                deadline_ms: None,
                by: "".into(),
                reason: "".into(),
                evaluation_ids: Vec::new(),
            }
            .into(),
        );
        driver.instance_pool("gpu", |pool| pool.min = 1);
        assert_eq!(said(&driver, id, 7), "idle: idle for 7 s, stays: the pool keeps 1");
        driver.liveness("a", Liveness::Down);
        let down = "idle: its node is down for 2 min, shut down after 10 min";
        assert_eq!(said(&driver, id, 121), down);
        driver.shut_down(id, ShutdownCause::Operator);
        let gone = "shutdown: shut down by alice@web1 (operator), destroy was not asked yet";
        assert_eq!(said(&driver, id, 7), gone);
    }

    #[test]
    fn a_pool_says_what_stops_it() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| pool.max_concurrent_creates = 2);
        assert_eq!(waits(&driver, 0), Vec::<String>::new());
        let fail = |driver: &mut Driver, class, scope, for_ms| {
            let id = driver.request_instance("gpu", "small");
            let detail = "vcpu is used up".into();
            let for_ms = Some(for_ms);
            let outcome = CreateOutcome::Failed { class, scope, for_ms, detail };
            let (provider, pool, kind) = ("local".into(), "gpu".into(), "small".into());
            driver.accept(InstanceOutcome { id, provider, pool, kind, outcome }.into());
        };
        let group = LimitScope::QuotaGroup { group: "vcpu".into(), preemptible: false };
        driver.request_instance("gpu", "large");
        fail(&mut driver, LimitClass::Quota, group, 30_000);
        // 2001-09-09T01:46:40Z is the start.
        let quota = "not creating types large, small: quota vcpu until 01:47:10 or fewer than 1 \
                     instances: vcpu is used up";
        assert_eq!(waits(&driver, 5), [quota]);
        assert_eq!(waits(&driver, 30), Vec::<String>::new());
        driver.at_seconds(40);
        let day = 24 * 3_600_000;
        fail(&mut driver, LimitClass::NoCapacity, LimitScope::Type("t-small".into()), day);
        let none =
            "not creating type small: no capacity until 2001-09-10T01:47:20Z: vcpu is used up";
        assert_eq!(waits(&driver, 40), [none]);
        driver.request_instance("gpu", "large");
        driver.request_instance("gpu", "large");
        driver.accept(
            PauseInstancePool {
                name: "gpu".into(),
                pause: true,
                by: "alice@web1".into(),
                reason: "repair".into(),
            }
            .into(),
        );
        let expected = [
            "paused by alice@web1 since 01:47:20: repair",
            "at max: 3 of 3 instances",
            "3 instances are being made, at most 2 at a time",
            none,
        ];
        assert_eq!(waits(&driver, 41), expected);
    }
}
