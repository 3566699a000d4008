//! Versions and conditions on them: the operands `version` and `semver`, with Nomad's rules.
//!
//! Both operands follow the Go library `go-version`. A version has any number of numeric parts
//! (missing parts are 0), an optional leading `v`, an optional pre-release, and optional build
//! metadata after `+`, which is ignored in comparisons. The operands differ in three things:
//!
//! | | `version` | `semver` |
//! |---|---|---|
//! | comparisons | `=` `!=` `<` `<=` `>` `>=` `~>` | the same without `~>` |
//! | pre-release of the condition | after `-`, or directly: `1.2~rc1`, `1.2beta` | after `-` only |
//! | pre-release of the node | an order without one refuses it | ordered before its release |
//!
//! For example, `1.1-beta` does not meet `>= 1.0` with `version`, but does with `semver`.
//!
//! Both operands read the version of a node in the wide form ([`Form::Wide`]).

use std::cmp::Ordering;

/// A version with fewer numeric parts is padded with zeros to this number.
const PARTS_MIN: usize = 3;
/// How many conditions, separated by `,`, a requirement may have.
const CONDITIONS_MAX: usize = 16;

/// How a pre-release may follow the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// After `-`, or directly when it begins with a letter, `-` or `~`.
    Wide,
    /// After `-` only.
    Strict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    /// The numeric parts. Invariant: at least [`PARTS_MIN`].
    parts: Vec<u64>,
    /// How many numeric parts the text had, before padding.
    written: usize,
    pre_release: String,
}

impl Version {
    fn parse(text: &str, form: Form) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, build) = match text.split_once('+') {
            Some((text, build)) => (text, Some(build)),
            None => (text, None),
        };
        if build.is_some_and(|build| !is_dotted(build)) {
            return None;
        }
        // A dot is a part of the numbers only if a digit follows.
        let bytes = text.as_bytes();
        let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let is_number =
            |at: usize| is_digit(at) || (bytes[at] == b'.' && at > 0 && is_digit(at + 1));
        let end = (0..bytes.len()).find(|at| !is_number(*at)).unwrap_or(bytes.len());
        let (numbers, rest) = text.split_at(end);
        let part = |part: &str| part.parse().ok().filter(|part| i64::try_from(*part).is_ok());
        let mut parts = numbers.split('.').map(part).collect::<Option<Vec<u64>>>()?;
        let written = parts.len();
        parts.resize(written.max(PARTS_MIN), 0);
        let pre_release = match (rest.strip_prefix('-'), form) {
            (None, _) if rest.is_empty() => "",
            (None | Some(""), Form::Wide) => rest,
            (None, Form::Strict) => return None,
            (Some(pre_release), _) => pre_release,
        };
        if !rest.is_empty() && !is_dotted(pre_release) {
            return None;
        }
        Some(Self { parts, written, pre_release: pre_release.to_owned() })
    }

    /// Compares numbers first, then pre-releases. If the versions have different numbers of parts,
    /// pre-releases are ignored, as in `go-version`.
    fn compare(&self, other: &Self) -> Ordering {
        if self.parts.len() == other.parts.len() {
            return self
                .parts
                .cmp(&other.parts)
                .then_with(|| compare_pre_releases(&self.pre_release, &other.pre_release));
        }
        let part =
            |version: &Self, position: usize| version.parts.get(position).copied().unwrap_or(0);
        let length = self.parts.len().max(other.parts.len());
        (0..length)
            .map(|position| part(self, position).cmp(&part(other, position)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    /// Whether this version may be compared with `limit` by order. A pre-release may only be
    /// compared with a pre-release of the same numbers.
    fn is_ordered_by(&self, limit: &Self) -> bool {
        self.pre_release.is_empty() || (!limit.pre_release.is_empty() && self.parts == limit.parts)
    }
}

/// Whether the text consists of parts with a dot between them, each of letters, digits, `-` and
/// `~`.
fn is_dotted(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '~');
    text.split('.').all(|part| !part.is_empty() && part.chars().all(is_legal))
}

fn compare_pre_releases(left: &str, right: &str) -> Ordering {
    match (left.is_empty(), right.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut left, mut right) = (left.split('.'), right.split('.'));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            // A missing part is less than a number and greater than a word.
            (None, Some(part)) => return missing_part(part),
            (Some(part), None) => return missing_part(part).reverse(),
            (Some(left), Some(right)) => compare_parts(left, right),
        };
        if order.is_ne() {
            return order;
        }
    }
}

fn missing_part(other: &str) -> Ordering {
    if other.parse::<i64>().is_ok() { Ordering::Less } else { Ordering::Greater }
}

fn compare_parts(left: &str, right: &str) -> Ordering {
    match (left.parse::<i64>(), right.parse::<i64>()) {
        (Ok(left), Ok(right)) => left.cmp(&right),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => left.cmp(right),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// `~>`: at least the limit, and equal in all written parts but the last.
    Pessimistic,
}

impl Comparison {
    fn split(text: &str) -> (Self, &str) {
        let text = text.trim();
        for (sign, comparison) in [
            ("~>", Self::Pessimistic),
            (">=", Self::GreaterOrEqual),
            ("<=", Self::LessOrEqual),
            ("!=", Self::NotEqual),
            (">", Self::Greater),
            ("<", Self::Less),
            ("=", Self::Equal),
        ] {
            if let Some(rest) = text.strip_prefix(sign) {
                return (comparison, rest.trim_start());
            }
        }
        (Self::Equal, text)
    }

    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual | Self::Pessimistic => order.is_ge(),
        }
    }

    /// Whether it compares by order. `version` refuses such a comparison for some pre-releases.
    fn is_order(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }
}

/// Conditions on a version, separated by `,`. All of them must hold.
#[derive(Debug)]
pub(crate) struct Requirement {
    form: Form,
    conditions: Vec<(Comparison, Version)>,
}

impl Requirement {
    /// The right side of the operand `version`.
    pub(crate) fn version(text: &str) -> Result<Self, String> {
        Self::parse(text, Form::Wide)
    }

    /// The right side of the operand `semver`.
    pub(crate) fn semver(text: &str) -> Result<Self, String> {
        Self::parse(text, Form::Strict)
    }

    fn parse(text: &str, form: Form) -> Result<Self, String> {
        let mut conditions = Vec::new();
        for part in text.split(',') {
            let (comparison, version) = Comparison::split(part);
            let part = part.trim();
            if conditions.len() == CONDITIONS_MAX {
                return Err(format!("has more than {CONDITIONS_MAX} conditions"));
            }
            if form == Form::Strict && comparison == Comparison::Pessimistic {
                return Err(format!("\"{part}\": semver has no ~>, the operator \"version\" has"));
            }
            let Some(version) = Version::parse(version, form) else {
                let example = match form {
                    Form::Wide => ">= 1.2, < 2.0",
                    Form::Strict => ">= 1.2.0, < 2.0.0-rc.1",
                };
                return Err(format!(
                    "\"{part}\" is not a version condition: write for example \"{example}\""
                ));
            };
            conditions.push((comparison, version));
        }
        Ok(Self { form, conditions })
    }

    /// Whether a node's version meets all conditions. A version that cannot be parsed meets none.
    pub(crate) fn met_by(&self, version: &str) -> bool {
        let Some(version) = Version::parse(version, Form::Wide) else { return false };
        self.conditions.iter().all(|(comparison, limit)| {
            let is_judged =
                self.form == Form::Strict || !comparison.is_order() || version.is_ordered_by(limit);
            is_judged
                && comparison.holds(version.compare(limit))
                && (*comparison != Comparison::Pessimistic || is_near(&version, limit))
        })
    }
}

/// The rest of `~>`, beside being at least `limit`.
fn is_near(version: &Version, limit: &Version) -> bool {
    let fixed = limit.written.saturating_sub(1);
    version.pre_release.is_empty() == limit.pre_release.is_empty()
        && version.parts.len() >= limit.parts.len()
        && version.parts.iter().zip(&limit.parts).take(fixed).all(|(have, want)| have == want)
        && version.parts.get(limit.parts.len() - 1) >= limit.parts.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(parse: fn(&str) -> Result<Requirement, String>, rows: &[(&str, &str, bool)]) {
        for (requirement, version, met) in rows {
            let parsed = parse(requirement).unwrap_or_else(|why| panic!("{requirement}: {why}"));
            assert_eq!(parsed.met_by(version), *met, "{version} {requirement}");
        }
    }

    /// F5: numbers.
    #[test]
    fn versions_compare_number_by_number() {
        let rows = [
            (">= 1.0, < 2.0", "1.7.3", true),
            (">= 1.0, < 2.0", "2.0.0", false),
            ("1.2", "1.2.0", true),
            ("= 1.2", "v1.2", true),
            ("=v1.2", "1.2.0", true),
            ("!= 1.2", "1.2.1", true),
            ("> 1.9", "1.10", true),
            (">= 1", "1", true),
            ("< 1.2.3.4", "1.2.3.3", true),
            ("= 1.2.3.0", "1.2.3", true),
            ("= 1.2.3.0", "1.2.3-beta", true), // of different lengths: numbers only
            ("> 1.2.3", "1.2.3.1", true),
            ("= 01.02", "1.2", true),
            ("  >=   1.7  ", "1.7.0", true),
            ("= 1.0+build1", "1.0+other", true),
            (">= 1", "not a version", false),
            (">= 1", "", false),
            (">= 1", " 1.2", false),
            (">= 1", "1.2 ", false),
            (">= 1", "1.", false),
            (">= 1", "1..2", false),
            (">= 1", "99999999999999999999", false),
        ];
        judge(Requirement::version, &rows);
        judge(Requirement::semver, &rows);
    }

    /// F5: `~>`.
    #[test]
    fn the_pessimistic_comparison_keeps_all_but_the_last_part() {
        judge(
            Requirement::version,
            &[
                ("~> 1", "9.0", true),
                ("~> 1.2", "1.9", true),
                ("~> 1.2", "2.0", false),
                ("~> 1.2", "1.1.9", false),
                ("~> 1.2.3", "1.2.9", true),
                ("~> 1.2.3", "1.3.0", false),
                ("~> 1.2.3.4", "1.2.3.9", true),
                ("~> 1.2.3.4", "1.2.4.0", false),
                ("~> 1.2.3.4", "1.2.3", false),
                ("~> 1.2", "1.3-beta", false),
                ("~> 1.2-alpha", "1.2-beta", true),
                ("~> 1.2-alpha", "1.2", false),
            ],
        );
    }

    /// F5: pre-releases of the operand `version`.
    #[test]
    fn versions_refuse_pre_releases_unless_they_are_asked_for() {
        judge(
            Requirement::version,
            &[
                (">= 0.6.1", "1.3.0-beta1", false),
                (">= 1.3.0-alpha", "1.3.0-beta1", true),
                (">= 1.3.0-alpha", "1.4.0-beta1", false),
                (">= 1.3.0-alpha", "1.4.0", true),
                ("< 1.3.0", "1.3.0-beta1", false),
                ("!= 1.3.0", "1.3.0-beta1", true),
                ("= 4.15.0-42-generic", "4.15.0-42-generic", true),
                ("= 1.2~rc1", "1.2~rc1", true),
                ("> 1.2~rc1", "1.2~rc2", true),
                ("= 1.2beta", "1.2-beta", true),
                ("= 1.2-~x", "1.2~x", true),
                ("> 1.2-beta.x", "1.2-beta", true), // a missing part is above a word
                ("> 1.2-beta", "1.2-beta.1", true), // and below a number
                ("> 1.2-beta.2", "1.2-beta.10", true),
                ("> 1.2-beta.2", "1.2-beta.x", true),
            ],
        );
    }

    /// F5: pre-releases of the operand `semver`.
    #[test]
    fn semantic_versions_order_pre_releases() {
        judge(
            Requirement::semver,
            &[
                (">= 0.6.1", "1.3.0-beta1", true),
                ("< 1.3.0", "1.3.0-beta1", true),
                ("> 1.0.0-alpha.1", "1.0.0-alpha.2", true),
                ("1.0.0", "1.0.0+build7", true),
                (">= 1.7", "1.7.0", true),
                (">= 1.0.0", "1.0", true),
                (">= v1.0.0", "v1.0.0", true),
                (">= 1.0.0", "1.0.0rc1", false),
                (">= 1.0.0-rc", "1.0.0~rc1", true),
            ],
        );
    }

    #[test]
    fn a_bad_version_condition_is_refused() {
        for text in [
            "",
            ",",
            ">= 1,",
            "nonsense",
            "== 1.2",
            "=> 1",
            ">= 1.2.",
            "1.x",
            ">= 1 2",
            "1.2+",
            "1.2_3",
            ">= 99999999999999999999",
            "^1.2",
            "1.2.-3",
        ] {
            assert!(Requirement::version(text).is_err(), "{text}");
            assert!(Requirement::semver(text).is_err(), "{text}");
        }
        for text in ["~> 1.2.3", "1.2beta", "1.2~rc1", "1.2-"] {
            assert!(Requirement::version(text).is_ok(), "{text}");
            assert!(Requirement::semver(text).is_err(), "{text}");
        }
        let many = vec!["> 1"; CONDITIONS_MAX + 1].join(",");
        assert!(Requirement::version(&many).is_err());
    }
}
