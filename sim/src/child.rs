//! One plan in a process of its own, because a plan repeats only in a fresh process. The child prints its result as one line of JSON.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::swarm::{Override, Swarm};

/// Longest real time of one run.
const RUN_TIMEOUT: Duration = Duration::from_mins(3);
/// In front of the result.
pub(crate) const RESULT: &str = "RESULT ";

/// Where a plan comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is drawn from this seed.
    Seed(u64),
    /// This file holds it.
    File(PathBuf),
}

/// As messages name it.
impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seed(seed) => write!(out, "seed {seed}"),
            Self::File(_) => write!(out, "plan {}", self.name()),
        }
    }
}

impl Origin {
    /// A name for files.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Seed(seed) => seed.to_string(),
            Self::File(path) => {
                path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }
}

/// One run that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) origin: Origin,
    /// What is changed of its plan.
    pub(crate) change: Override,
}

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Broken promises, the first one first.
    pub(crate) failures: Vec<String>,
    pub(crate) servers: usize,
    /// The plan in one line.
    pub(crate) plan: String,
    pub(crate) writes: u64,
    pub(crate) messages: u64,
    pub(crate) virtual_ms: u64,
    pub(crate) events: u64,
    /// Hash of the trace.
    pub(crate) trace: String,
    /// What it met, how often.
    pub(crate) coverage: BTreeMap<String, u64>,
}

impl Case {
    /// The run of a seed as it is.
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self { origin: Origin::Seed(seed), change: Override::default() }
    }

    /// Its plan.
    pub(crate) fn plan(&self) -> anyhow::Result<Swarm> {
        let plan = match &self.origin {
            Origin::Seed(seed) => Swarm::draw(*seed),
            Origin::File(path) => Swarm::load(path)?,
        };
        Ok(plan.changed(&self.change))
    }

    /// The arguments that repeat it.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut out = match &self.origin {
            Origin::Seed(seed) => vec!["--seed".to_owned(), seed.to_string()],
            Origin::File(path) => vec!["--plan".to_owned(), path.display().to_string()],
        };
        out.extend(self.change.arguments());
        out
    }

    /// The command that repeats it, for people.
    pub(crate) fn replay(&self) -> String {
        format!(
            "cargo run --profile sim -p sim -- run {} --trace {}.trace",
            self.arguments().join(" "),
            self.origin.name()
        )
    }

    /// The command that keeps its plan, for people.
    pub(crate) fn keep(&self) -> String {
        format!(
            "cargo run --profile sim -p sim -- plan {} --save sim/regressions/NAME.toml",
            self.arguments().join(" ")
        )
    }

    /// Runs it in a process of its own.
    pub(crate) fn run(&self, trace_file: Option<&Path>, plant: Option<&str>) -> io::Result<Report> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").args(self.arguments()).arg("--json");
        if let Some(path) = trace_file {
            command.arg("--trace").arg(path);
        }
        if let Some(plant) = plant {
            command.env("QUORATE_PLANT", plant);
        }
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        finish(child)
    }
}

/// Waits for a child. One that dies or does not end has failed.
fn finish(mut child: Child) -> io::Result<Report> {
    let deadline = Instant::now() + RUN_TIMEOUT;
    let mut wait = Duration::from_millis(1);
    // A run prints a few lines, which fit the pipe.
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            let failures = vec![format!("no end within {RUN_TIMEOUT:?} of real time")];
            return Ok(Report { failures, ..Report::default() });
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(Duration::from_millis(8));
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.strip_prefix(RESULT));
    let mut report: Report = match result {
        Some(json) => serde_json::from_str(json).map_err(io::Error::other)?,
        None => Report::default(),
    };
    if result.is_none() || (!output.status.success() && report.failures.is_empty()) {
        let last: Vec<String> =
            String::from_utf8_lossy(&output.stderr).lines().take(12).map(str::to_owned).collect();
        report.failures.push(format!("the run died, {}: {}", output.status, last.join(" | ")));
    }
    Ok(report)
}
