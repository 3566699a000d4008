//! Which allocations a node starts, keeps and deletes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod stages;

use std::{path::Path, sync::atomic::AtomicU64, time::Duration};

use tokio::{sync::Notify, time::timeout};

use super::*;
use crate::{
    allocation::{preparation::StageRules, state::StateDirectory},
    driver::Drivers,
    stage::Stages,
    testing,
    time::Clock,
};

fn node(directory: &Path) -> Arc<LocalNode> {
    node_with(StateDirectory::open(directory).unwrap().0, Stages::all())
}

fn node_with(state: StateDirectory, stages: Stages) -> Arc<LocalNode> {
    let shared = Shared {
        clock: Clock::new(),
        state,
        outbox: Arc::default(),
        node_names: Arc::default(),
        meta: Arc::default(),
        executor_binary: Path::new("no executor is needed").into(),
        drivers: Drivers::named(&["mock".to_owned()]),
        stages,
        shortages: Arc::default(),
        ended: Notify::new(),
        too_long: AtomicU64::new(0),
    };
    LocalNode::restore(Arc::new(shared), 10).unwrap()
}

fn endless(id: u8) -> v1::Allocation {
    testing::message([id; 16], "job", &["a"])
}

/// The complete set, or its first batch.
fn whole(allocations: Vec<v1::Allocation>, present: &[u8]) -> v1::AllocationBatch {
    let present = present.iter().map(|id| vec![*id; 16].into()).collect();
    v1::AllocationBatch { complete: true, allocations, present, ..Default::default() }
}

/// The allocations with a shell, and whether each is to stop.
fn started(node: &LocalNode) -> Vec<(u8, bool)> {
    let inner = node.lock();
    inner.entries.iter().map(|(id, entry)| (id.0[0], entry.is_stopping())).collect()
}

#[tokio::test]
async fn an_allocation_named_first_and_sent_in_a_later_message_stays() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    node.apply(whole(vec![endless(1), endless(2), endless(3)], &[1, 2, 3])).await;
    assert_eq!(started(&node), [(1, false), (2, false), (3, false)]);
    node.apply(whole(vec![endless(2)], &[1, 2, 4])).await;
    assert_eq!(started(&node), [(1, false), (2, false), (3, true)]);
    let rest = vec![endless(1), endless(4)];
    node.apply(v1::AllocationBatch { allocations: rest, ..Default::default() }).await;
    assert_eq!(started(&node), [(1, false), (2, false), (3, true), (4, false)]);
    // An older server sends no `present`: its batch is the complete set.
    node.apply(whole(vec![endless(2), endless(4)], &[])).await;
    assert_eq!(started(&node), [(1, true), (2, false), (3, true), (4, false)]);
}

/// A broken allocation does not prevent the others from running.
#[tokio::test]
async fn an_allocation_that_panics_fails_alone() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    let [bad, good] = [1, 2].map(|id| AllocationId([id; 16]));
    let spec = Arc::new(AllocationSpec::parse(endless(1)).unwrap());
    // It has a task that it knows nothing of.
    let two = testing::message([1; 16], "job", &["a", "b"]);
    let policy = spec::group_policy(&two).unwrap();
    let mut runner = AllocationRunner::new(&policy, bad.0, 7, node.shared.clock.now());
    runner.found(&[None, Some(1)], &StageRules::default());
    let origin = Origin::Stored { suspended: false, booted: false };
    node.adopt(&mut node.lock(), spec, runner, origin);
    node.apply(whole(vec![endless(1), endless(2)], &[1, 2])).await;
    let failed = async {
        while !node.view(bad).unwrap().terminal {
            node.shared.ended.notified().await;
        }
    };
    timeout(Duration::from_mins(1), failed).await.unwrap();
    let status = node.view(bad).unwrap().status;
    assert_eq!(status.client_status(), v1::ClientStatus::Failed);
    assert!(status.description.contains("panic") && status.sequence > 7, "{status:?}");
    assert!(node.shared.outbox.is_pending(bad), "the servers are told");
    assert!(!node.view(good).unwrap().terminal, "the other one runs");
}

#[tokio::test]
async fn an_end_that_the_servers_took_for_old_is_told_again() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    let mut message = endless(1);
    r#"{"run_for":"1ms"}"#.clone_into(&mut message.tasks[0].config_json);
    node.apply(whole(vec![message.clone()], &[1])).await;
    node.shared.ended.notified().await;
    let id = AllocationId([1; 16]);
    let told = || (node.view(id).unwrap().status.sequence, node.shared.outbox.is_pending(id));
    let (own, _) = told();
    for (status, known, expected) in [
        (v1::ClientStatus::Running, own - 1, (own, false)),
        (v1::ClientStatus::Complete, own, (own, false)),
        (v1::ClientStatus::Running, own, (own + 1, true)),
        (v1::ClientStatus::Running, own + 7, (own + 8, true)),
        (v1::ClientStatus::Complete, own + 8, (own + 8, false)),
    ] {
        node.shared.outbox.forget(id);
        message.set_client_status(status);
        message.client_sequence = known;
        node.apply(whole(vec![message.clone()], &[1])).await;
        assert_eq!(told(), expected, "the servers know {known}, {status:?}");
    }
}

#[tokio::test]
async fn an_allocation_that_ended_before_a_restart_is_kept_until_the_servers_know_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let before = node(directory.path());
    let messages = [1, 2, 3].map(|id| {
        let mut message = endless(id);
        r#"{"run_for":"1ms"}"#.clone_into(&mut message.tasks[0].config_json);
        message
    });
    before.apply(whole(messages.to_vec(), &[1, 2, 3])).await;
    let has_ended = |id| before.view(AllocationId([id; 16])).unwrap().terminal;
    while ![1, 2, 3].into_iter().all(has_ended) {
        before.shared.ended.notified().await;
    }
    before.suspend().await;
    let node = LocalNode::restore(Arc::clone(&before.shared), 0).unwrap();
    for id in [1, 2, 3] {
        node.shared.outbox.forget(AllocationId([id; 16]));
    }
    node.settle();
    assert_eq!(started(&node).len(), 3, "no server was heard");
    // The servers took the end of the second for an old report. The row of the third follows
    // later.
    let mut old = messages[1].clone();
    old.client_sequence = node.view(AllocationId([2; 16])).unwrap().status.sequence;
    node.apply(whole(vec![old], &[2, 3])).await;
    assert_eq!(started(&node), [(2, false), (3, false)]);
    let mut late = messages[2].clone();
    late.set_client_status(v1::ClientStatus::Complete);
    node.apply(v1::AllocationBatch { allocations: vec![late], ..Default::default() }).await;
    assert_eq!(started(&node), [(2, false)], "the second is told again first");
}

/// A lagging server may say that an allocation is to run although the other servers know its
/// end and its directory is deleted.
#[tokio::test]
async fn an_ended_allocation_that_is_kept_no_more_is_not_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    let mut message = endless(1);
    r#"{"run_for":"1ms"}"#.clone_into(&mut message.tasks[0].config_json);
    node.apply(whole(vec![message.clone()], &[1])).await;
    node.shared.ended.notified().await;
    assert!(node.lock().entries.values().all(Entry::is_terminal));
    let removed = vec![message.id.clone()];
    node.apply(v1::AllocationBatch { removed, ..Default::default() }).await;
    assert_eq!(started(&node), []);
    let id = AllocationId([1; 16]);
    assert!(!node.shared.outbox.is_pending(id));
    node.apply(whole(vec![message.clone(), endless(2)], &[1, 2])).await;
    assert_eq!(started(&node), [(2, false)]);
    // A server that was restored from a snapshot would wait for its end for ever.
    assert!(node.shared.outbox.is_pending(id), "how it ended is told again");
    node.shared.outbox.forget(id);
    message.set_client_status(v1::ClientStatus::Complete);
    node.apply(whole(vec![message, endless(2)], &[1, 2])).await;
    assert!(!node.shared.outbox.is_pending(id));
}

#[tokio::test]
async fn an_agent_that_ends_its_tasks_takes_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    node.apply(whole(vec![endless(1)], &[1])).await;
    node.suspend().await;
    node.apply(whole(vec![endless(2)], &[1, 2])).await;
    assert_eq!((node.counts(), started(&node)), ((1, 1), vec![(1, false)]));
}

#[tokio::test]
async fn new_work_waits_while_the_machine_is_short_and_starts_when_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    let id = AllocationId([2; 16]);
    node.apply(whole(vec![endless(1)], &[1])).await;
    node.shared.shortages.met_as("too many open files");
    node.apply(whole(vec![endless(1), endless(2)], &[1, 2])).await;
    assert_eq!(started(&node), [(1, false)], "what runs goes on");
    assert_eq!(node.counts(), (2, 2));
    assert!(node.shared.outbox.is_pending(id), "the servers are told why");
    node.shared.outbox.forget(id);
    node.settle();
    assert!(!node.shared.outbox.is_pending(id), "once");
    let tending = tokio::spawn(Arc::clone(&node).tend());
    tokio::task::yield_now().await;
    node.shared.shortages.started();
    let starts = async {
        while started(&node).len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_mins(1), starts).await.unwrap();
    tending.abort();
}

/// The servers give a port to another allocation once its holder is to stop. The agent waits
/// for the holder's end.
#[tokio::test]
async fn an_allocation_waits_for_the_end_of_the_one_that_has_its_port() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    let on = |id: u8, value| {
        let port = v1::Port { label: "web".to_owned(), value, ..Default::default() };
        v1::Allocation { ports: vec![port], ..endless(id) }
    };
    node.apply(whole(vec![on(1, 7_001)], &[1])).await;
    let stop = v1::Allocation { run: false, ..on(1, 7_001) };
    let allocations = vec![stop, on(2, 7_001), on(3, 7_002)];
    node.apply(v1::AllocationBatch { allocations, ..Default::default() }).await;
    assert_eq!(started(&node), [(1, true), (3, false)], "its end takes a moment");
    let starts = async {
        while started(&node).iter().all(|(id, _)| *id != 2) {
            node.shared.ended.notified().await;
            node.settle();
        }
    };
    timeout(Duration::from_mins(1), starts).await.unwrap();
}

#[tokio::test]
async fn a_suspended_allocation_starts_when_the_servers_let_it() {
    let directory = tempfile::tempdir().unwrap();
    let before = node(directory.path());
    before.apply(whole(vec![endless(1), endless(2)], &[1, 2])).await;
    before.suspend().await;
    let node = LocalNode::restore(Arc::clone(&before.shared), 10).unwrap();
    let may_start = |id: u8| {
        let inner = node.lock();
        inner.entries[&AllocationId([id; 16])].wish.borrow().start
    };
    let mut held = endless(1);
    held.task_starts_allowed = false;
    node.apply(whole(vec![held], &[1])).await;
    assert_eq!(started(&node), [(1, false), (2, true)], "the second is not in the set");
    assert!(!may_start(1) && !may_start(2));
    let leave = vec![endless(1)];
    node.apply(v1::AllocationBatch { allocations: leave, ..Default::default() }).await;
    assert!(may_start(1));
}

#[tokio::test]
async fn an_allocation_that_may_not_start_yet_stays_while_it_is_named_and_starts_when_it_may() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path());
    let [mut first, mut second] = [1, 2].map(endless);
    (first.task_starts_allowed, second.task_starts_allowed) = (false, false);
    node.apply(whole(vec![first.clone(), second], &[1, 2])).await;
    assert_eq!((node.counts(), started(&node)), ((2, 2), Vec::new()));
    node.apply(whole(Vec::new(), &[1])).await;
    assert_eq!((node.counts(), started(&node)), ((1, 1), Vec::new()));
    first.task_starts_allowed = true;
    node.apply(v1::AllocationBatch { allocations: vec![first], ..Default::default() }).await;
    assert_eq!(started(&node), [(1, false)]);
}
