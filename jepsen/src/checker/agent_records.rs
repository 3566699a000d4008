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
        for line in BufReader::new(file).lines() {
            let line = line.with_context(|| format!("cannot read {}", path.display()))?;
            // The last line of a killed agent may be cut off.
            let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
            starts += usize::from(is_start(&line));
            let Some(id) = note(&line, &mut running, &mut records.starts) else { continue };
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

/// Takes in a line; which allocation runs, if it tells that.
fn note(line: &Value, running: &mut BTreeSet<String>, starts: &mut usize) -> Option<String> {
    if is_start(line) {
        running.clear();
        return None;
    }
    let fields = line.get("fields").unwrap_or(line);
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let (id, status) = (text("allocation")?, text("client_status")?);
    if status != "running" {
        running.remove(id);
        return None;
    }
    *starts += usize::from(running.insert(id.to_owned()));
    Some(id.to_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

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
}
