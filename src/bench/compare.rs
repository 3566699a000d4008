//! `bench compare`: the same load on this program and on another one, in turns.
//!
//! ```text
//!  round 1: this, other   round 2: other, this   …   each: BINARY bench KIND ARGS --up --json
//!                                                      │  servers and a folder of its own
//!  ratio of each round ─► median, least, greatest ◄────┘  figures (see `figures.rs`)
//! ```
//! Must never run both at a time, and never measure one of them from outside and the other from
//! inside. A run that fails ends the comparison: half a round has no ratio.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, bail};
use launch::{Group, Log, Member, Signal};
use serde_json::json;

use super::{
    Progress, Report,
    arguments::{CompareArgs, LoadCommand},
    figures::{self, Figure},
    up::Folder,
};

/// Pause between two looks whether a run has ended; far less than a run takes.
const POLL: Duration = Duration::from_millis(100);
/// How long an interrupted run may take to stop its servers.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Lines of a failed run that are shown.
const LINES_SHOWN: usize = 20;

/// Which of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    This,
    Other,
}

impl Which {
    /// The order in a round, counted from 0.
    fn order(round: u32) -> [Self; 2] {
        if round.is_multiple_of(2) { [Self::This, Self::Other] } else { [Self::Other, Self::This] }
    }

    fn name(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::Other => "other",
        }
    }
}

/// What both programs took for the same load.
#[derive(Debug)]
struct Round {
    this: Vec<Figure>,
    other: Vec<Figure>,
}

pub(super) async fn run(arguments: &CompareArgs, progress: Progress<'_>) -> anyhow::Result<Report> {
    let (load, words) = arguments.load().map_err(|error| {
        let text = error.to_string();
        anyhow::anyhow!("{}", text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned())
    })?;
    let this = std::env::current_exe()?;
    let other = arguments.with.canonicalize();
    let other = other.with_context(|| format!("the program {}", arguments.with.display()))?;
    let mut rounds = Vec::new();
    for number in 0..arguments.rounds {
        let mut round = Round { this: Vec::new(), other: Vec::new() };
        for which in Which::order(number) {
            let (program, place) = match which {
                Which::This => (&this, &mut round.this),
                Which::Other => (&other, &mut round.other),
            };
            let turn = format!("round {} of {}, {}", number + 1, arguments.rounds, which.name());
            progress(&format!("{turn}: {}", program.display()));
            *place = measured(program, &words, &load).await.with_context(|| turn.clone())?;
            progress(&format!("{turn}: {}", told(place)));
        }
        rounds.push(round);
    }
    let mut report = Report::default();
    let what = words.join(" ");
    report.add("compared", what.clone(), what);
    for (which, program) in [(Which::This, &this), (Which::Other, &other)] {
        let shown = program.display().to_string();
        report.add(which.name(), shown.clone(), shown);
    }
    let what = format!("{}; ratios are this against other", arguments.rounds);
    report.add("rounds", what, arguments.rounds);
    describe(&rows(&rounds), arguments.limit, &mut report);
    Ok(report)
}

/// Runs one program with a folder of its own for all that it writes.
async fn measured(
    program: &Path,
    words: &[String],
    load: &LoadCommand,
) -> anyhow::Result<Vec<Figure>> {
    let mut command = Command::new(program);
    command.arg("bench").args(words);
    let mut run = Run::start(command, None)?;
    let printed = run.finish().await?;
    let figures = figures::parse(&printed).and_then(|report| figures::read(load, &report));
    figures.with_context(|| run.name().to_owned())
}

/// A benchmark of a program, and the folder that is removed after it.
struct Run {
    // Dropped in this order: the process, which stops its servers, then the folder.
    member: Member,
    printed: Log,
    folder: Folder,
}

impl Run {
    fn start(mut command: Command, parent: Option<&Path>) -> anyhow::Result<Self> {
        let folder = Folder::create(parent, "compare")?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let member = Member::new(words.join(" "), Log::new(folder.path().join("errors.log")));
        let printed = Log::new(folder.path().join("printed.json"));
        let mut run = Self { member, printed, folder };
        // The folders of its servers and nodes are made in here.
        command.env("TMPDIR", run.folder.path());
        let started = run.member.start_into(command, Group::Own, run.printed.open()?);
        started.with_context(|| format!("cannot start {}", run.name()))?;
        Ok(run)
    }

    fn name(&self) -> &str {
        self.member.name()
    }

    /// What it printed, once it has ended well.
    async fn finish(&mut self) -> anyhow::Result<String> {
        let status = loop {
            match self.member.poll()? {
                Some(status) => break status,
                None => tokio::time::sleep(POLL).await,
            }
        };
        if !status.success() {
            let lines = self.member.log().last_lines(LINES_SHOWN)?.join("\n");
            bail!("{} failed ({status}):\n{lines}", self.name());
        }
        Ok(self.printed.text()?)
    }
}

impl Drop for Run {
    /// Asks a run that was interrupted to end, so that it stops its servers; a member is killed.
    fn drop(&mut self) {
        if self.member.signal(Signal::TERM).is_ok() {
            self.member.await_exit(STOP_TIMEOUT).ok();
        }
    }
}

/// The figures of one run, in short: those that are compared most.
fn told(figures: &[Figure]) -> String {
    let told = |one: &Figure| format!("{} {} {}", one.name, digits(one.value), one.unit);
    figures.iter().take(2).map(told).collect::<Vec<_>>().join(", ")
}

/// As many digits as are worth reading.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// One figure of all rounds.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    unit: &'static str,
    this: Vec<f64>,
    other: Vec<f64>,
}

impl Row {
    /// This program against the other, by round.
    fn ratios(&self) -> Vec<f64> {
        self.this.iter().zip(&self.other).map(|(this, other)| this / other).collect()
    }
}

/// The figures that both programs gave in every round, and of which there are ratios.
fn rows(rounds: &[Round]) -> Vec<Row> {
    let values = |name: &str, side: fn(&Round) -> &[Figure]| -> Option<Vec<f64>> {
        let value = |round| {
            let mut figures = side(round).iter();
            figures.find(|figure| figure.name == name).map(|figure| figure.value)
        };
        rounds.iter().map(value).collect()
    };
    let first = rounds.first().map_or(&[][..], |round| &round.this);
    let row = |figure: &Figure| {
        let this = values(&figure.name, |round| &round.this)?;
        let other = values(&figure.name, |round| &round.other)?;
        let row = Row { name: figure.name.clone(), unit: figure.unit, this, other };
        row.other.iter().all(|value| *value > 0.0).then_some(row)
    };
    first.iter().filter_map(row).collect()
}

/// The middle of some values and how far apart they are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// There is at least one value.
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Self { median: f64::midpoint(lower, upper), min: sorted[0], max: sorted[sorted.len() - 1] }
    }
}

/// A line for each figure; a problem if the first, which is processor time, is above the limit.
fn describe(rows: &[Row], limit: Option<f64>, report: &mut Report) {
    for row in rows {
        let ratios = row.ratios();
        let ratio = Spread::of(&ratios);
        let (this, other) = (Spread::of(&row.this).median, Spread::of(&row.other).median);
        let by_round: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let shown = format!(
            "{} against {} {}: {:.3} ({:.3} to {:.3}), by round {}",
            digits(this),
            digits(other),
            row.unit,
            ratio.median,
            ratio.min,
            ratio.max,
            by_round.join(" ")
        );
        let value = json!({
            "unit": row.unit,
            "this": row.this,
            "other": row.other,
            "this_median": this,
            "other_median": other,
            "ratios": ratios,
            "ratio_median": ratio.median,
            "ratio_min": ratio.min,
            "ratio_max": ratio.max,
        });
        report.add(&row.name, shown, value);
    }
    let processor = rows.first().map(|row| (&row.name, Spread::of(&row.ratios()).median));
    if let (Some((name, median)), Some(limit)) = (processor, limit)
        && median > limit
    {
        report.problems.push(format!("the ratio of {name} is {median:.3}, above {limit}"));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use launch::{Identity, wait_for};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    fn figure(name: &str, value: f64) -> Figure {
        Figure { name: name.to_owned(), unit: "µs", value }
    }

    /// Rounds by the processor times of both, with a rate that only this program gives.
    fn rounds(times: &[(f64, f64)]) -> Vec<Round> {
        let round = |(this, other): &(f64, f64)| Round {
            this: vec![figure("time", *this), figure("rate", 5.0), figure("none", 1.0)],
            other: vec![figure("time", *other), figure("none", 0.0)],
        };
        times.iter().map(round).collect()
    }

    fn described(times: &[(f64, f64)], limit: Option<f64>) -> Report {
        let mut report = Report::default();
        describe(&rows(&rounds(times)), limit, &mut report);
        report
    }

    #[test]
    fn the_median_ratio_is_that_of_the_rounds_and_not_of_the_medians() {
        let times = [(300.0, 200.0), (220.0, 200.0), (110.0, 100.0), (90.0, 100.0), (420.0, 200.0)];
        let report = described(&times, None);
        let row = &report.json["time"];
        assert_eq!((&row["this_median"], &row["other_median"]), (&220.0.into(), &200.0.into()));
        assert_eq!(row["ratios"], json!([1.5, 1.1, 1.1, 0.9, 2.1]));
        assert_eq!(row["ratio_median"], 1.1);
        assert_eq!((&row["ratio_min"], &row["ratio_max"]), (&0.9.into(), &2.1.into()));
        let shown = "220 against 200 µs: 1.100 (0.900 to 2.100), by round 1.50 1.10 1.10 0.90 2.10";
        assert_eq!(report.lines, [("time".to_owned(), shown.to_owned())]);
    }

    #[test]
    fn a_figure_that_one_program_does_not_give_or_gives_as_nothing_is_left_out() {
        let names: Vec<String> = described(&[(1.0, 2.0)], None).json.keys().cloned().collect();
        assert_eq!(names, ["time"]);
        let mut lacking = rounds(&[(1.0, 2.0), (1.0, 2.0)]);
        lacking[1].other.clear();
        assert_eq!(rows(&lacking), [], "it must be there in every round");
    }

    #[test]
    fn a_ratio_above_the_limit_is_a_problem() {
        let times = [(100.0, 100.0), (106.0, 100.0), (104.0, 100.0), (120.0, 100.0)];
        assert!(described(&times, None).problems.is_empty());
        assert!(described(&times, Some(1.051)).problems.is_empty(), "the median is 1.05");
        let problems = described(&times, Some(1.049)).problems;
        assert_eq!(problems, ["the ratio of time is 1.050, above 1.049"]);
    }

    #[test]
    fn the_programs_take_turns_in_being_first() {
        let first: Vec<&str> = (0..4).map(|round| Which::order(round)[0].name()).collect();
        assert_eq!(first, ["this", "other", "this", "other"]);
        for round in 0..2 {
            let [first, second] = Which::order(round);
            assert_ne!(first, second);
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_run_has_a_folder_of_its_own_that_is_removed_whatever_becomes_of_it() {
        let parent = tempfile::tempdir().unwrap();
        let left = || std::fs::read_dir(parent.path()).unwrap().count();
        let script = "touch $TMPDIR/left && echo told >&2 && echo printed";
        let mut run = Run::start(shell(script), Some(parent.path())).unwrap();
        assert_eq!(run.finish().await.unwrap(), "printed\n");
        assert!(run.folder.path().join("left").exists());
        drop(run);
        assert_eq!(left(), 0);
        let script = "echo first >&2; echo printed; echo cannot bind >&2; exit 3";
        let mut run = Run::start(shell(script), Some(parent.path())).unwrap();
        let error = run.finish().await.unwrap_err().to_string();
        assert!(error.ends_with("failed (exit status: 3):\nfirst\ncannot bind"), "{error}");
        assert!(error.starts_with("/bin/sh -c"), "{error}");
        drop(run);
        assert_eq!(left(), 0);
        assert!(Run::start(Command::new("/no/such/program"), Some(parent.path())).is_err());
        assert_eq!(left(), 0);
    }

    #[test]
    fn a_run_that_is_given_up_is_asked_to_end_so_that_it_stops_its_servers() {
        let parent = tempfile::tempdir().unwrap();
        let asked = parent.path().join("asked");
        let script = format!(
            "trap 'kill $!; touch {}; exit' TERM; sleep 1000 & echo ready; wait",
            asked.display()
        );
        let run = Run::start(shell(&script), Some(parent.path())).unwrap();
        let process = Identity::of(run.member.pid().unwrap());
        let ready = || run.printed.text().ok().filter(|text| text == "ready\n");
        wait_for(PATIENCE, ready).unwrap();
        drop(run);
        assert!(!process.is_alive());
        assert!(asked.exists(), "it was killed, and its servers would live on");
    }
}
