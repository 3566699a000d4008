//! Whatever a task does to its own folder, its pipes and its executor: its neighbours run on, the agent
//! answers, and it ends when it is stopped.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{path::PathBuf, time::Duration};

use proto::v1;

use crate::agent::{Cluster, allocation, lines, quorate_id, shell_task};

/// The kill timeout of these tasks, and the 5 s after it.
const END_MAX: Duration = Duration::from_millis(500 + 5_000);
/// What a busy machine may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// What each task does first. It never ends by itself, and no signal but SIGKILL ends it.
const ATTACKS: [&str; 9] = [
    // Pipes in the place of the logs, of those to come too.
    "cd ../alloc/logs; rm -f main.*; for i in 0 1 2 3; do mkfifo main.stdout.$i main.stderr.$i; done",
    // No folder any more, not even that of its executor.
    "rm -rf ../.run ../alloc ../main",
    // The executor answers nobody.
    "sleep 1; kill -STOP $PPID",
    // Its children leave group and session.
    "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM INT; while :; do sleep 0.1; done' & done",
    "exec >&- 2>&-",
    // A pipe where the exit status is to be written and read.
    "rm -f ../.run/main/1/executor.log ../.run/main/1/control.sock; \
     mkfifo ../.run/main/1/exit.json ../.run/main/1/executor.log",
    // Logs that are none, and links to what is nobody's business.
    "cd ../alloc/logs; echo secret > ../../main/secrets/key; rm -f main.stdout.0; \
     ln -s ../../main/secrets/key main.stdout.0; ln ../../main/secrets/key main.stdout.1; \
     : > main.stdout.18446744073709551615; i=10; \
     while [ $i -lt 1000 ]; do ln -s /etc/passwd main.stdout.$i; i=$((i+1)); done",
    "chmod 000 ../alloc/logs ../alloc . ../.run",
    "cd ../alloc/logs; (i=0; while :; do : > main.stdout.$i; i=$((i+1)); sleep 0.001; done) & :",
];

/// Some remove the files by which a test finds what it has to end.
struct EndAll(PathBuf);

impl Drop for EndAll {
    fn drop(&mut self) {
        for id in 2..u8::MAX {
            let Ok(pid) = std::fs::read_to_string(self.0.join(format!("pid-{id}"))) else { return };
            crate::executor::kill_session_of(pid.trim());
        }
    }
}

fn attack(id: u8, what: &str) -> v1::Allocation {
    let script = format!(
        "all=$(cd ../.. && pwd); echo $$ > $all/pid-{id}; {what}; trap '' TERM INT; \
         echo attacked >> $all/done-{id}; while :; do echo line; sleep 0.05; done"
    );
    allocation(id, "service", vec![shell_task("main", &script)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_attacks_its_own_files_harms_nobody_and_can_be_stopped() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let _end_all = EndAll(cluster.directory.path().join("agent/allocs"));
    let numbered = || ATTACKS.iter().zip(2_u8..);
    let neighbour = allocation(
        1,
        "service",
        vec![shell_task("main", "while :; do echo x >> ../../beats; sleep 0.05; done")],
    );
    let mut all = vec![neighbour];
    all.extend(numbered().map(|(what, id)| attack(id, what)));
    cluster.want(all.clone());
    let beside =
        |name: String| -> PathBuf { cluster.directory.path().join("agent/allocs").join(name) };
    for (what, id) in numbered() {
        let done = beside(format!("done-{id}"));
        cluster.until(what, |_| (lines(&done) > 0).then_some(())).await;
    }

    // The agent answers each question about them, and shows nothing but logs.
    for (what, id) in numbered() {
        let url = format!(
            "http://{}/v1/client/fs/logs/{}?task=main&plain=true",
            agent.http_address(),
            quorate_id(id)
        );
        let answer = tokio::task::spawn_blocking(move || {
            let config = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(ANSWER_MAX));
            let agent: ureq::Agent = config.build().into();
            agent.get(&url).call().unwrap().into_body().read_to_string().unwrap()
        });
        let text = answer.await.unwrap();
        assert!(!text.contains("secret") && !text.contains("root:"), "{what}: {text}");
    }
    let beats = beside("beats".to_owned());
    let before = lines(&beats);
    cluster.until("the neighbour runs on", |_| (lines(&beats) > before + 5).then_some(())).await;

    let pids: Vec<String> = numbered()
        .map(|(_, id)| std::fs::read_to_string(beside(format!("pid-{id}"))).unwrap())
        .collect();
    for stopped in &mut all[1..] {
        stopped.run = false;
    }
    cluster.want(all);
    let asked = std::time::Instant::now();
    for ((what, id), pid) in numbered().zip(&pids) {
        cluster
            .until(what, |cluster| {
                assert!(asked.elapsed() < END_MAX, "not ended in time: {what}");
                let status = cluster.status(id)?;
                let ended = status.client_status() != v1::ClientStatus::Running;
                (ended && !crate::executor::is_alive(pid.trim())).then_some(())
            })
            .await;
    }
    let before = lines(&beats);
    cluster.until("the neighbour runs on", |_| (lines(&beats) > before + 5).then_some(())).await;
    drop(agent);
}

/// What has left the session of an executor that is gone is found by its environment.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_kills_its_executor_and_leaves_its_session_is_ended() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let escape = "all=$(cd ../.. && pwd); export all; \
        setsid sh -c 'trap \"\" TERM INT; echo $$ > $all/escaped; while :; do sleep 0.1; done' & \
        while [ ! -s $all/escaped ]; do sleep 0.02; done; kill -9 $PPID; sleep 1000";
    // It is another task, and left alone.
    let sibling = shell_task("sibling", "sleep 1000");
    cluster.want(vec![
        allocation(1, "service", vec![shell_task("main", escape)]),
        allocation(2, "service", vec![sibling]),
    ]);
    cluster.until_status(1, "failed").await;
    let escaped = cluster.directory.path().join("agent/allocs/escaped");
    let pid = std::fs::read_to_string(escaped).unwrap();
    assert!(!crate::executor::is_alive(pid.trim()), "its end was told, and it lives");
    cluster.until_status(2, "running").await;
    drop(agent);
}
