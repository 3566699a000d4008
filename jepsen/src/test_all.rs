//! A matrix of runs: every workload under every set of faults, with three and five servers.
//!
//! What has been run is written down after each run in `test-all-<matrix>.jsonl` of the store, so that an interrupted matrix
//! goes on where it stopped: only cells with a verdict count, and only of the same server binary and commit. A set of faults that this machine
//! cannot do is a row `skipped`, and the whole is then not green. `all` runs with what there is and says how many classes that was; it is
//! unknown if some are missing that only the server's build keeps out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    checker::Verdict,
    fault::FaultClass,
    report::{note, print_line},
    run::run,
    server_config::SNAPSHOT_LOG_BYTES,
    store::TestRecord,
    totals::Totals,
};

/// Which runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Matrix {
    /// Every workload × none, kill, partition, pause, power, all × 3 and 5 servers, each as long as `--time-limit`.
    Gate,
    /// Every workload × every single class, none and all × 3 and 5 servers.
    Nightly,
    /// The first workload × none and kill × 3 servers: tries the machinery.
    Smoke,
}

impl Matrix {
    fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Nightly => "nightly",
            Self::Smoke => "smoke",
        }
    }

    /// The sets of faults by name; `None` stands for all that the machine can do.
    fn faults(self) -> Vec<(&'static str, Option<Vec<FaultClass>>)> {
        let single = |class: &FaultClass| (class.name(), Some(vec![*class]));
        let mut sets = vec![("none", Some(Vec::new()))];
        let classes = match self {
            Self::Gate => {
                &[FaultClass::Kill, FaultClass::Partition, FaultClass::Pause, FaultClass::Power]
            }
            Self::Nightly => FaultClass::value_variants(),
            Self::Smoke => &[FaultClass::Kill] as &[FaultClass],
        };
        sets.extend(classes.iter().map(single));
        if self != Self::Smoke {
            sets.push(("all", None));
        }
        sets
    }

    fn sizes(self) -> &'static [usize] {
        match self {
            Self::Gate | Self::Nightly => &[3, 5],
            Self::Smoke => &[3],
        }
    }
}

/// What to run.
pub(crate) struct Plan<'a> {
    /// The matrix.
    pub(crate) matrix: Matrix,
    /// Forget earlier results.
    pub(crate) fresh: bool,
    /// The workloads.
    pub(crate) workloads: Vec<&'a str>,
    /// Only so many servers.
    pub(crate) servers: Option<usize>,
}

/// How one run of the matrix ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ending {
    Pass,
    Fail,
    Unknown,
    Skipped,
    Crashed,
}

impl Ending {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
            Self::Crashed => "CRASHED",
        }
    }
}

/// One cell of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cell {
    workload: String,
    faults: String,
    servers: usize,
    ending: Ending,
    /// Of `all`: how many classes could be injected, and how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    classes: Option<(usize, usize)>,
    /// Where the run is kept, or why there is none.
    details: String,
    /// What was tested: cells of another commit do not count.
    tested: String,
}

impl Cell {
    /// How it ended, for people.
    fn result(&self) -> String {
        let word = self.ending.word();
        match self.classes {
            Some((had, all)) => format!("{word} ({had} of {all})"),
            None => word.to_owned(),
        }
    }
}

/// The results of a matrix.
#[derive(Debug)]
pub(crate) struct Table {
    cells: Vec<Cell>,
}

impl Table {
    /// Prints it, as JSON or for people.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        if json {
            print_line(&serde_json::to_string_pretty(
                &json!({"cells": self.cells, "totals": self.totals()}),
            )?);
        } else {
            print_line(&self.render());
            print_line(&self.totals().render("all runs"));
        }
        Ok(())
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for cell in &self.cells {
            let kept = match cell.ending {
                Ending::Pass | Ending::Fail | Ending::Unknown => Some(Path::new(&cell.details)),
                Ending::Skipped | Ending::Crashed => None,
            };
            totals.add(cell.ending.word(), cell.servers, kept);
        }
        totals
    }

    /// The worst of all: an error if a run crashed, else unknown, else false, else true, as in Jepsen.
    pub(crate) fn verdict(&self) -> Result<Verdict> {
        let any = |ending| self.cells.iter().any(|cell| cell.ending == ending);
        if let Some(cell) = self.cells.iter().find(|cell| cell.ending == Ending::Crashed) {
            anyhow::bail!("a run crashed: {}", cell.details);
        }
        // A matrix without a cell, such as `smoke` with five servers, proves nothing.
        let is_unknown = self.cells.is_empty() || any(Ending::Unknown) || any(Ending::Skipped);
        Ok(if is_unknown {
            Verdict::Unknown
        } else if any(Ending::Fail) {
            Verdict::False
        } else {
            Verdict::True
        })
    }

    fn render(&self) -> String {
        let mut text = format!(
            "{:<12} {:<12} {:>7}  {:<18} details\n",
            "workload", "faults", "servers", "result"
        );
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for cell in &self.cells {
            *counts.entry(cell.ending.word()).or_default() += 1;
            writeln!(
                text,
                "{:<12} {:<12} {:>7}  {:<18} {}",
                cell.workload,
                cell.faults,
                cell.servers,
                cell.result(),
                cell.details
            )
            .expect("writing to a string cannot fail");
        }
        let counts: Vec<String> =
            counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
        text + &counts.join(", ")
    }
}

/// Runs what is missing of a matrix.
pub(crate) fn run_all(
    base: &TestRecord,
    plan: &Plan<'_>,
    missing: &dyn Fn(FaultClass) -> Option<String>,
    store: &Path,
    check_time_max: Duration,
) -> Result<Table> {
    fs::create_dir_all(store).with_context(|| format!("cannot create {}", store.display()))?;
    let path = store.join(format!("test-all-{}.jsonl", plan.matrix.name()));
    if plan.fresh && path.exists() {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    let tested = fingerprint(base);
    let known = read(&path)?;
    let mut cells = Vec::new();
    let sizes = plan.matrix.sizes().iter();
    for servers in sizes.filter(|size| plan.servers.is_none_or(|asked| asked == **size)) {
        for workload in
            &plan.workloads[..if plan.matrix == Matrix::Smoke { 1 } else { plan.workloads.len() }]
        {
            for (faults, classes) in plan.matrix.faults() {
                let same = |cell: &&Cell| {
                    (cell.workload.as_str(), cell.faults.as_str(), cell.servers, &cell.tested)
                        == (workload, faults, *servers, &tested)
                };
                if let Some(done) = known.iter().rev().find(same) {
                    cells.push(done.clone());
                    continue;
                }
                note(&format!("=== {workload}, {faults}, {servers} servers"));
                let takes_all = classes.is_none();
                let record = TestRecord {
                    workload: (*workload).to_owned(),
                    seed: base.seed.wrapping_add(cells.len() as u64),
                    ..sized(base, *servers, classes)
                };
                let (ending, details) = perform(&record, missing, store, check_time_max);
                let cell = Cell {
                    workload: (*workload).to_owned(),
                    faults: faults.to_owned(),
                    servers: *servers,
                    ending,
                    classes: takes_all.then(|| counts(&record)),
                    details,
                    tested: tested.clone(),
                };
                append(&path, &cell)?;
                cells.push(cell);
            }
        }
    }
    Ok(Table { cells })
}

/// The run of one cell; `None` keeps the classes of `base`, which are all that the machine can do.
fn sized(base: &TestRecord, servers: usize, classes: Option<Vec<FaultClass>>) -> TestRecord {
    let unavailable = match &classes {
        None => base.unavailable.clone(),
        Some(_) => BTreeMap::new(),
    };
    TestRecord {
        nodes: (1..=servers).map(|number| format!("n{number}")).collect(),
        concurrency: (per_server(base) * servers).max(1),
        nemesis: classes.unwrap_or_else(|| base.nemesis.clone()),
        unavailable,
        ..base.clone()
    }
}

/// How many classes can be injected, and how many there are.
fn counts(record: &TestRecord) -> (usize, usize) {
    (record.injected().len(), FaultClass::value_variants().len())
}

fn perform(
    record: &TestRecord,
    missing: &dyn Fn(FaultClass) -> Option<String>,
    store: &Path,
    check_time_max: Duration,
) -> (Ending, String) {
    // What is known to be missing of `all` makes its run unknown instead.
    let mut expected =
        record.nemesis.iter().filter(|class| !record.unavailable.contains_key(class));
    if let Some(why) = expected.find_map(|class| missing(*class)) {
        note(&format!("skipped: {why}"));
        return (Ending::Skipped, why);
    }
    match run(record, store, check_time_max) {
        Ok(finished) => {
            let ending = match finished.results.valid {
                Verdict::True => Ending::Pass,
                Verdict::Unknown => Ending::Unknown,
                Verdict::False => Ending::Fail,
            };
            (ending, finished.directory.display().to_string())
        }
        Err(error) => {
            note(&format!("error: {error:#}"));
            (Ending::Crashed, format!("{error:#}").replace('\n', " "))
        }
    }
}

/// What results are of: the same binary file, time limit, kind of links, clients and what they are asked to do, and threshold of snapshots.
fn fingerprint(base: &TestRecord) -> String {
    let file = fs::metadata(&base.binary).ok();
    let bytes = file.as_ref().map_or(0, fs::Metadata::len);
    let changed = file.and_then(|file| file.modified().ok());
    let stamp = changed.map_or_else(String::new, crate::time::timestamp);
    let commit = base.git_commit.as_deref().unwrap_or("no commit");
    let snapshots = match base.snapshot_log_bytes {
        SNAPSHOT_LOG_BYTES => String::new(),
        other => format!(", a snapshot per {other} bytes"),
    };
    let links = if base.namespaces { ", namespaces" } else { "" };
    format!(
        "{commit} {bytes} {stamp} {} ms {} Hz, {} clients per server of {} ms, {} operations per \
         key, a change each {} ms{links}{snapshots}",
        base.time_limit_ms,
        base.rate,
        per_server(base),
        base.timeout_ms,
        base.ops_per_key,
        base.nemesis_interval_ms
    )
}

fn per_server(base: &TestRecord) -> usize {
    base.concurrency / base.nodes.len().max(1)
}

/// The cells so far; a line that was cut off is no cell.
fn read(path: &PathBuf) -> Result<Vec<Cell>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn append(path: &Path, cell: &Cell) -> Result<()> {
    let mut line = serde_json::to_string(cell)?;
    line.push('\n');
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::store::test_record;

    fn cell(faults: &str, ending: Ending) -> Cell {
        Cell {
            workload: "register".to_owned(),
            faults: faults.to_owned(),
            servers: 3,
            ending,
            classes: (faults == "all").then_some((12, 15)),
            details: "somewhere".to_owned(),
            tested: "x".to_owned(),
        }
    }

    #[test]
    fn the_worst_cell_decides_as_in_jepsen() {
        let verdict = |endings: &[Ending]| {
            let cells = endings.iter().map(|ending| cell("kill", *ending)).collect();
            Table { cells }.verdict()
        };
        assert_eq!(verdict(&[Ending::Pass]).unwrap(), Verdict::True);
        assert_eq!(verdict(&[Ending::Pass, Ending::Fail]).unwrap(), Verdict::False);
        assert_eq!(verdict(&[Ending::Fail, Ending::Unknown]).unwrap(), Verdict::Unknown);
        assert_eq!(verdict(&[Ending::Pass, Ending::Skipped]).unwrap(), Verdict::Unknown);
        assert!(verdict(&[Ending::Unknown, Ending::Crashed]).is_err());
    }

    #[test]
    fn a_matrix_without_a_run_is_unknown() {
        let store = tempfile::tempdir().unwrap();
        let plan = Plan {
            matrix: Matrix::Smoke,
            fresh: false,
            workloads: vec!["register"],
            servers: Some(5),
        };
        let table =
            run_all(&test_record(), &plan, &|_| None, store.path(), Duration::ZERO).unwrap();
        assert!(table.cells.is_empty());
        assert_eq!(table.verdict().unwrap(), Verdict::Unknown);
    }

    #[test]
    fn cells_are_kept_and_half_a_line_is_none() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join("cells.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        let cells = [cell("none", Ending::Pass), cell("all", Ending::Crashed)];
        for cell in &cells {
            append(&path, cell).unwrap();
        }
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"work").unwrap();
        assert_eq!(read(&path).unwrap(), cells);
        let text = Table { cells: cells.to_vec() }.render();
        assert!(text.contains("1 CRASHED, 1 pass"), "{text}");
        assert!(text.contains("CRASHED (12 of 15)") && !text.contains("pass ("), "{text}");
    }

    #[test]
    fn a_class_that_only_the_build_keeps_out_does_not_skip_all() {
        let base = TestRecord {
            binary: "/no/such/binary".into(),
            nemesis: FaultClass::value_variants().to_vec(),
            unavailable: BTreeMap::from([(FaultClass::DiskFull, "build it".to_owned())]),
            concurrency: 2,
            ..test_record()
        };
        let missing =
            |class: FaultClass| (class == FaultClass::DiskFull).then(|| "build it".to_owned());
        let store = tempfile::tempdir().unwrap();
        // A file where the runs are to be kept: whatever is begun ends at once.
        let nowhere = store.path().join("file");
        fs::write(&nowhere, "").unwrap();
        let ending = |record: &TestRecord| perform(record, &missing, &nowhere, Duration::ZERO).0;
        let all = sized(&base, 3, None);
        let classes = FaultClass::value_variants().len();
        assert_eq!(counts(&all), (classes - 1, classes));
        assert_eq!(ending(&all), Ending::Crashed, "it is begun");
        let alone = sized(&base, 3, Some(vec![FaultClass::DiskFull]));
        assert_eq!(ending(&alone), Ending::Skipped);
    }

    #[test]
    fn runs_with_other_options_are_others() {
        let base = test_record();
        let known = "no commit 0  1 ms 1 Hz, 1 clients per server of 1 ms, 1 operations per key, a \
                     change each 1 ms";
        assert_eq!(fingerprint(&base), known);
        for other in [
            TestRecord { snapshot_log_bytes: 4096, ..base.clone() },
            TestRecord { namespaces: true, ..base.clone() },
            TestRecord { concurrency: 2, ..base.clone() },
            TestRecord { timeout_ms: 2, ..base.clone() },
            TestRecord { ops_per_key: 2, ..base.clone() },
            TestRecord { nemesis_interval_ms: 2, ..base.clone() },
        ] {
            assert_ne!(fingerprint(&base), fingerprint(&other));
        }
        // What a part with five servers found is taken over by the whole.
        let nodes = ["n1", "n2"].map(str::to_owned).to_vec();
        let part = TestRecord { nodes, concurrency: 2, ..base.clone() };
        assert_eq!(fingerprint(&base), fingerprint(&part));
    }

    #[test]
    fn the_gate_is_what_it_says() {
        let names: Vec<&str> = Matrix::Gate.faults().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["none", "kill", "partition", "pause", "power", "all"]);
        assert_eq!(Matrix::Gate.sizes(), [3, 5]);
        assert_eq!(Matrix::Nightly.faults().len(), FaultClass::value_variants().len() + 2);
    }
}
