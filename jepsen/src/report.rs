//! What people see: progress on stderr, the verdict on stdout.
//!
//! The only file that prints. Progress also goes into the run's `jepsen.log`. A green verdict says that no
//! violation was found, never that there is none.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::{
    checker::judgement::Judgement,
    checker::outage::Outages,
    checker::replicas,
    checker::{Results, Verdict},
    fault::FaultClass,
    probe::Finding,
    store::Readiness,
};

/// Entries of one violation that are printed, and bytes of each; `results.json` has all of them.
const ENTRIES_MAX: usize = 40;
const LINE_BYTES_MAX: usize = 600;

/// Writes progress lines.
pub(crate) struct Reporter {
    started: Instant,
    log: Mutex<File>,
}

impl Reporter {
    /// A reporter that also writes `jepsen.log` in `directory`.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        let path = directory.join("jepsen.log");
        let log =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { started: Instant::now(), log: Mutex::new(log) })
    }

    /// Writes one line with the time since the start.
    pub(crate) fn line(&self, text: &str) {
        let line = format!("{:7.1} s  {text}", self.started.elapsed().as_secs_f64());
        note(&line);
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(log, "{line}") {
            note(&format!("cannot write jepsen.log: {error}"));
        }
    }
}

/// Writes one line of progress that belongs to no run. Whoever read it may be gone: a run goes on to its verdict all the same.
pub(crate) fn note(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Prints the results, as JSON or for people.
pub(crate) fn print_results(results: &Results, directory: &Path, json: bool) -> Result<()> {
    if json {
        print_line(&serde_json::to_string_pretty(results)?);
    } else {
        print_line(&render(results, directory));
    }
    Ok(())
}

/// Prints what this machine can do.
pub(crate) fn print_findings(findings: &[Finding], json: bool) -> Result<()> {
    if json {
        print_line(&serde_json::to_string_pretty(findings)?);
        return Ok(());
    }
    for finding in findings {
        let classes: Vec<&str> = finding.classes.iter().map(|class| class.name()).collect();
        let classes =
            if classes.is_empty() { "--net namespaces".to_owned() } else { classes.join(", ") };
        let (word, why) = match &finding.missing {
            None => ("yes", String::new()),
            Some(why) => ("no", format!("  {why}")),
        };
        print_line(&format!("{:<12} {word:<4} for {classes}{why}", finding.means.name()));
    }
    let free: Vec<&str> = FaultClass::value_variants()
        .iter()
        .filter(|class| class.means().is_empty())
        .map(|class| class.name())
        .collect();
    print_line(&format!("always            {}", free.join(", ")));
    Ok(())
}

/// Prints a line, or several, of a result. Whoever reads it may have seen enough (`| head`); the verdict is the exit code as well.
pub(crate) fn print_line(text: &str) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}")
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        note(&format!("cannot print the result: {error}"));
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::True => "ok",
        Verdict::Unknown => "unknown",
        Verdict::False => "FAILED",
    }
}

/// The results for people.
pub(crate) fn render(results: &Results, directory: &Path) -> String {
    let mut text = String::new();
    let mut row = |name: &str, verdict: Verdict, details: String| {
        writeln!(text, "  {name:<15} {:<8} {details}", word(verdict))
            .expect("writing to a string cannot fail");
    };
    row(results.workload.checker, results.workload.valid, workload_details(&results.workload));
    row("stats", results.stats.valid, stats_details(results));
    row("crash", results.crash.valid, crash_details(results));
    row("coverage", results.coverage.valid, coverage_details(results));
    row("final workload", results.final_workload.valid, final_details(results));
    row("recovery", results.recovery.valid, recovery_details(results));
    if let Some(replicas) = &results.replicas {
        row("replicas", replicas.valid, replicas_details(replicas));
    }
    for (class, why) in &results.coverage.unavailable {
        row("skipped", Verdict::Unknown, format!("{class}: {why}"));
    }
    for (class, outages) in &results.outages {
        row("outage", Verdict::True, outage_details(class, outages));
    }
    for failure in &results.harness_failures {
        row("harness", Verdict::Unknown, failure.clone());
    }
    text.push_str(&violations(&results.workload));
    let verdict = match results.valid {
        Verdict::True => {
            format!("PASS: no violation found in {} operations", results.workload.operations)
        }
        Verdict::Unknown => "UNKNOWN: the run proves nothing, see above".to_owned(),
        Verdict::False => "FAIL: a promise was broken, see above".to_owned(),
    };
    write!(text, "\n{verdict}\n{}", directory.display()).expect("writing to a string cannot fail");
    text
}

/// The judgement of a history without servers, for people.
pub(crate) fn render_judgement(judgement: &Judgement) -> String {
    let verdict = match judgement.valid {
        Verdict::True => format!("PASS: no violation found in {} operations", judgement.operations),
        Verdict::Unknown => "UNKNOWN: the history proves nothing".to_owned(),
        Verdict::False => "FAIL: the history breaks the model".to_owned(),
    };
    let details = workload_details(judgement);
    format!("  {:<15} {details}\n{}\n{verdict}", judgement.checker, violations(judgement))
}

fn workload_details(judgement: &Judgement) -> String {
    format!("{}, checked in {} ms", judgement.summary, judgement.elapsed_ms)
}

fn violations(judgement: &Judgement) -> String {
    let mut text = String::new();
    for violation in &judgement.violations {
        write!(text, "\n{}\n", violation.title).expect("writing to a string cannot fail");
        // The one that cannot be explained is the last.
        let earlier = violation.entries.len().saturating_sub(ENTRIES_MAX);
        if earlier > 0 {
            writeln!(text, "  {earlier} earlier ones, then")
                .expect("writing to a string cannot fail");
        }
        for op in &violation.entries[earlier..] {
            let line = op.describe();
            let cut = line.floor_char_boundary(LINE_BYTES_MAX);
            let dots = if cut < line.len() { " …" } else { "" };
            writeln!(text, "{}{dots}", &line[..cut]).expect("writing to a string cannot fail");
        }
    }
    let more = judgement.violation_count.saturating_sub(judgement.violations.len());
    if more > 0 {
        writeln!(text, "\nand {more} more violations").expect("writing to a string cannot fail");
    }
    text
}

fn stats_details(results: &Results) -> String {
    let report = &results.stats;
    let mut text =
        format!("{:.0} ok/s, longest gap {} ms", report.ok_per_second, report.longest_gap_ms);
    if let Some(rate) = report.ok_per_second_before_faults {
        write!(text, ", {rate:.0} ok/s before the first fault")
            .expect("writing to a string cannot fail");
    }
    if let Some(due) = report.ok_per_second_due {
        write!(text, " (too few to prove anything: {due:.0} are due)")
            .expect("writing to a string cannot fail");
    }
    for (name, counts) in &report.by_function {
        write!(text, "; {name} {} ok {} fail {} info", counts.ok, counts.fail, counts.info)
            .expect("writing to a string cannot fail");
    }
    if !report.without_success.is_empty() {
        write!(text, "; never succeeded: {}", report.without_success.join(", "))
            .expect("writing to a string cannot fail");
    }
    text
}

fn crash_details(results: &Results) -> String {
    let report = &results.crash;
    let mut parts: Vec<String> = Vec::new();
    parts.extend(
        report.unexpected_exits.iter().map(|exit| format!("{} ended: {}", exit.node, exit.status)),
    );
    parts.extend(
        report
            .findings
            .iter()
            .map(|found| format!("{} line {}: {}", found.node, found.line, found.text)),
    );
    parts.extend(report.unreadable_logs.iter().cloned());
    if parts.is_empty() { "nothing in the logs".to_owned() } else { parts.join("; ") }
}

fn coverage_details(results: &Results) -> String {
    let classes = results.coverage.classes.iter().map(|(name, attempts)| {
        let mut text = format!("{name} installed {}", attempts.installed);
        if attempts.skipped + attempts.indeterminate > 0 {
            write!(
                text,
                ", skipped {}, indeterminate {}",
                attempts.skipped, attempts.indeterminate
            )
            .expect("writing to a string cannot fail");
        }
        match &attempts.reason {
            Some(reason) if attempts.installed == 0 => format!("{text} ({reason})"),
            Some(_) | None => text,
        }
    });
    let classes: Vec<String> = classes.collect();
    if classes.is_empty() { "no faults asked for".to_owned() } else { classes.join("; ") }
}

fn replicas_details(report: &replicas::Report) -> String {
    let mut text = match report.common_index {
        Some(index) if report.differing.is_empty() => format!("alike at index {index}"),
        Some(index) => format!("all seen at index {index}"),
        None => "never seen at one index".to_owned(),
    };
    let replicas::Report { differing, broken, silent, .. } = report;
    for problem in differing.iter().chain(broken).chain(silent) {
        write!(text, "; {problem}").expect("writing to a string cannot fail");
    }
    text
}

fn recovery_details(results: &Results) -> String {
    let report = &results.recovery;
    let losses = report.in_time + report.undecided + report.too_slow.len();
    let mut text = format!(
        "{losses} losses of the leader alone, {} of them made good in time, {} too short to tell",
        report.in_time, report.undecided
    );
    for slow in &report.too_slow {
        let end = if slow.ended { "then one" } else { "and none until the next fault or the end" };
        write!(
            text,
            "; {} lost by {} (entry {}): no write for {} ms, {} tried elsewhere, {end}",
            slow.nodes.join(", "),
            slow.class,
            slow.entry,
            slow.length_ms,
            slow.tries
        )
        .expect("writing to a string cannot fail");
    }
    text
}

fn outage_details(class: &str, outages: &Outages) -> String {
    let mut text = format!(
        "{class}: leader lost {} times, next write after p50 {} ms, p99 {} ms, max {} ms",
        outages.count, outages.p50_ms, outages.p99_ms, outages.max_ms
    );
    if outages.without_end > 0 {
        write!(text, "; {} without a write until the end", outages.without_end)
            .expect("writing to a string cannot fail");
    }
    text
}

fn final_details(results: &Results) -> String {
    let report = &results.final_workload;
    let ready = match report.ready_after_heal {
        Readiness::NotReached => "the last phase did not run".to_owned(),
        Readiness::Never => "the servers were not ready in time after the heal".to_owned(),
        Readiness::Milliseconds(milliseconds) => format!("ready {milliseconds} ms after the heal"),
    };
    let mut text = match report.keys {
        0 => ready,
        keys => format!("{keys} keys, {ready}"),
    };
    for (keys, verb) in [(&report.not_written, "written"), (&report.not_read, "read")] {
        if !keys.is_empty() {
            write!(text, "; not {verb}: {keys:?}").expect("writing to a string cannot fail");
        }
    }
    for silent in &report.silent {
        write!(text, "; {silent}").expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::{Function, Kind, Op, Process};

    #[test]
    fn of_a_long_violation_the_end_is_shown_which_cannot_be_explained() {
        let mut judgement = Judgement::new("linearizable", 50);
        let entry = |index: u64| {
            let op = Op::new(Process::Client(1), Kind::Ok, Function::Read, json!([0, index]));
            Op { index, ..op }
        };
        judgement.violated("nothing explains entry 49".to_owned(), (0..50).map(entry));
        let text = render_judgement(&judgement);
        assert!(text.contains("\n  10 earlier ones, then\n     10 "), "{text}");
        assert!(text.contains("\n     49 ") && !text.contains("\n      9 "), "{text}");
        judgement.violations[0].entries.truncate(40);
        assert!(!render_judgement(&judgement).contains("earlier"));
    }
}
