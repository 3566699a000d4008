//! Readiness of the machine for work: when the check runs, and when its result is reported.
//!
//! ```text
//!  servers want it ─┐                       ┌─ new outcome, or wanted success ─► Ready call
//!  a task ended ────┼─► check, one at a time ┤
//!  not ready yet ───┘   (after the interval) └─ nothing new: said to nobody
//! ```
//! [`CheckTimer`] decides, without a clock or a process of its own. The servers decide what a
//! result means. Nothing here may delay a heartbeat, a status or the stream.

use std::{sync::Arc, time::Duration};

use fsm::node::Readiness;
use futures_util::future::BoxFuture;
use ground::rt::Instant;

use crate::time::after;

/// Longest reason of a result, bytes.
const REASON_BYTES_MAX: usize = fsm::limits::NODE_REASON_BYTES_MAX;
/// If only the reason changes and not the outcome, it is reported at most once in this time.
const REASON_PAUSE: Duration = Duration::from_mins(1);

/// Whether a check follows the end of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AfterTask {
    Never,
    #[default]
    Failed,
    Always,
}

/// `[readiness]` of the agent's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadinessSettings {
    /// Program and arguments, run without a shell. Not empty.
    pub command: Vec<String>,
    /// Pause between two checks while the node is not ready.
    pub interval: Duration,
    pub timeout: Duration,
    pub after_task: AfterTask,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    pub readiness: Readiness,
    /// First line of the output, or why the check did not succeed.
    pub reason: String,
}

impl Checked {
    /// A result. The reason is cut to its first line and to the length that the servers keep.
    pub fn new(readiness: Readiness, reason: &str) -> Self {
        let line = reason.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
        let end = line.floor_char_boundary(REASON_BYTES_MAX);
        Self { readiness, reason: line[..end].to_owned() }
    }
}

/// How readiness is checked: by a command, or by a script on a simulated machine.
pub trait ReadinessProbe: Send + Sync + 'static {
    /// Runs one check. Dropping the future ends the check.
    fn check(&self) -> BoxFuture<'_, Checked>;
}

/// How a node is checked.
#[derive(Clone)]
pub(crate) struct Checks {
    /// `None`: the node is always ready.
    pub(crate) probe: Option<Arc<dyn ReadinessProbe>>,
    pub(crate) interval: Duration,
    pub(crate) after_task: AfterTask,
}

impl Checks {
    /// The node is ready as soon as its statuses are known.
    pub(crate) fn none() -> Self {
        Self { probe: None, interval: Duration::from_secs(5), after_task: AfterTask::Never }
    }
}

/// Decides when to check and what to report. A pure state machine.
#[derive(Debug)]
pub(crate) struct CheckTimer {
    interval: Duration,
    /// The servers want checks until one succeeds.
    is_wanted: bool,
    /// The last check failed, so it is repeated.
    repeats: bool,
    after_task: bool,
    checked_at: Option<Instant>,
    /// The last result that the servers have acknowledged, and when.
    said: Option<(Checked, Instant)>,
    sequence: u64,
}

impl CheckTimer {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            is_wanted: false,
            repeats: false,
            after_task: false,
            checked_at: None,
            said: None,
            sequence: 0,
        }
    }

    /// Begins a registration. The servers know no earlier results.
    pub(crate) fn begin(&mut self) {
        (self.said, self.checked_at) = (None, None);
    }

    /// Takes over from a heartbeat whether the servers want a check. A new wish is fulfilled at
    /// once.
    pub(crate) fn want(&mut self, is_wanted: bool) {
        if is_wanted && !self.is_wanted && !self.repeats {
            self.checked_at = None;
        }
        self.is_wanted = is_wanted;
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Requests a check because an allocation has ended.
    pub(crate) fn task_ended(&mut self) {
        self.after_task = true;
    }

    /// When to check next. `None`: no check is wanted.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        if self.after_task {
            return Some(now);
        }
        let repeated_at = self.checked_at.map_or(now, |at| after(at, self.interval));
        (self.is_wanted || self.repeats).then_some(repeated_at)
    }

    /// Takes the result of a check. Returns whether to report it.
    pub(crate) fn found(&mut self, now: Instant, found: &Checked) -> bool {
        (self.after_task, self.checked_at) = (false, Some(now));
        self.repeats = found.readiness == Readiness::Retry;
        if found.readiness == Readiness::Ok && self.is_wanted {
            return true;
        }
        self.said.as_ref().is_none_or(|(said, at)| {
            said.readiness != found.readiness
                || (said.reason != found.reason && now >= after(*at, REASON_PAUSE))
        })
    }

    /// The servers have acknowledged a result. After success or a fatal result no check follows
    /// until they want another.
    pub(crate) fn acknowledged(&mut self, now: Instant, found: Checked) {
        if found.readiness != Readiness::Retry {
            self.is_wanted = false;
        }
        self.said = Some((found, now));
    }

    /// The sequence of the next report. It is at least the time since boot, so that it also rises
    /// over a restart of the agent.
    pub(crate) fn next_sequence(&mut self, since_boot_ms: u64) -> u64 {
        self.sequence = since_boot_ms.max(self.sequence.saturating_add(1));
        self.sequence
    }
}

/// A probe that follows a script. The script lists results with their numbers of repetition; the
/// last result is repeated for ever.
#[derive(Debug)]
pub struct ScriptedProbe {
    steps: Vec<(Checked, u32)>,
    made: std::sync::atomic::AtomicU32,
}

impl ScriptedProbe {
    /// Parses a script such as `not-ready:3,ready`: the words `ready`, `not-ready` and `fatal`,
    /// each with the number of checks that give it.
    pub fn parse(script: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        for part in script.split(',').map(str::trim) {
            let (word, times) = part.split_once(':').unwrap_or((part, "1"));
            let readiness = match word {
                "ready" => Readiness::Ok,
                "not-ready" => Readiness::Retry,
                "fatal" => Readiness::Fatal,
                _ => {
                    return Err(format!("`{word}` is none of ready, not-ready, fatal"));
                }
            };
            let times = times.parse::<u32>().ok().filter(|times| *times > 0);
            let times = times.ok_or_else(|| format!("`{part}`: how often must be a number"))?;
            let reason = if readiness == Readiness::Ok { "" } else { "as the script says" };
            steps.push((Checked::new(readiness, reason), times));
        }
        Ok(Self { steps, made: std::sync::atomic::AtomicU32::new(0) })
    }

    fn next(&self) -> Checked {
        let mut made = self.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for (checked, times) in &self.steps {
            if made < *times {
                return checked.clone();
            }
            made = made.saturating_sub(*times);
        }
        let (last, _) = self.steps.last().expect("a script has a step");
        last.clone()
    }
}

impl ReadinessProbe for ScriptedProbe {
    fn check(&self) -> BoxFuture<'_, Checked> {
        Box::pin(std::future::ready(self.next()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn checked(readiness: Readiness, reason: &str) -> Checked {
        Checked::new(readiness, reason)
    }

    /// Runs a check at `now`, and acknowledges a report. Returns whether there was one.
    fn check(timer: &mut CheckTimer, now: Instant, readiness: Readiness, reason: &str) -> bool {
        let found = checked(readiness, reason);
        let is_said = timer.found(now, &found);
        if is_said {
            timer.acknowledged(now, found);
        }
        is_said
    }

    /// Wanted checks are repeated after the interval until one succeeds. Only changes are reported.
    #[test]
    fn a_node_is_checked_until_it_is_ready() {
        let now = Instant::now();
        let mut timer = CheckTimer::new(INTERVAL);
        assert_eq!(timer.due_at(now), None);
        timer.want(true);
        assert_eq!(timer.due_at(now), Some(now));
        assert!(check(&mut timer, now, Readiness::Retry, "no disk"));
        assert_eq!(timer.due_at(now), Some(now + INTERVAL));
        timer.want(true);
        assert_eq!(timer.due_at(now), Some(now + INTERVAL), "the same wish again");
        assert!(!check(&mut timer, now + INTERVAL, Readiness::Retry, "no disk"));
        assert!(!check(&mut timer, now + INTERVAL, Readiness::Retry, "no disk at 12:01"));
        let later = now + REASON_PAUSE;
        assert!(check(&mut timer, later, Readiness::Retry, "no disk at 12:02"));
        assert!(check(&mut timer, later, Readiness::Ok, ""));
        assert_eq!(timer.due_at(later), None);
        timer.want(true);
        assert!(
            check(&mut timer, later, Readiness::Ok, ""),
            "success is said whenever it is wanted"
        );
    }

    /// A failed check after the end of a task is repeated until one succeeds. Both results are
    /// reported.
    #[test]
    fn a_failed_check_after_a_task_is_repeated() {
        let now = Instant::now();
        let mut timer = CheckTimer::new(INTERVAL);
        timer.want(true);
        assert!(check(&mut timer, now, Readiness::Ok, ""));
        timer.task_ended();
        assert_eq!(timer.due_at(now), Some(now));
        assert!(!check(&mut timer, now, Readiness::Ok, ""), "nothing is new");
        timer.task_ended();
        assert!(check(&mut timer, now, Readiness::Retry, "hot"));
        timer.want(false);
        assert_eq!(timer.due_at(now), Some(now + INTERVAL), "repeated without being asked for");
        assert!(check(&mut timer, now + INTERVAL, Readiness::Ok, ""));
        assert_eq!(timer.due_at(now), None);
    }

    /// After a fatal result the servers say when to check again.
    #[test]
    fn a_fatal_result_waits_for_the_servers() {
        let now = Instant::now();
        let mut timer = CheckTimer::new(INTERVAL);
        timer.want(true);
        assert!(check(&mut timer, now, Readiness::Fatal, "memory"));
        assert_eq!(timer.due_at(now), None);
        timer.want(true);
        assert_eq!(timer.due_at(now), Some(now), "at once");
        timer.begin();
        assert!(check(&mut timer, now, Readiness::Fatal, "memory"), "said again after registering");
    }

    #[test]
    fn sequences_rise_with_time_and_without() {
        let mut timer = CheckTimer::new(INTERVAL);
        let sequences = [500, 500, 400, 9_000].map(|ms| timer.next_sequence(ms));
        assert_eq!(sequences, [500, 501, 502, 9_000]);
    }

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(checked(Readiness::Retry, "\n  a b \nc").reason, "a b");
        assert_eq!(checked(Readiness::Retry, &"ä".repeat(200)).reason.len(), 256);
        assert_eq!(checked(Readiness::Retry, &"ä".repeat(127)).reason.len(), 254);
    }

    #[test]
    fn a_script_is_walked_and_its_last_word_stays() {
        let probe = ScriptedProbe::parse("not-ready:2, ready").expect("a script");
        let walked: Vec<_> = (0..4).map(|_| probe.next().readiness).collect();
        assert_eq!(walked, [Readiness::Retry, Readiness::Retry, Readiness::Ok, Readiness::Ok]);
        for bad in ["", "maybe", "ready:0", "ready:x"] {
            assert!(ScriptedProbe::parse(bad).is_err(), "{bad}");
        }
    }
}
