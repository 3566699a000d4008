//! What runs where, by the word of those who run it: simulated agents and simulated machines. Judged against what the servers want (I49).

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use fsm::{Allocation, AllocationId, ClientStatus, DesiredStatus, State};
use ground::rt::Instant;
use proto::v1 as pb;

use crate::{verdict, world::World};

/// Job and name of an allocation. A name is one of its agent's where a job runs once per node.
pub(crate) type Name = (String, String);

/// One that began.
struct Run {
    name: Name,
    /// When it ends by itself.
    ends_at: Option<Instant>,
}

thread_local! {
    /// By agent and allocation.
    static RUNNING: RefCell<BTreeMap<(usize, AllocationId), Run>> = const { RefCell::new(BTreeMap::new()) };
    /// Restarts that were ordered.
    static RESTARTS: RefCell<BTreeMap<AllocationId, u32>> = const { RefCell::new(BTreeMap::new()) };
    /// What failed by the fault of its node.
    static FAILED: RefCell<BTreeSet<AllocationId>> = const { RefCell::new(BTreeSet::new()) };
}

/// The name that an allocation has on an agent.
pub(crate) fn name_of(agent: usize, kind: pb::JobKind, (job, name): (&str, &str)) -> Name {
    let name = match kind {
        pb::JobKind::System | pb::JobKind::Sysbatch => format!("{name} of a{agent}"),
        pb::JobKind::Service | pb::JobKind::Batch | pb::JobKind::Unspecified => name.to_owned(),
    };
    (job.to_owned(), name)
}

/// What runs now.
fn all() -> Vec<((usize, AllocationId), Name)> {
    let now = Instant::now();
    RUNNING.with_borrow_mut(|running| {
        running.retain(|_, run| run.ends_at.is_none_or(|end| end > now));
        running.iter().map(|(key, run)| (*key, run.name.clone())).collect()
    })
}

/// An allocation, if the servers want it to run.
pub(crate) fn wanted(state: &State, id: AllocationId) -> Option<&Allocation> {
    state.allocations().get(&id).map(|row| &**row).filter(|row| row.is_live())
}

/// I49: an allocation begins to run on an agent, and no other one of that name that the servers still want does.
pub(crate) fn begins(
    world: &World,
    agent: usize,
    id: AllocationId,
    (name, ends_at): (Name, Option<Instant>),
) {
    let others: Vec<_> =
        all().into_iter().filter(|((_, other), held)| *other != id && *held == name).collect();
    RUNNING.with_borrow_mut(|running| running.insert((agent, id), Run { name, ends_at }));
    let Some(state) = world.newest() else { return };
    // What begins late, when the servers have given it up already, may meet what has replaced it.
    let Some(row) = wanted(&state, id) else { return };
    for ((other, other_id), _) in others {
        if wanted(&state, other_id).is_some() {
            verdict::fail(format!(
                "I49: {} starts on a{agent} while {other_id} of that name runs on a{other}",
                row.name()
            ));
        }
    }
}

/// It runs no more.
pub(crate) fn ends(agent: usize, id: AllocationId) {
    RUNNING.with_borrow_mut(|running| running.remove(&(agent, id)));
}

/// It failed, or did not begin, by the fault of its node; the servers are told next.
pub(crate) fn fails(agent: usize, id: AllocationId) {
    FAILED.with_borrow_mut(|failed| failed.insert(id));
    ends(agent, id);
}

/// Whether it failed by the fault of its node, as the servers know or will be told.
pub(crate) fn failed_by_node(id: AllocationId) -> bool {
    FAILED.with_borrow(|failed| failed.contains(&id))
}

/// Its tasks are to run anew, by order.
pub(crate) fn restarts(id: AllocationId) {
    RESTARTS.with_borrow_mut(|restarts| *restarts.entry(id).or_default() += 1);
}

/// I47, I49: no task fails but by the fault of its node, none is restarted without an order, and what was to end has ended. One line for each difference.
pub(crate) fn unasked(state: &State) -> Vec<String> {
    let tells = |row: &Allocation| {
        unasked_of(row).map(|what| format!("I49: {} {} {what}", row.name(), row.id))
    };
    state.allocations().iter().filter_map(|row| tells(row)).collect()
}

fn unasked_of(row: &Allocation) -> Option<String> {
    let ordered = RESTARTS.with_borrow(|all| all.get(&row.id).copied().unwrap_or(0));
    // An order's restart says so before its next run, as one by policy does.
    let restarting = row.tasks.values().map(|task| {
        u32::try_from(task.events.iter().filter(|event| &*event.kind == "Restarting").count())
            .unwrap_or(u32::MAX)
    });
    if row.client == ClientStatus::Failed && !failed_by_node(row.id) {
        Some("failed, and nothing fails there".to_owned())
    } else if row.tasks.values().any(|task| task.restarts > ordered) {
        Some(format!("was restarted more often than by the {ordered} orders to"))
    } else if restarting.max() > Some(ordered) {
        Some("is to run again as if it had failed".to_owned())
    } else if row.desired != DesiredStatus::Run && !row.client.is_terminal() {
        Some(format!("was to end, and is said to be {}", row.client.name()))
    } else {
        None
    }
}

/// Nothing runs there any more.
pub(crate) fn ends_all(agent: usize) {
    RUNNING.with_borrow_mut(|running| running.retain(|(of, _), _| *of != agent));
}

/// I49: when all is quiet, what runs is what the servers want to run, and all of it. One line for each difference.
pub(crate) fn strays(state: &State) -> Vec<String> {
    let running = all();
    let stray = running.iter().filter(|((_, id), _)| wanted(state, *id).is_none());
    let stray = stray.map(|((agent, id), _)| {
        let what = state.allocations().get(id).map_or_else(
            || "something forgotten".to_owned(),
            |row| format!("{} ({:?}, {:?})", row.name(), row.desired, row.client),
        );
        format!("I49: {what} runs on a{agent}, and nobody wants it")
    });
    let missing = state.allocations().iter().filter(|row| {
        row.is_live()
            && row.client == ClientStatus::Running
            && !running.iter().any(|((_, id), _)| *id == row.id)
    });
    let missing = missing.map(|row| format!("I49: {} runs nowhere, and is said to", row.name()));
    stray.chain(missing).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::{sync::Arc, time::Duration};

    use fsm::{
        JobKind, TaskEvent, TaskState,
        node::Readiness,
        testing::{self, Driver},
    };
    use ground::rt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i49_what_runs_unwanted_and_what_is_said_to_run_and_does_not_is_found() {
        let mut driver = Driver::default();
        driver.register_node("n1");
        driver.readiness("n1", Readiness::Ok);
        driver.sync("n1");
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let node = driver.node("n1");
        let id = driver.run("web", 0, node);
        let missing = strays(&driver.state);
        assert!(missing.len() == 1 && missing[0].contains("runs nowhere"), "{missing:?}");
        let runs = |id, ends_at| {
            let run = Run { name: name_of(0, pb::JobKind::Service, ("web", "web.g[0]")), ends_at };
            RUNNING.with_borrow_mut(|all| all.insert((0, id), run));
        };
        runs(id, None);
        assert_eq!(strays(&driver.state), Vec::<String>::new());
        let second = Duration::from_secs(1);
        runs(AllocationId([9; 16]), Some(Instant::now() + second));
        let found = strays(&driver.state);
        assert!(found.len() == 1 && found[0].contains("nobody wants it"), "{found:?}");
        rt::sleep(second).await;
        assert_eq!(strays(&driver.state), Vec::<String>::new(), "it has ended by itself");
        assert_eq!(unasked(&driver.state), Vec::<String>::new());
        let told = |change: &dyn Fn(&mut Allocation)| {
            let mut row = Allocation::clone(driver.state.allocations().get(&id).unwrap());
            change(&mut row);
            unasked_of(&row).unwrap_or_default()
        };
        let restarted = |row: &mut Allocation| {
            Arc::make_mut(&mut row.tasks)
                .insert("t".into(), TaskState { restarts: 1, ..TaskState::default() });
        };
        assert!(told(&restarted).contains("more often than by the 0 orders"));
        restarts(id);
        assert_eq!(told(&restarted), "", "it was ordered");
        let by_policy = |row: &mut Allocation, times: usize| {
            let (at_ms, exit_code, signal) = (1, None, None);
            let (kind, message) = ("Restarting".into(), "in 1 s".into());
            let event = TaskEvent { kind, at_ms, message, exit_code, signal };
            let task = TaskState { events: vec![event; times], ..TaskState::default() };
            Arc::make_mut(&mut row.tasks).insert("t".into(), task);
        };
        assert_eq!(told(&|row| by_policy(row, 1)), "", "it is of the order");
        assert!(told(&|row| by_policy(row, 2)).contains("as if it had failed"));
        let stopped = |row: &mut Allocation| row.desired = DesiredStatus::Stop;
        assert!(told(&stopped).contains("was to end"));
        let failed = |row: &mut Allocation| row.client = ClientStatus::Failed;
        assert!(told(&failed).contains("nothing fails there"));
        fails(0, id);
        assert_eq!(told(&failed), "", "its node did");
        assert_eq!(strays(&driver.state).len(), 1, "it does not run any more");
    }
}
