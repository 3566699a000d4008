//! What agents wrote down about their allocations.
//!
//! Reads the agents' logs: JSON lines, of which those with an `allocation` and a `client_status` tell that an
//! allocation changed on that agent. Owns the reading of them, nothing else; an agent that was killed runs
//! nothing until it starts again, which it tells by a line with `agent_started`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

/// What all agents' logs say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    /// Allocations that run at the end.
    pub(crate) running: BTreeSet<String>,
    /// Allocations that ran on two agents: each is of one node, and so of one agent.
    pub(crate) twice: BTreeSet<String>,
    /// Allocations that an agent forgot while they ran, and was told of again: somebody had shown it an older state than it knew.
    pub(crate) returned: BTreeSet<String>,
    /// How often an allocation began to run.
    pub(crate) starts: usize,
    /// What ran in which life of which agent: its name, the number of its start from 1 on, the allocation.
    pub(crate) lives: BTreeSet<(String, usize, String)>,
}

/// Reads the logs of these agents, by their names.
pub(crate) fn read(logs: &[(String, PathBuf)]) -> Result<Records> {
    let mut records = Records::default();
    // Who ran an allocation.
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    for (agent, (name, path)) in logs.iter().enumerate() {
        let mut starts = 0;
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut running: BTreeSet<String> = BTreeSet::new();
        // While they ran, in this life of the agent.
        let mut forgotten: BTreeSet<String> = BTreeSet::new();
        for line in BufReader::new(file).lines() {
            let line = line.with_context(|| format!("cannot read {}", path.display()))?;
            // The last line of a killed agent may be cut off.
            let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
            if is_start(&line) {
                starts += 1;
                running.clear();
                forgotten.clear();
                continue;
            }
            let Some((id, status)) = change(&line) else { continue };
            if status == "forgotten" && running.contains(id) {
                forgotten.insert(id.to_owned());
            } else if forgotten.contains(id) {
                records.returned.insert(id.to_owned());
            }
            if status != "running" {
                running.remove(id);
                continue;
            }
            let id = id.to_owned();
            records.starts += usize::from(running.insert(id.clone()));
            records.lives.insert((name.clone(), starts, id.clone()));
            if *owners.entry(id.clone()).or_insert(agent) != agent {
                records.twice.insert(id);
            }
        }
        records.running.append(&mut running);
    }
    Ok(records)
}

/// The agent was started.
fn is_start(line: &Value) -> bool {
    line.get("fields").unwrap_or(line).get("agent_started").is_some()
}

/// The allocation whose change a line tells, and its status.
fn change(line: &Value) -> Option<(&str, &str)> {
    let fields = line.get("fields").unwrap_or(line);
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    Some((text("allocation")?, text("client_status")?))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn logs_tell_what_runs() {
        let directory = tempfile::tempdir().unwrap();
        let log = |name: &str, lines: &[&str]| {
            let path = directory.path().join(name);
            std::fs::write(&path, lines.join("\n")).unwrap();
            (name.to_owned(), path)
        };
        let status = |id: &str, status: &str| {
            format!(
                r#"{{"fields":{{"message":"m","allocation":"{id}","client_status":"{status}"}}}}"#
            )
        };
        let started = r#"{"fields":{"message":"m","agent_started":true}}"#;
        let first = log(
            "a1",
            &[
                started,
                &status("x", "running"),
                &status("y", "running"),
                &status("x", "running"),
                started,
                &status("y", "running"),
                &status("z", "running"),
                &status("z", "complete"),
                r#"{"fields":{"mess"#,
            ],
        );
        let second = log(
            "a2",
            &[
                &status("w", "pending"),
                &status("y", "running"),
                &status("z", "running"),
                &status("z", "failed"),
            ],
        );
        let records = read(&[first, second]).unwrap();
        assert_eq!(records.running, BTreeSet::from(["y".to_owned()]));
        assert_eq!(records.twice, BTreeSet::from(["y", "z"].map(str::to_owned)));
        assert_eq!(records.starts, 6);
        let life = |agent: &str, number, id: &str| (agent.to_owned(), number, id.to_owned());
        let first = [(1, "x"), (1, "y"), (2, "y"), (2, "z")].map(|(n, id)| life("a1", n, id));
        let second = ["y", "z"].map(|id| life("a2", 0, id));
        assert_eq!(records.lives, first.into_iter().chain(second).collect());
        assert!(read(&[("a3".to_owned(), directory.path().join("a3"))]).is_err());
    }

    #[test]
    fn an_agent_shown_an_older_state_forgets_an_allocation_and_is_sent_it_again() {
        let returned = |lines: &[(&str, &str)]| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a1");
            let line = |(id, status): &(&str, &str)| match *status {
                "agent" => json!({"fields": {"agent_started": true}}).to_string(),
                status => {
                    json!({"fields": {"allocation": id, "client_status": status}}).to_string()
                }
            };
            std::fs::write(&path, lines.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
            read(&[("a1".to_owned(), path)]).unwrap().returned.into_iter().collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        let (runs, forgotten) = (("x", "running"), ("x", "forgotten"));
        assert_eq!(returned(&[runs, forgotten, ("x", "pending")]), ["x"]);
        assert_eq!(returned(&[runs, forgotten, ("y", "running")]), none);
        assert_eq!(returned(&[runs, forgotten, ("", "agent"), runs]), none, "it began anew");
        let ended = ("x", "complete");
        assert_eq!(returned(&[runs, ended, forgotten, runs]), none, "it had ended");
    }
}
