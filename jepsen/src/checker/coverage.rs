//! Was each fault class really installed?
//!
//! A green run in which no server was ever killed says nothing about kills. A class that was asked for
//! and has no `installed` entry makes the run `unknown`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Verdict;
use crate::{
    fault::FaultClass,
    history::{Function, Kind, Op, Process},
};

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
    /// Classes that this machine, user or binary cannot do, with the reason.
    pub(crate) unavailable: BTreeMap<&'static str, String>,
}

/// What was asked for.
pub(crate) struct Asked<'a> {
    /// The classes.
    pub(crate) classes: &'a [FaultClass],
    /// Why some of them could not be injected here.
    pub(crate) unavailable: &'a BTreeMap<FaultClass, String>,
    /// How often each of them has to be installed.
    pub(crate) at_least: u64,
}

/// Counts the faults of each class that was asked for.
pub(crate) fn check(history: &[Op], asked: &Asked<'_>) -> Report {
    let classes = asked.classes;
    let mut counted = BTreeMap::new();
    for class in classes {
        let mut attempts =
            Attempts { reason: asked.unavailable.get(class).cloned(), ..Attempts::default() };
        // Both ends of a nemesis operation are `info`; only the second one carries an outcome.
        let ends = history.iter().filter(|op| {
            op.process == Process::Nemesis
                && op.kind == Kind::Info
                && op.f == Function::Fault(class.begin())
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
    let missing = counted.values().any(|attempts| attempts.installed < asked.at_least);
    let unavailable = asked.unavailable.iter();
    let unavailable = unavailable.map(|(class, why)| (class.name(), why.clone())).collect();
    Report { valid: Verdict::unless(missing, Verdict::Unknown), classes: counted, unavailable }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_that_was_never_installed_is_unknown() {
        let entry = |class: FaultClass, value| {
            Op::new(Process::Nemesis, Kind::Info, Function::Fault(class.begin()), value)
        };
        let mut history = vec![
            entry(FaultClass::Kill, json!("one")),
            entry(FaultClass::Kill, json!({"outcome": "installed", "nodes": ["n1"]})),
            entry(FaultClass::Pause, json!("primaries")),
            entry(FaultClass::Pause, json!({"outcome": "skipped", "reason": "no leader is known"})),
        ];
        let none = BTreeMap::new();
        let check = |history: &[Op], classes: &[FaultClass]| {
            super::check(history, &Asked { classes, unavailable: &none, at_least: 1 })
        };
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

    #[test]
    fn a_class_without_means_and_too_few_cycles_are_unknown() {
        let installed = Op::new(
            Process::Nemesis,
            Kind::Info,
            Function::Fault(FaultClass::Power.begin()),
            json!({"outcome": "installed"}),
        );
        let history = [installed];
        let classes = [FaultClass::Power];
        let none = BTreeMap::new();
        let ask =
            |at_least| check(&history, &Asked { classes: &classes, unavailable: &none, at_least });
        assert_eq!((ask(1).valid, ask(2).valid), (Verdict::True, Verdict::Unknown));
        let unavailable = BTreeMap::from([(FaultClass::Power, "it needs root".to_owned())]);
        let asked = Asked { classes: &classes, unavailable: &unavailable, at_least: 1 };
        let report = check(&[], &asked);
        assert_eq!(report.valid, Verdict::Unknown);
        assert_eq!(report.classes["power"].reason.as_deref(), Some("it needs root"));
        assert_eq!(report.unavailable["power"], "it needs root");
    }
}
