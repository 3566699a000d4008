//! Events of tasks. An agent sends a kind and a sentence; what Nomad's clients look for in an event
//! is read from these.

use std::collections::BTreeMap;

use fsm::TaskEvent;

use crate::time;

/// Between the reason for a restart and its delay.
const RESTARTING_IN: &str = ", task restarting in ";
/// Before the time that a task has to end.
const WAITING: &str = "Sent interrupt. Waiting ";
/// The reason that Nomad does not show.
const WITHIN_POLICY: &str = "Restart within policy";

/// What is told by a kind and its sentence.
#[derive(Default)]
struct Told<'a> {
    /// What a person is to read, where it is not the sentence.
    shown: Option<String>,
    message: &'a str,
    setup_error: &'a str,
    driver_error: &'a str,
    restart_reason: &'a str,
    fails_task: bool,
    /// Nanoseconds, with their text.
    start_delay: Option<(u128, &'a str)>,
    kill_timeout: Option<(u128, &'a str)>,
    signal_name: &'a str,
    failed_sibling: &'a str,
}

impl<'a> Told<'a> {
    fn by(event: &'a TaskEvent) -> Self {
        let said = &*event.message;
        match &*event.kind {
            "Task Setup" => Self { message: said, ..Self::default() },
            "Setup Failure" => Self { setup_error: said, fails_task: true, ..Self::default() },
            "Driver Failure" => Self { driver_error: said, ..Self::default() },
            "Not Restarting" => Self { restart_reason: said, fails_task: true, ..Self::default() },
            "Restart Signaled" => Self { restart_reason: said, ..Self::default() },
            "Signaling" => {
                let (shown, signal) = said.rsplit_once(": ").unwrap_or((said, ""));
                Self { shown: Some(shown.to_owned()), signal_name: signal, ..Self::default() }
            }
            "Sibling Task Failed" => {
                let name = said.split('"').nth(1).unwrap_or_default();
                Self { failed_sibling: name, ..Self::default() }
            }
            "Killing" => {
                let left = said.strip_prefix(WAITING).and_then(|rest| rest.split(' ').next());
                Self { kill_timeout: left.and_then(nanoseconds), ..Self::default() }
            }
            "Restarting" => {
                let Some((reason, delay)) = said.split_once(RESTARTING_IN) else {
                    let delay = said.strip_prefix("Task restarting in ").and_then(nanoseconds);
                    // Without a reason where a user asked for it.
                    let restart_reason = if delay.is_some() { "" } else { said };
                    return Self { restart_reason, start_delay: delay, ..Self::default() };
                };
                let shown = match reason {
                    WITHIN_POLICY => format!("Task restarting in {delay}"),
                    reason => format!("{reason} - Task restarting in {delay}"),
                };
                let start_delay = nanoseconds(delay);
                Self { shown: Some(shown), restart_reason: reason, start_delay, ..Self::default() }
            }
            _ => Self::default(),
        }
    }

    /// All values are texts, as in Nomad.
    fn details(&self, event: &TaskEvent) -> BTreeMap<String, String> {
        let number = |of: Option<(u128, &str)>| of.map(|(value, _)| value.to_string());
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let ended = event.exit_code.is_some();
        let oom = ended.then(|| event.message.ends_with("OOM Killed").to_string());
        let signal = event.signal.or_else(|| ended.then_some(0)).map(|signal| signal.to_string());
        let unknown = event.message.strip_prefix("Exit status unknown: ").filter(|_| ended);
        let restarts = self.start_delay.is_some() || !self.restart_reason.is_empty();
        let restart_reason = restarts.then(|| self.restart_reason.to_owned());
        let pairs = [
            ("message", some(self.message)),
            ("setup_error", some(self.setup_error)),
            ("driver_error", some(self.driver_error)),
            ("restart_reason", restart_reason),
            ("failed_sibling", some(self.failed_sibling)),
            ("start_delay", number(self.start_delay)),
            ("kill_timeout", self.kill_timeout.map(|(_, text)| text.to_owned())),
            ("fails_task", self.fails_task.then(|| "true".to_owned())),
            ("exit_code", event.exit_code.map(|code| code.to_string())),
            ("signal", signal.or_else(|| some(self.signal_name))),
            ("exit_message", unknown.and_then(some)),
            ("oom_killed", oom),
        ];
        let set = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        set.collect()
    }
}

/// A Go duration and its text.
fn nanoseconds(text: &str) -> Option<(u128, &str)> {
    calendar::parse_go_duration(text).map(|duration| (duration.as_nanos(), text))
}

/// An event of a task.
pub(super) fn task_event(event: &TaskEvent) -> shapes::TaskEvent {
    let told = Told::by(event);
    let number =
        |of: Option<(u128, &str)>| of.and_then(|(value, _)| u64::try_from(value).ok()).unwrap_or(0);
    shapes::TaskEvent {
        details: told.details(event),
        display_message: told.shown.clone().unwrap_or_else(|| event.message.to_string()),
        driver_error: told.driver_error.to_owned(),
        exit_code: event.exit_code.unwrap_or(0),
        failed_sibling: told.failed_sibling.to_owned(),
        fails_task: told.fails_task,
        kill_timeout: number(told.kill_timeout),
        kind: event.kind.to_string(),
        message: told.message.to_owned(),
        restart_reason: told.restart_reason.to_owned(),
        setup_error: told.setup_error.to_owned(),
        signal: event.signal.unwrap_or(0),
        start_delay: number(told.start_delay),
        time: time::nanoseconds(event.at_ms),
        ..shapes::TaskEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(kind: &str, message: &str, exit: Option<(i32, i32)>, shown: &str, details: &Value) {
        let event = TaskEvent {
            kind: kind.into(),
            at_ms: 1,
            message: message.into(),
            exit_code: exit.map(|(code, _)| code),
            signal: exit.map(|(_, signal)| signal),
        };
        let found = task_event(&event);
        assert_eq!((found.display_message.as_str(), &json!(found.details)), (shown, details));
    }

    #[test]
    fn details_and_sentences_are_those_of_nomad() {
        let message = "Exit Code: 3";
        let details = json!({ "exit_code": "3", "signal": "0", "oom_killed": "false" });
        check("Terminated", message, Some((3, 0)), message, &details);
        let message = "Exit Code: 137, Signal: 9, OOM Killed";
        let details = json!({ "exit_code": "137", "signal": "9", "oom_killed": "true" });
        check("Terminated", message, Some((137, 9)), message, &details);
        let message = "Exit status unknown: the executor is gone";
        let details = json!({
            "exit_code": "-1", "signal": "0", "oom_killed": "false",
            "exit_message": "the executor is gone",
        });
        check("Terminated", message, Some((-1, 0)), message, &details);
        let details = json!({ "restart_reason": WITHIN_POLICY, "start_delay": "15500000000" });
        let message = "Restart within policy, task restarting in 15.5s";
        check("Restarting", message, None, "Task restarting in 15.5s", &details);
        let details =
            json!({ "restart_reason": "The machine is short", "start_delay": "60000000000" });
        let shown = "The machine is short - Task restarting in 1m0s";
        check("Restarting", "The machine is short, task restarting in 1m0s", None, shown, &details);
        let message = "Sent interrupt. Waiting 5s before force killing";
        check("Killing", message, None, message, &json!({ "kill_timeout": "5s" }));
        let message = "Exceeded allowed attempts";
        let details = json!({ "restart_reason": message, "fails_task": "true" });
        check("Not Restarting", message, None, message, &details);
        let message = "no such command";
        check("Driver Failure", message, None, message, &json!({ "driver_error": message }));
        let message = "Building Task Directory";
        check("Task Setup", message, None, message, &json!({ "message": message }));
        let message = "Task being sent a signal: SIGHUP";
        let details = json!({ "signal": "SIGHUP" });
        check("Signaling", message, None, "Task being sent a signal", &details);
        let message = "Task's sibling \"db\" failed";
        let details = json!({ "failed_sibling": "db" });
        check("Sibling Task Failed", message, None, message, &details);
        let message = "Task restarting in 0s";
        let details = json!({ "restart_reason": "", "start_delay": "0" });
        check("Restarting", message, None, message, &details);
        let message = "Lost together with the agent, task restarting at once: not counted";
        let details = json!({ "restart_reason": message });
        check("Restarting", message, None, message, &details);
        let message = "User requested running tasks to restart";
        let details = json!({ "restart_reason": message });
        check("Restart Signaled", message, None, message, &details);
        let message = "cannot make the task's directory";
        let details = json!({ "setup_error": message, "fails_task": "true" });
        check("Setup Failure", message, None, message, &details);
        for (kind, message) in [
            ("Received", "Task received by client"),
            ("Killed", "Task successfully killed"),
            ("Leader Task Dead", "Leader Task in Group dead"),
            (
                "Waiting for shutdown delay",
                "Waiting for shutdown_delay of 5s before killing the task.",
            ),
        ] {
            check(kind, message, None, message, &json!({}));
        }
        let message = "Task started by client";
        check("Started", message, None, message, &json!({}));
    }
}
