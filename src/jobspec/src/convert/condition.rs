//! Constraints, affinities and spreads. Owns which operands exist and what their targets must look
//! like; never evaluates one.

use fsm::{
    JobKind, Text,
    job::{Affinity, Constraint, Spread, SpreadTarget},
};

use super::{
    bounded,
    fields::{Fields, Report, is_empty, quoted},
};
use crate::suggest::{did_you_mean, nearest};

/// Weight of an affinity or spread that has none.
const WEIGHT_DEFAULT: i64 = 50;
/// Different regular expressions of a job: each is compiled while the request is read, in up to
/// some 10 ms.
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

/// The `Constraints` and `Affinities` of a job, group or task. What must be `distinct` concerns
/// whole instances and so no task.
pub(super) fn read(
    fields: &mut Fields<'_>,
    kind: JobKind,
    distinct: bool,
    report: &mut Report,
) -> Conditions {
    let mut out = Conditions::default();
    let list = fields.list("Constraints", report);
    for (path, item) in bounded(list, &fields.at("Constraints"), report) {
        let Some(mut fields) = Fields::new(item, path, report) else { continue };
        out.constraints.push(constraint(&mut fields, distinct, report));
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
    match kind {
        JobKind::System if present => {
            let message = format!(
                "system jobs run on every feasible node and cannot have {what}: remove them or use constraints"
            );
            report.error(path, message);
        }
        JobKind::Sysbatch if present => {
            report.warning(format!(
                "{path}: sysbatch jobs run on every feasible node, {what} have no effect"
            ));
        }
        JobKind::System | JobKind::Sysbatch | JobKind::Service | JobKind::Batch => {}
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
    if !distinct && operand.starts_with("distinct_") && OPERANDS.contains(&operand) {
        let message = format!("{operand} concerns whole instances: use it in a job or group");
        report.error(fields.at("Operand"), message);
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
    if operand != "distinct_hosts"
        && let Some(problem) = target_problem(left)
    {
        report.error(fields.at("LTarget"), problem);
    }
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
        _ if scheduler::is_target(right) => None,
        "regexp" => regex_problem(right, report),
        "version" | "semver" => scheduler::pattern_problem(operand, right),
        "=" | "==" | "is" | "!=" | "not" if right.is_empty() => {
            Some(format!("is missing: {operand} needs a value, is_set and is_not_set need none"))
        }
        _ if right.is_empty() => {
            Some(format!("is missing: {operand} needs a value to compare with"))
        }
        _ => target_problem(right),
    };
    if let Some(problem) = problem {
        report.error(fields.at("RTarget"), problem);
    }
}

/// Why a text that looks like a value of a node can never be one. None: it can, or it is a literal.
fn target_problem(text: &str) -> Option<String> {
    let is_plain = ["node.", "attr.", "meta."]
        .iter()
        .any(|kind| text.strip_prefix('$').unwrap_or(text).starts_with(kind));
    if scheduler::is_target(text) || !(is_plain || text.contains("${")) {
        return None;
    }
    let name = text.trim_start_matches('$');
    let name = name.strip_prefix('{').unwrap_or(name);
    let (name, is_whole) = match name.split_once('}') {
        Some((name, rest)) => (name, rest.is_empty() && text.starts_with("${")),
        None => (name, true),
    };
    let what = format!("{} is no value of a node", quoted(text));
    if !is_whole {
        return Some(format!("{what}: write \"${{…}}\" alone, without text around it"));
    }
    Some(match nearest_target(name) {
        Some(name) => format!("{what}: did you mean \"${{{name}}}\"?"),
        None => format!(
            "{what}: use one of {}, or ${{attr.NAME}}, ${{meta.NAME}}",
            scheduler::NODE_TARGETS.map(|name| format!("${{{name}}}")).join(", ")
        ),
    })
}

/// A text that is the same on all nodes, where they must differ.
fn no_target(text: &str) -> String {
    format!("{} is the same on all nodes: write for example \"${{node.datacenter}}\"", quoted(text))
}

/// The target that `name` is most likely meant to be.
fn nearest_target(name: &str) -> Option<String> {
    let name = name.trim();
    let inner = name.strip_prefix("node.").unwrap_or(name);
    if let Some((kind, key)) = inner.split_once('.').filter(|(_, key)| !key.is_empty()) {
        let kind = match kind {
            "attr" | "attribute" | "attributes" | "attrs" => Some("attr"),
            "meta" | "metadata" | "metas" => Some("meta"),
            _ => None,
        };
        if let Some(kind) = kind {
            return Some(format!("{kind}.{key}"));
        }
    }
    let last = name.rsplit('.').next().unwrap_or(name);
    let same_end = |target: &&&str| target.rsplit('.').next() == Some(last);
    let found = scheduler::NODE_TARGETS.iter().find(same_end).copied();
    found.or_else(|| nearest(name, scheduler::NODE_TARGETS)).map(str::to_owned)
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
    let cause = scheduler::pattern_problem("regexp", pattern)?;
    Some(format!("{} is not a regular expression: {cause}", quoted(pattern)))
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
        } else if !scheduler::is_target(attribute) {
            let problem = target_problem(attribute);
            report.error(path, problem.unwrap_or_else(|| no_target(attribute)));
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
    use crate::MESSAGES_MAX;

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

    /// What is said of a constraint, if it is refused.
    fn problem(left: &str, operand: &str, right: &str) -> Option<String> {
        let mut report = Report::default();
        let value = json!({"LTarget": left, "Operand": operand, "RTarget": right});
        let mut fields = Fields::new(&value, "c".to_owned(), &mut report).unwrap();
        drop(constraint(&mut fields, true, &mut report));
        report.errors.first().map(|error| format!("{}: {}", error.path, error.message))
    }

    /// A target that no node can have is refused in each place, with what was meant.
    #[test]
    fn targets_that_can_never_be_resolved_are_refused() {
        for (text, meant) in [
            ("$meta.rack", "${meta.rack}"),
            ("meta.rack", "${meta.rack}"),
            ("attr.kernel.name", "${attr.kernel.name}"),
            ("node.class", "${node.class}"),
            ("${node.meta.rack}", "${meta.rack}"),
            ("${node.attr.arch}", "${attr.arch}"),
            ("${attributes.arch}", "${attr.arch}"),
            ("${node.name}", "${node.unique.name}"),
            ("${node.id}", "${node.unique.id}"),
            ("${datacenter}", "${node.datacenter}"),
            ("${node.classs}", "${node.class}"),
            ("${node.class", "${node.class}"),
            ("${node.region}", "use one of"),
            ("${env.HOME}", "use one of"),
            ("${NOMAD_DC}", "use one of"),
            ("${meta.}", "use one of"),
            ("${meta.rack}-${meta.row}", "alone"),
            ("x-${meta.rack}", "alone"),
        ] {
            let left = problem(text, "=", "x").unwrap_or_else(|| panic!("{text} is taken"));
            assert!(left.starts_with("c.LTarget") && left.contains(meant), "{text}: {left}");
            let right =
                problem("${attr.x}", "!=", text).unwrap_or_else(|| panic!("{text} is taken"));
            assert!(right.starts_with("c.RTarget") && right.contains(meant), "{text}: {right}");
            assert!(problem(text, "is_set", "").is_some(), "{text}");
            assert!(problem(text, "distinct_property", "2").is_some(), "{text}");
        }
        for text in
            ["${node.unique.id}", "${attr.unique.x}", "${meta.a.b}", "literal", "metadata", "$5"]
        {
            assert_eq!(problem(text, "=", text), None);
        }
        assert_eq!(problem("${attr.x}", "regexp", "^node.[0-9]$"), None);
    }

    #[test]
    fn a_spread_needs_what_differs_between_nodes() {
        for (attribute, words) in [
            ("dc1", "the same on all nodes"),
            ("${node.region}", "is no value of a node"),
            ("${meta.rack}", ""),
        ] {
            let mut report = Report::default();
            let value = json!({"Spreads": [{"Attribute": attribute}]});
            let mut fields = Fields::new(&value, "Job".to_owned(), &mut report).unwrap();
            drop(spreads(&mut fields, JobKind::Service, &mut report));
            let said = report.errors.first().map_or("", |error| &*error.message);
            assert!(
                said.contains(words) && said.is_empty() == words.is_empty(),
                "{attribute}: {said}"
            );
        }
    }

    #[test]
    fn patterns_are_judged_as_the_scheduler_reads_them() {
        for (operand, right) in [
            ("regexp", "(?i)^CLASS[0-9]$"),
            ("regexp", r"\Qa.b\E"),
            ("regexp", "{r"),
            ("version", "~> 1.2, != 1.3"),
            ("semver", ">= 1.7"),
            ("semver", "${meta.wanted}"),
        ] {
            assert_eq!(problem("${attr.x}", operand, right), None);
        }
        for (operand, right, words) in [
            ("regexp", "a**", "nested repetition"),
            ("regexp", "(?=a)", "look-around"),
            ("version", "== 1.2", "not a version condition"),
            ("semver", "~> 1.2", "has no ~>"),
            ("semver", "", "not a version condition"),
        ] {
            let problem = problem("${attr.x}", operand, right).unwrap_or_default();
            assert!(problem.starts_with("c.RTarget") && problem.contains(words), "{problem}");
        }
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
