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
    "rm -rf $own ../alloc ../main",
    // The executor answers nobody.
    "sleep 1; kill -STOP $PPID",
    // Its children leave group and session.
    "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM INT; while :; do sleep 0.1; done' & done",
    "exec >&- 2>&-",
    // A pipe where the exit status is to be written and read.
    "cd $own/tasks/main/1; rm -f executor.log control.sock; mkfifo exit.json executor.log",
    // Logs that are none, and links to what is nobody's business.
    "cd ../alloc/logs; echo secret > ../../main/secrets/key; rm -f main.stdout.0; \
     ln -s ../../main/secrets/key main.stdout.0; ln ../../main/secrets/key main.stdout.1; \
     : > main.stdout.18446744073709551615; i=10; \
     while [ $i -lt 1000 ]; do ln -s /etc/passwd main.stdout.$i; i=$((i+1)); done",
    "chmod 000 ../alloc/logs ../alloc . $own",
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
        "all=$(cd ../.. && pwd); own=$all/../runs/$NOMAD_ALLOC_ID; echo $$ > $all/pid-{id}; {what}; trap '' TERM INT; \
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

/// What root can do to the files that the agent knows its children by.
const SPOILS: [&str; 10] = [
    "rm -rf $own",
    "rm -f $own/state.json",
    "echo nonsense > $own/state.json",
    "rm -f $own/state.json; mkfifo $own/state.json",
    "rm -f $own/state.json; mkdir $own/state.json",
    "head -c 100 $own/state.json > $own/half; mv $own/half $own/state.json",
    "rm -rf $own/tasks ..",
    "rm -f $own/tasks/main/1/claim $own/tasks/main/1/executor.json $own/state.json",
    // A run that has ended well, as its executor would have said.
    "end='{\"Exited\":{\"result\":{\"exit_code\":1,\"signal\":0,\"oom_killed\":false},\"at_ms\":1}}'; \
     echo \"$end\" > $own/tasks/main/1/exit.json; rm $own/tasks/main/1/control.sock",
    // Another process than its executor.
    "sed -i s/[0-9]*,/1,/ $own/tasks/main/1/executor.json; rm $own/state.json",
];

fn spoil(id: u8, what: &str) -> v1::Allocation {
    let script = format!(
        "all=$(cd ../.. && pwd); own=$all/../runs/$NOMAD_ALLOC_ID; echo $$ > $all/pid-{id}; \
         echo x >> $all/starts-{id}; {what}; echo spoiled > $all/done-{id}; exec sleep 1000"
    );
    let mut spoils = allocation(id, "service", vec![shell_task("main", &script)]);
    // Whatever is taken for ended is run again.
    spoils.restart.as_mut().unwrap().attempts = 10;
    spoils
}

/// The agent is restarted, finds nothing or nonsense, and takes up what runs all the same. Nothing runs twice or outlives its stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_on_once_and_can_be_stopped_whatever_becomes_of_its_files() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let numbered = || SPOILS.iter().zip(2_u8..);
    let allocations = cluster.directory.path().join("agent/allocs");
    let _end_all = EndAll(allocations.clone());
    let beside = |name: &str, id: u8| allocations.join(format!("{name}-{id}"));
    let mut all: Vec<_> = numbered().map(|(what, id)| spoil(id, what)).collect();
    cluster.want(all.clone());
    for (what, id) in numbered() {
        cluster.until(what, |_| (lines(&beside("done", id)) > 0).then_some(())).await;
        cluster.until_status(id, "running").await;
    }
    let pid = |id| std::fs::read_to_string(beside("pid", id)).unwrap().trim().to_owned();
    let pids: Vec<String> = numbered().map(|(_, id)| pid(id)).collect();
    drop(agent);
    let _agent = cluster.agent().await;
    cluster.until("ready again", |cluster| (cluster.times_ready() == 2).then_some(())).await;
    // One that comes later is started after all that would have been started again.
    let after = vec![shell_task("main", "exit 0")];
    let mut more = all.clone();
    more.push(allocation(1, "batch", after));
    cluster.want(more);
    cluster.until_status(1, "complete").await;
    for ((what, id), pid) in numbered().zip(&pids) {
        assert_eq!(lines(&beside("starts", id)), 1, "{what}: it runs twice");
        assert!(crate::executor::is_alive(pid), "{what}: it was ended");
        cluster.until_status(id, "running").await;
    }
    for stopped in &mut all {
        stopped.run = false;
    }
    cluster.want(all);
    for ((what, id), pid) in numbered().zip(&pids) {
        cluster
            .until(what, |cluster| {
                let ended = cluster.status(id)?.client_status() != v1::ClientStatus::Running;
                (ended && !crate::executor::is_alive(pid)).then_some(())
            })
            .await;
    }
}

/// The servers have forgotten it while the agent was away.
#[tokio::test(flavor = "multi_thread")]
async fn an_unwanted_task_is_ended_without_its_files() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let allocations = cluster.directory.path().join("agent/allocs");
    let _end_all = EndAll(allocations.clone());
    cluster.want(vec![spoil(2, "rm -rf $own"), spoil(3, "echo nonsense > $own/state.json")]);
    for id in [2, 3] {
        let done = allocations.join(format!("done-{id}"));
        cluster.until("spoiled", |_| (lines(&done) > 0).then_some(())).await;
        cluster.until_status(id, "running").await;
    }
    cluster.end(agent).await;
    cluster.want(Vec::new());
    let _agent = cluster.agent().await;
    for id in [2, 3] {
        let pid = std::fs::read_to_string(allocations.join(format!("pid-{id}"))).unwrap();
        let ended = || !crate::executor::is_alive(pid.trim());
        let gone = || !cluster.allocation_directory(id).exists();
        // The last agent may have stored it once more: it is kept then as what has ended is.
        let state = cluster.own_directory(id).join("state.json");
        let stored = || std::fs::read(&state).is_ok_and(|text| text.starts_with(b"{"));
        cluster.until("it is ended", |_| (ended() && (gone() || stored())).then_some(())).await;
    }
}

/// Set where the test below runs again in a mount namespace of its own.
const MOUNTING: &str = "QUORATE_TEST_MOUNTING";

/// Garbage collection removed all that was in a folder which a task had mounted into its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_mounted_by_a_task_survives_its_removal() {
    if std::env::var_os(MOUNTING).is_none() {
        // Root and whoever may have a user namespace may mount there, and nothing of it is seen elsewhere.
        let mut again = std::process::Command::new("unshare");
        again
            .args(["-rm", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "hostile_tasks::a_folder_mounted_by_a_task_survives_its_removal"])
            .env(MOUNTING, "1");
        let output = again.output();
        let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let said = said.unwrap_or_default();
        assert!(!said.contains("FAILED"), "{said}");
        if !said.contains("1 passed") {
            eprintln!("skipped: mounting needs root or a user namespace");
        }
        return;
    }
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let foreign = cluster.directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("kept"), "x").unwrap();
    let mode =
        || std::os::unix::fs::PermissionsExt::mode(&foreign.metadata().unwrap().permissions());
    let before = mode();
    let script = format!(
        "mkdir -p local/a/b gone && mount --bind {0} local/a/b && mount --bind {0} ../alloc/data && \
         mount --bind {0}/kept $(mktemp local/file-XXX) && sleep 1000",
        foreign.display()
    );
    cluster.want(vec![allocation(1, "service", vec![shell_task("main", &script)])]);
    let data = cluster.allocation_directory(1).join("alloc/data/kept");
    cluster.until("it has mounted", |_| data.exists().then_some(())).await;
    cluster.until_status(1, "running").await;
    // The next agent prepares the folder again, and gives what is mounted there no other mode.
    drop(agent);
    let agent = cluster.agent().await;
    cluster.until("ready again", |cluster| (cluster.times_ready() == 2).then_some(())).await;
    cluster.want(Vec::new());
    let gone = cluster.allocation_directory(1).join("main/gone");
    cluster.until("what is its own is removed", |_| (!gone.exists()).then_some(())).await;
    assert_eq!(std::fs::read_to_string(foreign.join("kept")).unwrap(), "x");
    assert_eq!(mode(), before);
    // Once nothing is mounted any more, the next agent removes the rest.
    drop(agent);
    let root = cluster.allocation_directory(1);
    for mount in ["main/local/a/b", "alloc/data"] {
        let unmounted = std::process::Command::new("umount").arg(root.join(mount)).status();
        assert!(unmounted.unwrap().success(), "{mount}");
    }
    let local = std::fs::read_dir(root.join("main/local")).unwrap().flatten();
    for file in local.filter(|entry| entry.file_name().to_string_lossy().starts_with("file-")) {
        let unmounted = std::process::Command::new("umount").arg(file.path()).status();
        assert!(unmounted.unwrap().success());
    }
    let _agent = cluster.agent().await;
    cluster.until("it is removed", |_| (!root.exists()).then_some(())).await;
    assert_eq!(std::fs::read_to_string(foreign.join("kept")).unwrap(), "x");
}
