//! Judging a finished run: one verdict per checker, and the worst of them for the run.
//!
//! A checker is a pure function of the stored run (history, logs, [`crate::store::Aftermath`]), so that
//! `analyze` repeats the judgement of `test`. A checker that cannot tell says `unknown`; it must never
//! turn missing evidence into `true`.

pub(crate) mod calls;
pub(crate) mod coverage;
pub(crate) mod crash;
pub(crate) mod final_workload;
pub(crate) mod linearizable;
pub(crate) mod outage;
pub(crate) mod search;
pub(crate) mod stats;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::{Serialize, Serializer};

use crate::history::Op;
use crate::store::Aftermath;

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
    /// Does each register behave as one register?
    pub(crate) linearizable: linearizable::Report,
    /// Did each kind of operation succeed at all?
    pub(crate) stats: stats::Report,
    /// Did a server crash or complain?
    pub(crate) crash: crash::Report,
    /// Was each fault class really installed?
    pub(crate) coverage: coverage::Report,
    /// Did the cluster serve every register after the last heal?
    pub(crate) final_workload: final_workload::Report,
    /// How long writes stood still when the leader was lost, by fault class. Not judged.
    pub(crate) outages: BTreeMap<&'static str, outage::Outages>,
    /// What went wrong in the harness itself; makes the run `unknown`.
    pub(crate) harness_failures: Vec<String>,
}

/// Everything the checkers look at.
pub(crate) struct Evidence<'a> {
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

/// Runs every checker.
pub(crate) fn check(evidence: &Evidence<'_>) -> Result<Results> {
    let linearizable = linearizable::check(evidence.history, evidence.time_max)?;
    let stats = stats::check(evidence.history);
    let crash = crash::check(evidence.directory, evidence.nodes, &evidence.aftermath.exits);
    let coverage = coverage::check(evidence.history, &evidence.faults);
    let final_workload =
        final_workload::check(evidence.history, evidence.aftermath.ready_after_heal)?;
    let harness_failures = evidence.aftermath.harness_failures.clone();
    let harness = Verdict::unless(!harness_failures.is_empty(), Verdict::Unknown);
    let verdicts = [
        linearizable.valid,
        stats.valid,
        crash.valid,
        coverage.valid,
        final_workload.valid,
        harness,
    ];
    let valid = verdicts.into_iter().max().expect("the list is not empty");
    let outages = outage::measure(evidence.history, evidence.nodes.len());
    Ok(Results {
        valid,
        linearizable,
        stats,
        crash,
        coverage,
        final_workload,
        outages,
        harness_failures,
    })
}
