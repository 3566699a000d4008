//! Instances after each entry, with the fake cloud beside the rows: what the machine of pools may
//! do, and what must not be forgotten.

use elastic::{call::TAG_INSTANCE, fake::FakeMachine};
use fsm::{
    Command, Instance, InstanceState, State, Text,
    command::PoolCommand,
    pool::{BY_POOL, Behavior, ObserveInstances, ShutdownCause},
};

use super::Pools;
use crate::{
    cluster::{
        coverage::{Coverage, Event},
        log::Applied,
    },
    invariants::needs,
};

/// A machine that was made so short a time before a list began may be missed by it, ms.
const YOUNG_MS: u64 = 30_000;

/// The list that an entry is about.
pub(super) fn list_of(applied: &Applied) -> Option<&ObserveInstances> {
    match applied.entry.proposal.as_ref().map(|one| &one.command) {
        Some(Command::Pool(PoolCommand::ObserveInstances(list))) => Some(list),
        _ => None,
    }
}

/// What is wrong with an entry, which may be about a list.
pub(super) fn judge(
    before: &State,
    after: &State,
    list: Option<&ObserveInstances>,
    pools: &Pools,
    clock_ms: u64,
    found: &mut Vec<String>,
) {
    judge_max(before, after, pools, found);
    for row in before.instances().iter() {
        match after.instances().get(&row.id) {
            Some(now) => judge_change(before, row, now, found),
            None => {
                // What was carried out after the list began cannot be known from it, however late that is: the machine is a stray in the next one.
                let list = list.filter(|list| list.missing.contains(&row.id));
                let since_ms = list.map_or(0, |list| after.at().saturating_sub(list.began_at));
                judge_end(after, row, pools, clock_ms.saturating_sub(since_ms), found);
            }
        }
    }
}

/// No intent is taken above the pool's max, or in a pool that is paused: a max that was lowered
/// drains, it does not let in.
fn judge_max(before: &State, after: &State, pools: &Pools, found: &mut Vec<String>) {
    for pool in after.instance_pools().iter() {
        let rows = || after.instances().iter().filter(|row| row.pool == pool.name);
        let is_new = |row: &Instance| {
            row.state == InstanceState::Requested && !before.instances().contains(&row.id)
        };
        if !rows().any(|row| is_new(row)) {
            continue;
        }
        for row in rows().filter(|row| is_new(row)) {
            if before.backoff_on(pool, &row.kind.name, after.at()).is_some() {
                let (id, kind) = (row.id, &row.kind.name);
                found.push(format!("pool-backoff: {id} is asked for while {kind} backs off"));
            }
        }
        let new = rows().filter(|row| is_new(row)).count();
        let most = pool.max_creates_per_hour as usize;
        let made = pools.asked_lately(after.at()) + new;
        if most > 0 && made > most {
            found.push(format!("pool-hour: {made} are asked for in an hour, {most} may be"));
        }
        let history = before.pool_histories().get(&pool.name);
        let is_protected = history.is_some_and(|history| history.protected_since > 0);
        if is_protected && before.unproven_of(&pool.name) + new > 1 {
            found.push("pool-protected: a pool that failed makes more than one".to_owned());
        }
        let count = rows().count();
        if count > pool.max as usize {
            found.push(format!("pool-max: an intent makes {count} of {}", pool.max));
        }
        if pool.paused.is_some() {
            found.push(format!("pool-paused: {} grows although it is paused", pool.name));
        }
    }
}

/// What is held, busy or lost in a mass loss is shut down by operators alone.
fn judge_change(before: &State, was: &Instance, now: &Instance, found: &mut Vec<String>) {
    if was.state > now.state {
        found.push(format!("pool: {} went from {:?} to {:?}", was.id, was.state, now.state));
    }
    if was.node.is_some() && now.node != was.node {
        found.push(format!("pool-binding: {} is bound to another node", was.id));
    }
    let begins = was.state != InstanceState::ShuttingDown && now.state != was.state;
    let cause = now.shutdown.as_ref().map(|shutdown| shutdown.cause);
    let Some(cause) = cause.filter(|cause| begins && *cause != ShutdownCause::Operator) else {
        return;
    };
    let (id, name) = (now.id, cause.name());
    if was.behavior == Behavior::Hold {
        found.push(format!("pool-held: {id} is held and shut down ({name})"));
    }
    let Some(node) = was.node else { return };
    // Whoever drains the instance itself has given it up.
    let is_given_up = was.behavior == Behavior::Drain && &*was.behavior_by != BY_POOL;
    let is_aside = before.nodes().get(&node).is_some_and(|node| node.set_aside().is_some());
    if is_aside && !is_given_up {
        found.push(format!("pool-set-aside: {id} is set aside and shut down ({name})"));
    }
    let runs = |row: &&std::sync::Arc<fsm::Allocation>| {
        row.node == node && !before.is_of_system_job(row) && !needs::has_ended(row)
    };
    if cause.needs_empty() && before.allocations().iter().any(|row| runs(&row)) {
        found.push(format!("pool-busy: {id} has allocations and is shut down ({name})"));
    }
    if before.mass_loss().is_some_and(|loss| loss.nodes.contains(&node)) {
        found.push(format!("pool-mass-loss: {id} was lost with others and is shut down ({name})"));
    }
}

/// A row goes with its machine, or leaves it to another row. `seen_ms`: when it was last looked for.
fn judge_end(after: &State, row: &Instance, pools: &Pools, seen_ms: u64, found: &mut Vec<String>) {
    let is_kept = |id: &Text| after.instances().iter().any(|other| other.provider_id == *id);
    let left = if row.provider_id.is_empty() {
        // One without tags is nobody's as far as lists say: it is a stray from then on.
        let is_known = |machine: &&FakeMachine| machine.described.tags.contains_key(TAG_INSTANCE);
        let old = pools.cloud.machine_of(row.id).filter(is_known);
        old.filter(|machine| pools.age_ms(machine.number, seen_ms) > YOUNG_MS)
    } else {
        pools.cloud.machine(&row.provider_id)
    };
    let Some(machine) = left else { return };
    let id = &machine.described.provider_id;
    if !is_kept(id) {
        found.push(format!("pool-gone: {} is forgotten, its machine {id} is there", row.id));
    }
}

/// What became of instances, for the coverage.
pub(super) fn note(before: &State, applied: &Applied, coverage: &mut Coverage) {
    let after = &applied.state;
    for row in after.instances().iter() {
        let was = before.instances().get(&row.id);
        match (was.map(|was| was.state), row.state) {
            (None, InstanceState::Requested) => coverage.count(Event::IntentTaken),
            (None, InstanceState::ShuttingDown) => coverage.count(Event::StrayFound),
            (Some(InstanceState::Requested | InstanceState::Booting), InstanceState::Bound) => {
                coverage.count(Event::InstanceBound);
            }
            (Some(from), InstanceState::ShuttingDown) if from != InstanceState::ShuttingDown => {
                coverage.count(event_of(row.shutdown.as_ref().map(|one| one.cause)));
            }
            _ => {}
        }
        if was.is_some_and(|was| was.missing == 0 && row.missing > 0) {
            coverage.count(Event::InstanceMissing);
        }
    }
    if let Some(list) = list_of(applied)
        && list
            .missing
            .iter()
            .any(|id| before.instances().contains(id) && !after.instances().contains(id))
    {
        coverage.count(Event::InstanceDisappeared);
    }
    for history in after.pool_histories().iter() {
        let was = before.pool_histories().get(&history.pool);
        let was_protected = was.is_some_and(|was| was.protected_since > 0);
        if history.protected_since > 0 && !was_protected {
            coverage.count(Event::PoolProtected);
        }
        let most =
            after.instance_pools().get(&history.pool).map_or(0, |pool| pool.max_creates_per_hour);
        let was_asked = was.map_or(0, |was| was.asked_lately(before.at()));
        if most > 0 && history.asked_lately(after.at()) >= most && was_asked < most {
            coverage.count(Event::HourSpent);
        }
    }
    if after.unhelped().len() > before.unhelped().len() {
        coverage.count(Event::JobUnhelped);
    }
    if after.provider_limits().len() > before.provider_limits().len() {
        coverage.count(Event::PoolLimited);
    }
}

fn event_of(cause: Option<ShutdownCause>) -> Event {
    match cause {
        Some(ShutdownCause::Idle) => Event::InstanceIdle,
        Some(ShutdownCause::Drained) => Event::InstanceDrained,
        Some(ShutdownCause::Shrink) => Event::PoolShrunk,
        Some(ShutdownCause::Expired) => Event::InstanceExpired,
        Some(ShutdownCause::BootFailed) => Event::BootFailed,
        Some(ShutdownCause::ProbeFailed) => Event::ProbeFailed,
        Some(ShutdownCause::Unknown) => Event::StrayFound,
        Some(ShutdownCause::Released) => Event::MemberReleased,
        Some(ShutdownCause::Operator) | None => Event::InstanceEnded,
    }
}

#[cfg(test)]
mod tests {
    use elastic::call::{Answer, Create, Operation};
    use fsm::{
        InstanceId,
        pool::Shutdown,
        testing::{self, Driver},
    };

    use super::*;

    /// A pool with one instance that is bound to node `a`.
    fn bound() -> (Driver, InstanceId) {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let id = driver.instance("gpu", "small", "a");
        (driver, id)
    }

    fn found(before: &State, after: &State, pools: &Pools) -> Vec<String> {
        let mut found = Vec::new();
        judge(before, after, None, pools, 0, &mut found);
        found
    }

    /// Money: an hour has only so many creates, and a pool whose boots fail makes one at a time.
    #[test]
    fn creates_above_those_of_an_hour_or_of_a_protected_pool_are_found() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        driver.request_instance("gpu", "small");
        let before = driver.state.clone();
        driver.request_instance("gpu", "small");
        let mut after = driver.state.clone();
        assert_eq!(found(&before, &after, &Pools::calm_one()), [] as [&str; 0]);
        let mut pool = (**after.instance_pools().get(&"gpu".into()).expect("it is there")).clone();
        pool.max_creates_per_hour = 1;
        testing::put(&mut after, &pool);
        let (first, at) = (before.instances().iter().next().expect("one").id, before.at());
        let mut pools = Pools::calm_one();
        pools.note_asked(first, at);
        let hour = found(&before, &after, &pools);
        assert!(hour.iter().any(|one| one.starts_with("pool-hour")), "{hour:?}");
        let mut before = before;
        let history = before.pool_histories().get(&"gpu".into()).expect("it is there");
        let history = fsm::pool::PoolHistory { protected_since: 1, ..(**history).clone() };
        testing::put(&mut before, &history);
        let second = found(&before, &after, &Pools::calm_one());
        assert!(second.iter().any(|one| one.starts_with("pool-protected")), "{second:?}");
    }

    /// The state in which a machine has shut an instance down, whatever `apply` says.
    fn shut_down(state: &State, id: InstanceId, cause: ShutdownCause) -> State {
        let mut after = state.clone();
        let mut row = (**state.instances().get(&id).expect("it is there")).clone();
        row.state = InstanceState::ShuttingDown;
        let (reason, by, last_error) = ("".into(), "".into(), "".into());
        row.shutdown = Some(Shutdown { cause, reason, by, at: 0, attempts: 0, last_error });
        testing::put(&mut after, &row);
        after
    }

    #[test]
    fn only_an_operator_ends_what_is_held() {
        let (mut driver, id) = bound();
        let pools = Pools::calm_one();
        let of_idle = shut_down(&driver.state, id, ShutdownCause::Idle);
        assert_eq!(found(&driver.state, &of_idle, &pools), [] as [&str; 0]);
        driver.behave(id, Behavior::Hold);
        let of_idle = shut_down(&driver.state, id, ShutdownCause::ProbeFailed);
        let held = found(&driver.state, &of_idle, &pools);
        assert!(held.iter().any(|one| one.starts_with("pool-held")), "{held:?}");
        let by_operator = shut_down(&driver.state, id, ShutdownCause::Operator);
        assert_eq!(found(&driver.state, &by_operator, &pools), [] as [&str; 0]);
    }

    #[test]
    fn an_instance_that_works_does_not_idle() {
        let (mut driver, id) = bound();
        let mut spec = testing::job("web", fsm::JobKind::Service, 1);
        spec.node_pool = "gpu".into();
        driver.register_job(spec);
        driver.run("web", 0, testing::node_id("a"));
        let after = shut_down(&driver.state, id, ShutdownCause::Idle);
        let busy = found(&driver.state, &after, &Pools::calm_one());
        assert!(busy.iter().any(|one| one.starts_with("pool-busy")), "{busy:?}");
    }

    #[test]
    fn a_row_stays_as_long_as_its_machine() {
        let (mut driver, id) = bound();
        let mut pools = Pools::calm_one();
        let kind = (*driver.instance_row(id).kind).clone();
        let (token, pool, tags) = ([1; 16], "gpu".into(), elastic::call::Tags::new());
        let create = Create { key: id, token, pool, kind, tags };
        let made = pools.cloud.call(&Operation::Create(Box::new(create)), &[]);
        let Ok(Answer::Created(machine)) = made else { panic!("{made:?}") };
        let mut row = driver.instance_row(id).clone();
        row.provider_id = machine.provider_id.clone();
        testing::put(&mut driver.state, &row);
        let after = testing::without::<Instance>(&driver.state, &id);
        let gone = found(&driver.state, &after, &pools);
        assert!(gone.iter().any(|one| one.starts_with("pool-gone")), "{gone:?}");
        pools.cloud.end(&machine.provider_id);
        assert_eq!(found(&driver.state, &after, &pools), [] as [&str; 0]);
    }

    /// A list that is answered late says what was there when it began.
    #[test]
    fn a_list_does_not_know_what_is_made_after_it_began() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let id = driver.request_instance("gpu", "small");
        let mut pools = Pools::calm_one();
        let kind = (*driver.instance_row(id).kind).clone();
        let tags = [(TAG_INSTANCE.into(), id.to_string().into())].into();
        let create = Create { key: id, token: [1; 16], pool: "gpu".into(), kind, tags };
        pools.cloud.call(&Operation::Create(Box::new(create)), &[]).expect("it is made");
        let number = pools.cloud.machine_of(id).expect("it is there").number;
        pools.note_made(number, 50_000);
        let after = testing::without::<Instance>(&driver.state, &id);
        let clock_ms = 200_000;
        let gone = |began_ms_ago: u64| {
            let list = ObserveInstances {
                provider: "fake".into(),
                epoch: 1,
                scope: "zone".into(),
                began_at: after.at() - began_ms_ago,
                grace_ms: 0,
                present: Vec::new(),
                missing: vec![id],
                evaluation_ids: Vec::new(),
            };
            let mut found = Vec::new();
            judge(&driver.state, &after, Some(&list), &pools, clock_ms, &mut found);
            found.iter().any(|one| one.starts_with("pool-gone"))
        };
        assert!(gone(0));
        assert!(gone(100_000), "it was there for long when the list began");
        assert!(!gone(160_000), "it was made later");
    }

    #[test]
    fn a_pool_does_not_grow_above_its_max_or_while_it_is_paused() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |_| {});
        let before = driver.state.clone();
        driver.request_instance("gpu", "small");
        let pools = Pools::calm_one();
        assert_eq!(found(&before, &driver.state, &pools), [] as [&str; 0]);
        let pool = driver.state.instance_pools().get(&"gpu".into()).expect("it is there");
        let (by, reason) = ("ann".into(), "".into());
        let paused = Some(fsm::pool::Pause { by, reason, at: 0 });
        let pool = fsm::InstancePool { max: 0, paused, ..(**pool).clone() };
        testing::put(&mut driver.state, &pool);
        let grown = found(&before, &driver.state, &pools);
        for name in ["pool-max", "pool-paused"] {
            assert!(grown.iter().any(|one| one.starts_with(name)), "{grown:?}");
        }
    }

    /// What went silent with others is likely to come back.
    #[test]
    fn an_instance_lost_with_others_is_not_destroyed() {
        let (mut driver, id) = bound();
        let nodes = vec![testing::node_id("a")];
        let loss =
            fsm::node::MassLoss { since: 0, nodes, end: None, create_index: 1, modify_index: 1 };
        testing::put(&mut driver.state, &loss);
        let after = shut_down(&driver.state, id, ShutdownCause::ProbeFailed);
        let ended = found(&driver.state, &after, &Pools::calm_one());
        assert!(ended.iter().any(|one| one.starts_with("pool-mass-loss")), "{ended:?}");
    }
}
