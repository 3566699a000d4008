//! Judging a finished run: one verdict per checker, and the worst of them for the run.
//!
//! A checker is a pure function of the stored run (history, logs, [`crate::store::Aftermath`]), so that
//! `analyze` repeats the judgement of `test`. A checker that cannot tell says `unknown`; it must never
//! turn missing evidence into `true`.

pub(crate) mod agent_records;
pub(crate) mod allocations;
pub(crate) mod calls;
pub(crate) mod capacity;
pub(crate) mod coverage;
pub(crate) mod crash;
pub(crate) mod cycles;
pub(crate) mod elastic;
pub(crate) mod evaluations;
pub(crate) mod final_workload;
pub(crate) mod foreign;
pub(crate) mod job_versions;
pub(crate) mod judgement;
pub(crate) mod linearizable;
pub(crate) mod list_append;
pub(crate) mod outage;
pub(crate) mod pairs;
pub(crate) mod recovery;
pub(crate) mod register;
pub(crate) mod replicas;
pub(crate) mod rollback;
pub(crate) mod search;
pub(crate) mod set_full;
pub(crate) mod shares;
pub(crate) mod shrink;
pub(crate) mod stats;
pub(crate) mod task_records;
pub(crate) mod total_queue;
pub(crate) mod views;
pub(crate) mod visible;
pub(crate) mod watch;
pub(crate) mod wgl;

#[cfg(test)]
mod corpus_tests;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::{Serialize, Serializer};

use crate::{
    agents::{agent_log, names},
    history::Op,
    store::{Aftermath, TestRecord, server_log},
    system::System,
    task,
    workload::WorkloadKind,
};
use judgement::Judgement;

/// What a checker found, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// No violation found.
    True,
    /// Not enough evidence.
    Unknown,
    /// A violation, with its evidence in the report.
    False,
}

impl Verdict {
    /// `bad` if the condition holds, else true.
    pub(crate) fn unless(condition: bool, bad: Self) -> Self {
        if condition { bad } else { Self::True }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::True => serializer.serialize_bool(true),
            Self::Unknown => serializer.serialize_str("unknown"),
            Self::False => serializer.serialize_bool(false),
        }
    }
}

/// The judgement of one run; `results.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    /// The worst of all verdicts below.
    pub(crate) valid: Verdict,
    /// Did the clients see what the workload promises?
    pub(crate) workload: Judgement,
    /// Did each kind of operation succeed at all, and often enough before the first fault?
    pub(crate) stats: stats::Report,
    /// Did a server crash or complain?
    pub(crate) crash: crash::Report,
    /// Was each fault class really installed?
    pub(crate) coverage: coverage::Report,
    /// Did the cluster serve the clients after the last heal?
    pub(crate) final_workload: final_workload::Report,
    /// Did writes go on soon enough after the loss of a leader?
    pub(crate) recovery: recovery::Report,
    /// Are the servers replicas of one another? Not asked of other systems.
    pub(crate) replicas: Option<replicas::Report>,
    /// Did servers whose data directory went back heal?
    pub(crate) rollback: rollback::Report,
    /// How long writes stood still when the leader was lost, by fault class. Figures; `recovery` judges.
    pub(crate) outages: BTreeMap<&'static str, outage::Outages>,
    /// What went wrong in the harness itself; makes the run `unknown`.
    pub(crate) harness_failures: Vec<String>,
}

/// Everything the checkers look at.
pub(crate) struct Evidence<'a> {
    /// What was asked for.
    pub(crate) record: &'a TestRecord,
    /// What the clients did.
    pub(crate) workload: WorkloadKind,
    /// The history.
    pub(crate) history: &'a [Op],
    /// The run's directory, which holds the servers' logs.
    pub(crate) directory: &'a Path,
    /// The names of the servers.
    pub(crate) nodes: &'a [String],
    /// The faults asked for.
    pub(crate) faults: coverage::Asked<'a>,
    /// What the run noted outside the history.
    pub(crate) aftermath: &'a Aftermath,
    /// How long the linearizability search may take.
    pub(crate) time_max: Duration,
}

/// Runs every checker. One that panics or fails makes the run `unknown` and is told as a failure of the
/// harness; the others are run all the same.
pub(crate) fn check(evidence: &Evidence<'_>) -> Results {
    let mut harness_failures = evidence.aftermath.harness_failures.clone();
    let (history, aftermath) = (evidence.history, evidence.aftermath);
    let workload = contained(|| check_workload(evidence)).unwrap_or_else(|error| {
        harness_failures.push(format!("the checker of the workload failed: {error:#}"));
        Judgement::unknown("workload", format!("the checker failed: {error:#}"))
    });
    let final_workload = contained(|| {
        let ready = aftermath.ready_after_heal;
        final_workload::check(evidence.workload, history, evidence.nodes, ready)
    });
    let mut final_workload = final_workload.unwrap_or_else(|error| {
        harness_failures.push(format!("the checker of the last phase failed: {error:#}"));
        final_workload::Report::unknown(aftermath.ready_after_heal)
    });
    // The heal waits once more: that they were ready then is no excuse.
    if let Some(cycle) = aftermath.not_ready_after_cycle {
        final_workload.valid = Verdict::False;
        final_workload.silent.push(format!("not ready in time after cycle {cycle}"));
    }
    let record = evidence.record;
    let pace = stats::Pace::of(evidence.workload, record.rate, record.concurrency);
    let stats = stats::check(history, evidence.workload.required()).paced(history, pace);
    let minutes = history.last().map_or(0, |op| op.time.div_ceil(60_000_000_000)).max(1);
    let minutes = usize::try_from(minutes).unwrap_or(usize::MAX);
    let crash = crash::check(&logs(evidence), minutes, &aftermath.exits);
    let coverage = coverage::check(history, &evidence.faults);
    let harness = Verdict::unless(!harness_failures.is_empty(), Verdict::Unknown);
    let recovery = recovery::check(history, evidence.nodes.len(), record.system);
    let replicas = (record.system == System::Quorate)
        .then(|| replicas::check(aftermath.replicas.as_ref(), evidence.nodes.len()));
    let rollback = rollback::check(history);
    let parts = [workload.valid, stats.valid, crash.valid, coverage.valid, final_workload.valid];
    let alike = replicas.as_ref().map_or(Verdict::True, |report| report.valid);
    let verdicts = parts.into_iter().chain([recovery.valid, alike, rollback.verdict(), harness]);
    let valid = verdicts.max().expect("the list is not empty");
    let outages = outage::measure(history, evidence.nodes.len());
    Results {
        valid,
        workload,
        stats,
        crash,
        coverage,
        final_workload,
        recovery,
        replicas,
        rollback,
        outages,
        harness_failures,
    }
}

/// Runs the checker of the workload.
fn check_workload(evidence: &Evidence<'_>) -> Result<Judgement> {
    let history = evidence.history;
    match evidence.workload {
        WorkloadKind::Register => {
            Ok(linearizable::check(history, evidence.time_max)?.into_judgement())
        }
        WorkloadKind::Set => set_full::check(history, set_full::OF_PAGES),
        WorkloadKind::Append => list_append::check(history),
        WorkloadKind::Queue => evaluations::check(history),
        WorkloadKind::Bank => capacity::check(history, evidence.time_max),
        WorkloadKind::Jobs => job_versions::check(history, evidence.time_max),
        WorkloadKind::Watch => watch::check(history),
        WorkloadKind::Elastic => elastic::check(history),
        WorkloadKind::Allocs => {
            let logs: Vec<(String, PathBuf)> = agent_logs(evidence).collect();
            let tasks = task_records::read(&task::journal(evidence.directory))?;
            allocations::check(history, Some((agent_records::read(&logs)?, &tasks)))
        }
    }
}

fn agent_logs<'a>(evidence: &Evidence<'a>) -> impl Iterator<Item = (String, PathBuf)> + use<'a> {
    let directory = evidence.directory;
    names(evidence.workload.agents().count()).into_iter().map(move |name| {
        let path = agent_log(directory, &name);
        (name, path)
    })
}

/// The log of every process of the run.
fn logs(evidence: &Evidence<'_>) -> Vec<(String, PathBuf)> {
    let servers =
        evidence.nodes.iter().map(|node| (node.clone(), server_log(evidence.directory, node)));
    servers.chain(agent_logs(evidence)).collect()
}

/// Turns a panic into an error.
fn contained<T>(judge: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(judge)).unwrap_or_else(|panic| Err(anyhow!(message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checker_that_panics_is_an_error() {
        let panics: Result<()> = contained(|| {
            let numbers: Vec<u32> = Vec::new();
            assert!(!numbers.is_empty(), "no numbers");
            Ok(())
        });
        let text = panics.expect_err("it panics").to_string();
        assert!(text.contains("no numbers"), "{text}");
        assert_eq!(contained(|| Ok(3)).expect("it does not"), 3);
    }
}
