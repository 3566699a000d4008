//! What drivers take in a task's `config`. Owns the names and types of the settings, so that a
//! mistake is found when a job is registered and not by one node after the other; a test of the
//! agent compares them with what its drivers read.
//!
//! The config of a driver that is not known here is left as it is: an agent of another build may
//! have that driver.

use serde_json::{Map, Value};

use super::{
    fields::{Report, quoted, show, warn_of_nanoseconds},
    stored::without_nulls,
};
use calendar::duration;

use crate::suggest::{did_you_mean, nearest};

/// What a setting holds.
#[derive(Clone, Copy)]
enum Kind {
    /// Text that is not empty; the driver cannot do without.
    Command,
    Text,
    /// Texts; numbers and truth values stand for their text.
    Arguments,
    /// What fits 32 bits.
    Integer,
    Boolean,
    /// `"30s"`, or nanoseconds.
    Duration,
}

/// A driver that is built here.
struct Driver {
    names: &'static [&'static str],
    settings: &'static [(&'static str, Kind)],
    /// Settings of Nomad's driver of this name.
    unsupported: &'static [&'static str],
}

static DRIVERS: [Driver; 2] = [
    Driver {
        names: &["raw_exec"],
        settings: &[
            ("command", Kind::Command),
            ("args", Kind::Arguments),
            ("work_dir", Kind::Text),
        ],
        unsupported: &[
            "cgroup_v1_override",
            "cgroup_v2_override",
            "denied_envvars",
            "oom_score_adj",
        ],
    },
    Driver {
        names: &["mock", "mock_driver"],
        settings: &[
            ("run_for", Kind::Duration),
            ("exit_code", Kind::Integer),
            ("exit_signal", Kind::Integer),
            ("exit_err_msg", Kind::Text),
            ("start_error", Kind::Text),
            ("start_error_recoverable", Kind::Boolean),
            ("node_failure", Kind::Text),
            ("start_block_for", Kind::Duration),
            ("kill_after", Kind::Duration),
        ],
        unsupported: &[
            "driver_advertise",
            "driver_ip",
            "driver_port_map",
            "exec_command",
            "fs_isolation",
            "plugin_exit_after",
            "signal_error",
            "stdout_repeat",
            "stdout_repeat_duration",
            "stdout_string",
        ],
    },
];

/// Drivers of Nomad's, and of plugins for it, that no agent has yet.
const UNBUILT: [&str; 11] = [
    "containerd-driver",
    "docker",
    "exec",
    "exec2",
    "firecracker-task-driver",
    "java",
    "lxc",
    "nspawn",
    "podman",
    "qemu",
    "virt",
];

fn known(name: &str) -> Option<&'static Driver> {
    DRIVERS.iter().find(|driver| driver.names.contains(&name))
}

/// Whether the config of a task with this driver is checked.
pub fn is_checked(name: &str) -> bool {
    known(name).is_some()
}

/// What to say of a driver that no node has.
pub fn say_missing(name: &str) -> String {
    let shown = quoted(name);
    let names = DRIVERS.iter().flat_map(|driver| driver.names.iter().copied());
    let why = if UNBUILT.contains(&name) {
        format!("the driver {shown} is not built here yet, and no node has it")
    } else if let Some(other) = nearest(name, names.clone()).filter(|_| known(name).is_none()) {
        format!("no node has the driver {shown}; did you mean \"{other}\"?")
    } else {
        format!("no node has the driver {shown}")
    };
    format!("{why}: the task starts nowhere until a node with it comes")
}

/// Checks the config of a task, and gives it as it is stored: to a driver that is known, null says
/// nothing.
pub(super) fn checked(name: &str, config: &Value, path: &str, report: &mut Report) -> Value {
    let (Some(driver), Value::Object(settings)) = (known(name), config) else {
        return config.clone();
    };
    for (key, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
        if report.is_full() {
            break;
        }
        match driver.settings.iter().find(|(known, _)| known == key) {
            Some((_, kind)) => check_setting(*kind, value, &format!("{path}.{key}"), report),
            None => refuse_unknown(driver, name, key, path, report),
        }
    }
    let is_absent =
        |key: &str, settings: &Map<String, Value>| settings.get(key).is_none_or(Value::is_null);
    for (key, kind) in driver.settings {
        if matches!(kind, Kind::Command) && is_absent(key, settings) {
            report.error(path, format!("driver {name} needs a {key}: add it"));
        }
    }
    without_nulls(config)
}

fn refuse_unknown(driver: &Driver, name: &str, key: &str, path: &str, report: &mut Report) {
    let shown = quoted(key);
    let path = format!("{path}.{}", key.chars().take(64).collect::<String>());
    if driver.unsupported.contains(&key) {
        let message = format!(
            "{shown} of driver {name} is not supported yet: remove it or run this job elsewhere"
        );
        report.error(path, message);
        return;
    }
    let names = driver.settings.iter().map(|(name, _)| *name);
    let hint = did_you_mean(key, names.clone())
        .unwrap_or_else(|| format!("allowed are {}", names.collect::<Vec<_>>().join(", ")));
    report.error(path, format!("driver {name} has no setting {shown}: {hint}"));
}

fn check_setting(kind: Kind, value: &Value, path: &str, report: &mut Report) {
    let wanted = match kind {
        Kind::Command => match value.as_str() {
            Some("") => return report.error(path, "must not be empty"),
            Some(text) => return check_nul(text, path, report),
            None => "a text",
        },
        Kind::Text if value.is_string() => return,
        Kind::Text => "a text",
        Kind::Arguments => match value.as_array() {
            Some(items) => return check_arguments(items, path, report),
            None => "a list of texts such as [\"-v\"]",
        },
        Kind::Integer if value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) => {
            return;
        }
        Kind::Integer => "a whole number of at most 32 bits",
        Kind::Boolean if value.is_boolean() => return,
        Kind::Boolean => "true or false",
        Kind::Duration => return check_duration(value, path, report),
    };
    report.error(path, format!("expected {wanted}, found {}", show(value)));
}

fn check_nul(text: &str, path: &str, report: &mut Report) {
    if text.contains('\0') {
        report.error(path, "has a NUL character: remove it");
    }
}

fn check_arguments(items: &[Value], path: &str, report: &mut Report) {
    for (place, item) in items.iter().enumerate() {
        let path = format!("{path}[{place}]");
        match item {
            Value::String(text) => check_nul(text, &path, report),
            Value::Number(_) | Value::Bool(_) => {}
            Value::Null | Value::Array(_) | Value::Object(_) => {
                let message =
                    format!("expected a text, a number, true or false, found {}", show(item));
                report.error(path, message);
            }
        }
    }
}

/// A text with a reference is a duration, or none, on the node alone.
fn check_duration(value: &Value, path: &str, report: &mut Report) {
    match value {
        Value::String(text) if text.contains("${") => {}
        Value::String(text) => match duration::parse(text) {
            Ok(nanoseconds) if nanoseconds < 0 => report.error(path, "must not be negative"),
            Ok(_) => {}
            Err(message) => report.error(path, message),
        },
        Value::Number(number) if number.is_u64() => {
            warn_of_nanoseconds(number.as_i64().unwrap_or(i64::MAX), path, report);
        }
        Value::Number(number) if number.is_i64() => report.error(path, "must not be negative"),
        Value::Number(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            let message = format!("expected a duration such as \"30s\", found {}", show(value));
            report.error(path, message);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::{Value, json};

    use crate::to_spec;

    /// Errors and warnings of a job with this driver and config.
    fn judged(driver: &str, config: &Value) -> (Vec<String>, Vec<String>) {
        let task = json!({"Name": "t", "Driver": driver, "Config": config});
        let job = json!({"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task]}]});
        match to_spec(&job) {
            Ok(conversion) => (Vec::new(), conversion.warnings),
            Err(errors) => (errors.iter().map(ToString::to_string).collect(), Vec::new()),
        }
    }

    #[track_caller]
    fn refused(driver: &str, config: &Value, at: &str, words: &str) {
        let (errors, _) = judged(driver, config);
        let start = format!("Job.TaskGroups[0].Tasks[0].Config{at}: ");
        assert!(
            errors.len() == 1 && errors[0].starts_with(&start) && errors[0].contains(words),
            "{driver} {config}: {errors:?}"
        );
    }

    #[test]
    fn a_config_that_its_driver_does_not_read_is_refused_with_its_place() {
        let raw = |config: Value, at: &str, words: &str| refused("raw_exec", &config, at, words);
        raw(json!(null), "", "driver raw_exec needs a command");
        raw(json!({}), "", "driver raw_exec needs a command");
        raw(json!({"command": null}), "", "needs a command");
        raw(json!({"command": ""}), ".command", "must not be empty");
        raw(json!({"command": 7}), ".command", "expected a text, found 7");
        raw(json!({"command": "a\0b"}), ".command", "NUL");
        raw(json!({"command": "x", "args": "-v"}), ".args", "expected a list");
        raw(json!({"command": "x", "args": ["a", []]}), ".args[1]", "found a list");
        raw(json!({"command": "x", "args": ["\0"]}), ".args[0]", "NUL");
        raw(json!({"command": "x", "work_dir": 1}), ".work_dir", "expected a text");
        raw(json!({"command": "x", "arg": []}), ".arg", "did you mean \"args\"?");
        raw(json!({"command": "x", "image": "y"}), ".image", "allowed are command, args, work_dir");
        raw(json!({"command": "x", "oom_score_adj": 1}), ".oom_score_adj", "not supported yet");
        for driver in ["mock", "mock_driver"] {
            let mock = |config: Value, at: &str, words: &str| refused(driver, &config, at, words);
            mock(json!({"run_fro": "2s"}), ".run_fro", "did you mean \"run_for\"?");
            mock(json!({"run_for": "soon"}), ".run_for", "is not a duration");
            mock(json!({"run_for": "-1s"}), ".run_for", "negative");
            mock(json!({"run_for": -1}), ".run_for", "negative");
            mock(json!({"run_for": true}), ".run_for", "expected a duration");
            mock(json!({"exit_code": "1"}), ".exit_code", "expected a whole number");
            mock(json!({"exit_code": 1_u64 << 40}), ".exit_code", "32 bits");
            mock(json!({"start_error_recoverable": 1}), ".start_error_recoverable", "true or");
            mock(json!({"signal_error": "x"}), ".signal_error", "not supported yet");
        }
    }

    #[test]
    fn a_config_that_its_driver_reads_is_taken_and_others_are_left_alone() {
        for (driver, config) in [
            ("raw_exec", json!({"command": "x", "args": ["a", 1, true], "work_dir": null})),
            ("raw_exec", json!({"command": "${meta.x}"})),
            ("mock", json!(null)),
            ("mock", json!({"run_for": "${meta.time}", "exit_code": 3})),
            ("docker", json!({"image": "redis", "ports": ["db"]})),
            ("docker", json!({"work_dir": null})),
        ] {
            assert_eq!(judged(driver, &config), (Vec::new(), Vec::new()), "{driver} {config}");
        }
    }

    #[test]
    fn null_says_nothing_to_a_known_driver() {
        let stored = |driver: &str| {
            let config = json!({"command": "x", "args": null});
            let task = json!({"Name": "t", "Driver": driver, "Config": config});
            let job = json!({"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task]}]});
            to_spec(&job).unwrap().spec.groups[0].tasks[0].config_json.to_string()
        };
        assert_eq!(stored("raw_exec"), r#"{"command":"x"}"#);
        assert_eq!(stored("docker"), r#"{"args":null,"command":"x"}"#);
    }

    #[test]
    fn a_missing_driver_is_called_unbuilt_or_a_slip_or_just_absent() {
        let says = super::say_missing;
        assert!(says("docker").contains("not built here yet"), "{}", says("docker"));
        assert!(says("rawexec").contains("did you mean \"raw_exec\"?"), "{}", says("rawexec"));
        assert!(says("mine").starts_with("no node has the driver \"mine\": "), "{}", says("mine"));
        assert!(!says("raw_exec").contains("mean"), "{}", says("raw_exec"));
    }

    #[test]
    fn a_number_that_can_hardly_mean_nanoseconds_is_told() {
        let (errors, warnings) = judged("mock", &json!({"run_for": 3}));
        assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
        assert!(warnings[0].contains("Config.run_for: is 3 ns"), "{warnings:?}");
        assert!(judged("mock", &json!({"run_for": 3_000_000_000_u64})).1.is_empty());
    }
}
