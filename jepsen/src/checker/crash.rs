//! Did a server crash, or write that something is wrong?
//!
//! Looks for panics, broken invariants and divergence in every server's and agent's log, for logs that fill disks, and for exits that the
//! harness did not cause. A log that is missing is `unknown`: no evidence is not good evidence.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Verdict;

/// What a healthy server never writes.
const MARKERS: [&str; 3] = ["panicked", "QUORATE-INVARIANT", "DIVERGED"];
/// More lines per minute than any fault explains (I54).
const LINES_PER_MINUTE_MAX: usize = 10_000;
/// Lines kept per server.
const LINES_MAX: usize = 5;
/// Bytes kept per line.
const LINE_BYTES_MAX: usize = 400;

/// A server process that ended without the harness asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// The server.
    pub(crate) node: String,
    /// How it ended.
    pub(crate) status: String,
}

/// A line of a log with a marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The server.
    pub(crate) node: String,
    /// The line's number, from 1.
    pub(crate) line: usize,
    /// The line, shortened.
    pub(crate) text: String,
}

/// The crash part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// False if anything was found, unknown if a log is missing.
    pub(crate) valid: Verdict,
    /// Marked lines, the first few of each server.
    pub(crate) findings: Vec<Finding>,
    /// Exits the harness did not cause.
    pub(crate) unexpected_exits: Vec<Exit>,
    /// Logs that could not be read, with the reason.
    pub(crate) unreadable_logs: Vec<String>,
}

/// Searches the logs of a run that took so many minutes, rounded up.
pub(crate) fn check(logs: &[(String, PathBuf)], minutes: usize, exits: &[Exit]) -> Report {
    let mut findings = Vec::new();
    let mut unreadable_logs = Vec::new();
    for (node, path) in logs {
        match search(node, path, minutes.saturating_mul(LINES_PER_MINUTE_MAX)) {
            Ok(found) => findings.extend(found),
            Err(error) => unreadable_logs.push(format!("{}: {error}", path.display())),
        }
    }
    let bad = Verdict::unless(!findings.is_empty() || !exits.is_empty(), Verdict::False);
    let missing = Verdict::unless(!unreadable_logs.is_empty() || logs.is_empty(), Verdict::Unknown);
    Report { valid: bad.max(missing), findings, unexpected_exits: exits.to_vec(), unreadable_logs }
}

fn search(node: &str, path: &Path, lines_max: usize) -> std::io::Result<Vec<Finding>> {
    let mut log = BufReader::new(File::open(path)?);
    if log.get_ref().metadata()?.len() == 0 {
        return Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the log is empty"));
    }
    let mut findings = Vec::new();
    let mut bytes = Vec::new();
    let mut number = 0;
    let mut find = |line: usize, text: &str| {
        let text = text[..text.floor_char_boundary(LINE_BYTES_MAX)].to_owned();
        findings.push(Finding { node: node.to_owned(), line, text });
        findings.len() < LINES_MAX
    };
    let mut keep = true;
    while log.read_until(b'\n', &mut bytes)? > 0 {
        number += 1;
        let text = String::from_utf8_lossy(&bytes);
        if keep && MARKERS.iter().any(|marker| text.contains(marker)) {
            keep = find(number, text.trim_end());
        }
        bytes.clear();
    }
    if number > lines_max {
        find(number, &format!("{number} lines, more than {LINES_PER_MINUTE_MAX} a minute"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::store::server_log;

    fn with_logs(logs: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (node, text) in logs {
            std::fs::create_dir(directory.path().join(node)).unwrap();
            std::fs::write(server_log(directory.path(), node), text).unwrap();
        }
        directory
    }

    fn logs(directory: &Path, nodes: &[&str]) -> Vec<(String, PathBuf)> {
        nodes.iter().map(|node| ((*node).to_owned(), server_log(directory, node))).collect()
    }

    #[test]
    fn marked_lines_and_exits_are_violations() {
        let bad = "started\nthread 'main' panicked at src/x.rs:1\nok\nDIVERGED at 7\n";
        let directory = with_logs(&[("n1", "started\nleader elected\n"), ("n2", bad)]);
        let report = check(&logs(directory.path(), &["n1", "n2"]), 1, &[]);
        assert_eq!(report.valid, Verdict::False);
        let found: Vec<_> =
            report.findings.iter().map(|found| (found.node.as_str(), found.line)).collect();
        assert_eq!(found, [("n2", 2), ("n2", 4)]);

        let clean = logs(directory.path(), &["n1"]);
        assert_eq!(check(&clean, 1, &[]).valid, Verdict::True);
        let exit = Exit { node: "n1".to_owned(), status: "exit status: 1".to_owned() };
        assert_eq!(check(&clean, 1, &[exit]).valid, Verdict::False);
    }

    #[test]
    fn a_log_that_fills_disks_is_a_violation() {
        let lines = "nobody leads\n".repeat(LINES_PER_MINUTE_MAX + 1);
        let directory = with_logs(&[("n1", &lines)]);
        let logs = logs(directory.path(), &["n1"]);
        let report = check(&logs, 1, &[]);
        assert_eq!(report.valid, Verdict::False);
        assert!(report.findings[0].text.contains("a minute"), "{report:?}");
        assert_eq!(check(&logs, 2, &[]).valid, Verdict::True);
    }

    #[test]
    fn missing_and_empty_logs_are_unknown() {
        let directory = with_logs(&[("n1", "started\n"), ("n2", "")]);
        let report = check(&logs(directory.path(), &["n1", "n2", "n3"]), 1, &[]);
        assert_eq!(report.valid, Verdict::Unknown);
        assert_eq!(report.unreadable_logs.len(), 2, "{report:?}");
    }
}
