//! What every command has: where it asks, where it prints, what time it is, how often it looks.
//!
//! Must never hold state of a command.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::client::{ADDRESS_DEFAULT, Client, ClientError, Target};
use super::output::{Cell, Output};
use super::time;

/// Between two looks at something that is being followed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a followed read may fail before the command gives up.
const READ_FAILURE_MAX: Duration = Duration::from_mins(1);

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0.
    Success,
    /// 1: done as asked, but the answer is no (validation, a failed allocation), or a plan creates
    /// or ends allocations.
    Failure,
    /// 2: registered, but not all of it could be placed.
    NotPlaced,
    /// 255: there is no plan.
    PlanError,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::NotPlaced => 2,
            Self::PlanError => 255,
        }
    }
}

/// What a command returns.
pub(crate) type Outcome = anyhow::Result<Exit>;

/// Flags that every command has.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct GlobalFlags {
    #[arg(
        long,
        help = "HTTP address of any server [QUORATE_ADDR, NOMAD_ADDR; default http://127.0.0.1:4646]",
        global = true,
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub(crate) address: Option<String>,
    #[arg(
        long,
        help = "Secret of the token to ask with [QUORATE_TOKEN, NOMAD_TOKEN]",
        global = true,
        value_name = "SECRET",
        help_heading = "Connection"
    )]
    pub(crate) token: Option<String>,
    #[arg(
        long,
        help = "Namespace of jobs, allocations and evaluations [QUORATE_NAMESPACE, NOMAD_NAMESPACE]",
        global = true,
        value_name = "NAME",
        help_heading = "Connection"
    )]
    pub(crate) namespace: Option<String>,
    #[arg(
        long,
        help = "Region that the request is for [QUORATE_REGION, NOMAD_REGION]",
        global = true,
        value_name = "NAME",
        help_heading = "Connection"
    )]
    pub(crate) region: Option<String>,
    #[arg(
        long,
        help = "Print no colours [QUORATE_CLI_NO_COLOR, NOMAD_CLI_NO_COLOR, NO_COLOR]",
        global = true,
        help_heading = "Output"
    )]
    no_color: bool,
    #[arg(
        long,
        help = "Print colours also where no terminal is [QUORATE_CLI_FORCE_COLOR, NOMAD_CLI_FORCE_COLOR]",
        global = true,
        help_heading = "Output"
    )]
    force_color: bool,
}

impl GlobalFlags {
    /// Whether to print colours: flags over variables over whether a terminal is there. No colours
    /// is the stronger word.
    pub(crate) fn colours(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        is_terminal: bool,
    ) -> bool {
        let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
        let any = |name: &str| {
            is_set(&format!("QUORATE_CLI_{name}")) || is_set(&format!("NOMAD_CLI_{name}"))
        };
        match (self.no_color, self.force_color) {
            (true, _) => false,
            (false, true) => true,
            (false, false) if any("NO_COLOR") || is_set("NO_COLOR") => false,
            (false, false) => is_terminal || any("FORCE_COLOR"),
        }
    }

    /// Flags over `QUORATE_*` over `NOMAD_*`; empty variables count as not set.
    pub(crate) fn target(&self, variable: &dyn Fn(&str) -> Option<String>) -> Target {
        let choose = |flag: &Option<String>, name: &str| {
            let set =
                |prefix: &str| variable(&format!("{prefix}_{name}")).filter(|v| !v.is_empty());
            flag.clone().or_else(|| set("QUORATE")).or_else(|| set("NOMAD"))
        };
        Target {
            address: choose(&self.address, "ADDR").unwrap_or_else(|| ADDRESS_DEFAULT.to_owned()),
            token: choose(&self.token, "TOKEN"),
            namespace: choose(&self.namespace, "NAMESPACE"),
            region: choose(&self.region, "REGION"),
        }
    }
}

/// What every command has.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) output: Arc<Output>,
    /// Whether diffs have colours.
    pub(crate) colours: bool,
    pub(crate) now: fn() -> SystemTime,
    pub(crate) poll_interval: Duration,
    pub(crate) read_failure_max: Duration,
    /// A line that a person types; none: nobody is there.
    pub(crate) typed_line: fn() -> Option<String>,
}

impl Context {
    pub(crate) fn new(target: Target, output: Arc<Output>) -> Result<Self, ClientError> {
        Ok(Self {
            client: Client::new(target)?,
            colours: output.is_terminal(),
            output,
            now: SystemTime::now,
            poll_interval: POLL_INTERVAL,
            read_failure_max: READ_FAILURE_MAX,
            typed_line,
        })
    }

    /// Nanoseconds since 1970.
    pub(crate) fn now_nanoseconds(&self) -> i64 {
        time::nanoseconds((self.now)())
    }

    /// The columns (heading, field) of a list, with the namespace where rows of all namespaces are
    /// asked for.
    pub(crate) fn with_namespace<'a>(
        &self,
        columns: &[(&'a str, &'a str)],
    ) -> Vec<(&'a str, &'a str)> {
        let mut columns = columns.to_vec();
        if self.client.namespace() == Some("*") {
            columns.insert(1, ("Namespace", "Namespace"));
        }
        columns
    }

    /// The columns of a list, with the namespace where rows of all namespaces are asked for.
    pub(crate) fn with_namespaces<'a, T>(
        &self,
        columns: &[(&'a str, Cell<'a, T>)],
        namespace: Cell<'a, T>,
    ) -> Vec<(&'a str, Cell<'a, T>)> {
        let mut columns = columns.to_vec();
        if self.client.namespace() == Some("*") {
            columns.insert(1, ("Namespace", namespace));
        }
        columns
    }

    /// Prints a line.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> anyhow::Result<()> {
        Ok(self.output.line(text)?)
    }

    /// Sleeps until the next look.
    pub(crate) fn pause(&self) {
        std::thread::sleep(self.poll_interval);
    }

    /// A read of something that is being followed: failures that pass are waited out, with one
    /// warning.
    pub(crate) fn get_patiently(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Value, ClientError> {
        let mut failing = Duration::ZERO;
        loop {
            match self.client.get(path, query) {
                Err(error) if error.is_transient() && failing < self.read_failure_max => {
                    if failing.is_zero() {
                        self.output.advice(format!("    (still trying: {})", first_line(&error)));
                    }
                    self.pause();
                    failing += self.poll_interval;
                }
                other => return other,
            }
        }
    }
}

fn typed_line() -> Option<String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    let mut line = String::new();
    stdin.read_line(&mut line).ok()?;
    Some(line)
}

fn first_line(error: &ClientError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Who this program says it acts for: `user@host`.
pub(crate) fn actor() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy().into_owned();
    format!("{}@{host}", user.as_deref().unwrap_or("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_and_for_whoever_asks() {
        let says = |no: bool, force: bool, set: &'static str, is_terminal: bool| {
            let flags = GlobalFlags { no_color: no, force_color: force, ..GlobalFlags::default() };
            flags.colours(&|name| (name == set).then(|| "1".to_owned()), is_terminal)
        };
        assert!(says(false, false, "", true) && !says(false, false, "", false));
        for set in ["QUORATE_CLI_NO_COLOR", "NOMAD_CLI_NO_COLOR", "NO_COLOR"] {
            assert!(!says(false, false, set, true), "{set}");
            assert!(says(false, true, set, false), "a flag is the stronger word than {set}");
        }
        assert!(says(false, false, "NOMAD_CLI_FORCE_COLOR", false));
        assert!(!says(true, true, "NOMAD_CLI_FORCE_COLOR", true));
    }
}
