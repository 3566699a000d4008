//! An agent that comes back in the same boot: what was lost with it, and what its allocations have left on the disk.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::agent::{Cluster, allocation, lines, shell_task};
use proto::v1;

/// The process that a task's last line names.
fn last_pid(starts: &Path) -> String {
    let text = std::fs::read_to_string(starts).unwrap();
    text.lines().last().unwrap().to_owned()
}

/// A service that is not restarted when it fails: what counts as its failure would fail it.
fn wanted() -> v1::Allocation {
    allocation(1, "service", vec![shell_task("main", "echo $$ >> ../starts; exec sleep 600")])
}

fn run_directory(cluster: &Cluster, attempt: usize) -> std::path::PathBuf {
    cluster.own_directory(1).join(format!("tasks/main/{attempt}"))
}

/// How the executor and the task go is told apart by nobody: only that they went while no agent was there.
#[tokio::test(flavor = "multi_thread")]
async fn agent_executor_and_task_killed_in_one_boot_come_back_uncounted() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent().await;
    cluster.want(vec![wanted()]);
    cluster.until_status(1, "running").await;
    let starts = cluster.allocation_directory(1).join("starts");
    // An agent that goes before it has told of a start does not tell of it later.
    let told = |cluster: &Cluster, restarts: usize| {
        let status = cluster.status(1)?;
        let events = &status.tasks["main"].events;
        let restarting = events.iter().filter(|event| event.kind == "Restarting").count();
        let runs = events.last().is_some_and(|event| event.kind == "Started");
        (runs && restarting == restarts && lines(&starts) == restarts + 1).then_some(status)
    };
    for times in 1..=3 {
        cluster.until("the start is told", |cluster| told(cluster, times - 1)).await;
        let task = last_pid(&starts);
        cluster.end(agent).await;
        if times == 2 {
            // The executor alone: its task would be a second copy.
            let identity = std::fs::read(run_directory(&cluster, 2).join("executor.json")).unwrap();
            let identity: serde_json::Value = serde_json::from_slice(&identity).unwrap();
            super::executor::kill_all(&[identity["pid"].to_string()]);
        } else {
            super::executor::kill(&run_directory(&cluster, times));
        }
        agent = cluster.agent().await;
        let gone = || !super::executor::is_alive(&task);
        cluster.until("the old one is gone", |_| gone().then_some(())).await;
    }
    let status = cluster.until("the last start is told", |cluster| told(cluster, 3)).await;
    assert_eq!((status.tasks["main"].restarts, status.node_failure.as_str()), (0, ""));
    drop(agent);
}

/// It may be wanted no more, or run elsewhere by now.
#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_lost_with_its_agent_waits_for_the_servers() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let mut wanted = wanted();
    cluster.want(vec![wanted.clone()]);
    cluster.until_status(1, "running").await;
    let starts = cluster.allocation_directory(1).join("starts");
    cluster.until("the task runs", |_| (lines(&starts) == 1).then_some(())).await;
    cluster.end(agent).await;
    super::executor::kill(&run_directory(&cluster, 1));
    wanted.run = false;
    cluster.want(vec![wanted]);
    let _agent = cluster.agent().await;
    cluster.until_status(1, "complete").await;
    assert_eq!(lines(&starts), 1);
}

/// What an agent offers of its disk beside what is free.
fn offered_beside_free_mb(node: &v1::RegisterRequest) -> u64 {
    let free: u64 = node.attributes["unique.storage.bytesfree"].parse().unwrap();
    node.resources.as_ref().unwrap().disk_mb - (free >> 20)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_that_allocations_have_filled_stays_the_nodes() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "head -c 33554432 /dev/zero > local/big && touch ../written; exec sleep 600";
    let wanted = allocation(1, "service", vec![shell_task("main", script)]);
    cluster.want(vec![wanted.clone()]);
    let written = cluster.allocation_directory(1).join("written");
    cluster.until("the file", |_| written.exists().then_some(())).await;
    drop(agent);
    let agent = cluster.agent().await;
    let of_start = |start: usize| {
        move |cluster: &Cluster| cluster.registrations().get(start).map(offered_beside_free_mb)
    };
    assert_eq!(cluster.until("the first registration", of_start(0)).await, 0);
    let filled = cluster.until("the second registration", of_start(1)).await;
    assert!((32..36).contains(&filled), "{filled} MiB of 32 that the task has filled");
    // Once it has heard of another one, it hears that the first is gone.
    cluster.want(vec![wanted, allocation(2, "service", vec![shell_task("main", "sleep 600")])]);
    cluster.until_status(2, "running").await;
    cluster.want(Vec::new());
    let folder = cluster.allocation_directory(1);
    cluster.until("it is gone", |_| (!folder.exists()).then_some(())).await;
    drop(agent);
    let _agent = cluster.agent().await;
    assert_eq!(cluster.until("the third registration", of_start(2)).await, 0);
}

/// As after a boot, or a silence after which its node was down: the servers have placed another one. What the old one has written is there to be read.
#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_given_up_by_the_servers_ends_and_keeps_its_folder() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.want(vec![wanted()]);
    let starts = cluster.allocation_directory(1).join("starts");
    cluster.until("the task runs", |_| (lines(&starts) == 1).then_some(())).await;
    cluster.end(agent).await;
    let other = |id| allocation(id, "service", vec![shell_task("main", "exec sleep 600")]);
    cluster.want(vec![other(2)]);
    let _agent = cluster.agent().await;
    cluster.until_status(1, "complete").await;
    let task = last_pid(&starts);
    assert!(!super::executor::is_alive(&task), "the old one runs beside the new one");
    // Each set that comes is one more occasion to delete it.
    cluster.want(vec![other(2), other(3)]);
    cluster.until_status(3, "running").await;
    assert_eq!(lines(&starts), 1);
}
