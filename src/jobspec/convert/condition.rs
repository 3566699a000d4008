//! Constraints, affinities and spreads. Owns which operands exist and what their targets must look like; never evaluates one.

use std::sync::LazyLock;

use fsm::{
    JobKind, Text,
    job::{Affinity, Constraint, Spread, SpreadTarget},
};
use regex::{Regex, RegexBuilder};

use super::{
    bounded,
    fields::{Fields, Report, is_empty, quoted},
};
use crate::jobspec::suggest::did_you_mean;

/// Weight of an affinity or spread that has none.
const WEIGHT_DEFAULT: i64 = 50;
/// Compiled size of a regular expression, bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Different regular expressions of a job: each is compiled while the request is read, in up to some 10 ms.
const PATTERNS_MAX: usize = 100;

/// Operands of constraints; affinities know all but the `distinct_` ones.
const OPERANDS: [&str; 19] = [
    "=",
    "==",
    "is",
    "!=",
    "not",
    "<",
    "<=",
    ">",
    ">=",
    "is_set",
    "is_not_set",
    "version",
    "semver",
    "regexp",
    "set_contains",
    "set_contains_all",
    "set_contains_any",
    "distinct_hosts",
    "distinct_property",
];

/// Constraints and affinities of one owner.
#[derive(Default)]
pub(super) struct Conditions {
    pub(super) constraints: Vec<Constraint>,
    pub(super) affinities: Vec<Affinity>,
}

/// The `Constraints` and `Affinities` of a job, group or task.
pub(super) fn read(fields: &mut Fields<'_>, kind: JobKind, report: &mut Report) -> Conditions {
    let mut out = Conditions::default();
    let list = fields.list("Constraints", report);
    for (path, item) in bounded(list, &fields.at("Constraints"), report) {
        let Some(mut fields) = Fields::new(item, path, report) else { continue };
        out.constraints.push(constraint(&mut fields, true, report));
        fields.finish(report);
    }
    let list = fields.list("Affinities", report);
    refuse_per_node(!list.is_empty(), fields.at("Affinities"), "affinities", kind, report);
    for (path, item) in bounded(list, &fields.at("Affinities"), report) {
        let Some(mut fields) = Fields::new(item, path, report) else { continue };
        let constraint = constraint(&mut fields, false, report);
        let weight = fields.integer_in("Weight", -100..=100, report).unwrap_or(WEIGHT_DEFAULT);
        if weight == 0 {
            report.error(
                fields.at("Weight"),
                "a weight of 0 has no effect: use -100 to 100 without 0",
            );
        }
        out.affinities.push(Affinity { constraint, weight: i16::try_from(weight).unwrap_or(0) });
        fields.finish(report);
    }
    out
}

fn refuse_per_node(present: bool, path: String, what: &str, kind: JobKind, report: &mut Report) {
    if present && kind.is_per_node() {
        let message = format!(
            "{} jobs run on every feasible node and cannot have {what}: remove them or use constraints",
            kind.name()
        );
        report.error(path, message);
    }
}

fn constraint(fields: &mut Fields<'_>, distinct: bool, report: &mut Report) -> Constraint {
    let left = fields.text("LTarget", report).unwrap_or_default();
    let operand = fields.text_filled("Operand", report).unwrap_or("=");
    let right = fields.text("RTarget", report).unwrap_or_default();
    check_operand(fields, left, operand, right, distinct, report);
    Constraint { left: Text::from(left), operand: Text::from(operand), right: Text::from(right) }
}

fn check_operand(
    fields: &Fields<'_>,
    left: &str,
    operand: &str,
    right: &str,
    distinct: bool,
    report: &mut Report,
) {
    if report.is_full() {
        return;
    }
    let known = OPERANDS.into_iter().filter(|name| distinct || !name.starts_with("distinct_"));
    let known: Vec<_> = known.collect();
    if !known.contains(&operand) {
        let hint = did_you_mean(operand, known.iter().copied())
            .unwrap_or_else(|| format!("use one of {}", known.join(", ")));
        report.error(
            fields.at("Operand"),
            format!("{} is not an operator here: {hint}", quoted(operand)),
        );
        return;
    }
    if left.is_empty() && operand != "distinct_hosts" {
        let message = "is missing: name what is compared, for example \"${attr.kernel.name}\"";
        report.error(fields.at("LTarget"), message);
    }
    let resolved_later = right.contains("${");
    let problem = match operand {
        "is_set" | "is_not_set" if !right.is_empty() => {
            Some(format!("must be empty for {operand}, is {}", quoted(right)))
        }
        "is_set" | "is_not_set" => None,
        "distinct_hosts" => {
            let known = matches!(right, "" | "true" | "false");
            (!known).then(|| format!("must be \"true\" or \"false\", is {}", quoted(right)))
        }
        "distinct_property" => {
            let valid = right.is_empty() || right.parse::<u32>().is_ok_and(|count| count > 0);
            (!valid).then(|| format!("must be a whole number of at least 1, is {}", quoted(right)))
        }
        _ if resolved_later => None,
        "regexp" => regex_problem(right, report),
        "version" => versions_problem(right, &LENIENT, "\">= 1.2, < 2.0\""),
        "semver" => versions_problem(right, &STRICT, "\">= 1.2.0\""),
        _ if right.is_empty() && !matches!(operand, "=" | "==" | "is" | "!=" | "not") => {
            Some(format!("is missing: {operand} needs a value to compare with"))
        }
        _ => None,
    };
    if let Some(problem) = problem {
        report.error(fields.at("RTarget"), problem);
    }
}

fn regex_problem(pattern: &str, report: &mut Report) -> Option<String> {
    if report.patterns.contains(pattern) {
        return None; // judged before
    }
    if report.patterns.len() >= PATTERNS_MAX {
        return Some(format!(
            "is one regular expression too many, at most {PATTERNS_MAX} different ones are allowed: split the job"
        ));
    }
    report.patterns.insert(pattern.to_owned());
    let error = RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build().err()?;
    let text = error.to_string();
    let cause = text.lines().last().unwrap_or(&text).trim_start_matches("error: ").to_owned();
    Some(format!("{} is not a regular expression: {cause}", quoted(pattern)))
}

static LENIENT: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"^\s*(|=|!=|>|<|>=|<=|~>)\s*v?[0-9]{1,9}(\.[0-9]{1,18})*(-?[0-9A-Za-z~][0-9A-Za-z~-]*(\.[0-9A-Za-z~-]+)*)?(\+[0-9A-Za-z~.-]+)?\s*$";
    Regex::new(pattern).expect("a constant pattern that a test compiles")
});
static STRICT: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"^\s*(|=|!=|>|<|>=|<=)\s*[0-9]{1,18}(\.[0-9]{1,18}){0,2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z.-]+)?\s*$";
    Regex::new(pattern).expect("a constant pattern that a test compiles")
});

fn versions_problem(text: &str, grammar: &Regex, example: &str) -> Option<String> {
    let valid = text.split(',').all(|part| grammar.is_match(part));
    (!valid).then(|| {
        format!("{} is not a version condition: write for example {example}", quoted(text))
    })
}

/// The `Spreads` of a job or group.
pub(super) fn spreads(fields: &mut Fields<'_>, kind: JobKind, report: &mut Report) -> Vec<Spread> {
    let list = fields.list("Spreads", report);
    refuse_per_node(!list.is_empty(), fields.at("Spreads"), "spreads", kind, report);
    let mut out: Vec<Spread> = Vec::new();
    for (path, item) in bounded(list, &fields.at("Spreads"), report) {
        let Some(mut fields) = Fields::new(item, path, report) else { continue };
        let path = fields.at("Attribute");
        let attribute = fields.text_filled("Attribute", report).unwrap_or_default();
        if attribute.is_empty() {
            report.error(
                path,
                "is missing: name what is spread over, for example \"${node.datacenter}\"",
            );
        } else if out.iter().any(|other| &*other.attribute == attribute) {
            report.error(path, format!("another spread is over {}: merge them", quoted(attribute)));
        }
        let weight = fields.integer_in("Weight", 1..=100, report).unwrap_or(WEIGHT_DEFAULT);
        let targets = spread_targets(&mut fields, report);
        fields.finish(report);
        out.push(Spread {
            attribute: Text::from(attribute),
            weight: u16::try_from(weight).unwrap_or(0),
            targets,
        });
    }
    out
}

fn spread_targets(fields: &mut Fields<'_>, report: &mut Report) -> Vec<SpreadTarget> {
    let path = fields.at("SpreadTarget");
    let list = fields.list("SpreadTarget", report);
    let mut out: Vec<SpreadTarget> = Vec::new();
    for (path, item) in bounded(list, &path, report) {
        let Some(mut fields) = Fields::new(item, path, report) else { continue };
        let path = fields.at("Value");
        let value = fields.text_filled("Value", report).unwrap_or_default();
        if value.is_empty() {
            report.error(path, "is missing: name the value that gets this share");
        } else if out.iter().any(|other| &*other.value == value) {
            report.error(path, format!("another target is {}: merge them", quoted(value)));
        }
        let percent = fields.integer_in("Percent", 0..=100, report).unwrap_or(0);
        fields.finish(report);
        out.push(SpreadTarget {
            value: Text::from(value),
            percent: u16::try_from(percent).unwrap_or(0),
        });
    }
    let sum: u32 = out.iter().map(|target| u32::from(target.percent)).sum();
    if sum > 100 {
        report.error(path, format!("the percentages add up to {sum}, at most 100 are allowed"));
    }
    out
}

/// Whether a block of a job that runs on every node is one that says something.
pub(super) fn refuse_block_per_node(
    fields: &mut Fields<'_>,
    name: &'static str,
    what: &str,
    kind: JobKind,
    report: &mut Report,
) {
    let present = fields.value(name).is_some_and(|value| !is_empty(value));
    refuse_per_node(present, fields.at(name), what, kind, report);
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;
    use crate::jobspec::MESSAGES_MAX;

    fn read_pattern(pattern: &str, report: &mut Report) {
        let value = json!({"LTarget": "${attr.x}", "Operand": "regexp", "RTarget": pattern});
        let mut fields = Fields::new(&value, "c".to_owned(), report).unwrap();
        drop(constraint(&mut fields, true, report));
    }

    #[test]
    fn regular_expressions_are_compiled_once_and_to_a_bound() {
        let mut report = Report::default();
        for position in 0..2 * PATTERNS_MAX {
            read_pattern(&format!("^a{}$", position % PATTERNS_MAX), &mut report);
        }
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        read_pattern("^b$", &mut report);
        assert_eq!((report.errors.len(), report.patterns.len()), (1, PATTERNS_MAX));
        assert!(report.errors[0].message.contains("split the job"), "{:?}", report.errors);
    }

    #[test]
    fn nothing_is_compiled_for_a_job_that_has_all_its_errors() {
        let mut report = Report::default();
        for _ in 0..MESSAGES_MAX {
            report.error("a", "b");
        }
        read_pattern("^a$", &mut report);
        assert!(report.patterns.is_empty(), "{:?}", report.patterns);
    }
}
