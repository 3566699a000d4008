//! Was each fault class really installed?
//!
//! A green run in which no server was ever killed says nothing about kills. A class that was asked for
//! and has no `installed` entry makes the run `unknown`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Verdict;
use crate::history::{Kind, Op, Process};
use crate::nemesis::FaultClass;

/// How the attempts of one class ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Attempts {
    /// The fault was there.
    pub(crate) installed: u64,
    /// It was not tried, because there was nothing to do it to.
    pub(crate) skipped: u64,
    /// It was tried and nobody knows whether it was there.
    pub(crate) indeterminate: u64,
    /// Why the last one that was not installed was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The nemesis part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Unknown if a class was never installed.
    pub(crate) valid: Verdict,
    /// Attempts by class.
    pub(crate) classes: BTreeMap<&'static str, Attempts>,
}

/// Counts the faults of each class that was asked for.
pub(crate) fn check(history: &[Op], classes: &[FaultClass]) -> Report {
    let mut counted = BTreeMap::new();
    for class in classes {
        let mut attempts = Attempts::default();
        // Both ends of a nemesis operation are `info`; only the second one carries an outcome.
        let ends = history.iter().filter(|op| {
            op.process == Process::Nemesis && op.kind == Kind::Info && op.f == class.begin()
        });
        for op in ends {
            match op.value.get("outcome").and_then(serde_json::Value::as_str) {
                Some("installed") => attempts.installed += 1,
                Some("skipped") => attempts.skipped += 1,
                Some(_) => attempts.indeterminate += 1,
                None => continue,
            }
            if let Some(reason) = op.value.get("reason").and_then(serde_json::Value::as_str) {
                attempts.reason = Some(reason.to_owned());
            }
        }
        counted.insert(class.name(), attempts);
    }
    let missing = counted.values().any(|attempts| attempts.installed == 0);
    Report { valid: Verdict::unless(missing, Verdict::Unknown), classes: counted }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_that_was_never_installed_is_unknown() {
        let entry =
            |class: FaultClass, value| Op::new(Process::Nemesis, Kind::Info, class.begin(), value);
        let mut history = vec![
            entry(FaultClass::Kill, json!("one")),
            entry(FaultClass::Kill, json!({"outcome": "installed", "nodes": ["n1"]})),
            entry(FaultClass::Pause, json!("primaries")),
            entry(FaultClass::Pause, json!({"outcome": "skipped", "reason": "no leader is known"})),
        ];
        let classes = [FaultClass::Kill, FaultClass::Pause];
        let report = check(&history, &classes);
        assert_eq!(report.valid, Verdict::Unknown);
        assert_eq!(report.classes["kill"], Attempts { installed: 1, ..Attempts::default() });
        let skipped = &report.classes["pause"];
        assert_eq!((skipped.installed, skipped.skipped), (0, 1));
        assert_eq!(skipped.reason.as_deref(), Some("no leader is known"));
        assert_eq!(check(&history, &[FaultClass::Kill]).valid, Verdict::True);
        history.push(entry(FaultClass::Pause, json!({"outcome": "installed"})));
        assert_eq!(check(&history, &classes).valid, Verdict::True);
        assert_eq!(check(&history, &[]).valid, Verdict::True);
    }
}
