//! What a whole matrix amounts to: operations, faults and outages of all its runs, as a table for people.
//!
//! Pure but for reading `results.json` of the runs; a run without a readable one counts as a run, not as evidence.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{checker::outage::Outages, store::read_json};

/// The classes for which there is a target, and that target (docs/performance.md): from the loss of a leader to the next write, with the timings that
/// servers have if nobody sets others.
const TARGET_CLASSES: [&str; 4] = ["kill", "partition", "pause", "power"];
const TARGET_P50_MS: u64 = 1_200;
const TARGET_MAX_MS: u64 = 5_000;

/// The sums over runs.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    /// Runs by how they ended.
    pub(crate) runs: BTreeMap<&'static str, u64>,
    /// Operations of clients that certainly took effect.
    pub(crate) ok: u64,
    /// Those that certainly did not.
    pub(crate) fail: u64,
    /// Those of which nobody knows.
    pub(crate) info: u64,
    /// Faults that were seen to take hold, by class.
    pub(crate) installed: BTreeMap<String, u64>,
    /// How long writes stood still when the leader was lost, by fault class, then number of servers.
    pub(crate) outages: BTreeMap<String, BTreeMap<usize, Outages>>,
}

/// The part of `results.json` that is summed up.
#[derive(Deserialize)]
struct Part {
    stats: Stats,
    coverage: Coverage,
    outages: BTreeMap<String, Samples>,
}

#[derive(Deserialize)]
struct Stats {
    total: Counts,
}

#[derive(Deserialize)]
struct Counts {
    ok: u64,
    fail: u64,
    info: u64,
}

#[derive(Deserialize)]
struct Coverage {
    classes: BTreeMap<String, Attempts>,
}

#[derive(Deserialize)]
struct Attempts {
    installed: u64,
}

#[derive(Deserialize)]
struct Samples {
    lengths_ms: Vec<u64>,
    without_end: usize,
}

impl Totals {
    /// Counts a run; `kept` is its directory, if it was judged.
    pub(crate) fn add(&mut self, ending: &'static str, servers: usize, kept: Option<&Path>) {
        *self.runs.entry(ending).or_default() += 1;
        let part = kept.and_then(|directory| read_json::<Part>(directory, "results.json").ok());
        let Some(part) = part else { return };
        self.ok += part.stats.total.ok;
        self.fail += part.stats.total.fail;
        self.info += part.stats.total.info;
        for (class, attempts) in part.coverage.classes {
            *self.installed.entry(class).or_default() += attempts.installed;
        }
        for (class, samples) in part.outages {
            let sum = self.outages.entry(class).or_default().entry(servers).or_default();
            let lengths = [std::mem::take(&mut sum.lengths_ms), samples.lengths_ms].concat();
            *sum = Outages::of(lengths, sum.without_end + samples.without_end);
        }
    }

    /// Markdown, for a README.
    pub(crate) fn render(&self, title: &str) -> String {
        let list = |items: Vec<String>| {
            if items.is_empty() { "none".to_owned() } else { items.join(", ") }
        };
        let runs = self.runs.iter().map(|(ending, count)| format!("{count} {ending}")).collect();
        let installed =
            self.installed.iter().map(|(class, count)| format!("{class} {count}")).collect();
        let mut text = format!(
            "| {title} | |\n|---|---|\n| runs | {} |\n| operations | {} ok, {} failed, {} of unknown outcome |\n| faults installed | {} |\n",
            list(runs),
            self.ok,
            self.fail,
            self.info,
            list(installed)
        );
        for (class, sizes) in &self.outages {
            for (servers, outages) in sizes {
                text += &outage_row(class, *servers, outages);
            }
        }
        text
    }
}

fn outage_row(class: &str, servers: usize, outages: &Outages) -> String {
    let Outages { count, p50_ms, p99_ms, max_ms, without_end, lengths_ms } = outages;
    let unended = match without_end {
        0 => String::new(),
        count => format!("; {count} without a write until the end"),
    };
    let target = if !TARGET_CLASSES.contains(&class) || lengths_ms.is_empty() {
        String::new()
    } else if *p50_ms <= TARGET_P50_MS && *max_ms <= TARGET_MAX_MS {
        "; target met".to_owned()
    } else {
        format!("; target MISSED: p50 {TARGET_P50_MS} ms, max {TARGET_MAX_MS} ms")
    };
    format!(
        "| outage, leader lost by {class}, {servers} servers | {count} times: p50 {p50_ms} ms, p99 {p99_ms} ms, max {max_ms} ms{unended}{target} |\n"
    )
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use crate::store::write_json;

    #[test]
    fn runs_are_summed_up_and_a_crashed_one_is_only_counted() {
        let directory = tempfile::tempdir().unwrap();
        let results = json!({
            "valid": true,
            "stats": {"total": {"ok": 5, "fail": 2, "info": 1}},
            "coverage": {"classes": {"kill": {"installed": 3, "skipped": 1, "indeterminate": 0}}},
            "outages": {"kill": {"count": 2, "lengths_ms": [900, 400], "without_end": 1}},
        });
        write_json(directory.path(), "results.json", &results).unwrap();
        let mut totals = Totals::default();
        totals.add("pass", 3, Some(directory.path()));
        totals.add("pass", 3, Some(directory.path()));
        totals.add("CRASHED", 5, None);
        totals.add("FAIL", 5, Some(Path::new("/nowhere")));
        assert_eq!((totals.ok, totals.fail, totals.info), (10, 4, 2));
        assert_eq!(totals.installed["kill"], 6);
        let kills = &totals.outages["kill"][&3];
        assert_eq!((kills.count, kills.p50_ms, kills.max_ms, kills.without_end), (6, 400, 900, 2));
        let text = totals.render("gate");
        assert!(text.contains("| runs | 1 CRASHED, 1 FAIL, 2 pass |"), "{text}");
        let row =
            "lost by kill, 3 servers | 6 times: p50 400 ms, p99 900 ms, max 900 ms; 2 without";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn outages_are_held_against_the_target() {
        let ends = |class, lengths: &[u64]| {
            let row = outage_row(class, 3, &Outages::of(lengths.to_vec(), 0));
            row.rsplit_once("max").unwrap().1.to_owned()
        };
        assert_eq!(ends("kill", &[1_100, 1_200, 4_900]), " 4900 ms; target met |\n");
        assert!(outage_row("pause", 3, &Outages::of(vec![1_100, 5_001], 0)).contains("MISSED"));
        assert!(outage_row("power", 3, &Outages::of(vec![1_300], 0)).contains("MISSED: p50 1200"));
        assert_eq!(ends("slow-disk", &[9_000]), " 9000 ms |\n", "there is no target");
        let unmeasured = outage_row("kill", 3, &Outages::of(Vec::new(), 2));
        assert!(!unmeasured.contains("target"), "{unmeasured}");
    }
}
