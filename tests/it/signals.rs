//! Signals other than those that stop: none of them ends a server or an agent, or has a task lost.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use launch::Signal;
use serde_json::json;

use crate::harness::{Cluster, Options, PATIENCE, wait_until};

fn lines(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn signals_that_ask_for_nothing_are_ignored_and_sighup_reads_the_configuration_again() {
    let cluster = Cluster::start(Options::new(1));
    let agent = cluster.agent("agent", None);
    wait_until("the agent is registered", PATIENCE, || agent.log().contains("registered"));
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        cluster.signal(0, signal);
        agent.signal(signal);
        wait_until("both say that it is ignored", PATIENCE, || {
            let said =
                |log: &str| log.lines().any(|l| l.contains("is ignored") && l.contains(name));
            said(&cluster.log(0)) && said(&agent.log())
        });
    }
    let client = cluster.client(0);
    assert_eq!(client.get("/v1/agent/log-level").ok(), json!({ "Level": "info" }));
    let file = cluster.configuration(0);
    let text = fs::read_to_string(&file).unwrap();
    let changed = format!("log_level = \"debug\"\n{text}")
        .replace("scheduler.workers = 2", "scheduler.workers = 3");
    assert_ne!(changed, format!("log_level = \"debug\"\n{text}"), "{text}");
    fs::write(&file, changed).unwrap();
    cluster.signal(0, Signal::HUP);
    wait_until("the level is that of the file", PATIENCE, || {
        client.get("/v1/agent/log-level").ok() == json!({ "Level": "debug" })
    });
    wait_until("the log says what waits for a restart", PATIENCE, || {
        let log = cluster.log(0);
        log.lines().any(|l| l.contains("takes effect at the next start") && l.contains("scheduler"))
    });
    // A file that is wrong changes nothing.
    fs::write(&file, "log_level = \"loud\"\n").unwrap();
    cluster.signal(0, Signal::HUP);
    wait_until("the log says what is wrong", PATIENCE, || {
        cluster.log(0).contains("the configuration is wrong")
    });
    assert_eq!(client.get("/v1/agent/log-level").ok(), json!({ "Level": "debug" }));
    let before = lines(&agent.log(), "the configuration was read again");
    agent.signal(Signal::HUP);
    wait_until("the agent reads its file again", PATIENCE, || {
        lines(&agent.log(), "the configuration was read again") > before
    });
    let nodes = client.get("/v1/nodes").ok();
    assert_eq!(nodes[0]["Status"], "ready", "{nodes}");
}
